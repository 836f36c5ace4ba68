"""Requests that a pool holds: what is printed, what is admitted, and what settings cost."""

import math

import pytest
from msgspec.structs import replace

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.model import Experts, Layer
from splitpoint.pricing.blocks import blocks_per_request, group_blocks
from splitpoint.pricing.concurrency import (
    bytes_for,
    costs,
    kv_tokens_reported,
    max_concurrency,
    num_blocks,
    requests_held,
)
from tests.pricing.geometry import attention, compressed, gdn, gib, gpu, laid, latent, model

DENSE = model([attention(2, 64)] * 4, drafts=[attention(2, 64)])
KV = laid(DENSE, Engine(block_size=128))
HYBRID = model([*[gdn(4, 2)] * 6, *[attention(2, 64)] * 2])


def test_block_zero_is_printed_but_never_admitted() -> None:
    # A real server: 24 blocks printed as 1.50x of 2,048 tokens; one request is all it admits.
    pool = 24 * KV.block_bytes
    assert num_blocks(KV, pool) == 24
    assert max_concurrency(KV, pool, 2048) == 1.5
    assert requests_held(KV, pool, 2048) == 1
    assert requests_held(KV, 32 * KV.block_bytes, 2048) == 1
    assert requests_held(KV, 33 * KV.block_bytes, 2048) == 2


def test_twenty_three_usable_blocks_admit_seven_of_300_tokens() -> None:
    assert requests_held(KV, 24 * KV.block_bytes, 300) == 7


def test_the_bytes_for_some_requests_hold_just_those() -> None:
    for requests in (1, 2, 17):
        need = bytes_for(KV, 1000, requests)
        assert requests_held(KV, need, 1000) == requests
        assert requests_held(KV, need - 1, 1000) == requests - 1


def test_an_empty_pool_and_an_empty_request_hold_nothing() -> None:
    assert requests_held(KV, 0, 100) == 0
    assert requests_held(KV, -5, 100) == 0
    assert max_concurrency(KV, gib(1), 0) == 0.0


@pytest.mark.parametrize(
    ("version", "tokens"), [("0.19.1", 40 // 4 * 272), ("0.20.0", 8192 * 40 // 28)]
)
def test_the_token_line_changed_with_version_0_20(version: str, tokens: int) -> None:
    engine = Engine(version=version, block_size=128, max_len=8192)
    kv = laid(HYBRID, engine)
    assert kv_tokens_reported(kv, 40 * kv.block_bytes, 8192, engine, Topology()) == tokens


def test_each_setting_is_priced_alone_in_requests() -> None:
    device = gpu(79.25, 80)
    table = costs(
        DENSE, device, Topology(), Engine(max_seqs=64), 10_000, overrides={"weights": gib(15)}
    )
    by_setting = {cost.setting: cost for cost in table}
    assert set(by_setting) == {
        "utilization",
        "block_size",
        "drafts",
        "graphs",
        "kv_dtype",
        "prefix_caching",
    }
    assert by_setting["utilization"].requests < 0
    assert by_setting["drafts"].requests < 0
    assert by_setting["graphs"].requests > 0
    assert by_setting["prefix_caching"].requests == 0
    halved = by_setting["kv_dtype"]
    assert (halved.before, halved.after) == ("bf16", "fp8")
    assert halved.requests_after == pytest.approx(2 * halved.requests_before, rel=0.001)


def test_prefix_caching_costs_a_hybrid_requests() -> None:
    device = gpu(79.25, 80)
    table = costs(
        HYBRID, device, Topology(), Engine(max_seqs=64), 4096, overrides={"weights": gib(15)}
    )
    off = next(cost for cost in table if cost.setting == "prefix_caching")
    assert (off.before, off.after) == ("on", "off")
    assert off.requests > 0


def test_versions_before_0_28_weigh_the_blocks_of_compressed_layers_by_their_bytes() -> None:
    layers = [compressed(4 if i % 2 == 0 else 128) for i in range(8)]
    kv = laid(model(layers), Engine(version="0.26.0", batched_tokens=512, max_seqs=8))
    assert kv.groups[0].kind == "full"
    weights = [group.counted_bytes / kv.groups[0].counted_bytes for group in kv.groups]
    weighed = sum(
        group_blocks(kv, group, 4096) * weight
        for group, weight in zip(kv.groups, weights, strict=True)
    )
    assert max_concurrency(kv, gib(10), 4096) == num_blocks(kv, gib(10)) / math.ceil(weighed)
    newer = laid(model(layers), Engine(version="0.32.0", batched_tokens=512, max_seqs=8))
    need = blocks_per_request(newer, 4096)
    assert max_concurrency(newer, gib(10), 4096) == num_blocks(newer, gib(10)) / need


def test_tensor_parallelism_is_set_against_replicas_on_the_same_gpus() -> None:
    device = gpu(79.25, 80)
    table = costs(
        model([attention(2, 128)] * 32), device, Topology(tp=4), Engine(), 10_000, overrides={}
    )
    layouts = {cost.after: cost for cost in table if cost.setting == "layout"}
    assert set(layouts) == {"2xTP2", "4xTP1"}
    # Two heads on four ranks are copied once: two instances of two ranks hold twice as many, but
    # for the weights, which they hold twice.
    assert 1.8 < layouts["2xTP2"].requests_after / layouts["2xTP2"].requests_before < 2.0


def test_tensor_parallelism_is_set_against_data_parallelism_where_experts_are_shared() -> None:
    experts = Layer(mixer=latent(), ffn=Experts(count=64, active=4, width=512))
    subject = replace(model([latent()] * 8), layers=(experts,) * 8)
    table = costs(subject, gpu(79.25, 80), Topology(tp=8), Engine(), 10_000, overrides={})
    layouts = {cost.after: cost for cost in table if cost.setting == "layout"}
    assert set(layouts) == {"TP4DP2", "TP1DP8"}
    eight = layouts["TP1DP8"]
    assert 7 < eight.requests_after / eight.requests_before < 9
