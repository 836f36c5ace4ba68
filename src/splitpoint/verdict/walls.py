"""The two KV walls: what the requests of a side hold at once against what its pools hold.

Below 1 requests come and go; above it they queue, or on a decode side are preempted. Splitting
moves demand between the walls: every decode then rests on N_D pools instead of all of them.
"""

from typing import Literal

from splitpoint.metrics import (
    PoolLoad,
    demand_p99,
    mean_after_prefill,
    mean_prefilling,
    mean_shut_out,
    pool_load,
)
from splitpoint.run import Run
from splitpoint.search.loads import Profile
from splitpoint.search.world import Candidate
from splitpoint.units import gib
from splitpoint.verdict.answer import Figure, Wall

Side = Literal["mixed", "prefill", "decode"]


def occupancy(concurrent: float, request_bytes: float, pools: int, pool_bytes: float) -> float:
    """concurrent x KV per request / (pools x pool), as a share of what the side holds."""
    return concurrent * request_bytes / (pools * pool_bytes)


def walls(candidate: Candidate, run: Run, profile: Profile) -> tuple[Wall, ...]:
    """The wall of every side of a simulated deployment.

    Prefill: requests from the start of their prefill until the decode side has pulled their KV,
    each with its input. Decode: requests from the end of their prefill to their last token, each
    with its mean context, waiting for room included. Mixed: both. Requests that queue while a
    pool has no room for a mean input count too: memory holds them up. These are means over the
    steady window, so a side near 1 is over it half of the time; whether a wall holds is read from
    the demand at the 99th percentile of the simulated pools.
    """
    return tuple(_wall(candidate, run, profile, index) for index in range(len(candidate.instances)))


def _wall(candidate: Candidate, run: Run, profile: Profile, index: int) -> Wall:
    pool, held = candidate.deployment.pools[index], candidate.instances[index].holding
    need = held.blocks(round(profile.isl))
    present = concurrent(run, index, blocks=need)
    peak = demand_p99(run, index, need)
    tokens = round(profile.isl if pool.role == "prefill" else profile.context)
    ranks = pool.replicas * pool.topology.dp
    request = held.request_bytes(tokens)
    share = occupancy(present, request, ranks, max(held.usable_bytes, 1))
    seen = pool_load(run, index)
    return Wall(
        side=pool.role,
        deployment=candidate.name,
        demand=Figure(
            name=f"{present:.1f} requests x {gib(request)} of {tokens:,} tokens",
            value=present * request,
            unit="B",
            origin="simulated",
            source="mean over the steady window x blocks of one rank",
        ),
        pool=Figure(
            name=f"{ranks} {'pool' if ranks == 1 else 'pools'} x {gib(held.usable_bytes)}",
            value=float(ranks * held.usable_bytes),
            unit="B",
            origin="computed",
            source="memory ladder, whole blocks",
        ),
        occupancy=share,
        peak=peak,
        words=_words(pool.role, share, peak, seen),
    )


def concurrent(run: Run, pool: int, *, blocks: int) -> float:
    """Mean number of requests that hold or await KV of a pool; an input takes `blocks` blocks."""
    role = run.roles[pool]
    if role == "decode":
        return mean_after_prefill(run)
    held = mean_prefilling(run) + mean_shut_out(run, pool, blocks)
    return held if role == "prefill" else held + mean_after_prefill(run)


def _words(role: Side, share: float, peak: float, seen: PoolLoad) -> str:
    verb = "is over its wall" if peak > 1 else "is at its wall" if peak == 1 else "has room"
    whole = " (a prefix that several share counted for each)" if seen.hit_share > 0 else ""
    return (
        f"{role} {verb}: its requests ask for {share:.0%} of the pools on average{whole}; "
        f"simulated: {peak:.0%} used or waited for at p99 of time and ranks, used "
        f"{seen.used_mean:.0%} on average and {seen.used_p99:.0%} at p99"
    )
