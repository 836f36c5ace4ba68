"""One mixed instance, worked out by hand."""

import numpy as np
import pytest
from msgspec.structs import replace

from splitpoint.inputs.trace import Trace
from splitpoint.pricing.layout import Group
from splitpoint.run import OUTCOMES
from splitpoint.sim import simulate
from splitpoint.sim.world import Reserve
from splitpoint.timing.curve import StepCurve, Together
from tests.sim.small import FULL, MS, STATE, Row, curve, mixed, trace

DONE, TIMED_OUT, INFEASIBLE = (OUTCOMES.index(o) for o in ("done", "timed_out", "infeasible"))


def test_a_prompt_beyond_the_budget_takes_two_chunks_and_gives_a_token_at_the_end() -> None:
    run = simulate(mixed(), trace(Row(isl=100, osl=3)))
    r = run.requests
    # 64 + 36 prefill tokens at 1 ms each, then two decode steps of 10 ms.
    assert r.prefill_end_s[0] == r.first_token_s[0] == 0.1
    assert r.end_s[0] == 0.12
    assert np.isnan(r.transfer_start_s[0])
    i = run.instances
    assert (i.prefill_steps[0], i.decode_steps[0], i.mixed_steps[0]) == (2, 2, 0)
    assert i.busy_s[0] == run.duration_s == 0.12


def test_a_chunk_pays_for_the_tokens_before_it_whatever_its_own_length() -> None:
    walks = replace(curve(), prefill_prefix=MS)
    run = simulate(mixed(curve=walks), trace(Row(isl=150, osl=1)))
    # 64 + 64 + 22 tokens at 1 ms, and 1 ms for each of the 64 and 128 before the later chunks.
    assert run.requests.first_token_s[0] == 0.342


def shared(padded: int = 0, least: int = 0) -> StepCurve:
    """1 ms a token of prefill, half of it done by all ranks together."""
    work = np.arange(2049, dtype=np.int64) * MS // 2
    return replace(curve(), together=Together(work=work, padded=padded, least=least))


@pytest.mark.parametrize(
    ("table", "seconds"),
    [
        (curve(), 0.04),
        (shared(), 0.02 + 0.01),
        (shared(padded=40), 0.04),
        (shared(padded=39), 0.03),
        (shared(least=35 * MS), 0.035),
    ],
)
def test_what_ranks_do_together_follows_the_mean_of_their_tokens(
    table: StepCurve, seconds: float
) -> None:
    world = mixed(dp=2, curve=table)
    alone = simulate(world, trace(Row(isl=40, osl=1)))
    assert alone.requests.first_token_s[0] == seconds
    both = simulate(world, trace(Row(isl=40, osl=1), Row(isl=40, osl=1)))
    assert list(both.requests.first_token_s) == [0.04, 0.04]


def test_a_rank_that_only_decodes_counts_its_tokens_into_a_step_with_prefill() -> None:
    # A decodes on rank 0 from 0.015 on (10 tokens: 5 of their own, 2.5 together); B's 21 tokens
    # come to rank 1: 10.5 ms of its own and (1 + 21) / 2 = 11 tokens together, 5.5 ms.
    rows = (Row(isl=10, osl=9), Row(isl=21, osl=1, arrive_s=0.001))
    run = simulate(mixed(dp=2, curve=shared()), trace(*rows))
    assert run.requests.first_token_s[0] == 0.0075
    assert run.requests.first_token_s[1] == pytest.approx(0.0075 + 0.016, abs=1e-12)
    # One rank is as without: what it does with itself is its own tokens.
    one = simulate(mixed(curve=shared()), trace(*rows)).requests
    plain = simulate(mixed(), trace(*rows)).requests
    assert (one.end_s == plain.end_s).all()


def test_decodes_go_first_and_prefill_gets_the_rest_of_the_budget() -> None:
    # A decodes from 0.01 on; B's 100 tokens go in chunks of 63 and 37 beside A's one token.
    run = simulate(mixed(), trace(Row(isl=10, osl=50), Row(isl=100, osl=1, arrive_s=0.015)))
    r = run.requests
    assert r.first_token_s[0] == 0.01
    assert r.prefill_start_s[1] == 0.02
    assert r.first_token_s[1] == 0.02 + 0.064 + 0.038
    assert run.instances.mixed_steps[0] == 2


def test_a_prompts_lone_token_decodes_with_the_others() -> None:
    # n decodes take n x 10 ms. A's second token comes alone; its third with B's first, in 20 ms.
    ladder = replace(curve(), decode=np.arange(129, dtype=np.int64) * 10 * MS)
    run = simulate(
        mixed(curve=ladder), trace(Row(isl=10, osl=3), Row(isl=1, osl=2, arrive_s=0.015))
    )
    assert run.requests.end_s.tolist() == [0.04, 0.05]
    assert run.requests.first_token_s[1] == 0.04
    # Where sequences verify drafts, a lone token is padded like them, unless there are none.
    drafting = mixed(curve=replace(ladder, drafts=1), acceptance=(0.0,))
    assert simulate(drafting, trace(Row(isl=1, osl=1))).requests.end_s[0] == 0.001


def test_several_prompts_share_a_step() -> None:
    run = simulate(mixed(), trace(Row(isl=20, osl=1), Row(isl=30, osl=1), Row(isl=30, osl=1)))
    # 20 + 30 + 14 tokens, then the last 16.
    assert list(run.requests.first_token_s) == [0.064, 0.064, 0.08]


def test_a_decode_step_costs_its_summed_context() -> None:
    world = mixed(curve=curve(context_us=1))
    run = simulate(world, trace(Row(isl=10, osl=3), Row(isl=20, osl=3)))
    # Contexts 11 + 21, then 12 + 22, at 1 us a token.
    assert run.requests.end_s[0] == pytest.approx(0.03 + 0.010032 + 0.010034, abs=1e-12)


def test_no_more_than_max_seqs_run_and_the_rest_wait_in_order() -> None:
    run = simulate(mixed(max_seqs=1), trace(*(Row(isl=10, osl=2) for _ in range(3))))
    assert list(run.requests.first_token_s) == [0.01, 0.03, 0.05]


def test_a_request_enters_only_when_its_whole_input_fits() -> None:
    # 10 usable blocks: the first takes 7 and grows to 8, the second needs 4.
    run = simulate(
        mixed(kv_blocks=11), trace(Row(isl=112, osl=3), Row(isl=64, osl=1), Row(isl=16, osl=1))
    )
    r = run.requests
    # The third would fit at once, but waits behind the second.
    assert r.prefill_start_s[1] == r.end_s[0]
    assert r.prefill_start_s[2] > r.prefill_start_s[1]


def test_the_last_admitted_is_preempted_and_computes_everything_again() -> None:
    # 4 usable blocks: both start with 2, both want a third at the first decode step.
    run = simulate(mixed(kv_blocks=5), trace(Row(isl=32, osl=10), Row(isl=32, osl=10)))
    r = run.requests
    assert list(r.preemptions) == [0, 1]
    assert r.first_token_s[0] == r.first_token_s[1] == 0.064
    assert r.end_s[0] == pytest.approx(0.064 + 9 * 0.01)
    # 33 tokens again give the second token, then 8 decode steps.
    assert r.end_s[1] == pytest.approx(r.end_s[0] + 0.033 + 8 * 0.01)


def test_preemptions_of_a_real_server_with_23_blocks_of_128_tokens() -> None:
    # Measured: vLLM 0.32.0 on CPU, a tiny Qwen3, prefix caching off, 23 usable blocks. All 8
    # inputs of 2 blocks fit, their third blocks do not; of 12 inputs of 3 blocks 7 fit.
    for requests, isl, osl, preemptions, admitted in ((8, 256, 256, 3, 8), (12, 300, 200, 4, 7)):
        world = mixed(kv_blocks=24, block_tokens=128, token_budget=2048)
        run = simulate(world, trace(*(Row(isl=isl, osl=osl) for _ in range(requests))))
        assert (run.requests.outcome == DONE).all()
        assert run.instances.preemptions[0] == preemptions
        assert run.series.running.max() == admitted


@pytest.mark.parametrize(
    ("osl", "reserve", "end"),
    [
        # B finds 48 of its 49 tokens; the last is computed as a decode. Nobody took a block.
        (21, None, 0.28 + 0.01 + 2 * 0.01),
        # A's 81st token took the last of B's blocks: 17 tokens again.
        (40, None, 0.47 + 0.017 + 2 * 0.01),
        # SGLang finds the prompt only. It retracts A, the longer prompt, at once: A has 17 of 21
        # tokens and comes back when B has ended, with 48 of its 65 tokens.
        (21, Reserve(first=0.0, least=0.0, horizon=1), 0.27 + 0.017 + 3 * 0.01),
        # With room for 40 steps of B, three blocks, A's prompt is gone, all three at once.
        (21, Reserve(first=0.0, least=0.0, horizon=1, retract_steps=40), 0.27 + 0.065 + 3 * 0.01),
    ],
)
def test_a_preempted_request_finds_what_is_left_of_its_prompt_and_its_output(
    osl: int, reserve: Reserve | None, end: float
) -> None:
    # 8 blocks. Prompts of 3 and 2 blocks end at 80 ms, the first decode step takes another for
    # each, the 17th one for A and none is left for B: 3 of its blocks are full, with one of output.
    rows = trace(Row(isl=48, osl=osl), Row(isl=32, osl=20))
    world = mixed(kv_blocks=9, token_budget=128, prefix_caching=True, reserve=reserve)
    r = simulate(world, rows).requests
    assert r.preemptions.sum() == 1
    assert r.end_s.max() == pytest.approx(end, abs=1e-12)


@pytest.mark.parametrize(
    ("block", "isl", "hits"),
    [(16, 32, 16), (16, 33, 32), (8, 32, 24), (32, 33, 32), (3, 32, 30), (64, 65, 64)],
)
def test_hits_are_whole_blocks_and_leave_one_token(block: int, isl: int, hits: int) -> None:
    ids = list(range(1 + isl // 16))
    world = mixed(prefix_caching=True, block_tokens=block)
    run = simulate(
        world, trace(Row(isl=isl, osl=1, ids=ids), Row(isl=isl, osl=1, arrive_s=9, ids=ids))
    )
    assert list(run.requests.hit_tokens) == [0, hits]
    assert run.instances.hit_tokens[0] == hits
    assert run.instances.queried_tokens[0] == 2 * isl


def test_a_hybrid_gives_up_the_last_full_block() -> None:
    ids = [1, 2, 3]
    rows = (Row(isl=48, osl=1, ids=ids), Row(isl=48, osl=1, arrive_s=9, ids=ids))
    world = mixed(prefix_caching=True, groups=(FULL, STATE))
    assert list(simulate(world, trace(*rows)).requests.hit_tokens) == [0, 32]


def test_a_hybrid_stops_chunks_at_blocks() -> None:
    # A prompt of one block and a token is computed as the block, then the token.
    world = mixed(prefix_caching=True, groups=(FULL, STATE))
    run = simulate(world, trace(Row(isl=17, osl=1, ids=[1, 2])))
    assert run.instances.prefill_steps[0] == 2


def test_the_next_turn_hits_the_output_where_its_ids_continue_it() -> None:
    first = Row(isl=32, osl=17, ids=[1, 2], session=1)
    second = Row(isl=64, osl=1, arrive_s=9, ids=[1, 2, 3, 4], session=1, turn=1)
    run = simulate(mixed(prefix_caching=True), trace(first, second))
    # 48 tokens of the first turn were in cache: its last token was never computed.
    assert run.requests.hit_tokens[1] == 48


def test_the_output_is_no_prefix_of_a_turn_too_short_to_hold_it() -> None:
    first = Row(isl=32, osl=40, ids=[1, 2], session=1)
    second = Row(isl=64, osl=1, arrive_s=9, ids=[1, 2, 3, 4], session=1, turn=1)
    run = simulate(mixed(prefix_caching=True), trace(first, second))
    assert run.requests.hit_tokens[1] == 32


def test_the_tail_of_the_oldest_prompt_is_evicted_first() -> None:
    # 6 blocks: A leaves 4 cached, B (other ids) takes 2 free and 2 of A's, from A's end.
    a = Row(isl=64, osl=1, ids=[1, 2, 3, 4])
    b = Row(isl=64, osl=1, arrive_s=5, ids=[5, 6, 7, 8])
    again = Row(isl=65, osl=1, arrive_s=9, ids=[1, 2, 3, 4, 9])
    run = simulate(mixed(prefix_caching=True, kv_blocks=7), trace(a, b, again))
    assert run.requests.hit_tokens[2] == 32


@pytest.mark.parametrize(("first", "hit"), [(False, 0), (True, 16)])
def test_blocks_without_a_name_are_taken_before_older_names(first: bool, hit: int) -> None:
    # Four blocks. The first prompt leaves one of a name and one that is not full. The second takes
    # three and leaves two of a name and one without, which the third takes, or else the oldest.
    prompt = Row(17, 1, ids=[1, 2])
    later = [Row(33, 1, 1.0, [3, 4, 5]), Row(8, 1, 2.0, [6]), Row(17, 1, 3.0, [1, 2])]
    world = mixed(prefix_caching=True, kv_blocks=5, nameless_first=first)
    run = simulate(world, trace(prompt, *later))
    assert list(run.requests.hit_tokens) == [0, 0, 0, hit]


def test_a_window_group_holds_its_window_and_the_full_group_the_context() -> None:
    layout = (FULL, Group(kind="window", layers=1, window=16))
    world = mixed(groups=layout, token_budget=16)
    run = simulate(world, trace(Row(isl=160, osl=2)))
    # Chunks of 16: 10 full blocks and ceil((16 - 1 + 16) / 16) + 1 = 3 of the window.
    assert run.series.kv_used.max() == 13


def test_drafts_end_a_request_in_fewer_steps() -> None:
    world = mixed(curve=curve(drafts=1), acceptance=(1.0,))
    run = simulate(world, trace(Row(isl=10, osl=11)))
    assert run.instances.decode_steps[0] == 5
    never = mixed(curve=curve(drafts=1), acceptance=(0.0,))
    assert simulate(never, trace(Row(isl=10, osl=11))).instances.decode_steps[0] == 10


@pytest.mark.parametrize(("balance", "first_s"), [(0, 0.056), (6, 0.076), (50, 0.103)])
def test_prompts_wait_for_prompts_on_other_ranks(balance: int, first_s: float) -> None:
    """Two ranks that decode from 16 ms on, 10 ms a step; a prompt comes for the one at 40 ms, for
    the other at 95 ms: alone at once, alone in step 6, or both together."""
    rows = [Row(16, 30), Row(16, 30), Row(6, 2, 0.040), Row(6, 2, 0.095)]
    out = simulate(mixed(dp=2, balance=balance), trace(*rows))
    assert out.requests.first_token_s[2] == pytest.approx(first_s)


def test_ranks_of_an_instance_step_at_the_pace_of_the_slowest() -> None:
    world = mixed(dp=2)
    run = simulate(world, trace(Row(isl=10, osl=2), Row(isl=50, osl=2)))
    assert list(run.requests.prefill_instance) == [0, 1]
    assert list(run.requests.first_token_s) == [0.05, 0.05]


def test_a_session_waits_for_its_turn_and_thinks() -> None:
    rows = (Row(isl=10, osl=2, session=1), Row(isl=20, osl=1, session=1, turn=1, think_s=0.5))
    run = simulate(mixed(), trace(*rows, closed=True))
    assert list(run.requests.arrive_s) == [0.0, 0.52]
    opened = simulate(mixed(), trace(*rows, closed=True), closed_loop=False)
    assert list(opened.requests.arrive_s) == [0.0, 0.0]


def test_a_request_that_never_fits_ends_at_once_with_its_name() -> None:
    run = simulate(mixed(kv_blocks=3), trace(Row(isl=40, osl=1), Row(isl=10, osl=2)))
    assert list(run.requests.outcome) == [INFEASIBLE, DONE]
    assert "request 0 (40 input + 1 output tokens) never fits a mixed rank" in run.notes[0]


def test_a_request_without_a_first_token_in_time_fails_and_frees_its_place() -> None:
    rows = (Row(isl=60, osl=20), Row(isl=64, osl=1), Row(isl=10, osl=1, arrive_s=0.2))
    run = simulate(mixed(max_seqs=1, timeout_s=0.15), trace(*rows))
    assert list(run.requests.outcome) == [DONE, TIMED_OUT, DONE]
    assert run.requests.end_s[1] == 0.15
    assert np.isnan(run.requests.first_token_s[1])


def test_an_empty_trace_is_an_empty_run() -> None:
    run = simulate(mixed(), trace())
    assert run.duration_s == 0.0 and len(run.requests.isl) == 0


def test_without_series_the_run_has_no_rows_and_the_same_requests() -> None:
    requests: Trace = trace(Row(isl=10, osl=2), Row(isl=50, osl=2))
    with_rows, without = simulate(mixed(), requests), simulate(mixed(), requests, series=False)
    assert len(without.series.time_s) == 0
    assert list(with_rows.requests.end_s) == list(without.requests.end_s)


def test_what_arrives_during_a_step_joins_the_step_after_the_next_if_that_is_filled_already() -> (
    None
):
    # Steps of A: 10 ms of prefill, then decodes of 10 ms at 10, 20, 30 ms. B arrives at 15 ms. The
    # step from 20 to 30 ms is filled by then, so B's 20 tokens run from 30 to 51 ms beside A's one.
    rows = trace(Row(isl=10, osl=50), Row(isl=20, osl=1, arrive_s=0.015))
    for batches, start, first in ((1, 0.02, 0.041), (2, 0.02, 0.051)):
        run = simulate(mixed(batches_in_flight=batches), rows)
        assert run.requests.prefill_start_s[1] == start
        assert run.requests.first_token_s[1] == pytest.approx(first, abs=1e-12)


def test_an_asynchronous_scheduler_gives_a_seat_on_one_step_late() -> None:
    # Two seats for three. 20 ms of prefill, then decodes end at 30 and 40 ms, A's last. The step
    # to 50 ms was filled at 30 ms, while A had its seat: C is filled in at 40 ms and runs from 50
    # to 61 ms, beside B.
    run = simulate(
        mixed(max_seqs=2, batches_in_flight=2),
        trace(Row(isl=10, osl=3), Row(isl=10, osl=9), Row(isl=10, osl=1)),
    )
    assert run.requests.end_s[0] == pytest.approx(0.04, abs=1e-12)
    assert run.requests.prefill_start_s[2] == pytest.approx(0.04, abs=1e-12)
    assert run.requests.first_token_s[2] == pytest.approx(0.061, abs=1e-12)


def test_an_idle_asynchronous_scheduler_starts_at_once_and_leaves_no_gaps() -> None:
    rows = trace(Row(isl=100, osl=3))
    one, two = (simulate(mixed(batches_in_flight=n), rows).requests for n in (1, 2))
    assert one.first_token_s[0] == two.first_token_s[0]
    assert one.end_s[0] == two.end_s[0]
