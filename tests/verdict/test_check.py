"""Predicted against measured: what is noise, what is not, and what cannot be said."""

import math

import numpy as np
import pytest
from msgspec.structs import replace

from splitpoint.measurement import (
    Estimate,
    Measurement,
    Rates,
    Statistic,
    measured_run,
    of_run,
)
from splitpoint.metrics import TPOT_NOISE, TTFT_NOISE
from splitpoint.verdict.check import Compared, check


def side(ttft: float = 1.0, tpot: float = 0.02, **more: object) -> Measurement:
    """A side whose means have no error of their own."""
    made = Measurement(
        name="side",
        source="made",
        origin="measured",
        requests=1000,
        success=1.0,
        isl=1000,
        osl=100,
        ttft=Statistic(mean=Estimate(value=ttft)),
        tpot=Statistic(mean=Estimate(value=tpot)),
        whole=Rates(requests=2.0, input=2000.0, output=200.0),
    )
    return replace(made, **more)


def row(predicted: Measurement, measured: Measurement, metric: str, statistic: str) -> Compared:
    found = check(predicted, measured).rows
    return next(r for r in found if (r.metric, r.statistic) == (metric, statistic))


def test_a_side_agrees_with_itself() -> None:
    found = check(side(), side())
    assert found.beyond == () and found.mismatches == ()
    assert all(r.off in (None, 0) for r in found.rows)


@pytest.mark.parametrize(("factor", "beyond"), [(1.09, False), (1.11, True), (0.89, True)])
def test_the_spread_of_repeated_runs_bounds_a_mean(factor: float, beyond: bool) -> None:
    found = row(side(ttft=factor), side(), "TTFT", "mean")
    assert found.noise == TTFT_NOISE and found.beyond is beyond
    assert found.ratio == pytest.approx(factor)


def test_few_requests_widen_the_noise() -> None:
    loose = Statistic(mean=Estimate(value=0.02, error=0.04))
    found = row(side(tpot=0.022), side(tpot=0.02), "TPOT", "mean")
    wider = row(side(tpot=0.022), replace(side(), tpot=loose), "TPOT", "mean")
    assert found.beyond is True and wider.beyond is False
    assert wider.noise == pytest.approx(math.hypot(TPOT_NOISE, 2 * 0.04))


def test_percentiles_of_different_things_are_not_compared() -> None:
    def gaps(kind: str) -> Measurement:
        both = {"mean": Estimate(value=0.02), "p50": Estimate(value=0.02)}
        return replace(side(), itl=Statistic(**both, of=kind))  # type: ignore[arg-type]

    assert row(gaps("gaps"), gaps("gaps"), "ITL", "p50").beyond is False
    unlike = row(gaps("mean gaps"), gaps("gaps"), "ITL", "p50")
    assert unlike.beyond is None and "over gaps" in unlike.why
    # A mean over all gaps is the same either way.
    assert row(gaps("mean gaps"), gaps("gaps"), "ITL", "mean").beyond is False


def test_a_percentile_needs_requests_above_it() -> None:
    tail = Statistic(p99=Estimate(value=1.0), p90=Estimate(value=1.0))
    many, few = (replace(side(), ttft=tail, requests=n) for n in (1000, 100))
    assert row(many, many, "TTFT", "p99").beyond is False
    assert row(many, few, "TTFT", "p99").why == "100 requests have no p99 to speak of"
    assert row(many, few, "TTFT", "p90").beyond is False


def test_what_one_side_lacks_is_named() -> None:
    bare = replace(side(), tpot=Statistic(), hit_share=0.5)
    assert row(bare, side(), "TPOT", "mean").why == "not predicted"
    assert row(side(), bare, "TPOT", "mean").why == "not measured"
    assert row(bare, side(), "prefix hits", "share").why == "not measured"
    hits = row(bare, replace(side(), hit_share=0.4), "prefix hits", "share")
    assert hits.off == pytest.approx(0.1) and hits.beyond is None


def test_success_is_judged_by_its_own_chance() -> None:
    lost = replace(side(), success=0.97)
    found = row(lost, side(), "success", "share")
    assert found.off == pytest.approx(-0.03) and found.beyond is True
    assert found.noise == pytest.approx(2 * math.sqrt(0.985 * 0.015 * 2 / 1000))
    few = [replace(s, requests=20) for s in (lost, side())]
    assert row(few[0], few[1], "success", "share").beyond is False


def test_rates_are_compared_over_the_same_window() -> None:
    both = replace(side(), steady=Rates(output=300.0))
    assert row(both, both, "output", "rate").predicted == 300
    mixed = check(both, side())
    assert mixed.window == "whole run"
    assert row(both, side(), "output", "rate").predicted == 200


def test_another_workload_is_told() -> None:
    other = replace(side(), isl=900, requests=10, concurrency=8, gpus=2)
    told = check(replace(side(), concurrency=4, gpus=2), other).mismatches
    assert told == (
        "mean input tokens: 1,000.0 predicted, 900.0 measured",
        "requests: 1,000 predicted, 10 measured",
        "concurrency: 4 predicted, 8 measured",
    )
    # A special token or two are no other workload.
    assert check(replace(side(), isl=1010), side()).mismatches == ()


def test_standard_errors_say_how_far_repeated_samples_lie_apart() -> None:
    random = np.random.default_rng(3)
    found = []
    for _ in range(400):
        n = 200
        first = random.gamma(4, 0.25, n)
        run = measured_run(
            "made",
            arrive_s=np.arange(n, dtype=float),
            first_token_s=np.arange(n) + first,
            end_s=np.arange(n) + first + 1,
            isl=np.full(n, 10),
            osl=np.full(n, 11),
        )
        found.append(of_run(run, name="made", source="made").ttft)
    for name in ("mean", "p50", "p90"):
        estimates = [getattr(statistic, name) for statistic in found]
        spread = np.std([e.value for e in estimates]) / np.mean([e.value for e in estimates])
        assert np.mean([e.error for e in estimates]) == pytest.approx(spread, rel=0.15)
