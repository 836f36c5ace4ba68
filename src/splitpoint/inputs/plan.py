"""The plan file: a model, a GPU, how many, what is asked, and what may be chosen.

A deployment file says instead what is chosen already: the pools, for `splitpoint simulate`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from splitpoint.inputs import files
from splitpoint.inputs.checks import Problem, each, positive, within
from splitpoint.inputs.conversion import convert
from splitpoint.inputs.deployment import (
    MAX_DEGREE,
    MAX_GPUS,
    Deployment,
    Pool,
    Role,
    Routing,
    Topology,
)
from splitpoint.inputs.engine import Engine, EngineName, KvDtype, common_problems, size_problems
from splitpoint.inputs.facts import gpu_problems
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.workload import MAX_REQUESTS, Slo, Workload
from splitpoint.record import Record


class EnginePlan(Record, frozen=True, kw_only=True):
    """The `[engine]` table: an `Engine` whose drafts may be a list to consider."""

    name: EngineName = "vllm"
    version: str = "0.32.0"
    utilization: float = 0.92
    kv_dtype: KvDtype = "auto"
    state_dtype: KvDtype = "auto"
    block_size: int | None = None
    batched_tokens: int | None = None
    max_seqs: int | None = None
    max_len: int | None = None
    prefix_caching: bool = True
    async_scheduling: bool = True
    graphs: bool = True
    drafts: int | tuple[int, ...] = 0
    acceptance: tuple[float, ...] = ()

    def problems(self) -> list[Problem]:
        """Every setting that no engine would take."""
        return [
            *common_problems(self.version, self.utilization, self.drafts, self.acceptance),
            *size_problems(self.block_size, self.batched_tokens, self.max_seqs, self.max_len),
        ]


class Search(Record, frozen=True, kw_only=True):
    """The `[search]` table: what may be varied. Empty tuples mean every legal value."""

    roles: tuple[Literal["mixed", "split"], ...] = ("mixed", "split")
    tp: tuple[int, ...] = ()
    dp: tuple[int, ...] = ()
    pp: tuple[int, ...] = (1,)
    ep: tuple[Literal[1, "all"], ...] = ()
    routing: tuple[Routing, ...] = ("prefix_aware", "round_robin")
    requests: int | None = None
    all_gpus: bool = False
    kv_pool_gib: float | None = None
    transfer_bandwidth: float | None = None

    def problems(self) -> list[Problem]:
        """Faults of what may be varied."""
        faults = [
            fault
            for name, degrees in (("tp", self.tp), ("dp", self.dp), ("pp", self.pp))
            for path, value in each(name, degrees)
            for fault in within(path, value, 1, MAX_DEGREE)
        ]
        for name, given in (("roles", self.roles), ("routing", self.routing)):
            if not given:
                faults.append(Problem(name, "is an empty list", "leave it out for the default"))
        return [
            *faults,
            *within("requests", self.requests, 1, MAX_REQUESTS),
            *positive("kv_pool_gib", self.kv_pool_gib),
            *positive("transfer_bandwidth", self.transfer_bandwidth),
        ]


class Plan(Record, frozen=True, kw_only=True):
    """A whole plan file. `gpus` is the most that may be used."""

    model: str
    gpu: str | Gpu
    gpus: int
    workload: Workload
    slo: Slo
    engine: EnginePlan = EnginePlan()
    search: Search = Search()
    name: str | None = None

    def problems(self) -> list[Problem]:
        """Faults of the values that stand outside any table."""
        return [
            *model_problems(self.model),
            *gpu_problems(self.gpu),
            *within("gpus", self.gpus, 1, MAX_GPUS),
        ]


class PoolPlan(Record, frozen=True, kw_only=True):
    """One `[[pools]]` table of a deployment file. `ep`: "all" is tp x dp. `engine` replaces the
    file's own engine table for this pool."""

    role: Role = "mixed"
    tp: int = 1
    dp: int = 1
    pp: int = 1
    ep: Literal[1, "all"] = 1
    replicas: int = 1
    engine: Engine | None = None

    @property
    def topology(self) -> Topology:
        """The degrees of one instance."""
        ep = self.tp * self.dp if self.ep == "all" else 1
        return Topology(tp=self.tp, dp=self.dp, pp=self.pp, ep=ep)

    def problems(self) -> list[Problem]:
        """Faults of the pool."""
        return [*self.topology.problems(), *within("replicas", self.replicas, 1, MAX_GPUS)]


class DeploymentPlan(Record, frozen=True, kw_only=True):
    """A deployment file: a model on a GPU in chosen pools. A workload may be given with it."""

    model: str
    gpu: str | Gpu
    pools: tuple[PoolPlan, ...]
    routing: Routing = "prefix_aware"
    decode_routing: Routing = "least_kv"
    engine: Engine = Engine()
    workload: Workload | None = None
    slo: Slo | None = None
    kv_pool_gib: float | None = None
    transfer_bandwidth: float | None = None
    name: str | None = None

    @property
    def deployment(self) -> Deployment:
        """The pools as the simulator's world is built from."""
        pools = tuple(
            Pool(
                role=pool.role,
                topology=pool.topology,
                replicas=pool.replicas,
                engine=pool.engine or self.engine,
            )
            for pool in self.pools
        )
        return Deployment(pools=pools, routing=self.routing, decode_routing=self.decode_routing)

    def problems(self) -> list[Problem]:
        """Faults of the values that stand outside any table."""
        return [
            *model_problems(self.model),
            *gpu_problems(self.gpu),
            *self.deployment.problems(),
            *positive("kv_pool_gib", self.kv_pool_gib),
            *positive("transfer_bandwidth", self.transfer_bandwidth),
        ]


def read_plan(path: Path, sets: Sequence[str] = ()) -> Plan:
    """The plan of a file; a relative trace path is taken from the plan's folder."""
    return _placed(files.read(path, Plan, sets), path)


def read_deployment(path: Path, sets: Sequence[str] = ()) -> DeploymentPlan:
    """The deployment of a file; a relative trace path is taken from the file's folder."""
    return _placed(files.read(path, DeploymentPlan, sets), path)


def read_plan_or_deployment(path: Path, sets: Sequence[str] = ()) -> Plan | DeploymentPlan:
    """The deployment of a file that has pools, the plan of any other."""
    tree = files.load(path)
    if isinstance(tree, dict) and "pools" in tree:
        return _placed(convert(tree, DeploymentPlan, str(path), sets), path)
    return _placed(convert(tree, Plan, str(path), sets), path)


def model_problems(model: str) -> list[Problem]:
    """A fault where no model is named."""
    hint = "a catalogue name, a config.json, a folder or a hub id"
    return [] if model.strip() else [Problem("model", "is empty", hint)]


Placed = TypeVar("Placed", Plan, DeploymentPlan)


def _placed(plan: Placed, path: Path) -> Placed:
    workload = plan.workload
    if workload is None or workload.trace is None:
        return plan
    trace = str(path.parent / Path(workload.trace).expanduser())
    return msgspec.structs.replace(plan, workload=msgspec.structs.replace(workload, trace=trace))
