"""Reading a config.json that nobody vouches for: typed, bounded look-ups that collect problems.

A look-up never raises: it notes what was wrong and returns a stand-in, so that one reading reports
every bad key at once. Keys that were read are remembered: what was left over is judged at the end.
"""

import math
from collections.abc import Mapping

MAX_DIM = 2**31 - 1  # assumed: engines index tensors with 32-bit integers
MAX_LAYERS = 2_000  # assumed: over ten times the deepest published decoder (126 layers)
MAX_EXPERTS = 65_536  # assumed: seventy times the most experts a published layer has

Value = Mapping[str, object]


class Keys:
    """One table of a config.json with the problems found in it so far."""

    def __init__(self, table: Value, path: str = "", problems: list[str] | None = None) -> None:
        self.values = table
        self.path = path
        self.problems: list[str] = [] if problems is None else problems
        self.used: set[str] = set()

    def problem(self, key: str, what: str) -> None:
        """Note that `key` is wrong."""
        self.problems.append(f"{self.path}{tidy(key)}: {what}")

    def get(self, *names: str) -> object:
        """The first of `names` that is there and not null, else None."""
        return next((self.values[n] for n in self._present(names)), None)

    def has(self, *names: str) -> bool:
        """Whether one of `names` is there and not null."""
        return bool(self._present(names))

    def count(self, *names: str, default: int | None = None, low: int = 1, high: int = 0) -> int:
        """A whole number in `low`..`high` under the first of `names` that is there."""
        found = self.optional(*names, low=low, high=high)
        if found is not None:
            return found
        if default is None:
            if not self.has(*names):
                self.problem(names[0], "missing")
            return low
        return default

    def optional(self, *names: str, low: int = 1, high: int = 0) -> int | None:
        """As `count`; None where none of `names` is there or its value is wrong."""
        name = next(iter(self._present(names)), None)
        return None if name is None else self._whole(name, self.values[name], low, high or MAX_DIM)

    def flag(self, *names: str, default: bool = False) -> bool:
        """True or false under the first of `names` that is there."""
        value = self.get(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.problem(names[0], f"{shown(value)} is not true or false")
            return default
        return value

    def word(self, *names: str) -> str:
        """A string under the first of `names` that is there, else ''."""
        value = self.get(*names)
        if value is None:
            return ""
        if not isinstance(value, str):
            self.problem(names[0], f"{shown(value)} is not a string")
            return ""
        return value

    def words(self, *names: str) -> tuple[str, ...]:
        """A list of strings under the first of `names` that is there, else ()."""
        values = self._list(names)
        if any(not isinstance(v, str) for v in values):
            self.problem(names[0], "not a list of strings")
            return ()
        return tuple(v for v in values if isinstance(v, str))

    def counts(self, *names: str, low: int = 0, high: int = 0) -> tuple[int, ...]:
        """A list of whole numbers under the first of `names` that is there, else ()."""
        numbers = [self._whole(names[0], v, low, high or MAX_DIM) for v in self._list(names)]
        return tuple(n for n in numbers if n is not None)

    def table(self, *names: str) -> "Keys":
        """The table under the first of `names` that is there, else an empty one."""
        value = self.get(*names)
        if value is not None and not isinstance(value, Mapping):
            self.problem(names[0], f"{shown(value)} is not a table")
        table = value if isinstance(value, Mapping) else {}
        return Keys(table, f"{self.path}{names[0]}.", self.problems)

    def tables(self, name: str) -> list["Keys"]:
        """The list of tables under `name`, else []."""
        values = self._list((name,))
        if any(not isinstance(v, Mapping) for v in values):
            self.problem(name, "not a list of tables")
            return []
        found = [v for v in values if isinstance(v, Mapping)]
        return [Keys(v, f"{self.path}{name}[{i}].", self.problems) for i, v in enumerate(found)]

    def per_layer(self, name: str, layers: int) -> tuple[str, ...]:
        """A list of strings, one per layer, else ()."""
        found = self.words(name)
        return found if self._fits(name, len(found), layers) else ()

    def counts_per_layer(self, name: str, layers: int) -> tuple[int, ...]:
        """A list of whole numbers, one per layer (more are cut off), else ()."""
        found = self.counts(name)
        return found[:layers] if self._fits(name, len(found), layers) else ()

    def _fits(self, name: str, length: int, layers: int) -> bool:
        if 0 < length < layers:
            self.problem(name, f"{length} entries for {layers} layers")
        return length >= layers

    def _present(self, names: tuple[str, ...]) -> list[str]:
        self.used.update(names)
        return [n for n in names if self.values.get(n) is not None]

    def _list(self, names: tuple[str, ...]) -> list[object]:
        value = self.get(*names)
        if value is None:
            return []
        if not isinstance(value, list):
            self.problem(names[0], f"{shown(value)} is not a list")
            return []
        if len(value) > MAX_LAYERS:
            self.problem(names[0], f"{len(value)} entries, at most {MAX_LAYERS:,} can be right")
            return []
        return value

    def _whole(self, name: str, value: object, low: int, high: int) -> int | None:
        whole = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
        if isinstance(value, bool) or not whole or not isinstance(value, int | float):
            self.problem(name, f"{shown(value)} is not a whole number")
            return None
        if value != int(value) or not low <= value <= high:
            self.problem(name, f"{shown(value)} is not a whole number from {low:,} to {high:,}")
            return None
        return int(value)


def shown(value: object) -> str:
    """A value as an error message prints it, cut where it is long."""
    if isinstance(value, list | tuple | Mapping):
        return f"a {'table' if isinstance(value, Mapping) else 'list'} of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**30:
        return "a number of more than 30 digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def tidy(name: str) -> str:
    """A foreign name as it may stand in one printed line."""
    return name if name.isprintable() and len(name) <= 80 else shown(name)
