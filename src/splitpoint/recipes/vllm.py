"""A deployment as `vllm serve` scripts: one file per instance and node, a router, start and stop.

The flags are those of vLLM 0.32 and vllm-router 0.1.17, read from their sources. Prefill
instances are KV producers, decode instances consumers, over the NIXL connector; every engine
setting that the prediction fixed is a flag, every one it left open stays the engine's default.
"""

import json
import shlex
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path

from splitpoint.errors import PlanError, printable
from splitpoint.inputs.deployment import Deployment, Pool, Role, Routing
from splitpoint.inputs.engine import Engine, KvDtype
from splitpoint.inputs.files import to_json, write_atomic
from splitpoint.recipes import readme
from splitpoint.recipes.placement import Instance, Share, place
from splitpoint.recipes.serving import DEPLOYMENT, Serving, chosen, deployment_file
from splitpoint.verdict.answer import Answer, holding_name

ROUTER_PORT = 8000
ROUTER_METRICS_PORT = 29000
EXECUTABLE = 0o755
README = "README.md"

CACHE_DTYPES: dict[KvDtype, str] = {
    "auto": "auto",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp8": "fp8",
    "int8": "int8_per_token_head",
    "int4": "int4_per_token_head",
    "nvfp4": "nvfp4",
}
STATE_DTYPES: dict[KvDtype, str] = {
    "auto": "auto",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
}
# The router has no exact counterpart of `least_requests` and `least_kv`: power_of_two, the lighter
# of two drawn workers, is the nearest that looks at load. `cache_aware` is `prefix_approx`, and the
# nearest to the two that read cache events.
POLICIES: dict[Routing, str] = {
    "random": "random",
    "round_robin": "round_robin",
    "least_requests": "power_of_two",
    "least_kv": "power_of_two",
    "power_of_two": "power_of_two",
    "session": "consistent_hash",
    "prefix_aware": "cache_aware",
    "prefix_approx": "cache_aware",
    "linear": "cache_aware",
}
KV_ROLES: dict[Role, str] = {"prefill": "kv_producer", "decode": "kv_consumer"}


def write(what: Answer | Serving, folder: Path) -> tuple[Path, ...]:
    """Write the recipe of a deployment, or of an answer's choice.

    No choice, no files; a choice that this recipe cannot launch leaves a README that says why,
    since the answer is worth having all the same.
    """
    if isinstance(what, Serving):
        return _write(files(what), folder)
    made = chosen(what)
    if made is None:
        return ()
    refused = refusal(made.deployment)
    return _write(files(made) if refused is None else {README: readme.none(made, refused)}, folder)


def _write(made: dict[str, str], folder: Path) -> tuple[Path, ...]:
    paths = []
    for name, text in made.items():
        path = folder / name
        write_atomic(path, text)
        if name.endswith((".sh", ".py")):
            path.chmod(EXECUTABLE)
        paths.append(path)
    return tuple(paths)


def files(made: Serving) -> dict[str, str]:
    """Every file of the recipe by name."""
    refused = refusal(made.deployment)
    if refused is not None:
        raise refused
    instances = place(made.deployment, made.gpus_per_node)
    nodes = 1 + max(share.node for instance in instances for share in instance.shares)
    routed = len(instances) > 1
    out = {"env.sh": _env(made, instances, nodes)} | {
        script_name(instance, share): _instance(made, instance, share, nodes)
        for instance in instances
        for share in instance.shares
    }
    if routed:
        out["router.sh"] = _router(made.deployment, instances)
    out["run.sh"] = _run(instances, routed)
    out["stop.sh"] = STOP
    out["check.sh"] = _check_script(made, instances, routed)
    out["check.py"] = resources.files("splitpoint.recipes").joinpath("check_tokens.py").read_text()
    out[DEPLOYMENT] = to_json(deployment_file(made)).decode()
    out[README] = readme.text(made, instances, nodes, routed)
    return out


def policy(routing: Routing, workers: int) -> str:
    """The router's word; it refuses to draw two of one worker, of which there is no choice."""
    return POLICIES[routing] if workers > 1 else "round_robin"


def script_name(instance: Instance, share: Share) -> str:
    """The file that starts this share of the instance."""
    if len(instance.shares) == 1:
        return f"{instance.name}.sh"
    return f"{instance.name}.node{share.node}.sh"


def refusal(deployment: Deployment) -> PlanError | None:
    """What vLLM would fail on once it is on a cluster; None if it can run the deployment."""
    for pool in deployment.pools:
        engine = pool.engine
        if engine.name != "vllm":
            return PlanError("engine.name", f"no launch recipe for {engine.name} yet", "vllm")
        if engine.kv_dtype not in CACHE_DTYPES:
            what = f"vLLM has no {engine.kv_dtype} KV cache"
            return PlanError("engine.kv_dtype", what, ", ".join(CACHE_DTYPES))
        if engine.state_dtype not in STATE_DTYPES:
            what = f"vLLM has no {engine.state_dtype} state cache"
            return PlanError("engine.state_dtype", what, ", ".join(STATE_DTYPES))
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
        words.append(("--mamba-ssm-cache-dtype", STATE_DTYPES[engine.state_dtype]))
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


def _instance(made: Serving, instance: Instance, share: Share, nodes: int) -> str:
    node = f'"$NODE_{share.node}"'
    exports = {made.visible: _quote(",".join(str(gpu) for gpu in share.gpus)), "VLLM_HOST_IP": node}
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
    words = [tuple(_quote(w) for w in flag) for flag in flags(instance.pool, made.model)]
    words[0] = ("--served-model-name", '"$SERVED_NAME"')
    words += _spread(instance, share)
    if share is instance.shares[0]:
        words += [("--host", node), ("--port", str(instance.port))]
    gpus = _plural(len(share.gpus), "GPU")
    place_words = f"{gpus} of node {share.node}" if nodes > 1 else gpus
    lines = [
        f"# {instance.name}: {printable(str(instance.pool.topology))} on {place_words}.",
        "# Extra `vllm serve` flags may be given as arguments.",
        *HERE,
        *(f"export {name}={value}" for name, value in exports.items()),
        'exec vllm serve "$MODEL" \\',
        *(f"  {' '.join(flag)} \\" for flag in words),
        '  "$@"',
    ]
    return _bash(lines)


def _env(made: Serving, instances: Sequence[Instance], nodes: int) -> str:
    if nodes == 1:
        addresses = ['export NODE_0="${NODE_0:-127.0.0.1}"']
    else:
        addresses = [
            f': "${{NODE_{node}:?set NODE_{node} to the address of node {node}, '
            'as the other nodes reach it}"'
            for node in range(nodes)
        ]
        addresses.append("export " + " ".join(f"NODE_{node}" for node in range(nodes)))
    if len(instances) > 1:
        endpoint = f'"http://$NODE_0:{ROUTER_PORT}"'
    else:
        endpoint = f'"http://$NODE_{instances[0].head}:{instances[0].port}"'
    lines = [
        "# What the scripts share; edit here. Values already in the environment win.",
        "",
        "# The weights, as vLLM loads them: the same words on every instance, because the",
        "# connector compares them.",
        f"DEFAULT_MODEL={_quote(made.model)}",
        'export MODEL="${MODEL:-$DEFAULT_MODEL}"',
        'export SERVED_NAME="${SERVED_NAME:-$DEFAULT_MODEL}"',
        "",
        f"# {_plural(nodes, 'node')} of {_plural(made.gpus_per_node, 'GPU')}.",
        *addresses,
        "",
        f"export ENDPOINT={endpoint}",
        'export PYTHON="${PYTHON:-python3}"',
        "# Seconds that loading the weights and capturing graphs may take.",
        'export START_TIMEOUT="${START_TIMEOUT:-1800}"',
    ]
    return _bash(lines, shebang=False)


def _router(deployment: Deployment, instances: Sequence[Instance]) -> str:
    entry = "prefill" if deployment.split else "mixed"
    first = policy(deployment.routing, sum(i.role == entry for i in instances))
    second = policy(deployment.decode_routing, sum(i.role == "decode" for i in instances))
    words: list[tuple[str, ...]] = [
        ("--host", '"${ROUTER_HOST:-$NODE_0}"'),
        ("--port", str(ROUTER_PORT)),
        ("--prometheus-port", str(ROUTER_METRICS_PORT)),
        ("--worker-startup-timeout-secs", '"$START_TIMEOUT"'),
    ]
    if deployment.split:
        words += [
            ("--vllm-pd-disaggregation",),
            ("--kv-connector", "nixl"),
            ("--prefill-policy", first),
            ("--decode-policy", second),
        ]
        words += [(f"--{instance.role}", _url(instance)) for instance in instances]
    else:
        words += [("--policy", first), ("--worker-urls", *(_url(i) for i in instances))]
    lines = [
        "# The router in front of the instances (pip install vllm-router).",
        "# ROUTER_HOST=0.0.0.0 serves other machines; nothing here asks for a key.",
        *HERE,
        "exec vllm-router \\",
        *(f"  {' '.join(word)} \\" for word in words),
        '  "$@"',
    ]
    return _bash(lines)


def _url(instance: Instance) -> str:
    return f'"http://$NODE_{instance.head}:{instance.port}"'


def _run(instances: Sequence[Instance], routed: bool) -> str:
    # A stranger that answers there would be taken for the instance.
    frees = [
        f'[ "$NODE" != {instance.head} ] || free {instance.name} {_url(instance)}'
        for instance in instances
    ]
    starts = [
        f'[ "$NODE" != {share.node} ] || start {script_name(instance, share)} "$@"'
        for instance in instances
        for share in instance.shares
    ]
    # Node 0 waits for all, since the router needs them; the others for what they hold.
    waits = [
        " && ".join(f'[ "$NODE" != {node} ]' for node in sorted({0, instance.head}))
        + f" || wait_for {instance.name} {_url(instance)}"
        for instance in instances
    ]
    router = [
        'if [ "$NODE" = 0 ]; then',
        "  start router.sh",
        '  wait_for router "$ENDPOINT"',
        "fi",
    ]
    lines = [
        "# Start this node's instances in the background and wait until they answer.",
        "# Usage: run.sh [vllm serve flags...]; with several nodes: NODE=<number> run.sh on each.",
        *HERE,
        'NODE="${NODE:-0}"',
        *RUN_FUNCTIONS,
        *frees,
        *(['[ "$NODE" != 0 ] || free router "$ENDPOINT"'] if routed else []),
        *starts,
        *waits,
        *(router if routed else []),
        'echo "ready: $ENDPOINT"',
    ]
    return _bash(lines)


def _check_script(made: Serving, instances: Sequence[Instance], routed: bool) -> str:
    words: list[tuple[str, ...]] = [("--model", '"$SERVED_NAME"')]
    words += [(f"--{instance.role}", _url(instance)) for instance in instances]
    if routed:
        words.append(("--router", '"$ENDPOINT"'))
    words += [
        ("--kv-blocks", _quote(f"{instance.name}={holding.kv_blocks}"))
        for instance in instances
        for holding in made.holdings
        if holding.topology == holding_name(instance.pool)
    ]
    lines = [
        "# Do the instances give the tokens that one instance alone gives? A health check does not",
        "# see wrong tokens. Run it before any measurement, on an idle deployment.",
        *HERE,
        'exec "$PYTHON" "$HERE/check.py" \\',
        *(f"  {' '.join(word)} \\" for word in words),
        '  "$@"',
    ]
    return _bash(lines)


def _bash(lines: Iterable[str], *, shebang: bool = True) -> str:
    head = ["#!/usr/bin/env bash"] if shebang else ["# shellcheck shell=bash"]
    return "\n".join([*head, *lines]) + "\n"


def _json(value: dict[str, object]) -> str:
    return json.dumps(value, separators=(",", ":"))


def _quote(word: str) -> str:
    return shlex.quote(word)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


HERE = (
    "set -euo pipefail",
    'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"',
    '. "$HERE/env.sh"',
)

# When a process began, in clock ticks since boot: tells it from a later one with the same id.
# Nothing for one that has ended, reaped or not.
BEGAN = (
    r'began() { sed -n "s/.*) \([^ZX]\)/\1/p" "/proc/$1/stat" 2> /dev/null | cut -d " " -f 20; }'
)

# A folder that several nodes share holds the ids of each apart.
PIDS = 'PIDS="$HERE/pids/$(uname -n)"'

RUN_FUNCTIONS = (
    PIDS,
    'mkdir -p "$HERE/logs" "$PIDS"',
    "# Asked to stop it stops between two steps, so that pids/ names all that it started.",
    "STOPPING=",
    "trap 'STOPPING=1' TERM",
    BEGAN,
    "free() {",
    '  [ ! -f "$PIDS/$1" ] || return 0',
    '  if curl -s -o /dev/null --max-time 5 "$2/health"; then',
    '    echo "$1: something answers at $2 already" >&2',
    "    exit 1",
    "  fi",
    "}",
    "start() {",
    '  local script="$1" name="${1%.sh}"',
    "  shift",
    '  [ -z "$STOPPING" ] || exit 143',
    '  if [ -f "$PIDS/$name" ]; then',
    '    echo "$name: already started; stop.sh first" >&2',
    "    exit 1",
    "  fi",
    '  setsid bash "$HERE/$script" "$@" > "$HERE/logs/$name.log" 2>&1 < /dev/null &',
    '  echo "$! $(began "$!")" > "$PIDS/$name"',
    '  echo "$name: starting, log in logs/$name.log"',
    "}",
    "all_alive() {",
    "  local file name pid ticks",
    '  for file in "$PIDS"/*; do',
    '    [ -f "$file" ] || continue',
    '    name="$(basename "$file")"',
    '    read -r pid ticks < "$file"',
    "    # One that ended before its start could be written down has no ticks.",
    '    if [ -z "$ticks" ] || [ "$(began "$pid")" != "$ticks" ]; then',
    '      echo "$name: died; the end of logs/$name.log:" >&2',
    '      tail -n 20 "$HERE/logs/$name.log" >&2',
    "      return 1",
    "    fi",
    "  done",
    "}",
    "wait_for() {",
    '  local name="$1" url="$2" since="$SECONDS"',
    '  until curl -sf -o /dev/null --max-time 5 "$url/health"; do',
    '    [ -z "$STOPPING" ] || exit 143',
    "    all_alive || exit 1",
    '    if [ "$((SECONDS - since))" -ge "$START_TIMEOUT" ]; then',
    '      echo "$name: no answer from $url after $START_TIMEOUT s" >&2',
    "      exit 1",
    "    fi",
    "    sleep 1",
    "  done",
    '  echo "$name: answers at $url after $((SECONDS - since)) s"',
    "}",
)

STOP = _bash(
    (
        "# Stop what run.sh started on this node: ask first, kill what is left after 30 s.",
        "set -uo pipefail",
        'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"',
        "shopt -s nullglob",
        PIDS,
        BEGAN,
        'for file in "$PIDS"/*; do',
        '  read -r pid ticks < "$file"',
        '  if [ -n "$ticks" ] && [ "$(began "$pid")" = "$ticks" ]; then kill -TERM "$pid"; fi',
        "done",
        "SECONDS=0",
        'for file in "$PIDS"/*; do',
        '  read -r pid ticks < "$file"',
        '  while [ -n "$ticks" ] && [ "$(began "$pid")" = "$ticks" ] && [ "$SECONDS" -lt 30 ]; do',
        "    sleep 0.2",
        "  done",
        "  # Each leads its own process group, and no other process can take a group's id while a",
        "  # member lives; a process that began later with this id is not ours.",
        '  now="$(began "$pid")"',
        '  if [ -z "$now" ] || [ "$now" = "$ticks" ]; then kill -KILL -- "-$pid" 2> /dev/null; fi',
        '  rm -f "$file"',
        "done",
        "exit 0",
    )
)
