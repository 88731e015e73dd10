"""The one exception that speaks to users."""


class UserError(ValueError):
    """Bad input by the user. Its message is one line that names the fix; the CLI exits with 2."""
