"""The one error that a user is meant to see.

It names the place (a file and the path inside it, or a command-line option), what was found
there, and what would do. `cli` prints it as one line and leaves with exit code 2.
"""


class PlanError(Exception):
    """A wrong input: `where` it stands, `what` was found, and a `hint` of what would do."""

    def __init__(self, where: str, what: str, hint: str = "") -> None:
        self.where = where
        self.what = what
        self.hint = hint
        # The three parts, so that the error survives the way back from a worker process.
        super().__init__(where, what, hint)

    def __str__(self) -> str:
        tail = f" ({self.hint})" if self.hint else ""
        return printable(f"{self.where}: {self.what}{tail}")


def printable(text: str) -> str:
    """The text on one line, without what could paint a terminal or break an encoder."""
    if text.isprintable():
        return text
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(escaped)


class OutsideError(Exception):
    """A failure that is not the user's input: an engine, the network, the disk (exit code 1)."""
