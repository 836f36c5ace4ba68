"""Where requests go, three instances unless said otherwise."""

from typing import Any, Literal

import msgspec
import numpy as np
import pytest

from splitpoint.errors import PlanError
from splitpoint.inputs.routing import Scores, Tree
from splitpoint.inputs.trace import Trace
from splitpoint.sim import simulate
from splitpoint.sim.world import RankChoice
from tests.sim.small import Row, mixed, split, trace


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


def test_prefix_aware_counts_a_prompt_in_flight_twice_unless_it_begins_as_the_new_one_does() -> (
    None
):
    # Both instances decode a prompt of four blocks. One more of the same kind adds two blocks of
    # its own beside the first (80 to compute less 64, 6 blocks), six beside the other.
    rows = [
        Row(isl=65, osl=90, ids=[1, 2, 3, 4, 5]),
        Row(isl=65, osl=90, arrive_s=0.2, ids=[6, 7, 8, 9, 10]),
        Row(isl=96, osl=9, arrive_s=0.4, ids=[6, 7, 8, 9, 11, 12]),
    ]
    run = simulate(mixed("prefix_aware", replicas=2, prefix_caching=True), trace(*rows))
    first, second, third = run.requests.prefill_instance
    assert first != second == third
    # Without a cache the same: what runs together begins alike, as far as a router knows.
    run = simulate(mixed("prefix_aware", replicas=2), trace(*rows))
    first, second, third = run.requests.prefill_instance
    assert first != second == third


def test_prefix_aware_draws_among_equals_by_lot() -> None:
    requests = trace(*(Row(isl=16, osl=1, arrive_s=float(n)) for n in range(300)))
    counts = np.bincount(places("prefix_aware", requests))
    # 100 each on average, 8.2 the standard deviation.
    assert all(70 < count < 130 for count in counts)


def test_prefix_aware_looks_at_work_where_prompts_prefill_and_at_prompts_where_they_decode() -> (
    None
):
    # The first prompt is pulled for 200 s. It waits for nothing on its prefill instance, which is
    # as good as the other then, and fills its decode instance, which every other prompt avoids.
    long = Row(isl=160, osl=400)
    short = [Row(isl=16, osl=2, arrive_s=1.0 + n) for n in range(60)]
    world = split(
        {"replicas": 2},
        {"replicas": 2},
        {"latency": 200.0},
        routing="prefix_aware",
        decode_routing="prefix_aware",
    )
    run = simulate(world, trace(long, *short[:5])).requests
    assert set(run.decode_instance[1:]) == {5 - run.decode_instance[0]}
    run = simulate(world, trace(long, *short)).requests
    assert 10 < (run.prefill_instance[1:] == run.prefill_instance[0]).sum() < 50


HOLDERS: dict[Literal["first", "lightest"], int] = {"first": 0, "lightest": 1}
A, B, C = [1, 2, 3, 4], [5, 6, 7, 8], [11, 12, 13, 14]


def set_places(requests: Trace, routing: Any, settings: Any, **pool: Any) -> list[int]:
    """The instance of each request, with the router set as told."""
    world = mixed(routing, replicas=3, **pool)
    world = msgspec.structs.replace(world, **settings)
    return [int(place) for place in simulate(world, requests).requests.prefill_instance]


def test_linear_weighs_the_cached_share_against_the_queue_and_the_free_blocks() -> None:
    # One seat an instance. B's 3 cached blocks of 4 are worth 3 x 0.75. At 1.5 s the long prompt
    # holds half of the blocks, and B comes twice: alone it would cost a point of free blocks
    # (2.25 + 2 x (1 + 0.49) against 4), behind another B also the queue's two (3.2 against 4).
    rows = [
        Row(isl=64, osl=1, ids=A),
        Row(isl=64, osl=1, ids=B),
        Row(isl=800, osl=200, arrive_s=0.2, ids=[*B, *range(100, 146)]),
        Row(isl=64, osl=1, arrive_s=1.5, ids=B),
        Row(isl=64, osl=1, arrive_s=1.5, ids=B),
    ]
    caching = {"prefix_caching": True, "max_seqs": 1}
    assert set_places(trace(*rows), "linear", {}, **caching) == [0, 1, 1, 1, 0]
    blind = {"scores": Scores(cache_weight=0.0)}
    assert set_places(trace(*rows[:3]), "linear", blind, **caching) == [0, 1, 0]
    loyal = {"scores": Scores(load_weight=0.0)}
    assert set_places(trace(*rows), "linear", loyal, **caching) == [0, 1, 1, 1, 1]


def test_prefix_approx_remembers_what_it_sent_not_what_is_cached() -> None:
    rows = [Row(isl=64, osl=1, ids=A), Row(isl=64, osl=1, ids=B), Row(64, 1, 1.0, B)]
    assert set_places(trace(*rows), "prefix_approx", {}) == [0, 1, 1]
    # What is cached nowhere is anybody's.
    runs = [simulate(mixed("prefix_aware", replicas=3), trace(*rows), seed=n) for n in range(20)]
    assert {
        run.requests.prefill_instance[2] == run.requests.prefill_instance[1] for run in runs
    } == {
        False,
        True,
    }


def test_prefix_approx_asks_for_more_than_its_threshold() -> None:
    # 30% of 64 tokens are 19.2: one id of 16 is too few, two are enough.
    for shared, place in ((1, 0), (2, 1)):
        like = [*B[:shared], *range(50, 54 - shared)]
        rows = [Row(isl=64, osl=1, ids=A), Row(isl=64, osl=1, ids=B), Row(64, 1, 1.0, like)]
        assert set_places(trace(*rows), "prefix_approx", {}) == [0, 1, place]


def test_prefix_approx_follows_load_alone_once_requests_are_uneven_in_count_and_ratio() -> None:
    rows = [Row(isl=64, osl=50, ids=A) for _ in range(4)]
    assert set_places(trace(*rows), "prefix_approx", {}) == [0, 0, 0, 0]
    near = {"tree": Tree(balance_abs=1)}
    # Two apart is more than one: the third moves on, and the prompt's place moves with it.
    assert set_places(trace(*rows), "prefix_approx", near) == [0, 0, 1, 2]


def test_prefix_approx_takes_the_first_or_the_lightest_of_those_that_were_sent_a_start() -> None:
    # The fourth and fifth follow the first, the sixth goes past it, where two fewer are. Later one
    # request is left on the first instance, none on the second.
    rows = [
        Row(isl=64, osl=90, ids=A),
        Row(isl=64, osl=20, arrive_s=0.01, ids=B),
        Row(isl=64, osl=90, arrive_s=0.02, ids=C),
        *(Row(isl=64, osl=2, arrive_s=0.03 + n / 1000, ids=A) for n in range(3)),
        Row(isl=64, osl=2, arrive_s=0.7, ids=A),
    ]
    for holder, last in HOLDERS.items():
        tree = Tree(balance_abs=1, balance_rel=1.0, holder=holder)
        found = set_places(trace(*rows), "prefix_approx", {"tree": tree})
        assert found == [0, 1, 2, 0, 0, 1, last]


def test_prefix_approx_forgets_the_oldest_prompt_of_a_full_tree() -> None:
    rows = [Row(isl=64, osl=1, ids=ids) for ids in (A, B, C)] + [Row(64, 1, 1.0, B)]
    assert set_places(trace(*rows), "prefix_approx", {"tree": Tree(tokens=128)}) == [0, 1, 2, 1]
    assert set_places(trace(*rows), "prefix_approx", {"tree": Tree(tokens=64)}) == [0, 1, 2, 0]


def test_router_settings_below_zero_are_refused() -> None:
    for settings in ({"scores": Scores(load_weight=-1.0)}, {"tree": Tree(tokens=-1)}):
        with pytest.raises(PlanError, match="0 or more"):
            set_places(apart((10, 5)), "linear", settings)


@pytest.mark.parametrize(
    "routing",
    ["random", "power_of_two", "prefix_aware", "least_kv", "prefix_approx", "linear"],
)
def test_one_instance_leaves_no_choice(routing: Any) -> None:
    run = simulate(mixed(routing), apart((10, 5), (10, 5)))
    assert list(run.requests.prefill_instance) == [0, 0]


def named(routing: Any, ranks: RankChoice, requests: Trace, **prefill: Any) -> list[int]:
    """The prefill rank of each request, two instances of four ranks."""
    prefill = {"dp": 4, "replicas": 2, "ranks": ranks, **prefill}
    run = simulate(split(prefill, {"kv_blocks": 10_001}, routing=routing), requests)
    return [int(rank) for rank in run.requests.prefill_instance]


def test_an_instance_that_draws_ranks_leaves_the_router_the_instance() -> None:
    requests = apart(*[(10, 1)] * 400)
    assert named("round_robin", "router", requests) == [*range(8)] * 50
    ranks = named("round_robin", "lot", requests)
    assert [rank // 4 for rank in ranks] == [0, 1] * 200
    # 100 of 400 each on average, 8.7 the standard deviation: by lot, not in turn.
    served = [sum(rank % 4 == own for rank in ranks) for own in range(4)]
    assert all(65 < count < 135 for count in served) and len(set(ranks[:16])) < 8
    assert ranks == named("round_robin", "lot", requests)


def test_instances_take_their_ranks_in_turn_each_for_itself() -> None:
    requests = apart(*[(10, 1)] * 16)
    assert named("round_robin", "turn", requests) == [0, 4, 1, 5, 2, 6, 3, 7] * 2


@pytest.mark.parametrize("routing", ["prefix_aware", "linear"])
def test_a_router_that_knows_ranks_names_one(routing: Any) -> None:
    requests = apart(*[(100, 1)] * 40)
    for ranks in ("lot", "turn", "in_flight", "queue", "requests", "tokens"):
        assert named(routing, ranks, requests) == named(routing, "router", requests)


def test_prompts_wait_where_the_lot_falls_twice() -> None:
    # Eight prompts of a whole step each: one on every rank in turn, several on one by lot.
    requests = trace(*[Row(isl=64, osl=1)] * 8)
    waited = {}
    for ranks in ("router", "lot"):
        run = simulate(split({"dp": 8, "ranks": ranks}, {"kv_blocks": 10_001}), requests)
        waited[ranks] = float(max(run.requests.prefill_end_s - run.requests.arrive_s))
    assert waited["lot"] > 1.5 * waited["router"]


def ranks_of(ranks: RankChoice, *rows: Row, **pool: Any) -> list[int]:
    """The rank of each request, one mixed instance of three."""
    run = simulate(mixed(dp=3, ranks=ranks, **pool), trace(*rows))
    return [int(rank) for rank in run.requests.prefill_instance]


def test_vllm_sends_where_the_fewest_of_its_requests_are_and_more_wait_in_fuller_pools() -> None:
    # One seat: from the fourth on all wait, the fifth behind a pool that is 63% full and more, so
    # that its two requests count 2.8 and the last goes past it.
    rows = [
        Row(isl=100, osl=900),
        Row(isl=1000, osl=400, arrive_s=0.01),
        Row(isl=100, osl=900, arrive_s=0.02),
        *(Row(isl=100, osl=9, arrive_s=1.5 + n / 100) for n in range(5)),
    ]
    assert ranks_of("in_flight", *rows, max_seqs=1) == [0, 1, 2, 0, 1, 2, 0, 2]
    # Where it looked 100 ms ago all are one request and what was sent since, four times.
    assert ranks_of("queue", *rows, max_seqs=1) == [0, 1, 2, 0, 1, 2, 0, 1]


def test_loads_are_those_of_the_last_look_with_what_was_sent_since() -> None:
    # The long prompt counts from the look at 30 ms on, not from its end at 25 ms on.
    rows = [
        Row(isl=20, osl=1),
        Row(isl=10, osl=900, arrive_s=0.001),
        Row(isl=10, osl=900, arrive_s=0.002),
        Row(isl=10, osl=900, arrive_s=0.0021),
        Row(isl=10, osl=1, arrive_s=0.0022),
    ]
    # Requests: 1, 1, 1, then the first again; tokens: 20, 10, 10, then 20, 20.
    assert ranks_of("requests", *rows) == [0, 1, 2, 0, 1]
    assert ranks_of("tokens", *rows) == [0, 1, 2, 1, 2]
    # The first is gone at 0.2 s, and the others are seen as they are.
    later = Row(isl=10, osl=1, arrive_s=0.2)
    assert ranks_of("requests", *rows[:3], later) == [0, 1, 2, 0]
    # Within 20 ms nobody looks: the one that is gone still counts.
    quick = [Row(isl=1, osl=1, arrive_s=n / 1000) for n in range(4)]
    assert ranks_of("requests", *quick) == [0, 1, 2, 0]
    slow = [Row(isl=1, osl=1, arrive_s=n / 20) for n in range(4)]
    assert ranks_of("requests", *slow) == [0, 0, 0, 0]
    assert ranks_of("queue", *slow) == [0, 1, 2, 0]


def test_a_router_that_restarts_forgets_what_it_sent_where() -> None:
    # The second prompt goes where the first went, unless the router restarted in between: then to
    # the rank with the fewest requests, and the third follows the second.
    ids = [1, 2, 3, 4]
    long = Row(isl=64, osl=100, ids=ids)
    rows = trace(long, *(Row(isl=64, osl=1, arrive_s=s, ids=ids) for s in (0.2, 0.4)))
    for lost, seen in ((None, [0, 0, 0]), (0.1, [0, 1, 1]), (0.3, [0, 0, 1])):
        world = msgspec.structs.replace(mixed("prefix_approx", replicas=2), tree=Tree(lost_s=lost))
        assert list(simulate(world, rows).requests.prefill_instance) == seen
