"""What stopped a deployment first, from runs of its own."""

import numpy as np

from splitpoint.inputs.deployment import Traffic
from splitpoint.inputs.slo import Slo
from splitpoint.metrics import ttft, ttft_parts
from splitpoint.search.world import candidate_of, world
from splitpoint.sim import simulate
from splitpoint.verdict.points import first_wall
from tests.search import small

SLO = Slo(ttft_s=0.01, tpot_s=1.0)


def stopped(*, rate: float, isl: int, bandwidth: float | None = None) -> str:
    """The first wall of a split on two GPUs, whose first tokens are all late."""
    one = candidate_of([("prefill", small.ready(), 1), ("decode", small.ready(), 1)], "round_robin")
    place = world(one, small.model(), tokens=isl, traffic=Traffic(transfer_bandwidth=bandwidth))
    run = simulate(place, small.trace(40, isl=isl, osl=20, rate=rate), seed=0)
    return first_wall(one, run, SLO)


def test_the_front_end_is_no_queue() -> None:
    # A prompt of 16 tokens prefills sooner than its request passes the front end.
    assert "queue" not in stopped(rate=0.5, isl=16)
    assert "prefill alone takes longer" in stopped(rate=0.1, isl=8000)


def test_prefill_alone_is_not_blamed_where_it_is_within_the_slo() -> None:
    one = candidate_of([("prefill", small.ready(), 1), ("decode", small.ready(), 1)], "round_robin")
    place = world(one, small.model(), tokens=8000)
    run = simulate(place, small.trace(40, isl=8000, osl=20, rate=0.1), seed=0)
    whole, alone = (
        float(np.percentile(times, 90)) for times in (ttft(run), ttft_parts(run).prefill)
    )
    assert alone < whole
    between = Slo(ttft_s=(alone + whole) / 2, tpot_s=1.0)
    assert first_wall(one, run, between).endswith("prefill is the longest")
    below = Slo(ttft_s=0.99 * alone, tpot_s=1.0)
    assert first_wall(one, run, below).endswith("prefill alone takes longer than the TTFT allows")


def test_a_queue_and_a_slow_link_are_told_apart() -> None:
    assert "requests queue longer" in stopped(rate=20.0, isl=8000)
    assert stopped(rate=0.1, isl=2000, bandwidth=1e8).startswith("link: KV moves")
