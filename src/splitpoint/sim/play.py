"""A `World` and a `Trace` in, a `Run` out."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitpoint.inputs.trace import Floats, Longs, Trace
from splitpoint.native import lines
from splitpoint.native.kernel import INTERPRETED, Rows
from splitpoint.run import Instances, Ints, Requests, Run, Series
from splitpoint.sim.build import ROWS_AT_ONCE, build, front
from splitpoint.sim.loop import run
from splitpoint.sim.state import INFEASIBLE, PICOS, UNFINISHED, Sim
from splitpoint.sim.world import World

# Infeasible requests that the notes name one by one.
NAMED = 5


def play(
    world: World,
    trace: Trace,
    *,
    seed: int,
    name: str,
    closed_loop: bool,
    series: bool,
    leaps: bool,
) -> Run:
    """Simulate; `leaps` False takes every step on its own, with the same result."""
    closed = closed_loop and trace.closed
    if not (run.kept or INTERPRETED):
        lines.prepare()  # where a compiler is at work, the reader of traces gets its code too
    s = build(world, trace, seed, closed, leaps)
    run(s)
    requests = _requests(s, trace, world)
    return Run(
        name=name,
        origin="simulated",
        roles=tuple(pool.role for pool in world.pools),
        gpus=sum(pool.replicas * pool.gpus for pool in world.pools),
        duration_s=float(np.fmax.reduce(requests.end_s, initial=0.0)),
        requests=requests,
        instances=_instances(s, world),
        series=_series(s, series),
        notes=_notes(s, world, requests.outcome),
    )


def _columns(rows: Rows, counts: tuple[str, ...], times: tuple[str, ...]) -> dict[str, Any]:
    """These fields of rows as arrays, times in seconds, taken out a few rows at a time: field by
    field every row would be fetched from memory again for each."""
    names = rows.dtype.names or ()
    fields = rows.view(np.int64).reshape(len(rows), len(names))
    columns: dict[str, NDArray[Any]] = {name: np.empty(len(rows), np.int32) for name in counts}
    columns |= {name: np.empty(len(rows)) for name in times}
    for at in range(0, len(rows), ROWS_AT_ONCE):
        part = fields[at : at + ROWS_AT_ONCE]
        for name, column in columns.items():
            values, here = part[:, names.index(name)], column[at : at + ROWS_AT_ONCE]
            if name in times:
                _seconds(values, here)
            else:
                here[:] = values
    return columns


def _seconds(picos: Longs, out: Floats | None = None) -> Floats:
    """The moments in seconds, NaN where there is none; in `out` where that is given."""
    seconds: Floats = np.divide(picos, PICOS, out=out)
    np.copyto(seconds, np.nan, where=picos < 0)
    return seconds


def _ints(column: Longs) -> Ints:
    return np.asarray(column).astype(np.int32)


def _requests(s: Sim, trace: Trace, world: World) -> Requests:
    counts = ("hits", "reloaded", "preemptions")
    places = ("prefill_rank", "decode_rank", "outcome")
    times = ("prefill_start", "prefill_end", "transfer_start", "transfer_end", "first_token", "end")
    rows = _columns(s.requests, (*counts, *places), times)
    # Inside, a request arrives at the router; for its client it began `front` earlier.
    arrive = np.array(s.requests.arrive)
    sent = np.where(arrive < 0, arrive, arrive - front(world, trace))
    return Requests(
        isl=trace.isl.astype(np.int32),
        osl=trace.osl.astype(np.int32),
        session=trace.session.astype(np.int32),
        turn=trace.turn.astype(np.int32),
        arrive_s=_seconds(sent),
        prefill_start_s=rows["prefill_start"],
        prefill_end_s=rows["prefill_end"],
        transfer_start_s=rows["transfer_start"],
        transfer_end_s=rows["transfer_end"],
        first_token_s=rows["first_token"],
        end_s=rows["end"],
        hit_tokens=rows["hits"],
        host_hit_tokens=rows["reloaded"],
        preemptions=rows["preemptions"],
        prefill_instance=rows["prefill_rank"],
        decode_instance=rows["decode_rank"],
        outcome=rows["outcome"],
    )


def _instances(s: Sim, world: World) -> Instances:
    ranks = s.ranks[: s.rules[0].ranks].view(np.recarray)
    engine = np.array(ranks.engine)
    first = np.array(s.engines.first)
    return Instances(
        pool=_ints(_pool_index(world)[ranks.pool]),
        instance=_ints(engine),
        rank=_ints(np.arange(len(ranks)) - first[engine]),
        kv_blocks=_ints(s.pools.usable[ranks.pool]),
        busy_s=_seconds(ranks.busy),
        prefill_steps=np.array(ranks.prefill_steps),
        decode_steps=np.array(ranks.decode_steps),
        mixed_steps=np.array(ranks.mixed_steps),
        preemptions=_ints(ranks.preemptions),
        hit_tokens=np.array(ranks.hits),
        queried_tokens=np.array(ranks.queried),
        host_hit_tokens=np.array(ranks.reloaded),
    )


def _pool_index(world: World) -> Longs:
    """Rows of the simulation's pools (prefill first) as places in `world.pools`."""
    order = sorted(range(len(world.pools)), key=lambda i: world.pools[i].role != "prefill")
    return np.array(order, np.int64)


def _series(s: Sim, wanted: bool) -> Series:
    rows = s.rows[: s.clock[0].rows] if wanted else s.rows[:0]
    rank, time = np.ascontiguousarray(rows[:, :2].T)
    if s.rules[0].ranks <= np.iinfo(np.int16).max:
        rank = rank.astype(np.int16)  # sorted by its digits, in one pass
    order = np.argsort(rank, kind="stable")
    # What is left is a merge of sorted rows, one run for each rank.
    order = order[np.argsort(time[order], kind="stable")]
    instance, picos, used, cached, held, running, waiting = rows[order].T
    return Series(
        instance=_ints(instance),
        time_s=_seconds(picos),
        kv_used=_ints(used),
        kv_cached=_ints(cached),
        held=_ints(held),
        running=_ints(running),
        waiting=_ints(waiting),
    )


def _notes(s: Sim, world: World, outcome: Ints) -> tuple[str, ...]:
    notes = []
    rows = s.requests
    infeasible = np.flatnonzero(outcome == INFEASIBLE)
    if world.link is not None and not world.link.bandwidth > 0 and len(infeasible):
        notes.append(f"the link has no bandwidth: {len(infeasible)} requests cannot be handed over")
        return tuple(notes)
    for q in infeasible[:NAMED]:
        side = len(world.pools) - 1 if rows.barred[q] & 1 else 0
        pool = s.pools[side]
        notes.append(
            f"request {q} ({rows.isl[q]:,} input + {rows.osl[q]:,} output tokens) never fits a "
            f"{_pools_in_order(world)[side]} rank of {pool.usable:,} blocks of {pool.block} tokens"
        )
    if len(infeasible) > NAMED:
        notes.append(f"{len(infeasible) - NAMED:,} more requests never fit")
    stuck = np.count_nonzero(outcome == UNFINISHED)
    if stuck:
        why = (
            "the clock's 106 days were over" if s.clock[0].ended else "no event could move them on"
        )
        notes.append(f"{stuck:,} requests were left unfinished: {why}")
    return tuple(notes)


def _pools_in_order(world: World) -> tuple[str, ...]:
    return tuple(sorted((pool.role for pool in world.pools), key=lambda role: role != "prefill"))
