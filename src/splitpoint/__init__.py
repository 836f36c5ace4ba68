"""Splitpoint: should prefill and decode run on different GPUs, how many, and what breaks first?

The names below are the public ones. Each is loaded when it is first asked for, so that
`import splitpoint` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from splitpoint.errors import OutsideError, PlanError
    from splitpoint.inputs.deployment import Deployment, Pool, Topology
    from splitpoint.inputs.engine import Engine
    from splitpoint.inputs.facts import gpu
    from splitpoint.inputs.gpu import Gpu
    from splitpoint.inputs.huggingface import load_model
    from splitpoint.inputs.model import Model
    from splitpoint.inputs.plan import Plan, read_plan
    from splitpoint.inputs.slo import Slo
    from splitpoint.inputs.trace import Trace
    from splitpoint.inputs.traces import read as read_trace
    from splitpoint.inputs.workload import Workload
    from splitpoint.pricing.audit import audit_files
    from splitpoint.pricing.price import Price, price
    from splitpoint.run import Run
    from splitpoint.sim import World, simulate
    from splitpoint.verdict.answer import Answer, answer

__all__ = [
    "Answer",
    "Deployment",
    "Engine",
    "Gpu",
    "Model",
    "OutsideError",
    "Plan",
    "PlanError",
    "Pool",
    "Price",
    "Run",
    "Slo",
    "Topology",
    "Trace",
    "Workload",
    "World",
    "answer",
    "audit_files",
    "gpu",
    "load_model",
    "price",
    "read_plan",
    "read_trace",
    "simulate",
]

_HOMES = {
    "errors": ("OutsideError", "PlanError"),
    "inputs.deployment": ("Deployment", "Pool", "Topology"),
    "inputs.engine": ("Engine",),
    "inputs.facts": ("gpu",),
    "inputs.gpu": ("Gpu",),
    "inputs.huggingface": ("load_model",),
    "inputs.model": ("Model",),
    "inputs.plan": ("Plan", "read_plan"),
    "inputs.slo": ("Slo",),
    "inputs.trace": ("Trace",),
    "inputs.traces": ("read_trace",),
    "inputs.workload": ("Workload",),
    "pricing.audit": ("audit_files",),
    "pricing.price": ("Price", "price"),
    "run": ("Run",),
    "sim": ("World", "simulate"),
    "verdict.answer": ("Answer", "answer"),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            module = import_module(f"splitpoint.{home}")
            return getattr(module, "read" if name == "read_trace" else name)
    raise AttributeError(f"module 'splitpoint' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
