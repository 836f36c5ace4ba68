"""One reader per family of architectures: the keys of a config.json to mixers and feed-forwards.

Most decoders differ in a few keys only and share `plain`; each other reader states what its family
does otherwise. A reader notes every key that it looks at, so that what it missed can be judged.
"""

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeVar

import msgspec

from splitpoint.inputs.huggingface.keys import MAX_EXPERTS, MAX_LAYERS, Keys, shown
from splitpoint.inputs.model import (
    Attention,
    Compressed,
    Experts,
    Ffn,
    Indexer,
    Latent,
    Layer,
    LinearState,
    Mixer,
    Mlp,
)

MAX_DRAFTS = 64  # assumed: nine times the most MTP modules a published model has

# Feed-forward blocks of two matrices instead of three.
UNGATED = frozenset({"nemotron", "nemotron_h", "starcoder2", "phi", "gpt_neox", "falcon", "opt"})
QK_NORM = (
    "qwen3",
    "gemma3",
    "gemma4",
    "olmo2",
    "olmo3",
    "minimax_m",
    "lfm2",
    "hunyuan_v1",
    "exaone4",
)


T = TypeVar("T", bound=msgspec.Struct)


class Stack(NamedTuple):
    """Layers in order and those of one draft step."""

    layers: list[Layer]
    drafts: list[Layer]


def layer_count(keys: Keys) -> int:
    """How many layers the model has."""
    return keys.count("num_hidden_layers", "n_layer", "num_layers", high=MAX_LAYERS)


def plain(keys: Keys) -> Stack:
    """Softmax attention, full or sliding by layer, with dense or expert feed-forwards."""
    n = layer_count(keys)
    full = attention(keys)
    windows = _windows(keys, n)
    # MiniMax's list marks lightning attention with 0; M2 and later have none.
    if 0 in keys.counts_per_layer("attn_type_list", n):
        keys.problem("attn_type_list", "lightning attention is not supported")
    mixers = [_windowed(full, window) for window in windows]
    ffns = feed_forwards(keys, n)
    drafts = [Layer(mixer=full, ffn=ffns[-1])] if draft_count(keys) else []
    return Stack(_zip(mixers, ffns), drafts)


def attention(keys: Keys) -> Attention:
    """Multi-head attention as most configs spell it."""
    kind = keys.word("model_type")
    heads = keys.count("num_attention_heads", "n_head")
    width = keys.optional("head_dim", "attention_head_dim", "kv_channels")
    if width is None:
        hidden = keys.count("hidden_size", "n_embd")
        width = hidden // heads
        if hidden % heads:
            keys.problem("head_dim", f"missing, and {hidden} does not divide by {heads} heads")
            width = 1
    norm = keys.flag("use_qk_norm", "qk_norm", default=kind.startswith(QK_NORM))
    return Attention(
        heads=heads,
        kv_heads=_kv_heads(keys, heads),
        head_dim=width,
        value_dim=keys.count("v_head_dim", default=width),
        gated=keys.flag("attn_output_gate"),
        bias=_bias(keys, kind),
        qk_norm=norm,
        sinks=kind == "gpt_oss",
    )


def _kv_heads(keys: Keys, heads: int) -> int:
    names = ("num_key_value_heads", "num_attention_groups", "multi_query_group_num")
    found = keys.count(*names, default=heads)
    if found > heads or heads % found:
        keys.problem(names[0], f"{heads} query heads do not divide by {found} key-value heads")
    return found


def _bias(keys: Keys, kind: str) -> Literal["", "qkv", "qkvo"]:
    """Qwen2 and GLM put a bias on queries, keys and values only; Llama's flag means all four."""
    fallback = kind.startswith("qwen2")
    if not keys.flag("attention_bias", "qkv_bias", "add_qkv_bias", default=fallback):
        return ""
    only_in = kind.startswith(("qwen2", "glm", "mimo"))
    return "qkv" if only_in else "qkvo"


def _windowed(full: Attention, window: int) -> Attention:
    return _replace(full, window=window)


def _windows(keys: Keys, n: int) -> list[int]:
    """The sliding window of each layer; 0 where attention is full.

    Without `layer_types` each family has its own default pattern; a window as long as the longest
    context is none.
    """
    kind = keys.word("model_type")
    window = keys.optional("sliding_window", "sliding_window_size") or 0
    if window >= keys.count("max_position_embeddings", default=2**31 - 1):
        window = 0
    types = keys.per_layer("layer_types", n)
    pattern = keys.get("sliding_window_pattern", "_sliding_window_pattern")
    if types:
        known = ("full_attention", "sliding_attention", "attention", "global_attention")
        _known(keys, "layer_types", types, known)
        return [window if kind_ == "sliding_attention" else 0 for kind_ in types[:n]]
    if not window:
        return [0] * n
    if isinstance(pattern, str):
        return (
            [0 if pattern[i % len(pattern)] == "G" else window for i in range(n)]
            if pattern
            else [0] * n
        )
    if pattern is not None:
        every = keys.count("sliding_window_pattern", "_sliding_window_pattern", high=MAX_LAYERS)
        return [0 if (i + 1) % every == 0 else window for i in range(n)]
    if kind.startswith("gemma2"):
        return [0 if i % 2 else window for i in range(n)]
    if kind.startswith("gemma3"):
        return [0 if (i + 1) % 6 == 0 else window for i in range(n)]
    if kind.startswith("qwen") or keys.has("use_sliding_window"):
        first = keys.count("max_window_layers", default=n, low=0)
        on = keys.flag("use_sliding_window")
        return [window if on and i >= first else 0 for i in range(n)]
    return [window] * n


def _known(keys: Keys, name: str, found: Sequence[str], known: Sequence[str]) -> None:
    strange = sorted(set(found) - set(known))
    if strange:
        keys.problem(name, f"{shown(strange[0])} is not understood (known: {', '.join(known)})")


def experts(keys: Keys) -> Experts | None:
    """The experts of a layer that has them; None for a dense model."""
    count = keys.optional(
        "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", high=MAX_EXPERTS
    )
    if count is None:
        return None
    kind = keys.word("model_type")
    active = keys.count(
        "num_experts_per_tok",
        "num_experts_per_token",
        "top_k_experts",
        "experts_per_token",
        "moe_top_k",
        "moe_topk",
        "moe_k",
        high=MAX_EXPERTS,
    )
    if active > count:
        keys.problem("num_experts_per_tok", f"{active} of {count} experts")
    width = keys.count("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
    return Experts(
        count=count,
        active=active,
        width=width,
        shared_width=_shared_width(keys, width),
        gated=kind not in UNGATED,
        bias=kind == "gpt_oss",
    )


def _shared_width(keys: Keys, width: int) -> int:
    """Summed width of the experts that every token takes; some state it, some state how many."""
    each = keys.optional(
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
        "share_expert_dim",
        low=0,
    )
    named = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    shared = keys.optional(*named, low=0, high=MAX_EXPERTS)
    if each is not None:
        return each * (1 if shared is None else shared)
    return width * (shared or 0)


def feed_forwards(keys: Keys, n: int) -> list[Ffn]:
    """The feed-forward of each layer."""
    sparse = experts(keys)
    if sparse is None:
        return [dense(keys)] * n
    which = sparse_layers(keys, n)
    if all(which):
        return [sparse] * n
    block = dense(keys)
    return [sparse if use else block for use in which]


def dense(keys: Keys) -> Mlp:
    """The dense feed-forward."""
    names = ("dense_intermediate_size", "intermediate_size", "ffn_hidden_size", "n_inner")
    return Mlp(width=keys.count(*names), gated=keys.word("model_type") not in UNGATED)


def sparse_layers(keys: Keys, n: int) -> list[bool]:
    """Which layers have experts; the families state it in six ways."""
    types = keys.per_layer("mlp_layer_types", n)
    if types:
        _known(keys, "mlp_layer_types", types, ("dense", "sparse"))
        return [t == "sparse" for t in types[:n]]
    named = keys.get("moe_layers_enum")
    if isinstance(named, str):
        found = {int(p) for p in named.split(",") if re.fullmatch(r"\s*\d{1,5}\s*", p)}
        return [i in found for i in range(n)]
    if isinstance(keys.get("moe_layer_freq"), list):
        flags = keys.counts_per_layer("moe_layer_freq", n)
        return [bool(f) for f in flags] or [True] * n
    first = keys.count("first_k_dense_replace", "num_dense_layers", default=0, low=0)
    every = keys.count("moe_layer_freq", default=1, low=1, high=MAX_LAYERS)
    step = keys.count("decoder_sparse_step", default=1, low=1, high=MAX_LAYERS)
    only = set(keys.counts("mlp_only_layers"))
    return [
        i >= first and i % every == 0 and (i + 1) % step == 0 and i not in only for i in range(n)
    ]


def draft_count(keys: Keys) -> int:
    """How many multi-token-prediction modules the checkpoint has."""
    names = (
        "num_nextn_predict_layers",
        "mtp_num_hidden_layers",
        "num_mtp_modules",
        "mtp_num_layers",
        "mtp_transformer_layers",
    )
    found = keys.count(*names, default=0, low=0, high=MAX_DRAFTS)
    return found if keys.flag("use_mtp", default=True) else 0


def latent(keys: Keys) -> Latent:
    """Multi-head latent attention (MLA)."""
    return Latent(
        heads=keys.count("num_attention_heads"),
        kv_rank=keys.count("kv_lora_rank"),
        nope_dim=keys.count("qk_nope_head_dim"),
        rope_dim=keys.count("qk_rope_head_dim", low=0),
        value_dim=keys.count("v_head_dim"),
        q_rank=keys.optional("q_lora_rank"),
        gated=keys.flag("mla_use_output_gate"),
    )


def deepseek(keys: Keys) -> Stack:
    """MLA in every layer; from V3.2 and GLM 5 on with an indexer that some layers share."""
    n = layer_count(keys)
    whole = latent(keys)
    ffns = feed_forwards(keys, n)
    if not keys.has("index_topk"):
        drafts = [Layer(mixer=whole, ffn=ffns[-1])] if draft_count(keys) else []
        return Stack(_zip([whole] * n, ffns), drafts)
    indexer = _indexer(keys)
    own = _replace(whole, indexer=indexer)
    reused = _replace(whole, indexer=_replace(indexer, shared=True))
    # Stated twice by GLM 5.2: the list is what counts, the frequency how it was made.
    for name in ("index_topk_freq", "index_skip_topk_offset", "index_topk_pattern"):
        keys.get(name)
    keys.get("index_share_for_mtp_iteration")
    kinds = keys.per_layer("layer_types", n)
    _known(keys, "layer_types", kinds, ("deepseek_sparse_attention",))
    types = keys.per_layer("indexer_types", n)
    _known(keys, "indexer_types", types, ("full", "shared"))
    mixers = [reused if t == "shared" else own for t in types[:n]] or [own] * n
    drafts = [Layer(mixer=own, ffn=ffns[-1])] if draft_count(keys) else []
    return Stack(_zip(mixers, ffns), drafts)


def _indexer(keys: Keys) -> Indexer:
    return Indexer(
        heads=keys.count("index_n_heads"),
        dim=keys.count("index_head_dim"),
        topk=keys.count("index_topk"),
    )


def deepseek_v4(keys: Keys) -> Stack:
    """A window of raw tokens beside compressed entries; the indexer picks among the fine ones."""
    n = layer_count(keys)
    for name in ("hc_mult", "num_hash_layers", "compress_rope_theta", "num_key_value_heads"):
        keys.get(name)
    indexer = _indexer(keys)
    ratios = keys.counts("compress_ratios", high=1_000_000)
    if len(ratios) < n:
        keys.problem("compress_ratios", f"{len(ratios)} entries for {n} layers")
        ratios = (*ratios, *[0] * (n - len(ratios)))
    fine = min((r for r in ratios if r > 0), default=0)
    base = Compressed(
        heads=keys.count("num_attention_heads"),
        head_dim=keys.count("head_dim"),
        rope_dim=keys.count("qk_rope_head_dim", low=0),
        window=keys.count("sliding_window"),
        ratio=0,
        q_rank=keys.count("q_lora_rank"),
        o_rank=keys.count("o_lora_rank"),
        o_groups=keys.count("o_groups"),
    )

    def mixer(ratio: int) -> Mixer:
        # Coarse entries are few enough to attend to all; only the finest ratio is indexed.
        return _replace(base, ratio=ratio, indexer=indexer if ratio == fine and ratio else None)

    ffns = feed_forwards(keys, n)
    drafted = ratios[n] if len(ratios) > n else 0
    drafts = [Layer(mixer=mixer(drafted), ffn=ffns[-1])] if draft_count(keys) else []
    return Stack(_zip([mixer(r) for r in ratios[:n]], ffns), drafts)


def kimi_linear(keys: Keys) -> Stack:
    """Kimi Delta Attention in most layers, MLA in the rest; layers are counted from one."""
    n = layer_count(keys)
    linear = keys.table("linear_attn_config")
    for name in ("mla_use_nope", "attn_res_block_size", "latent_moe_use_norm"):
        keys.get(name)
    heads = linear.count("num_heads")
    width = linear.count("head_dim")
    state = LinearState(
        kind="kda",
        heads=heads,
        rows=width,
        columns=width,
        conv_channels=3 * heads * width,
        conv_kernel=linear.count("short_conv_kernel_size"),
        key_heads=heads,
        gate_rank=None if linear.flag("use_full_rank_gate") else width,
    )
    full = set(linear.counts("full_attn_layers", low=1, high=MAX_LAYERS))
    states = set(linear.counts("kda_layers", low=1, high=MAX_LAYERS))
    if full | states != set(range(1, n + 1)) or full & states:
        linear.problem("kda_layers", f"with full_attn_layers they do not name 1..{n} once each")
    whole = latent(keys)
    mixers: list[Mixer] = [whole if i + 1 in full else state for i in range(n)]
    narrow = keys.optional("routed_expert_hidden_size")
    ffns = [
        _replace(f, latent_dim=narrow) if isinstance(f, Experts) else f
        for f in feed_forwards(keys, n)
    ]
    drafts = [Layer(mixer=whole, ffn=ffns[-1])] if draft_count(keys) else []
    return Stack(_zip(mixers, ffns), drafts)


def qwen_hybrid(keys: Keys) -> Stack:
    """Gated DeltaNet in most layers, gated full attention in every fourth (Qwen3-Next, 3.5-3.8)."""
    n = layer_count(keys)
    key_heads = keys.count("linear_num_key_heads")
    heads = keys.count("linear_num_value_heads")
    rows = keys.count("linear_key_head_dim")
    columns = keys.count("linear_value_head_dim")
    state = LinearState(
        kind="gdn",
        heads=heads,
        rows=rows,
        columns=columns,
        conv_channels=2 * key_heads * rows + heads * columns,
        conv_kernel=keys.count("linear_conv_kernel_dim"),
        key_heads=key_heads,
    )
    full = _replace(attention(keys), gated=keys.flag("attn_output_gate", default=True))
    types = keys.per_layer("layer_types", n)
    every = keys.count("full_attention_interval", default=4, high=MAX_LAYERS)
    if types:
        _known(keys, "layer_types", types, ("linear_attention", "full_attention"))
    is_full = [t == "full_attention" for t in types[:n]] or [(i + 1) % every == 0 for i in range(n)]
    ffns = feed_forwards(keys, n)
    # Qwen3-Next states no MTP key though its checkpoint has one such layer.
    modules = draft_count(keys) or int(keys.word("model_type") == "qwen3_next")
    drafts = [Layer(mixer=full, ffn=ffns[-1])] if modules else []
    return Stack(_zip([full if f else state for f in is_full], ffns), drafts)


def llama4(keys: Keys) -> Stack:
    """Chunked local attention, full in every fourth; experts in every layer or every other."""
    n = layer_count(keys)
    chunk = keys.count("attention_chunk_size")
    full = attention(keys)
    local = _replace(full, chunk=chunk)
    types = keys.per_layer("layer_types", n)
    ropes = keys.counts_per_layer("no_rope_layers", n)
    every = keys.count("nope_layer_interval", "no_rope_layer_interval", default=4, high=MAX_LAYERS)
    if types:
        _known(keys, "layer_types", types, ("chunked_attention", "full_attention"))
        is_local = [t == "chunked_attention" for t in types[:n]]
    elif ropes:
        is_local = [bool(r) for r in ropes]
    else:
        is_local = [(i + 1) % every != 0 for i in range(n)]
    sparse = experts(keys)
    step = keys.count("interleave_moe_layer_step", default=1, low=0, high=MAX_LAYERS)
    named = set(keys.counts("moe_layers"))
    block = Mlp(width=keys.count("intermediate_size_mlp", "intermediate_size"))
    if sparse is None:
        return Stack(_zip([local if c else full for c in is_local], [block] * n), [])
    shared = _replace(sparse, shared_width=sparse.width)
    use = [i in named if named else bool(step) and (i + 1) % step == 0 for i in range(n)]
    ffns: list[Ffn] = [shared if u else block for u in use]
    return Stack(_zip([local if c else full for c in is_local], ffns), [])


def gemma4(keys: Keys) -> Stack:
    """Sliding layers beside global ones of another head size, whose key serves as value too."""
    n = layer_count(keys)
    for name in ("vocab_size_per_layer_input", "use_bidirectional_attention"):
        keys.get(name)
    if keys.count("hidden_size_per_layer_input", default=0, low=0):
        keys.problem("hidden_size_per_layer_input", "per-layer embeddings are not supported")
    if keys.flag("use_double_wide_mlp"):
        keys.problem("use_double_wide_mlp", "double-wide feed-forwards are not supported")
    near = _replace(attention(keys), window=keys.count("sliding_window"))
    width = keys.count("global_head_dim", default=near.head_dim)
    far = _replace(
        near,
        window=0,
        head_dim=width,
        value_dim=width,
        kv_heads=keys.count("num_global_key_value_heads", default=near.kv_heads),
        key_is_value=keys.flag("attention_k_eq_v"),
    )
    types = keys.per_layer("layer_types", n)
    _known(keys, "layer_types", types, ("sliding_attention", "full_attention"))
    if not types:
        keys.problem("layer_types", "missing")
    mixers = [far if t == "full_attention" else near for t in types[:n]] or [far] * n
    block = dense(keys)
    sparse = experts(keys) if keys.flag("enable_moe_block") else None
    ffn: Ffn = block if sparse is None else _replace(sparse, dense_width=block.width)
    reused = keys.count("num_kv_shared_layers", default=0, low=0, high=n)
    layers = _zip(mixers, [ffn] * n)
    last = layers[n - reused :]
    return Stack(layers[: n - reused] + [_replace(layer, shares_kv=True) for layer in last], [])


def minimax_m3(keys: Keys) -> Stack:
    """Grouped attention that from some layer on attends to selected blocks of keys."""
    n = layer_count(keys)
    full = attention(keys)
    sparse = keys.table("sparse_attention_config")
    for name in ("sparse_disable_index_value", "sparse_init_block", "sparse_local_block"):
        sparse.get(name)
    use = sparse.counts_per_layer("sparse_attention_freq", n) or (1,) * n
    if not sparse.values or not sparse.flag("use_sparse_attention", default=True):
        use = (0,) * n
        chosen = full
    else:
        block = sparse.count("sparse_block_size")
        indexer = Indexer(
            heads=sparse.count("sparse_num_index_heads"),
            dim=sparse.count("sparse_index_dim"),
            topk=sparse.count("sparse_topk_blocks") * block,
            block=block,
        )
        chosen = _replace(full, indexer=indexer)
    ffns = feed_forwards(keys, n)
    drafts = [Layer(mixer=chosen, ffn=ffns[-1])] if draft_count(keys) else []
    return Stack(_zip([chosen if u else full for u in use], ffns), drafts)


def mimo_v2(keys: Keys) -> Stack:
    """Sliding and full layers with head counts of their own, by a pattern of ones and zeros."""
    n = layer_count(keys)
    for name in ("attention_chunk_size", "attention_value_scale", "sliding_window_size"):
        keys.get(name)
    full = attention(keys)
    near = Attention(
        heads=keys.count("swa_num_attention_heads", default=full.heads),
        kv_heads=keys.count("swa_num_key_value_heads", default=full.kv_heads),
        head_dim=keys.count("swa_head_dim", default=full.head_dim),
        value_dim=keys.count("swa_v_head_dim", default=full.value_dim),
        window=keys.count("sliding_window", "sliding_window_size"),
        sinks=keys.flag("add_swa_attention_sink_bias"),
    )
    pattern = keys.counts_per_layer("hybrid_layer_pattern", n)
    if not pattern:
        keys.problem("hybrid_layer_pattern", "missing")
    mixers = [near if p else full for p in pattern] or [full] * n
    return Stack(_zip(mixers, feed_forwards(keys, n)), [])


def nemotron_h(keys: Keys) -> Stack:
    """Layers of one half each: Mamba-2, attention, experts or a dense block, by a pattern."""
    letters = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    pattern = keys.word("hybrid_override_pattern")
    kinds = tuple(letters.get(c, c) for c in pattern.replace("|", "")[: MAX_LAYERS + 1])
    kinds = kinds or keys.words("layers_block_type", "layer_types")
    _known(keys, "layers_block_type", kinds, tuple(letters.values()))
    stated = keys.optional("num_hidden_layers", high=MAX_LAYERS)
    if not kinds or len(kinds) > MAX_LAYERS:
        keys.problem("layers_block_type", "missing, and no hybrid_override_pattern either")
    elif stated is not None and stated != len(kinds):
        keys.problem("num_hidden_layers", f"{stated}, but the pattern has {len(kinds)} layers")
    state = mamba2(
        keys, "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel"
    )
    full = attention(keys) if "attention" in kinds else None
    sparse = experts(keys) if "moe" in kinds else None
    if sparse is not None:
        sparse = _replace(sparse, latent_dim=keys.optional("moe_latent_size"), gated=False)
    block = Mlp(width=keys.count("intermediate_size"), gated=False)
    halves = {
        "mamba": Layer(mixer=state, ffn=None),
        "attention": Layer(mixer=full, ffn=None),
        "moe": Layer(mixer=None, ffn=sparse),
        "mlp": Layer(mixer=None, ffn=block),
    }
    layers = [halves[k] for k in kinds if k in halves]
    drawn = tuple(letters.get(c, c) for c in keys.word("mtp_hybrid_override_pattern")[:MAX_DRAFTS])
    drawn = drawn or keys.words("mtp_layers_block_type")
    _known(keys, "mtp_layers_block_type", drawn, tuple(letters.values()))
    use = bool(draft_count(keys))
    return Stack(layers, [halves[k] for k in drawn if k in halves] if use else [])


def mamba2(keys: Keys, heads: str, width: str, groups: str, state: str, kernel: str) -> LinearState:
    """A Mamba-2 mixer from the five keys that hold its geometry."""
    n, rows, columns = keys.count(heads), keys.count(width), keys.count(state)
    share = keys.count(groups, default=1)
    return LinearState(
        kind="mamba2",
        heads=n,
        rows=rows,
        columns=columns,
        conv_channels=n * rows + 2 * share * columns,
        conv_kernel=keys.count(kernel),
        key_heads=share,
    )


def granite_hybrid(keys: Keys) -> Stack:
    """Mamba-2 with attention in a few layers; every layer has experts, a shared block, or both."""
    n = layer_count(keys)
    for name in ("mamba_conv_bias", "mamba_proj_bias", "mamba_chunk_size", "mamba_expand"):
        keys.get(name)
    state = mamba2(
        keys, "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"
    )
    types = keys.per_layer("layer_types", n) or keys.per_layer("layers_block_type", n)
    _known(keys, "layer_types", types, ("mamba", "attention"))
    if not types:
        keys.problem("layer_types", "missing")
    full = attention(keys)
    shared = keys.count("shared_intermediate_size", default=0, low=0)
    sparse = experts(keys) if keys.count("num_local_experts", default=0, low=0) else None
    ffn: Ffn = (
        Mlp(width=max(shared, 1)) if sparse is None else _replace(sparse, shared_width=shared)
    )
    mixers: list[Mixer] = [state if t == "mamba" else full for t in types[:n]] or [full] * n
    return Stack(_zip(mixers, [ffn] * n), [])


def jamba(keys: Keys) -> Stack:
    """Mamba-1 with attention in one layer of a period, experts in one of another."""
    n = layer_count(keys)
    hidden = keys.count("hidden_size")
    inner = keys.count("mamba_expand", default=2) * hidden
    rank = keys.get("mamba_dt_rank")
    state = LinearState(
        kind="mamba1",
        heads=inner,
        rows=1,
        columns=keys.count("mamba_d_state"),
        conv_channels=inner,
        conv_kernel=keys.count("mamba_d_conv"),
        key_heads=-(-hidden // 16) if rank in (None, "auto") else keys.count("mamba_dt_rank"),
    )
    for name in ("mamba_conv_bias", "mamba_proj_bias", "mamba_inner_layernorms"):
        keys.get(name)
    full = attention(keys)
    period = keys.count("attn_layer_period", default=8, high=MAX_LAYERS)
    offset = keys.count("attn_layer_offset", default=4, low=0)
    every = keys.count("expert_layer_period", default=2, high=MAX_LAYERS)
    start = keys.count("expert_layer_offset", default=1, low=0)
    sparse = experts(keys)
    if sparse is not None and sparse.count == 1:
        sparse = None
    block = dense(keys)
    mixers = [full if i % period == offset % period else state for i in range(n)]
    ffns = [sparse if sparse and i % every == start % every else block for i in range(n)]
    return Stack(_zip(mixers, ffns), [])


def lfm2(keys: Keys) -> Stack:
    """Gated short convolutions with attention in some layers; LFM2-MoE adds experts."""
    n = layer_count(keys)
    hidden = keys.count("hidden_size", "block_dim")
    for name in ("conv_dim", "conv_dim_out", "conv_bias", "conv_use_xavier_init"):
        keys.get(name)
    state = LinearState(
        kind="short_conv",
        heads=0,
        rows=0,
        columns=0,
        conv_channels=hidden,
        conv_kernel=keys.count("conv_L_cache", "conv_l_cache"),
    )
    full = _replace(attention(keys), qk_norm=True)
    types = keys.per_layer("layer_types", n)
    named = set(keys.counts("full_attn_idxs"))
    if types:
        _known(keys, "layer_types", types, ("conv", "full_attention"))
    elif not named:
        keys.problem("layer_types", "missing, and no full_attn_idxs either")
    is_full = [t == "full_attention" for t in types[:n]] or [i in named for i in range(n)]
    mixers: list[Mixer] = [full if f else state for f in is_full]
    if keys.has("num_experts"):
        return Stack(_zip(mixers, feed_forwards(keys, n)), [])
    width = keys.count("intermediate_size", "block_ff_dim")
    if keys.flag("block_auto_adjust_ff_dim"):
        multiple = keys.count("block_multiple_of", default=256)
        scaled = keys.get("block_ffn_dim_multiplier")
        factor = float(scaled) if isinstance(scaled, int | float) and 0 < scaled < 100 else 1.0
        width = -(-int(factor * (2 * width // 3)) // multiple) * multiple
    return Stack(_zip(mixers, [Mlp(width=width)] * n), [])


def nemotron_nas(keys: Keys) -> Stack:
    """Llama pruned block by block: each has its own key-value heads and width, or lacks a half."""
    n = layer_count(keys)
    blocks = keys.tables("block_configs")
    if len(blocks) != n:
        keys.problem("block_configs", f"{len(blocks)} entries for {n} layers")
    heads, hidden = keys.count("num_attention_heads"), keys.count("hidden_size")
    layers = [Layer(mixer=_pruned(b, heads, hidden), ffn=_narrowed(b, hidden)) for b in blocks]
    return Stack(layers, [])


def _pruned(block: Keys, heads: int, hidden: int) -> Mixer | None:
    table = block.table("attention")
    if table.flag("no_op"):
        return None
    if table.flag("replace_with_linear"):
        table.problem(
            "replace_with_linear", "a linear layer in place of attention is not supported"
        )
    per_group = table.count("n_heads_in_group")
    window = table.optional("window_length") or 0
    width = hidden // heads
    return Attention(
        heads=heads,
        kv_heads=max(1, heads // per_group),
        head_dim=width,
        value_dim=width,
        window=window,
    )


def _narrowed(block: Keys, hidden: int) -> Ffn | None:
    table = block.table("ffn")
    if table.flag("no_op"):
        return None
    if table.flag("replace_with_linear"):
        table.problem("replace_with_linear", "a linear layer in place of an MLP is not supported")
    factor = table.get("ffn_mult")
    if not isinstance(factor, int | float) or isinstance(factor, bool) or not 0 < factor < 1000:
        table.problem("ffn_mult", f"{shown(factor)} is not a factor of the hidden size")
        return Mlp(width=1)
    # The checkpoint's own rule: two thirds, rounded up to 256.
    return Mlp(width=-(-int(2 * factor * hidden / 3) // 256) * 256)


def _replace(record: T, **changes: object) -> T:
    return msgspec.structs.replace(record, **changes)


def _zip(mixers: Sequence[Mixer | None], ffns: Sequence[Ffn | None]) -> list[Layer]:
    pool: dict[Layer, Layer] = {}
    made = (Layer(mixer=m, ffn=f) for m, f in zip(mixers, ffns, strict=True))
    return [pool.setdefault(layer, layer) for layer in made]


Reader = Callable[[Keys], Stack]

# model_type of the text part to its reader.
READERS: dict[str, Reader] = {
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "deepseek_v32": deepseek,
    "glm4_moe_lite": deepseek,
    "glm_moe_dsa": deepseek,
    "kimi_k2": deepseek,
    "deepseek_v4": deepseek_v4,
    "kimi_linear": kimi_linear,
    "qwen3_next": qwen_hybrid,
    "qwen3_5_text": qwen_hybrid,
    "qwen3_5_moe_text": qwen_hybrid,
    "qwen3_6_text": qwen_hybrid,
    "qwen3_6_moe_text": qwen_hybrid,
    "qwen3_8_text": qwen_hybrid,
    "qwen3_8_moe_text": qwen_hybrid,
    "llama4_text": llama4,
    "llama4": llama4,
    "gemma4_text": gemma4,
    "minimax_m3": minimax_m3,
    "minimax_m3_vl": minimax_m3,
    "mimo_v2_flash": mimo_v2,
    "mimo_v2": mimo_v2,
    "nemotron_h": nemotron_h,
    "nemotron-nas": nemotron_nas,
    "granitemoehybrid": granite_hybrid,
    "jamba": jamba,
    "lfm2": lfm2,
    "lfm2_moe": lfm2,
}

# Plain decoders whose every geometry key `plain` is known to read.
# fmt: off
PLAIN = frozenset((
    "arcee", "cohere", "cohere2", "cohere2_moe", "ernie4_5", "ernie4_5_moe", "exaone4", "gemma",
    "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe", "glm4v_text", "glm4v_moe_text",
    "gpt_oss", "granite", "granitemoe", "granitemoeshared", "hunyuan_v1_dense",
    "hunyuan_v1_moe", "internlm3", "llama", "mimo", "minimax_m2", "ministral", "ministral3",
    "mistral", "mixtral", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "phi", "phi3",
    "phimoe", "qwen2", "qwen2_moe", "qwen2_5_vl_text", "qwen3", "qwen3_moe",
    "qwen3_vl_moe_text", "qwen3_vl_text", "seed_oss", "smollm3", "stablelm", "starcoder2",
    "step3p5", "step3p7",
))
# fmt: on
