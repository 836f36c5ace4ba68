"""Each phase alone: worked out from the curve, marks from points by hand, and what cannot run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.huggingface import load_model
from splitpoint.inputs.plan import EnginePlan, Plan, Search
from splitpoint.inputs.slo import Slo
from splitpoint.inputs.workload import Workload
from splitpoint.search.instance import holding, instance
from splitpoint.search.isolated import (
    DraftsPay,
    Isolated,
    PhasePoint,
    Shape,
    drafts_pay,
    isolated,
    isolated_phases,
    parse_counts,
    turn_of,
)
from splitpoint.timing.curve import PICO
from splitpoint.timing.host import host_speed
from tests.search import small

SHAPE = Shape(isl=2000, osl=101, concurrencies=(1, 4, 16))
ENGINE = Engine(batched_tokens=2048, max_seqs=16, max_len=4096)


def found(
    topologies: Sequence[Topology] = (Topology(),),
    engines: Sequence[Engine] = (ENGINE,),
    shape: Shape = SHAPE,
    **more: Any,
) -> Isolated:
    return isolated(small.model(), small.h20(), topologies, engines, shape, workers=1, **more)


def test_decode_alone_is_the_decode_curve() -> None:
    held = holding(small.model(), small.h20(), Topology(), ENGINE, kv_pool_gib=None)
    curve = instance(small.model(), held).curve
    for point in found().line("decode", "TP1", 0):
        n = point.concurrency
        step = (curve.decode[n] + curve.decode_context[n] * n * 51) * PICO
        # The prefill of one token in between costs a mixed step a request.
        assert point.tok_s_gpu == pytest.approx(n / step, rel=0.05)
        assert point.tok_s_user == pytest.approx(1 / step, rel=0.05)


def test_decode_behind_a_context_is_the_decode_curve_there() -> None:
    held = holding(small.model(), small.h20(), Topology(), ENGINE, kv_pool_gib=None)
    curve = instance(small.model(), held).curve
    swept = found(shape=replace(SHAPE, context=3000))
    for point in swept.line("decode", "TP1", 0):
        n = point.concurrency
        step = (curve.decode[n] + curve.decode_context[n] * n * 3051) * PICO
        assert point.gpus == 1 and point.success == 1.0
        assert point.tok_s_user == pytest.approx(1 / step, rel=0.02)
        # A user waits for the front end between two answers.
        front = host_speed(held.engine).front
        assert point.tok_s_gpu == pytest.approx(101 * n / (100 * step + front), rel=0.05)
        assert point.held == held.requests_held(3101)
    # Prefill alone is as it was, and so is decode behind one token.
    assert swept.line("prefill", "TP1", 0) == found().line("prefill", "TP1", 0)
    assert any("behind 1 of the workload's 2,000" in note for note in found().notes)
    assert not any("behind" in note for note in swept.notes)


def test_decode_waits_for_room_on_its_own_pool_alone() -> None:
    # 0.5 GiB hold one of these requests (96 KiB a token) and not two, whoever prefilled them.
    tight = found(shape=replace(SHAPE, context=3000), kv_pool_gib=0.5).line("decode", "TP1", 0)
    assert [point.held for point in tight] == [1, 1, 1]
    assert [p.tok_s_gpu for p in tight] == pytest.approx([tight[0].tok_s_gpu] * 3, rel=0.2)
    assert all(point.success == 1.0 for point in tight)


def test_windows_and_states_decode_behind_a_context() -> None:
    for name in ("google/gemma-3-12b-it", "Qwen/Qwen3.5-27B"):
        model = load_model(name)
        engine = replace(ENGINE, max_len=16384)
        shape = Shape(isl=100, osl=20, concurrencies=(1, 4), context=12_000)
        line = isolated(model, small.h20(), [Topology()], [engine], shape, workers=1).line(
            "decode", "TP1", 0
        )
        assert [point.success for point in line] == [1.0, 1.0]


def test_prefill_alone_is_the_time_of_full_steps() -> None:
    held = holding(small.model(), small.h20(), Topology(), ENGINE, kv_pool_gib=None)
    curve = instance(small.model(), held).curve
    one = found().line("prefill", "TP1", 0)[0]
    taken = (curve.mixed[2000] + curve.prefill_pair * 2000 * 2001 / 2) * PICO
    speed = host_speed(held.engine)
    front = speed.front + 2000 * speed.front_token
    assert one.ttft_s == pytest.approx(front + taken, rel=1e-6)
    # One user waits for its second token before the next prompt.
    second = (curve.decode[1] + curve.decode_context[1] * 2001) * PICO
    assert one.tok_s_gpu == pytest.approx(2000 / (front + taken + second), rel=1e-3)


def test_an_engine_without_seats_is_given_one_for_each_user() -> None:
    bare = replace(ENGINE, max_seqs=None)
    line = found((Topology(dp=2, ep=2),), (bare,)).line("decode", "TP1DP2+EP", 0)
    assert [point.seats for point in line] == [16, 16, 16]
    assert line[-1].gpus == 2


def test_what_does_not_fit_is_a_row_and_no_error() -> None:
    # 2,002 tokens of 96 KiB need 0.183 GiB on one GPU, half of it on each of two.
    engine = replace(ENGINE, max_len=2002)
    swept = found((Topology(), Topology(tp=2)), (engine,), kv_pool_gib=0.15)
    assert [row.name for row in swept.unfit] == ["TP1"]
    assert "one request of 2,002 tokens" in swept.unfit[0].why and swept.unfit[0].bytes > 0
    assert {point.topology for point in swept.points} == {"TP2"}


def test_a_topology_that_the_engine_refuses_is_bad_input() -> None:
    with pytest.raises(PlanError, match="TP3"):
        found((Topology(tp=3),))


def test_the_same_seed_gives_the_same_points() -> None:
    drafting = (ENGINE, replace(ENGINE, drafts=2))
    assert found(engines=drafting) == found(engines=drafting)


def line(*rates: float, drafts: int = 0, **more: int) -> list[PhasePoint]:
    """Points of a decode line at 1, 2, 4, ... users."""
    return [
        PhasePoint(
            phase="decode",
            topology="TP1",
            drafts=drafts,
            gpus=1,
            concurrency=2**i,
            tok_s_gpu=rate,
            ttft_s=0.1,
            tok_s_user=10.0,
            success=1.0,
            preemptions=more.get("preemptions", 0),
            held=more.get("held", 1000),
            seats=more.get("seats", 1000),
        )
        for i, rate in enumerate(rates)
    ]


def test_a_line_turns_over_where_it_falls_by_more_than_noise() -> None:
    turn = turn_of(line(10, 100, 200, 195, 150))
    assert (turn.peak, turn.falls_at) == (4, 16)
    assert turn.why == "a step grows faster than the requests in it"
    assert turn_of(line(10, 100, 200, 195, 190)).falls_at is None


def test_a_turn_says_what_it_ran_into() -> None:
    assert turn_of(line(10, 9, held=1, preemptions=7)).why == (
        "the KV pools hold 1 request, and preempted 7 times"
    )
    assert turn_of(line(10, 20, seats=1)).why == "max_seqs lets 1 requests run"
    assert turn_of(line(10, 20)).why == ""


@pytest.mark.parametrize(
    ("with_drafts", "until", "lose"),
    [((20, 40, 50), 2, 4), ((20, 10, 70), 4, None), ((5, 10, 20), None, 1), ((10, 30, 59), 2, 4)],
)
def test_drafts_pay_up_to_the_last_gain(
    with_drafts: tuple[float, ...], until: int | None, lose: int | None
) -> None:
    pays = drafts_pay(line(*with_drafts, drafts=3), line(10, 30, 60))
    assert pays == DraftsPay(topology="TP1", drafts=3, pay_until=until, lose_from=lose)


def test_a_plan_is_swept_at_its_mean_lengths_over_its_own_drafts() -> None:
    plan = Plan(
        model="Qwen/Qwen3-30B-A3B",
        gpu="H20",
        gpus=2,
        workload=Workload(isl=1500, osl=64, rate=1.0),
        slo=Slo(ttft_s=1, tpot_s=1),
        engine=EnginePlan(drafts=(0, 2), max_seqs=8, batched_tokens=2048),
        search=Search(tp=(1, 2), dp=(1,), ep=(1,)),
    )
    swept = isolated_phases(plan, base=Path(), concurrencies=(4, 1, 4), workers=1)
    assert swept.shape == Shape(isl=1500, osl=64, concurrencies=(1, 4))
    assert {(p.topology, p.drafts) for p in swept.points} == {
        (t, k) for t in ("TP1", "TP2") for k in (0, 2)
    }
    named = isolated_phases(
        plan, base=Path(), topologies=[Topology(tp=2)], concurrencies=(1,), drafts=(1,), workers=1
    )
    assert {(p.topology, p.drafts) for p in named.points} == {("TP2", 1)}


def test_a_plan_that_sweeps_concurrencies_is_swept_over_those() -> None:
    plan = Plan(
        model="Qwen/Qwen3-30B-A3B",
        gpu="H20",
        gpus=1,
        workload=Workload(isl=100, osl=10, concurrency=(8, 2)),
        slo=Slo(ttft_s=1, tpot_s=1),
        engine=EnginePlan(max_seqs=8, batched_tokens=2048),
    )
    assert isolated_phases(plan, base=Path(), workers=1).shape.concurrencies == (2, 8)
    many = replace(plan, workload=Workload(isl=100, osl=10, concurrency=(8, 100_000)))
    with pytest.raises(PlanError, match="concurrency: 100,000 users of one instance"):
        isolated_phases(many, base=Path(), workers=1)


def test_a_topology_of_more_gpus_than_the_plan_has_is_bad_input() -> None:
    plan = Plan(
        model="Qwen/Qwen3-30B-A3B",
        gpu="H20",
        gpus=2,
        workload=Workload(isl=100, osl=10, rate=1.0),
        slo=Slo(ttft_s=1, tpot_s=1),
    )
    with pytest.raises(PlanError, match="needs 4 GPUs, the plan has 2"):
        isolated_phases(plan, base=Path(), topologies=[Topology(tp=4)])


def test_counts_are_read_once_each_in_order() -> None:
    assert parse_counts("8, 1 8", "--concurrency", least=1, most=64) == (1, 8)
    for text in ("", "x", "0", "65", "1e9", "-1", "9" * 40):
        with pytest.raises(PlanError, match="--concurrency"):
            parse_counts(text, "--concurrency", least=1, most=64)
