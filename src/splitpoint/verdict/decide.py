"""From a plan to its answer: price, choose, simulate, compare, vary, and say what it rests on.

Every load is answered; the verdict is about the heaviest one at which some deployment meets the
SLO. Only deployments on the same number of GPUs are compared.
"""

from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

from msgspec.structs import replace

from splitpoint import metrics, units
from splitpoint.errors import PlanError
from splitpoint.inputs.drafter import method_of
from splitpoint.inputs.plan import Plan
from splitpoint.inputs.slo import Slo
from splitpoint.inputs.trace import describe
from splitpoint.record import Record
from splitpoint.run import Run
from splitpoint.search.frontier import frontier
from splitpoint.search.loads import Load, too_long, too_slow
from splitpoint.search.space import Space, engines, space
from splitpoint.search.sweep import Job, sweep
from splitpoint.search.world import Candidate, path
from splitpoint.timing.path import LinkSpec
from splitpoint.verdict.answer import (
    SCHEMA_VERSION,
    Answer,
    Claim,
    Condition,
    Figure,
    Point,
    Rejected,
    StepTime,
    Verdict,
    Wall,
    WorkloadSummary,
)
from splitpoint.verdict.assumptions import (
    assumptions,
    guessed_acceptance,
    mean_steps,
    rests_on,
    time_band,
)
from splitpoint.verdict.case import Case, Progress, Trial, case_of, job_of
from splitpoint.verdict.claims import claims, ratio_claim
from splitpoint.verdict.compare import Winner, best, comparison
from splitpoint.verdict.conditions import decode_bound, prefill_bound, transfer_pays, walls_hold
from splitpoint.verdict.memory import holdings, request_cost
from splitpoint.verdict.points import point
from splitpoint.verdict.steps import step_times
from splitpoint.verdict.trials import Field, fewer, field, neighbours, rerouted, shrunk
from splitpoint.verdict.turnover import Arm, Turnover, turnover
from splitpoint.verdict.validity import outside
from splitpoint.verdict.walls import walls
from splitpoint.verdict.words import spoken

# Steps that each arm's best deployment may climb to a better neighbour.
CLIMBS = 3
# Rows of requests, over all runs, up to which whole runs are kept (about 100 bytes a row); beyond,
# those to show are simulated once more.
KEPT_ROWS = 1_000_000

# Fewer requests than these have no 90th percentile to speak of: six lie above it (assumed).
FEW = 64


class Tried(Record, frozen=True, kw_only=True):
    """What was simulated so far, by name, and what was left out. `runs` holds whole runs as long
    as they are small together."""

    trials: dict[str, Trial]
    points: dict[str, Point]
    rejected: tuple[Rejected, ...]
    runs: dict[str, Run]

    def under(self, load: str) -> list[Point]:
        """The points of a load."""
        return [found for found in self.points.values() if found.load == load]

    def rivals(self, load: str, slo: Slo) -> "Rivals":
        """The points of a load on as many GPUs as its best one, taken among the counts that both
        arms reach where there are such."""
        ours = self.under(load)
        counts = [
            {found.gpus for found in ours if found.deployment.split is arm} for arm in (True, False)
        ]
        shared = counts[0] & counts[1] or counts[0] | counts[1]
        leader = best([found for found in ours if found.gpus in shared], slo)
        level = [found for found in ours if leader is not None and found.gpus == leader.gpus]
        return Rivals(
            split=tuple(found for found in level if found.deployment.split),
            mixed=tuple(found for found in level if not found.deployment.split),
        )


class Rivals(Record, frozen=True, kw_only=True):
    """Points of both arms under one load on one number of GPUs."""

    split: tuple[Point, ...]
    mixed: tuple[Point, ...]


class Reached(Record, frozen=True, kw_only=True):
    """A verdict with what it was made of."""

    verdict: Verdict
    walls: tuple[Wall, ...]
    assumptions: tuple[Figure, ...]
    steps: tuple[StepTime, ...]
    notes: tuple[str, ...]


def decided(
    plan: Plan, *, base: Path = Path(), progress: Progress | None = None, workers: int | None = None
) -> tuple[Answer, dict[str, Run]]:
    """The answer to a plan, and the runs of the points that its figures show, by point name."""

    def tell(stage: str, share: float) -> None:
        if progress is not None:
            # Rounded, so that sums of shares never step back by a last digit.
            progress(stage, round(share, 6))

    tell("reading", 0.0)
    case = case_of(plan, base=base, tell=tell, workers=workers)
    legal = _legal(case)
    first = field(case, legal)
    tried = _simulated(
        case, Tried(trials={}, points={}, rejected=first.rejected, runs={}), first.trials, 0.1, 0.5
    )
    decision = _decision(case, tried)
    tried = _fewest(case, tried, first, decision)
    tried = _climbed(case, tried, first, decision)
    tried = replace(tried, points=_with_frontier(tried.points))
    load = case.loads[decision]
    runs = _runs(case, tried, _shown(case, tried, load))
    reached = _reached(case, tried, runs, load)
    names = list(tried.points)
    points = tuple(
        replace(found, run_file=f"runs/{_file_name(index, name)}") if name in runs else found
        for index, (name, found) in enumerate(tried.points.items())
    )
    chosen = [tried.trials[reached.verdict.chosen]] if reached.verdict.chosen else []
    used = [
        ready.holding
        for trial in (*chosen, *(tried.trials[name] for name in names))
        for ready in trial.candidate.instances
    ] or [*legal.holdings, *legal.unfit]
    tell("done", 1.0)
    found = Answer(
        version=SCHEMA_VERSION,
        splitpoint=version("splitpoint"),
        plan=plan,
        model=case.model.name,
        gpu=case.gpu.name,
        workload=_workload(load),
        request=request_cost(case.model, case.gpu, used[0], load.profile),
        holdings=holdings(used, load.profile),
        walls=reached.walls,
        points=points,
        rejected=tried.rejected,
        verdict=reached.verdict,
        assumptions=reached.assumptions,
        recipes=(),
        steps=reached.steps,
        notes=(
            *_notes(case, load, points),
            *_shortened(case, chosen),
            *_outside(tried, runs, reached.verdict.chosen),
            *reached.notes,
        ),
    )
    return found, runs


def _legal(case: Case) -> Space:
    found = space(
        case.model,
        case.gpu,
        case.plan.gpus,
        engine=case.plan.engine,
        search=case.plan.search,
        longest=max(load.profile.longest for load in case.loads),
    )
    if not found.holdings and not found.unfit:
        raise PlanError(
            "search",
            f"no topology of {units.gpus(case.plan.gpus)} that it allows can run {case.model.name}",
            "widen tp, dp, pp or ep, or give more gpus",
        )
    return found


def _simulated(
    case: Case, tried: Tried, trials: Sequence[Trial], start: float, end: float
) -> Tried:
    """What was tried, with the points of these trials; one in which nothing finished is rejected.
    Progress goes from `start` to `end`."""
    fresh = list({t.name: t for t in trials if t.name not in tried.trials}.values())
    rows = sum(len(case.loads[trial.load].trace) for trial in (*tried.trials.values(), *fresh))
    measure = partial(
        _boiled,
        candidates={trial.name: trial.candidate for trial in fresh},
        labels={trial.name: case.loads[trial.load].label for trial in fresh},
        slo=case.plan.slo,
        keep=rows <= KEPT_ROWS,
    )
    found = sweep(
        [job_of(case, trial) for trial in fresh],
        [load.trace for load in case.loads],
        measure,
        workers=case.workers,
        done=lambda done: case.tell("simulating", start + (end - start) * done / len(fresh)),
    )
    return Tried(
        trials={**tried.trials, **{trial.name: trial for trial in fresh}},
        points={**tried.points, **{b.name: b.point for b in found if b.point is not None}},
        rejected=(*tried.rejected, *(b.rejected for b in found if b.rejected is not None)),
        runs={**tried.runs, **{b.name: b.run for b in found if b.run is not None}},
    )


def _climbed(case: Case, tried: Tried, known: Field, decision: int) -> Tried:
    """What was tried, with the neighbours of each arm's best under the decision load, as long as
    they are better than it, and where that ends under every routing."""
    label = case.loads[decision].label
    seen: set[str] = set()
    for climb in range(CLIMBS):
        tops = _tops(case, tried.rivals(label, case.plan.slo))
        fresh = [
            near
            for top in tops
            if top.name not in seen
            for near in neighbours(case, known, tried.trials[top.name])
        ]
        seen |= {top.name for top in tops}
        if not fresh:
            break
        share = 0.5 + 0.1 * climb / CLIMBS
        tried = _simulated(case, tried, fresh, share, share + 0.1 / CLIMBS)
    tops = _tops(case, tried.rivals(label, case.plan.slo))
    others = [other for top in tops for other in rerouted(case, tried.trials[top.name])]
    return _simulated(case, tried, others, 0.6, 0.6)


def _tops(case: Case, rivals: Rivals) -> list[Point]:
    """The best of each arm that has one."""
    found = (best(arm, case.plan.slo) for arm in (rivals.split, rivals.mixed))
    return [top for top in found if top is not None]


def _fewest(case: Case, tried: Tried, known: Field, decision: int) -> Tried:
    """What was tried, with both arms on the fewest GPUs that hold an open-loop load in either; the
    number is halved as long as the SLO is met. Beside what the estimates promise, what holds it is
    tried with fewer of its instances."""
    load = case.loads[decision]
    if case.plan.search.all_gpus or load.concurrency is not None:
        return tried
    for split in (True, False):
        ours = [p for p in tried.under(load.label) if p.deployment.split is split]
        able = {found.gpus: found for found in ours if found.meets_slo}
        if not able:
            continue
        holds = min(able)
        # A split takes two GPUs at least.
        fails = max((p.gpus for p in ours if p.gpus < holds), default=int(split))
        hit_share = able[holds].pools[0].prefix_hit_share
        while holds - fails > 1:
            middle = (holds + fails) // 2
            trials = fewer(case, known, decision, middle, hit_share)
            top = best([p for p in ours if p.gpus == holds], case.plan.slo)
            if top is not None:
                trials = (*shrunk(case, tried.trials[top.name], middle), *trials)
            tried = _simulated(case, tried, trials, 0.5, 0.5)
            found = [tried.points[t.name] for t in trials if t.name in tried.points]
            ours += [p for p in found if p.deployment.split is split]
            met = [p.gpus for p in ours if p.meets_slo and p.gpus <= middle]
            holds, fails = (min(met), fails) if met else (holds, middle)
    return tried


class Boiled(Record, frozen=True, kw_only=True):
    """What is left of a run: its point, or why there is none, and the run itself if asked."""

    name: str
    point: Point | None
    rejected: Rejected | None
    run: Run | None


def _boiled(
    job: Job,
    run: Run,
    *,
    candidates: dict[str, Candidate],
    labels: dict[str, str],
    slo: Slo,
    keep: bool,
) -> Boiled:
    found = point(candidates[job.name], run, slo, name=job.name, load=labels[job.name])
    notes = "; ".join(run.notes) or "see the walls of the others"
    empty = Rejected(name=job.name, why=f"simulated: no request finished ({notes})")
    return Boiled(
        name=job.name,
        point=found,
        rejected=None if found is not None else empty,
        run=run if keep else None,
    )


def _whole(_job: Job, run: Run) -> Run:
    return run


def _runs(case: Case, tried: Tried, names: Sequence[str]) -> dict[str, Run]:
    """The runs of these trials; those that were not kept are simulated again."""
    lost = [tried.trials[name] for name in names if name not in tried.runs]
    case.tell("runs to show", 0.6)
    traces = [load.trace for load in case.loads]
    jobs = [job_of(case, trial) for trial in lost]
    again = zip(lost, sweep(jobs, traces, _whole, workers=case.workers), strict=True)
    found = {**tried.runs, **{trial.name: run for trial, run in again}}
    return {name: found[name] for name in names}


def _with_frontier(points: dict[str, Point]) -> dict[str, Point]:
    """The points with those on their load's frontier marked."""
    marked: set[str] = set()
    for label in dict.fromkeys(found.load for found in points.values()):
        ours = [found for found in points.values() if found.load == label]
        front = frontier(
            [found.output_tok_s_gpu for found in ours], [found.interactivity for found in ours]
        )
        marked |= {ours[index].name for index in front}
    return {name: replace(found, on_frontier=name in marked) for name, found in points.items()}


def _decision(case: Case, tried: Tried) -> int:
    """The heaviest load at which a deployment meets the SLO; the lightest where none does."""
    able = {found.load for found in tried.points.values() if found.meets_slo}
    return max((index for index, load in enumerate(case.loads) if load.label in able), default=0)


def _shown(case: Case, tried: Tried, load: Load) -> list[str]:
    """Names of the points whose runs an answer needs: frontier, and the best of each arm under
    each routing."""
    rivals = tried.rivals(load.label, case.plan.slo)
    arms = [
        [p for p in arm if routing in (None, p.deployment.routing)]
        for arm in (rivals.split, rivals.mixed)
        for routing in (None, *case.plan.search.routing)
    ]
    front = [found for found in tried.points.values() if found.on_frontier]
    needed = (*front, *(best(arm, case.plan.slo) for arm in arms))
    return list(dict.fromkeys(found.name for found in needed if found is not None))


def _reached(case: Case, tried: Tried, runs: dict[str, Run], load: Load) -> Reached:
    """The verdict under a load."""
    slo = case.plan.slo
    rivals = tried.rivals(load.label, slo)
    split, mixed = best(rivals.split, slo), best(rivals.mixed, slo)
    comparisons = [
        comparison(
            [found for found in rivals.split if found.deployment.routing == routing],
            [found for found in rivals.mixed if found.deployment.routing == routing],
            slo,
            routing=routing,
        )
        for routing in case.plan.search.routing
    ]
    comparisons.append(comparison(rivals.split, rivals.mixed, slo, routing=None))
    conditions, side_walls = _conditions(case, load, split, mixed, runs, tried.trials)
    made: tuple[Claim, ...] = ()
    resting: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    present = [p for p in (split, mixed) if p is not None]
    candidates = [tried.trials[p.name].candidate for p in present]
    if split is not None and mixed is not None:
        expected = comparisons[-1].winner
        turned = _turnover(case, load, tried.trials[split.name], tried.trials[mixed.name], expected)
        if turned.now == expected:
            made, resting = claims(turned, slo), rests_on(turned, candidates)
        else:
            notes = (
                f"no claims from varied runs: the first {turned.requests:,} requests, which they "
                f"replay, give {turned.now} where the whole workload gives "
                f"{expected}",
            )
        ratio = ratio_claim(_same_shape(rivals.split, split), mixed, split)
        made = (*made, ratio) if ratio is not None else made
    named = [
        (p.name, step)
        for p, candidate in zip(present, candidates, strict=True)
        for step in mean_steps(candidate, runs[p.name], load.profile)
    ]
    steps = [step for _, step in named]
    links = [spec for c in candidates if (spec := _link(case, c, load)) is not None]
    return Reached(
        verdict=spoken(
            plan=case.plan,
            load=load.label,
            split=split,
            mixed=mixed,
            sole=_sole(case, tried, load, rivals),
            comparisons=tuple(comparisons),
            conditions=conditions,
            claims=made,
            turned_by=resting,
            guessed=guessed_acceptance(candidates, case.model),
            time_band=time_band(candidates),
            by_load=_by_load(case, tried),
            unreached=too_slow(load),
            fewest=_fewest_held(tried, load, slo),
            rejected=tried.rejected,
        ),
        walls=side_walls,
        assumptions=assumptions(candidates, steps, links, case.model, case.gpu),
        steps=step_times(named, case.model, case.gpu),
        notes=notes,
    )


def _fewest_held(tried: Tried, load: Load, slo: Slo) -> dict[str, Point]:
    """By arm what meets the SLO on the fewest GPUs that were seen, or comes nearest to it."""
    arms = {"split": True, "mixed": False}
    found = {}
    for arm, split in arms.items():
        ours = [p for p in tried.under(load.label) if p.deployment.split is split]
        able = [p.gpus for p in ours if p.meets_slo]
        top = best([p for p in ours if not able or p.gpus == min(able)], slo)
        if top is not None:
            found[arm] = top
    return found


def _sole(case: Case, tried: Tried, load: Load, rivals: Rivals) -> Point | None:
    """The best deployment of all, if it meets the SLO on fewer GPUs than the rivals have."""
    leader = best(tried.under(load.label), case.plan.slo)
    level = {found.gpus for found in (*rivals.split, *rivals.mixed)}
    return leader if leader and leader.meets_slo and leader.gpus < min(level) else None


def _link(case: Case, candidate: Candidate, load: Load) -> LinkSpec | None:
    return path(
        candidate,
        case.model,
        tokens=round(load.profile.isl),
        traffic=case.plan.search,
    )


def _by_load(case: Case, tried: Tried) -> tuple[tuple[str, str], ...]:
    """The comparison at each arm's best routing under every load, where there are several."""
    if len(case.loads) == 1:
        return ()
    rivals = [(load.label, tried.rivals(load.label, case.plan.slo)) for load in case.loads]
    return tuple(
        (label, comparison(both.split, both.mixed, case.plan.slo, routing=None).winner)
        for label, both in rivals
    )


def _same_shape(points: Sequence[Point], chosen: Point) -> list[Point]:
    """Splits with the chosen one's routing and topologies, in other counts."""

    def shape(found: Point) -> tuple[object, ...]:
        pools = found.deployment.pools
        engines = tuple((pool.role, pool.topology, pool.engine) for pool in pools)
        return found.deployment.routing, engines

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


def _turnover(case: Case, load: Load, split: Trial, mixed: Trial, expected: Winner) -> Turnover:
    arms = [
        Arm(candidate=trial.candidate, world=job_of(case, trial).world) for trial in (split, mixed)
    ]
    return turnover(
        arms[0],
        arms[1],
        load,
        case.plan.slo,
        expected=expected,
        workload=case.plan.workload,
        base=case.base,
        seed=case.seed,
        workers=case.workers,
        done=lambda share: case.tell("what would change it", 0.7 + 0.3 * share),
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
    notes = [f"inferred, not stated: {told}" for told in case.model.inferred]
    notes += load.trace.notes
    if case.plan.search.requests is not None:
        notes.append(f"traces are cut to their first {case.plan.search.requests:,} requests")
    failed = sorted({found.load for found in points if found.success < 1})
    if failed:
        notes.append(f"requests failed in some deployments under {', '.join(failed)}")
    if any(engine.drafts for engine in engines(case.plan.engine)):
        notes += _drafting(case)
    if len(load.trace) < FEW:
        notes.append(
            f"only {len(load.trace):,} requests: rates and percentiles are of few, and no steady "
            "state is reached"
        )
    notes += too_long(load.trace, case.plan.engine.max_len or case.model.max_len)
    drained = [found for found in points if found.on_frontier and found.draining > metrics.MOSTLY]
    if drained:
        one, count = drained[0], len(drained)
        notes.append(
            f"{count} {'point' if count == 1 else 'points'} of the frontier show the draining of "
            f"their queues, not the load: of {one.name} {units.percent(one.draining)} of the "
            "steady window lie after the last arrival (workload.requests makes a load longer)"
        )
    return tuple(notes)


def _drafting(case: Case) -> list[str]:
    """What is not plain about how the model drafts."""
    asked, model = case.plan.engine, case.model
    if asked.draft_method is None and method_of(asked, model) == "ngram":
        return [f"{model.name} has no draft layers: drafts repeat the text before (n-gram)"]
    return list(model.drafter.inferred) if model.drafter else []


def _shortened(case: Case, chosen: Sequence[Trial]) -> list[str]:
    """Pools that hold no request of the model's longest length, and so serve shorter ones."""
    return [
        f"{pool}: its pool holds one request of {pool.engine.max_len:,} tokens, so that is its "
        f"max_len instead of the model's {case.model.max_len:,}"
        for trial in chosen
        for pool in trial.candidate.deployment.pools
        if case.plan.engine.max_len is None
        and (pool.engine.max_len or case.model.max_len) < case.model.max_len
    ]


def _outside(tried: Tried, runs: dict[str, Run], chosen: str | None) -> tuple[str, ...]:
    """Where the chosen run (else the first shown) leaves what its curve file was measured on."""
    name = chosen if chosen in runs else next(iter(runs), None)
    return () if name is None else outside(tried.trials[name].candidate, runs[name])


def _file_name(index: int, name: str) -> str:
    """A file name that says which point it is and that any system takes."""
    letters = "".join(c if c.isalnum() else "-" for c in name.lower())
    return f"{index:03d}-{'-'.join(part for part in letters.split('-') if part)[:80]}.npz"
