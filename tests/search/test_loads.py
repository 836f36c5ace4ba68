"""Loads and their profiles, by hand."""

from pathlib import Path

import pytest

from splitpoint.inputs.workload import Workload
from splitpoint.search.loads import loads, profile, too_slow
from tests.search import small


def test_a_profile_is_made_of_means() -> None:
    found = profile(small.trace(4, isl=1600, osl=100))
    assert (found.isl, found.osl, found.new_tokens) == (1600, 100, 1600)
    assert found.pairs == 1600 * 1601 / 2
    assert found.context == 1650
    assert found.longest == 1700


def test_cached_tokens_are_not_new_but_are_attended() -> None:
    # 50 blocks of 16 are common: three of four requests find 800 of their 1,600 tokens.
    found = profile(small.trace(4, isl=1600, shared=50))
    assert found.new_tokens == (1600 + 3 * 800) / 4
    assert found.pairs == (1600 * 1601 / 2 + 3 * (800 * 800 + 800 * 801 / 2)) / 4
    assert profile(small.trace(4, isl=1600, shared=50), prefix_caching=False).new_tokens == 1600


def test_every_value_of_a_sweep_is_a_load_lightest_first() -> None:
    workload = Workload(isl=100, osl=10, concurrency=(8, 2), requests=16)
    found = loads(workload, base=Path())
    assert [load.label for load in found] == ["concurrency 2", "concurrency 8"]
    assert [load.concurrency for load in found] == [2, 8]
    assert all(load.rate is None for load in found)


def test_rates_are_loads_too_and_may_be_cut() -> None:
    workload = Workload(isl=100, osl=10, rate=(1.5, 0.5), requests=16)
    found = loads(workload, base=Path(), requests=5)
    assert [load.label for load in found] == ["0.5 req/s", "1.5 req/s"]
    assert [len(load.trace) for load in found] == [5, 5]


def test_a_preset_keeps_its_own_arrivals() -> None:
    (load,) = loads(Workload(preset="chat", requests=200), base=Path())
    assert load.label == "preset"
    assert load.rate is not None and load.rate > 0
    assert load.profile.new_tokens < load.profile.isl == pytest.approx(load.trace.isl.mean())


def test_a_rate_that_pausing_sessions_never_reach_is_told() -> None:
    few = Workload(preset="chat", rate=20.0, requests=200)
    (load,) = loads(few, base=Path())
    (note,) = too_slow(load)
    assert note.startswith("20 req/s was asked for, but the trace has ")
    (enough,) = loads(Workload(preset="chat", rate=5.0), base=Path())
    (timed,) = loads(Workload(preset="chat"), base=Path())
    (users,) = loads(Workload(preset="chat", concurrency=4), base=Path())
    assert [too_slow(load) for load in (enough, timed, users)] == [(), (), ()]
