"""How much of a GPU's roofline each kind of operator reaches: surfaces with few coefficients.

seconds = launch + (c^s + m^s)^(1/s), c = FLOPs / (peak x compute x fill),
m = bytes / (bandwidth x memory x spread)

`fill` is the share of a wave of tiles that a small product leaves busy, `spread` the share of the
memory system that few sequences keep busy. Coefficients lie in facts/efficiency, each with its
origin; a GPU without a file of its own takes its architecture's and is marked so.
"""

from functools import cache
from importlib import resources

import msgspec
import numpy as np

from splitpoint.errors import PlanError
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Dtype
from splitpoint.record import Record
from splitpoint.timing.operators import Array, Kind, Operator


class Surface(Record, frozen=True, kw_only=True):
    """Coefficients of one kind of operator (at one weight or cache dtype; None: every other).

    `compute` and `memory`: shares of the roofline at the limit. `tile_rows`: rows that one tile
    of the product pads up to. `half_rows`, `half_bytes`: rows and bytes at which half of the
    limit is reached. `sharpness` s of the bend between the two bounds. `launch`: seconds.
    """

    kind: Kind
    dtype: Dtype | None = None
    compute: float
    memory: float
    launch: float
    half_rows: float = 0.0
    half_sequences: float = 0.0
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


def surface(gpu: Gpu, kind: Kind, dtype: Dtype) -> Surface:
    """The surface of one kind of operator at one dtype."""
    table = efficiency(gpu).surfaces
    exact = [s for s in table if s.kind == kind and s.dtype == dtype]
    broad = [s for s in table if s.kind == kind and s.dtype is None]
    return (exact or broad)[0]


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


def seconds(operator: Operator, gpu: Gpu) -> Array:
    """Seconds of all launches of an operator in one step; 0 where it has nothing to do."""
    found = surface(gpu, operator.kind, operator.dtype)
    rows = np.maximum(operator.rows, 1e-9)
    fill = rows / (rows + found.half_rows)
    parallel = np.maximum(operator.rows * operator.width, 1e-9)
    spread = parallel / (parallel + found.half_sequences)
    compute = operator.flops / (peak(gpu, operator.dtype) * found.compute * fill)
    memory = operator.bytes / (gpu.bandwidth * found.memory * spread)
    s = found.sharpness
    # Scaled by the larger bound, so that powers neither overflow nor vanish.
    larger = np.maximum(np.maximum(compute, memory), 1e-30)
    bend = larger * ((compute / larger) ** s + (memory / larger) ** s) ** (1.0 / s)
    busy = operator.count * (found.launch + bend)
    return np.asarray(np.where(operator.flops + operator.bytes > 0, busy, 0.0))


@cache
def _all() -> tuple[Efficiency, ...]:
    folder = resources.files("splitpoint") / "facts" / "efficiency"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return tuple(
        msgspec.toml.decode(f.read_bytes(), type=Efficiency)
        for f in files
        if f.name not in ("host.toml", "links.toml")
    )
