"""The verdict in words: a choice, one sentence for it, and reasons with their numbers."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from splitpoint.inputs.plan import Plan
from splitpoint.units import count, gpus, percent, seconds
from splitpoint.verdict.answer import Claim, Comparison, Condition, Point, Rejected, Verdict
from splitpoint.verdict.compare import best, excess

# What a user can ask less of; the other knobs scale what is predicted.
ASKED = ("load", "context", "load that split carries", "load that mixed carries")


def spoken(
    *,
    plan: Plan,
    load: str,
    split: Point | None,
    mixed: Point | None,
    sole: Point | None,
    comparisons: tuple[Comparison, ...],
    conditions: tuple[Condition, ...],
    claims: tuple[Claim, ...],
    turned_by: tuple[str, ...],
    guessed: tuple[str, ...],
    time_band: float,
    by_load: Sequence[tuple[str, str]],
    unreached: Sequence[str],
    fewest: Mapping[str, Point],
    rejected: Sequence[Rejected],
) -> Verdict:
    """The verdict on the last comparison, each arm at its best routing.

    `sole`: a deployment that holds the SLO on fewer GPUs than any of the other kind can use;
    `fewest`: by arm what holds it on the fewest GPUs, or comes nearest to it; `turned_by`: assumed
    numbers whose error is enough to turn the verdict, the nearest first; `guessed`: others it
    depends on; `time_band`: the factor that step times may be off by; `unreached`: that the
    workload never asks as much as its load says.
    """
    final = comparisons[-1]
    if split is None and mixed is None:
        return _nothing(plan, comparisons, rejected)
    choice = {"tie": "either"}.get(final.winner, final.winner)
    # Of two that are equal the one without a second pool and a link is the simpler.
    chosen = {"split": split, "mixed": mixed, "either": mixed or split}.get(choice)
    reasons = [*unreached, final.words]
    if sole is not None:
        choice, chosen = ("split" if sole.deployment.split else "mixed"), sole
        other = "mixed" if sole.deployment.split else "split"
        reasons.insert(
            0,
            f"{sole.name} holds the SLO on {gpus(sole.gpus)}, fewer than any {other} deployment "
            f"can use here; what follows compares both on more",
        )
    if turned_by:
        reasons.append(f"within the error of what it assumes: {turned_by[0]}")
    if final.by == "SLO" and split is not None and mixed is not None:
        reasons += _at_the_limit(split, mixed, plan, time_band)
    if any(point.meets_slo for point in fewest.values()):
        counts = ", ".join(f"{arm} {_count(point, plan)}" for arm, point in fewest.items())
        reasons.append(f"fewest GPUs that were seen to hold the SLO: {counts}")
    reasons += [
        f"at equal routing ({found.routing}): {found.words}"
        for found in comparisons[:-1]
        if found.winner != final.winner
    ]
    reasons += [
        f"{arm}: {point.name}: what stopped first: {point.first_wall}"
        for arm, point in (("split", split), ("mixed", mixed))
        if point is not None
    ]
    reasons += [
        f"{'holds' if found.holds else 'fails'}: {found.name} ({found.words})"
        for found in conditions
        if found.holds is not None
    ]
    if by_load:
        reasons.append("over the loads: " + _over_loads(by_load))
    if choice == "neither":
        reasons += [_missing(point, plan) for point in (split, mixed) if point is not None]
        reasons += [
            f"what would do: {claim.variable}: {claim.words}"
            for claim in claims
            if claim.variable in ASKED and claim.flips_at is not None
        ]
    return Verdict(
        choice=choice,  # type: ignore[arg-type]
        headline=_headline(choice, chosen, split, mixed, plan, load)
        + _elsewhere({"split": "mixed", "mixed": "split"}.get(choice), by_load),
        reasons=tuple(reasons),
        comparisons=comparisons,
        conditions=conditions,
        claims=claims,
        rests_on=(*turned_by, *guessed),
        chosen=chosen.name if chosen is not None else None,
    )


def _headline(
    choice: str,
    chosen: Point | None,
    split: Point | None,
    mixed: Point | None,
    plan: Plan,
    load: str,
) -> str:
    slo = f"TTFT {plan.slo.ttft_s:g} s and TPOT {plan.slo.tpot_s * 1e3:g} ms"
    under = f"p{plan.slo.percentile:g} of {slo}"
    # A load without a rate or a number of users goes by what it is.
    asked = f"the {load}" if load in ("trace", "preset") else load
    if chosen is None:
        present = [point for point in (split, mixed) if point is not None]
        nearest = best(present, plan.slo)
        assert nearest is not None
        return (
            f"Neither: no deployment that was tried on {gpus(nearest.gpus)} holds {under} under "
            f"{asked}; {nearest.name.removesuffix(f' @ {load}')} comes nearest, "
            f"{_short_of(nearest, plan)}"
        )
    # A workload of single tokens has no pace.
    pace = f", {chosen.interactivity:.0f} tok/s/user" if chosen.interactivity else ""
    numbers = (
        f"{chosen.goodput_s / chosen.gpus:.3g} good req/s/GPU{pace} on {gpus(chosen.gpus)} "
        f"under {asked}"
    )
    name = chosen.name.removesuffix(f" @ {load}")
    words = {
        "split": f"Split: {name} holds {under} with {numbers}",
        "mixed": f"Do not split: {name} holds {under} with {numbers}",
        "either": f"Either: split and mixed tie; {name} holds {under} with {numbers}",
    }
    return words[choice]


def _count(point: Point, plan: Plan) -> str:
    """The GPUs of a point that holds the SLO, else how near it comes."""
    if point.meets_slo:
        return str(point.gpus)
    return f"none ({point.name} comes nearest, {_short_of(point, plan)}, on {gpus(point.gpus)})"


def _at_the_limit(split: Point, mixed: Point, plan: Plan, band: float) -> list[str]:
    """That the error of step times is enough to give or take the SLO that one arm alone meets."""
    taken = {"split": excess(split, plan.slo), "mixed": excess(mixed, plan.slo)}
    near = [
        f"{arm} takes {percent(times)}" for arm, times in taken.items() if 1 / band <= times <= band
    ]
    if not near:
        return []
    return [
        f"at the limit: {' and '.join(near)} of what the SLO allows (the worse of TTFT and TPOT), "
        f"and step times may be off by a factor of {band:.3g}: measure before deciding"
    ]


def _short_of(point: Point, plan: Plan) -> str:
    """How far a point is from the SLO."""
    times = excess(point, plan.slo)
    if times <= 1:
        return f"but {percent(1 - point.success)} of its requests fail"
    if times < 2:
        return f"over it by {percent(times - 1)}"
    return f"over it by a factor of {f'{times:.2g}' if times < 10 else count(times)}"


def _missing(point: Point, plan: Plan) -> str:
    """What a point lacks to meet the SLO."""
    slo = plan.slo
    lacks = []
    if point.ttft.at_slo > slo.ttft_s:
        lacks.append(f"TTFT is {seconds(point.ttft.at_slo)} where {seconds(slo.ttft_s)} is asked")
    if point.tpot.at_slo > slo.tpot_s:
        lacks.append(f"TPOT is {seconds(point.tpot.at_slo)} where {seconds(slo.tpot_s)} is asked")
    if point.success < 1:
        lacks.append(f"{percent(1 - point.success)} of requests fail")
    return f"{point.name} misses: {'; '.join(lacks)} (p{slo.percentile:g})"


def _over_loads(by_load: Sequence[tuple[str, str]]) -> str:
    """Every load with its outcome."""
    return "; ".join(f"{span}: {outcome}" for span, outcome in _spans(by_load))


def _elsewhere(other: str | None, by_load: Sequence[tuple[str, str]]) -> str:
    """The loads that the other arm wins, for the end of the headline."""
    spans = [span for span, outcome in _spans(by_load) if outcome == other]
    return f"; at {' and '.join(spans)} {other} wins" if spans else ""


def _spans(by_load: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Neighbouring loads of the same outcome as one span."""
    spans = []
    for outcome, group in groupby(by_load, key=lambda pair: pair[1]):
        labels = [label for label, _ in group]
        spans.append((labels[0] if len(labels) == 1 else f"{labels[0]} to {labels[-1]}", outcome))
    return spans


def _nothing(
    plan: Plan, comparisons: tuple[Comparison, ...], rejected: Sequence[Rejected]
) -> Verdict:
    """The verdict where nothing could be simulated."""
    short = [found for found in rejected if found.shortfall is not None]
    nearest = min(
        short, key=lambda found: found.shortfall.value if found.shortfall else 0.0, default=None
    )
    reasons = tuple(f"{found.name}: {found.why}" for found in rejected[:20])
    headline = f"Neither: nothing that {gpus(plan.gpus)} could run serves this workload"
    if nearest is not None and nearest.shortfall is not None:
        gib = nearest.shortfall.value / 2**30
        headline += f"; {nearest.name} comes nearest, {gib:.1f} GiB short per rank"
    elif not rejected and plan.gpus == 1 and plan.search.roles == ("split",):
        headline += "; a split needs two, one to prefill and one to decode (search.roles, gpus)"
    return Verdict(
        choice="neither",
        headline=headline,
        reasons=reasons,
        comparisons=comparisons,
        conditions=(),
        claims=(),
        rests_on=(),
        chosen=None,
    )
