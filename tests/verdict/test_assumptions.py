"""What a verdict is said to rest on."""

from msgspec.structs import replace

from splitpoint.search.world import candidate_of
from splitpoint.verdict.assumptions import rests_on
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
