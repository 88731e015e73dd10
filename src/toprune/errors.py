"""Errors for the user: one line that names the fix."""

LONGEST = 1000  # characters of a message: an untrusted file may contain very long names


class UserError(ValueError):
    """Bad input. The message is one line that names the fix; the CLI prints it and exits with 2.

    It stays one printable line whatever it quotes: names and messages of libraries contain line
    breaks, and an untrusted file may contain terminal control characters.
    """

    def __init__(self, message: str):
        if len(message) > LONGEST:  # the problem comes first, the fix last
            message = f"{message[: LONGEST // 2]} ... {message[-LONGEST // 2 :]}"
        plain = "".join(sign if sign.isprintable() else " " for sign in message)
        super().__init__(" ".join(plain.split()))


class OutOfReach(UserError):
    """No plan of this model meets the budget. A smaller budget or another method may still work, so
    a search goes on to its next candidate and a comparison to its next run."""
