"""Pipelines of stages, worked out by hand: who waits for whom, and where stages stand idle."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.run import Run
from splitpoint.sim import World, simulate
from splitpoint.timing.curve import StepCurve
from tests.sim.small import Row, curve, mixed, split, trace

BOTH = pytest.mark.parametrize("batches", [1, 2], ids=["synchronous", "asynchronous"])


def piped(*stages: StepCurve) -> StepCurve:
    """A pipeline of these stages."""
    return replace(stages[0], later=stages[1:])


def four(batches: int, **changes: Any) -> World:
    """One instance of four equal stages: 10 ms a decode step, 1 ms a token with prefill, each."""
    return mixed(curve=piped(*[curve()] * 4), batches_in_flight=batches, **changes)


@BOTH
def test_a_lone_sequence_passes_every_stage_for_every_token(batches: int) -> None:
    run = simulate(four(batches), trace(Row(isl=10, osl=3)))
    assert run.requests.first_token_s[0] == 0.04
    assert run.requests.end_s[0] == 0.12
    # Three of the four stages stand idle at any time.
    assert run.instances.busy_s[0] == 0.03
    assert (run.instances.prefill_steps[0], run.instances.decode_steps[0]) == (1, 2)


@BOTH
@pytest.mark.parametrize("chunks", [1, 2, 4, 7])
def test_the_chunks_of_a_prompt_follow_one_another_through_the_stages(
    batches: int, chunks: int
) -> None:
    run = simulate(four(batches), trace(Row(isl=64 * chunks, osl=1)))
    # The last chunk leaves the last stage after chunks + stages - 1 times 64 ms.
    assert run.requests.first_token_s[0] == pytest.approx((chunks + 3) * 0.064, abs=1e-12)
    assert run.instances.prefill_steps[0] == chunks


@BOTH
def test_as_many_groups_as_stages_keep_every_stage_busy(batches: int) -> None:
    run = simulate(four(batches), trace(*(Row(isl=64, osl=11) for _ in range(4))))
    r = run.requests
    # Each prompt fills a batch; the last leaves at 7 x 64 ms, and the first group's second token
    # waits for it in the last stage.
    assert list(r.first_token_s) == [0.256, 0.32, 0.384, 0.448]
    groups = np.arange(4) * 0.01
    # From then on a group returns every 10 ms, each of the four with a token every 40 ms.
    assert r.end_s == pytest.approx(0.458 + groups + 9 * 0.04, abs=1e-12)
    assert run.instances.busy_s[0] == pytest.approx(4 * (0.064 + 10 * 0.01), abs=1e-12)


@BOTH
def test_fewer_groups_than_stages_are_no_faster_and_leave_bubbles(batches: int) -> None:
    run = simulate(four(batches), trace(*(Row(isl=64, osl=11) for _ in range(2))))
    r = run.requests
    gaps = (r.end_s - r.first_token_s) / 10
    assert gaps[1] == pytest.approx(0.04, abs=1e-12)
    # Two of four stages compute at any time while both decode.
    computing = run.instances.busy_s[0] - 2 * 0.064
    assert computing / (r.end_s[1] - r.first_token_s[1]) == pytest.approx(0.5, abs=1e-9)


@BOTH
def test_the_slowest_stage_sets_the_pace_of_a_full_pipeline(batches: int) -> None:
    slow = curve(decode_ms=30)
    for stages in ([curve(), slow], [slow, curve()]):
        world = mixed(curve=piped(*stages), batches_in_flight=batches)
        lone = simulate(world, trace(Row(isl=64, osl=21))).requests
        assert (lone.end_s - lone.first_token_s)[0] / 20 == pytest.approx(0.04, abs=1e-12)
        both = simulate(world, trace(Row(isl=64, osl=21), Row(isl=64, osl=21))).requests
        gaps = np.diff(np.sort(np.concatenate([both.end_s])))
        assert gaps[0] == pytest.approx(0.03, abs=1e-12)
        assert (both.end_s - both.first_token_s)[1] / 20 == pytest.approx(0.06, rel=0.03)


def arrival_during_a_batch(batches: int) -> Run:
    """A second request arrives while the first's only batch is on its way."""
    return simulate(four(batches), trace(Row(isl=10, osl=3), Row(isl=10, osl=2, arrive_s=0.015)))


def test_a_synchronous_scheduler_puts_what_arrived_into_the_batch_that_returned() -> None:
    r = arrival_during_a_batch(1).requests
    # Seen at 40 ms: 1 + 10 tokens, 11 ms a stage; then both decode in one batch.
    assert list(r.prefill_start_s) == [0, 0.04]
    assert r.first_token_s[1] == 0.084
    assert list(r.end_s) == [0.124, 0.124]


def test_an_asynchronous_scheduler_gives_what_arrived_a_turn_of_its_own() -> None:
    r = arrival_during_a_batch(2).requests
    # The first request's next batch was filled before the second arrived: 10 ms ahead of it.
    assert list(r.prefill_start_s) == [0, 0.04]
    assert r.first_token_s[1] == 0.09
    assert list(r.end_s) == [0.12, 0.13]


@BOTH
def test_requests_one_at_a_time_see_one_stage_as_slow_as_all(batches: int) -> None:
    stages = [curve(decode_ms=d, token_ms=t, context_us=c) for d, t, c in ((3, 1, 2), (9, 2, 0))]
    whole = curve(decode_ms=12, token_ms=3, context_us=2)
    rows = [Row(isl=isl, osl=osl, arrive_s=20.0 * isl) for isl, osl in ((3, 9), (40, 1), (64, 30))]
    pipeline = simulate(mixed(curve=piped(*stages), batches_in_flight=batches), trace(*rows))
    alone = simulate(mixed(curve=whole), trace(*rows))
    for name in ("prefill_start_s", "first_token_s", "end_s"):
        assert np.array_equal(getattr(pipeline.requests, name), getattr(alone.requests, name))


@BOTH
def test_ranks_of_a_pipeline_send_their_batches_together(batches: int) -> None:
    run = simulate(four(batches, dp=2), trace(Row(isl=10, osl=2), Row(isl=20, osl=1)))
    # Each stage takes as long as the rank with 20 tokens.
    assert list(run.requests.first_token_s) == [0.08, 0.08]
    assert run.requests.end_s[0] == 0.12


def test_a_prefill_pool_hands_over_what_left_its_last_stage() -> None:
    world = split(prefill={"curve": piped(*[curve()] * 4)})
    r = simulate(world, trace(Row(isl=192, osl=2))).requests
    # 3 chunks in 4 stages, 5 ms and 192 tokens on the link, then two steps of 10 ms.
    assert r.prefill_end_s[0] == pytest.approx(6 * 0.064, abs=1e-12)
    assert r.first_token_s[0] == pytest.approx(6 * 0.064 + 0.005 + 0.192 + 0.01, abs=1e-12)


@BOTH
def test_who_is_preempted_on_the_way_keeps_its_token_and_comes_back(batches: int) -> None:
    # 8 usable blocks, 2 a prompt: four groups want a third each at their second decode step.
    world = four(batches, kv_blocks=9, token_budget=32)
    run = simulate(world, trace(*(Row(isl=32, osl=6) for _ in range(4))))
    r = run.requests
    assert (r.outcome == 0).all()
    assert r.preemptions[0] == 0 and r.preemptions.sum() >= 2
    assert list(r.first_token_s) == pytest.approx([0.128, 0.16, 0.192, 0.224], abs=1e-12)


def test_stages_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(PlanError, match=r"later\[0\]\.drafts"):
        simulate(mixed(curve=piped(curve(), curve(drafts=1))), trace(Row(isl=1, osl=1)))
    instant = replace(curve(), decode=np.zeros(129, np.int64))
    with pytest.raises(PlanError, match="no time"):
        simulate(mixed(curve=piped(curve(), instant)), trace(Row(isl=1, osl=1)))
