"""The isolated phases on a terminal, and as a folder: a page, figures and the numbers."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from splitpoint import units
from splitpoint.inputs.files import to_json, write_atomic
from splitpoint.report import figures, words
from splitpoint.report.columns import Column, table, wrap
from splitpoint.report.document import NUMBER, WORDS, Charts, bullets, document, text, top
from splitpoint.report.document import table as html_table
from splitpoint.report.folder import Written
from splitpoint.search.isolated import PHASES, Isolated, Phase, PhasePoint, Turn

TOKENS: dict[Phase, str] = {"prefill": "input", "decode": "output"}
MARKS = (
    "Closed loops on one instance. A diamond: the throughput falls from here by more than the "
    "noise of repeated runs. A square: from the next point on drafts give less than none."
)
INDENT = 2


def render_phases(found: Isolated, console: Console) -> None:
    """Print both phases: throughput per GPU at each concurrency, then what the lines show."""
    _say(console, _title(found), "bold")
    for phase in PHASES:
        console.print()
        _say(console, _caption(found, phase), "bold")
        for line in _grid(found, phase, console.width - INDENT):
            console.print(Text(" " * INDENT).append(line), soft_wrap=True)
    told = [*_turns(found), *_pays(found), *_unfit(found)]
    if told:
        console.print()
    for sentence in told:
        _say(console, f"- {sentence}")
    console.print()
    _say(console, "Notes", "bold")
    for note in found.notes:
        _say(console, f"- {words.plain(note)}")


def write_phases(found: Isolated, out: Path) -> Written:
    """Write phases.json, phases.html and one figure of each phase as SVG and PNG into a folder."""
    names = ["phases.json", "phases.html"]
    write_atomic(out / names[0], to_json(found))
    write_atomic(out / names[1], page(found))
    if found.points:
        for phase in PHASES:
            for suffix in (".svg", ".png"):
                names.append(f"{phase}{suffix}")
                figures.save(figures.phase(found, phase), out / names[-1])
    return Written(folder=str(out), files=tuple(str(out / name) for name in names))


def page(found: Isolated) -> str:
    """The page: a figure and a table of each phase, and what cannot run."""
    charts = Charts()
    sections: list[tuple[str, str, str]] = [
        (phase, phase.capitalize(), _section(found, phase, charts)) for phase in PHASES
    ]
    unfit = html_table(
        "What cannot run",
        [("instance", ""), ("why", WORDS), ("short by", NUMBER)],
        [
            [text(lack.name), text(lack.why), units.memory(lack.bytes) if lack.bytes else ""]
            for lack in found.unfit
        ],
    )
    sections.append(("unfit", "Does not fit", unfit if found.unfit else ""))
    sections.append(("notes", "Numbers that are not arithmetic", bullets(found.notes)))
    header = top(_title(found)) + "<h1>Prefill alone and decode alone</h1>"
    soft = f"{found.engine}. Simulated, not measured."
    return document(
        f"Phases of {found.model}",
        sections,
        charts,
        header=f'{header}<p class="soft">{text(soft)}</p>',
        footer="Splitpoint, phases.",
    )


def _title(found: Isolated) -> str:
    return f"{words.plain(found.model)} on {words.plain(found.gpu)}: each phase alone"


def _caption(found: Isolated, phase: Phase) -> str:
    shape = found.shape
    load = f"{units.count(shape.isl)} in, 2 out" if phase == "prefill" else _decode(found)
    return f"{phase.capitalize()} ({load}): {TOKENS[phase]} tok/s/GPU by concurrency"


def _decode(found: Isolated) -> str:
    shape = found.shape
    start = "1 in" if shape.context == 1 else f"{units.count(shape.context)} in the cache"
    return f"{start}, {units.count(shape.osl)} out"


def _grid(found: Isolated, phase: Phase, width: int) -> Iterator[Text]:
    """A row for each line, concurrencies in as many blocks as the width asks for; the peak of a
    line is marked."""
    lines = _lines(found, phase)
    if not lines:
        yield Text("no instance fits")
        return
    names = [_name(points[0]) for points in lines]
    cells = [
        [words.count(p.tok_s_gpu) + ("*" if p is _peak(points) else " ") for p in points]
        for points in lines
    ]
    users = [f"{count:,} " for count in found.shape.concurrencies]
    cell = max(len(part) for row in [users, *cells] for part in row) + 2
    room = max((width - max(map(len, names))) // cell, 1)
    for start in range(0, len(users), room):
        if start:
            yield Text("")
        part = slice(start, start + room)
        columns = [Column("instance", "name"), *(Column(name) for name in users[part])]
        yield from table(
            columns, [[n, *row[part]] for n, row in zip(names, cells, strict=True)], width
        )
    yield Text("* highest of its line", "dim")


def _lines(found: Isolated, phase: Phase) -> list[tuple[PhasePoint, ...]]:
    keys = dict.fromkeys((p.topology, p.drafts) for p in found.points if p.phase == phase)
    return [found.line(phase, *key) for key in keys]


def _peak(points: Sequence[PhasePoint]) -> PhasePoint:
    return max(points, key=lambda point: point.tok_s_gpu)


def _name(point: PhasePoint | Turn) -> str:
    return point.topology + (f" drafts={point.drafts}" if point.drafts else "")


def _turns(found: Isolated) -> list[str]:
    sentences = []
    for turn in found.turns:
        if turn.falls_at is not None:
            sentences.append(
                f"{turn.phase} of {_name(turn)} turns over: highest at {turn.peak:,} users, "
                f"more than the noise lower at {turn.falls_at:,}"
                + (f"; {turn.why}" if turn.why else "")
            )
        elif turn.why:
            sentences.append(f"{turn.phase} of {_name(turn)} does not turn over; {turn.why}")
    return sentences


def _pays(found: Isolated) -> list[str]:
    sentences = []
    for pays in found.drafts_pay:
        one = pays.drafts == 1
        name = f"{pays.drafts} {'draft' if one else 'drafts'} on {pays.topology}"
        pay, lose = ("pays", "loses") if one else ("pay", "lose")
        if pays.lose_from is None:
            sentences.append(f"{name} {pay} at every concurrency tried")
        elif pays.pay_until is None:
            sentences.append(f"{name} {pay} at no concurrency tried")
        else:
            sentences.append(
                f"{name} {pay} up to {pays.pay_until:,} users and {lose} from {pays.lose_from:,}"
            )
    return sentences


def _unfit(found: Isolated) -> list[str]:
    return [
        f"{words.plain(lack.name)} does not fit: {words.plain(lack.why)}"
        + (f", short by {units.memory(lack.bytes)} a rank" if lack.bytes else "")
        for lack in found.unfit
    ]


def _section(found: Isolated, phase: Phase, charts: Charts) -> str:
    lines = _lines(found, phase)
    if not lines:
        return "<p>No instance fits.</p>"
    best = max((p for points in lines for p in points), key=lambda p: p.tok_s_gpu)
    told = (
        f"{_caption(found, phase)}; the highest is {words.count(best.tok_s_gpu)} by "
        f"{_name(best)} at {best.concurrency:,} users. The tables below have every number."
    )
    more = (
        f" The {figures.MOST_LINES} of {len(lines)} lines that lead at most concurrencies."
        if len(lines) > figures.MOST_LINES
        else ""
    )
    told_turns = [line for line in _turns(found) if line.startswith(phase)]
    return (
        charts.figure(figures.phase(found, phase), told, MARKS + more)
        + bullets(told_turns + (_pays(found) if phase == "decode" else []))
        + _pivot(found, phase, lines)
        + f"<details><summary>{sum(map(len, lines)):,} points in all their numbers</summary>"
        + html_table(
            _caption(found, phase),
            [("instance", ""), *((name, NUMBER) for name in _columns(phase))],
            [_row(point) for points in lines for point in points],
            marked=[point is _peak(points) for points in lines for point in points],
        )
        + "</details>"
    )


def _pivot(found: Isolated, phase: Phase, lines: Sequence[tuple[PhasePoint, ...]]) -> str:
    """A row for each line and a column for each concurrency, the peak of a line in bold."""
    users = found.shape.concurrencies
    rows = []
    for points in lines:
        peak, at = _peak(points), {point.concurrency: point for point in points}
        told = {
            count: f"<b>{words.count(point.tok_s_gpu)}</b>"
            if point is peak
            else words.count(point.tok_s_gpu)
            for count, point in at.items()
        }
        rows.append([text(_name(points[0])), *(told.get(count, "") for count in users)])
    return html_table(
        f"{_caption(found, phase)}; the highest of a line in bold",
        [("instance", ""), *((f"{count:,}", NUMBER) for count in users)],
        rows,
    )


def _columns(phase: Phase) -> tuple[str, ...]:
    # Two output tokens are no pace.
    pace = () if phase == "prefill" else ("tok/s/user",)
    return (
        "GPUs",
        "users",
        f"{TOKENS[phase]} tok/s/GPU",
        "TTFT p50",
        *pace,
        "requests held",
        "seats",
        "preemptions",
        "success",
    )


def _row(point: PhasePoint) -> list[str]:
    pace = words.UNKNOWN if point.tok_s_user is None else words.pace(point.tok_s_user)
    return [
        text(_name(point)),
        str(point.gpus),
        units.count(point.concurrency),
        words.count(point.tok_s_gpu),
        words.UNKNOWN if point.ttft_s is None else words.seconds(point.ttft_s),
        *([] if point.phase == "prefill" else [pace]),
        units.count(point.held),
        units.count(point.seats),
        units.count(point.preemptions),
        text(words.percent(point.success)),
    ]


def _say(console: Console, sentence: str, style: str = "") -> None:
    hang = "  " if sentence.startswith("- ") else ""
    first, *rest = wrap(sentence, console.width - len(hang))
    for line in [first, *(hang + line for line in rest)]:
        console.print(Text(line, style), soft_wrap=True)
