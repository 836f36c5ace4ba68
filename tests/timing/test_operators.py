"""FLOPs and bytes of a step, worked out by hand, and the laws they keep."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.model import (
    Compressed,
    Indexer,
    Latent,
    Layer,
    LinearState,
    Mlp,
    Model,
    WeightDtypes,
)
from splitpoint.timing.operators import (
    Batch,
    Operator,
    Stored,
    busiest,
    imbalance,
    matmul,
    prefix_operators,
    quantised,
    stage_operators,
    stages,
    step_operators,
    touched,
)
from tests.timing.worlds import ATTENTION, DENSE, ENGINE, HEADED, MOE, batch

ONE = Topology()


def total(operators: tuple[Operator, ...], of: str, prefix: str = "") -> float:
    chosen = [o for o in operators if o.name.startswith(prefix)]
    return float(sum(o.count * getattr(o, of).sum() for o in chosen))


def layers_of(mixer: object, model: Model = DENSE) -> Model:
    return replace(model, layers=(Layer(mixer=mixer, ffn=None),))  # type: ignore[arg-type]


def test_a_dense_layer_by_hand() -> None:
    # 10 new tokens that attend 55 pairs; 4 layers of hidden 128, 8 heads of 16, 2 KV heads.
    operators = step_operators(DENSE, ONE, ENGINE, batch(prefill=10, pairs=55, rows=1))
    qkv = 2 * 10 * 128 * (128 + 2 * 32)
    out = 2 * 10 * 128 * 128
    mlp = 2 * 10 * 128 * 256 * 3
    pairs = 55 * 2 * 8 * (16 + 16)
    assert total(operators, "flops", "attention.qkv") == 4 * qkv
    assert total(operators, "flops", "attention.out") == 4 * out
    assert total(operators, "flops", "mlp.up") + total(operators, "flops", "mlp.down") == 4 * mlp
    assert total(operators, "flops", "prefill_attention") == 4 * pairs
    assert total(operators, "flops", "logits") == 2 * 1 * 128 * 1000


def test_decode_reads_weights_once_and_every_cached_vector_once() -> None:
    operators = step_operators(DENSE, ONE, ENGINE, batch(decode=3, context=300, rows=3))
    weights = 4 * (128 * 192 + 128 * 128 + 3 * 128 * 256) + 128 * 1000
    activations = 3 * (4 * (128 + 192 + 128 + 128 + 128 + 512 + 256 + 128) + 128 + 1000)
    products = sum(float(o.count * o.bytes.sum()) for o in operators if o.kind == "gemm")
    assert products == 2 * (weights + activations)
    # Keys and values of 2 heads of 16, bf16, 4 layers.
    assert total(operators, "bytes", "decode_attention") == 4 * 300 * 2 * 2 * 16 * 2


def test_fp8_weights_and_cache_halve_what_is_read() -> None:
    fp8 = replace(DENSE, weights=WeightDtypes(attention="fp8", mlp="fp8"))
    step = batch(decode=1, context=1000, rows=1)
    wide = step_operators(DENSE, ONE, ENGINE, step)
    narrow = step_operators(fp8, ONE, replace(ENGINE, kv_dtype="fp8"), step)
    assert (
        total(narrow, "bytes", "decode_attention") == total(wide, "bytes", "decode_attention") / 2
    )
    assert total(narrow, "bytes", "mlp") == pytest.approx(total(wide, "bytes", "mlp") / 2, rel=0.05)


def test_block_scales_are_read_with_the_weights() -> None:
    plain = replace(DENSE, weights=WeightDtypes(mlp="int4"))
    scaled = replace(DENSE, weights=WeightDtypes(mlp="int4", scale_group=128, scale_bits=20))
    step = batch(decode=1, rows=1)
    more = total(step_operators(scaled, ONE, ENGINE, step), "bytes", "mlp") - total(
        step_operators(plain, ONE, ENGINE, step), "bytes", "mlp"
    )
    assert more == 4 * 3 * 128 * 256 * 20 / 8 / 128


def test_a_window_bounds_context_and_pairs() -> None:
    sliding = layers_of(replace(ATTENTION, window=64))
    step = batch(decode=2, context=1000, prefill=10, pairs=5000, rows=2)
    operators = step_operators(sliding, ONE, ENGINE, step)
    assert total(operators, "bytes", "decode_attention") == 2 * 64 * 2 * 2 * 16 * 2
    assert total(operators, "flops", "prefill_attention") == 10 * 64 * 2 * 8 * 32


def test_a_chunk_is_half_full_on_average() -> None:
    local = layers_of(replace(ATTENTION, chunk=64))
    operators = step_operators(local, ONE, ENGINE, batch(decode=2, context=1000, rows=2))
    assert total(operators, "bytes", "decode_attention") == 2 * 32 * 2 * 2 * 16 * 2


def test_kv_heads_are_replicated_past_their_number() -> None:
    step = batch(decode=1, context=100, rows=1)
    two = step_operators(DENSE, Topology(tp=2), ENGINE, step)
    eight = step_operators(DENSE, Topology(tp=8), ENGINE, step)
    assert total(two, "bytes", "decode_attention") == total(eight, "bytes", "decode_attention")
    assert total(eight, "flops", "decode_attention") == total(two, "flops", "decode_attention") / 4


def test_under_dcp_a_rank_reads_its_share_of_the_keys_for_the_heads_of_all() -> None:
    step = batch(decode=3, context=1200, rows=3)
    # Eight ranks over two key-value heads: four copies of each, cut in four shares.
    copies = step_operators(DENSE, Topology(tp=8), ENGINE, step)
    shares = step_operators(DENSE, Topology(tp=8, dcp=4), ENGINE, step)
    read = 4 * 1200 * 2 * 16 * 2
    assert total(copies, "bytes", "decode_attention") == read
    assert total(shares, "bytes", "decode_attention") == read / 4
    assert total(shares, "flops", "decode_attention") == total(copies, "flops", "decode_attention")
    (op,) = {o.name: o for o in shares if o.name == "decode_attention"}.values()
    assert op.rows[0] == 4 and op.parallel == 3
    # One latent vector for all heads: whole on every rank without dcp.
    latent = layers_of(MLA)
    whole = step_operators(latent, Topology(tp=4), ENGINE, step)
    cut = step_operators(latent, Topology(tp=4, dcp=4), ENGINE, step)
    assert total(whole, "bytes", "decode_latent") == 1200 * 72 * 2
    assert total(cut, "bytes", "decode_latent") == 300 * 72 * 2
    assert total(cut, "flops", "decode_latent") == total(whole, "flops", "decode_latent")
    # What a prompt computes is the same: its heads stay apart.
    prompt = batch(prefill=64, pairs=64 * 500, rows=1)
    for model, names in ((DENSE, "prefill_attention"), (latent, "prefill_latent")):
        plain = step_operators(model, Topology(tp=8), ENGINE, prompt)
        dcp = step_operators(model, Topology(tp=8, dcp=4), ENGINE, prompt)
        assert total(plain, "flops", names) == total(dcp, "flops", names)


def test_under_dcp_an_indexer_scores_its_share_of_the_keys() -> None:
    sparse = layers_of(replace(MLA, indexer=Indexer(heads=4, dim=32, topk=100)))
    step = batch(decode=2, context=1600, rows=2)
    whole = step_operators(sparse, Topology(tp=8), ENGINE, step)
    cut = step_operators(sparse, Topology(tp=8, dcp=8), ENGINE, step)
    for name in ("decode_sparse", "indexer.decode"):
        assert total(cut, "bytes", name) == total(whole, "bytes", name) / 8


MLA = Latent(heads=8, kv_rank=64, nope_dim=16, rope_dim=8, value_dim=16, q_rank=32)


def test_mla_decode_is_absorbed_and_prefill_is_not() -> None:
    model = layers_of(MLA)
    decode = step_operators(model, ONE, ENGINE, batch(decode=1, context=100, rows=1))
    assert total(decode, "flops", "decode_latent") == 100 * 2 * 8 * ((64 + 8) + 64)
    assert total(decode, "bytes", "decode_latent") == 100 * 72 * 2
    assert total(decode, "flops", "latent.absorb") == 2 * 16 * 8 * 64
    prefill = step_operators(model, ONE, ENGINE, batch(prefill=256, pairs=256 * 128, rows=1))
    assert total(prefill, "flops", "latent.absorb") == 0
    assert total(prefill, "flops", "latent.up") == 2 * 256 * 64 * 8 * 32
    assert total(prefill, "flops", "prefill_latent") == 256 * 128 * 2 * 8 * (16 + 8 + 16)


def test_a_chunk_makes_the_heads_of_its_whole_prefix_again_however_short_it_is() -> None:
    model = replace(layers_of(MLA), layers=(Layer(mixer=MLA, ffn=None),) * 3)
    prefix = np.array([1000.0])
    again = prefix_operators(model, Topology(tp=2), ENGINE, prefix, 0)
    assert total(again, "flops") == 3 * 1000 * 2 * 64 * 4 * (16 + 16)
    # Under an indexer queries work in the latent space, and no heads are made.
    sparse = layers_of(replace(MLA, indexer=Indexer(heads=4, dim=16, topk=32)))
    assert prefix_operators(sparse, ONE, ENGINE, prefix, 0) == ()
    assert prefix_operators(DENSE, ONE, ENGINE, prefix, 0) == ()


def test_latent_vectors_are_never_divided_by_tp() -> None:
    step = batch(decode=1, context=100, rows=1)
    whole = step_operators(layers_of(MLA), ONE, ENGINE, step)
    eighth = step_operators(layers_of(MLA), Topology(tp=8), ENGINE, step)
    assert total(whole, "bytes", "decode_latent") == total(eighth, "bytes", "decode_latent")


def test_an_indexer_bounds_attention_but_scores_everything() -> None:
    sparse = replace(MLA, indexer=Indexer(heads=4, dim=16, topk=32))
    step = batch(decode=2, context=1000, rows=2)
    operators = step_operators(layers_of(sparse), ONE, ENGINE, step)
    assert total(operators, "flops", "decode_sparse") == 2 * 32 * 2 * 8 * (72 + 64)
    assert total(operators, "flops", "indexer.decode") == 1000 * 2 * 4 * 16
    # Every score is written once and read once; the places of 32 of them are kept a sequence.
    assert total(operators, "bytes", "topk.decode") == 1000 * 4 + 2 * 32 * 4
    by_block = replace(sparse, indexer=Indexer(heads=4, dim=16, topk=32, block=10))
    blocks = step_operators(layers_of(by_block), ONE, ENGINE, step)
    assert total(blocks, "bytes", "topk.decode") == 100 * 4 + 2 * 32 * 4
    shared = replace(sparse, indexer=Indexer(heads=4, dim=16, topk=32, shared=True))
    reused = step_operators(layers_of(shared), ONE, ENGINE, batch(decode=2, context=1000, rows=2))
    assert total(reused, "flops", "indexer") == 0
    assert total(reused, "flops", "decode_sparse") == total(operators, "flops", "decode_sparse")


def test_compressed_attention_reads_a_window_and_every_fourth_token() -> None:
    mixer = Compressed(
        heads=8, head_dim=16, rope_dim=8, window=32, ratio=4, q_rank=32, o_rank=16, o_groups=2
    )
    operators = step_operators(layers_of(mixer), ONE, ENGINE, batch(decode=1, context=400, rows=1))
    assert total(operators, "flops", "decode_sparse") == (32 + 100) * 2 * 8 * 32
    out = 2 * (8 * 16 / 2) * (2 * 16) + 2 * (2 * 16) * 128
    assert total(operators, "flops", "compressed.out") == out


GDN = LinearState(
    kind="gdn", heads=8, rows=16, columns=16, conv_channels=256, conv_kernel=4, key_heads=4
)


def test_a_state_is_read_and_written_once_a_token_and_drafts_keep_their_own() -> None:
    step = batch(decode=3, context=5000, rows=3)
    state = 8 * 16 * 16 * 2
    plain = step_operators(layers_of(GDN), ONE, ENGINE, step)
    drafted = step_operators(layers_of(GDN), ONE, replace(ENGINE, drafts=2), step)
    vectors = (256 + 128) * 2
    conv = 2 * 256 * 4 * 2
    assert total(plain, "bytes", "decode_state") == 3 * (2 * state + vectors + conv)
    assert total(drafted, "bytes", "decode_state") == 3 * (4 * state + 3 * vectors + conv)
    far = step_operators(layers_of(GDN), ONE, ENGINE, batch(decode=3, context=9000, rows=3))
    assert total(far, "bytes") == total(plain, "bytes")


def test_an_engine_s_version_says_in_how_many_products_a_delta_layer_is_projected() -> None:
    step = batch(decode=3, context=90, rows=3)
    model = replace(layers_of(GDN), architecture="Qwen3_5ForConditionalGeneration")

    def launched(**settings: str) -> dict[str, int]:
        operators = step_operators(model, ONE, replace(ENGINE, **settings), step)
        names = ("state.in", "state.output_gate", "state.gates", "state.split")
        return {o.name: o.count for o in operators if o.name in names}

    layers = len(model.layers)
    two = {"state.in": layers, "state.gates": layers, "state.split": layers}
    assert launched() == launched(name="sglang", version="0.5.10") == two
    four = {"state.in": layers, "state.output_gate": layers, "state.gates": 2 * layers}
    assert launched(name="sglang", version="0.5.9") == four
    flops = [
        total(step_operators(model, ONE, replace(ENGINE, name="sglang", version=v), step), "flops")
        for v in ("0.5.9", "0.5.10")
    ]
    assert flops[1] - flops[0] == layers * 2 * 3 * (256 + 128)  # the re-ordering alone


@pytest.mark.parametrize("swapped", [False, True])
def test_mamba2_knows_its_width_whichever_way_its_state_is_stored(swapped: bool) -> None:
    rows, columns = (32, 16) if swapped else (16, 32)
    mixer = LinearState(
        kind="mamba2",
        heads=8,
        rows=rows,
        columns=columns,
        conv_channels=8 * 16 + 2 * 2 * 32,
        conv_kernel=4,
        key_heads=2,
    )
    operators = step_operators(layers_of(mixer), ONE, ENGINE, batch(decode=1, rows=1))
    assert total(operators, "flops", "state.out") == 2 * 8 * 16 * 128
    assert total(operators, "flops", "state.in") == 2 * 128 * (256 + 128 + 8)


def test_distinct_experts_follow_the_expectation() -> None:
    routed = np.array([0.0, 1.0, 4.0, 1e6])
    assert touched(16, 2, routed) == pytest.approx([0, 2, 16 * (1 - 0.875**4), 16])
    assert touched(4, 4, routed) == pytest.approx([0, 4, 4, 4])


def test_experts_read_what_is_touched_and_multiply_what_is_routed() -> None:
    operators = step_operators(MOE, ONE, ENGINE, batch(decode=4, context=0, rows=4))
    expert = 3 * 128 * 64
    flops = total(operators, "flops") - total(operators, "flops", "experts.")
    assert flops > 4 * 4 * 2 * 2 * expert
    (grouped,) = [o for o in operators if o.name == "experts"]
    assert grouped.flops[0] == 4 * 2 * 2 * expert
    reached = 16 * (1 - 0.875**4)
    weights = reached * expert * 2
    assert weights < grouped.bytes[0] < weights + 4 * 2 * (128 + 64) * 20
    # 4 tokens and 8 pairs for 16 experts; rows of Poisson's deviation.
    assert grouped.crowd == pytest.approx(4 / 16)
    assert grouped.listed == pytest.approx(8 / 16)
    assert grouped.spread == pytest.approx(np.sqrt(8 / reached))


def test_the_busiest_rank_reads_more_experts_than_the_mean_until_all_are_read() -> None:
    draws = np.random.default_rng(0)
    for tokens in (4, 16, 64):
        hit = np.zeros((200, 256), bool)
        for world in hit:
            for _ in range(tokens):
                world[draws.choice(256, 8, replace=False)] = True
        drawn = hit.reshape(200, 8, 32).sum(2).max(1).mean()
        reached = touched(256, 8, np.array([float(tokens)]))
        assert busiest(256, reached, 8)[0] == pytest.approx(drawn, rel=0.08)
    assert busiest(256, np.array([256.0]), 8)[0] == 32
    assert busiest(256, np.array([40.0]), 1)[0] == 40


def test_norms_of_heads_are_a_kernel_of_their_own() -> None:
    step = batch(decode=10, context=1000)
    models = (layers_of(ATTENTION), layers_of(replace(ATTENTION, qk_norm=True)))
    names = [{o.name for o in step_operators(m, ONE, ENGINE, step)} for m in models]
    assert names[1] - names[0] == {"attention.qk_norm"}


def test_quantising_inputs_reads_them_and_writes_a_byte_each() -> None:
    product = matmul("x", np.array([10.0]), 128, 64, Stored(dtype="fp8", bytes=1.0), count=3)
    kernel = quantised(product)
    assert kernel.bytes[0] == 10 * 128 * 3
    assert (kernel.name, kernel.count) == ("x.quantise", 3)


def test_whole_experts_serve_the_tokens_of_all_ranks() -> None:
    step = batch(decode=64, rows=64)
    (alone,) = [o for o in step_operators(MOE, ONE, ENGINE, step) if o.name == "experts"]
    dealt_topology = Topology(dp=4, ep=4)
    (dealt,) = [o for o in step_operators(MOE, dealt_topology, ENGINE, step) if o.name == "experts"]
    busiest = imbalance(np.array([64 * 4 * 2.0]), 4)[0]
    assert 1.0 < busiest < 1.5
    # Four times the tokens over four ranks: the mean load of one rank, times the busiest's share.
    assert dealt.flops[0] == pytest.approx(alone.flops[0] * busiest)


def test_pipeline_stages_hold_every_layer_once_and_the_last_is_never_the_fullest() -> None:
    sizes = [len(stage) for stage in stages(replace(DENSE, layers=DENSE.layers[:1] * 10), 4)]
    assert sizes == [2, 3, 3, 2]


def test_draft_layers_run_once_over_all_tokens_and_then_once_per_further_draft() -> None:
    drafting = replace(DENSE, draft_layers=DENSE.layers[:1])
    step = batch(decode=5, context=500, rows=5)
    one = step_operators(drafting, ONE, replace(ENGINE, drafts=1), step)
    three = step_operators(drafting, ONE, replace(ENGINE, drafts=3), step)
    joined = 2 * 256 * 128
    assert total(one, "flops", "draft.join") == 5 * 2 * joined
    assert total(three, "flops", "draft.join") == (5 * 4 + 2 * 5) * joined
    # The target verifies 1 + 3 tokens of each sequence by logits of each.
    assert total(three, "flops", "logits") == 5 * 4 * 2 * 128 * 1000
    assert total(three, "flops", "mlp.up") == 4 * 5 * 4 * 2 * 128 * 512


def test_a_head_joins_hidden_states_once_and_drafts_its_own_vocabulary_every_time() -> None:
    step = batch(decode=5, context=500, rows=5)
    three = step_operators(HEADED, ONE, replace(ENGINE, drafts=3), step)
    first, later = 5 * 4, 2 * 5
    assert total(three, "flops", "draft.fuse") == first * 2 * (3 * 128) * 128
    # Queries of 8 heads, keys and values of 2, from the embedding and the hidden state.
    assert total(three, "flops", "draft.attention.qkv") == (first + later) * 2 * 256 * 12 * 16
    assert total(three, "flops", "draft.mlp.up") == (first + later) * 2 * 128 * 2 * 448
    assert total(three, "flops", "draft.logits") == 3 * 5 * 2 * 128 * 100
    assert total(three, "flops", "logits") == 5 * 4 * 2 * 128 * 1000


def test_the_text_before_drafts_without_a_kernel() -> None:
    step = batch(decode=5, context=500, rows=5)
    drafting = replace(DENSE, draft_layers=DENSE.layers[:1])
    ngram = replace(ENGINE, drafts=3, draft_method="ngram")
    found = step_operators(drafting, ONE, ngram, step)
    assert not [o for o in found if o.name.startswith("draft.")]
    assert total(found, "flops", "mlp.up") == 4 * 5 * 4 * 2 * 128 * 512


def test_a_smaller_model_drafts_with_all_of_its_layers() -> None:
    small = replace(DENSE, layers=DENSE.layers[:2], vocab=1000)
    step = batch(decode=5, context=500, rows=5)
    found = step_operators(replace(DENSE, drafter=small), ONE, replace(ENGINE, drafts=2), step)
    assert total(found, "flops", "draft.mlp.up") == (5 * 3 + 5) * 2 * (2 * 128 * 512)


@pytest.mark.parametrize("model", [DENSE, MOE])
def test_prefill_flops_per_token_are_about_twice_the_active_parameters(model: Model) -> None:
    new = 4096.0
    operators = step_operators(model, ONE, ENGINE, batch(prefill=new, pairs=0, rows=1))
    products = sum(
        float(o.count * o.flops.sum()) for o in operators if o.kind in ("gemm", "experts")
    )
    attention = 128 * 192 + 128 * 128
    ffn = 3 * 128 * 256 if model is DENSE else 3 * 128 * 64 * (2 + 1) + 128 * 16
    assert products / new == pytest.approx(2 * 4 * (attention + ffn), rel=0.001)


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    decode=st.integers(0, 64),
    prefill=st.integers(0, 512),
    length=st.integers(1, 4096),
    moe=st.booleans(),
)
def test_more_tp_never_means_more_work_on_a_rank(
    tp: int, decode: int, prefill: int, length: int, moe: bool
) -> None:
    model = MOE if moe else DENSE
    step = batch(
        decode=decode, context=decode * length, prefill=prefill, pairs=prefill * length, rows=decode
    )
    one = step_operators(model, ONE, ENGINE, step)
    cut = step_operators(model, Topology(tp=tp), ENGINE, step)
    assert total(cut, "flops") <= total(one, "flops") * (1 + 1e-12)
    assert total(cut, "bytes") <= total(one, "bytes") * (1 + 1e-12)


@settings(max_examples=30)
@given(
    tokens=st.lists(st.integers(1, 2000), min_size=1, max_size=8),
    dtype=st.sampled_from(["bf16", "fp8"]),
)
def test_a_table_is_its_points(tokens: list[int], dtype: str) -> None:
    engine = replace(ENGINE, kv_dtype=dtype)
    new = np.array(tokens, float)
    zero = np.zeros_like(new)
    table = Batch(decode=new, context=new * 50, prefill=zero, pairs=zero, rows=new)
    at_once = step_operators(MOE, Topology(tp=2), engine, table)
    for index, n in enumerate(tokens):
        single = step_operators(
            MOE, Topology(tp=2), engine, batch(decode=n, context=n * 50, rows=n)
        )
        for whole, point in zip(at_once, single, strict=True):
            assert whole.flops[index] == pytest.approx(point.flops[0], rel=1e-12)
            assert whole.bytes[index] == pytest.approx(point.bytes[0], rel=1e-12)


def test_embeddings_stand_on_the_first_stage_and_logits_on_the_last() -> None:
    topology = Topology(pp=2)
    step = batch(decode=1, context=10, rows=1)
    first, last = (stage_operators(DENSE, topology, ENGINE, step, i) for i in range(2))
    assert {o.name for o in first} - {o.name for o in last} == {"embedding"}
    assert {"logits", "sampling"} <= {o.name for o in last} - {o.name for o in first}


def test_layers_without_a_half_cost_only_the_other() -> None:
    halves = replace(
        DENSE,
        layers=(
            Layer(mixer=ATTENTION, ffn=None),
            Layer(mixer=None, ffn=Mlp(width=256, gated=False)),
        ),
    )
    operators = step_operators(halves, ONE, ENGINE, batch(prefill=10, pairs=55, rows=1))
    assert total(operators, "flops", "mlp.up") == 2 * 10 * 128 * 256
    assert {o.count for o in operators if o.name == "mixer.norm"} == {1}


def test_a_gated_query_makes_its_gate_too() -> None:
    gated = layers_of(replace(ATTENTION, gated=True))
    plain = layers_of(ATTENTION)
    step = batch(prefill=10, pairs=55, rows=1)
    more = total(step_operators(gated, ONE, ENGINE, step), "flops", "attention.qkv") - total(
        step_operators(plain, ONE, ENGINE, step), "flops", "attention.qkv"
    )
    assert more == 2 * 10 * 128 * 128


def test_a_layer_that_shares_its_cache_projects_queries_only() -> None:
    model = replace(DENSE, layers=(Layer(mixer=ATTENTION, ffn=None, shares_kv=True),))
    operators = step_operators(model, ONE, ENGINE, batch(prefill=10, pairs=55, rows=1))
    assert total(operators, "flops", "attention.qkv") == 2 * 10 * 128 * 128


def test_a_layer_may_be_stored_otherwise() -> None:
    layer = Layer(mixer=ATTENTION, ffn=None, weights=WeightDtypes(attention="fp8"))
    operators = step_operators(
        replace(DENSE, layers=(layer,)), ONE, ENGINE, batch(prefill=1, pairs=1, rows=1)
    )
    assert {o.dtype for o in operators if o.name.startswith("attention.q")} == {"fp8"}
