"""Blocks by hand: every layer kind, every sharding rule, in worlds small enough to work out."""

import pytest
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.model import Indexer, Latent, Layer, LinearState, StateKind
from splitpoint.pricing.blocks import blocks_per_request, group_blocks, layout, page_of
from splitpoint.pricing.caches import stage_of, vector_bytes
from splitpoint.pricing.concurrency import kv_tokens_reported, max_concurrency, num_blocks
from splitpoint.pricing.engines import resolved
from tests.pricing.geometry import attention, compressed, gdn, gib, gpu, laid, latent, model

QWEN38 = model(
    [attention(4, 256) if i % 4 == 3 else gdn(128, 16) for i in range(92)],
    drafts=[attention(4, 256)],
)
FP8 = Engine(kv_dtype="fp8", state_dtype="bf16", prefix_caching=False)


def test_a_token_of_grouped_attention_takes_keys_and_values_of_every_head() -> None:
    kv = laid(model([attention(4, 128)] * 48), Engine())
    assert kv.block_tokens == 16
    assert kv.page_bytes == 16 * 4 * (128 + 128) * 2
    assert kv.block_bytes / kv.block_tokens == 98304  # Qwen3-30B-A3B, as its study says


@pytest.mark.parametrize(("tp", "heads"), [(1, 4), (2, 2), (4, 1), (8, 1), (16, 1)])
def test_heads_are_replicated_past_their_count_and_never_fewer_than_one(
    tp: int, heads: int
) -> None:
    assert laid(model([attention(4, 128)]), Engine(), tp=tp).page_bytes == 16 * heads * 512


def test_a_latent_cache_is_the_same_on_every_rank() -> None:
    subject = model([latent()] * 61)
    one, eight = (laid(subject, Engine(), tp=tp) for tp in (1, 8))
    assert one.block_bytes == eight.block_bytes
    assert one.block_bytes // one.block_tokens == 61 * 576 * 2


def sparse(*, shared: bool = False) -> Latent:
    indexer = Indexer(heads=64, dim=128, topk=2048, shared=shared)
    return replace(latent(), indexer=indexer)


def test_sparse_latent_attention_caches_an_index_beside_the_latent_vector() -> None:
    kv = laid(model([*[sparse()] * 3, sparse(shared=True)]), Engine())
    assert kv.block_tokens == 64
    assert kv.block_bytes == 64 * (4 * 1152 + 3 * (128 + 4))
    assert [group.layers for group in kv.groups] == [4]


def test_sparse_fp8_lies_in_wider_rows_where_flashmla_serves_it() -> None:
    subject, one = model([sparse()]), Topology()
    for architecture, row in (("hopper", 656), ("blackwell", 576)):
        device = replace(gpu(80, 80), architecture=architecture)
        engine = resolved(Engine(kv_dtype="fp8"), device, one, subject)
        assert layout(subject, one, engine).block_bytes == 64 * (row + 132)


def test_the_published_hybrid_has_2112_token_blocks_and_759_mib_a_request() -> None:
    kv = laid(QWEN38, FP8)
    assert kv.block_tokens == 2112
    assert kv.page_bytes == 2112 * 2048
    assert kv.unpadded_state_bytes == 4 * 2**20 + 120 * 2**10
    assert f"{100 * kv.padding_share:.2f}" == "0.19"
    pages = {
        kind: sum(group_blocks(kv, g, 9216) * kv.group_layers for g in kv.groups if g.kind == kind)
        for kind in ("full", "state")
    }
    assert pages == {"full": 115, "state": 69}
    assert blocks_per_request(kv, 9216) * kv.block_bytes == 759 * 2**20


@pytest.mark.parametrize(
    ("tp", "drafts", "block"),
    [(1, 0, 2112), (4, 0, 2112), (8, 0, 1056), (4, 3, 2176), (8, 3, 1088), (1, 1, 2128)],
)
def test_block_tokens_follow_tp_and_drafts(tp: int, drafts: int, block: int) -> None:
    engine = Engine(kv_dtype="fp8", state_dtype="bf16", prefix_caching=False, drafts=drafts)
    assert laid(QWEN38, engine, tp=tp).block_tokens == block


def test_a_configured_block_is_the_grain_of_a_hybrid_block() -> None:
    engine = Engine(kv_dtype="fp8", state_dtype="bf16", prefix_caching=False, block_size=256)
    assert laid(QWEN38, engine).block_tokens == 2304
    whole = Engine(kv_dtype="fp8", state_dtype="bf16", prefix_caching=False, block_size=4096)
    assert laid(QWEN38, whole).block_tokens == 4096


@pytest.mark.parametrize(
    ("prefix_caching", "version", "drafts", "held"),
    [
        (False, "0.32.0", 0, 1),
        (True, "0.32.0", 0, 2),
        (True, "0.32.0", 3, 5),
        (True, "0.14.1", 0, 1),
    ],
)
def test_prefix_caching_keeps_one_more_state_block_where_the_version_has_it(
    prefix_caching: bool, version: str, drafts: int, held: int
) -> None:
    engine = Engine(version=version, prefix_caching=prefix_caching, drafts=drafts)
    kv = laid(QWEN38, engine)
    assert {g.fixed for g in kv.groups if g.kind == "state"} == {held}


def test_layer_kinds_with_few_more_layers_share_one_group_size() -> None:
    window, full = attention(8, 64, window=128), attention(8, 64)
    near = laid(model([window] * 12 + [full] * 13), Engine())
    assert [(g.kind, g.layers, g.padding) for g in near.groups] == [
        ("window", 12, 1),
        ("full", 13, 0),
    ]
    far = laid(model([window] * 5 + [full]), Engine())
    assert [g.layers for g in far.groups] == [1] * 6
    assert far.block_bytes == far.page_bytes


def test_padding_layers_fill_the_last_groups_of_a_kind() -> None:
    kv = laid(model([gdn(32, 16)] * 20 + [attention(2, 256)] * 7), Engine())
    assert [(g.layers, g.padding) for g in kv.groups if g.kind == "state"] == [
        (7, 0),
        (7, 0),
        (6, 1),
    ]


def test_a_window_group_holds_window_and_tokens_in_flight_and_one_block() -> None:
    subject = model([attention(8, 64, window=128), attention(8, 64)])
    kv = laid(subject, Engine(batched_tokens=2048, async_scheduling=False))
    window = kv.groups[0]
    assert kv.in_flight == 2048
    assert group_blocks(kv, window, 8192) == -(-(127 + 2048) // 16) + 1
    assert group_blocks(kv, window, 100) == 7 + 1
    overlapped = laid(subject, Engine(batched_tokens=2048))
    assert overlapped.in_flight == 4096
    before = laid(subject, Engine(batched_tokens=2048, version="0.24.0"))
    assert before.in_flight == 2048


def test_a_chunk_group_holds_one_chunk_and_tokens_in_flight() -> None:
    engine = Engine(batched_tokens=2048, async_scheduling=False)
    kv = laid(model([attention(8, 128, chunk=8192)] * 3 + [attention(8, 128)]), engine)
    assert group_blocks(kv, kv.groups[0], 100_000) == (8192 + 2048) // 16
    assert group_blocks(kv, kv.groups[0], 1000) == 63


def test_smaller_pages_take_more_tokens_where_that_divides_and_are_padded_where_not() -> None:
    window, full = attention(16, 256, window=1024), attention(4, 512)
    divides = laid(model([window] * 5 + [full]), Engine())
    assert [g.block_tokens for g in divides.groups] == [0] * 5 + [32]
    uneven = laid(model([attention(3, 256, window=1024)] * 5 + [attention(2, 256)]), Engine())
    assert [g.block_tokens for g in uneven.groups] == [0] * 6
    assert uneven.page_bytes == 16 * 3 * 1024
    assert uneven.groups[-1].content_bytes == 16 * 2 * 1024


def test_layers_that_read_an_earlier_cache_store_nothing() -> None:
    subject = model([attention(8, 128)] * 4)
    sharing = Layer(mixer=attention(8, 128), ffn=None, shares_kv=True)
    assert laid(replace(subject, layers=(*subject.layers, sharing)), Engine()) == laid(
        subject, Engine()
    )


def test_draft_layers_count_only_when_the_engine_drafts() -> None:
    subject = model([attention(8, 128)] * 4, drafts=[attention(8, 128)])
    assert laid(subject, Engine()).group_layers == 4
    assert laid(subject, Engine(drafts=2)).group_layers == 5


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("fp32", 512),
        ("bf16", 256),
        ("fp8", 128),
        ("int8", 132),
        ("int4", 68),
        ("nvfp4", 72),
        ("mxfp4", 68),
    ],
)
def test_a_vector_of_128_carries_the_scales_of_its_dtype(dtype: str, size: int) -> None:
    assert vector_bytes(128, dtype) == size  # type: ignore[arg-type]


def test_states_keep_their_own_dtypes_and_the_convolution_grows_with_drafts() -> None:
    subject = model([gdn(8, 4, dim=64)])
    wide = page_of(subject, Topology(), Engine(state_dtype="fp32"))
    assert wide[0].entry == 8 * 64 * 64 * 4 + (2 * 4 * 64 + 8 * 64) * 3 * 2
    drafting = page_of(subject, Topology(), Engine(state_dtype="fp32", drafts=3))
    assert drafting[0].entry - wide[0].entry == 1024 * 3 * 2


def test_kda_keeps_its_state_in_fp32_unless_told_otherwise() -> None:
    mixer = LinearState(
        kind="kda", heads=4, rows=16, columns=16, conv_channels=192, conv_kernel=4, key_heads=4
    )
    assert page_of(model([mixer]), Topology(), Engine())[0].entry == 4 * 256 * 4 + 192 * 3 * 2


def test_mamba2_groups_are_copied_until_tp_divides_them() -> None:
    mixer = LinearState(
        kind="mamba2",
        heads=16,
        rows=64,
        columns=128,
        conv_channels=1024 + 2 * 128,
        conv_kernel=4,
        key_heads=1,
    )
    whole = page_of(model([mixer]), Topology(), Engine())[0].entry
    halved = page_of(model([mixer]), Topology(tp=2), Engine())[0].entry
    assert whole == 16 * 64 * 128 * 2 + 1280 * 3 * 2
    assert halved == 8 * 64 * 128 * 2 + (512 + 2 * 128) * 3 * 2


def test_a_hybrid_with_latent_attention_has_blocks_of_whole_128_tokens() -> None:
    subject = model([gdn(32, 32)] * 20 + [latent()] * 7)
    assert laid(subject, Engine(state_dtype="fp32")).block_tokens % 128 == 0
    older = laid(subject, Engine(state_dtype="fp32", version="0.19.1"))
    assert older.block_tokens % 64 == 0
    assert older.block_tokens <= laid(subject, Engine(state_dtype="fp32")).block_tokens


def test_stages_take_equal_parts_and_the_middle_ones_the_rest() -> None:
    def sizes(layers: int, pp: int) -> list[int]:
        return [stage_of(layers, pp).count(stage) for stage in range(pp)]

    assert sizes(92, 4) == [23, 23, 23, 23]
    assert sizes(61, 4) == [15, 15, 16, 15]
    assert sizes(62, 4) == [15, 16, 16, 15]
    assert sizes(7, 2) == [4, 3]


def test_pipeline_stages_divide_the_layers_of_every_group() -> None:
    one, four = (laid(QWEN38, FP8, pp=pp) for pp in (1, 4))
    assert four.block_tokens == one.block_tokens
    assert len(four.groups) == len(one.groups)
    assert four.group_layers == 6
    assert one.group_layers == 23


def test_compressed_attention_packs_five_groups_side_by_side() -> None:
    layers = [compressed(0)] * 2 + [compressed(4 if i % 2 == 0 else 128) for i in range(41)]
    kv = laid(model(layers), Engine())
    page, index, state = 37440, 8640, 1728  # 64 x 584, 64 x 132, 2 x 584, rounded up to 576
    assert len(kv.groups) == 5
    assert kv.block_tokens == 256
    assert kv.block_bytes == 21 * (page + index) + 20 * state
    assert sorted({(g.window, g.block_tokens) for g in kv.groups}) == [
        (0, 0),
        (8, 4),
        (128, 8),
        (128, 64),
    ]


def test_an_unresolved_engine_and_a_model_without_caches_are_refused() -> None:
    with pytest.raises(PlanError, match="not resolved"):
        layout(QWEN38, Topology(), Engine())
    with pytest.raises(PlanError, match="caches anything"):
        laid(replace(QWEN38, layers=(), draft_layers=()), Engine())


def test_an_engine_with_pools_of_their_own_covers_states_with_whole_blocks() -> None:
    kv = laid(QWEN38, Engine(name="sglang", kv_dtype="fp8", state_dtype="bf16"))
    assert kv.block_tokens == 1
    assert kv.block_bytes == 23 * 2048
    state = next(group for group in kv.groups if group.kind == "state")
    assert state.fixed == -(-69 * 4317184 // kv.block_bytes)


def test_before_0_20_the_configured_block_was_not_the_grain_of_a_hybrid() -> None:
    engine = Engine(version="0.19.1", kv_dtype="fp8", state_dtype="bf16", block_size=256)
    assert laid(QWEN38, engine).block_tokens == 2112


@pytest.mark.parametrize(
    ("version", "size"),
    [
        ("0.22.1", 22 * (37440 + 8640 + 1728)),
        ("0.26.0", 22 * 37440 + 21 * 8640 + 20 * 1728),
        ("0.32.0", 21 * 37440 + 21 * 8640 + 20 * 1728),
    ],
)
def test_older_versions_pack_compressed_layers_less_densely(version: str, size: int) -> None:
    layers = [compressed(0)] * 2 + [compressed(4 if i % 2 == 0 else 128) for i in range(41)]
    assert laid(model(layers), Engine(version=version)).block_bytes == size


def test_dcp_divides_the_context_of_copies_before_blocks_are_counted() -> None:
    latents = model([latent()] * 4)
    kv = laid(latents, Engine(block_size=64), tp=8, dcp=8)
    # 10,000 tokens: 1,250 on a rank, 20 blocks of 64; 157 without dcp.
    assert blocks_per_request(kv, 10_000) == 20
    assert blocks_per_request(laid(latents, Engine(block_size=64), tp=8), 10_000) == 157
    assert num_blocks(kv, gib(1)) / 20 == max_concurrency(kv, gib(1), 10_000)


def test_older_versions_print_tokens_of_all_dcp_ranks() -> None:
    latents = model([latent()] * 4)
    engine = Engine(version="0.14.1", block_size=64)
    place = Topology(tp=4, dcp=4)
    kv = laid(latents, engine, tp=4, dcp=4)
    printed = kv_tokens_reported(kv, 100 * kv.block_bytes, 4096, engine, place)
    assert printed == 100 * 64 * 4


@pytest.mark.parametrize("kind", ["mamba1", "mamba2", "short_conv"])
def test_versions_that_keep_every_state_are_refused_with_prefix_caching(kind: StateKind) -> None:
    mixer = LinearState(
        kind=kind, heads=8, rows=64, columns=128, conv_channels=512, conv_kernel=4, key_heads=8
    )
    hybrid = model([attention(8, 128), mixer])
    for version in ("0.11.2", "0.19.1", "0.26.0"):
        with pytest.raises(PlanError, match="behind every block"):
            laid(hybrid, Engine(version=version))
        laid(hybrid, Engine(version=version, prefix_caching=False))
    laid(hybrid, Engine(version="0.28.0"))
