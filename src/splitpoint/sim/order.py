"""SGLang's longest-prefix-first queue: before each look at it, waiting requests are sorted by what
the cache has of them, and of those that share a start it has not, all but the first go last.

The sorted queue stays: equals keep the order in which they were, from one look to the next.
"""

from splitpoint.native.kernel import kernel
from splitpoint.sim import chain
from splitpoint.sim.host import reloadable
from splitpoint.sim.prefix import matched, reusable, told_by, touch_prefix
from splitpoint.sim.seats import LISTS, QUEUE, request_of
from splitpoint.sim.state import DECODE, Sim

# SGLang 0.5, managers/schedule_policy.py: a longer queue is left as it is; a request of whom the
# cache has no more than so many tokens is compared with others of that kind, by so many tokens.
LONGEST_QUEUE = 128
LITTLE = 32
LAST = 1
# Every so many looks at a queue that is not sorted (`WAITING_PREFIX_REFRESH_INTERVAL`).
REFRESH = 32


@kernel
def look_over(s: Sim, r: int) -> None:
    """What SGLang does before it admits from the queue of rank `r` (`calc_priority`), unless the
    batch is full: sort it, or now and then make what it will ask for the last used."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    ticket = s.places.head[LISTS * r + QUEUE]
    full = rank.shut == 1 or rank.running >= pool.seats
    if ticket < 0 or pool.role == DECODE or (full and s.filling.head[r] < 0):
        return
    if pool.longest_first == 1 and rank.waiting <= LONGEST_QUEUE:
        _longest_first(s, r)
        return
    if rank.looks % REFRESH == 0:
        last = ticket
        for _ in range(LONGEST_QUEUE - 1):
            if s.places.next[last] >= 0:
                last = s.places.next[last]
        while last >= 0:
            _found(s, r, last)
            last = s.places.prev[last]
    rank.looks += 1


@kernel
def _longest_first(s: Sim, r: int) -> None:
    """Sort the waiting queue of rank `r`."""
    ticket = s.places.head[LISTS * r + QUEUE]
    while ticket >= 0:
        s.tickets[ticket].order = _order(s, r, ticket)
        ticket = s.places.next[ticket]
    ticket = s.places.head[LISTS * r + QUEUE]
    while ticket >= 0:
        after = s.places.next[ticket]
        _move_up(s, r, ticket)
        ticket = after


@kernel
def _found(s: Sim, r: int, ticket: int) -> int:
    """Blocks that the cache has of a waiting ticket, the one with its last token too; looking for
    them makes them the last used."""
    source = told_by(s, request_of(s, ticket))
    found = matched(s, r, source, reusable(s, r, source, s.tickets[ticket].target + 1))
    touch_prefix(s, r, source, found)
    return int(max(0, found - s.pools[s.ranks[r].pool].hybrid))


@kernel
def _order(s: Sim, r: int, ticket: int) -> int:
    """Minus the tokens that a ticket would find, or `LAST`."""
    source = told_by(s, request_of(s, ticket))
    target = s.tickets[ticket].target
    pool = s.pools[s.ranks[r].pool]
    found = _found(s, r, ticket)
    if found * pool.block <= LITTLE:
        other = s.places.head[LISTS * r + QUEUE]
        while other != ticket:
            if -LITTLE <= s.tickets[other].order <= 0 and _share_start(s, other, ticket):
                return LAST
            other = s.places.next[other]
    if pool.host > 0:
        most = reusable(s, r, source, target)
        missing = reloadable(s, r, source, most) - pool.hybrid - matched(s, r, source, most)
        found += max(0, missing)
    return int(-min(found * pool.block, target - 1))


@kernel
def _share_start(s: Sim, one: int, other: int) -> bool:
    """Whether two tickets' prompts have their first `LITTLE` tokens in common, as ids tell."""
    a = request_of(s, one)
    b = request_of(s, other)
    if s.cover[a] < LITTLE or s.cover[b] < LITTLE:
        return False
    depth = (LITTLE - 1) // s.rules[0].id_tokens
    return bool(s.name[s.name_start[a] + depth] == s.name[s.name_start[b] + depth])


@kernel
def _move_up(s: Sim, r: int, ticket: int) -> None:
    """Move a ticket ahead of all before it that come after it in order."""
    order = s.tickets[ticket].order
    ahead = s.places.prev[ticket]
    if ahead < 0 or s.tickets[ahead].order <= order:
        return
    while ahead >= 0 and s.tickets[ahead].order > order:
        ahead = s.places.prev[ahead]
    chain.unlink(s.places, LISTS * r + QUEUE, ticket)
    if ahead < 0:
        chain.prepend(s.places, LISTS * r + QUEUE, ticket)
    else:
        chain.insert(s.places, LISTS * r + QUEUE, ticket, ahead)
