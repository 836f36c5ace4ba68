"""From a plan to its answer: price, choose, simulate, compare, vary, and say what it rests on.

Every load is answered; the verdict is about the heaviest one at which some deployment meets the
SLO. Only deployments on the same number of GPUs are compared.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs import facts
from splitpoint.inputs.deployment import Role, Routing
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.huggingface import load_model
from splitpoint.inputs.model import Model
from splitpoint.inputs.plan import Plan
from splitpoint.inputs.trace import describe
from splitpoint.record import Record
from splitpoint.run import Run
from splitpoint.search import space as spaces
from splitpoint.search.budget import pacing_budget
from splitpoint.search.frontier import frontier
from splitpoint.search.instance import Instance, holding, instance
from splitpoint.search.loads import Load, loads
from splitpoint.search.match import Estimate, matched
from splitpoint.search.sweep import Job, sweep
from splitpoint.search.world import Candidate, candidate_of, path, world
from splitpoint.timing.transfer import LinkSpec
from splitpoint.verdict.answer import (
    SCHEMA_VERSION,
    Answer,
    Claim,
    Condition,
    Figure,
    Point,
    Rejected,
    Verdict,
    Wall,
    WorkloadSummary,
)
from splitpoint.verdict.assumptions import assumptions, rests_on
from splitpoint.verdict.claims import claims, ratio_claim
from splitpoint.verdict.compare import best, comparison
from splitpoint.verdict.conditions import decode_bound, prefill_bound, transfer_pays, walls_hold
from splitpoint.verdict.memory import holdings, request_cost
from splitpoint.verdict.points import point
from splitpoint.verdict.turnover import Arm, Turnover, turnover
from splitpoint.verdict.walls import walls
from splitpoint.verdict.words import spoken

Progress = Callable[[str, float], None]

# Deployments that the estimates left out and that the answer names one by one.
NAMED_PRUNED = 40


class Trial(Record, frozen=True, kw_only=True):
    """A candidate to simulate under load number `load`, under a name of its own."""

    name: str
    candidate: Candidate
    load: int


class Field(Record, frozen=True, kw_only=True):
    """What is to be simulated, and what was left out on the way."""

    trials: tuple[Trial, ...]
    rejected: tuple[Rejected, ...]


class Case(Record, frozen=True, kw_only=True):
    """What every step needs to know of a plan."""

    plan: Plan
    model: Model
    gpu: Gpu
    loads: tuple[Load, ...]
    base: Path

    @property
    def seed(self) -> int:
        """The seed of every simulation: all candidates meet the same chances."""
        return self.plan.workload.seed


def decided(
    plan: Plan, *, base: Path, progress: Progress | None = None, workers: int | None = None
) -> tuple[Answer, dict[str, Run]]:
    """The answer to a plan, and the runs of the points that its figures show, by point name."""
    tell: Progress = progress or (lambda _stage, _share: None)
    tell("reading", 0.0)
    case = _case(plan, base)
    longest = max(load.profile.longest for load in case.loads)
    space = spaces.space(
        case.model,
        case.gpu,
        plan.gpus,
        engine=plan.engine,
        search=plan.search,
        longest=longest,
    )
    if not space.holdings and not space.unfit:
        raise PlanError(
            "search",
            f"no topology of {plan.gpus} GPUs that it allows can run {case.model.name}",
            "widen tp, dp, pp or ep, or give more gpus",
        )
    field = _field(case, space, tell)
    points, empty = _simulated(case, field.trials, tell, workers)
    points = _with_frontier(points)
    rejected = (*field.rejected, *empty)
    decision = _decision_load(case, points)
    shown = _shown(points, case.loads[decision], plan.search.routing)
    trials = {trial.name: trial for trial in field.trials}
    runs = _again(case, [trials[name] for name in shown], tell, workers)
    points = tuple(
        replace(found, run_file=f"runs/{_file_name(index, found)}") if found.name in runs else found
        for index, found in enumerate(points)
    )
    verdict, side_walls, figures = _verdict(
        case, points, rejected, runs, trials, decision, tell, workers
    )
    load = case.loads[decision]
    chosen = trials[verdict.chosen].candidate.instances if verdict.chosen else ()
    tried = [ready for found in points for ready in trials[found.name].candidate.instances]
    used = [ready.holding for ready in (*chosen, *tried)] or [*space.holdings, *space.unfit]
    tell("done", 1.0)
    answer = Answer(
        version=SCHEMA_VERSION,
        splitpoint=_version(),
        plan=plan,
        model=case.model.name,
        gpu=case.gpu.name,
        workload=_workload(load),
        request=request_cost(case.model, case.gpu, used[0], load.profile),
        holdings=holdings(used, load.profile),
        walls=side_walls,
        points=points,
        rejected=rejected,
        verdict=verdict,
        assumptions=figures,
        recipes=(),
        notes=_notes(case, load, points),
    )
    return answer, runs


def _case(plan: Plan, base: Path) -> Case:
    gpu = plan.gpu if isinstance(plan.gpu, Gpu) else facts.gpu(plan.gpu)
    return Case(
        plan=plan,
        model=load_model(plan.model),
        gpu=gpu,
        loads=loads(plan.workload, base=base, requests=plan.search.requests),
        base=base,
    )


def _field(case: Case, found: spaces.Space, tell: Progress) -> Field:
    """Instances baked, matched under every load, and crossed with every routing."""
    plan = case.plan
    ready: list[Instance] = []
    for index, held in enumerate(found.holdings):
        tell("step times", 0.1 * index / len(found.holdings))
        ready.append(instance(case.model, case.gpu, held))
    roles = plan.search.roles
    rejected = [
        Rejected(
            name=lack.name,
            why=lack.why,
            shortfall=Figure(
                name="missing per rank", value=float(lack.bytes), unit="B", origin="computed"
            ),
        )
        for lack in found.rejected
    ]
    trials: list[Trial] = []
    for index, load in enumerate(case.loads):
        tell("matching", 0.1)
        choice = matched(
            load,
            plan.slo,
            mixed=[*ready, *_paced(case, ready, load)] if "mixed" in roles else (),
            apart=ready if "split" in roles else (),
            gpus=plan.gpus,
            all_gpus=plan.search.all_gpus,
        )
        for estimate in choice.chosen:
            for routing in plan.search.routing:
                candidate = candidate_of(_parts(estimate), routing)
                trials.append(
                    Trial(name=_named(candidate.name, case, load), candidate=candidate, load=index)
                )
        rejected += _pruned(choice.pruned, case, load)
        rejected += [
            Rejected(name=f"P {p.topology} + D {d.topology}", why=why)
            for p, d, why in choice.refused
        ]
    return Field(trials=tuple(trials), rejected=tuple(dict.fromkeys(rejected)))


def _paced(case: Case, ready: Sequence[Instance], load: Load) -> list[Instance]:
    """Mixed instances with the token budget that holds the TPOT, where the plan sets none."""
    if case.plan.engine.batched_tokens is not None:
        return []
    made = []
    for default in ready:
        budget = pacing_budget(default, load.profile, case.plan.slo.tpot_s)
        if budget is None:
            continue
        engine = replace(default.engine, batched_tokens=budget)
        held = holding(
            case.model,
            case.gpu,
            default.topology,
            engine,
            kv_pool_gib=case.plan.search.kv_pool_gib,
        )
        if spaces.lacking(held, load.profile.longest) is None:
            made.append(instance(case.model, case.gpu, held))
    return made


def _parts(estimate: Estimate) -> list[tuple[Role, Instance, int]]:
    if estimate.decode is None:
        return [("mixed", estimate.first, estimate.firsts)]
    return [
        ("prefill", estimate.first, estimate.firsts),
        ("decode", estimate.decode, estimate.decodes),
    ]


def _pruned(estimates: Sequence[Estimate], case: Case, load: Load) -> list[Rejected]:
    """The best of what the estimates left out, and how many more there were."""
    named = [
        Rejected(
            name=_named(_shape(estimate), case, load),
            why=(
                f"pruned by estimate: {estimate.rate:.3g} req/s on {estimate.gpus} GPUs, mean TPOT "
                f"{estimate.tpot * 1e3:.3g} ms, TTFT {estimate.ttft:.3g} s"
            ),
        )
        for estimate in estimates[:NAMED_PRUNED]
    ]
    rest = len(estimates) - len(named)
    if rest > 0:
        last = estimates[NAMED_PRUNED]
        named.append(
            Rejected(
                name=_named(f"{rest:,} more deployments", case, load),
                why=f"pruned by estimate: {last.rate_gpu:.3g} req/s/GPU or less, or too slow",
            )
        )
    return named


def _shape(estimate: Estimate) -> str:
    return candidate_of(_parts(estimate), "prefix_aware").shape


def _named(name: str, case: Case, load: Load) -> str:
    """A name that no other load's points have."""
    return name if len(case.loads) == 1 else f"{name} @ {load.label}"


def _jobs(case: Case, trials: Sequence[Trial]) -> list[Job]:
    return [
        Job(
            name=trial.name,
            world=world(
                trial.candidate,
                case.model,
                case.gpu,
                tokens=round(case.loads[trial.load].profile.isl),
                transfer_bandwidth=case.plan.search.transfer_bandwidth,
            ),
            trace=trial.load,
            seed=case.seed,
            closed_loop=case.plan.workload.closed_loop,
        )
        for trial in trials
    ]


def _simulated(
    case: Case, trials: Sequence[Trial], tell: Progress, workers: int | None
) -> tuple[tuple[Point, ...], list[Rejected]]:
    """A point of every trial in which a request finished, and the others with the reason."""
    measure = partial(
        _boiled,
        candidates={trial.name: trial.candidate for trial in trials},
        labels={trial.name: case.loads[trial.load].label for trial in trials},
        case=case,
    )
    traces = [load.trace for load in case.loads]

    def heard(done: int) -> None:
        tell("simulating", 0.1 + 0.5 * done / len(trials))

    found = sweep(_jobs(case, trials), traces, measure, workers=workers, done=heard)
    points = tuple(result for result in found if isinstance(result, Point))
    empty = [result for result in found if isinstance(result, Rejected)]
    return points, empty


def _boiled(
    job: Job, run: Run, *, candidates: dict[str, Candidate], labels: dict[str, str], case: Case
) -> Point | Rejected:
    found = point(candidates[job.name], run, case.plan.slo, name=job.name, load=labels[job.name])
    if found is None:
        notes = "; ".join(run.notes) or "see the walls of the others"
        return Rejected(name=job.name, why=f"simulated: no request finished ({notes})")
    return found


def _whole(_job: Job, run: Run) -> Run:
    return run


def _again(
    case: Case, trials: Sequence[Trial], tell: Progress, workers: int | None
) -> dict[str, Run]:
    """The runs of these trials: simulated again, which costs less than keeping all of them."""
    tell("runs of the frontier", 0.6)
    traces = [load.trace for load in case.loads]
    runs = sweep(_jobs(case, trials), traces, _whole, workers=workers)
    return {trial.name: run for trial, run in zip(trials, runs, strict=True)}


def _with_frontier(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points with those on their load's frontier marked."""
    marked: set[str] = set()
    for label in dict.fromkeys(found.load for found in points):
        ours = [found for found in points if found.load == label]
        front = frontier(
            [found.output_tok_s_gpu for found in ours], [found.interactivity for found in ours]
        )
        marked |= {ours[index].name for index in front}
    return tuple(replace(found, on_frontier=found.name in marked) for found in points)


def _decision_load(case: Case, points: Sequence[Point]) -> int:
    """The heaviest load at which a deployment meets the SLO; the lightest where none does."""
    able = {found.load for found in points if found.meets_slo}
    return max((index for index, load in enumerate(case.loads) if load.label in able), default=0)


def _rivals(points: Sequence[Point], label: str) -> list[Point]:
    """The points of a load on as many GPUs as its best one, taken among the counts that both
    arms reach where there are such."""
    ours = [found for found in points if found.load == label]
    counts = [
        {found.gpus for found in ours if found.deployment.split is arm} for arm in (True, False)
    ]
    shared = counts[0] & counts[1] or counts[0] | counts[1]
    leader = best([found for found in ours if found.gpus in shared])
    return [found for found in ours if leader is not None and found.gpus == leader.gpus]


def _arms(points: Sequence[Point]) -> tuple[list[Point], list[Point]]:
    """Split points and mixed points."""
    return (
        [found for found in points if found.deployment.split],
        [found for found in points if not found.deployment.split],
    )


def _shown(points: Sequence[Point], load: Load, routings: Sequence[Routing]) -> list[str]:
    """Names of the points whose runs an answer needs: frontier, and the best of each arm under
    each routing."""
    needed = [found for found in points if found.on_frontier]
    for arm in _arms(_rivals(points, load.label)):
        needed += [p for p in [best(arm)] if p is not None]
        for routing in routings:
            leader = best([found for found in arm if found.deployment.routing == routing])
            needed += [leader] if leader is not None else []
    return list(dict.fromkeys(found.name for found in needed))


def _verdict(
    case: Case,
    points: Sequence[Point],
    rejected: Sequence[Rejected],
    runs: dict[str, Run],
    trials: dict[str, Trial],
    decision: int,
    tell: Progress,
    workers: int | None,
) -> tuple[Verdict, tuple[Wall, ...], tuple[Figure, ...]]:
    load, slo = case.loads[decision], case.plan.slo
    splits, mixes = _arms(_rivals(points, load.label))
    split, mixed = best(splits), best(mixes)
    comparisons = [
        comparison(
            [found for found in splits if found.deployment.routing == routing],
            [found for found in mixes if found.deployment.routing == routing],
            slo,
            routing=routing,
        )
        for routing in case.plan.search.routing
    ]
    comparisons.append(comparison(splits, mixes, slo, routing=None))
    conditions, side_walls = _conditions(case, load, split, mixed, runs, trials)
    made: tuple[Claim, ...] = ()
    resting: tuple[str, ...] = ()
    candidates = [trials[found.name].candidate for found in (split, mixed) if found is not None]
    if split is not None and mixed is not None:
        turned = _turnover(case, load, trials[split.name], trials[mixed.name], tell, workers)
        made = claims(turned, slo)
        resting = rests_on(turned, candidates)
        ratio = ratio_claim(_same_shape(points, split), mixed, split)
        made = (*made, ratio) if ratio is not None else made
    verdict = spoken(
        plan=case.plan,
        load=load.label,
        split=split,
        mixed=mixed,
        comparisons=tuple(comparisons),
        conditions=conditions,
        claims=made,
        rests_on=resting,
        by_load=_by_load(case, points),
        rejected=rejected,
    )
    links = [spec for candidate in candidates if (spec := _link(case, candidate, load)) is not None]
    return verdict, side_walls, assumptions(candidates, links, case.model, case.gpu)


def _link(case: Case, candidate: Candidate, load: Load) -> LinkSpec | None:
    return path(
        candidate,
        case.model,
        case.gpu,
        tokens=round(load.profile.isl),
        transfer_bandwidth=case.plan.search.transfer_bandwidth,
    )


def _by_load(case: Case, points: Sequence[Point]) -> tuple[tuple[str, str], ...]:
    """The comparison at each arm's best routing under every load, where there are several."""
    if len(case.loads) == 1:
        return ()
    found = []
    for load in case.loads:
        splits, mixes = _arms(_rivals(points, load.label))
        found.append((load.label, comparison(splits, mixes, case.plan.slo, routing=None).winner))
    return tuple(found)


def _same_shape(points: Sequence[Point], chosen: Point) -> list[Point]:
    """Splits of the same load, GPUs, routing and topologies as the chosen, in other counts."""

    def shape(found: Point) -> tuple[object, ...]:
        pools = found.deployment.pools
        engines = tuple((pool.role, pool.topology, pool.engine) for pool in pools)
        return found.load, found.gpus, found.deployment.routing, engines

    return [
        found for found in points if shape(found) == shape(chosen) and found.name != chosen.name
    ]


def _conditions(
    case: Case,
    load: Load,
    split: Point | None,
    mixed: Point | None,
    runs: dict[str, Run],
    trials: dict[str, Trial],
) -> tuple[tuple[Condition, ...], tuple[Wall, ...]]:
    """The four conditions of the best split, and the walls of both arms."""
    side_walls: list[Wall] = []
    conditions: list[Condition] = []
    if split is not None:
        candidate, run = trials[split.name].candidate, runs[split.name]
        prefill, decode = candidate.instances
        pool = candidate.deployment.pools[1]
        split_walls = walls(candidate, run, load.profile)
        side_walls += split_walls
        rival = runs[mixed.name] if mixed is not None else None
        conditions = [
            prefill_bound(case.model, case.gpu, prefill, run, load.profile),
            decode_bound(
                case.model,
                case.gpu,
                decode,
                run,
                load.profile,
                ranks=pool.replicas * pool.topology.dp,
            ),
            walls_hold(split_walls),
            transfer_pays(run, rival, case.plan.slo),
        ]
    if mixed is not None:
        side_walls += walls(trials[mixed.name].candidate, runs[mixed.name], load.profile)
    return tuple(conditions), tuple(side_walls)


def _turnover(
    case: Case, load: Load, split: Trial, mixed: Trial, tell: Progress, workers: int | None
) -> Turnover:
    arms = [
        Arm(candidate=trial.candidate, world=job.world)
        for trial, job in zip((split, mixed), _jobs(case, (split, mixed)), strict=True)
    ]
    return turnover(
        arms[0],
        arms[1],
        load,
        case.plan.slo,
        workload=case.plan.workload,
        base=case.base,
        seed=case.seed,
        workers=workers,
        done=lambda share: tell("what would change it", 0.7 + 0.3 * share),
    )


def _workload(load: Load) -> WorkloadSummary:
    summary = describe(load.trace)
    return WorkloadSummary(
        name=f"{summary.name}, {load.label}" if load.label != "trace" else summary.name,
        requests=summary.requests,
        duration_s=summary.duration_s,
        rate=summary.rate,
        isl_mean=summary.isl.mean,
        isl_p50=summary.isl.p50,
        isl_p90=summary.isl.p90,
        isl_p99=summary.isl.p99,
        osl_mean=summary.osl.mean,
        osl_p50=summary.osl.p50,
        osl_p90=summary.osl.p90,
        reuse_share=summary.reuse_share,
        session_reuse_share=summary.session_reuse_share,
    )


def _notes(case: Case, load: Load, points: Sequence[Point]) -> tuple[str, ...]:
    notes = list(load.trace.notes)
    if case.plan.search.requests is not None:
        notes.append(f"traces are cut to their first {case.plan.search.requests:,} requests")
    failed = sorted({found.load for found in points if found.success < 1})
    if failed:
        notes.append(f"requests failed in some deployments under {', '.join(failed)}")
    return tuple(notes)


def _file_name(index: int, found: Point) -> str:
    """A file name that says which point it is and that any system takes."""
    letters = "".join(c if c.isalnum() else "-" for c in found.name.lower())
    return f"{index:03d}-{'-'.join(part for part in letters.split('-') if part)[:80]}.npz"


def _version() -> str:
    from importlib.metadata import version

    return version("splitpoint")
