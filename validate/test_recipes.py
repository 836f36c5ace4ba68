"""Recipes against the programs that they start, where those are installed."""

import shlex

import pytest
from tests.recipes.test_vllm import DEPLOYMENTS, GB300

from splitpoint.recipes import bundle, scripts, vllm
from splitpoint.recipes.serving import serving

FILLED = {
    "$NODE_": "10.0.0.",
    "${ROUTER_HOST:-10.0.0.0}": "10.0.0.0",
    "$START_TIMEOUT": "1800",
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
