"""What a recipe is made from: the weights, the node, the deployment and what to expect of it."""

import difflib
from pathlib import Path
from typing import Literal

import msgspec

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Deployment, Pool, Traffic
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.plan import DeploymentPlan, Plan, PoolPlan
from splitpoint.inputs.workload import Workload
from splitpoint.record import Record
from splitpoint.search.loads import at_load
from splitpoint.verdict.answer import Answer, Holding, Point

CONFIG = "config.json"
DEPLOYMENT = "deployment.json"


class Serving(Record, frozen=True, kw_only=True):
    """A deployment to launch. `model` is what the engine loads: a hub id or a folder of weights;
    `hbm`: bytes of a GPU.

    `points` are its predictions, one per load; empty where nothing was simulated. `input_p99`:
    the 99th percentile of the workload's inputs, in tokens (0: unknown). `load`: the label of the
    one that the deployment was chosen for (empty: none was).
    """

    model: str
    gpu: str
    hbm: int
    gpus_per_node: int
    visible: Literal["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"]
    deployment: Deployment
    plan: Plan | None = None
    points: tuple[Point, ...] = ()
    holdings: tuple[Holding, ...] = ()
    rests_on: tuple[str, ...] = ()
    input_p99: float = 0.0
    load: str = ""


def serving(model: str, gpu: Gpu, deployment: Deployment) -> Serving:
    """A deployment without a prediction."""
    path = Path(model)
    amd = gpu.architecture.startswith("cdna")
    return Serving(
        model=str(path.parent) if path.name == CONFIG else model,
        gpu=gpu.name,
        hbm=gpu.hbm,
        gpus_per_node=gpu.gpus_per_node,
        visible="HIP_VISIBLE_DEVICES" if amd else "CUDA_VISIBLE_DEVICES",
        deployment=deployment,
    )


def chosen(answer: Answer) -> Serving | None:
    """The deployment that the verdict chose, with its predictions; None if it chose none."""
    return None if answer.verdict.chosen is None else of_point(answer)


def of_point(answer: Answer, name: str | None = None) -> Serving:
    """The deployment of a point by its name (None: of the one that the verdict chose)."""
    from splitpoint.inputs.facts import gpu as gpu_facts

    wanted = answer.verdict.chosen if name is None else name
    if wanted is None:
        raise PlanError("plan.json: verdict.chosen", "nothing was chosen", "name a --point")
    point = next((p for p in answer.points if p.name == wanted), None)
    if point is None:
        near = difflib.get_close_matches(wanted, [p.name for p in answer.points], 3, 0.0)
        hint = f"such as {'; '.join(near)}" if near else "nothing was simulated"
        raise PlanError("--point", f"there is no {wanted!r} in the plan", hint)
    gpu = gpu_facts(answer.plan.gpu)
    held = [answer.holding(pool) for pool in point.deployment.pools]
    return msgspec.structs.replace(
        serving(answer.plan.model, gpu, point.deployment),
        plan=answer.plan,
        points=tuple(p for p in answer.points if p.deployment == point.deployment),
        holdings=tuple(holding for holding in held if holding is not None),
        input_p99=answer.workload.isl_p99,
        load=point.load,
        rests_on=answer.verdict.rests_on if wanted == answer.verdict.chosen else (),
    )


def deployment_file(made: Serving) -> DeploymentPlan:
    """The deployment with what its plan asks of it, as simulate, fit and measure read it, under the
    load that it was chosen for. Files that are named from here are named by their whole path."""
    deployment, plan = made.deployment, made.plan
    bare = DeploymentPlan(
        model=_placed(made.model),
        gpu=made.gpu,
        pools=tuple(_pool(pool) for pool in deployment.pools),
        routing=deployment.routing,
        decode_routing=deployment.decode_routing,
    )
    if plan is None:
        return bare
    return msgspec.structs.replace(
        bare,
        model=_placed(plan.model),
        gpu=plan.gpu,
        workload=_workload(plan, made.load),
        slo=plan.slo,
        kv_pool_gib=plan.search.kv_pool_gib,
        name=plan.name,
        **{field: getattr(plan.search, field) for field in Traffic.__struct_fields__},
    )


def _pool(pool: Pool) -> PoolPlan:
    at, engine = pool.topology, pool.engine
    return PoolPlan(
        role=pool.role,
        tp=at.tp,
        dp=at.dp,
        pp=at.pp,
        ep="all" if at.ep > 1 else 1,
        dcp=at.dcp,
        replicas=pool.replicas,
        engine=_engine(engine),
    )


def _engine(engine: Engine) -> Engine:
    return msgspec.structs.replace(
        engine,
        curve=engine.curve and _placed(engine.curve),
        draft_model=engine.draft_model and _placed(engine.draft_model),
    )


def _workload(plan: Plan, load: str) -> Workload:
    asked = at_load(plan.workload, load)
    counts = [n for n in (asked.requests, plan.search.requests) if n is not None]
    return msgspec.structs.replace(
        asked,
        trace=asked.trace and _placed(asked.trace),
        requests=min(counts, default=None),
    )


def _placed(name: str) -> str:
    """A file's whole path; a name that is no file here stays as it is."""
    path = Path(name).expanduser() if name.startswith("~/") else Path(name)
    try:
        return str(path.absolute()) if path.exists() else name
    except (OSError, ValueError):
        return name
