"""Factors on predicted step times: those that made the results must be found, and no others."""

import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.plan import DeploymentPlan, PoolPlan
from splitpoint.live import imports
from splitpoint.live.factors import fitted_factors, selected
from splitpoint.measurement import Measurement
from splitpoint.search.bench import Bench, bench_of, requests_of
from splitpoint.timing.fitted import Factors, FittedCurve
from tests.live import exports

TRUTH = Factors(decode=1.4, context=0.7, prefill=1.25, front_s=0.06)
ENGINE = Engine(max_seqs=64, batched_tokens=2048, max_len=20_000, prefix_caching=False)


def plan(**more: Any) -> DeploymentPlan:
    return DeploymentPlan(
        model="Qwen/Qwen3-30B-A3B", gpu="H20", pools=(PoolPlan(),), engine=ENGINE, **more
    )


SPLIT = (PoolPlan(role="prefill"), PoolPlan(role="decode"))
# Users, input and output tokens: short and long contexts, light and full batches.
LOADS = ((1, 500, 100), (8, 500, 100), (8, 9000, 60), (32, 14_000, 400), (8, 14_000, 1500))


def load(users: int, isl: int, osl: int, *, requests: int = 64) -> Measurement:
    """What was asked of a server."""
    return Measurement(
        name=f"{users} users, {isl}/{osl}",
        source="made",
        origin="measured",
        requests=max(requests, 4 * users),
        concurrency=users,
        isl=isl,
        osl=osl,
    )


def served(bench: Bench, factors: Factors, tmp: Path, loads: Any = LOADS) -> list[Measurement]:
    """The loads as a server with these factors would have answered, as bench results."""
    found: list[Measurement] = []
    for i, (users, isl, osl) in enumerate(loads):
        run = bench.replay(load(users, isl, osl), factors)
        path = exports.written(tmp / f"{i}.json", exports.vllm_bench(run, users=users))
        found += imports.read(path)
    return found


def fit(
    pools: tuple[PoolPlan, ...], factors: Factors, tmp: Path, loads: Any = LOADS
) -> FittedCurve:
    bench = bench_of(plan() if not pools else replace(plan(), pools=pools), ())
    return fitted_factors(
        served(bench, factors, tmp, loads),
        bench.replay,
        conditions=bench.conditions,
        front_s=bench.world.front_s,
    )


@pytest.mark.parametrize("pools", [(), SPLIT], ids=["mixed", "split"])
def test_the_factors_that_made_the_results_are_found(
    pools: tuple[PoolPlan, ...], tmp_path: Path
) -> None:
    found = fit(pools, TRUTH, tmp_path)
    assert found.rms < 0.01 < found.rms_before
    assert found.factors.decode == pytest.approx(TRUTH.decode, rel=0.05)
    assert found.factors.context == pytest.approx(TRUTH.context, rel=0.15)
    assert found.factors.prefill == pytest.approx(TRUTH.prefill, rel=0.05)
    assert found.factors.front_s == pytest.approx(TRUTH.front_s, abs=0.01)
    errors = found.errors
    assert (
        errors.decode is not None and abs(math.log(found.factors.decode / 1.4)) < 3 * errors.decode
    )
    assert found.isl is not None and (found.isl.low, found.isl.high) == (500, 14_000)
    assert found.batch.low < 1.1 and found.batch.high > 5


def test_a_prediction_that_was_right_is_left_alone(tmp_path: Path) -> None:
    found = fit((), Factors(), tmp_path)
    assert found.rms < 1e-3
    for factor in (found.factors.decode, found.factors.context, found.factors.prefill):
        assert factor == pytest.approx(1, rel=0.02)


def test_what_results_say_nothing_of_stays_as_predicted_and_is_told(tmp_path: Path) -> None:
    # One user and short inputs: context and prefill hardly show in the times.
    found = fit((), Factors(decode=1.5), tmp_path, [(1, 16, 200)])
    assert found.factors.decode == pytest.approx(1.5, rel=0.05)
    assert found.errors.context is None
    assert found.factors.context == pytest.approx(1, abs=0.1)


def test_every_number_is_told_before_and_after(tmp_path: Path) -> None:
    found = fit((), TRUTH, tmp_path, LOADS[:2])
    numbers = [(row.load, row.metric) for row in found.residuals]
    wanted = ("TTFT mean", "TTFT p50", "TPOT mean", "TPOT p50", "output tok/s")
    assert numbers == [(f"{i}.json", name) for i in range(2) for name in wanted]
    for row in found.residuals:
        assert abs(row.fitted / row.measured - 1) < abs(row.predicted / row.measured - 1) + 0.01


def test_results_of_every_request_are_replayed_with_their_own_lengths(tmp_path: Path) -> None:
    bench = bench_of(plan(), ())
    run = bench.replay(load(4, 300, 20), TRUTH)
    path = exports.written(tmp_path / "a.json", exports.vllm_bench(run, detailed=True, users=4))
    (one,) = imports.read(path)
    trace = requests_of(one)
    assert trace.closed and len(trace) == 64 and set(trace.isl.tolist()) == {300}
    assert trace.session.max() == 3
    open_loop = requests_of(replace(one, concurrency=None))
    assert not open_loop.closed and open_loop.arrive_s.max() > 0


def test_lengths_vary_as_the_result_tells(tmp_path: Path) -> None:
    even = requests_of(load(2, 1000, 50, requests=400))
    assert set(even.isl.tolist()) == {1000} and set(even.osl.tolist()) == {50}
    varied = requests_of(replace(load(2, 1000, 50, requests=400), isl_cv=0.1))
    assert varied.isl.mean() == pytest.approx(1000, rel=0.02)
    assert varied.isl.std() == pytest.approx(100, rel=0.15)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"origin": "simulated"}, "is simulated"),
        ({"isl": None}, "input and output tokens"),
        ({"success": 0.9}, "has 90.0% of its requests finished"),
        ({"concurrency": None}, "neither concurrency nor rate"),
        ({}, "no latency and no rate"),
    ],
)
def test_what_cannot_be_fitted_is_refused(change: dict[str, Any], told: str) -> None:
    bench = bench_of(plan(), ())
    with pytest.raises(PlanError, match=told):
        asked = [replace(load(1, 100, 10), **change)]
        fitted_factors(asked, bench.replay, conditions=bench.conditions)


def test_a_result_of_other_gpus_is_refused() -> None:
    with pytest.raises(PlanError, match="was measured on 8 GPUs, the deployment has 1"):
        bench_of(plan(), [replace(load(1, 100, 10), gpus=8)])


def test_a_deployment_on_two_kinds_of_gpu_is_not_fitted() -> None:
    (pool,) = plan().pools
    pools = replace(pool, role="prefill", gpu="H100 SXM"), replace(pool, role="decode")
    with pytest.raises(PlanError, match=r"two kinds of GPU \(factors are of one: fit each pool"):
        bench_of(replace(plan(), pools=pools), ())


def test_rows_of_a_file_are_selected(tmp_path: Path) -> None:
    shared = {"hardware": "h20", "disagg": "False", "isl": 1000, "osl": 100, "gpus": 1}
    rows = [shared | {"conc": c, "tput": 100, "ttft": 0.1, "tpot": 0.01} for c in (1, 2, 4)]
    path = exports.written_csv(tmp_path / "t.csv", rows)
    assert [one.concurrency for one in selected([path], None)] == [1, 2, 4]
    assert [one.concurrency for one in selected([path], "3, 1")] == [4, 1]
    for wrong in ("", "x", "0", "4"):
        with pytest.raises(PlanError):
            selected([path], wrong)
    with pytest.raises(PlanError, match="--rows"):
        selected([path, path], "1")
