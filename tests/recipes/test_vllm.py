"""The vLLM recipe: what its files say, and what they do when they run."""

import itertools
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Deployment, Pool, Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.workload import Workload
from splitpoint.recipes import bundle, vllm
from splitpoint.recipes.serving import Serving, chosen, of_point, serving
from tests.report import sample

GB300 = msgspec.structs.replace(sample.H20, name="GB300", gpus_per_node=4)
# The published recipe for 512 concurrent requests: vLLM's "PD serving of Qwen3.8-2.4T" (blog,
# 2026-09-21), recipes in NVIDIA's srt-slurm-recipes (Apache-2.0).
BOTH = Engine(
    utilization=0.92,
    kv_dtype="fp8",
    state_dtype="bf16",
    max_len=10240,
    prefix_caching=False,
    drafts=3,
)
PUBLISHED = Deployment(
    pools=(
        Pool(
            role="prefill",
            topology=Topology(tp=2, dp=4, ep=8),
            replicas=2,
            engine=msgspec.structs.replace(
                BOTH, max_seqs=32, batched_tokens=16384, graph_mode="piecewise"
            ),
        ),
        Pool(
            role="decode",
            topology=Topology(tp=4, dp=4, ep=16),
            replicas=1,
            engine=msgspec.structs.replace(
                BOTH,
                max_seqs=272,
                batched_tokens=1104,
                max_graph=1088,
                graph_mode="full_decode_only",
            ),
        ),
    )
)
DEPLOYMENTS = {
    "one": Deployment(pools=(sample.pool("mixed", 1),)),
    "mixed": sample.MIXED,
    "split": sample.SPLIT,
    "published": PUBLISHED,
    "two nodes a rank": Deployment(pools=(sample.pool("mixed", 1, Topology(tp=8, dp=2)),)),
    "stages": Deployment(pools=(sample.pool("mixed", 1, Topology(tp=4, pp=4)),)),
}


def words(script: str) -> list[str]:
    """The words of the script's last command, as bash splits them."""
    return shlex.split(script[script.index("\nexec ") :])


def flag(script: str, name: str) -> str:
    """The value behind a flag."""
    return words(script)[words(script).index(name) + 1]


@pytest.mark.parametrize("name", DEPLOYMENTS)
@pytest.mark.parametrize("model", ["Qwen/Qwen3.8-2.4T-A95B", sample.HOSTILE])
def test_every_script_parses(name: str, model: str, tmp_path: Path) -> None:
    paths = bundle.write(serving(model, GB300, DEPLOYMENTS[name]), tmp_path)
    scripts = [path for path in paths if path.suffix == ".sh"]
    assert len(scripts) >= 4
    for path in scripts:
        subprocess.run(["bash", "-n", str(path)], check=True)
        assert path.stat().st_mode & 0o111
    compile((tmp_path / "check.py").read_text(), "check.py", "exec")


def test_a_hostile_model_name_stays_one_word(tmp_path: Path) -> None:
    bundle.write(serving(sample.HOSTILE, sample.H20, sample.MIXED), tmp_path)
    told = subprocess.run(
        ["bash", "-c", '. "$1"/env.sh; printf %s "$MODEL"', "-", str(tmp_path)],
        check=True,
        capture_output=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert told.stdout.decode() == sample.HOSTILE
    assert not Path("/tmp/pwned").exists()
    readme = (tmp_path / "README.md").read_text()
    assert "<script>" not in readme and "\x1b" not in readme and "[x]" not in readme


def test_the_published_decode_instance_has_the_published_flags() -> None:
    files = bundle.files(serving("Qwen/Qwen3.8-2.4T-A95B", GB300, PUBLISHED))
    decode = next(text for name, text in files.items() if name.startswith("decode-0.node0"))
    expected = {
        "--tensor-parallel-size": "4",
        "--data-parallel-size": "4",
        "--gpu-memory-utilization": "0.92",
        "--max-model-len": "10240",
        "--max-num-seqs": "272",
        "--max-num-batched-tokens": "1104",
        "--kv-cache-dtype": "fp8",
        "--mamba-ssm-cache-dtype": "bfloat16",
    }
    assert {name: flag(decode, name) for name in expected} == expected
    assert {"--enable-expert-parallel", "--no-enable-prefix-caching", "--async-scheduling"} <= set(
        words(decode)
    )
    assert json.loads(flag(decode, "--compilation-config")) == {
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "max_cudagraph_capture_size": 1088,
    }
    assert json.loads(flag(decode, "--speculative-config")) == {
        "method": "mtp",
        "num_speculative_tokens": 3,
    }
    assert json.loads(flag(decode, "--kv-transfer-config"))["kv_role"] == "kv_consumer"
    assert "export VLLM_SSM_CONV_STATE_LAYOUT=DS\n" in decode


def test_the_published_prefill_instance_produces_and_captures_what_was_priced() -> None:
    files = bundle.files(serving("Qwen/Qwen3.8-2.4T-A95B", GB300, PUBLISHED))
    prefill = next(text for name, text in files.items() if name.startswith("prefill-1.node"))
    assert flag(prefill, "--max-num-batched-tokens") == "16384"
    assert json.loads(flag(prefill, "--compilation-config"))["cudagraph_mode"] == "PIECEWISE"
    assert json.loads(flag(prefill, "--kv-transfer-config"))["kv_role"] == "kv_producer"


def test_sums_by_flashinfer_are_told_only_where_the_plan_tells_them() -> None:
    def told(sums: bool | None) -> set[str]:
        pool = sample.pool("mixed", 1)
        pool = replace(pool, engine=replace(pool.engine, flashinfer_sums=sums))
        files = bundle.files(serving("m", GB300, Deployment(pools=(pool,))))
        lines = {line for text in files.values() for line in text.splitlines()}
        return {line for line in lines if "VLLM_ALLREDUCE_USE_FLASHINFER" in line}

    assert told(None) == set()
    assert told(False) == {"export VLLM_ALLREDUCE_USE_FLASHINFER=0"}
    assert told(True) == {"export VLLM_ALLREDUCE_USE_FLASHINFER=1"}


def test_each_rank_listens_on_a_side_channel_port_of_its_own() -> None:
    files = bundle.files(serving("m", GB300, PUBLISHED))
    ports = {
        int(line.rsplit("=", 1)[1])
        for text in files.values()
        for line in text.splitlines()
        if line.startswith("export VLLM_NIXL_SIDE_CHANNEL_PORT=")
    }
    # vLLM adds the data-parallel rank (0..3) to the port it is given.
    assert all(b - a >= 4 for a, b in itertools.pairwise(sorted(ports)))
    assert len(ports) == 3


def test_ranks_on_other_nodes_run_headless_from_their_first_rank() -> None:
    files = bundle.files(serving("m", GB300, PUBLISHED))
    last = files["decode-0.node3.sh"]
    assert "--headless" in words(last) and "--port" not in words(last)
    assert flag(last, "--data-parallel-start-rank") == "3"
    assert flag(last, "--data-parallel-address") == "$NODE_0"
    assert flag(files["decode-0.node0.sh"], "--data-parallel-rpc-port") == flag(
        last, "--data-parallel-rpc-port"
    )


def test_a_rank_over_several_nodes_is_joined_by_node_rank() -> None:
    files = bundle.files(serving("m", GB300, DEPLOYMENTS["two nodes a rank"]))
    third = files["mixed-0.node2.sh"]
    assert flag(third, "--nnodes") == "4" and flag(third, "--node-rank") == "2"
    assert flag(third, "--master-addr") == "$NODE_0"
    assert "--headless" in words(third)


def test_several_nodes_demand_their_addresses(tmp_path: Path) -> None:
    bundle.write(serving("m", GB300, PUBLISHED), tmp_path)
    told = subprocess.run(
        ["bash", str(tmp_path / "router.sh")],
        capture_output=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "NODE_0": "a"},
    )
    assert told.returncode != 0
    assert "set NODE_1 to the address of node 1" in told.stderr.decode()


def test_the_router_names_every_instance_and_both_policies() -> None:
    router = bundle.files(serving("m", sample.H20, sample.SPLIT))["router.sh"]
    said = words(router)
    assert said.count("--prefill") == 6 and said.count("--decode") == 2
    assert flag(router, "--prefill-policy") == "cache_aware"
    assert flag(router, "--decode-policy") == "power_of_two"
    assert "http://$NODE_0:8107" in said


def test_what_the_router_takes_instead_of_a_routing_that_it_has_not_is_told() -> None:
    files = bundle.files(serving("m", sample.H20, sample.SPLIT))
    told = "vllm-router has no {}: the recipe takes {}, which `routing` {} predicts."
    assert told.format("prefix_aware", "cache_aware", "prefix_approx") in files["README.md"]
    assert told.format("least_kv", "power_of_two", "power_of_two") in files["README.md"]
    exact = replace(sample.SPLIT, routing="prefix_approx", decode_routing="round_robin")
    assert "has no" not in bundle.files(serving("m", sample.H20, exact))["README.md"]


def test_the_router_is_told_of_ranks_where_all_instances_have_as_many() -> None:
    ranks = Topology(dp=4)
    pair = Deployment(pools=(sample.pool("prefill", 1, ranks), sample.pool("decode", 1, ranks)))
    files = bundle.files(serving("m", sample.H20, pair))
    assert flag(files["router.sh"], "--intra-node-data-parallel-size") == "4"
    # One instance of four ranks is a choice.
    assert flag(files["router.sh"], "--prefill-policy") == "cache_aware"
    assert flag(files["router.sh"], "--decode-policy") == "power_of_two"
    assert "The router names the data-parallel rank" in files["README.md"]
    assert "names the rank of a request" not in files["README.md"]
    uneven = replace(pair, pools=(pair.pools[0], sample.pool("decode", 1, Topology(dp=8))))
    files = bundle.files(serving("m", sample.H20, uneven))
    assert "--intra-node-data-parallel-size" not in files["router.sh"]
    assert "vLLM's choice" in files["README.md"]


def test_ranks_that_the_prediction_names_and_vllm_chooses_are_told() -> None:
    wide = Deployment(pools=(sample.pool("mixed", 1, Topology(dp=4)),))
    told = "names the rank of a request"
    assert told in bundle.files(serving("m", sample.H20, wide))["README.md"]
    turns = replace(wide, routing="round_robin")
    assert told not in bundle.files(serving("m", sample.H20, turns))["README.md"]


def test_the_router_draws_from_no_single_instance() -> None:
    # vllm-router 0.1.17 does not start with power_of_two and one decode worker.
    pair = Deployment(pools=(sample.pool("prefill", 1), sample.pool("decode", 1)))
    files = bundle.files(serving("m", sample.H20, pair))
    assert flag(files["router.sh"], "--prefill-policy") == "round_robin"
    assert flag(files["router.sh"], "--decode-policy") == "round_robin"
    assert "the recipe takes power_of_two" not in files["README.md"]


def test_one_instance_needs_no_router() -> None:
    files = bundle.files(serving("m", sample.H20, DEPLOYMENTS["one"]))
    assert "router.sh" not in files
    assert 'ENDPOINT="http://$NODE_0:8100"' in files["env.sh"]


def test_settings_left_open_are_left_to_the_engine_and_said_so() -> None:
    pool = Pool(role="mixed", topology=Topology(), replicas=1, engine=Engine())
    files = bundle.files(serving("m", sample.H20, Deployment(pools=(pool,))))
    assert "--max-num-seqs" not in files["mixed-0.sh"]
    assert (
        "Left to the engine's defaults: `--max-model-len`, `--max-num-seqs`" in files["README.md"]
    )


def test_eager_engines_capture_nothing() -> None:
    pool = Pool(role="mixed", topology=Topology(), replicas=1, engine=Engine(graphs=False))
    script = bundle.files(serving("m", sample.H20, Deployment(pools=(pool,))))["mixed-0.sh"]
    assert "--enforce-eager" in words(script) and "--compilation-config" not in words(script)


def test_amd_gpus_are_chosen_by_their_own_variable() -> None:
    mi300 = msgspec.structs.replace(sample.H20, name="MI300X", architecture="cdna3")
    script = bundle.files(serving("m", mi300, sample.MIXED))["mixed-3.sh"]
    assert "export HIP_VISIBLE_DEVICES=3\n" in script and "CUDA" not in script


def test_shares_of_a_cache_have_their_flag() -> None:
    pool = sample.pool("mixed", 1, Topology(tp=8, dcp=4))
    assert ("--decode-context-parallel-size", "4") in vllm.flags(pool, "m")
    assert not [f for f in vllm.flags(sample.pool("mixed", 1), "m") if "context" in f[0]]


def test_a_config_file_stands_for_the_folder_of_its_weights() -> None:
    assert serving("/models/q/config.json", sample.H20, sample.MIXED).model == "/models/q"


def test_drafts_come_from_what_the_model_has() -> None:
    engine = msgspec.structs.replace(sample.pool("mixed", 1, drafts=3).engine, draft_method="ngram")
    pool = msgspec.structs.replace(sample.pool("mixed", 1), engine=engine)
    words = dict(flag for flag in vllm.flags(pool, "m") if len(flag) == 2)
    assert json.loads(words["--speculative-config"]) == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
    }
    mtp = dict(
        flag for flag in vllm.flags(sample.pool("mixed", 1, drafts=3), "m") if len(flag) == 2
    )
    assert json.loads(mtp["--speculative-config"])["method"] == "mtp"
    head = msgspec.structs.replace(engine, draft_method="eagle3", draft_model="some/head")
    pool = msgspec.structs.replace(sample.pool("mixed", 1, drafts=3), engine=head)
    eagle = dict(flag for flag in vllm.flags(pool, "m") if len(flag) == 2)
    assert json.loads(eagle["--speculative-config"]) == {
        "method": "eagle3",
        "num_speculative_tokens": 3,
        "model": "some/head",
    }
    assumed = msgspec.structs.replace(head, draft_model=None)
    alone = Deployment(pools=(msgspec.structs.replace(pool, engine=assumed),))
    with pytest.raises(PlanError, match="no EAGLE-3 head is named"):
        bundle.files(serving("m", sample.H20, alone))


def test_an_answer_without_a_choice_writes_nothing(tmp_path: Path) -> None:
    verdict = msgspec.structs.replace(sample.VERDICT, choice="neither", chosen=None)
    assert bundle.write(sample.answer(verdict=verdict), tmp_path) == ()
    assert list(tmp_path.iterdir()) == []


def test_a_choice_that_cannot_be_launched_leaves_the_reason(tmp_path: Path) -> None:
    pools = (sample.pool("prefill", 4), sample.pool("decode", 4, drafts=3))
    point = sample.point(Deployment(pools=pools), name="chosen")
    verdict = msgspec.structs.replace(sample.VERDICT, chosen="chosen")
    paths = bundle.write(sample.answer(points=(point,), verdict=verdict), tmp_path)
    assert [path.name for path in paths] == ["README.md"]
    assert "differ in drafts, and NIXL refuses the handshake" in paths[0].read_text()


def test_any_point_of_an_answer_can_become_a_recipe() -> None:
    made = of_point(sample.answer(), "P 4xTP1 + D 4xTP1 prefix_aware")
    assert "decode-3.sh" in bundle.files(made)


@pytest.mark.parametrize(
    ("sweep", "label", "one"),
    [
        ({"rate": (5.0, 20.0)}, "20 req/s", {"rate": 20.0}),
        ({"concurrency": (64, 2048)}, "concurrency 2,048", {"concurrency": 2048}),
    ],
)
def test_a_recipe_of_a_sweep_is_asked_at_the_load_of_its_point(
    sweep: dict[str, Any], label: str, one: dict[str, Any]
) -> None:
    point = sample.point(sample.MIXED, name="8xTP1", load=label)
    answer = sample.answer(points=(point,))
    plan = replace(answer.plan, workload=Workload(isl=1000, osl=100, **sweep))
    made = of_point(replace(answer, plan=plan), "8xTP1")
    found = bundle.files(made)
    asked = json.loads(found["deployment.json"])["workload"]
    assert {name: asked[name] for name in one} == one
    assert f"as `deployment.json` says ({label})" in found["README.md"]


def test_a_point_that_is_not_there_is_told_with_near_ones() -> None:
    with pytest.raises(PlanError) as error:
        of_point(sample.answer(), "8xTP1 prefix")
    assert "8xTP1 prefix_aware" in error.value.hint


def test_the_readme_holds_the_prediction_of_the_choice() -> None:
    made = chosen(sample.answer())
    assert made is not None
    readme = bundle.files(made)["README.md"]
    assert (
        "| trace | 500 ms / 2 s | 24 ms / 38.4 ms | 6,200 | 87 | 41.7 | 93.0% | 100.0% |" in readme
    )
    assert "KV transfer bandwidth 3.5 GB/s" in readme


def test_a_few_failures_do_not_round_to_success() -> None:
    point = sample.point(sample.MIXED, name="8xTP1 prefix_aware", success=0.9999)
    made = of_point(sample.answer(points=(point,)))
    assert "| 93.0% | >99.9% |" in bundle.files(made)["README.md"]


def test_inputs_longer_than_the_engine_takes_are_told() -> None:
    made = serving("m", sample.H20, sample.MIXED)
    long = msgspec.structs.replace(made, input_p99=131_792.0)
    assert "refuses longer requests" not in bundle.files(long)["README.md"]
    short = msgspec.structs.replace(sample.ENGINE, max_len=40_960)
    pools = tuple(msgspec.structs.replace(p, engine=short) for p in sample.MIXED.pools)
    cut = msgspec.structs.replace(long, deployment=Deployment(pools=pools))
    readme = bundle.files(cut)["README.md"]
    assert "reach 131,792 tokens (p99), `--max-model-len` is 40,960" in readme


def test_the_same_deployment_gives_the_same_files() -> None:
    made = serving("m", GB300, PUBLISHED)
    assert bundle.files(made) == bundle.files(made)


def refused(**engine: Any) -> Serving:
    """A split whose engine has these settings."""
    changed = msgspec.structs.replace(Engine(), **engine)
    pools = tuple(
        Pool(role=role, topology=Topology(), replicas=1, engine=changed)
        for role in ("prefill", "decode")
    )
    return serving("m", sample.H20, Deployment(pools=pools))


@pytest.mark.parametrize(
    ("engine", "where"),
    [
        ({"name": "trtllm"}, "engine.name"),
        ({"kv_dtype": "fp32"}, "engine.kv_dtype"),
        ({"state_dtype": "fp8"}, "engine.state_dtype"),
    ],
)
def test_what_vllm_cannot_do_is_refused(engine: dict[str, Any], where: str) -> None:
    with pytest.raises(PlanError) as error:
        bundle.files(refused(**engine))
    assert error.value.where == where


def test_drafts_on_one_side_only_are_refused() -> None:
    pools = (sample.pool("prefill", 1), sample.pool("decode", 1, drafts=3))
    with pytest.raises(PlanError, match="differ in drafts"):
        bundle.files(serving("m", sample.H20, Deployment(pools=pools)))


def test_pipeline_stages_on_the_decode_side_are_refused() -> None:
    pools = (sample.pool("prefill", 1), sample.pool("decode", 1, Topology(pp=2)))
    with pytest.raises(PlanError, match="without pipeline stages"):
        bundle.files(serving("m", sample.H20, Deployment(pools=pools)))
