"""Which reader reads which model_type."""

from collections.abc import Callable

from splitpoint.inputs.huggingface.attending import (
    deepseek,
    deepseek_v4,
    gemma4,
    llama4,
    mimo_v2,
    minimax_m3,
    nemotron_nas,
)
from splitpoint.inputs.huggingface.keys import Keys
from splitpoint.inputs.huggingface.parts import Stack
from splitpoint.inputs.huggingface.stateful import (
    granite_hybrid,
    jamba,
    kimi_linear,
    lfm2,
    nemotron_h,
    qwen_hybrid,
)

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
    "arcee", "cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "exaone4", "gemma", "gemma2",
    "gemma3_text", "glm", "glm4", "glm4_moe", "glm4v_moe_text", "glm4v_text", "gpt_oss",
    "granite", "granitemoe", "granitemoeshared", "internlm3", "llama", "mimo", "minimax_m2",
    "ministral", "ministral3", "mistral", "mixtral", "nemotron", "olmo", "olmo2", "olmo3",
    "olmoe", "phi", "phi3", "phimoe", "qwen2", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_moe",
    "qwen2_vl", "qwen3", "qwen3_moe", "qwen3_vl_moe_text", "qwen3_vl_text", "seed_oss",
    "smollm3", "stablelm", "starcoder2", "step3p5", "step3p7",
))
# fmt: on
