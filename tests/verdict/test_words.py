"""The headline says what a reader must not miss."""

from typing import Any

from msgspec.structs import replace

from splitpoint.inputs.plan import Plan
from splitpoint.inputs.workload import Workload
from splitpoint.verdict.answer import Point, Verdict
from splitpoint.verdict.compare import comparison
from splitpoint.verdict.words import spoken
from tests.verdict.made import SLO, flat, made


def test_the_headline_names_the_loads_that_the_other_arm_wins() -> None:
    split = made("split", prefill=4, decode=4, meets=False)
    mixed = made("mixed", prefill=8)
    found = verdict(
        split,
        mixed,
        load="400 users",
        turned_by=("decode time: x 1.03", "prefill time: x 1.2"),
        guessed=("draft acceptance",),
        by_load=[("100 users", "split"), ("200 users", "split"), ("400 users", "mixed")],
        unreached=("40 req/s was asked for",),
    )
    assert found.choice == "mixed"
    assert found.headline.endswith("under 400 users; at 100 users to 200 users split wins")
    assert "over the loads: 100 users to 200 users: split; 400 users: mixed" in found.reasons
    # A lead that the prediction's own error can turn is told at the top, not only at the end.
    assert found.reasons[2] == "within the error of what it assumes: decode time: x 1.03"
    # A load that was never reached stands before all that is said of it.
    assert found.reasons[0] == "40 req/s was asked for"
    assert found.rests_on == ("decode time: x 1.03", "prefill time: x 1.2", "draft acceptance")


def verdict(split: Point, mixed: Point, **changes: Any) -> Verdict:
    """The verdict between two points, step times being known within a quarter."""
    told: dict[str, Any] = {
        "load": "trace",
        "conditions": (),
        "claims": (),
        "turned_by": (),
        "guessed": (),
        "by_load": (),
        "unreached": (),
        "fewest": {},
        "rejected": (),
    }
    return spoken(
        plan=Plan(model="m", gpu="g", gpus=8, workload=Workload(isl=1, osl=1, rate=1.0), slo=SLO),
        split=split,
        mixed=mixed,
        sole=None,
        comparisons=(comparison([split], [mixed], SLO, routing=None),),
        time_band=1.25,
        **(told | changes),
    )


def test_an_arm_that_barely_misses_the_slo_is_no_clear_loser() -> None:
    mixed = made("mixed", prefill=8)
    late = made("split", prefill=4, decode=4, meets=False)
    barely, far = (replace(late, ttft=flat(times * SLO.ttft_s)) for times in (1.01, 1.3))
    assert (
        verdict(barely, mixed)
        .reasons[1]
        .startswith("at the limit: split takes 101.0% of what the SLO allows")
    )
    assert not any("at the limit" in reason for reason in verdict(far, mixed).reasons)
    # The winner's own margin counts as well.
    tight = replace(mixed, tpot=flat(0.9 * SLO.tpot_s))
    assert "mixed takes 90.0% of" in verdict(far, tight).reasons[1]


def test_the_nearest_miss_is_never_a_factor_of_one() -> None:
    late = replace(made("mixed", prefill=8, meets=False), ttft=flat(1.04 * SLO.ttft_s))
    split = replace(made("split", prefill=4, decode=4, meets=False), ttft=flat(3 * SLO.ttft_s))
    assert verdict(split, late).headline.endswith("mixed comes nearest, over it by 4.0%")
    failing = replace(late, ttft=flat(1.0), success=0.998)
    assert verdict(split, failing).headline.endswith("but 0.2% of its requests fail")


def test_an_arm_that_holds_the_slo_nowhere_is_told_with_its_nearest_miss() -> None:
    # On more GPUs than those of the comparison, where the other arm alone holds.
    split = made("split", prefill=4, decode=3)
    late = replace(made("wide", prefill=8, meets=False), ttft=flat(1.08 * SLO.ttft_s))
    found = verdict(
        split, made("narrow", prefill=7, meets=False), fewest={"split": split, "mixed": late}
    )
    told = "split 7, mixed none (wide comes nearest, over it by 8.0%, on 8 GPUs)"
    assert f"fewest GPUs that were seen to hold the SLO: {told}" in found.reasons
