"""The command line as a user meets it: what it prints, where, and with which exit code."""

import json
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from splitpoint.cli import main
from splitpoint.run import read as read_run
from splitpoint.timing import fitted
from splitpoint.timing.fitted import Conditions, Factors
from tests.live.exports import vllm_bench, written
from tests.live.test_steps import START, step
from tests.timing.test_fitted import FITTED

EXAMPLE = str(Path(__file__).parents[1] / "examples" / "chat-h100.toml")
COMMANDS = [
    "price",
    "trace",
    "plan",
    "phases",
    "simulate",
    "recipe",
    "up",
    "measure",
    "audit",
    "check",
    "fit",
    "report",
]


class Said:
    """Exit code, stdout and stderr of one call."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def splitpoint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: str | Path) -> Said:
        monkeypatch.setattr(sys, "argv", ["splitpoint", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return Said(int(left.value.code or 0), said.out, said.err)

    return call


def test_help_names_every_command_of_the_design(splitpoint: Any) -> None:
    said = splitpoint("--help")
    assert said.code == 0
    assert [word for word in COMMANDS if word not in said.out] == []


def test_the_version_is_told(splitpoint: Any) -> None:
    said = splitpoint("--version")
    assert said.code == 0 and said.out == f"splitpoint {version('splitpoint')}\n"


def test_price_answers_with_the_keys_of_the_design(splitpoint: Any) -> None:
    said = splitpoint(
        "price", "Qwen/Qwen3.8-2.4T-A95B", "--gpu", "GB300", "--kv-dtype", "fp8",
        "--state-dtype", "bf16", "--no-prefix-caching", "--context", "9216", "--json",
    )  # fmt: skip
    assert (said.code, said.err) == (0, "")
    priced = said.json
    assert priced["block_tokens"] == 2112
    assert sorted(group["blocks"] for group in priced["groups"]) == [69, 115]
    request = priced["request"]
    assert request["blocks"] == 184
    assert request["bytes"] == 759 * 2**20
    assert request["fixed_share"] == 0.375
    assert (request["slots"], request["unused_slots"]) == (10_560, 1_344)
    assert round(request["unused_share"], 3) == 0.127
    assert priced["fits"] is False and priced["shortfall"] > 0
    wanted = {
        "page_bytes", "unsharded_request_bytes", "ladder", "kv_bytes_available", "num_blocks",
        "max_concurrency", "kv_tokens_reported",
    }  # fmt: skip
    assert wanted <= priced.keys()
    assert {"rung", "bytes", "origin"} <= priced["ladder"][0].keys()


def test_price_compares_layouts(splitpoint: Any) -> None:
    said = splitpoint(
        "price", "Qwen3-30B-A3B", "--gpu", "H20", "--compare", "tp1 tp2 tp4", "--json"
    )
    assert [row["gpus"] for row in said.json["rows"]] == [1, 2, 4]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["price", "no-such-model", "--gpu", "H20"], "no-such-model"),
        (["price", "Qwen3-30B-A3B", "--gpu", "H2O"], "H2O"),
        (["price", "Qwen3-30B-A3B"], "--gpu"),
        (["price", "Qwen3-30B-A3B", "--tp", "x"], "--tp"),
        (["price", "Qwen3-30B-A3B", "--gpu", "H20", "--tp", "3"], "TP3"),
        (["price", "Qwen3-30B-A3B", "--gpu", "H20", "--set", "kv=-1GiB"], "--set"),
        (["plan", "no-such-file.toml"], "no-such-file.toml"),
        (["plan"], "plan"),
        (["trace"], "trace"),
        (["trace", "--preset", "nonsense"], "nonsense"),
        (["nonsense"], "nonsense"),
        (["price", "Qwen3-30B-A3B", "--nonsense"], "--nonsense"),
        (["recipe", "no-such-folder"], "no-such-folder"),
        (["report", "no-such-folder"], "no-such-folder"),
        (["audit", "no-such.log"], "no-such.log"),
        (["simulate", "no-such.toml"], "no-such.toml"),
        (["phases", "no-such.toml"], "no-such.toml"),
        (["check", "no-such.npz", "no-such.json"], "no-such.npz"),
        (["check", EXAMPLE, EXAMPLE], "chat-h100.toml"),
        (["fit", "no-such.json", "--deployment", EXAMPLE], "chat-h100.toml"),
        (["fit", "no-such.json"], "--deployment"),
        (["plan", EXAMPLE, "--curve", "no-such-curve.json"], "no-such-curve.json"),
        (["price", "Qwen3-30B-A3B", "--gpu", "H20", "--compare", " "], "--compare"),
        (["phases", EXAMPLE, "--topologies", "tpx"], "tpx"),
        (["phases", EXAMPLE, "--concurrency", "1,none"], "--concurrency"),
        (["phases", EXAMPLE, "--drafts", "99"], "--drafts"),
    ],
)
def test_bad_input_ends_in_one_line_that_names_it(
    splitpoint: Any, words: list[str], named: str
) -> None:
    said = splitpoint(*words)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("splitpoint: ") and said.err.count("\n") == 1
    assert named in said.err


def test_trace_describes_a_preset_and_converts_it(splitpoint: Any, tmp_path: Path) -> None:
    target = tmp_path / "chat.jsonl"
    said = splitpoint("trace", "--preset", "chat", "--first", "50", "--to", target, "--json")
    assert said.code == 0 and said.json["requests"] == 50
    again = splitpoint("trace", target, "--json").json
    assert (again["requests"], again["input_tokens"]) == (50, said.json["input_tokens"])


PLAN = """
model = "Qwen/Qwen3-30B-A3B"
gpu = "H20"
gpus = 2
[workload]
isl = 2000
osl = 100
rate = 2.0
requests = 60
[slo]
ttft_s = 5.0
tpot_s = 0.05
[search]
tp = [1]
routing = ["round_robin"]
"""


def test_a_plan_becomes_a_folder_that_can_be_read_again(splitpoint: Any, tmp_path: Path) -> None:
    file, out = tmp_path / "plan.toml", tmp_path / "out"
    file.write_text(PLAN)
    said = splitpoint("plan", file, "--out", out, "--json")
    assert said.code == 0, said.err
    answer = said.json
    assert answer == json.loads((out / "plan.json").read_text())
    assert answer["verdict"]["choice"] in ("split", "mixed", "either", "neither")
    assert (out / "report.html").stat().st_size > 10_000
    for point in answer["points"]:
        assert not point["run_file"] or (out / point["run_file"]).is_file()
    assert all((out / name).is_file() for name in answer["recipes"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "plan.toml"]

    text = splitpoint("report", out)
    assert text.code == 0 and answer["verdict"]["headline"][:20] in " ".join(text.out.split())
    recipe = splitpoint("recipe", out / "plan.json", "--out", tmp_path / "r", "--json")
    assert recipe.code == 0 and recipe.json["files"]
    for script in (tmp_path / "r").glob("*.sh"):
        subprocess.run(["bash", "-n", script], check=True)
    # What `measure` will predict is what the plan predicted.
    chosen = next(p for p in answer["points"] if p["name"] == answer["verdict"]["chosen"])
    again = splitpoint("simulate", tmp_path / "r" / "deployment.json", "--json").json
    assert [again["ttft"]["p90"], again["tpot"]["p90"], again["output_tok_s"]] == [
        chosen["ttft"]["p90"], chosen["tpot"]["p90"], chosen["output_tok_s"]
    ]  # fmt: skip


def test_simulate_gives_a_run_and_its_summary(splitpoint: Any, tmp_path: Path) -> None:
    file, run = tmp_path / "deployment.toml", tmp_path / "run.npz"
    file.write_text(
        'model = "Qwen/Qwen3-30B-A3B"\ngpu = "H20"\n'
        '[[pools]]\nrole = "prefill"\n[[pools]]\nrole = "decode"\n'
        "[workload]\nisl = 1000\nosl = 50\nrate = 1.0\nrequests = 40\n"
    )
    said = splitpoint("simulate", file, "--out", run, "--json")
    assert said.code == 0, said.err
    assert said.json["success"] == 1.0 and said.json["requests"] == 40
    stack = said.json["ttft_stack"]
    assert sum(stack.values()) == pytest.approx(said.json["ttft"]["mean"])
    assert [state["role"] for state in said.json["instances"]] == ["prefill", "decode"]
    assert run.is_file()
    assert splitpoint("simulate", file, "--json").json == said.json


def test_simulate_says_what_another_trace_takes_the_place_of(
    splitpoint: Any, tmp_path: Path
) -> None:
    file, trace = tmp_path / "deployment.toml", tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [1]}\n')
    text = 'model = "Qwen/Qwen3-30B-A3B"\ngpu = "H20"\n[[pools]]\nrole = "mixed"\n'
    text += "[workload]\nisl = 1000\nosl = 50\nrequests = 40\nrate = 5.0\n"
    file.write_text(text)
    notes = splitpoint("simulate", file, "--trace", trace, "--json").json["notes"]
    assert any("the file's rate, requests of [workload] do not count" in note for note in notes)
    assert not any(
        "do not count" in n for n in splitpoint("simulate", file, "--json").json["notes"]
    )
    file.write_text(text.partition("[workload]")[0])
    bare = splitpoint("simulate", file, "--trace", trace, "--json").json["notes"]
    assert not any("do not count" in note for note in bare)


def test_simulate_takes_the_handover_and_the_clients_patience(
    splitpoint: Any, tmp_path: Path
) -> None:
    file = tmp_path / "deployment.toml"
    file.write_text(
        'model = "Qwen/Qwen3-30B-A3B"\ngpu = "H20"\ntransfer_bandwidth = 1e9\n'
        '[[pools]]\nrole = "prefill"\n[[pools]]\nrole = "decode"\n'
        "[workload]\nisl = 8000\nosl = 50\nrate = 0.2\nrequests = 40\n"
    )

    def of(*texts: str) -> Any:
        sets = [word for text in texts for word in ("--set", text)]
        return splitpoint("simulate", file, "--json", *sets).json

    plain = of()
    # 0.79 GB at 1 GB/s, of which much moves layer by layer while prefill takes its 0.6 s.
    before, after = (one["ttft_stack"]["transfer"] for one in (plain, of("layerwise=true")))
    assert before > 0.79 and before - after == pytest.approx(0.6, rel=0.1)
    here = of("direct_below=8001")
    assert here["ttft_stack"]["transfer"] == 0
    assert here["instances"][0]["prefill_steps"] == 0
    assert of("direct_below=8000")["ttft"] == plain["ttft"]
    late = of("workload.timeout_s=0.5")
    assert late["success"] == 0 and late["outcomes"] == {"timed_out": 40}
    assert of("workload.timeout_s=60")["outcomes"] == {"done": 40}
    assert of("workload.abort_s=0.5")["outcomes"] == {"aborted": 40}


def test_simulate_takes_a_gpu_for_each_pool(splitpoint: Any, tmp_path: Path) -> None:
    file = tmp_path / "deployment.toml"
    file.write_text(
        'model = "Qwen/Qwen3-30B-A3B"\ngpu = "H20"\n'
        '[[pools]]\nrole = "prefill"\ngpu = "H100 SXM"\n[[pools]]\nrole = "decode"\n'
        "[workload]\nisl = 8000\nosl = 50\nrate = 0.1\nrequests = 20\n"
    )
    unlike, h20, h100 = (
        splitpoint("simulate", file, "--json", *("--set", f"pools.0.gpu={first}", *more)).json
        for first, more in (
            ("H100 SXM", ()),
            ("H20", ()),
            ("H100 SXM", ("--set", "gpu=H100 SXM")),
        )
    )
    assert unlike["deployment"] == "P 1xTP1 on H100 SXM + D 1xTP1 on H20"
    assert "rates per GPU count H100 SXM and H20 alike: set prices beside them" in unlike["notes"]
    # So few requests never meet: prefill is the one GPU's, decode the other's, whose memory is
    # the faster one.
    prefill = [one["ttft_stack"]["prefill"] for one in (unlike, h100, h20)]
    gaps = [one["itl"]["p50"] for one in (unlike, h20, h100)]
    assert prefill[0] == pytest.approx(prefill[1]) and prefill[2] > 2 * prefill[0]
    assert gaps[0] == pytest.approx(gaps[1]) and gaps[2] > 1.02 * gaps[0]


def test_a_trace_is_found_beside_the_file_that_names_it(
    splitpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "plans"
    folder.mkdir()
    row = {"timestamp": 0, "input_length": 100, "output_length": 4}
    (folder / "trace.jsonl").write_text(json.dumps(row) + "\n")
    plan = (
        'model = "Qwen/Qwen3-30B-A3B"\ngpu = "H20"\ngpus = 1\n'
        '[workload]\ntrace = "trace.jsonl"\n[slo]\nttft_s = 5.0\ntpot_s = 0.05\n'
    )
    (folder / "plan.toml").write_text(plan)
    deployment = plan.replace("gpus = 1\n", "") + "[[pools]]\n"
    (folder / "deployment.toml").write_text(deployment)
    monkeypatch.chdir(tmp_path)
    for command, file in (
        ("simulate", "plans/deployment.toml"),
        ("simulate", "plans/plan.toml"),
        ("phases", "plans/plan.toml"),
        ("plan", "plans/plan.toml"),
    ):
        more = ("--out", "answer") if command == "plan" else ()
        said = splitpoint(command, file, *more, "--json")
        assert said.code == 0, (command, said.err)


def test_simulate_refuses_what_it_cannot_do_in_one_line(splitpoint: Any, tmp_path: Path) -> None:
    file, trace = tmp_path / "deployment.toml", tmp_path / "trace.jsonl"
    row = {"timestamp": 0, "input_length": 100, "output_length": 4, "hash_ids": [1]}
    trace.write_text(json.dumps(row) + "\n")
    file.write_text('model = "Qwen/Qwen3-30B-A3B"\ngpu = "H20"\n[[pools]]\n')
    asked = ("simulate", file, "--trace", trace)
    for more, code, words in (
        (("--seed", "-1"), 2, "--seed"),
        # Before anything is read or simulated.
        (("--trace", "none.jsonl", "--out", "run.csv"), 2, "run.csv: is not a run file name"),
        (("--set", "kv_pool_gib=1e300"), 2, "kv_pool_gib: "),
        (("--set", "engine.mixed_chunk=true"), 2, f"{file}: pools.0: engine.mixed_chunk: "),
        (
            ("--set", "kv_pool_gib=1e6", "--set", "pools.0.replicas=10000"),
            1,
            "not enough memory: Unable to allocate ",
        ),
    ):
        said = splitpoint(*asked, *more)
        assert said.code == code, said.err
        assert words in said.err and said.err.count("\n") == 1


def test_simulate_tells_what_host_memory_gave_back_and_cuts_as_asked(
    splitpoint: Any, tmp_path: Path
) -> None:
    file, trace = tmp_path / "deployment.toml", tmp_path / "trace.jsonl"
    # Three prompts of 100 blocks take turns in a pool of 0.4 GiB, which holds 273.
    rows = [
        {
            "timestamp": 2000 * n,
            "input_length": 1600,
            "output_length": 4,
            "hash_ids": [10 * (n % 3) + i for i in range(4)],
        }
        for n in range(12)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    file.write_text(
        'model = "Qwen/Qwen3-30B-A3B"\ngpu = "H20"\nkv_pool_gib = 0.4\n[[pools]]\n'
        "[engine]\nhost_kv_gib = 8\nmax_len = 4096\n"
    )
    said = splitpoint("simulate", file, "--trace", trace, "--json")
    assert said.code == 0, said.err
    (state,) = said.json["instances"]
    assert 0 < state["host_hit_share"] <= state["prefix_hit_share"]
    assert "of host" in splitpoint("simulate", file, "--trace", trace).out
    without = ("simulate", file, "--trace", trace, "--set", "engine.host_kv_gib=0")
    (bare,) = splitpoint(*without, "--json").json["instances"]
    assert bare["host_hit_share"] == 0
    assert "of host" not in splitpoint(*without).out
    cut = splitpoint("simulate", file, "--trace", trace, "--warm-up", "0", "--json").json
    assert cut["output_tok_s"] != said.json["output_tok_s"]
    assert splitpoint("simulate", file, "--trace", trace, "--warm-up", "1").code == 2


def test_a_deployment_that_no_engine_would_start_is_refused(
    splitpoint: Any, tmp_path: Path
) -> None:
    file = tmp_path / "deployment.toml"
    file.write_text(
        'model = "Qwen/Qwen3-30B-A3B"\ngpu = "H20"\n[[pools]]\ntp = 3\n'
        "[workload]\nisl = 1000\nosl = 50\nrate = 1.0\nrequests = 4\n"
    )
    said = splitpoint("simulate", file)
    assert said.code == 2 and said.err.count("\n") == 1
    place = f"{file}: pools.0: layout TP3"
    assert said.err.startswith(f"splitpoint: {place}: tp 3 does not divide its 32 attention heads")
    longer = splitpoint(
        "simulate", file, "--set", "pools.0.tp=1", "--set", "engine.max_len=1049", "--json"
    )
    assert longer.json["notes"][-1].startswith("4 requests are longer than the 1,049 tokens")


@pytest.mark.parametrize(
    ("prefill", "why"),
    [
        ('name = "sglang"', "prefill runs sglang and decode vllm: they share no connector"),
        ('kv_dtype = "fp8"', "KV dtypes differ"),
        ("block_size = 32", "blocks of 32 tokens on prefill and 16 on decode"),
    ],
)
def test_a_split_that_could_not_hand_over_is_simulated_and_says_so(
    splitpoint: Any, tmp_path: Path, prefill: str, why: str
) -> None:
    file = tmp_path / "deployment.toml"
    pools = '[[pools]]\nrole = "decode"\n[[pools]]\nrole = "prefill"\n'
    rest = "[workload]\nisl = 1000\nosl = 50\nrate = 1.0\nrequests = 4\n"
    head = 'model = "Qwen/Qwen3-30B-A3B"\ngpu = "H20"\n'
    file.write_text(f"{head}{pools}[pools.engine]\n{prefill}\n{rest}")
    (note,) = splitpoint("simulate", file, "--json").json["notes"]
    assert note.startswith("no real engine hands over here") and why in note
    file.write_text(head + pools + rest)
    assert splitpoint("simulate", file, "--json").json["notes"] == []


def test_a_deployment_that_does_not_start_is_simulated_and_says_so(
    splitpoint: Any, tmp_path: Path
) -> None:
    file = tmp_path / "deployment.toml"
    file.write_text(
        'model = "openai/gpt-oss-120b"\ngpu = "H100 SXM"\n[[pools]]\n'
        "[workload]\nisl = 1000\nosl = 50\nrate = 1.0\nrequests = 4\n"
    )
    assert splitpoint("simulate", file, "--json").json["notes"] == []
    said = splitpoint("simulate", file, "--set", "engine.max_len=131072", "--json")
    (note,) = said.json["notes"]
    assert note.startswith("no real engine starts here: TP1: one request of 131,072 tokens")
    # A pool of no block serves no length, and is not said to serve a negative one.
    said = splitpoint("simulate", file, "--set", "kv_pool_gib=0.001", "--json")
    assert said.json["notes"][-1].startswith("no real engine starts here: TP1: one request of 1 ")
    assert said.json["deployment"] == "1xTP1" and said.json["name"].startswith("1xTP1 budget=8192,")


def test_rates_of_a_load_that_ends_before_its_requests_do_are_told(
    splitpoint: Any, tmp_path: Path
) -> None:
    file = tmp_path / "deployment.toml"
    file.write_text(
        'model = "Qwen/Qwen3-30B-A3B"\ngpu = "H20"\n[[pools]]\n'
        "[workload]\nisl = 100\nosl = 200\nrate = 2.0\nrequests = 40\n"
    )
    assert splitpoint("simulate", file, "--json").json["notes"] == []
    burst = splitpoint("simulate", file, "--set", "workload.rate=500", "--json").json
    assert "of the steady window lie after the last arrival" in burst["notes"][0]


def test_what_no_source_states_of_a_model_is_told(splitpoint: Any, tmp_path: Path) -> None:
    said = splitpoint("price", "Qwen3.8-2.4T", "--gpu", "GB300", "--tp", "8", "--json").json
    assert "inferred, not stated: vocab_size: as Qwen3.5" in said["warnings"]
    config = tmp_path / "config.json"
    stated = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"intermediate_size": 128, "vocab_size": 512, "max_position_embeddings": 2048}
    config.write_text(json.dumps({"model_type": "newcomer", **stated, **more}))
    warnings = splitpoint("price", config, "--gpu", "L4", "--json").json["warnings"]
    assert any("model_type 'newcomer' is not known" in warning for warning in warnings)
    config.write_text(json.dumps({"model_type": "llama", **stated, **more}))
    warnings = splitpoint("price", config, "--gpu", "L4", "--json").json["warnings"]
    assert not any("inferred" in warning for warning in warnings)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_plan_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    code = "from splitpoint.cli import main; main()"
    asked = [sys.executable, "-c", code, "plan", EXAMPLE, "--out", str(tmp_path / "plan")]
    with subprocess.Popen(asked, stderr=subprocess.PIPE, text=True) as running:
        while not list(tmp_path.iterdir()):
            time.sleep(0.01)
            assert running.poll() is None
        running.terminate()
        _, said = running.communicate()
    assert running.returncode == 130
    assert said == "splitpoint: interrupted; nothing was written\n"
    assert list(tmp_path.iterdir()) == []


def test_phases_gives_both_phases_of_each_instance(splitpoint: Any, tmp_path: Path) -> None:
    file, out = tmp_path / "plan.toml", tmp_path / "phases"
    file.write_text(PLAN)
    said = splitpoint(
        "phases", file, "--topologies", "tp1,tp2", "--concurrency", "1,8", "--out", out, "--json"
    )
    assert said.code == 0, said.err
    assert said.json == json.loads((out / "phases.json").read_text())
    kinds = {(p["phase"], p["topology"], p["concurrency"]) for p in said.json["points"]}
    assert kinds == {
        (p, t, c) for p in ("prefill", "decode") for t in ("TP1", "TP2") for c in (1, 8)
    }
    assert "decode.svg" in said.err and said.err.count("\n") == 1


def test_check_sets_a_prediction_beside_what_a_tool_measured(
    splitpoint: Any, tmp_path: Path
) -> None:
    file, run = tmp_path / "deployment.toml", tmp_path / "run.npz"
    file.write_text(
        'model = "Qwen/Qwen3-30B-A3B"\ngpu = "H20"\n[[pools]]\nrole = "mixed"\n'
        "[workload]\nisl = 1000\nosl = 50\nconcurrency = 4\nrequests = 60\n"
    )
    assert splitpoint("simulate", file, "--out", run).code == 0
    measured = written(tmp_path / "bench.json", vllm_bench(read_run(run), detailed=True))
    said = splitpoint("check", run, measured, "--json")
    assert (said.code, said.err) == (0, "")
    rows = {(row["metric"], row["statistic"]): row for row in said.json["rows"]}
    assert rows["TTFT", "mean"]["ratio"] == pytest.approx(1) and not rows["TTFT", "mean"]["beyond"]
    assert rows["TPOT", "p90"]["ratio"] == pytest.approx(1)
    assert rows["output", "rate"]["ratio"] == pytest.approx(1)
    slow = written(tmp_path / "slow.json", vllm_bench(read_run(run)) | {"mean_tpot_ms": 1e3})
    text = splitpoint("check", run, slow)
    assert text.code == 0 and "Beyond noise: TPOT" in text.out


CONDITIONS = Conditions(
    model="Qwen/Qwen3-30B-A3B",
    gpu="H20",
    engine="vllm",
    engine_version="0.32.0",
    instances=("TP8",),
)


def test_a_log_of_steps_is_fitted_without_a_replay(splitpoint: Any, tmp_path: Path) -> None:
    file, log, curve = (tmp_path / name for name in ("d.toml", "server.log", "curve.json"))
    file.write_text(
        'model = "Qwen/Qwen3-30B-A3B"\ngpu = "H20"\n[[pools]]\nrole = "mixed"\n'
        "[engine]\nmax_seqs = 32\nbatched_tokens = 2048\nmax_len = 4096\n"
    )
    log.write_text("\n".join([*START, *(step(0, 0, 4, 20.0, 4000 + 4 * i) for i in range(50))]))
    said = splitpoint("fit", log, "--deployment", file, "--out", curve, "--json")
    assert said.code == 0, said.err
    assert said.json["factors"]["decode"] > 1 and said.json["errors"]["prefill"] is None
    assert said.json["isl"] is None
    text = splitpoint("fit", log, "--deployment", file, "--out", curve)
    assert "step time of 50" in text.out and "input tokens" not in text.out
    run = ("simulate", file, "--curve", curve, "--json", "--set", "workload.isl=500")
    more = ("--set", "workload.osl=20", "--set", "workload.concurrency=4")
    assert splitpoint(*run, *more).code == 0
    mixed = splitpoint("fit", log, tmp_path / "bench.json", "--deployment", file)
    assert mixed.code == 2 and "fit logs, or results" in mixed.err


def test_a_fitted_curve_corrects_the_prediction_that_it_was_fitted_to(
    splitpoint: Any, tmp_path: Path
) -> None:
    file, run, curve = (tmp_path / name for name in ("d.toml", "run.npz", "curve.json"))
    file.write_text(
        'model = "Qwen/Qwen3-30B-A3B"\ngpu = "H20"\n[[pools]]\nrole = "mixed"\n'
        "[engine]\nmax_seqs = 32\nbatched_tokens = 2048\nmax_len = 4096\n"
        "[workload]\nisl = 1000\nosl = 50\nconcurrency = 4\nrequests = 60\n"
    )
    # A server that takes twice as long as predicted, behind a front end of 20 ms.
    factors = Factors(decode=2, context=2, prefill=2, front_s=0.02)
    fitted.write(replace(FITTED, conditions=CONDITIONS, factors=factors), curve)
    assert splitpoint("simulate", file, "--curve", curve, "--out", run).code == 0
    slow = vllm_bench(read_run(run))
    measured = written(tmp_path / "bench.json", slow)
    said = splitpoint("fit", measured, "--deployment", file, "--out", curve, "--json")
    assert said.code == 0, said.err
    assert said.json == json.loads(curve.read_text())
    assert said.json["rms"] < 0.05 < said.json["rms_before"]
    text = splitpoint("fit", measured, "--deployment", file, "--out", curve)
    assert text.code == 0 and "decode step, constant part" in text.out

    again = splitpoint("simulate", file, "--curve", curve, "--json")
    assert again.code == 0, again.err
    assert again.json["tpot"]["mean"] == pytest.approx(slow["mean_tpot_ms"] / 1e3, rel=0.05)
    assert again.json["ttft"]["mean"] == pytest.approx(slow["mean_ttft_ms"] / 1e3, rel=0.05)
    # The same file named in the deployment, relative to it.
    file.write_text(file.read_text().replace("[engine]", '[engine]\ncurve = "curve.json"'))
    assert splitpoint("simulate", file, "--json").json == again.json
    elsewhere = splitpoint("simulate", file, "--set", "gpu=H200")
    assert elsewhere.code == 2 and "was fitted on gpu H20, not H200" in elsewhere.err


def test_a_plan_with_a_curve_says_what_it_rests_on(splitpoint: Any, tmp_path: Path) -> None:
    file, curve = tmp_path / "plan.toml", tmp_path / "curve.json"
    file.write_text(PLAN)
    fitted.write(replace(FITTED, conditions=CONDITIONS), curve)
    said = splitpoint("plan", file, "--curve", curve, "--out", tmp_path / "out", "--json")
    assert said.code == 0, said.err
    assert any("was measured on TP8, and is taken for TP1 too" in n for n in said.json["notes"])
    factor = "step with prefill, measured over predicted"
    assert any(figure["name"] == factor for figure in said.json["assumptions"])


def test_a_plan_never_replaces_a_folder_that_is_not_its_own(
    splitpoint: Any, tmp_path: Path
) -> None:
    file, out = tmp_path / "plan.toml", tmp_path / "out"
    file.write_text(PLAN)
    out.mkdir()
    (out / "precious.txt").write_text("mine")
    said = splitpoint("plan", file, "--out", out)
    assert said.code == 2 and "no plan wrote" in said.err
    assert (out / "precious.txt").read_text() == "mine"


def test_the_schema_accepts_what_it_describes(splitpoint: Any) -> None:
    schema = splitpoint("plan", "--schema").json
    assert "Answer" in schema["$ref"] and "Answer" in schema["$defs"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_answer_that_finds_no_room_is_a_failure_in_one_line(more: list[str]) -> None:
    code = "from splitpoint.cli import main; main()"
    asked = ["price", "Qwen/Qwen3-0.6B", "--gpu", "L4", *more]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, *asked],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert (
        done.stderr == "splitpoint: standard output: cannot be written: No space left on device\n"
    )


@pytest.mark.parametrize(
    "asked", [["check", "none", "none"], ["report", "none"], ["plan", "none"], ["trace", "none"]]
)
def test_a_file_that_is_not_there_is_said_not_to_be(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["splitpoint", *asked])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert capsys.readouterr().err == "splitpoint: none: no such file\n"
