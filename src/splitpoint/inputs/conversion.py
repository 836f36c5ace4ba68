"""Raw tree to record: each value against its annotated type, every fault with its path.

`--set a.b=c` changes the raw tree first, so it passes the same checks as the file itself.
"""

import tomllib
import types
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec

from splitpoint.errors import PlanError
from splitpoint.inputs.checks import SHOWN, Checked, Problem, fail, fields_of, inside, value_faults
from splitpoint.inputs.raw import faults

T = TypeVar("T")

_SCALARS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    type(None): "nothing",
}


class _Fault:
    """Stands where a value could not be made."""


_FAULT = _Fault()


def convert(tree: object, kind: type[T], where: str, sets: Sequence[str] = ()) -> T:
    """A record of the raw tree, with `--set a.b=c` applied; every fault in one PlanError."""
    if not isinstance(tree, dict):
        raise PlanError(where, f"holds {_found(tree)}", "expected a table of keys")
    table: dict[str, Any] = _copied(tree)
    made: dict[str, str] = {}
    for text in sets:
        start, name = _apply(table, text)
        made[start] = name
    problems: list[Problem] = []
    record = _value(table, kind, "", problems)
    fail(where, [_blamed(problem, made) for problem in problems])
    return cast(T, record)


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint: the known word closest to `word`, or all of them where none is close."""
    names = list(known)
    lowered = {name.lower(): name for name in names}
    close = get_close_matches(word.lower()[:80], lowered, n=1, cutoff=0.6)
    if close:
        return f"did you mean {lowered[close[0]]!r}?"
    return "known: " + ", ".join(names) if names else ""


def _value(value: object, kind: Any, path: str, problems: list[Problem]) -> object:
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *rules = get_args(kind)
        made = _value(value, inner, path, problems)
        faults = [] if made is _FAULT else value_faults(made, rules, path)
        problems += faults
        return _FAULT if faults else made
    if origin in (Union, types.UnionType):
        return _of_union(value, kind, path, problems)
    if origin is Literal:
        return _of_words(value, get_args(kind), kind, path, problems)
    if origin is tuple and isinstance(value, list):
        return _of_list(value, get_args(kind), path, problems)
    if origin is dict and isinstance(value, dict):
        of = get_args(kind)[1]
        table = {key: _value(item, of, inside(path, key), problems) for key, item in value.items()}
        return _FAULT if _FAULT in table.values() else table
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(value, dict):
        return _of_table(value, kind, path, problems)
    if kind is float and type(value) is int:
        return float(value)
    if kind in _SCALARS and type(value) is kind:
        return value
    problems.append(Problem(path, f"found {_found(value)}", _expected(kind, value)))
    return _FAULT


def _of_table(
    table: dict[str, object], kind: type[msgspec.Struct], path: str, problems: list[Problem]
) -> object:
    fields = fields_of(kind)
    values: dict[str, object] = {}
    tag_field = kind.__struct_config__.tag_field
    unknown = [key for key in table if key not in fields and key != tag_field]
    for key in unknown[:SHOWN]:
        hint = nearest(key, fields)
        problems.append(Problem(inside(path, key), "unknown key", hint))
    for name, field in fields.items():
        if name in table:
            values[name] = _value(table[name], field.type, inside(path, name), problems)
        elif field.required:
            problems.append(Problem(inside(path, name), "is missing", _expected(field.type)))
            values[name] = _FAULT
    if unknown or _FAULT in values.values():
        return _FAULT
    record = kind(**values)
    if isinstance(record, Checked):
        faults = [problem.under(path) for problem in record.problems()]
        problems += faults
        return _FAULT if faults else record
    return record


def _of_list(
    items: list[object], of: tuple[Any, ...], path: str, problems: list[Problem]
) -> object:
    if of[-1] is not ... and len(items) != len(of):
        problems.append(Problem(path, f"has {len(items)} entries", f"expected {len(of)}"))
        return _FAULT
    kinds = [of[0]] * len(items) if of[-1] is ... else list(of)
    before = len(problems)
    made = []
    for index, (item, kind) in enumerate(zip(items, kinds, strict=True)):
        made.append(_value(item, kind, inside(path, str(index)), problems))
        if len(problems) - before > SHOWN:
            break
    return _FAULT if len(problems) > before else tuple(made)


def _of_union(value: object, kind: Any, path: str, problems: list[Problem]) -> object:
    fitting = [part for part in get_args(kind) if _same_shape(value, part)]
    if isinstance(value, dict) and len(fitting) > 1:
        return _of_tagged(value, fitting, path, problems)
    if len(fitting) == 1:
        return _value(value, fitting[0], path, problems)
    for part in fitting:
        made = _value(value, part, path, [])
        if made is not _FAULT:
            return made
    if isinstance(value, str) and fitting:
        return _of_words(value, _words(kind), kind, path, problems)
    problems.append(Problem(path, f"found {_found(value)}", _expected(kind, value)))
    return _FAULT


def _of_tagged(
    table: dict[str, object], kinds: list[Any], path: str, problems: list[Problem]
) -> object:
    tags = {kind.__struct_config__.tag: kind for kind in kinds}
    tag_field = kinds[0].__struct_config__.tag_field
    tag = table.get(tag_field)
    if isinstance(tag, str) and tag in tags:
        return _value(table, tags[tag], path, problems)
    what = "is missing" if tag is None else f"found {_found(tag)}"
    problems.append(Problem(inside(path, tag_field), what, "known: " + ", ".join(map(str, tags))))
    return _FAULT


def _of_words(
    value: object, words: tuple[object, ...], kind: Any, path: str, problems: list[Problem]
) -> object:
    for word in words:
        if value == word and type(value) is type(word):
            return word
    hint = _expected(kind, value)
    if isinstance(value, str):
        hint = nearest(value, [str(word) for word in words if word is not None])
    problems.append(Problem(path, f"found {_found(value)}", hint))
    return _FAULT


def _same_shape(value: object, kind: Any) -> bool:
    kind = _bare(kind)
    origin = get_origin(kind)
    struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    if isinstance(value, dict):
        return struct or origin is dict
    if isinstance(value, list):
        return origin is tuple
    if origin is Literal:
        return any(type(value) is type(word) for word in get_args(kind))
    return kind is type(value) or (kind is float and type(value) is int)


def _bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _words(kind: Any) -> tuple[object, ...]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        return tuple(word for part in get_args(kind) for word in _words(part))
    return ()


def _expected(kind: Any, value: object = None) -> str:
    if type(value) is float and value.is_integer() and kind is int:
        return f"write {int(value)}"
    return f"expected {_described(kind)}"


def _described(kind: Any) -> str:
    kind = _bare(kind)
    origin = get_origin(kind)
    if kind in _SCALARS:
        return _SCALARS[kind]
    if origin is tuple:
        return f"a list, each entry {_described(get_args(kind)[0])}"
    if origin is Literal:
        return "one of " + ", ".join(str(word) for word in get_args(kind))
    if origin in (Union, types.UnionType):
        parts = [part for part in get_args(kind) if part is not type(None)]
        words = [str(word) for part in parts for word in _words(part)]
        others = [_described(part) for part in parts if get_origin(part) is not Literal]
        return " or ".join(others + (["one of " + ", ".join(words)] if words else []))
    return "a table"


def _found(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _apply(tree: dict[str, Any], text: str) -> tuple[str, str]:
    """Set one value in the tree; the path from which it was made, and the whole path."""
    name, equals, written = text.partition("=")
    name = name.strip()
    keys = name.split(".")
    if not equals or not all(keys):
        raise PlanError(f"--set {text[:60]}", "is not of the form a.b=c")
    start = name
    holder: Any = tree
    for depth, key in enumerate(keys[:-1], start=1):
        if isinstance(holder, dict) and key not in holder:
            start = min(start, ".".join(keys[:depth]), key=len)
            holder[key] = {}
        holder = holder[_key(holder, key, name)]
    value = _written(written.strip())
    fail(f"--set {name}", list(faults(value)))
    holder[_key(holder, keys[-1], name)] = value
    return start, name


def _key(holder: object, key: str, name: str) -> str | int:
    if isinstance(holder, dict):
        return key
    if isinstance(holder, list):
        if key.isascii() and key.isdigit() and int(key[:9]) < len(holder):
            return int(key)
        raise PlanError(f"--set {name}", f"no entry {key!r}", f"entries 0 to {len(holder) - 1}")
    raise PlanError(f"--set {name}", f"cannot set {key!r} inside {_found(holder)}")


def _written(text: str) -> object:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = parsed.get("value")
    known = isinstance(value, bool | int | float | str | list | dict)
    return value if known and len(parsed) == 1 else text


def _blamed(problem: Problem, made: dict[str, str]) -> Problem:
    starts = [start for start in made if f"{problem.path}.".startswith(f"{start}.")]
    if not starts:
        return problem
    name = made[max(starts, key=len)]
    within = f"{problem.path}.".startswith(f"{name}.")
    return problem._replace(path=f"--set {problem.path if within else name}")


def _copied(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _copied(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [_copied(item) for item in tree]
    return tree
