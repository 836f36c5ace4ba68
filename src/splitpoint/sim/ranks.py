"""Which data-parallel rank of an instance serves a request, where its engine chooses and no router.

Engines choose by loads that they look at now and then, and add what they sent since.
"""

from typing import get_args

from splitpoint.native.kernel import kernel
from splitpoint.sim.state import PICOS, Sim
from splitpoint.sim.steps import observe
from splitpoint.sim.world import RankChoice

CHOICES = get_args(RankChoice)
ROUTER, LOT, TURN, IN_FLIGHT, QUEUE, REQUESTS, TOKENS = range(7)
# Between two looks at the loads: vLLM's coordinator publishes them every 100 ms (v1/engine/
# coordinator.py), SGLang's controller reads them again after 20 (data_parallel_controller.py).
LOOKS = (0, 0, 0, 0, PICOS // 10, PICOS // 50, PICOS // 50)


@kernel
def rank_of(s: Sim, q: int, first: int, count: int, now: int) -> int:
    """The rank among `first` .. `first + count - 1`, those of one instance, for request `q`."""
    engine = s.engines[s.ranks[first].engine]
    pool = s.pools[engine.pool]
    if pool.choice == LOT:
        # The lot's upper half: `power_of_two` takes the lower.
        return int(first + (s.lots[q, 1] >> 16) % count)
    turn = engine.dealt % count
    engine.dealt += 1
    if pool.choice == TURN:
        return int(first + turn)
    if pool.choice == IN_FLIGHT:
        return _least_in_flight(s, first, count, turn, now)
    if engine.dealt == 1 or now - engine.told >= pool.looks:
        engine.told = now
        for r in range(first, first + count):
            s.ranks[r].seen = _load(s, r, pool.choice, now)
    # vLLM begins with another rank every time, so that equals take turns.
    start = turn if pool.choice == QUEUE else 0
    best = first + start
    for i in range(1, count):
        r = first + (start + i) % count
        if s.ranks[r].seen < s.ranks[best].seen:
            best = r
    s.ranks[best].seen += _sent(s, q, pool.choice)
    return int(best)


@kernel
def used(s: Sim, r: int, now: int) -> int:
    """Blocks in use on rank `r` and blocks that its waiting requests ask for."""
    rank = s.ranks[r]
    observe(s, rank.engine, now)
    return int(s.pools[rank.pool].usable - rank.free + rank.demand)


@kernel
def _load(s: Sim, r: int, choice: int, now: int) -> int:
    """What an engine sees of a rank when it looks."""
    rank = s.ranks[r]
    if choice == QUEUE:
        return int(rank.load + 3 * rank.waiting)
    if choice == REQUESTS:
        return int(rank.load)
    return int(used(s, r, now) * s.pools[rank.pool].block)


@kernel
def _sent(s: Sim, q: int, choice: int) -> int:
    """What it adds to the load of the rank that it sent request `q`."""
    if choice == TOKENS:
        return int(s.requests[q].isl)
    return 4 if choice == QUEUE else 1


@kernel
def _least_in_flight(s: Sim, first: int, count: int, start: int, now: int) -> int:
    """The rank with the fewest requests, where those that wait count up to four times as its pool
    fills beyond a half."""
    best = first
    least = -1.0
    for i in range(count):
        r = first + (start + i) % count
        rank = s.ranks[r]
        observe(s, rank.engine, now)
        usage = 1.0 - rank.free / s.pools[rank.pool].usable
        score = rank.load + rank.waiting * 6.0 * max(0.0, usage - 0.5)
        if least < 0.0 or score < least:
            best = r
            least = score
    return best
