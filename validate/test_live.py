"""`up` and `measure` on a real vLLM: needs `vllm` on the path and VLLM_LAB with a tiny model
(`shared/vllm-cpu/` installs both). Speeds of a CPU prove nothing; what is printed does."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from splitpoint.cli import main
from splitpoint.inputs.deployment import Deployment, Pool, Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.facts import gpu
from splitpoint.inputs.plan import Plan
from splitpoint.inputs.slo import Slo
from splitpoint.inputs.workload import Workload
from splitpoint.recipes import bundle
from splitpoint.recipes.serving import serving
from splitpoint.run import read

MODEL = Path(os.environ.get("VLLM_LAB", "none"), "models", "tiny-qwen3")
# What a CPU wants other than a GPU: its smallest block is 32, and its memory is the host's.
CPU = ("--block-size", "128", "--kv-cache-memory-bytes", str(2**28))


@pytest.mark.skipif(
    shutil.which("vllm") is None or not MODEL.is_dir(), reason="needs vllm and VLLM_LAB"
)
def test_a_real_engine_is_started_measured_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str | Path) -> Any:
        monkeypatch.setattr(sys, "argv", ["splitpoint", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        told = capsys.readouterr()
        assert left.value.code == 0, told.err
        return json.loads(told.out)

    plan = Plan(
        model=str(MODEL),
        gpu="H100 SXM",
        gpus=1,
        workload=Workload(isl=128, osl=16, concurrency=2, requests=12),
        slo=Slo(ttft_s=5, tpot_s=0.5),
    )
    engine = Engine(max_len=4096, batched_tokens=1024, graphs=False)
    pool = Pool(role="mixed", topology=Topology(), replicas=1, engine=engine)
    made = serving(str(MODEL), gpu("H100 SXM"), Deployment(pools=(pool,)))
    recipe, run = tmp_path / "recipe", tmp_path / "run.npz"
    bundle.write(replace(made, plan=plan), recipe)
    try:
        started = said("up", recipe, "--json", "--timeout", "600", "--", *CPU)
        figures = {row["name"]: row for row in started["instances"][0]["figures"]}
        for name in ("kv_tokens", "concurrency"):
            assert figures[name]["printed"] == pytest.approx(figures[name]["predicted"], rel=2e-3)
        found = said("measure", recipe, "--out", run, "--json")
    finally:
        assert said("up", recipe, "--down", "--json")["stopped"] in ([], ["mixed-0"])
    rows = {(row["metric"], row["statistic"]): row for row in found["rows"]}
    assert found["mismatches"] == [] and rows["success", "share"]["measured"] == 1.0
    requests = read(run).requests
    # The client's random prompts are text: tokenised anew, a few come out a token longer.
    assert len(requests) == 12 and set(requests.osl.tolist()) == {16}
    assert requests.isl == pytest.approx(128, abs=2)
