"""Split against mixed on the same GPUs: which is better, by how much, and when neither is.

The order of what counts: the SLO is met; goodput per GPU; attainment; output tokens per second
and GPU. Differences within the noise of repeated real runs are ties.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

from splitpoint.inputs.routing import Routing
from splitpoint.inputs.slo import Slo
from splitpoint.metrics import THROUGHPUT_NOISE
from splitpoint.record import Record
from splitpoint.units import gpus, percent
from splitpoint.verdict.answer import Comparison, Point

Winner = Literal["split", "mixed", "tie", "neither"]

# Two standard errors of a share: a difference that chance alone gives in one of twenty runs.
SHARE_ERRORS = 2.0


class Judgement(Record, frozen=True, kw_only=True):
    """The winner, by what measure, and its lead: winner / loser - 1 of that measure (0 where
    neither wins; of goodput per GPU where one alone meets the SLO)."""

    winner: Winner
    by: str
    lead: float


def best(points: Sequence[Point], slo: Slo) -> Point | None:
    """The best point of an arm: what counts, one after the other, and then the pace, ties within
    noise passed on; at last the earlier first token, the quicker pace and the name.

    Where none meets the SLO, the one that comes nearest: fewest failures, then the least `excess`.
    """
    able = [point for point in points if point.meets_slo]
    if not able:
        return min(points, key=lambda point: _nearness(point, slo), default=None)
    left = _likely(_near(able, _goodput_gpu, THROUGHPUT_NOISE))
    left = _near(left, _output_gpu, THROUGHPUT_NOISE)
    left = _near(left, lambda point: point.interactivity, THROUGHPUT_NOISE)
    return min(left, key=lambda point: (point.ttft.at_slo, -point.interactivity, point.name))


def judged(split: Point | None, mixed: Point | None) -> Judgement:
    """The better of two points on the same GPUs."""
    if split is None or mixed is None:
        return _alone(split, mixed)
    if not split.meets_slo and not mixed.meets_slo:
        return Judgement(winner="neither", by="SLO", lead=0.0)
    if split.meets_slo != mixed.meets_slo:
        winner: Winner = "split" if split.meets_slo else "mixed"
        able, other = (split, mixed) if split.meets_slo else (mixed, split)
        return Judgement(
            winner=winner, by="SLO", lead=_share(_goodput_gpu(able), _goodput_gpu(other))
        )
    ahead, lead = _lead(_goodput_gpu, split, mixed)
    if lead > THROUGHPUT_NOISE:
        return Judgement(winner=ahead, by="goodput per GPU", lead=lead)
    if abs(split.attainment - mixed.attainment) > _chance(split, mixed):
        ahead, lead = _lead(lambda point: point.attainment, split, mixed)
        return Judgement(winner=ahead, by="SLO attainment", lead=lead)
    ahead, lead = _lead(_output_gpu, split, mixed)
    if lead > THROUGHPUT_NOISE:
        return Judgement(winner=ahead, by="output tokens per second and GPU", lead=lead)
    return Judgement(winner="tie", by="all measures", lead=lead)


def comparison(
    split: Sequence[Point], mixed: Sequence[Point], slo: Slo, *, routing: Routing | None
) -> Comparison:
    """The best split against the best mixed point, all of one GPU count and load.

    `routing`: the one that both arms use; None: each at its best.
    """
    one, other = best(split, slo), best(mixed, slo)
    found = judged(one, other)
    return Comparison(
        basis="each at its best routing" if routing is None else "equal routing",
        routing=routing,
        split=one.name if one else None,
        mixed=other.name if other else None,
        winner=found.winner,
        by=found.by,
        margin=found.lead,
        words=_words(found, one, other, slo),
    )


def _alone(split: Point | None, mixed: Point | None) -> Judgement:
    """The judgement where an arm has no point."""
    present = split or mixed
    if present is None or not present.meets_slo:
        return Judgement(winner="neither", by="SLO", lead=0.0)
    return Judgement(winner="split" if split else "mixed", by="being the only arm", lead=0.0)


def _lead(
    measure: Callable[[Point], float], split: Point, mixed: Point
) -> tuple[Literal["split", "mixed"], float]:
    """Which is ahead in a measure, and by what share of the other's."""
    ours, theirs = measure(split), measure(mixed)
    lead = _share(max(ours, theirs), min(ours, theirs))
    return ("split" if ours >= theirs else "mixed"), lead


def _share(value: float, base: float) -> float:
    """value / base - 1, below 0 where the value is less; over nothing it is written as 1."""
    return value / base - 1 if base > 0 else float(value > 0)


def _near(points: Sequence[Point], measure: Callable[[Point], float], noise: float) -> list[Point]:
    """The points within `noise` of the highest."""
    floor = max(map(measure, points)) * (1 - noise)
    return [point for point in points if measure(point) >= floor]


def _likely(points: Sequence[Point]) -> list[Point]:
    """The points whose attainment chance alone may tell from the highest."""
    if not points:
        return []
    leader = max(points, key=lambda point: point.attainment)
    return [p for p in points if leader.attainment - p.attainment <= _chance(leader, p)]


def excess(point: Point, slo: Slo) -> float:
    """How many times the SLO's TTFT or TPOT a point takes at its percentile, the worse of both."""
    return max(point.ttft.at_slo / slo.ttft_s, point.tpot.at_slo / slo.tpot_s)


def _nearness(point: Point, slo: Slo) -> tuple[float, float, float, str]:
    # Failures come first, in whole per cents: percentiles are of survivors.
    return round(1 - point.success, 2), excess(point, slo), -point.attainment, point.name


def _chance(one: Point, other: Point) -> float:
    """The difference of two attainments that chance explains:
    2 sqrt(p (1 - p) (1/n + 1/m)) with the pooled share p."""
    requests = one.requests + other.requests
    share = (one.attainment * one.requests + other.attainment * other.requests) / requests
    spread = share * (1 - share) * (1 / one.requests + 1 / other.requests)
    return SHARE_ERRORS * math.sqrt(max(spread, 0.0))


def _goodput_gpu(point: Point) -> float:
    return point.goodput_s / point.gpus


def _output_gpu(point: Point) -> float:
    return point.output_tok_s_gpu


def _words(found: Judgement, split: Point | None, mixed: Point | None, slo: Slo) -> str:
    if split is None or mixed is None:
        present, absent = ("split", "mixed") if split else ("mixed", "split")
        if split is None and mixed is None:
            return "no deployment of either kind could be simulated"
        point = split or mixed
        assert point is not None
        held = "meets" if point.meets_slo else "does not meet"
        return f"only {present} was simulated, no {absent}; it {held} the SLO"
    numbers = f"split {_numbers(split, slo)}; mixed {_numbers(mixed, slo)}"
    if found.winner == "neither":
        return f"neither meets the SLO on {gpus(split.gpus)}: {numbers}"
    if found.winner == "tie":
        return f"a tie within noise ({percent(THROUGHPUT_NOISE)} of throughput): {numbers}"
    if found.by == "SLO":
        return f"only {found.winner} meets the SLO on {gpus(split.gpus)}: {numbers}"
    return f"{found.winner} leads by {percent(found.lead)} in {found.by}: {numbers}"


def _numbers(point: Point, slo: Slo) -> str:
    percentile = f"p{slo.percentile:g}"
    return (
        f"TTFT {percentile} {point.ttft.at_slo:.3g} s, TPOT {percentile} "
        f"{point.tpot.at_slo * 1e3:.3g} ms, attainment {percent(point.attainment)}, goodput "
        f"{point.goodput_s / point.gpus:.3g} req/s/GPU, success {percent(point.success)}"
    )
