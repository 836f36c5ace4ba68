"""Rows of state at change points, thinned so that a long run stays small.

A rank writes a row after a pass that changed something, at most one per `gap`. When the rows are
full the gap doubles and rows closer than that to the one before them (of their rank) go.
"""

from splitpoint.sim.kernel import kernel
from splitpoint.sim.state import Sim

WIDTH = 7


@kernel
def record(s: Sim, r: int, now: int) -> None:
    """Write a row for rank `r`, unless its last one is nearer than the gap."""
    clock = s.clock[0]
    rank = s.ranks[r]
    if rank.row_time >= 0 and now - rank.row_time < clock.gap:
        return
    limit = len(s.rows) - len(s.ranks)
    if clock.rows == limit:
        clock.gap = max(2 * clock.gap, now * len(s.ranks) // limit, 1)
        while clock.rows > limit // 2:
            _thin(s)
            clock.gap *= 2
        clock.gap //= 2
        if rank.row_time >= 0 and now - rank.row_time < clock.gap:
            return
    write(s, r, now)


@kernel
def write(s: Sim, r: int, now: int) -> None:
    """Write a row for rank `r` without looking at the gap."""
    clock = s.clock[0]
    rank = s.ranks[r]
    at = clock.rows
    s.rows[at, 0] = r
    s.rows[at, 1] = now
    s.rows[at, 2] = s.pools[rank.pool].usable - rank.free
    s.rows[at, 3] = rank.cached
    s.rows[at, 4] = rank.held
    s.rows[at, 5] = rank.running
    s.rows[at, 6] = rank.waiting
    clock.rows += 1
    rank.row_time = now


@kernel
def _thin(s: Sim) -> None:
    clock = s.clock[0]
    for r in range(len(s.ranks)):
        s.row_seen[r] = -1
    kept = 0
    for i in range(clock.rows):
        r = s.rows[i, 0]
        when = s.rows[i, 1]
        if s.row_seen[r] < 0 or when - s.row_seen[r] >= clock.gap:
            s.row_seen[r] = when
            for column in range(WIDTH):
                s.rows[kept, column] = s.rows[i, column]
            kept += 1
    clock.rows = kept
