"""Real results of ../shared through the importers: arrays must give the tool's own summary."""

import json
from pathlib import Path

import pytest

from splitpoint.live import imports
from splitpoint.verdict.check import check

TRUTH = Path(__file__).resolve().parents[2] / "shared" / "truth"
BENCH = sorted((TRUTH / "bench").glob("*.json"))
pytestmark = pytest.mark.skipif(not BENCH, reason="needs ../shared")


@pytest.mark.parametrize("path", BENCH, ids=lambda path: path.stem)
def test_requests_give_the_summary_that_the_tool_printed(path: Path) -> None:
    told = json.loads(path.read_text())
    (found,) = imports.read(path)
    for name, statistic in (("ttft", found.ttft), ("tpot", found.tpot), ("e2el", found.e2el)):
        for label, estimate in (("mean", statistic.mean), ("median", statistic.p50)):
            assert estimate is not None
            assert estimate.value * 1e3 == pytest.approx(told[f"{label}_{name}_ms"], rel=1e-6)
        if statistic.p90 and f"p90_{name}_ms" in told:
            assert statistic.p90.value * 1e3 == pytest.approx(told[f"p90_{name}_ms"], rel=1e-6)
    assert found.whole is not None
    assert found.whole.output == pytest.approx(told["output_throughput"], rel=1e-6)
    assert check(found, found).beyond == ()


def test_every_row_of_the_tables_is_read() -> None:
    assert len(imports.read(TRUTH / "inferencex_dsr1_configs.csv")) == 357
    rows = imports.read(TRUTH / "bench" / "sweep_summary.csv")
    assert {row.concurrency for row in rows} and all(row.tpot.mean for row in rows)


@pytest.mark.parametrize("model", ["Qwen3-32B", "Qwen3-30B-A3B-Instruct-2507"])
def test_logged_requests_are_whole(model: str) -> None:
    (found,) = imports.read(TRUTH / "vllm_replays" / f"RTXPRO6000_{model}__requests.jsonl")
    assert found.run is not None and found.requests == 300 and found.success == 1.0
