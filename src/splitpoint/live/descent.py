"""Damped, weighted least squares (Levenberg-Marquardt) between bounds, with slopes by differences.

What is fitted here answers in jumps (a replay takes whole steps), so the size of the differences
is chosen by the caller: wide ones look over the jumps, narrow ones end a search.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Weights = Callable[[Floats], Floats]

# Most rounds for one size of the differences.
ROUNDS = 30
# Huber's tuning constant: 95% efficiency on normal residuals (Ann. Math. Statist. 35, 1964).
HUBER = 1.345
# Median absolute deviation to standard deviation of a normal distribution.
MAD = 1.4826


class Problem(Protocol):
    """Residuals as a function of parameters. `scale`: how much of each makes about one unit;
    `floor`: the least that each may be."""

    scale: Floats
    floor: Floats

    def within(self, values: Floats) -> Floats: ...
    def residual(self, values: Floats) -> Floats: ...


def even(residual: Floats) -> Floats:
    """The same weight for every residual."""
    return np.ones(len(residual))


def huber(residual: Floats, least: float) -> Floats:
    """Huber's weights over the variance of residuals of one kind, by their own spread or `least`,
    whichever is more."""
    spread = max(MAD * float(np.median(np.abs(residual))), least)
    distance = np.abs(residual) / spread
    return np.asarray(np.minimum(1.0, HUBER / np.maximum(distance, HUBER)) / spread**2)


def slopes(problem: Problem, values: Floats, share: float) -> Floats:
    """Change of the residuals per `scale` of each parameter, by central differences of `share`
    of it."""
    columns = []
    for i, size in enumerate(problem.scale):
        move = np.zeros(len(values))
        move[i] = size * share
        above, below = problem.within(values + move), problem.within(values - move)
        moved = above[i] - below[i]
        change = problem.residual(above) - problem.residual(below)
        # A parameter whose bounds meet does not move.
        columns.append(change * (size / moved) if moved > 0 else np.zeros(len(change)))
    return np.stack(columns, axis=1)


def descended(
    problem: Problem, values: Floats, share: float, *, enough: float, weights: Weights = even
) -> Floats:
    """Where rounds with differences of `share` lead, until one gains less than `enough` of the
    loss; parameters stay at their floor while the step would lead below it. `weights` of the
    residuals are taken anew for every round."""
    residual = problem.residual(values)
    damping = 1e-2
    for _ in range(ROUNDS):
        weight = weights(residual)
        columns = slopes(problem, values, share)
        normal = columns.T @ (weight[:, None] * columns)
        gradient = columns.T @ (weight * residual)
        before = float(weight @ residual**2)
        after = before
        while damping < 1e6:
            step = _damped_step(normal, gradient, damping, values <= problem.floor)
            tried = problem.within(values + step * problem.scale)
            found = problem.residual(tried)
            after = float(weight @ found**2)
            if after < before:
                values, residual, damping = tried, found, max(damping / 3, 1e-6)
                break
            damping *= 4
        if before - after <= enough * before:
            break
    return values


def _damped_step(normal: Floats, gradient: Floats, damping: float, low: Flags) -> Floats:
    """The damped step that leads no parameter at its floor (`low`) below it."""
    free = np.ones(len(gradient), bool)
    # A parameter that nothing depends on keeps its value.
    ridge = damping * (np.diag(normal) + 1e-9 * np.trace(normal)) + np.finfo(float).tiny
    step = np.zeros(len(gradient))
    while free.any():
        step[:] = 0.0
        system = normal[np.ix_(free, free)] + np.diag(ridge[free])
        step[free] = -np.linalg.solve(system, gradient[free])
        blocked = free & low & (step < 0)
        if not blocked.any():
            break
        free &= ~blocked
    return step
