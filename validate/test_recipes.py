"""Recipes against the programs that they start, where those are installed."""

import argparse
import shlex

import pytest
from tests.recipes import test_sglang
from tests.recipes.sglang_flags import OPTIONS, ROUTER_OPTIONS, VERSIONS, Option
from tests.recipes.test_vllm import DEPLOYMENTS, GB300

from splitpoint.recipes import bundle, scripts, sglang, vllm
from splitpoint.recipes.serving import serving
from splitpoint.sim.world import Reserve

FILLED = {
    "$NODE_": "10.0.0.",
    "${ROUTER_HOST:-10.0.0.0}": "10.0.0.0",
    "$START_TIMEOUT": "1800",
    "$TRANSFER_BACKEND": "nixl",
    "$@": "",
}


@pytest.mark.parametrize("name", [n for n in DEPLOYMENTS if n in ("mixed", "split", "published")])
def test_the_router_reads_its_command_as_it_is_meant(name: str) -> None:
    launch = pytest.importorskip("vllm_router.launch_router", reason="needs vllm-router")
    deployment = DEPLOYMENTS[name]
    script = bundle.files(serving("m", GB300, deployment))["router.sh"]
    words = shlex.split(script[script.index("\nexec vllm-router") :])
    for there, filled in FILLED.items():
        words = [word.replace(there, filled) for word in words]
    read = launch.parse_router_args([word for word in words[2:] if word.strip()])
    replicas = {pool.role: pool.replicas for pool in deployment.pools}
    assert read.vllm_pd_disaggregation == deployment.split
    assert len(read.prefill_urls) == replicas.get("prefill", 0)
    assert len(read.decode_urls) == replicas.get("decode", 0)
    assert len(read.worker_urls) == replicas.get("mixed", 0)
    policy = read.prefill_policy if deployment.split else read.policy
    entries = replicas.get("prefill", 0) or replicas["mixed"]
    assert (policy, read.port) == (vllm.policy(deployment.routing, entries), scripts.ROUTER_PORT)


def sglang_words(script: str) -> list[str]:
    """The words of a script as the program gets them."""
    said = test_sglang.words(script)
    for there, filled in FILLED.items():
        said = [word.replace(there, filled) for word in said]
    return ["org/model" if word in ("$MODEL", "$SERVED_NAME") else word for word in said]


def taken(parser: argparse.ArgumentParser, name: str) -> argparse.Action | None:
    """What a parser makes of an option; None where it does not know it or calls it deprecated."""
    action = parser._option_string_actions.get(name)
    return None if action is None or "Deprecated" in type(action).__name__ else action


def disagreements(parser: argparse.ArgumentParser, table: dict[str, Option]) -> list[str]:
    """Options of the table that the parser takes otherwise."""
    found = []
    for name, option in table.items():
        action = taken(parser, name)
        if action is None:
            found.append(f"{name} is not taken")
            continue
        values = action.nargs if isinstance(action.nargs, int) else None if action.nargs else 1
        # --prefill takes one or more, a URL and its port; --decode a list of one.
        if name not in ("--prefill", "--decode") and values != option.values:
            found.append(f"{name} takes {action.nargs}")
        if action.choices and not option.words <= set(action.choices):
            found.append(f"{name} lacks {option.words - set(action.choices)}")
    return found


def test_an_installed_sglang_takes_what_the_table_says_and_reads_what_the_plan_meant() -> None:
    args = pytest.importorskip("sglang.srt.server_args", reason="needs sglang")
    version = pytest.importorskip("sglang.version").__version__
    patch = int(version.split(".")[2].partition("post")[0] or 0)
    if not version.startswith("0.5.") or patch not in VERSIONS:
        pytest.skip(f"the table does not know SGLang {version}")
    parser = argparse.ArgumentParser()
    args.ServerArgs.add_cli_args(parser)
    now = {n: o for n, o in OPTIONS.items() if o.since <= patch <= o.until}
    if patch < sglang.NVFP4.patch:
        cache = now["--kv-cache-dtype"]
        now["--kv-cache-dtype"] = cache._replace(words=cache.words - {"nvfp4"})
    assert disagreements(parser, now) == []
    assert [n for n in set(OPTIONS) - set(now) if taken(parser, n)] == []
    for deployment in test_sglang.DEPLOYMENTS.values():
        recipe = test_sglang.made(test_sglang.at_version(deployment, patch))
        instances = test_sglang.engine_scripts(bundle.files(recipe))
        for name, script in instances.items():
            read = vars(parser.parse_args(sglang_words(script)))
            pool = next(p for p in deployment.pools if name.startswith(p.role))
            settled = sglang.settled(recipe, pool)
            ranks = pool.topology.dp
            assert settled.max_seqs is not None and settled.batched_tokens is not None
            # Older parsers keep degrees under their long names.
            degrees = {
                short: read.get(f"{short}_size", read.get(f"{long}_parallel_size", 1))
                for short, long in (("tp", "tensor"), ("pp", "pipeline"), ("dp", "data"))
            }
            assert degrees["tp"] == pool.topology.tp * ranks
            assert degrees["pp"] == pool.topology.pp
            assert read.get("attn_dp_size", 1) * degrees["dp"] == ranks
            assert read.get("ep_size", read.get("expert_parallel_size")) == pool.topology.ep
            assert read["mem_fraction_static"] == pool.engine.utilization
            assert read["max_running_requests"] == settled.max_seqs * ranks
            assert read["chunked_prefill_size"] == settled.batched_tokens * ranks
            mode = "null" if pool.role == "mixed" else pool.role
            assert read["disaggregation_mode"] == mode
            assert (read["speculative_num_draft_tokens"] or 1) - 1 == pool.engine.drafts
            assert read["disable_radix_cache"] != pool.engine.prefix_caching


def test_sglangs_scheduler_keeps_free_what_the_simulator_thinks() -> None:
    envs = pytest.importorskip("sglang.srt.environ", reason="needs sglang").envs
    reserve = Reserve()
    first = envs.SGLANG_INIT_NEW_TOKEN_RATIO.get()
    assert first == reserve.first
    assert first * envs.SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR.get() == pytest.approx(reserve.least)
    assert envs.SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS.get() == reserve.fall_steps
    assert envs.SGLANG_RETRACT_DECODE_STEPS.get() == reserve.retract_steps
    assert envs.SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION.get() == reserve.horizon


@pytest.mark.parametrize("name", test_sglang.ROUTED)
def test_sglangs_router_reads_its_command_as_it_is_meant(name: str) -> None:
    launch = pytest.importorskip("sglang_router.launch_router", reason="needs sglang-router")
    arguments = pytest.importorskip("sglang_router.router_args")
    parser = argparse.ArgumentParser()
    arguments.RouterArgs.add_cli_args(parser)
    assert disagreements(parser, ROUTER_OPTIONS) == []
    deployment = test_sglang.DEPLOYMENTS[name]
    router = bundle.files(test_sglang.made(deployment))["router.sh"]
    read = launch.parse_router_args(sglang_words(router))
    replicas = {pool.role: pool.replicas for pool in deployment.pools}
    assert read.pd_disaggregation == deployment.split
    assert len(read.prefill_urls) == replicas.get("prefill", 0)
    assert all(isinstance(port, int) for _, port in read.prefill_urls)
    assert len(read.decode_urls) == replicas.get("decode", 0)
    assert len(read.worker_urls) == replicas.get("mixed", 0)
    assert read.port == scripts.ROUTER_PORT
