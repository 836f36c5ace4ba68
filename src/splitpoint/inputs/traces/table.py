"""Rows of a CSV trace by column name, each with its place; the header decides the order."""

import csv
from collections.abc import Iterator
from typing import NamedTuple

from splitpoint.errors import PlanError
from splitpoint.inputs.traces.columns import Line


class Row(NamedTuple):
    """The cells of the wanted columns, in the order asked for, and the line they stand on."""

    line: Line
    cells: list[str]


def header_of(text: str) -> list[str]:
    """The column names on a header line, without quotes and spaces around them."""
    try:
        return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    except csv.Error:
        return []


def rows(lines: Iterator[Line], wanted: tuple[str, ...]) -> Iterator[Row]:
    """The wanted cells of every line after the header."""
    head = next(lines, None)
    if head is None:
        return
    names = header_of(head.text)
    missing = [name for name in wanted if name not in names]
    if missing:
        raise PlanError(head.where, f"no column {missing[0]!r}", f"columns: {', '.join(names)}")
    places = [names.index(name) for name in wanted]
    for line in lines:
        cells = cells_of(line)
        if len(cells) != len(names):
            raise PlanError(line.where, f"{len(cells)} cells", f"the header has {len(names)}")
        yield Row(line, [cells[place].strip() for place in places])


def cells_of(line: Line) -> list[str]:
    """The cells of a line; the csv module is asked only where there are quotes."""
    if '"' not in line.text:
        return line.text.split(",")
    try:
        return next(csv.reader([line.text], strict=True, skipinitialspace=True))
    except csv.Error as error:
        raise PlanError(line.where, f"not a CSV row: {error}") from None
