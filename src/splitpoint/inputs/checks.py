"""What values may be, so that every fault of a file is told at once.

A range stands in the annotation of its field, as a msgspec `Meta` (so it is in the JSON schema
too) or a `Rule`; what several fields say together is judged by the record's `problems`.
"""

import re
import types
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    Union,
    get_args,
    get_origin,
    runtime_checkable,
)

import msgspec

from splitpoint.errors import PlanError, printable

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


class Rule(NamedTuple):
    """What one value must be beside its type and range, as metadata of an annotation."""

    faults: Callable[[Any], list[Problem]]


@runtime_checkable
class Checked(Protocol):
    """A record that can judge what its fields say together."""

    def problems(self) -> Iterable[Problem]:
        """Every fault of the record, none if it will do."""
        ...


def require(where: str, record: msgspec.Struct) -> None:
    """Raise `PlanError` with every fault of a record that was made in code."""
    fail(where, _judged(record, type(record), ""))


def fail(where: str, problems: Sequence[Problem]) -> None:
    """Raise one `PlanError` that tells every problem on one line; do nothing without any."""
    if not problems:
        return
    first = problems[0]
    if len(problems) == 1:
        place = f"{where}: {first.path}" if first.path else where
        raise PlanError(place, first.what, first.hint)
    words = [str(problem) for problem in problems[:SHOWN]]
    if len(problems) > SHOWN:
        words.append(f"and {len(problems) - SHOWN} more")
    raise PlanError(where, "; ".join(words))


def inside(path: str, key: str) -> str:
    """The path of a key inside `path`, short and on one line whatever the key holds."""
    shown = printable(key)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return f"{path}.{shown}" if path else shown


def value_faults(value: object, rules: Iterable[object], path: str) -> list[Problem]:
    """The faults of one value by the metadata of its annotation."""
    faults: list[Problem] = []
    for rule in rules:
        if isinstance(rule, Rule):
            faults += [fault.under(path) for fault in rule.faults(value)]
        elif isinstance(rule, msgspec.Meta) and not _meets(value, rule):
            faults.append(Problem(path, *_words(value, rule)))
    return faults


@cache
def fields_of(kind: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """The fields of a record by their name in a file, annotations resolved."""
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _meets(value: Any, meta: msgspec.Meta) -> bool:
    if isinstance(value, str | tuple):
        low, high = meta.min_length or 0, meta.max_length
        if not low <= len(value) <= (len(value) if high is None else high):
            return False
        return meta.pattern is None or re.search(meta.pattern, str(value)) is not None
    return (
        (meta.ge is None or value >= meta.ge)
        and (meta.gt is None or value > meta.gt)
        and (meta.le is None or value <= meta.le)
        and (meta.lt is None or value < meta.lt)
    )


def _words(value: Any, meta: msgspec.Meta) -> tuple[str, str]:
    if isinstance(value, str | tuple) and not value:
        return "is empty", meta.description or ""
    if isinstance(value, str):
        return f"found {value[:60]!r}", meta.description or ""
    if isinstance(value, tuple):
        return f"has {len(value)} entries", f"{meta.max_length} at most"
    return f"{value} is out of range", _range(meta)


def _range(meta: msgspec.Meta) -> str:
    ge, gt, le, lt = (
        None if bound is None else f"{bound:g}" if isinstance(bound, float) else str(bound)
        for bound in (meta.ge, meta.gt, meta.le, meta.lt)
    )
    if ge and le:
        return f"from {ge} to {le}"
    if gt and lt:
        return f"between {gt} and {lt}"
    low = f"{ge} at least" if ge else f"above {gt}" if gt else ""
    high = f"up to {le}" if le else f"below {lt}" if lt else ""
    return ", ".join(part for part in (low, high) if part)


def _judged(value: Any, kind: Any, path: str) -> list[Problem]:
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *rules = get_args(kind)
        return _judged(value, inner, path) + value_faults(value, rules, path)
    if origin in (Union, types.UnionType):
        part = next((part for part in get_args(kind) if _is(value, part)), None)
        return _judged(value, part, path)
    if origin is tuple:
        kinds = get_args(kind)
        each = [kinds[0]] * len(value) if kinds[-1] is ... else kinds
        pairs = enumerate(zip(value, each, strict=True))
        return [fault for i, (item, of) in pairs for fault in _judged(item, of, f"{path}.{i}")]
    if not isinstance(value, msgspec.Struct):
        return []
    faults = [
        fault
        for name, field in fields_of(type(value)).items()
        for fault in _judged(getattr(value, field.name), field.type, inside(path, name))
    ]
    if not faults and isinstance(value, Checked):
        faults = [fault.under(path) for fault in value.problems()]
    return faults


def _is(value: object, kind: Any) -> bool:
    origin = get_origin(kind)
    if origin is Annotated:
        return _is(value, get_args(kind)[0])
    if origin is Literal:
        return value in get_args(kind)
    if origin is not None:
        return isinstance(value, origin)
    return isinstance(value, kind) or (kind is float and isinstance(value, int))
