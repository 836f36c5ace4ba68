"""The life of a request outside its batch: it arrives, ends, or is given up.

A session's next turn arrives its think time after the turn before ended, whatever the outcome.
"""

from splitpoint.native.kernel import kernel
from splitpoint.sim import chain, heap
from splitpoint.sim.blocks import held
from splitpoint.sim.handoff import enqueue_remote, release_source
from splitpoint.sim.host import end_reload, name_blocks
from splitpoint.sim.prefix import hits, told_by
from splitpoint.sim.prompts import assign, dismiss
from splitpoint.sim.router import PREFIX_AWARE, cached, choose
from splitpoint.sim.seats import (
    LISTS,
    QUEUE,
    READY,
    await_prefill,
    drop,
    expect,
    free_blocks,
    name_before_going,
    request_of,
)
from splitpoint.sim.state import (
    COMING,
    DECODING,
    DONE,
    ENDING,
    FILLING,
    FLOWED,
    FRESH,
    HELD,
    INFEASIBLE,
    LOADED,
    OUT,
    PARKED,
    PULLING,
    RELOADED,
    RELOADING,
    REMOTE,
    RESERVED,
    WAITING,
    Sim,
)
from splitpoint.sim.steps import observe, touch


@kernel
def arrive(s: Sim, q: int, now: int) -> None:
    """Request `q` arrives and is routed; one that no rank can ever hold ends at once."""
    rules = s.rules[0]
    request = s.requests[q]
    request.arrive = now
    ranks = rules.ranks
    if request.barred & 1:
        end(s, q, INFEASIBLE, now)
        return
    if rules.split == 0:
        r = choose(s, q, 0, 0, ranks, now)
        request.prefill_rank = r
        request.decode_rank = r
        _queue_local(s, q, q, r, now)
        return
    prefill_ranks = s.engines[rules.first_sink].first
    d = choose(s, q, 1, prefill_ranks, ranks - prefill_ranks, now)
    if rules.direct_below > 0:
        observe(s, s.ranks[d].engine, now)
        block = s.pools[s.ranks[d].pool].block
        if request.isl - hits(s, d, q, request.isl) * block < rules.direct_below:
            request.prefill_rank = d
            request.decode_rank = d
            _queue_local(s, q, q + rules.requests, d, now)
            return
    if request.barred & 2:
        end(s, q, INFEASIBLE, now)
        return
    r = choose(s, q, 0, 0, prefill_ranks, now)
    request.prefill_rank = r
    request.decode_rank = d
    _assign(s, q, q + rules.requests, d)
    s.tickets[q + rules.requests].state = COMING
    if rules.reserve_first == 1:
        _await(s, q, q, r)
        enqueue_remote(s, q, now)
    else:
        _queue_local(s, q, q, r, now)


@kernel
def _assign(s: Sim, q: int, ticket: int, r: int) -> None:
    s.tickets[ticket].rank = r
    assign(s, q, r)
    pool = s.pools[s.ranks[r].pool]
    expect(s, ticket, held(pool, s.windows, s.requests[q].isl, 1))


@kernel
def _queue_local(s: Sim, q: int, ticket: int, r: int, now: int) -> None:
    _await(s, q, ticket, r)
    line_up(s, ticket, now)


@kernel
def line_up(s: Sim, ticket: int, now: int) -> None:
    """A ticket joins the queue of its rank, to be computed there."""
    t = s.tickets[ticket]
    rank = s.ranks[t.rank]
    t.state = WAITING
    chain.append(s.places, LISTS * t.rank + QUEUE, ticket)
    rank.waiting += 1
    rank.dirty = 1
    touch(s, rank.engine, now)


@kernel
def _await(s: Sim, q: int, ticket: int, r: int) -> None:
    """A request is routed to the rank that computes it; its client begins to wait."""
    rules = s.rules[0]
    isl = s.requests[q].isl
    _assign(s, q, ticket, r)
    if PREFIX_AWARE in (rules.routing, rules.decode_routing):
        await_prefill(s, ticket, isl - cached(s, q, r))
    t = s.tickets[ticket]
    t.state = COMING
    t.target = isl
    if rules.timeout >= 0 or rules.abort >= 0:
        clock = s.clock[0]
        s.arrived[clock.arrived] = q
        clock.arrived += 1


@kernel
def end(s: Sim, q: int, outcome: int, now: int) -> None:
    """Request `q` is over; its session goes on after the think time."""
    request = s.requests[q]
    request.outcome = outcome
    request.over = 1
    request.end = now
    following = request.next
    if s.rules[0].closed == 1 and following >= 0:
        s.later_key[following] = now + s.requests[following].think
        s.clock[0].later = heap.push(s.later, s.clock[0].later, s.later_key, s.later_pos, following)


@kernel
def finish(s: Sim, q: int, ticket: int, now: int) -> None:
    """The last token of request `q` is out: name the blocks it filled and give all back."""
    t = s.tickets[ticket]
    rank = s.ranks[t.rank]
    pool = s.pools[rank.pool]
    if pool.caching == 1:
        source = told_by(s, q)
        request = s.requests[q]
        full = min(request.isl + request.osl - 1, s.cover[source]) // pool.block
        name_before_going(s, ticket, source, full)
    free_blocks(s, ticket, t.blocks)
    expect(s, ticket, 0)
    dismiss(s, q, t.rank)
    rank.dirty = 1
    t.state = OUT
    end(s, q, DONE, now)


@kernel
def give_up(s: Sim, q: int, outcome: int, now: int) -> None:
    """Request `q` is timed out or aborted: it leaves its queues at once, a running step at its
    end, a running transfer or reload with its last byte; blocks nobody pulls stay until the lease
    ends.
    """
    rules = s.rules[0]
    pulling = False
    if rules.split == 1:
        state = s.tickets[q + rules.requests].state
        pulling = state == PULLING
        _withdraw(s, q + rules.requests, now)
    if s.tickets[q].state == HELD and not pulling:
        clock = s.clock[0]
        s.leased[clock.leases] = q
        s.lease_key[clock.leases] = now + rules.lease
        clock.leases += 1
    _withdraw(s, q, now)
    end(s, q, outcome, now)


@kernel
def _withdraw(s: Sim, ticket: int, now: int) -> None:
    t = s.tickets[ticket]
    state = t.state
    if state in (OUT, HELD, PULLING, RELOADING):
        return
    e = s.ranks[t.rank].engine
    if state in (WAITING, REMOTE, RESERVED, LOADED, FLOWED, RELOADED, PARKED):
        touch(s, e, now)
        drop(s, ticket)
    elif state == COMING:
        drop(s, ticket)
    elif state in (FILLING, FRESH, DECODING, ENDING):
        touch(s, e, now)
        if s.engines[e].busy == 1:
            t.gone = 1
            s.ranks[t.rank].leavers += 1
        else:
            drop(s, ticket)


@kernel
def expire_lease(s: Sim, now: int) -> None:
    """The first lease of the queue ends: the prefill rank frees what nobody pulled."""
    clock = s.clock[0]
    q = s.leased[clock.leased]
    clock.leased += 1
    release_source(s, q, now)


@kernel
def reloaded(s: Sim, ticket: int, now: int) -> None:
    """All blocks of a ticket have come back from host memory: it is the next to get a seat."""
    t = s.tickets[ticket]
    rank = s.ranks[t.rank]
    q = request_of(s, ticket)
    touch(s, rank.engine, now)
    rank.dirty = 1
    end_reload(s, ticket, now)
    if s.requests[q].over == 1:
        drop(s, ticket)
        return
    name_blocks(s, ticket, told_by(s, q), t.named + t.reloaded)
    t.state = RELOADED
    chain.append(s.places, LISTS * t.rank + READY, ticket)
