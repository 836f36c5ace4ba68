"""What the families share: heads, experts, which layers have them, and how a stack is made.

A reader notes every key that it looks at, so that what it missed can be judged.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeVar

import msgspec

from splitpoint.inputs.huggingface.keys import MAX_EXPERTS, MAX_LAYERS, Keys, shown
from splitpoint.inputs.model import Attention, Experts, Ffn, Latent, Layer, Mixer, Mlp

MAX_DRAFTS = 64  # assumed: nine times the most MTP modules a published model has

# Feed-forward blocks of two matrices instead of three.
UNGATED = frozenset(("arcee", "nemotron", "nemotron_h", "phi", "starcoder2"))
# Families that normalise each head's queries and keys though no key says so.
QK_NORM = (
    "qwen3",
    "gemma3",
    "gemma4",
    "olmo2",
    "olmo3",
    "minimax_m",
    "lfm2",
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


def attention(keys: Keys) -> Attention:
    """Multi-head attention as most configs spell it."""
    kind = keys.word("model_type")
    heads = keys.count("num_attention_heads", "n_head")
    width = keys.optional("head_dim", "attention_head_dim", "kv_channels")
    if width is None:
        hidden = keys.count("hidden_size", "n_embd")
        width = hidden // heads
        # What is missing or wrong was said already.
        if hidden % heads and not keys.problems:
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
        wide_norm=norm and kind == "minimax_m2",
        sinks=kind == "gpt_oss",
    )


def _kv_heads(keys: Keys, heads: int) -> int:
    names = ("num_key_value_heads", "num_attention_groups", "multi_query_group_num")
    found = keys.count(*names, default=heads)
    if (found > heads or heads % found) and not keys.problems:
        keys.problem(names[0], f"{heads} query heads do not divide by {found} key-value heads")
    return found


def _bias(keys: Keys, kind: str) -> Literal["", "qkv", "qkvo"]:
    """Qwen2 and GLM put a bias on queries, keys and values only; Llama's flag means all four."""
    fallback = kind.startswith("qwen2")
    if not keys.flag("attention_bias", "qkv_bias", "add_qkv_bias", default=fallback):
        return ""
    only_in = kind.startswith(("qwen2", "glm", "mimo"))
    return "qkv" if only_in else "qkvo"


def check_words(keys: Keys, name: str, found: Sequence[str], known: Sequence[str]) -> None:
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
    own = "dense_intermediate_size"  # MiniMax-M3's, whose other key is the experts'
    names = (own,) if keys.has(own) else ("intermediate_size", "ffn_hidden_size", "n_inner")
    return Mlp(width=keys.count(*names), gated=keys.word("model_type") not in UNGATED)


def sparse_layers(keys: Keys, n: int) -> list[bool]:
    """Which layers have experts; the families state it in half a dozen ways."""
    types = keys.per_layer("mlp_layer_types", n)
    if types:
        check_words(keys, "mlp_layer_types", types, ("dense", "sparse"))
        return [t == "sparse" for t in types[:n]]
    named = keys.get("moe_layers_enum")
    if isinstance(named, str):
        found = {int(p) for p in named.split(",") if re.fullmatch(r"\s*\d{1,5}\s*", p)}
        return [i in found for i in range(n)]
    if isinstance(keys.get("moe_layer_freq"), list):
        flags = keys.counts_per_layer("moe_layer_freq", n)
        return [bool(f) for f in flags] or [True] * n
    first_names = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
    first = keys.count(*first_names, default=0, low=0)
    last = keys.count("moe_layer_end_index", default=-1, low=-1)
    every = keys.count("moe_layer_freq", default=1, low=1, high=MAX_LAYERS)
    step = keys.count("decoder_sparse_step", "moe_layer_interval", default=1, high=MAX_LAYERS)
    only = set(keys.counts("mlp_only_layers"))
    within = range(first, n if last < 0 else min(n, last + 1))
    return [
        i in within and i % every == 0 and (i + 1) % step == 0 and i not in only for i in range(n)
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


def changed(record: T, **changes: object) -> T:
    return msgspec.structs.replace(record, **changes)


def zipped(mixers: Sequence[Mixer | None], ffns: Sequence[Ffn | None]) -> list[Layer]:
    pool: dict[Layer, Layer] = {}
    made = (Layer(mixer=m, ffn=f) for m, f in zip(mixers, ffns, strict=True))
    return [pool.setdefault(layer, layer) for layer in made]
