"""Families in which most layers keep a recurrent state and a few attend."""

from splitpoint.inputs.huggingface.keys import MAX_LAYERS, Keys
from splitpoint.inputs.huggingface.parts import (
    MAX_DRAFTS,
    Stack,
    attention,
    changed,
    check_words,
    dense,
    draft_count,
    experts,
    feed_forwards,
    latent,
    layer_count,
    zipped,
)
from splitpoint.inputs.model import Experts, Ffn, Layer, LinearState, Mixer, Mlp


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
        changed(f, latent_dim=narrow) if isinstance(f, Experts) else f
        for f in feed_forwards(keys, n)
    ]
    drafts = [Layer(mixer=whole, ffn=ffns[-1])] if draft_count(keys) else []
    return Stack(zipped(mixers, ffns), drafts)


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
    full = changed(attention(keys), gated=keys.flag("attn_output_gate", default=True))
    types = keys.per_layer("layer_types", n)
    every = keys.count("full_attention_interval", default=4, high=MAX_LAYERS)
    if types:
        check_words(keys, "layer_types", types, ("linear_attention", "full_attention"))
    is_full = [t == "full_attention" for t in types[:n]] or [(i + 1) % every == 0 for i in range(n)]
    ffns = feed_forwards(keys, n)
    # Qwen3-Next states no MTP key though its checkpoint has one such layer.
    modules = draft_count(keys) or int(keys.word("model_type") == "qwen3_next")
    drafts = [Layer(mixer=full, ffn=ffns[-1])] if modules else []
    return Stack(zipped([full if f else state for f in is_full], ffns), drafts)


def nemotron_h(keys: Keys) -> Stack:
    """Layers of one half each: Mamba-2, attention, experts or a dense block, by a pattern."""
    letters = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    pattern = keys.word("hybrid_override_pattern")
    kinds = tuple(letters.get(c, c) for c in pattern.replace("|", "")[: MAX_LAYERS + 1])
    kinds = kinds or keys.words("layers_block_type", "layer_types")
    check_words(keys, "layers_block_type", kinds, tuple(letters.values()))
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
        sparse = changed(sparse, latent_dim=keys.optional("moe_latent_size"), gated=False)
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
    check_words(keys, "mtp_layers_block_type", drawn, tuple(letters.values()))
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
    check_words(keys, "layer_types", types, ("mamba", "attention"))
    if not types:
        keys.problem("layer_types", "missing")
    full = attention(keys)
    shared = keys.count("shared_intermediate_size", default=0, low=0)
    sparse = experts(keys) if keys.count("num_local_experts", default=0, low=0) else None
    ffn: Ffn = Mlp(width=max(shared, 1)) if sparse is None else changed(sparse, shared_width=shared)
    mixers: list[Mixer] = [state if t == "mamba" else full for t in types[:n]] or [full] * n
    return Stack(zipped(mixers, [ffn] * n), [])


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
    return Stack(zipped(mixers, ffns), [])


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
    full = changed(attention(keys), qk_norm=True)
    types = keys.per_layer("layer_types", n)
    named = set(keys.counts("full_attn_idxs"))
    if types:
        check_words(keys, "layer_types", types, ("conv", "full_attention"))
    elif not named:
        keys.problem("layer_types", "missing, and no full_attn_idxs either")
    is_full = [t == "full_attention" for t in types[:n]] or [i in named for i in range(n)]
    mixers: list[Mixer] = [full if f else state for f in is_full]
    if keys.has("num_experts"):
        return Stack(zipped(mixers, feed_forwards(keys, n)), [])
    width = keys.count("intermediate_size", "block_ff_dim")
    if keys.flag("block_auto_adjust_ff_dim"):
        multiple = keys.count("block_multiple_of", default=256)
        scaled = keys.get("block_ffn_dim_multiplier")
        factor = float(scaled) if isinstance(scaled, int | float) and 0 < scaled < 100 else 1.0
        width = -(-int(factor * (2 * width // 3)) // multiple) * multiple
    return Stack(zipped(mixers, [Mlp(width=width)] * n), [])
