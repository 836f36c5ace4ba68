"""Weights: how many parameters of each kind a model has, and the bytes that one rank holds.

A layer is a list of parts. A part is `units` equal pieces that tensor parallelism deals out: heads
for attention, columns for an MLP, one piece for what every rank keeps whole. Counting and sharding
read the same list, so that the ranks together hold the whole plus what is stated as replicated.
"""

from collections import Counter
from functools import cache
from typing import Literal, NamedTuple

import msgspec

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import (
    Attention,
    Compressed,
    Dtype,
    Experts,
    Ffn,
    Indexer,
    Latent,
    Layer,
    LinearState,
    Mixer,
    Model,
    WeightDtypes,
)
from splitpoint.record import Record

Kind = Literal[
    "attention",
    "state",
    "mlp",
    "experts",
    "shared_experts",
    "router",
    "norms",
    "combine",
    "embeddings",
    "lm_head",
]
Stored = Literal[
    "attention",
    "attention_out",
    "state",
    "mlp",
    "experts",
    "shared_experts",
    "embeddings",
    "lm_head",
    "model",
]
Cut = Literal["tp", "experts", "shared"]

BITS: dict[Dtype, int] = {
    "fp32": 32,
    "bf16": 16,
    "fp16": 16,
    "fp8": 8,
    "int8": 8,
    "int4": 4,
    "mxfp4": 4,
    "nvfp4": 4,
}
# OCP Microscaling v1.0 (2023): one E8M0 byte per 32 values; NVFP4: one E4M3 byte per 16.
SCALES: dict[Dtype, tuple[int, int]] = {"mxfp4": (32, 8), "nvfp4": (16, 8)}

# vLLM pads the vocabulary to this before it cuts it (DEFAULT_VOCAB_PADDING_SIZE).
VOCAB_PADDING = 64

# The MXFP4 expert kernels of vLLM need padded matrices (quantization/mxfp4.py, 2025): Marlin's the
# hidden size to 256 and a rank's expert width to 128, FlashInfer's on Blackwell both to 256,
# Triton's the width to 64. Printed loads on Hopper fit Triton with 0.11 and Marlin with 0.22; where
# between the two the change came is assumed.
MXFP4_HIDDEN = 256
MXFP4_WIDTH = 128
MXFP4_WIDTH_TRITON = 64
MXFP4_WIDTH_BLACKWELL = 256
MARLIN_SINCE = (0, 12)


class Parameters(Record, frozen=True, kw_only=True):
    """Weights by kind. `combine`: the projection in front of a draft layer that joins the hidden
    state and the next token's embedding. `active_experts`: those of `experts` one token uses."""

    attention: int
    state: int
    mlp: int
    experts: int
    active_experts: int
    shared_experts: int
    router: int
    norms: int
    combine: int
    embeddings: int
    lm_head: int

    @property
    def total(self) -> int:
        """All weights of the text model; tied embeddings count once."""
        return sum(getattr(self, kind) for kind in KINDS)

    @property
    def active(self) -> int:
        """Weights that one token uses: total - experts + active_experts, the embedding table
        included, as most publishers count."""
        return self.total - self.experts + self.active_experts


class RankWeights(Record, frozen=True, kw_only=True):
    """Bytes by kind on the heaviest rank. `absorbed`: the 16-bit copy of the quantised MLA
    up-projection that the engine keeps for decode. `encoder`: a vision tower beside the text
    model. `padding`: what kernels add to the experts' matrices. `rotary`: position tables in the
    model's dtype, max_len x rotary_dim (Llama 3.1 8B prints 14.99 GiB with them, 14.96 without)."""

    attention: int
    state: int
    mlp: int
    experts: int
    shared_experts: int
    router: int
    norms: int
    combine: int
    embeddings: int
    lm_head: int
    absorbed: int
    encoder: int
    padding: int
    rotary: int

    @property
    def total(self) -> int:
        """Bytes of all weights on the rank."""
        return sum(msgspec.structs.astuple(self))

    @property
    def stored(self) -> int:
        """Bytes that come from the checkpoint: without what is made in memory."""
        return self.total - self.absorbed - self.padding - self.rotary


KINDS: tuple[Kind, ...] = (
    "attention",
    "state",
    "mlp",
    "experts",
    "shared_experts",
    "router",
    "norms",
    "combine",
    "embeddings",
    "lm_head",
)
LATEST = Engine()


class Part(NamedTuple):
    """`units` pieces of `unit` weights each; `copies` such parts (one per expert)."""

    kind: Kind
    stored: Stored
    unit: int
    units: int = 1
    cut: Cut = "tp"
    copies: int = 1

    @property
    def whole(self) -> int:
        """Weights of the whole part."""
        return self.unit * self.units * self.copies


def parameters(model: Model, *, drafts: bool = False) -> Parameters:
    """Weights of the text model by kind, with the draft layers' if asked."""
    counts: Counter[str] = Counter()
    for layer, times in Counter(model.layers).items():
        _count(counts, layer_parts(layer, model.hidden), times, layer.ffn)
    if drafts:
        for layer, times in Counter(model.draft_layers).items():
            _count(counts, layer_parts(layer, model.hidden), times, layer.ffn)
        if model.draft_layers:
            _count(counts, draft_parts(model), 1, None)
    counts["norms"] += model.hidden
    counts["embeddings"] = model.vocab * model.hidden
    counts["lm_head"] = 0 if model.tied_embeddings else model.vocab * model.hidden
    names = (*KINDS, "active_experts")
    return Parameters(**{name: counts[name] for name in names})


def rank_weights(
    model: Model,
    topology: Topology,
    *,
    drafts: bool,
    engine: Engine = LATEST,
    gpu: Gpu | None = None,
) -> RankWeights:
    """Bytes of weights on the heaviest rank, as vLLM shards them.

    Heads, columns and vocabulary by tp; KV heads replicated past their count; MLA
    down-projections, norms and routers on every rank; experts by tp x dp, or whole experts
    ceil(count / ep); layers by pipeline stage, where the heaviest stage counts. The engine's
    version and the GPU decide how MXFP4 experts are padded.
    """
    width = _mxfp4_width(engine, gpu)
    stages = [_stage(model, topology, drafts, width, s) for s in range(topology.pp)]
    return max(stages, key=lambda stage: stage.total)


def drafter_weights(model: Model, topology: Topology, engine: Engine, gpu: Gpu | None) -> int:
    """Bytes on a rank of the head or smaller model that drafts, cut by tp like its model.

    An EAGLE-3 head (vLLM llama_eagle3.py) keeps whole on every rank its projection of the target's
    hidden states and the map of its vocabulary (8 bytes a token), and brings an embedding table
    only where it is not as wide as its target.
    """
    head = model.drafter
    assert head is not None
    place = Topology(tp=topology.tp)
    if not head.fused:
        return rank_weights(head, place, drafts=False, engine=engine, gpu=gpu).total
    layers = sum(
        size
        for layer in head.layers
        for size in _layer_bytes(layer, head, place, _mxfp4_width(engine, gpu)).values()
    )
    whole = _bytes(head.fused * head.hidden + head.hidden, head.dtype, head.weights)
    rotary = _bytes(head.max_len * head.rotary_dim, head.dtype, head.weights)
    rows = _ceil(_up(head.vocab, VOCAB_PADDING), place.tp)
    tables = _bytes(rows * head.hidden, head.weights.lm_head, head.weights) + 8 * head.vocab
    if head.hidden != model.hidden:
        own = _ceil(_up(model.vocab, VOCAB_PADDING), place.tp) * head.hidden
        tables += _bytes(own, head.weights.embeddings, head.weights)
    return layers + whole + rotary + tables


def stage_layers(layers: int, pp: int) -> tuple[int, ...]:
    """Layers of each pipeline stage as vLLM deals them: a remainder goes to the stages before the
    last, from the back."""
    base, rest = divmod(layers, pp)
    counts = [base] * pp
    for i in range(2, rest + 2):
        counts[-i] += 1
    return tuple(counts)


def _count(counts: Counter[str], parts: tuple[Part, ...], times: int, ffn: Ffn | None) -> None:
    for part in parts:
        counts[part.kind] += part.whole * times
        if part.kind == "experts" and isinstance(ffn, Experts):
            counts["active_experts"] += part.whole * times * ffn.active // ffn.count


def _stage(
    model: Model, topology: Topology, drafts: bool, mxfp4_width: int, stage: int
) -> RankWeights:
    """Bytes on one rank of a pipeline stage."""
    counts = stage_layers(len(model.layers), topology.pp)
    start = sum(counts[:stage])
    first, last = stage == 0, stage == topology.pp - 1
    size: Counter[str] = Counter()
    held = Counter(model.layers[start : start + counts[stage]])
    drafted = drafts and last and bool(model.draft_layers)
    if drafted:
        held.update(model.draft_layers)
    for layer, times in held.items():
        for name, found in _layer_bytes(layer, model, topology, mxfp4_width).items():
            size[name] += found * times
    if drafted:
        for part in draft_parts(model):
            size[part.kind] += _stored(_on_rank(part, topology), part, model, model.weights)
    if held:
        size["rotary"] = _bytes(model.max_len * model.rotary_dim, model.dtype, model.weights)
    # A draft module on a later stage than the embeddings brings a copy of them.
    tables = int(first) + int(last and not first and (model.tied_embeddings or drafted))
    table = _ceil(_up(model.vocab, VOCAB_PADDING), topology.tp) * model.hidden
    size["embeddings"] += tables * _bytes(table, model.weights.embeddings, model.weights)
    if last:
        size["norms"] += _bytes(model.hidden, model.dtype, model.weights)
        head = 0 if model.tied_embeddings else table
        size["lm_head"] += _bytes(head, model.weights.lm_head, model.weights)
    if first:
        size["encoder"] += _bytes(_ceil(model.encoder, topology.tp), model.dtype, model.weights)
    return RankWeights(**{name: size[name] for name in RankWeights.__struct_fields__})


def _layer_bytes(
    layer: Layer, model: Model, topology: Topology, mxfp4_width: int
) -> dict[str, int]:
    weights = layer.weights or model.weights
    size: Counter[str] = Counter()
    for part in layer_parts(layer, model.hidden):
        count = _on_rank(part, topology)
        size[part.kind] += _stored(count, part, model, weights)
        mxfp4 = part.stored == "experts" and weights.experts == "mxfp4"
        if mxfp4 and isinstance(layer.ffn, Experts):
            padded = _padded(part, layer.ffn, count, topology, mxfp4_width)
            size["padding"] += _stored(padded - count, part, model, weights)
    if isinstance(layer.mixer, Latent) and BITS[weights.attention] < 16:
        mla = layer.mixer
        width = mla.kv_rank * (mla.nope_dim + mla.value_dim)
        size["absorbed"] += width * _ceil(mla.heads, topology.tp) * 2
    return size


def _on_rank(part: Part, topology: Topology) -> int:
    """Weights of a part on the rank that has most of them."""
    tp, ep = topology.tp, topology.ep
    if part.cut == "experts":
        if ep > 1:
            return part.unit * part.units * _ceil(part.copies, ep)
        return part.unit * _ceil(part.units, tp * topology.dp) * part.copies
    # With experts dealt out and tp and dp both above one, vLLM runs the MoE block on each rank's
    # own tokens (sequence parallel), and every rank keeps the shared experts whole. Printed weights
    # of Qwen3.8-2.4T at TP4DP4+EP, 107.51 GiB, show it: 8.6 GiB of shared experts are not cut.
    whole = part.cut == "shared" and ep > 1 and tp > 1 and topology.dp > 1
    return part.unit * (part.units if whole else _ceil(part.units, tp)) * part.copies


def _padded(part: Part, ffn: Experts, count: int, topology: Topology, wanted: int) -> int:
    """`count` expert weights with both sides of each matrix rounded up for the MXFP4 kernels."""
    ways = 1 if topology.ep > 1 else topology.tp * topology.dp
    width = _ceil(ffn.width, ways)
    sides = part.unit // (3 if ffn.gated else 2)
    return count * _up(width, wanted) * _up(sides, MXFP4_HIDDEN) // (width * sides)


def _mxfp4_width(engine: Engine, gpu: Gpu | None) -> int:
    """What a rank's expert width is rounded up to."""
    if _version(engine) < MARLIN_SINCE:
        return MXFP4_WIDTH_TRITON
    blackwell = gpu is not None and gpu.architecture == "blackwell"
    return MXFP4_WIDTH_BLACKWELL if blackwell else MXFP4_WIDTH


def _version(engine: Engine) -> tuple[int, int]:
    """vLLM's major and minor version; another engine, and what is no number, count as newest."""
    if engine.name != "vllm":
        return (10**6, 0)
    parts = engine.version.split(".")[:2]
    if len(parts) < 2 or not all(part.isdecimal() for part in parts):
        return (10**6, 0)
    return int(parts[0]), int(parts[1])


def _stored(count: int, part: Part, model: Model, weights: WeightDtypes) -> int:
    return _bytes(count, dtype_of(part.stored, model, weights), weights)


def dtype_of(stored: Stored, model: Model, weights: WeightDtypes) -> Dtype:
    """The dtype that a kind of weight is stored in."""
    if stored == "model":
        return model.dtype
    if stored == "attention_out":
        return weights.attention_out or weights.attention
    found: Dtype = getattr(weights, stored)
    return found


def _bytes(count: int, dtype: Dtype, weights: WeightDtypes) -> int:
    """Bytes of `count` weights with their scales: count x (bits + scale bits / group) / 8."""
    group, scale = SCALES.get(dtype, (0, 0))
    if dtype in ("fp8", "int8", "int4"):
        group, scale = weights.scale_group, weights.scale_bits
    if group == 0:
        return _ceil(count * BITS[dtype], 8)
    return _ceil(count * (BITS[dtype] * group + scale), 8 * group)


@cache
def layer_parts(layer: Layer, hidden: int) -> tuple[Part, ...]:
    """The parts of one layer, norms included."""
    halves = int(layer.mixer is not None) + int(layer.ffn is not None)
    norms = Part("norms", "model", hidden * halves)
    mixer = () if layer.mixer is None else mixer_parts(layer.mixer, hidden)
    return (*mixer, *(() if layer.ffn is None else ffn_parts(layer.ffn, hidden)), norms)


def draft_parts(model: Model) -> tuple[Part, ...]:
    """What a draft module has beside its layers: the joining projection, 2 h x h, and three norms.

    vLLM keeps DeepSeek's projection whole on every rank and cuts the others' columns.
    """
    h = model.hidden
    latent = any(isinstance(layer.mixer, Latent | Compressed) for layer in model.draft_layers)
    joined = Part("combine", "model", 2 * h * h) if latent else Part("combine", "model", 2 * h, h)
    return (joined, Part("norms", "model", 3 * h))


def mixer_parts(mixer: Mixer, hidden: int) -> tuple[Part, ...]:
    """The parts of an attention or state mixer."""
    match mixer:
        case Attention():
            return _attention(mixer, hidden)
        case Latent():
            return _latent(mixer, hidden)
        case Compressed():
            return _compressed(mixer, hidden)
        case LinearState():
            return _state(mixer, hidden)


def _attention(a: Attention, h: int) -> tuple[Part, ...]:
    """Query (and gate) by head, key and value by KV head, output by head."""
    values = 0 if a.key_is_value else a.value_dim
    read = 2 * h if a.joined else h
    parts = [
        Part("attention", "attention", read * a.head_dim * (2 if a.gated else 1), a.heads),
        Part("attention", "attention", read * (a.head_dim + values), a.kv_heads),
        Part("attention", "attention_out", a.value_dim * h, a.heads),
    ]
    if a.bias:
        parts += [
            Part("attention", "model", a.head_dim, a.heads),
            Part("attention", "model", a.head_dim + values, a.kv_heads),
        ]
    if a.bias == "qkvo":
        parts.append(Part("attention", "model", h))
    if a.qk_norm:
        parts.append(Part("norms", "model", 2 * a.head_dim))
    if a.joined:
        parts.append(Part("norms", "model", h))
    if a.sinks:
        parts.append(Part("attention", "model", 1, a.heads))
    return (*parts, *_indexer(a.indexer, h, h))


def _latent(a: Latent, h: int) -> tuple[Part, ...]:
    """Down-projections whole on every rank, up-projections by head."""
    query = a.nope_dim + a.rope_dim
    read = 2 * h if a.joined else h
    parts = [
        Part("attention", "attention", read * (a.kv_rank + a.rope_dim)),
        Part("attention", "attention", a.kv_rank * (a.nope_dim + a.value_dim), a.heads),
        Part("attention", "attention_out", a.value_dim * h, a.heads),
        Part("norms", "model", a.kv_rank + (a.q_rank or 0)),
    ]
    if a.joined:
        parts.append(Part("norms", "model", h))
    if a.q_rank is None:
        parts.append(Part("attention", "attention", read * query, a.heads))
    else:
        parts += [
            Part("attention", "attention", read * a.q_rank),
            Part("attention", "attention", a.q_rank * query, a.heads),
        ]
    if a.gated:
        parts.append(Part("attention", "attention", h * a.value_dim, a.heads))
    return (*parts, *_indexer(a.indexer, a.q_rank or h, h))


def _indexer(indexer: Indexer | None, query_from: int, h: int) -> tuple[Part, ...]:
    """Queries, one key and the weights of the heads; whole on every rank."""
    if indexer is None or indexer.shared:
        return ()
    wide = query_from * indexer.heads * indexer.dim + h * indexer.dim
    return (
        Part("attention", "attention", wide),
        Part("attention", "model", h * indexer.heads),
        Part("norms", "model", 2 * indexer.dim),
    )


def _compressed(a: Compressed, h: int) -> tuple[Part, ...]:
    """One key-value vector for all heads; a factored output in groups; the compressors.

    A compressor projects keys and gates, twice as wide where neighbouring blocks overlap (ratio
    4), and adds a position to each of `ratio` tokens (DeepSeek V4 reference code, 2026).
    """
    heads = a.heads * a.head_dim
    parts = [
        Part("attention", "attention", h * (a.q_rank + a.head_dim)),
        Part("attention", "attention", a.q_rank * a.head_dim, a.heads),
        Part("attention", "attention_out", heads // a.o_groups * a.o_rank, a.o_groups),
        Part("attention", "attention_out", a.o_rank * h, a.o_groups),
        Part("attention", "model", 1, a.heads),
        Part("norms", "model", a.q_rank + a.head_dim),
    ]
    wide = 2 if a.ratio == 4 else 1
    if a.ratio:
        parts.append(Part("attention", "model", wide * a.head_dim * (2 * h + a.ratio)))
    if a.indexer is not None:
        i = a.indexer
        parts += [
            Part("attention", "attention", a.q_rank * i.heads * i.dim),
            Part("attention", "model", h * i.heads + wide * i.dim * (2 * h + a.ratio)),
        ]
    return tuple(parts)


def _state(s: LinearState, h: int) -> tuple[Part, ...]:
    match s.kind:
        case "gdn":
            return _gdn(s, h)
        case "kda":
            return _kda(s, h)
        case "mamba2":
            return _mamba2(s, h)
        case "mamba1":
            return _mamba1(s, h)
        case "short_conv":
            return (
                Part("state", "state", 4 * h, s.conv_channels),
                Part("state", "model", s.conv_kernel, s.conv_channels),
            )


def _gdn(s: LinearState, h: int) -> tuple[Part, ...]:
    """Queries and keys by key head; values, output gate, decay and rate by value head."""
    return (
        Part("state", "state", 2 * h * s.rows, s.key_heads),
        Part("state", "state", 3 * h * s.columns, s.heads),
        Part("state", "model", 2 * h + s.columns * s.conv_kernel + 2, s.heads),
        Part("state", "model", 2 * s.rows * s.conv_kernel, s.key_heads),
        Part("norms", "model", s.columns),
    )


def _kda(s: LinearState, h: int) -> tuple[Part, ...]:
    """As gdn with a decay per channel from a factored projection, and an output gate."""
    rank = s.gate_rank
    gate = Part("state", "state", (h if rank is None else rank) * s.columns, s.heads)
    inner = s.rows if rank is None else s.rows + rank
    per_head = h + s.rows + 1 + (2 * s.rows + s.columns) * s.conv_kernel
    return (
        Part("state", "state", 2 * h * s.rows, s.key_heads),
        Part("state", "state", 2 * h * s.columns, s.heads),
        gate,
        Part("state", "state", h * inner),
        Part("state", "state", s.rows * s.rows, s.heads),
        Part("state", "model", per_head, s.heads),
        Part("norms", "model", s.columns),
    )


def _mamba2(s: LinearState, h: int) -> tuple[Part, ...]:
    """Values, gate and output by head; the state's input and output maps by group."""
    kernel = s.conv_kernel + 1  # with its bias
    return (
        Part("state", "state", 3 * h * s.rows + h, s.heads),
        Part("state", "state", 2 * h * s.columns, s.key_heads),
        Part("state", "model", s.rows * kernel + 3 + s.rows, s.heads),
        Part("state", "model", 2 * s.columns * kernel, s.key_heads),
    )


def _mamba1(s: LinearState, h: int) -> tuple[Part, ...]:
    """Everything by channel; the time step goes through a projection of rank `key_heads`."""
    rank = s.key_heads
    return (
        Part("state", "state", 3 * h + 2 * rank + 2 * s.columns, s.heads),
        Part("state", "model", s.conv_kernel + 1 + s.columns + 2, s.heads),
        Part("norms", "model", rank + 2 * s.columns),
    )


def ffn_parts(ffn: Ffn, hidden: int) -> tuple[Part, ...]:
    """The parts of a dense or expert feed-forward."""
    matrices = 3 if ffn.gated else 2
    if not isinstance(ffn, Experts):
        return (Part("mlp", "mlp", matrices * hidden, ffn.width),)
    inner = ffn.latent_dim or hidden
    parts = [
        Part("experts", "experts", matrices * inner, ffn.width, "experts", ffn.count),
        Part("router", "model", hidden * ffn.count),
    ]
    if ffn.bias:
        first = 2 if ffn.gated else 1
        parts += [
            Part("experts", "model", first, ffn.width, "experts", ffn.count),
            Part("experts", "model", inner, 1, "experts", ffn.count),
            Part("router", "model", ffn.count),
        ]
    if ffn.latent_dim is not None:
        parts.append(Part("shared_experts", "shared_experts", 2 * hidden * inner))
    if ffn.shared_width:
        shared = Part(
            "shared_experts", "shared_experts", matrices * hidden, ffn.shared_width, "shared"
        )
        parts.append(shared)
    if ffn.dense_width:
        parts.append(Part("mlp", "mlp", matrices * hidden, ffn.dense_width))
    return tuple(parts)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _up(value: int, multiple: int) -> int:
    return _ceil(value, multiple) * multiple
