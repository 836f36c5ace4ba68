"""Names of cacheable prefixes: a trie over the trace's block ids, one dense name per node.

Equal names mean equal tokens from the start of the prompt, whatever the engine's block size. A
prompt's last id may cover a partial block; the turn that continues it adopts that node for its
own full block, so that the two agree on the tokens they share.
"""

from typing import NamedTuple

import numpy as np

from splitpoint.inputs.trace import Ints, Longs
from splitpoint.sim.kernel import allocating_entry


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
    size = 1 << max(4, int(2 * len(ids)).bit_length())
    name = np.empty(len(ids), np.int64)
    count = _grow(starts, ids.astype(np.int64), block_tokens, isl, previous, size, name)
    cover = np.minimum(isl, np.diff(starts) * block_tokens)
    after = _continued(starts, name, isl, osl, cover, following)
    return Names(starts[:-1].astype(np.int64), name, cover, after, count)


@allocating_entry
def _grow(
    starts: Longs, ids: Longs, tokens: int, isl: Longs, previous: Longs, size: int, name: Longs
) -> int:
    parents = np.full(size, -2, np.int64)
    keys = np.zeros(size, np.int64)
    nodes = np.zeros(size, np.int64)
    adopted = np.zeros(len(ids), np.bool_)
    count = 0
    for i in range(len(isl)):
        parent = -1
        before = previous[i]
        for at in range(starts[i], starts[i + 1]):
            depth = at - starts[i]
            slot = (((parent + 1) * 2654435761 + (ids[at] & 0x7FFFFFFF) * 40503) >> 8) & (size - 1)
            while parents[slot] != -2 and (parents[slot] != parent or keys[slot] != ids[at]):
                slot = (slot + 1) & (size - 1)
            if parents[slot] == -2:
                node = count
                if 0 <= before < i and isl[before] % tokens != 0:
                    tail = starts[before] + depth
                    ends_here = depth == isl[before] // tokens and tail == starts[before + 1] - 1
                    if ends_here and (depth == 0 or name[tail - 1] == parent):
                        partial = name[tail]
                        if not adopted[partial]:
                            adopted[partial] = True
                            node = partial
                if node == count:
                    count += 1
                parents[slot] = parent
                keys[slot] = ids[at]
                nodes[slot] = node
            parent = nodes[slot]
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
