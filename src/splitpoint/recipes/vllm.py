"""A deployment as `vllm serve` scripts: one file per instance and node, a router, start and stop.

The flags are those of vLLM 0.32 and vllm-router 0.1.17, read from their sources. Prefill
instances are KV producers, decode instances consumers, over the NIXL connector; every engine
setting that the prediction fixed is a flag, every one it left open stays the engine's default.
"""

import json
from collections.abc import Sequence

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Deployment, Pool
from splitpoint.inputs.engine import Engine, KvDtype
from splitpoint.inputs.routing import Role, Routing
from splitpoint.recipes import scripts
from splitpoint.recipes.placement import Instance, Share
from splitpoint.recipes.readme import Told
from splitpoint.recipes.serving import Serving
from splitpoint.search.world import ranks_told

SERVER = "vllm serve"

CACHE_DTYPES: dict[KvDtype, str] = {
    "auto": "auto",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp8": "fp8",
    "int8": "int8_per_token_head",
    "int4": "int4_per_token_head",
    "nvfp4": "nvfp4",
}
KV_ROLES: dict[Role, str] = {"prefill": "kv_producer", "decode": "kv_consumer"}


def policy(routing: Routing, workers: int) -> str:
    """The router's word."""
    return scripts.policy(routing, workers, session="consistent_hash")


def refusal(made: Serving) -> PlanError | None:
    """What vLLM would fail on once it is on a cluster; None if it can run the deployment."""
    deployment = made.deployment
    for pool in deployment.pools:
        engine = pool.engine
        if engine.kv_dtype not in CACHE_DTYPES:
            what = f"vLLM has no {engine.kv_dtype} KV cache"
            return PlanError("engine.kv_dtype", what, ", ".join(CACHE_DTYPES))
        if engine.state_dtype not in scripts.STATE_DTYPES:
            what = f"vLLM has no {engine.state_dtype} state cache"
            return PlanError("engine.state_dtype", what, ", ".join(scripts.STATE_DTYPES))
        if pool.role == "decode" and pool.topology.pp > 1:
            what = f"{pool}: NIXL's decode side runs without pipeline stages"
            return PlanError("deployment", what, "pp = 1 for decode")
    drafting = [pool.engine for pool in deployment.pools if pool.engine.drafts]
    if any(engine.draft_method == "eagle3" and not engine.draft_model for engine in drafting):
        what = "no EAGLE-3 head is named, only one of the usual shape assumed"
        return PlanError("engine.draft_model", what, "the head's name or folder")
    if deployment.split and any(pool.engine.host_kv_gib for pool in deployment.pools):
        what = "NIXL beside an offloading connector is not a recipe yet"
        return PlanError("engine.host_kv_gib", what, "0 for prefill and decode pools")
    if deployment.split and len({pool.engine.drafts for pool in deployment.pools}) > 1:
        what = "prefill and decode differ in drafts, and NIXL refuses the handshake"
        return PlanError("deployment", what, "the same drafts on both sides")
    return None


def flags(pool: Pool, served: str) -> list[tuple[str, ...]]:
    """The `vllm serve` flags of one instance of the pool that do not depend on its place."""
    engine, topology = pool.engine, pool.topology
    words: list[tuple[str, ...]] = [
        ("--served-model-name", served),
        ("--tensor-parallel-size", str(topology.tp)),
    ]
    if topology.pp > 1:
        words.append(("--pipeline-parallel-size", str(topology.pp)))
    if topology.dcp > 1:
        words.append(("--decode-context-parallel-size", str(topology.dcp)))
    if topology.dp > 1:
        words.append(("--data-parallel-size", str(topology.dp)))
    if topology.ep > 1:
        words.append(("--enable-expert-parallel",))
    words.append(("--gpu-memory-utilization", f"{engine.utilization:g}"))
    limits = {
        "--max-model-len": engine.max_len,
        "--max-num-seqs": engine.max_seqs,
        "--max-num-batched-tokens": engine.batched_tokens,
        "--block-size": engine.block_size,
    }
    words += [(flag, str(value)) for flag, value in limits.items() if value is not None]
    words.append(("--kv-cache-dtype", CACHE_DTYPES[engine.kv_dtype]))
    if engine.state_dtype != "auto":
        words.append(("--mamba-ssm-cache-dtype", scripts.STATE_DTYPES[engine.state_dtype]))
    no = "" if engine.prefix_caching else "no-"
    words.append((f"--{no}enable-prefix-caching",))
    words.append(("--async-scheduling" if engine.async_scheduling else "--no-async-scheduling",))
    if engine.graphs:
        words.append(("--compilation-config", _json(_graphs(engine))))
    else:
        words.append(("--enforce-eager",))
    if engine.host_kv_gib:
        # vllm/config/cache.py of 0.32: GiB over all GPUs of a rank.
        words.append(("--kv-offloading-backend", "native"))
        words.append(("--kv-offloading-size", f"{engine.host_kv_gib:g}"))
    if engine.drafts:
        words.append(("--speculative-config", _json(_drafts(engine))))
    if pool.role != "mixed":
        words.append(("--kv-transfer-config", _json(_connector(pool.role))))
    return words


def _drafts(engine: Engine) -> dict[str, object]:
    if engine.draft_method == "ngram":
        # The longest and shortest repeat that a vLLM 0.32 server was seen to draft from.
        lookup = {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
        return {"method": "ngram", "num_speculative_tokens": engine.drafts, **lookup}
    settings: dict[str, object] = {
        "method": engine.draft_method or "mtp",
        "num_speculative_tokens": engine.drafts,
    }
    if engine.draft_model is not None:
        settings["model"] = engine.draft_model
    return settings


def _graphs(engine: Engine) -> dict[str, object]:
    settings: dict[str, object] = {"cudagraph_mode": engine.graph_mode.upper()}
    if engine.max_graph is not None:
        settings["max_cudagraph_capture_size"] = engine.max_graph
    if engine.graph_sizes:
        settings["cudagraph_capture_sizes"] = list(engine.graph_sizes)
    return settings


def _connector(role: Role) -> dict[str, object]:
    # "fail": a pull that breaks answers HTTP 500 instead of a silent prefill on the decode side.
    return {
        "kv_connector": "NixlConnector",
        "kv_role": KV_ROLES[role],
        "kv_load_failure_policy": "fail",
    }


def _spread(instance: Instance, share: Share) -> list[tuple[str, ...]]:
    """The flags that join the processes of an instance larger than a node; words for bash."""
    if len(instance.shares) == 1:
        return []
    topology, head = instance.pool.topology, f'"$NODE_{instance.head}"'
    first = share is instance.shares[0]
    words: list[tuple[str, ...]] = []
    if all(part.ranks for part in instance.shares) and len(share.gpus) == share.ranks * (
        topology.tp * topology.pp
    ):
        words += [
            ("--data-parallel-size-local", str(share.ranks)),
            ("--data-parallel-address", head),
            ("--data-parallel-rpc-port", str(instance.rpc_port)),
        ]
        if not first:
            words += [("--data-parallel-start-rank", str(share.first_rank)), ("--headless",)]
        return words
    words += [
        ("--nnodes", str(len(instance.shares))),
        ("--node-rank", str(instance.shares.index(share))),
        ("--master-addr", head),
        ("--master-port", str(instance.master_port)),
    ]
    if topology.dp > 1:
        words.append(("--data-parallel-rpc-port", str(instance.rpc_port)))
    if not first:
        words.append(("--headless",))
    return words


def instance(made: Serving, instance: Instance, share: Share, nodes: int) -> str:
    """The script that starts one node's share of an instance."""
    node = f'"$NODE_{share.node}"'
    gpus = ",".join(str(gpu) for gpu in share.gpus)
    exports = {made.visible: scripts.quote(gpus), "VLLM_HOST_IP": node}
    if instance.role != "mixed":
        exports |= {
            "VLLM_NIXL_SIDE_CHANNEL_HOST": node,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(instance.side_port),
            # NIXL moves a linear state in this layout only; models without one ignore it.
            "VLLM_SSM_CONV_STATE_LAYOUT": "DS",
        }
    sums = instance.pool.engine.flashinfer_sums
    if sums is not None:
        exports["VLLM_ALLREDUCE_USE_FLASHINFER"] = str(int(sums))
    words = [tuple(scripts.quote(w) for w in flag) for flag in flags(instance.pool, made.model)]
    words[0] = ("--served-model-name", '"$SERVED_NAME"')
    words += _spread(instance, share)
    if share is instance.shares[0]:
        words += [("--host", node), ("--port", str(instance.port))]
    comments = scripts.comments(instance, share, nodes, SERVER)
    return scripts.command(comments, f'{SERVER} "$MODEL"', words, exports)


def router(made: Serving, instances: Sequence[Instance]) -> str:
    """The script that starts vllm-router."""
    deployment = made.deployment
    entry = "prefill" if deployment.split else "mixed"
    ranks = ranks_told(deployment)
    first = policy(deployment.routing, ranks * sum(i.role == entry for i in instances))
    second = policy(deployment.decode_routing, ranks * sum(i.role == "decode" for i in instances))
    words = scripts.router_words()
    if ranks > 1:
        # It names the rank of a request by a header that vLLM's front end follows.
        words.append(("--intra-node-data-parallel-size", str(ranks)))
    if deployment.split:
        words += [
            ("--vllm-pd-disaggregation",),
            ("--kv-connector", "nixl"),
            ("--prefill-policy", first),
            ("--decode-policy", second),
        ]
        words += [(f"--{instance.role}", scripts.url(instance)) for instance in instances]
    else:
        words += [("--policy", first), ("--worker-urls", *(scripts.url(i) for i in instances))]
    return scripts.command(scripts.router_comments("vllm-router"), "vllm-router", words)


def settings(made: Serving) -> tuple[str, ...]:
    """Lines of env.sh that only vLLM needs: none."""
    return ()


def checked(instances: Sequence[Instance]) -> Sequence[scripts.Words]:
    """What check.py must be told of vLLM: it is what it takes an engine for."""
    return ()


def told(made: Serving) -> Told:
    """What the README says of vLLM."""
    pools = made.deployment.pools
    return Told(
        engine=f"vLLM {pools[0].engine.version}",
        needs="and vllm-router 0.1.17 (`pip install vllm-router`, `nixl` for the KV transfer)",
        server=SERVER,
        router="vllm-router",
        session="an X-Session-ID header",
        length="--max-model-len",
        lengthen="`--hf-overrides`",
        left_open=tuple(
            flag
            for flag, values in {
                "--max-model-len": [pool.engine.max_len for pool in pools],
                "--max-num-seqs": [pool.engine.max_seqs for pool in pools],
                "--max-num-batched-tokens": [pool.engine.batched_tokens for pool in pools],
                "--block-size": [pool.engine.block_size for pool in pools],
            }.items()
            if None in values
        ),
        notes=tuple(_notes(made.deployment)),
    )


def _notes(deployment: Deployment) -> list[str]:
    notes = []
    if deployment.split:
        notes += [
            "Prefill instances are KV producers and decode instances consumers; a decode instance "
            "pulls after the whole prefill. A failed pull answers HTTP 500; it never falls back to "
            "a silent prefill on the decode side.",
            "The KV transfer takes what UCX finds. Name the network cards with UCX_NET_DEVICES "
            "where the machine has several, and look at `vllm:nixl_*` in `/metrics` for its speed.",
        ]
        if any(pool.topology.pp > 1 for pool in deployment.pools):
            notes.append(
                "The prefill side has pipeline stages: NIXL's pull takes them for plain full "
                "attention only, not for sliding-window or linear-state layers."
            )
    methods = {pool.engine.draft_method for pool in deployment.pools if pool.engine.drafts}
    if "mtp" in methods:
        notes.append(
            "Drafts come from the model's own multi-token-prediction layers (method mtp). For a "
            "separate draft model put its name into --speculative-config, the same on both sides."
        )
    if ranks_told(deployment) > 1:
        notes.append(
            "The router names the data-parallel rank of a request "
            "(`--intra-node-data-parallel-size`), so that prefixes and sessions stay on a rank; "
            "without it vLLM chooses by load."
        )
    elif any(pool.topology.dp > 1 for pool in deployment.pools):
        notes.append(
            "The router sees one address per instance; which of its data-parallel ranks serves a "
            "request is vLLM's choice, by load and without regard to cached prefixes."
        )
    return notes


def _json(value: dict[str, object]) -> str:
    return json.dumps(value, separators=(",", ":"))
