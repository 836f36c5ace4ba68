"""The prefix cache of a rank: how much of a prompt it holds, taking and giving back references.

A ticket holds a leading run of named blocks: the segment they end in and all its parents. Blocks
are given back last first, so the cached blocks of a prompt are a leading run on every rank too.
"""

from splitpoint.native.kernel import kernel
from splitpoint.sim.blocks import claim, give, give_nameless, leave, park
from splitpoint.sim.segments import add_segment, find_segment, parting, split
from splitpoint.sim.state import Sim
from splitpoint.sim.tails import copied, resumable


@kernel
def matched(s: Sim, r: int, source: int, most: int) -> int:
    """Leading blocks of the prompt of request `source` that rank `r` caches, at most `most`."""
    found = 0
    while found < most:
        segment = find_segment(s, r, source, found)
        if segment == 0:
            break
        row = s.segments[segment]
        found = parting(s, r, source, row.source, found, min(row.high, most))
        if found < row.high:
            break
    return found


@kernel
def hits(s: Sim, r: int, source: int, target: int) -> int:
    """Blocks a request that needs `target` tokens gets from the cache of rank `r`.

    At least one token is left to compute; a hybrid also gives up the last full block, because
    its state is kept at the block before. Window groups that keep tails have a say too.
    """
    pool = s.pools[s.ranks[r].pool]
    if pool.recalls == 0:
        return 0
    found = matched(s, r, source, reusable(s, r, source, target))
    if pool.tail > 0:
        return resumable(s, r, source, max(0, found - pool.drops))
    return int(max(0, found - pool.hybrid))


@kernel
def reusable(s: Sim, r: int, source: int, target: int) -> int:
    """Blocks that a request that needs `target` tokens could take from a cache that has all: those
    that ids name, and those that a preemption has named for it."""
    pool = s.pools[s.ranks[r].pool]
    most = (target - 1 + pool.hybrid + pool.drops) // pool.block
    if s.requests[source].own == 0:
        most = min(most, s.cover[source] // pool.block)
    return int(most)


@kernel
def told_by(s: Sim, q: int) -> int:
    """The request whose ids name what request `q` computes: the next turn of its session where
    that one repeats its output, else itself."""
    return int(s.after[q] if s.after[q] >= 0 else q)


@kernel
def own_names(s: Sim, r: int, source: int, count: int) -> None:
    """Give request `source` names of its own for its blocks past its ids, up to block `count`."""
    request = s.requests[source]
    if request.own == 0 and count > s.cover[source] // s.pools[s.ranks[r].pool].block:
        request.own = s.clock[0].names
        s.clock[0].names += request.isl + request.osl


@kernel
def idle_hits(s: Sim, r: int, source: int, count: int) -> int:
    """How many of the first `count` cached blocks nobody holds: what follows the held ones, but
    where copies are kept what follows may be held too."""
    copies = s.pools[s.ranks[r].pool].tail > 0
    idle = at = 0
    while at < count:
        row = s.segments[find_segment(s, r, source, at)]
        if row.refs == 0:
            if not copies:
                return count - at
            idle += min(row.high, count) - at
        at = row.high
    return idle


@kernel
def touch_prefix(s: Sim, r: int, source: int, count: int) -> None:
    """As SGLang: who looks for its first `count` blocks, all cached, makes them the last used, and
    parts them from what follows (`RadixCache.match_prefix`)."""
    at = segment = 0
    while at < count:
        segment = find_segment(s, r, source, at)
        if count < s.segments[segment].high:
            segment = _part(s, r, segment, count)
        at = s.segments[segment].high
    while segment > 0 and s.segments[segment].refs == 0:
        claim(s, r, segment)
        park(s, r, segment)
        segment = s.segments[segment].parent


@kernel
def _part(s: Sim, r: int, segment: int, at: int) -> int:
    """Cut a segment before block `at`; the first part. SGLang counts that as a use of the rest
    (`UnifiedTreeCore._split_node`)."""
    first = split(s, r, segment, at)
    if s.pools[s.ranks[r].pool].leaves == 1 and s.segments[segment].refs == 0:
        claim(s, r, segment)
        park(s, r, segment)
    return first


@kernel
def hold(s: Sim, ticket: int, source: int, count: int) -> None:
    """A ticket that holds no named block takes the first `count` of a prompt, all cached."""
    t = s.tickets[ticket]
    while t.named < count:
        _share(s, ticket, find_segment(s, t.rank, source, t.named), count)


@kernel
def _share(s: Sim, ticket: int, segment: int, stop: int) -> None:
    """Take a reference to the blocks of a cached segment before block `stop`."""
    t = s.tickets[ticket]
    if stop < s.segments[segment].high:
        segment = _part(s, t.rank, segment, stop)
    row = s.segments[segment]
    if row.refs == 0:
        claim(s, t.rank, segment)
    row.refs += 1
    t.segment = segment
    t.named = row.high


@kernel
def register(s: Sim, ticket: int, source: int, count: int) -> None:
    """Name the blocks of a ticket up to block `count`, which it holds without names.

    Where the name is cached already, the ticket shares that block and gives its copy back; a pool
    that keeps tails has many such blocks, and keeps the copies, as vLLM does.
    """
    t = s.tickets[ticket]
    r = t.rank
    pool = s.pools[s.ranks[r].pool]
    while t.named < count:
        first = t.named
        segment = find_segment(s, r, source, first)
        if segment > 0:
            row = s.segments[segment]
            stop = parting(s, r, source, row.source, first, min(row.high, count))
            if pool.tail > 0:
                if stop < row.high:
                    segment = split(s, r, segment, stop)
                s.segments[segment].copies += 1
                s.tails[ticket].copied = stop
                t.segment = segment
                t.named = stop
            else:
                _share(s, ticket, segment, stop)
                if pool.leaves == 1:
                    give_nameless(s, r, pool.full * (t.named - first))
                else:
                    give(s, r, pool.full * (t.named - first))
        else:
            _name(s, ticket, source, count)


@kernel
def _name(s: Sim, ticket: int, source: int, count: int) -> None:
    """Enter the blocks of a ticket up to block `count` into the cache, where they are new."""
    t = s.tickets[ticket]
    last = s.segments[t.segment]
    apart = False
    if s.pools[s.ranks[t.rank].pool].tail > 0:
        # What this ticket alone computed stands apart from its hits and from what has copies.
        tail = s.tails[ticket]
        apart = t.named <= max(tail.hit, tail.copied) or last.copies > 1
    # SGLang's tree has a node for each chunk, and evicts nodes.
    apart |= s.pools[s.ranks[t.rank].pool].leaves == 1
    if t.segment > 0 and last.refs == 1 and last.children == 0 and not apart:
        last.source = source
        last.high = count
    else:
        t.segment = add_segment(s, t.rank, source, t.named, count, t.segment)
    t.named = count


@kernel
def release(s: Sim, ticket: int) -> None:
    """Give the named blocks of a ticket back, last first."""
    t = s.tickets[ticket]
    tailed = s.pools[s.ranks[t.rank].pool].tail > 0
    segment = t.segment
    while segment > 0:
        row = s.segments[segment]
        parent = row.parent
        leave(s, t.rank, segment, tailed and copied(s, ticket, row.low))
        segment = parent
    t.segment = 0
    t.named = 0


@kernel
def pin(s: Sim, ticket: int, change: int) -> int:
    """Add `change` to the finished prefills that wait with the named blocks of a ticket; how many
    blocks so became, or are no longer, part of what such prefills hold."""
    turned = 0
    segment = s.tickets[ticket].segment
    while segment > 0:
        row = s.segments[segment]
        if min(row.pins, row.pins + change) == 0:
            turned += change * (row.high - row.low)
        row.pins += change
        segment = row.parent
    return turned
