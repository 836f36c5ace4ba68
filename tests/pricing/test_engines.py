"""What engines choose, and what they refuse."""

import pytest
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs import facts
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.huggingface import load_model
from splitpoint.pricing.engines import capture_sizes, decode_sizes, resolved, rules


def test_a_model_with_draft_layers_drafts_by_them_and_any_other_by_the_text_before() -> None:
    own, none = load_model("deepseek-ai/DeepSeek-R1"), load_model("Qwen/Qwen3-8B")
    asked = Engine(drafts=2)
    assert resolved(asked, None, Topology(), own).draft_method == "mtp"
    assert resolved(asked, None, Topology(), none).draft_method == "ngram"
    assert resolved(Engine(), None, Topology(), own).draft_method is None


def test_drafts_from_the_text_turn_asynchronous_scheduling_off() -> None:
    own, none = load_model("deepseek-ai/DeepSeek-R1"), load_model("Qwen/Qwen3-8B")
    assert resolved(Engine(drafts=2), None, Topology(), own).async_scheduling
    assert not resolved(Engine(drafts=2), None, Topology(), none).async_scheduling


def test_a_method_that_the_model_has_not_is_refused() -> None:
    with pytest.raises(PlanError, match="does not draft by mtp"):
        resolved(
            Engine(drafts=2, draft_method="mtp"), None, Topology(), load_model("Qwen/Qwen3-8B")
        )


def test_only_sglang_orders_its_queue_by_cached_prefix() -> None:
    model = load_model("Qwen/Qwen3-8B")
    with pytest.raises(PlanError, match="lpm with vllm"):
        resolved(Engine(schedule_policy="lpm"), None, Topology(), model)
    with pytest.raises(PlanError, match="mixed_chunk"):
        resolved(Engine(mixed_chunk=True), None, Topology(), model)
    mixing = Engine(name="sglang", version="0.5.6", mixed_chunk=True)
    assert resolved(mixing, None, Topology(), model).mixed_chunk
    with pytest.raises(PlanError, match="pp 2"):
        resolved(mixing, None, Topology(pp=2), model)
    sglang = Engine(name="sglang", version="0.5.6", schedule_policy="lpm")
    assert resolved(sglang, None, Topology(), model).schedule_policy == "lpm"


def test_blocks_that_no_attention_kernel_takes_are_refused() -> None:
    model = load_model("Qwen/Qwen3-8B")
    for size in (1, 17):
        with pytest.raises(PlanError, match="a multiple of 16"):
            resolved(Engine(block_size=size), None, Topology(), model)
        sglang = Engine(name="sglang", version="0.5.6", block_size=size)
        assert resolved(sglang, None, Topology(), model).block_size == size
    assert resolved(Engine(block_size=48), None, Topology(), model).block_size == 48


def test_tensorrt_llm_shares_no_cache_over_its_ranks() -> None:
    with pytest.raises(PlanError, match="Helix adds ranks"):
        resolved(Engine(name="trtllm"), None, Topology(tp=8, dcp=8), load_model("Qwen/Qwen3-8B"))


def test_schedulers_fill_a_step_ahead_from_the_version_that_does_so_by_default() -> None:
    one = Topology()
    for engine, ahead in (
        (Engine(version="0.13.0"), False),
        (Engine(version="0.14.0"), True),
        (Engine(async_scheduling=False), False),
        (Engine(name="sglang", version="0.5.6"), True),
        (Engine(name="trtllm", version="1.0.0"), True),
    ):
        assert rules(engine, one).overlapped is ahead


def test_vllm_s_first_runner_fills_a_batch_for_each_stage_and_no_more() -> None:
    plain, mixture = load_model("Qwen/Qwen3-8B"), load_model("deepseek-ai/DeepSeek-R1")
    piped = Topology(pp=2)
    for model, version, ahead in (
        (plain, "0.26.0", True),
        (mixture, "0.28.0", False),
        (mixture, "0.29.0", True),
    ):
        engine = resolved(Engine(version=version), None, piped, model)
        assert rules(engine, piped).overlapped is ahead
        assert rules(engine, piped).batches_in_flight == (3 if ahead else 2)
        assert resolved(Engine(version=version), None, Topology(), model).async_scheduling


def test_sglang_s_prefill_chunk_is_shared_by_the_ranks_that_attend() -> None:
    model = load_model("deepseek-ai/DeepSeek-R1")
    for asked, dp, tokens in ((None, 1, 8192), (None, 8, 1024), (5000, 8, 5000)):
        engine = Engine(name="sglang", version="0.5.6", batched_tokens=asked)
        found = resolved(engine, None, Topology(dp=dp, ep=dp), model)
        assert found.batched_tokens == tokens


@pytest.mark.parametrize(
    ("gpu", "topology", "largest"),
    [
        ("h100_sxm", Topology(tp=2), 256),
        ("h100_sxm", Topology(tp=4), 512),
        ("h200", Topology(dp=8, ep=8), 512),
        ("b200", Topology(), 512),
    ],
)
def test_sglang_captures_larger_graphs_on_four_gpus(
    gpu: str, topology: Topology, largest: int
) -> None:
    engine = resolved(
        Engine(name="sglang", version="0.5.6"),
        facts.gpu(gpu),
        topology,
        load_model("Qwen/Qwen3-8B"),
    )
    assert engine.max_graph == largest


@pytest.mark.parametrize(
    ("version", "tp", "limits"),
    [
        ("0.5.18", 1, (2048, 24)),
        ("0.5.18", 4, (2048, 80)),
        ("0.5.20", 1, (4096, 48)),
        ("0.5.20", 4, (4096, 160)),
    ],
)
def test_sglang_takes_larger_steps_on_24_gb_from_0_5_20_on(
    version: str, tp: int, limits: tuple[int, int]
) -> None:
    engine = Engine(name="sglang", version=version)
    found = resolved(engine, facts.gpu("L4"), Topology(tp=tp), load_model("Qwen/Qwen3-8B"))
    assert (found.batched_tokens, found.max_graph) == limits


def test_sglang_captures_small_batches_finely_where_it_drafts() -> None:
    plain = Engine(name="sglang", version="0.5.6", max_graph=600)
    assert capture_sizes(plain)[:7] == (1, 2, 4, 8, 12, 16, 24)
    # Every 8th to 256, every 16th to 512, every 32nd from there, and the largest.
    assert capture_sizes(plain)[-6:] == (480, 496, 512, 544, 576, 600)
    assert {248, 256, 272, 496, 512, 544, 576, 600} <= set(capture_sizes(plain))
    assert not {264, 520, 528, 592} & set(capture_sizes(plain))
    drafting = replace(plain, drafts=3)
    assert capture_sizes(drafting)[:12] == (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
    assert {32, 40, 44, 64, 72, 256, 272, 592, 600} <= set(capture_sizes(drafting))
    assert not {34, 36, 42, 68, 264, 280} & set(capture_sizes(drafting))
    assert decode_sizes(drafting) == tuple(4 * size for size in capture_sizes(drafting))
    exact = replace(plain, max_graph=5, graph_padding=False)
    assert capture_sizes(exact) == (1, 2, 3, 4, 5)


def test_sglang_captures_the_most_requests_that_can_run() -> None:
    engine = Engine(name="sglang", version="0.5.6", max_seqs=86)
    found = resolved(engine, facts.gpu("gb300"), Topology(), load_model("Qwen/Qwen3-8B"))
    assert decode_sizes(found)[-2:] == (80, 86)
