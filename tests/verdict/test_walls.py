"""The two walls: the published table, and the walls of a run worked out by hand."""

import numpy as np
import pytest
from msgspec.structs import replace

from splitpoint.search.loads import Profile
from splitpoint.search.world import candidate_of
from splitpoint.verdict.walls import occupancy, walls
from tests.search import small
from tests.test_metrics import run_of

# Published: agentic study of PD separation, Qwen3-30B-A3B (98,304 bytes a token) on 8 H20; per
# cent of N_D decode pools that 8 concurrent requests of so many tokens take. Its pool, printed as
# "about 28 GB", is 28.7e9 bytes: that one figure gives all twelve cells.
TABLE: dict[int, dict[int, float]] = {
    2_000: {8: 0.7, 4: 1.4, 2: 2.7},
    33_600: {8: 12, 4: 23, 2: 46},
    101_000: {8: 35, 4: 69, 2: 138},
    132_000: {8: 45, 4: 90, 2: 181},
}


@pytest.mark.parametrize("tokens", TABLE)
@pytest.mark.parametrize("pools", [8, 4, 2])
def test_the_study_s_decode_wall(tokens: int, pools: int) -> None:
    share = occupancy(8, tokens * 98_304, pools, 28.7e9)
    printed = TABLE[tokens][pools]
    assert round(100 * share, 1 if printed < 10 else 0) == printed


def test_each_side_carries_its_own_requests() -> None:
    candidate = candidate_of(
        [("prefill", small.ready(), 2), ("decode", small.ready(), 1)], "round_robin"
    )
    # One request after another: 2 s on the prefill side with its transfer, 3 s on the other.
    run = run_of(
        1,
        roles=("prefill", "decode"),
        osl=10,
        arrive_s=0.0,
        prefill_start_s=0.0,
        prefill_end_s=1.0,
        transfer_start_s=1.0,
        transfer_end_s=2.0,
        first_token_s=2.0,
        end_s=4.0,
    )
    profile = Profile(isl=1600, osl=10, new_tokens=1600, pairs=1.0, context=3200, longest=4000)
    prefill, decode = walls(candidate, run, profile)
    assert (prefill.side, decode.side) == ("prefill", "decode")
    assert prefill.demand.value == pytest.approx(2 / 4 * 1600 * 98_304)
    assert decode.demand.value == pytest.approx(3 / 4 * 3200 * 98_304)
    pool = small.ready().holding.usable_bytes
    assert (prefill.pool.value, decode.pool.value) == (2 * pool, pool)
    assert decode.occupancy == pytest.approx(0.75 * 3200 * 98_304 / pool)


def test_a_mixed_side_carries_both() -> None:
    candidate = candidate_of([("mixed", small.ready(), 1)], "round_robin")
    run = run_of(
        1,
        osl=10,
        arrive_s=0.0,
        prefill_start_s=0.0,
        prefill_end_s=1.0,
        first_token_s=1.0,
        end_s=4.0,
    )
    profile = Profile(isl=1600, osl=10, new_tokens=1600, pairs=1.0, context=1600, longest=4000)
    (wall,) = walls(candidate, run, profile)
    assert wall.demand.value == pytest.approx(1600 * 98_304)
    assert "mixed has room" in wall.words
    assert "a prefix that several share counted for each" in wall.words
    cold = replace(run.instances, hit_tokens=np.zeros_like(run.instances.hit_tokens))
    (wall,) = walls(candidate, replace(run, instances=cold), profile)
    assert "prefix" not in wall.words
