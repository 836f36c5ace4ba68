"""FLOPs and bytes of every operator of one engine step, on the busiest rank of one pipeline stage.

Exact arithmetic, no speeds: `efficiency` turns an operator into seconds. Every count may be an
array, so one call describes a step at all batch sizes of a table at once. What cannot be counted
is not here: kernel launches and host gaps (`efficiency`), messages (`collectives`).
"""

from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.drafter import draft_layers, method_of
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.model import (
    Attention,
    Compressed,
    Dtype,
    Experts,
    Indexer,
    Latent,
    Layer,
    LinearState,
    Mixer,
    Mlp,
    Model,
    WeightDtypes,
)
from splitpoint.pricing.caches import kv_dtype_of, state_dtype_of
from splitpoint.pricing.engines.rules import Version, version_of
from splitpoint.record import Record

Array = NDArray[np.float64]
Kind = Literal[
    "gemm",
    "experts",
    "prefill_attention",
    "decode_attention",
    "prefill_latent",
    "decode_latent",
    "prefill_sparse",
    "decode_sparse",
    "prefill_indexer",
    "decode_indexer",
    "selection",
    "prefill_state",
    "decode_state",
    "vector",
]

# Bytes of one stored element; nvfp4 carries one byte of scale per 16, mxfp4 one per 32.
STORED_BYTES: dict[Dtype, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
    "mxfp4": 0.5 + 1.0 / 32,
    "nvfp4": 0.5 + 1.0 / 16,
}
# Bytes of one activation as a matrix product of such weights reads it: 4-bit integer weights are
# widened to bf16, fp8 and nvfp4 activations are quantised first.
ACTIVATION_BYTES: dict[Dtype, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 2.0,
    "mxfp4": 1.0,
    "nvfp4": 0.5 + 1.0 / 16,
}
HIDDEN_BYTES = 2.0  # activations between operators are bf16 in every engine that we describe
STATE_CHUNK = 64  # tokens a chunked linear-attention kernel takes at once (flash-linear-attention)
SCORE_BYTES = 4.0  # an indexer's scores are fp32 (vLLM 0.32 sparse_attn_indexer.py)
QUERY_TILE = 128  # queries that share one read of keys and values (FlashAttention 2 and 3)


class Batch(Record, frozen=True, kw_only=True):
    """One step of one attention rank.

    `decode` sequences decode with contexts that sum to `context`; `prefill` new tokens attend
    `pairs` (query, key) pairs; `rows` sequences sample a token.
    """

    decode: Array
    context: Array
    prefill: Array
    pairs: Array
    rows: Array


class Operator(Record, frozen=True, kw_only=True):
    """One kernel, launched `count` times per step with the same shape on one rank.

    What its speed depends on beside FLOPs and bytes: `rows` that share one read of an operand
    (tokens of a matrix product, tokens per touched expert, queries per key-value head),
    `parallel` pieces that fill the GPU (columns, heads x sequences), `depth`: the length of the
    sum inside one tile of a product, the exponentials of an attention, the queries of an indexer
    (in decode 1), the tokens of a linear state, and `width`: numbers a head or row (of MLA's
    prompts and of linear states, whose heads are as wide in all models: their number).
    `buffers`: bytes of intermediate results that some kernels pass through memory, others not, or
    of a prompt's new keys and values, which some read again.
    `held`: heads of an attention or a state on the rank, as measured tables list them, or experts,
    which some kernels walk though few of them have a token.
    Of experts also what engines choose tiles by, `crowd`: tokens of the step and `listed`: rows in
    the buffers, both for each expert on the rank; and `spread`: standard deviation of their rows.
    """

    name: str
    kind: Kind
    dtype: Dtype
    flops: Array
    bytes: Array
    rows: Array
    parallel: Array | float
    depth: Array | float = 0.0
    width: Array | float = 1.0
    buffers: Array | float = 0.0
    held: Array | float = 0.0
    crowd: Array | float = 0.0
    listed: Array | float = 0.0
    spread: Array | float = 0.0
    count: int = 1


def tokens(batch: Batch, drafts: int) -> Array:
    """Tokens of a step: decode x (1 + drafts) + prefill."""
    return batch.decode * (1 + drafts) + batch.prefill


def verified(batch: Batch, drafts: int) -> Array:
    """Tokens whose logits a step makes: one a sampled sequence and one for each drafted token."""
    return batch.rows + batch.decode * drafts


def stages(model: Model, pp: int) -> tuple[tuple[Layer, ...], ...]:
    """Layers of each pipeline stage: equal shares, what is left over to the stages before the
    last, which also holds the logits (vLLM's `get_pp_indices`)."""
    share, left = divmod(len(model.layers), pp)
    sizes = [share] * pp
    for index in range(2, left + 2):
        sizes[-index] += 1
    bounds = np.cumsum([0, *sizes])
    return tuple(model.layers[bounds[i] : bounds[i + 1]] for i in range(pp))


def step_operators(
    model: Model, topology: Topology, engine: Engine, batch: Batch
) -> tuple[Operator, ...]:
    """All operators of a step on the busiest rank, stage after stage (drafts at the end)."""
    return tuple(
        operator
        for stage in range(topology.pp)
        for operator in stage_operators(model, topology, engine, batch, stage)
    )


def stage_operators(
    model: Model, topology: Topology, engine: Engine, batch: Batch, stage: int
) -> tuple[Operator, ...]:
    """Operators of one pipeline stage: embeddings on the first, logits and drafts on the last."""
    layers = stages(model, topology.pp)[stage]
    result: list[Operator] = []
    if stage == 0:
        result.append(_embedding(model, tokens(batch, engine.drafts)))
    result += _layers(layers, model, topology, engine, batch)
    if stage == topology.pp - 1:
        result += _logits(model, topology, verified(batch, engine.drafts))
        result += _drafts(model, topology, engine, batch)
    return tuple(result)


class Stored(Record, frozen=True, kw_only=True):
    """How a matrix is stored: its dtype and the bytes of one weight with its scales."""

    dtype: Dtype
    bytes: float


def stored(dtype: Dtype, weights: WeightDtypes) -> Stored:
    """Bytes of one weight: its own bits, and `scale_bits` per `scale_group` where it has them."""
    scaled = weights.scale_group and dtype in ("fp8", "int8", "int4")
    scale = weights.scale_bits / 8.0 / weights.scale_group if scaled else 0.0
    return Stored(dtype=dtype, bytes=STORED_BYTES[dtype] + scale)


BF16 = Stored(dtype="bf16", bytes=2.0)


def matmul(
    name: str,
    rows: Array,
    depth: float | Array,
    width: float | Array,
    matrix: Stored,
    count: int = 1,
) -> Operator:
    """rows x depth times depth x width: 2 x rows x depth x width FLOPs; weights read once."""
    return Operator(
        name=name,
        kind="gemm",
        dtype=matrix.dtype,
        flops=2.0 * rows * depth * width,
        bytes=np.where(
            rows > 0,
            depth * width * matrix.bytes
            + rows * (depth * ACTIVATION_BYTES[matrix.dtype] + width * HIDDEN_BYTES),
            0.0,
        ),
        rows=rows,
        parallel=width,
        depth=depth,
        count=count,
    )


def vector(name: str, rows: Array, width: float | Array, passes: float) -> Operator:
    """A memory-bound operator: `passes` reads and writes of rows x width bf16 elements. Most
    kernels give each row a block of threads, so that few wide rows leave GPUs empty."""
    elements = rows * width
    return Operator(
        name=name,
        kind="vector",
        dtype="bf16",
        flops=elements * passes,
        bytes=elements * passes * HIDDEN_BYTES,
        rows=rows,
        parallel=rows,
        depth=1.0,
        width=width,
    )


def quantised(product: Operator) -> Operator:
    """The kernel that quantises a product's inputs: reads bf16, writes a byte."""
    return replace(
        vector(f"{product.name}.quantise", product.rows, product.depth, 1.5), count=product.count
    )


def prefix_operators(
    model: Model, topology: Topology, engine: Engine, cached: Array, stage: int
) -> tuple[Operator, ...]:
    """What a stage computes once more for the `cached` tokens before a chunk of a prompt: latent
    attention that makes heads makes those of its whole prefix again (vLLM 0.32 mla_attention.py,
    `_compute_prefill_context`)."""
    layers = Counter(stages(model, topology.pp)[stage])
    if stage == topology.pp - 1 and engine.drafts and method_of(engine, model) == "mtp":
        layers.update(draft_layers(engine, model))
    result = []
    for layer, count in layers.items():
        mixer, weights = layer.mixer, layer.weights or model.weights
        if isinstance(mixer, Latent) and mixer.indexer is None:
            up = _share(mixer.heads, topology.tp) * (mixer.nope_dim + mixer.value_dim)
            by = stored(weights.attention, weights)
            result.append(matmul("latent.again", cached, mixer.kv_rank, up, by, count))
    return tuple(result)


def _layers(
    layers: Sequence[Layer], model: Model, topology: Topology, engine: Engine, batch: Batch
) -> list[Operator]:
    return [
        _times(operator, count)
        for layer, count in Counter(layers).items()
        for operator in _layer(layer, model, topology, engine, batch)
    ]


def _times(operator: Operator, count: int) -> Operator:
    return replace(operator, count=operator.count * count)


def _layer(
    layer: Layer, model: Model, topology: Topology, engine: Engine, batch: Batch
) -> list[Operator]:
    new = tokens(batch, engine.drafts)
    if layer.weights is not None:
        model = replace(model, weights=layer.weights)
    result: list[Operator] = []
    if layer.mixer is not None:
        result.append(vector("mixer.norm", new, model.hidden, 4))
        result += _mixer(layer.mixer, layer.shares_kv, model, topology, engine, batch)
    if layer.ffn is not None:
        result.append(vector("ffn.norm", new, model.hidden, 4))
    if isinstance(layer.ffn, Mlp):
        result += _mlp("mlp", layer.ffn.width, layer.ffn.gated, model, topology, new)
    elif isinstance(layer.ffn, Experts):
        result += _experts(layer.ffn, model, topology, engine, new)
    return result


def _mixer(
    mixer: Mixer, shares_kv: bool, model: Model, topology: Topology, engine: Engine, batch: Batch
) -> list[Operator]:
    if isinstance(mixer, Attention):
        return _attention(mixer, shares_kv, model, topology, engine, batch)
    if isinstance(mixer, Latent):
        return _latent(mixer, model, topology, engine, batch)
    if isinstance(mixer, Compressed):
        return _compressed(mixer, model, topology, engine, batch)
    return _state(mixer, model, topology, engine, batch)


def _attention(
    mixer: Attention,
    shares_kv: bool,
    model: Model,
    topology: Topology,
    engine: Engine,
    batch: Batch,
) -> list[Operator]:
    new = tokens(batch, engine.drafts)
    heads = _share(mixer.heads, topology.tp)
    kv_heads = _share(mixer.kv_heads, topology.tp)
    queries = heads * mixer.head_dim * (2 if mixer.gated else 1)
    keys = kv_heads * mixer.head_dim
    values = 0 if mixer.key_is_value else kv_heads * mixer.value_dim
    cached = 0 if shares_kv else keys + values
    weights = stored(model.weights.attention, model.weights)
    bound = mixer.window or mixer.chunk // 2
    kind: Literal["attention", "sparse"] = "attention"
    read = model.hidden * (2 if mixer.joined else 1)
    result = [
        matmul("attention.qkv", new, read, queries + cached, weights),
        vector("attention.rope_cache", new, heads * mixer.head_dim + cached, 2),
    ]
    if mixer.qk_norm:
        result.append(vector("attention.qk_norm", new, heads * mixer.head_dim + keys, 2))
    if mixer.indexer is not None:
        kind, bound = "sparse", mixer.indexer.topk
        wide = model.hidden
        own = mixer.indexer.dim
        result += _indexer(mixer.indexer, wide, wide, weights, topology, engine, batch, keys=own)
    result += attend(
        kind,
        heads=heads,
        kv_heads=kv_heads,
        score_dim=mixer.head_dim,
        value_dim=mixer.value_dim,
        cached=kv_heads * (mixer.head_dim + mixer.value_dim),
        dtype=kv_dtype_of(model, engine),
        batch=batch,
        drafts=engine.drafts,
        bound=bound,
        dcp=topology.dcp,
    )
    if mixer.gated:
        # SGLang copies queries and gates apart, then the sigmoid, then the product (qwen3_5.py).
        gate = vector("attention.gate", new, heads * mixer.value_dim, 3)
        result.append(replace(gate, count=4 if engine.name == "sglang" else 1))
    result.append(
        matmul("attention.out", new, heads * mixer.value_dim, model.hidden, _out(model, weights))
    )
    return result


def attend(
    kind: Literal["attention", "sparse"],
    *,
    heads: int | Array,
    kv_heads: int | Array,
    score_dim: int | Array,
    value_dim: int | Array,
    cached: int | Array,
    dtype: Dtype,
    batch: Batch,
    drafts: int,
    bound: int = 0,
    dcp: int = 1,
) -> list[Operator]:
    """Attention over the cache: 2 x heads x (score_dim + value_dim) FLOPs a pair. Decode reads
    each cached vector once per sequence; under dcp a rank reads its share of them for the heads
    of all dcp ranks."""
    context, pairs = batch.context, batch.pairs
    if bound:
        context = np.minimum(context, batch.decode * bound)
        pairs = np.minimum(pairs, batch.prefill * bound)
    context, gathered = context / dcp, heads * dcp
    pair = 2.0 * heads * (score_dim + value_dim)
    read = cached * STORED_BYTES[dtype]
    return [
        Operator(
            name=f"prefill_{kind}",
            kind="prefill_attention" if kind == "attention" else "prefill_sparse",
            dtype=dtype,
            flops=pairs * pair,
            # Queries, results and new keys once: tiles of queries find them in the GPU's cache.
            bytes=batch.prefill * (heads * (score_dim + value_dim) + cached) * HIDDEN_BYTES,
            rows=np.full_like(batch.prefill, heads / kv_heads),
            parallel=batch.prefill * heads,
            depth=pairs * heads,
            width=score_dim,
            buffers=batch.prefill * cached * HIDDEN_BYTES,
            held=heads,
        ),
        Operator(
            name=f"decode_{kind}",
            kind="decode_attention" if kind == "attention" else "decode_sparse",
            dtype=dtype,
            flops=context * pair * dcp * (1 + drafts),
            bytes=context * read,
            rows=np.full_like(batch.decode, gathered / kv_heads * (1 + drafts)),
            # Each query of a sparse attention has places of its own to read.
            parallel=batch.decode * (kv_heads if kind == "attention" else 1 + drafts),
            depth=context * gathered * (1 + drafts),
            width=score_dim,
            held=gathered,
        ),
    ]


def _latent(
    mixer: Latent, model: Model, topology: Topology, engine: Engine, batch: Batch
) -> list[Operator]:
    """MLA: heads are made from the latent in prefill; in decode (and under an indexer) queries
    are carried into the latent space instead, and all heads share the one cached vector."""
    new = tokens(batch, engine.drafts)
    heads = _share(mixer.heads, topology.tp)
    weights = stored(model.weights.attention, model.weights)
    latent = mixer.kv_rank + mixer.rope_dim
    query = heads * (mixer.nope_dim + mixer.rope_dim)
    up = heads * (mixer.nope_dim + mixer.value_dim)
    result = [
        vector("latent.norm", new, mixer.kv_rank + (mixer.q_rank or 0), 2),
        vector("latent.rope_cache", new, query + latent, 2),
    ]
    read = model.hidden * (2 if mixer.joined else 1)
    if mixer.q_rank is None:
        result += [
            matmul("latent.query", new, read, query, weights),
            matmul("latent.down", new, read, latent, weights),
        ]
    else:
        result += [
            matmul("latent.down", new, read, mixer.q_rank + latent, weights),
            matmul("latent.query", new, mixer.q_rank, query, weights),
        ]
    if mixer.gated:
        result.append(matmul("latent.gate", new, model.hidden, heads * mixer.value_dim, weights))
    sparse = mixer.indexer is not None
    absorbed = new if sparse else new - batch.prefill
    # The two products that carry queries into the latent space and results back out of it.
    result += [
        matmul("latent.absorb", absorbed, mixer.nope_dim, heads * mixer.kv_rank, BF16),
        matmul("latent.expand", absorbed, mixer.kv_rank, heads * mixer.value_dim, BF16),
    ]
    dtype = kv_dtype_of(model, engine)
    pair = 2.0 * heads * (latent + mixer.kv_rank)
    if mixer.indexer is not None:
        depth = mixer.q_rank or model.hidden
        own, wide = mixer.indexer.dim, model.hidden
        result += _indexer(mixer.indexer, depth, wide, weights, topology, engine, batch, keys=own)
        result += attend(
            "sparse",
            heads=heads,
            kv_heads=1,
            score_dim=latent,
            value_dim=mixer.kv_rank,
            cached=latent,
            dtype=dtype,
            batch=batch,
            drafts=engine.drafts,
            bound=mixer.indexer.topk,
            dcp=topology.dcp,
        )
    else:
        split = 2.0 * heads * (mixer.nope_dim + mixer.rope_dim + mixer.value_dim)
        result += [
            matmul("latent.up", batch.prefill, mixer.kv_rank, up, weights),
            Operator(
                name="prefill_latent",
                kind="prefill_latent",
                dtype=dtype,
                flops=batch.pairs * split,
                bytes=batch.prefill
                * heads
                * (mixer.nope_dim + mixer.rope_dim + mixer.value_dim)
                * HIDDEN_BYTES,
                rows=np.ones_like(batch.prefill),
                parallel=batch.prefill * heads,
                depth=batch.pairs * heads,
                width=heads,
                held=heads,
            ),
            Operator(
                name="decode_latent",
                kind="decode_latent",
                dtype=dtype,
                flops=batch.context * pair * (1 + engine.drafts),
                # Under dcp: a share of the vectors, read for the heads of all dcp ranks.
                bytes=batch.context / topology.dcp * latent * STORED_BYTES[dtype],
                rows=np.full_like(batch.decode, heads * topology.dcp * (1.0 + engine.drafts)),
                parallel=batch.decode,
                depth=batch.context * heads * (1 + engine.drafts),
                held=heads * topology.dcp,
            ),
        ]
    result.append(
        matmul("latent.out", new, heads * mixer.value_dim, model.hidden, _out(model, weights))
    )
    return result


def _indexer(
    indexer: Indexer,
    depth: int,
    hidden: int,
    weights: Stored,
    topology: Topology,
    engine: Engine,
    batch: Batch,
    *,
    keys: int,
) -> list[Operator]:
    """The selector: heads x dim scores of every attended token, on every rank alike, and the best
    of them; under dcp a rank scores the keys that it holds. `keys`: numbers of a token's key that
    are made here."""
    if indexer.shared:
        return []
    context = batch.context / topology.dcp
    new = tokens(batch, engine.drafts)
    score = 2.0 * indexer.heads * indexer.dim
    return [
        matmul("indexer.query", new, depth, indexer.heads * indexer.dim, weights),
        matmul("indexer.key", new, hidden, keys + indexer.heads, weights),
        Operator(
            name="indexer.prefill",
            kind="prefill_indexer",
            dtype="fp8",
            flops=batch.pairs * score,
            bytes=batch.pairs * (SCORE_BYTES + indexer.dim / QUERY_TILE),
            rows=batch.prefill,
            parallel=batch.prefill,
            depth=batch.prefill,
        ),
        Operator(
            name="indexer.decode",
            kind="decode_indexer",
            dtype="fp8",
            flops=context * score * (1 + engine.drafts),
            bytes=context * (indexer.dim + SCORE_BYTES * (1 + engine.drafts)),
            rows=np.full_like(batch.decode, 1.0 + engine.drafts),
            parallel=batch.decode,
            depth=1.0,
        ),
        selection("topk.prefill", batch.pairs / indexer.block, batch.prefill, indexer.topk),
        selection(
            "topk.decode",
            context * (1 + engine.drafts) / indexer.block,
            batch.decode * (1 + engine.drafts),
            indexer.topk,
        ),
    ]


def selection(name: str, scores: Array, queries: Array, topk: int) -> Operator:
    """The choice of the `topk` best of every query's scores: each score is read once, by the one
    block of threads that serves its query, and the places of the best are written. `depth`: the
    queries, each of which takes a while however few its scores."""
    return Operator(
        name=name,
        kind="selection",
        dtype="bf16",
        flops=np.zeros_like(scores),
        bytes=scores * SCORE_BYTES + queries * topk * 4.0,
        rows=queries,
        parallel=queries,
        depth=queries,
    )


def _compressed(
    mixer: Compressed, model: Model, topology: Topology, engine: Engine, batch: Batch
) -> list[Operator]:
    """DeepSeek V4: a window of raw tokens and every `ratio`-th compressed one, as the indexer
    bounds them; low-rank queries and a grouped low-rank output projection."""
    new = tokens(batch, engine.drafts)
    heads = _share(mixer.heads, topology.tp)
    groups = _share(mixer.o_groups, topology.tp)
    weights = stored(model.weights.attention, model.weights)
    width = heads * mixer.head_dim
    result = [
        matmul("compressed.down", new, model.hidden, mixer.q_rank + mixer.head_dim, weights),
        matmul("compressed.query", new, mixer.q_rank, width, weights),
        vector("compressed.rope_cache", new, width + mixer.head_dim, 2),
    ]
    older = batch
    if mixer.ratio:
        # Keys and gates of the compressor; ratio 4 overlaps two windows and makes both twice.
        sides = 4 if mixer.ratio == 4 else 2
        result.append(
            matmul("compressed.compress", new, model.hidden, sides * mixer.head_dim, BF16)
        )
        older = Batch(
            decode=batch.decode,
            context=batch.context / mixer.ratio,
            prefill=batch.prefill,
            pairs=batch.pairs / mixer.ratio,
            rows=batch.rows,
        )
        if mixer.indexer is not None:
            # Its keys come from a compressor of their own.
            made = sides * mixer.indexer.dim
            result.append(matmul("indexer.compress", new, model.hidden, made, BF16))
            depth, wide = mixer.q_rank, model.hidden
            result += _indexer(mixer.indexer, depth, wide, weights, topology, engine, older, keys=0)

    def over(part: Batch, bound: int) -> list[Operator]:
        return attend(
            "sparse",
            heads=heads,
            kv_heads=1,
            score_dim=mixer.head_dim,
            value_dim=mixer.head_dim,
            cached=mixer.head_dim,
            dtype=kv_dtype_of(model, engine),
            batch=part,
            drafts=engine.drafts,
            bound=bound,
        )

    result += over(batch, mixer.window)
    if mixer.ratio:
        result += over(older, mixer.indexer.topk if mixer.indexer is not None else 0)
    result += [
        matmul(
            "compressed.out_a", new, width / groups, groups * mixer.o_rank, _out(model, weights)
        ),
        matmul("compressed.out_b", new, groups * mixer.o_rank, model.hidden, _out(model, weights)),
    ]
    return result


def _state(
    mixer: LinearState, model: Model, topology: Topology, engine: Engine, batch: Batch
) -> list[Operator]:
    """A recurrent mixer: chunks of tokens in prefill, one state read and written per token in
    decode (every drafted token keeps its own)."""
    new = tokens(batch, engine.drafts)
    tp = topology.tp
    weights = stored(model.weights.state, model.weights)
    heads = _share(mixer.heads, tp) if mixer.heads else 0
    channels = mixer.conv_channels / tp
    inner = _inner(mixer) / tp
    elements = heads * mixer.rows * mixer.columns
    conv = channels * mixer.conv_kernel
    result = [vector("state.conv", new, channels, 2)]
    if mixer.kind == "gdn" and _apart(model, engine):
        result += [
            matmul("state.in", new, model.hidden, channels, weights),
            matmul("state.output_gate", new, model.hidden, inner, weights),
            matmul("state.gates", new, model.hidden, heads, BF16, count=2),
        ]
    elif mixer.kind == "gdn":
        # The decays and gates of the heads, a few columns of their own, and queries, keys, values
        # and output gate laid out for the kernels (sglang models/qwen3_5.py, vllm qwen3_next.py).
        result += [
            matmul("state.in", new, model.hidden, channels + inner, weights),
            matmul("state.gates", new, model.hidden, 2 * heads, BF16),
            vector("state.split", new, channels + inner, 2),
        ]
    else:
        width = _state_width(mixer, heads, channels, inner)
        result.append(matmul("state.in", new, model.hidden, width, weights))
    if mixer.kind == "mamba1":
        state_size = mixer.heads * mixer.rows * mixer.columns / mixer.conv_channels
        result += [
            matmul("state.select", new, channels, mixer.key_heads + 2 * state_size, weights),
            matmul("state.delta", new, mixer.key_heads, channels, weights),
        ]
    if mixer.kind == "kda" and mixer.gate_rank:
        result.append(matmul("state.gates", new, mixer.gate_rank, 2 * inner, weights))
    if elements:
        state = elements * STORED_BYTES[state_dtype_of(mixer, model, engine)]
        vectors = (channels + inner) * HIDDEN_BYTES
        verified = 1 + engine.drafts
        result += [
            Operator(
                name="prefill_state",
                kind="prefill_state",
                dtype="bf16",
                flops=batch.prefill * chunk_flops(mixer, heads),
                # A chunk writes its state and the output pass reads it back.
                bytes=batch.prefill * (vectors + 2 * state / STATE_CHUNK),
                rows=batch.prefill,
                parallel=np.full_like(batch.prefill, heads),
                # One chunk of a sequence follows the other.
                depth=batch.prefill,
                width=heads,
                held=heads,
            ),
            Operator(
                name="decode_state",
                kind="decode_state",
                dtype="bf16",
                # Decay 1, key product 2, update 2, query product 2, gate 1 per element.
                flops=batch.decode * verified * 8.0 * elements,
                bytes=batch.decode
                * (state * (1 + verified) + verified * vectors + 2 * conv * HIDDEN_BYTES),
                rows=np.full_like(batch.decode, 1.0 + engine.drafts),
                parallel=batch.decode * heads,
                held=heads,
            ),
        ]
    result += [
        vector("state.gate_norm", new, inner, 3),
        matmul("state.out", new, inner, model.hidden, _out(model, weights)),
    ]
    return result


def _inner(mixer: LinearState) -> float:
    """Width of a mixer's output. Mamba2's states are stored heads x head size x state size or the
    other way round: the convolved channels (inner + 2 x groups x state size) tell which."""
    if mixer.kind in ("gdn", "kda"):
        return float(mixer.heads * mixer.columns)
    if mixer.kind == "mamba2":
        inner = mixer.heads * mixer.rows
        swapped = mixer.conv_channels != inner + 2 * mixer.key_heads * mixer.columns
        return float(mixer.heads * mixer.columns if swapped else inner)
    return float(mixer.conv_channels)


def _apart(model: Model, engine: Engine) -> bool:
    """Whether an input projection of gated delta layers is four products: SGLang's of Qwen3.5
    before pull request 21019 (models/qwen3_5.py of 0.5.9 and 0.5.10)."""
    old = engine.name == "sglang" and version_of(engine) < Version(0, 5, 10)
    return old and model.architecture.startswith("Qwen3_5")


def _state_width(mixer: LinearState, heads: int, channels: float, inner: float) -> float:
    """Columns of the input projection: convolved channels, output gate, and per-head scalars."""
    if mixer.kind == "kda":
        # Decay and gate of a width each, made through a narrow middle where it is factored.
        return channels + heads + 2 * (mixer.gate_rank or inner)
    if mixer.kind == "mamba2":
        return channels + inner + heads
    if mixer.kind == "mamba1":
        return 2 * channels
    return 3 * channels


def chunk_flops(mixer: LinearState, heads: int) -> float:
    """FLOPs a token of the chunked form, chunk C: scores and (delta rule) the triangular solve
    2C x (2 rows + rows + 2 columns) + 3 products with the state 2 x rows x columns."""
    chunk, rows, columns = STATE_CHUNK, mixer.rows, mixer.columns
    if mixer.kind in ("gdn", "kda"):
        inside = 2.0 * chunk * (3 * rows + 2 * columns)
        return heads * (inside + 6.0 * rows * columns)
    if mixer.kind == "mamba2":
        return heads * (2.0 * chunk * (rows + columns) + 4.0 * rows * columns)
    return heads * 8.0 * rows * columns


def _mlp(
    name: str, width: float, gated: bool, model: Model, topology: Topology, new: Array
) -> list[Operator]:
    part = model.weights.mlp if name == "mlp" else model.weights.shared_experts
    dtype = stored(part, model.weights)
    own = width / topology.tp
    return [
        matmul(f"{name}.up", new, model.hidden, own * (2 if gated else 1), dtype),
        vector(f"{name}.activation", new, own, 3 if gated else 2),
        matmul(f"{name}.down", new, own, model.hidden, dtype),
    ]


def touched(count: float, active: int, routed: Array) -> Array:
    """Expected distinct experts that `routed` tokens reach: count x (1 - (1 - active/count)^n)."""
    miss = 1.0 - active / count
    if miss <= 0.0:
        return np.where(routed > 0, float(count), 0.0)
    return np.asarray(-count * np.expm1(routed * np.log(miss)))


def imbalance(pairs: Array, ranks: int) -> Array:
    """Load of the busiest of `ranks` over the mean, if tokens choose experts evenly: the expected
    largest of Poisson loads, 1 + sqrt(2 ln(ranks) / mean load), at most all of it."""
    if ranks == 1:
        return np.ones_like(pairs)
    mean = np.maximum(pairs / ranks, 1e-9)
    return np.asarray(np.minimum(1.0 + np.sqrt(2.0 * np.log(ranks) / mean), float(ranks)))


def busiest(count: float, reached: Array, ranks: int) -> Array:
    """Distinct experts that the busiest of `ranks` reads when tokens reach so many of `count`:
    mean + z sqrt(mean (1 - reached / count)), z the largest of so many normal numbers (Blom's
    (ranks - 3/8) / (ranks + 1/4) quantile), at most all that it holds."""
    mean = reached / ranks
    largest = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    spread = largest * np.sqrt(mean * np.maximum(1.0 - reached / count, 0.0))
    return np.asarray(np.minimum(mean + spread, count / ranks))


def grouped(
    new: Array,
    pairs: Array,
    listed: Array,
    reached: Array,
    held: float | Array,
    dim: float | Array,
    width: float | Array,
    matrices: int,
    by: Stored,
) -> Operator:
    """Grouped products of (token, expert) `pairs` over `reached` of the `held` experts of a rank:
    2 x pairs x dim x width x (matrices in + 1 out) FLOPs, each reached expert read once.
    `new` tokens come to the rank, and `listed` pairs have rows in the buffers between the products
    and before the sum over a token's experts, be they computed here or elsewhere.
    """
    return Operator(
        name="experts",
        kind="experts",
        dtype=by.dtype,
        flops=2.0 * pairs * dim * width * (matrices + 1),
        bytes=reached * dim * width * (matrices + 1) * by.bytes
        + pairs
        * (
            dim * ACTIVATION_BYTES[by.dtype]
            + width * (matrices * HIDDEN_BYTES * 2 + ACTIVATION_BYTES[by.dtype])
        )
        + pairs * dim * HIDDEN_BYTES,
        buffers=listed * (2 * dim + (2 * matrices + 1) * width) * HIDDEN_BYTES,
        rows=pairs / np.maximum(reached, 1e-9),
        parallel=reached * width,
        depth=dim,
        width=width,
        held=held,
        crowd=new / held,
        listed=listed / held,
    )


def exchanged(ffn: Experts, topology: Topology, engine: Engine) -> bool:
    """Whether tokens are sent to their experts' ranks one by one rather than gathered on all.

    Assumed where the engine is not told: where that moves at most half of the bytes; below, engines
    keep their default of all-gather and reduce-scatter (vLLM 0.32, `--all2all-backend`).
    """
    if topology.dp == 1 or topology.ep == 1:
        return False
    if engine.all_to_all is not None:
        return engine.all_to_all
    ranks = topology.tp * topology.dp
    distinct = ranks * (1.0 - (1.0 - 1.0 / ranks) ** ffn.active)
    return bool(distinct / topology.tp <= topology.dp / 2)


def _experts(
    ffn: Experts, model: Model, topology: Topology, engine: Engine, new: Array
) -> list[Operator]:
    """Router on every rank, then the experts: cut by tp x dp like any matrix, or whole experts
    per rank (ep), which then serve the tokens of all dp ranks."""
    routed = new * topology.dp
    pairs = routed * ffn.active
    reached = touched(ffn.count, ffn.active, routed)
    width = ffn.width / (topology.tp * topology.dp)
    come, listed, held = routed, pairs, ffn.count / topology.ep
    if topology.ep > 1:
        pairs = pairs / topology.ep * imbalance(pairs, topology.ep)
        reached = np.minimum(busiest(ffn.count, reached, topology.ep), np.maximum(pairs, 1e-9))
        width = ffn.width
    if exchanged(ffn, topology, engine):
        come, listed = np.minimum(routed, pairs), pairs
    dim = ffn.latent_dim or model.hidden
    matrices = 2 if ffn.gated else 1
    dtype = model.weights.experts
    shared = stored(model.weights.shared_experts, model.weights)
    by = stored(dtype, model.weights)
    products = grouped(come, pairs, listed, reached, held, dim, width, matrices, by)
    result = [
        matmul("experts.router", new, model.hidden, ffn.count, BF16),
        vector("experts.route", new, ffn.count + pairs * dim / np.maximum(new, 1e-9), 3),
        # Tokens that choose alone give an expert as many rows as a Poisson number has.
        replace(products, spread=np.sqrt(products.rows)),
    ]
    if ffn.latent_dim is not None:
        result += [
            matmul("experts.into_latent", new, model.hidden, dim, shared),
            matmul("experts.out_of_latent", new, dim, model.hidden, shared),
        ]
    if ffn.shared_width:
        # With whole experts and tp and dp both above one, vLLM deals a group's tokens out to its
        # ranks for the whole block, and each keeps the shared experts whole.
        dealt = topology.ep > 1 and topology.tp > 1 and topology.dp > 1
        own = replace(topology, tp=1) if dealt else topology
        part = new / topology.tp if dealt else new
        result += _mlp("shared", ffn.shared_width, ffn.gated, model, own, part)
        result.append(vector("experts.add", part, model.hidden, 3))
    if ffn.dense_width:
        result += _mlp("mlp", ffn.dense_width, ffn.gated, model, topology, new)
    return result


def _embedding(model: Model, new: Array) -> Operator:
    return vector("embedding", new, model.hidden, 2)


def _logits(model: Model, topology: Topology, rows: Array) -> list[Operator]:
    """Logits and sampling of the sampled rows only; float logits are read and written thrice."""
    own = model.vocab / topology.tp
    return [
        vector("final.norm", rows, model.hidden, 4),
        matmul("logits", rows, model.hidden, own, stored(model.weights.lm_head, model.weights)),
        vector("sampling", rows, model.vocab, 6),
    ]


def _drafts(model: Model, topology: Topology, engine: Engine, batch: Batch) -> list[Operator]:
    """What drafts: once over all tokens of the step, then once per further draft over one token
    per sequence, each with its logits. The text before drafts without a kernel worth counting."""
    if not engine.drafts or not draft_layers(engine, model):
        return []
    first = _draft_pass(model, topology, engine, batch)
    if method_of(engine, model) == "eagle3":
        head = _drafter(model)
        states = matmul("fuse", tokens(batch, engine.drafts), head.fused, head.hidden, BF16)
        first = [states, *first]
    plain, single = later_pass(engine, batch)
    later = _draft_pass(model, topology, plain, single) if engine.drafts > 1 else []
    return [_named(o) for o in first] + [_named(_times(o, engine.drafts - 1)) for o in later]


def later_pass(engine: Engine, batch: Batch) -> tuple[Engine, Batch]:
    """A step's drafts after the first, one of them: a token of every decoding sequence."""
    nothing = np.zeros_like(batch.prefill)
    single = Batch(
        decode=batch.decode,
        context=batch.context,
        prefill=nothing,
        pairs=nothing,
        rows=batch.decode,
    )
    return replace(engine, drafts=0), single


def _draft_pass(model: Model, topology: Topology, engine: Engine, batch: Batch) -> list[Operator]:
    """One pass of what drafts over the tokens of a batch, with its logits."""
    new = tokens(batch, engine.drafts)
    layers = draft_layers(engine, model)
    if method_of(engine, model) == "mtp":
        weights = stored(model.weights.attention, model.weights)
        return [
            matmul("join", new, 2 * model.hidden, model.hidden, weights),
            *_layers(layers, model, topology, engine, batch),
            *_logits(model, topology, batch.rows),
        ]
    head = _drafter(model)
    # The drafter's keys and values lie in the cache of its target.
    cached = replace(engine, kv_dtype=kv_dtype_of(model, engine))
    return [
        _embedding(head, new),
        *_layers(layers, head, topology, cached, batch),
        *_logits(head, topology, batch.rows),
    ]


def _drafter(model: Model) -> Model:
    assert model.drafter is not None
    return model.drafter


def _named(operator: Operator) -> Operator:
    return replace(operator, name=f"draft.{operator.name}")


def _out(model: Model, otherwise: Stored) -> Stored:
    if model.weights.attention_out is None:
        return otherwise
    return stored(model.weights.attention_out, model.weights)


def _share(heads: int, tp: int) -> int:
    """Heads on the busiest rank: cut evenly, and replicated past their number."""
    return max(1, -(-heads // tp))
