"""Neighbours: one step away, on the same GPUs."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.plan import EnginePlan, Plan, Search
from splitpoint.inputs.routing import Role
from splitpoint.inputs.slo import Slo
from splitpoint.inputs.workload import Workload
from splitpoint.search.world import candidate_of
from splitpoint.verdict.case import Case, case_of, trial_of
from splitpoint.verdict.trials import Field, fewer, neighbours, shrunk
from tests.search import small

TWO = Topology(tp=2)


def case(budget: int | None = None) -> Case:
    """A plan of 8 H20s with one routing."""
    plan = Plan(
        model="Qwen/Qwen3-30B-A3B",
        gpu="H20",
        gpus=8,
        workload=Workload(isl=1000, osl=50, rate=2.0, requests=20),
        slo=Slo(ttft_s=3.0, tpot_s=0.05),
        engine=EnginePlan(batched_tokens=budget, max_seqs=64, max_len=16384),
        search=Search(routing=("round_robin",)),
    )
    return case_of(plan, base=Path(), tell=lambda _stage, _share: None, workers=1)


def known() -> Field:
    """A field of one- and two-GPU instances."""
    ready = (small.ready(), small.ready(TWO))
    return Field(trials=(), rejected=(), apart=ready, together=(ready,))


def names(*pools: tuple[str, Topology, int], budget: int | None = None) -> set[str]:
    """The neighbours of a deployment."""
    parts = [(role, small.ready(topology), count) for role, topology, count in pools]
    one = case(budget)
    trial = trial_of(one, candidate_of(parts, "round_robin"), 0)  # type: ignore[arg-type]
    found = neighbours(one, known(), trial)
    assert all(each.candidate.deployment.gpus == trial.candidate.deployment.gpus for each in found)
    return {each.candidate.shape for each in found}


def test_a_split_moves_gpus_and_changes_widths() -> None:
    assert names(("prefill", Topology(), 4), ("decode", TWO, 2)) == {
        "P 2xTP1 + D 3xTP2",
        "P 6xTP1 + D 1xTP2",
        "P 2xTP2 + D 2xTP2",
        "P 4xTP1 + D 4xTP1",
    }


def test_no_side_is_emptied() -> None:
    assert names(("prefill", Topology(), 1), ("decode", Topology(), 1)) == set()


def test_a_mixed_deployment_changes_its_budget_and_its_width() -> None:
    assert names(("mixed", Topology(), 8)) == {
        "8xTP1 budget=1024",
        "8xTP1 budget=4096",
        "4xTP2 budget=2048",
    }


@pytest.mark.parametrize("budget", [2048])
def test_a_budget_that_the_plan_sets_stays(budget: int) -> None:
    assert names(("mixed", TWO, 4), budget=budget) == {"8xTP1 budget=2048"}


@pytest.mark.parametrize(
    ("pools", "gpus", "found"),
    [
        # Six to two on 16 GPUs: the nearest on 12 are five to one and four to two.
        ([("prefill", TWO, 6), ("decode", TWO, 2)], 12, ["P 5xTP2 + D 1xTP2", "P 4xTP2 + D 2xTP2"]),
        ([("prefill", TWO, 3), ("decode", TWO, 1)], 6, ["P 2xTP2 + D 1xTP2"]),
        ([("prefill", TWO, 3), ("decode", TWO, 1)], 3, []),
        ([("mixed", TWO, 4)], 7, ["3xTP2 budget=2048"]),
        ([("mixed", TWO, 1)], 1, []),
    ],
)
def test_what_holds_is_tried_with_fewer_of_its_instances(
    pools: list[tuple[Role, Topology, int]], gpus: int, found: list[str]
) -> None:
    parts = [(role, small.ready(topology), count) for role, topology, count in pools]
    one = case()
    trials = shrunk(one, trial_of(one, candidate_of(parts, "round_robin"), 0), gpus)
    assert [trial.candidate.shape for trial in trials] == found
    assert all(trial.candidate.deployment.gpus <= gpus for trial in trials)


def test_fewer_gpus_are_tried_with_each_token_budget() -> None:
    small_budget = small.ready(budget=512)
    wide = known()
    field = Field(
        trials=(),
        rejected=(),
        apart=wide.apart,
        together=((*wide.apart, small_budget, small.ready(TWO, 512)),),
    )
    found = [trial.candidate for trial in fewer(case(), field, 0, 2, 0.0)]
    mixed = [one.instances[0] for one in found if not one.deployment.split]
    budgets: dict[Topology, set[int | None]] = {}
    for ready in mixed:
        budgets.setdefault(ready.topology, set()).add(ready.engine.batched_tokens)
    assert budgets and all(each == {512, 2048} for each in budgets.values())


def test_a_topology_s_budgets_do_not_take_the_places_of_others() -> None:
    topologies = (Topology(), TWO, Topology(dp=2, ep=2))
    mixed = tuple(small.ready(each, budget) for each in topologies for budget in (512, 1024, 2048))
    field = Field(trials=(), rejected=(), apart=(), together=(mixed,))
    plan = case().plan
    # A trace so long that no more than the least number is tried.
    long = replace(plan, workload=replace(plan.workload, requests=12_000))
    one = case_of(long, base=Path(), tell=lambda _stage, _share: None, workers=1)
    found = {trial.candidate.instances[0].topology for trial in fewer(one, field, 0, 2, 0.0)}
    assert found == set(topologies)
