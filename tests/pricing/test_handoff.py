"""Bytes and pieces of a handoff by hand, and pools that cannot meet."""

import pytest
from msgspec.structs import replace

from splitpoint.inputs.engine import Engine
from splitpoint.pricing.handoff import handoff, refusal
from tests.pricing.geometry import attention, gdn, laid, latent, model

DENSE = model([attention(4, 128)] * 48)
HYBRID = model(
    [attention(4, 256) if i % 4 == 3 else gdn(128, 16) for i in range(92)],
    drafts=[attention(4, 256)],
)
FP8 = Engine(kv_dtype="fp8", state_dtype="bf16", prefix_caching=False)


def test_full_attention_sends_whole_blocks_and_nothing_else() -> None:
    kv = laid(DENSE, Engine())
    cost = handoff(DENSE, kv, 1000)
    assert cost.blocks == 63
    assert cost.bytes == 63 * 16 * 98304
    assert cost.bytes_per_token == 98304
    assert cost.fixed_bytes == 0
    assert cost.descriptors == 63 * 48
    assert cost.descriptors_per_block == 48
    assert handoff(DENSE, kv, 1000, pieces=2).descriptors == 2 * 63 * 48


def test_a_hybrid_sends_its_last_states_without_their_padding() -> None:
    kv = laid(HYBRID, FP8)
    cost = handoff(HYBRID, kv, 9216)
    assert cost.fixed_bytes == 69 * 4317184
    assert cost.bytes == 69 * 4317184 + 5 * 23 * 2112 * 2048
    assert cost.descriptors == 5 * 23 + 69 * 4
    prefixes = laid(HYBRID, replace(FP8, prefix_caching=True, drafts=3))
    assert handoff(HYBRID, prefixes, 9216).blocks == handoff(HYBRID, kv, 9216).blocks


def test_a_window_sends_its_blocks_and_one_more() -> None:
    # A real pair (gemma3, blocks of 128, window 512) sent 5 of 6 blocks for 700 tokens.
    subject = model([*[attention(2, 64, window=512)] * 5, attention(2, 64)])
    kv = laid(subject, Engine(block_size=128))
    cost = handoff(subject, kv, 700)
    assert cost.blocks == 5 * 5 + 6
    assert cost.fixed_bytes == 5 * 5 * 128 * 512
    assert handoff(subject, kv, 100).blocks == 6


@pytest.mark.parametrize(("tp", "copies"), [(1, 1), (4, 1), (8, 2)])
def test_ranks_side_by_side_send_copies_of_heads_past_their_count(tp: int, copies: int) -> None:
    cost = handoff(DENSE, laid(DENSE, Engine(), tp=tp), 1600)
    assert cost.ranks == tp
    assert cost.whole_bytes == copies * 1600 * 98304
    assert cost.unique_bytes == 1600 * 98304


def test_a_latent_cache_is_sent_by_every_rank() -> None:
    subject = model([latent()] * 61)
    cost = handoff(subject, laid(subject, Engine(), tp=8), 1600)
    assert cost.whole_bytes == 8 * 1600 * 70272
    assert cost.unique_bytes == 1600 * 70272


def test_pools_with_equal_blocks_meet() -> None:
    four = laid(HYBRID, FP8, tp=4)
    assert refusal(four, laid(HYBRID, FP8, tp=2), FP8, FP8) is None
    assert refusal(four, four, FP8, FP8) is None


def test_tp4_and_tp8_of_one_hybrid_cannot_meet_with_drafts() -> None:
    drafting = replace(FP8, drafts=3)
    four, eight = (laid(HYBRID, drafting, tp=tp) for tp in (4, 8))
    assert (four.block_tokens, eight.block_tokens) == (2176, 1088)
    words = refusal(four, eight, drafting, drafting)
    assert words is not None
    assert "2176" in words and "1088" in words and "--block-size 2176" in words
    equal = replace(drafting, block_size=2176)
    meeting = (laid(HYBRID, equal, tp=4), laid(HYBRID, equal, tp=8))
    assert meeting[0].block_tokens == meeting[1].block_tokens == 2176
    assert refusal(*meeting, equal, equal) is None


def test_a_decode_block_twice_as_large_is_accepted_and_wrong() -> None:
    small, large = Engine(block_size=64), Engine(block_size=128)
    kv = laid(DENSE, small), laid(DENSE, large)
    words = refusal(*kv, small, large)
    assert words is not None and "wrong tokens" in words
    reverse = refusal(kv[1], kv[0], large, small)
    assert reverse is not None and "multiple" in reverse


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"drafts": 3}, "drafts on the decode side"),
        ({"kv_dtype": "bf16"}, "KV dtypes"),
        ({"state_dtype": "fp32"}, "state dtypes"),
        ({"version": "0.31.0"}, "versions"),
        ({"name": "sglang"}, "no connector"),
    ],
)
def test_settings_that_differ_keep_pools_apart(change: dict[str, object], word: str) -> None:
    other = replace(FP8, **change)
    same = laid(HYBRID, FP8)
    words = refusal(same, same, FP8, other)
    assert words is not None and word in words


def test_tp_degrees_that_do_not_divide_each_other_cannot_meet() -> None:
    words = refusal(laid(DENSE, Engine(), tp=4), laid(DENSE, Engine(), tp=3), Engine(), Engine())
    assert words is not None and "neither divides" in words


def test_dcp_ranks_send_a_share_each_and_meet_only_their_like() -> None:
    subject = model([latent()] * 4)
    engine = Engine(block_size=64)
    whole, shares = laid(subject, engine, tp=8), laid(subject, engine, tp=8, dcp=8)
    # 10,000 tokens: 157 blocks on every rank, or 20 on each of eight.
    assert handoff(subject, whole, 10_000).blocks == 157
    cost = handoff(subject, shares, 10_000)
    assert cost.blocks == 20
    assert cost.bytes_per_token == 4 * 1152 / 8
    assert cost.unique_bytes == cost.whole_bytes
    assert "different tokens" in (refusal(whole, shares, engine, engine) or "")
    assert refusal(shares, shares, engine, engine) is None
    # vLLM 0.32 hands over what is whole on each rank or shared by all of them, and MLA only.
    half = laid(subject, engine, tp=8, dcp=4)
    assert "dcp 4 of tp 8" in (refusal(half, half, engine, engine) or "")
    heads = laid(model([attention(1, 128)] * 4), engine, tp=8, dcp=8)
    assert "latent attention" in (refusal(heads, heads, engine, engine) or "")
