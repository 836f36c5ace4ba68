"""Tables of plain text that never cut a number: columns of words wrap, the others stand whole.

Where even the narrowest table is wider than the terminal, each row's words go on a line of their
own: above its numbers if they name the row, else below.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from rich.cells import cell_len
from rich.text import Text

GAP = 2
NARROWEST = 14


class Column(NamedTuple):
    """A column's header, and how its cells stand: numbers right, `words` wrap to what is left."""

    header: str
    kind: Literal["number", "name", "words"] = "number"


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, styles: Sequence[str] = ()
) -> list[Text]:
    """The table's lines; `styles` gives each row's style."""
    height = max(column.header.count("\n") for column in columns) + 1
    headers = [([""] * height + column.header.split("\n"))[-height:] for column in columns]
    widths = [
        max(cell_len(part) for part in [*head, *(row[i] for row in rows)])
        for i, head in enumerate(headers)
    ]
    wordy = [i for i, column in enumerate(columns) if column.kind == "words"]
    row_styles = list(styles) or [""] * len(rows)
    if wordy and sum(widths) + GAP * (len(columns) - 1) > width:
        fixed = sum(widths[i] for i in range(len(columns)) if i not in wordy)
        room = width - fixed - GAP * (len(columns) - 1)
        if room < NARROWEST * len(wordy):
            return _stacked(columns, rows, width, wordy, row_styles)
        for i, share in zip(wordy, _shares([widths[i] for i in wordy], room), strict=True):
            widths[i] = max(share, *(cell_len(part) for part in headers[i]))
    lines = [
        Text(_line(columns, [head[i] for head in headers], widths), "dim")
        for i in range(height)
        if any(column.header for column in columns)
    ]
    for row, style in zip(rows, row_styles, strict=True):
        cells = [wrap(cell, widths[i]) if i in wordy else [cell] for i, cell in enumerate(row)]
        for i in range(max(len(cell) for cell in cells)):
            parts = [cell[i] if i < len(cell) else "" for cell in cells]
            lines.append(Text(_line(columns, parts, widths), style))
    return lines


def _shares(wanted: Sequence[int], room: int) -> list[int]:
    """The room by need: who needs less than an even share gets it, the rest is shared evenly."""
    shares = dict.fromkeys(range(len(wanted)), 0)
    left = room
    for done, i in enumerate(sorted(shares, key=lambda i: wanted[i])):
        shares[i] = min(wanted[i], left // (len(wanted) - done))
        left -= shares[i]
    return [shares[i] for i in range(len(wanted))]


def wrap(words: str, width: int) -> list[str]:
    """The words in lines of `width` cells at most; a word that is longer is cut in pieces."""
    lines = [""]
    for word in words.split():
        pieces = _pieces(word, width)
        for piece in pieces:
            joined = f"{lines[-1]} {piece}" if lines[-1] else piece
            if cell_len(joined) <= width:
                lines[-1] = joined
            else:
                lines.append(piece)
    return lines


def _pieces(word: str, width: int) -> list[str]:
    if cell_len(word) <= width:
        return [word]
    pieces = [""]
    for character in word:
        if cell_len(pieces[-1] + character) > width:
            pieces.append("")
        pieces[-1] += character
    return pieces


def _line(columns: Sequence[Column], parts: Sequence[str], widths: Sequence[int]) -> str:
    cells = []
    for column, part, room in zip(columns, parts, widths, strict=True):
        space = " " * (room - cell_len(part))
        cells.append(space + part if column.kind == "number" else part + space)
    return (" " * GAP).join(cells).rstrip()


def _stacked(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    width: int,
    wordy: Sequence[int],
    styles: Sequence[str],
) -> list[Text]:
    others = [i for i in range(len(columns)) if i not in wordy]
    narrow = table([columns[i] for i in others], [[row[i] for i in others] for row in rows], width)
    head = len(narrow) - len(rows)
    lines = narrow[:head]
    for row, style, numbers in zip(rows, styles, narrow[head:], strict=True):
        above = [part for i in wordy if i == 0 for part in wrap(row[i], width)]
        below = [" " * GAP + part for i in wordy if i for part in wrap(row[i], width - GAP)]
        lines += [Text(part, style) for part in [*above, numbers.plain, *below]]
    return lines
