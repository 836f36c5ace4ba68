"""Rows of a CSV trace in batches of columns; the header decides which column is which.

A batch is converted at once, and looked through cell by cell only to name the one that is wrong.
"""

import csv
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from splitpoint.errors import PlanError
from splitpoint.inputs.trace import Floats, Ints
from splitpoint.inputs.traces.columns import MAX_SECONDS, MAX_TOKENS, Line

BATCH = 1 << 15


class Batch(NamedTuple):
    """Lines and the cells of the wanted columns, in the order asked for."""

    lines: list[Line]
    columns: list[list[str]]


def header_of(text: str) -> list[str]:
    """The column names on a header line, without quotes and spaces around them."""
    try:
        return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    except csv.Error:
        return []


def batches(lines: Iterator[Line], wanted: tuple[str, ...]) -> Iterator[Batch]:
    """The wanted columns of all lines after the header, some thousand lines at a time."""
    head = next(lines, None)
    if head is None:
        return
    names = header_of(head.text)
    missing = [name for name in wanted if name not in names]
    if missing:
        shown = ", ".join(name[:40] for name in names[:20])
        raise PlanError(head.where, f"no column {missing[0]!r}", f"columns: {shown}")
    places = [names.index(name) for name in wanted]
    while taken := list(itertools.islice(lines, BATCH)):
        cells = [cells_of(line, len(names)) for line in taken]
        yield Batch(taken, [[row[place].strip() for row in cells] for place in places])


def cells_of(line: Line, width: int) -> list[str]:
    """The cells of a line; the csv module is asked only where there are quotes."""
    if '"' not in line.text:
        cells = line.text.split(",")
    else:
        try:
            cells = next(csv.reader([line.text], strict=True, skipinitialspace=True))
        except csv.Error as error:
            raise PlanError(line.where, f"not a CSV row: {error}") from None
    if len(cells) != width:
        raise PlanError(line.where, f"{len(cells)} cells", f"the header has {width}")
    return cells


def token_counts(batch: Batch, place: int, name: str, *, least: int = 1) -> Ints:
    """A column as counts of tokens in [least, 2^31)."""
    cells = batch.columns[place]
    for line, text in zip(batch.lines, cells, strict=True) if doubtful(cells) else ():
        if not (text.isascii() and text.isdigit() and len(text) <= 10):
            raise PlanError(line.where, f"{name}: {text[:40]!r}", "a whole number of tokens")
    counts = np.fromiter(map(int, cells), np.int64, len(cells))
    wrong = np.flatnonzero((counts < least) | (counts > MAX_TOKENS))
    if len(wrong):
        what = f"{name}: {counts[wrong[0]]}"
        raise PlanError(batch.lines[wrong[0]].where, what, f"between {least} and {MAX_TOKENS}")
    return counts.astype(np.int32)


def doubtful(cells: list[str]) -> bool:
    """Whether some cell is not a short run of the digits 0 to 9."""
    joined = "".join(cells)
    plain = joined.isascii() and joined.isdigit()
    return not plain or not all(cells) or max(map(len, cells)) > 10


def seconds(batch: Batch, place: int, name: str) -> Floats:
    """A column as finite seconds, 0 or more."""
    cells = batch.columns[place]
    try:
        # Python reads 1_0 as 10; a file that holds such a thing is not one of these.
        values = np.fromiter((float(text.replace("_", "?")) for text in cells), np.float64)
    except ValueError:
        values = np.array([number_or_nan(text) for text in cells])
    wrong = np.flatnonzero(~((values >= 0) & (values <= MAX_SECONDS)))
    if len(wrong):
        what = f"{name}: {cells[wrong[0]][:40]!r}"
        raise PlanError(batch.lines[wrong[0]].where, what, "finite seconds, 0 or more")
    return values


def number_or_nan(text: str) -> float:
    """The number in a cell, NaN where there is none."""
    try:
        return float(text.replace("_", "?"))
    except ValueError:
        return float("nan")
