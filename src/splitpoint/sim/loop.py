"""The event loop: the next of step ends, transfers, leases, arrivals, time-outs and aborts, in
that order at equal times, then the engines that have something new to look at start a step.

Every step computes at least one token of the oldest request of some rank, which is never
preempted for a younger one; so the loop ends, or no event is left and the rest is unfinished.
"""

from splitpoint.native.kernel import Rows, entry, kernel
from splitpoint.sim import chain, heap
from splitpoint.sim.batch import rest_or_decode, schedule, schedule_prefills, waits_with_hits
from splitpoint.sim.handoff import deliver, flowed, hold_source, offer
from splitpoint.sim.life import arrive, expire_lease, finish, give_up, reloaded
from splitpoint.sim.link import join_link, leave_link
from splitpoint.sim.prompts import dismiss
from splitpoint.sim.reserve import share_falls
from splitpoint.sim.seats import (
    LISTS,
    RUNNING,
    await_prefill,
    decoder_blocks,
    decodes_here,
    drop,
    empty_seat,
    growth,
    join_decoders,
    leave_decoders,
    leave_fresh,
    name_computed,
    request_of,
    trim,
    turn_to,
)
from splitpoint.sim.series import close, notable, record
from splitpoint.sim.state import (
    ABORTED,
    DECODING,
    ENDING,
    FLOWED,
    FRESH,
    HELD,
    NEVER,
    PREFILL,
    TIMED_OUT,
    Sim,
)
from splitpoint.sim.steps import elapsed, step_seconds, sync, touch


@entry
def run(s: Sim) -> None:
    """Play the whole trace; the last row of each rank is its state at the end."""
    clock = s.clock[0]
    while True:
        step = s.busy_key[s.busy[0]] if clock.busy > 0 else NEVER
        flow = s.flow_key[s.flows[0]] if clock.flows > 0 else NEVER
        lease = s.lease_key[clock.leased] if clock.leased < clock.leases else NEVER
        q = _next_arrival(s)
        arrival = s.later_key[q] if q >= 0 else NEVER
        timeout = _next_timeout(s)
        abort = _next_abort(s)
        when = min(step, flow, lease, arrival, timeout, abort)
        if clock.waits > 0 and when > clock.now:
            _start(s, clock.now)
            continue
        if when == NEVER or when < clock.now:
            # A transfer may end after the last moment of the clock, or a sum have gone past it.
            clock.ended = when < clock.now or clock.flows > 0
            break
        clock.now = when
        if step == when:
            _complete(s, s.busy[0], when)
        elif flow == when:
            _move(s, s.flows[0], when)
        elif lease == when:
            expire_lease(s, when)
        elif arrival == when:
            _take_arrival(s, q)
            arrive(s, q, when)
        elif timeout == when:
            late = s.arrived[clock.timed]
            clock.timed += 1
            give_up(s, late, TIMED_OUT, when)
        else:
            late = s.arrived[clock.patient]
            clock.patient += 1
            give_up(s, late, ABORTED, when)
    for r in range(s.rules[0].ranks):
        close(s, r, clock.now)


@kernel
def _next_arrival(s: Sim) -> int:
    """The next request to arrive, from the trace or from a session's turn before; -1 none."""
    clock = s.clock[0]
    listed = -1
    if clock.ordered < len(s.ordered):
        listed = s.ordered[clock.ordered]
    if clock.later == 0:
        return int(listed)
    later = s.later[0]
    if listed < 0:
        return int(later)
    if s.later_key[listed] < s.later_key[later]:
        return int(listed)
    if s.later_key[listed] == s.later_key[later] and listed < later:
        return int(listed)
    return int(later)


@kernel
def _take_arrival(s: Sim, q: int) -> None:
    clock = s.clock[0]
    if clock.ordered < len(s.ordered) and s.ordered[clock.ordered] == q:
        clock.ordered += 1
    else:
        clock.later = heap.remove(s.later, clock.later, s.later_key, s.later_pos, q)


@kernel
def _next_timeout(s: Sim) -> int:
    clock = s.clock[0]
    if s.rules[0].timeout < 0:
        return NEVER
    while clock.timed < clock.arrived:
        request = s.requests[s.arrived[clock.timed]]
        if request.over == 0 and request.first_token < 0:
            return int(request.arrive + s.rules[0].timeout)
        clock.timed += 1
    return NEVER


@kernel
def _next_abort(s: Sim) -> int:
    clock = s.clock[0]
    if s.rules[0].abort < 0:
        return NEVER
    while clock.patient < clock.arrived:
        request = s.requests[s.arrived[clock.patient]]
        if request.over == 0:
            return int(request.arrive + s.rules[0].abort)
        clock.patient += 1
    return NEVER


@kernel
def _move(s: Sim, q: int, now: int) -> None:
    if q >= s.rules[0].first_reload:
        reloaded(s, q - s.rules[0].first_reload, now)
    elif s.flow[q].sharers == 0:
        join_link(s, q, now)
    else:
        leave_link(s, q, now)
        flowed(s, q, now)


@kernel
def _start(s: Sim, now: int) -> None:
    """The first engine with something new to look at begins its next step, if it has one.

    With asynchronous scheduling that step was filled when the one before it began, and the next
    one is filled now, as if this one were over.
    """
    clock = s.clock[0]
    e = s.waits[0]
    clock.waits -= 1
    for i in range(clock.waits):
        s.waits[i] = s.waits[i + 1]
    engine = s.engines[e]
    engine.waits = 0
    ahead = s.pools[engine.pool].ahead
    if s.pools[engine.pool].stages > 1:
        if ahead == 1:
            _fill_ahead(s, e, now)
        else:
            _fill_pipeline(s, e, now)
        return
    if engine.lasts < 0:
        _compose(s, e, now)
    if engine.lasts < 0:
        if engine.yielded == 1:
            # The last running request gave way: an empty step, and the next one may admit.
            touch(s, e, now)
        return
    engine.first_step = engine.lasts
    engine.start = now
    engine.synced = 1
    engine.busy = 1
    engine.leap = 1
    steady = engine.steady
    if ahead == 1:
        for r in range(engine.first, engine.first + engine.ranks):
            count = 1 - s.ranks[r].rests
            s.ranks[r].steps += count
            _count_step(s, r)
            _advance(s, r, count)
            if s.filling.head[s.rules[0].ranks + r] >= 0:
                steady = 0
        _compose(s, e, now)
        if engine.lasts < 0 or engine.yielded == 1 or engine.steady == 0:
            steady = 0
        for r in range(engine.first, engine.first + engine.ranks):
            # A first token that came with its KV leaves at the end of this step.
            if s.filling.head[s.rules[0].ranks + r] >= 0:
                steady = 0
    else:
        engine.lasts = -1
    if steady == 1 and s.rules[0].leaps == 1:
        engine.leap = _longest_leap(s, e)
    s.busy_key[e] = now + elapsed(s, e, engine.leap)
    clock.busy = heap.push(s.busy, clock.busy, s.busy_key, s.busy_pos, e)


@kernel
def _compose(s: Sim, e: int, now: int) -> None:
    """Fill the next step of engine `e`: how long it `lasts` in its first stage (-1: there is none),
    whether it is `steady`, that is, only decodes and is followed by others like it until something
    changes, and whether some rank `yielded`, that is, preempted."""
    engine = s.engines[e]
    pool = s.pools[engine.pool]
    engine.lasts = -1
    engine.steady = 1
    engine.yielded = 0
    engine.prefilling = 0
    if pool.balance > 0:
        _open_or_close(s, e)
    if pool.reserving == 1:
        for r in range(engine.first, engine.first + engine.ranks):
            schedule_prefills(s, r, now)
            engine.prefilling |= s.ranks[r].chunk > 0
    for r in range(engine.first, engine.first + engine.ranks):
        rank = s.ranks[r]
        if pool.reserving == 0:
            schedule(s, r, now)
        else:
            rest_or_decode(s, r)
        n = 0 if rank.rests == 1 else rank.decoders
        rank.kind = (n > 0) + 2 * (rank.chunk > 0)
        if rank.kind > 0:
            _weigh(s, r, n)
            engine.lasts = max(engine.lasts, _price(s, rank, pool))
        if rank.preempted == 1:
            engine.yielded = 1
        if rank.chunk > 0 or rank.fresh > 0 or (rank.preempted == 1 and rank.waiting > 0):
            engine.steady = 0
        if rank.easing == 1:
            engine.steady = 0
        if rank.dirty == 1 or notable(rank, 0):
            rank.dirty = 0
            record(s, r, now)
    if pool.sharing == 1:
        engine.lasts = _shared_step(s, e, pool, engine.lasts)


@kernel
def _open_or_close(s: Sim, e: int) -> None:
    """As TensorRT-LLM balances its ranks: a step admits prompts if every rank has one and a seat
    for it, if some rank decodes nothing, or every `balance` steps after such a step
    (pyexecutor/py_executor.py, _balance_adp_requests)."""
    engine = s.engines[e]
    pool = s.pools[engine.pool]
    engine.closed = 0
    ready = waiting = idle = 0
    for r in range(engine.first, engine.first + engine.ranks):
        rank = s.ranks[r]
        waits = s.filling.head[r] >= 0 or rank.waiting > 0
        ready += waits and rank.running < pool.seats
        waiting += rank.waiting > 0
        idle += rank.decoders == 0
    # No rank's decodes rest there, so all have done as many steps.
    steps = s.ranks[engine.first].steps
    passed = steps - engine.opened
    if ready == engine.ranks or idle > 0:
        engine.opened = steps
    elif waiting > 0 and (passed == 0 or passed % pool.balance > 0):
        engine.closed = 1
        engine.steady = 0


@kernel
def _shared_step(s: Sim, e: int, stage: Rows, lasts: int) -> int:
    """Picoseconds of a stage for the step that engine `e` was filled for: of one with prefill, the
    slowest rank's own part and what all do together at the mean of their tokens; `lasts` of any
    other."""
    engine = s.engines[e]
    pool = s.pools[engine.pool]
    own = total = fullest = chunks = 0
    for r in range(engine.first, engine.first + engine.ranks):
        rank = s.ranks[r]
        step = rank.decodes * (1 + pool.drafts) + rank.fills
        if rank.kind > 0:
            work = s.mixed[stage.mixed_at + step] - s.together[stage.mixed_at + step]
            work += s.joined[stage.decode_at + rank.decodes]
            work += stage.pair * rank.pairs + stage.prefix * rank.before
            own = max(own, work + rank.slope * rank.attended)
            total += step
            fullest = max(fullest, step)
            chunks += rank.fills
    if chunks == 0 or fullest <= stage.padded:
        return lasts
    mean = (total + engine.ranks - 1) // engine.ranks
    return int(max(own + s.together[stage.mixed_at + mean], stage.least))


@kernel
def _weigh(s: Sim, r: int, n: int) -> None:
    """What the step is that rank `r` was filled for, `n` of whose sequences decode."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    rank.decodes = n
    rank.fills = rank.chunk
    rank.attended = rank.context >> 20
    # As vLLM: a prompt's lone token decodes, padded with drafts that are then rejected.
    lone = pool.reserving == 0 and rank.prompts == rank.chunk and (n > 0 or pool.drafts == 0)
    if lone:
        rank.decodes += rank.prompts
        rank.attended += rank.reach
        rank.fills = rank.pairs = rank.before = 0


@kernel
def _price(s: Sim, rank: Rows, stage: Rows) -> int:
    """Picoseconds of a stage for the step of a rank."""
    at = stage.decode_at + rank.decodes
    if rank.fills == 0:
        rank.work = s.decode[at]
    else:
        step = rank.decodes * (1 + s.pools[rank.pool].drafts) + rank.fills
        rank.work = s.mixed[stage.mixed_at + step] + s.joined[at]
    rank.slope = s.context[at] if rank.decodes > 0 else 0
    walk = stage.pair * rank.pairs + stage.prefix * rank.before
    return int(rank.work + rank.slope * rank.attended + walk)


@kernel
def _fill_pipeline(s: Sim, e: int, now: int) -> None:
    """Send batches of engine `e` off until there is one for each stage, or none to send.

    The lane whose batch has just passed comes first: those who decode in it can go on.
    """
    engine = s.engines[e]
    stages = s.pools[engine.pool].stages
    lanes = s.ranks[engine.first].lane_at
    while engine.flying < stages:
        k = engine.turn
        if s.lanes[lanes + k].flies == 1:
            k = 0
            while s.lanes[lanes + k].flies == 1:
                k += 1
        _fill_lane(s, e, k, now)
        engine.turn = k
        if engine.lasts >= 0:
            _send_off(s, e, now)
        elif engine.yielded == 0:
            return


@kernel
def _fill_ahead(s: Sim, e: int, now: int) -> None:
    """The same with asynchronous scheduling: lanes take turns, empty or not, and a batch is filled
    when the one before it leaves, so up to a turn before the last batch of its lane has passed."""
    engine = s.engines[e]
    stages = s.pools[engine.pool].stages
    lanes = s.ranks[engine.first].lane_at
    while engine.flying == 0 or engine.turn - s.lanes[lanes + engine.oldest].turn < stages:
        if engine.filled == 0 or (engine.flying == 0 and engine.lasts < 0):
            _fill_lane(s, e, engine.turn % stages, now)
        engine.filled = 0
        if engine.lasts >= 0:
            _send_off(s, e, now)
        elif engine.flying == 0:
            if engine.yielded == 1:
                continue
            return
        engine.turn += 1
        _fill_lane(s, e, engine.turn % stages, now)
        engine.filled = 1


@kernel
def _fill_lane(s: Sim, e: int, k: int, now: int) -> None:
    """Fill the next batch of lane `k`, and see how long it lasts in each stage."""
    turn_to(s, e, k)
    _compose(s, e, now)
    engine = s.engines[e]
    if engine.lasts < 0:
        return
    pool = s.pools[engine.pool]
    lanes = s.ranks[engine.first].lane_at
    s.lanes[lanes].lasts = engine.lasts
    for i in range(1, pool.stages):
        stage = s.pools[pool.later + i - 1]
        lasts = 0
        for r in range(engine.first, engine.first + engine.ranks):
            rank = s.ranks[r]
            if rank.kind > 0:
                lasts = max(lasts, _price(s, rank, stage))
        if stage.sharing == 1:
            lasts = _shared_step(s, e, stage, lasts)
        s.lanes[lanes + i].lasts = lasts


@kernel
def _send_off(s: Sim, e: int, now: int) -> None:
    """The filled batch goes through the stages, in each behind the batch before it; its requests
    stand as they will after it."""
    engine = s.engines[e]
    lanes = s.ranks[engine.first].lane_at
    stages = s.pools[engine.pool].stages
    at = now
    spent = 0
    for i in range(lanes, lanes + stages):
        stage = s.lanes[i]
        at = max(at, stage.free) + stage.lasts
        stage.free = at
        spent += stage.lasts
    for r in range(engine.first, engine.first + engine.ranks):
        count = 1 - s.ranks[r].rests
        s.ranks[r].steps += count
        s.ranks[r].busy += spent // stages
        _count_step(s, r)
        _advance(s, r, count)
        ticket = s.filling.head[s.rules[0].ranks + r]
        while ticket >= 0:
            s.ticket_lane[ticket] = engine.lane
            s.owed[ticket] = 1
            ticket = s.filling.next[ticket]
        chain.move(s.filling, s.rules[0].ranks + r, _due_of(s, r, engine.lane))
    lane = s.lanes[lanes + engine.lane]
    lane.flies = 1
    lane.turn = engine.turn
    lane.until = at
    if engine.flying == 0:
        engine.oldest = engine.lane
        _await_oldest(s, e)
    else:
        s.lanes[lanes + engine.newest].next = engine.lane
    engine.newest = engine.lane
    engine.flying += 1


@kernel
def _due_of(s: Sim, r: int, k: int) -> int:
    """The list of what the batch of lane `k` gives rank `r` at its end."""
    return int(2 * s.rules[0].ranks + s.ranks[r].lane_at + k)


@kernel
def _await_oldest(s: Sim, e: int) -> None:
    engine = s.engines[e]
    engine.busy = 1
    s.busy_key[e] = s.lanes[s.ranks[engine.first].lane_at + engine.oldest].until
    s.clock[0].busy = heap.push(s.busy, s.clock[0].busy, s.busy_key, s.busy_pos, e)


@kernel
def _land(s: Sim, e: int, now: int) -> None:
    """The oldest batch on its way in engine `e` has left the last stage."""
    engine = s.engines[e]
    k = engine.oldest
    lane = s.lanes[s.ranks[engine.first].lane_at + k]
    lane.flies = 0
    engine.flying -= 1
    # It looks at its queues now, as if it stood idle.
    touch(s, e, now)
    if engine.flying > 0:
        engine.oldest = lane.next
        _await_oldest(s, e)
    if s.pools[engine.pool].ahead == 0:
        engine.turn = k
    for r in range(engine.first, engine.first + engine.ranks):
        if s.ranks[r].leavers > 0:
            _drop_leavers(s, r)
        chain.move(s.filling, _due_of(s, r, k), s.rules[0].ranks + r)
        ticket = s.filling.head[s.rules[0].ranks + r]
        while ticket >= 0:
            s.owed[ticket] = 0
            ticket = s.filling.next[ticket]
        _settle(s, r, now)


@kernel
def _count_step(s: Sim, r: int) -> None:
    """Count the step that rank `r` was filled for by its kind."""
    rank = s.ranks[r]
    rank.decode_steps += rank.kind == 1
    rank.prefill_steps += rank.kind == 2
    rank.mixed_steps += rank.kind == 3


@kernel
def _longest_leap(s: Sim, e: int) -> int:
    """Decode steps until a request ends on some rank or a rank runs out of blocks."""
    engine = s.engines[e]
    leap = NEVER
    for r in range(engine.first, engine.first + engine.ranks):
        rank = s.ranks[r]
        if rank.decoders > 0:
            leap = min(leap, s.last_step[s.seats[rank.seats_at]] - rank.steps)
        if s.pools[engine.pool].states > 0 and waits_with_hits(s, r):
            leap = 1
    for r in range(engine.first, engine.first + engine.ranks):
        leap = _affordable(s, r, s.ranks[r].steps + 1, leap)
    return _countable(s, e, leap)


@kernel
def _countable(s: Sim, e: int, leap: int) -> int:
    """At most `leap` steps, and at most half of what the clock can count together."""
    engine = s.engines[e]
    for r in range(engine.first, engine.first + engine.ranks):
        rank = s.ranks[r]
        if rank.decoders > 0:
            context = (rank.context >> 20) + float(leap) * ((rank.rate >> 20) + 1)
            leap = min(leap, int(0.5 * NEVER / (1.0 + rank.work + rank.slope * context)))
    return max(leap, 1)


@kernel
def _affordable(s: Sim, r: int, step: int, leap: int) -> int:
    """The longest leap up to `leap` whose steps after the first find their blocks on rank `r`."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    if leap == 1 or rank.decoders == 0:
        return leap
    if pool.plain == 1:
        bound = pool.full * rank.decoders * ((leap - 1) // pool.block + 1)
        if bound <= rank.free:
            return leap
    if growth(s, r, step, leap - 1) <= rank.free:
        return leap
    low = 1
    high = leap
    while high - low > 1:
        middle = (low + high) >> 1
        if growth(s, r, step, middle - 1) <= rank.free:
            low = middle
        else:
            high = middle
    return low


@kernel
def _complete(s: Sim, e: int, now: int) -> None:
    """The leap of engine `e` is over: tokens are out, requests end, prefills hand over."""
    engine = s.engines[e]
    clock = s.clock[0]
    clock.busy = heap.remove(s.busy, clock.busy, s.busy_key, s.busy_pos, e)
    if s.pools[engine.pool].stages > 1:
        engine.busy = 0
        _land(s, e, now)
        return
    sync(s, e, engine.leap)
    engine.busy = 0
    ahead = s.pools[engine.pool].ahead
    if ahead == 1 and engine.leap > 1:
        engine.lasts = step_seconds(s, e, engine.leap)
    lasts = now - engine.start
    for r in range(engine.first, engine.first + engine.ranks):
        rank = s.ranks[r]
        rank.busy += lasts
        more = engine.leap - 1
        if ahead == 0:
            more += 1 - rank.rests
        rank.steps += more
        if engine.leap > 1 and rank.decoders > 0:
            rank.decode_steps += engine.leap - 1
            if s.pools[rank.pool].reserving == 1:
                share_falls(s, r, engine.leap - 1)
        if ahead == 0:
            _count_step(s, r)
            _advance(s, r, more)
        else:
            rank.context += rank.rate * more
        if rank.leavers > 0:
            _drop_leavers(s, r)
        _settle(s, r, now)
    touch(s, e, now)


@kernel
def _advance(s: Sim, r: int, count: int) -> None:
    """Rank `r` stands as its batch will after the step (the last of `count`, all decodes; 0 where
    decodes rest): what that step gives is listed as due, in order: last tokens, then chunks."""
    rank = s.ranks[r]
    rank.context += rank.rate * count
    rank.granted = 0
    steps = rank.steps
    if s.pools[rank.pool].reserving == 1 and rank.decoders > 1:
        _end_in_order(s, r)
    while rank.decoders > rank.fresh:
        ticket = s.seats[rank.seats_at]
        if s.last_step[ticket] != steps:
            break
        _end_decoder(s, ticket)
    ticket = s.filling.head[r]
    while ticket >= 0:
        after = s.filling.next[ticket]
        t = s.tickets[ticket]
        if t.state == FRESH:
            leave_fresh(s, ticket, 1)
            _sample(s, ticket)
        elif t.chunk > 0:
            t.computed += t.chunk
            t.chunk = 0
            if t.computed == t.target:
                chain.unlink(s.filling, r, ticket)
                _sample(s, ticket)
        ticket = after
    rank.chunk = 0


@kernel
def _end_decoder(s: Sim, ticket: int) -> None:
    """The step gives a decoding ticket its last token."""
    t = s.tickets[ticket]
    t.blocks = decoder_blocks(s, ticket, s.ranks[t.rank].steps - 1)
    leave_decoders(s, ticket)
    _end(s, ticket)
    chain.append(s.filling, s.rules[0].ranks + t.rank, ticket)


@kernel
def _end_in_order(s: Sim, r: int) -> None:
    """As SGLang: of several that the step ends, who stands first in the batch goes first, which is
    evicted first."""
    rank = s.ranks[r]
    first = rank.seats_at
    ending = s.last_step[s.seats[first]] == rank.steps
    second = s.last_step[s.seats[first + 1]] == rank.steps
    third = rank.decoders > 2 and s.last_step[s.seats[first + 2]] == rank.steps
    if not ending or not (second or third):
        return
    ticket = s.places.head[LISTS * r + RUNNING]
    while ticket >= 0:
        after = s.places.next[ticket]
        if decodes_here(s, ticket) and s.last_step[ticket] == rank.steps:
            _end_decoder(s, ticket)
        ticket = after


@kernel
def _sample(s: Sim, ticket: int) -> None:
    """The step gives the first token of a request, or the next one after a preemption."""
    t = s.tickets[ticket]
    chain.append(s.filling, s.rules[0].ranks + t.rank, ticket)
    if s.pools[s.ranks[t.rank].pool].role == PREFILL:
        _end(s, ticket)
        return
    t.got += 1
    if t.got == s.requests[request_of(s, ticket)].osl:
        _end(s, ticket)
    else:
        join_decoders(s, ticket)


@kernel
def _end(s: Sim, ticket: int) -> None:
    """A request has nothing to compute after the step; it keeps seat and blocks until its end."""
    t = s.tickets[ticket]
    t.state = ENDING
    chain.unlink(s.places, LISTS * t.rank + RUNNING, ticket)


@kernel
def _drop_leavers(s: Sim, r: int) -> None:
    """Running requests whose clients went away during the step leave with it."""
    ticket = s.places.head[LISTS * r + RUNNING]
    while ticket >= 0:
        after = s.places.next[ticket]
        if s.tickets[ticket].gone == 1:
            drop(s, ticket)
        ticket = after
    s.ranks[r].leavers = 0


@kernel
def _settle(s: Sim, r: int, now: int) -> None:
    """What was due from the step of rank `r` is there."""
    due = s.rules[0].ranks + r
    ticket = s.filling.head[due]
    while ticket >= 0:
        after = s.filling.next[ticket]
        chain.unlink(s.filling, due, ticket)
        t = s.tickets[ticket]
        q = request_of(s, ticket)
        request = s.requests[q]
        if request.over == 1:
            if t.state == ENDING:
                drop(s, ticket)
        else:
            if request.prefill_end < 0:
                request.prefill_end = now
                await_prefill(s, ticket, 0)
            pool = s.pools[s.ranks[r].pool]
            # One that was retracted while its step ran has no blocks any more.
            if pool.reserving == 1 and pool.caching == 1 and t.state in (DECODING, ENDING):
                name_computed(s, ticket, t.target)
            if s.pools[s.ranks[r].pool].role == PREFILL:
                _hand_over(s, ticket, now)
            else:
                if request.first_token < 0:
                    request.first_token = now
                if t.state == ENDING:
                    empty_seat(s, r)
                    finish(s, q, ticket, now)
        ticket = after


@kernel
def _hand_over(s: Sim, q: int, now: int) -> None:
    """The prefill of request `q` is done: its rank holds the blocks until they are pulled."""
    t = s.tickets[q]
    rank = s.ranks[t.rank]
    request = s.requests[q]
    empty_seat(s, t.rank)
    trim(s, q, request.isl)
    hold_source(s, q, 1)
    dismiss(s, q, t.rank)
    rank.dirty = 1
    t.state = HELD
    if s.rules[0].layerwise == 0:
        offer(s, q, now)
    elif s.tickets[q + s.rules[0].requests].state == FLOWED:
        deliver(s, q, now)
