"""Where requests go, three instances unless said otherwise."""

from typing import Any

import pytest

from splitpoint.inputs.trace import Trace
from splitpoint.sim import simulate
from tests.sim.small import Row, mixed, trace


def places(routing: Any, requests: Trace, **pool: Any) -> list[int]:
    """The instance of each request."""
    run = simulate(mixed(routing, replicas=3, **pool), requests)
    return [int(place) for place in run.requests.prefill_instance]


def apart(*rows: tuple[int, int]) -> Trace:
    """Requests of (isl, osl) a millisecond apart."""
    return trace(*(Row(isl=i, osl=o, arrive_s=n / 1000) for n, (i, o) in enumerate(rows)))


def test_round_robin_takes_turns() -> None:
    assert places("round_robin", apart(*[(10, 5)] * 5)) == [0, 1, 2, 0, 1]


def test_least_requests_fills_the_emptiest_first() -> None:
    # The one-token requests are gone when the fourth and fifth arrive.
    requests = trace(
        Row(isl=10, osl=900),
        Row(isl=10, osl=1),
        Row(isl=10, osl=1),
        Row(isl=10, osl=900, arrive_s=1),
        Row(isl=10, osl=900, arrive_s=1),
        Row(isl=10, osl=900, arrive_s=1),
    )
    assert places("least_requests", requests) == [0, 1, 2, 1, 2, 0]


def test_least_kv_counts_blocks_in_use_and_asked_for() -> None:
    assert places("least_kv", apart((100, 50), (30, 50), (60, 50), (10, 50), (16, 5))) == [
        *(0, 1, 2),
        *(1, 1),
    ]


def test_random_and_power_of_two_repeat_with_the_seed_and_use_every_instance() -> None:
    requests = apart(*[(10, 30)] * 60)
    for routing in ("random", "power_of_two"):
        one = places(routing, requests)
        assert one == places(routing, requests)
        assert set(one) == {0, 1, 2}


def test_power_of_two_spreads_better_than_random() -> None:
    requests = apart(*[(1, 900)] * 90)
    spread = {
        routing: max(places(routing, requests, max_seqs=64).count(i) for i in range(3))
        for routing in ("random", "power_of_two")
    }
    assert spread["power_of_two"] <= 32 < spread["random"]


def test_a_session_stays_where_its_first_turn_went() -> None:
    rows = [
        Row(isl=10, osl=5, arrive_s=0.001 * (3 * turn + session), session=session, turn=turn)
        for turn in range(3)
        for session in range(3)
    ]
    assert places("session", trace(*rows)) == [0, 1, 2] * 3


def test_prefix_aware_goes_where_the_prompt_is_cached_unless_that_is_busy() -> None:
    ids = [1, 2, 3, 4]
    first = Row(isl=64, osl=1, ids=ids)
    other = Row(isl=64, osl=1, ids=[9, 8, 7, 6])
    again = Row(isl=64, osl=1, arrive_s=1, ids=ids)
    quiet = places("prefix_aware", trace(first, other, again), prefix_caching=True)
    assert quiet[2] == quiet[0] != quiet[1]
    # A long prompt that starts alike went there just before: more to compute than without hits.
    crowd = Row(isl=640, osl=1, arrive_s=1 - 1e-6, ids=[*ids, *range(50, 86)])
    busy = places("prefix_aware", trace(first, crowd, again), prefix_caching=True)
    assert busy[1] == busy[0] != busy[2]


@pytest.mark.parametrize("routing", ["random", "power_of_two", "prefix_aware", "least_kv"])
def test_one_instance_leaves_no_choice(routing: Any) -> None:
    run = simulate(mixed(routing), apart((10, 5), (10, 5)))
    assert list(run.requests.prefill_instance) == [0, 0]
