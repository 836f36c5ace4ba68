"""What SGLang's scheduler keeps free for outputs: a share of what running requests may still
generate, which falls while decodes find their blocks and is set anew when one must give way.

Shares are counted in units of 2^-32, so that k steps taken at once equal k single ones.
"""

from splitpoint.native.kernel import kernel
from splitpoint.sim import chain
from splitpoint.sim.blocks import ceil_div, evict
from splitpoint.sim.draws import SHARE, SHARE_BITS
from splitpoint.sim.seats import (
    LISTS,
    RUNNING,
    decodes_here,
    generated,
    growth,
    request_of,
)
from splitpoint.sim.state import DECODE, DECODING, ENDING, PREFILL, Sim


@kernel
def output_left(s: Sim, ticket: int) -> int:
    """Tokens that a ticket may still generate here, as far as the scheduler looks ahead; what is on
    its way is not seen."""
    t = s.tickets[ticket]
    rank = s.ranks[t.rank]
    pool = s.pools[rank.pool]
    if pool.role == PREFILL:
        return 1
    got = t.got
    if t.state == DECODING:
        got = generated(s, ticket, rank.steps) - unseen_decode(s, ticket)
    return int(min(s.requests[request_of(s, ticket)].osl - got, pool.horizon))


@kernel
def unseen_decode(s: Sim, ticket: int) -> int:
    """How many tokens of a decoding ticket a decode step in progress is to give: asynchronously
    SGLang schedules before it has them."""
    t = s.tickets[ticket]
    rank = s.ranks[t.rank]
    pool = s.pools[rank.pool]
    if pool.ahead == 0 or pool.stages > 1 or s.engines[rank.engine].busy == 0:
        return 0
    if rank.kind & 1 == 0 or t.step0 >= rank.steps:
        return 0
    return int(generated(s, ticket, rank.steps) - generated(s, ticket, rank.steps - 1))


@kernel
def _decoding(s: Sim, r: int) -> int:
    """Tokens that the decoding requests of a rank may still generate, as its scheduler sees it."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    left = 0
    other = s.places.head[LISTS * r + RUNNING]
    while other >= 0:
        # In a pipeline a batch knows of the requests in its own lane only, as SGLang's.
        if decodes_here(s, other):
            left += output_left(s, other)
        other = s.places.next[other]
    if pool.ahead == 1 and pool.stages == 1 and pool.role != PREFILL:
        other = s.filling.head[s.rules[0].ranks + r]
        while other >= 0:
            left += 1
            other = s.filling.next[other]
    return left


@kernel
def joining(s: Sim, r: int) -> int:
    """Tokens that the decodes of a rank take of a step that prefills; who ends in the step in
    progress counts too."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    if pool.mixes == 0:
        return 0
    count = rank.decoders
    other = s.filling.head[s.rules[0].ranks + r]
    while pool.ahead == 1 and other >= 0:
        count += s.tickets[other].state == ENDING
        other = s.filling.next[other]
    return int(count)


@kernel
def reserved(s: Sim, r: int) -> int:
    """Tokens to keep free for others when a waiting ticket enters a rank that runs some: outputs of
    the prompts that this step completes, a block for each prompt in it, a share of what decoding
    requests may generate, and a token of each that joins the step."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    whole = joining(s, r)
    other = s.filling.head[r]
    while other >= 0:
        t = s.tickets[other]
        if t.chunk > 0:
            # A chunk counts in whole blocks, also where it begins in one that it has.
            new = ceil_div(t.computed + t.chunk, pool.block) - ceil_div(t.computed, pool.block)
            whole += (1 + ceil_div(t.chunk, pool.block) - new) * pool.block
            if t.computed + t.chunk == t.target:
                whole += output_left(s, other) + t.got
        other = s.filling.next[other]
    return int(whole + (_decoding(s, r) * rank.share >> SHARE_BITS))


@kernel
def room_for_chunk(s: Sim, r: int, budget: int) -> int:
    """Tokens of `budget` that the next chunk of a prompt may have: what is free beside what others
    may generate; all where that is nothing, because it must go on."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    if rank.decoders == 0 or pool.full == 0:
        return budget
    room = rank.free // pool.full * pool.block - joining(s, r)
    room -= -(-_decoding(s, r) * rank.share >> SHARE_BITS)
    return int(room if room > 0 else budget)


@kernel
def grow_ahead(s: Sim, r: int, step: int, count: int) -> None:
    """As SGLang: before the last of `count` decode steps from `step` on drop names until there is a
    block for each decode, needed or not (`alloc_paged_token_slots_decode`)."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    if pool.leaves == 1 and pool.block > 1 and s.idle.head[r] >= 0:
        evict(s, r, growth(s, r, step, count - 1) + pool.full * rank.decoders)


@kernel
def ends_on_its_way(s: Sim, r: int) -> bool:
    """Whether the step in progress gives some request of a rank its last token."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    if pool.ahead == 0 or pool.stages > 1 or s.engines[rank.engine].busy == 0:
        return False
    ticket = s.filling.head[s.rules[0].ranks + r]
    while ticket >= 0:
        if s.tickets[ticket].state == ENDING:
            return True
        ticket = s.filling.next[ticket]
    return False


@kernel
def first_on_its_way(s: Sim, ticket: int) -> bool:
    """Whether the step in progress is to give a ticket the first token since its prefill. SGLang
    drops that token when it retracts the request meanwhile."""
    t = s.tickets[ticket]
    pool = s.pools[s.ranks[t.rank].pool]
    if pool.stages > 1 or pool.ahead == 0 or pool.role == DECODE:
        return False
    other = s.filling.head[s.rules[0].ranks + t.rank]
    while other >= 0 and other != ticket:
        other = s.filling.next[other]
    return bool(other >= 0)


@kernel
def seen(s: Sim, ticket: int) -> int:
    """Tokens of a decoding ticket that its scheduler has."""
    got = generated(s, ticket, s.ranks[s.tickets[ticket].rank].steps)
    return int(got - unseen_decode(s, ticket) - first_on_its_way(s, ticket))


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
def giving_way(s: Sim, r: int, kept: int) -> int:
    """The decoding ticket that is retracted first: fewest tokens generated, then the longest
    prompt, then the last of the batch; -1 if there is none behind the first `kept`."""
    found = -1
    fewest = longest = 0
    ticket = s.places.head[LISTS * r + RUNNING]
    while ticket >= 0:
        if kept > 0:
            kept -= 1
        elif decodes_here(s, ticket):
            got = seen(s, ticket)
            isl = s.requests[request_of(s, ticket)].isl
            if found < 0 or got < fewest or (got == fewest and isl >= longest):
                found = ticket
                fewest = got
                longest = isl
        ticket = s.places.next[ticket]
    return int(found)


@kernel
def put_in_order(s: Sim, r: int) -> None:
    """After a retraction the batch stands in the order in which it would be kept."""
    for kept in range(s.ranks[r].decoders):
        ticket = giving_way(s, r, kept)
        chain.unlink(s.places, LISTS * r + RUNNING, ticket)
        chain.prepend(s.places, LISTS * r + RUNNING, ticket)


@kernel
def put_prompts_first(s: Sim, r: int) -> None:
    """Prompts that a step with decodes completes stand before those in the batch."""
    ticket = s.filling.tail[r]
    while ticket >= 0:
        t = s.tickets[ticket]
        if t.chunk > 0 and t.computed + t.chunk == t.target:
            chain.unlink(s.places, LISTS * r + RUNNING, ticket)
            chain.prepend(s.places, LISTS * r + RUNNING, ticket)
        ticket = s.filling.prev[ticket]


@kernel
def share_anew(s: Sim, r: int) -> None:
    """After a retraction: the share that the remaining requests have generated of their outputs,
    with the steps that it is to last for."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    if rank.decoders == 0:
        rank.share = pool.share_first
        return
    done = pool.retract_steps * rank.decoders
    outputs = 0
    ticket = s.places.head[LISTS * r + RUNNING]
    while ticket >= 0:
        if decodes_here(s, ticket):
            done += seen(s, ticket)
            outputs += s.requests[request_of(s, ticket)].osl
        ticket = s.places.next[ticket]
    rank.share = min(SHARE, done * SHARE // (outputs + 1))


@kernel
def share_falls(s: Sim, r: int, steps: int) -> None:
    """Decodes found their blocks for so many steps."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    rank.share = max(pool.share_least, rank.share - pool.share_fall * steps)
