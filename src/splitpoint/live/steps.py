"""Factors on predicted step times from the steps that a server logged: no replay, no queues.

A step's time is linear in three factors (see `timing.fitted.Factors`), so robust least squares on
its logarithm finds them; the time of a request outside of steps is not in a log of steps.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from splitpoint.errors import PlanError
from splitpoint.live.descent import Floats, descended, huber, slopes
from splitpoint.live.factors import DETERMINED, PRIOR_LOG
from splitpoint.live.imports import step_log
from splitpoint.live.imports.step_log import Steps
from splitpoint.timing.curve import PICO, StepCurve
from splitpoint.timing.fitted import (
    MOST_FACTOR,
    VERSION,
    Conditions,
    FactorErrors,
    Factors,
    FittedCurve,
    Range,
    Residual,
    Source,
)

# A step is logged to 0.01 ms; spreads below this share are rounding.
LEAST_SPREAD = 1e-3
DIFFERENCE = 0.01
ENOUGH = 1e-9


class _Timed(NamedTuple):
    """Steps of one log in seconds: `parts` that decode, context and prefill would take as
    predicted, and what they took with the host's gap behind them."""

    parts: Floats
    measured: Floats


def selected_logs(paths: Sequence[Path], rows: str | None) -> tuple[Steps, ...]:
    """The logs of steps among these files: all of them, or none."""
    logs = [path for path in paths if step_log.is_log(path)]
    if logs and len(logs) < len(paths):
        what = f"{logs[0].name} is a log of steps, {len(paths) - len(logs)} others are results"
        raise PlanError("fit", what, "fit logs, or results")
    if logs and rows is not None:
        raise PlanError("--rows", "a log of steps has none")
    return tuple(step_log.read(path) for path in logs)


def fitted_steps(
    logs: Sequence[Steps],
    curve: StepCurve,
    gap: Callable[[Floats], Floats],
    *,
    conditions: Conditions,
    sources: Sequence[Source] = (),
) -> FittedCurve:
    """The factors that minimise the Huber loss of log(predicted / measured) over all steps.

    `gap`: seconds of the host between steps by running sequences, which a log does not hold. What
    is taken as told: errors hold for steps that err independently, so they are the least."""
    timed = [_timed(steps, curve, gap) for steps in logs]
    problem = _Problem(
        np.concatenate([one.parts for one in timed]),
        np.concatenate([one.measured for one in timed]),
    )
    values = descended(problem, np.zeros(3), DIFFERENCE, enough=ENOUGH, weights=problem.weights)
    groups = list(_groups(logs, problem, values))
    before = np.array([math.log(row.predicted / row.measured) for row in groups])
    after = np.array([math.log(row.fitted / row.measured) for row in groups])
    decode, context, prefill = (float(factor) for factor in np.exp(values))
    decoding = np.concatenate([steps.decoding for steps in logs])
    contexts = np.concatenate([_per_sequence(steps) for steps in logs])
    return FittedCurve(
        version=VERSION,
        origin="measured",
        conditions=conditions,
        factors=Factors(decode=decode, context=context, prefill=prefill),
        errors=_errors(problem, values),
        batch=Range(low=float(decoding.min()), high=float(decoding.max())),
        tokens=Range(low=float(contexts.min()), high=float(contexts.max())),
        isl=None,
        rms_before=float(np.sqrt(np.mean(before**2))),
        rms=float(np.sqrt(np.mean(after**2))),
        residuals=tuple(groups),
        sources=tuple(sources),
    )


class _Problem:
    """Logarithms of the three factors; the residuals are those of the steps, then the prior's."""

    def __init__(self, parts: Floats, measured: Floats) -> None:
        self.parts = parts
        self.measured = measured
        self.mixed = parts[:, 2] > 0
        reach = math.log(MOST_FACTOR)
        self.scale = np.ones(3)
        self.floor = np.full(3, -reach)
        self.ceiling = np.full(3, reach)

    def within(self, values: Floats) -> Floats:
        return np.clip(values, self.floor, self.ceiling)

    def logs(self, values: Floats) -> Floats:
        """log(predicted / measured) of every step."""
        found: Floats = np.log(self.parts @ np.exp(values) / self.measured)
        return found

    def residual(self, values: Floats) -> Floats:
        return np.concatenate((self.logs(values), values))

    def weights(self, residual: Floats) -> Floats:
        """Huber weights over the variance of each kind of step, and the prior's."""
        logs = residual[:-3]
        weights = np.ones(len(logs))
        for kind in (self.mixed, ~self.mixed):
            if kind.any():
                weights[kind] = huber(logs[kind], LEAST_SPREAD)
        return np.concatenate((weights, np.full(3, 1 / PRIOR_LOG**2)))


def _timed(steps: Steps, curve: StepCurve, gap: Callable[[Floats], Floats]) -> _Timed:
    """Each step's parts by the curve; a step that the deployment does not allow is refused."""
    n, own = steps.decoding, steps.new + steps.verified
    sequences, budget = len(curve.decode) - 1, len(curve.mixed) - 1
    if n.max() > sequences or own[steps.prompts > 0].max(initial=0) > budget:
        what = f"runs {n.max()} sequences and {own.max():,} tokens a step at most"
        hint = f"the deployment allows {sequences} and {budget:,}: give it the server's settings"
        raise PlanError(steps.name, what, hint)
    mixed = steps.prompts > 0
    joined = np.zeros(len(n)) if curve.mixed_decode is None else curve.mixed_decode[n]
    decode = np.where(mixed, joined, curve.decode[n])
    context = curve.decode_context[n] * steps.context
    # Prompts of a step are taken to be alike: pairs = new x (prefix + new / 2) / prompts.
    alike = np.maximum(steps.prompts, 1)
    pairs = steps.new * (steps.prefix + steps.new / 2) / alike
    prefill = np.where(
        mixed,
        curve.mixed[np.minimum(own, budget)]
        + curve.prefill_pair * pairs
        + curve.prefill_prefix * steps.prefix,
        0.0,
    )
    running = np.asarray(steps.decoding + steps.prompts, np.float64)
    return _Timed(np.stack((decode, context, prefill), axis=1) * PICO, steps.seconds + gap(running))


def _errors(problem: _Problem, values: Floats) -> FactorErrors:
    """Standard errors by the curvature; None where the log shrinks the prior by little."""
    weights = problem.weights(problem.residual(values))
    columns = slopes(problem, values, DIFFERENCE)
    normal = columns.T @ (weights[:, None] * columns)
    known = [
        float(error) if error < DETERMINED * PRIOR_LOG else None
        for error in np.sqrt(np.diag(np.linalg.inv(normal)))
    ]
    decode, context, prefill = known
    return FactorErrors(decode=decode, context=context, prefill=prefill)


def _groups(logs: Sequence[Steps], problem: _Problem, values: Floats) -> Iterator[Residual]:
    """Median times by kind of step and by octave of its sequences or new tokens."""
    size = np.concatenate([np.where(s.prompts > 0, s.new, s.decoding) for s in logs])
    octave = np.floor(np.log2(np.maximum(size, 1))).astype(np.int64)
    before = problem.parts.sum(axis=1)
    after = problem.parts @ np.exp(values)
    for kind, words in ((~problem.mixed, "sequences decode"), (problem.mixed, "new tokens")):
        for step in np.unique(octave[kind]):
            rows = kind & (octave == step)
            low, high = int(size[rows].min()), int(size[rows].max())
            yield Residual(
                load=f"{low:,} {words}" if low == high else f"{low:,} to {high:,} {words}",
                metric=f"step time of {rows.sum():,}",
                measured=float(np.median(problem.measured[rows])),
                predicted=float(np.median(before[rows])),
                fitted=float(np.median(after[rows])),
            )


def _per_sequence(steps: Steps) -> Floats:
    """Tokens in cache of a sequence, on average over each step's."""
    running = np.maximum(steps.decoding + steps.prompts, 1)
    return np.asarray((steps.context + steps.prefix + steps.new) / running)
