"""An audit on a terminal: each engine's ladder as printed and as predicted, then the meetings."""

from rich.console import Console
from rich.text import Text

from splitpoint.pricing.audit import Audit, Compared, EngineAudit, GraphCost
from splitpoint.report.columns import Column, table, wrap
from splitpoint.report.words import UNKNOWN, plain
from splitpoint.units import count

NAMES = {
    "total": "total memory, GiB",
    "utilization": "memory fraction",
    "requested": "requested, GiB",
    "weights": "weights, GiB",
    "peak_activation": "peak activations, GiB",
    "non_torch": "outside PyTorch, GiB",
    "graph_estimate": "CUDA graphs, estimated, GiB",
    "kv": "KV memory, GiB",
    "state_slots": "state slots",
    "state_pool": "state pool, GiB",
    "block_tokens": "block tokens",
    "state_padding_percent": "state padding, %",
    "kv_blocks": "KV blocks",
    "concurrency": "concurrency",
    "kv_tokens": "KV tokens",
}
WHOLE = ("state_slots", "block_tokens", "kv_blocks", "kv_tokens")
# What vLLM has no line for, in any version.
SGLANG = ("state_slots", "state_pool")
COLUMNS = (
    Column("figure", "name"),
    Column("printed"),
    Column("predicted"),
    Column("off"),
    Column("", "words"),
)


def render_audit(audit: Audit, console: Console) -> None:
    """Print every engine's table, and whether each prefill can hand over to each decode."""
    for engine in audit.engines:
        _engine(engine, console)
    for meeting in audit.meetings:
        can = {True: "can hand over", False: "cannot hand over", None: "may or may not hand over"}
        _say(console, f"{meeting.prefill} -> {meeting.decode}: {can[meeting.can]}. {meeting.words}")


def figure_words(row: Compared) -> str:
    """A printed figure and what was predicted, in a few words."""
    name, _, unit = NAMES[row.name].partition(", ")
    printed = f"{name} {_number(row, row.printed)} {unit}".rstrip()
    if row.predicted is None:
        return f"{printed} (not predicted)"
    return f"{printed} ({_number(row, row.predicted)} predicted, {_off(row)})"


def _engine(engine: EngineAudit, console: Console) -> None:
    version = engine.version or "of unknown version"
    model = engine.model or "an unnamed model"
    title = f"{engine.source}: {engine.engine} {version} on {engine.device}, {model}"
    console.print(Text(plain(f"{title}, {engine.topology}"), "bold"))
    shown = [row for row in engine.figures if engine.engine != "vllm" or row.name not in SGLANG]
    rows = [
        [
            NAMES[row.name],
            _number(row, row.printed),
            _number(row, row.predicted),
            _off(row),
            _why(row),
        ]
        for row in shown
    ]
    styles = ["bold" if row.name == engine.first_off else "" for row in shown]
    for line in table(COLUMNS, rows, console.width, styles):
        console.print(line)
    if engine.graphs is not None:
        _say(console, _graphs(engine.graphs))
    if engine.first_off is not None:
        _say(console, f"First rung that differs by more than 2%: {NAMES[engine.first_off]}.")
    for words in engine.not_predicted:
        _say(console, f"Not predicted: {words}.")
    for words in engine.conflicts:
        _say(console, f"Not believed: {words}.")
    for words in engine.errors:
        _say(console, f"The engine failed: {words}")
    if not engine.finished:
        _say(console, "The log does not show the end of the start-up.")
    console.print()


def _number(row: Compared, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return count(value) if row.name in WHOLE else f"{value:,.2f}"


def _off(row: Compared) -> str:
    return UNKNOWN if row.off is None else f"{100 * row.off:+.1f}%"


def _why(row: Compared) -> str:
    words = [row.state if row.state != "agrees" else "", row.why]
    return "; ".join(word for word in words if word)


def _graphs(cost: GraphCost) -> str:
    less = "never used" if cost.unused >= 0 else "used beyond it"
    words = (
        f"CUDA graphs: {cost.estimated:.2f} GiB charged, {cost.actual:.2f} GiB used, "
        f"{abs(cost.unused):.2f} GiB {less}"
    )
    if cost.requests is None:
        return words + "."
    return f"{words}, {abs(cost.requests):.1f} requests of the longest length."


def _say(console: Console, words: str) -> None:
    for line in wrap(plain(words), console.width):
        console.print(line, markup=False, highlight=False)
