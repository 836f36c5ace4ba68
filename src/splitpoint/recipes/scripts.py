"""The bash that every engine's recipe shares: settings, start, stop and the token check."""

import shlex
from collections.abc import Iterable, Mapping, Sequence

from splitpoint.errors import printable
from splitpoint.inputs.engine import KvDtype
from splitpoint.inputs.routing import Routing
from splitpoint.recipes.placement import Instance, Share
from splitpoint.recipes.serving import Serving
from splitpoint.verdict.answer import holding_name

ROUTER_PORT = 8000
ROUTER_METRICS_PORT = 29000

# What both engines call the dtypes of a state cache.
STATE_DTYPES: dict[KvDtype, str] = {
    "auto": "auto",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
}
# Words that vllm-router and sglang-router share; only what keeps a session differs. They have no
# exact counterpart of `least_requests` and `least_kv`: power_of_two, the lighter of two drawn
# workers, is the nearest that looks at load. `cache_aware` is `prefix_approx`, and the nearest to
# those that read cache events.
POLICIES: dict[Routing, str] = {
    "random": "random",
    "round_robin": "round_robin",
    "least_requests": "power_of_two",
    "least_kv": "power_of_two",
    "power_of_two": "power_of_two",
    "prefix_aware": "cache_aware",
    "prefix_approx": "cache_aware",
    "linear": "cache_aware",
}

Words = tuple[str, ...]


def policy(routing: Routing, workers: int, *, session: str) -> str:
    """A router's word, `session` the one that keeps sessions; it refuses to draw two of one worker,
    of which there is no choice."""
    if workers <= 1:
        return "round_robin"
    return session if routing == "session" else POLICIES[routing]


def env(made: Serving, instances: Sequence[Instance], nodes: int, more: Sequence[str] = ()) -> str:
    """env.sh: what is the user's to set, `more` by the engine."""
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
        "# The weights, as the engine loads them: the same words on every instance, because",
        "# connectors compare them.",
        f"DEFAULT_MODEL={quote(made.model)}",
        'export MODEL="${MODEL:-$DEFAULT_MODEL}"',
        'export SERVED_NAME="${SERVED_NAME:-$DEFAULT_MODEL}"',
        "",
        f"# {plural(nodes, 'node')} of {plural(made.gpus_per_node, 'GPU')}.",
        *addresses,
        "",
        f"export ENDPOINT={endpoint}",
        'export PYTHON="${PYTHON:-python3}"',
        "# Seconds that loading the weights and capturing graphs may take.",
        'export START_TIMEOUT="${START_TIMEOUT:-1800}"',
        *more,
    ]
    return bash(lines, shebang=False)


def script_name(instance: Instance, share: Share) -> str:
    """The file that starts this share of the instance."""
    if len(instance.shares) == 1:
        return f"{instance.name}.sh"
    return f"{instance.name}.node{share.node}.sh"


def comments(instance: Instance, share: Share, nodes: int, server: str) -> tuple[str, ...]:
    """What an instance's script says of itself."""
    gpus = plural(len(share.gpus), "GPU")
    place = f"{gpus} of node {share.node}" if nodes > 1 else gpus
    return (
        f"# {instance.name}: {printable(str(instance.pool.topology))} on {place}.",
        f"# Extra `{server}` flags may be given as arguments.",
    )


def url(instance: Instance) -> str:
    """Where the instance answers, as bash is to read it."""
    return f'"http://$NODE_{instance.head}:{instance.port}"'


def run(instances: Sequence[Instance], routed: bool, server: str) -> str:
    """run.sh; `server` is the command whose flags it takes."""
    # A stranger that answers there would be taken for the instance.
    frees = [
        f'[ "$NODE" != {instance.head} ] || free {instance.name} {url(instance)}'
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
        + f" || wait_for {instance.name} {url(instance)}"
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
        f"# Usage: run.sh [{server} flags...]; with several nodes: NODE=<number> run.sh on each.",
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
    return bash(lines)


def check(made: Serving, instances: Sequence[Instance], routed: bool, more: Sequence[Words]) -> str:
    """check.sh: what the token check is told, `more` by the engine."""
    words: list[Words] = [("--model", '"$SERVED_NAME"'), *more]
    words += [(f"--{instance.role}", url(instance)) for instance in instances]
    if routed:
        words.append(("--router", '"$ENDPOINT"'))
    words += [
        ("--kv-blocks", quote(f"{instance.name}={holding.kv_blocks}"))
        for instance in instances
        for holding in made.holdings
        if holding.topology == holding_name(instance.pool)
    ]
    comments = (
        "# Do the instances give the tokens that one instance alone gives? A health check does not",
        "# see wrong tokens. Run it before any measurement, on an idle deployment.",
    )
    return command(comments, '"$PYTHON" "$HERE/check.py"', words)


def router_comments(package: str) -> tuple[str, ...]:
    """What router.sh says of itself."""
    return (
        f"# The router in front of the instances (pip install {package}).",
        "# ROUTER_HOST=0.0.0.0 serves other machines; nothing here asks for a key.",
    )


def router_words() -> list[Words]:
    """Options that both engines' routers spell alike: where they listen, how long they wait."""
    return [
        ("--host", '"${ROUTER_HOST:-$NODE_0}"'),
        ("--port", str(ROUTER_PORT)),
        ("--prometheus-port", str(ROUTER_METRICS_PORT)),
        ("--worker-startup-timeout-secs", '"$START_TIMEOUT"'),
    ]


def command(
    comments: Sequence[str],
    program: str,
    words: Sequence[Words],
    exports: Mapping[str, str] | None = None,
) -> str:
    """A script that becomes the program; words and values as bash is to read them."""
    lines = [
        *comments,
        *HERE,
        *(f"export {name}={value}" for name, value in (exports or {}).items()),
        f"exec {program} \\",
        *(f"  {' '.join(word)} \\" for word in words),
        '  "$@"',
    ]
    return bash(lines)


def bash(lines: Iterable[str], *, shebang: bool = True) -> str:
    """The lines as a script, or as one that others read in."""
    head = ["#!/usr/bin/env bash"] if shebang else ["# shellcheck shell=bash"]
    return "\n".join([*head, *lines]) + "\n"


def quote(word: str) -> str:
    """One word for bash, whatever is in it."""
    return shlex.quote(word)


def plural(count: int, noun: str) -> str:
    """`1 GPU`, `2 GPUs`."""
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

STOP = bash(
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
