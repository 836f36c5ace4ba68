"""Plan and deployment files: what is asked, checked as one."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs import facts, files
from splitpoint.inputs.checks import require
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.plan import (
    DeploymentPlan,
    EnginePlan,
    Plan,
    read_deployment,
    read_plan,
    read_plan_or_deployment,
)
from splitpoint.inputs.workload import Lengths, Workload

# The example of the design, section 3.
PLAN = """
model = "Qwen/Qwen3-30B-A3B"
gpu = "H20"
gpus = 8
[workload]
trace = "trace.jsonl"
[slo]
ttft_s = 5.0
tpot_s = 0.05
percentile = 90
[engine]
name = "vllm"
utilization = 0.9
kv_dtype = "auto"
drafts = [0, 3]
prefix_caching = true
[search]
roles = ["mixed", "split"]
"""

DEPLOYMENT = """
model = "Qwen/Qwen3-30B-A3B"
gpu = "H20"
routing = "round_robin"
[engine]
utilization = 0.9
[[pools]]
role = "prefill"
tp = 2
replicas = 3
[[pools]]
role = "decode"
tp = 1
dp = 2
ep = "all"
engine = {drafts = 3}
"""

GPU_TABLE = """
[gpu]
name = "mine"
architecture = "hopper"
hbm_gib = 95
marketed_gb = 96
bandwidth = 4e12
gpus_per_node = 8
domain = 8
flops = {bf16 = 148e12}
inside = {kind = "nvswitch", bandwidth = 450e9, latency = 2e-6}
outside = {kind = "ib", bandwidth = 50e9, latency = 4e-6}
"""


def plan_of(folder: Path, text: str, sets: tuple[str, ...] = ()) -> Plan:
    path = folder / "plan.toml"
    path.write_text(text)
    return read_plan(path, sets)


def refusal(folder: Path, text: str = PLAN, sets: tuple[str, ...] = ()) -> str:
    with pytest.raises(PlanError) as caught:
        plan_of(folder, text, sets)
    return str(caught.value).removeprefix(f"{folder / 'plan.toml'}: ")


def workload(text: str) -> str:
    return PLAN.replace('trace = "trace.jsonl"', text)


def test_the_plan_of_the_design_is_read(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, PLAN)
    assert (plan.model, plan.gpu, plan.gpus) == ("Qwen/Qwen3-30B-A3B", "H20", 8)
    assert plan.engine.drafts == (0, 3)
    assert plan.engine.utilization == 0.9
    assert plan.slo.percentile == 90.0
    assert plan.search.roles == ("mixed", "split")


def test_a_trace_is_found_beside_the_plan(tmp_path: Path) -> None:
    assert plan_of(tmp_path, PLAN).workload.trace == str(tmp_path / "trace.jsonl")
    absolute = plan_of(tmp_path, workload('trace = "/data/t.csv"'))
    assert absolute.workload.trace == "/data/t.csv"
    home = plan_of(tmp_path, workload('trace = "~/t.csv"'))
    assert home.workload.trace == str(Path.home() / "t.csv")
    nobody = plan_of(tmp_path, workload('trace = "~nobody-of-this-name/t.csv"'))
    assert nobody.workload.trace == str(tmp_path / "~nobody-of-this-name" / "t.csv")


def test_a_gpu_may_be_written_out(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, PLAN.replace('gpu = "H20"', "") + GPU_TABLE)
    assert isinstance(plan.gpu, Gpu)
    assert plan.gpu.hbm == 95 * 1024**3
    words = refusal(
        tmp_path,
        PLAN.replace('gpu = "H20"', "") + GPU_TABLE.replace("hbm_gib = 95", "hbm_gib = 102"),
    )
    assert words.startswith("gpu.hbm_gib: 102.0 GiB is more than a marketed 96.0 GB can hold")


def test_one_number_of_a_named_gpu_may_be_set(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, PLAN, ("gpu.hbm_gib=90", "gpu.outside.bandwidth=25e9"))
    assert isinstance(plan.gpu, Gpu)
    known = facts.gpu("H20")
    assert (plan.gpu.name, plan.gpu.flops) == ("H20", known.flops)
    assert (plan.gpu.hbm_gib, plan.gpu.outside.bandwidth) == (90.0, 25e9)
    assert plan.gpu.outside.latency == known.outside.latency
    assert plan.gpu.sources["hbm_gib"] == "assumed: set by the user"
    assert plan.gpu.sources["outside"] == "assumed: set by the user"
    assert plan.gpu.sources["bandwidth"] == known.sources["bandwidth"]
    words = refusal(tmp_path, sets=("gpu.hbm_gb=90",))
    assert words == "--set gpu.hbm_gb: unknown key (did you mean 'hbm_gib'?)"
    other = plan_of(tmp_path, PLAN, ("gpu.hbm_gib=70", "gpu=h100"))
    assert isinstance(other.gpu, Gpu)
    assert (other.gpu.name, other.gpu.hbm_gib) == ("H100 SXM", 70.0)
    words = refusal(tmp_path, sets=("gpu=H20O", "gpu.hbm_gib=90"))
    assert words.startswith("--set gpu.hbm_gib: cannot set 'hbm_gib' inside 'H20O'")


def test_a_plan_written_as_json_is_the_same_plan(tmp_path: Path) -> None:
    for sets in ((), ("gpu.hbm_gib=90",), ("engine.drafts=2", "workload.rate=[1, 2]")):
        plan = plan_of(tmp_path, PLAN, sets)
        path = tmp_path / "again.json"
        files.write_atomic(path, files.to_json(plan))
        assert read_plan(path) == plan


@pytest.mark.parametrize(
    "text",
    [
        "isl = 1000\nosl = 200\nrate = 2",
        "isl = 1000\nosl = 200\nrate = [0.5, 1, 2.5]",
        "isl = 1000\nosl = 200\nconcurrency = [1, 2, 4]",
        "isl = {mean = 1000, cv = 1}\nosl = {mean = 200, high = 400}\nconcurrency = 8",
        'preset = "agentic-coding"',
        'preset = "chat"\nrate = 4\nburstiness = 0.5',
        'trace = "t.jsonl"\nformat = "mooncake"\nscale = 2.0',
        'trace = "t.jsonl"\nconcurrency = 64\nclosed_loop = false\nseed = 7\nrequests = 1000',
    ],
)
def test_requests_may_be_described_in_three_ways(tmp_path: Path, text: str) -> None:
    assert plan_of(tmp_path, workload(text)).workload is not None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed = 1", "workload: says nothing of its requests (give one of trace, preset, or isl"),
        ('preset = "chat"\ntrace = "x"', "workload: describes its requests twice"),
        ('preset = "chat"\nisl = 5', "workload: describes its requests twice"),
        ("isl = 5\nrate = 1", "workload.osl: is missing (isl and osl go together)"),
        ("osl = 5\nrate = 1", "workload.isl: is missing (isl and osl go together)"),
        ("isl = 5\nosl = 5", "workload: does not say when requests arrive (give rate"),
        (
            "isl = 5\nosl = 5\nrate = 1\nconcurrency = 1",
            "workload: has both rate and concurrency (keep one of them)",
        ),
        ("isl = 5\nosl = 0\nrate = 1", "workload.osl: 0 is out of range (from 1 to 16777216)"),
        ("isl = -5\nosl = 1\nrate = 1", "workload.isl: -5 is out of range"),
        ("isl = 5\nosl = 1\nrate = [1, 0]", "workload.rate.1: 0.0 is out of range"),
        ("isl = 5\nosl = 1\nrate = []", "workload.rate: is empty"),
        ("isl = 5\nosl = 1\nconcurrency = -1", "workload.concurrency: -1 is out of range"),
        ("isl = {mean = 0}\nosl = 1\nrate = 1", "workload.isl.mean: 0.0 is out of range"),
        (
            "isl = {mean = 9, high = 8}\nosl = 1\nrate = 1",
            "workload.isl.mean: 9.0 is not between low and high",
        ),
        ('preset = "chats"', "workload.preset: found 'chats' (did you mean 'chat'?)"),
        ('trace = ""', "workload.trace: is empty"),
        ('preset = "chat"\nformat = "azure"', "workload.format: has no trace to describe"),
        ('trace = "x"\nrate = 1\nscale = 2', "workload.scale: has no effect beside rate"),
        ('trace = "x"\nscale = 0', "workload.scale: 0.0 is out of range"),
        ('trace = "x"\nburstiness = 0', "workload.burstiness: 0.0 is out of range"),
        ('trace = "x"\nrequests = 0', "workload.requests: 0 is out of range"),
        ('trace = "x"\nseed = -1', "workload.seed: -1 is out of range"),
    ],
)
def test_a_workload_that_says_too_little_or_too_much_is_refused(
    tmp_path: Path, text: str, words: str
) -> None:
    assert refusal(tmp_path, workload(text)).startswith(words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpus=0", "--set gpus: 0 is out of range (from 1 to 65536)"),
        ("gpu=H2O0", "--set gpu: 'H2O0' is not a GPU of the catalogue (did you mean 'H20'?)"),
        ("model= ", "--set model: is empty (a catalogue name, a config.json"),
        ("slo.ttft_s=0", "--set slo.ttft_s: 0.0 is out of range (above 0)"),
        ("slo.tpot_s=-1", "--set slo.tpot_s: -1.0 is out of range (above 0)"),
        (
            "slo.percentile=100",
            "--set slo.percentile: 100.0 is out of range (between 0 and 100)",
        ),
        ("slo.percentile=0", "--set slo.percentile: 0.0 is out of range"),
        ("engine.utilization=0", "--set engine.utilization: 0.0 is out of range (above 0, up to"),
        ("engine.utilization=1.01", "--set engine.utilization: 1.01 is out of range"),
        ("engine.drafts=-1", "--set engine.drafts: -1 is out of range (from 0 to 16)"),
        ("engine.drafts=[0, 17]", "--set engine.drafts.1: 17 is out of range"),
        ("engine.drafts=[]", "--set engine.drafts: is empty (such as [0, 3])"),
        ("engine.acceptance=[0.9, 1.1]", "--set engine.acceptance.1: 1.1 is out of range"),
        ("engine.acceptance=[-0.1]", "--set engine.acceptance.0: -0.1 is out of range"),
        ("engine.version=new", "--set engine.version: found 'new' (such as 0.32.0)"),
        ("engine.version=0.32", "--set engine.version: found 0.32 (expected text)"),
        ("engine.block_size=0", "--set engine.block_size: 0 is out of range"),
        ("engine.batched_tokens=0", "--set engine.batched_tokens: 0 is out of range"),
        ("engine.max_seqs=0", "--set engine.max_seqs: 0 is out of range"),
        ("engine.max_len=0", "--set engine.max_len: 0 is out of range"),
        ("search.tp=[0]", "--set search.tp.0: 0 is out of range"),
        ("search.ep=[2]", "--set search.ep.0: found 2 (expected one of 1, all)"),
        ("search.roles=[]", "--set search.roles: is empty"),
        ("search.routing=[]", "--set search.routing: is empty"),
        ("search.requests=0", "--set search.requests: 0 is out of range"),
        (
            "search.kv_pool_gib=0",
            "--set search.kv_pool_gib: 0.0 is out of range (above 0, up to 1048576)",
        ),
        ("search.transfer_bandwidth=0", "--set search.transfer_bandwidth: 0.0 is out of range"),
        ("search.scores.cache_weight=-1", "--set search.scores.cache_weight: -1.0 is out of range"),
        ("search.tree.balance_abs=-1", "--set search.tree.balance_abs: -1 is out of range"),
        ("search.direct_below=-1", "--set search.direct_below: -1 is out of range"),
        ("search.lease_s=-1", "--set search.lease_s: -1.0 is out of range"),
        ("workload.timeout_s=0", "--set workload.timeout_s: 0.0 is out of range (above 0"),
        ("workload.abort_s=0", "--set workload.abort_s: 0.0 is out of range (above 0"),
        ("search.transfer_ports=0", "--set search.transfer_ports: 0 is out of range"),
    ],
)
def test_a_value_out_of_range_is_refused(tmp_path: Path, text: str, words: str) -> None:
    assert refusal(tmp_path, sets=(text,)).startswith(words)


def test_without_a_service_level_there_is_nothing_to_plan(tmp_path: Path) -> None:
    text = PLAN.replace("[slo]\nttft_s = 5.0\ntpot_s = 0.05\npercentile = 90\n", "")
    assert refusal(tmp_path, text) == "slo: is missing (expected a table)"


def test_faults_of_several_tables_are_told_together(tmp_path: Path) -> None:
    words = refusal(tmp_path, sets=("gpus=0", "slo.ttft_s=0", "engine.nme=vllm"))
    assert words.count("--set") == 3
    assert "engine.nme: unknown key (did you mean 'name'?)" in words


def test_a_deployment_file_becomes_pools(tmp_path: Path) -> None:
    path = tmp_path / "deployment.toml"
    path.write_text(DEPLOYMENT)
    plan = read_deployment(path)
    deployment = plan.deployment
    assert str(deployment) == "P 3xTP2 + D 1xTP1DP2+EP drafts=3"
    assert deployment.gpus == 8
    assert deployment.routing == "round_robin"
    assert deployment.pools[0].engine.utilization == 0.9
    assert deployment.pools[1].engine == Engine(drafts=3)
    assert deployment.pools[1].topology == Topology(tp=1, dp=2, ep=2)


def test_a_pool_may_run_on_a_gpu_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "deployment.toml"
    path.write_text(DEPLOYMENT)
    plan = read_deployment(path, ("pools.0.gpu=h100",))
    assert [gpu.name for gpu in plan.pool_gpus] == ["H100 SXM", "H20"]
    assert str(plan.deployment) == "P 3xTP2 on H100 SXM + D 1xTP1DP2+EP drafts=3 on H20"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('pools=[{role="prefill"}]', "pools: are prefill (one mixed pool, or one prefill and"),
        ('pools=[{}, {}]', "pools: are mixed, mixed (one mixed pool"),
        (f"pools=[{', '.join(['{}'] * 1000)}]", "mixed, mixed, mixed, mixed, and 996 more (one"),
        ("pools=[]", "pools: are none (one mixed pool"),
        ("pools.0.replicas=0", "0 is out of range (from 1 to 65536)"),
        ("pools.1.tp=0", "0 is out of range (from 1 to 4096)"),
        ("pools.1.engine.drafts=17", "17 is out of range (from 0 to 16)"),
        ("pools.0.gpu=H2O0", "pools.0.gpu: 'H2O0' is not a GPU of the catalogue (did you mean"),
        ("gpu=H2O0", "'H2O0' is not a GPU of the catalogue (did you mean 'H20'?)"),
    ],
)  # fmt: skip
def test_a_deployment_that_cannot_be_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "deployment.toml"
    path.write_text(DEPLOYMENT)
    with pytest.raises(PlanError) as caught:
        read_deployment(path, (text,))
    assert words in str(caught.value)


def test_a_file_with_pools_is_a_deployment_and_any_other_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "file.toml"
    path.write_text(PLAN)
    assert isinstance(read_plan_or_deployment(path), Plan)
    path.write_text(DEPLOYMENT + '[workload]\ntrace = "t.jsonl"\n')
    plan = read_plan_or_deployment(path)
    assert isinstance(plan, DeploymentPlan)
    assert plan.workload is not None
    assert plan.workload.trace == str(tmp_path / "t.jsonl")


def test_a_record_made_in_code_is_checked_on_demand() -> None:
    require("here", Engine())
    require("here", Lengths(mean=5))
    require("here", Workload(preset="chat", rate=(1.0, 2.0)))
    with pytest.raises(PlanError, match=r"here: rate\.1: 0 is out of range"):
        require("here", Workload(preset="chat", rate=(1.0, 0)))
    with pytest.raises(PlanError, match=r"here: isl\.mean: 0 is out of range"):
        require("here", Workload(isl=Lengths(mean=0), osl=1, rate=1))
    with pytest.raises(PlanError, match=r"utilization: 2 is out of range \(above 0, up to 1\)"):
        require("here", Engine(utilization=2))
    with pytest.raises(PlanError, match=r"here: ep: 3 is not possible \(1 or tp x dp = 4\)"):
        require("here", Topology(tp=2, dp=2, ep=3))


@pytest.mark.parametrize(
    ("stated", "version", "utilization"),
    [
        ({}, "0.32.0", 0.92),
        ({"version": "0.11.0"}, "0.11.0", 0.9),
        ({"version": "0.11.0", "utilization": 0.8}, "0.11.0", 0.8),
        ({"name": "sglang"}, "0.5.23", 0.88),
        ({"name": "sglang", "version": "0.5.10"}, "0.5.10", 0.88),
        ({"name": "trtllm", "utilization": 0.5}, "1.2.0", 0.5),
    ],
)
def test_an_engine_is_its_usual_version_with_the_memory_that_it_takes(
    stated: dict[str, Any], version: str, utilization: float
) -> None:
    for made in (Engine(**stated), EnginePlan(**stated)):
        assert (made.version, made.utilization) == (version, utilization)
        assert replace(made, drafts=1).utilization == utilization
