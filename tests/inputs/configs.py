"""Small config.json tables, one per family, for tests that change a key or two."""

from typing import Any

Config = dict[str, Any]


def dense(model_type: str = "llama", **keys: Any) -> Config:
    """Four layers of 8 heads over 2 KV heads."""
    return {
        "architectures": ["SomeForCausalLM"],
        "model_type": model_type,
        "num_hidden_layers": 4,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_size": 1024,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
        **keys,
    }


def moe(model_type: str = "qwen3_moe", **keys: Any) -> Config:
    """The same with 16 experts of width 128, 2 active."""
    experts = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
    return dense(model_type, **{**experts, **keys})


def mla(model_type: str = "deepseek_v3", **keys: Any) -> Config:
    """Latent attention, the first layer dense."""
    latent = {
        "kv_lora_rank": 64,
        "q_lora_rank": 96,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "n_routed_experts": 16,
        "n_shared_experts": 2,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "first_k_dense_replace": 1,
    }
    return dense(model_type, **{"num_key_value_heads": 8, **latent, **keys})


def gdn(**keys: Any) -> Config:
    """Three gated DeltaNet layers and a full one."""
    state = {
        "head_dim": 64,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "mtp_num_hidden_layers": 1,
        "mamba_ssm_dtype": "float32",
    }
    return dense("qwen3_5_text", **{**state, **keys})
