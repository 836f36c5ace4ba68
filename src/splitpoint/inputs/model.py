"""A model as the engine holds it: layers in order, each a mixer (attention, state) and an FFN.

Records only, no bytes and no FLOPs: `pricing` and `timing` derive those. Equal layers share one
`Layer` object, so counting kinds is a `Counter` over `Model.layers`.
"""

from typing import Literal

from splitpoint.record import Record

Dtype = Literal["fp32", "bf16", "fp16", "fp8", "int8", "int4", "mxfp4", "nvfp4"]
StateKind = Literal["gdn", "kda", "mamba1", "mamba2", "short_conv"]


class Indexer(Record, frozen=True, kw_only=True, tag="indexer"):
    """The selector of sparse attention: `heads` x `dim` scores, `topk` tokens attended.

    `dim` keys are cached per token and layer. `shared` layers reuse another layer's selection and
    cache nothing. `block` > 1 selects blocks of that many tokens (MiniMax M3).
    """

    heads: int
    dim: int
    topk: int
    block: int = 1
    shared: bool = False


class Attention(Record, frozen=True, kw_only=True, tag="attention"):
    """Multi-head attention with `kv_heads` cached heads.

    `window` > 0: sliding window of that many tokens; `chunk` > 0: attention local to chunks of
    that many tokens (Llama 4); both 0: full attention. `gated`: the query projection also makes an
    output gate of the same width. `key_is_value`: one projection serves as both (Gemma 4 global
    layers); two vectors are cached all the same. `bias`: which projections carry one. `sinks`: one
    learned logit per head (gpt-oss). `wide_norm`: queries and keys are normalised over all heads
    together, so tensor-parallel ranks add up their squares (MiniMax M2). `joined`: queries, keys
    and values are made from a token's embedding and its hidden state side by side (EAGLE-3).
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int = 0
    chunk: int = 0
    gated: bool = False
    key_is_value: bool = False
    bias: Literal["", "qkv", "qkvo"] = ""
    qk_norm: bool = False
    wide_norm: bool = False
    sinks: bool = False
    joined: bool = False
    indexer: Indexer | None = None


class Latent(Record, frozen=True, kw_only=True, tag="latent"):
    """Multi-head latent attention (MLA): one vector of `kv_rank + rope_dim` is cached per token.
    `joined` as of `Attention`."""

    heads: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    q_rank: int | None = None
    gated: bool = False
    joined: bool = False
    indexer: Indexer | None = None


class Compressed(Record, frozen=True, kw_only=True, tag="compressed"):
    """DeepSeek V4 attention: a window of raw tokens beside one entry per `ratio` older tokens.

    `ratio` 0: the window only. One key-value vector of `head_dim` is shared by all heads.
    """

    heads: int
    head_dim: int
    rope_dim: int
    window: int
    ratio: int
    q_rank: int
    o_rank: int
    o_groups: int
    indexer: Indexer | None = None


class LinearState(Record, frozen=True, kw_only=True, tag="state"):
    """A recurrent mixer: a state of fixed size per request instead of a cache that grows.

    Recurrent matrix: `heads` x `rows` x `columns` elements (none for a short convolution).
    Convolution: `conv_channels` x (`conv_kernel` - 1) columns. `key_heads` x `rows` is the width of
    queries and keys for gdn and kda; for mamba2 it is the number of groups, for mamba1 the rank of
    the time step. `gate_rank`: inner width of a factored output gate (kda); None: full rank.
    """

    kind: StateKind
    heads: int
    rows: int
    columns: int
    conv_channels: int
    conv_kernel: int
    key_heads: int = 0
    gate_rank: int | None = None


Mixer = Attention | Latent | Compressed | LinearState


class Mlp(Record, frozen=True, kw_only=True, tag="mlp"):
    """A dense feed-forward block. `gated`: three matrices (SwiGLU), else two."""

    width: int
    gated: bool = True


class Experts(Record, frozen=True, kw_only=True, tag="experts"):
    """Mixture of experts: `active` of `count` experts of `width` per token.

    `shared_width`: summed width of the experts every token takes. `latent_dim`: experts work on
    a projection of the hidden state to this width (Nemotron 3, Kimi K3). `dense_width`: a dense
    block beside the experts in the same layer (Gemma 4). `bias`: the router and every expert's
    projections carry one (gpt-oss).
    """

    count: int
    active: int
    width: int
    shared_width: int = 0
    gated: bool = True
    latent_dim: int | None = None
    dense_width: int = 0
    bias: bool = False


Ffn = Mlp | Experts


class WeightDtypes(Record, frozen=True, kw_only=True):
    """How each kind of weight is stored. Scales of block formats are added by `pricing`.

    `attention_out`: the output projection of attention and state layers where it differs from the
    rest. fp8, int8 and int4 have `scale_bits` of scale (and zero point) per `scale_group` weights;
    0: one scale per tensor or channel, which is not counted. nvfp4 (8 bits per 16 weights) and
    mxfp4 (8 bits per 32) fix theirs.
    """

    attention: Dtype = "bf16"
    attention_out: Dtype | None = None
    state: Dtype = "bf16"
    mlp: Dtype = "bf16"
    experts: Dtype = "bf16"
    shared_experts: Dtype = "bf16"
    embeddings: Dtype = "bf16"
    lm_head: Dtype = "bf16"
    scale_group: int = 0
    scale_bits: int = 0


class Layer(Record, frozen=True, kw_only=True):
    """One layer; either half may be absent (Nemotron-H). `shares_kv`: it reads an earlier layer's
    cache and stores none of its own (Gemma 3n/4). `weights`: how this layer is stored where that
    differs from `Model.weights`."""

    mixer: Mixer | None
    ffn: Ffn | None
    shares_kv: bool = False
    weights: WeightDtypes | None = None


class Model(Record, frozen=True, kw_only=True):
    """A language model. `draft_layers` are its own multi-token-prediction layers, one draft step's
    worth; `kv_dtype` and `state_dtype` are what its configuration asks for (None: the engine's
    default). `parameters` is the published count where the source states one. `encoder` is the
    parameter count of the vision and audio encoders that are loaded beside the text model.
    `rotary_dim`: columns of the rotary position tables, summed over distinct tables. `inferred`:
    values that no source states, each with how it was inferred; what rests on them says so.
    `drafter`: a model of its own or an EAGLE-3 head that drafts in place of `draft_layers`.
    `fused`, of such a head: width of the target's hidden states that it projects to its own (three
    layers' side by side); its `vocab` is what it can draft, and it embeds by the target's table
    where both are as wide. `checkpoint`: bytes of all its tensors where an index states them, draft
    layers among them with `checkpoint_drafts`."""

    name: str
    layers: tuple[Layer, ...]
    draft_layers: tuple[Layer, ...] = ()
    hidden: int
    vocab: int
    tied_embeddings: bool = False
    max_len: int
    dtype: Dtype = "bf16"
    weights: WeightDtypes = WeightDtypes()
    kv_dtype: Dtype | None = None
    state_dtype: Dtype | None = None
    parameters: int | None = None
    encoder: int = 0
    rotary_dim: int = 0
    inferred: tuple[str, ...] = ()
    drafter: "Model | None" = None
    fused: int = 0
    checkpoint: int | None = None
    checkpoint_drafts: bool = False
    architecture: str = ""
    source: str = ""
