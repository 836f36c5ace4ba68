"""What a world must be, and that compiled and interpreted kernels are one program."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.trace import Trace
from splitpoint.run import DONE
from splitpoint.sim import World, simulate
from splitpoint.timing.curve import StepCurve, Together
from tests.sim.small import FULL, STATE, Row, curve, mixed, pool, split, trace

ONE = trace(Row(isl=10, osl=2))


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"replicas": 0}, "replicas"),
        ({"dp": 0}, "dp"),
        ({"block_tokens": 0}, "block_tokens"),
        ({"max_seqs": 0}, "max_seqs"),
        ({"token_budget": 0}, "token_budget"),
        ({"kv_blocks": -1}, "world.pools[mixed]"),
        ({"groups": ()}, "groups"),
        ({"token_budget": 4000}, "curve.mixed"),
        ({"max_seqs": 500, "token_budget": 600}, "curve.decode"),
        ({"acceptance": (1.5,)}, "acceptance"),
        ({"curve": curve(drafts=64)}, "token_budget"),
        ({"groups": (FULL, STATE), "prefix_caching": True, "token_budget": 8}, "token_budget"),
        ({"batches_in_flight": 3}, "batches_in_flight"),
        ({"kv_blocks": 2**31}, "kv_blocks"),
        ({"ranks": "nobody"}, "ranks"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(PlanError) as error:
        simulate(mixed(**changes), ONE)
    assert where in error.value.where


def test_pools_come_as_one_mixed_or_as_a_pair_with_a_link() -> None:
    for pools in ((), (pool(), pool()), (pool(role="prefill"),)):
        with pytest.raises(PlanError, match="one mixed pool"):
            simulate(World(pools=pools, routing="random"), ONE)
    pair = (pool(role="prefill"), pool(role="decode"))
    with pytest.raises(PlanError, match="without a link"):
        simulate(World(pools=pair, routing="random"), ONE)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e9])
def test_times_of_a_trace_must_fit_the_clock(value: float) -> None:
    with pytest.raises(PlanError) as error:
        simulate(mixed(), trace(Row(isl=10, osl=2, arrive_s=value)))
    assert error.value.where == "trace.arrive_s[0]"


def test_lengths_must_be_positive() -> None:
    for row, where in ((Row(isl=0, osl=1), "trace.isl[0]"), (Row(isl=1, osl=0), "trace.osl[0]")):
        with pytest.raises(PlanError) as error:
            simulate(mixed(), trace(row))
        assert error.value.where == where


@pytest.mark.parametrize("field", ["latency", "bytes_per_token", "per_descriptor", "lease_s"])
def test_a_link_needs_finite_numbers(field: str) -> None:
    with pytest.raises(PlanError) as error:
        simulate(split(link={field: float("nan")}), ONE)
    assert field in error.value.where


@pytest.mark.parametrize(("field", "value"), [("latency", 1e7), ("bandwidth", float("inf"))])
def test_a_link_that_the_clock_cannot_count_is_refused(field: str, value: float) -> None:
    with pytest.raises(PlanError) as error:
        simulate(split(link={field: value}), ONE)
    assert error.value.where == f"world.link.{field}"


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"routing": "nearest"}, "world.routing"),
        ({"decode_routing": "nearest"}, "world.decode_routing"),
        ({"front_token_s": 1e6}, "world.front_token_s"),
    ],
)
def test_a_world_that_cannot_be_is_refused(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(PlanError) as error:
        simulate(split(**changes), ONE)
    assert error.value.where == where


def test_a_seed_is_not_negative() -> None:
    with pytest.raises(PlanError, match="seed: -1"):
        simulate(mixed(), ONE, seed=-1)


HOURS = trace(*(Row(isl=500, osl=20) for _ in range(60)))


@pytest.mark.parametrize(
    ("world", "requests", "done"),
    [
        (split(link={"bandwidth": 1e-9}), ONE, 0),
        # 5e5 s each, one behind the other.
        (split(link={"bandwidth": 1e-3}), HOURS, 18),
        (split(link={"bytes_per_token": 1e30}), ONE, 0),
        # Prompts of 500 tokens of 1,000 s, or one answer of 2^31 steps of 10 ms.
        (mixed(max_seqs=1, curve=curve(token_ms=10**6)), HOURS, 18),
        (mixed(kv_blocks=2**31 - 1), trace(Row(isl=1, osl=2**31 - 1)), 0),
    ],
)
def test_what_lasts_longer_than_the_clock_is_left_unfinished(
    world: World, requests: Trace, done: int
) -> None:
    run = simulate(world, requests)
    ended = run.requests.outcome == DONE
    assert np.count_nonzero(ended) == done
    assert (run.requests.end_s[ended] >= run.requests.first_token_s[ended]).all()
    assert (np.diff(run.series.time_s) >= 0).all()
    left = len(requests) - done
    assert run.notes == (f"{left} requests were left unfinished: the clock's 106 days were over",)


def test_negative_step_times_are_refused() -> None:
    bad = StepCurve(
        decode=np.full(129, -1, np.int64),
        decode_context=np.zeros(129, np.int64),
        mixed=np.zeros(1025, np.int64),
        prefill_pair=0,
    )
    with pytest.raises(PlanError, match="negative time"):
        simulate(mixed(curve=bad), ONE)


def test_work_done_together_is_a_part_of_the_step() -> None:
    whole = replace(curve(), together=Together(work=curve().mixed))
    with pytest.raises(PlanError, match="as long as the whole step"):
        simulate(mixed(curve=whole), ONE)
    short = replace(curve(), together=Together(work=np.zeros(3, np.int64)))
    with pytest.raises(PlanError, match="3 entries"):
        simulate(mixed(curve=short), ONE)


def test_steps_that_take_no_time_are_refused() -> None:
    with pytest.raises(PlanError, match="takes no time"):
        simulate(mixed(curve=curve(decode_ms=0)), ONE)
    with pytest.raises(PlanError, match="takes no time"):
        simulate(mixed(curve=curve(token_ms=0)), ONE)


def test_interpreted_kernels_give_the_same_run() -> None:
    script = (
        "from tests.oracle import compare, worlds\n"
        "from random import Random\n"
        "import hashlib\n"
        "digest = hashlib.sha256()\n"
        "for seed in range(12):\n"
        "    random = Random(seed)\n"
        "    run = compare.simulated(worlds.world(random), worlds.trace(random), seed, True)\n"
        "    for part in (run.requests, run.instances, run.series):\n"
        "        for name in part.__struct_fields__:\n"
        "            digest.update(getattr(part, name).tobytes())\n"
        "print(digest.hexdigest())\n"
    )
    path = os.pathsep.join(sys.path)
    digests = []
    for disabled in ("0", "1"):
        out = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "NUMBA_DISABLE_JIT": disabled, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.append(out.stdout)
    assert digests[0] == digests[1]


def test_kernels_count_no_index_from_the_end_and_divide_by_no_zero() -> None:
    path = os.pathsep.join(sys.path)
    out = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.sim.strict"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == "played"


def printed(script: str, **environment: str) -> str:
    """What a fresh process prints."""
    path = os.pathsep.join(sys.path)
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "NUMBA_DISABLE_JIT": "0", "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def test_a_process_that_finds_machine_code_imports_no_compiler() -> None:
    simulate(mixed(), ONE)  # compiles, where nothing is kept yet
    script = (
        "import sys\n"
        "from splitpoint.sim import simulate\n"
        "from tests.sim.test_worlds import ONE, mixed\n"
        "print(simulate(mixed(), ONE).requests.end_s, 'numba' in sys.modules)\n"
    )
    assert printed(script) == f"{simulate(mixed(), ONE).requests.end_s} False"


def test_machine_code_that_cannot_be_kept_is_made_in_each_process() -> None:
    script = (
        "import numpy as np\n"
        "from splitpoint.sim.draws import rates\n"
        "print(rates(0, np.full(5, 40, np.int64), 2, (0.7, 0.5)).tolist())\n"
    )
    kept = printed(script)
    assert printed(script, XDG_CACHE_HOME=os.devnull) == kept
    assert printed(script, NUMBA_DISABLE_JIT="1") == kept
