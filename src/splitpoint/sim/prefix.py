"""The prefix cache of a rank: how much of a prompt it holds, taking and giving back references.

A request holds a leading run of named blocks. Blocks are given back last first, so on every rank
the cached blocks of a chain are a leading run too: counts and bisection replace walks.
"""

from splitpoint.sim.blocks import add_page, claim, find_page, give, new_handle, park
from splitpoint.sim.kernel import kernel
from splitpoint.sim.state import Sim


@kernel
def handle_at(s: Sim, r: int, source: int, j: int) -> int:
    """Handle of block `j` of the prompt of request `source` on rank `r`, -1 if not cached."""
    pool = s.pools[s.ranks[r].pool]
    tokens = s.rules[0].id_tokens
    depth = ((j + 1) * pool.block - 1) // tokens
    page = find_page(s, r, s.name[s.name_start[source] + depth])
    if page < 0:
        return -1
    rank = s.ranks[r]
    place = rank.table_at + (page - rank.page_at) * pool.span
    return int(s.table[place + j - depth * tokens // pool.block])


@kernel
def matched(s: Sim, r: int, source: int, most: int) -> int:
    """Leading blocks of the prompt of request `source` that rank `r` caches, at most `most`."""
    if most <= 0 or handle_at(s, r, source, 0) < 0:
        return 0
    low = 1
    high = most + 1
    while high - low > 1:
        middle = (low + high) >> 1
        if handle_at(s, r, source, middle - 1) >= 0:
            low = middle
        else:
            high = middle
    return low


@kernel
def hits(s: Sim, r: int, source: int, target: int) -> int:
    """Blocks a request that needs `target` tokens gets from the cache of rank `r`.

    At least one token is left to compute; a hybrid also gives up the last full block, because
    its state is kept at the block before.
    """
    pool = s.pools[s.ranks[r].pool]
    if pool.caching == 0:
        return 0
    named = s.cover[source] // pool.block
    if pool.hybrid == 1:
        return max(0, matched(s, r, source, min(named, target // pool.block)) - 1)
    return matched(s, r, source, min(named, (target - 1) // pool.block))


@kernel
def idle_hits(s: Sim, r: int, source: int, count: int) -> int:
    """How many of the first `count` cached blocks nobody holds; they follow the held ones."""
    low = -1
    high = count
    while high - low > 1:
        middle = (low + high) >> 1
        if s.handles[handle_at(s, r, source, middle)].refs > 0:
            low = middle
        else:
            high = middle
    return count - high


@kernel
def hold(s: Sim, r: int, source: int, count: int) -> None:
    """Take a reference to each of the first `count` blocks, all cached."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    tokens = s.rules[0].id_tokens
    names = s.name_start[source]
    j = 0
    while j < count:
        depth = ((j + 1) * pool.block - 1) // tokens
        low = depth * tokens // pool.block
        stop = min(count, (depth + 1) * tokens // pool.block)
        page = find_page(s, r, s.name[names + depth])
        place = rank.table_at + (page - rank.page_at) * pool.span - low
        for i in range(j, stop):
            handle = s.table[place + i]
            if s.handles[handle].refs == 0:
                claim(s, r, handle)
            s.handles[handle].refs += 1
        j = stop


@kernel
def register(s: Sim, r: int, source: int, first: int, count: int) -> None:
    """Name blocks `first`..`count`-1, which a request holds without names.

    Where the name is cached already, the request shares that block and gives its copy back.
    """
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    tokens = s.rules[0].id_tokens
    names = s.name_start[source]
    j = first
    while j < count:
        depth = ((j + 1) * pool.block - 1) // tokens
        low = depth * tokens // pool.block
        stop = min(count, (depth + 1) * tokens // pool.block)
        node = s.name[names + depth]
        page = find_page(s, r, node)
        if page < 0:
            page = add_page(s, r, node)
        place = rank.table_at + (page - rank.page_at) * pool.span - low
        for i in range(j, stop):
            handle = s.table[place + i]
            if handle < 0:
                new_handle(s, r, place + i)
                s.pages[page].count += 1
            else:
                if s.handles[handle].refs == 0:
                    claim(s, r, handle)
                s.handles[handle].refs += 1
                give(s, r, pool.full)
        j = stop


@kernel
def release(s: Sim, r: int, source: int, count: int) -> None:
    """Give the first `count` named blocks back, last first."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    tokens = s.rules[0].id_tokens
    names = s.name_start[source]
    j = count - 1
    while j >= 0:
        depth = ((j + 1) * pool.block - 1) // tokens
        low = depth * tokens // pool.block
        page = find_page(s, r, s.name[names + depth])
        place = rank.table_at + (page - rank.page_at) * pool.span - low
        for i in range(j, low - 1, -1):
            handle = s.table[place + i]
            s.handles[handle].refs -= 1
            if s.handles[handle].refs == 0:
                park(s, r, handle)
        j = low - 1


@kernel
def pin(s: Sim, r: int, source: int, count: int, change: int) -> int:
    """Add `change` to the finished prefills that wait with each of the first `count` blocks; how
    many blocks so became, or are no longer, part of what such prefills hold."""
    rank = s.ranks[r]
    pool = s.pools[rank.pool]
    tokens = s.rules[0].id_tokens
    names = s.name_start[source]
    turned = 0
    j = 0
    while j < count:
        depth = ((j + 1) * pool.block - 1) // tokens
        low = depth * tokens // pool.block
        stop = min(count, (depth + 1) * tokens // pool.block)
        page = find_page(s, r, s.name[names + depth])
        place = rank.table_at + (page - rank.page_at) * pool.span - low
        for i in range(j, stop):
            handle = s.handles[s.table[place + i]]
            if min(handle.pins, handle.pins + change) == 0:
                turned += change
            handle.pins += change
        j = stop
    return turned
