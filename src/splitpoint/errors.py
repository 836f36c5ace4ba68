"""The one error that a user is meant to see.

It names the place (a file and the path inside it, or a command-line option), what was found
there, and what would do. `cli` prints it as one line and leaves with exit code 2.
"""

from collections.abc import Iterator
from contextlib import contextmanager


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


@contextmanager
def standing_in(place: str) -> Iterator[None]:
    """What is wrong inside stands in `place`: a file, or a part of it."""
    try:
        yield
    except PlanError as error:
        raise PlanError(f"{place}: {error.where}", error.what, error.hint) from None


def printable(text: str) -> str:
    """The text on one line, without what could paint a terminal or break an encoder."""
    if text.isprintable():
        return text
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(escaped)


class OutsideError(Exception):
    """A failure that is not the user's input: an engine, the network, the disk (exit code 1)."""
