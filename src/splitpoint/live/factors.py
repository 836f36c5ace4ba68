"""Factors on predicted step times, from results that only have means and percentiles.

The results of one deployment at several loads are replayed through the simulator; least squares
finds the four factors under which the replays give what was measured, in units of the noise that
each number has. What the results say nothing of stays as predicted, and is told.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from splitpoint import metrics
from splitpoint.errors import PlanError
from splitpoint.live import imports
from splitpoint.live.descent import Floats, descended, slopes
from splitpoint.measurement import Estimate, Measurement, of_run
from splitpoint.metrics import THROUGHPUT_NOISE, TPOT_NOISE, TTFT_NOISE
from splitpoint.run import Run
from splitpoint.timing.fitted import (
    MOST_FACTOR,
    MOST_FRONT_S,
    VERSION,
    Conditions,
    FactorErrors,
    Factors,
    FittedCurve,
    Range,
    Residual,
    Source,
)

# Replays the requests of a measured load under these factors.
Replay = Callable[[Measurement, Factors], Run]

# What a factor is taken to be before anything was measured: within a factor of two of 1, and the
# time outside of steps within a tenth of a second of the predicted (assumed; one standard
# deviation each).
PRIOR_LOG = math.log(2)
PRIOR_FRONT_S = 0.1
# No answer is read and no request sent in less (assumed). It matters that it is not 0: a user's
# next request would then join the very step at whose end its last one ended, which none does.
LEAST_FRONT_S = 1e-3
# A factor whose uncertainty the results shrink by less than this is not determined by them.
DETERMINED = 0.9
# Sizes of the differences, in logarithms and shares of PRIOR_FRONT_S: replays jump by whole steps,
# wide differences look over the jumps, narrow ones end the search.
DIFFERENCES = (0.1, 0.03)
# Relative gain of a round under which the search has ended.
ENOUGH = 1e-3
# Requests that failed held the server for an unknown while; of a few the replay may do without
# (assumed).
LEAST_SUCCESS = 0.95
NAMES = ("decode", "context", "prefill", "front_s")


class _Target(NamedTuple):
    """One measured number: of which load, what it is, and its relative noise."""

    load: int
    metric: str
    value: float
    noise: float


def selected(paths: Sequence[Path], rows: str | None) -> tuple[Measurement, ...]:
    """The results of these files; of one that holds several, those of `rows` ("1,4,7")."""
    found = []
    for path in paths:
        results = imports.read(path)
        numbers = list(range(1, len(results) + 1))
        if rows is not None:
            words = rows.replace(",", " ").split()
            if len(paths) > 1 or not words or not all(re.fullmatch("[0-9]{1,6}", w) for w in words):
                raise PlanError("--rows", f"found {rows[:40]!r}", "numbers, of one file, as 1,4,7")
            numbers = [int(word) for word in words]
        found += [imports.pick(results, path, number) for number in numbers]
    return tuple(found)


def fitted_factors(
    measured: Sequence[Measurement],
    replay: Replay,
    *,
    conditions: Conditions,
    sources: Sequence[Source] = (),
    front_s: float = 0.0,
    tell: Callable[[str, float], None] | None = None,
) -> FittedCurve:
    """The factors that minimise sum ((log(replayed / measured) / noise)^2) over mean and median
    of TTFT and TPOT and the output rate of every load, with the factors' own prior, as a curve
    file. `front_s`: the predicted time outside of steps."""
    for one in measured:
        _check(one)
    targets = [target for i, one in enumerate(measured) for target in _targets(i, one)]
    if not targets:
        raise PlanError("fit", "the results hold no latency and no rate", "nothing can be fitted")
    problem = _Problem(measured, targets, replay, front_s, tell)
    before = problem.logs_of(Factors())
    best = _search(problem)
    after = problem.logs(best)
    runs = [replay(one, problem.factors(best)) for one in measured]
    return FittedCurve(
        version=VERSION,
        origin="measured",
        conditions=conditions,
        sources=tuple(sources),
        factors=problem.factors(best),
        errors=_errors(problem, best),
        batch=_range([_batch(run) for run in runs]),
        tokens=_range([float((run.requests.isl + run.requests.osl).mean()) for run in runs]),
        isl=_range([float(run.requests.isl.mean()) for run in runs]),
        rms_before=_rms(before),
        rms=_rms(after),
        residuals=tuple(
            Residual(
                load=measured[target.load].name,
                metric=target.metric,
                measured=target.value,
                predicted=target.value * math.exp(was),
                fitted=target.value * math.exp(now),
            )
            for target, was, now in zip(targets, before, after, strict=True)
        ),
    )


class _Problem:
    """Replays as a function of the parameters: logarithms of three factors, and seconds of the
    front end in units of its prior."""

    def __init__(
        self,
        measured: Sequence[Measurement],
        targets: Sequence[_Target],
        replay: Replay,
        front_s: float,
        tell: Callable[[str, float], None] | None,
    ) -> None:
        self.measured = measured
        self.targets = targets
        self.replay = replay
        self.noise = np.array([target.noise for target in targets])
        self.predicted = np.array([0.0, 0.0, 0.0, front_s / PRIOR_FRONT_S])
        self.tell = tell
        self.replays = 0
        self.scale = np.ones(len(self.predicted))
        reach = math.log(MOST_FACTOR)
        self.ceiling = np.array([reach, reach, reach, MOST_FRONT_S / PRIOR_FRONT_S])
        self.floor = np.array([-reach, -reach, -reach, LEAST_FRONT_S / PRIOR_FRONT_S])

    def factors(self, values: Floats) -> Factors:
        """The parameters as factors."""
        decode, context, prefill = np.exp(values[:3])
        return Factors(
            decode=float(decode),
            context=float(context),
            prefill=float(prefill),
            front_s=float(values[3] * PRIOR_FRONT_S),
        )

    def within(self, values: Floats) -> Floats:
        """The nearest parameters that a curve file may hold."""
        bounded: Floats = np.clip(values, self.floor, self.ceiling)
        return bounded

    def logs(self, values: Floats) -> Floats:
        """log(replayed / measured) of every target."""
        return self.logs_of(self.factors(values))

    def logs_of(self, factors: Factors) -> Floats:
        """The same under factors."""
        found = [_numbers(self._replayed(one, factors)) for one in self.measured]
        return np.array([math.log(found[t.load][t.metric] / t.value) for t in self.targets])

    def residual(self, values: Floats) -> Floats:
        """What least squares sees: logarithms in units of noise, then the prior."""
        prior = (values - self.predicted) / np.array([PRIOR_LOG] * 3 + [1.0])
        return np.concatenate((self.logs(values) / self.noise, prior))

    def _replayed(self, one: Measurement, factors: Factors) -> Measurement:
        self.replays += 1
        if self.tell is not None:
            # Rounds are not known beforehand; the bar approaches its end.
            self.tell("fitting", 1 - 1 / (1 + self.replays / (50 * len(self.measured))))
        run = self.replay(one, factors)
        if not metrics.finished(run).all():
            raise PlanError(one.name, "leaves requests unfinished when it is replayed")
        return of_run(run, name=one.name, source="replayed")


def _search(problem: _Problem) -> Floats:
    """From the prediction as it is, once for each size of differences."""
    values = problem.within(problem.predicted)
    for share in DIFFERENCES:
        values = descended(problem, values, share, enough=ENOUGH)
    return values


def _errors(problem: _Problem, values: Floats) -> FactorErrors:
    """Standard errors from the curvature at the best factors, widened where the residuals are
    larger than their noise; None where the results shrink the prior by little."""
    columns = slopes(problem, values, DIFFERENCES[-1])
    spread = np.sqrt(np.diag(np.linalg.inv(columns.T @ columns)))
    excess = problem.logs(values) / problem.noise
    free = max(len(excess) - len(NAMES), 1)
    wider = math.sqrt(max(1.0, float(excess @ excess) / free))
    prior = np.array([PRIOR_LOG] * 3 + [1.0])
    known = [
        float(error * wider) if error < DETERMINED * bound else None
        for error, bound in zip(spread, prior, strict=True)
    ]
    decode, context, prefill, front = known
    return FactorErrors(
        decode=decode,
        context=context,
        prefill=prefill,
        front_s=None if front is None else front * PRIOR_FRONT_S,
    )


def _targets(load: int, one: Measurement) -> Iterator[_Target]:
    """What a load's result has of the numbers that are fitted."""
    noises = {"TTFT": TTFT_NOISE, "TPOT": TPOT_NOISE, "ITL": TPOT_NOISE}
    found = _estimates(one)
    if "TPOT mean" in found or "TPOT p50" in found:
        # The mean gap says the same again; it stands in where no TPOT is told.
        found.pop("ITL mean", None)
    for metric, estimate in found.items():
        floor = noises.get(metric.split()[0], THROUGHPUT_NOISE)
        if estimate.value > 0:
            yield _Target(load, metric, estimate.value, math.hypot(floor, estimate.error or 0.0))


def _numbers(one: Measurement) -> dict[str, float]:
    return {metric: estimate.value for metric, estimate in _estimates(one).items()}


def _estimates(one: Measurement) -> dict[str, Estimate]:
    """The numbers that can be fitted, by name."""
    rate = one.whole.output if one.whole else None
    found = {
        "TTFT mean": one.ttft.mean,
        "TTFT p50": one.ttft.p50,
        "TPOT mean": one.tpot.mean,
        "TPOT p50": one.tpot.p50,
        "ITL mean": one.itl.mean,
        "output tok/s": None if rate is None else Estimate(value=rate),
    }
    return {name: estimate for name, estimate in found.items() if estimate is not None}


def _batch(run: Run) -> float:
    """Mean sequences that decode together on a rank."""
    ranks = int((run.instances.pool == len(run.roles) - 1).sum())
    return metrics.mean_decoding(run) / max(ranks, 1)


def _range(values: Sequence[float]) -> Range:
    return Range(low=min(values), high=max(values))


def _rms(logs: Floats) -> float:
    return float(np.sqrt(np.mean(logs**2)))


def _check(one: Measurement) -> None:
    """A result must be measured, and say what was asked of the deployment."""
    if one.origin != "measured":
        raise PlanError(one.name, "is simulated", "a curve is fitted to what was measured")
    if one.isl is None or one.osl is None:
        raise PlanError(one.name, "does not tell its input and output tokens")
    if one.success is not None and one.success < LEAST_SUCCESS:
        what = f"has {one.success:.1%} of its requests finished"
        raise PlanError(
            one.name, what, f"{LEAST_SUCCESS:.0%} at least: the others' load is unknown"
        )
    if one.concurrency is None and one.rate is None and one.run is None:
        raise PlanError(one.name, "tells neither concurrency nor rate", "it cannot be replayed")
