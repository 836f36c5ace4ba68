"""Which rank a request goes to. Every data-parallel rank is a target of its own.

Loads are what a router of vLLM-router, llm-d or Dynamo sees: requests assigned and not ended,
blocks in use and asked for, prompt tokens still to compute, and exact cache events. Ties go to
the rank with fewer requests, then to the first.
"""

from splitpoint.sim.kernel import kernel
from splitpoint.sim.prefix import hits
from splitpoint.sim.state import Sim
from splitpoint.sim.steps import observe

ROUTINGS = (
    "random",
    "round_robin",
    "least_requests",
    "least_kv",
    "power_of_two",
    "session",
    "prefix_aware",
)
RANDOM, ROUND_ROBIN, LEAST_REQUESTS, LEAST_KV, POWER_OF_TWO, SESSION, PREFIX_AWARE = range(7)


@kernel
def choose(s: Sim, q: int, side: int, first: int, count: int, now: int) -> int:
    """The rank among `first` .. `first + count - 1` that serves request `q`; `side` 1: decode."""
    rules = s.rules[0]
    routing = rules.decode_routing if side == 1 else rules.routing
    lot = s.lots[q, 2 * side]
    if routing == RANDOM:
        return int(first + lot % count)
    if routing == ROUND_ROBIN:
        return first + _turn(s, side) % count
    if routing == LEAST_REQUESTS:
        return _least_requests(s, first, count)
    if routing == LEAST_KV:
        return _least_kv(s, first, count, now)
    if routing == POWER_OF_TWO:
        return _power_of_two(s, first, count, lot, s.lots[q, 2 * side + 1])
    if routing == SESSION:
        place = 2 * s.requests[q].session + side
        if s.session_rank[place] < 0:
            s.session_rank[place] = _least_requests(s, first, count)
        return int(s.session_rank[place])
    return _prefix_aware(s, q, first, count, now)


@kernel
def _turn(s: Sim, side: int) -> int:
    clock = s.clock[0]
    if side == 1:
        clock.turn_decode += 1
        return int(clock.turn_decode - 1)
    clock.turn_prefill += 1
    return int(clock.turn_prefill - 1)


@kernel
def _least_requests(s: Sim, first: int, count: int) -> int:
    best = first
    for r in range(first + 1, first + count):
        if s.ranks[r].load < s.ranks[best].load:
            best = r
    return best


@kernel
def _power_of_two(s: Sim, first: int, count: int, lot: int, other: int) -> int:
    if count == 1:
        return first
    a = lot % count
    b = (a + 1 + other % (count - 1)) % count
    a, b = min(a, b), max(a, b)
    return int(first + (b if s.ranks[first + b].load < s.ranks[first + a].load else a))


@kernel
def _used(s: Sim, r: int, now: int) -> int:
    """Blocks in use on rank `r` and blocks that its waiting requests ask for."""
    rank = s.ranks[r]
    observe(s, rank.engine, now)
    return int(s.pools[rank.pool].usable - rank.free + rank.demand)


@kernel
def _least_kv(s: Sim, first: int, count: int, now: int) -> int:
    best = first
    least = _used(s, first, now)
    for r in range(first + 1, first + count):
        used = _used(s, r, now)
        if used < least or (used == least and s.ranks[r].load < s.ranks[best].load):
            best = r
            least = used
    return best


@kernel
def _prefix_aware(s: Sim, q: int, first: int, count: int, now: int) -> int:
    """Least of (prompt tokens to compute there, its own new ones included) + tokens of blocks in
    use: Dynamo's KV router cost, `overlap_weight` 1 (its default)."""
    best = first
    least = -1
    for r in range(first, first + count):
        rank = s.ranks[r]
        block = s.pools[rank.pool].block
        used = _used(s, r, now)
        isl = s.requests[q].isl
        cost = rank.backlog + isl - hits(s, r, q, isl) * block + used * block
        if least < 0 or cost < least or (cost == least and rank.load < s.ranks[best].load):
            best = r
            least = cost
    return best
