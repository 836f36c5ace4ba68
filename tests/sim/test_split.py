"""A prefill and a decode instance, worked out by hand: 1 ms a token to prefill and to move, 5 ms
of latency, 10 ms a decode step."""

import numpy as np
import pytest

from splitpoint.run import OUTCOMES
from splitpoint.sim import simulate
from splitpoint.timing.path import SharedPorts
from tests.sim.small import FULL, Row, split, trace

DONE, TIMED_OUT, INFEASIBLE = (OUTCOMES.index(o) for o in ("done", "timed_out", "infeasible"))


def test_the_moments_of_one_handoff() -> None:
    run = simulate(split(), trace(Row(isl=40, osl=3)))
    r = run.requests
    assert r.prefill_end_s[0] == r.transfer_start_s[0] == 0.04
    assert r.transfer_end_s[0] == 0.085
    # The decode side computes the last prompt token, which gives the first token.
    assert r.first_token_s[0] == 0.095
    assert r.end_s[0] == 0.115
    assert (r.prefill_instance[0], r.decode_instance[0]) == (0, 1)


def test_a_decode_side_that_reserves_first_lets_prefill_begin() -> None:
    first = {"reserve_first": True}
    one = trace(Row(isl=40, osl=3))
    idle, same = (simulate(split(link=link), one).requests for link in ({}, first))
    for name in ("prefill_start_s", "transfer_start_s", "transfer_end_s", "end_s"):
        np.testing.assert_array_equal(getattr(same, name), getattr(idle, name))
    # Room for one of them on the decode side, whose first request ends at 115 ms.
    two = trace(Row(isl=40, osl=3), Row(isl=40, osl=3))
    late, early = (simulate(split(decode={"kv_blocks": 6}, link=link), two) for link in ({}, first))
    assert late.requests.prefill_end_s[1] < 0.115
    assert early.requests.prefill_start_s[1] == early.requests.end_s[0] == 0.115
    assert early.requests.transfer_start_s[1] == early.requests.prefill_end_s[1] == 0.155
    # The prompt that waits for the decode side holds nothing on the prefill side.
    most = [run.series.kv_used[run.series.instance == 0].max() for run in (late, early)]
    assert most == [6, 3]


def test_pieces_and_fixed_bytes_add_to_a_transfer() -> None:
    link = {"fixed_bytes": 8.0, "per_descriptor": 1e-4, "descriptors_per_block": 2.0}
    run = simulate(split(link=link), trace(Row(isl=40, osl=1)))
    # 48 bytes, and 2 pieces for each of 3 blocks.
    assert run.requests.transfer_end_s[0] == pytest.approx(0.04 + 0.005 + 0.0006 + 0.048)


def test_transfers_share_the_link_fairly() -> None:
    # Both prompts are done at 64 ms; the shorter leaves first, the longer then has all of it.
    run = simulate(split(), trace(Row(isl=16, osl=1), Row(isl=48, osl=1)))
    assert list(run.requests.transfer_end_s) == pytest.approx([0.069 + 0.032, 0.069 + 0.064])


def test_a_machine_with_one_port_lets_its_transfers_share_it() -> None:
    # Two prompts on two prefill and two decode instances, done at 16 and 48 ms: no rank has two.
    prompts = trace(Row(isl=16, osl=1), Row(isl=48, osl=1))
    two = {"prefill": {"replicas": 2}, "decode": {"replicas": 2}}
    apart = simulate(split(**two), prompts)
    assert list(apart.requests.transfer_end_s) == pytest.approx([0.021 + 0.016, 0.053 + 0.048])
    # On machines of four GPUs with one port they meet there, if they overlap at all ...
    shared = {"shared": SharedPorts(gpus=4, ports=1)}
    late = trace(Row(isl=48, osl=1), Row(isl=48, osl=1))
    run = simulate(split(**two, link=shared), late)
    assert list(run.requests.transfer_end_s) == pytest.approx([0.053 + 0.096] * 2)
    # ... not where each prefill and each decode instance is on its own machine, nor with a port
    # for each; and a transfer that would fill two ports has half of its bandwidth on one.
    for free in (SharedPorts(gpus=1, ports=1), SharedPorts(gpus=4, ports=2)):
        run = simulate(split(**two, link={"shared": free}), late)
        assert list(run.requests.transfer_end_s) == pytest.approx([0.053 + 0.048] * 2)
    wide = {"shared": SharedPorts(gpus=4, ports=1, width=2)}
    run = simulate(split(link=wide), trace(Row(isl=48, osl=1)))
    assert list(run.requests.transfer_end_s) == pytest.approx([0.053 + 0.096])


def test_data_parallel_ranks_do_not_share_their_ports() -> None:
    both = {"prefill": {"dp": 2, "gpus": 2}, "decode": {"dp": 2, "gpus": 2}}
    run = simulate(split(**both), trace(Row(isl=48, osl=1), Row(isl=48, osl=1)))
    assert list(run.requests.transfer_end_s) == pytest.approx([0.053 + 0.048] * 2)


def test_the_prefill_side_holds_blocks_until_they_are_pulled() -> None:
    run = simulate(split(), trace(Row(isl=40, osl=30)))
    s = run.series
    moving = (s.instance == 0) & (s.time_s >= 0.04) & (s.time_s < 0.085)
    assert list(s.held[moving]) == [3]
    after = (s.instance == 0) & (s.time_s >= 0.085)
    assert set(s.kv_used[after]) == {0}


def test_a_full_decode_side_holds_the_prefill_side_back() -> None:
    # Decode: room for one request at a time. Prefill: room for two.
    world = split(prefill={"kv_blocks": 5}, decode={"kv_blocks": 5})
    run = simulate(world, trace(*(Row(isl=32, osl=20) for _ in range(4))))
    r = run.requests
    assert (r.outcome == DONE).all()
    assert r.transfer_start_s[1] == r.transfer_start_s[0]
    # The third is prefilled once a pull gave its blocks back, and pulled once a decode ended.
    assert r.prefill_start_s[2] == r.transfer_end_s[0]
    assert r.transfer_start_s[2] >= min(r.end_s[:2])
    held = run.series.held[run.series.instance == 0]
    assert held.max() == 4


def test_a_hit_on_the_decode_side_is_not_pulled_again() -> None:
    ids = [1, 2, 3]
    caching = {"prefix_caching": True}
    rows = (Row(isl=40, osl=1, ids=ids), Row(isl=40, osl=1, arrive_s=1, ids=ids))
    run = simulate(split(prefill=caching, decode=caching), trace(*rows))
    r = run.requests
    assert list(r.hit_tokens) == [0, 32]
    assert r.transfer_end_s[1] - r.transfer_start_s[1] == pytest.approx(0.005 + 0.008)


def test_a_short_prompt_goes_straight_to_the_decode_side() -> None:
    run = simulate(split(direct_below=20), trace(Row(isl=10, osl=2), Row(isl=40, osl=2)))
    r = run.requests
    assert list(r.prefill_instance) == [1, 0]
    assert r.first_token_s[0] == 0.01
    assert np.isnan(r.transfer_start_s[0]) and not np.isnan(r.transfer_start_s[1])


def test_a_layerwise_pull_overlaps_the_prefill() -> None:
    run = simulate(split(link={"layerwise": True}), trace(Row(isl=40, osl=1)))
    r = run.requests
    assert r.transfer_start_s[0] == 0.0
    assert r.transfer_end_s[0] == 0.045
    slow = simulate(split(link={"layerwise": True, "latency": 0.0}), trace(Row(isl=40, osl=1)))
    assert slow.requests.transfer_end_s[0] == slow.requests.prefill_end_s[0] == 0.04


def test_what_nobody_pulls_stays_until_the_lease_ends() -> None:
    # The second waits for room on the decode side until it is given up at 0.1 s.
    world = split(
        decode={"kv_blocks": 5}, link={"lease_s": 30.0}, timeout_s=0.2, prefill={"kv_blocks": 20}
    )
    rows = (Row(isl=32, osl=30), Row(isl=32, osl=30), Row(isl=32, osl=2))
    run = simulate(world, trace(*rows))
    assert list(run.requests.outcome) == [DONE, DONE, TIMED_OUT]
    s = run.series
    prefill = s.instance == 0
    assert s.held[prefill & (s.time_s < 30.2)][-1] == 2
    assert s.held[prefill][-1] == 0
    assert s.time_s[prefill & (s.held == 0) & (s.time_s > 1)][0] == pytest.approx(30.2)


def test_blocks_lost_on_the_decode_side_are_computed_there_again() -> None:
    # 5 blocks hold both inputs, not both outputs: the second loses its blocks.
    world = split(decode={"kv_blocks": 6})
    run = simulate(world, trace(Row(isl=32, osl=20), Row(isl=32, osl=20)))
    r = run.requests
    assert list(r.preemptions) == [0, 1]
    assert run.instances.mixed_steps[1] + run.instances.prefill_steps[1] >= 1
    assert (r.outcome == DONE).all()


def test_a_link_without_bandwidth_is_a_result() -> None:
    run = simulate(split(link={"bandwidth": 0.0}), trace(Row(isl=10, osl=1)))
    assert list(run.requests.outcome) == [INFEASIBLE]
    assert "no bandwidth" in run.notes[0]


def test_a_request_too_large_for_the_prefill_side_says_so() -> None:
    run = simulate(split(prefill={"kv_blocks": 2}), trace(Row(isl=40, osl=1)))
    assert list(run.requests.outcome) == [INFEASIBLE]
    assert "prefill rank of 1 blocks" in run.notes[0]


def test_two_full_groups_take_two_blocks_a_column() -> None:
    layout = {"groups": (FULL, FULL)}
    run = simulate(split(prefill=layout, decode=layout), trace(Row(isl=40, osl=5)))
    assert run.series.kv_used.max() == 6
