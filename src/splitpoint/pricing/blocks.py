"""KV blocks of one rank: page size, block tokens, groups, and blocks a request takes.

The engine draws every group's blocks from one pool of equal blocks, so a hybrid pays for its
state in whole blocks of the size that makes an attention page as large as a state.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.model import Layer, Model
from splitpoint.pricing.caches import Cache, GroupKind, layer_caches
from splitpoint.pricing.engines import Rules, rules
from splitpoint.record import Record
from splitpoint.units import ceil_div

__all__ = [
    "Group",
    "GroupKind",
    "KvLayout",
    "blocks_per_request",
    "group_blocks",
    "layout",
    "page_of",
    "stage_of",
]


class Group(Record, frozen=True, kw_only=True):
    """Layers that share one block table. `window`: tokens for window and chunk groups; `fixed`:
    blocks a state group holds whatever the context. `padding` layers fill the group.
    `block_tokens`: tokens of this group's blocks where they differ from the layout's (0: equal).
    `content_bytes`: what one block holds once written, all its layers, without padding.
    `counted_bytes`: what a block weighs in the concurrency that older versions print (0: all
    blocks weigh the same). `role`: the cache in words."""

    kind: GroupKind
    layers: int
    padding: int = 0
    window: int = 0
    fixed: int = 0
    block_tokens: int = 0
    content_bytes: int = 0
    counted_bytes: int = 0
    role: str = ""


class KvLayout(Record, frozen=True, kw_only=True):
    """How one rank lays out its KV memory.

    A block holds `block_tokens` tokens of each of a group's `group_layers` layers and takes
    `block_bytes` = group_layers x page_bytes from the pool. `in_flight`: tokens that a window
    group may hold beyond its window. Where pages differ in size, `packed_bytes` is the block and
    `page_bytes` the largest page. With pipeline stages it describes the stage that needs most.
    """

    block_tokens: int
    page_bytes: int
    group_layers: int
    groups: tuple[Group, ...]
    in_flight: int
    unpadded_state_bytes: int = 0
    packed_bytes: int = 0
    tp: int = 1
    pp: int = 1

    @property
    def block_bytes(self) -> int:
        """Bytes of one pool block."""
        return self.packed_bytes or self.group_layers * self.page_bytes

    @property
    def padding_share(self) -> float:
        """Bytes added to a state so that its page equals an attention page, over the state."""
        if not self.unpadded_state_bytes:
            return 0.0
        return self.page_bytes / self.unpadded_state_bytes - 1


class Owned(NamedTuple):
    """A cache with the layer and the pipeline stage that own it."""

    layer: int
    stage: int
    cache: Cache


class Placed(NamedTuple):
    """A cache of one layer, the block in force for it, and the pipeline stage that owns it."""

    cache: Cache
    layer: int
    stage: int
    block_tokens: int
    page: int
    content: int


def layout(
    model: Model, topology: Topology, engine: Engine, *, smallest_block: int = 16
) -> KvLayout:
    """How one rank of a resolved engine lays out this model's caches (the worst stage).

    `smallest_block`: tokens of the attention backend's smallest block (16 on GPUs, 32 on CPUs).
    """
    if engine.block_size is None or engine.batched_tokens is None:
        raise PlanError("engine", "is not resolved", "pass it through pricing.engines.resolved")
    caches = _owned(model, topology, engine)
    if not caches:
        raise PlanError(model.name, "no layer caches anything", "check its layers")
    law = rules(engine, topology)
    in_flight = law.batches_in_flight * engine.batched_tokens
    states = [cache.entry for _, _, cache in caches if cache.kind == "state"]
    if not law.pages_equal:
        return _token_pool(caches, topology, engine.block_size, in_flight, law.state_blocks)
    token_bytes = max(
        (c.entry for _, _, c in caches if c.kind != "state" and c.role != "index"), default=0
    )
    latent = any(c.latent for _, _, c in caches)
    grain = _grain(engine.block_size, smallest_block, latent, law)
    block = _block_tokens(max(states, default=0), token_bytes, engine.block_size, grain)
    groups = _groups(_placed(caches, block, token_bytes), law)
    needs = [_stage_bytes(groups, stage, law) for stage in range(topology.pp)]
    worst = needs.index(max(needs))
    kept = [[p for p in group if p.stage == worst] for group in groups]
    page = max(p.page for group in groups for p in group)
    group_layers = max(len({p.layer for p in group}) for group in kept)
    packed = max(needs) != page * group_layers
    return KvLayout(
        block_tokens=block,
        page_bytes=page,
        group_layers=group_layers,
        groups=tuple(
            replace(
                _group(whole[0], here, 0 if packed else group_layers, block, law.state_blocks),
                counted_bytes=_counted_bytes(whole, groups, law),
            )
            for whole, here in zip(groups, kept, strict=True)
        ),
        in_flight=in_flight,
        unpadded_state_bytes=max(states, default=0),
        packed_bytes=max(needs) if packed else 0,
        tp=topology.tp,
        pp=topology.pp,
    )


def blocks_per_request(layout: KvLayout, tokens: int) -> int:
    """Pool blocks that a request of `tokens` tokens takes: the sum over groups."""
    return sum(group_blocks(layout, group, tokens) for group in layout.groups)


def group_blocks(layout: KvLayout, group: Group, tokens: int) -> int:
    """Blocks of one group for a request of L tokens, as the engine reserves them.

    full ceil(L/B); window ceil(min(window - 1 + in flight, L)/B) + 1;
    chunk ceil(min(chunk + in flight, L)/B); state: its fixed number.
    """
    if tokens <= 0:
        return 0
    block = group.block_tokens or layout.block_tokens
    match group.kind:
        case "full":
            return ceil_div(tokens, block)
        case "window":
            # One more: a window need not start where a block does.
            return ceil_div(min(group.window - 1 + layout.in_flight, tokens), block) + 1
        case "chunk":
            return ceil_div(min(group.window + layout.in_flight, tokens), block)
        case "state":
            return group.fixed


def page_of(model: Model, topology: Topology, engine: Engine) -> tuple[Cache, ...]:
    """The distinct caches of the model's layers on one rank, drafts included."""
    caches: dict[Cache, None] = {}
    for layer in _layers(model, engine):
        caches.update(dict.fromkeys(layer_caches(layer, model, topology, engine)))
    return tuple(caches)


def stage_of(layers: int, pp: int) -> tuple[int, ...]:
    """The pipeline stage of each layer.

    Equal parts; what is left over goes one each to the stages before the last, from the back
    (vLLM 0.32 distributed/utils.py get_pp_indices).
    """
    sizes = [layers // pp] * pp
    for i in range(2, layers % pp + 2):
        sizes[-i] += 1
    return tuple(stage for stage, size in enumerate(sizes) for _ in range(size))


def _layers(model: Model, engine: Engine) -> tuple[Layer, ...]:
    return model.layers + (model.draft_layers if engine.drafts else ())


def _owned(model: Model, topology: Topology, engine: Engine) -> list[Owned]:
    """Every cache of every layer; draft layers follow the model's, on the last stage."""
    stages = stage_of(len(model.layers), topology.pp)
    layers = _layers(model, engine)
    # Equal layers share one object, so each kind is worked out once.
    distinct = {id(layer): layer for layer in layers}
    caches = {key: layer_caches(layer, model, topology, engine) for key, layer in distinct.items()}
    return [
        Owned(i, stages[i] if i < len(stages) else topology.pp - 1, cache)
        for i, layer in enumerate(layers)
        for cache in caches[id(layer)]
    ]


def _grain(block_size: int, smallest_block: int, latent: bool, law: Rules) -> int:
    """Block tokens of a hybrid are multiples of this."""
    grain = max(smallest_block, block_size) if law.block_is_grain else smallest_block
    return max(grain, law.latent_grain) if latent else grain


def _block_tokens(state: int, token_bytes: int, block_size: int, grain: int) -> int:
    """Tokens of a block: large enough that an attention page holds the largest state.

    block = grain x ceil(state / (grain x attention bytes per token)), never below the block size.
    """
    if not state or not token_bytes:
        return block_size
    return max(block_size, grain * ceil_div(state, grain * token_bytes))


def _placed(caches: Sequence[Owned], block: int, token_bytes: int) -> list[Placed]:
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


def _stage_bytes(groups: Sequence[Sequence[Placed]], stage: int, law: Rules) -> int:
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


def _counted_bytes(group: Sequence[Placed], groups: Sequence[Sequence[Placed]], law: Rules) -> int:
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


def _group(
    first: Placed, here: Sequence[Placed], group_layers: int, block: int, fixed: int
) -> Group:
    layers = len({p.layer for p in here})
    state = first.cache.kind == "state"
    return Group(
        kind=first.cache.kind,
        layers=layers,
        padding=max(group_layers - layers, 0),
        window=first.cache.window,
        fixed=fixed if state else 0,
        block_tokens=0 if state or first.block_tokens == block else first.block_tokens,
        content_bytes=sum(p.content for p in here),
        role=first.cache.role,
    )


def _token_pool(
    caches: Sequence[Owned],
    topology: Topology,
    block: int,
    in_flight: int,
    state_blocks: int,
) -> KvLayout:
    """Pools of their own for each kind, as one pool of equal bytes.

    A block is `block` tokens of the kind that needs most; other kinds get as many whole tokens of
    theirs into the same bytes, and states as many blocks as cover them.
    """
    by_stage = [[(i, c) for i, stage, c in caches if stage == s] for s in range(topology.pp)]
    here = max(by_stage, key=lambda owned: sum(ceil_div(c.entry, c.stride) for _, c in owned))
    kinds: dict[tuple[GroupKind, int], list[tuple[int, Cache]]] = {}
    for i, cache in here:
        kinds.setdefault((cache.kind, cache.window), []).append((i, cache))
    needs = {
        key: sum(ceil_div(block * cache.entry, cache.stride) for _, cache in owned)
        for key, owned in kinds.items()
        if key[0] != "state"
    }
    unit = max(needs.values(), default=max(sum(c.entry for _, c in o) for o in kinds.values()))
    groups = []
    for (kind, window), owned in kinds.items():
        need = needs.get((kind, window), sum(cache.entry for _, cache in owned))
        tokens = max(unit * block // need, 1)
        groups.append(
            Group(
                kind=kind,
                layers=len({i for i, _ in owned}),
                window=window,
                fixed=ceil_div(need * state_blocks, unit) if kind == "state" else 0,
                block_tokens=0 if kind == "state" or tokens == block else tokens,
                content_bytes=need if kind == "state" else need * tokens // block,
                role=owned[0][1].role,
            )
        )
    widest = max(kinds, key=lambda key: needs.get(key, 0))
    layers = len({i for i, _ in kinds[widest]})
    return KvLayout(
        block_tokens=block,
        page_bytes=ceil_div(unit, layers),
        group_layers=layers,
        groups=tuple(groups),
        in_flight=in_flight,
        unpadded_state_bytes=max((c.entry for _, c in here if c.kind == "state"), default=0),
        packed_bytes=unit,
        tp=topology.tp,
        pp=topology.pp,
    )


def _groups(placed: list[Placed], law: Rules) -> list[list[Placed]]:
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
