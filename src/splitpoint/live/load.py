"""Ask a running recipe as its prediction was asked, by vLLM's own client, and read what it saw.

Requests of one fixed length are the client's random prompts; all others are the very requests of
the trace (`timed_trace`), with equal tokens where their prefix ids are equal. A session's turns go
out at their recorded times, because the client knows no think times; the prediction does the same.
"""

import json
import re
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from splitpoint.errors import OutsideError, PlanError, printable
from splitpoint.inputs.plan import DeploymentPlan, read_deployment
from splitpoint.inputs.trace import Trace
from splitpoint.inputs.workload import Workload
from splitpoint.live import launch, program
from splitpoint.live.imports import vllm_bench
from splitpoint.live.imports.foreign import Fields, json_object
from splitpoint.measurement import Measurement
from splitpoint.recipes import bench
from splitpoint.recipes.serving import DEPLOYMENT
from splitpoint.record import Record
from splitpoint.run import Run

Progress = Callable[[str, float], None]

PROBE_S = 10.0
BAR = re.compile(r"\b(\d+)/(\d+) \[")
# Kinds of failures that are told, the most frequent first.
MOST_FAILURES = 3
OPENED = "turns of a session go out at their recorded times, in the prediction too"


class Target(Record, frozen=True, kw_only=True):
    """Where to ask and for what: `model` is what the tokeniser is loaded from."""

    url: str
    model: str
    served_name: str


def asked(
    recipe: Path,
    *,
    trace: Path | None,
    requests: int | None,
    concurrency: int | None,
    rate: float | None,
    url: str | None = None,
) -> DeploymentPlan:
    """The recipe's deployment with the one load to measure it under; `url`: where to ask it, if
    not where the recipe answers."""
    file = recipe / DEPLOYMENT
    if not file.is_file():
        hint = "write the recipe anew with this version: splitpoint recipe PLAN_FOLDER"
        raise PlanError(str(file), "no such file", hint)
    if concurrency is not None and rate is not None:
        raise PlanError("measure", "both --concurrency and --rate", "one of them")
    plan = read_deployment(file)
    workload = plan.workload
    if trace is not None:
        name = str(trace.absolute())
        kept = workload or Workload(trace=name)
        workload = replace(kept, trace=name, format=None, preset=None, isl=None, osl=None)
        if workload.rate is None:
            workload = replace(workload, concurrency=None)
    if workload is None:
        raise PlanError(str(file), "states no workload", "give --trace FILE")
    if concurrency is not None or rate is not None:
        workload = replace(workload, concurrency=concurrency, rate=rate, scale=1.0)
    if requests is not None:
        workload = replace(workload, requests=requests)
    for name in ("concurrency", "rate"):
        if isinstance(loads := getattr(workload, name), tuple):
            if len(loads) > 1:
                what = f"lists several loads: {', '.join(f'{load:g}' for load in loads)}"
                raise PlanError(f"{file}: workload.{name}", what, f"--{name} ONE of them")
            workload = replace(workload, **{name: loads[0]})
    if url is None and not bench.shape(workload) and _behind_sglang_router(plan):
        # Tried with sglang-router 0.3.2: /v1/completions answers 422.
        what = "goes out as token ids, which SGLang's router does not take"
        raise PlanError(f"{file}: workload", what, "--url of one instance, or lengths of one size")
    return replace(plan, workload=_as_sent(workload))


def _behind_sglang_router(plan: DeploymentPlan) -> bool:
    pools = plan.deployment.pools
    return pools[0].engine.name == "sglang" and sum(pool.replicas for pool in pools) > 1


def _as_sent(workload: Workload) -> Workload:
    """The workload without what the client cannot do: turns that wait for an answer and a think
    time, or losing patience. A number of users is a closed loop all the same, without pauses."""
    workload = replace(workload, timeout_s=None, abort_s=None)
    if workload.isl is not None:
        return workload
    if workload.concurrency is not None:
        return replace(workload, think_cap_s=0.0)
    return replace(workload, closed_loop=False)


def target(stated: launch.Settings, url: str | None, folder: Path) -> Target:
    """The recipe's endpoint or another address, once it answers; the model by the name that is
    served there."""
    at = (url or stated.endpoint).rstrip("/")
    try:
        with urllib.request.urlopen(f"{at}/v1/models", timeout=PROBE_S) as answer:
            names = [model["id"] for model in json.load(answer)["data"]]
    except urllib.error.HTTPError:
        names = []  # it answers, and a router need not know its models
    except ValueError as error:
        raise PlanError("--url", f"{at!r}: {error}", "such as http://127.0.0.1:8000") from None
    except (OSError, KeyError, TypeError) as error:
        hint = "" if url else f" (splitpoint up {folder} starts it)"
        reason = getattr(error, "reason", error)
        raise OutsideError(f"{at}: no engine answers: {reason}{hint}") from None
    served = stated.served_name if stated.served_name in names or not names else names[0]
    return Target(url=at, model=stated.model, served_name=served)


def measured(
    at: Target, plan: DeploymentPlan, trace: Trace, *, seed: int, name: str, progress: Progress
) -> Measurement:
    """What the client saw of the load, every request of it; `seed` is that of random prompts."""
    assert plan.workload is not None
    with tempfile.TemporaryDirectory(prefix="splitpoint-") as scratch:
        folder = Path(scratch)
        words = _load(plan.workload, trace, folder / "requests.jsonl", seed)
        figures = bench.figures(plan.slo) if plan.slo else ()
        ended = program.run(
            [
                *("vllm", "bench", "serve", "--base-url", at.url, "--model", at.model),
                *("--served-model-name", at.served_name, "--ignore-eos"),
                *_words(words),
                *_words(figures),
                *("--save-result", "--save-detailed"),
                *("--result-dir", scratch, "--result-filename", "result.json"),
            ],
            hear=lambda line: _heard(line, len(trace), progress),
        )
        result = folder / "result.json"
        if ended.code or not result.is_file():
            raise OutsideError(f"vllm bench serve failed: {launch.cause(ended.lines, 'client')}")
        found = _read(result, name)
    conditions = (
        f"measured at {at.url}: {at.served_name} on {plan.deployment}",
        f"vllm bench serve {' '.join(words)}".replace(f"{scratch}/", ""),
        *found.notes,
        *([OPENED] if not trace.closed and bool((trace.turn > 0).any()) else []),
    )
    gpus = plan.deployment.gpus
    run = replace(run_of(found), name=name, gpus=gpus, notes=conditions)
    return replace(found, gpus=gpus, notes=conditions, run=run)


def run_of(found: Measurement) -> Run:
    """Every request of what was measured."""
    assert found.run is not None
    return found.run


def _load(workload: Workload, trace: Trace, file: Path, seed: int) -> tuple[str, ...]:
    """The client's options for the requests and their arrivals. Every user warms up once."""
    warm = f"--num-warmups {workload.concurrency or 1}"
    if shape := bench.shape(workload):
        return (*shape, *bench.loads(workload)[0], f"--seed {seed}", warm)
    file.write_text("".join(_lines(trace)))
    words = (
        f"--dataset-name timed_trace --dataset-path {file}",
        f"--timed-trace-chunk-hash-size {trace.block_tokens}",
        f"--num-prompts {len(trace)}",
        warm,
    )
    if workload.concurrency is None:
        return words
    return (*words, "--no-self-timed", f"--max-concurrency {workload.concurrency}")


def _lines(trace: Trace) -> Sequence[str]:
    """JSON lines, times in seconds; a request without prefix ids gets some of its own."""
    starts, ids = trace.block_starts.tolist(), trace.block_ids.tolist()
    begin = float(trace.arrive_s[0])
    blocks = -(-trace.isl // trace.block_tokens)
    own = (np.cumsum(blocks) - blocks).tolist()
    return [
        json.dumps(
            {
                "timestamp": float(trace.arrive_s[row]) - begin,
                "input_length": int(trace.isl[row]),
                "output_length": int(trace.osl[row]),
                "hash_ids": ids[starts[row] : starts[row + 1]]
                or list(range(own[row], own[row] + int(blocks[row]))),
            }
        )
        + "\n"
        for row in range(len(trace))
    ]


def _words(options: Sequence[str]) -> list[str]:
    return [word for option in options for word in option.split()]


def _heard(line: str, requests: int, progress: Progress) -> None:
    bar = BAR.search(line)
    if bar and int(bar[2]) == requests:
        progress(f"{bar[1]} of {requests} requests", int(bar[1]) / requests)


def _read(result: Path, name: str) -> Measurement:
    fields = json_object(result)
    assert isinstance(fields, Fields)
    failures = Counter(
        printable(error.strip().splitlines()[-1])[:200]
        for error in (fields.words("errors") if "errors" in fields else ())
        if error.strip()
    )
    told = tuple(
        f"{count:,} requests failed: {words}"
        for words, count in failures.most_common(MOST_FAILURES)
    )
    if not fields.count("completed"):
        raise OutsideError(f"no request finished; {told[0] if told else 'no error is told'}")
    try:
        found = vllm_bench.measurement(fields, name)
    except PlanError as error:
        raise OutsideError(f"vllm bench serve: its result does not read: {error}") from None
    if found.run is None:
        raise OutsideError("vllm bench serve tells no single requests: 0.11 or later does")
    return replace(found, notes=told)
