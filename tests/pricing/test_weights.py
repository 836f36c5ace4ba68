"""Counts against published totals, and the weights of a rank against what engines printed."""

from math import ceil

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.drafter import assumed_head, with_drafter
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.facts import gpu
from splitpoint.inputs.huggingface import load_model
from splitpoint.inputs.model import (
    Attention,
    Dtype,
    Experts,
    Latent,
    Layer,
    LinearState,
    Mlp,
    Model,
    WeightDtypes,
)
from splitpoint.pricing.weights import (
    RankWeights,
    drafter_weights,
    parameters,
    rank_weights,
    stage_layers,
)

GIB = 2**30


def model(*layers: Layer, **changes: object) -> Model:
    """A model of hidden size 64 and 128 tokens in bf16."""
    small = Model(name="small", layers=layers, hidden=64, vocab=128, max_len=256)
    return msgspec.structs.replace(small, **changes)


def on_rank(
    found: Model, engine: str = "0.32.0", drafts: bool = False, **degrees: int
) -> RankWeights:
    return rank_weights(found, Topology(**degrees), drafts=drafts, engine=Engine(version=engine))


def gqa(heads: int = 8, kv_heads: int = 2) -> Attention:
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=16, value_dim=16)


def test_a_published_head_takes_what_its_file_holds() -> None:
    # yuhuili/EAGLE3-LLaMA3.1-Instruct-8B: a file of 0.85 GB. Projections 2 x 4,096 wide, 3.5 x
    # 4,096 columns, 32,000 tokens; the map of its tokens and positions of 2,048 tokens come on top.
    served = with_drafter(load_model("meta-llama/Llama-3.1-8B"), [Engine(draft_method="eagle3")])
    assert served.drafter is not None
    head = msgspec.structs.replace(served.drafter, max_len=2048)
    served = msgspec.structs.replace(served, drafter=head)
    weights = (
        8192 * 48 * 128  # queries, keys and values
        + 4096 * 4096
        + 3 * 4096 * 14336
        + 3 * 4096 * 4096  # the projection of three hidden states
        + 32000 * 4096
        + 4 * 4096  # norms: before attention, of the hidden state, after it, at the end
    )
    assert 2 * weights == pytest.approx(0.85e9, rel=0.01)
    beside = 2 * 2048 * 128 + 8 * 32000
    assert drafter_weights(served, Topology(), Engine(), None) == 2 * weights + beside
    # Halved by tensor parallelism but for the projection of hidden states, the norms and the map.
    whole = 3 * 4096 * 4096 + 4 * 4096
    halved = weights - whole
    found = drafter_weights(served, Topology(tp=2), Engine(), None)
    assert found == 2 * (halved // 2 + whole) + beside


def test_a_head_of_another_width_embeds_by_itself() -> None:
    target = load_model("meta-llama/Llama-3.1-8B")
    head = assumed_head(target)
    apart = msgspec.structs.replace(head, hidden=2048)
    own = [
        drafter_weights(
            msgspec.structs.replace(target, drafter=d, vocab=v), Topology(), Engine(), None
        )
        for d, v in ((apart, 64_000), (apart, 128_000), (head, 64_000), (head, 128_000))
    ]
    assert own[1] - own[0] == 64_000 * 2048 * 2
    assert own[3] == own[2]


# Published totals. Exact ones are the elements of the published safetensors files: 2 bytes each of
# the total size that model.safetensors.index.json states (Qwen, Meta, Mistral; hub, 2024-2025).
# gpt-oss: model card, table 1 (arXiv:2508.10925).
@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("Qwen/Qwen3-30B-A3B", 30_532_122_624),
        ("Qwen/Qwen3-32B", 32_762_123_264),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen3-0.6B", 596_049_920),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("meta-llama/Llama-3.1-8B", 8_030_261_248),
        ("meta-llama/Llama-3.1-70B", 70_553_706_496),
        ("meta-llama/Llama-3.1-405B", 405_853_388_800),
        ("mistralai/Mixtral-8x7B-v0.1", 46_702_792_704),
        ("openai/gpt-oss-120b", 116_829_156_672),
        ("openai/gpt-oss-20b", 20_914_757_184),
    ],
)
def test_published_totals_come_out_to_the_last_weight(name: str, total: int) -> None:
    assert parameters(load_model(name)).total == total


# Model cards and reports, in billions: total and active, to the digits they print. Publishers
# differ in whether the embedding table, or the output head too, is counted among the active.
@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("Qwen/Qwen3-30B-A3B", 30.5, 3.3),
        ("Qwen/Qwen3-235B-A22B", 235, 22),
        ("deepseek-ai/DeepSeek-V3", 671, 37),
        ("mistralai/Mixtral-8x7B-v0.1", 46.7, 12.9),
        ("mistralai/Mixtral-8x22B-v0.1", 141, 39),
        ("deepseek-ai/DeepSeek-V4-Flash", 284, 13),
        ("zai-org/GLM-4.5", 355, 32),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 31.6, 3.6),
        ("ibm-granite/granite-4.0-h-small", 32, 9),
        ("ai21labs/AI21-Jamba-1.5-Large", 398, 94),
        ("Qwen/Qwen3.5-397B-A17B", 397, 17),
        ("microsoft/Phi-3.5-MoE-instruct", 41.9, 6.6),
        ("Qwen/Qwen3.8-2.4T-A95B", 2400, 95),
    ],
)
def test_published_sizes_are_met(name: str, total: float, active: float) -> None:
    counted = parameters(load_model(name))
    assert counted.total / 1e9 == pytest.approx(total, rel=0.01)
    without_table = counted.active - counted.embeddings
    ways = (counted.active, without_table, without_table - counted.lm_head)
    digit = 0.5 if float(active).is_integer() else 0.05
    assert min(abs(way / 1e9 - active) for way in ways) <= max(digit, 0.02 * active)


def test_gpt_oss_counts_no_embedding_table_among_the_active() -> None:
    counted = parameters(load_model("openai/gpt-oss-120b"))
    assert (counted.active - counted.embeddings) / 1e9 == pytest.approx(5.13, abs=0.005)
    small = parameters(load_model("openai/gpt-oss-20b"))
    assert (small.active - small.embeddings) / 1e9 == pytest.approx(3.61, abs=0.005)


# "Model loading took X GiB" and the like, as printed. Sources: gpt-oss-120b: server logs of
# heyram74/nebius_sopertors_inferencex_benchmark@4c8d50b (vLLM 0.22.1, H200); Llama, Qwen3, Mistral,
# gpt-oss-20b: vLLM 0.11.0 on H100 of 79.18 GiB; DeepSeek-R1: SGLang 0.5.12 on 8 x H200 (available
# before less after loading); Qwen3.8: vLLM blog 2026-09-21; GLM-5.2: llm-d on H200, with MTP.
@pytest.mark.parametrize(
    ("name", "topology", "drafts", "version", "printed"),
    [
        ("openai/gpt-oss-120b", Topology(tp=2), False, "0.22.1", 34.38),
        ("openai/gpt-oss-120b", Topology(tp=4), False, "0.22.1", 17.22),
        ("openai/gpt-oss-120b", Topology(tp=8), False, "0.22.1", 8.66),
        ("openai/gpt-oss-20b", Topology(), False, "0.11.0", 13.47),
        ("meta-llama/Llama-3.1-8B", Topology(), False, "0.11.0", 14.99),
        ("Llama-3.3-70B-FP8", Topology(tp=2), False, "0.11.0", 33.88),
        ("Qwen/Qwen3-32B", Topology(), False, "0.11.0", 61.03),
        ("Qwen/Qwen3-0.6B", Topology(), False, "0.11.0", 1.12),
        ("Mistral-Small-3.2-24B", Topology(), False, "0.11.0", 44.76),
        ("deepseek-ai/DeepSeek-R1", Topology(tp=8), False, "0.22.1", 79.8),
        ("qwen3.8-2.4t", Topology(tp=8, ep=8), True, "0.26.1", 169.28),
        ("qwen3.8-2.4t", Topology(tp=4, dp=4, ep=16), True, "0.26.1", 108.71),
        ("qwen3.8-2.4t", Topology(tp=4, dp=4, ep=16), False, "0.26.1", 107.51),
        ("zai-org/GLM-5.2-FP8", Topology(dp=16, ep=16), True, "0.26.1", 65.1),
        ("zai-org/GLM-5.2-FP8", Topology(tp=8), True, "0.26.1", 89.5),
    ],
)
def test_a_rank_holds_what_the_engine_printed(
    name: str, topology: Topology, drafts: bool, version: str, printed: float
) -> None:
    held = rank_weights(load_model(name), topology, drafts=drafts, engine=Engine(version=version))
    assert held.total / GIB == pytest.approx(printed, rel=0.01)


def test_qwen38_has_the_published_expert_and_other_weights() -> None:
    # vLLM blog 2026-09-21: 1,242 GiB of experts in NVFP4, 91 GiB of everything else in bf16
    held = on_rank(load_model("qwen3.8-2.4t"))
    assert round(held.experts / GIB) == 1242
    assert round((held.total - held.experts) / GIB) == 91


# Small worlds by hand


def test_a_dense_layer_by_hand() -> None:
    small = model(Layer(mixer=gqa(), ffn=Mlp(width=256)))
    counted = parameters(small)
    # queries and output 64 x 8 x 16 each, keys and values 64 x 2 x 16 each
    assert counted.attention == 2 * 8192 + 2 * 2048
    assert counted.mlp == 3 * 64 * 256
    assert (counted.embeddings, counted.lm_head) == (128 * 64, 128 * 64)
    assert counted.norms == 3 * 64
    whole = on_rank(small)
    assert whole.total == 2 * counted.total
    half = on_rank(small, tp=2)
    assert (half.attention, half.mlp) == (whole.attention // 2, whole.mlp // 2)
    assert half.norms == whole.norms


def test_kv_projections_are_replicated_past_the_head_count() -> None:
    small = model(Layer(mixer=gqa(heads=8, kv_heads=2), ffn=None))
    # a rank of eight: one query head and its output row, one whole key and value head
    assert on_rank(small, tp=8).attention == 2 * (2 * 64 * 16 + 2 * 64 * 16)


def test_the_vocabulary_is_padded_to_64_and_cut() -> None:
    small = model(Layer(mixer=gqa(), ffn=None), vocab=130)
    assert on_rank(small, tp=2).embeddings == 2 * 64 * 192 // 2
    tied = msgspec.structs.replace(small, tied_embeddings=True)
    assert on_rank(tied).lm_head == 0
    assert parameters(tied).total == parameters(small).total - 130 * 64


def test_experts_are_cut_or_dealt_out_whole() -> None:
    ffn = Experts(count=6, active=2, width=32, shared_width=64)
    small = model(Layer(mixer=gqa(), ffn=ffn))
    each = 2 * 3 * 64 * 32
    assert on_rank(small, tp=2, dp=2).experts == 6 * each // 4
    assert on_rank(small, tp=2, dp=2, ep=4).experts == 2 * each  # ceil(6 / 4) whole experts
    assert on_rank(small, tp=4, ep=4).experts == 2 * each
    counted = parameters(small)
    assert counted.active == counted.total - 4 * each // 2
    assert counted.router == 64 * 6


def test_shared_experts_are_whole_only_where_tokens_are_dealt_over_tp_and_dp() -> None:
    small = model(Layer(mixer=None, ffn=Experts(count=8, active=2, width=32, shared_width=64)))
    whole = 2 * 3 * 64 * 64
    assert on_rank(small, tp=4, ep=4).shared_experts == whole // 4
    assert on_rank(small, tp=2, dp=2).shared_experts == whole // 2
    assert on_rank(small, tp=2, dp=2, ep=4).shared_experts == whole


def test_mla_down_projections_stay_whole_and_a_quantised_one_keeps_a_copy() -> None:
    mixer = Latent(heads=8, kv_rank=32, nope_dim=16, rope_dim=8, value_dim=16, q_rank=24)
    small = model(Layer(mixer=mixer, ffn=None))
    down = 64 * (32 + 8) + 64 * 24
    up = 8 * (32 * (16 + 16) + 16 * 64 + 24 * 24)
    assert parameters(small).attention == down + up
    assert on_rank(small, tp=4).attention == 2 * (down + up // 4)
    assert on_rank(small, tp=4).absorbed == 0
    fp8 = msgspec.structs.replace(small, weights=WeightDtypes(attention="fp8"))
    assert on_rank(fp8, tp=4).attention == down + up // 4
    assert on_rank(fp8, tp=4).absorbed == 2 * 2 * 32 * 32


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (WeightDtypes(mlp="bf16"), 16),
        (WeightDtypes(mlp="fp8"), 8),
        (WeightDtypes(mlp="fp8", scale_group=128 * 128, scale_bits=32), 8 + 32 / 16384),
        (WeightDtypes(mlp="int4", scale_group=128, scale_bits=20), 4 + 20 / 128),
        (WeightDtypes(mlp="nvfp4"), 4.5),
        (WeightDtypes(mlp="mxfp4"), 4.25),
        (WeightDtypes(mlp="int8"), 8),
    ],
)
def test_block_formats_pay_for_their_scales(weights: WeightDtypes, expected: float) -> None:
    small = model(Layer(mixer=None, ffn=Mlp(width=16384)), weights=weights)
    assert on_rank(small).mlp * 8 == 3 * 64 * 16384 * expected


def test_a_layer_may_be_stored_otherwise_than_the_model() -> None:
    plain = Layer(mixer=None, ffn=Mlp(width=64))
    kept = msgspec.structs.replace(plain, weights=WeightDtypes(mlp="bf16"))
    small = model(plain, kept, weights=WeightDtypes(mlp="fp8"))
    assert on_rank(small).mlp == 3 * 64 * 64 * (1 + 2)


def test_the_output_projection_may_be_stored_otherwise() -> None:
    weights = WeightDtypes(attention="bf16", attention_out="fp8")
    small = model(Layer(mixer=gqa(), ffn=None), weights=weights)
    assert on_rank(small).attention == 2 * (8192 + 2 * 2048) + 8192


def test_mxfp4_experts_are_padded_by_the_kernels_of_the_version() -> None:
    ffn = Experts(count=1, active=1, width=80)
    small = model(Layer(mixer=None, ffn=ffn), weights=WeightDtypes(experts="mxfp4"))
    stored = 3 * 64 * 80 * 17 // 32  # 4.25 bits each
    assert on_rank(small).experts == stored
    assert on_rank(small).padding == 3 * 256 * 128 * 17 // 32 - stored
    assert on_rank(small, engine="0.11.0").padding == 3 * 256 * 128 * 17 // 32 - stored
    assert on_rank(small, engine="0.11.0", tp=2).padding == (3 * 256 * 64 - 3 * 64 * 40) * 17 // 32
    assert on_rank(small, tp=2).padding == (3 * 256 * 128 - 3 * 64 * 40) * 17 // 32


def test_blackwell_pads_mxfp4_experts_further() -> None:
    # gpt-oss-120b at TP8: 360 columns a rank become 384 for Marlin, 512 for FlashInfer
    oss, topology = load_model("openai/gpt-oss-120b"), Topology(tp=8)
    hopper = rank_weights(oss, topology, drafts=False, gpu=gpu("H200"))
    blackwell = rank_weights(oss, topology, drafts=False, gpu=gpu("B200"))
    assert hopper == rank_weights(oss, topology, drafts=False)
    matrix = 36 * 128 * 3 * 3072 * 17 // 32
    assert blackwell.padding - hopper.padding == matrix * (512 - 384)


def test_state_mixers_by_hand() -> None:
    gdn = LinearState(
        kind="gdn", heads=8, rows=16, columns=32, conv_channels=512, conv_kernel=4, key_heads=4
    )
    # q, k: 64 x 4 x 16 each; v, gate, output: 64 x 8 x 32 each; two rates of 8 heads with their two
    # vectors; a kernel of 4 over 2 x 64 + 256 channels
    wanted = 2 * 64 * 64 + 3 * 64 * 256 + 2 * 64 * 8 + 2 * 8 + 4 * (128 + 256)
    assert parameters(model(Layer(mixer=gdn, ffn=None))).state == wanted
    mamba2 = LinearState(
        kind="mamba2", heads=8, rows=16, columns=32, conv_channels=192, conv_kernel=4, key_heads=1
    )
    # in: z, x of 128, B, C of 32, dt of 8; kernel 4 + bias over 192; A, D, dt bias; gated norm; out
    wanted = 64 * (2 * 128 + 2 * 32 + 8) + 5 * 192 + 3 * 8 + 128 + 128 * 64
    assert parameters(model(Layer(mixer=mamba2, ffn=None))).state == wanted
    conv = LinearState(
        kind="short_conv", heads=0, rows=0, columns=0, conv_channels=64, conv_kernel=3
    )
    assert parameters(model(Layer(mixer=conv, ffn=None))).state == 4 * 64 * 64 + 3 * 64
    assert on_rank(model(Layer(mixer=conv, ffn=None)), tp=4).state == 2 * (64 * 64 + 48)


def test_drafts_add_their_layers_and_a_projection() -> None:
    layer = Layer(mixer=gqa(), ffn=Mlp(width=64))
    small = model(layer, layer, draft_layers=(layer,))
    bare, more = parameters(small), parameters(small, drafts=True)
    assert more.attention * 2 == bare.attention * 3
    assert more.combine == 2 * 64 * 64 and bare.combine == 0
    assert on_rank(small).combine == 0
    assert on_rank(small, tp=4, drafts=True).combine == 2 * 2 * 64 * 64 // 4


def test_stages_are_dealt_as_vllm_does() -> None:
    # vllm/distributed/utils.py get_pp_indices: the remainder goes before the last stage
    assert stage_layers(61, 4) == (15, 15, 16, 15)
    assert stage_layers(62, 4) == (15, 16, 16, 15)
    assert stage_layers(4, 1) == (4,)
    assert stage_layers(92, 6) == (15, 15, 15, 16, 16, 15)


def test_the_heaviest_stage_counts() -> None:
    layer = Layer(mixer=gqa(), ffn=Mlp(width=64))
    even = model(*[layer] * 4)
    first = on_rank(even, pp=2)
    # both stages hold two layers; the last one also has the final norm
    assert first.lm_head == 2 * 128 * 64 and first.embeddings == 0
    tied = msgspec.structs.replace(even, tied_embeddings=True)
    assert on_rank(tied, pp=2).embeddings == 2 * 128 * 64
    drafted = msgspec.structs.replace(even, draft_layers=(layer,))
    held = on_rank(drafted, pp=2, drafts=True)
    assert held.embeddings > 0 and held.lm_head > 0


def test_position_tables_and_encoders_are_weights_too() -> None:
    small = model(Layer(mixer=gqa(), ffn=None), rotary_dim=16, encoder=1000)
    held = on_rank(small, tp=2)
    assert (held.rotary, held.encoder) == (2 * 256 * 16, 1000)


# Laws

powers = st.sampled_from([1, 2, 4, 8])
dtypes: st.SearchStrategy[Dtype] = st.sampled_from(["bf16", "fp8", "nvfp4", "int4"])


@st.composite
def worlds(draw: st.DrawFn) -> Model:
    heads = draw(st.sampled_from([8, 16, 32]))
    kv_heads = draw(st.sampled_from([1, 2, 4, 8]))
    ffn = draw(
        st.sampled_from(
            [
                Mlp(width=512),
                Experts(count=16, active=2, width=64),
                Experts(count=24, active=3, width=64, shared_width=128),
            ]
        )
    )
    mixers = [
        Attention(heads=heads, kv_heads=kv_heads, head_dim=16, value_dim=16),
        Latent(heads=heads, kv_rank=32, nope_dim=16, rope_dim=8, value_dim=16, q_rank=None),
        LinearState(
            kind="gdn",
            heads=heads,
            rows=16,
            columns=16,
            conv_channels=32 * 8 + 16 * heads,
            conv_kernel=4,
            key_heads=8,
        ),
    ]
    layers = draw(
        st.lists(
            st.builds(Layer, mixer=st.sampled_from(mixers), ffn=st.just(ffn)),
            min_size=1,
            max_size=6,
        )
    )
    weights = WeightDtypes(attention=draw(dtypes), mlp=draw(dtypes), experts=draw(dtypes))
    return model(*layers, weights=weights)


@settings(max_examples=60, deadline=None)
@given(worlds(), powers, powers)
def test_more_tensor_parallelism_never_gives_a_rank_more(found: Model, a: int, b: int) -> None:
    low, high = sorted((a, b))
    assert on_rank(found, tp=high).total <= on_rank(found, tp=low).total


@settings(max_examples=60, deadline=None)
@given(worlds(), powers)
def test_all_ranks_hold_the_whole_and_the_stated_replication(found: Model, tp: int) -> None:
    whole, rank = parameters(found), rank_weights(plain(found), Topology(tp=tp), drafts=False)
    mixers = [layer.mixer for layer in found.layers]
    copies = 0
    for mixer in mixers:
        if isinstance(mixer, Attention):
            # a rank never has less than one key and value head
            copies += 64 * 32 * (tp * max(1, ceil(mixer.kv_heads / tp)) - mixer.kv_heads)
        elif isinstance(mixer, Latent):
            copies += (tp - 1) * 64 * (mixer.kv_rank + mixer.rope_dim)
    assert tp * rank.attention == 2 * (whole.attention + copies)
    assert tp * rank.state == 2 * whole.state
    assert tp * rank.mlp == 2 * whole.mlp and tp * rank.experts == 2 * whole.experts
    assert tp * (rank.embeddings + rank.lm_head) == 2 * (whole.embeddings + whole.lm_head)
    assert rank.norms == 2 * whole.norms and rank.router == 2 * whole.router


def plain(found: Model) -> Model:
    return msgspec.structs.replace(found, weights=WeightDtypes())


@settings(max_examples=60, deadline=None)
@given(worlds(), powers, powers)
def test_data_parallel_ranks_hold_equal_attention_and_share_the_experts(
    found: Model, tp: int, dp: int
) -> None:
    alone, shared = on_rank(found, tp=tp), on_rank(found, tp=tp, dp=dp)
    assert shared.attention == alone.attention and shared.mlp == alone.mlp
    assert shared.experts * dp >= alone.experts
    dealt = on_rank(found, tp=tp, dp=dp, ep=tp * dp if tp * dp > 1 else 1)
    assert dealt.experts * tp * dp >= on_rank(found).experts


@settings(max_examples=60, deadline=None)
@given(worlds(), st.integers(1, 6))
def test_no_stage_holds_more_than_the_whole(found: Model, pp: int) -> None:
    assert sum(stage_layers(len(found.layers), pp)) == len(found.layers)
    assert on_rank(found, pp=pp).total <= on_rank(found).total
