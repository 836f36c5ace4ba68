"""How fast `simulate` is: CPU seconds of one process after compilation, the best of five.

    python -m benchmarks.simulate_speed [--mooncake FILE] [--peer PYTHON]

The compilation, loads on 8 mixed instances, a split deployment with a tight decode pool, and two
peers on the same machine where they are installed: Dynamo's replay (`ai-dynamo`) on the same trace
file, and `vllm-sr-sim`, which takes a distribution of lengths instead of a trace. PYTHON is the
interpreter that has them, so that they need not live beside this package. CPU time is read, but
on a machine whose cores are shared it still grows by half or more: the load is printed.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from benchmarks.worlds import INSTANCES, world
from splitpoint import metrics
from splitpoint.inputs import traces
from splitpoint.inputs.routing import Routing
from splitpoint.inputs.trace import Trace, unshared
from splitpoint.inputs.traces.synth import preset
from splitpoint.run import OUTCOMES
from splitpoint.sim import World, simulate
from splitpoint.timing.path import LinkSpec

RATE = 20.0
NO_BYTE_CODE = "PYTHONDONTWRITEBYTECODE"
ROOT = Path(__file__).parents[1]
SHARED = ROOT / "../shared/traces/mooncake_conversation.jsonl.gz"


def poisson(requests: int, rate: float, output: int = 200) -> Trace:
    """About 2,000 input and `output` output tokens at Poisson arrivals."""
    random = np.random.default_rng(0)
    return unshared(
        np.cumsum(random.exponential(1 / rate, requests)),
        np.maximum(1, random.poisson(2000, requests)),
        np.maximum(1, random.poisson(output, requests)),
        name="poisson",
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


def children(
    command: list[str], folder: Path, environment: dict[str, str] | None = None
) -> tuple[float, str]:
    """CPU seconds of one process on one core and what it printed; a failure raises
    CalledProcessError. Byte code is kept, as where a package is installed."""
    kept = {name: value for name, value in os.environ.items() if name != NO_BYTE_CODE}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with on_one_core():
        done = subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            cwd=folder,
            env={**kept, **(environment or {})},
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, done.stdout


@contextmanager
def on_one_core() -> Iterator[None]:
    """Keep what this process starts to one core, where the system can: pools of threads that only
    wait for work (of BLAS, of a runtime) then cost neither side anything. Set here and inherited:
    code between fork and exec would copy this process, which holds traces, at a child's cost."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def has(python: str, module: str) -> bool:
    """Whether that interpreter finds a module."""
    code = f"import importlib.util as u; raise SystemExit(u.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def write_mooncake(requests: Trace, path: Path) -> None:
    """The requests as a Mooncake trace, every block its own."""
    with path.open("w") as out:
        for i in range(len(requests)):
            row = {
                "timestamp": int(requests.arrive_s[i] * 1000),
                "input_length": int(requests.isl[i]),
                "output_length": int(requests.osl[i]),
                "hash_ids": [i * 1000 + j for j in range(-(-int(requests.isl[i]) // 512))],
            }
            out.write(json.dumps(row) + "\n")


# The deployment that the command simulates: as many instances, and its step times are baked first.
DEPLOYMENT = f"""
model = "Qwen/Qwen3-30B-A3B"
gpu = "H100 SXM"
routing = "round_robin"
[[pools]]
role = "mixed"
replicas = {INSTANCES}
"""

# Does as the peer does: reads the trace file, simulates it with the prefix cache on and prints
# latencies, in a process with the settings of the command's own.
OURS = """
import sys
from splitpoint.process import settle
settle()
from pathlib import Path
from benchmarks.worlds import world
from splitpoint import metrics
from splitpoint.inputs import traces
from splitpoint.sim import simulate
trace = traces.read(Path(sys.argv[1]))
run = simulate(world("round_robin", blocks=20_000, caching=True), trace)
for each in (metrics.ttft, metrics.tpot, metrics.e2el):
    print(metrics.percentiles(each(run), (50, 90, 99)))
"""


def against_peers(python: str, requests: int, runs: int) -> None:
    """Whole processes, the best of `runs` each, and the loops alone. They take turns, because a
    machine with other users is slower in one minute than in the next."""
    trace = poisson(requests, RATE)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "trace.jsonl"
        write_mooncake(trace, path)
        deployment = Path(scratch) / "deployment.toml"
        deployment.write_text(DEPLOYMENT)
        start = [sys.executable, "-c", "from splitpoint.cli import main; main()", "simulate"]
        start += [str(deployment), "--trace", str(path)]
        # Ours run in the repository, so that the script finds this file.
        this, whole, dynamo = (
            "this package",
            "`splitpoint simulate` with its bake",
            "Dynamo's replay",
        )
        commands = {
            this: ([sys.executable, "-c", OURS, str(path)], ROOT),
            whole: (start, ROOT),
        }
        if has(python, "dynamo"):
            command = [python, "-m", "dynamo.replay", str(path), "--num-workers", str(INSTANCES)]
            commands[dynamo] = (command, Path(scratch))
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        printed: dict[str, list[str]] = {name: [] for name in commands}
        for _ in range(runs):
            for name, (command, folder) in commands.items():
                took, text = children(command, folder)
                seconds[name].append(took)
                printed[name].append(text)
        for name, each in seconds.items():
            report(f"{name}, process, {requests:,} of a file", requests, min(each))
        ours = min(seconds[this])
        if dynamo in seconds:
            theirs = min(seconds[dynamo])
            print(f"  {theirs / ours:.0f} times this package's CPU time (target 50)")
            print(f"  {theirs / min(seconds[whole]):.0f} times that of `splitpoint simulate`")
            walls = [re.search(r"Wall Time \(ms\): ([\d,.]+)", text) for text in printed[dynamo]]
            loops = [float(m[1].replace(",", "")) / 1000 for m in walls if m]
            if loops:
                setting = world("round_robin", blocks=20_000, caching=True)
                read = traces.read(path)
                loop = best(lambda: simulate(setting, read))
                # Its clock is a wall clock: where cores are shared, its CPU time is the bound.
                alone = min(*loops, theirs)
                print(f"  loop alone: {alone / loop:.0f} times (target 20)")
        else:
            print("Dynamo's replay: not installed (pip install ai-dynamo==1.4.0)")
        if has(python, "fleet_sim"):
            cdf = Path(scratch) / "lengths.json"
            # Prompt and output together, as its distributions count; about 2,200 tokens.
            cdf.write_text(json.dumps([[2100, 0.1], [2200, 0.5], [2300, 1.0]]))
            command = [str(Path(python).parent / "vllm-sr-sim"), "simulate", "--cdf", str(cdf)]
            command += ["--lam", str(RATE), "--n-s", str(INSTANCES), "--n-l", "1"]
            command += ["--n-req", str(requests)]
            theirs = min(children(command, Path(scratch))[0] for _ in range(runs))
            report("vllm-sr-sim, whole process, lengths drawn", requests, theirs)
            print(f"  {theirs / ours:.1f} times this package's CPU time")
        else:
            print("vllm-sr-sim: not installed (pip install vllm-sr-sim)")


def split_world(decode_blocks: int) -> World:
    """Four prefill instances and one decode instance of the first load's speed; 100 GB/s and
    98 kB a token between them (assumed: only the number of events matters here)."""
    mixed = world("round_robin", blocks=20_000).pools[0]
    prefill = replace(mixed, role="prefill", replicas=4)
    decode = replace(mixed, role="decode", replicas=1, kv_blocks=decode_blocks)
    link = LinkSpec(bandwidth=1e11, latency=1e-3, bytes_per_token=98304.0, fixed_bytes=0.0)
    return World(pools=(prefill, decode), routing="round_robin", link=link)


def overload() -> None:
    """3,000 requests on 4P1D whose decode pool holds 76,800 tokens, against one with room; and
    with clients that give up, whose failures stand beside the latencies of those served."""
    requests = poisson(3000, 12.0, output=600)
    tight = split_world(76_800 // 16 + 1)
    settings = {
        "decode pool with room": split_world(200_001),
        "decode pool of 76.8k tokens": tight,
        "the same, time-out of 30 s": replace(tight, timeout_s=30.0),
    }
    seconds = []
    for name, setting in settings.items():
        run = simulate(setting, requests)
        seconds.append(best(lambda setting=setting: simulate(setting, requests)))  # type: ignore[misc]
        report(f"4P1D, 3,000 x 2,000/600, {name}", len(requests), seconds[-1])
        ends = np.bincount(run.requests.outcome, minlength=len(OUTCOMES))
        counted = ", ".join(f"{n:,} {o}" for o, n in zip(OUTCOMES, ends, strict=True) if n)
        ttft = metrics.percentile(metrics.ttft(run), 50)
        held = run.series.held / run.instances.kv_blocks[run.series.instance]
        print(
            f"  {counted} of {ends.sum():,}; TTFT p50 {ttft:.1f} s of those done; prefill KV held "
            f"for the decode side: up to {held.max():.0%} of a pool; "
            f"{run.requests.preemptions.sum():,} preemptions; notes {run.notes}"
        )
    slower = max(seconds[1:]) / seconds[0]
    print(f"  overloaded {slower:.1f} times the CPU time of the first (target 3)")


FIRST = """
import time
from benchmarks.simulate_speed import RATE, poisson, simulate
from benchmarks.worlds import world
begin = time.process_time()
simulate(world("round_robin", blocks=20_000), poisson(100, RATE))
print(time.process_time() - begin)
"""

MILLION = """
import resource, time
from benchmarks.simulate_speed import RATE, best, poisson, simulate
from benchmarks.worlds import world
setting = world("round_robin", blocks=20_000)
ten = poisson(10_000, RATE)
short = best(lambda: simulate(setting, ten))
million = poisson(1_000_000, RATE)
seconds = best(lambda: simulate(setting, million))
print(seconds, seconds / short, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2)
"""


def printed_by(script: str, environment: dict[str, str] | None = None) -> list[float]:
    """The numbers that a fresh process prints."""
    _, text = children([sys.executable, "-c", script], ROOT, environment)
    return [float(word) for word in text.split()]


def main() -> None:
    """Run all loads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mooncake", type=Path, default=SHARED)
    parser.add_argument("--peer", default=sys.executable, help="the interpreter with the peers")
    options = parser.parse_args()

    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} as this begins")
    with tempfile.TemporaryDirectory() as scratch:
        kept = {"XDG_CACHE_HOME": scratch}
        first, later = printed_by(FIRST, kept)[0], printed_by(FIRST, kept)[0]
    print(f"first run with nothing kept, compiling: {first:.1f} CPU s (target 20)")
    print(f"first run of a later process: {later:.2f} CPU s")

    ten = poisson(10_000, RATE)
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

    seconds, times, peak = printed_by(MILLION)
    report("1,000,000 x 2,000/200, Poisson, round_robin", 1_000_000, seconds)
    print(f"  {times:.0f} times the 10,000 (target 120), peak {peak:.2f} GiB (target 1.5)")
    overload()
    against_peers(options.peer, 100_000, runs=5)


if __name__ == "__main__":
    main()
