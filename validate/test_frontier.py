"""vLLM's PD study of Qwen3.8-2.4T on GB300 (2026-09-21): recipes simulated, sweeps repeated.

Published are the ends of the frontier, five readings of the decode sweep and which topology led
where; nothing here is fitted to them. Tables print what comes out, also where it is not met.
"""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from splitpoint.inputs.engine import Engine
from splitpoint.inputs.facts import gpu
from splitpoint.inputs.huggingface import load_model
from splitpoint.inputs.plan import DeploymentPlan, PoolPlan
from splitpoint.inputs.traces.requests import shaped
from splitpoint.inputs.workload import Workload
from splitpoint.pricing.price import parse_layout
from splitpoint.search.isolated import Isolated, Shape, isolated
from splitpoint.verdict.replay import replay

TRUTH = Path(__file__).resolve().parents[2] / "shared" / "truth" / "published_studies.json"
pytestmark = pytest.mark.skipif(not TRUTH.exists(), reason="needs ../shared")

MODEL = "Qwen/Qwen3.8-2.4T-A95B"
# As every recipe of the study has it.
SHARED: dict[str, Any] = {
    "version": "0.26.1",
    "utilization": 0.92,
    "kv_dtype": "fp8",
    "state_dtype": "bf16",
    "prefix_caching": False,
    "max_len": 10240,
    # Of the image, main of 2026-08-25; releases have it from 0.29 on.
    "flashinfer_sums": True,
}
# Published ends: interactivity at one user, and at 2,560; total tokens per second and GPU there.
FIRST_USER, LAST_USER, LAST_TOTAL = 182.1, 13.5, 5000.0
WITHIN = 0.30


def study() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(TRUTH.read_text())["vllm_qwen38_pd"]
    return found


def pool(role: Any, text: str, engine: Engine) -> PoolPlan:
    """The pool of "2xTP2DP4"; every one of the study has its experts spread."""
    found = re.fullmatch(r"(\d+)xTP(\d+)(?:DP(\d+))?", text)
    assert found is not None
    count, tp, dp = (int(part or 1) for part in found.groups())
    return PoolPlan(role=role, tp=tp, dp=dp, ep="all", replicas=count, engine=engine)


class End(NamedTuple):
    """A recipe at one concurrency: total tokens per second and GPU, and 1 / median TPOT."""

    recipe: str
    users: int
    total: float
    user: float


def served(recipe: dict[str, Any], users: int) -> End:
    """A recipe in a closed loop of 8,192 input and 1,024 output tokens."""
    drafts, block = recipe["mtp"], recipe["block_size"]
    prefill = Engine(
        max_seqs=32, batched_tokens=16384, graph_mode="piecewise", drafts=drafts,
        block_size=block, **SHARED,
    )  # fmt: skip
    decode = Engine(
        max_seqs=recipe["d_max_num_seqs"], max_graph=recipe["d_max_cudagraph"],
        batched_tokens=recipe["d_mnbt"], graph_mode="full_decode_only", drafts=drafts,
        block_size=block, **SHARED,
    )  # fmt: skip
    plan = DeploymentPlan(
        model=MODEL,
        gpu="GB300",
        pools=(
            pool("prefill", recipe["prefill"], prefill),
            pool("decode", recipe["decode"], decode),
        ),
        routing="round_robin",
        decode_routing="round_robin",
    )
    asked = Workload(isl=8192, osl=1024, concurrency=users, requests=max(8 * users, 16))
    found, _ = replay(plan, shaped(asked, None, users))
    name = f"{recipe['prefill']} + {recipe['decode']} MTP{drafts}"
    return End(name, users, found.total_tok_s_gpu, found.interactivity)


def test_the_ends_of_the_published_frontier(capsys: pytest.CaptureFixture[str]) -> None:
    ends = [
        served(recipe, int(users))
        for recipe in study()["recipes"]
        for users in recipe["concurrency"].split("x")
    ]
    with capsys.disabled():
        print("\nrecipe, users, total tok/s/GPU, tok/s/user")
        for end in ends:
            print(f"  {end.recipe:28} {end.users:5} {end.total:6.0f} {end.user:6.1f}")
        first, last = ends[0], ends[-1]
        for what, read, said in (
            ("tok/s/user of 1 user", FIRST_USER, first.user),
            ("tok/s/user of 2,560", LAST_USER, last.user),
            ("total tok/s/GPU of 2,560", LAST_TOTAL, last.total),
        ):
            print(f"  {what:26} published {read:7.1f} predicted {said:7.1f} {said / read - 1:+.0%}")
        slower = [(a.users, b.users) for a, b in pairwise(ends) if b.user > a.user]
        print(f"  tok/s/user rises, as a frontier's does not, between users {slower or 'nowhere'}")
    assert ends[0].user == pytest.approx(FIRST_USER, rel=WITHIN)
    assert ends[-1].user == pytest.approx(LAST_USER, rel=WITHIN)
    assert ends[-1].total == pytest.approx(LAST_TOTAL, rel=WITHIN)
    # Each recipe gives more per GPU and less per user than the one before it.
    assert all(b.total > a.total for a, b in pairwise(ends))
    assert all(b.user < a.user for a, b in pairwise(ends))


def swept(layouts: str, shape: Shape, **engine: Any) -> Isolated:
    topologies = [parse_layout(text) for text in layouts.split()]
    settings = [Engine(**{**SHARED, **engine})]
    return isolated(load_model(MODEL, offline=True), gpu("GB300"), topologies, settings, shape)


def test_the_decode_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    readings = study()["figure_readings (soft, +-5 tok/s/GPU)"]
    users = (64, 128, 256, 512, 1024)
    # Seats and budget for all users by the recipes' rule (16 more, and 16 tokens more); assumed:
    # graphs as far as the largest recipe captures them, 272 sequences of 4 tokens.
    seats = 1024 + 16
    lines = (
        ("tp8ep", 3, {int(k): v for k, v in readings["decode_tp8_mtp"].items()}, 512),
        ("tp8ep", 0, {1024: readings["decode_tp8_nomtp_1024"]}, None),
        ("tp4dp4ep", 3, {1024: readings["decode_tp4dp4_mtp_1024"]}, None),
    )
    ratios = []
    for layout, drafts, read, falls_at in lines:
        found = swept(
            layout,
            Shape(isl=64, osl=1000, concurrencies=users),
            drafts=drafts,
            max_seqs=seats,
            max_graph=1088,
            batched_tokens=(1 + drafts) * seats + 16,
            graph_mode="full_decode_only",
        )
        line = [p for p in found.points if p.phase == "decode"]
        turn = next(turn for turn in found.turns if turn.phase == "decode")
        with capsys.disabled():
            told = ", ".join(f"{p.concurrency}: {p.tok_s_gpu:.0f}" for p in line)
            print(f"\n  {layout} MTP{drafts}: {told}; pools hold {line[0].held}")
            print(f"    highest at {turn.peak}, falls by more than noise at {turn.falls_at}")
            for point in line:
                if point.concurrency in read:
                    ratio = point.tok_s_gpu / read[point.concurrency]
                    ratios.append(ratio)
                    print(
                        f"    {point.concurrency}: read {read[point.concurrency]}, {ratio - 1:+.0%}"
                    )
        assert turn.falls_at == falls_at, layout
    assert len(ratios) == 5
    assert all(abs(ratio - 1) < WITHIN for ratio in ratios)


def test_which_prefill_topology_leads_where(capsys: pytest.CaptureFixture[str]) -> None:
    users = (1, 2, 4, 8, 16, 32, 64, 128)
    found = swept(
        "tp4dp2ep tp2dp4ep tp4dp4ep tp2dp8ep dp16ep tp8ep tp16ep tp1pp6 tp1pp8",
        Shape(isl=8192, osl=1000, concurrencies=users),
        max_seqs=32,
        batched_tokens=16384,
        graph_mode="piecewise",
    )
    with capsys.disabled():
        print(f"\n  published: {study()['prefill_findings']}")
        for count in users:
            points = [p for p in found.points if p.phase == "prefill" and p.concurrency == count]
            best = sorted(points, key=lambda p: -p.tok_s_gpu)[:3]
            print(
                f"  {count:4} users: " + ", ".join(f"{p.topology} {p.tok_s_gpu:.0f}" for p in best)
            )
    narrow, wide = (found.line("prefill", name, 0) for name in ("TP4DP2+EP", "TP2DP4+EP"))
    # The published change from the one to the other: few users first, many later.
    assert narrow[0].tok_s_gpu > wide[0].tok_s_gpu
    assert narrow[-1].tok_s_gpu < wide[-1].tok_s_gpu
