"""Fields of a foreign result file: taken by name, one at a time, each error naming its field.

JSON is decoded a field at a time, so that texts and token times that nobody asks for are skipped
over and never built. Every number is finite and not negative.
"""

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from splitpoint.errors import PlanError
from splitpoint.inputs import files

T = TypeVar("T")
Floats = NDArray[np.float64]

# Assumed: far above a benchmark of 100,000 requests with every token's time.
MAX_JSON = 512 * 1024**2
MAX_CSV = 64 * 1024**2
MAX_ROWS = 100_000
# What a time or a rate of any run stays below, in any unit (assumed), and a moment since 1970 in
# nanoseconds; columns of tokens hold 32 bits.
MOST = 1e12
MOST_NS = 1e19
MOST_COUNT = 2.0**31 - 1


class Fields:
    """The fields of one JSON object or CSV row: of which file, and under which path inside it."""

    def __init__(self, file: str, inside: str, fields: dict[str, msgspec.Raw]) -> None:
        self.file = file
        self.inside = inside
        self._fields = fields

    def __contains__(self, name: str) -> bool:
        return name in self._fields and bytes(self._fields[name]) != b"null"

    def place(self, name: str) -> str:
        """Where a field stands, for an error."""
        return f"{self.file}: {self.inside}.{name}" if self.inside else f"{self.file}: {name}"

    def number(self, name: str, most: float = MOST) -> float:
        """A number that must be there."""
        found = self.optional(name, most)
        if found is None:
            raise PlanError(self.place(name), "is missing", "expected a number")
        return found

    def optional(self, name: str, most: float = MOST) -> float | None:
        """A number, or None where the field is absent or null."""
        if name not in self:
            return None
        return _sane(self._decoded(name, float), self.place(name), most)

    def count(self, name: str) -> int:
        """A whole number that must be there."""
        found = self.number(name, MOST_COUNT)
        if found != int(found):
            raise PlanError(self.place(name), f"is {found:g}", "expected a whole number")
        return int(found)

    def text(self, name: str) -> str | None:
        """Text, or None where there is none or something else."""
        try:
            return msgspec.json.decode(self._fields[name], type=str) if name in self else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def true(self, name: str) -> bool:
        """Whether the field says true, as JSON or as the word."""
        return name in self and bytes(self._fields[name]).strip(b'"').lower() == b"true"

    def numbers(self, name: str, most: float = MOST) -> Floats:
        """A list of numbers that must be there."""
        values = np.array(self._decoded(name, list[float]), dtype=np.float64)
        return _sane_all(values, self.place(name), most)

    def sums(self, name: str) -> Floats:
        """The sum of each list of a list of lists of numbers that must be there."""
        sums = np.array([sum(part) for part in self._decoded(name, list[list[float]])], np.float64)
        return _sane_all(sums, self.place(name), MOST)

    def words(self, name: str) -> list[str]:
        """A list of texts that must be there."""
        return self._decoded(name, list[str])

    def inner(self, name: str) -> "Fields":
        """The fields of an object that must be there."""
        raw = self._decoded(name, dict[str, msgspec.Raw])
        return Fields(self.file, f"{self.inside}.{name}" if self.inside else name, raw)

    def is_object(self, name: str) -> bool:
        """Whether the field is an object."""
        return name in self and bytes(self._fields[name]).startswith(b"{")

    def rows(self, name: str) -> "list[Fields]":
        """The fields of each object of a list that must be there."""
        inside = f"{self.inside}.{name}" if self.inside else name
        return _rows(self.file, inside, self._decoded(name, list[dict[str, msgspec.Raw]]))

    def _decoded(self, name: str, kind: type[T]) -> T:
        if name not in self._fields:
            raise PlanError(self.place(name), "is missing")
        return decoded(self._fields[name], kind, self.place(name))


def decoded(content: bytes | msgspec.Raw, kind: type[T], where: str) -> T:
    """JSON of a kind, or a PlanError that names the place inside it."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        what, _, inside = str(error).partition(" - at `$")
        raise PlanError(where + inside.removesuffix("`"), what[:1].lower() + what[1:]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PlanError(where, f"is not JSON: {error}", "NaN and Infinity are not either") from None


def json_object(path: Path) -> Fields | list[Fields]:
    """The fields of a JSON file's object, or of each object of its list."""
    content = files.content(path, MAX_JSON).lstrip()
    where = str(path)
    if content.startswith(b"["):
        return _rows(where, "", decoded(content, list[dict[str, msgspec.Raw]], where))
    return Fields(where, "", decoded(content, dict[str, msgspec.Raw], where))


def json_lines(path: Path) -> Iterator[Fields]:
    """The fields of each line of a JSON Lines file; empty lines are skipped."""
    for number, line in enumerate(files.open_text(path), start=1):
        if line.strip():
            where = f"{path}: line {number}"
            yield Fields(where, "", decoded(line.encode(), dict[str, msgspec.Raw], where))


def csv_rows(path: Path) -> list[Fields]:
    """The fields of each row of a CSV file with a header; lines that open with # are skipped."""
    lines = (line for line in files.open_text(path, MAX_CSV) if not line.startswith("#"))
    try:
        table = csv.reader(lines, strict=True)
        header = next(table, [])
        rows = []
        for number, row in enumerate(table, start=1):
            if len(row) != len(header):
                what = f"has {len(row)} fields where {len(header)} are due"
                raise PlanError(f"{path}: row {number}", what)
            if number > MAX_ROWS:
                raise PlanError(str(path), f"has more than {MAX_ROWS:,} rows")
            cells = {name: msgspec.Raw(_cell(cell)) for name, cell in zip(header, row, strict=True)}
            rows.append(Fields(f"{path}: row {number}", "", cells))
    except csv.Error as error:
        raise PlanError(str(path), f"is not CSV: {error}") from None
    return rows


def _cell(text: str) -> bytes:
    """A cell as JSON: nothing, a number or text."""
    if not text:
        return b"null"
    try:
        return json.dumps(float(text), allow_nan=False).encode()
    except ValueError:
        return json.dumps(text).encode()


def _rows(file: str, inside: str, found: list[dict[str, msgspec.Raw]]) -> list[Fields]:
    if len(found) > MAX_ROWS:
        raise PlanError(f"{file}: {inside}", f"has more than {MAX_ROWS:,} rows")
    return [Fields(file, f"{inside}[{i}]", fields) for i, fields in enumerate(found)]


def _sane(value: float, where: str, most: float) -> float:
    if not math.isfinite(value) or not 0 <= value <= most:
        raise PlanError(where, f"is {value:g}", f"expected a number from 0 to {most:g}")
    return value


def _sane_all(values: Floats, where: str, most: float) -> Floats:
    if len(values):
        _sane(float(values.min()), where, most)
        _sane(float(values.max()), where, most)
    return values
