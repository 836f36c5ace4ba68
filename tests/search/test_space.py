"""The legal space, and what does not fit in it."""

import pytest

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.facts import gpu
from splitpoint.inputs.huggingface import load_model
from splitpoint.inputs.plan import EnginePlan, Search
from splitpoint.search.instance import holding
from splitpoint.search.space import Space, engines, lacking, space, topologies
from tests.search import small


def test_an_expert_model_may_share_experts_between_attention_ranks() -> None:
    found = topologies(small.model(), small.h20(), 4, Search())
    assert Topology(tp=1, dp=4, ep=4) in found
    assert Topology(tp=4) in found
    assert all(topology.gpus <= 4 for topology in found)
    assert len(found) == len(set(found))


def test_a_dense_model_has_neither_attention_ranks_nor_expert_parallelism() -> None:
    found = topologies(load_model("Qwen/Qwen3-32B"), small.h20(), 8, Search())
    assert {(t.dp, t.ep) for t in found} == {(1, 1)}
    assert [t.tp for t in found] == [1, 2, 4, 8]


def test_tensor_parallelism_stays_inside_a_domain() -> None:
    found = topologies(small.model(), small.h20(), 16, Search(dp=(1,), ep=(1,)))
    assert max(t.tp for t in found) == 8


def test_a_search_table_narrows_the_space() -> None:
    only = Search(tp=(2,), dp=(1,), ep=("all",))
    assert topologies(small.model(), small.h20(), 8, only) == (Topology(tp=2, ep=2),)


def test_dcp_is_tried_where_it_is_asked_for_and_copies_are_there() -> None:
    # Four key-value heads: copies from eight ranks on, and then two of each.
    asked = Search(tp=(4, 8), dp=(1,), ep=(1,), dcp=())
    found = topologies(small.model(), small.h20(), 8, asked)
    assert [(t.tp, t.dcp) for t in found] == [(4, 1), (8, 1), (8, 2)]
    plain = topologies(small.model(), small.h20(), 8, Search(tp=(8,), dp=(1,), ep=(1,)))
    assert [t.dcp for t in plain] == [1]


def test_degrees_that_do_not_divide_the_heads_are_left_out() -> None:
    assert topologies(small.model(), small.h20(), 8, Search(tp=(3,), dp=(1,))) == ()


def test_each_number_of_drafts_is_an_engine_with_its_acceptances() -> None:
    found = engines(EnginePlan(drafts=(0, 2), acceptance=(0.8, 0.6, 0.4)))
    assert [(engine.drafts, engine.acceptance) for engine in found] == [(0, ()), (2, (0.8, 0.6))]


def test_every_setting_of_the_engine_table_reaches_the_engine() -> None:
    table = EnginePlan(
        utilization=0.8, max_graph=64, graph_mode="piecewise", async_scheduling=False, max_seqs=9
    )
    (engine,) = engines(table)
    for name in set(table.__struct_fields__) - {"drafts", "acceptance"}:
        assert getattr(engine, name) == getattr(table, name)


def test_what_does_not_fit_says_how_much_is_missing() -> None:
    model = load_model("meta-llama/Llama-3.1-405B")
    found = space(model, small.h20(), 8, engine=EnginePlan(), search=Search(), longest=10_000)
    assert [held.topology.tp for held in found.holdings] == []
    lacks = {lack.name: lack.bytes for lack in found.rejected}
    # 405.9e9 bf16 parameters on 8 x 95 GiB lack less per rank than on 4.
    assert 0 < lacks["TP8"] < lacks["TP4"]
    assert lacks["TP1"] == pytest.approx(405.9e9 * 2 - 95 * 2**30, rel=0.02)


def test_a_pool_too_small_for_one_long_request_is_a_shortfall_too() -> None:
    search = Search(tp=(1,), dp=(1,), kv_pool_gib=1.0)
    found = space(small.model(), small.h20(), 1, engine=EnginePlan(), search=search, longest=20_000)
    (lack,) = found.rejected
    # 20,000 tokens x 98,304 bytes do not go into 1 GiB.
    assert lack.why.startswith("one request of 20,000 tokens needs 1,250 KV blocks")
    assert lack.bytes == pytest.approx(20_000 * 98_304 - 2**30, rel=0.01)


def test_vllm_is_given_a_longest_length_that_its_pool_holds() -> None:
    model, card = load_model("openai/gpt-oss-120b"), gpu("H100 SXM")
    one = holding(model, card, Topology(), Engine(), kv_pool_gib=None)
    longest = one.engine.max_len
    assert longest is not None and longest < model.max_len == 131_072
    assert one.requests_held(longest) == 1 and one.requests_held(longest + 16) == 0
    # Where the pool holds the model's own, or another engine starts all the same, it stays.
    four = holding(model, card, Topology(tp=4), Engine(), kv_pool_gib=None)
    other = holding(model, card, Topology(), Engine(name="sglang"), kv_pool_gib=None)
    assert four.engine.max_len == other.engine.max_len == 131_072
    # A stated one is the user's: vLLM would not start with it.
    stated = holding(model, card, Topology(), Engine(max_len=131_072), kv_pool_gib=None)
    lack = lacking(stated, 8_000)
    assert lack is not None and "131,072 tokens (max_len, without which vLLM" in lack.why
    assert lacking(one, 8_000) is None


def test_a_hybrids_budget_holds_its_whole_blocks() -> None:
    # vLLM takes 2,048 tokens on an A100 by itself; the attention block that matches this hybrid's
    # states has 2,096 on one GPU and half of that on four, which copy the two key-value heads.
    hybrid = load_model("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")

    def found(engine: EnginePlan) -> Space:
        search = Search(tp=(1, 4), dp=(1,), ep=(1,))
        return space(hybrid, gpu("A100 SXM 80GB"), 4, engine=engine, search=search, longest=9000)

    free = found(EnginePlan(drafts=0))
    assert [h.layout.block_tokens for h in free.holdings] == [2096, 1056]
    assert [h.engine.batched_tokens for h in free.holdings] == [4096, 2048]
    stated = found(EnginePlan(drafts=0, batched_tokens=2048))
    assert [h.topology.tp for h in stated.holdings] == [4]
    (lack,) = stated.rejected
    assert "budget of 2,048 is below the block of 2,096" in lack.why
    without = found(EnginePlan(drafts=0, batched_tokens=2048, prefix_caching=False))
    assert len(without.holdings) == 2
