"""Numbers and names as the reports print them, the same on a terminal, on a page and in a figure.

Everything that came from a user's file goes through `plain` before it reaches a terminal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from splitpoint import units
from splitpoint.errors import printable

if TYPE_CHECKING:
    from splitpoint.inputs.deployment import Topology
    from splitpoint.verdict.answer import Answer, Comparison, Figure, Holding, Point, StepTime

UNKNOWN = "-"
TERA, NANO = 1e12, 1e-9
RUNGS = {
    "physical": "HBM on the package",
    "driver": "not seen by the driver",
    "utilization": "left unused by the engine",
    "weights": "weights",
    "activations": "peak activations",
    "non_torch": "outside PyTorch",
    "graphs": "CUDA graphs, estimated",
    "kv": "KV pool",
}
# The words of verdict.answer.Origin, which is too heavy to load for a price.
ORIGINS = ("computed", "simulated", "published", "measured", "assumed")
LEAST_PART = 0.02
HOLDS = {True: "yes", False: "no", None: "cannot be judged"}


def plain(words: str) -> str:
    """One line without control or direction characters, which a terminal would obey."""
    return printable(words)


def amount(value: float, unit: str) -> str:
    """A value with its unit: bytes as GiB, seconds as ms, shares as per cent."""
    if not math.isfinite(value):
        return UNKNOWN
    if unit == "B":
        return units.memory(value)
    if unit == "B/s":
        return units.bandwidth(value)
    if unit.startswith("bytes/s"):
        return f"{units.bandwidth(value)}{plain(unit.removeprefix('bytes/s'))}"
    if unit == "FLOP/s":
        return f"{three(value / TERA)} TFLOP/s"
    if unit == "s":
        return seconds(value)
    if unit == "share":
        return units.percent(value)
    if unit.startswith("of "):
        return f"{units.percent(value)} {plain(unit)}"
    return f"{three(value)} {plain(unit)}".rstrip()


def figure(value: Figure) -> str:
    """A figure with its unit."""
    return amount(value.value, value.unit)


def origin(value: Figure) -> str:
    """Where a figure comes from: "assumed: model of the profile run"."""
    return origin_of(value.origin, value.source)


def origin_of(kind: str, source: str) -> str:
    """Kind and source of a number; a source that names a kind itself is not given another."""
    if not source:
        return kind
    told = plain(source)
    return told if told.split(":")[0] in ORIGINS else f"{kind}: {told}"


def behind(value: Figure) -> str:
    """A figure's source where its origin stands before it."""
    return plain(value.source).removeprefix(f"{value.origin}: ")


def rung(name: str) -> str:
    """A rung of the memory ladder in words."""
    return RUNGS.get(name, plain(name))


def three(value: float) -> str:
    """A number with three digits at least and thousands: "12,031", "0.0123"."""
    if not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    decimals = min(9, max(0, 2 - math.floor(math.log10(abs(value)))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def pace(value: float) -> str:
    """Tokens per second of a user: whole ones from a hundred on, as headlines have them."""
    # Not rounded twice: 138.51 is 139.
    return three(round(value, 1) if value < 100 else value)


def seconds(value: float) -> str:
    """A time, or a dash where there is none; what rounding left below a nanosecond is nothing."""
    if not math.isfinite(value):
        return UNKNOWN
    return units.seconds(value if abs(value) >= NANO else 0.0)


def count(value: float) -> str:
    """A count with thousands, or a dash where there is none."""
    return units.count(value) if math.isfinite(value) else UNKNOWN


def percent(share: float) -> str:
    """A share of one in per cent; "0%" and "100%" only where that is exact."""
    if not math.isfinite(share):
        return UNKNOWN
    if 0 <= share < 0.0005:
        return "<0.1%" if share else "0%"
    text = f"{share * 100:.1f}%"
    if text == "100.0%":
        return "100%" if share == 1 else ">99.9%" if share < 1 else text
    return text


def margin(value: float | None) -> str:
    """A signed margin: "+12%", "-3.1%"; past tenfold as a factor: "39x"."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value >= 9:
        return f"{value + 1:,.0f}x"
    return f"{value * 100:+.0f}%" if abs(value) >= 0.1 else f"{value * 100:+.1f}%"


def lead(comparison: Comparison) -> str:
    """By how much the better arm leads: its margin, "SLO" where it alone keeps that."""
    if comparison.winner == "neither":
        return UNKNOWN
    return "SLO" if comparison.by == "SLO" else margin(comparison.margin)


def topology(value: Topology | str) -> str:
    """A topology as a user writes it."""
    return plain(str(value))


def slo(answer: Answer) -> str:
    """The service level in one sentence."""
    asked = answer.plan.slo
    return (
        f"p{asked.percentile:g} of TTFT within {units.seconds(asked.ttft_s)} and "
        f"p{asked.percentile:g} of TPOT within {units.seconds(asked.tpot_s)}"
    )


def patience(answer: Answer) -> str:
    """How long clients wait before they go; empty where they stay."""
    asked = answer.plan.workload
    waits = [
        *([f"{units.seconds(asked.timeout_s)} for a first token"] if asked.timeout_s else []),
        *([f"{units.seconds(asked.abort_s)} for the end"] if asked.abort_s else []),
    ]
    return f"clients go after {' or '.join(waits)}" if waits else ""


def shown(answer: Answer) -> tuple[Point, ...]:
    """The points that the frontier table holds: the frontier, and what the verdict compares."""
    names = {answer.verdict.chosen}
    for comparison in answer.verdict.comparisons:
        names |= {comparison.split, comparison.mixed}
    return tuple(p for p in answer.points if p.on_frontier or p.name in names)


def chosen(answer: Answer) -> Point | None:
    """The point that the verdict chose."""
    return next((p for p in answer.points if p.name == answer.verdict.chosen), None)


def best(answer: Answer) -> tuple[Point, ...]:
    """The best split and the best mixed point, as the verdict compares them."""
    named = {point.name: point for point in answer.points}
    for comparison in reversed(answer.verdict.comparisons):
        if comparison.basis == "each at its best routing":
            found = [named.get(name) for name in (comparison.split, comparison.mixed) if name]
            return tuple(point for point in found if point is not None)
    found_choice = chosen(answer)
    return (found_choice,) if found_choice else ()


def held(answer: Answer, points: Sequence[Point]) -> tuple[Holding, ...]:
    """What the ranks of these points hold, each once."""
    found = [answer.holding(pool) for point in points for pool in point.deployment.pools]
    return tuple({h.topology: h for h in found if h is not None}.values())


def point(value: Point) -> str:
    """A point's name where its load stands beside it."""
    return plain(value.name.removesuffix(f" @ {value.load}"))


def about(answer: Answer) -> str:
    """What a page is about: "study: Qwen/Qwen3-30B-A3B on up to 8 x H20", without a name of its own
    the model first."""
    named = f"{plain(answer.plan.name)}: " if answer.plan.name else ""
    return f"{named}{plain(answer.model)} on up to {answer.plan.gpus} x {plain(answer.gpu)}"


def title(answer: Answer) -> str:
    """The plan's name, or the model's."""
    return plain(answer.plan.name or answer.model)


def shares(step: StepTime) -> list[tuple[str, float]]:
    """What a step's time is made of, in shares of it; parts below `LEAST_PART` together."""
    told = [(part.name, part.seconds / step.seconds) for part in step.parts]
    shown = [(name, share) for name, share in told if share >= LEAST_PART]
    rest = 1.0 - sum(share for _, share in shown)
    return [*shown, ("other", rest)] if len(shown) < len(told) else shown
