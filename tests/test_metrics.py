"""Metrics on runs small enough to work out by hand."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from splitpoint import metrics
from splitpoint.errors import PlanError
from splitpoint.inputs.slo import Slo
from splitpoint.run import DONE, OUTCOMES, Instances, Requests, Run, Series

SLO = Slo(ttft_s=2.0, tpot_s=0.1, percentile=90)
FLOAT_COLUMNS = (
    "arrive_s",
    "prefill_start_s",
    "prefill_end_s",
    "transfer_start_s",
    "transfer_end_s",
    "first_token_s",
    "end_s",
)


def requests_of(count: int, columns: Mapping[str, ArrayLike]) -> Requests:
    """Requests with the columns that a test speaks of; moments default to NaN, counts to 0."""
    filled = {}
    for name in Requests.__struct_fields__:
        kind = np.float64 if name in FLOAT_COLUMNS else np.int32
        fallback = np.nan if kind is np.float64 else 0
        value = np.asarray(columns.get(name, fallback), dtype=kind)
        filled[name] = np.broadcast_to(value, count).copy()
    return Requests(**filled)


def run_of(
    count: int,
    *,
    roles: tuple[str, ...] = ("mixed",),
    gpus: int = 1,
    duration_s: float = 0.0,
    series: ArrayLike = (),
    blocks: int = 10,
    **columns: ArrayLike,
) -> Run:
    """A run with one KV pool per role; `series` rows are instance, time, used, held, waiting."""
    requests = requests_of(count, columns)
    rows = np.asarray(series, dtype=float).reshape(-1, 5)
    pools = np.arange(len(roles), dtype=np.int32)
    none = np.zeros(len(roles), dtype=np.int64)
    return Run(
        name="by hand",
        origin="simulated",
        roles=roles,
        gpus=gpus,
        duration_s=duration_s or float(np.nanmax(requests.end_s)),
        requests=requests,
        instances=Instances(
            pool=pools,
            instance=pools.copy(),
            rank=np.zeros(len(roles), dtype=np.int32),
            kv_blocks=np.full(len(roles), blocks, dtype=np.int32),
            busy_s=np.full(len(roles), 1.0),
            prefill_steps=none,
            decode_steps=none.copy(),
            mixed_steps=none.copy(),
            preemptions=np.full(len(roles), 2, dtype=np.int32),
            hit_tokens=np.full(len(roles), 30, dtype=np.int64),
            host_hit_tokens=np.full(len(roles), 12, dtype=np.int64),
            queried_tokens=np.full(len(roles), 120, dtype=np.int64),
        ),
        series=Series(
            instance=rows[:, 0].astype(np.int32),
            time_s=rows[:, 1].copy(),
            kv_used=rows[:, 2].astype(np.int32),
            kv_cached=np.zeros(len(rows), dtype=np.int32),
            held=rows[:, 3].astype(np.int32),
            running=np.zeros(len(rows), dtype=np.int32),
            waiting=rows[:, 4].astype(np.int32),
        ),
    )


def split_run() -> Run:
    """Two requests that went through a transfer, and one that timed out before its prefill."""
    return run_of(
        3,
        roles=("prefill", "decode"),
        gpus=4,
        isl=[100, 200, 50],
        osl=[11, 5, 9],
        arrive_s=[0.0, 1.0, 2.0],
        prefill_start_s=[0.5, 1.25, np.nan],
        prefill_end_s=[1.0, 2.25, np.nan],
        transfer_start_s=[1.25, 2.25, np.nan],
        transfer_end_s=[1.5, 2.75, np.nan],
        first_token_s=[2.0, 3.0, np.nan],
        end_s=[3.0, 5.0, 4.0],
        outcome=[0, 0, OUTCOMES.index("timed_out")],
        duration_s=5.0,
    )


def test_latencies_are_the_textbook_formulas() -> None:
    run = split_run()
    np.testing.assert_array_equal(metrics.ttft(run), [2.0, 2.0, np.nan])
    np.testing.assert_array_equal(metrics.e2el(run), [3.0, 4.0, np.nan])
    np.testing.assert_array_equal(metrics.tpot(run), [0.1, 0.5, np.nan])


def test_ttft_splits_into_its_four_causes() -> None:
    parts = metrics.ttft_parts(split_run())
    np.testing.assert_array_equal(parts.queue, [0.5, 0.25, np.nan])
    np.testing.assert_array_equal(parts.prefill, [0.5, 1.0, np.nan])
    np.testing.assert_array_equal(parts.transfer[:2], [0.25, 0.5])
    # 0.25 s until the decode pool had room and 0.5 s until its step for the first request.
    np.testing.assert_array_equal(parts.decode_wait, [0.75, 0.25, np.nan])


def test_what_is_served_after_the_last_arrival_is_draining() -> None:
    # Of eight requests, which end at 1 to 8 s, the window is 1 to 7 s.
    ends = np.arange(1.0, 9.0)
    for last, share in ((0.5, 1.0), (4.0, 0.5), (7.0, 0.0), (7.5, 0.0)):
        arrive = np.linspace(0.0, last, 8)
        assert metrics.draining(run_of(8, arrive_s=arrive, end_s=ends)) == pytest.approx(share)


def test_a_transfer_hidden_under_prefill_counts_only_where_it_sticks_out() -> None:
    run = run_of(
        1,
        osl=2,
        arrive_s=0.0,
        prefill_start_s=0.0,
        prefill_end_s=4.0,
        transfer_start_s=1.0,
        transfer_end_s=4.5,
        first_token_s=5.0,
        end_s=6.0,
    )
    assert metrics.ttft_parts(run).transfer[0] == 0.5


@given(st.lists(st.tuples(*[st.floats(0, 1e4)] * 5), min_size=1, max_size=20))
def test_the_causes_of_ttft_always_sum_to_it(steps: list[tuple[float, ...]]) -> None:
    moments = np.cumsum(np.array(steps), axis=1).T
    run = run_of(
        len(steps),
        osl=2,
        arrive_s=moments[0],
        prefill_start_s=moments[0],
        prefill_end_s=moments[1],
        transfer_start_s=moments[2],
        transfer_end_s=moments[3],
        first_token_s=moments[4],
        end_s=moments[4],
    )
    parts = metrics.ttft_parts(run)
    total = parts.queue + parts.prefill + parts.transfer + parts.decode_wait
    np.testing.assert_allclose(total, metrics.ttft(run), rtol=0, atol=1e-9)


def test_failures_stand_beside_the_survivors() -> None:
    run = split_run()
    assert metrics.success(run) == pytest.approx(2 / 3)
    np.testing.assert_array_equal(metrics.good(run, SLO), [True, False, False])
    assert metrics.attainment(run, SLO) == pytest.approx(1 / 3)
    assert not metrics.meets_slo(run, SLO)


def test_one_failure_breaks_an_slo_that_every_survivor_meets() -> None:
    def run(outcome: ArrayLike) -> Run:
        return run_of(2, osl=2, arrive_s=0.0, first_token_s=1.0, end_s=1.05, outcome=outcome)

    assert metrics.meets_slo(run([0, 0]), SLO)
    assert not metrics.meets_slo(run([0, 1]), SLO)


def test_a_client_that_lost_patience_is_later_than_all_others() -> None:
    def run(lost: int, outcome: str) -> Run:
        outcomes = [OUTCOMES.index(outcome)] * lost + [DONE] * (101 - lost)
        return run_of(101, osl=2, arrive_s=0.0, first_token_s=1.0, end_s=1.05, outcome=outcomes)

    assert SLO.percentile == 90
    for outcome in ("timed_out", "aborted"):
        assert metrics.meets_slo(run(10, outcome), SLO)
        assert not metrics.meets_slo(run(11, outcome), SLO)
    for outcome in ("infeasible", "unfinished"):
        assert not metrics.meets_slo(run(1, outcome), SLO)


def test_a_request_of_one_token_is_judged_by_ttft_alone() -> None:
    run = run_of(1, osl=1, arrive_s=0.0, first_token_s=1.0, end_s=1.0)
    assert np.isnan(metrics.tpot(run)[0])
    assert metrics.good(run, SLO)[0]
    assert metrics.meets_slo(run, SLO)
    assert metrics.interactivity(run) == 0.0


def test_percentiles_interpolate_linearly() -> None:
    values = np.array([4.0, 1.0, np.nan, 2.0, 3.0])
    assert metrics.percentile(values, 50) == 2.5
    assert metrics.percentile(values, 90) == pytest.approx(3.7)
    assert np.isnan(metrics.percentile(np.array([np.nan]), 50))
    many = np.random.default_rng(0).exponential(size=1001)
    wanted = (0.0, 12.5, 50.0, 99.0, 100.0)
    assert metrics.percentiles(many, wanted) == pytest.approx(np.percentile(many, wanted))


def test_interactivity_is_one_over_median_tpot() -> None:
    run = run_of(3, osl=11, arrive_s=0.0, first_token_s=0.0, end_s=[1.0, 2.0, 5.0])
    assert metrics.interactivity(run) == pytest.approx(1 / 0.2)


def test_gaps_weigh_a_request_by_its_tokens() -> None:
    run = run_of(2, osl=[2, 100], arrive_s=0.0, first_token_s=0.0, end_s=[1.0, 9.9])
    gaps = metrics.itl(run)
    np.testing.assert_array_equal(gaps.counts, [1, 99])
    assert metrics.gap_percentile(gaps, 50) == pytest.approx(0.1)
    assert metrics.gap_percentile(gaps, 100) == pytest.approx(1.0)


def closed_loop(users: int, waves: int) -> Run:
    """`users` requests of 100/11 run side by side in each of `waves` waves of 1 s; the prefill
    of each takes the first tenth of its second."""
    start = np.repeat(np.arange(waves, dtype=float), users)
    return run_of(
        users * waves,
        isl=100,
        osl=11,
        gpus=2,
        arrive_s=start,
        prefill_start_s=start,
        prefill_end_s=start + 0.1,
        first_token_s=start + 0.1,
        end_s=start + 1.0,
    )


def test_throughput_of_a_steady_closed_loop_is_the_same_for_any_length() -> None:
    for waves in (8, 16, 80):
        run = closed_loop(4, waves)
        rates = metrics.throughput(run)
        assert rates.input == pytest.approx(400)
        assert rates.output == pytest.approx(44)
        assert rates.total == pytest.approx(444)
        assert metrics.goodput(run, SLO) == pytest.approx(4)
        assert metrics.mean_decoding(run) == pytest.approx(3.6)
        assert metrics.mean_after_prefill(run) == pytest.approx(3.6)
        assert metrics.mean_prefilling(run) == pytest.approx(0.4)


def test_eight_waves_lose_exactly_the_first_and_the_last() -> None:
    window = metrics.steady_window(closed_loop(4, 8))
    assert (window.start, window.end) == (1.0, 7.0)


def test_warm_up_and_cool_down_are_cut_as_asked() -> None:
    run = closed_loop(4, 8)
    for warm_up, cool_down, start, end in ((0.25, 0.125, 2.0, 7.0), (0.0, 0.5, 0.0, 4.0)):
        cuts = metrics.Cuts(warm_up=warm_up, cool_down=cool_down)
        window = metrics.steady_window(run, cuts)
        assert (window.start, window.end) == (start, end)
        assert metrics.throughput(run, cuts).input == pytest.approx(400)
    for warm_up, cool_down in ((-0.1, 0.0), (0.5, 0.5), (float("nan"), 0.0)):
        with pytest.raises(PlanError, match="warm-up"):
            metrics.steady_window(run, metrics.Cuts(warm_up=warm_up, cool_down=cool_down))


def test_a_run_too_short_for_a_window_is_taken_whole() -> None:
    window = metrics.steady_window(split_run())
    assert (window.start, window.end) == (0.0, 5.0)
    # Both first tokens and all gaps fall into the 5 s.
    assert metrics.throughput(split_run()).output == pytest.approx(16 / 5)
    assert metrics.throughput(split_run()).input == pytest.approx(300 / 5)


def test_a_run_in_which_nothing_finished_has_no_throughput() -> None:
    run = run_of(1, osl=2, arrive_s=0.0, end_s=1.0, outcome=1)
    assert metrics.throughput(run).total == 0
    assert metrics.goodput(run, SLO) == 0
    assert metrics.success(run) == 0


def test_pool_load_weighs_states_by_the_seconds_they_held() -> None:
    rows = [(0, 0.0, 5, 0, 0), (1, 0.0, 10, 0, 3), (0, 4.0, 10, 5, 1)]
    run = run_of(
        1,
        roles=("prefill", "decode"),
        series=rows,
        arrive_s=0.0,
        first_token_s=1.0,
        end_s=5.0,
        duration_s=5.0,
    )
    prefill, decode = metrics.pool_load(run, 0), metrics.pool_load(run, 1)
    # 4 s at 5 of 10 usable blocks, then 1 s at 10 of which 5 are held.
    assert prefill.used_mean == pytest.approx(0.6)
    assert prefill.used_p99 == 1.0
    assert prefill.held_mean == pytest.approx(0.1)
    assert prefill.waiting_mean == pytest.approx(0.2)
    assert prefill.busy_share == pytest.approx(0.2)
    assert (prefill.hit_share, prefill.host_share) == (0.25, 0.1)
    assert (decode.used_mean, decode.waiting_mean) == (1.0, 3.0)


def test_only_those_whom_memory_keeps_waiting_are_shut_out() -> None:
    # 2 wait while 5 of 10 usable blocks are free, 3 wait while 1 is; each for half of 4 s.
    rows = [(0, 0.0, 5, 0, 2), (0, 2.0, 9, 0, 3)]
    run = run_of(1, series=rows, arrive_s=0.0, first_token_s=1.0, end_s=4.0)
    assert metrics.mean_shut_out(run, 0, 4) == pytest.approx(1.5)
    assert metrics.mean_shut_out(run, 0, 6) == pytest.approx(2.5)
    assert metrics.mean_shut_out(run, 0, 1) == 0


def test_demand_is_above_one_exactly_where_memory_keeps_requests_waiting() -> None:
    # 2 wait while 5 of 10 blocks are free, 3 wait while 1 is; each for half of 4 s.
    rows = [(0, 0.0, 5, 0, 2), (0, 2.0, 9, 0, 3)]
    run = run_of(1, series=rows, arrive_s=0.0, first_token_s=1.0, end_s=4.0)
    assert metrics.demand_p99(run, 0, 4) == pytest.approx((9 + 3 * 4) / 10)
    assert metrics.demand_p99(run, 0, 1) == pytest.approx(0.9)
    # A hundredth of the time is not enough.
    rows = [(0, 0.0, 5, 0, 0), (0, 3.97, 9, 0, 3)]
    run = run_of(1, series=rows, arrive_s=0.0, first_token_s=1.0, end_s=4.0)
    assert metrics.demand_p99(run, 0, 4) == 0.5


def test_waiting_for_the_decode_side_is_not_decoding() -> None:
    run = split_run()
    # Over 5 s: first tokens to ends are 1 s and 2 s, prefill ends to ends 2 s and 2.75 s.
    assert metrics.mean_decoding(run) == pytest.approx(3 / 5)
    assert metrics.mean_after_prefill(run) == pytest.approx(4.75 / 5)
    assert metrics.mean_prefilling(run) == pytest.approx((1.0 + 1.5) / 5)


def test_a_pool_without_series_has_no_load() -> None:
    run = run_of(1, arrive_s=0.0, first_token_s=1.0, end_s=2.0)
    assert metrics.pool_load(run, 0).used_p99 == 0.0
