"""Speculative steps: how many tokens one step yields, given how often drafts are accepted.

Position i of a draft counts only if all before it were accepted, so acceptance is by position
and a step yields 1 + sum over k of the product of the first k rates.
"""

from collections.abc import Sequence

from splitpoint.errors import PlanError
from splitpoint.inputs.drafter import method_of
from splitpoint.inputs.engine import DraftMethod, Engine
from splitpoint.inputs.model import Model
from splitpoint.record import Record


class Acceptance(Record, frozen=True, kw_only=True):
    """Conditional acceptance of draft positions 1, 2, ... with the place it was printed."""

    method: DraftMethod
    rates: tuple[float, ...]
    origin: str


DEFAULTS: dict[DraftMethod, Acceptance] = {
    "mtp": Acceptance(
        method="mtp",
        rates=(0.85, 0.70, 0.60),
        origin="published: position 1 is 85-90% (DeepSeek-V3 report, arXiv 2412.19437, 5.4.3), and "
        "7 drafts of that layer yield 3.20 tokens a step (model card of "
        "nebius/MTP-DeepSeek-V3-0324, 2026), where these rates give 3.27; 3 drafts give "
        "2.80, where those of other models reach 2.3 to 3.4 (InferenceX golden_al_distribution)",
    ),
    "eagle3": Acceptance(
        method="eagle3",
        rates=(0.74, 0.73, 0.76, 0.76, 0.74, 0.74, 0.76),
        origin="published: a chain of 7 for Llama 3.1 8B on MT-bench, greedy, in vLLM reaches "
        "positions 1 to 7 in 74, 54, 41, 31, 23, 17 and 13% of its steps (vllm#26191, 2025-10); "
        "sampled reasoning of gpt-oss-120b in 58, 31, 16, 8% (vLLM 0.17.1), and the EAGLE-3 paper "
        "has 70-80% at every position (arXiv 2503.01840, figure 7)",
    ),
    "ngram": Acceptance(
        method="ngram",
        rates=(0.35, 0.60, 0.65),
        origin="published: 1.55 to 1.74 tokens a step over chat, translation, summaries, "
        "questions, mathematics and retrieval together, Vicuna 7B to 33B (prompt lookup in the "
        "Spec-Bench leaderboard, read 2026-11-30), where three of these give 1.70; edits of given "
        "text reach 2.96 (vllm#24344), translations gain nothing; assumed: how it spreads over "
        "positions",
    ),
    "draft_model": Acceptance(
        method="draft_model",
        rates=(0.56,),
        origin="published: 2.01 to 2.29 tokens a step of a small Vicuna for 7B to 33B ones, greedy "
        "(speculative sampling in the Spec-Bench leaderboard, read 2026-11-30), where 7 of these "
        "give 2.25; assumed: the same at every position. A larger drafter is accepted more often",
    ),
}


_CODING = (
    "published for this model: {0} tokens a step with {1} drafts on SPEED-Bench's coding prompts "
    "while it reasons, sampled (InferenceX golden_al_distribution, read 2026-11-30); {2}"
)
_EVEN = "assumed: the same rate at every position"
# By how a model's name begins, without its publisher. InferenceX has servers accept just as much as
# its golden distributions say; DeepSeek-R1's is what its servers did.
PRINTED: dict[str, Acceptance] = {
    "qwen3.5-397b-a17b": Acceptance(
        method="mtp", rates=(0.891,), origin=_CODING.format("3.39", "3", _EVEN)
    ),
    "deepseek-r1": Acceptance(
        method="mtp",
        rates=(0.81, 0.57, 0.49),
        origin="published for this model: 2.50 tokens a step with 3 drafts, on MT-Bench and on "
        "random tokens behind its chat template (InferenceX pull request 649, 2026-02-05), 81 to "
        "82% of lone drafts (vllm-project/vllm#12755); assumed: the later two fall alike",
    ),
    "deepseek-v4-pro": Acceptance(
        method="mtp", rates=(0.689,), origin=_CODING.format("2.49", "3", _EVEN)
    ),
    "qwen3.8-27b": Acceptance(
        method="mtp", rates=(0.694,), origin=_CODING.format("2.51", "3", _EVEN)
    ),
    "minimax-m3": Acceptance(
        method="eagle3",
        rates=(0.78, 0.77, 0.75, 0.62, 0.78),
        origin=_CODING.format("1.78 to 3.74", "1 to 8", "positions are their differences"),
    ),
}


def default(engine: Engine, model: Model) -> Acceptance:
    """What is taken where nobody measured: what was printed of the model, else of the method."""
    method = method_of(engine, model)
    bare = model.name.rpartition("/")[2].lower()
    printed = next((PRINTED[name] for name in PRINTED if bare.startswith(name)), None)
    return printed if printed is not None and printed.method == method else DEFAULTS[method]


def acceptance(engine: Engine, model: Model) -> tuple[float, ...]:
    """Acceptance of each of the engine's drafts: what the user measured, else the method's
    default, its last rate repeated."""
    given = engine.acceptance or default(engine, model).rates
    return (given + given[-1:] * engine.drafts)[: engine.drafts]


def tokens_per_step(rates: Sequence[float]) -> float:
    """Mean tokens of one step: 1 + sum_k prod_{i <= k} rate_i."""
    for index, rate in enumerate(rates):
        if not 0.0 <= rate <= 1.0:
            raise PlanError(
                f"engine.acceptance[{index}]", f"{rate} is not a share", "a number from 0 to 1"
            )
    total, chain = 1.0, 1.0
    for rate in rates:
        chain *= rate
        total += chain
    return total


def expected_tokens(engine: Engine, model: Model) -> float:
    """Mean tokens that a decode step of this engine yields per sequence."""
    return tokens_per_step(acceptance(engine, model))


def origin(engine: Engine, model: Model) -> str:
    """Where the acceptance comes from."""
    if not engine.drafts:
        return "computed: no drafts"
    if engine.acceptance:
        return "given: engine.acceptance"
    return default(engine, model).origin
