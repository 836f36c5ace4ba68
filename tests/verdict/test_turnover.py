"""Varied traces, brackets, and claims."""

import numpy as np
import pytest
from msgspec.structs import replace

from splitpoint.inputs.trace import describe
from splitpoint.verdict.claims import claims, ratio_claim
from splitpoint.verdict.compare import Winner
from splitpoint.verdict.turnover import (
    Arms,
    Knob,
    Outcome,
    Turnover,
    _bracket,
    _carried,
    _flip,
    _middle,
    stretched,
    with_less_reuse,
)
from tests.search import small
from tests.verdict.made import SLO, made


def test_a_stretched_trace_keeps_its_reuse() -> None:
    short = small.trace(10, isl=1600, shared=50)
    for factor in (0.5, 2.0, 3.0):
        long = stretched(short, factor)
        np.testing.assert_array_equal(long.isl, np.round(short.isl * factor))
        assert describe(long).reuse_share == pytest.approx(describe(short).reuse_share)


def test_stretching_by_a_fraction_moves_to_whole_tokens_of_a_block() -> None:
    long = stretched(small.trace(2, isl=1600), 1.03)
    assert (long.block_tokens, long.isl[0]) == (16, 1600)
    assert stretched(small.trace(2, isl=1600), 1.5).isl[0] == 2400


def test_inputs_without_identities_stretch_by_any_factor() -> None:
    trace = small.trace(2, isl=1000)
    bare = replace(
        trace,
        block_ids=trace.block_ids[:0],
        block_starts=np.zeros(3, np.int64),
        block_tokens=1,
    )
    assert stretched(bare, 1.5).isl[0] == 1500


def test_reuse_falls_with_the_share_that_keeps_its_identities() -> None:
    trace = small.trace(400, isl=1600, shared=50)
    shares = [describe(with_less_reuse(trace, share)).reuse_share for share in (1, 0.5, 0)]
    assert shares[0] == pytest.approx(describe(trace).reuse_share)
    assert shares[1] == pytest.approx(shares[0] / 2, rel=0.05)
    assert shares[2] == 0


KNOWN: dict[float, Winner] = {
    0.25: "split",
    0.5: "tie",
    1.0: "mixed",
    2.0: "mixed",
    4.0: "split",
    8.0: "mixed",
}


def test_the_nearest_turn_is_bracketed() -> None:
    assert _bracket(KNOWN, "mixed") == (2.0, 4.0)
    assert _bracket({**KNOWN, 4.0: "mixed", 8.0: "split"}, "mixed") == (0.5, 0.25)
    assert _bracket({1.0: "mixed", 2.0: "tie", 4.0: "neither"}, "mixed") is None


def test_a_bracket_is_halved_on_a_log_scale_unless_it_reaches_zero() -> None:
    assert _middle((4.0, 1.0)) == 2.0
    assert _middle((0.25, 0.0)) == 0.125


def test_the_ratio_that_turns_the_verdict_is_named() -> None:
    mixed = made("mixed", prefill=8)
    chosen = made("P 4 + D 4", prefill=4, decode=4, goodput=10)
    near = made("P 5 + D 3", prefill=5, decode=3, goodput=9)
    far = made("P 6 + D 2", prefill=6, decode=2, goodput=5)
    found = ratio_claim([near, far], mixed, chosen)
    assert found is not None
    assert (found.now, found.flips_at) == (1.0, 3.0)
    assert "P 6 + D 2" in found.words
    alone = ratio_claim([near], mixed, chosen)
    assert alone is not None and alone.flips_at is None
    assert ratio_claim([], mixed, chosen) is None


def claimed(known: dict[float, Winner], unit: str = "users", now: float = 100.0) -> tuple[str, str]:
    """What is said of a knob with these outcomes, and what would refute it."""
    knob = Knob(name="load", unit=unit, now=now, factors=(), vary=lambda present, _: present)
    flip = _flip(knob, known, known[1.0])
    (claim,) = claims(Turnover(now=known[1.0], requests=1, flips=(flip,)), SLO)
    return claim.words, claim.refute


def test_a_claim_says_on_which_side_of_the_flip_the_other_arm_wins() -> None:
    words, refute = claimed({1.0: "mixed", 0.25: "split", 0.0625: "split"})
    assert words == "split wins from about 50 down to 6.25 users (x 0.5)"
    assert refute.startswith("measure both arms a little below 50 users")
    words, refute = claimed({1.0: "mixed", 4.0: "split", 16.0: "split"})
    assert words == "split wins from about 200 up to 1,600 users (x 2)"
    assert "a little above 200 users" in refute


def test_a_claim_ends_where_its_winner_was_last_seen() -> None:
    assert "from about 283 up to 400 users" in claimed(KNOWN)[0]


def test_a_claim_without_a_flip_names_the_unit_once() -> None:
    said, _ = claimed({0.5: "mixed", 1.0: "mixed"}, "bytes/s between two instances", 2e11)
    assert said == "no other arm wins between 100 GB/s and 200 GB/s between two instances"


def carries(meets: dict[float, tuple[Arms, ...]], arm: Arms) -> str:
    """What is said of the load that an arm carries, these arms meeting the SLO at these factors."""
    knob = Knob(name="load", unit="req/s", now=4.0, factors=(), vary=lambda present, _: present)
    known = {factor: Outcome(winner="tie", meets=arms) for factor, arms in meets.items()}
    found = _carried(knob, known, arm)
    (claim,) = claims(Turnover(now="tie", requests=1, flips=(), carried=(found,)), SLO)
    assert claim.variable == f"load that {arm} carries"
    return claim.words


def test_the_load_that_each_arm_carries_is_where_it_was_last_seen_to_hold() -> None:
    meets: dict[float, tuple[Arms, ...]] = {
        1.0: ("split", "mixed"),
        0.5: ("split", "mixed"),
        2.0: ("split",),
        1.5: ("split",),
        4.0: ("split",),
    }
    assert carries(meets, "mixed") == "within the SLO up to about 4 req/s (x 1)"
    assert carries(meets, "split") == "within the SLO up to 16 req/s and perhaps more"
    assert carries({1.0: (), 0.25: ()}, "split") == "within the SLO nowhere from 1 to 4 req/s"
    # An arm that holds again beyond its limit by chance is not believed there.
    assert "about 2 req/s" in carries({0.5: ("mixed",), 1.0: (), 2.0: ("mixed",)}, "mixed")
