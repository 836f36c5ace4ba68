"""Names of cacheable prefixes: a trie over the trace's block ids, one dense name per node.

Equal names mean equal tokens from the start of the prompt, whatever the engine's block size. A
prompt's last id may cover a partial block; the turn that continues it adopts that node for its
own full block, so that the two agree on the tokens they share.
"""

from typing import NamedTuple

import numpy as np

from splitpoint.inputs.trace import Ints, Longs
from splitpoint.native.arrays import Arrays
from splitpoint.native.kernel import Rows, entry

UNSEEN = -2
NUMBERS = np.dtype([(name, np.int64) for name in ("tokens", "width", "nodes")], align=True)


class Names(NamedTuple):
    """`name[start[i] + d]`: node of request i at depth d. `cover[i]`: prompt tokens with a name.

    `after[i]`: the session's next turn where its input continues input and output of request i
    (so the generated tokens have the names of that turn's input), else -1. `nodes`: how many.
    """

    start: Longs
    name: Longs
    cover: Longs
    after: Longs
    nodes: int


def next_turns(session: Ints, turn: Ints) -> Longs:
    """Index of the next turn of each request's session, -1 at the last."""
    following = np.full(len(session), -1, np.int64)
    if (session[1:] > session[:-1]).all():
        return following
    order = np.lexsort((turn, session))
    same = session[order][1:] == session[order][:-1]
    following[order[:-1][same]] = order[1:][same]
    return following


def names(
    starts: Longs, ids: Ints, block_tokens: int, isl: Longs, osl: Longs, following: Longs
) -> Names:
    """Name every prefix of every prompt."""
    cover = np.minimum(isl, np.diff(starts) * block_tokens)
    alone = np.full(len(isl), -1, np.int64)
    has_next = np.flatnonzero(following >= 0)
    if not len(has_next) and (ids == np.arange(len(ids), dtype=np.int32)).all():
        # Each id is there once, and no prompt continues another.
        return Names(starts[:-1], ids.astype(np.int64), cover, alone, len(ids))
    previous = alone.copy()
    previous[following[has_next]] = has_next
    if int(ids.min()) < 0 or int(ids.max()) > 2 * len(ids):
        ids = np.unique(ids, return_inverse=True)[1].astype(np.int32)
    width = int(ids.max()) + 1
    parents = np.empty(width + len(ids), np.int64)
    parents[:width] = UNSEEN
    numbers = np.array([(block_tokens, width, 0)], NUMBERS).view(np.recarray)
    trie = Trie(
        numbers=numbers,
        starts=starts,
        ids=np.array(ids),
        isl=isl,
        osl=osl,
        previous=previous,
        following=following,
        parents=parents,
        nodes=np.empty(width + len(ids), np.int64),
        keys=np.empty(width + len(ids), np.int64),
        slots=np.zeros(1 << (2 * len(ids)).bit_length(), np.int64),
        adopted=np.zeros(len(ids), np.int64),
        name=np.empty(len(ids), np.int64),
        cover=cover,
        after=alone,
    )
    grow(trie)
    return Names(starts[:-1], trie.name, trie.cover, trie.after, int(numbers.nodes[0]))


class Trie(Arrays):
    """What naming works on, and where a node is found by its id and the node before it.

    Most ids follow one other node wherever they occur: row `id` of `parents` and `nodes` is theirs.
    An id that follows several has further rows, found in `slots` by hash and told by `keys`.
    `adopted`: nodes of partial blocks that have a full block now.
    """

    numbers: Rows
    starts: Longs
    ids: Ints
    isl: Longs
    osl: Longs
    previous: Longs
    following: Longs
    parents: Longs
    nodes: Longs
    keys: Longs
    slots: Longs
    adopted: Longs
    name: Longs
    cover: Longs
    after: Longs


@entry
def grow(t: Trie) -> None:
    """Fill `name` and `after` of a trie."""
    tokens = t.numbers[0].tokens
    rows = t.numbers[0].width
    parents = t.parents
    slots = t.slots
    count = 0
    for i in range(len(t.isl)):
        start = t.starts[i]
        before = t.previous[i]
        # Where the turn before ended inside a block: its name there is the first comer's.
        end = -1
        tail = -1
        if 0 <= before < i and t.isl[before] % tokens != 0:
            end = t.isl[before] // tokens
            tail = t.starts[before] + end
            if tail != t.starts[before + 1] - 1:
                end = -1
        parent = -1
        for at in range(start, t.starts[i + 1]):
            row = int(t.ids[at])
            if parents[row] != parent and parents[row] != UNSEEN:
                slot = (((parent + 1) * 2654435761 + row * 40503) >> 8) & (len(slots) - 1)
                while slots[slot] != 0:
                    if t.keys[slots[slot]] == row and parents[slots[slot]] == parent:
                        break
                    slot = (slot + 1) & (len(slots) - 1)
                if slots[slot] == 0:
                    slots[slot] = rows
                    t.keys[rows] = row
                    parents[rows] = UNSEEN
                    rows += 1
                row = slots[slot]
            if parents[row] == UNSEEN:
                at_end = at - start == end and (end == 0 or t.name[tail - 1] == parent)
                if at_end and t.adopted[t.name[tail]] == 0:
                    node = t.name[tail]
                    t.adopted[node] = 1
                else:
                    node = count
                    count += 1
                parents[row] = parent
                t.nodes[row] = node
            parent = t.nodes[row]
            t.name[at] = parent
    t.numbers[0].nodes = count
    for i in range(len(t.isl)):
        turn = t.following[i]
        own = t.starts[i + 1] - t.starts[i]
        if turn < 0 or own == 0 or t.cover[i] < t.isl[i] or t.isl[turn] < t.isl[i] + t.osl[i]:
            continue
        other = t.starts[turn + 1] - t.starts[turn]
        if other >= own and t.name[t.starts[turn] + own - 1] == t.name[t.starts[i + 1] - 1]:
            t.after[i] = turn
