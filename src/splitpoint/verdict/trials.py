"""What is tried: the candidates of every load, and the neighbours of the best ones.

The estimates choose a first field; then each arm climbs: a split moves GPUs between its sides, a
mixed deployment halves and doubles its token budget, both make their instances wider or narrower.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import ceil, floor, gcd

from msgspec.structs import replace

from splitpoint import units
from splitpoint.inputs.routing import Role, Routing
from splitpoint.pricing.engines import resolved
from splitpoint.pricing.handoff import refusal
from splitpoint.record import Record
from splitpoint.search import budget as budgets
from splitpoint.search.instance import Instance, holding, instance
from splitpoint.search.loads import Load
from splitpoint.search.match import PER_ARM, Estimate, calibrated, matched
from splitpoint.search.space import Space, lacking
from splitpoint.search.world import Candidate, candidate_of
from splitpoint.verdict.answer import Figure, Rejected
from splitpoint.verdict.case import Case, Trial, named, trial_of

# Simulated per arm and number of GPUs while the fewest that hold the SLO are looked for: the best
# by rate, by pace and by first token.
PER_ARM_FEWER = 3
# Deployments that the estimates left out and that the answer names one by one.
NAMED_PRUNED = 20
# With one load or two there is time to simulate more of each arm.
FEW_LOADS = 2
PER_ARM_FEW_LOADS = 8
# Short traces leave time for more: of each arm as many deployments as together replay so many
# requests, up to so many times the number above.
REPLAYED, MOST_TIMES = 12_000, 2


class Field(Record, frozen=True, kw_only=True):
    """What is to be simulated, what was left out on the way, and the instances to build more of:
    `apart` for splits, `together[load]` for mixed deployments."""

    trials: tuple[Trial, ...]
    rejected: tuple[Rejected, ...]
    apart: tuple[Instance, ...]
    together: tuple[tuple[Instance, ...], ...]


def field(case: Case, space: Space) -> Field:
    """Instances baked, matched under every load, and crossed with every routing."""
    plan = case.plan
    ready: list[Instance] = []
    for index, held in enumerate(space.holdings):
        case.tell("step times", 0.1 * index / len(space.holdings))
        ready.append(instance(case.model, held))
    rejected = [
        Rejected(
            name=lack.name,
            why=lack.why,
            shortfall=Figure(
                name="missing per rank", value=float(lack.bytes), unit="B", origin="computed"
            ),
        )
        for lack in space.rejected
    ]
    trials: list[Trial] = []
    together: list[tuple[Instance, ...]] = []
    paced: dict[tuple[int, int], Instance] = {}
    apart = tuple(ready) if "split" in plan.search.roles else ()
    for index, load in enumerate(case.loads):
        case.tell("matching", 0.1)
        mixed = [*ready, *_paced(case, ready, index, paced)] if "mixed" in plan.search.roles else []
        together.append(tuple(mixed))
        choice = matched(
            load,
            plan.slo,
            mixed=mixed,
            apart=apart,
            gpus=plan.gpus,
            # In an open loop the simulator finds the fewest GPUs itself (`fewer`).
            all_gpus=plan.search.all_gpus or load.concurrency is None,
            per_arm=_many(load, PER_ARM_FEW_LOADS if len(case.loads) <= FEW_LOADS else PER_ARM),
        )
        for estimate in choice.chosen:
            trials += _routed(case, _parts(estimate), index)
        rejected += _pruned(choice.pruned, case, index)
        rejected += _refused(choice.refused)
    return Field(
        trials=tuple(trials),
        rejected=tuple(dict.fromkeys(rejected)),
        apart=apart,
        together=tuple(together),
    )


def _many(load: Load, least: int) -> int:
    """Deployments to simulate of an arm under a load."""
    return max(least, min(REPLAYED // len(load.trace), MOST_TIMES * least))


def fewer(case: Case, known: Field, load: int, gpus: int, hit_share: float) -> tuple[Trial, ...]:
    """The most promising trials of each arm on at most `gpus` GPUs, estimated with the share of
    cached input tokens that simulations showed; mixed ones with each of their token budgets, which
    only a simulation tells apart."""
    seen = case.loads[load]
    count = _many(seen, PER_ARM_FEWER)
    choice = matched(
        replace(seen, profile=calibrated(seen.profile, hit_share)),
        case.plan.slo,
        mixed=known.together[load],
        apart=known.apart,
        gpus=gpus,
        all_gpus=True,
        # A mixed instance may stand there with each of its budgets.
        per_arm=2 * count,
    )
    tried: dict[tuple[object, ...], list[Parts]] = {}
    arms = Counter[bool]()
    for estimate in choice.chosen:
        first, split = estimate.first, estimate.decode is not None
        shape = (split, first.topology, first.engine.drafts, *([id(estimate)] if split else []))
        if shape not in tried and arms[split] < count:
            arms[split] += 1
            tried[shape] = _budgets(estimate, known.together[load])
    return tuple(
        trial
        for budgeted in tried.values()
        for parts in budgeted
        for trial in _routed(case, parts, load)
    )


def shrunk(case: Case, trial: Trial, gpus: int) -> tuple[Trial, ...]:
    """A trial of more GPUs on at most `gpus`: as many of the same instances as these hold, the
    sides of a split as near to their ratio as whole instances come, under every routing."""
    deployment, instances = trial.candidate.deployment, trial.candidate.instances
    *others, last = zip(deployment.pools, instances, strict=True)
    even = last[0].replicas * gpus / deployment.gpus
    found: list[Parts] = []
    for count in dict.fromkeys((max(floor(even), 1), ceil(even))):
        room = gpus - count * last[0].topology.gpus
        parts: Parts = [(pool.role, one, room // pool.topology.gpus) for pool, one in others]
        if room >= 0 and all(number > 0 for _, _, number in parts):
            found.append([*parts, (last[0].role, last[1], count)])
    return tuple(made for parts in found for made in _routed(case, parts, trial.load))


def neighbours(case: Case, known: Field, trial: Trial) -> tuple[Trial, ...]:
    """The trials one step away from a trial, on the same GPUs, under its own routing."""
    candidate = trial.candidate
    moved = _moved(candidate) if candidate.deployment.split else _rebudgeted(case, candidate)
    steps = [*moved, *_widened(case, known, candidate)]
    routing = candidate.deployment.routing
    return tuple(trial_of(case, candidate_of(parts, routing), trial.load) for parts in steps)


def rerouted(case: Case, trial: Trial) -> tuple[Trial, ...]:
    """The trial under every routing of the plan."""
    pools = zip(trial.candidate.deployment.pools, trial.candidate.instances, strict=True)
    parts: Parts = [(pool.role, ready, pool.replicas) for pool, ready in pools]
    return tuple(_routed(case, parts, trial.load))


Parts = list[tuple[Role, Instance, int]]


def _routed(case: Case, parts: Parts, load: int) -> list[Trial]:
    """The trials of a deployment under every routing of the plan."""
    routings: tuple[Routing, ...] = case.plan.search.routing
    return [trial_of(case, candidate_of(parts, routing), load) for routing in routings]


def _moved(candidate: Candidate) -> Iterator[Parts]:
    """The split with the fewest GPUs moved from one side to the other that leaves none idle."""
    (prefill, decode), pools = candidate.instances, candidate.deployment.pools
    common = gcd(prefill.topology.gpus, decode.topology.gpus)
    more, less = decode.topology.gpus // common, prefill.topology.gpus // common
    for sign in (1, -1):
        prefills, decodes = pools[0].replicas + sign * more, pools[1].replicas - sign * less
        if prefills > 0 and decodes > 0:
            yield [("prefill", prefill, prefills), ("decode", decode, decodes)]


def _widened(case: Case, known: Field, candidate: Candidate) -> Iterator[Parts]:
    """The deployment with one pool's instances of twice or half the tensor ranks, half or twice
    as many of them, where they are legal and the pools can still hand over."""
    roles = [pool.role for pool in candidate.deployment.pools]
    counts = [pool.replicas for pool in candidate.deployment.pools]
    for place, (now, count) in enumerate(zip(candidate.instances, counts, strict=True)):
        for tp, replicas in ((2 * now.topology.tp, count / 2), (now.topology.tp // 2, 2 * count)):
            if tp < 1 or replicas != int(replicas):
                continue
            ready = _alike(case, known, now, tp)
            if ready is None:
                continue
            instances = [*candidate.instances]
            instances[place] = ready
            if len(instances) == 2 and _apart(*instances) is not None:
                continue
            numbers = [*counts]
            numbers[place] = int(replicas)
            yield list(zip(roles, instances, numbers, strict=True))


def _alike(case: Case, known: Field, now: Instance, tp: int) -> Instance | None:
    """An instance like another one with other tensor ranks; None if it is not legal here."""
    topology = replace(now.topology, tp=tp, ep=tp * now.topology.dp if now.topology.ep > 1 else 1)
    pool = known.apart or known.together[0]
    same = (
        ready
        for ready in pool
        if ready.topology == topology and ready.engine.drafts == now.engine.drafts
    )
    found = next(same, None)
    budget = now.engine.batched_tokens
    if found is None or budget is None or found.engine.batched_tokens == budget:
        return found
    return _with_budget(case, found, budget)


def _apart(prefill: Instance, decode: Instance) -> str | None:
    """Why two instances cannot hand over."""
    return refusal(prefill.holding.layout, decode.holding.layout, prefill.engine, decode.engine)


def _rebudgeted(case: Case, candidate: Candidate) -> Iterator[Parts]:
    """The mixed deployment with half and with twice its token budget, where the plan sets none."""
    (now,), (pool,) = candidate.instances, candidate.deployment.pools
    budget = now.engine.batched_tokens
    if case.plan.engine.batched_tokens is not None or budget is None:
        return
    free = replace(now.engine, batched_tokens=None)
    most = resolved(free, case.gpu, now.topology, case.model).batched_tokens or budget
    for other in (budget // 2, budget * 2):
        if budgets.LEAST <= other <= most:
            changed = _with_budget(case, now, other)
            if lacking(changed.holding, case.loads[0].profile.longest) is None:
                yield [("mixed", changed, pool.replicas)]


def _with_budget(case: Case, now: Instance, budget: int) -> Instance:
    held = holding(
        case.model,
        case.gpu,
        now.topology,
        replace(now.engine, batched_tokens=budget),
        kv_pool_gib=case.plan.search.kv_pool_gib,
    )
    return instance(case.model, held)


def _paced(
    case: Case, ready: Sequence[Instance], load: int, made: dict[tuple[int, int], Instance]
) -> list[Instance]:
    """Mixed instances with the token budget that holds the TPOT, where the plan sets none.

    `made` keeps what another load has asked for, by place in `ready` and budget.
    """
    if case.plan.engine.batched_tokens is not None:
        return []
    profile = case.loads[load].profile
    found = []
    for index, default in enumerate(ready):
        budget = budgets.pacing_budget(default, profile, case.plan.slo.tpot_s)
        if budget is not None:
            if (index, budget) not in made:
                made[index, budget] = _with_budget(case, default, budget)
            found.append(made[index, budget])
    return [one for one in found if lacking(one.holding, profile.longest) is None]


def _parts(estimate: Estimate) -> Parts:
    if estimate.decode is None:
        return [("mixed", estimate.first, estimate.firsts)]
    return [
        ("prefill", estimate.first, estimate.firsts),
        ("decode", estimate.decode, estimate.decodes),
    ]


def _budgets(estimate: Estimate, mixed: Sequence[Instance]) -> list[Parts]:
    """An estimate's deployment; a mixed one with every token budget that its instance has."""
    if estimate.decode is not None:
        return [_parts(estimate)]
    now = estimate.first
    return [
        [("mixed", other, estimate.firsts)]
        for other in mixed
        if other.topology == now.topology and other.engine.drafts == now.engine.drafts
    ]


def _refused(pairs: Sequence[tuple[Instance, Instance, str]]) -> list[Rejected]:
    """Pairs that cannot hand over, those with the same reason told together."""
    by_reason: dict[str, list[str]] = {}
    for prefill, decode, why in pairs:
        words = f"P {prefill.topology} + D {decode.topology}"
        by_reason.setdefault(why, []).append(words)
    return [
        Rejected(
            name=names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more pairs",
            why=why,
        )
        for why, names in by_reason.items()
    ]


def _pruned(estimates: Sequence[Estimate], case: Case, load: int) -> list[Rejected]:
    """The best of what the estimates left out, and how many more there were."""
    shown = [
        Rejected(
            name=named(case, candidate_of(_parts(estimate), "prefix_aware").shape, load=load),
            why=(
                f"pruned by estimate: {estimate.rate:.3g} req/s on {units.gpus(estimate.gpus)}, "
                f"mean TPOT {estimate.tpot * 1e3:.3g} ms, TTFT {estimate.ttft:.3g} s"
            ),
        )
        for estimate in estimates[:NAMED_PRUNED]
    ]
    rest = len(estimates) - len(shown)
    if rest > 0:
        rate = estimates[NAMED_PRUNED].rate_gpu
        shown.append(
            Rejected(
                name=named(case, f"{rest:,} more deployments", load=load),
                why=f"pruned by estimate: {rate:.3g} req/s/GPU or less, or too slow",
            )
        )
    return shown
