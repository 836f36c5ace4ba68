"""The search beside all there is: whoever holds the SLO on some number of GPUs is found."""

from pathlib import Path

import pytest

from splitpoint.inputs.plan import Plan, Search
from splitpoint.inputs.slo import Slo
from splitpoint.inputs.workload import Workload
from splitpoint.search.match import matched
from splitpoint.search.space import space
from splitpoint.search.sweep import sweep
from splitpoint.search.world import candidate_of
from splitpoint.verdict.case import case_of, job_of, trial_of
from splitpoint.verdict.decide import decided
from splitpoint.verdict.points import point
from splitpoint.verdict.trials import field


@pytest.mark.parametrize(("isl", "osl", "rate"), [(4000, 500, 2.0), (4000, 500, 1.0)])
def test_what_holds_the_slo_is_found_on_the_fewest_gpus(isl: int, osl: int, rate: float) -> None:
    plan = Plan(
        model="meta-llama/Llama-3.3-70B-Instruct",
        gpu="H100 SXM",
        gpus=8,
        workload=Workload(isl=isl, osl=osl, rate=rate, requests=400),
        slo=Slo(ttft_s=2.0, tpot_s=0.05),
        search=Search(routing=("round_robin",)),
    )
    answer, _ = decided(plan, base=Path(), workers=1)
    case = case_of(plan, base=Path(), tell=lambda _stage, _share: None, workers=1)
    (load,) = case.loads
    legal = space(
        case.model, case.gpu, 8, engine=plan.engine, search=plan.search, longest=isl + osl
    )
    known = field(case, legal)
    every = matched(
        load, plan.slo, mixed=known.together[0], apart=known.apart, gpus=8, all_gpus=True
    )
    trials = {}
    for one in (*every.chosen, *every.pruned):
        sides = [("mixed", one.first, one.firsts)]
        if one.decode is not None:
            sides = [("prefill", one.first, one.firsts), ("decode", one.decode, one.decodes)]
        trial = trial_of(case, candidate_of(sides, "round_robin"), 0)  # type: ignore[arg-type]
        trials[trial.name] = trial
    points = sweep(
        [job_of(case, trial) for trial in trials.values()],
        [load.trace],
        lambda job, run: point(
            trials[job.name].candidate, run, plan.slo, name=job.name, load=load.label
        ),
        workers=1,
    )
    for split in (True, False):
        able = [p.gpus for p in points if p and p.meets_slo and p.deployment.split is split]
        found = [p.gpus for p in answer.points if p.meets_slo and p.deployment.split is split]
        assert able and found and min(found) <= min(able)
