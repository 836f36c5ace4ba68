"""config.json to Model: every family's rules, and what is refused."""

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from splitpoint.errors import PlanError
from splitpoint.inputs.huggingface import from_config, load_model
from splitpoint.inputs.model import (
    Attention,
    Compressed,
    Experts,
    Indexer,
    Latent,
    LinearState,
    Mlp,
    Model,
)
from tests.inputs.configs import Config, dense, gdn, mla, moe


def read(config: Config, quant: Config | None = None) -> Model:
    return from_config(config, "config.json", "model", quant)


def attention(model: Model, layer: int) -> Attention:
    mixer = model.layers[layer].mixer
    assert isinstance(mixer, Attention)
    return mixer


def state(model: Model, layer: int) -> LinearState:
    mixer = model.layers[layer].mixer
    assert isinstance(mixer, LinearState)
    return mixer


def refusal(config: Config, quant: Config | None = None) -> str:
    with pytest.raises(PlanError) as caught:
        read(config, quant)
    text = str(caught.value)
    assert text.startswith("config.json: ") and text.isprintable()
    return text


def test_a_dense_decoder_has_equal_layers_that_share_one_object() -> None:
    model = read(dense())
    assert attention(model, 0) == Attention(heads=8, kv_heads=2, head_dim=64, value_dim=64)
    assert model.layers[0].ffn == Mlp(width=1024)
    assert all(layer is model.layers[0] for layer in model.layers)
    assert (model.hidden, model.vocab, model.max_len, model.dtype) == (512, 1000, 4096, "bf16")
    assert not model.tied_embeddings and not model.draft_layers


def test_keys_may_be_spelled_as_older_models_do() -> None:
    model = read(dense(attention_head_dim=32, num_key_value_heads=None, n_inner=None))
    assert (attention(model, 0).head_dim, attention(model, 0).kv_heads) == (32, 8)


@pytest.mark.parametrize(
    ("keys", "windows"),
    [
        ({"model_type": "mistral", "sliding_window": 1024}, [1024] * 4),
        ({"model_type": "mistral", "sliding_window": 4096}, [0] * 4),
        ({"model_type": "qwen2", "sliding_window": 1024, "use_sliding_window": False}, [0] * 4),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 1024,
                "use_sliding_window": True,
                "max_window_layers": 3,
            },
            [0, 0, 0, 1024],
        ),
        ({"model_type": "gemma2", "sliding_window": 512}, [512, 0, 512, 0]),
        (
            {"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 3},
            [512, 512, 0, 512],
        ),
        ({"model_type": "gpt_oss", "sliding_window": 128}, [128, 0, 128, 0]),
        ({"model_type": "cohere2", "sliding_window": 128}, [128, 128, 128, 0]),
        (
            {
                "model_type": "gpt_oss",
                "sliding_window": 128,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            [128, 0, 128, 0],
        ),
    ],
)
def test_each_family_places_its_sliding_windows(keys: Config, windows: list[int]) -> None:
    model = read(dense(**keys))
    assert [attention(model, i).window for i in range(4)] == windows


@pytest.mark.parametrize(
    ("keys", "sparse"),
    [
        ({}, [1, 1, 1, 1]),
        ({"first_k_dense_replace": 2}, [0, 0, 1, 1]),
        ({"decoder_sparse_step": 2}, [0, 1, 0, 1]),
        ({"mlp_only_layers": [1]}, [1, 0, 1, 1]),
        ({"moe_layer_freq": [0, 1, 1, 0]}, [0, 1, 1, 0]),
        ({"moe_layer_freq": 2}, [1, 0, 1, 0]),
        ({"moe_layers_enum": "1,3"}, [0, 1, 0, 1]),
        ({"mlp_layer_types": ["dense", "sparse", "sparse", "dense"]}, [0, 1, 1, 0]),
    ],
)
def test_experts_stand_where_the_config_says(keys: Config, sparse: list[int]) -> None:
    model = read(moe(**keys))
    assert [int(isinstance(layer.ffn, Experts)) for layer in model.layers] == sparse


def test_shared_experts_are_stated_by_width_or_by_number() -> None:
    ways: list[Config] = [
        {"shared_expert_intermediate_size": 256},
        {"n_shared_experts": 2},
        {"moe_shared_expert_intermediate_size": 128, "n_shared_experts": 2},
        {"shared_intermediate_size": 0},
    ]
    blocks = [read(moe(**keys)).layers[-1].ffn for keys in ways]
    found = [ffn.shared_width for ffn in blocks if isinstance(ffn, Experts)]
    assert found == [256, 256, 256, 0]


def test_gpt_oss_has_biases_and_sinks_and_qwen3_norms_its_heads() -> None:
    oss = read(moe("gpt_oss", attention_bias=True, quantization_config={"quant_method": "mxfp4"}))
    assert attention(oss, 0).bias == "qkvo" and attention(oss, 0).sinks
    assert isinstance(oss.layers[0].ffn, Experts) and oss.layers[0].ffn.bias
    assert (oss.weights.experts, oss.weights.attention) == ("mxfp4", "bf16")
    assert attention(read(dense("qwen3")), 0).qk_norm
    assert attention(read(dense("qwen2")), 0).bias == "qkv"


def test_deepseek_caches_a_latent_and_drafts_with_its_last_layer() -> None:
    model = read(mla(num_nextn_predict_layers=1))
    assert model.layers[0].mixer == Latent(
        heads=8, kv_rank=64, nope_dim=32, rope_dim=16, value_dim=32, q_rank=96
    )
    assert isinstance(model.layers[0].ffn, Mlp)
    assert model.draft_layers == (model.layers[-1],)
    assert model.rotary_dim == 16


def test_indexers_are_shared_where_the_config_says_so() -> None:
    index = {"index_n_heads": 4, "index_head_dim": 16, "index_topk": 256}
    own = Indexer(heads=4, dim=16, topk=256)
    every = read(mla("deepseek_v32", **index))
    assert {layer.mixer.indexer for layer in every.layers if isinstance(layer.mixer, Latent)} == {
        own
    }
    types = ["full", "shared", "shared", "full"]
    some = read(mla("glm_moe_dsa", indexer_types=types, **index))
    shared = [layer.mixer.indexer for layer in some.layers if isinstance(layer.mixer, Latent)]
    assert [i is not None and i.shared for i in shared] == [False, True, True, False]


def test_deepseek_v4_compresses_by_layer_and_indexes_the_fine_layers() -> None:
    config = moe(
        "deepseek_v4",
        head_dim=64,
        num_key_value_heads=1,
        qk_rope_head_dim=16,
        sliding_window=128,
        q_lora_rank=96,
        o_lora_rank=64,
        o_groups=4,
        index_n_heads=4,
        index_head_dim=16,
        index_topk=256,
        compress_ratios=[0, 4, 128, 4, 0],
        num_nextn_predict_layers=1,
        expert_dtype="fp4",
        quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
    )
    model = read(config)
    mixers = [layer.mixer for layer in model.layers if isinstance(layer.mixer, Compressed)]
    assert [m.ratio for m in mixers] == [0, 4, 128, 4]
    assert [m.indexer is not None for m in mixers] == [False, True, False, True]
    assert (model.weights.experts, model.weights.attention) == ("mxfp4", "fp8")
    draft = model.draft_layers[0].mixer
    assert isinstance(draft, Compressed) and draft.ratio == 0
    assert "compress_ratios" in refusal({**config, "compress_ratios": [0, 4]})


def test_gated_deltanet_takes_three_layers_of_four() -> None:
    model = read(gdn())
    assert state(model, 0) == LinearState(
        kind="gdn",
        heads=8,
        rows=32,
        columns=64,
        conv_channels=2 * 4 * 32 + 8 * 64,
        conv_kernel=4,
        key_heads=4,
    )
    assert attention(model, 3).gated
    assert isinstance(model.draft_layers[0].mixer, Attention)
    assert model.state_dtype == "fp32"
    types = ["full_attention", *["linear_attention"] * 3]
    assert isinstance(read(gdn(layer_types=types)).layers[0].mixer, Attention)


def test_kimi_counts_its_layers_from_one() -> None:
    linear = {
        "full_attn_layers": [4],
        "kda_layers": [1, 2, 3],
        "head_dim": 32,
        "num_heads": 8,
        "short_conv_kernel_size": 4,
    }
    config = mla("kimi_linear", linear_attn_config=linear, routed_expert_hidden_size=256)
    model = read(config)
    assert [type(layer.mixer).__name__ for layer in model.layers] == [
        "LinearState",
        "LinearState",
        "LinearState",
        "Latent",
    ]
    assert (state(model, 0).kind, state(model, 0).gate_rank) == ("kda", 32)
    ffn = model.layers[1].ffn
    assert isinstance(ffn, Experts) and ffn.latent_dim == 256
    gap = {**config, "linear_attn_config": {**linear, "kda_layers": [1, 2]}}
    assert "kda_layers" in refusal(gap)


def test_llama4_is_local_but_for_every_fourth_layer() -> None:
    config = dense(
        "llama4_text",
        attention_chunk_size=1024,
        num_local_experts=8,
        num_experts_per_tok=1,
        interleave_moe_layer_step=2,
        intermediate_size_mlp=2048,
    )
    model = read({"model_type": "llama4", "text_config": config})
    assert [attention(model, i).chunk for i in range(4)] == [1024, 1024, 1024, 0]
    assert model.layers[0].ffn == Mlp(width=2048)
    ffn = model.layers[1].ffn
    assert isinstance(ffn, Experts) and (ffn.width, ffn.shared_width) == (1024, 1024)


def test_gemma4_global_layers_have_their_own_heads() -> None:
    types = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
    config = moe(
        "gemma4_text",
        enable_moe_block=True,
        layer_types=types,
        head_dim=32,
        global_head_dim=64,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=512,
        num_kv_shared_layers=1,
    )
    model = read(config)
    near, far = attention(model, 0), attention(model, 3)
    assert (near.window, near.head_dim, near.kv_heads, near.key_is_value) == (512, 32, 2, False)
    assert (far.window, far.head_dim, far.kv_heads, far.key_is_value) == (0, 64, 1, True)
    ffn = model.layers[0].ffn
    assert isinstance(ffn, Experts) and ffn.dense_width == 1024
    assert [layer.shares_kv for layer in model.layers] == [False, False, False, True]
    assert model.tied_embeddings


def test_minimax_m3_attends_to_selected_blocks() -> None:
    sparse = {
        "use_sparse_attention": True,
        "sparse_num_index_heads": 2,
        "sparse_index_dim": 16,
        "sparse_topk_blocks": 4,
        "sparse_block_size": 128,
        "sparse_attention_freq": [0, 1, 1, 1],
    }
    model = read(moe("minimax_m3", sparse_attention_config=sparse))
    assert attention(model, 0).indexer is None
    assert attention(model, 1).indexer == Indexer(heads=2, dim=16, topk=512, block=128)


def test_mimo_gives_its_sliding_layers_other_heads() -> None:
    config = moe(
        "mimo_v2_flash",
        hybrid_layer_pattern=[0, 1, 1, 0],
        sliding_window=128,
        head_dim=48,
        v_head_dim=32,
        swa_num_key_value_heads=4,
        swa_head_dim=48,
        swa_v_head_dim=32,
    )
    model = read(config)
    assert [attention(model, i).kv_heads for i in range(4)] == [2, 4, 4, 2]
    assert [attention(model, i).window for i in range(4)] == [0, 128, 128, 0]
    assert attention(model, 0).value_dim == 32


def test_nemotron_h_layers_have_one_half_each() -> None:
    config = moe(
        "nemotron_h",
        hybrid_override_pattern="M-*E",
        mamba_num_heads=16,
        mamba_head_dim=32,
        n_groups=2,
        ssm_state_size=64,
        conv_kernel=4,
        head_dim=64,
        moe_latent_size=128,
        mtp_hybrid_override_pattern="*E",
        num_nextn_predict_layers=1,
    )
    model = read(config)
    assert state(model, 0) == LinearState(
        kind="mamba2",
        heads=16,
        rows=32,
        columns=64,
        conv_channels=16 * 32 + 2 * 2 * 64,
        conv_kernel=4,
        key_heads=2,
    )
    assert model.layers[0].ffn is None and model.layers[1].mixer is None
    assert model.layers[1].ffn == Mlp(width=1024, gated=False)
    ffn = model.layers[3].ffn
    assert isinstance(ffn, Experts) and (ffn.latent_dim, ffn.gated) == (128, False)
    assert len(model.draft_layers) == 2 and model.rotary_dim == 0
    assert "pattern has 3 layers" in refusal({**config, "hybrid_override_pattern": "M-*"})


def test_granite_jamba_and_lfm2_mix_states_with_attention() -> None:
    mamba = {
        "mamba_n_heads": 16,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_n_groups": 1,
        "mamba_d_conv": 4,
        "shared_intermediate_size": 256,
    }
    granite = read(
        moe("granitemoehybrid", layer_types=["mamba", "attention"] * 2, **mamba)
        | {"num_local_experts": 16}
    )
    assert state(granite, 0).kind == "mamba2" and attention(granite, 1).kv_heads == 2
    jamba = read(
        moe(
            "jamba",
            mamba_d_state=16,
            mamba_d_conv=4,
            mamba_expand=2,
            attn_layer_period=4,
            attn_layer_offset=2,
            expert_layer_period=2,
            expert_layer_offset=1,
        )
    )
    assert state(jamba, 0) == LinearState(
        kind="mamba1",
        heads=1024,
        rows=1,
        columns=16,
        conv_channels=1024,
        conv_kernel=4,
        key_heads=32,
    )
    assert isinstance(jamba.layers[2].mixer, Attention)
    assert isinstance(jamba.layers[1].ffn, Experts) and isinstance(jamba.layers[2].ffn, Mlp)
    lfm2 = read(
        dense(
            "lfm2",
            conv_L_cache=3,
            full_attn_idxs=[2],
            intermediate_size=1536,
            block_auto_adjust_ff_dim=True,
            block_multiple_of=256,
            block_ffn_dim_multiplier=1.0,
        )
    )
    assert state(lfm2, 0).kind == "short_conv" and state(lfm2, 0).conv_kernel == 3
    assert lfm2.layers[0].ffn == Mlp(width=1024)


def test_a_pruned_llama_lacks_halves_where_its_blocks_say_so() -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 2.625}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.3125}},
        {"attention": {"n_heads_in_group": 8}, "ffn": {"no_op": True}},
        {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 2.625}},
    ]
    model = read(dense("nemotron-nas", block_configs=blocks))
    assert attention(model, 0).kv_heads == 2 and model.layers[1].mixer is None
    assert model.layers[0].ffn == Mlp(width=1024) and model.layers[2].ffn is None
    linear = [{**blocks[0], "attention": {"replace_with_linear": True}}, *blocks[1:]]
    assert "linear layer" in refusal(dense("nemotron-nas", block_configs=linear))


def test_the_text_part_of_a_wrapper_is_read_and_its_encoder_counted() -> None:
    vision = {"hidden_size": 64, "depth": 2, "intermediate_size": 128, "patch_size": 4}
    model = read(
        {
            "architectures": ["WrapperForConditionalGeneration"],
            "model_type": "qwen3_vl",
            "text_config": dense("qwen3_vl_text"),
            "vision_config": vision,
            "tie_word_embeddings": True,
        }
    )
    assert len(model.layers) == 4 and model.tied_embeddings
    # 2 layers x (4 x 64^2 + 2 x 64 x 128), patches of 4 x 4 x 3, projection to 512
    assert model.encoder == 2 * (4 * 64**2 + 2 * 64 * 128) + 48 * 64 + 64 * 512


# What is refused


@pytest.mark.parametrize(
    "keys",
    [
        {"ssm_cfg": {"layer": "Mamba2"}},
        {"mamba_d_state": 16},
        {"rwkv_head_size": 64},
        {"retention_heads": 4},
        {"conv_L_cache": 3},
        {"linear_attn_config": {"kda_layers": [1]}},
        {"kv_lora_rank": 512},
        {"index_topk": 2048},
        {"attn_type_list": [0, 1, 1, 1]},
        {"compress_ratios": [0, 4]},
        {"num_kv_shared_layers": 2},
        {"use_recurrent": True},
        {"cell": {"recurrent_state_size": 8}},
    ],
)
def test_an_unknown_stateful_architecture_is_refused_by_the_key_that_tells(keys: Config) -> None:
    text = refusal(dense("brandnew", **keys))
    assert next(iter(keys)) in text or "recurrent_state_size" in text


def test_an_unknown_plain_decoder_is_read() -> None:
    model = read(dense("brandnew"))
    assert attention(model, 0).kv_heads == 2


def test_an_unknown_decoder_with_strange_geometry_is_refused() -> None:
    assert "residual_heads" in refusal(dense("brandnew", residual_heads=4))
    assert "layer_types" in refusal(dense("brandnew", layer_types=["full_attention", "vortex"] * 2))


def test_a_known_family_with_a_stateful_key_nobody_reads_is_refused() -> None:
    assert "mamba_d_state" in refusal(dense("llama", mamba_d_state=16))


def test_lightning_attention_is_refused() -> None:
    assert "lightning" in refusal(moe("minimax_m2", attn_type_list=[0, 1, 1, 1]))


@pytest.mark.parametrize(
    "value", [0, -1, 2**40, 10**400, float("nan"), float("inf"), 1.5, "8", True, [8], {}, "x" * 999]
)
@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "num_attention_heads"])
def test_a_bad_size_is_named(key: str, value: object) -> None:
    assert key in refusal({**dense(), key: value})


def test_several_problems_are_told_at_once() -> None:
    text = refusal(dense(hidden_size=-1, vocab_size="many", torch_dtype="float7"))
    assert all(word in text for word in ("hidden_size", "vocab_size", "dtype"))


def test_missing_keys_are_named() -> None:
    config = dense()
    for key in ("vocab_size", "max_position_embeddings", "intermediate_size"):
        assert f" {key}: missing" in refusal({k: v for k, v in config.items() if k != key})
    assert "no num_hidden_layers" in refusal({"a": 1})


def test_heads_must_divide() -> None:
    assert "do not divide" in refusal(dense(num_key_value_heads=3))
    assert "head_dim" in refusal(dense(num_attention_heads=7, num_key_value_heads=7))


# Quantisation


def dtypes(config: Config, quant: Config | None = None) -> list[str | None]:
    weights = read(config, quant).weights
    return [weights.attention, weights.attention_out, weights.mlp, weights.experts, weights.lm_head]


def test_fp8_leaves_the_head_and_what_is_listed() -> None:
    quant = {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head", "model.layers.0.mlp"],
    }
    model = read(dense(quantization_config=quant))
    assert (model.weights.attention, model.weights.mlp, model.weights.lm_head) == (
        "fp8",
        "fp8",
        "bf16",
    )
    assert (model.weights.scale_group, model.weights.scale_bits) == (16384, 32)
    first = model.layers[0].weights
    assert first is not None and (first.mlp, first.attention) == ("bf16", "fp8")
    assert model.layers[1].weights is None


def test_nvfp4_beside_the_config_with_its_exclusions() -> None:
    quant = {
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": "FP8",
            "group_size": 16,
            "exclude_modules": [
                "lm_head",
                *(f"model.layers.{i}.self_attn.q_proj" for i in range(4)),
            ],
        }
    }
    assert dtypes(moe(), quant) == ["bf16", "nvfp4", "bf16", "nvfp4", "bf16"]
    assert read(moe(), quant).kv_dtype == "fp8"


def test_a_layer_pattern_names_that_layer_only() -> None:
    quant = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.1*"]}
    model = read(dense(num_hidden_layers=12, quantization_config=quant))
    differ = [i for i, layer in enumerate(model.layers) if layer.weights is not None]
    assert differ == [1]


def test_draft_layers_that_are_left_out_stay_in_sixteen_bits() -> None:
    quant = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["mtp*"]}
    model = read(gdn(quantization_config=quant))
    draft = model.draft_layers[0].weights
    assert model.weights.mlp == "nvfp4"
    assert draft is not None and (draft.mlp, draft.attention) == ("bf16", "bf16")


def test_compressed_tensors_with_regular_expressions() -> None:
    weights = {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": True}
    quant = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
        "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    }
    model = read(moe(quantization_config=quant, first_k_dense_replace=1))
    assert dtypes(moe(quantization_config=quant, first_k_dense_replace=1)) == [
        "bf16",
        None,
        "bf16",
        "int4",
        "bf16",
    ]
    assert (model.weights.scale_group, model.weights.scale_bits) == (32, 16)
    assert model.kv_dtype == "fp8"


def test_awq_has_a_scale_and_a_zero_point_per_group() -> None:
    quant = {"quant_method": "awq", "bits": 4, "group_size": 128}
    weights = read(dense(quantization_config=quant)).weights
    assert (weights.mlp, weights.lm_head) == ("int4", "bf16")
    assert (weights.scale_group, weights.scale_bits) == (128, 20)


def test_mixed_precision_lists_its_modules() -> None:
    quant = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {
            **{f"model.layers.{i}.self_attn.q_proj": {"quant_algo": "FP8"} for i in range(4)},
            **{f"model.layers.{i}.self_attn.o_proj": {"quant_algo": "FP8"} for i in range(4)},
            **{f"model.layers.{i}.mlp.experts": {"quant_algo": "W4A16_NVFP4"} for i in range(4)},
            "lm_head": {"quant_algo": "W4A16_NVFP4"},
        },
    }
    assert dtypes(moe(quantization_config=quant)) == ["fp8", None, "bf16", "nvfp4", "nvfp4"]


def test_compressed_tensors_groups_may_name_their_modules() -> None:
    nvfp4 = {"num_bits": 4, "type": "float", "group_size": 16}
    fp8 = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
    groups = {
        "group_0": {"targets": ["re:.*self_attn.*"], "weights": fp8},
        "group_1": {"targets": ["re:.*mlp.experts.*"], "weights": nvfp4},
    }
    quant = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}
    assert dtypes(moe(quantization_config=quant)) == ["fp8", None, "bf16", "nvfp4", "bf16"]


def test_quark_has_a_format_for_all_and_others_by_pattern() -> None:
    quant = {
        "quant_method": "quark",
        "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}},
        "layer_quant_config": {"*self_attn*": {"weight": {"dtype": "fp8_e4m3"}}},
        "exclude": ["lm_head", "model.layers.0.mlp"],
    }
    model = read(dense(quantization_config=quant))
    assert (model.weights.mlp, model.weights.attention) == ("mxfp4", "fp8")
    first = model.layers[0].weights
    assert first is not None and first.mlp == "bf16"


@pytest.mark.parametrize(
    "quant",
    [
        {"quant_method": "alchemy"},
        {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp3"}}},
        {"quant_method": "modelopt", "quant_algo": "FP2"},
        {"quant_method": "gptq", "bits": 3},
        {"quant_method": "fp8", "ignore": ["re:(a+)+$"]},
        {"quant_method": "fp8", "ignore": ["re:["]},
        {"quant_method": "fp8", "ignore": [f"*{i}*" for i in range(100)]},
        {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "X"}}},
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"g": {"weights": {}}},
            "ignore": 5,
        },
        {"quant_algo": "FP8", "kv_cache_quant_algo": "FP3"},
    ],
)
def test_a_quantisation_that_is_not_understood_is_refused(quant: Config) -> None:
    assert "quantization_config" in refusal(dense(quantization_config=quant))


# Files, folders, names, the hub


def test_a_file_and_its_folder_are_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(moe()))
    quant = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (folder / "hf_quant_config.json").write_text(json.dumps(quant))
    by_folder, by_file = load_model(str(folder)), load_model(str(folder / "config.json"))
    assert by_folder == by_file and by_folder.name == "my-model"
    assert by_folder.weights.experts == "fp8"
    elsewhere = tmp_path / "other.json"
    elsewhere.write_text(json.dumps(moe()))
    assert load_model(str(elsewhere)).weights.experts == "bf16"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe\x00{",
        b'{"model_type": "llama", "hidden_size": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b"PK\x03\x04",
    ],
)
def test_a_file_that_is_no_config_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(PlanError) as caught:
        load_model(str(path))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_paths_that_are_not_there_are_told(tmp_path: Path) -> None:
    for source in (str(tmp_path / "no.json"), "./nothing", "/no/such/folder/"):
        with pytest.raises(PlanError, match="no such file"):
            load_model(source)
    with pytest.raises(PlanError, match=r"without a config\.json"):
        load_model(str(tmp_path))


def test_a_catalogue_name_needs_neither_case_nor_organisation() -> None:
    names = ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b", "QWEN/QWEN3-30B-A3B")
    models = {load_model(name, offline=True).name for name in names}
    assert models == {"Qwen/Qwen3-30B-A3B"}
    with pytest.raises(PlanError, match="hub is not asked"):
        load_model("Mistral/Qwen3-30B-A3B", offline=True)


def test_a_wrong_name_is_answered_with_near_ones() -> None:
    with pytest.raises(PlanError, match="Qwen/Qwen3-32B"):
        load_model("Qwen3-33B")
    for source in ("", "   ", "\0", "a" * 5000, "two words", "org/name/more"):
        with pytest.raises(PlanError) as caught:
            load_model(source)
        assert len(str(caught.value)) < 500


class _Hub(http.server.BaseHTTPRequestHandler):
    """The two files of one repository, as the hub serves them."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        if self.path != "/org/fresh/resolve/main/config.json":
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = json.dumps(moe()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", '"1"')
        self.send_header("X-Repo-Commit", "a" * 40)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the test's output is no place for an access log."""


def _served(handler: type[_Hub]) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def hub() -> Iterator[str]:
    yield from _served(_Hub)


def test_a_hub_id_is_fetched_and_a_failure_is_one_line(hub: str, tmp_path: Path) -> None:
    code = (
        "from splitpoint.inputs.huggingface import load_model\n"
        "from splitpoint.errors import PlanError\n"
        "print(load_model('org/fresh').layers[0].ffn.count)\n"
        "try:\n    load_model('org/absent')\nexcept PlanError as e:\n    print(e)\n"
    )
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub,
        "HF_HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "0",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "16" and second.startswith("org/absent: the hub did not give it")


class _BusyHub(_Hub):
    """A hub that is there and serves nobody; it counts who asks."""

    asked = 0

    def _answer(self, body: bool) -> None:
        type(self).asked += 1
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def busy_hub() -> Iterator[str]:
    yield from _served(_BusyHub)


def test_a_hub_that_does_not_answer_is_left_at_once_and_its_cache_serves(
    hub: str, busy_hub: str, tmp_path: Path
) -> None:
    def said(endpoint: str, source: str) -> str:
        code = (
            "from splitpoint.inputs.huggingface import load_model\n"
            "from splitpoint.errors import PlanError\n"
            f"try:\n    print(load_model({source!r}).layers[0].ffn.count)\n"
            "except PlanError as e:\n    print(e)\n"
        )
        told = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, env={**os.environ, **told}, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert said(hub, "org/fresh") == "16"
    assert "the hub did not give it" in said(busy_hub, "org/other")
    assert _BusyHub.asked <= 2  # the client's own download asks seven times, for 25 seconds
    assert said(busy_hub, "org/fresh") == "16"


# Hostile values

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(0, 64)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["full_attention", "mamba", "float32", "re:(a+)+$", "*", "NVFP4"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
BASES: list[Config] = [dense(), moe("gpt_oss"), mla(), gdn()]
KEYS = sorted({key for base in BASES for key in base} | {"text_config", "quantization_config"})


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    base=st.sampled_from(BASES),
    changed=st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=10), json_values, max_size=4),
    dropped=st.sets(st.sampled_from(KEYS), max_size=2),
)
def test_any_config_gives_a_model_or_one_line(
    base: Config, changed: dict[str, object], dropped: set[str]
) -> None:
    config = {k: v for k, v in {**base, **changed}.items() if k not in dropped}
    try:
        model = read(config, {"quantization": changed})
    except PlanError as error:
        assert "\n" not in str(error) and len(str(error)) < 5000
    else:
        assert model.layers


def test_a_fault_is_told_without_what_follows_from_it() -> None:
    # Heads that are missing count as one below, which no number of key-value heads divides.
    without = {k: v for k, v in dense().items() if k != "num_attention_heads"}
    assert refusal(without) == "config.json: num_attention_heads: missing"
    bare = {k: v for k, v in dense(hidden_size=-1).items() if k != "head_dim"}
    assert "head_dim" not in refusal(bare)


# Real configs

CONFIGS = (
    Path(sys.prefix)
    / f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
    / "site-packages/aiconfigurator_core/model_configs"
)


@pytest.mark.skipif(not CONFIGS.is_dir(), reason="the aic extra is not installed")
def test_every_config_of_the_aic_wheel_is_read() -> None:
    paths = [p for p in sorted(CONFIGS.glob("*_config.json")) if "hf_quant" not in p.name]
    assert len(paths) > 80
    for path in paths:
        beside = path.with_name(path.name.replace("_config.json", "_hf_quant_config.json"))
        quant = json.loads(beside.read_bytes()) if beside.is_file() else None
        model = from_config(json.loads(path.read_bytes()), path.name, path.name, quant)
        assert model.layers, path.name
