"""Numbers in words."""

import math

import pytest

from splitpoint.report import words
from tests.report import sample


@pytest.mark.parametrize(
    ("share", "told"),
    [
        (0.0, "0%"),
        (0.0001, "<0.1%"),
        (0.123, "12.3%"),
        (0.9999, ">99.9%"),
        (1.0, "100%"),
        (1.12, "112.0%"),
        (math.nan, "-"),
    ],
)
def test_only_exact_shares_print_as_nothing_or_all(share: float, told: str) -> None:
    assert words.percent(share) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.118, "+12%"), (-0.031, "-3.1%"), (38.2, "39x"), (None, "-"), (math.inf, "-")],
)
def test_margins_carry_their_sign(value: float | None, told: str) -> None:
    assert words.margin(value) == told


@pytest.mark.parametrize(
    ("value", "unit", "told"),
    [
        (28.7e9, "B", "26.7 GiB"),
        (3.5e9, "B/s", "3.5 GB/s"),
        (0.05, "s", "50 ms"),
        (0.71, "share", "71.0%"),
        (1.12, "of its pools", "112.0% of its pools"),
        (1450.0, "FLOP/B", "1,450 FLOP/B"),
        (math.inf, "s", "-"),
    ],
)
def test_each_unit_prints_its_own_way(value: float, unit: str, told: str) -> None:
    assert words.amount(value, unit) == told


def test_hostile_words_lose_what_a_terminal_would_obey() -> None:
    told = words.plain(sample.HOSTILE)
    assert "\x1b" not in told and "\n" not in told and "\u202e" not in told
    assert "<script>" in told


def test_the_best_points_are_those_of_the_last_comparison() -> None:
    names = [point.name for point in words.best(sample.answer())]
    assert names == ["P 6xTP1 + D 2xTP1 prefix_aware", "8xTP1 prefix_aware"]
