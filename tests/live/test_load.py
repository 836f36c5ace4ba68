"""A running recipe is measured by a stand-in for vLLM's client, beside what is predicted."""

import json
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from splitpoint.cli import main
from splitpoint.errors import OutsideError, PlanError
from splitpoint.inputs.deployment import Deployment, Pool, Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.facts import gpu
from splitpoint.inputs.plan import Plan, Search, read_deployment
from splitpoint.inputs.slo import Slo
from splitpoint.inputs.trace import Trace
from splitpoint.inputs.traces.requests import trace_of
from splitpoint.inputs.workload import Workload
from splitpoint.live import load, program
from splitpoint.recipes import bundle
from splitpoint.recipes.serving import Serving, serving
from splitpoint.run import OUTCOMES
from splitpoint.run import read as read_run
from tests.live.programs import put_on_path
from tests.recipes import fake

MODEL, GPU = "Qwen/Qwen3-8B", "H100 SXM"
SHAPE = Workload(isl=256, osl=16, concurrency=4, requests=16)
PREFIXES = (
    {"timestamp": 1000, "input_length": 700, "output_length": 4, "hash_ids": [0, 1]},
    {"timestamp": 3500, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
)


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the stand-in was asked; and it is on the path."""
    put_on_path(tmp_path / "bin", monkeypatch)
    monkeypatch.setenv("STAND_IN_SEEN", str(tmp_path / "seen.json"))
    return tmp_path / "seen.json"


@pytest.fixture
def url() -> Iterator[str]:
    with fake.engine(fake.Behaviour()) as at:
        yield at


def recipe(folder: Path, workload: Workload) -> Path:
    """A recipe of one instance whose plan asked this."""
    plan = Plan(model=MODEL, gpu=GPU, gpus=1, workload=workload, slo=Slo(ttft_s=1, tpot_s=0.1))
    pool = Pool(role="mixed", topology=Topology(), replicas=1, engine=Engine(max_len=4096))
    made: Serving = replace(serving(MODEL, gpu(GPU), Deployment(pools=(pool,))), plan=plan)
    bundle.write(made, folder)
    return folder


@pytest.fixture
def splitpoint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: str | Path) -> Any:
        monkeypatch.setattr(sys, "argv", ["splitpoint", "measure", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    return call


def test_the_load_of_the_prediction_is_asked_and_compared(
    splitpoint: Any, seen: Path, url: str, tmp_path: Path
) -> None:
    folder, out = recipe(tmp_path / "recipe", SHAPE), tmp_path / "run.npz"
    code, said, told = splitpoint(folder, "--url", url, "--out", out, "--seed", "7", "--json")
    assert code == 0, told
    found = json.loads(said)
    rows = {(row["metric"], row["statistic"]): row for row in found["rows"]}
    assert rows["TTFT", "mean"]["measured"] == pytest.approx(0.2)
    assert rows["TPOT", "p50"]["measured"] == pytest.approx(0.01)
    assert 0 < rows["TPOT", "p50"]["predicted"] < 0.1
    assert (found["predicted_source"], found["mismatches"]) == ("simulated", [])
    assert found["notes"][-2] == f"measured at {url}: m on 1xTP1"
    assert "--max-concurrency 4 --num-prompts 16 --seed 7" in found["notes"][-1]
    run = read_run(out)
    assert (run.origin, run.gpus, len(run.requests)) == ("measured", 1, 16)
    assert run.notes == tuple(found["notes"][-2:])
    words, _ = json.loads(seen.read_text())
    asked = dict(pairwise(words))
    assert (asked["--random-input-len"], asked["--random-output-len"]) == ("256", "16")
    # The engine serves "m", whatever the recipe called it.
    assert (asked["--base-url"], asked["--model"], asked["--served-model-name"]) == (
        url,
        MODEL,
        "m",
    )
    assert "--ignore-eos" in words and asked["--num-warmups"] == "4"


def test_prompts_are_new_each_time(splitpoint: Any, seen: Path, url: str, tmp_path: Path) -> None:
    folder = recipe(tmp_path / "recipe", SHAPE)
    seeds = set()
    for name in ("a.npz", "b.npz"):
        assert splitpoint(folder, "--url", url, "--out", tmp_path / name)[0] == 0
        words, _ = json.loads(seen.read_text())
        seeds.add(words[words.index("--seed") + 1])
    assert len(seeds) == 2


def test_a_trace_goes_out_with_its_times_and_prefixes(
    splitpoint: Any, seen: Path, url: str, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in PREFIXES))
    folder = recipe(tmp_path / "recipe", Workload(trace=str(trace)))
    assert splitpoint(folder, "--url", url, "--out", tmp_path / "run.npz")[0] == 0
    words, lines = json.loads(seen.read_text())
    assert "--no-self-timed" not in words
    assert words[words.index("--timed-trace-chunk-hash-size") + 1] == "512"
    assert [line["timestamp"] for line in lines] == [0.0, 2.5]
    assert [line["input_length"] for line in lines] == [700, 1100]
    assert lines[1]["hash_ids"][:1] == lines[0]["hash_ids"][:1]
    code = splitpoint(folder, "--url", url, "--out", tmp_path / "b.npz", "--concurrency", "2")[0]
    words, lines = json.loads(seen.read_text())
    assert (code, words[-1]) == (0, "result.json") and "--no-self-timed" in words


def test_varied_lengths_go_out_one_by_one_and_share_nothing(
    splitpoint: Any, seen: Path, url: str, tmp_path: Path
) -> None:
    varied = {"isl": {"mean": 300, "cv": 0.5}, "osl": 8, "rate": 5.0, "requests": 20}
    folder = recipe(tmp_path / "recipe", SHAPE)
    file = json.loads((folder / "deployment.json").read_text())
    (folder / "deployment.json").write_text(json.dumps(file | {"workload": varied}))
    code, said, told = splitpoint(folder, "--url", url, "--out", tmp_path / "run.npz", "--json")
    assert code == 0, told
    assert json.loads(said)["mismatches"] == []
    _, lines = json.loads(seen.read_text())
    ids = [number for line in lines for number in line["hash_ids"]]
    assert len({line["input_length"] for line in lines}) > 5
    assert len(ids) == len(set(ids))
    assert all(len(line["hash_ids"]) == -(-line["input_length"] // 16) for line in lines)


def test_think_times_that_the_client_cannot_keep_are_not_predicted_either(tmp_path: Path) -> None:
    folder = recipe(tmp_path / "recipe", Workload(preset="chat", scale=2.0, requests=40))

    def sent(concurrency: int | None, rate: float | None) -> Trace:
        asked = load.asked(
            folder, trace=None, requests=20, concurrency=concurrency, rate=rate
        ).workload
        assert asked is not None
        return trace_of(asked, base=folder)

    timed, paced, users = sent(None, None), sent(None, 5.0), sent(3, None)
    assert [len(trace) for trace in (timed, paced, users)] == [20, 20, 20]
    assert not timed.closed and not paced.closed
    assert users.closed and not users.think_s.any() and users.session.max() == 2


def test_a_trace_does_not_go_through_sglangs_router(tmp_path: Path) -> None:
    def asked(workload: Workload, replicas: int, url: str | None) -> Workload | None:
        plan = Plan(model=MODEL, gpu=GPU, gpus=2, workload=workload, slo=Slo(ttft_s=1, tpot_s=0.1))
        engine = Engine(name="sglang", version="0.5.23", max_len=4096)
        pool = Pool(role="mixed", topology=Topology(), replicas=replicas, engine=engine)
        made = replace(serving(MODEL, gpu(GPU), Deployment(pools=(pool,))), plan=plan)
        bundle.write(made, tmp_path / f"{replicas}")
        return load.asked(
            tmp_path / f"{replicas}", trace=None, requests=2, concurrency=1, rate=None, url=url
        ).workload

    varied = Workload(preset="chat")
    with pytest.raises(PlanError, match="as token ids, which SGLang's router does not take"):
        asked(varied, 2, None)
    assert asked(varied, 1, None) and asked(varied, 2, "http://10.0.0.1:8100")
    assert asked(SHAPE, 2, None)


def test_failures_are_counted_and_told(
    splitpoint: Any, seen: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = recipe(tmp_path / "recipe", SHAPE), tmp_path / "run.npz"
    monkeypatch.setenv("STAND_IN_BENCH", "0.25")
    code, said, _ = splitpoint(folder, "--url", url, "--out", out, "--json")
    found = json.loads(said)
    success = next(row for row in found["rows"] if row["metric"] == "success")
    assert (code, success["measured"]) == (0, 0.75)
    assert "4 requests failed: Traceback: refused" in found["notes"]
    assert [OUTCOMES[n] for n in read_run(out).requests.outcome[:5]] == ["unfinished"] * 4 + [
        "done"
    ]
    out.unlink()
    monkeypatch.setenv("STAND_IN_BENCH", "1")
    code, said, told = splitpoint(folder, "--url", url, "--out", out)
    assert (code, said, out.exists()) == (1, "", False)
    assert told.endswith("no request finished; 16 requests failed: OSError: refused\n")
    monkeypatch.setenv("STAND_IN_BENCH", "die")
    code, said, told = splitpoint(folder, "--url", url, "--out", out)
    assert (code, out.exists()) == (1, False)
    assert "vllm bench serve failed: vllm bench serve: error: argument --dataset-name" in told


@pytest.mark.parametrize(
    ("workload", "words", "code", "told"),
    [
        (replace(SHAPE, concurrency=(4, 8)), (), 2, "lists several loads: 4, 8"),
        (SHAPE, ("--rate", "1", "--concurrency", "2"), 2, "both --concurrency and --rate"),
        (SHAPE, ("--out", "run.json"), 2, "is not a run file name"),
        (SHAPE, ("--url", "http://127.0.0.1:9"), 1, "no engine answers"),
        (SHAPE, ("--url", "nowhere"), 2, "such as http://127.0.0.1:8000"),
        (SHAPE, ("--trace", "absent.jsonl"), 2, "absent.jsonl: no such file"),
    ],
)
def test_what_cannot_be_measured_is_told_in_one_line(
    splitpoint: Any,
    tmp_path: Path,
    workload: Workload,
    words: tuple[str, ...],
    code: int,
    told: str,
) -> None:
    folder = recipe(tmp_path / "recipe", workload)
    said = splitpoint(folder, "--out", tmp_path / "run.npz", *words)
    assert (said[0], said[1], said[2].count("\n")) == (code, "", 1)
    assert told in said[2]
    assert list(tmp_path.glob("*.npz")) == []


def test_a_recipe_of_an_older_version_says_what_would_do(splitpoint: Any, tmp_path: Path) -> None:
    folder = recipe(tmp_path / "recipe", SHAPE)
    (folder / "deployment.json").unlink()
    code, _, told = splitpoint(folder, "--out", tmp_path / "run.npz")
    assert code == 2 and "write the recipe anew" in told


def test_the_deployment_file_says_what_the_plan_chose(tmp_path: Path) -> None:
    decode = Pool(
        role="decode",
        topology=Topology(tp=2, dp=2, ep=4),
        replicas=1,
        engine=Engine(drafts=3, max_graph=128, curve="curve.json"),
    )
    prefill = replace(decode, role="prefill", replicas=2, topology=Topology(tp=4))
    deployment = Deployment(pools=(prefill, decode), routing="session", decode_routing="random")
    plan = Plan(
        model=MODEL,
        gpu=replace(gpu(GPU), hbm_gib=70.0),
        gpus=12,
        workload=SHAPE,
        slo=Slo(ttft_s=1, tpot_s=0.1),
        search=Search(transfer_bandwidth=3.5e9, kv_pool_gib=9, layerwise=True, direct_below=64),
    )
    made = replace(serving(MODEL, gpu(GPU), deployment), plan=plan)
    (tmp_path / "deployment.json").write_text(bundle.files(made)["deployment.json"])
    read = read_deployment(tmp_path / "deployment.json")
    beside = str(tmp_path / "curve.json")
    pools = tuple(
        replace(p, engine=replace(p.engine, curve=beside), gpu=GPU) for p in deployment.pools
    )
    assert read.deployment == replace(deployment, pools=pools)
    assert (read.gpu, read.workload, read.slo) == (plan.gpu, plan.workload, plan.slo)
    assert (read.transfer_bandwidth, read.kv_pool_gib) == (3.5e9, 9)
    assert (read.layerwise, read.direct_below) == (True, 64)


def test_an_interrupted_program_leaves_nothing_behind(tmp_path: Path) -> None:
    script = tmp_path / "long.sh"
    script.write_text("sleep 600 & echo $! $$; wait")
    heard: list[str] = []

    def interrupt(line: str) -> None:
        heard.append(line)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        program.run(["bash", str(script)], hear=interrupt)
    for pid in heard[0].split():
        while ended(int(pid)) is False:
            time.sleep(0.01)


def ended(pid: int) -> bool:
    """Whether the process is gone, or waits to be reaped by whoever inherited it."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match="no-such-program: cannot be run: No such file"):
        program.run([str(tmp_path / "no-such-program")], hear=lambda _: None)
    assert not list(tmp_path.iterdir())
