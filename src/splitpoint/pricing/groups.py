"""Which layers share a block table: the engine's groups, and the bytes a block of them takes.

One kind of cache is one group. Several kinds are cut into groups of equal pages and about equal
layer counts, so that all draw equal blocks from one pool; where pages cannot be made equal, they
lie side by side in a block.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from splitpoint.pricing.caches import Cache, Owned
from splitpoint.pricing.engines import Rules
from splitpoint.units import ceil_div


class Placed(NamedTuple):
    """A cache of one layer, the block in force for it, and the pipeline stage that owns it."""

    cache: Cache
    layer: int
    stage: int
    block_tokens: int
    page: int
    content: int


def placed_on(caches: Sequence[Owned], block: int, token_bytes: int) -> list[Placed]:
    """Caches with their pages; a state's page is padded to an attention page."""
    # Layers of one kind share one cache object, which is measured once.
    measured: dict[int, tuple[int, int, int]] = {}
    placed = []
    for layer, stage, cache in caches:
        sizes = measured.get(id(cache))
        if sizes is None:
            tokens = cache.block_tokens or block
            entries = 1 if cache.kind == "state" else max(tokens // cache.stride, 1)
            page = cache.page(block)
            if cache.kind == "state":
                page = max(page, block * token_bytes)
            sizes = measured[id(cache)] = (tokens, page, cache.entry * entries)
        placed.append(Placed(cache, layer, stage, *sizes))
    return placed


def block_tables(placed: list[Placed], law: Rules) -> list[list[Placed]]:
    """Layers by block table, as vLLM's get_kv_cache_groups does it.

    One kind: one group, whatever its page sizes. Several: pages are made equal and each kind is
    cut into groups of equal size; where they cannot be, blocks pack pages side by side.
    """
    if _uniform(placed):
        return [_merged(placed)]
    if any(p.cache.block_tokens for p in placed):
        return _packed(placed) if law.packing == "free" else _packed_by_full(placed)
    unified = _unified(placed)
    return _equal_groups(unified, law.group_ratio) if unified else _packed(placed)


def _uniform(placed: Sequence[Placed]) -> bool:
    first = placed[0]
    return all(
        p.cache.kind == first.cache.kind
        and p.cache.window == first.cache.window
        and p.block_tokens == first.block_tokens
        and (p.cache.kind != "state" or p.page == first.page)
        for p in placed
    )


def _merged(placed: Sequence[Placed]) -> list[Placed]:
    """One entry a layer, where a layer's several caches share one block table."""
    layers: dict[int, Placed] = {}
    for p in placed:
        known = layers.get(p.layer)
        layers[p.layer] = (
            p
            if known is None
            else known._replace(page=known.page + p.page, content=known.content + p.content)
        )
    return list(layers.values())


def _unified(placed: Sequence[Placed]) -> list[Placed] | None:
    """Equal pages for all: states are padded, smaller attention pages take more tokens where that
    divides evenly and are padded otherwise; latent pages cannot be padded (None)."""
    page = max(p.page for p in placed)
    result = []
    for p in placed:
        if p.page == page:
            result.append(p)
        elif p.cache.kind != "state" and page % p.page == 0:
            ratio = page // p.page
            tokens, content = p.block_tokens * ratio, p.content * ratio
            result.append(Placed(p.cache, p.layer, p.stage, tokens, page, content))
        elif p.cache.latent:
            return None
        else:
            result.append(Placed(p.cache, p.layer, p.stage, p.block_tokens, page, p.content))
    return result


def _equal_groups(placed: Sequence[Placed], ratio: float) -> list[list[Placed]]:
    buckets: dict[tuple[Cache, int], list[Placed]] = {}
    home: dict[tuple[int, int], list[Placed]] = {}
    for p in placed:
        # Hashing a record is dear: equal caches are found by identity first.
        known = home.get((id(p.cache), p.block_tokens))
        if known is None:
            known = buckets.setdefault((p.cache, p.block_tokens), [])
            home[id(p.cache), p.block_tokens] = known
        known.append(p)
    counts = [len(bucket) for bucket in buckets.values()]
    size = max(counts) if max(counts) < ratio * min(counts) else min(counts)
    return [
        group
        for bucket in buckets.values()
        for group in _dealt(bucket, ceil_div(len(bucket), size))
    ]


def _dealt(bucket: Sequence[Placed], groups: int) -> list[list[Placed]]:
    # Dealt like cards, so that every pipeline stage finds layers of every group.
    return [list(bucket[i::groups]) for i in range(groups)]


def _buckets(placed: Sequence[Placed]) -> list[list[Placed]]:
    buckets: list[list[Placed]] = []
    for p in placed:
        home = next((b for b in buckets if _uniform([b[0], p])), None)
        if home is None:
            buckets.append([p])
        else:
            home.append(p)
    return buckets


def _packed_by_full(placed: Sequence[Placed]) -> list[list[Placed]]:
    """The full layers as one group, windows cut to about as many layers (vLLM's
    _get_kv_cache_groups_uniform_groups, 0.20 to 0.28)."""
    buckets = _buckets(placed)
    full = [bucket for bucket in buckets if bucket[0].cache.kind == "full"]
    windows = [bucket for bucket in buckets if bucket[0].cache.kind != "full"]
    rows = [max(len(row) for row in _by_page(bucket)) for bucket in full + windows]
    size = _least_padding(rows, rows[0])
    groups = list(full)
    for bucket in windows:
        patterns = list(zip(*_by_page(bucket), strict=True))
        count = ceil_div(len(patterns), size)
        groups += [[p for pattern in patterns[g::count] for p in pattern] for g in range(count)]
    return groups


def _packed(placed: Sequence[Placed]) -> list[list[Placed]]:
    """Groups whose pages lie side by side in a block (vLLM's _get_packed_kv_cache_groups).

    Buckets of one kind whose page sizes occur equally often repeat a pattern; patterns are cut so
    that all buckets cover about the same number of repeats. States go as many to a block as fit
    into what the others need anyway.
    """
    buckets = _buckets(placed)
    columns = [_by_page(bucket) for bucket in buckets]
    balanced = [len({len(c) for c in pages}) == 1 for pages in columns]
    repeats = [max(len(c) for c in pages) for pages in columns]
    floor = max(
        (repeats[i] for i, pages in enumerate(columns) if balanced[i] and len(pages) > 1),
        default=0,
    )
    size = _least_padding([repeats[i] for i in range(len(buckets)) if balanced[i]], floor)
    counts = [
        ceil_div(repeats[i], size) if floor and balanced[i] else 1 for i in range(len(buckets))
    ]
    movable = [
        b[0].cache.kind == "state" or (not floor and b[0].cache.kind == "window") for b in buckets
    ]
    anchor = max(
        sum(
            ceil_div(len(c), len(buckets[i]) if movable[i] else counts[i]) * c[0].page
            for c in columns[i]
        )
        for i in range(len(buckets))
    )
    groups: list[list[Placed]] = []
    for i, bucket in enumerate(buckets):
        count = counts[i]
        if movable[i]:
            per_block = max(anchor // bucket[0].page, 1)
            count = max(count, ceil_div(len(bucket), per_block))
        if count == 1:
            groups.append(bucket)
        else:
            patterns = list(zip(*columns[i], strict=True))
            groups += [[p for pattern in patterns[g::count] for p in pattern] for g in range(count)]
    return groups


def _by_page(bucket: Sequence[Placed]) -> list[list[Placed]]:
    pages: dict[int, list[Placed]] = {}
    for p in bucket:
        pages.setdefault(p.page, []).append(p)
    return list(pages.values())


def _least_padding(counts: Sequence[int], lower: int) -> int:
    """The size that pads the counts least when each is rounded up to a multiple of it; of equal
    ones the largest (vLLM's _approximate_gcd)."""
    sizes = range(max(lower, 1), max(counts, default=1) + 1)
    return min(
        sizes, key=lambda size: (sum(-c % size for c in counts), -size), default=max(lower, 1)
    )


def stage_bytes(groups: Sequence[Sequence[Placed]], stage: int, law: Rules) -> int:
    """Bytes of a pool block on one stage: what the widest group needs, or as older versions pack
    pages of several sizes (vLLM's _pool_bytes_per_block, 0.22.1, 0.26.0 and 0.32.0)."""
    here = [[p for p in group if p.stage == stage] for group in groups]
    if law.packing in ("free", "dense") or not _compressed(groups[0]):
        return max(sum(p.page for p in group) for group in here)
    widths = _full_pages(here)
    rows = [Counter(_padded_page(p.page, widths) for p in group) for group in here]
    if law.packing == "tuples":
        return sum(widths) * max(max(row.values(), default=0) for row in rows)
    most = {width: max(row[width] for row in rows) for row in rows for width in row}
    return sum(width * count for width, count in most.items())


def counted_bytes(group: Sequence[Placed], groups: Sequence[Sequence[Placed]], law: Rules) -> int:
    if law.packing in ("free", "dense") or not _compressed(groups[0]):
        return 0
    widths = _full_pages(groups)
    return sum(_padded_page(p.page, widths) for p in group)


def _compressed(placed: Sequence[Placed]) -> bool:
    return any(p.cache.stride > 1 or p.cache.block_tokens for p in placed)


def _full_pages(groups: Sequence[Sequence[Placed]]) -> list[int]:
    return sorted({p.page for group in groups for p in group if p.cache.kind == "full"})


def _padded_page(page: int, widths: Sequence[int]) -> int:
    """A window's page, padded to the next page size of the full layers."""
    return next((width for width in widths if width >= page), page)
