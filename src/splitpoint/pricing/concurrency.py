"""Requests a KV pool holds, and what each setting costs in requests.

Two figures stand side by side: what the engine prints (blocks over blocks per request at its
longest length) and what it can admit (block 0 is never used, requests are whole).
"""

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from splitpoint.inputs.deployment import Topology, problems
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Dtype, Model
from splitpoint.pricing.blocks import blocks_per_request, group_blocks, layout
from splitpoint.pricing.caches import kv_dtype_of
from splitpoint.pricing.engines import resolved, rules
from splitpoint.pricing.ladder import ladder
from splitpoint.pricing.layout import KvLayout
from splitpoint.record import Record
from splitpoint.units import ceil_div

LAYOUT_RUNGS = {"weights", "activations", "non_torch", "graphs", "kv"}
DTYPE_STEPS: tuple[Dtype, ...] = ("bf16", "fp8")
UTILIZATION_STEP = 0.01


class Cost(Record, frozen=True, kw_only=True):
    """One change of one setting, and the requests of a rank before and after it.

    For the setting "layout" they are those of all ranks, on the same GPUs.
    """

    setting: str
    before: str
    after: str
    requests_before: int
    requests_after: int

    @property
    def requests(self) -> int:
        """Requests gained (negative: lost) by the change."""
        return self.requests_after - self.requests_before


def num_blocks(layout: KvLayout, kv_bytes: int) -> int:
    """Blocks of a pool: floor(bytes / block bytes), block 0 among them."""
    return max(kv_bytes, 0) // layout.block_bytes


def max_concurrency(layout: KvLayout, kv_bytes: int, tokens: int) -> float:
    """What the engine prints for one rank: blocks / blocks of a request of `tokens` tokens.

    Versions that weigh blocks divide by ceil(sum of blocks x bytes / bytes of the first group's).
    """
    first = layout.groups[0].counted_bytes
    need = blocks_per_request(layout, tokens)
    if first:
        weighed = sum(group_blocks(layout, g, tokens) * g.counted_bytes for g in layout.groups)
        need = ceil_div(weighed, first)
    return num_blocks(layout, kv_bytes) / need if need else 0.0


def requests_held(layout: KvLayout, kv_bytes: int, tokens: int) -> int:
    """Whole requests of `tokens` tokens that one rank holds at once; block 0 is never used."""
    need = blocks_per_request(layout, tokens)
    usable = max(num_blocks(layout, kv_bytes) - 1, 0)
    return usable // need if need else 0


def kv_tokens_reported(
    layout: KvLayout, kv_bytes: int, max_len: int, engine: Engine, topology: Topology
) -> int:
    """The "KV cache size" in tokens as this engine version prints it.

    concurrency x max length; before vLLM 0.20: blocks // groups x block tokens x dcp.
    """
    if rules(engine, topology).tokens_by_concurrency:
        return int(max_concurrency(layout, kv_bytes, max_len) * max_len)
    shares = layout.block_tokens * layout.dcp
    return num_blocks(layout, kv_bytes) // len(layout.groups) * shares


def bytes_for(layout: KvLayout, tokens: int, requests: int = 1) -> int:
    """Pool bytes that hold `requests` whole requests of `tokens` tokens, block 0 included."""
    return (blocks_per_request(layout, tokens) * requests + 1) * layout.block_bytes


def costs(
    model: Model,
    gpu: Gpu,
    topology: Topology,
    engine: Engine,
    tokens: int,
    *,
    overrides: Mapping[str, int],
) -> tuple[Cost, ...]:
    """What drafts, utilisation, the graph reserve, block size, KV dtype, prefix caching and tensor
    against data parallelism cost.

    Each setting is changed alone from the given one; an unset value follows the engine's rules,
    and a rung that is set stays as it is (one that is set for this layout rules out others).
    """
    base = _held(model, gpu, topology, engine, tokens, overrides)
    kv_dtype = kv_dtype_of(model, engine)
    block = resolved(engine, gpu, topology, model).block_size or 0
    lower = max(engine.utilization - UTILIZATION_STEP, engine.utilization / 2)
    changes: list[tuple[str, str, str, Engine]] = [
        (
            "utilization",
            f"{engine.utilization:g}",
            f"{lower:g}",
            replace(engine, utilization=lower),
        ),
        ("block_size", str(block), str(4 * block), replace(engine, block_size=4 * block)),
    ]
    if engine.drafts:
        changes.append(("drafts", str(engine.drafts), "0", replace(engine, drafts=0)))
    elif model.draft_layers:
        changes.append(("drafts", "0", "1", replace(engine, drafts=1)))
    if engine.graphs:
        changes.append(("graphs", "on", "off", replace(engine, graphs=False, max_graph=None)))
    changes += [
        ("kv_dtype", kv_dtype, dtype, replace(engine, kv_dtype=dtype))
        for dtype in DTYPE_STEPS
        if dtype != kv_dtype
    ]
    turned = "off" if engine.prefix_caching else "on"
    changes.append(
        (
            "prefix_caching",
            "on" if engine.prefix_caching else "off",
            turned,
            replace(engine, prefix_caching=not engine.prefix_caching),
        )
    )
    settings = tuple(
        Cost(
            setting=setting,
            before=before,
            after=after,
            requests_before=base,
            requests_after=_held(model, gpu, topology, changed, tokens, overrides),
        )
        for setting, before, after, changed in changes
    )
    if LAYOUT_RUNGS & set(overrides):
        return settings
    return settings + tuple(_layouts(model, gpu, topology, engine, tokens, overrides, base))


def _layouts(
    model: Model,
    gpu: Gpu,
    topology: Topology,
    engine: Engine,
    tokens: int,
    overrides: Mapping[str, int],
    base: int,
) -> Iterator[Cost]:
    """Half the tensor parallelism, and none, made up for by data parallel ranks, or by replicas
    where the model has no experts to share."""
    for parts in sorted({2, topology.tp}):
        if topology.tp % parts or topology.tp == 1:
            continue
        tp, dp = topology.tp // parts, topology.dp * parts
        ranks = replace(topology, tp=tp, dp=dp, dcp=1)
        alone = replace(topology, tp=tp, dcp=1)
        if not problems(ranks, model):
            other, copies, name = ranks, 1, str(ranks)
        elif not problems(alone, model):
            other, copies, name = alone, parts, f"{parts}x{alone}"
        else:
            continue
        yield Cost(
            setting="layout",
            before=str(topology),
            after=name,
            requests_before=base * topology.dp,
            requests_after=copies * other.dp * _held(model, gpu, other, engine, tokens, overrides),
        )


def _held(
    model: Model,
    gpu: Gpu,
    topology: Topology,
    engine: Engine,
    tokens: int,
    overrides: Mapping[str, int],
) -> int:
    settled = resolved(engine, gpu, topology, model)
    pool = ladder(model, gpu, topology, settled, overrides=overrides).kv_bytes
    return requests_held(layout(model, topology, settled), pool, tokens)
