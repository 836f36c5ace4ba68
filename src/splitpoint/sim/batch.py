"""What one rank computes in its next step: decodes first, then prefill chunks in waiting order.

As vLLM's scheduler: a token budget shared by all, a waiting request admitted only if its whole
input fits in the free blocks, the last admitted preempted when blocks run out (its tokens are
computed again), and nothing admitted in a step that preempted.
"""

from splitpoint.native.kernel import Rows, kernel
from splitpoint.sim import chain
from splitpoint.sim.blocks import ceil_div, evict, give_nameless, held, held_by_chunk, take
from splitpoint.sim.handoff import offer
from splitpoint.sim.host import begin_reload, on_its_way, reloadable
from splitpoint.sim.life import finish, line_up
from splitpoint.sim.link import post_transfer, prepare_transfer
from splitpoint.sim.order import look_over
from splitpoint.sim.prefix import (
    hits,
    hold,
    idle_hits,
    matched,
    own_names,
    reusable,
    told_by,
    touch_prefix,
)
from splitpoint.sim.reserve import (
    ends_on_its_way,
    first_on_its_way,
    giving_way,
    grow_ahead,
    joining,
    output_left,
    put_in_order,
    put_prompts_first,
    remote_room,
    reserved,
    room_for_chunk,
    share_anew,
    share_falls,
    unseen_decode,
)
from splitpoint.sim.seats import (
    LISTS,
    PARK,
    QUEUE,
    READY,
    RUNNING,
    computed,
    decoder_blocks,
    decodes_here,
    expect,
    free_blocks,
    growth,
    join_decoders,
    join_fresh,
    leave_park,
    leave_queue,
    leave_seat,
    name_before_going,
    name_computed,
    promise,
    request_of,
    slide_decoder,
    slide_decoders,
    stop_decoding,
    trim_late,
)
from splitpoint.sim.state import (
    DECODING,
    FILLING,
    PARKED,
    PULLING,
    RELOADED,
    RELOADING,
    REMOTE,
    RESERVED,
    WAITING,
    Sim,
)
from splitpoint.sim.tails import (
    behind,
    expect_chunk,
    expect_tails,
    expected,
    hold_tail,
    idle_tail,
    junction,
    kept_in_all,
    last_state,
    same_column,
    slide,
)


@kernel
def schedule(s: Sim, r: int, now: int) -> None:
    """Fill the next step of rank `r`: `chunk`, what it attends, `fresh`, the decoders' blocks."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    _empty(rank)
    if rank.late == 1:
        trim_late(s, r)
    _grow_or_preempt(s, r)
    budget = pool.budget - rank.decoders * (1 + pool.drafts)
    budget = _continue_prefills(s, r, budget)
    if rank.preempted == 0:
        _admit(s, r, budget, now)


@kernel
def _empty(rank: Rows) -> None:
    """Nothing is in the next step of a rank yet."""
    rank.chunk = 0
    rank.prompts = 0
    rank.reach = 0
    rank.pairs = 0
    rank.before = 0
    rank.preempted = 0
    rank.granted = 0


@kernel
def schedule_prefills(s: Sim, r: int, now: int) -> None:
    """As SGLang: prefills come first, `chunk` says whether there are any; with mixed chunks the
    budget is what decodes leave. Blocks are taken, and names dropped, once all are chosen."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    _empty(rank)
    rank.easing = 0
    rank.owing = 0
    budget = pool.budget - joining(s, r)
    if s.filling.head[r] >= 0:
        # A prompt that was cut leaves the batch, which so has room for others.
        rank.shut = 0
        budget = min(budget, room_for_chunk(s, r, budget))
        budget = _continue_prefills(s, r, budget)
    if rank.preempted == 0:
        _admit(s, r, budget, now)
    if rank.owing > 0:
        rank.free += rank.owing
        if pool.block > 1:
            evict(s, r, pool.full * (ceil_div(rank.chunk, pool.block) + rank.prompts))
        take(s, r, rank.owing)


@kernel
def _schedule_decodes(s: Sim, r: int) -> None:
    """As SGLang: a step without prefills gives every decode its blocks, retracting some if need
    be."""
    rank = s.ranks[r]
    if rank.running == 0:
        rank.share = s.pools[rank.pool].share_first
    if growth(s, r, rank.steps, 1) > rank.free:
        if ends_on_its_way(s, r):
            # Who ends in the step in progress leaves its blocks: the others wait for that.
            rank.rests = 1
            s.engines[rank.engine].steady = 0
            return
        while rank.decoders > 0 and growth(s, r, rank.steps, 1) > rank.free:
            _preempt(s, giving_way(s, r, 0))
            pool = s.pools[rank.pool]
            if pool.leaves == 1:
                lasting = ceil_div(pool.retract_steps * rank.decoders, pool.block)
                evict(s, r, pool.full * lasting)
        put_in_order(s, r)
        share_anew(s, r)
    elif rank.decoders > 0:
        share_falls(s, r, 1)
    _grow_decoders(s, r)


@kernel
def rest_or_decode(s: Sim, r: int) -> None:
    """As SGLang: decodes `rest` where their own rank prefills, unless chunks are mixed, and with
    drafts where any rank does (managers/scheduler.py, get_next_batch_to_run)."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    rank.rests = 0
    if rank.chunk > 0:
        # Mixed decodes without blocks beside the chunks would end SGLang with an error.
        if pool.mixes == 1 and growth(s, r, rank.steps, 1) <= rank.free:
            _grow_decoders(s, r)
            if rank.decoders > 0:
                put_prompts_first(s, r)
            rank.shut = 0
        else:
            rank.rests = 1
    elif pool.drafts > 0 and s.engines[rank.engine].prefilling == 1:
        rank.rests = 1
    else:
        _schedule_decodes(s, r)


@kernel
def _grow_decoders(s: Sim, r: int) -> None:
    """Give the decodes of a rank the blocks of their next step, which are free."""
    rank = s.ranks[r]
    grow_ahead(s, r, rank.steps, 1)
    blocks = growth(s, r, rank.steps, 1)
    if blocks > 0:
        take(s, r, blocks)
    rank.granted = 1


@kernel
def _grow_or_preempt(s: Sim, r: int) -> None:
    rank = s.ranks[r]
    step = rank.steps
    pool = s.pools[rank.pool]
    blocks = growth(s, r, step, 1)
    if blocks <= rank.free:
        if pool.slides == 1:
            slide_decoders(s, r, step, 1)
        if blocks > 0:
            take(s, r, blocks)
        rank.granted = 1
        return
    ticket = s.places.head[LISTS * r + RUNNING]
    while ticket >= 0:
        if decodes_here(s, ticket):
            blocks = decoder_blocks(s, ticket, step) - decoder_blocks(s, ticket, step - 1)
            if pool.slides == 1:
                s.tails[ticket].owed = slide_decoder(s, ticket, step)
                blocks += pool.wide * s.tails[ticket].owed
            if not _make_room(s, r, ticket, blocks):
                break
            if pool.slides == 1:
                s.tails[ticket].owed = 0
            if blocks > 0:
                take(s, r, blocks)
        ticket = s.places.next[ticket]
    rank.granted = 1


@kernel
def _make_room(s: Sim, r: int, ticket: int, blocks: int) -> bool:
    """Preempt from the end of the running list until `blocks` are free; False if that reached
    `ticket` itself."""
    rank = s.ranks[r]
    while blocks > rank.free:
        victim = s.places.tail[LISTS * r + RUNNING]
        _preempt(s, victim)
        if victim == ticket:
            return False
    return True


@kernel
def _preempt(s: Sim, ticket: int) -> None:
    t = s.tickets[ticket]
    r = t.rank
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    q = request_of(s, ticket)
    parks = pool.parks == 1 and t.state == DECODING
    coming = pool.reserving == 1 and first_on_its_way(s, ticket)
    unseen = coming or (pool.reserving == 1 and unseen_decode(s, ticket) > 0)
    if coming:
        chain.unlink(s.filling, s.rules[0].ranks + r, ticket)
    if t.state == DECODING:
        blocks = stop_decoding(s, ticket)
    else:
        blocks = t.blocks
        rank.chunk -= t.chunk
        rank.prompts -= t.chunk > 0
        rank.reach -= t.computed + t.chunk if t.chunk > 0 else 0
        rank.pairs -= _pairs(t.computed, t.chunk)
        rank.before -= t.computed if t.chunk > 0 else 0
        chain.unlink(s.filling, r, ticket)
    leave_seat(s, ticket)
    if unseen:
        t.got -= 1
    if pool.recalls == 1 and not coming:
        # vLLM finds all of it again that is not evicted, SGLang the prompt, if its step has ended.
        tokens = computed(s, ticket)
        if pool.reserving == 1:
            tokens = min(tokens, s.requests[q].isl)
        source = told_by(s, q)
        own_names(s, r, source, tokens // pool.block)
        name_before_going(s, ticket, source, tokens // pool.block)
    if pool.leaves == 1:
        give_nameless(s, r, blocks - pool.full * t.named)
        blocks = pool.full * t.named
    free_blocks(s, ticket, blocks)
    t.state = PARKED if parks else WAITING
    t.chunk = 0
    t.computed = 0
    t.reloaded = 0
    t.target = s.requests[q].isl + t.got
    if parks:
        chain.append(s.places, LISTS * r + PARK, ticket)
    elif pool.reserving == 1:
        chain.append(s.places, LISTS * r + QUEUE, ticket)
    else:
        chain.prepend(s.places, LISTS * r + QUEUE, ticket)
    rank.waiting += 1
    expect(s, ticket, held(pool, s.windows, t.target, 1))
    rank.preempted = 1
    rank.preemptions += 1
    rank.dirty = 1
    s.requests[q].preemptions += 1


@kernel
def _pairs(computed: int, chunk: int) -> int:
    """(Query, key) pairs of a prefill chunk: chunk x computed + chunk x (chunk + 1) / 2."""
    return chunk * computed + chunk * (chunk + 1) // 2


@kernel
def chunk_of(pool: Rows, computed: int, target: int, budget: int, stop: int) -> int:
    """Tokens of a prefill's next chunk: what is left within `budget`; an aligned hybrid stops at
    multiples of the block, where its state is kept, and after `stop` columns."""
    chunk = min(target - computed, budget)
    if pool.states > 0:
        return _chunk_to_state(pool, computed, target, computed + chunk, stop)
    if pool.aligned == 1:
        last = target - target % pool.block
        if computed + chunk < last:
            return int(chunk // pool.block * pool.block)
        if computed < last < computed + chunk:
            return int(last - computed)
    return int(chunk)


@kernel
def _chunk_to_state(pool: Rows, computed: int, target: int, end: int, stop: int) -> int:
    """Tokens of a chunk that would go to `end`: it ends at a block boundary, the last of the prompt
    and that of `stop` columns among them, or with the prompt."""
    if end < target:
        end = end // pool.block * pool.block
    last = last_state(pool, target) * pool.block
    if computed < last < end:
        end = last
    if computed < stop * pool.block < end:
        end = stop * pool.block
    return int(max(0, end - computed))


@kernel
def first_chunk(pool: Rows, computed: int, target: int, budget: int, stop: int) -> int:
    """Tokens of the first chunk of a prefill. SGLang counts whole blocks, and cuts there."""
    if pool.reserving == 1 and spent(pool, target - computed) > budget:
        budget = (computed + budget // pool.block * pool.block) // pool.block * pool.block
        budget = max(0, budget - computed)
    return chunk_of(pool, computed, target, budget, stop)


@kernel
def spent(pool: Rows, chunk: int) -> int:
    """Tokens of the budget that a chunk takes: whole blocks with SGLang."""
    if pool.reserving == 1:
        return int(ceil_div(chunk, pool.block) * pool.block)
    return chunk


@kernel
def _compute(s: Sim, ticket: int, chunk: int, blocks: int) -> None:
    """Put a chunk into the step, take its `blocks`, and name the blocks that it fills."""
    t = s.tickets[ticket]
    rank = s.ranks[t.rank]
    pool = s.pools[rank.pool]
    if blocks > 0 and pool.leaves == 1:
        rank.free -= blocks
        rank.owing += blocks
    elif blocks > 0:
        take(s, t.rank, blocks)
    elif blocks < 0:
        give_nameless(s, t.rank, -blocks)
    t.blocks += blocks
    t.chunk = chunk
    rank.dirty = 1
    rank.chunk += chunk
    rank.prompts += 1
    rank.reach += t.computed + chunk
    rank.pairs += _pairs(t.computed, chunk)
    rank.before += t.computed
    if pool.caching == 1:
        # SGLang enters a chunk into its tree when the next one is scheduled, the last at its end.
        tokens = t.computed + (chunk if pool.reserving == 0 else 0)
        if pool.states > 0:
            expect_chunk(s, ticket, t.computed, tokens)
        name_computed(s, ticket, tokens)


@kernel
def _continue_prefills(s: Sim, r: int, budget: int) -> int:
    pool = s.pools[s.ranks[r].pool]
    ticket = s.filling.head[r]
    while ticket >= 0:
        t = s.tickets[ticket]
        t.chunk = 0
        stop = s.tails[ticket].stop if pool.states > 0 else 0
        chunk = chunk_of(pool, t.computed, t.target, budget, stop)
        if chunk > 0:
            if pool.tail > 0:
                source = told_by(s, request_of(s, ticket))
                passed = slide(s, ticket, source, behind(s, r, t.computed))
                t.blocks -= pool.wide * passed
            blocks = held_by_chunk(pool, s.windows, t.computed, chunk) - t.blocks
            if not _make_room(s, r, ticket, blocks):
                break
            _compute(s, ticket, chunk, blocks)
            budget -= spent(pool, chunk)
        ticket = s.filling.next[ticket]
    return budget


@kernel
def _admit(s: Sim, r: int, budget: int, now: int) -> None:
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    if s.engines[rank.engine].closed == 1:
        return
    if pool.leaves == 1:
        look_over(s, r)
    ticket = s.places.head[LISTS * r + QUEUE]
    if pool.reserving == 1 and budget <= 0 and ticket >= 0 and rank.running < pool.seats:
        _turn_away(s, r, ticket)
    while rank.running < pool.seats and budget > 0:
        parked = s.places.head[LISTS * r + PARK]
        decoders = rank.decoders
        if parked >= 0 and _resume(s, r, parked):
            budget -= pool.mixes
            continue
        ready = s.places.head[LISTS * r + READY]
        if parked >= 0 and (ready < 0 or rank.running > 0):
            # Others wait until those are back; but what nobody can retract must end.
            return
        if ready >= 0:
            # Loaded requests go first, as vLLM puts them ahead of its waiting queue.
            tokens = _admit_ready(s, r, ready, budget, now)
            if tokens == 0:
                return
            # Who decodes on at once takes a token of a step that mixes.
            budget -= max(tokens, 0) + pool.mixes * (rank.decoders - decoders)
            continue
        if ticket < 0:
            return
        after = s.places.next[ticket]
        if s.tickets[ticket].state == REMOTE:
            if not _reserve(s, r, ticket, now):
                return
        else:
            chunk = _admit_local(s, r, ticket, budget, now)
            if chunk == 0:
                return
            budget -= spent(pool, max(chunk, 0))
            if pool.reserving == 1 and _nothing_left(s, r):
                # Nothing is left: the batch is full though nobody was turned away.
                rank.shut = rank.decoders > 0
                return
        ticket = after


@kernel
def _nothing_left(s: Sim, r: int) -> bool:
    """Whether all that is free may be needed by who runs on rank `r`."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    return bool(pool.full * reserved(s, r) >= rank.free * pool.block)


@kernel
def _turn_away(s: Sim, r: int, ticket: int) -> None:
    """As SGLang: where a chunk has taken the budget and nothing is left free, the next in the queue
    is looked at none the less and closes it (`PrefillAdder.budget_state`)."""
    t = s.tickets[ticket]
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    if rank.shut == 1 or t.state != WAITING or not _nothing_left(s, r):
        return
    if pool.leaves == 1:
        source = told_by(s, request_of(s, ticket))
        touch_prefix(s, r, source, hits(s, r, source, t.target))
    rank.shut = rank.decoders > 0


@kernel
def _admit_ready(s: Sim, r: int, ticket: int, budget: int, now: int) -> int:
    """Give a seat to a request whose KV has come; its tokens in this step, 0 if it must wait, -1
    if its first token came with the KV."""
    t = s.tickets[ticket]
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    if t.state == RELOADED:
        computed = t.named * pool.block
        chunk = chunk_of(pool, computed, t.target, budget, 0)
        whole = held(pool, s.windows, t.target + pool.drafts, pool.in_flight)
        first = held_by_chunk(pool, s.windows, computed, chunk)
        if chunk == 0 or max(whole, first) - t.blocks > rank.free:
            return 0
        chain.unlink(s.places, LISTS * r + READY, ticket)
        promise(s, ticket, 0)
        _begin(s, ticket, computed, chunk, first, now)
        return chunk
    if pool.reserving == 1:
        chain.unlink(s.places, LISTS * r + READY, ticket)
        _receive(s, ticket, now)
        return -1
    if budget < 1 + pool.drafts:
        return 0
    chain.unlink(s.places, LISTS * r + READY, ticket)
    join_fresh(s, ticket)
    rank.dirty = 1
    return int(1 + pool.drafts)


@kernel
def _resume(s: Sim, r: int, ticket: int) -> bool:
    """Give a retracted ticket blocks for what it had and a seat, if they are free beside what the
    decode side keeps; its KV comes back from host memory and it decodes on."""
    t = s.tickets[ticket]
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    if pool.stages > 1 and s.owed[ticket] == 1:
        return False
    tokens = s.requests[request_of(s, ticket)].isl + t.got - 1 + pool.drafts
    blocks = held(pool, s.windows, tokens, 1 + pool.drafts)
    # Without room for its next step it would give way again, for ever at one moment.
    least = held(pool, s.windows, tokens + 1 + pool.drafts, 1 + pool.drafts)
    requests = rank.running + rank.inbound
    spare = pool.remote_reserve * (requests + 1) if requests > 0 else 0
    if max(blocks + spare, least) > rank.free:
        return False
    leave_park(s, ticket)
    take(s, r, blocks)
    t.blocks = blocks
    expect(s, ticket, 0)
    chain.append(s.places, LISTS * r + RUNNING, ticket)
    rank.running += 1
    rank.dirty = 1
    if pool.stages > 1:
        s.ticket_lane[ticket] = s.engines[rank.engine].lane
    join_decoders(s, ticket)
    return True


@kernel
def _receive(s: Sim, ticket: int, now: int) -> None:
    """As SGLang: the prefill side's token came with the KV, the next step gives the second. While a
    step runs, the loop first waits for its end, and sends that token on then."""
    t = s.tickets[ticket]
    rank = s.ranks[t.rank]
    q = request_of(s, ticket)
    request = s.requests[q]
    rank.inbound -= t.inbound
    t.inbound = 0
    rank.dirty = 1
    t.got = 1
    chain.append(s.places, LISTS * t.rank + RUNNING, ticket)
    rank.running += 1
    stages = s.pools[rank.pool].stages
    if s.engines[rank.engine].busy == 1 and stages == 1 and request.osl > 1:
        chain.append(s.filling, s.rules[0].ranks + t.rank, ticket)
    else:
        request.first_token = now
    if request.osl == 1:
        leave_seat(s, ticket)
        finish(s, q, ticket, now)
        return
    if stages > 1:
        s.ticket_lane[ticket] = s.engines[rank.engine].lane
    join_decoders(s, ticket)


@kernel
def _admit_local(s: Sim, r: int, ticket: int, budget: int, now: int) -> int:
    """Admit a waiting request if its whole input fits; the tokens of its first chunk, 0 if it
    does not fit, -1 if it first waits for blocks from host memory."""
    t = s.tickets[ticket]
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    q = request_of(s, ticket)
    if rank.shut == 1 or (pool.stages > 1 and s.owed[ticket] == 1):
        return 0
    source = told_by(s, q)
    found = hits(s, r, source, t.target)
    if pool.host > 0:
        count = _missing(s, r, ticket)
        if count > 0:
            return _reload(s, r, ticket, count, now)
    computed = found * pool.block
    stop = 0
    if pool.states > 0:
        stop = junction(s, r, source, reach_of(s, r, source, t.target), found)
        if found > 0 and _named_in_step(s, r, source, found):
            return 0
    chunk = first_chunk(pool, computed, t.target, budget, stop)
    if pool.leaves == 1:
        touch_prefix(s, r, source, found)
    if chunk == 0 and pool.reserving == 0:
        return 0
    whole = held(pool, s.windows, t.target + pool.drafts, pool.in_flight)
    first = held_by_chunk(pool, s.windows, computed, chunk)
    if pool.states > 0 and rank.running + found == 0 and chunk < t.target:
        # Alone, its next chunk must find a block to write its state to, or it gives way for ever.
        whole += pool.states
    need = max(whole, first) - pool.full * found
    if pool.tail > 0:
        whole -= _counted(s, r, t.target + pool.drafts, found)
        need = max(whole, first - pool.wide * min(pool.tail, found)) - pool.full * found
    if pool.reserving == 1 and rank.running > 0:
        tokens = t.target + pool.drafts - computed + output_left(s, ticket) + reserved(s, r)
        # One block more for its own, and a token because SGLang admits what is less than it has.
        asked = pool.full * (ceil_div(tokens + 1, pool.block) + 1)
        need = max(need, asked + whole - pool.full * ceil_div(t.target + pool.drafts, pool.block))
    if not _fits(s, r, source, found, need, 0):
        # SGLang looks at its queue again when a running request has gone; the batch that it calls
        # full is that of its decodes.
        rank.shut = pool.reserving == 1 and rank.decoders > 0
        return 0
    if chunk == 0:
        return 0
    leave_queue(s, ticket)
    t.blocks = _take_hits(s, ticket, source, t.target, found, computed)
    _begin(s, ticket, computed, chunk, first, now)
    return chunk


@kernel
def reach_of(s: Sim, r: int, source: int, target: int) -> int:
    """Columns that full groups have of what a request needs."""
    found = matched(s, r, source, reusable(s, r, source, target))
    return int(max(0, found - s.pools[s.ranks[r].pool].drops))


@kernel
def _named_in_step(s: Sim, r: int, source: int, found: int) -> bool:
    """Whether the state after `found` columns of a prompt is named in the step that is filled: it
    can be read from the next step on (`MambaManager.cached_blocks_this_step`). A prompt's last
    state is named again when its last block is computed (`_cache_partial_tail_block`)."""
    pool = s.pools[s.ranks[r].pool]
    tokens = found * pool.block
    ticket = s.filling.head[r]
    while ticket >= 0:
        t = s.tickets[ticket]
        end = t.computed + t.chunk
        names = end == tokens and expected(s, ticket, found)
        if pool.dense == 0 and t.computed == tokens and end < tokens + pool.block:
            names = found == last_state(pool, s.requests[request_of(s, ticket)].isl)
        if t.chunk > 0 and names:
            other = told_by(s, request_of(s, ticket))
            if same_column(s, r, source, other, found - 1):
                return True
        ticket = s.filling.next[ticket]
    return False


@kernel
def waits_with_hits(s: Sim, r: int) -> bool:
    """Whether the next request of a hybrid's queue has hits and no room: once a decode takes its
    state it may have room, because a hit holds a state beside the one that it writes."""
    ticket = s.places.head[LISTS * r + QUEUE]
    if ticket < 0 or s.tickets[ticket].state != WAITING:
        return False
    source = told_by(s, request_of(s, ticket))
    return bool(hits(s, r, source, s.tickets[ticket].target) > 0)


@kernel
def _counted(s: Sim, r: int, tokens: int, found: int) -> int:
    """Blocks of window groups that admission asks for too few where `found` columns are hits: vLLM
    takes all of them off what a window holds, not those alone that it still reaches
    (`get_num_blocks_to_allocate`)."""
    pool = s.pools[s.ranks[r].pool]
    columns = ceil_div(tokens, pool.block)
    counted = 0
    for i in range(pool.window_at, pool.window_at + pool.windows):
        most = ceil_div(s.windows[i] - 1 + pool.in_flight, pool.block) + 1
        counted += min(found, columns, most)
    return counted


@kernel
def _take_hits(s: Sim, ticket: int, source: int, target: int, found: int, tokens: int) -> int:
    """A request that needs `target` tokens, of which `tokens` are there or will come, takes its
    `found` hits; the blocks that it so has."""
    t = s.tickets[ticket]
    r = t.rank
    pool = s.pools[s.ranks[r].pool]
    blocks = pool.full * found
    if pool.tail > 0:
        low = behind(s, r, tokens)
        further = junction(s, r, source, reach_of(s, r, source, target), found)
        s.tails[ticket].stop = further
        if pool.dense == 1:
            expect_tails(s, ticket, 0, 0)
        else:
            ends = last_state(pool, s.requests[request_of(s, ticket)].isl)
            expect_tails(s, ticket, ends, further)
        hold_tail(s, ticket, source, found, low)
        blocks += pool.wide * kept_in_all(s, ticket)
    hold(s, ticket, source, found)
    return int(blocks)


@kernel
def _fits(s: Sim, r: int, q: int, found: int, need: int, low: int) -> bool:
    """Whether `need` blocks are free on rank `r` once a request has taken its `found` hits, those
    of window groups from column `low` on."""
    rank = s.ranks[r]
    if need > rank.free:
        return False
    if found == 0:
        return True
    pool = s.pools[rank.pool]
    need += pool.full * idle_hits(s, r, q, found)
    if pool.tail > 0:
        need += pool.wide * idle_tail(s, r, q, found, low)
    return bool(need <= rank.free)


@kernel
def _begin(s: Sim, ticket: int, computed: int, chunk: int, first: int, now: int) -> None:
    """A request takes a seat and computes its first chunk, with `first` blocks in all."""
    t = s.tickets[ticket]
    r = t.rank
    rank = s.ranks[r]
    q = request_of(s, ticket)
    t.computed = computed
    t.state = FILLING
    chain.append(s.places, LISTS * r + RUNNING, ticket)
    chain.append(s.filling, r, ticket)
    rank.running += 1
    rank.dirty = 1
    _compute(s, ticket, chunk, first - t.blocks)
    expect(s, ticket, 0)
    request = s.requests[q]
    if request.prefill_start < 0:
        if s.rules[0].layerwise == 1 and ticket == q:
            offer(s, q, now)
        request.prefill_start = now
        request.hits = computed
        pool = s.pools[rank.pool]
        request.reloaded = t.reloaded * pool.block
        if pool.counts == 1:
            rank.hits += computed
            rank.reloaded += request.reloaded
            rank.queried += t.target


@kernel
def _missing(s: Sim, r: int, ticket: int) -> int:
    """Blocks that a waiting request would get from host memory, after those in the pool."""
    t = s.tickets[ticket]
    source = told_by(s, request_of(s, ticket))
    most = reusable(s, r, source, t.target)
    total = reloadable(s, r, source, most) - s.pools[s.ranks[r].pool].hybrid
    return int(total - matched(s, r, source, most))


@kernel
def _reload(s: Sim, r: int, ticket: int, count: int, now: int) -> int:
    """Reserve `count` blocks and fetch them from host memory: -1 if they come, or are on their
    way for another request, 0 if the whole input does not fit beside what reloads will need."""
    t = s.tickets[ticket]
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    source = told_by(s, request_of(s, ticket))
    found = matched(s, r, source, reusable(s, r, source, t.target))
    if on_its_way(s, r, source, found, found + count):
        return -1
    whole = held(pool, s.windows, t.target + pool.drafts, pool.in_flight)
    if not _fits(s, r, source, found, whole - pool.full * found + rank.promised, 0):
        return 0
    leave_queue(s, ticket)
    hold(s, ticket, source, found)
    take(s, r, pool.full * count)
    t.blocks = pool.full * (found + count)
    t.state = RELOADING
    rank.dirty = 1
    promise(s, ticket, whole - t.blocks)
    expect(s, ticket, whole - t.blocks)
    begin_reload(s, ticket, source, count, now)
    return -1


@kernel
def _reserve(s: Sim, r: int, ticket: int, now: int) -> bool:
    """Reserve the blocks of a whole remote input, if they are free, and post its transfer, or let
    its prefill begin that waited for them."""
    t = s.tickets[ticket]
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    q = request_of(s, ticket)
    isl = s.requests[q].isl
    found = hits(s, r, q, isl)
    if pool.states > 0:
        # The state comes with the transfer, whatever full groups have (NIXL's connector:
        # `get_computed_blocks_for_connector`).
        found = min(reach_of(s, r, q, isl), (isl - 1) // pool.block)
    blocks = held(pool, s.windows, isl + pool.drafts, 1 + pool.drafts)
    need = blocks - pool.full * found
    low = 0
    if pool.tail > 0:
        low = behind(s, r, isl)
        need -= pool.wide * max(0, found - max(low, found - pool.tail))
    # What was reloaded enters before what was pulled: with too few blocks left for the one, both
    # would wait for ever.
    need_beside = need + rank.promised
    spare = remote_room(s, r, ticket) if pool.reserving == 1 else 0
    if not _fits(s, r, q, found, need_beside + spare, low):
        # What is kept for the end of one request falls with every token of the others.
        least = pool.remote_reserve * (rank.running + rank.inbound + 1)
        rank.easing = pool.reserving == 1 and _fits(s, r, q, found, need_beside + least, low)
        return False
    leave_queue(s, ticket)
    _take_hits(s, ticket, q, isl, found, isl)
    take(s, r, need)
    t.blocks = blocks
    rank.dirty = 1
    if pool.counts == 1:
        rank.hits += found * pool.block
        rank.queried += isl
    t.inbound = pool.reserving
    rank.inbound += pool.reserving
    expect(s, ticket, 0)
    prepare_transfer(s, q, isl - found * pool.block, need)
    if s.rules[0].reserve_first == 1:
        t.state = RESERVED
        line_up(s, q, now)
    else:
        t.state = PULLING
        post_transfer(s, q, now)
    return True
