"""Every legal instance of a model on a GPU, and which of them the memory and the workload allow.

Legal is what the engine would start: degrees that divide the model, whole nodes or domains under
tensor parallelism, attention ranks (dp) only where experts are shared.
"""

from collections.abc import Iterator

from msgspec.structs import asdict, replace

from splitpoint.inputs.deployment import Topology, problems
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Experts, Model
from splitpoint.inputs.plan import EnginePlan, Search
from splitpoint.pricing.blocks import blocks_per_request
from splitpoint.record import Record
from splitpoint.search.instance import Holding, holding


class Shortfall(Record, frozen=True, kw_only=True):
    """An instance left out: why, and the bytes per rank that it lacks (0 where none)."""

    name: str
    why: str
    bytes: int = 0


class Space(Record, frozen=True, kw_only=True):
    """The instances that hold the model and one long request, those that do not, and why."""

    holdings: tuple[Holding, ...]
    unfit: tuple[Holding, ...]
    rejected: tuple[Shortfall, ...]


DRAFTING = ("drafts", "acceptance")


def engines(plan: EnginePlan) -> tuple[Engine, ...]:
    """One engine for each number of drafts to consider."""
    counts = plan.drafts if isinstance(plan.drafts, tuple) else (plan.drafts,)
    shared = {name: value for name, value in asdict(plan).items() if name not in DRAFTING}
    return tuple(
        Engine(**shared, drafts=drafts, acceptance=plan.acceptance[:drafts])
        for drafts in dict.fromkeys(counts)
    )


def topologies(model: Model, gpu: Gpu, gpus: int, search: Search) -> tuple[Topology, ...]:
    """The topologies of at most `gpus` GPUs that the search allows, fewest GPUs first."""
    found = {
        topology: None
        for topology in _degrees(model, gpu, gpus, search)
        if topology.gpus <= gpus and not problems(topology, model)
    }
    return tuple(sorted(found, key=lambda t: (t.gpus, t.pp, t.dp, t.ep, t.dcp)))


def space(
    model: Model,
    gpu: Gpu,
    gpus: int,
    *,
    engine: EnginePlan,
    search: Search,
    longest: int,
) -> Space:
    """Every topology and number of drafts, sorted into those that hold a request of `longest`
    tokens and those that do not."""
    holdings: list[Holding] = []
    unfit: list[Holding] = []
    rejected: list[Shortfall] = []
    for settings in engines(engine):
        for topology in topologies(model, gpu, gpus, search):
            held = _held(model, gpu, topology, settings, search.kv_pool_gib)
            lack = lacking(held, longest)
            if lack is None:
                holdings.append(held)
            else:
                unfit.append(held)
                rejected.append(lack)
    return Space(holdings=tuple(holdings), unfit=tuple(unfit), rejected=tuple(rejected))


def lacking(held: Holding, longest: int) -> Shortfall | None:
    """What a rank lacks to hold the weights and one request of `longest` tokens, if anything."""
    drafts = f" drafts={held.engine.drafts}" if held.engine.drafts else ""
    name = f"{held.topology}{drafts}"
    if not held.ladder.fits:
        return Shortfall(
            name=name, why="the model does not fit", bytes=max(held.ladder.shortfall, 0)
        )
    budget = held.engine.batched_tokens or 0
    if budget < whole_block(held):
        return Shortfall(
            name=name,
            why=f"its token budget of {budget:,} is below the block of {whole_block(held):,} "
            "tokens that prefix caching of a hybrid computes whole",
        )
    have = max(held.kv_blocks - 1, 0)
    # vLLM starts only if its pool holds one request of the longest length.
    limit = (held.engine.max_len or 0) if held.engine.name == "vllm" else 0
    for tokens, what in ((longest, ""), (limit, " (max_len, without which vLLM does not start)")):
        need = blocks_per_request(held.layout, tokens) if tokens else 0
        if need > have:
            return Shortfall(
                name=name,
                why=f"one request of {tokens:,} tokens{what} needs {need:,} KV blocks of {have:,}",
                bytes=(need - have) * held.layout.block_bytes,
            )
    return None


def whole_block(held: Holding) -> int:
    """Tokens of the block that a step must be able to hold, 0 where it need not: engines refuse to
    keep a hybrid's states for the prefix cache with a smaller budget (vLLM's "align" mode)."""
    hybrid = any(group.kind == "state" for group in held.layout.groups)
    return held.layout.block_tokens if hybrid and held.engine.prefix_caching else 0


def _held(
    model: Model, gpu: Gpu, topology: Topology, engine: Engine, kv_pool_gib: float | None
) -> Holding:
    """The holding, with the least power of two as its budget where the engine's own default would
    not hold a whole block."""
    held = holding(model, gpu, topology, engine, kv_pool_gib=kv_pool_gib)
    block = whole_block(held)
    if engine.batched_tokens is not None or (held.engine.batched_tokens or 0) >= block:
        return held
    wider = replace(engine, batched_tokens=2 ** (block - 1).bit_length())
    return holding(model, gpu, topology, wider, kv_pool_gib=kv_pool_gib)


def _degrees(model: Model, gpu: Gpu, gpus: int, search: Search) -> Iterator[Topology]:
    experts = any(isinstance(layer.ffn, Experts) for layer in model.layers)
    reach = max(gpu.domain, gpu.gpus_per_node)
    widths = [n for n in _doublings(gpus) if n <= reach]
    ranks = _doublings(gpus) if experts else [1]
    for tp in search.tp or widths:
        for dp in search.dp or ranks:
            for pp in search.pp or _doublings(gpus):
                for ep in search.ep or (1, "all"):
                    if ep != 1 and not (experts and tp * dp > 1):
                        continue
                    for dcp in search.dcp or _doublings(tp):
                        yield Topology(tp=tp, dp=dp, pp=pp, ep=1 if ep == 1 else tp * dp, dcp=dcp)


def _doublings(most: int) -> list[int]:
    """1, 2, 4, ... up to `most`: the degrees that published recipes use."""
    return [2**i for i in range(most.bit_length()) if 2**i <= most]
