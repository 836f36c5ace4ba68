"""Predicted against measured, metric by metric, and which differences are more than noise.

Two runs of one configuration differ too: a published spread for each metric, and what chance does
to a mean or percentile of so many requests. Only what exceeds both together speaks against a
prediction. What the two sides do not both know, or know by another definition, is named instead.
"""

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

from splitpoint.measurement import Estimate, Measurement, Rates, Statistic
from splitpoint.metrics import THROUGHPUT_NOISE, TPOT_NOISE, TTFT_NOISE
from splitpoint.record import Record

Unit = Literal["s", "req/s", "tok/s", "share"]

# Two standard errors: what chance alone exceeds in one of twenty comparisons.
ERRORS = 2.0
# A percentile needs so many requests above it (assumed); with fewer it is one request's time.
ABOVE = 2.0
# Mean lengths that differ by more than this are another workload (assumed: what padding and a
# tokeniser's special tokens come to).
LENGTHS = 0.02
PERCENTS = {"p50": 50.0, "p90": 90.0, "p99": 99.0}


class Compared(Record, frozen=True, kw_only=True):
    """One number of both sides. `off`: predicted / measured - 1, of shares predicted - measured;
    `noise`: what two runs of one configuration may differ by, None where nobody knows. `beyond`:
    whether it is more; None where that cannot be said, and `why` says why."""

    metric: str
    statistic: str
    unit: Unit
    predicted: float | None
    measured: float | None
    ratio: float | None
    off: float | None
    noise: float | None
    beyond: bool | None
    why: str = ""


class Check(Record, frozen=True, kw_only=True):
    """A comparison. `window`: of the rates. `mismatches`: how the two workloads differ,
    which no number can mend."""

    predicted: str
    measured: str
    predicted_source: str
    measured_source: str
    window: Literal["steady window", "whole run"]
    rows: tuple[Compared, ...]
    mismatches: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def beyond(self) -> tuple[Compared, ...]:
        """The differences that are more than noise."""
        return tuple(row for row in self.rows if row.beyond)


class _Latency(NamedTuple):
    """A latency and the relative spread of its mean when the same configuration runs again."""

    name: str
    predicted: Statistic
    measured: Statistic
    floor: float


def check(predicted: Measurement, measured: Measurement) -> Check:
    """Both sides compared; every metric that one of them has makes a row. Rates are of the steady
    window where both sides know it, else of the whole run."""
    steady = predicted.steady is not None and measured.steady is not None
    rates = [(side.steady if steady else side.whole) or Rates() for side in (predicted, measured)]
    rows = [
        *_latencies(predicted, measured),
        *_rates(*rates),
        *_shares(predicted, measured),
    ]
    return Check(
        predicted=predicted.name,
        measured=measured.name,
        predicted_source=predicted.source,
        measured_source=measured.source,
        window="steady window" if steady else "whole run",
        rows=tuple(rows),
        mismatches=tuple(_mismatches(predicted, measured)),
        notes=(*predicted.notes, *measured.notes),
    )


def _latencies(predicted: Measurement, measured: Measurement) -> Iterator[Compared]:
    latencies = (
        _Latency("TTFT", predicted.ttft, measured.ttft, TTFT_NOISE),
        _Latency("TPOT", predicted.tpot, measured.tpot, TPOT_NOISE),
        # Assumed: what decodes for most of its time varies as its pace does.
        _Latency("ITL", predicted.itl, measured.itl, TPOT_NOISE),
        _Latency("E2EL", predicted.e2el, measured.e2el, TPOT_NOISE),
    )
    counts = [side.requests for side in (predicted, measured) if side.requests is not None]
    for latency in latencies:
        for statistic in ("mean", *PERCENTS):
            ours, theirs = (
                getattr(side, statistic) for side in (latency.predicted, latency.measured)
            )
            if ours is None and theirs is None:
                continue
            why = _unlike(latency, statistic) or _few(min(counts, default=None), statistic)
            yield _ratio(latency.name, statistic, "s", ours, theirs, latency.floor, why)


def _unlike(latency: _Latency, statistic: str) -> str:
    """Why percentiles of the two sides are different things, if they are; means are the same."""
    kinds = {latency.predicted.of, latency.measured.of}
    if statistic == "mean" or len(kinds) == 1:
        return ""
    return f"one side's percentiles are over {min(kinds)}, the other's over {max(kinds)}"


def _few(count: int | None, statistic: str) -> str:
    if count is None or statistic == "mean":
        return ""
    if count * (1 - PERCENTS[statistic] / 100) >= ABOVE:
        return ""
    return f"{count} requests have no {statistic} to speak of"


def _rates(ours: Rates, theirs: Rates) -> Iterator[Compared]:
    pairs: tuple[tuple[str, Unit, float | None, float | None], ...] = (
        ("requests", "req/s", ours.requests, theirs.requests),
        ("input", "tok/s", ours.input, theirs.input),
        ("output", "tok/s", ours.output, theirs.output),
    )
    for name, unit, left, right in pairs:
        if left is not None or right is not None:
            yield _ratio(name, "rate", unit, _exact(left), _exact(right), THROUGHPUT_NOISE, "")


def _exact(value: float | None) -> Estimate | None:
    return None if value is None else Estimate(value=value)


def _shares(predicted: Measurement, measured: Measurement) -> Iterator[Compared]:
    ours, theirs = predicted.success, measured.success
    counts = [side.requests for side in (predicted, measured) if side.requests]
    noise = None
    if ours is not None and theirs is not None and len(counts) == 2:
        mean = (ours + theirs) / 2
        noise = ERRORS * math.sqrt(mean * (1 - mean) * sum(1 / count for count in counts))
    yield from _share("success", ours, theirs, noise)
    yield from _share("prefix hits", predicted.hit_share, measured.hit_share, None)


def _share(
    name: str, ours: float | None, theirs: float | None, noise: float | None
) -> Iterator[Compared]:
    if ours is None and theirs is None:
        return
    both = ours is not None and theirs is not None
    off = ours - theirs if ours is not None and theirs is not None else None
    why = "" if noise is not None else "its spread over repeated runs is not known"
    yield Compared(
        metric=name,
        statistic="share",
        unit="share",
        predicted=ours,
        measured=theirs,
        ratio=None,
        off=off,
        noise=noise if both else None,
        beyond=None if off is None or noise is None else abs(off) > noise,
        why=why if both else _absent(ours is None),
    )


def _ratio(
    metric: str,
    statistic: str,
    unit: Unit,
    ours: Estimate | None,
    theirs: Estimate | None,
    floor: float,
    why: str,
) -> Compared:
    if ours is None or theirs is None:
        why = _absent(ours is None)
    elif not theirs.value:
        why = why or "measured is 0"
    comparable = not why and ours is not None and theirs is not None
    ratio = ours.value / theirs.value if ours and theirs and theirs.value else None
    errors = [e.error for e in (ours, theirs) if e is not None and e.error is not None]
    noise = math.hypot(floor, *(ERRORS * error for error in errors))
    return Compared(
        metric=metric,
        statistic=statistic,
        unit=unit,
        predicted=None if ours is None else ours.value,
        measured=None if theirs is None else theirs.value,
        ratio=ratio,
        off=None if ratio is None else ratio - 1,
        noise=noise if comparable else None,
        beyond=None if not comparable or ratio is None else abs(ratio - 1) > noise,
        why=why,
    )


def _absent(ours: bool) -> str:
    return "not predicted" if ours else "not measured"


def _mismatches(predicted: Measurement, measured: Measurement) -> Iterator[str]:
    lengths = (
        ("input", predicted.isl, measured.isl),
        ("output", predicted.osl, measured.osl),
    )
    for name, ours, theirs in lengths:
        if ours and theirs and abs(ours / theirs - 1) > LENGTHS:
            yield f"mean {name} tokens: {ours:,.1f} predicted, {theirs:,.1f} measured"
    counted = (
        ("requests", predicted.requests, measured.requests),
        ("concurrency", predicted.concurrency, measured.concurrency),
        ("GPUs", predicted.gpus, measured.gpus),
    )
    for name, ours, theirs in counted:
        if ours is not None and theirs is not None and ours != theirs:
            yield f"{name}: {ours:,} predicted, {theirs:,} measured"
