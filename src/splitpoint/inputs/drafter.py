"""What drafts for a model: its own layers, an EAGLE-3 head, a smaller model, or the text before.

An engine names a method and, for a head or a model, where it is described; here both meet the
model that is served. One method serves a deployment: prefill and decode must agree on it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.engine import DraftMethod
from splitpoint.inputs.model import Attention, Layer, Mlp, Model

if TYPE_CHECKING:
    from splitpoint.inputs.plan import DeploymentPlan, Plan

# The head of a model whose checkpoint is not named. Published heads (configs of SpecForge, read
# 2026-11-30: Llama 3 8B and 70B, Qwen3 30B and 235B, Kimi K2, DeepSeek R1) are one Llama layer as
# wide as the target, with the target's heads or, beside latent attention, heads of 128; their
# feed-forwards are 2.6 to 6 times as wide, half of them below 3.5; all draft 32,000 tokens.
WIDTH = 3.5
VOCAB = 32_000
# Of a model without plain attention (Kimi K2's head has 64 of 64, DeepSeek R1's 32 of 8; assumed).
LATENT_HEADS = Attention(heads=64, kv_heads=8, head_dim=128, value_dim=128)
FUSED_LAYERS = 3


class Drafting(Protocol):
    """What an engine and a plan's engine table both say of drafts."""

    @property
    def draft_method(self) -> DraftMethod | None: ...
    @property
    def draft_model(self) -> str | None: ...


def model_of(asked: "Plan | DeploymentPlan") -> Model:
    """The model of a plan or a deployment, with what drafts for it."""
    # Only here: what merely asks for a method needs no reader of configurations or plans.
    from splitpoint.inputs.huggingface import load_model
    from splitpoint.inputs.plan import DeploymentPlan

    pools = asked.deployment.pools if isinstance(asked, DeploymentPlan) else (asked,)
    return with_drafter(load_model(asked.model), [pool.engine for pool in pools])


def with_drafter(model: Model, engines: Sequence[Drafting]) -> Model:
    """The model with the head or smaller model that its engines draft with."""
    asked = {(e.draft_method, e.draft_model) for e in engines} - {(None, None)}
    if len(asked) > 1:
        names = sorted(f"{method or 'any'} {source or ''}".strip() for method, source in asked)
        raise PlanError("engine.draft_method", f"differs: {', '.join(names)}", "one for all pools")
    method, source = asked.pop() if asked else (None, None)
    if source is None:
        return replace(model, drafter=assumed_head(model)) if method == "eagle3" else model
    if method in ("mtp", "ngram"):
        what = f"{method} drafts without a model of its own"
        raise PlanError("engine.draft_model", what, "leave one of them out")
    from splitpoint.inputs.huggingface import load_model

    found = load_model(source)
    kind: DraftMethod = "eagle3" if found.fused else "draft_model"
    if method not in (None, kind):
        what = f"{method} does not draft with {found.name}"
        raise PlanError("engine.draft_method", what, kind)
    if found.fused and found.fused % model.hidden:
        what = f"{found.name} reads hidden states of {found.fused:,} columns"
        raise PlanError(
            "engine.draft_model", what, f"a head for {model.name}, whose states have {model.hidden}"
        )
    return replace(model, drafter=found)


def assumed_head(model: Model) -> Model:
    """An EAGLE-3 head of the published shape, for a model whose own is not named."""
    mixers = (layer.mixer for layer in model.layers)
    plain = next((m for m in mixers if isinstance(m, Attention)), LATENT_HEADS)
    attention = Attention(
        heads=plain.heads,
        kv_heads=plain.kv_heads,
        head_dim=plain.head_dim,
        value_dim=plain.value_dim,
        joined=True,
    )
    # Whole blocks of 256 columns, so that any tensor parallel degree divides them.
    width = round(WIDTH * model.hidden / 256) * 256 or 256
    return Model(
        name=f"EAGLE-3 head for {model.name}",
        layers=(Layer(mixer=attention, ffn=Mlp(width=width)),),
        hidden=model.hidden,
        vocab=min(VOCAB, model.vocab),
        max_len=model.max_len,
        rotary_dim=attention.head_dim,
        fused=FUSED_LAYERS * model.hidden,
        inferred=("EAGLE-3 head: no draft_model is named; one layer of the published shape",),
    )


def method_of(engine: Drafting, model: Model) -> DraftMethod:
    """How an engine drafts: as it is told, else with what the model has."""
    if engine.draft_method is not None:
        return engine.draft_method
    if model.drafter is not None:
        return "eagle3" if model.drafter.fused else "draft_model"
    return "mtp" if model.draft_layers else "ngram"


def draft_layers(engine: Drafting, model: Model) -> tuple[Layer, ...]:
    """The layers that draft, one draft step's worth; none where the text before does."""
    method = method_of(engine, model)
    if method == "mtp":
        return model.draft_layers
    if method == "ngram" or model.drafter is None:
        return ()
    return model.drafter.layers
