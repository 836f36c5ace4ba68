"""The answer to a plan: everything that `plan.json` holds and the report shows."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from splitpoint.inputs.deployment import Deployment, Pool
from splitpoint.inputs.plan import Plan
from splitpoint.inputs.routing import Routing
from splitpoint.record import Record
from splitpoint.run import Run

Origin = Literal["computed", "simulated", "published", "measured", "assumed"]
SCHEMA_VERSION = 1


class Figure(Record, frozen=True, kw_only=True):
    """One number with its unit and its past. `unit` "B" prints as GiB, "s" as seconds."""

    name: str
    value: float
    unit: str
    origin: Origin
    source: str = ""


class Quantiles(Record, frozen=True, kw_only=True):
    """Mean and percentiles of one metric over the requests that finished; seconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    at_slo: float


class Stack(Record, frozen=True, kw_only=True):
    """Mean seconds of the parts of TTFT; they sum to its mean."""

    queue: float
    prefill: float
    transfer: float
    decode_wait: float


class StepPart(Record, frozen=True, kw_only=True):
    """Seconds that one kind of kernel or message, or the host, takes of a step."""

    name: str
    seconds: float


class StepTime(Record, frozen=True, kw_only=True):
    """A step as a deployment's run had it on average (`words`), and what takes its time, the
    longest first."""

    name: str
    deployment: str
    words: str
    parts: tuple[StepPart, ...]

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return sum(part.seconds for part in self.parts)


class PoolState(Record, frozen=True, kw_only=True):
    """What one pool saw: shares are time averages over its ranks, 0..1."""

    role: str
    name: str
    kv_used_mean: float
    kv_used_p99: float
    kv_held_mean: float
    busy_share: float
    preemptions: int
    prefix_hit_share: float
    waiting_mean: float


class Point(Record, frozen=True, kw_only=True):
    """One deployment under one load, simulated. Shares are 0..1, rates are per second.

    `interactivity`: 1 / median TPOT, tok/s/user. `attainment`: share of all requests (failures
    included) within the SLO. `meets_slo`: TTFT and TPOT at the SLO percentile are within it and
    nothing failed. `first_wall`: what filled or queued first. `draining`: share of the steady
    window after the last arrival.
    """

    name: str
    deployment: Deployment
    gpus: int
    load: str
    requests: int
    success: float
    attainment: float
    meets_slo: bool
    ttft: Quantiles
    tpot: Quantiles
    e2el: Quantiles
    ttft_stack: Stack
    total_tok_s: float
    output_tok_s: float
    total_tok_s_gpu: float
    output_tok_s_gpu: float
    goodput_s: float
    interactivity: float
    pools: tuple[PoolState, ...]
    first_wall: str
    draining: float = 0.0
    on_frontier: bool = False
    run_file: str = ""


class Rejected(Record, frozen=True, kw_only=True):
    """A deployment that was not simulated, and why (does not fit, cannot hand over, pruned)."""

    name: str
    why: str
    shortfall: Figure | None = None


class Wall(Record, frozen=True, kw_only=True):
    """One KV wall, as shares of what the pools hold. `occupancy`: what its requests ask for on
    average, each by itself; `peak`: what is in use or waited for at the 99th percentile of time and
    ranks, a shared prefix once; above 1 requests queue or are preempted."""

    side: Literal["mixed", "prefill", "decode"]
    deployment: str
    demand: Figure
    pool: Figure
    occupancy: float
    peak: float
    words: str


class Condition(Record, frozen=True, kw_only=True):
    """One of the four conditions of a split that pays. `margin` = value / threshold - 1, signed
    so that positive holds; None where it cannot be judged."""

    name: str
    holds: bool | None
    value: Figure
    threshold: Figure
    margin: float | None
    words: str


class Comparison(Record, frozen=True, kw_only=True):
    """Split against mixed on the same GPUs, trace and SLO. `basis` says which routing.

    `by`: what decided; `margin`: winner / loser - 1 of it, of goodput per GPU where the SLO did.
    """

    basis: Literal["equal routing", "each at its best routing"]
    routing: Routing | None
    split: str | None
    mixed: str | None
    winner: Literal["split", "mixed", "tie", "neither"]
    by: str
    margin: float
    words: str


class Claim(Record, frozen=True, kw_only=True):
    """At `flips_at` the other arm wins; a measurement can refute it."""

    variable: str
    now: float
    flips_at: float | None
    unit: str
    words: str
    refute: str


class Verdict(Record, frozen=True, kw_only=True):
    """The choice with its reasons. `rests_on` lists assumed numbers that it depends on."""

    choice: Literal["split", "mixed", "either", "neither"]
    headline: str
    reasons: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    conditions: tuple[Condition, ...]
    claims: tuple[Claim, ...]
    rests_on: tuple[str, ...]
    chosen: str | None


class RequestCost(Record, frozen=True, kw_only=True):
    """What one request costs on one rank of the reference deployment."""

    topology: str
    tokens: int
    block_tokens: int
    page_bytes: int
    blocks: int
    bytes: int
    fixed_share: float
    unused_share: float


class Holding(Record, frozen=True, kw_only=True):
    """What one GPU rank of a topology holds: the ladder, rung by rung, and what is left."""

    topology: str
    rungs: tuple[Figure, ...]
    kv_bytes: int
    kv_blocks: int
    concurrency: float
    fits: bool


def holding_name(pool: Pool) -> str:
    """The name of the holding of a pool's ranks: topology, drafts and token budget."""
    engine = pool.engine
    drafts = f" drafts={engine.drafts}" if engine.drafts else ""
    budget = "" if engine.batched_tokens is None else f" budget={engine.batched_tokens:,}"
    return f"{pool.topology}{drafts}{budget}"


class WorkloadSummary(Record, frozen=True, kw_only=True):
    """The workload in numbers; `reuse_share` is with an infinite cache."""

    name: str
    requests: int
    duration_s: float
    rate: float
    isl_mean: float
    isl_p50: float
    isl_p90: float
    isl_p99: float
    osl_mean: float
    osl_p50: float
    osl_p90: float
    reuse_share: float
    session_reuse_share: float


class Answer(Record, frozen=True, kw_only=True):
    """A plan and its answer. `points` holds every simulated deployment, frontier points marked."""

    version: int
    splitpoint: str
    plan: Plan
    model: str
    gpu: str
    workload: WorkloadSummary
    request: RequestCost
    holdings: tuple[Holding, ...]
    walls: tuple[Wall, ...]
    points: tuple[Point, ...]
    rejected: tuple[Rejected, ...]
    verdict: Verdict
    assumptions: tuple[Figure, ...]
    recipes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    steps: tuple[StepTime, ...] = ()

    def holding(self, pool: Pool) -> Holding | None:
        """What a rank of the pool holds; None where the answer does not list it."""
        name = holding_name(pool)
        return next((holding for holding in self.holdings if holding.topology == name), None)


def answer(
    plan: Plan, *, base: Path = Path(), progress: Callable[[str, float], None] | None = None
) -> tuple[Answer, dict[str, Run]]:
    """The answer to a plan, and by point name the runs that its figures show.

    `base`: the folder that relative paths of the plan start from, where no file did: reading one
    puts its folder before them. `progress` hears the stage and the share that is done, 0..1.
    """
    # The parts of a decision build the records above, so they are imported when it is asked for.
    from splitpoint.verdict.decide import decided

    return decided(plan, base=base, progress=progress)


def schema() -> dict[str, object]:
    """The JSON schema of `plan.json`."""
    return msgspec.json.schema(Answer)
