"""KV blocks of one rank: page size, block tokens, groups, and blocks a request takes.

The engine draws every group's blocks from one pool of equal blocks, so a hybrid pays for its
state in whole blocks of the size that makes an attention page as large as a state.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.model import Model
from splitpoint.pricing.caches import (
    Cache,
    Owned,
    all_layers,
    layer_caches,
    owned_caches,
)
from splitpoint.pricing.engines import Rules, rules
from splitpoint.pricing.groups import (
    Placed,
    block_tables,
    counted_bytes,
    placed_on,
    stage_bytes,
)
from splitpoint.pricing.layout import Group, GroupKind, KvLayout
from splitpoint.units import ceil_div


def layout(
    model: Model, topology: Topology, engine: Engine, *, smallest_block: int = 16
) -> KvLayout:
    """How one rank of a resolved engine lays out this model's caches (the worst stage).

    `smallest_block`: tokens of the attention backend's smallest block (16 on GPUs, 32 on CPUs).
    """
    if engine.block_size is None or engine.batched_tokens is None:
        raise PlanError("engine", "is not resolved", "pass it through pricing.engines.resolved")
    caches = owned_caches(model, topology, engine)
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
    groups = block_tables(placed_on(caches, block, token_bytes), law)
    needs = [stage_bytes(groups, stage, law) for stage in range(topology.pp)]
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
                counted_bytes=counted_bytes(whole, groups, law),
            )
            for whole, here in zip(groups, kept, strict=True)
        ),
        in_flight=in_flight,
        unpadded_state_bytes=max(states, default=0),
        packed_bytes=max(needs) if packed else 0,
        tp=topology.tp,
        pp=topology.pp,
        dcp=topology.dcp,
    )


def blocks_per_request(layout: KvLayout, tokens: int) -> int:
    """Pool blocks that a request of `tokens` tokens takes: the sum over groups."""
    return sum(group_blocks(layout, group, tokens) for group in layout.groups)


def group_blocks(layout: KvLayout, group: Group, tokens: int) -> int:
    """Blocks of one group for a request of L tokens, as the engine reserves them.

    full ceil(ceil(L/dcp)/B); window ceil(min(window - 1 + in flight, L)/B) + 1;
    chunk ceil(min(chunk + in flight, L)/B); state: its fixed number.
    """
    if tokens <= 0:
        return 0
    block = group.block_tokens or layout.block_tokens
    match group.kind:
        case "full":
            return ceil_div(ceil_div(tokens, layout.dcp), block)
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
    for layer in all_layers(model, engine):
        caches.update(dict.fromkeys(layer_caches(layer, model, topology, engine)))
    return tuple(caches)


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
        dcp=topology.dcp,
    )
