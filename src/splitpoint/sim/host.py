"""The host-memory tier of a rank's prefix cache: blocks are copied there as they get names, and
come back over a link of the rank's own, whose bandwidth concurrent reloads share.

The tier of rank r is a row of its own behind the ranks: a pool that nothing runs in, whose queue
of idle blocks is their order of use. A ticket's twin there holds what the ticket reloads.
"""

from splitpoint.native.kernel import kernel
from splitpoint.sim import chain, heap
from splitpoint.sim.blocks import take
from splitpoint.sim.prefix import hold, idle_hits, matched, register, release
from splitpoint.sim.state import Sim
from splitpoint.sim.tails import name_tails


@kernel
def name_blocks(s: Sim, ticket: int, source: int, count: int) -> None:
    """Name the blocks of a ticket up to block `count`, and copy to the host what it lacks of
    them, in place of what was used longest ago; nothing if reloads leave too little room."""
    t = s.tickets[ticket]
    if s.pools[s.ranks[t.rank].pool].tail > 0:
        name_tails(s, ticket, source, count)
    if count <= t.named:
        return
    register(s, ticket, source, count)
    if s.pools[s.ranks[t.rank].pool].host == 0:
        return
    tier = s.rules[0].ranks + t.rank
    found = matched(s, tier, source, count)
    if found == count:
        return
    twin = _twin(s, ticket)
    hold(s, twin, source, found)
    lacking = s.pools[s.ranks[tier].pool].full * (count - found)
    if lacking <= s.ranks[tier].free:
        take(s, tier, lacking)
        register(s, twin, source, count)
    release(s, twin)


@kernel
def _twin(s: Sim, ticket: int) -> int:
    twin = s.rules[0].tickets + ticket
    s.tickets[twin].rank = s.rules[0].ranks + s.tickets[ticket].rank
    return int(twin)


@kernel
def reloadable(s: Sim, r: int, source: int, count: int) -> int:
    """Leading blocks of a prompt that the host of rank `r` has, at most `count`."""
    return matched(s, s.rules[0].ranks + r, source, count)


@kernel
def on_its_way(s: Sim, r: int, source: int, first: int, stop: int) -> bool:
    """Whether block `first` of blocks `first` .. `stop - 1`, all on the host, is being reloaded."""
    return stop - idle_hits(s, s.rules[0].ranks + r, source, stop) > first


@kernel
def begin_reload(s: Sim, ticket: int, source: int, count: int, now: int) -> None:
    """`count` blocks after the named ones of a ticket start on their way back."""
    t = s.tickets[ticket]
    rank = s.ranks[t.rank]
    hold(s, _twin(s, ticket), source, t.named + count)
    t.reloaded = count
    _reshare(s, t.rank, 1, now)
    rank.reloads += 1
    chain.append(s.reloads, t.rank, ticket)
    item = s.rules[0].first_reload + ticket
    flow = s.flow[item]
    flow.work = count * s.pools[rank.pool].reload
    flow.since = now
    s.flow_key[item] = now + flow.work * rank.reloads
    s.clock[0].flows = heap.push(s.flows, s.clock[0].flows, s.flow_key, s.flow_pos, item)


@kernel
def end_reload(s: Sim, ticket: int, now: int) -> None:
    """The last byte of a reload has arrived: the host's copies count as used."""
    r = s.tickets[ticket].rank
    release(s, s.rules[0].tickets + ticket)
    item = s.rules[0].first_reload + ticket
    s.clock[0].flows = heap.remove(s.flows, s.clock[0].flows, s.flow_key, s.flow_pos, item)
    chain.unlink(s.reloads, r, ticket)
    _reshare(s, r, -1, now)
    s.ranks[r].reloads -= 1


@kernel
def _reshare(s: Sim, r: int, change: int, now: int) -> None:
    """Settle the reloads of rank `r` before their number changes, and time them anew."""
    sharers = s.ranks[r].reloads
    ticket = s.reloads.head[r]
    while ticket >= 0:
        item = s.rules[0].first_reload + ticket
        flow = s.flow[item]
        flow.work = max(0, flow.work - (now - flow.since) // sharers)
        flow.since = now
        s.flow_key[item] = now + flow.work * (sharers + change)
        heap.moved(s.flows, s.clock[0].flows, s.flow_key, s.flow_pos, item)
        ticket = s.reloads.next[ticket]
