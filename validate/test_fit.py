"""Real replays: four factors fitted on the first half of the requests foretell the second half.

300 requests each on RTX PRO 6000 GPUs under vLLM 0.19 (LLMServingSim project, MIT). All requests
are replayed, the first 150 alone are fitted; the method was not chosen on the second half.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from msgspec.structs import replace

from splitpoint import metrics
from splitpoint.inputs import facts
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.plan import DeploymentPlan, PoolPlan
from splitpoint.live import imports
from splitpoint.live.factors import fitted_factors
from splitpoint.measurement import Measurement, of_run
from splitpoint.run import Requests, Run
from splitpoint.search.bench import bench_of
from splitpoint.timing.fitted import Factors

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "truth" / "vllm_replays"
HALF = 150


class Replay(NamedTuple):
    """How one was served, and the bounds on TPOT mean and TTFT median of the second half."""

    file: str
    model: str
    pool: PoolPlan
    pace_error: float
    start_error: float


REPLAYS = (
    Replay("Qwen3-32B", "Qwen/Qwen3-32B", PoolPlan(tp=2), 0.03, 0.15),
    Replay(
        "Qwen3-30B-A3B-Instruct-2507",
        "Qwen/Qwen3-30B-A3B",
        PoolPlan(dp=2, ep="all"),
        0.07,
        0.18,
    ),
)


def first_half(run: Run) -> Measurement:
    """What the first requests saw; rates of half a run mean nothing."""
    rows = run.requests
    kept = Requests(**{name: getattr(rows, name)[:HALF] for name in rows.__struct_fields__})
    half = of_run(replace(run, requests=kept), name="first half", source="half a run")
    return replace(half, whole=None)


@pytest.mark.parametrize("replay", REPLAYS, ids=lambda r: r.file)
def test_factors_of_the_first_half_foretell_the_second(
    replay: Replay, capsys: pytest.CaptureFixture[str]
) -> None:
    path = FOLDER / f"RTXPRO6000_{replay.file}__requests.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    (real,) = imports.read(path)
    assert real.run is not None
    # The same machine's NCCL, measured by its owners before they switched ACS and IOMMU off.
    gpu = facts.gpu("RTX PRO 6000 Server")
    plan = DeploymentPlan(
        model=replay.model,
        gpu=replace(gpu, inside=replace(gpu.inside, kind="pcie_host")),
        pools=(replay.pool,),
        routing="least_requests",
        engine=Engine(version="0.19.0", batched_tokens=2048, max_seqs=128),
    )
    bench = bench_of(plan, [real])

    def again(_: Measurement, factors: Factors) -> Run:
        half: Run = bench.replay(real, factors)
        rows = half.requests
        kept = Requests(**{name: getattr(rows, name)[:HALF] for name in rows.__struct_fields__})
        return replace(half, requests=kept)

    fit = fitted_factors(
        [first_half(real.run)], again, conditions=bench.conditions, front_s=bench.world.front_s
    )
    run = bench.replay(real, fit.factors)
    pace = [float(np.mean(metrics.tpot(r)[HALF:])) for r in (real.run, run)]
    wait = [float(np.median(metrics.ttft(r)[HALF:])) for r in (real.run, run)]
    with capsys.disabled():
        print(f"\n{replay.file}: {fit.factors}")
        print(f"  residuals of the first half {fit.rms_before:.1%} before, {fit.rms:.1%} after")
        for name, (was, said) in (("TPOT mean", pace), ("TTFT p50", wait)):
            print(f"  {name:10} measured {was:8.4f} predicted {said:8.4f} {said / was - 1:+7.1%}")
    assert fit.rms < 0.05 < fit.rms_before
    assert pace[1] == pytest.approx(pace[0], rel=replay.pace_error)
    assert wait[1] == pytest.approx(wait[0], rel=replay.start_error)
