"""Damped least squares on problems whose answer is known."""

import numpy as np
import pytest

from splitpoint.live.descent import Floats, descended, slopes


class Line:
    """y = a + b x through points, with b bounded from below."""

    def __init__(self, x: Floats, y: Floats, least: float = -np.inf, most: float = np.inf) -> None:
        self.x, self.y = x, y
        self.scale = np.array([2.0, 0.5])
        self.floor = np.array([-np.inf, least])
        self.ceiling = np.array([np.inf, most])

    def within(self, values: Floats) -> Floats:
        return np.clip(values, self.floor, self.ceiling)

    def residual(self, values: Floats) -> Floats:
        return np.asarray(values[0] + values[1] * self.x - self.y)


X = np.arange(5.0)


def test_a_line_is_found_and_its_slopes_are_exact() -> None:
    problem = Line(X, 3 + 2 * X)
    found = descended(problem, np.zeros(2), 0.1, enough=1e-9)
    assert found == pytest.approx([3, 2], abs=1e-4)
    assert slopes(problem, found, 0.1)[:, 1] == pytest.approx(0.5 * X)


def test_a_parameter_at_its_floor_stays_and_the_others_make_up_for_it() -> None:
    problem = Line(X, 3 - 2 * X, least=0.0)
    found = descended(problem, np.array([0.0, 0.0]), 0.1, enough=1e-9)
    assert found == pytest.approx([-1, 0], abs=1e-4)


def test_a_parameter_whose_bounds_meet_does_not_move() -> None:
    found = descended(Line(X, 3 + 2 * X, least=1.0, most=1.0), np.array([0.0, 1.0]), 0.1, enough=0)
    assert found == pytest.approx([5, 1], abs=1e-4)


def test_what_is_weighed_nothing_pulls_nothing() -> None:
    y = 3 + 2 * X
    y[-1] = 100.0
    weights = np.array([1.0, 1, 1, 1, 0])
    found = descended(Line(X, y), np.zeros(2), 0.1, enough=1e-9, weights=lambda _: weights)
    assert found == pytest.approx([3, 2], abs=1e-4)
