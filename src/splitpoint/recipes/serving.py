"""What a recipe is made from: the weights, the node, the deployment and what to expect of it."""

import difflib
from pathlib import Path
from typing import Literal

import msgspec

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Deployment
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.plan import Plan
from splitpoint.record import Record
from splitpoint.verdict.answer import Answer, Holding, Point

CONFIG = "config.json"


class Serving(Record, frozen=True, kw_only=True):
    """A deployment to launch. `model` is what the engine loads: a hub id or a folder of weights.

    `points` are its predictions, one per load; empty where nothing was simulated. `input_p99`:
    the 99th percentile of the workload's inputs, in tokens (0: unknown).
    """

    model: str
    gpu: str
    gpus_per_node: int
    visible: Literal["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"]
    deployment: Deployment
    plan: Plan | None = None
    points: tuple[Point, ...] = ()
    holdings: tuple[Holding, ...] = ()
    rests_on: tuple[str, ...] = ()
    input_p99: float = 0.0


def serving(model: str, gpu: Gpu, deployment: Deployment) -> Serving:
    """A deployment without a prediction."""
    path = Path(model)
    amd = gpu.architecture.startswith("cdna")
    return Serving(
        model=str(path.parent) if path.name == CONFIG else model,
        gpu=gpu.name,
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
    gpu = answer.plan.gpu if isinstance(answer.plan.gpu, Gpu) else gpu_facts(answer.plan.gpu)
    held = [answer.holding(pool) for pool in point.deployment.pools]
    return msgspec.structs.replace(
        serving(answer.plan.model, gpu, point.deployment),
        plan=answer.plan,
        points=tuple(p for p in answer.points if p.deployment == point.deployment),
        holdings=tuple(holding for holding in held if holding is not None),
        input_p99=answer.workload.isl_p99,
        rests_on=answer.verdict.rests_on if wanted == answer.verdict.chosen else (),
    )
