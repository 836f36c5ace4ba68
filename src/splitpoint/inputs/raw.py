"""Text of a TOML, YAML or JSON file to a raw tree of dicts, lists and scalars.

Stricter than the formats are: no key twice, no NaN, nothing past 64 bits, 64 levels or two
million values, no YAML anchors or tags, and YAML 1.2 words (so `no` is text, `5e-2` a number).
"""

import json
import math
import re
import tomllib
from collections.abc import Iterator
from typing import NoReturn

from splitpoint.errors import PlanError
from splitpoint.inputs.checks import Problem, fail, inside

FORMATS = (".toml", ".yaml", ".yml", ".json")

# A parsed value takes up to about 300 bytes, so this many stay under 600 MiB.
MAX_VALUES = 2_000_000
MAX_DEPTH = 64
MAX_INT = 2**63 - 1

Table = dict[str, object]

_YAML_WORDS = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_YAML_INT = re.compile(r"[-+]?[0-9]{1,40}")
_YAML_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_YAML_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_QUOTED = re.compile(r"\"(?:[^\"\\\n]|\\.)*+[\"\n]?|'[^'\n]*+['\n]?")


def parse(where: str, suffix: str, text: str) -> object:
    """The raw tree of a text in the format of the suffix."""
    if suffix == ".json":
        tree = _json(where, text)
    elif suffix == ".toml":
        tree = _toml(where, text)
    else:
        tree = _yaml(where, text)
    fail(where, list(faults(tree)))
    return tree


def faults(tree: object) -> Iterator[Problem]:
    """What no format may bring in: depth, numbers that are not finite or too large, bad text."""
    stack: list[tuple[object, str, int]] = [(tree, "", 0)]
    while stack:
        value, path, depth = stack.pop()
        if depth > MAX_DEPTH:
            yield Problem("", f"is nested deeper than {MAX_DEPTH} levels", "is it the right file?")
            return
        if isinstance(value, dict):
            if not all(map(_whole_text, value)):
                yield Problem(path, "a key holds half of a surrogate pair")
                return
            below = [(item, inside(path, key), depth + 1) for key, item in value.items()]
            stack += reversed(below)
        elif isinstance(value, list):
            below = [(item, inside(path, str(i)), depth + 1) for i, item in enumerate(value)]
            stack += reversed(below)
        elif isinstance(value, float) and not math.isfinite(value):
            yield Problem(path, f"{value} is not a finite number")
        elif isinstance(value, int) and abs(value) > MAX_INT:
            yield Problem(path, "the number is past 2^63")
        elif isinstance(value, str) and not _whole_text(value):
            yield Problem(path, "the text holds half of a surrogate pair")


def _json(where: str, text: str) -> object:
    if text.count(",") + text.count("[") + text.count("{") > MAX_VALUES:
        raise _too_many(where)

    def table(items: list[tuple[str, object]]) -> Table:
        made = dict(items)
        if len(made) < len(items):
            raise _twice(where, _first_twice([key for key, _ in items]))
        return made

    def constant(name: str) -> NoReturn:
        raise PlanError(where, f"holds {name}", "give a finite number")

    try:
        return json.loads(text, object_pairs_hook=table, parse_constant=constant)
    except json.JSONDecodeError as error:
        place = f"{where}: line {error.lineno}"
        raise PlanError(place, f"is not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise _too_deep(where) from None
    except ValueError:
        raise PlanError(where, "holds a number of more than 4,300 digits") from None


def _toml(where: str, text: str) -> object:
    # tomllib takes quadratic time in the parts of one dotted key, so look before it does.
    pieces = re.split(r"[=,\[\]{}\n#]", _QUOTED.sub("quoted", text))
    if any(piece.count(".") > MAX_DEPTH for piece in pieces):
        raise _too_deep(where)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise _too_deep(where) from None
    except ValueError as error:
        # TOMLDecodeError is one; an impossible date or a number of 5,000 digits is another.
        raise PlanError(where, f"is not TOML: {str(error)[:200]}") from None


def _yaml(where: str, text: str) -> object:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    builder = _YamlTree(where)
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{where}: line {mark.line + 1}" if mark else where
        raise PlanError(place, f"is not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        words = " ".join(str(error).split())
        raise PlanError(where, f"is not YAML: {words}") from None
    except RecursionError:
        raise _too_deep(where) from None
    return builder.root


class _YamlTree:
    """Builds the tree from parser events: no recursion, and nothing that the text can call."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.root: object = None
        self.documents = 0
        self.values = 0
        self.open: list[Table | list[object]] = []
        self.keys: list[str | None] = []

    def take(self, event: object) -> None:
        import yaml

        if isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise PlanError(self.where, "holds more than one YAML document", "keep one")
        elif isinstance(event, yaml.AliasEvent):
            raise self._refused(event, f"refers to an anchor (*{event.anchor!s:.60})")
        elif isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
            if event.anchor is not None:
                raise self._refused(event, f"sets an anchor (&{event.anchor[:60]})")
            if event.tag is not None and event.tag != "!":
                raise self._refused(event, f"has a tag ({event.tag[:60]!r})")
            if isinstance(event, yaml.ScalarEvent):
                self._scalar(event.value, event.implicit[0])
            else:
                self._begin({} if isinstance(event, yaml.MappingStartEvent) else [])
        elif isinstance(event, yaml.CollectionEndEvent):
            self.open.pop()
            self.keys.pop()

    def _scalar(self, text: str, plain: bool) -> None:
        if self.open and isinstance(self.open[-1], dict) and self.keys[-1] is None:
            if text in self.open[-1]:
                raise _twice(self.where, text)
            self.keys[-1] = text
        else:
            self._place(_yaml_scalar(self.where, text) if plain else text)

    def _begin(self, made: Table | list[object]) -> None:
        self._place(made)
        self.open.append(made)
        self.keys.append(None)
        if len(self.open) > MAX_DEPTH:
            raise _too_deep(self.where)

    def _place(self, value: object) -> None:
        self.values += 1
        if self.values > MAX_VALUES:
            raise _too_many(self.where)
        if not self.open:
            self.root = value
            return
        holder, key = self.open[-1], self.keys[-1]
        if isinstance(holder, list):
            holder.append(value)
        elif key is None:
            raise PlanError(self.where, "has a list or a table as a key", "keys are words")
        else:
            holder[key] = value
            self.keys[-1] = None

    def _refused(self, event: object, what: str) -> PlanError:
        line = event.start_mark.line + 1  # type: ignore[attr-defined]
        return PlanError(f"{self.where}: line {line}", what, "write the value out")


def _yaml_scalar(where: str, text: str) -> object:
    if text in _YAML_WORDS:
        return _YAML_WORDS[text]
    if _YAML_INT.fullmatch(text):
        return int(text)
    if _YAML_FLOAT.fullmatch(text):
        return float(text)
    if _YAML_NOT_FINITE.fullmatch(text):
        raise PlanError(where, f"holds {text}", "give a finite number")
    return text


def _whole_text(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def _first_twice(keys: list[str]) -> str:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    raise AssertionError("no key is there twice")


def _twice(where: str, key: str) -> PlanError:
    return PlanError(where, f"key {key[:60]!r} is given twice", "keep one of them")


def _too_deep(where: str) -> PlanError:
    return PlanError(where, f"is nested deeper than {MAX_DEPTH} levels", "is it the right file?")


def _too_many(where: str) -> PlanError:
    return PlanError(where, f"holds more than {MAX_VALUES:,} values", "is it the right file?")
