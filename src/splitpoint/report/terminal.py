"""The answer on a terminal or in a pipe: plain sections from the price of a request to the verdict.

Nothing is cut off: words wrap at the console's width, numbers never do. Colour is a hint only;
all that it says stands in words too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from splitpoint import units
from splitpoint.report import words
from splitpoint.report.columns import Column, table, wrap

if TYPE_CHECKING:
    from splitpoint.inputs.trace import TraceSummary
    from splitpoint.pricing.price import Price, Table
    from splitpoint.verdict.answer import (
        Answer,
        Claim,
        Comparison,
        Condition,
        Holding,
        Point,
        Rejected,
        Wall,
        WorkloadSummary,
    )
    from splitpoint.verdict.replay import InstanceState, Spread, Summary

INDENT = 2
MOST_REASONS = 6
GOOD, BAD, DOUBT = "green", "red", "yellow"


def render(answer: Answer, console: Console) -> None:
    """Print the whole answer, the verdict last."""
    out = _Page(console)
    out.title(words.about(answer))
    _workload(answer, out)
    _request(answer, out)
    _holdings(answer, out)
    _walls(answer, out)
    _frontier(answer, out)
    _ttft(answer, out)
    _steps(answer, out)
    _rejected(answer, out)
    _assumptions(answer, out)
    if answer.notes:
        out.section("Notes")
        out.bullets(answer.notes)
    _verdict(answer, out)
    out.section("Recipe")
    out.bullets(_folders(answer.recipes) or ["none: no deployment was chosen"])


def _folders(paths: Sequence[str]) -> list[str]:
    """The files by folder: "recipes: README.md, run.sh"."""
    folders: dict[str, list[str]] = {}
    for path in paths:
        parent, _, name = path.rpartition("/")
        folders.setdefault(parent, []).append(name)
    return [f"{folder or '.'}: {', '.join(names)}" for folder, names in folders.items()]


class _Page:
    """Where lines go: indented, wrapped, and one blank line between sections."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.width = max(console.width - INDENT, 20)

    def title(self, text: str) -> None:
        for line in wrap(text, self.console.width):
            self._print(Text(line, "bold"))

    def section(self, name: str) -> None:
        self.gap()
        self._print(Text(name, "bold"))

    def say(self, text: str, style: str = "", hang: int = 0) -> None:
        """Words that wrap; lines after the first hang by some more cells."""
        first, *rest = wrap(text, self.width - hang)
        self._print(Text(" " * INDENT + first, style))
        for line in rest:
            self._print(Text(" " * (INDENT + hang) + line, style))

    def under(self, text: str) -> None:
        """Words that belong to the line above them."""
        for line in wrap(text, self.width - 2 * INDENT):
            self._print(Text(" " * 3 * INDENT + line))

    def gap(self) -> None:
        self._print(Text(""))

    def bullets(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.say(f"- {words.plain(line)}", hang=2)

    def rows(
        self, columns: Sequence[Column], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()
    ) -> None:
        for line in table(columns, rows, self.width, styles):
            self._print(Text(" " * INDENT).append(line))

    def labelled(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Labels in one column, their words wrapped beside them."""
        self.rows([Column("", "name"), Column("", "words")], pairs)

    def _print(self, text: Text) -> None:
        self.console.print(text, soft_wrap=True)


def _workload(answer: Answer, out: _Page) -> None:
    load = answer.workload
    out.section(f"Workload: {words.plain(load.name)}")
    out.labelled(
        [
            ("requests", _arrivals(load)),
            (
                "input tokens",
                f"mean {units.count(load.isl_mean)}, p50 {units.count(load.isl_p50)}, "
                f"p90 {units.count(load.isl_p90)}, p99 {units.count(load.isl_p99)}",
            ),
            (
                "output tokens",
                f"mean {units.count(load.osl_mean)}, p50 {units.count(load.osl_p50)}, "
                f"p90 {units.count(load.osl_p90)}",
            ),
            (
                "reuse",
                f"{words.percent(load.reuse_share)} of the input with an endless cache, "
                f"{words.percent(load.session_reuse_share)} of that inside a session",
            ),
            ("service level", words.slo(answer)),
            *([("patience", told)] if (told := words.patience(answer)) else []),
        ]
    )


def _arrivals(load: WorkloadSummary) -> str:
    told = units.count(load.requests)
    if not load.duration_s:
        return f"{told}, each as soon as a user is free"
    return f"{told} in {units.seconds(load.duration_s)}, {units.rate(load.rate, 'req')}"


def _request(answer: Answer, out: _Page) -> None:
    cost = answer.request
    out.section("What one request costs")
    out.say(
        f"{units.count(cost.tokens)} tokens on one rank of {words.plain(cost.topology)}: "
        f"{units.memory(cost.bytes)} in {units.count(cost.blocks)} blocks of "
        f"{units.count(cost.block_tokens)} tokens (page {units.memory(cost.page_bytes)}); "
        f"{words.percent(cost.fixed_share)} of it fixed whatever the length, "
        f"{words.percent(cost.unused_share)} allocated and never written."
    )


def _holdings(answer: Answer, out: _Page) -> None:
    out.section("What a GPU holds")
    for alike in _alike(words.held(answer, words.best(answer)) or answer.holdings[:1]):
        out.rows(
            [
                Column("rung, GiB", "name"),
                *(Column(words.plain(held.topology).replace(" ", "\n")) for held in alike),
                Column("origin", "words"),
            ],
            _ladder_rows(alike),
            [DOUBT if rung.origin == "assumed" else "" for rung in alike[0].rungs],
        )
        out.gap()
    if answer.holdings:
        out.rows(
            [
                Column("per rank", "words"),
                Column("KV pool"),
                Column("blocks"),
                Column("requests\nat full length"),
                Column("fits"),
            ],
            [
                [
                    words.plain(holding.topology),
                    units.gib(holding.kv_bytes),
                    units.count(holding.kv_blocks),
                    words.three(holding.concurrency),
                    words.HOLDS[holding.fits],
                ]
                for holding in answer.holdings
            ],
        )


def _alike(holdings: Sequence[Holding]) -> list[list[Holding]]:
    """Holdings whose rungs have the same origins, so that one table holds them."""
    groups: dict[tuple[str, ...], list[Holding]] = {}
    for holding in holdings:
        key = tuple(f"{rung.name} {words.origin(rung)}" for rung in holding.rungs)
        groups.setdefault(key, []).append(holding)
    return list(groups.values())


def _ladder_rows(alike: Sequence[Holding]) -> list[list[str]]:
    last = len(alike[0].rungs) - 1
    return [
        [
            words.rung(rung.name),
            *(_taken(holding.rungs[i].value, 0 < i < last) for holding in alike),
            words.origin(rung),
        ]
        for i, rung in enumerate(alike[0].rungs)
    ]


def _taken(size: float, taken: bool) -> str:
    return ("- " if taken else "") + f"{size / units.GIB:,.2f}"


def _walls(answer: Answer, out: _Page) -> None:
    out.section("The KV walls")
    if not answer.walls:
        out.say("none: nothing was simulated")
    for wall in answer.walls:
        out.say(
            f"{wall.side} side of {words.plain(wall.deployment)}: "
            f"{words.percent(wall.occupancy)} of its pools asked for on average, "
            f"{words.percent(wall.peak)} used or waited for at p99",
            BAD if wall.peak > 1 else "bold",
            hang=2,
        )
        for line in _wall_lines(wall):
            out.under(line)


def _wall_lines(wall: Wall) -> list[str]:
    return [
        f"asked: {words.figure(wall.demand)} ({words.plain(wall.demand.name)}; "
        f"{words.origin(wall.demand)})",
        f"held: {words.figure(wall.pool)} ({words.plain(wall.pool.name)}; "
        f"{words.origin(wall.pool)})",
        words.plain(wall.words),
    ]


def _frontier(answer: Answer, out: _Page) -> None:
    points = words.shown(answer)
    out.section("The frontier")
    if not points:
        out.say("no deployment could be simulated")
        return
    at = f"p{answer.plan.slo.percentile:g}"
    out.rows(
        [
            Column("deployment", "words"),
            Column("load", "name"),
            Column("GPUs"),
            Column("total\ntok/s/GPU"),
            Column("output\ntok/s/GPU"),
            Column("tok/s\n/user"),
            Column(f"TTFT\n{at}"),
            Column(f"TPOT\n{at}"),
            Column("within\nSLO"),
            Column("success"),
        ],
        [_point_row(answer, point) for point in points],
        [
            "bold" if point.name == answer.verdict.chosen else "" if point.meets_slo else "dim"
            for point in points
        ],
    )
    legend = "* the verdict's choice. Success counts all requests, latencies those that finished."
    if len(points) < len(answer.points):
        legend += (
            f" {len(answer.points) - len(points)} more simulated points lie below the frontier; "
            "the report page lists them."
        )
    out.say(legend)


def _point_row(answer: Answer, point: Point) -> list[str]:
    star = "* " if point.name == answer.verdict.chosen else ""
    return [
        star + words.point(point),
        words.plain(point.load),
        str(point.gpus),
        words.count(point.total_tok_s_gpu),
        words.count(point.output_tok_s_gpu),
        words.pace(point.interactivity),
        words.seconds(point.ttft.at_slo),
        words.seconds(point.tpot.at_slo),
        words.percent(point.attainment),
        words.percent(point.success),
    ]


def _steps(answer: Answer, out: _Page) -> None:
    if not answer.steps:
        return
    out.section("What a step's time is made of, on average")
    for step in answer.steps:
        out.say(
            f"{words.plain(step.name)}, {words.plain(step.deployment)}: "
            f"{words.seconds(step.seconds)} ({step.words})"
        )
        out.under(
            ", ".join(
                f"{words.plain(name)} {words.percent(share)}" for name, share in words.shares(step)
            )
        )


def _ttft(answer: Answer, out: _Page) -> None:
    points = words.best(answer)
    if not points:
        return
    out.section("Where TTFT goes, on average")
    out.rows(
        [
            Column("deployment", "words"),
            Column("queue"),
            Column("prefill"),
            Column("transfer"),
            Column("decode wait"),
            Column("TTFT"),
        ],
        [
            [
                words.plain(point.name),
                words.seconds(point.ttft_stack.queue),
                words.seconds(point.ttft_stack.prefill),
                words.seconds(point.ttft_stack.transfer),
                words.seconds(point.ttft_stack.decode_wait),
                words.seconds(point.ttft.mean),
            ]
            for point in points
        ],
    )
    for point in points:
        for pool in point.pools:
            out.say(
                f"{words.plain(pool.role)} {words.plain(pool.name)}: busy "
                f"{words.percent(pool.busy_share)}, KV used {words.percent(pool.kv_used_mean)} "
                f"(p99 {words.percent(pool.kv_used_p99)}), held for transfer "
                f"{words.percent(pool.kv_held_mean)}, prefix hits "
                f"{words.percent(pool.prefix_hit_share)}, {units.count(pool.preemptions)} "
                f"preemptions, {words.three(round(pool.waiting_mean, 3))} waiting",
                hang=2,
            )
        out.say(f"{words.plain(point.name)}: first wall: {words.plain(point.first_wall)}", hang=2)


def _rejected(answer: Answer, out: _Page) -> None:
    if not answer.rejected:
        return
    out.section(f"Not simulated: {units.count(len(answer.rejected))}")
    reasons: dict[str, list[Rejected]] = {}
    for rejected in answer.rejected:
        reasons.setdefault(words.plain(rejected.why).split(":")[0], []).append(rejected)
    for reason, group in list(reasons.items())[:MOST_REASONS]:
        short = f", short by {words.figure(group[0].shortfall)}" if group[0].shortfall else ""
        example = f"{words.plain(group[0].name)} ({words.plain(group[0].why)}{short})"
        if len(group) > 1:
            out.bullets([f"{units.count(len(group))} x {reason}; the first: {example}"])
        else:
            out.bullets([example])
    rest = sum(len(group) for group in list(reasons.values())[MOST_REASONS:])
    if rest:
        out.say(f"and {units.count(rest)} more, each with its reason in plan.json")


def _verdict(answer: Answer, out: _Page) -> None:
    verdict = answer.verdict
    out.section(f"Verdict: {verdict.choice}")
    out.say(words.plain(verdict.headline), "bold")
    out.bullets(verdict.reasons)
    if verdict.comparisons:
        out.section("Split against mixed, on the same GPUs, load and service level")
        for comparison in verdict.comparisons:
            _comparison(comparison, out)
    if verdict.conditions:
        out.section("When a split pays")
        for condition in verdict.conditions:
            _condition(condition, out)
    if verdict.claims:
        out.section("What would change the answer")
        for claim in verdict.claims:
            _claim(claim, out)
    if verdict.rests_on:
        out.section("The verdict rests on assumed numbers")
        out.bullets(verdict.rests_on)


def _comparison(comparison: Comparison, out: _Page) -> None:
    basis = comparison.basis
    if comparison.routing and comparison.basis == "equal routing":
        basis = f"{basis} ({comparison.routing})"  # type: ignore[assignment]
    out.say(
        f"{basis}: {comparison.winner} ({words.lead(comparison)}). {words.plain(comparison.words)}",
        hang=2,
    )
    for arm, name in (("split", comparison.split), ("mixed", comparison.mixed)):
        out.under(f"{arm}: {words.plain(name) if name else 'none'}")


def _condition(condition: Condition, out: _Page) -> None:
    style = {True: GOOD, False: BAD, None: DOUBT}[condition.holds]
    holds = f"{words.HOLDS[condition.holds]} ({words.margin(condition.margin)})"
    if condition.margin is None:
        holds = words.HOLDS[condition.holds]
    out.say(f"{words.plain(condition.name)}: {holds}", style, hang=2)
    pairs = [
        f"{words.plain(figure.name)} {words.figure(figure)} ({words.origin(figure)})"
        for figure in (condition.value, condition.threshold)
    ]
    out.under(f"{' against '.join(pairs)}; {words.plain(condition.words)}")


def _claim(claim: Claim, out: _Page) -> None:
    now = words.amount(claim.now, claim.unit)
    if claim.flips_at is None:
        flips = "no flip found"
    else:
        flips = f"flips at {words.amount(claim.flips_at, claim.unit)}"
    out.say(f"{words.plain(claim.variable)}: now {now}, {flips}", "bold", hang=2)
    out.under(words.plain(claim.words))
    out.under(f"to refute: {words.plain(claim.refute)}")


def _assumptions(answer: Answer, out: _Page) -> None:
    if not answer.assumptions:
        return
    out.section("Numbers that are not arithmetic")
    origins = [words.origin(figure) for figure in answer.assumptions]
    out.rows(
        [Column("number", "words"), Column("value"), Column("origin", "words")],
        [
            [
                words.plain(figure.name),
                words.figure(figure),
                "as above" if i and origins[i] == origins[i - 1] else origins[i],
            ]
            for i, figure in enumerate(answer.assumptions)
        ],
        [DOUBT if figure.origin == "assumed" else "" for figure in answer.assumptions],
    )


def render_price(price: Price, console: Console) -> None:
    """Print what one request costs and what one rank holds."""
    out = _Page(console)
    on = f" on {words.plain(price.gpu)}" if price.gpu else ""
    out.title(
        f"{words.plain(price.model)}{on}, {words.plain(price.topology)}, "
        f"{words.plain(price.engine)}, KV {price.kv_dtype}: one GPU rank"
    )
    request = price.request
    out.section(f"What a request of {units.count(request.tokens)} tokens costs")
    out.labelled(
        [
            (
                "memory",
                f"{units.memory(request.bytes)} in {units.count(request.blocks)} pages of "
                f"{units.memory(price.page_bytes)} ({units.count(request.pool_blocks)} blocks of "
                f"the pool, {units.memory(price.block_bytes)} each)",
            ),
            ("block", f"{units.count(price.block_tokens)} tokens"),
            (
                "fixed",
                f"{units.memory(request.fixed_bytes)}, {words.percent(request.fixed_share)}: does "
                "not grow with the context",
            ),
            (
                "unused",
                f"{units.count(request.unused_slots)} of {units.count(request.slots)} token slots, "
                f"{words.percent(request.unused_share)}: allocated, never written",
            ),
            ("on one GPU", f"{units.memory(price.unsharded_request_bytes)} without sharding"),
        ]
    )
    out.gap()
    out.rows(
        [
            Column("layers of\none kind", "name"),
            Column("layers"),
            Column("padding"),
            Column("pages"),
            Column("blocks"),
            Column("block\ntokens"),
        ],
        [
            [
                group.kind,
                str(group.layers),
                str(group.padding),
                units.count(group.blocks),
                units.count(group.pool_blocks),
                units.count(group.block_tokens),
            ]
            for group in price.groups
        ],
    )
    _price_ladder(price, out)
    out.section("What it holds")
    if price.fits:
        out.labelled(
            [
                (
                    "KV pool",
                    f"{units.gib(price.kv_bytes_available)} = {units.count(price.num_blocks)} "
                    f"blocks" + _band(price.kv_bytes_band),
                ),
                (
                    "requests",
                    f"{units.count(price.requests_held)} whole; the engine prints "
                    f"{price.max_concurrency:,.2f}x and {units.count(price.kv_tokens_reported)} "
                    "tokens",
                ),
            ]
        )
    else:
        out.say(f"does not fit: short by {units.memory(price.shortfall)}", BAD)
    if price.costs:
        out.section("What settings cost, in requests")
        out.rows(
            [
                Column("setting", "words"),
                Column("from"),
                Column("to"),
                Column("requests"),
                Column("change"),
            ],
            [
                [
                    words.plain(cost.setting),
                    words.plain(cost.before),
                    words.plain(cost.after),
                    f"{units.count(cost.requests_before)} -> {units.count(cost.requests_after)}",
                    f"{cost.requests:+,}",
                ]
                for cost in price.costs
            ],
        )
    if price.warnings:
        out.section("Beware")
        out.bullets(price.warnings)


def _price_ladder(price: Price, out: _Page) -> None:
    if not price.ladder:
        return
    out.section("What the GPU holds, rung by rung")
    last = len(price.ladder) - 1
    out.rows(
        [Column("rung", "name"), Column("GiB"), Column("+-"), Column("origin", "words")],
        [
            [
                words.rung(rung.rung),
                _taken(rung.bytes, 0 < i < last),
                f"{rung.band / units.GIB:,.2f}" if rung.band else "",
                words.origin_of(rung.origin, rung.source),
            ]
            for i, rung in enumerate(price.ladder)
        ],
        [DOUBT if rung.origin == "assumed" else "" for rung in price.ladder],
    )


def _band(size: int) -> str:
    return f", +- {units.gib(size)}" if size else ""


def render_comparison(compared: Table, console: Console) -> None:
    """Print layouts side by side."""
    out = _Page(console)
    out.title(
        f"{words.plain(compared.model)} on {words.plain(compared.gpu)}, requests of "
        f"{units.count(compared.tokens)} tokens"
    )
    out.rows(
        [
            Column("layout", "name"),
            Column("GPUs"),
            Column("block\ntokens"),
            Column("request\non a rank"),
            Column("weights\non a rank"),
            Column("KV pool\non a rank"),
            Column("requests\na rank"),
            Column("requests\nin all"),
            Column("requests\na GPU"),
            Column("short by"),
        ],
        [
            [
                words.plain(row.layout),
                str(row.gpus),
                units.count(row.block_tokens),
                units.memory(row.request_bytes),
                units.gib(row.weights_bytes),
                units.gib(row.kv_bytes_available),
                units.count(row.requests_per_rank),
                units.count(row.requests),
                words.three(row.requests_per_gpu),
                "" if row.fits else units.memory(row.shortfall),
            ]
            for row in compared.rows
        ],
        ["" if row.fits else BAD for row in compared.rows],
    )


def render_trace(summary: TraceSummary, console: Console) -> None:
    """Print a trace in numbers."""
    out = _Page(console)
    out.title(f"{words.plain(summary.name)}: {units.count(summary.requests)} requests")
    think = "unknown" if summary.think_p50_s is None else units.seconds(summary.think_p50_s)
    out.labelled(
        [
            (
                "sessions",
                f"{units.count(summary.sessions)}, {words.three(summary.turns_mean)} turns each "
                f"(at most {units.count(summary.turns_max)}), median think time {think}",
            ),
            (
                "arrivals",
                f"{units.seconds(summary.duration_s)}, mean {units.rate(summary.rate, 'req')}, "
                f"busiest minute {units.rate(summary.peak_rate, 'req')}, "
                + ("closed loop" if summary.closed else "open loop"),
            ),
            (
                "tokens",
                f"{units.count(summary.input_tokens)} in, {units.count(summary.output_tokens)} out",
            ),
            (
                "reuse",
                f"{words.percent(summary.reuse_share)} of the input with an endless cache; "
                f"{words.percent(summary.session_reuse_share)} of that inside a session; "
                f"{words.percent(summary.shared_prefix_share)} of the input only from other "
                "sessions",
            ),
            (
                "identities",
                f"blocks of {units.count(summary.block_tokens)} tokens"
                if summary.block_tokens
                else "none: nothing is known to be reused",
            ),
            *([("source", words.plain(summary.source))] if summary.source else []),
        ]
    )
    out.gap()
    out.rows(
        [Column("tokens", "name"), *(Column(h) for h in ("mean", "p50", "p90", "p99", "max"))],
        [
            [name, *(units.count(v) for v in (s.mean, s.p50, s.p90, s.p99, s.max))]
            for name, s in (("input", summary.isl), ("output", summary.osl))
        ],
    )
    if summary.notes:
        out.section("Notes")
        out.bullets(summary.notes)


def render_run(summary: Summary, console: Console) -> None:
    """Print a run in numbers: what finished first, then how fast."""
    out = _Page(console)
    out.title(
        f"{words.plain(summary.deployment)}: {units.count(summary.requests)} requests, "
        f"{summary.origin}"
    )
    ended = ", ".join(
        f"{units.count(count)} {words.plain(outcome.replace('_', ' '))}"
        for outcome, count in summary.outcomes.items()
    )
    pairs = [
        ("requests", f"{ended}; success {words.percent(summary.success)}"),
        ("duration", f"{words.seconds(summary.duration_s)} on {units.gpus(summary.gpus)}"),
        (
            "throughput",
            f"{words.count(summary.total_tok_s)} total tok/s ({words.count(summary.input_tok_s)} "
            f"in, {words.count(summary.output_tok_s)} out)",
        ),
        (
            "per GPU",
            f"{words.count(summary.total_tok_s_gpu)} total tok/s, "
            f"{words.three(summary.output_tok_s_gpu)} output tok/s",
        ),
        ("per user", f"{words.three(summary.interactivity)} tok/s (1 / median TPOT)"),
    ]
    if summary.attainment is not None and summary.goodput_s is not None:
        pairs.append(
            (
                "within SLO",
                f"{words.percent(summary.attainment)} of all requests, goodput "
                f"{units.rate(summary.goodput_s, 'req')}",
            )
        )
    if summary.ttft_stack is not None:
        stack = summary.ttft_stack
        pairs.append(
            (
                "mean TTFT",
                f"queue {words.seconds(stack.queue)}, prefill {words.seconds(stack.prefill)}, "
                f"transfer {words.seconds(stack.transfer)}, decode wait "
                f"{words.seconds(stack.decode_wait)}",
            )
        )
    if steps := _steps_by_kind(summary):
        pairs.append(("rank steps", steps))
    out.labelled(pairs)
    out.gap()
    out.rows(
        [Column("of finished requests", "name"), *map(Column, ("mean", "p50", "p90", "p99"))],
        [
            [name, *map(_known_seconds, (spread.mean, spread.p50, spread.p90, spread.p99))]
            for name, spread in _spreads(summary)
        ],
    )
    out.gap()
    out.rows(
        [
            Column("KV pool", "words"),
            Column("blocks"),
            Column("KV used\nmean"),
            Column("KV used\np99"),
            Column("held"),
            Column("busy"),
            Column("hits"),
            *([Column("of host")] if _reloads(summary) else []),
            Column("waiting"),
            Column("preempted"),
        ],
        [_instance_row(summary, state) for state in summary.instances],
    )
    if summary.notes:
        out.section("Notes")
        out.bullets(summary.notes)


def _steps_by_kind(summary: Summary) -> str:
    """Steps of all ranks by what they computed; nothing where none was counted."""
    counts = {
        "decode": sum(state.decode_steps for state in summary.instances),
        "prefill": sum(state.prefill_steps for state in summary.instances),
        "of both": sum(state.mixed_steps for state in summary.instances),
    }
    return ", ".join(f"{units.count(count)} {kind}" for kind, count in counts.items() if count)


def _spreads(summary: Summary) -> list[tuple[str, Spread]]:
    return [
        ("TTFT", summary.ttft),
        ("TPOT", summary.tpot),
        ("gap between tokens", summary.itl),
        ("end to end", summary.e2el),
    ]


def _known_seconds(value: float | None) -> str:
    return words.UNKNOWN if value is None else words.seconds(value)


def _reloads(summary: Summary) -> bool:
    """Whether anything came back from host memory."""
    return any(state.host_hit_share > 0 for state in summary.instances)


def _instance_row(summary: Summary, state: InstanceState) -> list[str]:
    ranked = any(s.pool == state.pool and s.rank > 0 for s in summary.instances)
    first = min(s.instance for s in summary.instances if s.pool == state.pool)
    rank = f".{state.rank}" if ranked else ""
    return [
        f"{words.plain(state.role)} {state.instance - first}{rank}",
        units.count(state.kv_blocks),
        words.percent(state.kv_used_mean),
        words.percent(state.kv_used_p99),
        words.percent(state.kv_held_mean),
        words.percent(state.busy_share),
        words.percent(state.prefix_hit_share),
        *([words.percent(state.host_hit_share)] if _reloads(summary) else []),
        words.three(round(state.waiting_mean, 2)),
        units.count(state.preemptions),
    ]
