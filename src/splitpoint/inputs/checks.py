"""What a record says about its own values, so that every fault of a file is told at once.

A record with a `problems` method is checked as soon as it is built by `files.read`; one built in
code is checked by `require`.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from splitpoint.errors import PlanError

SHOWN = 20


class Problem(NamedTuple):
    """One fault: its `path` in the record or file, `what` was found, a `hint` of what would do."""

    path: str
    what: str
    hint: str = ""

    def under(self, parent: str) -> "Problem":
        """The same fault seen from the table that holds the record."""
        return self._replace(path=".".join(part for part in (parent, self.path) if part))

    def __str__(self) -> str:
        tail = f" ({self.hint})" if self.hint else ""
        return f"{self.path}: {self.what}{tail}" if self.path else f"{self.what}{tail}"


@runtime_checkable
class Checked(Protocol):
    """A record that can judge its own values."""

    def problems(self) -> Iterable[Problem]:
        """Every fault of the values, none if they will do."""
        ...


def require(where: str, record: Checked) -> None:
    """Raise `PlanError` with every fault of the record."""
    fail(where, tuple(record.problems()))


def fail(where: str, problems: Sequence[Problem]) -> None:
    """Raise one `PlanError` that tells every problem on one line; do nothing without any."""
    if not problems:
        return
    first = problems[0]
    if len(problems) == 1:
        inside = f"{where}: {first.path}" if first.path else where
        raise PlanError(inside, first.what, first.hint)
    words = [str(problem) for problem in problems[:SHOWN]]
    if len(problems) > SHOWN:
        words.append(f"and {len(problems) - SHOWN} more")
    raise PlanError(where, "; ".join(words))


def positive(path: str, value: float | None) -> list[Problem]:
    """A fault unless the value is above zero or None."""
    if value is None or value > 0:
        return []
    return [Problem(path, f"{value} is not above 0")]


def at_least(path: str, value: float | None, low: float) -> list[Problem]:
    """A fault unless the value is None or `low` at least."""
    if value is None or value >= low:
        return []
    return [Problem(path, f"{value} is too small", f"{low} at least")]


def within(path: str, value: float | None, low: float, high: float) -> list[Problem]:
    """A fault unless the value is None or in [low, high]."""
    if value is None or low <= value <= high:
        return []
    return [Problem(path, f"{value} is out of range", f"from {low} to {high}")]


def each(path: str, values: object) -> list[tuple[str, float]]:
    """One number or a list of them, each with its path."""
    if isinstance(values, tuple):
        return [(f"{path}.{index}", value) for index, value in enumerate(values)]
    if isinstance(values, int | float) and not math.isnan(values):
        return [(path, values)]
    return []
