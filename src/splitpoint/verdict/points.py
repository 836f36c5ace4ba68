"""One simulated deployment under one load, boiled down to the numbers that an answer keeps."""

import numpy as np

from splitpoint import metrics
from splitpoint.inputs.slo import Slo
from splitpoint.run import Run
from splitpoint.search.world import Candidate
from splitpoint.units import seconds
from splitpoint.verdict.answer import Point, PoolState, Quantiles, Stack


def point(candidate: Candidate, run: Run, slo: Slo, *, name: str, load: str) -> Point | None:
    """The point of a run; None if no request finished, so that there is nothing to report."""
    if not metrics.finished(run).any():
        return None
    rates = metrics.throughput(run)
    parts = metrics.ttft_parts(run)
    return Point(
        name=name,
        deployment=candidate.deployment,
        gpus=run.gpus,
        load=load,
        requests=len(run.requests),
        success=metrics.success(run),
        attainment=metrics.attainment(run, slo),
        meets_slo=metrics.meets_slo(run, slo),
        ttft=quantiles(metrics.ttft(run), slo),
        tpot=quantiles(metrics.tpot(run), slo),
        e2el=quantiles(metrics.e2el(run), slo),
        ttft_stack=Stack(
            queue=metrics.mean(parts.queue),
            prefill=metrics.mean(parts.prefill),
            transfer=metrics.mean(parts.transfer),
            decode_wait=metrics.mean(parts.decode_wait),
        ),
        total_tok_s=rates.total,
        output_tok_s=rates.output,
        total_tok_s_gpu=rates.total / run.gpus,
        output_tok_s_gpu=rates.output / run.gpus,
        goodput_s=metrics.goodput(run, slo),
        interactivity=metrics.interactivity(run),
        pools=tuple(_pool(candidate, run, index) for index in range(len(run.roles))),
        first_wall=first_wall(candidate, run, slo),
        draining=metrics.draining(run),
    )


def quantiles(values: metrics.Floats, slo: Slo) -> Quantiles:
    """Mean and percentiles of the values that exist; zeros where none does (no gap, no wait)."""
    if np.isnan(values).all():
        return Quantiles(mean=0.0, p50=0.0, p90=0.0, p99=0.0, at_slo=0.0)
    return Quantiles(
        mean=metrics.mean(values),
        p50=metrics.percentile(values, 50),
        p90=metrics.percentile(values, 90),
        p99=metrics.percentile(values, 99),
        at_slo=metrics.percentile(values, slo.percentile),
    )


def first_wall(candidate: Candidate, run: Run, slo: Slo) -> str:
    """What stopped requests first: a KV pool that could not take a mean request while one waited
    (the earliest such moment), else a queue longer than the prefill itself, else the pace, else
    what of the first token's time is longest. The front end's time is nobody's queue."""
    moments = [
        (moment, run.roles[index])
        for index in range(len(run.roles))
        if (moment := _full_at(candidate, run, index)) is not None
    ]
    if moments:
        moment, role = min(moments)
        return f"{role} KV pool, full at {seconds(moment)}"
    parts = metrics.ttft_parts(run)
    prefill = metrics.mean(parts.prefill)
    late = metrics.percentile(metrics.ttft(run), slo.percentile) > slo.ttft_s
    if late and metrics.mean(parts.queue) - _front(candidate, run) > prefill:
        return f"{run.roles[0]} compute: requests queue longer than they prefill"
    if metrics.percentile(metrics.tpot(run), slo.percentile) > slo.tpot_s:
        return f"{run.roles[-1]} pace: TPOT is over the SLO before a pool is full"
    if late and metrics.mean(parts.transfer) > prefill:
        return "link: KV moves for longer than the prompt prefills"
    if late and metrics.mean(parts.decode_wait) > prefill:
        return f"{run.roles[-1]} wait: first tokens wait for longer than the prompt prefills"
    if late and metrics.percentile(parts.prefill, slo.percentile) > slo.ttft_s:
        return f"{run.roles[0]} compute: prefill alone takes longer than the TTFT allows"
    if late:
        return f"{run.roles[0]} compute: of what makes first tokens late, prefill is the longest"
    return "none reached"


def _front(candidate: Candidate, run: Run) -> float:
    """Seconds that a mean request spends in the front end before any instance knows of it."""
    return candidate.front_s + candidate.front_token_s * float(np.mean(run.requests.isl))


def _full_at(candidate: Candidate, run: Run, pool: int) -> float | None:
    """The first moment at which a request waits that a rank's free blocks could not take; None
    unless that is so for a hundredth of the time, as the wall's condition has it."""
    need = candidate.instances[pool].holding.blocks(round(float(np.mean(run.requests.isl))))
    if metrics.demand_p99(run, pool, need) <= 1:
        return None
    ours = run.instances.pool[run.series.instance] == pool
    room = run.instances.kv_blocks[run.series.instance] - run.series.kv_used
    stuck = np.flatnonzero(ours & (room < need) & (run.series.waiting > 0))
    return float(run.series.time_s[stuck[0]]) if len(stuck) else None


def _pool(candidate: Candidate, run: Run, index: int) -> PoolState:
    seen = metrics.pool_load(run, index)
    return PoolState(
        role=run.roles[index],
        name=str(candidate.deployment.pools[index]),
        kv_used_mean=seen.used_mean,
        kv_used_p99=seen.used_p99,
        kv_held_mean=seen.held_mean,
        busy_share=seen.busy_share,
        preemptions=seen.preemptions,
        prefix_hit_share=seen.hit_share,
        waiting_mean=seen.waiting_mean,
    )
