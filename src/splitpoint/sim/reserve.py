"""What SGLang's scheduler keeps free for outputs: a share of what running requests may still
generate, which falls while decodes find their blocks and is set anew when one must give way.

Shares are counted in units of 2^-20, so that k steps taken at once equal k single ones.
"""

from splitpoint.native.kernel import kernel
from splitpoint.sim.blocks import ceil_div
from splitpoint.sim.draws import ONE
from splitpoint.sim.seats import (
    LISTS,
    RUNNING,
    decodes_here,
    generated,
    growth,
    request_of,
)
from splitpoint.sim.state import DECODING, PREFILL, Sim


@kernel
def output_left(s: Sim, ticket: int) -> int:
    """Tokens that a ticket may still generate here, as far as the scheduler looks ahead."""
    t = s.tickets[ticket]
    rank = s.ranks[t.rank]
    pool = s.pools[rank.pool]
    if pool.role == PREFILL:
        return 1
    got = t.got
    if t.state == DECODING:
        got = generated(s, ticket, rank.steps)
    return int(min(s.requests[request_of(s, ticket)].osl - got, pool.horizon))


@kernel
def reserved(s: Sim, r: int, ticket: int) -> int:
    """Blocks to keep free for outputs when a waiting ticket enters a rank that runs others: all
    of its own and of the prompts that this step completes, a share of the decoding ones', and a
    token of each that joins the step."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    decoding = 0
    whole = output_left(s, ticket)
    other = s.places.head[LISTS * r + RUNNING]
    while other >= 0:
        t = s.tickets[other]
        if t.state == DECODING:
            # In a pipeline a batch knows of the requests in its own lane only, as SGLang's.
            decoding += output_left(s, other) if decodes_here(s, other) else 0
        elif t.computed + t.chunk == t.target:
            whole += output_left(s, other)
        other = s.places.next[other]
    joining = pool.mixes * rank.decoders
    return int(pool.full * ceil_div(whole + joining + (decoding * rank.share >> 20), pool.block))


@kernel
def remote_room(s: Sim, r: int, ticket: int) -> int:
    """Blocks that stay free when a decode rank reserves for a remote ticket: a number for each of
    its requests, and enough that any of them, and this one, can end once all others are retracted.

    Those on their way cannot be retracted; alone a request needs no more than its input.
    """
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    requests = rank.running + rank.inbound
    if requests == 0:
        return 0
    retractable = longest = 0
    other = s.places.head[LISTS * r + RUNNING]
    while other >= 0:
        if decodes_here(s, other):
            request = s.requests[request_of(s, other)]
            retractable += request.isl + generated(s, other, rank.steps)
            longest = max(longest, request.isl + min(request.osl, pool.horizon))
        other = s.places.next[other]
    own = min(s.requests[request_of(s, ticket)].osl, pool.horizon)
    last = pool.full * ceil_div(max(0, own - retractable), pool.block)
    single = pool.full * ceil_div(max(0, longest - retractable), pool.block)
    return int(max(pool.remote_reserve, last) + max(pool.remote_reserve * requests, single))


@kernel
def giving_way(s: Sim, r: int) -> int:
    """The decoding ticket that is retracted first: fewest tokens generated, then the longest
    prompt, then the last admitted; -1 if there is none."""
    steps = s.ranks[r].steps
    found = -1
    fewest = longest = 0
    ticket = s.places.head[LISTS * r + RUNNING]
    while ticket >= 0:
        if decodes_here(s, ticket):
            got = generated(s, ticket, steps)
            isl = s.requests[request_of(s, ticket)].isl
            if found < 0 or got < fewest or (got == fewest and isl >= longest):
                found = ticket
                fewest = got
                longest = isl
        ticket = s.places.next[ticket]
    return int(found)


@kernel
def short_of_blocks(s: Sim, r: int) -> bool:
    """Whether another decode must be retracted: the next step lacks blocks, or, with two left,
    the steps lack them that a retraction is to last for."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    if growth(s, r, rank.steps, 1) > rank.free:
        return True
    lasting = pool.full * ceil_div(pool.retract_steps * rank.decoders, pool.block)
    return bool(rank.decoders > 1 and lasting > rank.free)


@kernel
def share_anew(s: Sim, r: int) -> None:
    """After a retraction: the share that the remaining requests have generated of their outputs,
    with the steps that it is to last for."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    if rank.decoders == 0:
        rank.share = pool.share_first
        return
    steps = rank.steps
    done = pool.retract_steps * rank.decoders
    outputs = 0
    ticket = s.places.head[LISTS * r + RUNNING]
    while ticket >= 0:
        if decodes_here(s, ticket):
            done += generated(s, ticket, steps)
            outputs += s.requests[request_of(s, ticket)].osl
        ticket = s.places.next[ticket]
    rank.share = min(ONE, done * ONE // outputs)


@kernel
def share_falls(s: Sim, r: int, steps: int) -> None:
    """Decodes found their blocks for so many steps."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    rank.share = max(pool.share_least, rank.share - pool.share_fall * steps)
