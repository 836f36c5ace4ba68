"""What would change the answer: one thing is varied at a time until another arm wins.

The best split and the best mixed deployment are simulated again at a grid of factors on both
sides of the present; the bracket nearest to it is then halved (on a log scale). Every flip is a
claim that one measurement can refute. Factors that only scale an assumed number show what the
verdict rests on.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from msgspec.structs import replace

from splitpoint.inputs.slo import Slo
from splitpoint.inputs.trace import Trace, dense, first, scale_rate
from splitpoint.inputs.traces.requests import trace_of
from splitpoint.inputs.workload import Workload
from splitpoint.record import Record
from splitpoint.run import Run
from splitpoint.search.loads import Load
from splitpoint.search.sweep import Job, sweep
from splitpoint.search.world import Candidate
from splitpoint.sim.world import PoolSpec, World
from splitpoint.timing.fitted import Factors, scaled
from splitpoint.verdict.answer import Point
from splitpoint.verdict.compare import Winner, judged
from splitpoint.verdict.points import point

# Requests that the varied runs replay, a trace's first ones or some waves of a closed loop's
# users, so that the many runs of all factors cost about as much as the search.
REQUESTS = 2_000
WAVES = 4
HALVINGS = 3

Arms = Literal["split", "mixed"]
# In this order every second one still lies on both sides of the present.
WIDE = (1 / 2, 1 / 4, 2.0, 4.0, 1 / 8, 8.0)
NEAR = (1 / 2, 2 / 3, 2.0, 3 / 2, 1 / 4, 4.0)


class Arm(Record, frozen=True, kw_only=True):
    """A deployment that takes part: its candidate and its world."""

    candidate: Candidate
    world: World


class Varied(Record, frozen=True, kw_only=True):
    """The two worlds and the trace with one thing varied."""

    split: World
    mixed: World
    trace: Trace


class Knob(Record, frozen=True, kw_only=True):
    """One thing to vary: `now` in its unit, the factors to try, and what a factor makes of the
    worlds and the trace. `assumed`: it only scales numbers that the prediction assumes."""

    name: str
    unit: str
    now: float
    factors: tuple[float, ...]
    vary: Callable[[Varied, float], Varied]
    assumed: bool = False


class Flip(Record, frozen=True, kw_only=True):
    """Where a knob turns the verdict: the factor, who wins beyond it, and the last factor `until`
    which that was seen without a break; factor None: nowhere in the range that was tried, `low`
    to `high`."""

    knob: Knob
    factor: float | None
    winner: Winner | None
    until: float
    low: float
    high: float


class Carried(Record, frozen=True, kw_only=True):
    """How much of the load `arm` carries within the SLO: a factor of it up to which it was seen to;
    None where that is nowhere in the range that was tried, `low` to `high`, or to its very end
    (`all_of_it`)."""

    arm: Arms
    knob: Knob
    factor: float | None
    all_of_it: bool
    low: float
    high: float


class Turnover(Record, frozen=True, kw_only=True):
    """All flips around a verdict. `now`: the winner on the replayed requests."""

    now: Winner
    requests: int
    flips: tuple[Flip, ...]
    carried: tuple[Carried, ...] = ()


class Outcome(Record, frozen=True, kw_only=True):
    """Who wins, and which arms meet the SLO."""

    winner: Winner
    meets: tuple[Arms, ...]


def turnover(
    split: Arm,
    mixed: Arm,
    load: Load,
    slo: Slo,
    *,
    expected: Winner,
    workload: Workload,
    base: Path,
    seed: int,
    workers: int | None = None,
    done: Callable[[float], None] | None = None,
) -> Turnover:
    """The flips of every knob around the present worlds and load.

    `expected`: the verdict. Where the opening of the trace does not repeat it, the whole trace is
    replayed, on every second factor.
    """
    judge = partial(
        _outcomes,
        split=split,
        mixed=mixed,
        slo=slo,
        seed=seed,
        closed_loop=workload.closed_loop,
        workers=workers,
    )
    whole = Varied(split=split.world, mixed=mixed.world, trace=load.trace)
    present = replace(whole, trace=_opening(load))
    (now,) = judge([present])
    step = 1
    if now.winner != expected and len(present.trace) < len(load.trace):
        # Longer runs on a coarser grid: about the same work.
        present, step = whole, 2
        (now,) = judge([present])
    knobs = _knobs(present, load, workload, base)
    tries = [(knob, factor) for knob in knobs for factor in knob.factors[::step]]
    rounds = HALVINGS + 1
    if done is not None:
        done(1 / (rounds + 1))
    found = judge([knob.vary(present, factor) for knob, factor in tries])
    known: dict[str, dict[float, Outcome]] = {knob.name: {1.0: now} for knob in knobs}
    for (knob, factor), outcome in zip(tries, found, strict=True):
        known[knob.name][factor] = outcome
    amount = knobs[0]
    for halving in range(HALVINGS):
        if done is not None:
            done((halving + 2) / (rounds + 1))
        brackets = [(knob, _bracket(_winners(known[knob.name]), now.winner)) for knob in knobs]
        brackets += [(amount, _edge(known[amount.name], arm)) for arm in get_args(Arms)]
        middles = [(knob, _middle(bracket)) for knob, bracket in brackets if bracket]
        outcomes = judge([knob.vary(present, middle) for knob, middle in middles])
        for (knob, middle), outcome in zip(middles, outcomes, strict=True):
            known[knob.name][middle] = outcome
    return Turnover(
        now=now.winner,
        requests=len(present.trace),
        flips=tuple(_flip(knob, _winners(known[knob.name]), now.winner) for knob in knobs),
        carried=tuple(_carried(amount, known[amount.name], arm) for arm in get_args(Arms)),
    )


def _opening(load: Load) -> Trace:
    """The first requests of a load's trace, enough to show its steady state."""
    count = max(REQUESTS, WAVES * (load.concurrency or 0))
    return load.trace if count >= len(load.trace) else first(load.trace, count)


def stretched(trace: Trace, factor: float) -> Trace:
    """The trace with every input `factor` times as long and its reuse unchanged.

    Identity blocks grow with the inputs, to whole tokens, so the same blocks are shared.
    """
    block = max(1, round(trace.block_tokens * factor))
    # Without identities nothing ties the inputs to whole blocks.
    grown = block / trace.block_tokens if len(trace.block_ids) else factor
    isl = np.maximum(np.ceil(trace.isl * grown), 1).astype(np.int32)
    return replace(trace, isl=isl, block_tokens=block)


def with_less_reuse(trace: Trace, share: float, seed: int = 0) -> Trace:
    """The trace with `share` of its sessions keeping their identities, the others reusing
    nothing of anyone's, not even of their own earlier turns."""
    sessions = int(trace.session.max()) + 1
    keep = np.random.default_rng(seed).permutation(sessions) < round(share * sessions)
    counts = np.diff(trace.block_starts)
    foreign = ~np.repeat(keep[trace.session], counts)
    ids = trace.block_ids.astype(np.int64)
    fresh = int(ids.max(initial=-1)) + 1
    ids[foreign] = fresh + np.arange(int(foreign.sum()))
    return replace(trace, block_ids=dense(ids))


def _knobs(present: Varied, load: Load, workload: Workload, base: Path) -> tuple[Knob, ...]:
    rate = load.concurrency or load.rate or 0.0
    knobs = [
        Knob(
            name="load",
            unit="users" if load.concurrency else "req/s in the busiest minute",
            now=float(rate),
            factors=WIDE if load.concurrency is None else tuple(f for f in WIDE if rate * f >= 1),
            vary=partial(_at_load, load=load, workload=workload, base=base),
        ),
        Knob(
            name="context",
            unit="input tokens on average",
            now=load.profile.isl,
            factors=NEAR,
            vary=_at_context,
        ),
        Knob(
            name="KV pool",
            unit="blocks a pool",
            now=float(max(pool.kv_blocks for pool in present.mixed.pools)),
            factors=NEAR,
            vary=_at_pool,
            assumed=True,
        ),
        Knob(
            name="prefill time",
            unit="x predicted",
            now=1.0,
            factors=NEAR,
            vary=_at_prefill_time,
            assumed=True,
        ),
        Knob(
            name="decode time",
            unit="x predicted",
            now=1.0,
            factors=NEAR,
            vary=_at_decode_time,
            assumed=True,
        ),
    ]
    if present.split.link is not None:
        knobs.append(
            Knob(
                name="link bandwidth",
                unit="bytes/s between two instances",
                now=present.split.link.bandwidth,
                factors=WIDE,
                vary=_at_bandwidth,
                assumed=True,
            )
        )
    reused = load.profile.isl - load.profile.new_tokens
    if len(present.trace.block_ids) and reused > 0:
        knobs.append(
            Knob(
                name="reuse",
                unit="of input tokens, infinite cache",
                now=reused / load.profile.isl,
                factors=(0.0, 1 / 4, 1 / 2, 3 / 4),
                vary=_at_reuse,
            )
        )
    return tuple(knobs)


def _at_load(
    present: Varied, factor: float, *, load: Load, workload: Workload, base: Path
) -> Varied:
    if load.concurrency is None:
        return replace(present, trace=scale_rate(present.trace, factor))
    users = max(round(load.concurrency * factor), 1)
    return replace(present, trace=trace_of(workload, base=base, concurrency=users))


def _at_context(present: Varied, factor: float) -> Varied:
    return replace(present, trace=stretched(present.trace, factor))


def _at_reuse(present: Varied, factor: float) -> Varied:
    return replace(present, trace=with_less_reuse(present.trace, factor))


def _at_bandwidth(present: Varied, factor: float) -> Varied:
    link = present.split.link
    assert link is not None
    faster = replace(link, bandwidth=link.bandwidth * factor)
    return replace(present, split=replace(present.split, link=faster))


def _at_pool(present: Varied, factor: float) -> Varied:
    def grown(pool: PoolSpec) -> PoolSpec:
        return replace(pool, kv_blocks=max(round(pool.kv_blocks * factor), 2))

    return _with_pools(present, grown)


def _at_prefill_time(present: Varied, factor: float) -> Varied:
    return _with_curves(present, Factors(prefill=factor))


def _at_decode_time(present: Varied, factor: float) -> Varied:
    return _with_curves(present, Factors(decode=factor, context=factor))


def _with_curves(present: Varied, factors: Factors) -> Varied:
    def slower(pool: PoolSpec) -> PoolSpec:
        return replace(pool, curve=scaled(pool.curve, factors, pool.curve.origin))

    return _with_pools(present, slower)


def _with_pools(present: Varied, change: Callable[[PoolSpec], PoolSpec]) -> Varied:
    split, mixed = (
        replace(world, pools=tuple(change(pool) for pool in world.pools))
        for world in (present.split, present.mixed)
    )
    return replace(present, split=split, mixed=mixed)


def _outcomes(
    tries: Sequence[Varied],
    *,
    split: Arm,
    mixed: Arm,
    slo: Slo,
    seed: int,
    closed_loop: bool,
    workers: int | None,
) -> list[Outcome]:
    """The outcome in each of the varied presents; a world that a knob leaves alone on a trace that
    it leaves alone is simulated once."""
    traces = list({id(varied.trace): varied.trace for varied in tries}.values())
    place = {id(trace): index for index, trace in enumerate(traces)}
    jobs: dict[tuple[int, int], Job] = {}
    for varied in tries:
        for arm, world in (("split", varied.split), ("mixed", varied.mixed)):
            key = id(world), id(varied.trace)
            jobs[key] = Job(
                name=arm,
                world=world,
                trace=place[key[1]],
                seed=seed,
                closed_loop=closed_loop,
                series=False,
            )
    measure = partial(_measured, split=split.candidate, mixed=mixed.candidate, slo=slo)
    found = sweep(list(jobs.values()), traces, measure, workers=workers)
    points = dict(zip(jobs, found, strict=True))
    pairs = [(points[id(v.split), id(v.trace)], points[id(v.mixed), id(v.trace)]) for v in tries]
    return [
        Outcome(
            winner=judged(*pair).winner,
            meets=tuple(
                arm for arm, one in zip(get_args(Arms), pair, strict=True) if one and one.meets_slo
            ),
        )
        for pair in pairs
    ]


def _winners(known: dict[float, Outcome]) -> dict[float, Winner]:
    return {factor: outcome.winner for factor, outcome in known.items()}


def _edge(known: dict[float, Outcome], arm: Arms) -> tuple[float, float] | None:
    """The neighbouring loads, from the lightest on, between which an arm ceases to meet the SLO."""
    return next(
        (
            (near, far)
            for near, far in pairwise(sorted(known))
            if arm in known[near].meets and arm not in known[far].meets
        ),
        None,
    )


def _carried(knob: Knob, known: dict[float, Outcome], arm: Arms) -> Carried:
    edge = _edge(known, arm)
    return Carried(
        arm=arm,
        knob=knob,
        factor=edge and edge[0],
        all_of_it=edge is None and arm in known[max(known)].meets,
        low=min(known),
        high=max(known),
    )


def _measured(job: Job, run: Run, *, split: Candidate, mixed: Candidate, slo: Slo) -> Point | None:
    candidate = split if job.name == "split" else mixed
    return point(candidate, run, slo, name=job.name, load="")


def _turned(winner: Winner, now: Winner) -> bool:
    """Whether an arm wins that does not now."""
    return winner != now and winner in ("split", "mixed")


def _bracket(known: dict[float, Winner], now: Winner) -> tuple[float, float] | None:
    """The pair of neighbouring factors, nearest to the present, between which the verdict turns:
    the near one still shows it as it is."""
    up = sorted(factor for factor in known if factor >= 1)
    down = sorted((factor for factor in known if factor <= 1), reverse=True)
    pairs = [
        pair
        for side in (up, down)
        if (pair := next((p for p in pairwise(side) if _turned(known[p[1]], now)), None))
    ]
    return min(pairs, key=lambda pair: max(pair[0], 1 / pair[0]), default=None)


def _middle(bracket: tuple[float, float]) -> float:
    """Half-way between two factors on a log scale; on a plain one where a factor is 0."""
    near, far = bracket
    return float(np.sqrt(near * far)) or (near + far) / 2


def _flip(knob: Knob, known: dict[float, Winner], now: Winner) -> Flip:
    bracket = _bracket(known, now)
    return Flip(
        knob=knob,
        factor=None if bracket is None else _middle(bracket),
        winner=None if bracket is None else known[bracket[1]],
        until=1.0 if bracket is None else _until(known, bracket),
        low=min(known),
        high=max(known),
    )


def _until(known: dict[float, Winner], bracket: tuple[float, float]) -> float:
    """The last factor beyond a bracket up to which its far end's winner stays the winner."""
    near, far = bracket
    beyond = sorted(f for f in known if (f >= far if far > near else f <= far))
    same = takewhile(lambda f: known[f] == known[far], beyond if far > near else beyond[::-1])
    return list(same)[-1]
