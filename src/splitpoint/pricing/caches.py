"""What each layer caches on one rank: bytes per token, or per request for a recurrent state.

A layer may own several caches (sparse attention keeps an index beside its keys and values; a
compressed layer keeps four). Sharding happens here: key-value heads and state heads divide by tp,
latent vectors never do.
"""

from typing import NamedTuple

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.drafter import draft_layers
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.model import (
    Attention,
    Compressed,
    Dtype,
    Indexer,
    Latent,
    Layer,
    LinearState,
    Model,
)
from splitpoint.pricing.layout import GroupKind
from splitpoint.record import Record
from splitpoint.units import ceil_div

ELEMENT_BITS: dict[Dtype, int] = {
    "fp32": 32,
    "bf16": 16,
    "fp16": 16,
    "fp8": 8,
    "int8": 8,
    "int4": 4,
    "mxfp4": 4,
    "nvfp4": 4,
}

# FlashMLA's packed rows, vLLM 0.32 mla_attention.py and deepseek_v4/attention.py: 8-bit no-rope
# part, 16-bit rope part, scales. Pages are rounded to its 576-byte stride (512 for plain rows).
PACKED_ALIGNMENT = 576
PLAIN_ALIGNMENT = 512
# The raw window of a compressed layer lies in blocks of 64 tokens (vLLM 0.32 sparse_swa.py).
COMPRESSED_WINDOW_BLOCK = 64


class Cache(Record, frozen=True, kw_only=True):
    """One cache of one layer on one rank.

    `entry` bytes hold `stride` tokens (for a state: one request). `block_tokens` > 0 fixes the
    block of this cache whatever the engine's block size. Pages are rounded up to `alignment`.
    `latent` pages cannot be padded to another size. `role` names it for people; `heads` of
    `width` elements tell apart layers whose entries happen to be as large.
    """

    kind: GroupKind
    role: str
    entry: int
    stride: int = 1
    window: int = 0
    block_tokens: int = 0
    alignment: int = 1
    latent: bool = False
    heads: int = 1
    width: int = 0

    def page(self, block_tokens: int) -> int:
        """Bytes of one page: block_tokens / stride entries, rounded up to the alignment."""
        tokens = self.block_tokens or block_tokens
        entries = 1 if self.kind == "state" else max(tokens // self.stride, 1)
        return ceil_div(entries * self.entry, self.alignment) * self.alignment


class Owned(NamedTuple):
    """A cache with the layer and the pipeline stage that own it."""

    layer: int
    stage: int
    cache: Cache


def owned_caches(model: Model, topology: Topology, engine: Engine) -> list[Owned]:
    """Every cache of every layer; draft layers follow the model's, on the last stage."""
    stages = stage_of(len(model.layers), topology.pp)
    layers = all_layers(model, engine)
    # Equal layers share one object, so each kind is worked out once.
    distinct = {id(layer): layer for layer in layers}
    caches = {key: layer_caches(layer, model, topology, engine) for key, layer in distinct.items()}
    return [
        Owned(i, stages[i] if i < len(stages) else topology.pp - 1, cache)
        for i, layer in enumerate(layers)
        for cache in caches[id(layer)]
    ]


def all_layers(model: Model, engine: Engine) -> tuple[Layer, ...]:
    """The model's layers, and when the engine drafts those that draft."""
    return model.layers + (draft_layers(engine, model) if engine.drafts else ())


def stage_of(layers: int, pp: int) -> tuple[int, ...]:
    """The pipeline stage of each layer.

    Equal parts; what is left over goes one each to the stages before the last, from the back
    (vLLM 0.32 distributed/utils.py get_pp_indices).
    """
    sizes = [layers // pp] * pp
    for i in range(2, layers % pp + 2):
        sizes[-i] += 1
    return tuple(stage for stage, size in enumerate(sizes) for _ in range(size))


def layer_caches(
    layer: Layer, model: Model, topology: Topology, engine: Engine
) -> tuple[Cache, ...]:
    """The caches that one layer owns on one rank; none where it reads another layer's."""
    if layer.mixer is None or layer.shares_kv:
        return ()
    kv_dtype = kv_dtype_of(model, engine)
    if isinstance(layer.mixer, LinearState):
        return _state(layer.mixer, model, topology, engine)
    if isinstance(layer.mixer, Attention):
        return (_attention(layer.mixer, topology.tp, kv_dtype), *_index(layer.mixer.indexer))
    if isinstance(layer.mixer, Latent):
        packed = bool(engine.packed_latent) and kv_dtype == "fp8"
        return (_latent(layer.mixer, kv_dtype, packed), *_index(layer.mixer.indexer))
    return _compressed(layer.mixer, kv_dtype)


def vector_bytes(elements: int, dtype: Dtype) -> int:
    """Bytes of one cached vector of `elements`, its scales inside.

    fp8 has one scale per tensor (none stored here); int8 and int4 one fp32 scale per token and
    head; nvfp4 one byte per 16 elements, mxfp4 one per 32 (vLLM 0.32: triton_attn.py,
    torch_utils.py; mxfp4 by its definition).
    """
    data = ceil_div(elements * ELEMENT_BITS[dtype], 8)
    match dtype:
        case "int8" | "int4":
            return data + 4
        case "nvfp4":
            return data + elements // 16
        case "mxfp4":
            return data + elements // 32
        case _:
            return data


def kv_dtype_of(model: Model, engine: Engine) -> Dtype:
    """The dtype keys and values are cached in: the engine's, else the model's, else its weights'.

    `auto` takes what the checkpoint asks for, as vLLM does; compressed attention has an fp8 cache
    only (vLLM 0.32 deepseek_v4/attention.py).
    """
    if engine.kv_dtype != "auto":
        return engine.kv_dtype
    if any(isinstance(layer.mixer, Compressed) for layer in model.layers):
        return model.kv_dtype or "fp8"
    return model.kv_dtype or _activation(model)


def state_dtype_of(mixer: LinearState, model: Model, engine: Engine) -> Dtype:
    """The dtype of the recurrent matrix: the engine's, else the model's, else the kind's default.

    vLLM 0.32 mamba_utils.py: fp32 for KDA, else the model's own dtype.
    """
    if engine.state_dtype != "auto":
        return engine.state_dtype
    if model.state_dtype is not None:
        return model.state_dtype
    return "fp32" if mixer.kind == "kda" else _activation(model)


def _activation(model: Model) -> Dtype:
    # A quantised checkpoint still computes in 16 bit.
    return model.dtype if model.dtype in ("fp32", "bf16", "fp16") else "bf16"


def _attention(mixer: Attention, tp: int, dtype: Dtype) -> Cache:
    # Heads are replicated once tp exceeds their count, never fewer than one.
    heads = ceil_div(mixer.kv_heads, tp)
    entry = heads * (vector_bytes(mixer.head_dim, dtype) + vector_bytes(mixer.value_dim, dtype))
    kind: GroupKind = "window" if mixer.window else "chunk" if mixer.chunk else "full"
    return Cache(
        kind=kind,
        role="keys and values",
        entry=entry,
        window=mixer.window or mixer.chunk,
        heads=heads,
        width=mixer.head_dim + mixer.value_dim,
    )


def _latent(mixer: Latent, dtype: Dtype, packed: bool) -> Cache:
    if packed and mixer.indexer is not None:
        # 656 bytes at rank 512: fp8 with one fp32 scale per 128, rope in 16 bit (vLLM 0.32
        # mla_attention.py, fp8_ds_mla).
        entry = mixer.kv_rank + 4 * ceil_div(mixer.kv_rank, 128) + 2 * mixer.rope_dim
    else:
        entry = vector_bytes(mixer.kv_rank + mixer.rope_dim, dtype)
    return Cache(kind="full", role="latent", entry=entry, latent=True)


def _index(indexer: Indexer | None) -> tuple[Cache, ...]:
    """Keys of the selector: fp8 with one fp32 scale per 128, bf16 where it selects blocks.

    vLLM 0.32: deepseek_v2.py, deepseek_v4/attention.py; minimax_m3/common/indexer.py.
    """
    if indexer is None or indexer.shared:
        return ()
    entry = 2 * indexer.dim if indexer.block > 1 else indexer.dim + ceil_div(indexer.dim, 128) * 4
    return (Cache(kind="full", role="index", entry=entry, latent=True),)


def _state(
    mixer: LinearState, model: Model, topology: Topology, engine: Engine
) -> tuple[Cache, ...]:
    """Recurrent matrix and convolution columns of one request.

    bytes = heads/tp x rows x columns x state dtype
          + channels/tp x (kernel - 1 + drafts) x activation dtype.
    """
    tp = topology.tp
    heads = ceil_div(mixer.heads, tp)
    matrix = heads * mixer.rows * mixer.columns
    state_bits = ELEMENT_BITS[state_dtype_of(mixer, model, engine)]
    channels = mixer.conv_channels
    if mixer.kind == "mamba2" and mixer.key_heads % tp:
        # Every rank needs the groups of its heads: groups are copied until tp divides them.
        channels += (tp - mixer.key_heads) * 2 * mixer.columns if tp > mixer.key_heads else 0
    columns = max(mixer.conv_kernel - 1, 0) + engine.drafts
    convolution = ceil_div(channels, tp) * columns
    conv_bits = ELEMENT_BITS[_activation(model)]
    entry = ceil_div(matrix * state_bits, 8) + ceil_div(convolution * conv_bits, 8)
    if entry == 0:
        raise PlanError(
            model.name, f"a {mixer.kind} layer without any state", "check rows and columns"
        )
    return (Cache(kind="state", role=mixer.kind, entry=entry),)


def _compressed(mixer: Compressed, dtype: Dtype) -> tuple[Cache, ...]:
    """DeepSeek V4: raw window, compressed entries, their index, and two open accumulators.

    Read from vLLM 0.32 (deepseek_v4/attention.py, compressor.py, sparse_swa.py); the packed fp8
    layout is assumed for every GPU.
    """
    packed = dtype == "fp8"
    alignment = PACKED_ALIGNMENT if packed else PLAIN_ALIGNMENT
    plain_dims = mixer.head_dim - mixer.rope_dim
    row = (
        plain_dims + 2 * mixer.rope_dim + ceil_div(plain_dims, 64) + 1
        if packed
        else vector_bytes(mixer.head_dim, dtype)
    )
    window = Cache(
        kind="window",
        role="raw window",
        entry=row,
        window=mixer.window,
        block_tokens=COMPRESSED_WINDOW_BLOCK,
        alignment=alignment,
        latent=True,
    )
    if mixer.ratio == 0:
        return (window,)
    caches = [
        window,
        Cache(
            kind="full",
            role="compressed entries",
            entry=row,
            stride=mixer.ratio,
            alignment=alignment,
            latent=True,
        ),
        _accumulator("accumulator", mixer.head_dim, mixer.ratio, alignment),
    ]
    if mixer.indexer is not None and not mixer.indexer.shared:
        caches += [
            Cache(
                kind="full",
                role="index",
                entry=mixer.indexer.dim + ceil_div(mixer.indexer.dim, 128) * 4,
                stride=mixer.ratio,
                alignment=alignment,
                latent=True,
            ),
            _accumulator("index accumulator", mixer.indexer.dim, mixer.ratio, alignment),
        ]
    return tuple(caches)


def _accumulator(role: str, dim: int, ratio: int, alignment: int) -> Cache:
    """The fp32 sums of the entry still open: values and scores, doubled where entries overlap.

    Blocks of 4 tokens at ratio 4 (windows overlap), else of 8, so that its pages match the others.
    """
    overlap = 2 if ratio == 4 else 1
    return Cache(
        kind="window",
        role=role,
        entry=2 * overlap * dim * 4,
        window=overlap * ratio,
        block_tokens=4 if ratio == 4 else 8,
        alignment=alignment,
        latent=True,
    )
