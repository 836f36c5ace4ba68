"""Tokens of a speculative step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.engine import Engine
from splitpoint.timing.drafts import DEFAULTS, acceptance, expected_tokens, origin, tokens_per_step
from tests.timing.worlds import DENSE


def test_a_chain_of_drafts_by_hand() -> None:
    assert tokens_per_step(()) == 1.0
    assert tokens_per_step((0.8,)) == pytest.approx(1.8)
    assert tokens_per_step((0.8, 0.5, 0.5)) == pytest.approx(1 + 0.8 + 0.4 + 0.2)


def test_the_default_of_mtp_meets_its_published_yield() -> None:
    # Seven drafts of DeepSeek-V3's own layer gave 3.20 tokens a step at temperature 0.
    drafting = replace(DENSE, draft_layers=DENSE.layers[:1])
    assert expected_tokens(Engine(drafts=7), drafting) == pytest.approx(3.20, rel=0.03)


@given(rates=st.lists(st.floats(0, 1), max_size=8))
def test_a_step_yields_between_one_token_and_all_of_them(rates: list[float]) -> None:
    assert 1.0 <= tokens_per_step(rates) <= 1 + len(rates)


def test_what_the_user_measured_goes_before_the_default() -> None:
    engine = Engine(drafts=3, acceptance=(0.9, 0.5))
    assert acceptance(engine, DENSE) == (0.9, 0.5, 0.5)
    assert origin(engine, DENSE).startswith("given")
    assert expected_tokens(Engine(), DENSE) == 1.0


def test_a_model_with_draft_layers_uses_them() -> None:
    drafting = replace(DENSE, draft_layers=DENSE.layers[:1])
    assert acceptance(Engine(drafts=2), drafting) == DEFAULTS["mtp"].rates[:2]
    assert acceptance(Engine(drafts=2), DENSE) == DEFAULTS["ngram"].rates[:2]


def test_a_rate_that_is_no_share_is_refused() -> None:
    with pytest.raises(PlanError, match=r"engine.acceptance\[1\]: 1.5 is not a share"):
        tokens_per_step((0.5, 1.5))
