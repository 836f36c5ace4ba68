"""The pool of KV blocks of a rank: what a request holds, and how blocks leave and come back.

Free blocks stand in one queue in the order they were freed, named ones (still a cached prefix)
among anonymous ones. Only named blocks are queue items: each carries in `before` the number of
anonymous blocks just ahead of it, and the rank's `tail` counts those after the last one.
"""

from splitpoint.inputs.trace import Longs
from splitpoint.sim import chain
from splitpoint.sim.kernel import Rows, kernel
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
def give(s: Sim, r: int, count: int) -> None:
    """Return `count` anonymous blocks to the end of the queue."""
    rank = s.ranks[r]
    rank.free += count
    rank.tail += count


@kernel
def take(s: Sim, r: int, count: int) -> None:
    """Take `count` free blocks from the front of the queue, dropping the names they carry."""
    rank = s.ranks[r]
    rank.free -= count
    while count > 0:
        first = s.idle.head[r]
        if first < 0:
            rank.tail -= count
            return
        handle = s.handles[first]
        if handle.before >= count:
            handle.before -= count
            return
        count -= handle.before
        handle.before = 0
        chain.unlink(s.idle, r, first)
        _forget(s, r, first)
        full = s.pools[rank.pool].full
        rank.cached -= full
        count -= full
    if count < 0:
        # A column of several groups was dropped for fewer blocks: the rest are next in line.
        first = s.idle.head[r]
        if first < 0:
            rank.tail -= count
        else:
            s.handles[first].before -= count


@kernel
def park(s: Sim, r: int, handle: int) -> None:
    """A named block that nobody holds any more joins the end of the queue."""
    rank = s.ranks[r]
    full = s.pools[rank.pool].full
    s.handles[handle].before = rank.tail
    rank.tail = 0
    chain.append(s.idle, r, handle)
    rank.free += full
    rank.cached += full


@kernel
def claim(s: Sim, r: int, handle: int) -> None:
    """A named block leaves the queue because a request hit it."""
    rank = s.ranks[r]
    full = s.pools[rank.pool].full
    before = s.handles[handle].before
    after = s.idle.next[handle]
    if after < 0:
        rank.tail += before
    else:
        s.handles[after].before += before
    chain.unlink(s.idle, r, handle)
    rank.free -= full
    rank.cached -= full


@kernel
def new_handle(s: Sim, r: int, home: int) -> int:
    """A handle for a block that just got a name, held once."""
    rank = s.ranks[r]
    handle = rank.handle_free
    rank.handle_free = s.idle.next[handle]
    row = s.handles[handle]
    row.refs = 1
    row.pins = 0
    row.before = 0
    row.home = home
    s.table[home] = handle
    return int(handle)


@kernel
def _forget(s: Sim, r: int, handle: int) -> None:
    rank = s.ranks[r]
    span = s.pools[rank.pool].span
    home = s.handles[handle].home
    s.table[home] = -1
    s.idle.next[handle] = rank.handle_free
    rank.handle_free = handle
    page = rank.page_at + (home - rank.table_at) // span
    row = s.pages[page]
    row.count -= 1
    if row.count == 0:
        drop_page(s, r, page)


@kernel
def slot_of(node: int, mask: int) -> int:
    """Where the search for a node begins in a rank's hash table."""
    return ((node * 2654435761) >> 12) & mask


@kernel
def find_page(s: Sim, r: int, node: int) -> int:
    """Page of a trie node on rank `r`, -1 when no block of it is cached."""
    rank = s.ranks[r]
    mask = rank.hash_mask
    at = rank.hash_at
    slot = slot_of(node, mask)
    while s.hash_page[at + slot] >= 0:
        if s.hash_node[at + slot] == node:
            return int(s.hash_page[at + slot])
        slot = (slot + 1) & mask
    return -1


@kernel
def add_page(s: Sim, r: int, node: int) -> int:
    """A fresh page for a trie node that has none on rank `r`."""
    rank = s.ranks[r]
    page = rank.page_free
    row = s.pages[page]
    rank.page_free = row.node
    row.node = node
    row.count = 0
    mask = rank.hash_mask
    at = rank.hash_at
    slot = slot_of(node, mask)
    while s.hash_page[at + slot] >= 0:
        slot = (slot + 1) & mask
    s.hash_node[at + slot] = node
    s.hash_page[at + slot] = page
    return int(page)


@kernel
def drop_page(s: Sim, r: int, page: int) -> None:
    """Take an empty page out of the hash table, closing the gap it leaves in its probe run."""
    rank = s.ranks[r]
    mask = rank.hash_mask
    at = rank.hash_at
    row = s.pages[page]
    hole = slot_of(row.node, mask)
    while s.hash_page[at + hole] != page:
        hole = (hole + 1) & mask
    row.node = rank.page_free
    rank.page_free = page
    slot = hole
    while True:
        slot = (slot + 1) & mask
        if s.hash_page[at + slot] < 0:
            break
        wish = slot_of(s.hash_node[at + slot], mask)
        if ((slot - wish) & mask) >= ((slot - hole) & mask):
            s.hash_node[at + hole] = s.hash_node[at + slot]
            s.hash_page[at + hole] = s.hash_page[at + slot]
            hole = slot
    s.hash_page[at + hole] = -1
