"""A fit on a terminal: the factors with their errors, residuals before and after, and the range."""

from rich.console import Console
from rich.text import Text

from splitpoint.report import words
from splitpoint.report.columns import Column, table, wrap
from splitpoint.timing.fitted import FittedCurve, Range, Residual

FACTORS = {
    "decode": "decode step, constant part",
    "context": "decode step, per token of context",
    "prefill": "step with prefill",
}
SECONDS = ("TTFT", "TPOT", "ITL", "step")


def render_fit(curve: FittedCurve, console: Console) -> None:
    """Print what was fitted, how well, and where it holds."""
    was = curve.conditions
    title = (
        f"{was.model} on {was.gpu}, {was.engine} {was.engine_version}, "
        f"{', '.join(was.instances)}: curve {curve.name}"
    )
    _say(console, words.plain(title), "bold")
    console.print()
    rows = [
        [name, f"x {getattr(curve.factors, key):.3f}", _error(getattr(curve.errors, key))]
        for key, name in FACTORS.items()
    ]
    own, front = curve.factors.front_s, curve.errors.front_s
    rows.append(
        [
            "of a request, outside of steps",
            "as predicted" if own is None else words.seconds(own),
            "not determined" if front is None else f"+- {words.seconds(front)}",
        ]
    )
    columns = [Column("time", "name"), Column("fitted"), Column("error")]
    for line in table(columns, rows, console.width):
        console.print(line, soft_wrap=True)
    console.print()
    columns = [Column("load", "words"), *map(Column, ("number", "measured", "before", "after"))]
    for line in table(columns, [_row(row) for row in curve.residuals], console.width):
        console.print(line, soft_wrap=True)
    console.print()
    _say(
        console,
        f"Residuals: {words.percent(curve.rms_before)} before, {words.percent(curve.rms)} after "
        "(root mean square of the logarithms).",
    )
    inputs = "" if curve.isl is None else f"{_span(curve.isl)} input tokens and "
    _say(
        console,
        f"Holds for {_span(curve.batch)} sequences decoding together on a rank, "
        f"{inputs}{_span(curve.tokens)} tokens a request; beyond, plan and simulate say so.",
    )


def _error(error: float | None) -> str:
    return "not determined" if error is None else f"+- {words.percent(error)}"


def _row(row: Residual) -> list[str]:
    timed = row.metric.split()[0] in SECONDS
    measured = words.seconds(row.measured) if timed else words.three(row.measured)
    return [
        words.plain(row.load),
        row.metric,
        measured,
        words.margin(row.predicted / row.measured - 1),
        words.margin(row.fitted / row.measured - 1),
    ]


def _span(span: Range) -> str:
    low, high = words.three(round(span.low, 1)), words.three(round(span.high, 1))
    return low if low == high else f"{low} to {high}"


def _say(console: Console, sentence: str, style: str = "") -> None:
    for line in wrap(sentence, console.width):
        console.print(Text(line, style), soft_wrap=True)
