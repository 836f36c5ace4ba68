"""What a recipe is made from: the weights, the node, the deployment and what to expect of it."""

from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import msgspec

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Deployment
from splitpoint.inputs.facts import gpu as gpu_by_name
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.plan import Plan
from splitpoint.record import Record
from splitpoint.verdict.answer import Answer, Holding, Point

CONFIG = "config.json"


class Serving(Record, frozen=True, kw_only=True):
    """A deployment to launch. `model` is what the engine loads: a hub id or a folder of weights.

    `points` are its predictions, one per load; empty where nothing was simulated.
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
    point = next((p for p in answer.points if p.name == answer.verdict.chosen), None)
    return None if point is None else _predicted(answer, point)


def of_point(answer: Answer, name: str | None) -> Serving:
    """The deployment of the point of that name; without a name the chosen one."""
    if name is None:
        made = chosen(answer)
        if made is None:
            raise PlanError("plan", "chose no deployment", "name one with --point")
        return made
    point = next((p for p in answer.points if p.name == name), None)
    if point is None:
        near = get_close_matches(name, [p.name for p in answer.points], n=3, cutoff=0.0)
        raise PlanError("--point", f"no point is named {name!r}", "such as " + "; ".join(near))
    return _predicted(answer, point)


def _predicted(answer: Answer, point: Point) -> Serving:
    gpu = answer.plan.gpu if isinstance(answer.plan.gpu, Gpu) else gpu_by_name(answer.plan.gpu)
    names = {str(pool.topology) for pool in point.deployment.pools}
    return msgspec.structs.replace(
        serving(answer.plan.model, gpu, point.deployment),
        plan=answer.plan,
        points=tuple(p for p in answer.points if p.deployment == point.deployment),
        holdings=tuple(h for h in answer.holdings if h.topology in names),
        rests_on=answer.verdict.rests_on,
    )
