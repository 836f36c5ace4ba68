"""Blocks that a pool forgot come back from host memory: 16 tokens a block, 10 ms to reload one."""

from typing import Any

import numpy as np
import pytest

from splitpoint.errors import PlanError
from splitpoint.run import Run
from splitpoint.sim import simulate
from tests.sim.small import Row, curve, mixed, split, trace

A, B, C = (list(range(n, n + 8)) for n in (10, 20, 30))


def run(*rows: Row, **changes: Any) -> Run:
    """One instance of 8 usable blocks, and as many blocks in host memory as asked for."""
    host = {"host_blocks": 100, "host_bandwidth": 1e3, "block_bytes": 10}
    return simulate(
        mixed(**{"kv_blocks": 9, "prefix_caching": True, "token_budget": 128, **host, **changes}),
        trace(*rows),
    )


def prompt(ids: list[int], at: float, blocks: int = 8) -> Row:
    """A prompt of whole blocks but its last token, which gives one token."""
    return Row(isl=16 * blocks - 1, osl=1, arrive_s=at, ids=ids[:blocks])


def test_what_the_pool_forgot_is_reloaded_before_the_request_is_admitted() -> None:
    r = run(prompt(A, 0.0), prompt(B, 1.0), prompt(A, 2.0)).requests
    # Seven full blocks come back in 70 ms, then the last 15 tokens are computed.
    assert list(r.hit_tokens) == [0, 0, 112]
    assert list(r.host_hit_tokens) == [0, 0, 112]
    assert r.prefill_start_s[2] == pytest.approx(2.07)
    assert r.first_token_s[2] == pytest.approx(2.085)
    without = run(prompt(A, 0.0), prompt(B, 1.0), prompt(A, 2.0), host_blocks=0).requests
    assert list(without.hit_tokens) == [0, 0, 0]


def test_blocks_still_in_the_pool_are_not_reloaded() -> None:
    # The second prompt takes the four last blocks of the first; of its seven full ones four stay.
    made = run(prompt(A, 0.0), prompt(B, 1.0, blocks=4), prompt(A, 2.0))
    r = made.requests
    assert (r.hit_tokens[2], r.host_hit_tokens[2]) == (112, 48)
    assert r.prefill_start_s[2] == pytest.approx(2.03)
    assert (made.instances.hit_tokens[0], made.instances.host_hit_tokens[0]) == (112, 48)


def test_reloads_share_the_link() -> None:
    # A pool of 16 blocks forgets two prompts while two others run; both come back at half speed.
    rows = [prompt(A, 0.0), prompt(B, 1.0), prompt(C, 2.0), prompt(list(range(50, 58)), 2.5)]
    r = run(*rows, prompt(A, 3.0), prompt(B, 3.0), kv_blocks=17).requests
    assert list(r.host_hit_tokens[4:]) == [112, 112]
    assert list(r.prefill_start_s[4:]) == pytest.approx([3.14, 3.14])


def test_a_block_on_its_way_for_another_request_is_waited_for() -> None:
    rows = [prompt(A, 0.0), prompt(B, 1.0), prompt(A, 2.0), prompt(A, 2.0), prompt(B, 2.0, 1)]
    r = run(*rows, max_seqs=8, curve=curve(token_ms=1)).requests
    # The third request finds the seven blocks in the pool once they are there; the short one of 15
    # tokens does not wait behind it.
    assert list(r.host_hit_tokens[2:]) == [112, 0, 0]
    assert list(r.hit_tokens[2:]) == [112, 112, 0]
    assert r.prefill_start_s[4] == pytest.approx(2.0)


def test_the_host_forgets_what_was_used_longest_ago() -> None:
    # Room for two prompts of seven full blocks: A is used again before C comes, so B goes.
    rows = [prompt(A, 0.0), prompt(B, 1.0), prompt(A, 2.0), prompt(C, 3.0), prompt(B, 4.0)]
    r = run(*rows, prompt(A, 5.0), host_blocks=14).requests
    assert r.host_hit_tokens[2] == 112
    assert r.host_hit_tokens[4] == 0


def test_a_preempted_request_gets_its_prompt_back() -> None:
    # Two requests of 3 blocks grow beyond 8; the second is preempted and another prompt takes
    # what it had in the pool.
    rows = [
        Row(isl=48, osl=60, ids=A[:3]),
        Row(isl=48, osl=60, ids=B[:3]),
        Row(isl=16, osl=1, ids=C[:1]),
    ]
    with_host, without = run(*rows).requests, run(*rows, host_blocks=0).requests
    assert with_host.preemptions[1] == without.preemptions[1] == 1
    assert (with_host.outcome == 0).all()
    assert with_host.end_s[1] < without.end_s[1]


def test_a_pull_leaves_what_reloads_will_need() -> None:
    # A prompt of 6 blocks prefills on the decode side, whose 12 blocks a pulled one then takes. It
    # comes again at 10 s and reloads 5 blocks until 10.05, and a prompt of 7 wants room at 10.01 s.
    # If it took all that is free, it would stand behind the other, which lacks a block, for ever.
    host = {"host_blocks": 100, "host_bandwidth": 1e3, "block_bytes": 10}
    decode = {"kv_blocks": 13, "prefix_caching": True, **host}
    world = split(prefill={"token_budget": 2000}, decode=decode, direct_below=96)
    again, pulled = prompt(A, 10.0, 6), Row(isl=110, osl=2, arrive_s=9.9)
    run = simulate(world, trace(prompt(A, 0.0, 6), Row(isl=190, osl=1, arrive_s=1), pulled, again))
    assert list(run.requests.outcome) == [0] * 4
    assert run.requests.host_hit_tokens[3] == 80
    assert run.requests.first_token_s[3] == pytest.approx(10.065)
    assert run.requests.transfer_start_s[2] == pytest.approx(10.065)


def test_host_memory_needs_a_speed() -> None:
    with pytest.raises(PlanError, match="host_bandwidth"):
        run(prompt(A, 0.0), host_bandwidth=0.0)
    with pytest.raises(PlanError, match="host_blocks"):
        run(prompt(A, 0.0), host_blocks=-1)


def test_host_memory_never_lowers_the_hits_of_one_instance() -> None:
    random = np.random.default_rng(3)
    prompts = [list(range(100 * n, 100 * n + 8)) for n in range(6)]
    rows = [prompt(prompts[n], float(t)) for t, n in enumerate(random.integers(0, 6, 60))]
    hits = [int(run(*rows, host_blocks=n).requests.hit_tokens.sum()) for n in range(0, 60, 7)]
    assert hits == sorted(hits)
    assert hits[-1] > hits[0]
