"""All 20 logs of real servers audited: with the model at hand, every printed figure is predicted.

The tiny models' geometry is that of ../shared/vllm-cpu/make_models.py and make_bigcfg.py.
"""

import gzip
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitpoint.inputs.huggingface import from_config
from splitpoint.inputs.model import Model
from splitpoint.inputs.startup import StartupLog, parse
from splitpoint.pricing.audit import Compared, EngineAudit, audit

LOGS = sorted(
    (Path(__file__).resolve().parents[2] / "shared" / "truth" / "startup_logs").glob("*.log.gz")
)
pytestmark = pytest.mark.skipif(not LOGS, reason="../shared is absent")

COMMON: dict[str, object] = {
    "torch_dtype": "bfloat16",
    "hidden_size": 256,
    "intermediate_size": 512,
    "vocab_size": 2048,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


def hybrid(layers: int, kv_heads: int, value_heads: int) -> dict[str, object]:
    return {
        **COMMON,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 2 * kv_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "decoder_sparse_step": 1,
        "full_attention_interval": 4,
        "max_position_embeddings": 262144,
    }


CONFIGS: Mapping[str, Mapping[str, object]] = {
    "models/tiny-qwen3": {
        **COMMON,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": 4,
    },
    "models/tiny-qwen3_moe": {
        **COMMON,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": 4,
        "moe_intermediate_size": 128,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
    },
    "models/tiny-qwen3_next": {
        **hybrid(8, 2, 8),
        "head_dim": 64,
        "num_attention_heads": 4,
        "linear_num_key_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
    },
    "models/tiny-deepseek_v2": {
        **COMMON,
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 128,
        "kv_lora_rank": 512,
        "q_lora_rank": 128,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    },
    "models/tiny-gemma3": {
        **COMMON,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
    },
    "models/tiny-gpt_oss": {
        **COMMON,
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "intermediate_size": 256,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "models/geo-qwen3-0.6b": {
        **COMMON,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
    "models/geo-qwen38-kv": {**hybrid(92, 4, 128), "num_nextn_predict_layers": 1},
    "models/geo-hybrid-kv1": hybrid(8, 1, 32),
}


def models() -> dict[str, Model]:
    return {name: from_config(config, name, name) for name, config in CONFIGS.items()}


def read(path: Path) -> StartupLog:
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as lines:
        (log,) = parse(lines, path.name)
    return log


def audited(log: StartupLog) -> EngineAudit:
    (one,) = audit([log], models(), [None]).engines
    return one


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name.removesuffix(".log.gz"))
def test_every_figure_of_a_real_start_is_predicted_to_its_last_digit(path: Path) -> None:
    log = read(path)
    report = audited(log)
    assert report.not_predicted == ()
    assert report.first_off is None, report.figures
    rows: dict[str, Compared] = {row.name: row for row in report.figures}
    for name in ("graph_estimate", "peak_activation", "non_torch"):
        assert rows[name].state == "absent here"
    if log.finished:
        for name, digits in (("concurrency", 2), ("kv_tokens", 0)):
            row = rows[name]
            assert row.state == "agrees" and row.predicted is not None
            if log.settings.kv_cache_bytes is not None:
                # The engine divides exact bytes; where they are known we print the same digits.
                assert round(row.predicted, digits) == row.printed


def test_without_a_model_the_audit_says_what_it_cannot_predict() -> None:
    (report,) = audit([read(LOGS[0])], {}, [None]).engines
    assert any("give --model" in words for words in report.not_predicted)
    assert {row.state for row in report.figures} <= {
        "not predicted",
        "not printed",
        "absent here",
    }


def test_the_pairs_that_met_and_the_pairs_that_did_not() -> None:
    logs = {path.name.removesuffix(".log.gz"): read(path) for path in LOGS}
    calm = audit(
        [logs["pd-nixl-calm-P-qwen3"], logs["pd-nixl-calm-D-qwen3"]], models(), [None, None]
    ).meetings
    assert [meeting.can for meeting in calm] == [True]
    apart = audit(
        [logs["pd-nixl-tpmismatch-P-tp1"], logs["pd-nixl-tpmismatch-D-tp2"]], models(), [None, None]
    ).meetings
    assert [meeting.can for meeting in apart] == [False]


TEXTS = {path.name: gzip.decompress(path.read_bytes()) for path in LOGS}


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_damaged_log_gives_right_figures_or_none(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(LOGS), label="log")
    raw = TEXTS[path.name]
    truth = {figure.name: figure for figure in read(path).figures}
    start = data.draw(st.integers(0, len(raw)), label="cut before")
    damaged = bytearray(raw[start : data.draw(st.integers(start, len(raw)), label="cut after")])
    flips = st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 255)), max_size=40)
    for place, value in data.draw(flips, label="flips"):
        if damaged:
            damaged[place % len(damaged)] = value
    lines = damaged.decode("utf-8", "replace").splitlines()
    if data.draw(st.booleans(), label="shuffled"):
        data.draw(st.randoms(use_true_random=False)).shuffle(lines)
    logs = parse(lines, "damaged.log")
    for engine in audit(logs, models(), [None] * len(logs)).engines:
        for row in engine.figures:
            if row.confirmed and row.printed is not None:
                seen = truth[row.name]
                assert seen.low <= row.printed <= seen.high
            if row.name in ("graph_estimate", "peak_activation", "non_torch"):
                assert row.printed is None
