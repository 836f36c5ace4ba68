"""The pool of KV blocks of a rank: what a request holds, and how blocks leave and come back.

Free blocks stand in one queue in the order they were freed, named ones (still a cached prefix)
among anonymous ones. Queue items are whole segments, their last block first: each carries in
`before` the number of anonymous blocks ahead of it, and the rank's `tail` those after the last.
"""

from splitpoint.inputs.trace import Longs
from splitpoint.native.kernel import Rows, kernel
from splitpoint.sim import chain
from splitpoint.sim.segments import drop_segment, join_parent, split, width
from splitpoint.sim.state import Sim


@kernel
def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


@kernel
def held(pool: Rows, windows: Longs, tokens: int, new: int) -> int:
    """Blocks of a request with `tokens` in cache, `new` of them in this step:
    full x ceil(tokens / B) + sum over windows of min(ceil(tokens / B),
    ceil((window - 1 + new) / B) + 1) + fixed."""
    block = pool.block
    columns = ceil_div(tokens, block)
    blocks = pool.full * columns + pool.fixed
    for i in range(pool.window_at, pool.window_at + pool.windows):
        blocks += min(columns, ceil_div(windows[i] - 1 + new, block) + 1)
    return int(blocks)


@kernel
def held_by_chunk(pool: Rows, windows: Longs, computed: int, chunk: int) -> int:
    """Blocks of a request that computes `chunk` tokens after `computed` ones: a state is read from
    one block and written to another where the chunk goes on into a new column."""
    tokens = computed + chunk
    blocks = held(pool, windows, tokens + pool.drafts, chunk)
    if pool.states > 0 and computed > 0:
        blocks += pool.states * (ceil_div(computed, pool.block) < ceil_div(tokens, pool.block))
    return int(blocks)


@kernel
def give(s: Sim, r: int, count: int) -> None:
    """Return `count` anonymous blocks to the end of the queue."""
    rank = s.ranks[r]
    rank.free += count
    rank.tail += count


@kernel
def give_nameless(s: Sim, r: int, count: int) -> None:
    """Return `count` blocks that had no name: to the front of the queue where the pool takes those
    first, as vLLM does (`BlockPool.free_blocks`); elsewhere they wait their turn."""
    rank = s.ranks[r]
    first = s.idle.head[r]
    if s.pools[rank.pool].nameless == 0 or first < 0:
        give(s, r, count)
        return
    rank.free += count
    s.segments[first].before += count


@kernel
def take(s: Sim, r: int, count: int) -> None:
    """Take `count` free blocks from the front of the queue, dropping the names they carry."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    wide = pool.full
    if pool.leaves == 1:
        evict(s, r, count)
    rank.free -= count
    while count > 0:
        first = s.idle.head[r]
        if first < 0:
            rank.tail -= count
            return
        segment = s.segments[first]
        anonymous = min(segment.before, count)
        segment.before -= anonymous
        count -= anonymous
        if count == 0:
            return
        if pool.tail > 0:
            wide = width(s, r, first)
        columns = min(ceil_div(count, wide), segment.high - segment.low)
        rank.cached -= wide * columns
        count -= wide * columns
        if segment.copies > 1 and columns > 0:
            _lose_first(s, r, first, columns)
            continue
        segment.high -= columns
        if segment.high == segment.low:
            chain.unlink(s.idle, r, first)
            drop_segment(s, r, first)
    if count < 0:
        # A column of several groups was dropped for fewer blocks: the rest are next in line.
        first = s.idle.head[r]
        if first < 0:
            rank.tail -= count
        else:
            s.segments[first].before -= count


@kernel
def evict(s: Sim, r: int, count: int) -> None:
    """As SGLang: drop whole segments from the front of the queue until `count` blocks without a
    name stand there, or no segment is left (`RadixCache.evict`). Not of copies on the host."""
    rank = s.ranks[r]
    first = s.idle.head[r]
    while first >= 0 and s.segments[first].before < count and r < s.rules[0].ranks:
        segment = s.segments[first]
        blocks = width(s, r, first) * (segment.high - segment.low)
        rank.cached -= blocks
        blocks += segment.before
        chain.unlink(s.idle, r, first)
        drop_segment(s, r, first)
        first = s.idle.head[r]
        if first < 0:
            rank.tail += blocks
        else:
            s.segments[first].before += blocks


@kernel
def _follows(s: Sim, segment: int, last: int) -> bool:
    """Whether a segment goes on in another one, and nobody has copies of either."""
    row = s.segments[last]
    return bool(row.parent == segment and row.copies == 1 and s.segments[segment].copies == 1)


@kernel
def park(s: Sim, r: int, segment: int) -> None:
    """A segment that nobody holds any more joins the end of the queue.

    One that follows it there at once is the rest of the same prompt: the two become one, unless
    other prompts go on from between them.
    """
    rank = s.ranks[r]
    row = s.segments[segment]
    blocks = width(s, r, segment) * (row.high - row.low)
    rank.free += blocks
    rank.cached += blocks
    last = s.idle.tail[r]
    alone = rank.tail == 0 and last >= 0 and row.children == 1
    if alone and s.pools[rank.pool].leaves == 0 and _follows(s, segment, last):
        join_parent(s, r, last)
        return
    row.before = rank.tail
    rank.tail = 0
    chain.append(s.idle, r, segment)


@kernel
def leave(s: Sim, r: int, segment: int, copied: bool) -> None:
    """One holder less of a segment; of one who computed it while it was cached already, its copy.

    vLLM keeps such copies. A request that hits takes what was there first, which may lie in the
    queue while others hold copies; they count in `copies`, holders of the first in `refs`.
    """
    row = s.segments[segment]
    if not copied or row.copies == 1:
        row.refs -= 1
        if row.refs == 0:
            park(s, r, segment)
        return
    row.copies -= 1
    blocks = width(s, r, segment) * (row.high - row.low)
    if row.refs > 0:
        give(s, r, blocks)
        return
    # The copy is the one to be found longer; the first one's place has blocks without a name.
    claim(s, r, segment)
    after = s.idle.next[segment]
    if after < 0:
        s.ranks[r].tail += blocks
    else:
        s.segments[after].before += blocks
    s.ranks[r].free += blocks
    park(s, r, segment)


@kernel
def _lose_first(s: Sim, r: int, segment: int, columns: int) -> None:
    """The last `columns` of an idle segment are taken, and found in a copy from now on."""
    row = s.segments[segment]
    if columns < row.high - row.low:
        split(s, r, segment, row.high - columns)
    chain.unlink(s.idle, r, segment)
    row.copies -= 1
    row.refs = 1


@kernel
def claim(s: Sim, r: int, segment: int) -> None:
    """A segment leaves the queue because a request hit it."""
    rank = s.ranks[r]
    row = s.segments[segment]
    after = s.idle.next[segment]
    if after < 0:
        rank.tail += row.before
    else:
        s.segments[after].before += row.before
    chain.unlink(s.idle, r, segment)
    blocks = width(s, r, segment) * (row.high - row.low)
    rank.free -= blocks
    rank.cached -= blocks
