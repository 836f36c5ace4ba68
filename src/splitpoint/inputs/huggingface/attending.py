"""Families whose layers all attend: full, sliding, chunked, latent, sparse or compressed."""

from splitpoint.inputs.huggingface.keys import MAX_LAYERS, Keys, shown
from splitpoint.inputs.huggingface.parts import (
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
from splitpoint.inputs.model import (
    Attention,
    Compressed,
    Ffn,
    Indexer,
    Layer,
    Mixer,
    Mlp,
)


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
    return Stack(zipped(mixers, ffns), drafts)


def _windowed(full: Attention, window: int) -> Attention:
    return changed(full, window=window)


# Of these families every k-th layer attends in full unless the config says which: the defaults of
# their configuration classes in transformers 4.57.
FULL_EVERY = {"gemma2": 2, "gpt_oss": 2, "cohere2": 4, "exaone4": 4, "olmo3": 4, "gemma3": 6}


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
        check_words(keys, "layer_types", types, known)
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
    for family, every in FULL_EVERY.items():
        if kind.startswith(family):
            return [0 if (i + 1) % every == 0 else window for i in range(n)]
    if kind.startswith("qwen") or keys.has("use_sliding_window"):
        first = keys.count("max_window_layers", default=n, low=0)
        on = keys.flag("use_sliding_window")
        return [window if on and i >= first else 0 for i in range(n)]
    return [window] * n


def deepseek(keys: Keys) -> Stack:
    """MLA in every layer; from V3.2 and GLM 5 on with an indexer that some layers share."""
    n = layer_count(keys)
    whole = latent(keys)
    ffns = feed_forwards(keys, n)
    if not keys.has("index_topk"):
        drafts = [Layer(mixer=whole, ffn=ffns[-1])] if draft_count(keys) else []
        return Stack(zipped([whole] * n, ffns), drafts)
    indexer = _indexer(keys)
    own = changed(whole, indexer=indexer)
    reused = changed(whole, indexer=changed(indexer, shared=True))
    # Stated twice by GLM 5.2: the list is what counts, the frequency how it was made.
    for name in ("index_topk_freq", "index_skip_topk_offset", "index_topk_pattern"):
        keys.get(name)
    keys.get("index_share_for_mtp_iteration")
    kinds = keys.per_layer("layer_types", n)
    check_words(keys, "layer_types", kinds, ("deepseek_sparse_attention",))
    types = keys.per_layer("indexer_types", n)
    check_words(keys, "indexer_types", types, ("full", "shared"))
    mixers = [reused if t == "shared" else own for t in types[:n]] or [own] * n
    drafts = [Layer(mixer=own, ffn=ffns[-1])] if draft_count(keys) else []
    return Stack(zipped(mixers, ffns), drafts)


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
        return changed(base, ratio=ratio, indexer=indexer if ratio == fine and ratio else None)

    ffns = feed_forwards(keys, n)
    drafted = ratios[n] if len(ratios) > n else 0
    drafts = [Layer(mixer=mixer(drafted), ffn=ffns[-1])] if draft_count(keys) else []
    return Stack(zipped([mixer(r) for r in ratios[:n]], ffns), drafts)


def llama4(keys: Keys) -> Stack:
    """Chunked local attention, full in every fourth; experts in every layer or every other."""
    n = layer_count(keys)
    chunk = keys.count("attention_chunk_size")
    full = attention(keys)
    local = changed(full, chunk=chunk)
    types = keys.per_layer("layer_types", n)
    ropes = keys.counts_per_layer("no_rope_layers", n)
    every = keys.count("nope_layer_interval", "no_rope_layer_interval", default=4, high=MAX_LAYERS)
    if types:
        check_words(keys, "layer_types", types, ("chunked_attention", "full_attention"))
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
        return Stack(zipped([local if c else full for c in is_local], [block] * n), [])
    shared = changed(sparse, shared_width=sparse.width)
    use = [i in named if named else bool(step) and (i + 1) % step == 0 for i in range(n)]
    ffns: list[Ffn] = [shared if u else block for u in use]
    return Stack(zipped([local if c else full for c in is_local], ffns), [])


def gemma4(keys: Keys) -> Stack:
    """Sliding layers beside global ones of another head size, whose key serves as value too."""
    n = layer_count(keys)
    for name in ("vocab_size_per_layer_input", "use_bidirectional_attention"):
        keys.get(name)
    if keys.count("hidden_size_per_layer_input", default=0, low=0):
        keys.problem("hidden_size_per_layer_input", "per-layer embeddings are not supported")
    if keys.flag("use_double_wide_mlp"):
        keys.problem("use_double_wide_mlp", "double-wide feed-forwards are not supported")
    near = changed(attention(keys), window=keys.count("sliding_window"))
    width = keys.count("global_head_dim", default=near.head_dim)
    far = changed(
        near,
        window=0,
        head_dim=width,
        value_dim=width,
        kv_heads=keys.count("num_global_key_value_heads", default=near.kv_heads),
        key_is_value=keys.flag("attention_k_eq_v"),
    )
    types = keys.per_layer("layer_types", n)
    check_words(keys, "layer_types", types, ("sliding_attention", "full_attention"))
    if not types:
        keys.problem("layer_types", "missing")
    mixers = [far if t == "full_attention" else near for t in types[:n]] or [far] * n
    block = dense(keys)
    sparse = experts(keys) if keys.flag("enable_moe_block") else None
    ffn: Ffn = block if sparse is None else changed(sparse, dense_width=block.width)
    reused = keys.count("num_kv_shared_layers", default=0, low=0, high=n)
    layers = zipped(mixers, [ffn] * n)
    last = layers[n - reused :]
    return Stack(layers[: n - reused] + [changed(layer, shares_kv=True) for layer in last], [])


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
        chosen = changed(full, indexer=indexer)
    ffns = feed_forwards(keys, n)
    drafts = [Layer(mixer=chosen, ffn=ffns[-1])] if draft_count(keys) else []
    return Stack(zipped([chosen if u else full for u in use], ffns), drafts)


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
    return Stack(zipped(mixers, feed_forwards(keys, n)), [])


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
