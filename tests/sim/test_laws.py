"""Laws that hold in every world, checked on random small ones."""

from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitpoint import metrics
from splitpoint.inputs.trace import Trace
from splitpoint.run import OUTCOMES, Run
from splitpoint.sim import World, simulate
from splitpoint.sim.build import build
from splitpoint.sim.loop import run as play_out
from splitpoint.timing.curve import StepCurve
from tests.oracle import worlds
from tests.sim.small import Row, mixed, trace

replace = msgspec.structs.replace
seeds = st.integers(0, 2**32)
some = settings(max_examples=60, deadline=None, derandomize=True)


def made(seed: int) -> tuple[World, Trace]:
    """A random world and trace."""
    random = Random(seed)
    return worlds.world(random), worlds.trace(random)


def columns(run: Run) -> list[bytes]:
    """Every column of a run as bytes."""
    return [
        np.asarray(getattr(part, name)).tobytes()
        for part in (run.requests, run.instances, run.series)
        for name in part.__struct_fields__
    ]


@some
@given(seeds)
def test_blocks_are_conserved_at_every_change(seed: int) -> None:
    world, requests = made(seed)
    run = simulate(world, requests)
    s = run.series
    blocks = run.instances.kv_blocks[s.instance]
    assert (s.kv_used >= 0).all() and (s.kv_cached >= 0).all()
    assert (s.kv_used + s.kv_cached <= blocks).all()
    assert (s.held >= 0).all() and (s.held <= s.kv_used).all()
    last = {int(r): i for i, r in enumerate(s.instance)}
    if not (run.requests.outcome == OUTCOMES.index("unfinished")).any():
        assert all(s.kv_used[i] == s.held[i] == 0 for i in last.values())


@some
@given(seeds)
def test_every_request_ends_once_and_its_moments_are_in_order(seed: int) -> None:
    world, requests = made(seed)
    r = simulate(world, requests).requests
    assert not (r.outcome == OUTCOMES.index("unfinished")).any()
    assert not np.isnan(r.end_s).any()
    moments = np.stack([r.arrive_s, r.prefill_start_s, r.prefill_end_s, r.first_token_s, r.end_s])
    gaps = np.diff(moments, axis=0)
    assert (gaps[~np.isnan(gaps)] >= 0).all()
    done = r.outcome == OUTCOMES.index("done")
    assert not np.isnan(moments[:, done]).any()
    assert np.isnan(r.first_token_s[r.outcome == OUTCOMES.index("timed_out")]).all()


@some
@given(seeds)
def test_the_same_seed_gives_the_same_bytes(seed: int) -> None:
    world, requests = made(seed)
    first = columns(simulate(world, requests, seed=seed))
    assert first == columns(simulate(world, requests, seed=seed))


def slower(world: World, factor: int) -> World:
    """The world with every cost multiplied; all times are whole picoseconds."""

    def curve(c: StepCurve) -> StepCurve:
        return replace(
            c,
            decode=c.decode * factor,
            decode_context=c.decode_context * factor,
            mixed=c.mixed * factor,
            prefill_pair=c.prefill_pair * factor,
            prefill_prefix=c.prefill_prefix * factor,
            mixed_decode=None if c.mixed_decode is None else c.mixed_decode * factor,
            together=None if c.together is None else c.together.times(factor),
            later=tuple(map(curve, c.later)),
        )

    return replace(
        world,
        pools=tuple(replace(pool, curve=curve(pool.curve)) for pool in world.pools),
        timeout_s=None if world.timeout_s is None else world.timeout_s * factor,
        abort_s=None if world.abort_s is None else world.abort_s * factor,
        front_s=world.front_s * factor,
        front_token_s=world.front_token_s * factor,
    )


@some
@given(seeds)
def test_time_scales_with_costs_and_arrivals_to_the_picosecond(seed: int) -> None:
    world, requests = made(seed)
    if len(world.pools) == 2:
        # Transfers divide work among sharers, which rounds; the mixed pool does not.
        return
    slow = replace(requests, arrive_s=requests.arrive_s * 2, think_s=requests.think_s * 2)
    fast, twice = simulate(world, requests), simulate(slower(world, 2), slow)
    for name in ("arrive_s", "prefill_start_s", "first_token_s", "end_s"):
        once = np.rint(getattr(fast.requests, name) * 1e12)
        assert np.array_equal(
            np.rint(getattr(twice.requests, name) * 1e12), once * 2, equal_nan=True
        )


@some
@given(st.lists(st.integers(1, 6), min_size=2, max_size=20), st.integers(8, 40), seeds)
def test_more_memory_never_lowers_the_hits_of_one_request_at_a_time(
    heads: list[int], blocks: int, seed: int
) -> None:
    # LRU keeps a subset of what a larger LRU keeps, as long as requests do not overlap.
    random = Random(seed)
    rows = [
        Row(
            isl=16 * head + 1,
            osl=1,
            arrive_s=float(i),
            ids=[*range(head), 100 + random.randint(0, 2)],
        )
        for i, head in enumerate(heads)
    ]
    hits = [
        simulate(mixed(prefix_caching=True, kv_blocks=n), trace(*rows)).requests.hit_tokens
        for n in (blocks, blocks + 5, 2 * blocks)
    ]
    assert (hits[0] <= hits[1]).all() and (hits[1] <= hits[2]).all()


@some
@given(st.lists(st.integers(1, 60), min_size=2, max_size=12))
def test_prefills_of_one_instance_start_in_order_of_arrival(lengths: list[int]) -> None:
    rows = [Row(isl=isl, osl=5, arrive_s=i * 0.003) for i, isl in enumerate(lengths)]
    run = simulate(mixed(kv_blocks=12), trace(*rows))
    assert (np.diff(run.requests.prefill_start_s) >= 0).all()


def test_a_full_pool_reads_as_wholly_used() -> None:
    rows = [Row(isl=40, osl=120, arrive_s=0.0) for _ in range(8)]
    run = simulate(mixed(kv_blocks=12), trace(*rows))
    assert (run.instances.kv_blocks == 11).all()
    assert run.series.kv_used.max() == 11
    assert metrics.pool_load(run, 0).used_p99 == 1.0


def test_what_decodes_take_between_two_changes_shows_in_the_series() -> None:
    # One request alone, 10 ms a token: 1 of 100 blocks at first and 99 before it ends.
    run = simulate(mixed(), trace(Row(isl=16, osl=1569)))
    s = run.series
    assert s.kv_used.tolist() == [*range(1, 100), 0, 0]
    assert s.time_s[:3] == pytest.approx([0, 0.016, 0.176])
    load = metrics.pool_load(run, 0)
    assert load.used_mean == pytest.approx(0.5, abs=0.01)
    assert load.used_p99 == 0.99


def test_a_long_series_is_thinned_and_keeps_its_ends() -> None:
    random = Random(0)
    times = np.cumsum([random.expovariate(20) for _ in range(30_000)])
    rows = [Row(isl=10, osl=2, arrive_s=float(at)) for at in times]
    run = simulate(mixed(), trace(*rows))
    s = run.series
    assert 5_000 < len(s.time_s) <= 20_001
    assert s.time_s[0] < 1 and s.time_s[-1] == run.duration_s
    assert (np.diff(s.time_s) >= 0).all()
    # The mean over time of thinned rows is that of the requests themselves.
    weights = np.diff(s.time_s, append=run.duration_s)
    present = float(np.sum(run.requests.end_s - run.requests.prefill_start_s)) / run.duration_s
    assert np.average(s.running, weights=weights) == pytest.approx(present, rel=0.03)


def test_a_cache_costs_rows_by_prompt_not_by_block() -> None:
    # 20 sessions share 64 blocks; each adds 100 blocks a turn, three times.
    rows = []
    for turn in range(3):
        for session in range(20):
            own = range(1000 * session + 64, 1000 * session + 164 + 100 * turn)
            ids = [*range(64), *own]
            rows.append(Row(16 * len(ids), 5, 200.0 * turn, ids, session, turn))
    world = mixed(prefix_caching=True, kv_blocks=8001)
    s = build(world, trace(*rows), 0, False, True)
    play_out(s)
    assert s.ranks[0].hits == 16 * sum(len(row.ids) - 100 for row in rows[1:])
    assert s.ranks[0].cached == 64 + 20 * 300
    assert s.ranks[0].segment_next - s.ranks[0].segment_at <= 2 * 20 + 2


def test_hits_of_long_prompts_are_those_of_a_plain_queue_of_blocks() -> None:
    # One request after the other, so that the pool is a list: what is found leaves it, what is
    # needed is taken from its front, and a request gives back its last block first.
    random = Random(0)
    numbers: dict[tuple[int, ...], int] = {}
    usable = 700
    queue: list[int | None] = [None] * usable
    rows, expected = [], []
    prompts: list[tuple[int, ...]] = [()]
    for i in range(400):
        start = random.choice(prompts)
        start = start[: random.randint(0, len(start))] if random.random() < 0.5 else start
        more = tuple(random.randint(0, 2) for _ in range(random.randint(0, 120)))
        prompt = (*start, *more)[:300]
        prompts.append(prompt)
        ids = [numbers.setdefault(prompt[: j + 1], len(numbers)) for j in range(len(prompt))]
        found = next((j for j, name in enumerate(ids) if name not in queue), len(ids))
        for name in ids[:found]:
            queue.remove(name)
        del queue[: len(ids) + 1 - found]
        queue += [None, *reversed(ids)]
        assert len(queue) == usable
        expected.append(16 * found)
        rows.append(Row(16 * len(ids) + 5, 1, 100.0 * i, [*ids, 10**6 + i]))
    world = mixed(prefix_caching=True, kv_blocks=usable + 1, token_budget=2048)
    run = simulate(world, trace(*rows))
    assert run.requests.hit_tokens.tolist() == expected
    assert 0 < sum(expected) < sum(row.isl for row in rows) / 2
