"""What wins, in which order, and what is a tie."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitpoint.verdict.answer import Point
from splitpoint.verdict.compare import best, comparison, excess, judged
from tests.verdict.made import SLO, flat, made, other

SPLIT = made("split", prefill=2, decode=2)
MIXED = made("mixed")


def test_meeting_the_slo_counts_before_goodput() -> None:
    fast = other(SPLIT, goodput_s=99.0, meets_slo=False, attainment=0.85)
    found = judged(fast, MIXED)
    assert (found.winner, found.by) == ("mixed", "SLO")


def test_a_winner_that_serves_less_is_not_said_to_lead() -> None:
    found = judged(other(SPLIT, goodput_s=10.0, meets_slo=False), MIXED)
    assert found.winner == "mixed"
    assert found.lead == pytest.approx(-0.2)


def test_goodput_per_gpu_counts_next_beyond_the_noise() -> None:
    assert judged(other(SPLIT, goodput_s=8.47), MIXED).winner == "tie"
    found = judged(other(SPLIT, goodput_s=8.8), MIXED)
    assert (found.winner, found.by) == ("split", "goodput per GPU")
    assert found.lead == pytest.approx(0.1)


def test_attainment_counts_beyond_two_standard_errors() -> None:
    # Pooled 0.97 of 2 x 1,000: 2 sqrt(0.97 x 0.03 x 2 / 1000) = 1.53%.
    assert judged(other(SPLIT, attainment=0.962), other(MIXED, attainment=0.976)).winner == "tie"
    found = judged(other(SPLIT, attainment=0.96), other(MIXED, attainment=0.98))
    assert (found.winner, found.by) == ("mixed", "SLO attainment")


def test_output_tokens_decide_last() -> None:
    assert judged(other(SPLIT, output_tok_s_gpu=120.0), MIXED).winner == "split"


def test_neither_wins_where_neither_meets_the_slo() -> None:
    found = judged(other(SPLIT, meets_slo=False), other(MIXED, meets_slo=False))
    assert found.winner == "neither"


def test_a_lone_arm_wins_only_if_it_meets_the_slo() -> None:
    assert judged(SPLIT, None).winner == "split"
    assert judged(None, other(MIXED, meets_slo=False)).winner == "neither"
    assert judged(None, None).winner == "neither"


@given(
    st.booleans(),
    st.booleans(),
    st.floats(0, 20),
    st.floats(0, 20),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_swapping_the_arms_swaps_the_winner(
    a: bool, b: bool, good_a: float, good_b: float, share_a: float, share_b: float
) -> None:
    def verdict(one: tuple[bool, float, float], two: tuple[bool, float, float]) -> str:
        split = other(SPLIT, meets_slo=one[0], goodput_s=one[1], attainment=one[2])
        mixed = other(MIXED, meets_slo=two[0], goodput_s=two[1], attainment=two[2])
        return judged(split, mixed).winner

    swapped = {"split": "mixed", "mixed": "split", "tie": "tie", "neither": "neither"}
    one, two = (a, good_a, share_a), (b, good_b, share_b)
    assert swapped[verdict(one, two)] == verdict(two, one)


def test_the_best_of_an_arm_keeps_to_what_counts_first() -> None:
    late = other(MIXED, name="late", meets_slo=False, goodput_s=50.0)
    slow = other(MIXED, name="slow", goodput_s=5.0)
    calm = other(MIXED, name="calm", interactivity=80.0, goodput_s=7.9)
    assert best([late, slow, MIXED, calm], SLO) == calm
    assert best([], SLO) is None


def test_among_alike_paces_the_earlier_first_token_is_best() -> None:
    late = other(MIXED, name="late", interactivity=MIXED.interactivity * 1.01, ttft=flat(1.9))
    assert best([late, MIXED], SLO) == MIXED
    quick = other(MIXED, name="quick", interactivity=MIXED.interactivity * 1.1, ttft=flat(1.9))
    assert best([quick, MIXED], SLO) == quick


def test_where_none_meets_the_slo_the_nearest_is_best() -> None:
    # 12 s are 6 x the TTFT, 0.2 s are 4 x the TPOT; failures come before both.
    late = other(MIXED, name="late", meets_slo=False, attainment=0.10, ttft=flat(12.0))
    slow = other(MIXED, name="slow", meets_slo=False, attainment=0.05, tpot=flat(0.2))
    lossy = other(MIXED, name="lossy", meets_slo=False, success=0.5, goodput_s=99.0)
    assert best([late, slow, lossy], SLO) == slow
    assert excess(late, SLO) == 6.0


@given(st.permutations(["a", "b", "c"]))
def test_the_best_does_not_depend_on_the_order(order: list[str]) -> None:
    points = {name: other(MIXED, name=name) for name in order}
    found = best([points[name] for name in order], SLO)
    assert found is not None and found.name == "a"


def words(split: Point | None, mixed: Point | None) -> str:
    return comparison([split] if split else [], [mixed] if mixed else [], SLO, routing=None).words


def test_a_comparison_tells_its_numbers() -> None:
    found = comparison([other(SPLIT, goodput_s=12.0)], [MIXED], SLO, routing="round_robin")
    assert (found.basis, found.winner) == ("equal routing", "split")
    assert found.margin == pytest.approx(0.5)
    assert "split leads by 50.0% in goodput per GPU" in found.words
    assert "TPOT p90 20 ms" in found.words


def test_the_words_fit_the_outcome() -> None:
    late = other(MIXED, meets_slo=False, ttft=flat(9.0))
    assert words(SPLIT, late).startswith("only split meets the SLO on 4 GPUs: ")
    assert words(other(SPLIT, meets_slo=False), late).startswith(
        "neither meets the SLO on 4 GPUs: "
    )
    assert words(SPLIT, MIXED).startswith("a tie within noise")
    assert words(None, MIXED) == "only mixed was simulated, no split; it meets the SLO"
    assert words(None, None) == "no deployment of either kind could be simulated"
