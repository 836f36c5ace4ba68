"""Each phase alone, simulated: the two workloads that isolate prefill (N/2) and decode (1/M).

A topology that is good at one phase is rarely good at the other, and only a workload of that
phase alone shows which. Closed loops at each concurrency, by the simulator that serves a plan.
"""

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from msgspec.structs import replace

from splitpoint import metrics
from splitpoint.errors import PlanError
from splitpoint.inputs import facts
from splitpoint.inputs.checks import require
from splitpoint.inputs.deployment import Topology, problems
from splitpoint.inputs.drafter import model_of
from splitpoint.inputs.engine import MAX_SEQS, Engine
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Model
from splitpoint.inputs.plan import Plan
from splitpoint.inputs.trace import Trace
from splitpoint.inputs.traces.requests import trace_of
from splitpoint.inputs.workload import Workload
from splitpoint.pricing.blocks import blocks_per_request
from splitpoint.record import Record
from splitpoint.run import Run
from splitpoint.search.instance import Holding, Instance, holding, instance
from splitpoint.search.loads import loads
from splitpoint.search.space import Shortfall, engines, lacking
from splitpoint.search.space import topologies as allowed
from splitpoint.search.sweep import Job, sweep
from splitpoint.search.world import candidate_of, world
from splitpoint.sim.world import World
from splitpoint.timing import drafts as drafting
from splitpoint.timing.curve import StepCurve
from splitpoint.timing.path import LinkSpec
from splitpoint.units import ceil_div

Phase = Literal["prefill", "decode"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")

# One token in, so that nothing is left of prefill; two out, so that there is a pace to see
# (published: vLLM's study of Qwen3.8-2.4T, 2026-09-21, ran 8192/2 and 1/1000).
PREFILL_OSL = 2
DECODE_ISL = 1

# Of a prefill side and a link that decode alone must not wait for: bytes per second, and seconds
# that a prompt may wait for room (as the simulator's clock allows).
NO_BOUND = 1e15
NO_LEASE = 1e6

# Users of the closed loops, unless told (assumed: from one user to past what a large pool holds).
CONCURRENCIES = (1, 4, 16, 64, 128, 256, 512, 1024)
MAX_CONCURRENCY = 2**16


class Shape(Record, frozen=True, kw_only=True):
    """What is swept: input tokens of the prefill workload, input tokens in the cache of the decode
    workload and its output tokens, and the users of the closed loops, fewest first."""

    isl: int
    osl: int
    concurrencies: tuple[int, ...]
    context: int = DECODE_ISL


class PhasePoint(Record, frozen=True, kw_only=True):
    """One closed loop on one instance. `tok_s_gpu`: input tokens of prefill, output tokens of
    decode, per second and GPU of the instance. `ttft_s`: median; `tok_s_user`: 1 / median TPOT,
    None where no request has a gap. `held`: requests of this length that the KV pools of the
    instance hold at once, `seats` those that its settings let run."""

    phase: Phase
    topology: str
    drafts: int
    gpus: int
    concurrency: int
    tok_s_gpu: float
    ttft_s: float | None
    tok_s_user: float | None
    success: float
    preemptions: int
    held: int
    seats: int


class Turn(Record, frozen=True, kw_only=True):
    """Where throughput of a line (phase, topology, drafts) is highest, and the first concurrency
    past it that loses more than the noise of repeated runs, None where it never does. `why`: what
    the line ran into."""

    phase: Phase
    topology: str
    drafts: int
    peak: int
    peak_tok_s_gpu: float
    falls_at: int | None
    why: str


class DraftsPay(Record, frozen=True, kw_only=True):
    """Up to which concurrency `drafts` give more decode throughput than none on a topology, and
    from which they give less; None where there is no such concurrency."""

    topology: str
    drafts: int
    pay_until: int | None
    lose_from: int | None


class Isolated(Record, frozen=True, kw_only=True):
    """Both phases of every topology and number of drafts. `unfit`: what cannot run, and why."""

    model: str
    gpu: str
    engine: str
    shape: Shape
    points: tuple[PhasePoint, ...]
    turns: tuple[Turn, ...]
    drafts_pay: tuple[DraftsPay, ...]
    unfit: tuple[Shortfall, ...]
    notes: tuple[str, ...]

    def line(self, phase: Phase, topology: str, drafts: int) -> tuple[PhasePoint, ...]:
        """The points of one line, lowest concurrency first."""
        return tuple(
            point
            for point in self.points
            if (point.phase, point.topology, point.drafts) == (phase, topology, drafts)
        )


class Loop(Record, frozen=True, kw_only=True):
    """One closed loop to simulate: an instance under one phase's workload."""

    phase: Phase
    concurrency: int
    instance: Instance
    tokens: int


def isolated_phases(
    plan: Plan,
    *,
    base: Path = Path(),
    topologies: Sequence[Topology] = (),
    concurrencies: Sequence[int] = (),
    drafts: Sequence[int] | None = None,
    context: int = DECODE_ISL,
    workers: int | None = None,
    tell: Callable[[str, float], None] | None = None,
) -> Isolated:
    """Both phases of a plan's model at the mean lengths of its workload.

    `topologies`: all that the plan's search allows, if none is named. `concurrencies`: instead of
    the plan's, if that sweeps any, or else of `CONCURRENCIES`. `drafts`: instead of the plan's own.
    `context`: input tokens whose KV is on the instance when decode starts.
    """
    model = model_of(plan)
    gpu = facts.gpu(plan.gpu)
    means = loads(plan.workload, base=base, requests=plan.search.requests)[0].profile
    for topology in topologies:
        if topology.gpus > plan.gpus:
            what = f"needs {topology.gpus:,} GPUs, the plan has {plan.gpus:,}"
            raise PlanError(f"topology {topology}", what, "--set gpus=N")
    swept = plan.workload.concurrency if isinstance(plan.workload.concurrency, tuple) else ()
    users = tuple(sorted(set(concurrencies or swept or CONCURRENCIES)))
    if users[-1] > MAX_CONCURRENCY:
        what = f"{users[-1]:,} users of one instance"
        raise PlanError("concurrency", what, f"at most {MAX_CONCURRENCY:,}: --concurrency 1,8,64")
    asked = plan.engine if drafts is None else replace(plan.engine, drafts=tuple(drafts))
    require("--drafts", asked)
    return isolated(
        model,
        gpu,
        list(dict.fromkeys(topologies)) or allowed(model, gpu, plan.gpus, plan.search),
        engines(asked),
        Shape(
            isl=max(round(means.isl), 1),
            # One token has no gap, so no pace.
            osl=max(round(means.osl), 2),
            concurrencies=users,
            context=context,
        ),
        kv_pool_gib=plan.search.kv_pool_gib,
        seed=plan.workload.seed,
        workers=workers,
        tell=tell,
    )


def parse_counts(text: str, where: str, *, least: int, most: int) -> tuple[int, ...]:
    """The whole numbers of "1,8,32", each once and in order."""
    words = text.replace(",", " ").split()
    for word in words:
        if not re.fullmatch(r"[0-9]{1,9}", word) or not least <= int(word) <= most:
            raise PlanError(where, f"found {word[:20]!r}", f"numbers from {least} to {most}")
    if not words:
        raise PlanError(where, "is empty", "such as 1,8,32")
    return tuple(sorted({int(word) for word in words}))


def isolated(
    model: Model,
    gpu: Gpu,
    topologies: Sequence[Topology],
    settings: Sequence[Engine],
    shape: Shape,
    *,
    kv_pool_gib: float | None = None,
    seed: int = 0,
    workers: int | None = None,
    tell: Callable[[str, float], None] | None = None,
) -> Isolated:
    """Both phases of every topology under every one of `settings`, which differ in their drafts.

    An engine without `max_seqs` is given one that seats the largest concurrency.
    """
    readies: list[Instance] = []
    unfit: list[Shortfall] = []
    longest = _longest(shape)
    for topology in topologies:
        if faults := problems(topology, model):
            raise PlanError(f"topology {topology}", "; ".join(faults))
        for engine in settings:
            held = _held(model, gpu, topology, engine, shape, kv_pool_gib)
            lack = lacking(held, longest)
            if lack is not None:
                unfit.append(lack)
            else:
                readies.append(instance(model, held))
    traces = {
        (phase, users): _trace(phase, users, shape, seed)
        for phase in PHASES
        for users in shape.concurrencies
    }
    places = list(traces)
    loops = [
        Loop(
            phase=phase, concurrency=users, instance=ready, tokens=int(trace.isl[0] + trace.osl[0])
        )
        for ready in readies
        for (phase, users), trace in traces.items()
    ]
    jobs = [
        Job(
            name=str(number),
            world=_alone(loop, model, shape),
            trace=places.index((loop.phase, loop.concurrency)),
            seed=seed,
            series=False,
        )
        for number, loop in enumerate(loops)
    ]
    points = sweep(
        jobs,
        list(traces.values()),
        partial(_measured, loops=loops),
        workers=workers,
        done=None if tell is None else lambda n: tell("simulating", n / len(jobs)),
    )
    found = Isolated(
        model=model.name,
        gpu=gpu.name,
        engine=f"{settings[0].name} {settings[0].version}",
        shape=shape,
        points=tuple(points),
        turns=(),
        drafts_pay=(),
        unfit=tuple(unfit),
        notes=(*_notes(model, readies, settings), *_behind(shape)),
    )
    return _judged(found)


def _held(
    model: Model,
    gpu: Gpu,
    topology: Topology,
    engine: Engine,
    shape: Shape,
    kv_pool_gib: float | None,
) -> Holding:
    if engine.max_seqs is None:
        seats = min(-(-shape.concurrencies[-1] // topology.dp), MAX_SEQS)
        engine = replace(engine, max_seqs=seats)
    if engine.max_len is None:
        engine = replace(engine, max_len=_longest(shape))
    return holding(model, gpu, topology, engine, kv_pool_gib=kv_pool_gib)


def _longest(shape: Shape) -> int:
    """Tokens of the longest request of both workloads."""
    return max(shape.isl + PREFILL_OSL, shape.context + shape.osl)


def _alone(loop: Loop, model: Model, shape: Shape) -> World:
    """One instance that does all, or one that decodes behind a prefill side without bounds, whose
    prompts take no time, if they are of more than one token."""
    one = candidate_of([("mixed", loop.instance, 1)], "least_requests")
    plain = world(one, model, tokens=loop.tokens)
    if loop.phase == "prefill" or shape.context == DECODE_ISL:
        return plain
    (pool,) = plain.pools
    layout = loop.instance.holding.layout
    # In one step even windows hold the whole prompt.
    each = min(group.block_tokens or layout.block_tokens for group in layout.groups)
    blocks = blocks_per_request(layout, loop.tokens)
    blocks += len(layout.groups) * ceil_div(loop.tokens, each)
    # A picosecond a step: the simulator's clock must move.
    ideal = StepCurve(
        decode=np.ones(loop.concurrency + 1, np.int64),
        decode_context=np.zeros(loop.concurrency + 1, np.int64),
        mixed=np.ones(shape.context + 1, np.int64),
        prefill_pair=0,
    )
    prefill = replace(
        pool,
        role="prefill",
        dp=1,
        kv_blocks=1 + loop.concurrency * blocks,
        max_seqs=loop.concurrency,
        token_budget=shape.context,
        curve=ideal,
        acceptance=(),
        batches_in_flight=1,
        host_blocks=0,
        reserve=None,
        balance=0,
    )
    link = LinkSpec(
        bandwidth=NO_BOUND, latency=0.0, bytes_per_token=1.0, fixed_bytes=0.0, lease_s=NO_LEASE
    )
    decode = replace(pool, role="decode", balance=0)
    return replace(plain, pools=(prefill, decode), link=link, front_token_s=0.0)


def _trace(phase: Phase, users: int, shape: Shape, seed: int) -> Trace:
    isl, osl = (shape.isl, PREFILL_OSL) if phase == "prefill" else (shape.context, shape.osl)
    return trace_of(Workload(isl=isl, osl=osl, concurrency=users, seed=seed), base=Path())


def _measured(job: Job, run: Run, *, loops: Sequence[Loop]) -> PhasePoint:
    loop = loops[int(job.name)]
    ready = loop.instance
    rates = metrics.throughput(run)
    rate = rates.input if loop.phase == "prefill" else rates.output
    wait = metrics.percentile(metrics.ttft(run), 50)
    assert ready.engine.max_seqs is not None
    return PhasePoint(
        phase=loop.phase,
        topology=str(ready.topology),
        drafts=ready.engine.drafts,
        gpus=ready.topology.gpus,
        concurrency=loop.concurrency,
        tok_s_gpu=rate / ready.topology.gpus,
        ttft_s=None if math.isnan(wait) else wait,
        tok_s_user=metrics.interactivity(run) or None,
        success=metrics.success(run),
        preemptions=int(run.instances.preemptions.sum()),
        held=ready.requests_held(loop.tokens) * ready.topology.dp,
        seats=ready.engine.max_seqs * ready.topology.dp,
    )


def turn_of(line: Sequence[PhasePoint]) -> Turn:
    """Where a line, lowest concurrency first, is highest, and where it falls by more than noise."""
    peak = max(line, key=lambda point: point.tok_s_gpu)
    enough = (1 - metrics.THROUGHPUT_NOISE) * peak.tok_s_gpu
    falls = next(
        (p for p in line if p.concurrency > peak.concurrency and p.tok_s_gpu < enough), None
    )
    return Turn(
        phase=peak.phase,
        topology=peak.topology,
        drafts=peak.drafts,
        peak=peak.concurrency,
        peak_tok_s_gpu=peak.tok_s_gpu,
        falls_at=None if falls is None else falls.concurrency,
        why=_why(falls or line[-1], falls is not None),
    )


def _why(last: PhasePoint, fell: bool) -> str:
    """What a line ran into by its last point or the one it fell at, as far as that tells."""
    if last.phase == "prefill":
        return ""
    if last.held < min(last.concurrency, last.seats):
        lost = f", and preempted {last.preemptions:,} times" if last.preemptions else ""
        return (
            f"the KV pools hold {last.held:,} {'request' if last.held == 1 else 'requests'}{lost}"
        )
    if last.seats < last.concurrency:
        return f"max_seqs lets {last.seats:,} requests run"
    return "a step grows faster than the requests in it" if fell else ""


def drafts_pay(line: Sequence[PhasePoint], plain: Sequence[PhasePoint]) -> DraftsPay:
    """Where a line with drafts gives more than the one without, both at the same concurrencies.

    They lose from the first concurrency on that no gain follows: a dip of one graph size before
    it is no end.
    """
    gains = {
        point.concurrency: point.tok_s_gpu - rival.tok_s_gpu
        for point, rival in zip(line, plain, strict=True)
    }
    won = max((users for users, gain in gains.items() if gain >= 0), default=None)
    return DraftsPay(
        topology=line[0].topology,
        drafts=line[0].drafts,
        pay_until=won,
        lose_from=next((users for users in gains if won is None or users > won), None),
    )


def _judged(found: Isolated) -> Isolated:
    """What the lines show, beside their points."""
    keys = dict.fromkeys((point.phase, point.topology, point.drafts) for point in found.points)
    lines = {key: found.line(*key) for key in keys}
    pairs = [
        (line, lines[phase, topology, 0])
        for (phase, topology, drafts), line in lines.items()
        if phase == "decode" and drafts and (phase, topology, 0) in lines
    ]
    return replace(
        found,
        turns=tuple(turn_of(line) for line in lines.values()),
        drafts_pay=tuple(drafts_pay(line, plain) for line, plain in pairs),
    )


def _notes(
    model: Model, readies: Sequence[Instance], settings: Sequence[Engine]
) -> tuple[str, ...]:
    notes = [f"step times: {origin}" for origin in {ready.curve.origin for ready in readies}]
    notes += [
        f"tokens of a step with {e.drafts} drafts: {drafting.expected_tokens(e, model):.2f}; "
        f"{drafting.origin(e, model)}"
        for e in settings
        if e.drafts
    ]
    return tuple(sorted(notes))


def _behind(shape: Shape) -> list[str]:
    """What decode starts behind, where that is less than what the workload brings."""
    if shape.context >= shape.isl:
        return []
    return [
        f"decode starts behind {shape.context:,} of the workload's {shape.isl:,} input tokens, so "
        f"its KV and its pace are of short contexts: --context {shape.isl}"
    ]
