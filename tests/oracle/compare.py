"""One world through the oracle and through the simulator: where do they differ?"""

import numpy as np

from splitpoint.inputs.trace import Trace
from splitpoint.run import Run
from splitpoint.sim.play import play
from splitpoint.sim.world import World
from tests.oracle.oracle import PICOS, Oracle

# Below this many passes the simulator keeps every row.
THINNED = 15_000
TIMES = (
    "arrive",
    "prefill_start",
    "prefill_end",
    "transfer_start",
    "transfer_end",
    "first_token",
    "end",
)


def simulated(world: World, trace: Trace, seed: int, leaps: bool) -> Run:
    """A run of the simulator, in a closed loop where the trace allows."""
    return play(world, trace, seed=seed, name="", closed_loop=True, series=True, leaps=leaps)


def differences(world: World, trace: Trace, seed: int) -> list[str]:
    """Every column in which the simulator, leaping or not, and the oracle disagree."""
    oracle = Oracle(world, trace, seed, trace.closed)
    oracle.run()
    found = []
    for leaps in (True, False):
        found += _differences(simulated(world, trace, seed, leaps), oracle, f"leaps {leaps}: ")
    return found


def _differences(run: Run, oracle: Oracle, mode: str) -> list[str]:
    found: list[str] = []

    def check(name: str, got: object, want: object) -> None:
        if not np.array_equal(np.asarray(got), np.asarray(want), equal_nan=True):
            found.append(f"{mode}{name}: simulator {got}, oracle {want}")

    for name in TIMES:
        moments = np.array([getattr(r, name) for r in oracle.requests], np.float64)
        check(
            name, getattr(run.requests, f"{name}_s"), np.where(moments < 0, np.nan, moments / PICOS)
        )
    check("hits", run.requests.hit_tokens, [r.hits for r in oracle.requests])
    check("reloaded", run.requests.host_hit_tokens, [r.reloaded for r in oracle.requests])
    check("preemptions", run.requests.preemptions, [r.preemptions for r in oracle.requests])
    check("prefill", run.requests.prefill_instance, [r.prefill_rank for r in oracle.requests])
    check("decode", run.requests.decode_instance, [r.decode_rank for r in oracle.requests])
    check("outcome", run.requests.outcome, [r.outcome for r in oracle.requests])
    ranks = oracle.ranks
    check("busy", run.instances.busy_s, np.array([k.busy for k in ranks], np.float64) / PICOS)
    check("prefill steps", run.instances.prefill_steps, [k.steps["p"] for k in ranks])
    check("decode steps", run.instances.decode_steps, [k.steps["d"] for k in ranks])
    check("mixed steps", run.instances.mixed_steps, [k.steps["m"] for k in ranks])
    check("rank preemptions", run.instances.preemptions, [k.preemptions for k in ranks])
    check("rank hits", run.instances.hit_tokens, [k.hit_tokens for k in ranks])
    check("rank queries", run.instances.queried_tokens, [k.queried for k in ranks])
    check("rank reloaded", run.instances.host_hit_tokens, [k.reloaded_tokens for k in ranks])
    found += _series_differences(run, oracle)
    return found


def _series_differences(run: Run, oracle: Oracle) -> list[str]:
    """Rows of the series that are neither in the oracle's log of every pass nor its last state.

    A thinned series is timed at samples: then only its states are looked up.
    """
    s = run.series
    thinned = sum(len(rank.log) for rank in oracle.ranks) > THINNED
    logs: list[set[tuple[float, ...]]] = []
    for rank in oracle.ranks:
        rows = [(at / PICOS, *rest) for at, *rest in rank.log]
        rows.append((s.time_s[-1], *rank.state()))
        logs.append({row[1:] if thinned else row for row in rows})
    found = []
    for i in range(len(s.time_s)):
        row = (s.time_s[i], s.kv_used[i], s.kv_cached[i], s.held[i], s.running[i], s.waiting[i])
        if (row[1:] if thinned else row) not in logs[s.instance[i]]:
            found.append(f"series row {i} of rank {s.instance[i]}: {row}")
    return found if thinned else found + _missed_rows(run, oracle)


def _missed_rows(run: Run, oracle: Oracle) -> list[str]:
    """Passes of the oracle that the series tells otherwise: other requests there, other blocks
    held, or a 64th of the pool more in use than this row and the next one say."""
    s = run.series
    found = []
    for rank in oracle.ranks:
        here = s.instance == rank.index
        last = {at / PICOS: state for at, *state in rank.log}
        rows = np.searchsorted(s.time_s[here], list(last), side="right") - 1
        told = np.stack([s.kv_used, s.held, s.running, s.waiting], axis=1)[here]
        for row, (at, (used, _, *others)) in zip(rows, last.items(), strict=True):
            if row < 0 or [*told[row][1:]] != others:
                found.append(f"rank {rank.index} at {at}: {others}, told {told[max(row, 0) :][:1]}")
                continue
            most = told[row : row + 2, 0].max()
            if used - most >= max(1, rank.usable // 64):
                found.append(f"rank {rank.index} at {at}: {used} blocks, told {most}")
    return found
