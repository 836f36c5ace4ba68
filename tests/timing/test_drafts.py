"""Tokens of a speculative step."""

from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.engine import DraftMethod, Engine
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


def test_the_default_of_eagle3_meets_the_positions_and_lengths_it_was_printed_with() -> None:
    # vllm-project/vllm#26191 and #20780: Llama 3.1 8B on MT-bench, greedy.
    engine = Engine(drafts=7, draft_method="eagle3")
    reached = list(accumulate(acceptance(engine, DENSE), mul))
    assert reached == pytest.approx([0.74, 0.54, 0.41, 0.31, 0.23, 0.17, 0.13], abs=0.01)
    lengths = {k: expected_tokens(replace(engine, drafts=k), DENSE) for k in range(2, 8)}
    printed = {2: 2.36, 3: 2.79, 4: 3.08, 5: 3.32, 6: 3.46, 7: 3.54}
    assert lengths == pytest.approx(printed, rel=0.04)


@pytest.mark.parametrize(
    ("name", "method", "printed"),
    [
        ("Qwen/Qwen3.5-397B-A17B", "mtp", {3: 3.39}),
        ("deepseek-ai/DeepSeek-V4-Pro", "mtp", {3: 2.49}),
        ("Qwen/Qwen3.8-27B-FP8", "mtp", {3: 2.51}),
        ("MiniMaxAI/MiniMax-M3", "eagle3", {1: 1.78, 2: 2.38, 3: 2.83, 4: 3.11, 5: 3.35, 8: 3.74}),
    ],
)
def test_what_was_printed_of_a_model_goes_before_its_method(
    name: str, method: DraftMethod, printed: dict[int, float]
) -> None:
    # InferenceX, golden_al_distribution, read 2026-11-30: tokens a step by drafts.
    model = replace(DENSE, name=name, draft_layers=DENSE.layers[:1])
    for drafts, tokens in printed.items():
        engine = Engine(drafts=drafts, draft_method=method)
        assert expected_tokens(engine, model) == pytest.approx(tokens, rel=0.01)
        assert origin(engine, model).startswith("published for this model")
    # Of its other methods nothing was printed.
    ngram = Engine(drafts=2, draft_method="ngram")
    assert acceptance(ngram, model) == DEFAULTS["ngram"].rates[:2]


def test_the_defaults_without_trained_layers_lie_in_the_printed_range() -> None:
    # The Spec-Bench leaderboard, read 2026-11-30: prompt lookup and speculative sampling.
    ngram = expected_tokens(Engine(drafts=3, draft_method="ngram"), DENSE)
    model = expected_tokens(Engine(drafts=7, draft_method="draft_model"), DENSE)
    assert 1.55 <= ngram <= 1.74
    assert 2.01 <= model <= 2.29


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
