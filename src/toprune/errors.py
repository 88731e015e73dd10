"""The one exception that speaks to users."""

LONGEST = 1000  # characters of a message: a hostile file may have whole books to be quoted from


class UserError(ValueError):
    """Bad input by the user. Its message is one line that names the fix; the CLI exits with 2.

    One line whatever is quoted in it: names and libraries' own messages come with line breaks,
    and a file from elsewhere with signs that steer a terminal or are no characters at all.
    """

    def __init__(self, message: str):
        if len(message) > LONGEST:  # what is wrong stands first, what to do about it last
            message = f"{message[: LONGEST // 2]} ... {message[-LONGEST // 2 :]}"
        plain = "".join(sign if sign.isprintable() else " " for sign in message)
        super().__init__(" ".join(plain.split()))
