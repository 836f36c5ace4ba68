"""Messages of a step by hand, and the time they take on their links."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from splitpoint.inputs import facts
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine, EngineName
from splitpoint.inputs.model import Indexer, Latent, Layer
from splitpoint.timing.collectives import (
    Exchange,
    LinkSpeed,
    Pattern,
    draft_exchanges,
    embedding_exchanges,
    link_speed,
    logits_exchanges,
    message_seconds,
    seconds,
    stage_exchanges,
)
from splitpoint.timing.operators import exchanged
from tests.timing.worlds import DENSE, ENGINE, GPU, HEADED, MOE, batch

ENGINES = get_args(EngineName)
STEP = batch(decode=8, context=800, rows=8)
SPEED = LinkSpeed(kind="nvswitch", base=5e-6, hop=1e-6, share=0.5, origin="assumed: a test")


def sent(model: object, topology: Topology) -> dict[str, Exchange]:
    found = stage_exchanges(model.layers, model, topology, ENGINE, STEP)  # type: ignore[attr-defined,arg-type]
    return {e.name: e for e in found}


def test_one_gpu_sends_nothing() -> None:
    assert sent(DENSE, Topology()) == {}


def test_tensor_parallel_ranks_sum_both_halves_of_every_layer() -> None:
    found = sent(DENSE, Topology(tp=4))
    assert {name: e.count for name, e in found.items()} == {"mixer.sum": 4, "mlp.sum": 4}
    assert found["mixer.sum"].bytes[0] == 8 * 128 * 2


def test_tensor_parallel_ranks_sum_embeddings_and_gather_logits() -> None:
    new, rows = np.array([40.0]), np.array([8.0])
    (summed,) = embedding_exchanges(DENSE, Topology(tp=4), new)
    assert (summed.pattern, summed.bytes[0]) == ("all_reduce", 40 * 128 * 2)
    (gathered,) = logits_exchanges(DENSE, Topology(tp=4, dp=2), rows)
    assert (gathered.pattern, gathered.ranks, gathered.bytes[0]) == ("all_gather", 4, 8 * 1000 * 2)
    assert embedding_exchanges(DENSE, Topology(dp=8, ep=8), new) == ()
    assert logits_exchanges(DENSE, Topology(dp=8, ep=8), rows) == ()


def test_what_drafts_sums_its_layers_too_all_tokens_first_and_then_one_a_sequence() -> None:
    engine = replace(ENGINE, drafts=3)
    found = draft_exchanges(HEADED, Topology(tp=4), engine, STEP)
    assert [(e.name, e.count, e.bytes[0]) for e in found] == [
        ("draft.embedding.sum", 1, 8 * 4 * 128 * 2),
        ("draft.mixer.sum", 1, 8 * 4 * 128 * 2),
        ("draft.mlp.sum", 1, 8 * 4 * 128 * 2),
        # The head drafts a vocabulary of 100.
        ("draft.logits.gather", 1, 8 * 100 * 2),
        ("draft.embedding.sum", 2, 8 * 128 * 2),
        ("draft.mixer.sum", 2, 8 * 128 * 2),
        ("draft.mlp.sum", 2, 8 * 128 * 2),
        ("draft.logits.gather", 2, 8 * 100 * 2),
    ]
    assert draft_exchanges(HEADED, Topology(tp=4), ENGINE, STEP) == ()
    ngram = replace(engine, draft_method="ngram")
    assert draft_exchanges(HEADED, Topology(tp=4), ngram, STEP) == ()


def test_dcp_ranks_gather_queries_and_sums_and_scatter_results() -> None:
    step = batch(decode=8, context=800, prefill=10, pairs=4000, rows=9)
    place = Topology(tp=8, dcp=4)
    found = {e.name: e for e in stage_exchanges(DENSE.layers, DENSE, place, ENGINE, step)}
    # One head of 16 on each rank: four together, of 18 tokens, in each of four layers.
    assert found["context.queries"].bytes[0] == 18 * 4 * 16 * 2
    assert found["context.results"].bytes[0] == 18 * 4 * 16 * 2
    # Four ranks each have a sum, in fp32, of four heads.
    assert found["context.sums"].bytes[0] == 18 * 4 * 4 * 4
    assert {found[n].pattern for n in ("context.queries", "context.sums")} == {"all_gather"}
    assert found["context.results"].pattern == "reduce_scatter"
    assert {e.ranks for n, e in found.items() if n.startswith("context")} == {4}
    assert {e.count for n, e in found.items() if n.startswith("context")} == {4}


def test_prompts_of_latent_attention_gather_their_prefix_instead() -> None:
    latent = Latent(heads=8, kv_rank=64, nope_dim=16, rope_dim=8, value_dim=16, q_rank=32)
    model = replace(DENSE, layers=(Layer(mixer=latent, ffn=None),))
    step = batch(decode=8, context=800, prefill=10, pairs=4000, rows=9)
    place = Topology(tp=4, dcp=4)
    found = {e.name: e for e in stage_exchanges(model.layers, model, place, ENGINE, step)}
    # Two heads a rank, queries in the latent space, of the decoding sequences only.
    assert found["context.queries"].bytes[0] == 8 * 8 * 72 * 2
    assert found["context.results"].bytes[0] == 8 * 8 * 64 * 2
    assert found["context.prefix"].bytes[0] == 400 * 72 * 2 and found["context.prefix"].walks
    sparse = replace(latent, indexer=Indexer(heads=4, dim=32, topk=100))
    model = replace(DENSE, layers=(Layer(mixer=sparse, ffn=None),))
    found = {e.name: e for e in stage_exchanges(model.layers, model, place, ENGINE, step)}
    assert "context.prefix" not in found
    assert found["context.queries"].bytes[0] == 18 * 8 * 72 * 2


def test_experts_of_one_data_rank_are_summed_like_any_matrix() -> None:
    found = sent(MOE, Topology(tp=4, ep=4))
    assert {name: e.ranks for name, e in found.items()} == {"mixer.sum": 4, "experts.sum": 4}


def test_few_ranks_gather_tokens_and_many_send_them() -> None:
    few = sent(MOE, Topology(dp=2, ep=2))
    assert set(few) == {"experts.gather", "experts.scatter"}
    assert few["experts.gather"].bytes[0] == 8 * 2 * 128 * 2
    many = sent(MOE, Topology(dp=8, ep=8))
    assert set(many) == {"experts.dispatch", "experts.combine"}
    # Two of eight ranks, now and then the same one.
    distinct = 8 * (1 - (7 / 8) ** 2)
    assert distinct <= 4
    assert many["experts.combine"].bytes[0] == pytest.approx(8 * distinct * 128 * 2)
    assert exchanged(MOE.layers[0].ffn, Topology(dp=8, ep=8), ENGINE)  # type: ignore[arg-type]
    # A group that dealt its tokens out puts the results together again.
    dealt = sent(MOE, Topology(tp=2, dp=8, ep=16))["experts.share"]
    assert (dealt.pattern, dealt.ranks, dealt.bytes[0]) == ("all_gather", 2, 8 * 128 * 2)


def test_sglang_gathers_prompts_by_sums_over_all_ranks() -> None:
    topology = Topology(tp=2, dp=2, ep=4)
    engine = replace(ENGINE, name="sglang", all_to_all=False)
    step = batch(prefill=8, pairs=64, rows=1)
    found = {e.name: e for e in stage_exchanges(MOE.layers, MOE, topology, engine, step)}
    sums = found["experts.sums"]
    assert (sums.pattern, sums.ranks, sums.count) == ("all_reduce", 4, 2 * len(MOE.layers))
    assert sums.bytes[0] == 2 * 8 * 128 * 2
    assert found["experts.gather"].bytes[0] == found["experts.scatter"].bytes[0] == 0
    decode = {e.name: e for e in stage_exchanges(MOE.layers, MOE, topology, engine, STEP)}
    assert decode["experts.sums"].bytes[0] == 0 < decode["experts.gather"].bytes[0]


@pytest.mark.parametrize("told", [True, False])
def test_an_engine_may_be_told_to_send_tokens_one_by_one(told: bool) -> None:
    for topology in (Topology(dp=2, ep=2), Topology(dp=8, ep=8)):
        engine = replace(ENGINE, all_to_all=told)
        found = {e.name for e in stage_exchanges(MOE.layers, MOE, topology, engine, STEP)}
        assert ("experts.dispatch" in found) == told
        assert ("experts.gather" in found) != told
    # Experts cut by rank have nowhere of their own to send a token to.
    ffn = MOE.layers[0].ffn
    assert not exchanged(ffn, Topology(dp=8), engine)  # type: ignore[arg-type]


def test_stages_hand_hidden_states_and_residuals_on() -> None:
    found = sent(DENSE, Topology(tp=2, pp=2))
    assert found["stage.send"].bytes[0] == 2 * 8 * 128 * 2 / 2


@pytest.mark.parametrize(
    ("pattern", "travel"),
    [("all_reduce", 1.75), ("all_gather", 0.875), ("all_to_all", 0.875), ("send", 1.0)],
)
def test_a_message_by_hand(pattern: Pattern, travel: float) -> None:
    taken = message_seconds(SPEED, pattern, np.array([1e9]), 8, 4e11)
    assert taken[0] == pytest.approx(5e-6 + 7e-6 + 1e9 * travel / 2e11)


def test_a_shared_bus_crowds() -> None:
    bus = replace(SPEED, crowding=1.0)
    pair = message_seconds(bus, "send", np.array([1e9]), 2, 4e11)
    four = message_seconds(bus, "send", np.array([1e9]), 4, 4e11)
    assert four[0] - 3e-6 - 5e-6 == pytest.approx(2 * (pair[0] - 1e-6 - 5e-6))


@given(size=st.floats(1.0, 1e9), ranks=st.sampled_from([2, 4, 8]))
def test_leaving_the_domain_is_never_faster(size: float, ranks: int) -> None:
    exchange = Exchange(name="x", pattern="all_reduce", bytes=np.array([size]), ranks=ranks)
    near = seconds(exchange, GPU, ENGINE)[0]
    far = seconds(exchange, replace(GPU, domain=1), ENGINE)[0]
    assert 0 < near < far


def test_a_hierarchy_sends_each_part_once_over_the_network() -> None:
    exchange = Exchange(name="x", pattern="all_gather", bytes=np.array([1e9]), ranks=16)
    outside = link_speed(GPU.outside, "hopper", "all_gather", "vllm")
    inside = link_speed(GPU.inside, "hopper", "all_gather", "vllm")
    by_hand = message_seconds(outside, "all_gather", np.array([1e9 / 8]), 2, 5e10)[0]
    by_hand += message_seconds(inside, "all_gather", np.array([1e9]), 8, 4e11)[0]
    assert seconds(exchange, GPU, ENGINE)[0] == pytest.approx(by_hand)


def test_an_engine_with_a_kernel_of_its_own_has_its_own_all_reduce() -> None:
    of = {engine: link_speed(GPU.inside, "hopper", "all_reduce", engine) for engine in ENGINES}
    assert {engine: speed.engine for engine, speed in of.items()} == {e: e for e in ENGINES}
    assert of["trtllm"].base < of["vllm"].base
    assert link_speed(GPU.inside, "hopper", "all_gather", "trtllm").engine is None


@pytest.mark.parametrize(("engine", "inside", "beyond"), [("sglang", 4.2, 29.6), ("vllm", 8.0, 14)])
def test_a_tray_of_a_domain_sums_by_kernels_that_end_with_it(
    engine: EngineName, inside: float, beyond: float
) -> None:
    # 16 kB on GB300 in SGLang 0.5.14 and vLLM 0.27, us, over four ranks and over eight.
    settings = Engine(name=engine, flashinfer_sums=False)
    sums = {
        ranks: seconds(
            Exchange(name="x", pattern="all_reduce", bytes=np.array([16384.0]), ranks=ranks),
            facts.gpu("GB300"),
            settings,
        )[0]
        for ranks in (4, 8)
    }
    assert sums[4] * 1e6 == pytest.approx(inside, rel=0.2)
    assert sums[8] * 1e6 == pytest.approx(beyond, rel=0.25)


@pytest.mark.parametrize(
    "kind",
    ["nvlink", "nvswitch", "mnnvl", "xgmi", "pcie", "pcie_host", "ib", "roce", "ethernet"],
)
def test_every_kind_of_link_has_a_speed_with_an_origin(kind: str) -> None:
    link = replace(GPU.inside, kind=kind)
    for pattern in get_args(Pattern):
        found = link_speed(link, "hopper", pattern, "vllm")
        assert found.kind == kind and 0 < found.share <= 1 and found.base > 0
        source = found.origin.split(":")[0]
        assert source in ("fitted", "assumed", "measured by users", "measured by a user")


def test_peers_that_meet_in_the_host_sum_up_as_a_user_measured() -> None:
    # Two RTX PRO 6000 of a server with ACS and IOMMU on: 90.6 us for 1.31 MB, 1.05 ms for 16.8 MB.
    gpu = facts.gpu("RTX PRO 6000 Server")
    gpu = replace(gpu, inside=replace(gpu.inside, kind="pcie_host"))
    sizes = np.array([1310720.0, 16777216.0])
    taken = seconds(Exchange(name="sum", pattern="all_reduce", bytes=sizes, ranks=2), gpu, ENGINE)
    assert taken == pytest.approx([90.59e-6, 1051.83e-6], rel=0.05)


def test_vllm_sums_by_flashinfers_kernels_from_029_on_as_fast_as_their_authors_measured() -> None:
    # vllm-project/vllm#53318, GB300 in one NVLink domain: bytes, ranks, microseconds.
    gpu, measured = (
        facts.gpu("GB300"),
        ((64, 2, 146.95), (80, 4, 209.26), (64, 8, 180.87), (8, 16, 36.92)),
    )
    engine = replace(ENGINE, version="0.29.0")
    for mib, ranks, us in measured:
        size = np.array([mib * 2.0**20])
        exchange = Exchange(name="sum", pattern="all_reduce", bytes=size, ranks=ranks)
        assert seconds(exchange, gpu, engine)[0] == pytest.approx(us * 1e-6, rel=0.25)


@pytest.mark.parametrize("name", ["B200", "GB200", "B300", "GB300"])
def test_flashinfers_sums_are_the_faster_ones_inside_a_domain_up_to_a_limit(name: str) -> None:
    gpu = facts.gpu(name)
    sizes = np.array([2.0**14, 2.0**20, 2.0**27])
    exchange = Exchange(name="sum", pattern="all_reduce", bytes=sizes, ranks=8)
    new, old = (replace(ENGINE, version=version) for version in ("0.29.0", "0.28.0"))
    quick, slow = (seconds(exchange, gpu, engine) for engine in (new, old))
    assert (quick[:2] < slow[:2]).all() and quick[2] == slow[2]
    assert (np.diff(quick) > 0).all()
    told, refused = replace(old, flashinfer_sums=True), replace(new, flashinfer_sums=False)
    assert seconds(exchange, gpu, told) == pytest.approx(quick)
    assert seconds(exchange, gpu, refused) == pytest.approx(slow)
    apart = replace(gpu, domain=4)
    assert seconds(exchange, apart, new) == pytest.approx(seconds(exchange, apart, old))
    gathered = replace(exchange, pattern="all_gather")
    assert seconds(gathered, gpu, new) == pytest.approx(seconds(gathered, gpu, old))
    sglang = replace(new, name="sglang", version="0.5.14")
    assert seconds(exchange, gpu, sglang) == pytest.approx(
        seconds(exchange, gpu, replace(sglang, flashinfer_sums=True))
    )
