"""A constant per request outside of steps, in open and closed loops."""

import numpy as np
from msgspec.structs import replace

from splitpoint import metrics
from splitpoint.inputs.traces.requests import shaped
from splitpoint.inputs.workload import Workload
from splitpoint.sim import simulate
from tests.sim import small


def test_every_first_token_is_late_by_it_and_nothing_else_is() -> None:
    trace = small.trace(small.Row(100, 10), small.Row(200, 20, arrive_s=50.0))
    plain = simulate(small.mixed(), trace)
    late = simulate(replace(small.mixed(), front_s=0.25), trace)
    np.testing.assert_allclose(metrics.ttft(late), metrics.ttft(plain) + 0.25)
    np.testing.assert_allclose(metrics.tpot(late), metrics.tpot(plain))
    np.testing.assert_allclose(late.requests.arrive_s, plain.requests.arrive_s)


def test_a_user_of_a_closed_loop_waits_for_it_every_time() -> None:
    trace = shaped(Workload(isl=50, osl=5, concurrency=1, requests=6), None, 1)
    plain = simulate(small.mixed(), trace)
    late = simulate(replace(small.mixed(), front_s=0.25), trace)
    assert np.isclose(late.duration_s - plain.duration_s, 6 * 0.25)
    np.testing.assert_allclose(late.requests.arrive_s[1:], late.requests.end_s[:-1])
