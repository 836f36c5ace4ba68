"""Trace files of public formats, read into a `Trace` and written from one.

`read` recognises the format from the content; a `.gz` is read as it streams. Every reader refuses
what it cannot trust with the file, the line and the field.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from splitpoint.errors import PlanError
from splitpoint.inputs.files import open_text, whole_lines
from splitpoint.inputs.trace import Trace
from splitpoint.inputs.traces.columns import MAX_LINE, Line, counted
from splitpoint.inputs.traces.export import WRITABLE, write

__all__ = ["FORMATS", "WRITABLE", "Format", "format_of", "read", "write"]

Format = Literal["mooncake", "azure", "burstgpt", "bailian", "weka", "vidur"]
DOCUMENT_HEAD = 20
FORMATS: tuple[Format, ...] = get_args(Format)


def read(
    path: str | Path, format: str | None = None, *, sessions: Literal["auto", "none"] = "auto"
) -> Trace:
    """The trace in a file, or in a folder of WEKA sessions.

    `sessions` "none": do not derive sessions where a format has none.
    """
    path = Path(path)
    if format is None and path.is_fifo():
        # To look at its first lines would be to lose them; without a writer it would never end.
        what = "is a pipe, which is read once: its format cannot be seen beforehand"
        raise PlanError(str(path), what, f"name it, one of {', '.join(FORMATS)}, or give a file")
    chosen = format_of(path) if format is None else named(format)
    if path.is_dir() and chosen != "weka":
        raise PlanError(str(path), "is a folder", "one file, or a folder of WEKA sessions")
    lines = lines_of(path)
    # One reader is imported, not six.
    match chosen:
        case "mooncake":
            from splitpoint.inputs.traces import mooncake

            parts = whole_lines(path, max_line=MAX_LINE)
            return mooncake.read(parts, str(path), derive_sessions=sessions == "auto")
        case "azure":
            from splitpoint.inputs.traces import azure

            return azure.read(lines, str(path))
        case "burstgpt":
            from splitpoint.inputs.traces import burstgpt

            return burstgpt.read(lines, str(path))
        case "bailian":
            from splitpoint.inputs.traces import bailian

            return bailian.read(lines, str(path))
        case "weka":
            from splitpoint.inputs.traces import weka

            return weka.read(lines, str(path))
        case "vidur":
            from splitpoint.inputs.traces import vidur

            return vidur.read(lines, str(path))


def lines_of(path: Path) -> Iterator[Line]:
    """The lines that are not blank of a trace file, or of a folder's JSON files by name."""
    if not path.is_dir():
        yield from counted(open_text(path, max_line=MAX_LINE), str(path))
        return
    for file in sorted(path.iterdir()):
        if ".json" in file.suffixes or ".jsonl" in file.suffixes:
            yield from counted(open_text(file, max_line=MAX_LINE), str(file))


def named(format: str) -> Format:
    """The format of that name."""
    for known in FORMATS:
        if format == known:
            return known
    raise PlanError("format", f"unknown trace format {format!r}", f"one of {', '.join(FORMATS)}")


def format_of(path: Path) -> Format:
    """The format that the first lines of a file show."""
    lines = lines_of(path)
    head = next(lines, None)
    if head is None:
        raise PlanError(str(path), "an empty file", "expected a trace")
    text = head.text.lstrip()
    if text.startswith("{"):
        marks: tuple[tuple[str, Format], ...] = (
            ('"chat_id"', "bailian"),
            ('"input_length"', "mooncake"),
            ('"requests"', "weka"),
            ('"block_size"', "weka"),
        )
        # A JSON document over several lines shows what it is a little further down.
        beginning = [text, *(line.text for line in itertools.islice(lines, DOCUMENT_HEAD))]
        for mark, format in marks:
            if any(mark in text for text in beginning):
                return format
    from splitpoint.inputs.traces import azure, burstgpt, vidur
    from splitpoint.inputs.traces.table import header_of

    columns = set(header_of(text))
    tables: tuple[tuple[tuple[str, ...], Format], ...] = (
        (azure.COLUMNS, "azure"),
        (burstgpt.COLUMNS, "burstgpt"),
        (vidur.COLUMNS, "vidur"),
    )
    for wanted, format in tables:
        if columns.issuperset(wanted):
            return format
    hint = f"name one with format = ...: {', '.join(FORMATS)}"
    raise PlanError(head.where, f"not a trace format that is known: {text[:60]!r}", hint)
