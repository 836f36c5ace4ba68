"""Logs of a vLLM server's steps: what is read, and the factors that made them."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.plan import DeploymentPlan, PoolPlan
from splitpoint.live.imports import step_log
from splitpoint.live.steps import fitted_steps, selected_logs
from splitpoint.search.bench import Bench, bench_of
from splitpoint.timing.curve import PICO
from splitpoint.timing.fitted import Factors, FittedCurve

ENGINE = Engine(
    max_seqs=64, batched_tokens=2048, max_len=20_000, prefix_caching=False, async_scheduling=False
)
POOL = 100_000
# As vLLM 0.32.0 printed them on a CPU server, 2026-11-30.
START = (
    "(APIServer pid=7) INFO 11-30 11:25:00 [api_utils.py:286] non-default args: {'model': 'm', "
    "'async_scheduling': False}",
    "(EngineCore pid=8) INFO 11-30 11:26:20 [core.py:133] Initializing a V1 LLM engine (v0.32.0) "
    "with config: model='m', tensor_parallel_size=1",
    f"(EngineCore pid=8) INFO 11-30 11:26:46 [kv_cache_utils.py:2327] GPU KV cache size: {POOL:,} "
    "tokens, Maximum concurrency for 8,192 tokens per request: 5.33x",
)


def step(
    prompts: int, new: int, decoding: int, ms: float, cached: float, *, rank: int = 0, end: str = ""
) -> str:
    """A line of the log; `cached` tokens of the pool are taken when the step has ended."""
    return (
        f"(APIServer pid=7) INFO 11-30 11:28:47 [loggers.py:199] Engine {rank:03d}: Iteration(59): "
        f"{prompts} context requests, {new} context tokens, {decoding} generation requests, "
        f"{decoding} generation tokens, iteration elapsed time: {ms:.2f} ms{end}, "
        f"GPU KV cache usage: {cached / POOL:.1%}"
    )


def written(folder: Path, lines: Iterable[str]) -> Path:
    path = folder / "server.log"
    path.write_text("\n".join(lines))
    return path


def test_contexts_are_what_the_step_before_left_in_the_pool(tmp_path: Path) -> None:
    log = [
        *START,
        step(1, 1000, 0, 30, 1000),
        step(0, 0, 1, 5, 1100),
        step(2, 600, 1, 20, 1700),
        step(0, 0, 3, 6, 1200),  # two of the three end with this one
        step(0, 0, 1, 5.5, 0),
        step(1, 2000, 0, 60, 2000),
        step(1, 1000, 0, 40, 0),  # the rest of the prompt, which ends with its first token
    ]
    found = step_log.read(written(tmp_path, log))
    assert list(found.prompts) == [1, 0, 2, 0, 0, 1, 1]
    assert list(found.decoding) == [0, 1, 1, 3, 1, 0, 0]
    assert found.context == pytest.approx([0, 1000, 1100, 1700, 1200, 0, 0])
    assert found.prefix == pytest.approx([0, 0, 0, 0, 0, 0, 2000])
    assert found.seconds == pytest.approx([0.03, 0.005, 0.02, 0.006, 0.0055, 0.06, 0.04])


def test_ranks_are_kept_apart_and_their_empty_steps_left_out(tmp_path: Path) -> None:
    log = [
        *START,
        step(1, 100, 0, 9, 100),
        step(0, 0, 0, 9, 0, rank=1, end=" (dummy)"),
        step(0, 0, 1, 5, 100),
        step(1, 700, 0, 9, 700, rank=1),
        step(1, 50, 1, 6, 200),
        step(1, 50, 2, 6, 200),
    ]
    found = step_log.read(written(tmp_path, log))
    assert list(found.context) == [0, 100, 0, 100]
    assert found.left_out == 1


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (START, "holds no iteration"),
        ((step(0, 0, 1, 5, 100),), "does not hold the server's start"),
        ((START[0].replace("False", "True"), *START[1:]), "asynchronous scheduling"),
        (START[1:], "asynchronous scheduling"),
        (START[:2], "does not tell its pool"),
    ],
)
def test_what_cannot_be_told_from_a_log_is_refused(
    lines: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    more = () if told == "holds no iteration" else (step(0, 0, 1, 5, 100),)
    with pytest.raises(PlanError, match=told):
        step_log.read(written(tmp_path, (*lines, *more)))


def test_steps_of_earlier_versions_do_not_tell_their_contexts(tmp_path: Path) -> None:
    line = step(0, 0, 1, 5, 100).partition(", GPU KV")[0]
    with pytest.raises(PlanError, match="does not tell the KV usage"):
        step_log.read(written(tmp_path, (*START, line)))


def logged(bench: Bench, factors: Factors, noise: float) -> list[str]:
    """A server's log whose steps take what the curve says under the factors: requests join one by
    one, decode together and end together."""
    random = np.random.default_rng(0)
    curve, lines = bench.curve, list(START)
    assert curve.mixed_decode is not None
    for batch, new, steps in ((1, 300, 60), (4, 1500, 60), (16, 900, 60), (40, 200, 40)):
        cached, decoding = 0, 0
        for step_of in ["joins", "decodes"] * batch + ["decodes"] * steps:
            work = curve.decode_context[decoding] * cached * factors.context
            prompts = int(step_of == "joins")
            if prompts:
                chunk = curve.mixed[new + decoding] + curve.prefill_pair * new * new / 2
                work += chunk * factors.prefill + curve.mixed_decode[decoding] * factors.decode
            else:
                work += curve.decode[decoding] * factors.decode
            gap = bench.gap(np.array([prompts + decoding], np.float64))[0]
            ms = 1e3 * (work * PICO - gap) * random.lognormal(0, noise)
            cached += decoding + new * prompts
            lines.append(step(prompts, new * prompts, decoding, ms, cached))
            decoding += prompts
        # All of them end with the last step.
        lines[-1] = lines[-1].rpartition(": ")[0] + ": 0.0%"
    return lines


def fitted(tmp: Path, factors: Factors, noise: float) -> FittedCurve:
    plan = DeploymentPlan(model="Qwen/Qwen3-30B-A3B", gpu="H20", pools=(PoolPlan(),), engine=ENGINE)
    bench = bench_of(plan, ())
    logs = selected_logs([written(tmp, logged(bench, factors, noise))], None)
    return fitted_steps(logs, bench.curve, bench.gap, conditions=bench.conditions)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_factors_that_made_the_steps_are_found(noise: float, tmp_path: Path) -> None:
    truth = Factors(decode=1.4, context=0.7, prefill=1.25)
    found = fitted(tmp_path, truth, noise)
    # The pool's usage is printed to 0.1%: contexts are off by up to 50 tokens.
    assert found.factors.decode == pytest.approx(truth.decode, rel=0.01 + noise / 8)
    assert found.factors.context == pytest.approx(truth.context, rel=0.1 + noise / 2)
    assert found.factors.prefill == pytest.approx(truth.prefill, rel=0.02 + noise / 8)
    assert found.rms < 0.02 + noise < found.rms_before
    for name in ("decode", "context", "prefill"):
        error = getattr(found.errors, name)
        off = abs(getattr(found.factors, name) / getattr(truth, name) - 1)
        assert error is not None and off < 4 * error + 0.05
    assert found.errors.front_s is None and found.isl is None
    assert (found.batch.low, found.batch.high) == (0, 40)


def test_a_log_without_prompts_leaves_their_factor_as_predicted(tmp_path: Path) -> None:
    bench = bench_of(
        DeploymentPlan(model="Qwen/Qwen3-30B-A3B", gpu="H20", pools=(PoolPlan(),), engine=ENGINE),
        (),
    )
    lines = [*START, *(step(0, 0, 4, 8.0 + i % 3, 8000 + 4 * i) for i in range(40))]
    logs = selected_logs([written(tmp_path, lines)], None)
    found = fitted_steps(logs, bench.curve, bench.gap, conditions=bench.conditions)
    assert found.errors.prefill is None and found.factors.prefill == pytest.approx(1.0)
    assert found.errors.decode is not None


def test_steps_past_the_deployments_settings_are_refused(tmp_path: Path) -> None:
    log = written(tmp_path, (*START, step(0, 0, 65, 9, 100)))
    plan = DeploymentPlan(model="Qwen/Qwen3-30B-A3B", gpu="H20", pools=(PoolPlan(),), engine=ENGINE)
    bench = bench_of(plan, ())
    with pytest.raises(PlanError, match="runs 65 sequences"):
        fitted_steps(
            selected_logs([log], None), bench.curve, bench.gap, conditions=bench.conditions
        )


def test_logs_and_results_are_not_mixed_and_a_log_is_of_one_pool(tmp_path: Path) -> None:
    log = written(tmp_path, (*START, step(0, 0, 1, 5, 100)))
    with pytest.raises(PlanError, match="fit logs, or results"):
        selected_logs([log, tmp_path / "bench.json"], None)
    with pytest.raises(PlanError, match="has none"):
        selected_logs([log], "1,2")
    split = DeploymentPlan(
        model="Qwen/Qwen3-30B-A3B",
        gpu="H20",
        pools=(PoolPlan(role="prefill"), PoolPlan(role="decode")),
        engine=replace(ENGINE),
    )
    with pytest.raises(PlanError, match="name that pool alone"):
        _ = bench_of(split, ()).curve
    piped = replace(split, pools=(PoolPlan(pp=2),))
    with pytest.raises(PlanError, match="pipeline of 2 stages"):
        _ = bench_of(piped, ()).curve
