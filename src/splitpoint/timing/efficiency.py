"""How much of a GPU's roofline each kind of operator reaches: surfaces with few coefficients.

seconds = launch + (c^s + m^s + d^s)^(1/s): multiplying c = FLOPs / (peak x compute) x
(1 + pad_rows / rows), moving m = bytes / (bandwidth x memory) x (1 + half_parallel / parallel),
and what neither sees d = serial x depth. Coefficients lie in facts/efficiency, each with its
origin; a GPU without a file of its own takes its architecture's and is marked so.
"""

from functools import cache
from importlib import resources

import msgspec
import numpy as np

from splitpoint.errors import PlanError
from splitpoint.inputs.engine import EngineName
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Dtype
from splitpoint.record import Record
from splitpoint.timing.operators import Array, Kind, Operator


class Surface(Record, frozen=True, kw_only=True):
    """Coefficients of one kind of operator on one GPU; without `dtype` or `engine`: of any.

    `compute` and `memory`: shares of the roofline that large operators reach. `pad_rows`: rows
    that a tile computes beside its own. `half_parallel`: pieces that draw half of the bandwidth.
    `serial`: seconds per unit of depth that one tile takes whatever the rest. `sharpness`: of the
    bend between the bounds. `launch`: seconds. `error_median` and `error_p90`: relative errors on
    `samples` measured rows that the fit did not see.
    """

    kind: Kind
    dtype: Dtype | None = None
    engine: EngineName | None = None
    compute: float
    memory: float
    launch: float
    pad_rows: float = 0.0
    half_parallel: float = 0.0
    serial: float = 0.0
    sharpness: float = 4.0
    samples: int = 0
    error_median: float | None = None
    error_p90: float | None = None
    origin: str


class Efficiency(Record, frozen=True, kw_only=True):
    """All surfaces of one GPU. `donor` stands in for GPUs of its architecture without a file."""

    gpus: tuple[str, ...]
    architecture: str
    donor: bool
    source: str
    surfaces: tuple[Surface, ...]


def efficiency(gpu: Gpu) -> Efficiency:
    """The surfaces of a GPU: its own, else its architecture's donor."""
    own = [e for e in _all() if gpu.name in e.gpus]
    donors = [e for e in _all() if e.donor and e.architecture == gpu.architecture]
    if not own and not donors:
        raise PlanError(
            "gpu.architecture",
            f"no step times are known for {gpu.architecture}",
            f"known: {', '.join(sorted({e.architecture for e in _all()}))}",
        )
    return (own or donors)[0]


def inherited(gpu: Gpu) -> bool:
    """Whether the GPU borrows its architecture's surfaces, scaled by its own roofline."""
    return gpu.name not in efficiency(gpu).gpus


def surface(gpu: Gpu, kind: Kind, dtype: Dtype, engine: EngineName) -> Surface:
    """The surface of one kind of operator: of this dtype on this engine, else on another (they
    share kernel libraries), else of bf16."""
    table = [entry for entry in efficiency(gpu).surfaces if entry.kind == kind]
    return min(
        table,
        key=lambda entry: (
            entry.dtype not in (dtype, None),
            entry.dtype != dtype,
            entry.dtype != "bf16",
            entry.engine != engine,
        ),
    )


def peak(gpu: Gpu, dtype: Dtype) -> float:
    """Dense FLOP/s at which weights of a dtype are multiplied on a GPU.

    Formats without units of their own are widened: int4 to bf16 everywhere, nvfp4 and fp8 to bf16
    on GPUs without such units, mxfp4 weights to fp8 where fp4 units exist (activations stay fp8).
    """
    flops = gpu.flops
    if dtype in ("fp8", "mxfp4") and not (dtype == "mxfp4" and flops.fp4 is None):
        return flops.fp8 or flops.bf16
    if dtype == "nvfp4":
        return flops.fp4 or flops.bf16
    if dtype == "int8":
        return flops.int8 or flops.bf16
    return flops.bf16


def seconds(operator: Operator, gpu: Gpu, engine: EngineName) -> Array:
    """Seconds of all launches of an operator in one step; 0 where it has nothing to do."""
    found = surface(gpu, operator.kind, operator.dtype, engine)
    once = launch_seconds(found, operator, peak(gpu, operator.dtype), gpu.bandwidth)
    return np.asarray(np.where(operator.flops + operator.bytes > 0, operator.count * once, 0.0))


def launch_seconds(found: Surface, operator: Operator, flops: float, bandwidth: float) -> Array:
    """Seconds of one launch on a roofline of `flops` and `bandwidth`."""
    padding = 1.0 + found.pad_rows / np.maximum(operator.rows, 1e-9)
    starved = 1.0 + found.half_parallel / np.maximum(operator.parallel, 1e-9)
    compute = operator.flops / (flops * found.compute) * padding
    memory = operator.bytes / (bandwidth * found.memory) * starved
    serial = found.serial * operator.depth
    if found.sharpness == 1.0:
        return np.asarray(found.launch + compute + memory + serial)
    # Scaled by the largest bound, so that powers neither overflow nor vanish.
    top = np.maximum(np.maximum(compute, memory), np.maximum(serial, 1e-30))
    power = found.sharpness
    bend = (compute / top) ** power + (memory / top) ** power + (serial / top) ** power
    return np.asarray(found.launch + top * bend ** (1.0 / power))


@cache
def _all() -> tuple[Efficiency, ...]:
    folder = resources.files("splitpoint") / "facts" / "efficiency"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return tuple(
        msgspec.toml.decode(f.read_bytes(), type=Efficiency)
        for f in files
        if f.name not in ("host.toml", "links.toml")
    )
