"""Hit tokens of full, window and state groups, request by request, beside vLLM's scheduler.

VLLM_LAB names a folder with `venv/bin/python`, which has vLLM 0.32, and `models/tiny-qwen3`, as
shared/vllm-cpu makes it. Sessions whose prompts begin with one of two heads and grow by output and
new tokens, on one instance whose steps all last as long.
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
from splitpoint.timing.curve import StepCurve

LAB = Path(os.environ.get("VLLM_LAB", "absent"))
STATE = -1
DRIVER = Path(__file__).with_name("vllm_scheduler.py")


def sessions(
    random: Random, count: int, head: int, fresh: int, output: int
) -> list[dict[str, Any]]:
    """Requests of `count` sessions: token ids, and which one each follows."""
    rows: list[dict[str, Any]] = []
    heads = [[random.randrange(1, 2000) for _ in range(head)] for _ in range(2)]
    arrive = 0
    for session in range(count):
        prompt = random.choice(heads)[: random.choice([head, head, head // 2])]
        arrive += random.randint(0, 300) * 10 + 1
        after = -1
        for turn in range(random.randint(1, 5)):
            prompt = prompt + [random.randrange(1, 2000) for _ in range(random.randint(1, fresh))]
            out = [random.randrange(1, 2000) for _ in range(random.randint(1, output))]
            rows.append(
                {
                    "prompt": prompt,
                    "output": out,
                    "after": after,
                    "arrive": arrive,
                    "think": random.randint(1, 50) * 100 + 7,
                    "session": session,
                    "turn": turn,
                }
            )
            after = len(rows) - 1
            prompt = prompt + out
    return rows


def blocks_of(tokens: int, window: int) -> int:
    """About the blocks of a request in one group."""
    if window == STATE:
        return 2
    return -(-min(tokens, window) // 16) + 2 if window else -(-tokens // 16)


def group(window: int) -> Group:
    """A group of one layer, as vLLM's driver takes it."""
    if window == STATE:
        return Group(kind="state", layers=1, fixed=2)
    return Group(kind="window", layers=1, window=window) if window else Group(kind="full", layers=1)


def case(seed: int, windows: list[int], room: float, long: bool) -> dict[str, Any]:
    """A pool with room for so many of the longest requests beside one step's chunk."""
    random = Random(seed)
    rows = sessions(random, 60, *((2000, 1500, 600) if long else (64, 60, 60)))
    longest = max(len(row["prompt"]) + len(row["output"]) for row in rows)
    budget = 2048 if long else 128
    each = sum(blocks_of(longest, window) for window in windows)
    return {
        "windows": windows,
        "block": 16,
        "blocks": int(each * room) + budget // 16 * (len(windows) - 1),
        "seats": 8,
        "budget": budget,
        "longest": 32768,
        "step": 20_000 if long else 1000,
        "requests": rows,
    }


def simulated(
    case: dict[str, Any], tails: bool = True, states: bool = True
) -> tuple[list[int], list[int]]:
    """Hit tokens and end (microseconds) of every request here."""
    rows = case["requests"]
    step = case["step"] * 10**6
    pool = PoolSpec(
        role="mixed",
        replicas=1,
        dp=1,
        kv_blocks=case["blocks"],
        block_tokens=case["block"],
        groups=tuple(group(window) for window in case["windows"]),
        in_flight=case["budget"],
        max_seqs=case["seats"],
        token_budget=case["budget"],
        prefix_caching=True,
        curve=StepCurve(
            decode=np.full(case["seats"] + 1, step),
            decode_context=np.zeros(case["seats"] + 1, np.int64),
            mixed=np.full(case["budget"] + 1, step),
            prefill_pair=0,
        ),
        tails=tails,
        nameless_first=True,
        states=states,
    )
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
    ends = np.rint(requests.end_s * 1e6).astype(int)
    return requests.hit_tokens.tolist(), ends.tolist()


def real(cases: list[dict[str, Any]]) -> list[dict[str, list[int]]]:
    """What vLLM's scheduler does with the same."""
    python = LAB / "venv/bin/python"
    model = LAB / "models/tiny-qwen3"
    if not (python.exists() and model.exists()):
        pytest.skip("VLLM_LAB names no folder with vLLM")
    run = subprocess.run(
        [python, DRIVER, model], input=json.dumps(cases), capture_output=True, text=True, check=True
    )
    answer: list[dict[str, list[int]]] = json.loads(run.stdout)
    return answer


def test_requests_find_the_tokens_that_they_find_in_vllm_where_the_pool_has_room() -> None:
    gemma, gpt_oss = [1024] * 5 + [0], [128, 0]
    cases = [
        *(case(seed, [32, 0], 8, long=False) for seed in range(3)),
        *(case(seed, [32] * 5 + [0], 8, long=False) for seed in range(3)),
        *(case(seed, gpt_oss, 12, long=True) for seed in range(2)),
        *(case(seed, gemma, 16, long=True) for seed in range(2)),
    ]
    requests = different = 0
    for made, vllm in zip(cases, real(cases), strict=True):
        hits, ends = simulated(made)
        assert sum(hits) > 0
        assert sum(hits) == pytest.approx(sum(vllm["hits"]), rel=0.01)
        assert max(ends) == pytest.approx(max(vllm["ends"]), rel=0.005)
        requests += len(hits)
        different += sum(ours != theirs for ours, theirs in zip(hits, vllm["hits"], strict=True))
    print(f"{different} of {requests} requests find another number of tokens")
    # Its windows hold a block more than vLLM's at most times, so the last block to go differs.
    assert different < 0.01 * requests


def test_full_attention_alone_finds_what_it_finds_in_vllm() -> None:
    rooms = ((3, False), (4, False), (6, False), (3, True), (6, True))
    cases = [case(seed, [0], room, long=long) for room, long in rooms for seed in range(2)]
    for made, vllm in zip(cases, real(cases), strict=True):
        assert simulated(made) == (vllm["hits"], vllm["ends"])


def test_hybrids_find_the_tokens_that_they_find_in_vllm() -> None:
    hybrid = [STATE, STATE, STATE, 0]
    long = [case(seed, hybrid, room, long=True) for room in (12, 6) for seed in range(2)]
    short = [
        case(seed, layout, room, long=False)
        for layout in ([STATE, 0], hybrid)
        for room in (12, 6)
        for seed in range(2)
    ]
    for made, vllm in zip(long, real(long), strict=True):
        assert simulated(made) == (vllm["hits"], vllm["ends"])
    requests = different = 0
    for made, vllm in zip(short, real(short), strict=True):
        hits, ends = simulated(made)
        assert max(ends) == pytest.approx(max(vllm["ends"]), rel=0.005)
        requests += len(hits)
        different += sum(ours != theirs for ours, theirs in zip(hits, vllm["hits"], strict=True))
    print(f"{different} of {requests} requests find another number of tokens")
    # Decodes hold a state more in vLLM in the step in which they come to a new block.
    assert different < 0.015 * requests


def test_in_a_full_pool_hybrids_hit_about_as_much() -> None:
    hybrid = [STATE, STATE, STATE, 0]
    cases = [case(seed, hybrid, 3, long=long) for long in (True, False) for seed in range(2)]
    ours = theirs = without = tokens = 0
    for made, vllm in zip(cases, real(cases), strict=True):
        ours += sum(simulated(made)[0])
        without += sum(simulated(made, states=False)[0])
        theirs += sum(vllm["hits"])
        tokens += sum(len(row["prompt"]) for row in made["requests"])
    print(f"hit share: vLLM {theirs / tokens:.4f}, here {ours / tokens:.4f}")
    print(f"with states wherever full blocks are {without / tokens:.4f}")
    assert abs(ours - theirs) < 0.02 * tokens
    assert without - theirs > 0.05 * tokens


def test_in_a_full_pool_the_hit_share_is_near_and_without_tails_it_is_not() -> None:
    cases = [case(seed, [1024] * 5 + [0], 4, long=True) for seed in range(2)]
    cases += [case(seed, [128, 0], 4, long=True) for seed in range(2)]
    ours = theirs = without = tokens = 0
    for made, vllm in zip(cases, real(cases), strict=True):
        ours += sum(simulated(made)[0])
        without += sum(simulated(made, tails=False)[0])
        theirs += sum(vllm["hits"])
        tokens += sum(len(row["prompt"]) for row in made["requests"])
    print(f"hit share: vLLM {theirs / tokens:.4f}, here {ours / tokens:.4f}")
    print(f"without tails {without / tokens:.4f}")
    assert abs(ours - theirs) < 0.02 * tokens
    assert without - theirs > 0.05 * tokens
