"""A finished prefill on its way to the decode side: queued there, pulled, released here.

The prefill rank holds every block until the decode rank has all of them, so a decode side
without room keeps the prefill side's memory (back-pressure).
"""

from splitpoint.native.kernel import kernel
from splitpoint.sim import chain
from splitpoint.sim.host import name_blocks
from splitpoint.sim.link import post_transfer
from splitpoint.sim.prefix import pin, told_by
from splitpoint.sim.seats import LISTS, QUEUE, READY, drop, free_blocks
from splitpoint.sim.state import FLOWED, HELD, LOADED, OUT, PULLING, REMOTE, RESERVED, Sim
from splitpoint.sim.steps import touch
from splitpoint.sim.tails import kept_in_all, pin_tails


@kernel
def enqueue_remote(s: Sim, q: int, now: int) -> None:
    """Request `q` joins the queue of its decode rank, to be pulled when there is room."""
    ticket = q + s.rules[0].requests
    t = s.tickets[ticket]
    rank = s.ranks[t.rank]
    t.state = REMOTE
    chain.append(s.places, LISTS * t.rank + QUEUE, ticket)
    rank.waiting += 1
    rank.dirty = 1
    touch(s, rank.engine, now)


@kernel
def offer(s: Sim, q: int, now: int) -> None:
    """The KV of request `q` may be pulled: at once where blocks are reserved for it."""
    t = s.tickets[q + s.rules[0].requests]
    if t.state == RESERVED:
        t.state = PULLING
        post_transfer(s, q, now)
    else:
        enqueue_remote(s, q, now)


@kernel
def hold_source(s: Sim, q: int, change: int) -> None:
    """Count the blocks of request `q` as held by a finished prefill (`change` 1), or no longer
    (-1); blocks shared by several such prefills count once."""
    t = s.tickets[q]
    rank = s.ranks[t.rank]
    pool = s.pools[rank.pool]
    columns = pin(s, q, change)
    rank.held += change * (t.blocks - pool.full * t.named) + pool.full * columns
    if pool.tail > 0:
        turned = pin_tails(s, q, told_by(s, q), change)
        rank.held += pool.wide * (turned - change * kept_in_all(s, q))


@kernel
def release_source(s: Sim, q: int, now: int) -> None:
    """The prefill rank gives up the blocks it held for request `q`."""
    t = s.tickets[q]
    if t.state != HELD:
        return
    rank = s.ranks[t.rank]
    touch(s, rank.engine, now)
    hold_source(s, q, -1)
    free_blocks(s, q, t.blocks)
    rank.dirty = 1
    t.state = OUT


@kernel
def deliver(s: Sim, q: int, now: int) -> None:
    """All KV of request `q` is on its decode rank and its prefill is over."""
    ticket = q + s.rules[0].requests
    t = s.tickets[ticket]
    rank = s.ranks[t.rank]
    release_source(s, q, now)
    touch(s, rank.engine, now)
    rank.dirty = 1
    if s.requests[q].over == 1:
        drop(s, ticket)
        return
    s.requests[q].transfer_end = now
    pool = s.pools[rank.pool]
    if pool.caching == 1:
        name_blocks(s, ticket, q, s.cover[q] // pool.block)
    t.state = LOADED
    chain.append(s.places, LISTS * t.rank + READY, ticket)


@kernel
def flowed(s: Sim, q: int, now: int) -> None:
    """The last byte of request `q` has moved; a layerwise pull may still wait for its prefill."""
    ticket = q + s.rules[0].requests
    if s.tickets[q].state == HELD or s.requests[q].over == 1:
        deliver(s, q, now)
    else:
        s.tickets[ticket].state = FLOWED
