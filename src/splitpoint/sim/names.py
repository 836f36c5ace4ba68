"""Names of cacheable prefixes: a trie over the trace's block ids, one dense name per node.

Equal names mean equal tokens from the start of the prompt, whatever the engine's block size. A
prompt's last id may cover a partial block; the turn that continues it adopts that node for its
own full block, so that the two agree on the tokens they share.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from splitpoint.inputs.trace import Ints, Longs
from splitpoint.sim.kernel import entry

UNSEEN = -2


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
    order = np.lexsort((turn, session))
    following = np.full(len(session), -1, np.int64)
    same = session[order][1:] == session[order][:-1]
    following[order[:-1][same]] = order[1:][same]
    return following


def names(
    starts: Longs, ids: Ints, block_tokens: int, isl: Longs, osl: Longs, following: Longs
) -> Names:
    """Name every prefix of every prompt."""
    previous = np.full(len(isl), -1, np.int64)
    has_next = np.flatnonzero(following >= 0)
    previous[following[has_next]] = has_next
    if int(ids.min()) < 0 or int(ids.max()) > 2 * len(ids):
        ids = np.unique(ids, return_inverse=True)[1].astype(np.int32)
    width = int(ids.max()) + 1
    rows = width + len(ids)
    parents = np.empty(rows, np.int64)
    parents[:width] = UNSEEN
    tables = Tables(
        parents,
        np.empty(rows, np.int64),
        np.empty(rows, np.int64),
        np.zeros(1 << (2 * len(ids)).bit_length(), np.int64),
        np.zeros(len(ids), np.bool_),
    )
    name = np.empty(len(ids), np.int64)
    count = _grow(starts, ids, width, block_tokens, isl, previous, tables, name)
    cover = np.minimum(isl, np.diff(starts) * block_tokens)
    after = np.full(len(isl), -1, np.int64)
    _continue(starts, name, isl, osl, cover, following, after)
    return Names(starts[:-1], name, cover, after, count)


class Tables(NamedTuple):
    """Where a node is found by its id and the node before it.

    Most ids follow one other node wherever they occur: row `id` of `parents` and `nodes` is theirs.
    An id that follows several has further rows, found in `slots` by hash and told by `keys`.
    `adopted`: nodes of partial blocks that have a full block now.
    """

    parents: Longs
    nodes: Longs
    keys: Longs
    slots: Longs
    adopted: NDArray[np.bool_]


@entry
def _grow(
    starts: Longs,
    ids: Ints,
    width: int,
    tokens: int,
    isl: Longs,
    previous: Longs,
    tables: Tables,
    name: Longs,
) -> int:
    """Fill `name`; how many nodes there are."""
    parents = tables.parents
    keys = tables.keys
    slots = tables.slots
    adopted = tables.adopted
    rows = width
    count = 0
    for i in range(len(isl)):
        start = starts[i]
        before = previous[i]
        # Where the turn before ended inside a block: its name there is the first comer's.
        end = -1
        tail = -1
        if 0 <= before < i and isl[before] % tokens != 0:
            end = isl[before] // tokens
            tail = starts[before] + end
            if tail != starts[before + 1] - 1:
                end = -1
        parent = -1
        for at in range(start, starts[i + 1]):
            row = int(ids[at])
            if parents[row] != parent and parents[row] != UNSEEN:
                slot = (((parent + 1) * 2654435761 + row * 40503) >> 8) & (len(slots) - 1)
                while slots[slot] != 0:
                    if keys[slots[slot]] == row and parents[slots[slot]] == parent:
                        break
                    slot = (slot + 1) & (len(slots) - 1)
                if slots[slot] == 0:
                    slots[slot] = rows
                    keys[rows] = row
                    parents[rows] = UNSEEN
                    rows += 1
                row = slots[slot]
            if parents[row] == UNSEEN:
                at_end = at - start == end and (end == 0 or name[tail - 1] == parent)
                if at_end and not adopted[name[tail]]:
                    node = name[tail]
                    adopted[node] = True
                else:
                    node = count
                    count += 1
                parents[row] = parent
                tables.nodes[row] = node
            parent = tables.nodes[row]
            name[at] = parent
    return count


@entry
def _continue(
    starts: Longs,
    name: Longs,
    isl: Longs,
    osl: Longs,
    cover: Longs,
    following: Longs,
    after: Longs,
) -> None:
    """Fill `after`."""
    for i in range(len(isl)):
        turn = following[i]
        own = starts[i + 1] - starts[i]
        if turn < 0 or own == 0 or cover[i] < isl[i] or isl[turn] < isl[i] + osl[i]:
            continue
        other = starts[turn + 1] - starts[turn]
        if other >= own and name[starts[turn] + own - 1] == name[starts[i + 1] - 1]:
            after[i] = turn
