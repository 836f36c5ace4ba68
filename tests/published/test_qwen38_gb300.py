"""The eight GB300 decode runs of the vLLM blog "PD Serving of Qwen3.8-2.4T", 2026-09-21.

Rungs, graph counts and pools as printed there (vLLM 0.26.1rc1.dev1177, 276.62 GiB reported,
utilisation 0.92, fp8 cache, bf16 state, prefix caching off). The post's requests per engine divide
a rank's pool by the bytes that a request takes on one GPU without tensor parallelism; the
allocator's own count stands beside it here.
"""

from typing import NamedTuple

import pytest

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.facts import gpu
from splitpoint.inputs.huggingface import load_model
from splitpoint.pricing.blocks import layout
from splitpoint.pricing.concurrency import requests_held
from splitpoint.pricing.engines import decode_sizes, resolved
from splitpoint.pricing.ladder import ladder
from splitpoint.pricing.price import price
from tests.pricing.geometry import gib

MODEL = load_model("Qwen/Qwen3.8-2.4T-A95B")
GB300 = gpu("GB300")
TP8 = Topology(tp=8, ep=8)
TP4DP4 = Topology(tp=4, dp=4, ep=16)


class Run(NamedTuple):
    """One run: settings, rungs and pool in GiB, and the requests per engine as published."""

    number: int
    topology: Topology
    drafts: int
    max_seqs: int
    batched_tokens: int
    max_graph: int
    weights: float
    activations: float
    non_torch: float
    graphs: int
    reserved: float
    pool: float
    published: float


RUNS = (
    Run(1, TP8, 3, 20, 96, 80, 169.28, 0.57, 0.72, 11, 0.91, 83.00, 112.0),
    Run(2, TP8, 3, 32, 144, 128, 169.28, 0.58, 0.72, 17, 1.28, 82.63, 111.5),
    Run(3, TP8, 3, 80, 336, 320, 169.28, 0.56, 1.19, 37, 1.87, 81.60, 110.1),
    Run(4, TP8, 3, 272, 1104, 1088, 169.28, 1.91, 2.40, 85, 7.93, 72.97, 98.4),
    Run(5, TP4DP4, 3, 80, 336, 320, 108.71, 1.72, 1.98, 37, 8.35, 133.74, 180.4),
    Run(6, TP4DP4, 3, 272, 1104, 1088, 108.71, 2.24, 2.22, 85, 7.56, 133.77, 180.5),
    Run(7, TP4DP4, 0, 528, 544, 528, 107.51, 1.83, 2.90, 52, 8.29, 133.96, 180.7),
    Run(8, TP4DP4, 0, 656, 672, 656, 107.51, 2.15, 3.03, 60, 8.95, 132.85, 179.2),
)
by_number = pytest.mark.parametrize("run", RUNS, ids=lambda run: f"run {run.number}")


def engine_of(run: Run) -> Engine:
    asked = Engine(
        version="0.26.1rc1.dev1177",
        utilization=0.92,
        kv_dtype="fp8",
        state_dtype="bf16",
        prefix_caching=False,
        drafts=run.drafts,
        max_seqs=run.max_seqs,
        batched_tokens=run.batched_tokens,
        max_graph=run.max_graph,
        graph_mode="full_decode_only",
        max_len=10240,
    )
    return resolved(asked, GB300, run.topology, MODEL)


@by_number
def test_the_pool_follows_from_the_rungs_within_two_hundredths(run: Run) -> None:
    rungs = ladder(
        MODEL,
        GB300,
        run.topology,
        engine_of(run),
        overrides={
            "weights": gib(run.weights),
            "activations": gib(run.activations),
            "non_torch": gib(run.non_torch),
            "graphs": gib(run.reserved),
        },
    )
    assert rungs.kv_bytes == pytest.approx(gib(run.pool), abs=gib(0.02))


@by_number
def test_the_count_of_graphs_follows_from_the_settings(run: Run) -> None:
    assert len(decode_sizes(engine_of(run))) == run.graphs


@by_number
def test_published_requests_per_engine_divide_by_unsharded_bytes(run: Run) -> None:
    undivided = 759 * 2**20  # without drafts, on one GPU, for every run of the post
    assert gib(run.pool) / undivided == pytest.approx(run.published, abs=0.15)
    kv = layout(MODEL, run.topology, engine_of(run))
    ours = requests_held(kv, gib(run.pool), 9216)
    assert ours > 1.7 * run.published


def held(number: int, tokens: int) -> int:
    run = RUNS[number - 1]
    return requests_held(layout(MODEL, run.topology, engine_of(run)), gib(run.pool), tokens)


def test_the_allocators_own_count_of_requests_per_rank() -> None:
    # At 8192/1024: 8 blocks of 2,112 without drafts on TP4; 17 of 2,176 with three; 21 of 1,088
    # on TP8, where the four key-value heads are copied.
    assert {number: held(number, 9216) for number in (1, 4, 6, 7)} == {
        1: 317,
        4: 279,
        6: 315,
        7: 722,
    }


def test_the_decode_sweep_at_one_thousand_tokens_holds_450_and_413_requests() -> None:
    # Why the published TP8 curve with drafts turns over below 512 and TP4DP4 (x 4 ranks) does not.
    assert held(4, 1001) == 450
    assert held(6, 1001) == 413


def test_the_price_says_why_the_published_count_is_low() -> None:
    run = RUNS[0]
    priced = price(MODEL, GB300, run.topology, engine_of(run), context=9216, kv_bytes=gib(run.pool))
    assert priced.request.bytes < priced.unsharded_request_bytes
    assert any("unsharded" in words for words in priced.warnings)


def test_a_context_counted_twice_is_warned_of() -> None:
    run = RUNS[0]
    twice = {"non_torch": gib(run.non_torch + 2.54)}
    priced = price(MODEL, GB300, run.topology, engine_of(run), context=9216, overrides=twice)
    assert any("CUDA context" in words for words in priced.warnings)
