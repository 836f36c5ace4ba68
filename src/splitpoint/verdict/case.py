"""A plan made ready: model, GPU and loads read, and what is tried on them."""

from collections.abc import Callable
from pathlib import Path

from splitpoint.inputs import facts
from splitpoint.inputs.drafter import model_of
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Model
from splitpoint.inputs.plan import Plan
from splitpoint.record import Record
from splitpoint.search.loads import Load, loads
from splitpoint.search.sweep import Job
from splitpoint.search.world import Candidate, world

Progress = Callable[[str, float], None]


class Case(Record, frozen=True, kw_only=True):
    """What every step needs to know of a plan. `workers`: processes, None for one per core."""

    plan: Plan
    model: Model
    gpu: Gpu
    loads: tuple[Load, ...]
    base: Path
    tell: Progress
    workers: int | None = None

    @property
    def seed(self) -> int:
        """The seed of every simulation: all candidates meet the same chances."""
        return self.plan.workload.seed


class Trial(Record, frozen=True, kw_only=True):
    """A candidate to simulate under load number `load`, under a name of its own."""

    name: str
    candidate: Candidate
    load: int


def case_of(plan: Plan, *, base: Path, tell: Progress, workers: int | None) -> Case:
    """The plan with what it names read."""
    gpu = facts.gpu(plan.gpu)
    return Case(
        plan=plan,
        model=model_of(plan),
        gpu=gpu,
        loads=loads(
            plan.workload,
            base=base,
            requests=plan.search.requests,
            prefix_caching=plan.engine.prefix_caching,
        ),
        base=base,
        tell=tell,
        workers=workers,
    )


def trial_of(case: Case, candidate: Candidate, load: int) -> Trial:
    """The trial of a candidate under a load."""
    return Trial(name=named(case, candidate.name, load=load), candidate=candidate, load=load)


def named(case: Case, name: str, *, load: int) -> str:
    """A name that no other load's trials have."""
    return name if len(case.loads) == 1 else f"{name} @ {case.loads[load].label}"


def job_of(case: Case, trial: Trial) -> Job:
    """The simulation of a trial."""
    return Job(
        name=trial.name,
        world=world(
            trial.candidate,
            case.model,
            tokens=round(case.loads[trial.load].profile.isl),
            traffic=case.plan.search,
            workload=case.plan.workload,
        ),
        trace=trial.load,
        seed=case.seed,
        closed_loop=case.plan.workload.closed_loop,
    )
