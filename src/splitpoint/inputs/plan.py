"""The plan file: a model, a GPU, how many, what is asked, and what may be chosen.

A deployment file says instead what is chosen already: the pools, for `splitpoint simulate`.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from splitpoint.inputs import facts, files
from splitpoint.inputs.checks import Problem, Rule
from splitpoint.inputs.deployment import Degree, Deployment, GpuCount, Pool, Topology, Traffic
from splitpoint.inputs.engine import (
    Acceptance,
    BatchedTokens,
    BlockSize,
    CurveFile,
    DraftMethod,
    DraftModel,
    Drafts,
    Engine,
    EngineName,
    GraphMode,
    GraphSizes,
    HostGib,
    Kernels,
    KvDtype,
    SchedulePolicy,
    Sequences,
    Steps,
    Tokens,
    Utilization,
    Version,
    fill_usual,
)
from splitpoint.inputs.gpu import Gpu, LinkBandwidth
from splitpoint.inputs.routing import Role, Routing
from splitpoint.inputs.slo import Slo
from splitpoint.inputs.workload import MAX_SWEEP, RequestCount, Workload
from splitpoint.record import Record

ModelName = Annotated[
    str, Meta(pattern=r"\S", description="a catalogue name, a config.json, a folder or a hub id")
]
GpuName = Annotated[str, Rule(facts.name_faults)]
DraftChoices = Annotated[
    tuple[Drafts, ...], Meta(min_length=1, max_length=MAX_SWEEP, description="such as [0, 3]")
]
Degrees = Annotated[tuple[Degree, ...], Meta(max_length=MAX_SWEEP)]
# Assumed: past the memory of any rank.
KvGib = Annotated[float, Meta(gt=0, le=2**20)]


class EnginePlan(Record, frozen=True, kw_only=True):
    """The `[engine]` table: an `Engine` whose drafts may be a list to consider."""

    name: EngineName = "vllm"
    version: Version = ""
    utilization: Utilization = 0.0
    kv_dtype: KvDtype = "auto"
    state_dtype: KvDtype = "auto"
    block_size: BlockSize | None = None
    batched_tokens: BatchedTokens | None = None
    max_seqs: Sequences | None = None
    max_len: Tokens | None = None
    prefix_caching: bool = True
    async_scheduling: bool = True
    graphs: bool = True
    max_graph: Sequences | None = None
    graph_sizes: GraphSizes = ()
    graph_padding: bool = True
    balance_steps: Steps = 0
    all_to_all: bool | None = None
    flashinfer_sums: bool | None = None
    schedule_policy: SchedulePolicy = "fcfs"
    mixed_chunk: bool = False
    graph_mode: GraphMode = "full_and_piecewise"
    drafts: Drafts | DraftChoices = 0
    acceptance: Acceptance = ()
    draft_method: DraftMethod | None = None
    draft_model: DraftModel | None = None
    curve: CurveFile | None = None
    kernels: Kernels = "fitted"
    host_kv_gib: HostGib = 0.0
    host_bandwidth: LinkBandwidth = 50e9

    def __post_init__(self) -> None:
        fill_usual(self, self.name, self.version, self.utilization)


class Search(Traffic, frozen=True, kw_only=True):
    """The `[search]` table: what may be varied. Empty tuples mean every legal value (of `dcp` and
    `pp`, powers of two)."""

    roles: Annotated[tuple[Literal["mixed", "split"], ...], Meta(min_length=1)] = ("mixed", "split")
    tp: Degrees = ()
    dp: Degrees = ()
    pp: Degrees = (1,)
    ep: tuple[Literal[1, "all"], ...] = ()
    dcp: Degrees = (1,)
    routing: Annotated[tuple[Routing, ...], Meta(min_length=1)] = ("prefix_aware", "round_robin")
    requests: RequestCount | None = None
    all_gpus: bool = False
    kv_pool_gib: KvGib | None = None


class Plan(Record, frozen=True, kw_only=True):
    """A whole plan file. `gpus` is the most that may be used."""

    model: ModelName
    gpu: GpuName | Gpu
    gpus: GpuCount
    workload: Workload
    slo: Slo
    engine: EnginePlan = EnginePlan()
    search: Search = Search()
    name: str | None = None


class PoolPlan(Record, frozen=True, kw_only=True):
    """One `[[pools]]` table of a deployment file. `ep`: "all" is tp x dp. `engine` and `gpu`
    replace the file's own for this pool."""

    role: Role = "mixed"
    tp: Degree = 1
    dp: Degree = 1
    pp: Degree = 1
    ep: Literal[1, "all"] = 1
    dcp: Degree = 1
    replicas: GpuCount = 1
    engine: Engine | None = None
    gpu: GpuName | Gpu | None = None

    @property
    def topology(self) -> Topology:
        """The degrees of one instance."""
        ep = self.tp * self.dp if self.ep == "all" else 1
        return Topology(tp=self.tp, dp=self.dp, pp=self.pp, ep=ep, dcp=self.dcp)


class DeploymentPlan(Traffic, frozen=True, kw_only=True):
    """A deployment file: a model on a GPU in chosen pools. A workload may be given with it."""

    model: ModelName
    gpu: GpuName | Gpu
    pools: tuple[PoolPlan, ...]
    routing: Routing = "prefix_aware"
    decode_routing: Routing = "least_kv"
    engine: Engine = Engine()
    workload: Workload | None = None
    slo: Slo | None = None
    kv_pool_gib: KvGib | None = None
    name: str | None = None

    @property
    def pool_gpus(self) -> tuple[Gpu, ...]:
        """The GPU of each pool."""
        return tuple(facts.gpu(pool.gpu or self.gpu) for pool in self.pools)

    @property
    def deployment(self) -> Deployment:
        """The pools as the simulator's world is built from."""
        pools = tuple(
            Pool(
                role=pool.role,
                topology=pool.topology,
                replicas=pool.replicas,
                engine=pool.engine or self.engine,
                gpu=gpu.name,
            )
            for pool, gpu in zip(self.pools, self.pool_gpus, strict=True)
        )
        return Deployment(pools=pools, routing=self.routing, decode_routing=self.decode_routing)

    def problems(self) -> Iterable[Problem]:
        """Faults of the set of pools."""
        return self.deployment.problems()


def read_plan(path: Path, sets: Sequence[str] = ()) -> Plan:
    """The plan of a file; a relative trace path is taken from the plan's folder."""
    return _read(files.load(path), Plan, path, sets)


def read_deployment(path: Path, sets: Sequence[str] = ()) -> DeploymentPlan:
    """The deployment of a file; a relative trace path is taken from the file's folder."""
    return _read(files.load(path), DeploymentPlan, path, sets)


def read_plan_or_deployment(path: Path, sets: Sequence[str] = ()) -> Plan | DeploymentPlan:
    """The deployment of a file that has pools, the plan of any other."""
    tree = files.load(path)
    if isinstance(tree, dict) and "pools" in tree:
        return _read(tree, DeploymentPlan, path, sets)
    return _read(tree, Plan, path, sets)


Read = TypeVar("Read", Plan, DeploymentPlan)
AnyEngine = TypeVar("AnyEngine", Engine, EnginePlan)


def _read(tree: object, kind: type[Read], path: Path, sets: Sequence[str]) -> Read:
    if isinstance(tree, dict):
        tree, sets = _with_gpu_written_out(tree, sets)
    # With its parsers, which a process that is given a `World` does without.
    from splitpoint.inputs.conversion import convert

    plan = _with_curves(convert(tree, kind, str(path), sets), path)
    workload = plan.workload
    if workload is None or workload.trace is None:
        return plan
    placed = msgspec.structs.replace(workload, trace=_beside(path, workload.trace))
    return msgspec.structs.replace(plan, workload=placed)


def _with_curves(plan: Read, path: Path) -> Read:
    """The plan with its curve files named from where we are."""
    if isinstance(plan, DeploymentPlan):
        pools = tuple(
            pool if pool.engine is None else msgspec.structs.replace(pool, engine=engine)
            for pool in plan.pools
            for engine in (pool.engine and _with_curve(pool.engine, path),)
        )
        plan = msgspec.structs.replace(plan, pools=pools)
    return msgspec.structs.replace(plan, engine=_with_curve(plan.engine, path))


def _with_curve(engine: AnyEngine, path: Path) -> AnyEngine:
    if engine.curve is None:
        return engine
    return msgspec.structs.replace(engine, curve=_beside(path, engine.curve))


def _beside(path: Path, name: str) -> str:
    """A file that another one names, relative to that one's folder."""
    # Path.expanduser raises where it knows no such user; this one leaves the name as it is.
    return str(path.parent / os.path.expanduser(name))  # noqa: PTH111


def _with_gpu_written_out(
    tree: dict[str, object], sets: Sequence[str]
) -> tuple[dict[str, object], Sequence[str]]:
    """A named GPU as a table where `--set gpu.hbm_gib=90` changes a number of it; its source no
    longer vouches for that number."""
    pairs = [(key.strip(), value.strip()) for key, _, value in (t.partition("=") for t in sets)]
    numbers = {key.split(".")[1] for key, _ in pairs if key.startswith("gpu.")}
    named = [value for key, value in pairs if key == "gpu"]
    name = named[-1] if named else tree.get("gpu")
    if not numbers or not isinstance(name, str) or facts.name_faults(name):
        return tree, sets
    table = msgspec.to_builtins(facts.gpu(name))
    for number in numbers & set(table["sources"]):
        table["sources"][number] = "assumed: set by the user"
    rest = [text for text, (key, _) in zip(sets, pairs, strict=True) if key != "gpu"]
    return tree | {"gpu": table}, rest
