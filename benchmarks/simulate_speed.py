"""How fast `simulate` is: CPU seconds of one process after compilation, the best of five.

    python benchmarks/simulate_speed.py [--mooncake FILE] [--million] [--peer]

Four loads on 8 mixed instances, then a peer on the same machine where it is installed: Dynamo's
replay (`ai-dynamo`) on 10,000 requests of the first load, whole process and loop alone.
"""

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from splitpoint.inputs import traces
from splitpoint.inputs.deployment import Routing
from splitpoint.inputs.trace import Trace
from splitpoint.inputs.traces.synth import preset
from splitpoint.pricing.blocks import Group
from splitpoint.sim import PoolSpec, World, simulate
from splitpoint.timing.curve import StepCurve

INSTANCES = 8
RATE = 20.0
SHARED = Path(__file__).parents[1] / "../shared/traces/mooncake_conversation.jsonl.gz"


def world(routing: Routing, *, blocks: int, block_tokens: int = 16, caching: bool = False) -> World:
    """Eight mixed instances whose steps last about as long as those of a 30B MoE on one GPU:
    8 ms + 20 us a sequence + 24 ns a context token; 130 us a prefill token. Assumed: only the
    number of events matters here."""
    seats, budget = 256, 8192
    n = np.arange(seats + 1, dtype=np.int64)
    curve = StepCurve(
        decode=8_000_000_000 + n * 20_000_000,
        decode_context=np.full(seats + 1, 24_000, np.int64),
        mixed=8_000_000_000 + np.arange(budget + 1, dtype=np.int64) * 130_000_000,
        prefill_pair=1500,
    )
    pool = PoolSpec(
        role="mixed",
        replicas=INSTANCES,
        dp=1,
        kv_blocks=blocks,
        block_tokens=block_tokens,
        groups=(Group(kind="full", layers=48),),
        in_flight=2 * budget,
        max_seqs=seats,
        token_budget=budget,
        prefix_caching=caching,
        curve=curve,
    )
    return World(pools=(pool,), routing=routing)


def poisson(requests: int, rate: float) -> Trace:
    """About 2,000 input and 200 output tokens at Poisson arrivals."""
    random = np.random.default_rng(0)
    return Trace(
        name="poisson",
        arrive_s=np.cumsum(random.exponential(1 / rate, requests)),
        isl=np.maximum(1, random.poisson(2000, requests)).astype(np.int32),
        osl=np.maximum(1, random.poisson(200, requests)).astype(np.int32),
        session=np.arange(requests, dtype=np.int32),
        turn=np.zeros(requests, np.int32),
        think_s=np.zeros(requests),
        block_starts=np.zeros(requests + 1, np.int64),
        block_ids=np.zeros(0, np.int32),
        block_tokens=16,
    )


def best(work: Callable[[], object], runs: int = 5) -> float:
    """The least CPU seconds of `runs` runs."""
    times = []
    for _ in range(runs):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def report(name: str, requests: int, seconds: float, target: int | None = None) -> None:
    """One line: requests per CPU second."""
    wanted = f"  (target {target:,})" if target else ""
    print(f"{name:58} {requests / seconds:>10,.0f} requests/s{wanted}", flush=True)


def dynamo(requests: Trace) -> None:
    """Dynamo's replay on the same trace, if it is installed."""
    if importlib.util.find_spec("dynamo") is None:
        print("Dynamo's replay: not installed (pip install ai-dynamo==1.4.0)")
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        with path.open("w") as out:
            for i in range(len(requests)):
                row = {
                    "timestamp": int(requests.arrive_s[i] * 1000),
                    "input_length": int(requests.isl[i]),
                    "output_length": int(requests.osl[i]),
                    "hash_ids": [i * 1000 + j for j in range(-(-int(requests.isl[i]) // 512))],
                }
                out.write(json.dumps(row) + "\n")
        command = [sys.executable, "-m", "dynamo.replay", str(path)]
        command += ["--num-workers", str(INSTANCES)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        print("Dynamo's replay failed:", done.stderr.strip().splitlines()[-1:])
        return
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    report("Dynamo's replay, whole process", len(requests), seconds)


def whole_process(requests: int) -> float:
    """CPU seconds of a new process that simulates the Poisson load once, compiled code cached."""
    script = (
        "from benchmarks.simulate_speed import *\n"
        f"simulate(world('round_robin', blocks=20_000), poisson({requests}, RATE))\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[1])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Run all loads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mooncake", type=Path, default=SHARED)
    parser.add_argument("--million", action="store_true", help="also one million requests")
    parser.add_argument("--peer", action="store_true", help="also Dynamo's replay")
    options = parser.parse_args()

    ten = poisson(10_000, RATE)
    begin = time.perf_counter()
    simulate(world("round_robin", blocks=20_000), poisson(100, RATE))
    print(f"first run (compiles when nothing is cached): {time.perf_counter() - begin:.1f} s")
    routings: tuple[Routing, ...] = ("round_robin", "least_kv", "prefix_aware")
    for routing in routings:
        setting = world(routing, blocks=20_000)
        seconds = best(lambda setting=setting: simulate(setting, ten))  # type: ignore[misc]
        report(f"10,000 x 2,000/200, Poisson, {routing}", len(ten), seconds, 300_000)

    if options.mooncake.exists():
        mooncake = traces.read(options.mooncake)
        for tokens in (512, 16):
            setting = world(
                "prefix_aware", blocks=1_600_000 // tokens, block_tokens=tokens, caching=True
            )
            seconds = best(lambda setting=setting: simulate(setting, mooncake))  # type: ignore[misc]
            name = f"Mooncake conversation, prefix cache, blocks of {tokens}"
            report(name, len(mooncake), seconds, 100_000)
    else:
        print(f"Mooncake conversation: no file {options.mooncake}")

    agentic = preset("agentic-coding", seed=0)
    setting = world("prefix_aware", blocks=18_000, caching=True)
    seconds = best(lambda: simulate(setting, agentic))
    report("agentic closed loop, prefix cache, blocks of 16", len(agentic), seconds, 10_000)

    if options.million:
        million = poisson(1_000_000, RATE)
        setting = world("round_robin", blocks=20_000)
        short = best(lambda: simulate(setting, ten))
        seconds = best(lambda: simulate(setting, million), runs=1)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
        report("1,000,000 x 2,000/200, Poisson", len(million), seconds)
        print(f"  {seconds / short:.0f} times the 10,000 (target 120), peak {peak:.2f} GiB (1.5)")
    if options.peer:
        report("this package, whole process, 100,000 requests", 100_000, whole_process(100_000))
        dynamo(poisson(100_000, RATE))


if __name__ == "__main__":
    main()
