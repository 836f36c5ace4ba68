"""The simulator against real servers, and against the oracle on thousands of worlds."""

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.oracle import compare, worlds
from tests.sim.small import Row, curve, mixed, split, trace

from splitpoint.inputs import traces
from splitpoint.run import OUTCOMES, Run
from splitpoint.sim import simulate

SHARED = Path(__file__).parents[1] / "../shared"
RUNS = SHARED / "truth/runs"
DONE = OUTCOMES.index("done")


def measured(name: str) -> dict[str, Any]:
    """A preemption run of a real server."""
    path = RUNS / f"{name}.json"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def changes(values: list[int]) -> list[int]:
    """The values without repetitions."""
    return [v for i, v in enumerate(values) if i == 0 or v != values[i - 1]]


def replayed(real: dict[str, Any]) -> Run:
    """The run in the simulator: 23 usable blocks of 128 tokens, vLLM's CPU token budget of 2,048,
    the measured 8 ms of a decode step (tpot of the first requests), arrivals at once."""
    rows = (Row(isl=real["prompt"], osl=real["output"]) for _ in range(real["n"]))
    world = mixed(
        kv_blocks=24, block_tokens=128, token_budget=2048, max_seqs=128, curve=curve(decode_ms=8)
    )
    return simulate(world, trace(*rows))


@pytest.mark.parametrize("name", ["preempt-8x256x256", "preempt-12x300x200"])
def test_preemptions_and_occupancy_of_a_real_server(name: str) -> None:
    real = measured(name)
    run = replayed(real)
    count = real["end"]["num_preemptions_total"] - real["base"]["num_preemptions_total"]
    assert run.instances.preemptions[0] == count
    assert (run.requests.outcome == DONE).all()
    # The server was asked every 40 ms and saw these numbers of running requests last 0.2 s or
    # more, in this order; the simulator passes through all of them in the same order.
    timeline = real["timeline"]
    seen = [int(row["num_requests_running"]) for row in timeline]
    steady = [v for i, v in enumerate(seen) if seen[i : i + 5] == [v] * 5]
    s = run.series
    ours = iter(int(v) for v in s.running)
    assert all(v in ours for v in changes(steady) if v)
    # 7 of 8 (or 12) run at a time once all have three blocks: 21 of 23 blocks, then 20.
    used = {round(row["kv_cache_usage_perc"] * 23) for row in timeline}
    assert {20, 21} <= used and {20, 21} <= set(s.kv_used.tolist())
    assert max(s.kv_used) <= 23


def test_the_same_requests_are_preempted_as_on_the_real_server() -> None:
    real = measured("preempt-8x256x256")
    run = replayed(real)
    # A gap of more than half a second between two tokens is a preemption: the last three, the
    # last one longest.
    gaps = [request["max_gap"] for request in real["requests"]]
    assert [gap > 0.5 for gap in gaps] == [False] * 5 + [True] * 3
    assert list(run.requests.preemptions > 0) == [False] * 5 + [True] * 3
    waits = run.requests.end_s - run.requests.first_token_s
    assert waits[7] >= waits[6] >= waits[5] > 1.5 * waits[:5].max()


def test_seven_of_twelve_are_admitted_and_two_of_them_and_of_the_rest_give_way() -> None:
    real = measured("preempt-12x300x200")
    run = replayed(real)
    at_first = [request["ttft"] < 1 for request in real["requests"]]
    gave_way = [request["max_gap"] > 0.2 for request in real["requests"]]
    r = run.requests
    ours = r.prefill_start_s == 0
    assert sum(at_first) == ours.sum() == 7
    for first in (True, False):
        paused = sum(gap for gap, early in zip(gave_way, at_first, strict=True) if early is first)
        assert paused == r.preemptions[ours == first].sum() == 2
    # The last admitted of either.
    assert np.flatnonzero(r.preemptions).tolist() == [5, 6, 10, 11]


def test_unpulled_blocks_stay_for_the_lease() -> None:
    path = RUNS / "hold-nixl.txt"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    text = path.read_text()
    assert "kv_cache_usage_perc=0.1251" in text and "expired_total=8.0" in text
    # 8 prompts of 2,000 tokens in blocks of 128, 1,023 usable. Here the decode side has no room,
    # because one request before them decodes until after they are given up at 60 s.
    world = split(
        prefill={"kv_blocks": 1024, "block_tokens": 128, "token_budget": 2048},
        decode={
            "kv_blocks": 31,
            "block_tokens": 128,
            "token_budget": 2048,
            "curve": curve(decode_ms=100),
        },
        link={"bandwidth": 1e9, "lease_s": 30.0},
        timeout_s=60.0,
    )
    rows = [Row(isl=2000, osl=800), *(Row(isl=2000, osl=1) for _ in range(8))]
    run = simulate(world, trace(*rows))
    assert list(run.requests.outcome) == [DONE, *[OUTCOMES.index("timed_out")] * 8]
    s = run.series
    prefill = s.instance == 0
    held, running = s.held[prefill], s.running[prefill]
    assert round(held.max() / 1023, 4) == 0.1251
    # Blocks in use without a running request, for the lease after they were given up.
    assert (running[held == 128] == 0).all()
    assert s.time_s[prefill][(held == 0) & (s.time_s[prefill] > 60)][0] == pytest.approx(90)


def test_simulator_and_oracle_agree_on_five_thousand_worlds() -> None:
    for seed in range(5000):
        random = Random(seed)
        world, requests = worlds.case(random)
        assert compare.differences(world, requests, seed) == [], f"seed {seed}"


def test_the_whole_mooncake_trace_runs_through_and_reuses_what_fits() -> None:
    path = SHARED / "traces/mooncake_conversation.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    requests = traces.read(path)
    shares = []
    for blocks in (1_000, 4_000, 16_000):
        world = mixed(
            "prefix_aware",
            replicas=8,
            kv_blocks=blocks,
            block_tokens=512,
            token_budget=2048,
            max_seqs=128,
            prefix_caching=True,
            curve=curve(decode_ms=20),
        )
        run = simulate(world, requests)
        assert np.isin(run.requests.outcome, (DONE, OUTCOMES.index("infeasible"))).all()
        shares.append(run.instances.hit_tokens.sum() / run.instances.queried_tokens.sum())
    assert shares == sorted(shares)
    # 36.6% of this trace's input repeats (its own block ids, counted without any simulator).
    assert shares[-1] < traces_reuse(requests)


def traces_reuse(requests: Any) -> float:
    """Share of input tokens whose block id came before, with a cache that forgets nothing."""
    ids = requests.block_ids
    repeats = len(ids) - len(np.unique(ids))
    return float(repeats * requests.block_tokens / requests.isl.sum())
