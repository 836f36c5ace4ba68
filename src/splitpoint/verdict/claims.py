"""Flips in words: what would change the answer, and the measurement that would refute each."""

from collections.abc import Sequence

from splitpoint.inputs.slo import Slo
from splitpoint.units import bandwidth, percent
from splitpoint.verdict.answer import Claim, Point
from splitpoint.verdict.compare import Judgement, judged
from splitpoint.verdict.turnover import Carried, Flip, Turnover

BYTES = "bytes/s"


def claims(found: Turnover, slo: Slo) -> tuple[Claim, ...]:
    """A claim for every knob that was varied, and for the load that each arm carries."""
    carried = [_carries(each) for each in found.carried]
    return (*(_claim(flip, found, slo) for flip in found.flips), *carried)


def ratio_claim(splits: Sequence[Point], mixed: Point, chosen: Point) -> Claim | None:
    """The ratio of prefill to decode GPUs at which a split of the same instances stops winning.

    `splits`: simulated deployments that differ from the chosen one in their counts only.
    """
    now = ratio(chosen)
    verdict = judged(chosen, mixed).winner
    others = sorted(splits, key=lambda point: abs(ratio(point) - now))
    turned = next((p for p in others if judged(p, mixed).winner != verdict), None)
    if not others:
        return None
    tried = ", ".join(f"{ratio(point):.2f}" for point in sorted((*splits, chosen), key=ratio))
    if turned is None:
        return Claim(
            variable="P:D ratio",
            now=now,
            flips_at=None,
            unit="prefill GPUs per decode GPU",
            words=f"every ratio that was tried ({tried}) gives the same verdict",
            refute="a measured split of one of these ratios with another outcome",
        )
    other: Judgement = judged(turned, mixed)
    return Claim(
        variable="P:D ratio",
        now=now,
        flips_at=ratio(turned),
        unit="prefill GPUs per decode GPU",
        words=f"at {turned.name} the outcome is {other.winner} ({other.by})",
        refute=f"measure {turned.name}: attainment {percent(turned.attainment)} is predicted",
    )


def ratio(point: Point) -> float:
    """Prefill GPUs over decode GPUs of a split."""
    gpus = {pool.role: pool.gpus for pool in point.deployment.pools}
    return gpus["prefill"] / gpus["decode"]


def _claim(flip: Flip, found: Turnover, slo: Slo) -> Claim:
    knob = flip.knob
    if flip.factor is None:
        low, high = (_number(knob.now * end, knob.unit) for end in (flip.low, flip.high))
        return Claim(
            variable=knob.name,
            now=knob.now,
            flips_at=None,
            unit=knob.unit,
            words=f"no other arm wins between {low} and {high} {_noun(knob.unit)}",
            refute=f"any measurement in that range in which {_other(found)} wins",
        )
    at = knob.now * flip.factor
    said, last = (_number(value, knob.unit) for value in (at, knob.now * flip.until))
    noun = _noun(knob.unit)
    way, side = ("down", "below") if flip.until < flip.factor else ("up", "above")
    return Claim(
        variable=knob.name,
        now=knob.now,
        flips_at=at,
        unit=knob.unit,
        words=f"{flip.winner} wins from about {said} {way} to {last} {noun} (x {flip.factor:.3g})",
        refute=(
            f"measure both arms a little {side} {said} {noun}: the claim is false if {flip.winner} "
            f"does not lead there by the goodput within TTFT {slo.ttft_s:g} s and TPOT "
            f"{slo.tpot_s:g} s"
        ),
    )


def _carries(found: Carried) -> Claim:
    knob, noun = found.knob, _noun(found.knob.unit)
    low, high = (_number(knob.now * end, knob.unit) for end in (found.low, found.high))
    at = None if found.factor is None else _number(knob.now * found.factor, knob.unit)
    if at is not None:
        words = f"within the SLO up to about {at} {noun} (x {found.factor:.3g})"
        refute = (
            f"measure it a little below {at} {noun}, where it must hold, and well above, "
            "where it must not"
        )
    elif found.all_of_it:
        words = f"within the SLO up to {high} {noun} and perhaps more"
        refute = f"any load up to {high} {noun} at which it does not hold"
    else:
        words = f"within the SLO nowhere from {low} to {high} {noun}"
        refute = "any load in that range at which it holds"
    return Claim(
        variable=f"load that {found.arm} carries",
        now=knob.now,
        flips_at=None if found.factor is None else knob.now * found.factor,
        unit=knob.unit,
        words=words,
        refute=refute,
    )


def _other(found: Turnover) -> str:
    return {"split": "mixed", "mixed": "split"}.get(found.now, "one arm")


def _number(value: float, unit: str) -> str:
    """A value in figures that a person reads."""
    if unit.startswith(BYTES):
        return bandwidth(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _noun(unit: str) -> str:
    """What stands behind the number: bandwidths bring their own unit."""
    return unit.removeprefix(BYTES).strip()
