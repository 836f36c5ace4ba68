"""A check on a terminal: predicted beside measured, what is beyond noise, what cannot be said."""

from rich.console import Console
from rich.text import Text

from splitpoint.report import words
from splitpoint.report.columns import Column, table, wrap
from splitpoint.verdict.check import Check, Compared

COLUMNS = (
    Column("metric", "name"),
    Column("predicted"),
    Column("measured"),
    Column("ratio"),
    Column("off"),
    Column("noise"),
)
STYLES = {True: "red", False: "", None: "dim"}


def render_check(check: Check, console: Console) -> None:
    """Print the comparison, then what is more than noise and what could not be compared."""
    title = (
        f"Predicted {check.predicted} ({check.predicted_source}) against measured "
        f"{check.measured} ({check.measured_source})"
    )
    _say(console, words.plain(title), "bold")
    console.print()
    rows = [_row(row) for row in check.rows]
    for line in table(COLUMNS, rows, console.width, [STYLES[row.beyond] for row in check.rows]):
        console.print(line, soft_wrap=True)
    _say(console, f"* more than noise. Rates: {check.window}.", "dim")
    console.print()
    judged = sum(row.beyond is not None for row in check.rows)
    _say(console, _beyond(check) or f"All {judged} numbers that can be compared are within noise.")
    for why, names in _not_compared(check).items():
        _say(console, f"- not compared: {', '.join(names)}: {words.plain(why)}")
    for mismatch in check.mismatches:
        _say(console, f"- another workload? {words.plain(mismatch)}")
    for note in check.notes:
        _say(console, f"- {words.plain(note)}")


def _beyond(check: Check) -> str:
    """Each metric with the range of its differences that are more than noise."""
    found: dict[str, list[Compared]] = {}
    for row in check.beyond:
        found.setdefault(row.metric, []).append(row)
    parts = []
    for metric, rows in found.items():
        ends = sorted(rows, key=lambda row: row.off or 0.0)
        told = list(dict.fromkeys(_off(row) for row in (ends[0], ends[-1])))
        parts.append(f"{metric} {' to '.join(told)}")
    return f"Beyond noise: {', '.join(parts)}." if parts else ""


def _not_compared(check: Check) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in check.rows:
        if row.beyond is None:
            found.setdefault(row.why, []).append(_name(row))
    return found


def _name(row: Compared) -> str:
    if row.unit == "share":
        return row.metric
    return f"{row.metric} {row.unit if row.statistic == 'rate' else row.statistic}"


def _row(row: Compared) -> list[str]:
    return [
        _name(row),
        _value(row, row.predicted),
        _value(row, row.measured),
        words.UNKNOWN if row.ratio is None else words.three(row.ratio),
        _off(row) + ("*" if row.beyond else " "),
        words.UNKNOWN if row.noise is None else words.percent(row.noise),
    ]


def _value(row: Compared, value: float | None) -> str:
    if value is None:
        return words.UNKNOWN
    if row.unit == "s":
        return words.seconds(value)
    return words.percent(value) if row.unit == "share" else words.three(value)


def _off(row: Compared) -> str:
    if row.off is None:
        return words.UNKNOWN
    return f"{row.off * 100:+.1f}pt" if row.unit == "share" else words.margin(row.off)


def _say(console: Console, sentence: str, style: str = "") -> None:
    hang = "  " if sentence.startswith("- ") else ""
    first, *rest = wrap(sentence, console.width - len(hang))
    for line in [first, *(hang + line for line in rest)]:
        console.print(Text(line, style), soft_wrap=True)
