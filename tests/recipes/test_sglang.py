"""The SGLang recipe: what its files say of the deployment, and that its engine takes the words."""

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Deployment, Pool, Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.facts import gpu
from splitpoint.inputs.huggingface import load_model
from splitpoint.inputs.plan import EnginePlan
from splitpoint.inputs.routing import Role, Routing
from splitpoint.pricing.engines import resolved
from splitpoint.recipes import bundle, scripts, sglang
from splitpoint.recipes.placement import place
from splitpoint.recipes.serving import Serving, serving
from splitpoint.sim.world import Reserve
from tests.recipes.sglang_flags import OPTIONS, ROUTER_OPTIONS, VERSIONS, Option
from tests.report import sample

ENGINE = Engine(name="sglang", version="0.5.23", utilization=0.85, max_len=32768)
WIDE = Topology(tp=2, dp=8, ep=16)


def pool(role: Role, replicas: int = 1, topology: Topology | None = None, **engine: Any) -> Pool:
    """A pool of SGLang instances."""
    changed = replace(ENGINE, **engine)
    return Pool(role=role, topology=topology or Topology(), replicas=replicas, engine=changed)


def split(*pools: Pool) -> Deployment:
    """A deployment of these pools, else of one prefill and one decode instance."""
    return Deployment(pools=pools or (pool("prefill"), pool("decode")))


def made(deployment: Deployment, card: str = "H200") -> Serving:
    """The deployment without a prediction."""
    return serving("org/model", gpu(card), deployment)


FULL = {
    "batched_tokens": 32768,
    "max_seqs": 96,
    "block_size": 64,
    "kv_dtype": "fp8",
    "state_dtype": "bf16",
    "schedule_policy": "lpm",
    "mixed_chunk": True,
    "prefix_caching": False,
    "async_scheduling": False,
    "graph_sizes": (8, 1, 4),
    "graph_padding": False,
    "all_to_all": True,
}
DEPLOYMENTS = {
    "one": Deployment(pools=(pool("mixed"),)),
    "mixed": Deployment(pools=(pool("mixed", 4, Topology(tp=2)),)),
    "pair": split(),
    "full": split(
        pool("prefill", 2, Topology(tp=4), **FULL), pool("decode", 1, Topology(tp=4), **FULL)
    ),
    "eager": Deployment(pools=(pool("mixed", 1, graphs=False, host_kv_gib=64.0),)),
    "wide": split(pool("prefill", 3, Topology(tp=4)), pool("decode", 2, WIDE, all_to_all=True)),
    "stages": Deployment(pools=(pool("mixed", 1, Topology(tp=8, pp=4)),)),
    "mtp": split(*(pool(role, 1, drafts=3, draft_method="mtp") for role in ("prefill", "decode"))),
    "eagle3": Deployment(
        pools=(pool("mixed", 2, drafts=2, draft_method="eagle3", draft_model="org/head"),)
    ),
    "ngram": Deployment(pools=(pool("mixed", 1, drafts=4, draft_method="ngram"),)),
    "sessions": replace(split(pool("prefill", 2), pool("decode", 2)), routing="session"),
}
ROUTED = [
    name
    for name, deployment in DEPLOYMENTS.items()
    if sum(p.replicas for p in deployment.pools) > 1
]


def at_version(deployment: Deployment, patch: int) -> Deployment:
    """The deployment on 0.5.`patch`."""
    version = f"0.5.{patch}"
    pools = tuple(replace(p, engine=replace(p.engine, version=version)) for p in deployment.pools)
    return replace(deployment, pools=pools)


def words(script: str) -> list[str]:
    """The words of the script's last command, as bash splits them, from its first option on."""
    found = shlex.split(script[script.index("\nexec ") :].replace("\\\n", " "))
    return found[found.index("--model-path" if "--model-path" in found else "--host") : -1]


def said(script: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each option of a script with its values."""
    name: str = ""
    values: list[str] = []
    for word in words(script):
        if word.startswith("--"):
            if name:
                yield name, tuple(values)
            name, values = word, []
        else:
            values.append(word)
    yield name, tuple(values)


def flags(script: str) -> dict[str, str]:
    """Options that a script gives once, with their values as one text."""
    return {name: " ".join(values) for name, values in said(script)}


def engine_scripts(files: dict[str, str]) -> dict[str, str]:
    """The scripts that start engines."""
    return {name: text for name, text in files.items() if "-m sglang.launch_server" in text}


def accepted(option: Option | None, values: tuple[str, ...]) -> bool:
    """Whether a parser takes these values behind the option."""
    if option is None:
        return False
    number = len(values) > 0 if option.values is None else len(values) == option.values
    open_words = [value for value in values if not value.startswith("$")]
    return number and (not option.words or option.words.issuperset(open_words))


@pytest.mark.parametrize("patch", VERSIONS)
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_every_option_is_one_that_the_parser_of_its_version_takes(name: str, patch: int) -> None:
    files = bundle.files(made(at_version(DEPLOYMENTS[name], patch)))
    scripts_of_engines = engine_scripts(files)
    assert scripts_of_engines
    for script in scripts_of_engines.values():
        for option, values in said(script):
            known = OPTIONS.get(option)
            assert known and known.since <= patch <= known.until, option
            assert accepted(known, values), (option, values)


@pytest.mark.parametrize("name", ROUTED)
def test_every_option_of_the_router_is_one_that_its_parser_takes(name: str) -> None:
    for option, values in said(bundle.files(made(DEPLOYMENTS[name]))["router.sh"]):
        assert accepted(ROUTER_OPTIONS.get(option), values), (option, values)


@pytest.mark.parametrize("name", DEPLOYMENTS)
@pytest.mark.parametrize("model", ["org/model", sample.HOSTILE])
def test_every_script_parses(name: str, model: str, tmp_path: Path) -> None:
    recipe = serving(model, gpu("H200"), DEPLOYMENTS[name])
    scripts_written = [path for path in bundle.write(recipe, tmp_path) if path.suffix == ".sh"]
    assert len(scripts_written) >= 4
    for path in scripts_written:
        subprocess.run(["bash", "-n", str(path)], check=True)


def test_what_the_plan_says_is_what_the_server_is_told() -> None:
    files = bundle.files(made(DEPLOYMENTS["full"]))
    told = flags(files["prefill-1.sh"])
    expected = {
        "--tp-size": "4",
        "--mem-fraction-static": "0.85",
        "--context-length": "32768",
        "--max-running-requests": "96",
        "--chunked-prefill-size": "32768",
        # Its own limit of a batch, 16,384, would cut the chunk.
        "--max-prefill-tokens": "32768",
        "--page-size": "64",
        "--kv-cache-dtype": "fp8_e4m3",
        "--mamba-ssm-dtype": "bfloat16",
        "--schedule-policy": "lpm",
        "--enable-mixed-chunk": "",
        "--disable-radix-cache": "",
        "--disable-overlap-schedule": "",
        "--cuda-graph-bs-decode": "1 4 8",
        "--disable-cuda-graph-padding": "",
        "--disaggregation-mode": "prefill",
    }
    assert {name: told.get(name) for name in expected} == expected
    decode = flags(files["decode-0.sh"])
    assert decode["--disaggregation-mode"] == "decode"
    assert decode["--num-reserved-decode-tokens"] == str(Reserve().remote)
    assert "--num-reserved-decode-tokens" not in told
    assert "--max-prefill-tokens" not in flags(bundle.files(made(split()))["prefill-0.sh"])


@pytest.mark.parametrize("card", ["L4", "L40S", "H100 SXM", "H200", "B200"])
@pytest.mark.parametrize("topology", [Topology(), Topology(tp=4), Topology(dp=4, ep=4)])
def test_limits_that_a_plan_leaves_open_are_those_that_it_was_priced_with(
    card: str, topology: Topology
) -> None:
    at = pool("mixed", 1, topology)
    priced = resolved(at.engine, gpu(card), topology, load_model("deepseek-ai/DeepSeek-R1"))
    told = flags(engine_scripts(bundle.files(made(Deployment(pools=(at,)), card)))["mixed-0.sh"])
    assert priced.max_seqs is not None and priced.batched_tokens is not None
    assert told["--max-running-requests"] == str(priced.max_seqs * topology.dp)
    assert told["--chunked-prefill-size"] == str(priced.batched_tokens * topology.dp)
    assert told["--cuda-graph-max-bs-decode"] == str(priced.max_graph)


def test_attention_ranks_are_a_part_of_tp_and_share_its_totals() -> None:
    one = pool("mixed", 1, Topology(tp=2), max_seqs=64, batched_tokens=4096, max_graph=64)
    eight = replace(one, topology=WIDE)
    alone, wide = (
        {flag[0]: flag[-1] for flag in sglang.flags(made(split()), at)} for at in (one, eight)
    )
    assert (alone["--tp-size"], wide["--tp-size"]) == ("2", "16")
    assert wide["--attn-dp-size"] == "8" and wide["--ep-size"] == "16"
    for total in ("--max-running-requests", "--chunked-prefill-size"):
        assert int(wide[total]) == 8 * int(alone[total])
    assert wide["--cuda-graph-max-bs-decode"] == alone["--cuda-graph-max-bs-decode"] == "64"
    before = Deployment(pools=(eight,))
    old = flags(bundle.files(made(at_version(before, 21)))["mixed-0.node0.sh"])
    assert old["--dp-size"] == "8" and "--enable-dp-attention" in old


def test_every_process_of_an_instance_finds_the_same_head() -> None:
    files = engine_scripts(bundle.files(made(DEPLOYMENTS["wide"])))
    shares = {name: flags(text) for name, text in files.items() if name.startswith("decode-1")}
    assert sorted(told["--node-rank"] for told in shares.values()) == ["0", "1"]
    assert {told["--nnodes"] for told in shares.values()} == {"2"}
    (head,) = {told["--dist-init-addr"] for told in shares.values()}
    first = next(told for told in shares.values() if told["--node-rank"] == "0")
    assert head.rsplit(":", 1)[0] == first["--host"]


def test_instances_of_a_node_share_no_port() -> None:
    wide = split(*(pool(role, 2, Topology(dp=2, ep=2)) for role in ("prefill", "decode")))
    for deployment in (wide, DEPLOYMENTS["sessions"]):
        taken: list[int] = []
        for script in engine_scripts(bundle.files(made(deployment))).values():
            told = flags(script)
            taken.append(int(told["--port"]))
            if "--disaggregation-bootstrap-port" in told:
                taken.append(int(told["--disaggregation-bootstrap-port"]))
            if "--nccl-port" in told:
                taken.append(int(told["--nccl-port"]))
            else:
                # PortArgs.init_new of 0.5.23 takes six ports above the one that it is given.
                first = int(told["--dist-init-addr"].rsplit(":", 1)[1])
                taken += range(first, first + 7)
        assert len(taken) == len(set(taken))


def test_the_router_meets_each_prefill_instance_at_its_bootstrap_port() -> None:
    files = bundle.files(made(DEPLOYMENTS["wide"]))
    starts = {
        f"http://{told['--host']}:{told['--port']}": told
        for told in map(flags, engine_scripts(files).values())
    }
    router = list(said(files["router.sh"]))
    prefill = [values for name, values in router if name == "--prefill"]
    decode = [values for name, values in router if name == "--decode"]
    assert len(prefill) == 3 and len(decode) == 2
    for url, port in prefill:
        assert starts[url]["--disaggregation-mode"] == "prefill"
        assert starts[url]["--disaggregation-bootstrap-port"] == port
    assert all(starts[url]["--disaggregation-mode"] == "decode" for (url,) in decode)
    checked = shlex.split(files["check.sh"])
    told = [checked[i + 1] for i, word in enumerate(checked) if word == "--bootstrap-port"]
    assert told == [port for _, port in prefill]


def test_sessions_stay_by_a_key_and_begin_where_the_fewest_requests_are() -> None:
    files = bundle.files(made(DEPLOYMENTS["sessions"]))
    told = flags(files["router.sh"])
    assert told["--prefill-policy"] == "manual" and told["--assignment-mode"] == "min_load"
    assert told["--decode-policy"] == "power_of_two"
    assert "an X-SMG-Routing-Key header on every request" in files["README.md"]
    assert "sglang-router has no least_kv" in files["README.md"]


def test_the_router_draws_from_no_single_instance() -> None:
    # sglang-router 0.3.2 does not start with power_of_two and one worker (tried).
    told = flags(bundle.files(made(split()))["router.sh"])
    assert told["--prefill-policy"] == told["--decode-policy"] == "round_robin"


def test_one_instance_needs_no_router_and_asks_for_no_transfer() -> None:
    files = bundle.files(made(DEPLOYMENTS["one"]))
    assert "router.sh" not in files
    assert "disaggregation" not in files["mixed-0.sh"] and "TRANSFER" not in files["env.sh"]


@pytest.mark.parametrize(
    ("name", "drafts"),
    [
        (
            "mtp",
            {
                "--speculative-algorithm": "NEXTN",
                "--speculative-num-steps": "3",
                "--speculative-eagle-topk": "1",
                "--speculative-num-draft-tokens": "4",
            },
        ),
        (
            "eagle3",
            {
                "--speculative-algorithm": "EAGLE3",
                "--speculative-num-steps": "2",
                "--speculative-eagle-topk": "1",
                "--speculative-num-draft-tokens": "3",
                "--speculative-draft-model-path": "org/head",
            },
        ),
        (
            "ngram",
            {
                "--speculative-algorithm": "NGRAM",
                "--speculative-num-draft-tokens": "5",
                "--speculative-ngram-max-bfs-breadth": "1",
            },
        ),
        ("pair", {}),
    ],
)
def test_drafts_are_one_chain_counted_with_the_token_before_them(
    name: str, drafts: dict[str, str]
) -> None:
    for script in engine_scripts(bundle.files(made(DEPLOYMENTS[name]))).values():
        told = {n: v for n, v in flags(script).items() if n.startswith("--speculative")}
        assert told == drafts


def test_mixed_chunks_end_where_drafts_begin() -> None:
    drafting = pool("mixed", 1, drafts=1, draft_method="mtp", mixed_chunk=True)
    assert ("--enable-mixed-chunk",) not in sglang.flags(made(split()), drafting)


def test_a_decode_side_has_no_prefix_cache_to_copy_to_host_memory() -> None:
    pools = [pool(role, 1, Topology(tp=2), host_kv_gib=100.0) for role in ("prefill", "decode")]
    files = bundle.files(made(split(*pools)))
    # 100 GiB of a rank of two GPUs are 53.7 GB a GPU.
    assert flags(files["prefill-0.sh"])["--hicache-size"] == "53"
    assert not [name for name in flags(files["decode-0.sh"]) if "hi" in name and "cache" in name]
    assert "keeps none" in files["README.md"]


def test_amd_gpus_are_chosen_by_their_own_variable_and_send_by_mori() -> None:
    recipe = made(split(pool("prefill"), pool("decode", 1, WIDE, all_to_all=True)), "MI300X")
    files = bundle.files(recipe)
    decode = files["decode-0.node0.sh"]
    assert "export HIP_VISIBLE_DEVICES=0,1,2,3,4,5,6,7\n" in decode and "CUDA" not in decode
    assert flags(decode)["--moe-a2a-backend"] == "mori"
    assert "TRANSFER_BACKEND:-mooncake" in files["env.sh"]


def test_the_rank_is_chosen_by_what_the_router_was_to_look_at() -> None:
    ranks = Topology(dp=4, ep=4)
    deployment = split(pool("prefill", 1, ranks), pool("decode", 1, ranks))
    files = bundle.files(made(deployment))
    assert flags(files["prefill-0.sh"])["--load-balance-method"] == "follow_bootstrap_room"
    assert flags(files["decode-0.sh"])["--load-balance-method"] == "total_tokens"
    turns = replace(deployment, decode_routing="round_robin")
    told = flags(bundle.files(made(turns))["decode-0.sh"])
    assert told["--load-balance-method"] == "round_robin"


def test_ranks_that_were_named_in_the_prediction_and_are_drawn_here_are_told() -> None:
    def told(routing: Routing, ranks: int) -> bool:
        deployment = split(pool("prefill", 1, Topology(dp=ranks)), pool("decode"))
        files = bundle.files(made(replace(deployment, routing=routing)))
        return f"The prediction's router ({routing}) names the rank" in files["README.md"]

    assert told("prefix_aware", 4)
    assert not told("prefix_aware", 1) and not told("round_robin", 4)


def test_a_memory_fraction_above_sglangs_own_rule_is_told() -> None:
    def notes(**engine: Any) -> str:
        return bundle.files(made(Deployment(pools=(pool("mixed", **engine),))))["README.md"]

    # H200: 10 GiB at least are left by its rule, 7.2% of 139.8.
    assert "SGLang's own rule leaves" not in notes(utilization=0.9, batched_tokens=4096)
    near = notes(utilization=0.95, batched_tokens=4096)
    assert "leaves about 6.99 GiB" in near and "own rule leaves 10.0 GiB" in near
    # 512 MiB, 1.5 MiB a token, 1/8 GiB a GPU, 2 MiB a sequence with a graph.
    wider = sglang.own_reserve(made(split()), pool("mixed", batched_tokens=16384, max_graph=100))
    assert wider == (512 + 24576 + 128 + 200) * 2**20


def test_the_readme_names_the_version_that_is_served() -> None:
    assert (
        "for SGLang 0.5.18 and sglang-router 0.3.2"
        in bundle.files(made(at_version(split(), 18)))["README.md"]
    )
    # A plan that states none has the last whose flags were read.
    unstated = made(split(pool("prefill", version=""), pool("decode", version="")))
    assert "for SGLang 0.5.23 and" in bundle.files(unstated)["README.md"]


def test_what_only_the_pricing_filled_in_is_not_taken_for_the_users_word() -> None:
    simulated = made(Deployment(pools=(pool("mixed", block_size=1, max_seqs=512),)))
    plan = replace(sample.answer().plan, engine=EnginePlan(name="sglang"))
    files = bundle.files(replace(simulated, plan=plan))
    assert "--page-size" not in flags(files["mixed-0.sh"])
    assert flags(files["mixed-0.sh"])["--max-running-requests"] == "512"
    assert "defaults: `--page-size`." in files["README.md"]
    assert "is what was simulated" in files["README.md"]
    stated = replace(plan, engine=EnginePlan(name="sglang", block_size=64, max_seqs=512))
    asked = made(Deployment(pools=(pool("mixed", block_size=64, max_seqs=512),)))
    files = bundle.files(replace(asked, plan=stated))
    assert flags(files["mixed-0.sh"])["--page-size"] == "64"
    assert "is what was simulated" not in files["README.md"]


def refused(**engine: Any) -> Deployment:
    """A split whose engines have these settings."""
    return split(pool("prefill", **engine), pool("decode", **engine))


@pytest.mark.parametrize(
    ("deployment", "where", "words"),
    [
        (refused(version="0.5.6"), "engine.version", "not those of SGLang 0.5.6"),
        (refused(kv_dtype="int8"), "engine.kv_dtype", "no int8 KV cache"),
        (refused(kv_dtype="nvfp4", version="0.5.12"), "engine.kv_dtype", "0.5.12 has no nvfp4"),
        (refused(state_dtype="fp8"), "engine.state_dtype", "no fp8 state cache"),
        (refused(drafts=2, draft_method="eagle3"), "engine.draft_model", "only one of the usual"),
        (refused(host_kv_gib=8.0, prefix_caching=False), "engine.host_kv_gib", "prefix cache"),
        (refused(host_kv_gib=0.5), "engine.host_kv_gib", "less than a whole GB"),
        (
            Deployment(pools=(pool("mixed", 1, WIDE, drafts=2, draft_method="ngram"),)),
            "engine.draft_method",
            "on no data-parallel ranks",
        ),
        (
            Deployment(pools=(pool("mixed", 1, Topology(tp=4, dcp=2), version="0.5.14"),)),
            "deployment",
            "no decode context parallelism",
        ),
        (
            split(pool("prefill"), pool("decode", drafts=2, draft_method="mtp")),
            "deployment",
            "differ in drafts",
        ),
        (
            split(pool("prefill"), pool("decode", 1, Topology(pp=2))),
            "deployment",
            "pp 2 on decode and 1 on prefill",
        ),
        (
            Deployment(pools=(pool("mixed", 1, Topology(tp=2, dp=6, ep=12)),)),
            "deployment",
            "its 12 GPUs do not divide among 2 nodes",
        ),
    ],
)
def test_what_sglang_cannot_do_is_refused(deployment: Deployment, where: str, words: str) -> None:
    with pytest.raises(PlanError, match=words) as error:
        bundle.files(made(deployment))
    assert error.value.where == where


def test_drafts_from_the_text_before_need_no_counterpart() -> None:
    pools = (pool("prefill"), pool("decode", drafts=2, draft_method="ngram"))
    assert "decode-0.sh" in bundle.files(made(split(*pools)))


def test_two_engines_are_no_deployment() -> None:
    pools = (pool("prefill"), sample.pool("decode", 1))
    with pytest.raises(PlanError, match="sglang and vllm share no connector"):
        bundle.files(made(split(*pools)))


def test_a_name_with_a_colon_is_refused() -> None:
    with pytest.raises(PlanError, match="no name with a colon"):
        bundle.files(serving("org/model:tag", gpu("H200"), split()))


def test_equal_parts_are_placed_for_every_topology_that_is_not_refused() -> None:
    for tp in (1, 2, 4, 8, 16):
        for dp in (1, 2, 3, 4, 6, 8):
            for pp in (1, 2, 3, 4):
                at = Topology(tp=tp, dp=dp, pp=pp)
                recipe = made(Deployment(pools=(pool("mixed", 1, at),)))
                (instance,) = place(recipe.deployment, 8)
                shares = {len(share.gpus) for share in instance.shares}
                if bundle.refusal(recipe) is None:
                    assert len(shares) == 1 and at.gpus % len(instance.shares) == 0


def test_what_an_engine_is_told_of_the_check_is_what_check_py_takes() -> None:
    from splitpoint.recipes import check_tokens

    for name in ("pair", "mixed"):
        recipe = made(DEPLOYMENTS[name])
        text = scripts.check(
            recipe,
            place(recipe.deployment, 8),
            True,
            sglang.checked(place(recipe.deployment, 8)),
        )
        given = shlex.split(text[text.index("\nexec ") :].replace("\\\n", " "))[3:-1]
        read = check_tokens._options(given)
        assert read.engine == "sglang" and len(read.bootstrap_port) == len(read.prefill)
