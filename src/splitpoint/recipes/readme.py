"""The README of a recipe: how to run it, what it should give, and what it leaves to the engine."""

from collections.abc import Sequence

from splitpoint import units
from splitpoint.errors import PlanError, printable
from splitpoint.inputs.deployment import Deployment, Traffic
from splitpoint.inputs.routing import Routing
from splitpoint.inputs.slo import Slo
from splitpoint.recipes import bench
from splitpoint.recipes.placement import Instance
from splitpoint.recipes.scripts import POLICIES
from splitpoint.recipes.serving import Serving
from splitpoint.record import Record
from splitpoint.search.world import ranks_told
from splitpoint.sim.router import NAMES_RANKS

# Routers of which the engines' own have no exact counterpart.
INEXACT: frozenset[Routing] = frozenset({"least_requests", "least_kv", "prefix_aware", "linear"})


class Told(Record, frozen=True, kw_only=True):
    """What an engine says in a README: its name and version, what it needs beside, the command
    that serves, its router and what keeps a session there, the flag of the longest length and how
    to `lengthen` a model's, flags that the plan left open, and notes."""

    engine: str
    needs: str
    server: str
    router: str
    session: str
    length: str
    lengthen: str
    left_open: tuple[str, ...]
    notes: tuple[str, ...]


def text(made: Serving, instances: Sequence[Instance], nodes: int, routed: bool, told: Told) -> str:
    """The whole README."""
    sections = [
        _head(made, instances, nodes, told),
        _steps(nodes, told),
        _expect(made),
        _measure(made),
        _notes(made, nodes, routed, told),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def none(made: Serving, refused: PlanError) -> str:
    """What stands in the place of a recipe that cannot be written."""
    return (
        f"# No recipe for {_plain(made.model)} on {made.deployment.gpus} x {_plain(made.gpu)}\n\n"
        f"{_plain(str(made.deployment))}: {_plain(str(refused))}\n"
    )


def _head(made: Serving, instances: Sequence[Instance], nodes: int, told: Told) -> str:
    rows = [
        [
            instance.name,
            _plain(str(instance.pool.topology)),
            "; ".join(
                f"node {share.node}: GPU {', '.join(str(gpu) for gpu in share.gpus)}"
                for share in instance.shares
            ),
            str(instance.port),
        ]
        for instance in instances
    ]
    where = "one node" if nodes == 1 else f"{nodes} nodes"
    return "\n\n".join(
        [
            f"# {_plain(made.model)} on {made.deployment.gpus} x {_plain(made.gpu)}",
            f"{_plain(str(made.deployment))}, on {where}. Written by Splitpoint for "
            f"{_plain(told.engine)} {told.needs}.",
            _table(["instance", "topology", "place", "port"], rows),
        ]
    )


def _steps(nodes: int, told: Told) -> str:
    start = (
        "bash run.sh          # start every instance and wait until they answer"
        if nodes == 1
        else f"NODE=0 bash run.sh   # on node 0, and so on up to NODE={nodes - 1}, all at once"
    )
    steps = [
        "## Run",
        "",
        "```bash",
        start,
        "bash check.sh        # are the tokens right? exit code 0 before any measurement",
        "bash stop.sh         # " + ("stop them" if nodes == 1 else "on every node"),
        "```",
        "",
        "`env.sh` holds what is yours to set: where the weights lie, the addresses of the nodes, "
        f"the Python that has the engine. Extra flags after `run.sh` go to every `{told.server}`.",
    ]
    if nodes > 1:
        steps += [
            "",
            "Every node needs this folder, the weights under the same name, and "
            + ", ".join(f"`NODE_{node}`" for node in range(nodes))
            + " set to addresses that the other nodes reach. Node 0 also runs the router. An "
            "instance that spans nodes has one script per node (`<name>.node<number>.sh`); the "
            "first of them answers HTTP, the others run headless and find it by its address.",
        ]
    return "\n".join(steps)


def _expect(made: Serving) -> str:
    if not made.points:
        return ""
    at = made.plan.slo.percentile if made.plan else 90.0
    rows = [
        [
            _plain(point.load),
            _spread([point.ttft.p50, point.ttft.at_slo]),
            _spread([point.tpot.p50, point.tpot.at_slo]),
            units.count(point.total_tok_s_gpu),
            units.count(point.output_tok_s_gpu),
            f"{point.interactivity:.1f}",
            _share(point.attainment),
            _share(point.success),
        ]
        for point in made.points
    ]
    header = [
        "load",
        f"TTFT p50 / p{at:g}",
        f"TPOT p50 / p{at:g}",
        "total tok/s/GPU",
        "output tok/s/GPU",
        "tok/s/user",
        "within SLO",
        "success",
    ]
    parts = [
        "## What it should give",
        "Simulated, not measured. Output throughput counts the GPUs of both sides. Repeated runs "
        "of one configuration on real clusters differ by about 6% in throughput and TPOT and 10% "
        "in TTFT (median, InferenceX, Apache-2.0): a smaller difference says nothing.",
        _table(header, rows),
    ]
    if made.rests_on:
        parts.append("The prediction rests on assumed numbers:")
        parts.append("\n".join(f"- {_plain(words)}" for words in made.rests_on))
    return "\n\n".join(parts)


def _spread(values: Sequence[float]) -> str:
    return " / ".join(units.seconds(value) for value in values)


def _share(share: float) -> str:
    """A share that rounds to all says so only if it is all."""
    told = units.percent(share)
    return ">99.9%" if told == "100.0%" and share < 1 else told


def _measure(made: Serving) -> str:
    if made.plan is None:
        return ""
    workload, slo = made.plan.workload, made.plan.slo
    at = f" ({made.load})" if made.load and bench.loads(workload) else ""
    parts = [
        "## Measure it",
        f"`splitpoint measure` asks the running recipe as `deployment.json` says{at}, and sets "
        "what it finds beside what is predicted:",
        "```bash\nsplitpoint measure . --out measured.npz\n```",
    ]
    if shape := bench.shape(workload):
        commands = "\n\n".join(_bench([*shape, *load], slo) for load in bench.loads(workload))
        parts += [
            "The same load by vLLM's own client, after `. ./env.sh`:",
            f"```bash\n{commands}\n```",
        ]
    return "\n\n".join(parts)


def _bench(words: Sequence[str], slo: Slo) -> str:
    metrics, goodput = bench.figures(slo)
    lines = [
        'vllm bench serve --base-url "$ENDPOINT" --model "$MODEL" '
        '--served-model-name "$SERVED_NAME"',
        " ".join(words),
        f"--ignore-eos {metrics}",
        f"{goodput} --save-result --save-detailed",
    ]
    return " \\\n  ".join(lines)


def _notes(made: Serving, nodes: int, routed: bool, told: Told) -> str:
    deployment = made.deployment
    notes = _too_long(made, told)
    if told.left_open:
        left = ", ".join(f"`{flag}`" for flag in told.left_open)
        notes.append(f"Left to the engine's defaults: {left}.")
    notes += told.notes
    if deployment.split and made.plan is not None:
        notes += _assumed_of_handover(made.plan.search, told)
    if _names_ranks(deployment):
        notes.append(
            f"The prediction's router ({deployment.routing}) names the rank of a request, as "
            "Dynamo's KV router does. Here the engine names it: expect fewer prefix hits and "
            "longer queues, or predict with `routing` round_robin, session or prefix_approx."
        )
    if routed:
        for routing in sorted(_drawn(deployment) & INEXACT):
            taken = POLICIES[routing]
            simulated = "prefix_approx" if taken == "cache_aware" else taken
            notes.append(
                f"{told.router} has no {routing}: the recipe takes {taken}, which `routing` "
                f"{simulated} predicts."
            )
        if deployment.routing == "session":
            notes.append(f"Session affinity needs {told.session} on every request.")
        notes.append(
            "The router tries failed requests again. To count failures, start it with "
            "`bash router.sh --disable-retries`."
        )
    if nodes == 1:
        notes.append(
            "Everything listens on 127.0.0.1. ROUTER_HOST=0.0.0.0 opens the router to others; "
            "nothing asks for a key."
        )
    return "## Good to know\n\n" + "\n".join(f"- {note}" for note in notes) if notes else ""


def _assumed_of_handover(stated: Traffic, told: Told) -> list[str]:
    """What the prediction was told of the handover and this recipe does not do."""
    notes = []
    if stated.direct_below:
        notes.append(
            f"The prediction lets requests with fewer than {stated.direct_below:,} new tokens "
            f"prefill on their decode instance (`direct_below`); {told.router} sends all to "
            "prefill."
        )
    if stated.layerwise:
        notes.append(
            "The prediction moves KV while its prompt is computed (`layerwise`). vLLM's NIXL "
            "connector pulls after the whole prompt; SGLang sends each chunk when it is done."
        )
    return notes


def _names_ranks(deployment: Deployment) -> bool:
    """Whether the predicted router names ranks of instances, and the recipe's does not."""
    entry = [pool for pool in deployment.pools if pool.role != "decode"]
    if ranks_told(deployment) > 1:
        return False
    return deployment.routing in NAMES_RANKS and any(pool.topology.dp > 1 for pool in entry)


def _drawn(deployment: Deployment) -> set[Routing]:
    """The policies by which the router chooses between several instances."""
    sides = [
        (deployment.routing, ("prefill", "mixed")),
        (deployment.decode_routing, ("decode",)),
    ]
    return {
        routing
        for routing, roles in sides
        if sum(pool.replicas for pool in deployment.pools if pool.role in roles) > 1
    }


def _too_long(made: Serving, told: Told) -> list[str]:
    limits = [pool.engine.max_len for pool in made.deployment.pools]
    shortest = min((limit for limit in limits if limit is not None), default=None)
    if shortest is None or made.input_p99 <= shortest:
        return []
    return [
        f"The workload's inputs reach {units.count(made.input_p99)} tokens (p99), "
        f"`{told.length}` is {units.count(shortest)}: the engine refuses longer requests, which "
        "the simulation served. Raise it behind run.sh, with the scaling of positions that the "
        f"model's authors name ({told.lengthen}), or cut the trace."
    ]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _plain(words: str) -> str:
    """Words of a user's file as they may stand in Markdown: one line, no markup of their own."""
    return "".join("\\" + c if c in "\\`*[]<>|#" else c for c in printable(words))
