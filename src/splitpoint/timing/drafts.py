"""Speculative steps: how many tokens one step yields, given how often drafts are accepted.

Position i of a draft counts only if all before it were accepted, so acceptance is by position
and a step yields 1 + sum over k of the product of the first k rates.
"""

from collections.abc import Sequence
from typing import Literal

from splitpoint.errors import PlanError
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.model import Model
from splitpoint.record import Record

Method = Literal["mtp", "eagle3", "ngram"]


class Acceptance(Record, frozen=True, kw_only=True):
    """Conditional acceptance of draft positions 1, 2, ... with the place it was printed."""

    method: Method
    rates: tuple[float, ...]
    origin: str


DEFAULTS: dict[Method, Acceptance] = {
    "mtp": Acceptance(
        method="mtp",
        rates=(0.85, 0.70, 0.60),
        origin="published: position 1 is 85-90% (DeepSeek-V3 report, arXiv 2412.19437, 5.4.3), and "
        "7 drafts of that layer yield 3.20 tokens a step (model card of "
        "nebius/MTP-DeepSeek-V3-0324, 2026), where these rates give 3.27",
    ),
    "eagle3": Acceptance(
        method="eagle3",
        rates=(0.75, 0.72, 0.70, 0.68, 0.66),
        origin="published: 0.7-0.8 and nearly flat over positions in EAGLE-3 (arXiv 2503.01840, "
        "figure 7); assumed: the values inside that band",
    ),
    "ngram": Acceptance(
        method="ngram",
        rates=(0.35, 0.60, 0.65),
        origin="assumed: few prompts repeat themselves, and a match that starts tends to go on",
    ),
}


def method(model: Model) -> Method:
    """How a model drafts by default: with its own layers, else from the text before."""
    return "mtp" if model.draft_layers else "ngram"


def acceptance(engine: Engine, model: Model) -> tuple[float, ...]:
    """Acceptance of each of the engine's drafts: what the user measured, else the method's
    default, its last rate repeated."""
    given = engine.acceptance or DEFAULTS[method(model)].rates
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
    return DEFAULTS[method(model)].origin
