"""The clock of an engine: how long its steps last, leaps of many steps, and cutting a leap short.

A leap is k decode steps of an unchanged batch. Step j lasts work + slope x context(j), the
slowest rank counting, so one rank without drafts has a closed form; ranks in lockstep and draft
steps are summed one by one, still without looking at any request.
"""

from splitpoint.native.kernel import Rows, kernel
from splitpoint.sim import heap
from splitpoint.sim.blocks import take
from splitpoint.sim.reserve import grow_ahead
from splitpoint.sim.seats import growth, slide_decoders
from splitpoint.sim.series import notable, noted_share, record_growth
from splitpoint.sim.state import Sim


@kernel
def step_seconds(s: Sim, e: int, j: int) -> int:
    """Picoseconds of step `j` (from 0) of the leap of engine `e`: its slowest rank."""
    engine = s.engines[e]
    if j == 0:
        return int(engine.first_step)
    ahead = s.pools[engine.pool].ahead
    longest = 0
    for r in range(engine.first, engine.first + engine.ranks):
        rank = s.ranks[r]
        if rank.decoders > 0:
            context = rank.context + (j - ahead) * rank.rate
            lasts = rank.work + rank.slope * (context >> 20)
            longest = max(longest, lasts)
    return int(longest)


@kernel
def _second_context(s: Sim, e: int) -> int:
    """Context tokens in the second step of the leap of an engine of one rank without drafts."""
    rank = s.ranks[s.engines[e].first]
    return int((rank.context >> 20) + (1 - s.pools[rank.pool].ahead) * (rank.rate >> 20))


@kernel
def _after_first(rank: Rows, second: int, count: int) -> int:
    """Picoseconds of `count` steps of a leap after its first: work + slope x context each."""
    context = count * second + (rank.rate >> 20) * (count * (count - 1) // 2)
    return int(count * rank.work + rank.slope * context)


@kernel
def elapsed(s: Sim, e: int, count: int) -> int:
    """Picoseconds that the first `count` steps of the leap of engine `e` last."""
    engine = s.engines[e]
    if count == 1:
        return int(engine.first_step)
    if engine.ranks == 1 and s.pools[engine.pool].drafts == 0:
        rank = s.ranks[engine.first]
        second = _second_context(s, e)
        return int(engine.first_step + _after_first(rank, second, count - 1))
    total = 0
    for j in range(count):
        total += step_seconds(s, e, j)
    return total


@kernel
def steps_until(s: Sim, e: int, when: int) -> int:
    """The fewest steps of the running leap that end at `when` or later, at least 1."""
    engine = s.engines[e]
    left = when - engine.start
    if engine.leap == 1 or left <= engine.first_step:
        return 1
    if engine.ranks == 1 and s.pools[engine.pool].drafts == 0:
        rank = s.ranks[engine.first]
        second = _second_context(s, e)
        left -= engine.first_step
        low = 1
        high = engine.leap
        while high - low > 1:
            middle = (low + high) >> 1
            if _after_first(rank, second, middle - 1) >= left:
                high = middle
            else:
                low = middle
        return int(high)
    j = 0
    total = 0
    while total < left and j < engine.leap:
        total += step_seconds(s, e, j)
        j += 1
    return j


@kernel
def sync(s: Sim, e: int, count: int) -> None:
    """Take the blocks of the leap's first `count` steps, so that others see the pool as it is."""
    engine = s.engines[e]
    if count > engine.synced:
        for r in range(engine.first, engine.first + engine.ranks):
            rank = s.ranks[r]
            blocks = growth(s, r, rank.steps + engine.synced, count - engine.synced)
            if notable(rank, blocks):
                _grow_in_pieces(s, e, r, count, blocks)
            else:
                _grow(s, r, rank.steps + engine.synced, count - engine.synced, blocks)
        engine.synced = count


@kernel
def _grow(s: Sim, r: int, first: int, count: int, blocks: int) -> None:
    """Take the `blocks` of rank `r` in `count` steps from step number `first` on."""
    grow_ahead(s, r, first, count)
    if s.pools[s.ranks[r].pool].slides == 1:
        slide_decoders(s, r, first, count)
    if blocks > 0:
        take(s, r, blocks)


@kernel
def _grow_in_pieces(s: Sim, e: int, r: int, count: int, blocks: int) -> None:
    """The same for a leap in which a rank takes many: a row after each share of its pool."""
    engine = s.engines[e]
    rank = s.ranks[r]
    done = engine.synced
    piece = max(1, (count - done) * noted_share(s, r) // max(blocks, 1))
    while done < count:
        steps = min(piece, count - done)
        first = rank.steps + done
        _grow(s, r, first, steps, growth(s, r, first, steps))
        done += steps
        if notable(rank, 0):
            record_growth(s, r, engine.start + elapsed(s, e, done - 1))


@kernel
def observe(s: Sim, e: int, now: int) -> None:
    """Bring an engine's pools up to the steps it has begun before `now`."""
    if s.engines[e].busy == 1 and s.engines[e].leap > 1:
        sync(s, e, steps_until(s, e, now))


@kernel
def touch(s: Sim, e: int, now: int) -> None:
    """Something changed on engine `e`: it looks at its queues after the step in progress (in a
    pipeline: when the first batch on its way has passed), or at once if it stands idle."""
    engine = s.engines[e]
    clock = s.clock[0]
    if engine.busy == 0:
        if engine.waits == 0:
            engine.waits = 1
            place = clock.waits
            while place > 0 and s.waits[place - 1] > e:
                s.waits[place] = s.waits[place - 1]
                place -= 1
            s.waits[place] = e
            clock.waits += 1
        return
    if engine.leap > 1:
        count = steps_until(s, e, now)
        sync(s, e, count)
        if count < engine.leap:
            engine.leap = count
            s.busy_key[e] = engine.start + elapsed(s, e, count)
            heap.moved(s.busy, clock.busy, s.busy_key, s.busy_pos, e)
