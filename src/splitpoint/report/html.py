"""The answer as one self-contained HTML page.

Tables hold every number; the figures repeat them. All words that came from a user's file are
escaped where they enter the page (`text`).
"""

from collections.abc import Mapping, Sequence

from splitpoint import units
from splitpoint.report import figures, words
from splitpoint.report.document import (
    NUMBER,
    WORDS,
    Charts,
    bullets,
    cards,
    document,
    table,
    text,
    top,
)
from splitpoint.run import Run
from splitpoint.verdict.answer import (
    Answer,
    Claim,
    Comparison,
    Condition,
    Figure,
    Holding,
    Point,
    Wall,
    WorkloadSummary,
)

MOST_LADDERS = 4


def page(answer: Answer, runs: Mapping[str, Run]) -> str:
    """The whole page; `runs` by point name, for the figures of KV use over time."""
    charts = Charts()
    sections = [
        ("why", "Why", _why(answer)),
        ("frontier", "The frontier", _frontier(answer, charts)),
        ("ttft", "Where TTFT goes", _ttft(answer, charts)),
        ("steps", "What a step's time is made of", _steps(answer)),
        ("kv", "The KV walls", _kv(answer, runs, charts)),
        ("memory", "What a GPU holds", _memory(answer, charts)),
        ("workload", "Workload", _workload(answer)),
        ("rejected", "Not simulated", _rejected(answer)),
        ("numbers", "Numbers that are not arithmetic", _numbers(answer)),
        ("recipe", "Recipe", _recipe(answer)),
    ]
    return document(
        f"{words.title(answer)}: {answer.verdict.choice}",
        sections,
        charts,
        header=_header(answer),
        footer=f"Splitpoint {answer.splitpoint}, plan.json version {answer.version}.",
    )


def _header(answer: Answer) -> str:
    point = words.chosen(answer)
    at = f"p{answer.plan.slo.percentile:g}"
    keys: list[tuple[str, str, str]] = [("verdict", answer.verdict.choice, "")]
    if point is not None:
        keys += [
            ("chosen deployment", point.name, "wide"),
            ("load", point.load, ""),
            ("GPUs", str(point.gpus), ""),
            ("total tok/s/GPU", words.count(point.total_tok_s_gpu), ""),
            ("output tok/s/GPU", words.count(point.output_tok_s_gpu), ""),
            ("tok/s/user", words.pace(point.interactivity), ""),
            (f"TTFT {at}", words.seconds(point.ttft.at_slo), ""),
            (f"TPOT {at}", words.seconds(point.tpot.at_slo), ""),
            ("requests within both", words.percent(point.attainment), ""),
            ("success", words.percent(point.success), ""),
        ]
    else:
        for near in words.best(answer):
            arm = "split" if near.deployment.split else "mixed"
            keys += [
                (f"nearest {arm}", words.point(near), "wide"),
                ("requests within both", words.percent(near.attainment), ""),
                (f"TTFT {at}", words.seconds(near.ttft.at_slo), ""),
                (f"TPOT {at}", words.seconds(near.tpot.at_slo), ""),
            ]
    asked = filter(None, (words.slo(answer), words.patience(answer)))
    return (
        top(words.about(answer)) + f"<h1>{text(answer.verdict.headline)}</h1>"
        f'<p class="soft">Asked: {text("; ".join(asked))}. Simulated, not measured.</p>'
        + cards(keys)
    )


def _why(answer: Answer) -> str:
    verdict = answer.verdict
    parts = [bullets(verdict.reasons)]
    if verdict.comparisons:
        parts.append(
            table(
                "Split against mixed, on the same GPUs, load and service level",
                [
                    ("basis", ""),
                    ("better", ""),
                    ("by", NUMBER),
                    ("split", ""),
                    ("mixed", ""),
                    ("", WORDS),
                ],
                [_comparison(comparison) for comparison in verdict.comparisons],
            )
        )
    if verdict.conditions:
        parts.append("<h3>When a split pays</h3>")
        parts.append(
            table(
                "A margin above zero holds",
                [
                    ("condition", ""),
                    ("holds", ""),
                    ("margin", NUMBER),
                    ("value", WORDS),
                    ("against", WORDS),
                    ("", WORDS),
                ],
                [_condition(condition) for condition in verdict.conditions],
            )
        )
    if verdict.claims:
        parts.append("<h3>What would change the answer</h3>")
        parts.append(
            table(
                "Each claim can be refuted by a measurement",
                [
                    ("variable", ""),
                    ("now", WORDS),
                    ("flips at", WORDS),
                    ("claim", WORDS),
                    ("to refute it", WORDS),
                ],
                [_claim(claim) for claim in verdict.claims],
            )
        )
    if verdict.rests_on:
        parts.append("<h3>The verdict rests on assumed numbers</h3>")
        parts.append(bullets(verdict.rests_on))
    return "".join(parts)


def _comparison(comparison: Comparison) -> list[str]:
    basis = comparison.basis
    routing = f" ({comparison.routing})" if comparison.routing else ""
    return [
        text(basis + (routing if basis == "equal routing" else "")),
        text(comparison.winner),
        text(words.lead(comparison)),
        text(comparison.split or "none"),
        text(comparison.mixed or "none"),
        text(comparison.words),
    ]


def _condition(condition: Condition) -> list[str]:
    kind = {True: "yes", False: "no", None: "doubt"}[condition.holds]
    return [
        text(condition.name),
        f'<span class="{kind}">{text(words.HOLDS[condition.holds])}</span>',
        text(words.margin(condition.margin)),
        f"{text(condition.value.name)} {_figure(condition.value)}",
        f"{text(condition.threshold.name)} {_figure(condition.threshold)}",
        text(condition.words),
    ]


def _claim(claim: Claim) -> list[str]:
    flips = "no flip found" if claim.flips_at is None else words.amount(claim.flips_at, claim.unit)
    return [
        text(claim.variable),
        text(words.amount(claim.now, claim.unit)),
        text(flips),
        text(claim.words),
        text(claim.refute),
    ]


def _frontier(answer: Answer, charts: Charts) -> str:
    if not answer.points:
        return "<p>No deployment could be simulated.</p>"
    top = max(answer.points, key=lambda p: p.total_tok_s_gpu)
    told = (
        f"Throughput against interactivity of {len(answer.points)} simulated points; the highest "
        f"throughput is {words.count(top.total_tok_s_gpu)} total tok/s/GPU, by {top.name}. "
        "The table below has every number."
    )
    caption = (
        "Filled points keep the service level, hollow ones do not. Lines join the points of an "
        "arm that no other of it beats. Right of the dashed line the median TPOT is within the "
        "service level. Point at one for its name and numbers."
    )
    shown = words.shown(answer)
    rest = [point for point in answer.points if point not in shown]
    parts = [
        charts.figure(figures.frontier(answer), told, caption),
        _points_table("The frontier, and what the verdict compares", shown, answer),
        '<p class="soft">Success and the share within the SLO count all requests; latencies are '
        "of those that finished. Output throughput counts the GPUs of both sides.</p>",
    ]
    if rest:
        parts.append(
            f"<details><summary>{len(rest)} more simulated points</summary>"
            f"{_points_table('Points below the frontier', rest, answer)}</details>"
        )
    return "".join(parts)


def _points_table(caption: str, points: Sequence[Point], answer: Answer) -> str:
    at = f"p{answer.plan.slo.percentile:g}"
    names = [
        "GPUs",
        "total tok/s/GPU",
        "output tok/s/GPU",
        "tok/s/user",
        "TTFT p50",
        f"TTFT {at}",
        "TPOT p50",
        f"TPOT {at}",
        "within SLO",
        "success",
    ]
    return table(
        caption,
        [
            ("deployment", ""),
            ("load", ""),
            *((name, NUMBER) for name in names),
            ("first wall", WORDS),
        ],
        [
            [
                text(words.point(point)),
                text(point.load),
                str(point.gpus),
                words.count(point.total_tok_s_gpu),
                words.count(point.output_tok_s_gpu),
                words.pace(point.interactivity),
                words.seconds(point.ttft.p50),
                words.seconds(point.ttft.at_slo),
                words.seconds(point.tpot.p50),
                words.seconds(point.tpot.at_slo),
                text(words.percent(point.attainment)),
                text(words.percent(point.success)),
                text(point.first_wall),
            ]
            for point in points
        ],
        marked=[point.name == answer.verdict.chosen for point in points],
    )


def _steps(answer: Answer) -> str:
    if not answer.steps:
        return ""
    return table(
        "Mean steps of the best split and the best mixed deployment",
        [("step", ""), ("deployment", ""), ("of", WORDS), ("seconds", NUMBER), ("parts", WORDS)],
        [
            [
                text(step.name),
                text(step.deployment),
                text(step.words),
                words.seconds(step.seconds),
                text(
                    ", ".join(
                        f"{name} {words.percent(share)}" for name, share in words.shares(step)
                    )
                ),
            ]
            for step in answer.steps
        ],
    )


def _ttft(answer: Answer, charts: Charts) -> str:
    points = words.best(answer)
    if not points:
        return ""
    told = "; ".join(
        f"{point.name}: queue {words.seconds(point.ttft_stack.queue)}, prefill "
        f"{words.seconds(point.ttft_stack.prefill)}, transfer "
        f"{words.seconds(point.ttft_stack.transfer)}, decode wait "
        f"{words.seconds(point.ttft_stack.decode_wait)}"
        for point in points
    )
    pools = [(point, pool) for point in points for pool in point.pools]
    return charts.figure(
        figures.ttft(points),
        f"Mean TTFT by its parts. {told}",
        "The best split and the best mixed deployment: mean seconds from arrival to first token.",
    ) + table(
        "What each pool saw: time averages over its ranks",
        [
            ("pool", ""),
            ("deployment", ""),
            ("busy", NUMBER),
            ("KV used", NUMBER),
            ("KV used p99", NUMBER),
            ("KV held for transfer", NUMBER),
            ("prefix hits", NUMBER),
            ("preemptions", NUMBER),
            ("waiting", NUMBER),
        ],
        [
            [
                text(f"{pool.role}: {pool.name}"),
                text(point.name),
                text(words.percent(pool.busy_share)),
                text(words.percent(pool.kv_used_mean)),
                text(words.percent(pool.kv_used_p99)),
                text(words.percent(pool.kv_held_mean)),
                text(words.percent(pool.prefix_hit_share)),
                units.count(pool.preemptions),
                words.three(round(pool.waiting_mean, 3)),
            ]
            for point, pool in pools
        ],
    )


def _kv(answer: Answer, runs: Mapping[str, Run], charts: Charts) -> str:
    parts = []
    if answer.walls:
        told = "; ".join(
            f"{wall.side} side of {wall.deployment} {words.percent(wall.occupancy)}"
            for wall in answer.walls
        )
        parts = [
            charts.figure(
                figures.walls(answer.walls),
                f"KV demand against the pools. {told}",
                "What the requests of a side ask for at once on average, each by itself, as a "
                "share of what its pools hold. Past the dashed line requests queue, or are "
                "preempted; red: so at p99.",
            ),
            table(
                "The walls in numbers",
                [
                    ("wall", ""),
                    ("asked for, mean", NUMBER),
                    ("used or waited for, p99", NUMBER),
                    ("asked", WORDS),
                    ("held", WORDS),
                    ("", WORDS),
                ],
                [_wall(wall) for wall in answer.walls],
            ),
        ]
    for point in words.best(answer):
        run = runs.get(point.name)
        if run is None or not len(run.series.time_s):
            continue
        parts.append(f"<h3>KV use over time: {text(point.name)}</h3>")
        used = "; ".join(
            f"{pool.role} {words.percent(pool.kv_used_mean)} used on average"
            for pool in point.pools
        )
        note = (
            f" The {figures.MOST_POOLS} fullest of {len(run.instances.kv_blocks)} pools."
            if len(run.instances.kv_blocks) > figures.MOST_POOLS
            else ""
        )
        parts.append(
            charts.figure(
                figures.occupancy(run),
                f"KV use of each pool over time. {used}",
                "One strip a pool; a full strip touches the line above it. Cached prefixes are "
                "free blocks that a hit can still use. Each slot of time shows its highest "
                f"use.{note}",
            )
        )
    return "".join(parts)


def _wall(wall: Wall) -> list[str]:
    kind = "no" if wall.peak > 1 else "yes"
    return [
        text(f"{wall.side} side of {wall.deployment}"),
        text(words.percent(wall.occupancy)),
        f'<span class="{kind}">{text(words.percent(wall.peak))}</span>',
        f"{_figure(wall.demand)} {text(wall.demand.name)}",
        f"{_figure(wall.pool)} {text(wall.pool.name)}",
        text(wall.words),
    ]


def _memory(answer: Answer, charts: Charts) -> str:
    cost = answer.request
    parts = [
        f"<p>One request of {units.count(cost.tokens)} tokens takes "
        f"<strong>{units.memory(cost.bytes)}</strong> on one rank of {text(cost.topology)}: "
        f"{units.count(cost.blocks)} blocks of {units.count(cost.block_tokens)} tokens, pages of "
        f"{units.memory(cost.page_bytes)}. {text(words.percent(cost.fixed_share))} of it is fixed "
        f"whatever the length, {text(words.percent(cost.unused_share))} is allocated and never "
        "written.</p>"
    ]
    laddered = [holding for holding in words.held(answer, words.best(answer)) if holding.rungs]
    parts += [_ladder(holding, charts) for holding in laddered[:MOST_LADDERS]]
    if answer.holdings:
        parts.append(
            table(
                "Every topology that was considered, per rank",
                [
                    ("topology", ""),
                    ("KV pool", NUMBER),
                    ("blocks", NUMBER),
                    ("requests at full length", NUMBER),
                    ("fits", ""),
                ],
                [
                    [
                        text(holding.topology),
                        units.gib(holding.kv_bytes),
                        units.count(holding.kv_blocks),
                        words.three(holding.concurrency),
                        _yes(holding.fits),
                    ]
                    for holding in answer.holdings
                ],
            )
        )
    return "".join(parts)


def _ladder(holding: Holding, charts: Charts) -> str:
    last = len(holding.rungs) - 1
    told = "; ".join(f"{words.rung(r.name)} {words.figure(r)}" for r in holding.rungs)
    rows = [
        [
            text(words.rung(rung.name)),
            ("&minus;&nbsp;" if 0 < i < last else "") + f"{rung.value / units.GIB:,.2f}",
            _origin(rung, long=True),
        ]
        for i, rung in enumerate(holding.rungs)
    ]
    return (
        f"<h3>One rank of {text(holding.topology)}, rung by rung</h3>"
        + charts.figure(
            figures.ladder(holding),
            f"Memory of one rank of {holding.topology}. {told}",
            "From the memory on the package down to the KV pool.",
        )
        + "<details><summary>The rungs in numbers, with their origins</summary>"
        + table(
            f"One rank of {holding.topology}",
            [("rung", ""), ("GiB", NUMBER), ("origin", WORDS)],
            rows,
        )
        + "</details>"
    )


def _workload(answer: Answer) -> str:
    load = answer.workload
    facts = [
        ("requests", units.count(load.requests)),
        *(_arrivals(load) if load.duration_s else []),
        ("input mean", units.count(load.isl_mean)),
        ("input p50", units.count(load.isl_p50)),
        ("input p90", units.count(load.isl_p90)),
        ("input p99", units.count(load.isl_p99)),
        ("output mean", units.count(load.osl_mean)),
        ("output p50", units.count(load.osl_p50)),
        ("output p90", units.count(load.osl_p90)),
        ("input reused", words.percent(load.reuse_share)),
        ("of that in a session", words.percent(load.session_reuse_share)),
    ]
    return f"<p>{text(load.name)}. Reuse is with an endless prefix cache.</p>" + cards(
        [(name, value, "") for name, value in facts]
    )


def _arrivals(load: WorkloadSummary) -> list[tuple[str, str]]:
    return [
        ("duration", units.seconds(load.duration_s)),
        ("rate", units.rate(load.rate, "req")),
    ]


def _rejected(answer: Answer) -> str:
    if not answer.rejected:
        return ""
    shown = table(
        "Deployments that were considered and not simulated",
        [("deployment", ""), ("why", WORDS), ("short by", NUMBER)],
        [
            [
                text(rejected.name),
                text(rejected.why),
                text(words.figure(rejected.shortfall)) if rejected.shortfall else "",
            ]
            for rejected in answer.rejected
        ],
    )
    count = units.count(len(answer.rejected))
    return f"<details><summary>{count} deployments, each with its reason</summary>{shown}</details>"


def _numbers(answer: Answer) -> str:
    if not answer.assumptions:
        return ""
    return (
        "<p>Published: a vendor or a study printed it. Measured: somebody ran it. Assumed: "
        "neither; a result that depends on one says so.</p>"
        + table(
            "What the answer takes from elsewhere",
            [("number", ""), ("value", NUMBER), ("origin", WORDS)],
            [
                [text(figure.name), text(words.figure(figure)), _origin(figure, long=True)]
                for figure in answer.assumptions
            ],
        )
    )


def _recipe(answer: Answer) -> str:
    files = "".join(f"<li><code>{text(path)}</code></li>" for path in answer.recipes)
    made = f"<ul>{files}</ul>" if files else "<p>None: no deployment was chosen.</p>"
    notes = f"<h3>Notes</h3>{bullets(answer.notes)}" if answer.notes else ""
    return made + notes


def _yes(holds: bool) -> str:
    return f'<span class="{"yes" if holds else "no"}">{words.HOLDS[holds]}</span>'


def _figure(figure: Figure) -> str:
    return f"{text(words.figure(figure))} {_origin(figure)}"


def _origin(figure: Figure, *, long: bool = False) -> str:
    """A mark that tells where a number is from, its source on hover or behind it."""
    kind = "origin assumed" if figure.origin == "assumed" else "origin"
    mark = f'<span class="{kind}" title="{text(words.origin(figure))}">{text(figure.origin)}</span>'
    return f"{mark} {text(words.behind(figure))}" if long and figure.source else mark
