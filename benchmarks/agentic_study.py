"""A published study of PD separation under agentic load, replayed from its stated parameters.

    python -m benchmarks.agentic_study [--write]

Qwen3-30B-A3B on eight H20: eight mixed instances, or 4 or 6 prefill with 4 or 2 decode instances.
Prints the matrix of deployments and routers beside the published rows, takes the regression of the
split apart by changing one thing at a time, then tries what else could have slowed it down.
`docs/agentic-study.md` tells what came out.
"""

import argparse
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from benchmarks.accuracy import written
from splitpoint import metrics
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.facts import gpu
from splitpoint.inputs.files import write_atomic
from splitpoint.inputs.huggingface import load_model
from splitpoint.inputs.routing import Role, Routing
from splitpoint.inputs.trace import Trace, scale_rate, with_starts
from splitpoint.inputs.traces.synth import preset
from splitpoint.pricing.blocks import layout
from splitpoint.pricing.concurrency import num_blocks
from splitpoint.pricing.engines import resolved, rules
from splitpoint.record import Record
from splitpoint.report import figures
from splitpoint.run import Run
from splitpoint.sim import PoolSpec, World, simulate
from splitpoint.timing.bake import step_curve
from splitpoint.timing.curve import PICO, StepCurve
from splitpoint.timing.path import LinkSpec, SharedPorts

if TYPE_CHECKING:
    import altair as alt

PAGE = Path(__file__).parents[1] / "docs" / "agentic-study.md"
# Published by the study (8 x H20, Qwen3-30B-A3B; its repository is not to be had, figures quoted).
PREFILL_RATE = 7000  # tokens/s of one instance, whatever the context
# Printed as about 28 GB; 28.7 is what its wall table follows from (tests/published).
POOL_BYTES = 28_700_000_000
TRANSFER_RATE = 3.5e9  # bytes/s: 40k tokens of 98,304 bytes in 1.1 s at the median
MEAN_INPUT = 33_600  # tokens; the preset keeps the percentiles instead and has 48k (inputs/traces)
# vLLM's lease of blocks that nobody has asked for, and Mooncake's (docs/simulator.md).
LEASE_S, MOONCAKE_LEASE_S = 30.0, 480.0
# Bytes/s over which the longest request takes less than a tick (a picosecond) to cross.
INSTANT = 1e24
SEEDS = (0, 1, 2)
ROUTINGS: tuple[Routing, ...] = ("prefix_aware", "round_robin")


class Shape(NamedTuple):
    """A deployment of eight GPUs: prefill and decode instances; without prefill all are mixed."""

    name: str
    prefill: int
    decode: int


SHAPES = (Shape("8 mixed", 0, 8), Shape("4P4D", 4, 4), Shape("6P2D", 6, 2))


class Outcome(Record, frozen=True, kw_only=True):
    """What is compared, in seconds and shares. `prefill_kv`, `decode_kv`: mean share of KV blocks
    in use in the steady window (equal for mixed pools). The four causes are means and sum to mean
    TTFT, which is that of finished requests, as all latencies are."""

    ttft_p50: float
    ttft_p90: float
    tpot_p90: float
    e2e_p50: float
    success: float
    hit_share: float
    prefill_kv: float
    decode_kv: float
    queue: float
    prefill: float
    transfer: float
    decode_wait: float
    wall_s: float

    @property
    def ttft_mean(self) -> float:
        """Mean TTFT."""
        return self.queue + self.prefill + self.transfer + self.decode_wait


class Published(NamedTuple):
    """One row of the study's table of results."""

    name: str
    ttft_p50: float
    ttft_p90: float
    tpot_p90: float
    e2e_p50: float
    success: float
    wall_s: float


PUBLISHED = (
    Published("8 mixed, cache-aware", 0.91, 12.7, 0.027, 2.5, 0.995, 944),
    Published("4P4D, routing not said", 62.8, 491, 0.013, 65.1, 0.52, 7558),
    Published("6P2D, routing not said", 51.1, 400, 0.020, 53.4, 0.68, 3693),
)


class Change(NamedTuple):
    """One departure from a world: what it is called, and the world and trace it makes."""

    name: str
    world: Callable[[World], World] = lambda world: world
    trace: Callable[[Trace], Trace] = lambda trace: trace
    closed_loop: bool = True


def stated_curve() -> StepCurve:
    """The study's flat prefill rate: mixed[t] = t / 7,000 s at any context. It states no decode
    steps: those are ours, as `timing.bake` makes them for an H20."""
    ours = own_curve()
    tokens = np.arange(len(ours.mixed), dtype=np.int64)
    return msgspec.structs.replace(
        ours,
        mixed=tokens * round(1 / PICO) // PREFILL_RATE,
        prefill_pair=0,
        prefill_prefix=0,
        origin=f"published: prefill at {PREFILL_RATE} tok/s; decode: {ours.origin}",
    )


def own_curve() -> StepCurve:
    """All step times from `timing.bake`."""
    engine, one = _engine(), Topology()
    return step_curve(load_model("Qwen/Qwen3-30B-A3B"), gpu("H20"), one, engine)


def study_world(shape: Shape, routing: Routing, curve: StepCurve) -> World:
    """A deployment of the study with the engine's defaults wherever it states nothing."""
    if not shape.prefill:
        return World(pools=(_pool("mixed", shape.decode, curve),), routing=routing)
    pools = (_pool("prefill", shape.prefill, curve), _pool("decode", shape.decode, curve))
    kv = layout(load_model("Qwen/Qwen3-30B-A3B"), Topology(), _engine())
    # The study's tail of 18 to 30 s a transfer shows that they are in each other's way: instances
    # with a path of their own have a p99 of 4 to 7 s here (docs/agentic-study.md).
    link = LinkSpec(
        shared=SharedPorts(gpus=8, ports=1),
        bandwidth=TRANSFER_RATE,
        latency=0.0,
        bytes_per_token=kv.block_bytes / kv.block_tokens,
        fixed_bytes=0.0,
        lease_s=LEASE_S,
        origin="published: 40k tokens in 1.1 s at the median",
    )
    return World(pools=pools, routing=routing, link=link)


def measured(world: World, change: Change, seed: int) -> Run:
    """One replay of the preset under a change."""
    trace = change.trace(preset("agentic-coding", seed=seed))
    return simulate(
        change.world(world), trace, seed=seed, name=change.name, closed_loop=change.closed_loop
    )


def outcome(run: Run) -> Outcome:
    """The compared values of one run."""
    waits, ends = metrics.ttft(run), metrics.e2el(run)
    parts = metrics.ttft_parts(run)
    first, last = metrics.pool_load(run, 0), metrics.pool_load(run, len(run.roles) - 1)
    return Outcome(
        ttft_p50=metrics.percentile(waits, 50),
        ttft_p90=metrics.percentile(waits, 90),
        tpot_p90=metrics.percentile(metrics.tpot(run), 90),
        e2e_p50=metrics.percentile(ends, 50),
        success=metrics.success(run),
        hit_share=first.hit_share,
        prefill_kv=first.used_mean,
        decode_kv=last.used_mean,
        queue=metrics.mean(parts.queue),
        prefill=metrics.mean(parts.prefill),
        transfer=metrics.mean(parts.transfer),
        decode_wait=metrics.mean(parts.decode_wait),
        wall_s=run.duration_s,
    )


def outcomes(world: World, change: Change, seeds: tuple[int, ...] = SEEDS) -> list[Outcome]:
    """One outcome per seed."""
    return [outcome(measured(world, change, seed)) for seed in seeds]


def mean_outcome(found: list[Outcome]) -> Outcome:
    """The mean over seeds of every value."""
    return Outcome(
        **{
            name: float(np.mean([getattr(one, name) for one in found]))
            for name in Outcome.__struct_fields__
        }
    )


# What a world may be given instead of what the study states.


def linked(world: World, *, bandwidth: float) -> World:
    """Another bandwidth of the link."""
    assert world.link is not None
    link = msgspec.structs.replace(world.link, bandwidth=bandwidth)
    return msgspec.structs.replace(world, link=link)


def unshared(world: World) -> World:
    """Every instance with a path of its own, not one for the machine."""
    assert world.link is not None
    link = msgspec.structs.replace(world.link, shared=None)
    return msgspec.structs.replace(world, link=link)


def ample(world: World, role: Role) -> World:
    """KV pools of a role that hold the whole trace at once: nothing waits for blocks, no prefix is
    lost. 850 requests of at most 172k tokens (longest input and output) are 9.2 M blocks."""
    return pooled(world, role, kv_blocks=10_000_000)


def pooled(
    world: World,
    role: Role,
    *,
    kv_blocks: int | None = None,
    prefix_caching: bool | None = None,
    curve: StepCurve | None = None,
) -> World:
    """Another size, cache or speed of the pools of a role."""
    new = {"kv_blocks": kv_blocks, "prefix_caching": prefix_caching, "curve": curve}
    given = {name: value for name, value in new.items() if value is not None}
    pools = tuple(
        msgspec.structs.replace(pool, **given) if pool.role == role else pool
        for pool in world.pools
    )
    return msgspec.structs.replace(world, pools=pools)


def routed(world: World, *, routing: Routing) -> World:
    """Another choice of prefill instances."""
    return msgspec.structs.replace(world, routing=routing)


def alike(world: World) -> World:
    """Decode instances chosen as prefill ones are: routers take one policy for both sides unless
    told otherwise (vllm-router and sglang-router, `--policy`)."""
    return msgspec.structs.replace(world, decode_routing=world.routing)


def budgeted(world: World, *, tokens: int) -> World:
    """Another token budget on all instances; two batches are in flight."""
    pools = tuple(
        msgspec.structs.replace(pool, token_budget=tokens, in_flight=2 * tokens)
        for pool in world.pools
    )
    return msgspec.structs.replace(world, pools=pools)


def impatient(world: World, *, timeout_s: float, lease_s: float = LEASE_S) -> World:
    """Clients give up without a first token by `timeout_s`; unpulled blocks stay for the lease."""
    assert world.link is not None
    link = msgspec.structs.replace(world.link, lease_s=lease_s)
    return msgspec.structs.replace(world, timeout_s=timeout_s, link=link)


def stated_mean(trace: Trace) -> Trace:
    """Sessions so much rarer that input tokens per second are those of the study's mean length."""
    return scale_rate(trace, MEAN_INPUT / float(trace.isl.mean()))


def at_once(trace: Trace) -> Trace:
    """All sessions present from the start; their think times stay."""
    return with_starts(trace, np.zeros(int(trace.session.max()) + 1))


NONE = Change("as stated")
# What moves the mixed arm.
MIXED = (
    NONE,
    Change("the stated mean's tokens per second", trace=stated_mean),
    Change("token budget 2,048", partial(budgeted, tokens=2048)),
)
# One cause taken away from the split at a time ...
CAUSES = (
    NONE,
    Change("prefix-aware routing", partial(routed, routing="prefix_aware")),
    Change("infinite link", partial(linked, bandwidth=INSTANT)),
    Change("ample KV on P", partial(ample, role="prefill")),
    Change("ample KV on D", partial(ample, role="decode")),
)


def ladder() -> tuple[Change, ...]:
    """... and one after the other, each on top of those before it."""
    steps: list[Change] = [NONE]
    order = (CAUSES[1], CAUSES[2], CAUSES[3], CAUSES[4])
    for cause in order:
        before = steps[-1].world
        steps.append(Change(f"+ {cause.name}", _after(before, cause.world)))
    return tuple(steps)


def assumptions(ours: StepCurve) -> tuple[Change, ...]:
    """What the study does not state and could have slowed its split arms down, one at a time; of
    the slow link also with clients that give up."""
    slow = partial(linked, bandwidth=0.5e9)
    return (
        NONE,
        # aiohttp's default total time-out (docs.aiohttp.org, client reference), then ten minutes.
        Change("clients give up after 300 s", partial(impatient, timeout_s=300.0)),
        Change("clients give up after 600 s", partial(impatient, timeout_s=600.0)),
        Change(
            "after 300 s, blocks of P held 480 s more",
            partial(impatient, timeout_s=300.0, lease_s=MOONCAKE_LEASE_S),
        ),
        Change(
            "after 60 s, blocks of P held 480 s more",
            partial(impatient, timeout_s=60.0, lease_s=MOONCAKE_LEASE_S),
        ),
        Change("no prefix cache on P", partial(pooled, role="prefill", prefix_caching=False)),
        # A pull that fell back to TCP (vLLM issue 52607, 2026-08-17; timing/transfer.py).
        Change("link at 0.5 GB/s", slow),
        Change(
            "link at 0.5 GB/s, clients give up after 300 s, blocks of P held 480 s more",
            _after(slow, partial(impatient, timeout_s=300.0, lease_s=MOONCAKE_LEASE_S)),
        ),
        Change("round robin on the decode side too", alike),
        Change("a path for every instance", unshared),
        Change("open loop", closed_loop=False),
        Change("all sessions at once", trace=at_once),
        Change("the stated mean's tokens per second", trace=stated_mean),
        Change("twice the rate", trace=partial(scale_rate, factor=2.0)),
        Change("token budget 2,048", partial(budgeted, tokens=2048)),
        Change("our prefill times", partial(pooled, role="prefill", curve=ours)),
    )


def _after(
    first: Callable[[World], World], second: Callable[[World], World]
) -> Callable[[World], World]:
    return lambda world: second(first(world))


def _engine() -> Engine:
    model, one = load_model("Qwen/Qwen3-30B-A3B"), Topology()
    return resolved(Engine(), gpu("H20"), one, model)


def _pool(role: Role, replicas: int, curve: StepCurve) -> PoolSpec:
    engine = _engine()
    kv = layout(load_model("Qwen/Qwen3-30B-A3B"), Topology(), engine)
    rule = rules(engine, Topology())
    assert engine.max_seqs is not None and engine.batched_tokens is not None
    return PoolSpec(
        role=role,
        replicas=replicas,
        dp=1,
        kv_blocks=num_blocks(kv, POOL_BYTES),
        block_tokens=kv.block_tokens,
        groups=kv.groups,
        in_flight=kv.in_flight,
        max_seqs=engine.max_seqs,
        token_budget=engine.batched_tokens,
        prefix_caching=True,
        curve=curve,
        batches_in_flight=2 if rule.overlapped else 1,
        nameless_first=rule.nameless_first,
    )


HEAD = (
    "| | TTFT p50 | p90 | TPOT p90 | E2E p50 | success | hits | KV P | KV D | queue | prefill "
    "| transfer | D wait | wall |\n" + "|---" * 14 + "|"
)


def row(name: str, found: Outcome) -> str:
    """One line of a table: seconds, TPOT in ms, shares in per cent, the four parts of mean TTFT."""
    causes = (found.queue, found.prefill, found.transfer, found.decode_wait)
    cells = [
        name,
        f"{found.ttft_p50:.2f}",
        f"{found.ttft_p90:.1f}",
        f"{found.tpot_p90 * 1e3:.0f} ms",
        f"{found.e2e_p50:.1f}",
        *(
            f"{100 * share:.0f}%"
            for share in (found.success, found.hit_share, found.prefill_kv, found.decode_kv)
        ),
        *(f"{value:z.2f}" for value in causes),
        f"{found.wall_s:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def published_row(found: Published) -> str:
    """A published line in the same columns."""
    return (
        f"| published: {found.name} | {found.ttft_p50} | {found.ttft_p90} "
        f"| {found.tpot_p90 * 1e3:.0f} ms | {found.e2e_p50} | {100 * found.success:.0f}% "
        f"| | | | | | | | {found.wall_s:.0f} |"
    )


def matrix(curve: StepCurve) -> dict[str, list[Outcome]]:
    """Every deployment under both routers: an outcome per seed."""
    return {
        f"{shape.name}, {routing}": outcomes(study_world(shape, routing, curve), NONE)
        for shape in SHAPES
        for routing in ROUTINGS
    }


def tables(stated: StepCurve, ours: StepCurve, found: dict[str, list[Outcome]]) -> dict[str, str]:
    """Every table by its title."""
    rows = {
        "the matrix": [published_row(one) for one in PUBLISHED] + lines(found),
        "the matrix at our own step times": lines(matrix(ours)),
    }
    steps = {}
    for shape in SHAPES[1:]:
        split = study_world(shape, "round_robin", stated)
        aware = study_world(shape, "prefix_aware", stated)
        steps[shape.name] = [mean_outcome(outcomes(split, change)) for change in ladder()]
        alone = tuple(cause for cause in CAUSES if cause != CAUSES[1])
        rows[f"{shape.name}, causes one at a time"] = changed(split, CAUSES)
        rows[f"{shape.name}, causes one after the other"] = [
            row(change.name, step) for change, step in zip(ladder(), steps[shape.name], strict=True)
        ]
        rows[f"{shape.name}, prefix_aware, causes one at a time"] = changed(aware, alone)
        rows[f"{shape.name}, further assumptions"] = changed(split, assumptions(ours))
    mixed = study_world(SHAPES[0], "prefix_aware", stated)
    rows["8 mixed, further assumptions"] = changed(mixed, MIXED)
    found_tables = {title: "\n".join((HEAD, *some)) for title, some in rows.items()}
    mean = mean_outcome(found["8 mixed, prefix_aware"]).ttft_mean
    return found_tables | {"parts of the mean TTFT": parts(steps, mean)}


def lines(found: dict[str, list[Outcome]]) -> list[str]:
    """A matrix's lines, means over the seeds."""
    return [row(name, mean_outcome(seeds)) for name, seeds in found.items()]


def changed(world: World, changes: tuple[Change, ...]) -> list[str]:
    """A line for each change of a world."""
    return [row(change.name, mean_outcome(outcomes(world, change))) for change in changes]


def parts(splits: dict[str, list[Outcome]], mixed: float) -> str:
    """What each cause, taken away after those above it, takes from the mean TTFT of both splits,
    beside that of the mixed pools."""
    named = (
        "routing",
        "transfer, with the KV held for it",
        "prefixes lost from P's pools, and waits for room there",
        "room on D",
    )
    rows = [
        ("mean TTFT, seconds", *splits),
        ("---",) * (1 + len(splits)),
        ("split, round robin", *(f"{steps[0].ttft_mean:.1f}" for steps in splits.values())),
        *(
            (name, *(f"{b.ttft_mean - a.ttft_mean:z.1f}" for a, b in pairs))
            for name, *pairs in zip(named, *map(pairwise, splits.values()), strict=True)
        ),
        (
            "left: queueing for compute / prefill itself",
            *(f"{steps[-1].queue:.1f} / {steps[-1].prefill:.1f}" for steps in splits.values()),
        ),
        ("eight mixed, prefix-aware", *(f"{mixed:.1f}" for _ in splits)),
    ]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def main() -> None:
    """Print all tables; with `--write` put them into the page and draw its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/agentic-study.md")
    options = parser.parse_args()
    stated = stated_curve()
    found = matrix(stated)
    page = PAGE.read_text()
    for title, text in tables(stated, own_curve(), found).items():
        print(f"\n{title}\n\n{text}", flush=True)
        page = written(page, text, title)
    if options.write:
        write_atomic(PAGE, page.encode())
        draw(PAGE.parent / "figures", stated, found)


def draw(folder: Path, curve: StepCurve, found: dict[str, list[Outcome]]) -> None:
    """TTFT stacks of the matrix, and the KV of each instance of 4P4D under both routers."""
    folder.mkdir(parents=True, exist_ok=True)
    stacks = {name: mean_outcome(seeds) for name, seeds in found.items()}
    figures.save(ttft_stacks(stacks), folder / "agentic-ttft.svg")
    for routing in ROUTINGS:
        run = measured(study_world(SHAPES[1], routing, curve), NONE, SEEDS[0])
        save_small(figures.occupancy(run), folder / f"agentic-kv-{routing}.png")


def save_small(chart: "alt.LayerChart", path: Path) -> None:
    """A PNG at one pixel a pixel, which is small enough for the repository."""
    import vl_convert

    spec = chart.properties(width=figures.WIDTH).to_dict() | {"config": figures.LIGHT}
    write_atomic(path, vl_convert.vegalite_to_png(spec, scale=1))


def ttft_stacks(found: dict[str, Outcome]) -> "alt.LayerChart":
    """Mean TTFT of each row as a bar of its parts, its sum behind it."""
    import altair as alt

    # A rest of nothing may round to just below zero, which would stretch the axis.
    rows = [
        {"row": name, "part": part, "order": order, "seconds": max(seconds, 0.0)}
        for name, one in found.items()
        for order, (part, seconds) in enumerate(
            (part, getattr(one, part.replace(" ", "_"))) for part in figures.PARTS
        )
    ]
    sums = [
        {"row": name, "seconds": one.ttft_mean, "told": f"{one.ttft_mean:.1f} s"}
        for name, one in found.items()
    ]
    y = alt.Y("row:N", title=None, sort=list(found), axis=alt.Axis(labelLimit=240))
    colour = alt.Scale(domain=list(figures.PARTS), range=list(figures.PARTS.values()))
    longest = max(one.ttft_mean for one in found.values())
    length = alt.Scale(domain=[0, 1.1 * longest], nice=False)  # room for the sum behind the bar
    bars = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_bar()
        .encode(
            alt.X("seconds:Q", title="mean TTFT of finished requests, seconds", scale=length),
            y,
            alt.Color("part:N", title=None, scale=colour),
            order="order:Q",
        )
    )
    totals = (
        alt.Chart(alt.InlineData(values=sums))
        .mark_text(align="left", dx=5)
        .encode(x="seconds:Q", y=y, text="told:N")
    )
    return alt.layer(bars, totals).properties(height=26 * len(found))


if __name__ == "__main__":
    main()
