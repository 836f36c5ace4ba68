"""Rows of state, one per change, thinned to samples at regular times in a long run.

A row says what held from its time on. When the rows are full the gap doubles, and of the changes
between two multiples of the gap only the last is kept, timed at the later one: a fair sample, where
keeping the first change after a pause would favour pauses.
"""

from splitpoint.native.kernel import Rows, kernel
from splitpoint.sim.state import NEVER, Sim

WIDTH = 7
RANK_COLUMN, TIME_COLUMN = 0, 1


@kernel
def _sample_time(when: int, gap: int) -> int:
    """The first multiple of `gap` at or after `when`."""
    return -(-when // gap) * gap


@kernel
def record(s: Sim, r: int, now: int) -> None:
    """Rank `r` changed at `now`: write its state before that, if a sample fell in it."""
    record_growth(s, r, now)
    rank = s.ranks[r]
    rank.row_held = rank.held
    rank.row_running = rank.running
    rank.row_waiting = rank.waiting


@kernel
def record_growth(s: Sim, r: int, now: int) -> None:
    """The same of the blocks alone, which decodes of rank `r` have taken by the step that begins at
    `now`: what else changed since then belongs to a later row."""
    clock = s.clock[0]
    rank = s.ranks[r]
    if rank.row_time >= 0 and _sample_time(rank.row_time, clock.gap) <= now:
        _write(s, r, _sample_time(rank.row_time, clock.gap))
    rank.row_time = now
    rank.row_used = s.pools[rank.pool].usable - rank.free
    rank.row_least = rank.free - noted_share(s, r)
    rank.row_cached = rank.cached


@kernel
def noted_share(s: Sim, r: int) -> int:
    """Blocks that decodes of rank `r` take before a row says so: a 64th of its pool."""
    return max(1, int(s.pools[s.ranks[r].pool].usable) >> 6)


@kernel
def notable(rank: Rows, more: int) -> bool:
    """Whether a rank that takes `more` blocks has so many more in use than its last row says."""
    return bool(rank.free - more <= rank.row_least)


@kernel
def close(s: Sim, r: int, now: int) -> None:
    """The run is over: write the last change of rank `r` and its state at the end."""
    record(s, r, now)
    _write(s, r, now)


@kernel
def _write(s: Sim, r: int, when: int) -> None:
    clock = s.clock[0]
    rank = s.ranks[r]
    at = clock.rows
    s.rows[at, RANK_COLUMN] = r
    s.rows[at, TIME_COLUMN] = when
    s.rows[at, 2] = rank.row_used
    s.rows[at, 3] = rank.row_cached
    s.rows[at, 4] = rank.row_held
    s.rows[at, 5] = rank.row_running
    s.rows[at, 6] = rank.row_waiting
    clock.rows += 1
    # The end of the run writes two rows for each rank.
    limit = len(s.rows) - 2 * s.rules[0].ranks
    if clock.rows >= limit:
        clock.gap = max(2 * clock.gap, when // limit)
        _thin(s)
        while clock.rows > limit // 2:
            clock.gap *= 2
            _thin(s)


@kernel
def _thin(s: Sim) -> None:
    """Sample the rows anew: each rank's row stays if a sample falls before its next one."""
    clock = s.clock[0]
    for r in range(s.rules[0].ranks):
        s.row_next[r] = s.ranks[r].row_time
    for i in range(clock.rows - 1, -1, -1):
        r = s.rows[i, RANK_COLUMN]
        when = s.rows[i, TIME_COLUMN]
        sample = _sample_time(when, clock.gap)
        s.rows[i, TIME_COLUMN] = sample if sample <= s.row_next[r] else NEVER
        s.row_next[r] = when
    kept = 0
    for i in range(clock.rows):
        if s.rows[i, TIME_COLUMN] != NEVER:
            for column in range(WIDTH):
                s.rows[kept, column] = s.rows[i, column]
            kept += 1
    clock.rows = kept
