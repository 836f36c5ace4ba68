"""Names of cacheable prefixes: a trie over the trace's block ids, one dense name per node.

Equal names mean equal tokens from the start of the prompt, whatever the engine's block size. A
prompt's last id may cover a partial block; the turn that continues it adopts that node for its
own full block, so that the two agree on the tokens they share.
"""

from typing import NamedTuple

import numpy as np

from splitpoint.inputs.trace import Ints, Longs
from splitpoint.sim.kernel import allocating_entry

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
    name = np.empty(len(ids), np.int64)
    slots = np.zeros(1 << (2 * len(ids)).bit_length(), np.int64)
    count = _grow(starts, ids, int(ids.max()) + 1, block_tokens, isl, previous, slots, name)
    cover = np.minimum(isl, np.diff(starts) * block_tokens)
    after = _continued(starts, name, isl, osl, cover, following)
    return Names(starts[:-1], name, cover, after, count)


@allocating_entry
def _grow(
    starts: Longs,
    ids: Ints,
    width: int,
    tokens: int,
    isl: Longs,
    previous: Longs,
    slots: Longs,
    name: Longs,
) -> int:
    """Fill `name`; how many nodes there are.

    Most ids follow one other id wherever they occur: row `id` of the tables is their node. An id
    that follows several nodes has further rows, found through `slots` by hash.
    """
    parents = np.empty(width + len(ids), np.int64)
    parents[:width] = UNSEEN
    nodes = np.empty(width + len(ids), np.int64)
    keys = np.empty(width + len(ids), np.int64)
    adopted = np.zeros(len(ids), np.bool_)
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
                nodes[row] = node
            parent = nodes[row]
            name[at] = parent
    return count


@allocating_entry
def _continued(
    starts: Longs, name: Longs, isl: Longs, osl: Longs, cover: Longs, following: Longs
) -> Longs:
    after = np.full(len(isl), -1, np.int64)
    for i in range(len(isl)):
        turn = following[i]
        own = starts[i + 1] - starts[i]
        if turn < 0 or own == 0 or cover[i] < isl[i] or isl[turn] < isl[i] + osl[i]:
            continue
        other = starts[turn + 1] - starts[turn]
        if other >= own and name[starts[turn] + own - 1] == name[starts[i + 1] - 1]:
            after[i] = turn
    return after
