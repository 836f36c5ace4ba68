"""SGLang's longest-prefix-first queue: before each look at it, waiting requests are sorted by what
the cache has of them, and of those that share a start it has not, all but the first go last.

The sorted queue stays: equals keep the order in which they were, from one look to the next.
"""

from splitpoint.native.kernel import kernel
from splitpoint.sim import chain
from splitpoint.sim.host import reloadable
from splitpoint.sim.prefix import hits, matched, reusable, told_by
from splitpoint.sim.seats import LISTS, QUEUE, request_of
from splitpoint.sim.state import Sim

# SGLang 0.5, managers/schedule_policy.py: a longer queue is left as it is; a request of whom the
# cache has no more than so many tokens is compared with others of that kind, by so many tokens.
LONGEST_QUEUE = 128
LITTLE = 32
LAST = 1


@kernel
def longest_first(s: Sim, r: int) -> None:
    """Sort the waiting queue of rank `r`."""
    if s.ranks[r].waiting > LONGEST_QUEUE:
        return
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
def _order(s: Sim, r: int, ticket: int) -> int:
    """Minus the tokens that a ticket would find, or `LAST`."""
    source = told_by(s, request_of(s, ticket))
    target = s.tickets[ticket].target
    pool = s.pools[s.ranks[r].pool]
    found = hits(s, r, source, target)
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
    return int(-found * pool.block)


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
