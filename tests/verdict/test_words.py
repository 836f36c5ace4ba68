"""The headline says what a reader must not miss."""

from splitpoint.inputs.plan import Plan
from splitpoint.inputs.workload import Workload
from splitpoint.verdict.compare import comparison
from splitpoint.verdict.words import spoken
from tests.verdict.made import SLO, made


def test_the_headline_names_the_loads_that_the_other_arm_wins() -> None:
    split = made("split", prefill=4, decode=4, meets=False)
    mixed = made("mixed", prefill=8)
    found = spoken(
        plan=Plan(model="m", gpu="g", gpus=8, workload=Workload(isl=1, osl=1, rate=1.0), slo=SLO),
        load="400 users",
        split=split,
        mixed=mixed,
        sole=None,
        comparisons=(comparison([split], [mixed], SLO, routing=None),),
        conditions=(),
        claims=(),
        turned_by=("decode time: x 1.03", "prefill time: x 1.2"),
        guessed=("draft acceptance",),
        by_load=[("100 users", "split"), ("200 users", "split"), ("400 users", "mixed")],
        fewest={},
        rejected=(),
    )
    assert found.choice == "mixed"
    assert found.headline.endswith("under 400 users; at 100 users to 200 users split wins")
    assert "over the loads: 100 users to 200 users: split; 400 users: mixed" in found.reasons
    # A lead that the prediction's own error can turn is told at the top, not only at the end.
    assert found.reasons[1] == "within the error of what it assumes: decode time: x 1.03"
    assert found.rests_on == ("decode time: x 1.03", "prefill time: x 1.2", "draft acceptance")
