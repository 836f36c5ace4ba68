"""Doubly linked lists over flat arrays: waiting queues, running batches, idle blocks, transfers.

Many lists share one pair of link arrays, because an item stands in at most one of them.
"""

from typing import NamedTuple

import numpy as np

from splitpoint.inputs.trace import Longs
from splitpoint.native.kernel import kernel


class Chain(NamedTuple):
    """`head` and `tail` of each list, `prev` and `next` of each item in one; -1 is none."""

    head: Longs
    tail: Longs
    prev: Longs
    next: Longs


def chain(lists: int, items: int) -> Chain:
    """`lists` empty lists over `items` items."""
    return Chain(
        np.full(lists, -1, np.int64),
        np.full(lists, -1, np.int64),
        np.zeros(items, np.int64),
        np.zeros(items, np.int64),
    )


@kernel
def append(c: Chain, at: int, item: int) -> None:
    """Put `item` at the end of list `at`."""
    last = c.tail[at]
    c.prev[item] = last
    c.next[item] = -1
    if last < 0:
        c.head[at] = item
    else:
        c.next[last] = item
    c.tail[at] = item


@kernel
def prepend(c: Chain, at: int, item: int) -> None:
    """Put `item` at the front of list `at`."""
    first = c.head[at]
    c.prev[item] = -1
    c.next[item] = first
    if first < 0:
        c.tail[at] = item
    else:
        c.prev[first] = item
    c.head[at] = item


@kernel
def insert(c: Chain, at: int, item: int, ahead: int) -> None:
    """Put `item` into list `at`, just behind the item `ahead`."""
    after = c.next[ahead]
    if after < 0:
        append(c, at, item)
        return
    c.prev[item] = ahead
    c.next[item] = after
    c.next[ahead] = item
    c.prev[after] = item


@kernel
def move(c: Chain, at: int, to: int) -> None:
    """Make all of list `at` the list `to`, which is empty."""
    c.head[to] = c.head[at]
    c.tail[to] = c.tail[at]
    c.head[at] = -1
    c.tail[at] = -1


@kernel
def unlink(c: Chain, at: int, item: int) -> None:
    """Take `item` out of list `at`."""
    before = c.prev[item]
    after = c.next[item]
    if before < 0:
        c.head[at] = after
    else:
        c.next[before] = after
    if after < 0:
        c.tail[at] = before
    else:
        c.prev[after] = before
