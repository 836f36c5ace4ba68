"""What the agentic study found, from its stated parameters; one seed here, three in the benchmark.

The bounds on the mixed arm, the ratio and TPOT were set before this script ran; what holds
which split back was seen in the runs first.
"""

from functools import cache

import pytest
from benchmarks.agentic_study import (
    CAUSES,
    NONE,
    PREFILL_RATE,
    SHAPES,
    Outcome,
    measured,
    outcome,
    stated_curve,
    study_world,
)

from splitpoint import metrics
from splitpoint.inputs.routing import Routing
from splitpoint.timing.curve import PICO

_, FOUR, SIX = SHAPES
LEAST_MIXED_S, MOST_MIXED_S = 0.4, 2.5
LEAST_RATIO = 10
LINK, ROOM = "infinite link", "ample KV on P"


@cache
def found(shape_index: int, routing: Routing, cause: int = 0) -> Outcome:
    world = study_world(SHAPES[shape_index], routing, stated_curve())
    return outcome(measured(world, CAUSES[cause], 0))


def test_the_worlds_hold_what_the_study_states() -> None:
    world = study_world(FOUR, "round_robin", stated_curve())
    prefill, decode = world.pools
    assert (prefill.replicas, decode.replicas) == (4, 4)
    assert prefill.kv_blocks == decode.kv_blocks == 28_700_000_000 // (98_304 * 16)
    assert prefill.curve.mixed[PREFILL_RATE] * PICO == pytest.approx(1.0)
    assert prefill.curve.prefill_pair == 0
    assert world.link is not None
    assert 40_000 * world.link.bytes_per_token / world.link.bandwidth == pytest.approx(
        1.1, rel=0.03
    )


def test_the_mixed_arm_starts_answers_in_seconds() -> None:
    assert LEAST_MIXED_S <= found(0, "prefix_aware").ttft_p50 <= MOST_MIXED_S


@pytest.mark.parametrize("split", [1, 2])
def test_a_split_under_round_robin_takes_over_ten_times_as_long(split: int) -> None:
    assert found(split, "round_robin").ttft_p50 >= LEAST_RATIO * found(0, "prefix_aware").ttft_p50


@pytest.mark.parametrize("routing", ["prefix_aware", "round_robin"])
@pytest.mark.parametrize("split", [1, 2])
def test_a_split_paces_tokens_better_than_the_mixed_arm(split: int, routing: Routing) -> None:
    assert found(split, routing).tpot_p90 < found(0, routing).tpot_p90


def test_the_path_holds_six_and_two_back_and_lost_prefixes_four_and_four() -> None:
    link, room = (CAUSES.index(cause) for cause in CAUSES if cause.name in (LINK, ROOM))
    six, four = (found(split, "prefix_aware").ttft_p50 for split in (2, 1))
    assert (
        found(2, "prefix_aware", link).ttft_p50 < six / 4 < found(2, "prefix_aware", room).ttft_p50
    )
    assert (
        found(1, "prefix_aware", room).ttft_p50 < four / 2 < found(1, "prefix_aware", link).ttft_p50
    )


def test_the_four_causes_add_up_to_the_mean_ttft() -> None:
    run = measured(study_world(SIX, "round_robin", stated_curve()), NONE, 0)
    assert outcome(run).ttft_mean == pytest.approx(metrics.mean(metrics.ttft(run)))
    assert outcome(run).success == 1.0
