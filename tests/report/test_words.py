"""Numbers in words."""

import math
from typing import get_args

import pytest
from msgspec.structs import replace

from splitpoint.report import words
from splitpoint.verdict.answer import Origin
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
        (-3e-17, "s", "0 s"),
        (148e12, "FLOP/s", "148 TFLOP/s"),
        (3.15e11, "bytes/s between two instances", "315 GB/s between two instances"),
    ],
)
def test_each_unit_prints_its_own_way(value: float, unit: str, told: str) -> None:
    assert words.amount(value, unit) == told


@pytest.mark.parametrize(
    ("value", "told"), [(138.51, "139"), (138.49, "138"), (1234.5, "1,234"), (7.26, "7.3")]
)
def test_the_pace_of_a_user_is_rounded_once(value: float, told: str) -> None:
    assert words.pace(value) == told
    assert value < 100 or f"{value:,.0f}" == told


def test_hostile_words_lose_what_a_terminal_would_obey() -> None:
    told = words.plain(sample.HOSTILE)
    assert "\x1b" not in told and "\n" not in told and "\u202e" not in told
    assert "<script>" in told


def test_patience_is_told_where_clients_lose_it() -> None:
    answer = sample.answer()
    assert words.patience(answer) == ""
    asked = replace(answer.plan.workload, timeout_s=10.0, abort_s=120.0)
    answer = replace(answer, plan=replace(answer.plan, workload=asked))
    assert words.patience(answer) == "clients go after 10 s for a first token or 2 min for the end"


def test_the_best_points_are_those_of_the_last_comparison() -> None:
    names = [point.name for point in words.best(sample.answer())]
    assert names == ["P 6xTP1 + D 2xTP1 prefix_aware", "8xTP1 prefix_aware"]


def test_origins_are_the_words_of_the_answer() -> None:
    assert get_args(Origin) == words.ORIGINS


def test_a_load_in_the_name_is_not_said_twice() -> None:
    point = sample.point(sample.MIXED, name="8xTP1, prefix_aware @ 32 users", load="32 users")
    assert words.point(point) == "8xTP1, prefix_aware"


def test_the_holding_of_a_pool_is_found_by_topology_drafts_and_budget() -> None:
    answer = sample.answer()
    assert [h.topology for h in words.held(answer, answer.points)] == [
        "TP1 budget=8,192",
        "TP2 budget=8,192",
    ]
    assert answer.holding(sample.pool("mixed", 1, drafts=3)) is None


def test_a_source_that_names_its_kind_is_not_given_another() -> None:
    assert words.origin_of("published", "measured: nvidia-smi") == "measured: nvidia-smi"
    assert words.origin_of("assumed", "a share: half") == "assumed: a share: half"


def test_an_arm_that_alone_keeps_the_slo_leads_by_that_and_not_by_its_goodput() -> None:
    found = sample.answer().verdict.comparisons[0]
    assert words.lead(found) == "+11%"
    assert words.lead(replace(found, by="SLO", margin=-0.07)) == "SLO"
    assert words.lead(replace(found, winner="neither", margin=0.0)) == "-"
