"""Requests in a rank's running batch: seats taken and left, blocks held, tokens generated.

Decoding requests are known by sums alone (count, context, tokens per step), a heap of the steps
at which they end, and a ring that counts who crosses into a new block at which step modulo the
block size; so the blocks that k steps need have a closed form.
"""

from splitpoint.native.kernel import kernel
from splitpoint.sim import chain, heap
from splitpoint.sim.blocks import ceil_div, give, give_nameless, held
from splitpoint.sim.draws import ONE
from splitpoint.sim.host import name_blocks
from splitpoint.sim.prefix import release, told_by
from splitpoint.sim.prompts import dismiss
from splitpoint.sim.state import (
    DECODING,
    ENDING,
    FILLING,
    FRESH,
    LOADED,
    OUT,
    PARKED,
    RELOADED,
    REMOTE,
    WAITING,
    Sim,
)
from splitpoint.sim.tails import behind, generated_state, kept, slide

QUEUE, READY, RUNNING, PARK = range(4)
LISTS = 4


@kernel
def request_of(s: Sim, ticket: int) -> int:
    """The request a ticket belongs to."""
    n = s.rules[0].requests
    return int(ticket - n if ticket >= n else ticket)


@kernel
def expect(s: Sim, ticket: int, demand: int) -> None:
    """Blocks that a ticket will still ask of its rank, as routers see it."""
    t = s.tickets[ticket]
    s.ranks[t.rank].demand += demand - t.demand
    t.demand = demand


@kernel
def await_prefill(s: Sim, ticket: int, tokens: int) -> None:
    """Prompt tokens that a router takes for still to be computed: all that it did not find cached,
    until the first token."""
    t = s.tickets[ticket]
    s.ranks[t.rank].backlog += tokens - t.backlog
    t.backlog = tokens


@kernel
def promise(s: Sim, ticket: int, blocks: int) -> None:
    """Count the blocks that a ticket with a reload still needs; no other reload may need them."""
    t = s.tickets[ticket]
    s.ranks[t.rank].promised += blocks - t.promised
    t.promised = blocks


@kernel
def generated(s: Sim, ticket: int, step: int) -> int:
    """Tokens a decoding ticket has generated when its rank has done `step` steps of decodes."""
    t = s.tickets[ticket]
    rate = s.requests[request_of(s, ticket)].rate
    return int(t.got + ((step - t.step0) * rate >> 20))


@kernel
def decoder_blocks(s: Sim, ticket: int, step: int) -> int:
    """Blocks a decoding ticket holds once step number `step` is scheduled.

    A step with K drafts writes 1 + K tokens and looks K ahead.
    """
    t = s.tickets[ticket]
    if step < t.step0:
        return int(t.blocks)
    pool = s.pools[s.ranks[t.rank].pool]
    drafts = pool.drafts
    tokens = s.requests[request_of(s, ticket)].isl + generated(s, ticket, step) + 2 * drafts
    return held(pool, s.windows, tokens, 1 + drafts)


@kernel
def scheduled_blocks(s: Sim, ticket: int) -> int:
    """Blocks a decoding ticket holds for the steps filled so far."""
    rank = s.ranks[s.tickets[ticket].rank]
    return decoder_blocks(s, ticket, rank.steps if rank.granted == 1 else rank.steps - 1)


@kernel
def growth(s: Sim, r: int, step: int, count: int) -> int:
    """Blocks that the decoding requests of rank `r` take in steps `step` .. `step + count - 1`."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    if count <= 0 or rank.decoders == 0:
        return 0
    if pool.plain == 1:
        block = pool.block
        columns = (count // block) * (rank.decoders - rank.fresh)
        place = step % block
        for _ in range(count % block):
            columns += s.ring[rank.ring_at + place]
            place += 1
            if place == block:
                place = 0
        return int(pool.full * columns)
    blocks = 0
    ticket = s.places.head[LISTS * r + RUNNING]
    while ticket >= 0:
        if decodes_here(s, ticket):
            last = decoder_blocks(s, ticket, step + count - 1)
            blocks += last - decoder_blocks(s, ticket, step - 1)
            if pool.slides == 1 and s.tails[ticket].low < s.tails[ticket].high:
                # Named columns that fall behind the window are given back, not written anew.
                passed = kept(s, ticket, 0, _behind_in(s, ticket, step + count - 1))
                blocks += pool.wide * passed
        ticket = s.places.next[ticket]
    return blocks


@kernel
def _behind_in(s: Sim, ticket: int, step: int) -> int:
    """Columns behind the windows of a decoding ticket in step number `step`."""
    t = s.tickets[ticket]
    tokens = s.requests[request_of(s, ticket)].isl + generated(s, ticket, step)
    return behind(s, t.rank, tokens - 1)


@kernel
def slide_decoder(s: Sim, ticket: int, step: int) -> int:
    """Give back the named window columns that a decoding ticket leaves behind in step `step`."""
    source = told_by(s, request_of(s, ticket))
    return slide(s, ticket, source, _behind_in(s, ticket, step))


@kernel
def slide_decoders(s: Sim, r: int, step: int, count: int) -> None:
    """The same for those who decode on rank `r`, in each of `count` steps from `step` on: the order
    in which columns come back is that of single steps."""
    for i in range(step, step + count):
        ticket = s.places.head[LISTS * r + RUNNING]
        left = False
        while ticket >= 0:
            if decodes_here(s, ticket) and s.tails[ticket].low < s.tails[ticket].high:
                slide_decoder(s, ticket, i)
                left = True
            ticket = s.places.next[ticket]
        if not left:
            return


@kernel
def decodes_here(s: Sim, ticket: int) -> bool:
    """Whether a ticket decodes in the lane that its engine is turned to."""
    t = s.tickets[ticket]
    engine = s.engines[s.ranks[t.rank].engine]
    return bool(
        t.state == DECODING
        and (s.pools[engine.pool].stages == 1 or s.ticket_lane[ticket] == engine.lane)
    )


@kernel
def turn_to(s: Sim, e: int, k: int) -> None:
    """Turn engine `e` to its lane `k`: the rows of its ranks have that lane's batch from now on."""
    engine = s.engines[e]
    if engine.lane == k:
        return
    for r in range(engine.first, engine.first + engine.ranks):
        rank = s.ranks[r]
        was, lane = s.lanes[rank.lane_at + engine.lane], s.lanes[rank.lane_at + k]
        was.decoders, rank.decoders = rank.decoders, lane.decoders
        was.context, rank.context = rank.context, lane.context
        was.rate, rank.rate = rank.rate, lane.rate
        was.fresh, rank.fresh = rank.fresh, lane.fresh
        was.granted, rank.granted = rank.granted, lane.granted
        was.seats_at, rank.seats_at = rank.seats_at, lane.seats_at
        was.ring_at, rank.ring_at = rank.ring_at, lane.ring_at
        was.steps, rank.steps = rank.steps, lane.steps
    engine.lane = k


@kernel
def stop_decoding(s: Sim, ticket: int) -> int:
    """A decoding ticket stops before its end, in whichever lane; the blocks that it holds."""
    e = s.ranks[s.tickets[ticket].rank].engine
    if s.pools[s.engines[e].pool].stages == 1:
        blocks = scheduled_blocks(s, ticket)
        leave_decoders(s, ticket)
        return blocks
    here = s.engines[e].lane
    turn_to(s, e, s.ticket_lane[ticket])
    blocks = scheduled_blocks(s, ticket)
    leave_decoders(s, ticket)
    turn_to(s, e, here)
    return blocks


@kernel
def join_decoders(s: Sim, ticket: int) -> None:
    """A ticket starts to decode with the next step; its batch seat is taken already."""
    t = s.tickets[ticket]
    r = t.rank
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    request = s.requests[request_of(s, ticket)]
    steps = rank.steps
    t.state = DECODING
    t.step0 = steps
    if pool.states > 0:
        s.tails[ticket].late = 1
        rank.late = 1
    else:
        trim(s, ticket, request.isl + t.got - 1)
    s.last_step[ticket] = steps + ceil_div((request.osl - t.got) * ONE, request.rate)
    items = s.seats[rank.seats_at : rank.seats_at + pool.seats]
    joined = rank.decoders - rank.fresh
    heap.push(items, joined, s.last_step, s.seat_pos, ticket)
    if pool.plain == 1:
        phase = (steps + 1 - request.isl - t.got) % pool.block
        s.ring[rank.ring_at + phase] += 1
    rank.decoders += 1
    rank.context += (request.isl + t.got) * ONE
    rank.rate += request.rate


@kernel
def trim(s: Sim, ticket: int, tokens: int) -> None:
    """Give back what window groups held for a chunk, and one who has `tokens` in the cache and
    decodes does not need."""
    t = s.tickets[ticket]
    pool = s.pools[s.ranks[t.rank].pool]
    if pool.tail > 0:
        source = told_by(s, request_of(s, ticket))
        t.blocks -= pool.wide * slide(s, ticket, source, behind(s, t.rank, tokens))
    keep = held(pool, s.windows, tokens + pool.drafts, 1 + pool.drafts)
    if t.blocks > keep:
        give_nameless(s, t.rank, t.blocks - keep)
        t.blocks = keep


@kernel
def trim_late(s: Sim, r: int) -> None:
    """As vLLM, those who decode now give back the states of their last chunks as their next step is
    filled."""
    s.ranks[r].late = 0
    ticket = s.places.head[LISTS * r + RUNNING]
    while ticket >= 0:
        if s.tails[ticket].late == 1 and s.tickets[ticket].state == DECODING:
            s.tails[ticket].late = 0
            t = s.tickets[ticket]
            trim(s, ticket, s.requests[request_of(s, ticket)].isl + t.got - 1)
        ticket = s.places.next[ticket]


@kernel
def leave_decoders(s: Sim, ticket: int) -> None:
    """A decoding ticket stops after the steps its rank has completed; `got` is brought up."""
    t = s.tickets[ticket]
    rank = s.ranks[t.rank]
    pool = s.pools[rank.pool]
    request = s.requests[request_of(s, ticket)]
    steps = rank.steps
    items = s.seats[rank.seats_at : rank.seats_at + pool.seats]
    heap.remove(items, rank.decoders - rank.fresh, s.last_step, s.seat_pos, ticket)
    if pool.plain == 1:
        phase = (t.step0 + 1 - request.isl - t.got) % pool.block
        s.ring[rank.ring_at + phase] -= 1
    rank.decoders -= 1
    rank.context -= (request.isl + t.got) * ONE + (steps - t.step0) * request.rate
    rank.rate -= request.rate
    t.got = min(generated(s, ticket, steps), request.osl)


@kernel
def join_fresh(s: Sim, ticket: int) -> None:
    """A loaded ticket takes a seat; its first step computes the last prompt token alone."""
    t = s.tickets[ticket]
    r = t.rank
    rank = s.ranks[r]
    t.state = FRESH
    chain.append(s.places, LISTS * r + RUNNING, ticket)
    chain.append(s.filling, r, ticket)
    rank.running += 1
    rank.decoders += 1
    rank.fresh += 1
    rank.context += s.requests[request_of(s, ticket)].isl * ONE
    rank.rate += ONE


@kernel
def leave_fresh(s: Sim, ticket: int, stepped: int) -> None:
    """A fresh ticket's first step is over (`stepped` 1) or it goes before it (0)."""
    r = s.tickets[ticket].rank
    rank = s.ranks[r]
    chain.unlink(s.filling, r, ticket)
    rank.decoders -= 1
    rank.fresh -= 1
    rank.context -= (s.requests[request_of(s, ticket)].isl + stepped) * ONE
    rank.rate -= ONE


@kernel
def free_blocks(s: Sim, ticket: int, blocks: int) -> None:
    """Give back all `blocks` of a ticket: anonymous ones first, then the prompt from its end."""
    t = s.tickets[ticket]
    r = t.rank
    pool = s.pools[s.ranks[r].pool]
    anonymous = blocks - pool.full * t.named
    if pool.tail > 0:
        anonymous -= _free_windows(s, ticket)
    if pool.nameless == 1:
        anonymous = _free_nameless(s, ticket, anonymous)
    if anonymous > 0:
        give(s, r, anonymous)
    release(s, ticket)
    t.blocks = 0


@kernel
def _free_windows(s: Sim, ticket: int) -> int:
    """Give back the named columns that a ticket has in window groups; how many blocks it held for
    them."""
    tail = s.tails[ticket]
    source = told_by(s, request_of(s, ticket))
    columns = slide(s, ticket, source, tail.high) + tail.owed
    tail.owed = 0
    return int(s.pools[s.ranks[s.tickets[ticket].rank].pool].wide * columns)


@kernel
def _free_nameless(s: Sim, ticket: int, anonymous: int) -> int:
    """Give back the nameless blocks of a ticket; how many are left of `anonymous` ones: full
    blocks, which have names in vLLM even if nobody will ask for them."""
    t = s.tickets[ticket]
    r = t.rank
    pool = s.pools[s.ranks[r].pool]
    filled = min(anonymous, pool.full * max(0, computed(s, ticket) // pool.block - t.named))
    if anonymous > filled:
        give_nameless(s, r, anonymous - filled)
    return int(filled)


@kernel
def computed(s: Sim, ticket: int) -> int:
    """Tokens of a running ticket in the cache: all that it has but the last that it generated."""
    t = s.tickets[ticket]
    if t.state == FILLING:
        return int(t.computed)
    return int(max(t.computed, s.requests[request_of(s, ticket)].isl + t.got - 1))


@kernel
def name_computed(s: Sim, ticket: int, tokens: int) -> None:
    """Name the blocks of the first `tokens` tokens of a ticket, as far as ids do; SGLang's tree
    gets what a retracted request computes again of its output too, apart from the prompt."""
    q = request_of(s, ticket)
    pool = s.pools[s.ranks[s.tickets[ticket].rank].pool]
    name_blocks(s, ticket, q, min(tokens, s.cover[q]) // pool.block)
    if pool.reserving == 1 and tokens > s.requests[q].isl:
        source = told_by(s, q)
        name_blocks(s, ticket, source, min(tokens, s.cover[source]) // pool.block)


@kernel
def name_before_going(s: Sim, ticket: int, source: int, count: int) -> None:
    """Name the blocks of a ticket that leaves its seat up to block `count`; what lies behind its
    windows by then, no more."""
    t = s.tickets[ticket]
    pool = s.pools[s.ranks[t.rank].pool]
    if pool.tail > 0:
        tokens = computed(s, ticket)
        low = behind(s, t.rank, tokens)
        if pool.dense == 1 and 0 < tokens // pool.block <= count:
            low = min(low, generated_state(s, ticket, source, tokens // pool.block))
        s.tails[ticket].owed += slide(s, ticket, told_by(s, request_of(s, ticket)), low)
    name_blocks(s, ticket, source, count)


@kernel
def leave_queue(s: Sim, ticket: int) -> None:
    """Take a ticket out of its rank's waiting queue."""
    r = s.tickets[ticket].rank
    chain.unlink(s.places, LISTS * r + QUEUE, ticket)
    s.ranks[r].waiting -= 1


@kernel
def leave_park(s: Sim, ticket: int) -> None:
    """Take a ticket out of those whose KV is in host memory."""
    r = s.tickets[ticket].rank
    chain.unlink(s.places, LISTS * r + PARK, ticket)
    s.ranks[r].waiting -= 1


@kernel
def leave_seat(s: Sim, ticket: int) -> None:
    """Take a ticket out of its rank's running list."""
    r = s.tickets[ticket].rank
    chain.unlink(s.places, LISTS * r + RUNNING, ticket)
    empty_seat(s, r)


@kernel
def empty_seat(s: Sim, r: int) -> None:
    """A request less runs on rank `r`: the next may be looked at again."""
    rank = s.ranks[r]
    rank.running -= 1
    rank.shut = 0


@kernel
def drop(s: Sim, ticket: int) -> None:
    """Remove a ticket, wherever it stands between steps, and all it holds."""
    t = s.tickets[ticket]
    rank = s.ranks[t.rank]
    pool = s.pools[rank.pool]
    if t.state in (WAITING, REMOTE):
        leave_queue(s, ticket)
    elif t.state == PARKED:
        leave_park(s, ticket)
    elif t.state == FILLING:
        chain.unlink(s.filling, t.rank, ticket)
        leave_seat(s, ticket)
    elif t.state == FRESH:
        leave_fresh(s, ticket, 0)
        leave_seat(s, ticket)
    elif t.state == DECODING:
        t.blocks = stop_decoding(s, ticket)
        leave_seat(s, ticket)
    elif t.state == ENDING:
        empty_seat(s, t.rank)
    elif t.state in (LOADED, RELOADED):
        chain.unlink(s.places, LISTS * t.rank + READY, ticket)
    if pool.caching == 1 and t.state in (FILLING, DECODING, ENDING):
        source = told_by(s, request_of(s, ticket))
        count = min(computed(s, ticket), s.cover[source]) // pool.block
        name_before_going(s, ticket, source, count)
    free_blocks(s, ticket, t.blocks)
    promise(s, ticket, 0)
    rank.inbound -= t.inbound
    t.inbound = 0
    expect(s, ticket, 0)
    await_prefill(s, ticket, 0)
    dismiss(s, request_of(s, ticket), t.rank)
    rank.dirty = 1
    t.gone = 0
    t.chunk = 0
    t.state = OUT
