"""Phases of one instance alone: by hand from its curve, and laws."""

import numpy as np
import pytest
from msgspec.structs import replace

from splitpoint.inputs.deployment import Topology
from splitpoint.search.budget import pacing_budget
from splitpoint.search.instance import Instance
from splitpoint.search.loads import Profile
from splitpoint.search.phases import decode_pace, mixed_pace, prefill_rate, prefill_seconds
from splitpoint.timing.curve import StepCurve
from tests.search import small

PROFILE = Profile(isl=1000, osl=100, new_tokens=500, pairs=400_000, context=1050, longest=1100)


def hand_made(acceptance: tuple[float, ...] = ()) -> Instance:
    """4 sequences at most, 100 tokens a step: decode 10 ms + 1 us per 1,000 tokens of context,
    mixed 1 ms per token, 1 ns per pair."""
    curve = StepCurve(
        decode=np.array([0, 10, 10, 10, 10], np.int64) * 10**9,
        decode_context=np.full(5, 1000, np.int64),
        mixed=np.arange(101, dtype=np.int64) * 10**9,
        prefill_pair=1000,
    )
    return replace(small.ready(), curve=curve, acceptance=acceptance)


def test_prefill_is_full_steps_and_pairs() -> None:
    # 500 tokens x 1 ms + 400,000 pairs x 1 ns.
    assert prefill_seconds(hand_made(), PROFILE) == pytest.approx(0.5004)
    assert prefill_rate(hand_made(), PROFILE) == pytest.approx(1 / 0.5004)


def test_every_dp_rank_prefills_its_own_requests() -> None:
    single = hand_made()
    four = replace(single, holding=replace(single.holding, topology=Topology(dp=4)))
    assert prefill_rate(four, PROFILE) == pytest.approx(4 * prefill_rate(single, PROFILE))


def test_decode_pace_is_the_curve_at_the_mean_context() -> None:
    pace = decode_pace(hand_made(), PROFILE)
    step = 0.01 + np.arange(1, 5) * 1050e-9
    np.testing.assert_allclose(pace.tpot, step)
    np.testing.assert_allclose(pace.rate, np.arange(1, 5) / (step * 100))
    assert pace.held(0.010002) == 1
    assert pace.held(1.0) == 4
    assert pace.rate_within(0.001) == 0.0


def test_a_pipeline_is_as_fast_as_its_slowest_stage_and_a_lone_sequence_passes_all() -> None:
    one = hand_made()
    fast = replace(one.curve, decode=one.curve.decode // 5, mixed=one.curve.mixed // 5)
    piped = replace(one, curve=replace(one.curve, later=(fast, fast)))
    # 10 + 2 + 2 ms; two and three in batches of their own; of four two share a batch.
    context = np.array([3, 2, 3, 6]) * 1050e-9
    step = [0.014, 0.020, 0.030, 0.030]
    np.testing.assert_allclose(decode_pace(piped, PROFILE).tpot, step + context)
    assert prefill_seconds(piped, PROFILE) == prefill_seconds(one, PROFILE)


def test_drafts_divide_the_time_of_a_token() -> None:
    plain, drafted = hand_made(), hand_made((0.5, 0.5))
    assert drafted.tokens_per_step == 1.75
    np.testing.assert_allclose(
        decode_pace(drafted, PROFILE).tpot * 1.75, decode_pace(plain, PROFILE).tpot
    )


def test_prefill_steals_time_from_decode() -> None:
    pace = mixed_pace(hand_made(), PROFILE)
    alone = decode_pace(hand_made(), PROFILE)
    np.testing.assert_allclose(pace.tpot, alone.tpot + np.arange(1, 5) * 0.5004 / 100)


def test_a_full_pool_ends_the_pace() -> None:
    single = hand_made()
    layout = single.holding.layout
    two = 2 * single.holding.request_bytes(1100) + layout.block_bytes
    tight = replace(single, holding=replace(single.holding, kv_bytes=two))
    assert len(decode_pace(tight, PROFILE).rate) == 2


def test_the_pacing_budget_holds_the_pace_of_every_full_step() -> None:
    instance = small.ready(budget=8192)
    profile = small.load(isl=4000, osl=200).profile
    budget = pacing_budget(instance, profile, 0.05)
    assert budget is not None and 256 <= budget < 8192
    assert instance.curve.mixed[budget] * 1e-12 < 0.05
    assert pacing_budget(instance, profile, 1e-4) is None


def test_a_longer_prompt_never_raises_a_rate() -> None:
    instance = small.ready()
    rates = [prefill_rate(instance, small.load(isl=isl).profile) for isl in (500, 1000, 4000)]
    assert rates == sorted(rates, reverse=True)
