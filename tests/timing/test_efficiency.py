"""Surfaces: the formula by hand, what a GPU inherits, and what the shipped files must keep."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs import facts
from splitpoint.inputs.engine import EngineName
from splitpoint.inputs.gpu import Flops
from splitpoint.inputs.model import Dtype
from splitpoint.pricing.engines.rules import Version
from splitpoint.timing.bake import CURVED, WALKS
from splitpoint.timing.efficiency import (
    Bend,
    Surface,
    efficiency,
    head,
    in_whole_tiles,
    inherited,
    launch_seconds,
    log_factor,
    peak,
    seconds,
    surface,
)
from splitpoint.timing.operators import (
    BF16,
    STORED_BYTES,
    Array,
    Batch,
    Kind,
    Operator,
    Stored,
    attend,
    grouped,
    matmul,
    selection,
    touched,
    vector,
)
from tests.timing.worlds import GPU

PLAIN = Surface(
    kind="gemm", compute=0.5, memory=0.8, launch=1e-6, sharpness=1.0, origin="assumed: a test"
)


def test_the_formula_by_hand() -> None:
    product = matmul("x", np.array([100.0]), 1000, 2000, BF16)
    flops, moved = 2 * 100 * 1000 * 2000, 2 * (1000 * 2000 + 100 * 3000)
    by_hand = 1e-6 + flops / (1e14 * 0.5) + moved / (1e12 * 0.8)
    assert launch_seconds(PLAIN, product, 1e14, 1e12)[0] == pytest.approx(by_hand)
    padded = replace(PLAIN, pad_rows=25.0, half_parallel=500.0, serial=1e-9)
    by_hand = 1e-6 + 1.25 * flops / 5e13 + 1.25 * moved / 8e11 + 1e-9 * 1000
    assert launch_seconds(padded, product, 1e14, 1e12)[0] == pytest.approx(by_hand)


def test_a_launch_is_paid_again_for_every_wave_of_blocks() -> None:
    product = matmul("x", np.array([100.0]), 1000, 2000, BF16)
    once = launch_seconds(PLAIN, product, 1e14, 1e12)[0]
    # 2,000 pieces are four waves of 500.
    waves = launch_seconds(replace(PLAIN, wave=500.0), product, 1e14, 1e12)[0]
    assert waves - once == pytest.approx(4 * PLAIN.launch)


def test_a_launch_is_paid_again_for_every_round_of_tiles_that_the_gpu_holds() -> None:
    held = replace(PLAIN, slots=132.0, tile=64.0)
    queries = replace(
        matmul("x", np.array([1.0, 132.0, 133.0, 264.0]), 1, 1, BF16),
        flops=np.zeros(4),
        bytes=np.full(4, 1e-9),
        parallel=np.array([1.0, 132.0, 133.0, 264.0]),
    )
    for heads, rounds in ((8.0, [1, 1, 2, 2]), (64.0, [1, 1, 2, 2]), (128.0, [1, 2, 3, 4])):
        taken = launch_seconds(held, replace(queries, held=heads), 1e14, 1e12)
        assert taken / PLAIN.launch == pytest.approx(rounds)


def test_of_many_pieces_only_those_held_at_once_lie_in_the_cache() -> None:
    # 264 of 1,056 queries at once: a quarter of 400 MB, which is the whole of the cache.
    kept = replace(PLAIN, spilled=1.0, cache=1e8, slots=264.0)
    scores = replace(
        matmul("x", np.array([264.0, 1056.0]), 1, 1, BF16),
        flops=np.zeros(2),
        bytes=np.array([1e8, 4e8]),
        parallel=np.array([264.0, 1056.0]),
    )
    by_hand = np.array([1, 4]) * 1e-6 + scores.bytes / 1e12 * (1 / 0.8 + 0.5)
    assert launch_seconds(kept, scores, 1e14, 1e12) == pytest.approx(by_hand)


def test_operands_move_again_once_they_outgrow_the_cache() -> None:
    # From the L2 at four times the bandwidth; beyond 100 MB all once more and 0.8 of the buffers.
    kept = replace(PLAIN, memory=4.0, spilled=1.0, buffers=0.8, cache=1e8)
    product = replace(
        matmul("x", np.full(4, 1e-9), 1, 1, BF16),
        flops=np.zeros(4),
        bytes=np.array([6e7, 1e8, 1.5e8, 4e8]),
        buffers=np.array([3e7, 5e7, 7.5e7, 2e8]),
    )
    near = product.bytes / 1e12
    share = np.array([0.0, 0.5, 1.0, 1.0])
    by_hand = 1e-6 + near / 4 + share * near * 1.4
    assert (by_hand < near).tolist() == [True, True, False, False]
    # No kernel beats its roofline, be its operands in a cache.
    held = np.maximum(by_hand, near)
    assert launch_seconds(kept, product, 1e14, 1e12) == pytest.approx(held)
    assert kept.bandwidth == pytest.approx(1 / 1.25)


@given(sharpness=st.floats(1.0, 8.0), rows=st.floats(1.0, 1e5))
def test_a_launch_is_never_faster_than_its_roofline(sharpness: float, rows: float) -> None:
    product = matmul("x", np.array([rows]), 4096, 4096, BF16)
    found = launch_seconds(replace(PLAIN, sharpness=sharpness), product, 1e14, 1e12)[0]
    assert found >= max(product.flops[0] / 1e14, product.bytes[0] / 1e12)


def test_a_bend_is_interpolated_between_its_knots_and_stays_beyond_them() -> None:
    bend = Bend(
        of="work",
        axes=("rows", "parallel"),
        knots=((0.0, 4.0), (10.0, 12.0)),
        logs=(0.0, 0.4, 0.8, 2.0),
    )
    product = matmul("x", np.array([1.0, 4.0, 16.0, 1e6]), 4096, 2048, BF16)
    # 2,048 columns lie halfway between 2^10 and 2^12, 4 rows halfway between 1 and 2^4.
    assert log_factor(bend, product) == pytest.approx([0.2, 0.8, 1.4, 1.4])
    bent = launch_seconds(replace(PLAIN, bends=(bend,)), product, 1e14, 1e12)
    plain = launch_seconds(PLAIN, product, 1e14, 1e12)
    factor = np.exp([0.2, 0.8, 1.4, 1.4])
    assert bent - PLAIN.launch == pytest.approx((plain - PLAIN.launch) * factor)
    first = replace(PLAIN, bends=(replace(bend, of="launch"),))
    later = launch_seconds(first, product, 1e14, 1e12)
    assert later - plain == pytest.approx(PLAIN.launch * (factor - 1))


def test_a_last_tile_counts_as_full_where_tiles_are_whole() -> None:
    whole = replace(PLAIN, whole_128=1.0, memory=1.0)
    product = matmul("x", np.array([128.0, 129.0, 256.0]), 4096, 4096, BF16)
    taken = launch_seconds(whole, product, 1e12, 1e15)  # hardly any time for bytes
    assert taken[1] == pytest.approx(taken[2], rel=1e-3)
    assert taken[1] == pytest.approx(2 * taken[0], rel=1e-3)


def _tiled(rows: Array, listed: Array, spread: Array) -> Operator:
    """Experts of which each has so many rows, and so many listed."""
    once = np.ones_like(rows)
    one = grouped(once, rows, listed, once, 1.0, 4096, 512, 2, BF16)
    return replace(one, spread=spread)


def test_experts_compute_whole_tiles_that_grow_with_the_rows_listed() -> None:
    # Of 8, 16, 32, 48 and 64 rows the first that is less than nine tenths full.
    rows = np.array([7.0, 8.0, 28.0, 32.0, 64.0, 85.0, 129.0])
    tiled = in_whole_tiles(_tiled(rows, rows, np.zeros(7)))
    assert tiled.tolist() == [8, 16, 32, 48, 64, 128, 192]
    # A rank of eight is listed the rows of all.
    assert in_whole_tiles(_tiled(rows, 8 * rows, np.zeros(7))).tolist() == [64] * 5 + [128, 192]
    whole = replace(PLAIN, whole_listed=1.0, memory=1.0)
    taken = launch_seconds(whole, _tiled(rows, rows, np.zeros(7)), 1e12, 1e15)
    work = taken - PLAIN.launch
    assert work / work[0] == pytest.approx(tiled / tiled[0], rel=1e-3)


def test_rows_that_differ_between_experts_fill_more_tiles_than_their_mean() -> None:
    rows = np.array([5.0, 20.0, 43.0, 64.0, 85.0, 128.0, 500.0, 5000.0])
    exact = in_whole_tiles(_tiled(rows, rows, np.zeros(8)))
    drawn = np.random.default_rng(0).poisson(rows, (20_000, 8))
    # Every expert in reach has a row.
    tile = np.array([8.0, 32.0, 48.0, 64.0, 64.0, 64.0, 64.0, 64.0])
    mean = (np.ceil(np.maximum(drawn, 1) / tile) * tile).mean(0)
    found = in_whole_tiles(_tiled(rows, rows, np.sqrt(rows)))
    assert found == pytest.approx(mean, rel=0.03)
    assert found[5] > 1.2 * exact[5]  # two tiles are full at 128 rows, half of the experts overflow


@given(
    log=st.floats(-3.0, 3.0),
    of=st.sampled_from(["launch", "work", "both"]),
    sharpness=st.floats(1.0, 6.0),
)
def test_no_bend_is_faster_than_the_roofline(
    log: float, of: Literal["launch", "work", "both"], sharpness: float
) -> None:
    bend = Bend(of=of, axes=("rows",), knots=((0.0, 8.0),), logs=(log, -log))
    product = matmul("x", np.exp2(np.arange(16.0)), 4096, 4096, BF16)
    found = replace(PLAIN, bends=(bend,), sharpness=sharpness)
    taken = launch_seconds(found, product, 1e14, 1e12)
    assert (taken >= np.maximum(product.flops / 1e14, product.bytes / 1e12)).all()


def test_nothing_to_do_takes_no_time() -> None:
    nothing = matmul("x", np.array([0.0, 1.0]), 4096, 4096, BF16)
    taken = seconds(nothing, GPU, "vllm")
    assert taken[0] == 0.0 < taken[1]


def test_weights_without_units_of_their_own_are_widened() -> None:
    assert peak(GPU, "nvfp4") == peak(GPU, "int4") == peak(GPU, "mxfp4") == GPU.flops.bf16
    assert peak(GPU, "fp8") == GPU.flops.fp8
    newer = replace(GPU, flops=Flops(bf16=1e14, fp8=2e14, fp4=4e14))
    assert peak(newer, "nvfp4") == 4e14
    assert peak(newer, "mxfp4") == 2e14
    assert peak(replace(GPU, flops=Flops(bf16=1e14)), "fp8") == 1e14


def test_a_gpu_without_tables_takes_its_architectures_shares_of_its_own_roofline() -> None:
    h20, h200 = facts.gpu("H20"), facts.gpu("H200")
    assert inherited(h20) and not inherited(h200)
    assert surface(h20, "gemm", "bf16", "vllm") == surface(h200, "gemm", "bf16", "vllm")
    product = matmul("x", np.array([16384.0]), 8192, 8192, BF16)
    ratio = seconds(product, h20, "vllm")[0] / seconds(product, h200, "vllm")[0]
    assert ratio == pytest.approx(h200.flops.bf16 / h20.flops.bf16, rel=0.05)


def test_a_missing_architecture_is_named() -> None:
    # No plan can name one; a table with a new architecture would.
    odd = replace(GPU, architecture="volta")
    with pytest.raises(PlanError, match="no step times are known for volta"):
        efficiency(odd)


@pytest.mark.parametrize("name", facts.gpu_names())
def test_every_gpu_of_the_catalogue_has_every_kind_of_surface_with_an_origin(name: str) -> None:
    found = efficiency(facts.gpu(name))
    kinds = {s.kind for s in found.surfaces}
    assert kinds >= {
        "gemm",
        "experts",
        "prefill_attention",
        "decode_attention",
        "prefill_latent",
        "decode_latent",
        "prefill_sparse",
        "decode_sparse",
        "prefill_indexer",
        "decode_indexer",
        "selection",
        "prefill_state",
        "decode_state",
        "vector",
    }
    for entry in found.surfaces:
        assert 0 < entry.compute <= 1 and entry.launch > 0
        # What fits in a cache is read from there, faster than from memory.
        assert 0 < entry.memory <= (8 if entry.cache else 1)
        assert entry.sharpness >= 1
        assert entry.origin.split(":")[0] in ("fitted", "measured", "assumed")
        assert (entry.samples > 0) == (entry.error_median is not None)
        # A prefill's pairs must add to its queries' bytes, or the step would not be linear.
        assert entry.sharpness == 1 or entry.kind not in (
            "prefill_attention",
            "prefill_latent",
            "prefill_sparse",
        )


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("name", ["H100 SXM", "H200", "L40S", "RTX PRO 6000 Server", "B200"])
def test_a_long_prompt_of_mla_runs_on_made_heads(name: str, engine: EngineName) -> None:
    # 32K tokens, 16 heads of 192 and 128. The absorbed kernel, 3.4 times as much work, would be
    # at 6 to 20% of the peak by this count.
    pairs, one = 32_768**2 / 2.0, np.ones(1)
    flops = 2.0 * pairs * 16 * (192 + 128)
    prompt = Operator(
        name="prefill_latent",
        kind="prefill_latent",
        dtype="bf16",
        flops=flops * one,
        bytes=32_768 * 16 * 320 * 2.0 * one,
        rows=one,
        parallel=32_768 * 16 * one,
        depth=pairs * 16 * one,
        width=16.0,
    )
    gpu = facts.gpu(name)
    share = flops / gpu.flops.bf16 / float(seconds(prompt, gpu, engine)[0])
    assert 0.35 < share < 0.9


TOKENS = np.unique(np.rint(2.0 ** np.arange(0, 16.1, 0.125)))


def _step(decode: Array, prefill: Array, each: float) -> Batch:
    return Batch(
        decode=decode, context=decode * each, prefill=prefill, pairs=prefill * each, rows=decode
    )


def _growing(entry: Surface) -> Iterator[Operator]:
    """Operators of one kind whose tokens grow along their arrays, in shapes small and large."""
    none = np.zeros_like(TOKENS)
    kind, dtype = entry.kind, entry.dtype or "bf16"
    if kind == "gemm":
        for depth, width in ((512, 512), (4096, 1024), (7168, 16384), (1000, 300_000)):
            yield matmul("x", TOKENS, depth, width, Stored(dtype=dtype, bytes=1.0))
    elif kind == "experts":
        for count, active, width in ((8, 2, 14336), (128, 8, 768), (512, 10, 64)):
            pairs, by = TOKENS * active, Stored(dtype=dtype, bytes=1.0)
            reached = touched(count, active, TOKENS)
            dealt = grouped(TOKENS, pairs, pairs, reached, float(count), 4096, width, 2, by)
            yield dealt
            yield replace(dealt, spread=np.sqrt(dealt.rows))
            # One of eight ranks, which are listed the rows of all.
            part = (pairs / 8, pairs, reached / 8, count / 8)
            yield grouped(TOKENS, *part, 4096, width, 2, by)
    elif kind == "selection":
        for scores in (3e3, 3e4, 1e6):
            yield selection("x", TOKENS * scores, TOKENS, 2048)
    elif kind == "vector":
        for width in (64, 4096, 150_000):
            yield vector("x", TOKENS, width, 3)
    elif kind == "decode_indexer":
        for each in (1e2, 3e4):
            pairs = TOKENS * each
            yield _bare(kind, dtype, pairs * 16384, pairs * 132, TOKENS, depth=np.ones(1))
    elif kind == "prefill_indexer":
        for each in (1e2, 3e4):
            pairs = TOKENS * each
            yield _bare(kind, dtype, pairs * 8192, pairs * 5, TOKENS, depth=TOKENS)
    elif kind == "prefill_state":
        for heads in (1, 16, 96):
            once = TOKENS * heads
            yield replace(
                _bare(kind, dtype, once * 2e5, once * 2e3, TOKENS, depth=TOKENS),
                parallel=float(heads),
                width=float(heads),
            )
    elif kind.endswith(("attention", "sparse")):
        prefill = kind.startswith("prefill")
        for heads, kv_heads, dim, each in ((1, 1, 64, 1e2), (8, 1, 128, 3e3), (64, 8, 256, 9e4)):
            step = _step(none, TOKENS, each) if prefill else _step(TOKENS, none, each)
            yield attend(
                "attention",
                heads=heads,
                kv_heads=kv_heads,
                score_dim=dim,
                value_dim=dim,
                cached=2 * kv_heads * dim,
                dtype=dtype,
                batch=step,
                drafts=0,
            )[0 if prefill else 1]


def _bare(
    kind: Kind, dtype: Dtype, flops: Array, moved: Array, rows: Array, depth: Array
) -> Operator:
    return Operator(
        name="x",
        kind=kind,
        dtype=dtype,
        flops=flops,
        bytes=moved,
        rows=rows,
        parallel=rows,
        depth=depth,
    )


@pytest.mark.parametrize("name", facts.gpu_names())
def test_more_tokens_are_never_faster_and_no_kernel_beats_the_roofline(name: str) -> None:
    gpu = facts.gpu(name)
    tried = 0
    for entry in efficiency(gpu).surfaces:
        for operator in _growing(entry):
            top = peak(gpu, operator.dtype)
            taken = launch_seconds(entry, operator, top, gpu.bandwidth)
            bound = np.maximum(operator.flops / top, operator.bytes / gpu.bandwidth)
            assert (taken >= bound).all(), (entry.kind, entry.engine, entry.dtype)
            steps = np.diff(taken)
            # Bends have three decimals.
            assert (steps >= -1e-9 * taken[1:]).all(), (entry.kind, entry.engine, entry.dtype)
            tried += 1
    assert tried > 20


def test_experts_that_no_token_reaches_cost_time_where_a_kernel_walks_them() -> None:
    # The kernel table's rows of one token of DeepSeek-R1 on TensorRT-LLM and H200: 115 us where
    # the rank holds 256 experts cut by 8, 40 us where it holds 32 whole ones.
    gpu, one = facts.gpu("H200"), np.ones(1)
    walked = surface(gpu, "experts", "fp8", "trtllm")
    fp8 = Stored(dtype="fp8", bytes=1.0)
    cut_by_eight = grouped(one, 8 * one, 8 * one, 8 * one, 256.0, 7168, 256, 2, fp8)
    cut, whole = (
        launch_seconds(walked, op, peak(gpu, "fp8"), gpu.bandwidth)[0]
        for op in (cut_by_eight, grouped(one, one, 8 * one, one, 32.0, 7168, 2048, 2, fp8))
    )
    assert [cut, whole] == pytest.approx([115e-6, 40e-6], rel=0.15)
    bare = replace(cut_by_eight, held=0.0)
    least = launch_seconds(walked, bare, peak(gpu, "fp8"), gpu.bandwidth)[0]
    assert cut - least == pytest.approx(256 * walked.held)


@pytest.mark.parametrize("name", facts.gpu_names())
def test_what_walks_a_context_is_a_line_in_it(name: str) -> None:
    gpu = facts.gpu(name)
    for entry in efficiency(gpu).surfaces:
        if entry.kind not in WALKS - CURVED:
            continue
        assert all(set(b.axes) <= {"rows", "parallel", "width"} for b in entry.bends)
        flops = np.array([1e9, 1e11, 2e11])
        walk = Operator(
            name="x",
            kind=entry.kind,
            dtype=entry.dtype or "bf16",
            flops=flops,
            bytes=flops / 100,
            rows=np.full(3, 4.0),
            parallel=np.full(3, 64.0),
            depth=flops / 100,
            width=128.0,
        )
        if entry.kind.startswith("prefill"):
            walk = replace(walk, bytes=np.full(3, 1e7))
        taken = launch_seconds(entry, walk, peak(gpu, walk.dtype), gpu.bandwidth)
        slope = (taken[1] - taken[0]) / 0.99
        assert taken[2] - taken[1] == pytest.approx(slope, rel=1e-9)


def test_one_query_s_choice_is_walked_by_one_block_and_many_fill_the_gpu() -> None:
    # As measured on H200 (SGLang's fused kernel, best scores last): a query of 131,072 scores takes
    # 31.3 us, alone or among 16; 16,384 queries of 73,727 on average 2.42 ms.
    gpu = facts.gpu("H200")

    def taken(queries: float, scores: float) -> float:
        one = selection("x", np.array([queries * scores]), np.array([queries]), 2048)
        return float(seconds(one, gpu, "sglang")[0])

    assert taken(1, 131_072) == pytest.approx(31.3e-6, rel=0.1)
    assert taken(16, 16_384) == pytest.approx(6.4e-6, rel=0.2)
    assert taken(16_384, 73_727) == pytest.approx(2.42e-3, rel=0.1)


def test_more_bandwidth_is_never_slower() -> None:
    copied = vector("x", np.array([1e3]), 1e3, 2)
    faster = replace(GPU, bandwidth=2 * GPU.bandwidth)
    assert seconds(copied, faster, "vllm")[0] < seconds(copied, GPU, "vllm")[0]


def test_each_kind_and_dtype_of_a_gpu_without_engines_of_its_own_has_one_surface() -> None:
    for name in ("MI300X", "MI355X"):
        every = [entry for entry in efficiency(facts.gpu(name)).surfaces if not entry.before]
        found = [(entry.kind, entry.dtype) for entry in every]
        assert len(found) == len(set(found))
        # What SGLang's kernel for an fp8 cache reaches on Hopper is no share of AMD's bandwidth.
        assert surface(facts.gpu(name), "decode_latent", "fp8", "sglang").memory > 0.5


def test_a_kernel_of_some_versions_speaks_for_these_and_for_no_shared_expert() -> None:
    gpu = facts.gpu("MI325X")
    product = matmul(
        "latent.down", np.array([64.0]), 7168.0, 2112.0, Stored(dtype="fp8", bytes=1.0)
    )
    shared = replace(product, name="shared.up")

    def taken(operator: Operator, engine: EngineName, *version: int) -> float:
        return float(seconds(operator, gpu, engine, Version(*version))[0])

    newest = float(seconds(product, gpu, "sglang")[0])
    assert taken(product, "sglang", 0, 5, 9) == taken(product, "sglang", 0, 5, 6) > 5 * newest
    assert taken(product, "sglang", 0, 5, 5) == taken(product, "sglang", 0, 5, 10) == newest
    assert taken(product, "vllm", 0, 5, 9) == taken(shared, "sglang", 0, 5, 9) == newest


@pytest.mark.parametrize("name", ["B200", "GB10", "H100 SXM", "H200", "L40S", "MI355X"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8", "nvfp4"])
def test_a_narrow_product_never_takes_longer_than_a_wide_one(name: str, dtype: Dtype) -> None:
    rows = np.array([1.0, 100.0, 16384.0])
    matrix = Stored(dtype=dtype, bytes=STORED_BYTES[dtype])
    for engine in ("vllm", "sglang", "trtllm"):
        narrow, wide = (
            seconds(matmul("x", rows, 7168, width, matrix), facts.gpu(name), engine)
            for width in (64, 1024)
        )
        assert (narrow <= wide * (1 + 1e-9)).all()


@pytest.mark.parametrize("name", facts.gpu_names())
def test_a_surface_read_by_itself_is_the_one_of_the_whole_file(name: str) -> None:
    gpu = facts.gpu(name)
    whole = efficiency(gpu)
    assert head(gpu).gpus == whole.gpus and head(gpu).source == whole.source
    for entry in whole.surfaces:
        if entry.dtype and (entry.before or entry.engine):
            engine: EngineName = entry.engine or "vllm"
            version = Version(*entry.since) if entry.before else Version(999, 0, 0)
            assert surface(gpu, entry.kind, entry.dtype, engine, version) == entry
