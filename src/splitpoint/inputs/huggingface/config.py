"""A config.json to a `Model`: find the text part, its family's reader, and judge what was left.

A key that hints at state, latent or sparse attention and that no reader looked at stops the
reading: such a model priced as plain attention would be wrong by an order of magnitude.
"""

import re
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.huggingface.attending import plain
from splitpoint.inputs.huggingface.encoders import encoder_parameters
from splitpoint.inputs.huggingface.families import PLAIN, READERS, Reader
from splitpoint.inputs.huggingface.keys import Keys, shown, tidy
from splitpoint.inputs.huggingface.parts import Stack
from splitpoint.inputs.huggingface.quantization import (
    UNQUANTISED,
    dtype_of,
    read_quantization,
    store,
)
from splitpoint.inputs.model import Attention, Dtype, Latent, Mlp, Model

WRAPPERS = (
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "transformer_layer_config",
)
MAX_DEPTH = 4  # assumed: the deepest published config nests its geometry two tables deep
MAX_PROBLEMS = 8  # assumed: as many as a reader takes in from one line

# Architectures whose configs carry no model_type, or one of their own.
ARCHITECTURES = {
    "DeepseekV4ForCausalLM": "deepseek_v4",
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeciLMForCausalLM": "nemotron-nas",
    "KimiLinearForCausalLM": "kimi_linear",
    "LlamaForCausalLM": "llama",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "NemotronHForCausalLM": "nemotron_h",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}

# Draft heads by EAGLE-3 and whose layers they have, whatever model_type stands beside them (vLLM
# 0.32 models/registry.py; the last two are the speculators library's).
EAGLE3 = {
    "LlamaForCausalLMEagle3": "llama",
    "Eagle3LlamaForCausalLM": "llama",
    "Eagle3MiniMaxM2ForCausalLM": "llama",
    "Eagle3Qwen2_5vlForCausalLM": "llama",
    "Eagle3Qwen3vlForCausalLM": "llama",
    "Eagle3Qwen3ForCausalLM": "qwen3",
    "Eagle3DeepseekV2ForCausalLM": "deepseek_v3",
    "Eagle3DeepseekV3ForCausalLM": "deepseek_v3",
    "Eagle3Speculator": "llama",
    "Eagle3DraftModel": "llama",
}
# What else only drafts: read as a model of its own it would be mispriced.
DRAFTS_ONLY = re.compile(
    r"^(?:EAGLE|Eagle(?!2_)|P-?[Ee]agle|Medusa|MLPSpeculator|DFlash|DSpark)|Eagle$|MTP(?:Model)?$"
)
FUSED_LAYERS = 3  # vLLM llama_eagle3.py: hidden states of three layers of the target

TWO_TABLES = ("gemma3_text", "gemma4_text", "mimo_v2_flash", "mimo_v2")
TIED = ("gemma", "cohere", "lfm2", "starcoder2")

# Documented defaults of Gemma3TextConfig (transformers 4.50), which its small checkpoints leave
# out.
DEFAULTS: dict[str, Mapping[str, object]] = {
    "gemma3_text": {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
    },
}

# A left-over key with one of these in its name may hold a state, a latent or a sparse cache.
HINT = re.compile(
    r"ssm|mamba|state|conv|linear_|recurren|rwkv|wkv|retention|retnet|lightning|delta|hyena|"
    r"fourier|gla_|kda|mla|lora_rank|latent|compress|sparse|index|memory|hybrid|swa_|"
    r"kv_shared|cross_layer|(?:^|_)cla(?:$|_)|attn_type|attention_type|"
    r"block_types|layer_types|block_configs"
)
# Left-over keys of an unknown architecture that may hold geometry.
GEOMETRY = re.compile(
    r"(?:^|_)(?:dim|rank|heads?|size|layers?|width|experts?|window|pattern|types?|freq|period|"
    r"interval|kernel|blocks?|groups?|stride|depth)(?:$|_)"
)
# Names that match by accident: training, initialisation, tokens, generation, implementation.
HARMLESS = re.compile(
    r"^(?:"
    r"model_type|torch_dtype|dtype|vocab_size|type_vocab_size|rotary_dim|tie_.*|is_.*|use_cache|"
    r".*_bias|.*_act|activation_.*|.*rope_theta|rope_.*|indexer_rope_interleave|qk_norm_type|"
    r"norm_.*|rms_norm_.*|.*layer_?norm.*|.*_layer_norm.*|final_logit_.*|residual_in_fp32|"
    r"initializer_.*|.*dropout.*|pretraining_.*|gradient_checkpointing.*|.*_coef|problem_type|"
    r"router_.*|moe_router_dtype|n_group|topk_group|topk_method|num_expert_group|group_.*|ep_size|"
    r"moe_shared_expert_overlap|mtp_use_dedicated_embeddings|max_window_layers|"
    r"original_max_position_embeddings|time_step_.*|expand|chunk_size|mamba_chunk_size|"
    r"use_mamba_kernels|mamba_hidden_act|mamba_ssm_(?:cache_)?dtype|"
    r"bos_.*|eos_.*|.*token_(?:id|index)|ignore_index|auto_map|cache_.*|return_.*|"
    r"output_hidden_states|hidden_states?_.*|add_cross_attention|cross_attention_hidden_size|"
    r"chunk_size_feed_forward|num_beam.*|num_return_sequences|num_logits_to_keep|"
    r"no_repeat_ngram_size|encoder_no_repeat.*"
    r")$"
)
# Tables whose inside says nothing about the text model.
ASIDE = re.compile(
    r"^(?:vision|audio|visual|speech|rope|quantization|auto_map|id2label|label2id|"
    r"generation|task_specific|compression|pruned_heads|image|video|sub_configs)"
)


def from_config(
    config: Mapping[str, object],
    where: str,
    name: str = "",
    quant: Mapping[str, object] | None = None,
) -> Model:
    """The model that a config.json describes; `quant` is the hf_quant_config.json beside it."""
    if not isinstance(config, Mapping) or any(not isinstance(key, str) for key in config):
        raise PlanError(where, "not a table of keys", "a config.json of a language model")
    outer = Keys(config)
    text = _text_part(outer)
    kind = _kind(outer, text, where)
    keys = Keys({**DEFAULTS.get(kind, {}), **text.values}, text.path, outer.problems)
    keys.values = {**keys.values, "model_type": kind}
    for table in ("rope_parameters", "rope_scaling"):
        keys.get(table)
    reader, known = _reader(kind)
    if not known and not keys.has("num_hidden_layers", "n_layer", "num_layers"):
        raise PlanError(where, "no num_hidden_layers", "a config.json of a language model")
    stack = reader(keys)
    model = _assemble(keys, outer, stack, kind, where, name, quant)
    if _eagle3(outer, where) is not None:
        model = _head(model, keys, outer)
    if outer.problems:
        raise PlanError(where, _told(outer.problems))
    _judge(keys, where, kind, known)
    if known:
        return model
    family = f"model_type {shown(kind)} is not known" if kind else "no model_type"
    return replace(model, inferred=(f"{family}: taken for a plain decoder, as all its keys are",))


def _told(problems: list[str]) -> str:
    unique = list(dict.fromkeys(problems))
    more = len(unique) - MAX_PROBLEMS
    return "; ".join(unique[:MAX_PROBLEMS] + ([f"and {more} more"] if more > 0 else []))


def _text_part(outer: Keys) -> Keys:
    """The language model inside a multimodal wrapper, at most two wrappers deep."""
    part = outer
    for _ in range(2):
        inner = next((n for n in WRAPPERS if isinstance(part.values.get(n), Mapping)), None)
        if inner is None:
            break
        part = part.table(inner)
    return part


def _kind(outer: Keys, text: Keys, where: str) -> str:
    """The model_type of the text part; where it names no known family, its architecture's."""
    if (head := _eagle3(outer, where)) is not None:
        return EAGLE3[head]
    kind = text.word("model_type") or outer.word("model_type")
    if kind in READERS or kind in PLAIN:
        return kind
    for keys in (text, outer):
        names = keys.get("architectures")
        named = names[0] if isinstance(names, list) and names else None
        if isinstance(named, str) and named in ARCHITECTURES:
            return ARCHITECTURES[named]
    return kind


def _eagle3(outer: Keys, where: str) -> str | None:
    """The architecture, if it is that of an EAGLE-3 head; other draft heads are refused."""
    found = outer.get("architectures")
    names = [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
    head = next((name for name in names if name in EAGLE3), None)
    only = next((name for name in names if DRAFTS_ONLY.search(name)), None)
    if head is None and only is not None:
        hint = "an EAGLE-3 head of Llama's, Qwen3's or DeepSeek's layers, or a smaller model"
        raise PlanError(where, f"{tidy(only)} is a draft head that is not priced", hint)
    return head


def _head(model: Model, keys: Keys, outer: Keys) -> Model:
    """The model as an EAGLE-3 head: what it drafts and reads of its target, and its first layer's
    doubled input."""
    reads = next((k for k in (keys, outer) if k.has("target_hidden_size")), keys)
    width = reads.optional("target_hidden_size") or model.hidden
    says = next((k for k in (keys, outer) if k.has("draft_vocab_size")), keys)
    vocab = says.optional("draft_vocab_size") or model.vocab
    if not outer.table("eagle_config").flag("use_aux_hidden_state", default=True):
        outer.problem("eagle_config.use_aux_hidden_state", "heads without it are not priced")
    # Dense in every layer, even where its target's experts stand in the config (vLLM
    # deepseek_eagle3.py).
    dense = Mlp(width=keys.count("intermediate_size"))
    first, *rest = (replace(layer, ffn=dense) for layer in model.layers)
    if isinstance(first.mixer, Attention | Latent):
        first = replace(first, mixer=replace(first.mixer, joined=True))
    return replace(model, vocab=vocab, fused=FUSED_LAYERS * width, layers=(first, *rest))


def _reader(kind: str) -> tuple[Reader, bool]:
    if kind in READERS:
        return READERS[kind], True
    return plain, kind in PLAIN


def _assemble(
    keys: Keys,
    outer: Keys,
    stack: Stack,
    kind: str,
    where: str,
    name: str,
    quant: Mapping[str, object] | None,
) -> Model:
    dtype: Dtype = dtype_of(keys, "dtype", "torch_dtype") or _outer_dtype(outer, keys)
    beside = None if quant is None else Keys(quant, "hf_quant_config.", outer.problems)
    holder = keys if keys.has("quantization_config", "compression_config") else outer
    quantization = read_quantization(holder, beside)
    fp4 = keys.word("expert_dtype").lower()
    if fp4 not in ("", "fp4", "mxfp4", "fp8"):
        keys.problem("expert_dtype", f"{shown(fp4)} is not known (fp4, fp8)")
    if fp4 in ("fp4", "mxfp4"):
        quantization = quantization.with_mxfp4_experts()
    if keys.problems:
        quantization = UNQUANTISED
    weights, layers, drafts = store(tuple(stack.layers), tuple(stack.drafts), dtype, quantization)
    tied = keys.get("tie_word_embeddings", "tie_embedding")
    holder = keys if tied is not None else outer
    names = outer.get("architectures")
    named = names[0] if isinstance(names, list) and names else None
    return Model(
        name=name or tidy(outer.word("_name_or_path")) or where,
        layers=layers,
        draft_layers=drafts,
        hidden=keys.count("hidden_size", "n_embd", "block_dim"),
        vocab=keys.count("vocab_size"),
        tied_embeddings=holder.flag(
            "tie_word_embeddings", "tie_embedding", default=kind.startswith(TIED)
        ),
        max_len=keys.count("max_position_embeddings", "model_max_length", "seq_length"),
        dtype=dtype,
        weights=weights,
        kv_dtype=quantization.kv_dtype,
        state_dtype=dtype_of(keys, "mamba_ssm_dtype", "mamba_ssm_cache_dtype"),
        architecture=tidy(named) if isinstance(named, str) else kind,
        source=where,
        encoder=encoder_parameters(outer),
        rotary_dim=_rotary_dim(keys, stack, kind),
    )


def _rotary_dim(keys: Keys, stack: Stack, kind: str) -> int:
    """Columns of the rotary tables: part of each distinct head width; none without positions.

    Gemma keeps a table for its sliding layers and one for the global ones.
    """
    unplaced = keys.word("position_embedding_type") == "nope" or keys.flag("mla_use_nope")
    if kind in ("nemotron_h", "jamba") or unplaced:
        return 0
    stated = keys.optional("qk_rope_head_dim", "rotary_dim", low=0)
    if stated is not None:
        return stated
    attention = {m for m in (y.mixer for y in stack.layers) if isinstance(m, Attention)}
    tables = {(m.head_dim, m.window > 0 and kind in TWO_TABLES) for m in attention}
    factor = keys.get("partial_rotary_factor")
    if factor is None:
        factor = keys.table("rope_parameters").get("partial_rotary_factor")
    part = float(factor) if isinstance(factor, int | float) and 0 < factor <= 1 else 1.0
    return sum(int(width * part) for width, _ in tables)


def _outer_dtype(outer: Keys, keys: Keys) -> Dtype:
    """The wrapper's dtype; bf16 where none is stated, as every recent checkpoint is stored."""
    return (dtype_of(outer, "dtype", "torch_dtype") if outer is not keys else None) or "bf16"


def _judge(keys: Keys, where: str, kind: str, known: bool) -> None:
    """Refuse a config whose left-over keys may describe what was not priced."""
    suspects = [key for key in _leftover(keys, deep=not known) if _hints(key)]
    if suspects:
        raise PlanError(
            where,
            f"architecture {shown(kind or 'unknown')} has keys that are not understood: "
            + ", ".join(suspects[:MAX_PROBLEMS]),
            "they hint at recurrent, latent or sparse attention, which would be mispriced",
        )
    if known:
        return
    strange = [key for key in _leftover(keys, deep=True) if GEOMETRY.search(key.rpartition(".")[2])]
    if strange:
        raise PlanError(
            where,
            f"architecture {shown(kind or 'unknown')} is not known, nor are its keys "
            + ", ".join(strange[:MAX_PROBLEMS]),
            "give a model of a known family",
        )


def _hints(key: str) -> bool:
    return HINT.search(key.rpartition(".")[2].lower()) is not None


def _leftover(keys: Keys, deep: bool) -> Iterator[str]:
    """Names of the keys that no reader looked at and that say something."""
    for name, value in keys.values.items():
        if not value or name in keys.used or HARMLESS.match(name) or ASIDE.match(name):
            continue
        yield f"{keys.path}{tidy(name)}"
        if deep and isinstance(value, Mapping) and keys.path.count(".") < MAX_DEPTH:
            inner = {str(key): found for key, found in value.items()}
            yield from _leftover(Keys(inner, f"{keys.path}{tidy(name)}."), deep)
