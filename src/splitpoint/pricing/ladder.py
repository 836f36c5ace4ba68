"""The memory ladder of one GPU rank: from the vendor's figure down to the KV pool, named rungs.

What is printed by an engine can be set rung by rung; what is not comes from a stated model of the
engine with its origin and error band. The CUDA context lies between `hbm` and what PyTorch sees
and is never subtracted a second time.
"""

import math
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Literal, cast, get_args

import msgspec

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.drafter import method_of
from splitpoint.inputs.engine import Engine, EngineName
from splitpoint.inputs.gpu import GIB, Gpu
from splitpoint.inputs.model import Experts, Ffn, Mlp, Model
from splitpoint.pricing.engines import Rules, capture_sizes, decode_sizes, rules
from splitpoint.pricing.weights import drafter_weights, rank_weights
from splitpoint.record import Record
from splitpoint.units import ceil_div

RungName = Literal[
    "physical",
    "driver",
    "utilization",
    "weights",
    "activations",
    "non_torch",
    "graphs",
    "kv",
]
RUNGS: tuple[RungName, ...] = get_args(RungName)
Origin = Literal["computed", "published", "measured", "assumed"]
MIB = 2**20
SET_BY_USER = "set by the user"
ACTIVATION_BYTES = 2
LOGIT_BYTES = 4


class ActivationFacts(Record, frozen=True, kw_only=True):
    """Least peak of a profile run in GiB; `shared_experts`: dp ranks that exchange experts."""

    floor: float
    floor_shared_experts: float
    band: float
    floor_source: str = ""
    floor_shared_experts_source: str = ""
    band_source: str = ""


class NonTorchFacts(Record, frozen=True, kw_only=True):
    """Memory outside PyTorch in GiB: one GPU; a group of tp ranks, group + tp x per_rank; under
    expert parallelism `logits_copies` fp32 logits a sequence more, and with dp `shared_experts`."""

    one_gpu: float
    group: float
    per_rank: float
    shared_experts: float
    logits_copies: float
    band: float
    one_gpu_source: str = ""
    group_source: str = ""
    shared_experts_source: str = ""
    band_source: str = ""


class GraphFacts(Record, frozen=True, kw_only=True):
    """MiB that one captured graph takes per layer; `factor`: how far a charged estimate strays."""

    piecewise: float
    decode_only: float
    decode_only_shared_experts: float
    factor: float
    piecewise_source: str = ""
    decode_only_source: str = ""
    decode_only_shared_experts_source: str = ""
    factor_source: str = ""


class MemoryFacts(Record, frozen=True, kw_only=True):
    """One engine's file in facts/engines."""

    activations: ActivationFacts
    non_torch: NonTorchFacts
    graphs: GraphFacts


class Rung(Record, frozen=True, kw_only=True):
    """One rung: `physical` starts the ladder, `kv` ends it, those between are taken away.

    `band`: how far the true value may lie from an estimate, either way.
    """

    name: RungName
    bytes: int
    origin: Origin
    source: str
    band: int = 0


class Ladder(Record, frozen=True, kw_only=True):
    """The rungs in order: physical - driver - utilization - weights - activations - non_torch -
    graphs = kv. A negative rest is the shortfall."""

    rungs: tuple[Rung, ...]

    def __getitem__(self, name: RungName) -> Rung:
        return next(rung for rung in self.rungs if rung.name == name)

    @property
    def rest(self) -> int:
        """What remains for the KV pool; negative where the rungs above need more."""
        return self["kv"].bytes

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV pool."""
        return max(self.rest, 0)

    @property
    def fits(self) -> bool:
        """Whether anything is left for a KV pool."""
        return self.rest > 0

    @property
    def shortfall(self) -> int:
        """Bytes that are missing before a KV pool could exist."""
        return max(-self.rest, 0)

    @property
    def band(self) -> int:
        """How far the KV pool may lie from its figure: the sum of the estimates' bands."""
        return sum(rung.band for rung in self.rungs if rung.name != "kv")


def ladder(
    model: Model,
    gpu: Gpu,
    topology: Topology,
    engine: Engine,
    *,
    overrides: Mapping[str, int] | None = None,
) -> Ladder:
    """The memory ladder of a resolved engine's heaviest rank; `overrides` sets rungs in bytes."""
    given = _checked(overrides or {})
    law = rules(engine, topology)
    physical = _rung(given, "physical", physical_bytes(gpu), *_source(gpu, "marketed_gb"))
    driver = _rung(given, "driver", physical.bytes - gpu.hbm, *_source(gpu, "hbm_gib"))
    total = physical.bytes - driver.bytes
    weights = (
        _given("weights", given["weights"])
        if "weights" in given
        else Rung(
            name="weights",
            bytes=weight_bytes(model, gpu, topology, engine),
            origin="computed" if model.checkpoint is None else "published",
            source="parameters by kind and dtype, as the engine shards them"
            if model.checkpoint is None
            else "the checkpoint's own index, as the engine shards it",
        )
    )
    activations = _rung(given, "activations", *activation_bytes(model, topology, engine, law))
    non_torch = _rung(given, "non_torch", *non_torch_bytes(model, topology, engine))
    graphs = _rung(given, "graphs", *graph_bytes(model, topology, engine, law, activations.bytes))
    if law.budget != "of total":
        # The reserve pays for them, they are not charged beside it.
        graphs = _unless(given, graphs, "paid from the reserve of the memory fraction")
    if law.budget == "of free before load":
        activations = _unless(given, activations, "paid from the reserve of the memory fraction")
    taken = weights.bytes + activations.bytes + non_torch.bytes + graphs.bytes
    unused = _unused(law, engine.utilization, total, non_torch.bytes, taken)
    utilization = _rung(given, "utilization", unused, "computed", _fraction_words(law, engine))
    rest = total - utilization.bytes - taken
    kv = _rung(given, "kv", rest, "computed", "what the rungs above leave")
    return Ladder(
        rungs=(physical, driver, utilization, weights, activations, non_torch, graphs, kv)
    )


def physical_bytes(gpu: Gpu) -> int:
    """Bytes of HBM on the package.

    Vendors print GB; read as 10^9 bytes most figures lie below what the driver reports, so GiB is
    meant wherever that is so.
    """
    return max(round(gpu.marketed_gb * GIB), gpu.hbm)


def weight_bytes(model: Model, gpu: Gpu, topology: Topology, engine: Engine) -> int:
    """Bytes of weights on the heaviest rank, draft layers inside when the engine drafts.

    Where an index states the checkpoint's bytes: those x the rank's share of the stored weights,
    plus what is made only in memory.
    """
    method = method_of(engine, model) if engine.drafts else None
    own = method == "mtp"
    rank = rank_weights(model, topology, drafts=own, engine=engine, gpu=gpu)
    size = rank.total
    if model.checkpoint is not None:
        stated = model.checkpoint_drafts
        whole = rank_weights(model, Topology(), drafts=stated, engine=engine, gpu=gpu)
        size = ceil_div(model.checkpoint * rank.stored, whole.stored) + rank.total - rank.stored
    if method in ("eagle3", "draft_model"):
        size += drafter_weights(model, topology, engine, gpu)
    return size


def activation_bytes(
    model: Model, topology: Topology, engine: Engine, law: Rules
) -> tuple[int, Origin, str, int]:
    """Peak activations of the profile run: max(sampler + hidden, forward, floor).

    sampler = copies x sequences x vocabulary x 4 bytes; hidden = 2 x tokens x hidden x 2 bytes;
    forward = tokens x (4 x hidden + widest layer) x 2 bytes.
    """
    facts = _facts(engine.name).activations
    tokens = _batched_tokens(engine)
    seqs = min(engine.max_seqs or 1, tokens)
    copies = law.sampler_copies + (law.draft_copies if engine.drafts else 0)
    sampler = round(copies * seqs * model.vocab * LOGIT_BYTES)
    hidden = 2 * tokens * model.hidden * ACTIVATION_BYTES
    distinct = {id(layer.ffn): layer.ffn for layer in model.layers}
    widest = max((_width(ffn, model, topology) for ffn in distinct.values()), default=0)
    forward = tokens * (4 * model.hidden + widest) * ACTIVATION_BYTES
    shared = topology.ep > 1 and topology.dp > 1
    floor = _bytes(facts.floor_shared_experts if shared else facts.floor)
    peak = max(sampler + hidden, forward, floor)
    leader = {sampler + hidden: "the sampler", forward: "the widest layer"}.get(
        peak, "a fixed floor"
    )
    return peak, "assumed", f"model of the profile run, led by {leader}", _bytes(facts.band)


def non_torch_bytes(
    model: Model, topology: Topology, engine: Engine
) -> tuple[int, Origin, str, int]:
    """Memory outside PyTorch: one figure for one GPU, a line in tp for a group, and what expert
    parallelism adds."""
    facts = _facts(engine.name).non_torch
    if topology.gpus == 1:
        return _bytes(facts.one_gpu), "published", facts.one_gpu_source, 0
    size = _bytes(facts.group + topology.tp * facts.per_rank)
    band = 0
    if topology.ep > 1:
        logits = (engine.max_seqs or 1) * model.vocab * LOGIT_BYTES
        size += round(facts.logits_copies * logits)
        size += _bytes(facts.shared_experts) if topology.dp > 1 else 0
        band = _bytes(facts.band)
    return size, "assumed", facts.group_source, band


def graph_bytes(
    model: Model, topology: Topology, engine: Engine, law: Rules, first: int
) -> tuple[int, Origin, str, int]:
    """The CUDA-graph estimate that is charged: first capture + (graphs - 1) x bytes per graph.

    The first capture takes the activations of the largest batch that is captured, at most the
    profile run's peak `first`.
    """
    facts = _facts(engine.name).graphs
    sizes = capture_sizes(engine)
    if not sizes:
        return 0, "computed", "no graphs", 0
    if not law.charges_graphs:
        return 0, "computed", "this version does not charge its graphs to the pool", 0
    layers = len(model.layers)
    decodes = len(decode_sizes(engine))
    if engine.graph_mode == "full_decode_only":
        shared = topology.ep > 1 and topology.dp > 1
        per_layer = facts.decode_only_shared_experts if shared else facts.decode_only
        extra = (decodes - 1) * max(round(per_layer * MIB) * layers, MIB)
        count = f"{decodes} decode graphs"
    else:
        pieces = len(sizes)
        extra = (pieces - 1) * max(round(facts.piecewise * MIB) * layers, MIB)
        count = f"{pieces} piecewise graphs"
        if engine.graph_mode == "full_and_piecewise":
            # Decode graphs find the pool filled by the piecewise ones: the 1 MiB that is least.
            extra += (decodes - 1) * MIB
            count += f", {decodes} decode graphs"
    share = min(sizes[-1] / _batched_tokens(engine), 1.0)
    size = round(first * share) + extra
    return size, "assumed", f"model of the capture: {count}", round(size * (facts.factor - 1))


def _width(ffn: Ffn | None, model: Model, topology: Topology) -> int:
    """Elements a token holds inside a layer: gate, up and product; for experts once per expert
    it takes, with its copy on the way in and out."""
    if ffn is None:
        return 0
    if isinstance(ffn, Mlp):
        return 3 * ceil_div(ffn.width, topology.tp)
    return _expert_width(ffn, model, topology)


def _expert_width(ffn: Experts, model: Model, topology: Topology) -> int:
    outer = 2 * (ffn.latent_dim or model.hidden)
    if topology.ep > 1:
        # A rank receives its share of what all attention ranks send.
        arriving = ceil_div(ffn.active * topology.dp, topology.ep)
        return arriving * (3 * ffn.width + outer)
    return ffn.active * (3 * ceil_div(ffn.width, topology.tp * topology.dp) + outer)


def _unused(law: Rules, fraction: float, total: int, non_torch: int, taken: int) -> int:
    """What the memory fraction leaves alone."""
    match law.budget:
        case "of total":
            return total - math.ceil(total * fraction)
        case "of free before load":
            return round((total - non_torch) * (1 - fraction))
        case "of free after load":
            return max(round((total - taken) * (1 - fraction)), 0)


def _source(gpu: Gpu, field: str) -> tuple[Origin, str]:
    """Origin and words of a GPU's field, whose source says "published: ..." or the like."""
    text = gpu.sources.get(field, "")
    origin, colon, words = text.partition(": ")
    if colon and origin in get_args(Origin):
        return cast(Origin, origin), words
    return "assumed", text or f"the GPU's {field}, without a source"


def _fraction_words(law: Rules, engine: Engine) -> str:
    share = {
        "of total": "the reported memory",
        "of free before load": "the memory free before loading",
        "of free after load": "the memory free after loading",
    }[law.budget]
    return f"the engine takes {engine.utilization:g} of {share}"


def _rung(
    given: Mapping[str, int], name: RungName, size: int, origin: Origin, source: str, band: int = 0
) -> Rung:
    if name in given:
        return _given(name, given[name])
    return Rung(name=name, bytes=size, origin=origin, source=source, band=band)


def _given(name: RungName, size: int) -> Rung:
    return Rung(name=name, bytes=size, origin="measured", source=SET_BY_USER)


def _unless(given: Mapping[str, int], rung: Rung, why: str) -> Rung:
    if rung.name in given:
        return rung
    return Rung(name=rung.name, bytes=0, origin="computed", source=why)


def _checked(overrides: Mapping[str, int]) -> Mapping[str, int]:
    for name, size in overrides.items():
        if name not in RUNGS:
            raise PlanError(f"--set {name}", "is not a rung", f"one of {', '.join(RUNGS)}")
        if size < 0:
            raise PlanError(f"--set {name}", f"{size} bytes", "a rung cannot be negative")
    return overrides


def _batched_tokens(engine: Engine) -> int:
    if engine.batched_tokens is None:
        raise PlanError("engine", "is not resolved", "pass it through pricing.engines.resolved")
    return engine.batched_tokens


@cache
def _facts(name: EngineName) -> MemoryFacts:
    path = files("splitpoint") / "facts" / "engines" / f"{name}.toml"
    return msgspec.toml.decode(path.read_bytes(), type=MemoryFacts)


def _bytes(size_gib: float) -> int:
    return round(size_gib * GIB)
