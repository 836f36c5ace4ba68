"""Published results of one deployment at several loads: fitted to all lengths but one, which they
must foretell better than the prediction did.

InferenceX DeepSeek-R1 rows (SemiAnalysis, Apache-2.0), aggregated and without drafts; only rows
whose first 17 columns have an even CRC-32, the odd ones are for releases.
"""

import csv
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from splitpoint.errors import PlanError
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.plan import DeploymentPlan, PoolPlan
from splitpoint.live import imports
from splitpoint.live.factors import fitted_factors
from splitpoint.measurement import Measurement, of_run
from splitpoint.search.bench import Bench, bench_of
from splitpoint.timing.fitted import Factors

TABLE = Path(__file__).resolve().parents[2] / "shared" / "truth" / "inferencex_dsr1_configs.csv"
pytestmark = pytest.mark.skipif(not TABLE.exists(), reason="needs ../shared")

GPUS = {"h200": "H200", "b200": "B200", "b300": "B300"}
MODELS = {"fp8": "deepseek-ai/DeepSeek-R1", "fp4": "nvidia/DeepSeek-V3.1-NVFP4"}
# Of one deployment so many even rows at least, over two lengths at least.
LEAST_ROWS = 4


class Deployed(NamedTuple):
    """What tells deployments apart in the table."""

    hardware: str
    precision: str
    tp: int
    ep: int


class Errors(NamedTuple):
    """log(predicted / measured) of the rows that were left out."""

    ttft: list[float]
    tpot: list[float]
    rate: list[float]


def deployments() -> dict[Deployed, list[int]]:
    """Numbers of the even rows of each deployment of SGLang without drafts."""
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    found: dict[Deployed, list[int]] = {}
    for number, row in enumerate(csv.DictReader(lines), start=1):
        key = "|".join(list(row.values())[:17])
        plain = (row["framework"], row["spec_method"], row["disagg"]) == ("sglang", "none", "False")
        ours = row["hardware"] in GPUS and row["decode_dp_attention"] == "False"
        if zlib.crc32(key.encode()) % 2 or not plain or not ours:
            continue
        tp, ep = int(row["decode_tp"]), int(row["decode_ep"])
        if ep in (1, tp):
            deployed = Deployed(row["hardware"], row["precision"], tp, ep)
            found.setdefault(deployed, []).append(number)
    return {key: rows for key, rows in found.items() if len(rows) >= LEAST_ROWS}


def bench(deployed: Deployed, rows: list[Measurement]) -> Bench:
    plan = DeploymentPlan(
        model=MODELS[deployed.precision],
        gpu=GPUS[deployed.hardware],
        pools=(PoolPlan(tp=deployed.tp, ep="all" if deployed.ep > 1 else 1),),
        engine=Engine(name="sglang", version="0.5.5", max_len=9472, prefix_caching=False),
    )
    return bench_of(plan, rows)


def off(on: Bench, rows: list[Measurement], factors: Factors, into: Errors) -> None:
    for row in rows:
        guess = of_run(on.replay(row, factors), name=row.name, source="replayed")
        pairs = (
            (into.ttft, guess.ttft.p50, row.ttft.p50),
            (into.tpot, guess.tpot.p50, row.tpot.p50),
        )
        for errors, said, was in pairs:
            assert said is not None and was is not None
            errors.append(float(np.log(said.value / was.value)))
        assert guess.whole and row.whole and guess.whole.output and row.whole.output
        into.rate.append(float(np.log(guess.whole.output / row.whole.output)))


def test_other_lengths_are_foretold_better(capsys: pytest.CaptureFixture[str]) -> None:
    results = imports.read(TABLE)
    before, after = Errors([], [], []), Errors([], [], [])
    with capsys.disabled():
        print(
            "\nleft out: TTFT, TPOT, output rate, median error before -> after the fit to the rest"
        )
        for deployed, numbers in deployments().items():
            rows = [results[number - 1] for number in numbers]
            lengths = sorted({(row.isl or 0, row.osl or 0) for row in rows})
            if len(lengths) < 2:
                continue
            try:
                on = bench(deployed, rows)
            except PlanError as error:
                print(f"  {deployed}: {error}")
                continue
            for left in lengths:
                out = [row for row in rows if (row.isl, row.osl) == left]
                rest = [row for row in rows if (row.isl, row.osl) != left]
                if len(rest) < 2:
                    continue
                front, met = on.world.front_s, on.conditions
                fit = fitted_factors(rest, on.replay, conditions=met, front_s=front)
                was, now = Errors([], [], []), Errors([], [], [])
                off(on, out, Factors(), was)
                off(on, out, fit.factors, now)
                for total, part in ((before, was), (after, now)):
                    for column, values in zip(total, part, strict=True):
                        column.extend(values)
                factors = fit.factors
                print(
                    f"  {deployed.hardware} {deployed.precision} tp{deployed.tp} ep{deployed.ep} "
                    f"{left[0]:.0f}/{left[1]:.0f} ({len(out)} of {len(rows)}): "
                    + ", ".join(
                        f"{np.median(np.abs(a)):.0%} -> {np.median(np.abs(b)):.0%}"
                        for a, b in zip(was, now, strict=True)
                    )
                    + f"; x {factors.decode:.2f} {factors.context:.2f} {factors.prefill:.2f}"
                    + f" +{(factors.front_s or 0.0) * 1e3:.0f} ms"
                )
        for name, a, b in zip(Errors._fields, before, after, strict=True):
            told = (np.median(np.abs(column)) for column in (a, b))
            print(f"  {name}: median of {len(a)} " + " -> ".join(f"{value:.0%}" for value in told))
    # Errors that are near the noise of the rows already may stay there.
    for a, b in zip(before, after, strict=True):
        assert np.median(np.abs(b)) < max(float(np.median(np.abs(a))), 0.12)
