"""The prefix cache of a rank as a tree of segments: runs of named blocks that share one fate.

The blocks of a segment follow each other in one prompt and are held by the same requests, or by
none, so what happens to a thousand blocks happens to a few rows. A segment is split where
requests part, grows with its only holder, and is joined with what follows it. Row 0 is none.
"""

from splitpoint.native.kernel import kernel
from splitpoint.sim import chain
from splitpoint.sim.state import Sim

UNUSED = -1
# Names of window columns count down from here, those of blocks up from 0.
FIRST_COLUMN = -2


@kernel
def node_at(s: Sim, r: int, source: int, j: int) -> int:
    """The trie node in which block `j` of request `source` ends; past its ids one of its own."""
    tokens = (j + 1) * s.pools[s.ranks[r].pool].block
    if tokens > s.cover[source]:
        return -1 - source
    return int(s.name[s.name_start[source] + (tokens - 1) // s.rules[0].id_tokens])


@kernel
def block_name(s: Sim, r: int, source: int, j: int) -> int:
    """A number for block `j` of request `source`: equal numbers mean equal tokens from the start
    of the prompt to the end of the block."""
    pool = s.pools[s.ranks[r].pool]
    tokens = s.rules[0].id_tokens
    if (j + 1) * pool.block > s.cover[source]:
        return int(s.requests[source].own + j)
    depth = ((j + 1) * pool.block - 1) // tokens
    node = s.name[s.name_start[source] + depth]
    return int(node * pool.span + j - depth * tokens // pool.block)


@kernel
def parting(s: Sim, r: int, source: int, other: int, low: int, high: int) -> int:
    """The first block that differs between two prompts that share block `low`; at most `high`."""
    if node_at(s, r, source, high - 1) == node_at(s, r, other, high - 1):
        return high
    high -= 1
    while high - low > 1:
        middle = (low + high) >> 1
        if node_at(s, r, source, middle) == node_at(s, r, other, middle):
            low = middle
        else:
            high = middle
    return high


@kernel
def find_segment(s: Sim, r: int, source: int, j: int) -> int:
    """The segment on rank `r` that begins with block `j` of a prompt, 0 if there is none."""
    return int(s.index[_slot(s, r, block_name(s, r, source, j))])


@kernel
def find_column(s: Sim, r: int, source: int, j: int) -> int:
    """The row on rank `r` of window column `j` of a prompt, 0 if there is none."""
    return int(s.index[_slot(s, r, FIRST_COLUMN - block_name(s, r, source, j))])


@kernel
def add_column(s: Sim, r: int, source: int, j: int) -> None:
    """A row for window column `j` of a prompt, held once; no row goes before it or after it."""
    column = _new_row(s, r)
    row = s.segments[column]
    row.source = source
    row.low = j
    row.high = j + 1
    row.parent = 0
    row.refs = 1
    row.pins = 0
    row.children = 0
    row.copies = 1
    s.segments[0].children += 1
    _enter(s, r, column, FIRST_COLUMN - block_name(s, r, source, j))


@kernel
def width(s: Sim, r: int, segment: int) -> int:
    """Blocks of one column of a segment: one of every full group, or of every other group."""
    pool = s.pools[s.ranks[r].pool]
    return int(pool.full if s.segments[segment].key >= 0 else pool.wide)


@kernel
def add_segment(s: Sim, r: int, source: int, low: int, high: int, parent: int) -> int:
    """A segment of blocks `low` .. `high` - 1 of a prompt, held once; it follows `parent`."""
    segment = _new_row(s, r)
    row = s.segments[segment]
    row.source = source
    row.low = low
    row.high = high
    row.parent = parent
    row.refs = 1
    row.pins = 0
    row.children = 0
    row.copies = 1
    s.segments[parent].children += 1
    _enter(s, r, segment, block_name(s, r, source, low))
    return segment


@kernel
def split(s: Sim, r: int, segment: int, at: int) -> int:
    """Cut a segment before block `at`; the first part, which gets a new row.

    The rest keeps its row: its children, its holders and its place in the queue know it by that.
    """
    first = _new_row(s, r)
    row = s.segments[segment]
    new = s.segments[first]
    new.source = row.source
    new.low = row.low
    new.high = at
    new.parent = row.parent
    new.refs = row.refs
    new.pins = row.pins
    new.children = 1
    new.before = 0
    new.copies = row.copies
    new.key = row.key
    s.index[_slot(s, r, row.key)] = first
    row.low = at
    row.parent = first
    _enter(s, r, segment, block_name(s, r, row.source, at))
    if row.refs == 0:
        chain.insert(s.idle, r, first, segment)
    return first


@kernel
def join_parent(s: Sim, r: int, segment: int) -> None:
    """Make a segment one with its parent, whose only child it is and whose row is given up."""
    row = s.segments[segment]
    gone = row.parent
    parent = s.segments[gone]
    _leave(s, r, row.key)
    s.index[_slot(s, r, parent.key)] = segment
    row.key = parent.key
    row.low = parent.low
    row.parent = parent.parent
    _free_row(s, r, gone)


@kernel
def drop_segment(s: Sim, r: int, segment: int) -> None:
    """Forget a segment that nothing follows."""
    row = s.segments[segment]
    s.segments[row.parent].children -= 1
    _leave(s, r, row.key)
    _free_row(s, r, segment)


@kernel
def _new_row(s: Sim, r: int) -> int:
    rank = s.ranks[r]
    segment = rank.segment_free
    if segment > 0:
        rank.segment_free = s.segments[segment].parent
    else:
        segment = rank.segment_next
        rank.segment_next += 1
    return int(segment)


@kernel
def _free_row(s: Sim, r: int, segment: int) -> None:
    rank = s.ranks[r]
    row = s.segments[segment]
    row.key = UNUSED
    row.parent = rank.segment_free
    rank.segment_free = segment


@kernel
def _wish(s: Sim, r: int, key: int) -> int:
    """Where the search for a name begins in a rank's hash table."""
    return int(((key * 2654435761) >> 12) & s.ranks[r].index_mask)


@kernel
def _slot(s: Sim, r: int, key: int) -> int:
    """Where in the index the segment that begins with the named block stands, or would."""
    rank = s.ranks[r]
    slot = _wish(s, r, key)
    while True:
        segment = s.index[rank.index_at + slot]
        if segment == 0 or s.segments[segment].key == key:
            return int(rank.index_at + slot)
        slot = (slot + 1) & rank.index_mask


@kernel
def _enter(s: Sim, r: int, segment: int, key: int) -> None:
    """Enter a segment under the name of its first block."""
    rank = s.ranks[r]
    s.segments[segment].key = UNUSED
    rank.segments += 1
    if 2 * rank.segments > rank.index_mask:
        _widen(s, r)
    s.segments[segment].key = key
    s.index[_slot(s, r, key)] = segment


@kernel
def _leave(s: Sim, r: int, key: int) -> None:
    """Take a name out of the index, closing the gap it leaves in its probe run."""
    rank = s.ranks[r]
    mask = rank.index_mask
    at = rank.index_at
    hole = _slot(s, r, key) - at
    slot = hole
    while True:
        slot = (slot + 1) & mask
        segment = s.index[at + slot]
        if segment == 0:
            break
        wish = _wish(s, r, s.segments[segment].key)
        if ((slot - wish) & mask) >= ((slot - hole) & mask):
            s.index[at + hole] = segment
            hole = slot
    s.index[at + hole] = 0
    rank.segments -= 1


@kernel
def _widen(s: Sim, r: int) -> None:
    """Double the index: ranks begin with a small one, which stays in the processor's caches."""
    rank = s.ranks[r]
    at = rank.index_at
    for slot in range(rank.index_mask + 1):
        s.index[at + slot] = 0
    rank.index_mask = 2 * rank.index_mask + 1
    for segment in range(rank.segment_at, rank.segment_next):
        key = s.segments[segment].key
        if key != UNUSED:
            s.index[_slot(s, r, key)] = segment
