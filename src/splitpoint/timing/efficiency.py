"""How much of a GPU's roofline each kind of operator reaches: surfaces with few coefficients.

seconds = launch x rounds + held x experts + (c^s + m^s + d^s)^(1/s): multiplying c = FLOPs / (peak
x compute) x padding, moving m = bytes / (bandwidth x memory) x starving, and what neither sees d =
serial x depth, each times the bends of its shape and never under the roofline. Coefficients lie in
facts/efficiency, each with its origin; a GPU without a file takes its architecture's and says so.
"""

from functools import cache
from importlib import resources
from typing import Generic, Literal, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from splitpoint.errors import PlanError
from splitpoint.inputs.engine import EngineName
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Dtype
from splitpoint.pricing.engines.rules import Version
from splitpoint.record import Record
from splitpoint.timing.operators import HIDDEN_BYTES, STORED_BYTES, Array, Kind, Operator

# Fits of starving by columns alone say too much of products with few columns and many rows, which
# take at most as long as padded to this many.
NARROW = 1024.0

# Rows of a tile of Marlin's experts: the first of these that the rows listed for an expert fill to
# less than this share, else the last (vLLM 0.24 and SGLang 0.5.14, fused_marlin_moe.py).
TILES = (8.0, 16.0, 32.0, 48.0, 64.0)
FILLED = 0.9

NEWEST = Version(999, 0, 0)

FOLDER = resources.files("splitpoint") / "facts" / "efficiency"

Axis = Literal["rows", "parallel", "depth", "width", "crowd"]


class Bend(Record, frozen=True, kw_only=True):
    """A factor by shape on a surface's `launch`, its `work` or `both`.

    `logs` are its natural logarithms where the `knots` (log2, one list an axis) cross, the last
    axis running fastest; between knots they are interpolated, beyond them they stay.
    """

    of: Literal["launch", "work", "both"]
    axes: tuple[Axis, ...]
    knots: tuple[tuple[float, ...], ...]
    logs: tuple[float, ...]


class Surface(Record, frozen=True, kw_only=True):
    """Coefficients of one kind of operator on one GPU; without `dtype` or `engine`: of any.

    `compute` and `memory`: shares of the roofline that large operators reach. `pad_rows`: rows
    that a tile computes beside its own (padding: 1 + pad_rows / rows). `half_parallel`: pieces that
    draw half of the bandwidth (starving: 1 + half_parallel / parallel).
    `serial`: seconds per unit of depth that one tile takes whatever the rest. `sharpness`: of the
    bend between the bounds. `buffers`: share of the operator's buffer bytes that this kernel moves.
    `spilled`: share of all bytes that it moves again. Where there is a `cache` (bytes), both only
    once the operands no longer fit: none up to 0.7 times as many, all from 1.4 times.
    `held`: seconds for each expert on the rank, reached or not, beside the launch.
    `whole_128`, `whole_256`: shares of the work done in whole tiles of so many rows, which counts
    a last tile as full; `whole_listed`: of tiles that grow with the rows listed for an expert, as
    Marlin's do. `launch`: seconds, and as many again for each `wave` of parallel pieces, whose
    blocks of threads take a while to start and end. `slots`: pieces that the GPU holds at once, of
    at most `tile` heads each: the launch comes again with each round of them, and of the operands
    only a round's lie in the cache. `since` and `before`: versions of its engine that ran this
    kernel, where others run another. `error_median` and `error_p90`: relative errors on `samples`
    measured rows that the fit did not see.
    """

    kind: Kind
    dtype: Dtype | None = None
    engine: EngineName | None = None
    since: tuple[int, ...] = ()
    before: tuple[int, ...] = ()
    compute: float
    memory: float
    launch: float
    wave: float = 0.0
    pad_rows: float = 0.0
    half_parallel: float = 0.0
    serial: float = 0.0
    sharpness: float = 4.0
    buffers: float = 0.0
    spilled: float = 0.0
    cache: float = 0.0
    held: float = 0.0
    whole_128: float = 0.0
    whole_256: float = 0.0
    whole_listed: float = 0.0
    slots: float = 0.0
    tile: float = 0.0
    bends: tuple[Bend, ...] = ()
    samples: int = 0
    error_median: float | None = None
    error_p90: float | None = None
    origin: str

    @property
    def bandwidth(self) -> float:
        """The share of the bandwidth at which large operands are moved, out of every cache."""
        return min(1.0, 1.0 / (1.0 / self.memory + self.spilled))


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Whose surfaces a file has, and what they rest on. `donor` stands in for GPUs of its
    architecture without a file."""

    gpus: tuple[str, ...]
    architecture: str
    donor: bool
    source: str


class Efficiency(Head, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All surfaces of one GPU."""

    surfaces: tuple[Surface, ...]


def efficiency(gpu: Gpu) -> Efficiency:
    """The surfaces of a GPU, its own or its architecture's donor's: parsed whole, which takes many
    times as long as the few that a step needs."""
    return _whole(_file(gpu.name, gpu.architecture))


def head(gpu: Gpu) -> Head:
    """Whose surfaces a GPU has, and what they rest on."""
    return _heads()[_file(gpu.name, gpu.architecture)]


def inherited(gpu: Gpu) -> bool:
    """Whether the GPU borrows its architecture's surfaces, scaled by its own roofline."""
    return gpu.name not in head(gpu).gpus


def surface(
    gpu: Gpu, kind: Kind, dtype: Dtype, engine: EngineName, version: Version = NEWEST
) -> Surface:
    """The surface of one kind of operator: of this dtype on this engine, else on another (they
    share kernel libraries), else of bf16."""
    return _nearest(_file(gpu.name, gpu.architecture), kind, dtype, engine, version)


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


def seconds(operator: Operator, gpu: Gpu, engine: EngineName, version: Version = NEWEST) -> Array:
    """Seconds of all launches of an operator in one step; 0 where it has nothing to do."""
    if operator.name.startswith("shared."):
        # A version's slow products are not theirs: on AMD's GPUs SGLang computes a shared expert as
        # one more routed one (`num_fused_shared_experts`, models/deepseek_v2.py).
        version = NEWEST
    found = surface(gpu, operator.kind, operator.dtype, engine, version)
    taken = seconds_on(found, operator, gpu)
    if operator.kind == "gemm" and np.any(np.less(operator.parallel, NARROW)):
        return np.minimum(taken, seconds_on(found, _padded(operator), gpu))
    return taken


def seconds_on(found: Surface, operator: Operator, gpu: Gpu) -> Array:
    """The same on a known surface, however narrow the operator is."""
    busy = operator.flops + operator.bytes > 0
    if not busy.any():
        return np.zeros(busy.shape)
    once = launch_seconds(found, operator, peak(gpu, operator.dtype), gpu.bandwidth)
    return np.asarray(np.where(busy, operator.count * once, 0.0))


def _padded(product: Operator) -> Operator:
    """A matrix product with columns of nothing up to `NARROW`."""
    column = product.rows * HIDDEN_BYTES + product.depth * STORED_BYTES[product.dtype]
    more = np.maximum(NARROW - np.asarray(product.parallel), 0.0)
    return replace(
        product,
        flops=product.flops + 2.0 * product.rows * product.depth * more,
        bytes=product.bytes + more * column,
        parallel=np.maximum(product.parallel, NARROW),
    )


def launch_seconds(found: Surface, operator: Operator, flops: float, bandwidth: float) -> Array:
    """Seconds of one launch on a roofline of `flops` and `bandwidth`."""
    launch: Array | float = 1.0
    work: Array | float = 1.0
    for entry in found.bends:
        factor = np.exp(log_factor(entry, operator))
        launch = launch * factor if entry.of != "work" else launch
        work = work * factor if entry.of != "launch" else work
    return bent_seconds(found, operator, flops, bandwidth, launch=launch, work=work)


def bent_seconds(
    found: Surface,
    operator: Operator,
    flops: float,
    bandwidth: float,
    *,
    launch: Array | float,
    work: Array | float,
) -> Array:
    """Seconds of one launch whose launch and work are multiplied by what its bends say."""
    rows = np.maximum(operator.rows, 1e-9)
    padding = 1.0 + found.pad_rows / rows
    for tile, share in ((128, found.whole_128), (256, found.whole_256)):
        if share:
            padding = padding + share * (np.ceil(rows / tile) * tile / rows - 1.0)
    if found.whole_listed:
        padding = padding + found.whole_listed * (in_whole_tiles(operator) / rows - 1.0)
    starved = 1.0 + found.half_parallel / np.maximum(operator.parallel, 1e-9)
    multiply, move = operator.flops / flops, operator.bytes / bandwidth
    compute = np.maximum(multiply / found.compute * padding * work, multiply)
    memory = move / found.memory * starved * work
    again = found.buffers * operator.buffers + found.spilled * operator.bytes
    pieces: Array | float = np.maximum(operator.parallel, 1e-9)
    if found.tile:
        pieces = pieces * np.ceil(np.maximum(operator.held, 1.0) / found.tile)
    if found.cache:
        # What fits is read from the cache: only the whole is held to the roofline, below.
        held = operator.bytes
        if found.slots:
            held = held * np.minimum(found.slots / pieces, 1.0)
        octaves = np.log2(np.maximum(held, 1.0) / found.cache)
        again = again * np.minimum(np.maximum(octaves + 0.5, 0.0), 1.0)
    else:
        memory = np.maximum(memory, move)
    memory = memory + again / bandwidth * work
    serial = found.serial * operator.depth * work
    first: Array | float = found.launch * launch
    if found.wave:
        first = first * (1.0 + operator.parallel / found.wave)
    if found.slots:
        first = first * np.ceil(pieces / found.slots)
    first = first + found.held * operator.held
    if found.sharpness == 1.0:
        return np.asarray(np.maximum(first + compute + memory + serial, move))
    # Scaled by the largest bound, so that powers neither overflow nor vanish.
    top = np.maximum(np.maximum(compute, memory), np.maximum(serial, 1e-30))
    power = found.sharpness
    bend = (compute / top) ** power + (memory / top) ** power + (serial / top) ** power
    return np.asarray(np.maximum(first + top * bend ** (1.0 / power), move))


def in_whole_tiles(operator: Operator) -> Array:
    """Rows an expert takes in whole tiles, mean over rows of a standard deviation of `spread`."""
    rows = np.maximum(operator.rows, 1e-9)
    # Never a tile that an expert's own rows overflow while a larger one is left.
    sizes = np.searchsorted(TILES, np.maximum(operator.listed, rows) / FILLED, side="right")
    tile = np.asarray(TILES)[np.minimum(sizes, len(TILES) - 1)]
    share = rows / tile
    if not np.any(operator.spread):
        return np.asarray(np.ceil(share) * tile)
    # Tile k + 1 is taken by what exceeds k tiles: a normal number's share of that, by the logistic
    # curve nearest to it (off by 0.01 at most). Half a tile of deviation hides where tiles end.
    width = np.minimum(np.maximum(operator.spread / tile, 1e-3), 0.5) / 1.702
    full = np.maximum(np.floor(share) - 3.0, 0.0)
    tiles = 1.0 + full
    for more in range(1, 9):
        tiles = tiles + 1.0 / (1.0 + np.exp(np.minimum((full + more - share) / width, 700.0)))
    return np.asarray(tiles * tile)


def log_factor(entry: Bend, operator: Operator) -> Array:
    """The logarithm of a bend's factor at every shape of an operator."""
    values = {
        "rows": operator.rows,
        "parallel": operator.parallel,
        "depth": operator.depth,
        "width": operator.width,
        "crowd": operator.crowd,
    }
    table = np.asarray(entry.logs).reshape([len(knots) for knots in entry.knots])
    corners: list[tuple[Array | float, tuple[NDArray[np.int64], ...]]] = [(1.0, ())]
    kept = 0
    for axis, ticks in zip(entry.axes, entry.knots, strict=True):
        knots = np.asarray(ticks)
        place = np.log2(np.maximum(values[axis], 1e-9))
        # np.clip costs several times as much as these two.
        place = np.minimum(np.maximum(place, ticks[0]), ticks[-1])
        left = np.searchsorted(knots[1:-1], place, side="right")
        low = knots[left]
        share = (place - low) / (knots[left + 1] - low)
        if not np.ndim(place):
            # One value for all shapes: the axis is gone, and with it half of the corners.
            table = table.take(left, kept) * (1.0 - share) + table.take(left + 1, kept) * share
            continue
        kept += 1
        corners = [
            (weight * part, (*index, left + side))
            for weight, index in corners
            for side, part in ((0, 1.0 - share), (1, share))
        ]
    return np.asarray(sum(weight * table[index] for weight, index in corners))


# A file is its head and then one line for each surface, whose key comes before its coefficients.
SURFACES = "surfaces = ["
COEFFICIENTS = ", compute = "


class _Key(msgspec.Struct, frozen=True, kw_only=True):
    """What tells the surfaces of a file apart."""

    kind: Kind
    dtype: Dtype | None = None
    engine: EngineName | None = None
    since: tuple[int, ...] = ()
    before: tuple[int, ...] = ()

    def ran(self, engine: EngineName, version: Version) -> bool:
        """Whether a version of an engine ran this kernel, if it is one of some versions only."""
        if not self.before:
            return True
        return self.engine == engine and self.since <= version[:3] < self.before


T = TypeVar("T")


class _Listed(msgspec.Struct, Generic[T], frozen=True):
    surfaces: tuple[T, ...]


@cache
def _file(name: str, architecture: str) -> str:
    """The file with a GPU's surfaces: its own, else its architecture's donor."""
    own = [file for file, head in _heads().items() if name in head.gpus]
    donors = [f for f, head in _heads().items() if head.donor and head.architecture == architecture]
    if not own and not donors:
        raise PlanError(
            "gpu.architecture",
            f"no step times are known for {architecture}",
            f"known: {', '.join(sorted({head.architecture for head in _heads().values()}))}",
        )
    return (own or donors)[0]


@cache
def _heads() -> dict[str, Head]:
    files = sorted(file.name for file in FOLDER.iterdir() if file.name.endswith(".toml"))
    return {
        file: msgspec.toml.decode(_text(file).partition(SURFACES)[0], type=Head)
        for file in files
        if file not in ("host.toml", "links.toml")
    }


@cache
def _text(file: str) -> str:
    return (FOLDER / file).read_text("utf-8")


@cache
def _whole(file: str) -> Efficiency:
    return msgspec.toml.decode(_text(file), type=Efficiency)


@cache
def _lines(file: str) -> dict[_Key, str]:
    """The line of each surface of a file."""
    lines = _text(file).partition(SURFACES)[2].strip().splitlines()[:-1]
    keys = "".join(f"{line.partition(COEFFICIENTS)[0]} }}," for line in lines)
    found = msgspec.toml.decode(f"{SURFACES}{keys}]", type=_Listed[_Key]).surfaces
    return dict(zip(found, lines, strict=True))


@cache
def _nearest(file: str, kind: Kind, dtype: Dtype, engine: EngineName, version: Version) -> Surface:
    lines = _lines(file)
    nearest = min(
        (key for key in lines if key.kind == kind and key.ran(engine, version)),
        key=lambda key: (
            key.dtype not in (dtype, None),
            key.dtype != dtype,
            key.dtype != "bf16",
            key.engine != engine,
        ),
    )
    return _parsed(lines[nearest])


@cache
def _parsed(line: str) -> Surface:
    return msgspec.toml.decode(f"{SURFACES}{line}]", type=_Listed[Surface]).surfaces[0]
