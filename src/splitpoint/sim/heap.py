"""A binary heap of items, smallest key first, that can change or remove any item.

`items[:size]` is the heap, `key[item]` its order, `pos[item]` where the item stands. Equal keys
leave in order of item, so the order of events never depends on when they were inserted.
"""

from splitpoint.inputs.trace import Longs
from splitpoint.native.kernel import kernel


@kernel
def _before(key: Longs, a: int, b: int) -> bool:
    return bool(key[a] < key[b] or (key[a] == key[b] and a < b))


@kernel
def _rise(items: Longs, key: Longs, pos: Longs, place: int) -> None:
    item = items[place]
    while place > 0:
        parent = (place - 1) >> 1
        other = items[parent]
        if not _before(key, item, other):
            break
        items[place] = other
        pos[other] = place
        place = parent
    items[place] = item
    pos[item] = place


@kernel
def _sink(items: Longs, size: int, key: Longs, pos: Longs, place: int) -> None:
    item = items[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _before(key, items[child + 1], items[child]):
            child += 1
        other = items[child]
        if not _before(key, other, item):
            break
        items[place] = other
        pos[other] = place
        place = child
    items[place] = item
    pos[item] = place


@kernel
def push(items: Longs, size: int, key: Longs, pos: Longs, item: int) -> int:
    """Add `item`; the new size."""
    items[size] = item
    pos[item] = size
    _rise(items, key, pos, size)
    return size + 1


@kernel
def remove(items: Longs, size: int, key: Longs, pos: Longs, item: int) -> int:
    """Take `item` out wherever it stands; the new size."""
    place = pos[item]
    last = items[size - 1]
    pos[item] = -1
    if last != item:
        items[place] = last
        pos[last] = place
        _rise(items, key, pos, place)
        _sink(items, size - 1, key, pos, pos[last])
    return size - 1


@kernel
def moved(items: Longs, size: int, key: Longs, pos: Longs, item: int) -> None:
    """Restore the order after the key of `item` changed."""
    _rise(items, key, pos, pos[item])
    _sink(items, size, key, pos, pos[item])
