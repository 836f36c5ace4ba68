"""One deployment under one trace: the run, and its summary for `splitpoint simulate`."""

from pathlib import Path
from typing import Literal

import numpy as np
from msgspec.structs import replace

from splitpoint import metrics, units
from splitpoint.errors import PlanError, standing_in
from splitpoint.inputs.deployment import Deployment, Pool, problems
from splitpoint.inputs.drafter import model_of
from splitpoint.inputs.facts import gpu as gpu_by_name
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Model
from splitpoint.inputs.plan import DeploymentPlan, Plan, Search
from splitpoint.inputs.slo import Slo
from splitpoint.inputs.trace import Trace
from splitpoint.inputs.traces.requests import trace_of
from splitpoint.inputs.workload import Workload
from splitpoint.pricing.engines import resolved
from splitpoint.pricing.handoff import refusal
from splitpoint.record import Record
from splitpoint.run import OUTCOMES, Run
from splitpoint.search.instance import holding
from splitpoint.search.loads import too_long
from splitpoint.search.space import engines, lacking, topologies
from splitpoint.search.world import Candidate, candidate, world
from splitpoint.sim import simulate
from splitpoint.verdict.answer import Stack
from splitpoint.verdict.validity import outside

PERCENTS = (50.0, 90.0, 99.0)
# What [workload] makes of its requests; the patience of clients holds under any.
LOAD = ("rate", "concurrency", "burstiness", "requests", "scale", "closed_loop", "think_cap_s")


class Spread(Record, frozen=True, kw_only=True):
    """Mean and percentiles over the requests that finished; None where none has the metric."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


class InstanceState(Record, frozen=True, kw_only=True):
    """What one KV pool saw; shares are 0..1, occupancy is over the steady window."""

    pool: int
    role: str
    instance: int
    rank: int
    kv_blocks: int
    kv_used_mean: float
    kv_used_p99: float
    kv_held_mean: float
    busy_share: float
    waiting_mean: float
    preemptions: int
    prefix_hit_share: float
    host_hit_share: float
    prefill_steps: int
    decode_steps: int
    mixed_steps: int


class Summary(Record, frozen=True, kw_only=True):
    """A run in numbers: seconds, tokens per second, shares 0..1. `outcomes` counts requests by how
    they ended; latencies are of finished requests and must be read beside `success`.
    `attainment` and `goodput_s` are None where no SLO is stated."""

    name: str
    origin: Literal["simulated", "measured"]
    deployment: str
    gpus: int
    requests: int
    success: float
    outcomes: dict[str, int]
    duration_s: float
    ttft: Spread
    tpot: Spread
    itl: Spread
    e2el: Spread
    ttft_stack: Stack | None
    input_tok_s: float
    output_tok_s: float
    total_tok_s: float
    output_tok_s_gpu: float
    total_tok_s_gpu: float
    interactivity: float
    attainment: float | None
    goodput_s: float | None
    instances: tuple[InstanceState, ...]
    notes: tuple[str, ...]


def requests_of(asked: Plan | DeploymentPlan, *, where: str) -> Trace:
    """The requests that a file's own workload means, if it means one load; reading the file has put
    its folder before the trace it names."""
    workload = asked.workload
    if workload is None:
        raise PlanError(where, "states no workload", "give --trace FILE")
    for name in ("rate", "concurrency"):
        if isinstance(getattr(workload, name), tuple):
            raise PlanError(
                f"{where}: workload.{name}", "lists several loads", f"--set workload.{name}=ONE"
            )
    return trace_of(workload, base=Path())


def replaced_load(asked: Plan | DeploymentPlan) -> tuple[str, ...]:
    """What a file says of its load that does not count where another trace is replayed instead."""
    workload = asked.workload
    if workload is None:
        return ()
    usual = Workload()
    said = [name for name in LOAD if getattr(workload, name) != getattr(usual, name)]
    if not said:
        return ()
    return (
        f"--trace is replayed as it is: the file's {', '.join(said)} of [workload] do not count",
    )


def replay(
    asked: Plan | DeploymentPlan,
    trace: Trace,
    *,
    seed: int = 0,
    cuts: metrics.Cuts = metrics.EIGHTHS,
    where: str = "deployment",
) -> tuple[Summary, Run]:
    """Simulate a deployment, or a plan's mixed one on all its GPUs, under a trace; rates and
    occupancies of the summary leave out the `cuts`. `where`: the file that states it."""
    model = model_of(asked)
    if isinstance(asked, DeploymentPlan):
        deployment, slo, note = asked.deployment, asked.slo, ""
        gpus = asked.pool_gpus
        given: DeploymentPlan | Search = asked
    else:
        gpus = (gpu_by_name(asked.gpu),)
        with standing_in(where):
            deployment, slo = _mixed(asked, model, gpus[0], trace), asked.slo
        given = asked.search
        note = "a plan file names no deployment: this is its mixed one on all GPUs"
    for index, pool in enumerate(deployment.pools):
        faults = problems(pool.topology, model)
        if faults:
            place = f"{where}: pools.{index}: layout {pool.topology}"
            raise PlanError(place, faults[0], "; ".join(faults[1:]))
        with standing_in(f"{where}: pools.{index}"):
            resolved(pool.engine, gpus[index], pool.topology, model)
    chosen = candidate(deployment, model, gpus, kv_pool_gib=given.kv_pool_gib)
    run = simulate(
        world(
            chosen,
            model,
            tokens=max(round(float(trace.isl.mean())), 1),
            traffic=given,
            workload=asked.workload,
        ),
        trace,
        seed=seed,
        name=chosen.name,
    )
    limit = min(ready.engine.max_len or model.max_len for ready in chosen.instances)
    unfit = [lack for ready in chosen.instances if (lack := lacking(ready.holding, 1))]
    notes = [
        *run.notes,
        *([note] if note else []),
        *(f"no real engine starts here: {lack.name}: {lack.why}" for lack in unfit),
        *_apart(chosen),
        *_unlike(deployment),
        *(f"inferred, not stated: {told}" for told in model.inferred),
        *too_long(trace, limit),
        *_drained(run, cuts),
        *outside(chosen, run),
    ]
    run = replace(run, notes=tuple(notes))
    return summary(run, deployment, slo, cuts), run


def summary(
    run: Run, deployment: Deployment, slo: Slo | None, cuts: metrics.Cuts = metrics.EIGHTHS
) -> Summary:
    """The summary of a run."""
    rates = metrics.throughput(run, cuts)
    parts = metrics.ttft_parts(run)
    gaps = metrics.itl(run)
    counts = np.bincount(run.requests.outcome, minlength=len(OUTCOMES))
    done = bool(metrics.finished(run).any())
    return Summary(
        name=run.name,
        origin=run.origin,
        deployment=str(deployment),
        gpus=run.gpus,
        requests=len(run.requests),
        success=metrics.success(run),
        outcomes={word: int(n) for word, n in zip(OUTCOMES, counts, strict=True) if n},
        duration_s=run.duration_s,
        ttft=_spread(metrics.ttft(run)),
        tpot=_spread(metrics.tpot(run)),
        itl=Spread(
            mean=_known(float(np.average(gaps.seconds, weights=gaps.counts)))
            if len(gaps.seconds)
            else None,
            **_placed(metrics.gap_percentiles(gaps, PERCENTS)),
        ),
        e2el=_spread(metrics.e2el(run)),
        ttft_stack=Stack(
            queue=metrics.mean(parts.queue),
            prefill=metrics.mean(parts.prefill),
            transfer=metrics.mean(parts.transfer),
            decode_wait=metrics.mean(parts.decode_wait),
        )
        if done
        else None,
        input_tok_s=rates.input,
        output_tok_s=rates.output,
        total_tok_s=rates.total,
        output_tok_s_gpu=rates.output / run.gpus,
        total_tok_s_gpu=rates.total / run.gpus,
        interactivity=metrics.interactivity(run),
        attainment=None if slo is None else metrics.attainment(run, slo),
        goodput_s=None if slo is None else metrics.goodput(run, slo, cuts),
        instances=tuple(_instance(run, row, cuts) for row in range(len(run.instances.pool))),
        notes=run.notes,
    )


def _apart(chosen: Candidate) -> list[str]:
    """That the pools of a split could not hand over on a real engine."""
    if not chosen.deployment.split:
        return []
    prefill, decode = sorted(
        zip(chosen.deployment.pools, chosen.instances, strict=True),
        key=lambda pair: pair[0].role != "prefill",
    )
    why = refusal(
        prefill[1].holding.layout, decode[1].holding.layout, prefill[1].engine, decode[1].engine
    )
    return [] if why is None else [f"no real engine hands over here, simulated as if: {why}"]


def _unlike(deployment: Deployment) -> list[str]:
    """That a GPU is not a GPU where pools run on different ones."""
    kinds = list(dict.fromkeys(pool.gpu for pool in deployment.pools))
    if len(kinds) == 1:
        return []
    return [f"rates per GPU count {' and '.join(kinds)} alike: set prices beside them"]


def _drained(run: Run, cuts: metrics.Cuts) -> list[str]:
    """That requests take longer than they arrive for, so that rates are no load's."""
    share = metrics.draining(run, cuts)
    if share <= metrics.MOSTLY:
        return []
    return [
        f"{units.percent(share)} of the steady window lie after the last arrival: rates are those "
        "of draining queues, a longer load would show its own"
    ]


def _mixed(plan: Plan, model: Model, gpu: Gpu, trace: Trace) -> Deployment:
    """Mixed replicas of the plan's smallest instance that fits, on all its GPUs."""
    longest = int(np.ceil(np.percentile(trace.isl + trace.osl, 99)))
    engine = engines(plan.engine)[0]
    for topology in sorted(
        topologies(model, gpu, plan.gpus, plan.search), key=lambda each: each.gpus
    ):
        held = holding(model, gpu, topology, engine, kv_pool_gib=plan.search.kv_pool_gib)
        if lacking(held, longest) is None:
            pool = Pool(
                role="mixed",
                topology=topology,
                replicas=plan.gpus // topology.gpus,
                engine=held.engine,
                gpu=gpu.name,
            )
            return Deployment(pools=(pool,), routing=plan.search.routing[0])
    raise PlanError(
        plan.model,
        f"fits {plan.gpus} x {gpu.name} in no topology that the plan allows",
        "splitpoint price shows what is missing",
    )


def _spread(values: metrics.Floats) -> Spread:
    return Spread(
        mean=_known(metrics.mean(values)), **_placed(metrics.percentiles(values, PERCENTS))
    )


def _placed(found: list[float]) -> dict[str, float | None]:
    return {f"p{place:g}": _known(value) for place, value in zip(PERCENTS, found, strict=True)}


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value


def _instance(run: Run, row: int, cuts: metrics.Cuts) -> InstanceState:
    table = run.instances
    seen = metrics.load_of(run, np.array([row]), cuts)
    return InstanceState(
        pool=int(table.pool[row]),
        role=run.roles[int(table.pool[row])],
        instance=int(table.instance[row]),
        rank=int(table.rank[row]),
        kv_blocks=int(table.kv_blocks[row]),
        kv_used_mean=seen.used_mean,
        kv_used_p99=seen.used_p99,
        kv_held_mean=seen.held_mean,
        busy_share=seen.busy_share,
        waiting_mean=seen.waiting_mean,
        preemptions=seen.preemptions,
        prefix_hit_share=seen.hit_share,
        host_hit_share=seen.host_share,
        prefill_steps=int(table.prefill_steps[row]),
        decode_steps=int(table.decode_steps[row]),
        mixed_steps=int(table.mixed_steps[row]),
    )
