"""Hits, retractions, first tokens and ends, request by request, beside SGLang's own scheduler.

SGLANG_LAB names a folder with `venv/bin/python`, which imports SGLang 0.5.23 on a CPU, and
`models/tiny-qwen3`, as shared/vllm-cpu makes it. Sessions whose prompts begin with one of two heads
and grow by output and new tokens, on one instance whose steps last 1 ms and 3 us for each token of
those with prefill: times tell what every step held.
"""

import json
import os
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from splitpoint.inputs.trace import Trace
from splitpoint.pricing.layout import Group
from splitpoint.sim import PoolSpec, World, simulate
from splitpoint.sim.world import Reserve
from splitpoint.timing.curve import StepCurve
from validate.test_windows import sessions

LAB = Path(os.environ.get("SGLANG_LAB", "absent"))
DRIVER = Path(__file__).with_name("sglang_scheduler.py")
COLUMNS = ("hits", "firsts", "ends", "preemptions")
# Room of a pool in the longest requests; with 30 nothing is evicted, with 1.5 two rarely fit.
ROOMS = (30, 6, 2.5, 1.5)
SETTINGS: dict[str, dict[str, Any]] = {
    "fcfs": {},
    "lpm": {"policy": "lpm"},
    "mixed chunks": {"mixed": True},
    "conservativeness 0.3": {"conservativeness": 0.3},
    "chunks of 256": {"budget": 256},
}


def case(seed: int, room: float, page: int, overlap: bool, **changes: Any) -> dict[str, Any]:
    """A pool with room for so many of the longest requests."""
    rows = sessions(Random(seed), 60, 64, 60, 60)
    longest = max(len(row["prompt"]) + len(row["output"]) for row in rows)
    return {
        "tokens": -(-int(longest * room) // page) * page,
        "page": page,
        "seats": 8,
        "budget": 64,
        "input_budget": 16384,
        "policy": "fcfs",
        "conservativeness": 1.0,
        "mixed": False,
        "overlap": overlap,
        "ignore_eos": False,
        "step": 1000,
        "token": 3,
        "requests": rows,
        **changes,
    }


def simulated(case: dict[str, Any]) -> dict[str, list[int]]:
    """What every request finds, and when it has tokens (microseconds), here."""
    seats, budget, page = case["seats"], case["budget"], case["page"]
    step, token = case["step"] * 10**6, case["token"] * 10**6
    first = min(0.7 * case["conservativeness"], 1.0)
    pool = PoolSpec(
        role="mixed",
        replicas=1,
        dp=1,
        kv_blocks=case["tokens"] // page + 1,
        block_tokens=page,
        groups=(Group(kind="full", layers=1),),
        in_flight=budget,
        max_seqs=seats,
        token_budget=budget,
        prefix_caching=True,
        curve=StepCurve(
            decode=np.full(seats + 1, step),
            decode_context=np.zeros(seats + 1, np.int64),
            mixed=step + token * np.arange(budget + 1),
            prefill_pair=0,
        ),
        batches_in_flight=2 if case["overlap"] else 1,
        reserve=Reserve(
            first=first,
            least=0.14 * first,
            longest_first=case["policy"] == "lpm",
            mixed=case["mixed"],
        ),
    )
    rows = case["requests"]
    lengths = [len(row["prompt"]) for row in rows]
    trace = Trace(
        name="sessions",
        arrive_s=np.array([row["arrive"] * 1e-6 for row in rows]),
        isl=np.array(lengths, np.int32),
        osl=np.array([len(row["output"]) for row in rows], np.int32),
        session=np.array([row["session"] for row in rows], np.int32),
        turn=np.array([row["turn"] for row in rows], np.int32),
        think_s=np.array([row["think"] * 1e-6 * (row["turn"] > 0) for row in rows]),
        block_starts=np.cumsum([0, *lengths]).astype(np.int64),
        block_ids=np.array([token for row in rows for token in row["prompt"]], np.int32),
        block_tokens=1,
        closed=True,
    )
    requests = simulate(World(pools=(pool,), routing="round_robin"), trace).requests
    return {
        "hits": requests.hit_tokens.tolist(),
        "firsts": np.rint(requests.first_token_s * 1e6).astype(int).tolist(),
        "ends": np.rint(requests.end_s * 1e6).astype(int).tolist(),
        "preemptions": requests.preemptions.tolist(),
    }


def real(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What SGLang's scheduler does with the same; all of one page and kind of loop."""
    python = LAB / "venv/bin/python"
    model = LAB / "models/tiny-qwen3"
    if not (python.exists() and model.exists()):
        pytest.skip("SGLANG_LAB names no folder with SGLang")
    # A path for this package's modules would hide the lab's.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(
        [python, DRIVER, model],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    answer: list[dict[str, Any]] = json.loads(run.stdout)
    return answer


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("overlap", [False, True])
def test_requests_do_what_they_do_on_sglangs_scheduler(page: int, overlap: bool) -> None:
    names = [(name, room) for name in SETTINGS for room in ROOMS]
    cases = [
        case(seed, room, page, overlap, **SETTINGS[name]) for seed, (name, room) in enumerate(names)
    ]
    requests = lost = 0
    for made, name, sglang in zip(cases, names, real(cases), strict=True):
        ours = simulated(made)
        for column in COLUMNS:
            assert ours[column] == sglang[column], (name, column)
        requests += len(ours["hits"])
        lost += sum(sglang["preemptions"])
    print(f"{requests} requests and {lost} retractions are the same")
    assert lost >= 3
