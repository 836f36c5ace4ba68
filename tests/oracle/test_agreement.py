"""The simulator and the oracle agree to the last bit, leaping or step by step.

`validate/test_sim.py` does the same on thousands of worlds.
"""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.oracle import compare, worlds


@settings(max_examples=2000, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_simulator_and_oracle_agree_on_random_worlds(seed: int) -> None:
    random = Random(seed)
    world, trace = worlds.case(random)
    assert compare.differences(world, trace, seed) == []


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_simulator_and_oracle_agree_on_random_worlds_of_window_groups(seed: int) -> None:
    world, trace = worlds.windowed(Random(seed))
    assert compare.differences(world, trace, seed) == []


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_simulator_and_oracle_agree_on_random_worlds_of_hybrids(seed: int) -> None:
    world, trace = worlds.stateful(Random(seed))
    assert compare.differences(world, trace, seed) == []


def test_worlds_of_hybrids_meet_hits_preemptions_and_states_that_were_not_kept() -> None:
    seen = {"hit": 0, "preempted": 0, "lost": 0, "dense": 0}
    for seed in range(100):
        world, trace = worlds.stateful(Random(seed))
        r = compare.simulated(world, trace, seed, True).requests
        blind = replace(world, pools=tuple(replace(p, states=False) for p in world.pools))
        more = compare.simulated(blind, trace, seed, True).requests
        seen["hit"] += bool(r.hit_tokens.any())
        seen["preempted"] += bool(r.preemptions.any())
        seen["lost"] += bool((more.hit_tokens > r.hit_tokens).any())
        seen["dense"] += bool(r.hit_tokens.any() and not any(p.tails for p in world.pools))
    assert min(seen.values()) >= 3, seen


def test_worlds_of_window_groups_meet_hits_preemptions_and_tails_that_were_lost() -> None:
    seen = {"hit": 0, "preempted": 0, "lost": 0}
    for seed in range(100):
        world, trace = worlds.windowed(Random(seed))
        r = compare.simulated(world, trace, seed, True).requests
        blind = replace(world, pools=tuple(replace(p, tails=False) for p in world.pools))
        more = compare.simulated(blind, trace, seed, True).requests
        seen["hit"] += bool(r.hit_tokens.any())
        seen["preempted"] += bool(r.preemptions.any())
        seen["lost"] += bool((more.hit_tokens > r.hit_tokens).any())
    assert min(seen.values()) >= 3, seen


def test_random_worlds_meet_everything_the_simulator_models() -> None:
    seen: set[str] = set()
    for seed in range(320):
        random = Random(seed)
        world, trace = worlds.case(random)
        run = compare.simulated(world, trace, seed, True)
        r = run.requests
        seen |= {f"outcome {outcome}" for outcome in r.outcome}
        seen |= {"preempted"} if r.preemptions.any() else set()
        seen |= {"hit"} if r.hit_tokens.any() else set()
        seen |= {"reloaded"} if r.host_hit_tokens.any() else set()
        seen |= {"sglang"} if any(pool.reserve for pool in world.pools) else set()
        sorting = [pool for pool in world.pools if pool.reserve and pool.reserve.longest_first]
        seen |= {"longest first"} if any(p.prefix_caching for p in sorting) else set()
        joining = [
            world.pools[index] for index in run.instances.pool[run.instances.mixed_steps > 0]
        ]
        seen |= {"mixed chunks"} if any(pool.reserve for pool in joining) else set()
        seen |= {"ahead"} if any(pool.batches_in_flight > 1 for pool in world.pools) else set()
        seen |= {"handed over"} if (r.transfer_end_s > 0).any() else set()
        first = world.link is not None and world.link.reserve_first
        seen |= {"reserved first"} if first and (r.transfer_end_s > 0).any() else set()
        seen |= {"held"} if run.series.held.any() else set()
        seen |= {"ranks"} if (run.instances.rank > 0).any() else set()
        piped = [pool for pool in world.pools if pool.curve.later]
        seen |= {f"pipeline with {pool.batches_in_flight}" for pool in piped}
        seen |= {"pipeline, sglang"} if any(pool.reserve for pool in piped) else set()
        losing = run.instances.pool[run.instances.preemptions > 0]
        lost = any(world.pools[index].curve.later for index in losing)
        seen |= {"preempted in a pipeline"} if lost else set()
        losers = [world.pools[index] for index in losing]
        parked = any(pool.role == "decode" and pool.reserve for pool in losers)
        seen |= {"retracted to host memory"} if parked else set()
        seen |= {"drafts"} if any(pool.curve.drafts for pool in world.pools) else set()
    assert seen >= {
        *(f"outcome {outcome}" for outcome in (0, 1, 2, 3)),
        *(
            "preempted",
            "hit",
            "handed over",
            "reserved first",
            "held",
            "ranks",
            "drafts",
            "reloaded",
            "ahead",
            "sglang",
            "pipeline with 1",
            "pipeline with 2",
            "pipeline, sglang",
            "preempted in a pipeline",
            "retracted to host memory",
            "longest first",
            "mixed chunks",
        ),
    }
