"""Clients that go away."""

import msgspec
import pytest

from splitpoint.errors import PlanError
from splitpoint.metrics import success
from splitpoint.run import OUTCOMES, Run
from splitpoint.sim import World, simulate
from tests.sim.small import Row, mixed, split, trace


def patient_for(seconds: float, world: World) -> World:
    """The world with clients that wait so long."""
    return msgspec.structs.replace(world, abort_s=seconds)


def outcomes(run: Run) -> list[str]:
    """How each request ended."""
    return [OUTCOMES[outcome] for outcome in run.requests.outcome]


def test_an_aborted_request_leaves_its_seat_when_the_step_in_progress_ends() -> None:
    # One seat. Prefill takes 64 ms, then steps of 10 ms end at 74, 84, 94, 104 ms; at 100 ms the
    # client goes, and at 104 ms the next request enters: 32 tokens, 32 ms.
    world = patient_for(0.1, mixed(max_seqs=1))
    run = simulate(world, trace(Row(isl=64, osl=100), Row(isl=32, osl=1, arrive_s=0.05)))
    assert outcomes(run) == ["aborted", "done"]
    assert list(run.requests.end_s) == pytest.approx([0.1, 0.136])
    assert run.requests.first_token_s[0] == pytest.approx(0.064)
    assert run.requests.prefill_start_s[1] == pytest.approx(0.104)
    assert success(run) == 0.5


def test_a_client_that_never_saw_a_token_aborts_too_and_its_session_goes_on() -> None:
    turns = [
        Row(isl=640, osl=5, session=1),
        Row(isl=16, osl=1, session=1, turn=1, think_s=0.3),
    ]
    run = simulate(patient_for(0.1, mixed()), trace(*turns, closed=True))
    assert outcomes(run) == ["aborted", "done"]
    assert run.requests.arrive_s[1] == pytest.approx(0.4)
    # A chunk of 64 tokens lasts 64 ms: the prompt is dropped with the second, at 128 ms.
    assert run.instances.busy_s[0] == pytest.approx(0.128 + 0.016)


def test_the_next_turn_hits_what_an_aborted_one_had_computed_of_its_output() -> None:
    # Prefill to 32 ms, then a token each 10 ms; the client goes at 200 ms, the step ends at 202 ms:
    # 18 tokens are out and 32 + 17 in the cache, three blocks.
    turns = [
        Row(isl=32, osl=100, ids=[1, 2], session=1),
        Row(isl=144, osl=1, ids=list(range(1, 10)), session=1, turn=1, think_s=1.0),
    ]
    run = simulate(patient_for(0.2, mixed(prefix_caching=True)), trace(*turns, closed=True))
    assert outcomes(run) == ["aborted", "done"]
    assert run.requests.hit_tokens[1] == 48


def test_a_request_that_ends_at_the_moment_its_client_would_go_is_done() -> None:
    rows = trace(Row(isl=64, osl=4))
    assert outcomes(simulate(patient_for(0.094, mixed()), rows)) == ["done"]
    assert outcomes(simulate(patient_for(0.0939, mixed()), rows)) == ["aborted"]


def test_every_block_comes_back_wherever_the_abort_meets_a_split_request() -> None:
    # Prefill to 64 ms, transfer to 133 ms, decode after it: an abort in each, and in the queue.
    rows = trace(*(Row(isl=64, osl=50, arrive_s=n / 100) for n in range(3)))
    for seconds in (0.001, 0.05, 0.1, 0.14, 0.2, 0.4):
        run = simulate(patient_for(seconds, split(link={"lease_s": 1.0})), rows)
        assert set(outcomes(run)) == {"aborted"}
        for instance in (0, 1):
            last = run.series.kv_used[run.series.instance == instance][-1]
            assert last == 0


def test_blocks_that_nobody_pulls_stay_for_the_lease() -> None:
    # The first prompt needs all 8 blocks of the decode rank, but a short one, prefilled beside it,
    # is there before. At 0.3 s the first client goes; its lease ends at 1.3 s.
    world = split(prefill={"replicas": 2}, decode={"kv_blocks": 9}, link={"lease_s": 1.0})
    rows = trace(Row(isl=128, osl=1), Row(isl=16, osl=60, arrive_s=0.01))
    run = simulate(patient_for(0.3, world), rows)
    assert outcomes(run) == ["aborted", "aborted"]
    series = run.series
    here = series.instance == 0
    times, held = series.time_s[here], series.held[here]
    assert held.max() == 8
    assert times[held > 0][0] == pytest.approx(0.128)
    assert times[held == 0][-1] == pytest.approx(1.3)


def test_a_negative_patience_is_refused() -> None:
    with pytest.raises(PlanError, match="abort_s"):
        simulate(patient_for(-1.0, mixed()), trace(Row(isl=16, osl=1)))
