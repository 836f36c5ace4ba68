"""What a verdict is said to rest on."""

import pytest
from msgspec.structs import replace

from splitpoint.inputs.deployment import Topology
from splitpoint.search.world import candidate_of, world
from splitpoint.sim import simulate
from splitpoint.timing.efficiency import peak, seconds
from splitpoint.timing.operators import step_operators
from splitpoint.verdict.assumptions import assumptions, mean_steps, rests_on
from splitpoint.verdict.steps import step_times
from splitpoint.verdict.turnover import Flip, Knob, Turnover
from tests.search import small
from tests.timing.test_fitted import FITTED


def flip(name: str, factor: float) -> Flip:
    """A knob that makes the split win at a factor."""
    knob = Knob(
        name=name, unit="", now=1.0, factors=(), vary=lambda varied, _: varied, assumed=True
    )
    return Flip(knob=knob, factor=factor, winner="split", until=2.0, low=0.5, high=2.0)


def test_the_nearest_flip_inside_its_band_comes_first() -> None:
    one = candidate_of([("mixed", small.ready(), 1)], "round_robin")
    flips = (flip("link bandwidth", 0.6), flip("prefill time", 1.3), flip("decode time", 0.9))
    found = rests_on(Turnover(now="mixed", requests=1, flips=flips), [one])
    # 1 / 0.9 is inside 1.25, 1.3 is not; 1 / 0.6 is inside 2.
    assert [words.split(":")[0] for words in found] == ["decode time", "link bandwidth"]


def test_a_fit_says_how_far_its_step_times_may_be_off() -> None:
    errors = replace(FITTED.errors, prefill=0.02, decode=None)
    fitted = replace(FITTED, errors=errors, rms=0.03)
    one = candidate_of([("mixed", replace(small.ready(), fitted=fitted), 1)], "round_robin")
    for factor, rests in ((1.05, True), (1.07, False)):
        found = Turnover(now="mixed", requests=1, flips=(flip("prefill time", factor),))
        assert bool(rests_on(found, [one])) is rests
    # What the results do not determine is as predicted, and as far off as a prediction.
    found = Turnover(now="mixed", requests=1, flips=(flip("decode time", 1.2),))
    assert rests_on(found, [one])


def test_the_shares_of_the_roofline_are_those_of_the_steps_that_ran() -> None:
    wide = small.ready(Topology(tp=2))
    one = candidate_of([("prefill", wide, 1), ("decode", small.ready(), 1)], "round_robin")
    load = small.load(isl=4000)
    run = simulate(world(one, small.model(), tokens=4000), load.trace, seed=0)
    prefill, decode = mean_steps(one, run, load.profile)
    assert (prefill.name, decode.name) == ("prefill of TP2", "decode of TP1")
    assert prefill.batch.prefill[0] == 2048 and decode.batch.decode[0] >= 1
    figures = assumptions([one], [prefill, decode], [], small.model(), small.h20())
    shares = {figure.name: figure.value for figure in figures if figure.name.endswith("reached")}
    # Of the attention of a prompt, one kernel a layer.
    (attention,) = (
        operator
        for operator in step_operators(small.model(), wide.topology, wide.engine, prefill.batch)
        if operator.kind == "prefill_attention"
    )
    taken = seconds(attention, small.h20(), "vllm")[0]
    flops = attention.count * attention.flops[0]
    told = shares["prefill attention (bf16), prefill of TP2: share of compute reached"]
    assert told == pytest.approx(flops / peak(small.h20(), "bf16") / taken)
    assert "decode attention (bf16), decode of TP1: share of bandwidth reached" in shares
    assert not any("decode attention (bf16), prefill" in name for name in shares)
    assert all(0 < share <= 1 for share in shares.values())
    # What a sum of 2,048 tokens over two ranks moves, by what the link of a GPU could.
    sent = next(figure for figure in figures if "all-reduces over 2 ranks, prefill" in figure.name)
    assert sent.origin == "assumed" and "off by" in sent.source and 0 < sent.value < 1
    (prompt, decoding) = step_times(
        [("both", prefill), ("both", decode)], small.model(), small.h20()
    )
    assert prompt.words == "2,048 new tokens, each attending 2,000 on average"
    assert [part.seconds for part in prompt.parts] == sorted(
        (part.seconds for part in prompt.parts), reverse=True
    )
    assert {"all-reduces over 2 ranks", "prefill attention (bf16)"} <= {
        p.name for p in prompt.parts
    }
    assert "sequences of" in decoding.words and decoding.seconds < prompt.seconds
