"""What the host adds: a client's way to the queue, experts side by side, and norms over ranks."""

import numpy as np
import pytest
from msgspec.structs import replace

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.facts import gpu
from splitpoint.inputs.huggingface import load_model
from splitpoint.inputs.model import Attention
from splitpoint.pricing.engines import resolved
from splitpoint.timing import host
from splitpoint.timing.bake import gpu_seconds, step_curve
from splitpoint.timing.collectives import stage_exchanges
from splitpoint.timing.operators import Batch

TP8 = Topology(tp=8)


def decoding(n: int) -> Batch:
    one = np.array([float(n)])
    return Batch(decode=one, context=one * 1000, prefill=0 * one, pairs=0 * one, rows=one)


def seconds(n: int, engine: Engine) -> float:
    model = load_model("deepseek-ai/DeepSeek-R1", offline=True)
    return float(gpu_seconds(model, gpu("H200"), TP8, engine, decoding(n))[0])


def test_shared_experts_hide_beside_routed_ones_up_to_the_engines_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(name="vllm", block_size=16)
    speed = host.host_speed(engine)
    beside = {n: seconds(n, engine) for n in (8, 256, 257)}
    alone = replace(speed, beside_tokens=0)
    monkeypatch.setattr(host, "host_speed", lambda engine: alone)
    for n, taken in beside.items():
        if n <= speed.beside_tokens:
            assert taken < seconds(n, engine)
        else:
            assert taken == seconds(n, engine)


def test_a_norm_over_all_heads_adds_up_squares_once_a_layer() -> None:
    model = load_model("MiniMaxAI/MiniMax-M2.5", offline=True)
    assert all(isinstance(layer.mixer, Attention) for layer in model.layers)
    found = {
        exchange.name: exchange
        for exchange in stage_exchanges(model.layers, model, Topology(tp=4), Engine(), decoding(10))
    }
    assert found["attention.norm"].count == len(model.layers)
    # Two fp32 sums a token.
    assert found["attention.norm"].bytes[0] == 10 * 8
    single = stage_exchanges(model.layers, model, Topology(), Engine(), decoding(10))
    assert "attention.norm" not in {exchange.name for exchange in single}


def test_every_engine_says_where_its_front_comes_from() -> None:
    for name in ("vllm", "sglang", "trtllm"):
        speed = host.host_speed(Engine(name=name))
        assert 0 < speed.front < 0.1 and 0 <= speed.front_token < 1e-4
        assert speed.front_origin.startswith("fitted") and speed.beside_origin


def test_a_grace_host_launches_slower_and_graphs_hide_it() -> None:
    engine = Engine(graph_mode="full_decode_only", max_graph=64, max_seqs=128, drafts=3)
    x86, grace = gpu("B200"), replace(gpu("B200"), cpu="grace")
    assert gpu("GB300").cpu == gpu("GB200").cpu == "grace"
    sizes = np.array([64.0, 65.0])
    slow, fast = (host.launch_floor(engine, g, sizes, 1000.0, decode=True) for g in (grace, x86))
    assert slow[0] == fast[0] == 0.0
    assert slow[1] == pytest.approx(1000 * host.launch_seconds(engine, grace))
    assert slow[1] > 2 * fast[1]


def test_tensorrt_llm_runs_norms_inside_its_all_reduces() -> None:
    engine = Engine(name="trtllm")
    assert {"mixer.norm", "ffn.norm"} <= host.fused(engine, TP8)
    assert host.fused(engine, Topology()) == host.fused(engine, Topology(tp=2, dp=2))
    assert not host.fused(Engine(name="vllm"), TP8)


def test_dependent_launches_shorten_every_kernel_from_hopper_on() -> None:
    engine = Engine(name="trtllm")
    assert host.dependent(engine, gpu("A100 SXM 80GB")) == 0.0
    assert 0 < host.dependent(engine, gpu("H200")) < 1e-6
    assert host.dependent(Engine(name="sglang"), gpu("H200")) == 0.0


def test_every_host_cost_has_its_origin() -> None:
    for name in ("vllm", "sglang", "trtllm"):
        speed = host.host_speed(Engine(name=name))
        fused = speed.dependent or speed.fused or speed.fused_sums
        assert bool(fused) == bool(speed.fused_origin)
        assert bool(speed.quantises) == bool(speed.quantises_origin)


def test_drafts_from_the_text_cost_a_host_core_a_walk_of_every_context() -> None:
    model, h100 = load_model("meta-llama/Llama-3.1-8B-Instruct"), gpu("H100 SXM")
    engine = Engine(version="0.19.1", drafts=3, draft_method="ngram", max_seqs=8)
    old, new = (
        step_curve(model, h100, Topology(), resolved(engine, h100, Topology(), model))
        for engine in (engine, replace(engine, version="0.32.0"))
    )
    # 3 ns a token on the host; the GPU reads its 128 KiB of keys and values in about 40 ns.
    assert (old.decode_context - new.decode_context)[1:] == pytest.approx(3000)
    assert host.lookup(replace(engine, draft_method="mtp")) == 0.0
    assert host.lookup(replace(engine, name="sglang")) == 0.0
