"""Engines: what each would choose by itself, and its memory rules, one module an engine.

Every module has the same four functions; this one picks the module by the engine's name.
"""

from types import ModuleType
from typing import Protocol, cast

from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.drafter import draft_layers, method_of
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Model
from splitpoint.pricing.engines import sglang, trtllm, vllm
from splitpoint.pricing.engines.rules import Rules

__all__ = ["Rules", "capture_sizes", "decode_sizes", "prefill_sizes", "resolved", "rules"]


class _Module(Protocol):
    def resolved(
        self, engine: Engine, gpu: Gpu | None, topology: Topology, model: Model
    ) -> Engine: ...
    def rules(self, engine: Engine, topology: Topology) -> Rules: ...
    def capture_sizes(self, engine: Engine) -> tuple[int, ...]: ...
    def decode_sizes(self, engine: Engine) -> tuple[int, ...]: ...


def resolved(engine: Engine, gpu: Gpu | None, topology: Topology, model: Model) -> Engine:
    """The engine with every None filled as it would choose by itself on this GPU."""
    if engine.schedule_policy != "fcfs" and engine.name != "sglang":
        what = f"{engine.schedule_policy} with {engine.name}"
        raise PlanError("engine.schedule_policy", what, "fcfs, or the engine sglang")
    if engine.mixed_chunk and engine.name != "sglang":
        raise PlanError("engine.mixed_chunk", f"true with {engine.name}", "false, or sglang")
    if engine.mixed_chunk and topology.pp > 1:
        # server_args.py refuses both at once.
        raise PlanError("engine.mixed_chunk", f"true with pp {topology.pp}", "false, or pp 1")
    if engine.graph_sizes:
        engine = replace(engine, max_graph=max(engine.graph_sizes))
    return _module(engine).resolved(_drafting(engine, model), gpu, topology, model)


def rules(engine: Engine, topology: Topology) -> Rules:
    """The engine's memory rules for its version and settings."""
    return _module(engine).rules(engine, topology)


def capture_sizes(engine: Engine) -> tuple[int, ...]:
    """Batch sizes, in tokens and ascending, that a resolved engine captures CUDA graphs for."""
    return _module(engine).capture_sizes(engine)


def decode_sizes(engine: Engine) -> tuple[int, ...]:
    """Capture sizes, in tokens and ascending, of pure decode steps."""
    return _module(engine).decode_sizes(engine)


def prefill_sizes(engine: Engine) -> tuple[int, ...]:
    """Capture sizes, in tokens and ascending, of steps with prefill; none where they run eagerly:
    in vLLM without piecewise graphs, and in the others (SGLang captures none by default up to
    0.5.4, sgl-project/sglang#12160; TensorRT-LLM assumed)."""
    if engine.name != "vllm" or engine.graph_mode == "full_decode_only":
        return ()
    return capture_sizes(engine)


def _drafting(engine: Engine, model: Model) -> Engine:
    """The engine with its draft method, which the model must have."""
    if not engine.drafts:
        return engine
    method = method_of(engine, model)
    if method != "ngram" and not draft_layers(engine, model):
        hint = f"{method_of(Engine(), model)}, or name a draft_model"
        raise PlanError(
            "engine.draft_method", f"{model.name} does not draft by {engine.draft_method}", hint
        )
    # vLLM 0.32 says at start-up that n-gram drafts turn asynchronous scheduling off.
    overlapped = engine.async_scheduling and not (engine.name == "vllm" and method == "ngram")
    return replace(engine, draft_method=method, async_scheduling=overlapped)


def _module(engine: Engine) -> _Module:
    modules: dict[str, ModuleType] = {"vllm": vllm, "sglang": sglang, "trtllm": trtllm}
    return cast(_Module, modules[engine.name])
