"""Answers to small plans, end to end."""

from functools import cache
from pathlib import Path

import msgspec
import pytest

from splitpoint.errors import PlanError
from splitpoint.inputs.plan import EnginePlan, Plan, Search
from splitpoint.inputs.slo import Slo
from splitpoint.inputs.workload import Workload
from splitpoint.run import Run
from splitpoint.verdict.answer import Answer, answer, schema

SMALL = Plan(
    model="Qwen/Qwen3-30B-A3B",
    gpu="H20",
    gpus=3,
    workload=Workload(isl=3000, osl=60, rate=2.0, requests=60),
    slo=Slo(ttft_s=3.0, tpot_s=0.05),
    engine=EnginePlan(max_seqs=32, batched_tokens=2048, max_len=8192),
    search=Search(tp=(1,), dp=(1,), ep=(1,)),
)


@cache
def solved(plan: Plan) -> tuple[Answer, dict[str, Run]]:
    """The answer to a plan."""
    return answer(plan, base=Path())


def test_an_answer_survives_json() -> None:
    found, _ = solved(SMALL)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Answer) == found


def test_the_same_plan_gets_the_same_bytes() -> None:
    found, _ = solved(SMALL)
    again, _ = answer(SMALL, base=Path())
    assert msgspec.json.encode(again) == msgspec.json.encode(found)


def test_points_have_names_of_their_own_and_shown_ones_have_runs() -> None:
    found, runs = solved(SMALL)
    names = [point.name for point in found.points]
    assert len(set(names)) == len(names) > 0
    assert set(runs) == {point.name for point in found.points if point.run_file}
    assert all(point.name in runs for point in found.points if point.on_frontier)
    assert any(point.on_frontier for point in found.points)
    assert len({point.run_file for point in found.points if point.run_file}) == len(runs)
    for point in found.points:
        if point.name in runs:
            assert len(runs[point.name].requests) == point.requests
            assert runs[point.name].gpus == point.gpus == point.deployment.gpus


def test_both_arms_meet_on_the_same_gpus_under_every_routing() -> None:
    found, _ = solved(SMALL)
    points = {point.name: point for point in found.points}
    bases = [(each.basis, each.routing) for each in found.verdict.comparisons]
    assert bases == [
        ("equal routing", "prefix_aware"),
        ("equal routing", "round_robin"),
        ("each at its best routing", None),
    ]
    for each in found.verdict.comparisons:
        assert each.split is not None and each.mixed is not None
        split, mixed = points[each.split], points[each.mixed]
        assert split.deployment.split and not mixed.deployment.split
        assert split.gpus == mixed.gpus
        if each.routing is not None:
            assert split.deployment.routing == mixed.deployment.routing == each.routing


def test_the_choice_is_a_point_that_meets_the_slo() -> None:
    found, _ = solved(SMALL)
    chosen = next(point for point in found.points if point.name == found.verdict.chosen)
    assert chosen.meets_slo
    assert found.verdict.headline.startswith(("Split:", "Do not split:", "Either:"))
    assert len(found.verdict.conditions) == 4
    assert {wall.side for wall in found.walls} == {"mixed", "prefill", "decode"}


def test_the_fewest_gpus_of_each_arm_are_looked_for() -> None:
    found, _ = solved(SMALL)
    (words,) = [reason for reason in found.verdict.reasons if reason.startswith("fewest GPUs")]
    able = [point for point in found.points if point.meets_slo]
    for arm, split in (("split", True), ("mixed", False)):
        least = min(point.gpus for point in able if point.deployment.split is split)
        assert f"{arm} {least}" in words
    assert min(point.gpus for point in found.points) < SMALL.gpus


def test_all_gpus_are_used_where_the_plan_says_so() -> None:
    search = msgspec.structs.replace(SMALL.search, all_gpus=True, routing=("round_robin",))
    found, _ = solved(msgspec.structs.replace(SMALL, search=search))
    assert {point.gpus for point in found.points} == {SMALL.gpus}


def test_every_assumed_number_is_listed_with_its_source() -> None:
    found, _ = solved(SMALL)
    assumed = [figure for figure in found.assumptions if figure.origin == "assumed"]
    assert any("KV transfer bandwidth" in figure.name for figure in assumed)
    assert all(figure.source for figure in found.assumptions)
    assert len({figure.name for figure in found.assumptions}) == len(found.assumptions)


def test_claims_say_what_would_refute_them() -> None:
    found, _ = solved(SMALL)
    assert {"load", "context", "link bandwidth", "KV pool"} <= {
        claim.variable for claim in found.verdict.claims
    }
    assert all(claim.words and claim.refute for claim in found.verdict.claims)


def test_an_overloaded_plan_is_told_what_is_missing() -> None:
    late = msgspec.structs.replace(
        SMALL, gpus=2, workload=Workload(isl=6000, osl=60, rate=50.0, requests=60)
    )
    found, _ = solved(late)
    assert found.verdict.choice == "neither"
    assert found.verdict.chosen is None
    assert any("is asked" in reason for reason in found.verdict.reasons)


def test_a_model_that_fits_nowhere_is_an_answer_with_its_shortfall() -> None:
    large = msgspec.structs.replace(SMALL, model="meta-llama/Llama-3.1-405B", search=Search())
    found, runs = solved(large)
    assert (found.verdict.choice, found.points, runs) == ("neither", (), {})
    assert "GiB short per rank" in found.verdict.headline
    assert all(not held.fits for held in found.holdings)
    lacks = [each.shortfall.value for each in found.rejected if each.shortfall is not None]
    assert lacks and min(lacks) > 0


def test_a_split_of_one_gpu_is_told_that_it_needs_two() -> None:
    alone = msgspec.structs.replace(SMALL, gpus=1, search=Search(roles=("split",)))
    found, _ = solved(alone)
    assert found.verdict.choice == "neither"
    assert "a split needs two" in found.verdict.headline


def test_one_arm_alone_is_answered_without_a_comparison() -> None:
    only = msgspec.structs.replace(
        SMALL, search=msgspec.structs.replace(SMALL.search, roles=("mixed",))
    )
    found, _ = solved(only)
    assert found.verdict.choice == "mixed"
    assert found.verdict.claims == ()
    assert all(each.split is None for each in found.verdict.comparisons)


def test_a_sweep_of_users_answers_every_load() -> None:
    users = msgspec.structs.replace(
        SMALL,
        gpus=2,
        workload=Workload(isl=500, osl=40, concurrency=(1, 8), requests=24),
        search=msgspec.structs.replace(SMALL.search, routing=("round_robin",)),
    )
    found, _ = solved(users)
    assert {point.load for point in found.points} == {"concurrency 1", "concurrency 8"}
    assert any(reason.startswith("over the loads: ") for reason in found.verdict.reasons)
    for load in ("concurrency 1", "concurrency 8"):
        assert any(point.on_frontier for point in found.points if point.load == load)


def test_a_search_without_a_legal_topology_is_an_error() -> None:
    odd = msgspec.structs.replace(SMALL, search=Search(tp=(3,), dp=(1,)))
    with pytest.raises(PlanError, match="no topology"):
        answer(odd, base=Path())


def test_progress_runs_from_nothing_to_all() -> None:
    heard: list[float] = []
    answer(SMALL, base=Path(), progress=lambda _, share: heard.append(share))
    assert heard == sorted(heard)
    assert (heard[0], heard[-1]) == (0.0, 1.0)


def test_the_schema_describes_the_answer() -> None:
    found = schema()
    assert "Answer" in found["$defs"]  # type: ignore[operator]
    msgspec.json.encode(found)
