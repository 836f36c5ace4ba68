"""The report's figures as Altair charts: functions of records, drawn the same in PNG, SVG and page.

Charts carry no neutral colours: `save` lays a light theme under them, the page one that follows
the reader's. The hues stand on white and on near-black alike and differ in shape or label too.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from splitpoint.errors import PlanError
from splitpoint.inputs.files import write_atomic
from splitpoint.report import words
from splitpoint.run import Run
from splitpoint.search.isolated import Isolated, Phase, PhasePoint
from splitpoint.units import GIB
from splitpoint.verdict.answer import Answer, Holding, Point, Wall

if TYPE_CHECKING:
    import altair as alt

Column = NDArray[np.float64]


class Shares(NamedTuple):
    """Shares of a pool's usable blocks, one entry per slot of time: the highest `used` and `held`
    of the slot, and what was `cached` at its start."""

    used: Column
    held: Column
    cached: Column


BLUE, ORANGE, PURPLE, GREY, RED = "#3a86c8", "#d9731a", "#9a5fb8", "#868d97", "#d1495b"
ARMS = {"split": BLUE, "mixed": ORANGE}
PARTS = {"queue": GREY, "prefill": BLUE, "transfer": ORANGE, "decode wait": PURPLE}
ORIGINS = {
    "computed": BLUE,
    "simulated": BLUE,
    "published": GREY,
    "measured": PURPLE,
    "assumed": ORANGE,
}
# Of lines that must be told apart; drafts differ by dash.
HUES = (BLUE, ORANGE, PURPLE, "#2f9e6e", RED, GREY, "#b08a1e", "#3fa7b5")
DASHES = ((1, 0), (6, 4), (2, 3), (8, 3, 2, 3))
MOST_LINES = 8
TURNS, LAST_GAIN = "turns over", "drafts stop paying"
PHASE_MARKS = {TURNS: "diamond", LAST_GAIN: "square"}
WIDTH = 720
# Rows of one occupancy figure, so that a page with several stays small.
MOST_ROWS = 6000
MOST_POOLS = 40
SLOTS = 240

POINT_TIPS = (
    "deployment",
    "load",
    "GPUs",
    "total_tok/s/GPU",
    "output_tok/s/GPU",
    "tok/s/user",
    "TTFT",
    "TPOT",
    "within_SLO",
    "success",
)
STRIPS = (BLUE, PURPLE)
HELD, CACHED = "held for transfer", "cached prefixes"
FILL = 0.9  # of a strip's height at full use
# Pixels of a bar, of the row that also holds its name, and of the frontier.
BAR, ROW, TALL = 15, 42, 380

INK, FAINT, LINES = "#2b3138", "#9aa2ad", "#e4e7eb"
LIGHT: dict[str, Any] = {
    "background": "white",
    "font": "system-ui, sans-serif",
    "axis": {
        "gridColor": LINES,
        "domainColor": FAINT,
        "tickColor": FAINT,
        "labelColor": INK,
        "titleColor": INK,
        "titleFontWeight": "normal",
    },
    # Legends of one row, side by side, would run out of a telephone's page.
    "legend": {"labelColor": INK, "orient": "top", "labelLimit": 320, "columns": 4},
    "text": {"color": INK},
    "rule": {"color": INK},
    "view": {"stroke": None},
}


def frontier(answer: Answer) -> "alt.LayerChart":
    """Throughput against interactivity: every simulated point, filled if it keeps the service
    level, the frontier of each arm as a line, and the TPOT of the service level."""
    import altair as alt

    points = [
        p for p in answer.points if np.isfinite(p.interactivity) and np.isfinite(p.total_tok_s_gpu)
    ]
    asked = answer.plan.slo.tpot_s
    x = alt.X(
        "user:Q",
        title="interactivity, tok/s/user (1 / median TPOT)",
        scale=_scale([*(p.interactivity for p in points), 1 / asked]),
        axis=alt.Axis(tickCount=8),
    )
    y = alt.Y(
        "gpu:Q",
        title="throughput, total tok/s/GPU",
        scale=_scale([p.total_tok_s_gpu for p in points]),
        axis=alt.Axis(tickCount=6),
    )
    hues = alt.Scale(domain=list(ARMS), range=list(ARMS.values()))
    shapes = alt.Scale(domain=list(ARMS), range=["circle", "triangle-up"])
    arm = alt.Color("arm:N", title=None, scale=hues, legend=alt.Legend(symbolOpacity=1))
    rows = alt.InlineData(values=[_point_row(p, answer.verdict.chosen) for p in points])
    edges = [
        {"user": p.interactivity, "gpu": p.total_tok_s_gpu, "arm": _arm(p)}
        for name in ARMS
        for p in _edge([p for p in points if _arm(p) == name])
    ]
    line = (
        alt.Chart(alt.InlineData(values=edges))
        .mark_line(opacity=0.5, strokeWidth=1.5)
        .encode(x, y, arm, order="user:Q")
    )
    dots = alt.Chart(rows).encode(
        x, y, arm, alt.Shape("arm:N", title=None, scale=shapes), tooltip=_point_tips()
    )
    hollow = dots.mark_point(size=90, strokeWidth=1.8, opacity=1)
    filled = (
        alt.Chart(rows)
        .transform_filter("datum.ok")
        .mark_point(size=90, filled=True, opacity=1)
        .encode(x, y, arm, alt.Shape("arm:N", scale=shapes), tooltip=_point_tips())
    )
    names = (
        alt.Chart(rows)
        .transform_filter("datum.named")
        .mark_text(align="center", dy=-12, fontSize=11, fontWeight="bold")
        .encode(x, y, text=alt.value("chosen"))
    )
    told = f"SLO: TPOT {words.seconds(asked)}"
    slo = alt.Chart(alt.InlineData(values=[{"user": 1 / asked, "told": told}]))
    rule = slo.mark_rule(strokeDash=[5, 4]).encode(x)
    label = slo.mark_text(align="left", baseline="bottom", dx=4, dy=-3, fontSize=11).encode(
        x, y=alt.value(TALL), text="told:N"
    )
    layers = [rule, label, line, hollow]
    if any(p.meets_slo for p in points):
        layers.append(filled)
    if any(p.name == answer.verdict.chosen for p in points):
        layers.append(names)
    return _sized(alt.layer(*layers), TALL)


def _point_tips() -> "list[alt.Tooltip]":
    import altair as alt

    return [alt.Tooltip(f"{name}:N", title=name.replace("_", " ")) for name in POINT_TIPS]


def _point_row(point: Point, chosen: str | None) -> dict[str, Any]:
    return {
        "user": point.interactivity,
        "gpu": point.total_tok_s_gpu,
        "arm": _arm(point),
        "ok": point.meets_slo,
        "named": point.name == chosen,
        "deployment": words.point(point),
        "load": words.plain(point.load),
        "GPUs": point.gpus,
        "total_tok/s/GPU": words.count(point.total_tok_s_gpu),
        "output_tok/s/GPU": words.count(point.output_tok_s_gpu),
        "tok/s/user": words.pace(point.interactivity),
        "TTFT": words.seconds(point.ttft.at_slo),
        "TPOT": words.seconds(point.tpot.at_slo),
        "within_SLO": words.percent(point.attainment),
        "success": words.percent(point.success),
    }


def _arm(point: Point) -> str:
    return "split" if point.deployment.split else "mixed"


def _edge(points: Sequence[Point]) -> list[Point]:
    """Points that no other beats in both throughput and interactivity."""
    ordered = sorted(points, key=lambda p: (-p.interactivity, -p.total_tok_s_gpu))
    edge: list[Point] = []
    for point in ordered:
        if not edge or point.total_tok_s_gpu > edge[-1].total_tok_s_gpu:
            edge.append(point)
    return edge


def _scale(values: Sequence[float]) -> "alt.Scale":
    """Linear from zero, or logarithmic where the values span more than a factor of thirty."""
    import altair as alt

    positive = [value for value in values if value > 0]
    wide = bool(positive) and max(positive) > 30 * min(positive)
    return (
        alt.Scale(type="log", nice=False, padding=12) if wide else alt.Scale(zero=True, nice=True)
    )


def ttft(points: Sequence[Point]) -> "alt.LayerChart":
    """Mean TTFT of each point as a bar of its parts."""
    import altair as alt

    rows = [
        {
            "row": words.plain(point.name),
            "part": part,
            "order": order,
            "value": value,
            "told": words.seconds(value),
        }
        for point in points
        for order, (part, value) in enumerate(_parts(point).items())
    ]
    sums = {words.plain(point.name): sum(_parts(point).values()) for point in points}
    y = _band(list(sums))
    bars = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_bar(size=BAR, yOffset=BAR / 2)
        .encode(
            _length("mean TTFT, seconds", max(sums.values(), default=1.0)),
            y,
            alt.Color(
                "part:N",
                title=None,
                scale=alt.Scale(domain=list(PARTS), range=list(PARTS.values())),
            ),
            order="order:Q",
            tooltip=[
                alt.Tooltip("row:N", title="deployment"),
                alt.Tooltip("part:N"),
                alt.Tooltip("told:N", title="mean"),
            ],
        )
    )
    totals = [
        {"row": name, "value": value, "end": value, "told": words.seconds(value)}
        for name, value in sums.items()
    ]
    return _sized(alt.layer(bars, *_labels(totals, y)), ROW * len(sums))


def _parts(point: Point) -> dict[str, float]:
    stack = point.ttft_stack
    values = (stack.queue, stack.prefill, stack.transfer, stack.decode_wait)
    return {
        part: value if np.isfinite(value) else 0.0
        for part, value in zip(PARTS, values, strict=True)
    }


def ladder(holding: Holding) -> "alt.LayerChart":
    """The memory of one rank as a waterfall from the package down to the KV pool."""
    import altair as alt

    rows: list[dict[str, Any]] = []
    level = 0.0
    last = len(holding.rungs) - 1
    for i, rung in enumerate(holding.rungs):
        taken = 0 < i < last
        start, level = (
            level if taken else 0.0,
            (level if taken else 0.0) + (-rung.value if taken else rung.value) / GIB,
        )
        rows.append(
            {
                "row": words.rung(rung.name),
                "start": start,
                "value": level,
                "end": max(start, level),
                "origin": rung.origin,
                "source": words.plain(rung.source),
                "told": ("\u2212 " if taken else "") + f"{abs(rung.value) / GIB:,.2f} GiB",
            }
        )
    y = _band([row["row"] for row in rows])
    shown = [origin for origin in ORIGINS if any(row["origin"] == origin for row in rows)]
    bars = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_bar(size=BAR, yOffset=BAR / 2)
        .encode(
            _length("GiB on one rank", max((row["end"] for row in rows), default=1.0)),
            y,
            alt.Color(
                "origin:N",
                title=None,
                scale=alt.Scale(domain=shown, range=[ORIGINS[origin] for origin in shown]),
            ),
            x2="start:Q",
            tooltip=[
                alt.Tooltip("row:N", title="rung"),
                alt.Tooltip("told:N", title="size"),
                alt.Tooltip("origin:N"),
                alt.Tooltip("source:N"),
            ],
        )
    )
    return _sized(alt.layer(bars, *_labels(rows, y)), ROW * len(rows))


def walls(found: Sequence[Wall]) -> "alt.LayerChart":
    """KV demand of each side against what its pools hold."""
    import altair as alt

    rows = [
        {
            # Without the routing, for which a telephone has no room; the table has it.
            "row": f"{wall.side} side of {words.plain(wall.deployment.partition(', ')[0])}",
            "value": wall.occupancy,
            "end": wall.occupancy,
            "told": words.percent(wall.occupancy),
            "asked": words.figure(wall.demand),
            "held": words.figure(wall.pool),
            "full": wall.peak > 1,
            "words": words.plain(wall.words),
        }
        for wall in found
    ]
    y = _band(list(dict.fromkeys(str(row["row"]) for row in rows)))
    top = max([1.0, *(wall.occupancy for wall in found)])
    bars = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_bar(size=BAR, yOffset=BAR / 2)
        .encode(
            _length("KV demand as a share of the pools", top, form="%"),
            y,
            color=alt.condition("datum.full", alt.value(RED), alt.value(BLUE)),
            tooltip=[
                alt.Tooltip("row:N", title="wall"),
                alt.Tooltip("told:N", title="demand"),
                alt.Tooltip("asked:N"),
                alt.Tooltip("held:N"),
                alt.Tooltip("words:N", title=" "),
            ],
        )
    )
    full = (
        alt.Chart(alt.InlineData(values=[{"value": 1}]))
        .mark_rule(strokeDash=[5, 4], strokeWidth=1.5)
        .encode(x="value:Q")
    )
    return _sized(alt.layer(bars, full, *_labels(rows, y)), ROW * len(rows))


def phase(found: Isolated, which: Phase) -> "alt.LayerChart":
    """Throughput of one phase alone against concurrency: a line for each topology and number of
    drafts, at most `MOST_LINES`, with a mark where a line turns over and where its drafts stop
    paying."""
    import altair as alt

    lines = _phase_lines(found, which)
    rows = [row for points in lines.values() for row in _phase_rows(points)]
    names = list(dict.fromkeys(row["topology"] for row in rows))
    told = list(dict.fromkeys(row["drafts"] for row in rows))
    x = alt.X(
        "users:Q",
        title="concurrency: users of the closed loop",
        scale=alt.Scale(type="log", base=2, nice=False, padding=12),
        axis=alt.Axis(values=list(found.shape.concurrencies), format="d", labelOverlap="greedy"),
    )
    tokens = "input" if which == "prefill" else "output"
    y = alt.Y(
        "rate:Q",
        title=f"{which} alone, {tokens} tok/s/GPU",
        scale=alt.Scale(zero=True, nice=True),
        axis=alt.Axis(tickCount=6),
    )
    hue = alt.Color(
        "topology:N", title=None, scale=alt.Scale(domain=names, range=list(HUES[: len(names)]))
    )
    dash = alt.StrokeDash(
        "drafts:N",
        title=None,
        scale=alt.Scale(domain=told, range=list(DASHES[: len(told)])),
        legend=alt.Legend(symbolSize=500, orient="bottom") if len(told) > 1 else None,
    )
    tips = ("topology", "drafts", "users", "tok/s/GPU", "TTFT p50", "tok/s/user", "requests held")
    chart = alt.Chart(alt.InlineData(values=rows))
    line = chart.mark_line(strokeWidth=2).encode(x, y, hue, dash)
    dots = chart.mark_point(size=36, filled=True, opacity=1).encode(
        x, y, hue, tooltip=[alt.Tooltip(f"{name}:N") for name in tips]
    )
    marks = _phase_marks(found, which, lines)
    layers = [line, dots]
    if marks:
        kinds = [kind for kind in PHASE_MARKS if any(row["mark"] == kind for row in marks)]
        shape = alt.Shape(
            "mark:N",
            title=None,
            scale=alt.Scale(domain=kinds, range=[PHASE_MARKS[kind] for kind in kinds]),
        )
        marked = alt.Chart(alt.InlineData(values=marks))
        layers.append(
            marked.mark_point(size=240, strokeWidth=2, opacity=1).encode(x, y, hue, shape)
        )
    return _sized(alt.layer(*layers), TALL)


def _phase_lines(found: Isolated, which: Phase) -> dict[tuple[str, int], tuple[PhasePoint, ...]]:
    """The lines of a phase by topology and drafts; of many, those that lead at the most
    concurrencies, then those with the highest peak."""
    lines = {
        (p.topology, p.drafts): found.line(which, p.topology, p.drafts)
        for p in found.points
        if p.phase == which
    }
    if len(lines) <= MOST_LINES:
        return lines
    wins = Counter(
        max(lines, key=lambda key: lines[key][i].tok_s_gpu)
        for i in range(len(found.shape.concurrencies))
    )
    top = {key: max(point.tok_s_gpu for point in line) for key, line in lines.items()}
    kept = sorted(lines, key=lambda key: (-wins[key], -top[key]))[:MOST_LINES]
    return {key: line for key, line in lines.items() if key in kept}


def _phase_rows(points: Sequence[PhasePoint]) -> list[dict[str, Any]]:
    return [
        {
            "topology": p.topology,
            "drafts": _drafts(p.drafts),
            "users": p.concurrency,
            "rate": p.tok_s_gpu,
            "tok/s/GPU": words.count(p.tok_s_gpu),
            "TTFT p50": words.seconds(p.ttft_s) if p.ttft_s is not None else words.UNKNOWN,
            "tok/s/user": words.pace(p.tok_s_user) if p.tok_s_user else words.UNKNOWN,
            "requests held": words.count(p.held),
        }
        for p in points
    ]


def _drafts(count: int) -> str:
    if not count:
        return "no drafts"
    return "1 draft" if count == 1 else f"{count} drafts"


def _phase_marks(
    found: Isolated, which: Phase, lines: dict[tuple[str, int], tuple[PhasePoint, ...]]
) -> list[dict[str, Any]]:
    """Peaks that a line falls from, and the last points at which drafts pay."""
    places = [
        (turn.topology, turn.drafts, turn.peak, TURNS)
        for turn in found.turns
        if turn.phase == which and turn.falls_at is not None
    ]
    if which == "decode":
        places += [
            (pays.topology, pays.drafts, pays.pay_until, LAST_GAIN)
            for pays in found.drafts_pay
            if pays.lose_from is not None and pays.pay_until is not None
        ]
    return [
        {"topology": topology, "users": users, "rate": point.tok_s_gpu, "mark": mark}
        for topology, drafts, users, mark in places
        for point in lines.get((topology, drafts), ())
        if point.concurrency == users
    ]


def _band(names: Sequence[str]) -> "alt.Y":
    """Rows in the order given; their names stand above the bars, not beside them, so that long
    ones leave a narrow page its width."""
    import altair as alt

    return alt.Y("row:N", title=None, sort=list(names), axis=None)


def _length(title: str, top: float, form: str = "") -> "alt.X":
    """The length of bars, from zero, with room for a number behind the longest."""
    import altair as alt

    axis = alt.Axis(tickCount=6, format=form) if form else alt.Axis(tickCount=6)
    return alt.X(
        "value:Q", title=title, axis=axis, scale=alt.Scale(domain=[0, 1.18 * top], nice=False)
    )


def _labels(rows: Sequence[dict[str, Any]], y: "alt.Y") -> "tuple[alt.Chart, alt.Chart]":
    """Each row's name above its bar, and its number behind it."""
    import altair as alt

    chart = alt.Chart(alt.InlineData(values=list(rows)))
    name = chart.mark_text(align="left", dy=-BAR / 2 - 1, fontSize=12).encode(
        x=alt.value(2), y=y, text="row:N"
    )
    number = chart.mark_text(align="left", dx=5, dy=BAR / 2).encode(x="end:Q", y=y, text="told:N")
    return name, number


def _sized(chart: "alt.LayerChart", height: int) -> "alt.LayerChart":
    return chart.properties(width="container", height=max(height, ROW))


def occupancy(run: Run) -> "alt.LayerChart":
    """KV use of every pool over time, one strip each: what requests hold, the part of it that
    finished prefills hold for their transfer, and on top free blocks that still cache a prefix.
    A strip shows the highest use in each slot of time."""
    import altair as alt

    pools = _pools(run)
    slots = min(SLOTS, MOST_ROWS // max(len(pools), 1))
    edges = np.linspace(0.0, max(run.duration_s, 1e-9), slots + 1)
    rows = []
    for strip, pool in enumerate(reversed(pools)):
        role = run.roles[run.instances.pool[pool]]
        found = _shares(run, pool, edges)
        columns = (edges[:-1], found.used, found.held, found.cached)
        rows += [
            {"t": t, "b": strip, "r": role, "u": u, "h": h, "c": c}
            for t, u, h, c in zip(*(column.round(3).tolist() for column in columns), strict=True)
        ]
    # As text, since Altair would walk through every row; as JSON, since Vega reads CSV by eval,
    # which the page forbids.
    text = json.dumps(rows, separators=(",", ":"))
    strips = alt.InlineData(values=text, format=alt.JsonDataFormat(type="json"))
    colours = dict(zip(dict.fromkeys(run.roles), STRIPS, strict=False))
    parts = {"h": HELD, "c": CACHED}
    present = [key for key in parts if any(row[key] for row in rows)]
    colours |= {parts[key]: {"h": ORANGE, "c": GREY}[key] for key in present}
    x = alt.X("t:Q", title="seconds", scale=alt.Scale(nice=False), axis=alt.Axis(tickCount=8))
    area = (
        alt.Chart(strips)
        .transform_calculate(
            used=f"datum.b + {FILL} * datum.u",
            h_top=f"datum.b + {FILL} * datum.h",
            c_top=f"datum.b + {FILL} * min(1, datum.u + datum.c)",
        )
        .encode(x, detail="b:N")
    )
    tips = {"u": "KV used", "h": HELD, "c": CACHED}
    used = area.mark_area(interpolate="step-after").encode(
        alt.Y("used:Q", title=None, axis=_strip_axis(run, pools), scale=_strips(len(pools))),
        alt.Color(
            "r:N",
            title=None,
            scale=alt.Scale(domain=list(colours), range=list(colours.values())),
            legend=alt.Legend(symbolOpacity=1),
        ),
        y2="b:Q",
        tooltip=[
            alt.Tooltip("t:Q", title="second"),
            *(alt.Tooltip(f"{key}:Q", title=name, format=".0%") for key, name in tips.items()),
        ],
    )
    bases = {"h": "b:Q", "c": "used:Q"}
    extra = [
        area.mark_area(interpolate="step-after", fillOpacity=1 if key == "h" else 0.45).encode(
            alt.Y(f"{key}_top:Q"), y2=bases[key], color=alt.datum(parts[key])
        )
        for key in present
    ]
    ceilings = (
        alt.Chart(alt.InlineData(values=[{"c": i + FILL} for i in range(len(pools))]))
        .mark_rule(strokeWidth=0.5, opacity=0.6)
        .encode(y="c:Q")
    )
    each = max(min(44, 900 // max(len(pools), 1)), 14)
    return _sized(alt.layer(used, *extra, ceilings), each * len(pools))


def _strips(count: int) -> "alt.Scale":
    import altair as alt

    return alt.Scale(domain=[0, max(count, 1)], nice=False)


def _strip_axis(run: Run, pools: Sequence[int]) -> "alt.Axis":
    """A label in the middle of each strip, lowest strip first."""
    import altair as alt

    labels = [pool_name(run, pool) for pool in reversed(pools)]
    return alt.Axis(
        values=[i + FILL / 2 for i in range(len(pools))],
        labelExpr=f"{labels!r}[floor(datum.value)]",
        grid=False,
        ticks=False,
        domain=False,
        labelLimit=200,
    )


def _pools(run: Run) -> list[int]:
    """The KV pools to draw, in order of role and instance: those with the most use if many."""
    count = len(run.instances.kv_blocks)
    if count <= MOST_POOLS:
        return list(range(count))
    peak = np.zeros(count)
    share = run.series.kv_used / np.maximum(run.instances.kv_blocks[run.series.instance], 1)
    np.maximum.at(peak, run.series.instance, share)
    return sorted(int(i) for i in np.argsort(-peak, kind="stable")[:MOST_POOLS])


def pool_name(run: Run, pool: int) -> str:
    """ "prefill 3", with its rank where an instance has several: "decode 0.2"."""
    found = run.instances
    ours = found.pool == found.pool[pool]
    number = int(np.searchsorted(np.unique(found.instance[ours]), found.instance[pool]))
    rank = f".{found.rank[pool]}" if found.rank[ours].max() > 0 else ""
    return f"{run.roles[found.pool[pool]]} {number}{rank}"


def _shares(run: Run, pool: int, edges: Column) -> Shares:
    """Shares of one pool in each slot between the edges.

    A value holds from its change point on, so a slot also sees what held at its start.
    """
    rows = np.flatnonzero(run.series.instance == pool)
    blocks = max(int(run.instances.kv_blocks[pool]), 1)
    times = run.series.time_s[rows]
    starts = np.searchsorted(times, edges[:-1], side="right") - 1
    slot = np.searchsorted(edges, times, side="right") - 1
    inside = (slot >= 0) & (slot < len(edges) - 1)

    def begun(column: NDArray[np.int32]) -> Column:
        values = np.append(column[rows] / blocks, 0.0)  # nothing yet is the last entry
        return values[np.where(starts >= 0, starts, len(rows))]

    def peaks(column: NDArray[np.int32]) -> Column:
        found = begun(column)
        np.maximum.at(found, slot[inside], column[rows][inside] / blocks)
        return found

    series = run.series
    return Shares(peaks(series.kv_used), peaks(series.held), begun(series.kv_cached))


def save(chart: "alt.LayerChart", path: Path) -> None:
    """Draw a chart as PNG or SVG by its suffix, on white, without a browser."""
    import vl_convert

    spec = chart.properties(width=WIDTH).to_dict()
    spec["config"] = LIGHT
    if path.suffix == ".svg":
        # The reader's font may be wider than the one that labels were measured with.
        spec["padding"] = {"left": 24, "top": 5, "right": 24, "bottom": 5}
        write_atomic(path, vl_convert.vegalite_to_svg(spec))
    elif path.suffix == ".png":
        write_atomic(path, vl_convert.vegalite_to_png(spec, scale=2))
    else:
        raise PlanError(
            str(path), f"no figure can be a {path.suffix or 'file without suffix'}", ".png or .svg"
        )
