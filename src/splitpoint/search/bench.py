"""A deployment on the test bench: a measured load replayed through it under other step times."""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import problems
from splitpoint.inputs.drafter import model_of
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.plan import DeploymentPlan
from splitpoint.inputs.trace import Trace
from splitpoint.inputs.traces.columns import assembled
from splitpoint.inputs.traces.requests import shaped
from splitpoint.inputs.workload import Lengths, Workload
from splitpoint.measurement import Measurement
from splitpoint.metrics import finished
from splitpoint.record import Record
from splitpoint.run import Run
from splitpoint.search.world import candidate, world
from splitpoint.sim import simulate
from splitpoint.sim.world import World
from splitpoint.timing.curve import StepCurve
from splitpoint.timing.fitted import Conditions, Factors, instance_name, scaled
from splitpoint.timing.host import gap

# What a distribution of lengths may have.
MOST_CV = 10.0


class Bench(Record, frozen=True, kw_only=True):
    """A deployment with its predicted step times, as a world whose times can be scaled. `engines`:
    the resolved settings of each pool."""

    world: World
    conditions: Conditions
    engines: tuple[Engine, ...]
    gpu: Gpu

    @property
    def curve(self) -> StepCurve:
        """The predicted step times of the only pool, for a log of its steps."""
        if len(self.world.pools) > 1:
            what = f"has {len(self.world.pools)} pools"
            raise PlanError("deployment", what, "a log of steps is of one: name that pool alone")
        curve = self.world.pools[0].curve
        if curve.later:
            what = f"is a pipeline of {len(curve.stages)} stages"
            raise PlanError("deployment", what, "a logged step passes all: fit to results instead")
        return curve

    def gap(self, sequences: NDArray[np.float64]) -> NDArray[np.float64]:
        """Predicted seconds of the host between two steps of the first pool."""
        return gap(self.engines[0], self.gpu, sequences)

    def replay(self, measured: Measurement, factors: Factors) -> Run:
        """The requests of a measured load under these factors."""
        pools = tuple(
            replace(pool, curve=scaled(pool.curve, factors, pool.curve.origin))
            for pool in self.world.pools
        )
        front = self.world.front_s if factors.front_s is None else factors.front_s
        scaled_world = replace(self.world, pools=pools, front_s=front)
        return simulate(scaled_world, requests_of(measured), name=measured.name, series=False)


def bench_of(plan: DeploymentPlan, measured: Sequence[Measurement]) -> Bench:
    """The bench of a deployment file for results measured on it; a curve file that it names is
    left aside, as factors are on predicted times."""
    model = model_of(plan)
    gpu, *others = plan.pool_gpus
    if any(other != gpu for other in others):
        what = "runs on two kinds of GPU"
        raise PlanError("deployment", what, "factors are of one: fit each pool alone")
    deployment = plan.deployment
    pools = tuple(
        replace(pool, engine=replace(pool.engine, curve=None)) for pool in deployment.pools
    )
    for pool in pools:
        if faults := problems(pool.topology, model):
            raise PlanError(f"layout {pool.topology}", faults[0], "; ".join(faults[1:]))
    on = replace(deployment, pools=pools)
    ready = candidate(on, model, plan.pool_gpus, kv_pool_gib=plan.kv_pool_gib)
    for one in measured:
        if one.gpus is not None and one.gpus != deployment.gpus:
            what = f"was measured on {one.gpus:,} GPUs, the deployment has {deployment.gpus:,}"
            raise PlanError(one.name, what)
    lengths = [one.isl for one in measured if one.isl]
    tokens = max(round(sum(lengths) / len(lengths)), 1) if lengths else 1
    engine = ready.instances[0].engine
    names = [instance_name(each.topology, each.engine) for each in ready.instances]
    return Bench(
        world=world(
            ready,
            model,
            tokens=tokens,
            traffic=plan,
        ),
        gpu=gpu,
        conditions=Conditions(
            model=model.name,
            gpu=gpu.name,
            engine=engine.name,
            engine_version=engine.version,
            instances=tuple(dict.fromkeys(names)),
        ),
        engines=tuple(each.engine for each in ready.instances),
    )


def requests_of(measured: Measurement) -> Trace:
    """The requests that a result was measured with: its own where it has them, else so many of
    its mean lengths, varied as it tells; from its users in a closed loop, or at its rate or its
    arrivals. Users whose requests are all equal stay in step, so the variation matters."""
    users = measured.concurrency
    if measured.run is None:
        assert measured.isl is not None and measured.osl is not None
        asked = Workload(
            isl=Lengths(mean=max(measured.isl, 1.0), cv=min(measured.isl_cv, MOST_CV)),
            osl=Lengths(mean=max(measured.osl, 1.0), cv=min(measured.osl_cv, MOST_CV)),
            requests=measured.requests,
            rate=1.0 if users is None else None,
            concurrency=users,
        )
        return shaped(asked, None if users else measured.rate, users)
    rows = measured.run.requests
    done = finished(measured.run)
    count = int(done.sum())
    return assembled(
        measured.name,
        arrive_s=np.zeros(count) if users else rows.arrive_s[done],
        isl=rows.isl[done],
        osl=rows.osl[done],
        session=np.arange(count, dtype=np.int64) % users if users else None,
        closed=bool(users),
        source="measured requests",
    )
