"""What window groups keep in a rank's prefix cache: the columns just before where a prompt may be
taken up again.

A hit needs, in every window group, the columns that its window reaches back over: a tail. vLLM
names the tail before the end of each prompt, and before the place up to which full groups had a
prompt whose tail was lost; whatever else passes out of a window goes nameless. A column is one
block of every window group, and a row among the segments, under names of its own kind.
"""

from splitpoint.native.kernel import Rows, kernel
from splitpoint.sim.blocks import claim, leave
from splitpoint.sim.segments import add_column, find_column
from splitpoint.sim.state import Sim


@kernel
def overlap(low: int, high: int, first: int, stop: int) -> int:
    """How many numbers `low` .. `high` - 1 has in common with `first` .. `stop` - 1."""
    return int(max(0, min(high, stop) - max(low, first)))


@kernel
def resumable(s: Sim, r: int, source: int, most: int) -> int:
    """The longest start of a prompt, at most `most` columns, whose tail rank `r` caches.

    Of a tail's columns one has a number that its length divides, so only those are looked up, and
    then the columns beside one that is there. A start shorter than a tail needs all its columns.
    """
    need = s.pools[s.ranks[r].pool].tail
    top = most
    while top > 0:
        middle = (top - 1) // need * need
        if find_column(s, r, source, middle) == 0:
            top = middle
            continue
        high = middle + 1
        while high < top and find_column(s, r, source, high) > 0:
            high += 1
        low = middle
        while low > 0 and high - low < need and find_column(s, r, source, low - 1) > 0:
            low -= 1
        if low == 0 or high - low >= need:
            return int(high)
        top = low - 1
    return 0


@kernel
def behind(s: Sim, r: int, computed: int) -> int:
    """Columns that lie behind every window of rank `r` once `computed` tokens are in the cache."""
    pool = s.pools[s.ranks[r].pool]
    return int(max(0, computed + 1 - pool.window) // pool.block)


@kernel
def kept(s: Sim, ticket: int, low: int, high: int) -> int:
    """Named window columns that a ticket holds of the columns `low` .. `high` - 1."""
    t = s.tails[ticket]
    need = s.pools[s.ranks[s.tickets[ticket].rank].pool].tail
    low = max(low, t.low)
    high = min(high, t.high)
    count = overlap(low, high, t.hit - need, t.hit)
    count += overlap(low, high, max(t.hit, t.first - need), t.first)
    return count + overlap(low, high, max(t.hit, t.first, t.last - need), t.last)


@kernel
def kept_in_all(s: Sim, ticket: int) -> int:
    """Named window columns that a ticket holds."""
    t = s.tails[ticket]
    return kept(s, ticket, t.low, t.high)


@kernel
def copied(s: Sim, ticket: int, j: int) -> bool:
    """Whether a ticket computed column `j` while others held it."""
    t = s.tails[ticket]
    return bool(t.hit <= j < t.copied)


@kernel
def hold_tail(s: Sim, ticket: int, source: int, hit: int, low: int) -> None:
    """A ticket takes the tail of its `hit` columns, from column `low` on."""
    t = s.tails[ticket]
    r = s.tickets[ticket].rank
    need = s.pools[s.ranks[r].pool].tail
    t.hit = hit
    t.low = low
    t.high = max(low, hit)
    t.owed = 0
    t.copied = 0
    for j in range(max(low, hit - need), hit):
        column = find_column(s, r, source, j)
        if s.segments[column].refs == 0:
            claim(s, r, column)
        s.segments[column].refs += 1


@kernel
def last_state(pool: Rows, tokens: int) -> int:
    """Columns after which a prompt of so many tokens can be taken up again: one token is left to
    compute, or with drafts of a head the last full block."""
    return int(max(0, (tokens - 1 + pool.drops) // pool.block - pool.drops))


@kernel
def junction(s: Sim, r: int, source: int, reach: int, found: int) -> int:
    """Columns of a prompt that full groups have, where its `found` hits end before that; 0: they do
    not, or nothing is named there."""
    return int(reach if reach > found and s.pools[s.ranks[r].pool].junctions == 1 else 0)


@kernel
def expect_chunk(s: Sim, ticket: int, computed: int, tokens: int) -> None:
    """States are there at the ends of chunks: which of them a ticket names whose chunk goes from
    `computed` to `tokens`."""
    t = s.tails[ticket]
    pool = s.pools[s.ranks[s.tickets[ticket].rank].pool]
    if pool.dense == 1:
        if tokens < s.tickets[ticket].target:
            expect_state(s, ticket, tokens // pool.block)
        return
    if computed < t.first * pool.block < tokens:
        t.first = 0
    if computed < t.last * pool.block < tokens:
        t.last = t.first


@kernel
def expect_state(s: Sim, ticket: int, columns: int) -> None:
    """The ticket will name the state after so many columns too."""
    t = s.tails[ticket]
    if columns > t.last:
        t.first = t.last
        t.last = columns


@kernel
def generated_state(s: Sim, ticket: int, source: int, columns: int) -> int:
    """A ticket that goes has generated past `columns` columns, and has the state after them, as if
    nothing had been written over it: the first column that it keeps for that."""
    r = s.tickets[ticket].rank
    if columns > s.tails[ticket].last and find_column(s, r, source, columns - 1) == 0:
        expect_state(s, ticket, columns)
    return columns - 1


@kernel
def expected(s: Sim, ticket: int, columns: int) -> bool:
    """Whether a ticket names the state after so many columns."""
    t = s.tails[ticket]
    return bool(columns in (t.first, t.last))


@kernel
def same_column(s: Sim, r: int, one: int, other: int, j: int) -> bool:
    """Whether column `j` of two prompts has one name, and it is cached on rank `r`."""
    column = find_column(s, r, one, j)
    return bool(column > 0 and column == find_column(s, r, other, j))


@kernel
def expect_tails(s: Sim, ticket: int, one: int, other: int) -> None:
    """The ticket will name the tails of its first `one` and of its first `other` columns."""
    t = s.tails[ticket]
    t.first = min(one, other)
    t.last = max(one, other)


@kernel
def idle_tail(s: Sim, r: int, source: int, hit: int, low: int) -> int:
    """Columns of the tail of `hit` cached columns, from `low` on, that nobody holds."""
    need = s.pools[s.ranks[r].pool].tail
    count = 0
    for j in range(max(low, hit - need), hit):
        count += s.segments[find_column(s, r, source, j)].refs == 0
    return count


@kernel
def name_tails(s: Sim, ticket: int, source: int, count: int) -> None:
    """Name the window columns of a ticket up to column `count` that belong to its tails."""
    t = s.tails[ticket]
    need = s.pools[s.ranks[s.tickets[ticket].rank].pool].tail
    start = max(t.high, t.hit)
    _name(s, ticket, source, max(start, t.first - need), min(count, t.first))
    _name(s, ticket, source, max(start, t.first, t.last - need), min(count, t.last))
    if s.pools[s.ranks[s.tickets[ticket].rank].pool].states > 0:
        # What comes behind may be expected later.
        count = min(count, t.last)
    t.high = max(t.high, count)


@kernel
def _name(s: Sim, ticket: int, source: int, low: int, high: int) -> None:
    r = s.tickets[ticket].rank
    for j in range(low, high):
        column = find_column(s, r, source, j)
        if column == 0:
            add_column(s, r, source, j)
        else:
            s.segments[column].copies += 1


@kernel
def slide(s: Sim, ticket: int, source: int, low: int) -> int:
    """Give back the named window columns of a ticket before column `low`, last first; how many."""
    t = s.tails[ticket]
    r = s.tickets[ticket].rank
    if low <= t.low:
        return 0
    gone = left = kept(s, ticket, t.low, low)
    j = min(low, t.high)
    while left > 0:
        j -= 1
        if kept(s, ticket, j, j + 1) == 1:
            leave(s, r, find_column(s, r, source, j), copied(s, ticket, j))
            left -= 1
    t.low = low
    t.high = max(t.high, low)
    return gone


@kernel
def pin_tails(s: Sim, ticket: int, source: int, change: int) -> int:
    """As `prefix.pin`, of the named window columns of a ticket; how many columns turned."""
    t = s.tails[ticket]
    turned = 0
    for j in range(t.low, t.high):
        if kept(s, ticket, j, j + 1) == 1:
            row = s.segments[find_column(s, s.tickets[ticket].rank, source, j)]
            if min(row.pins, row.pins + change) == 0:
                turned += change
            row.pins += change
    return turned
