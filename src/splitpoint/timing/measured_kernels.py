"""Kernel times straight from measured tables: a fitted surface, bent through every measured shape.

Each shape that a table of the `aic` extra lists gives the surface of its kind bends whose knots are
the measured counts (rows, sequences, tokens): there it takes what was measured, between them it is
interpolated in logarithms, beyond them it keeps the last ratio. What no table lists stays fitted.
"""

import hashlib
import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from splitpoint.errors import OutsideError, PlanError
from splitpoint.inputs import facts, files
from splitpoint.inputs.engine import USUAL_VERSIONS, Engine, EngineName
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Dtype
from splitpoint.record import Record
from splitpoint.timing import efficiency, kernel_tables
from splitpoint.timing.efficiency import Axis, Bend, Surface, launch_seconds, peak
from splitpoint.timing.kernel_tables import GPUS, TABLES, UNTUNED, Samples, every_version, part
from splitpoint.timing.operators import Array, Kind, Operator

# What tells the shapes of a kind apart, beside the count that its table runs through.
KEYS: dict[Kind, tuple[str, ...]] = {
    "gemm": ("parallel", "depth"),
    "experts": ("held", "depth", "width"),
    "prefill_attention": ("held", "rows", "width"),
    "decode_attention": ("held", "rows", "width"),
    "prefill_latent": ("held",),
    "decode_latent": ("held", "rows"),
    "prefill_sparse": ("held", "width"),
    "decode_sparse": ("held", "rows", "width"),
    "prefill_state": ("held", "parallel"),
    "decode_state": ("held", "rows"),
}
WALKS = ("attention", "latent", "sparse")  # endings of the kinds that walk a context
# Few rows of a count do not tell a line's two factors apart: each is drawn to what both are
# together, as by one more row that weighs this much, and stays within so many times of it, so that
# it has a logarithm (assumed; ten times as much changes no median error by more than half a point).
ALIKE = 0.01
FARTHEST = 5.0

Key = tuple[float, ...]


class Shape(Record, frozen=True, kw_only=True):
    """What a table says of the kernels of one shape: bends on the fitted surface of its kind, and
    the version of an engine that was measured."""

    key: Key
    bends: tuple[Bend, ...]
    source: str = ""


class Found(Record, frozen=True, kw_only=True):
    """The surface for one operator; the bends by which it takes what was measured, and of which
    version; none where it is as fitted."""

    surface: Surface
    bends: tuple[Bend, ...] = ()
    source: str = ""

    def inside(self, operator: Operator) -> NDArray[np.bool_]:
        """Where the operator's counts lie among the measured ones, not beyond them."""
        within = np.full(operator.flops.shape, bool(self.bends))
        for bend in self.bends:
            for axis, knots in zip(bend.axes, bend.knots, strict=True):
                place = np.log2(np.maximum(_column(operator, axis), 1e-9))
                within &= (place >= knots[0] - 1e-9) & (place <= knots[-1] + 1e-9)
        return within


class Wanted(NamedTuple):
    """Which tables: for the surface of a GPU, kind, dtype and engine, of the version nearest to
    this one ("": the newest), and of lines the rows of contexts up to `longest` (0: all)."""

    gpu: str
    kind: Kind
    dtype: Dtype
    engine: EngineName
    version: str
    longest: int


def surface(operator: Operator, gpu: Gpu, engine: Engine) -> Found:
    """The surface of an operator, bent through the measured rows of its shape, where its engine (or
    the one that its fitted surface is of) has any in its dtype."""
    plain = efficiency.surface(gpu, operator.kind, operator.dtype, engine.name)
    if operator.kind not in KEYS or plain.dtype != operator.dtype or plain.engine is None:
        return Found(surface=plain)
    wanted = Wanted(
        gpu=gpu.name,
        kind=operator.kind,
        dtype=operator.dtype,
        engine=plain.engine,
        version=_stated(engine) if plain.engine == engine.name else "",
        longest=_covering(engine.max_len) if operator.kind.endswith(WALKS) else 0,
    )
    return _found(wanted, tuple(_first(operator, name) for name in KEYS[operator.kind]))


def check(gpu: Gpu) -> None:
    """Raise a PlanError where no tables are installed, or they hold no kernel of a GPU."""
    if not folder().is_dir():
        raise PlanError("engine.kernels", f"{folder()} is missing", 'pip install "splitpoint[aic]"')
    if gpu.name not in GPUS:
        raise PlanError(
            "engine.kernels",
            f"no kernel of {gpu.name} was measured",
            f'"fitted", or one of {", ".join(GPUS)}',
        )


def folder() -> Path:
    """Where the measured tables lie."""
    spec = find_spec("aiconfigurator_core")
    if spec is None or spec.origin is None:
        raise PlanError(
            "engine.kernels",
            '"measured" needs the tables of aiconfigurator-core, which is not installed',
            'pip install "splitpoint[aic]"',
        )
    return Path(spec.origin).parent / "systems" / "data"


def shapes(found: Samples, plain: Surface, gpu: Gpu) -> tuple[Shape, ...]:
    """The bends on a fitted surface of every shape that is measured at two counts or more; no
    layer of experts that no kernel was tuned for."""
    if plain.kind.endswith(WALKS):
        return tuple(_lines(found, plain, gpu))
    return tuple(_counted(found, plain, gpu))


def _counted(found: Samples, plain: Surface, gpu: Gpu) -> Iterator[Shape]:
    """Shapes of kinds that walk no context: one factor a count."""
    operator = found.operator
    axis: Axis = "parallel" if operator.kind in ("experts", "decode_state") else "rows"
    guess = launch_seconds(plain, operator, peak(gpu, operator.dtype), gpu.bandwidth)
    # What each expert on the rank takes, reached or not, no bend multiplies.
    fixed = plain.held * _column(operator, "held")
    guess = np.log(guess - fixed)
    seconds = np.log(np.maximum(found.seconds - fixed, found.seconds / FARTHEST))
    counts = _column(operator, axis)
    if operator.kind == "experts":
        # Tables deal tokens out evenly: each to an expert of its own, until all are reached.
        counts = operator.rows * counts
    for key, rows in _groups(_columns(operator, KEYS[operator.kind])):
        places, index = np.unique(counts[rows], return_inverse=True)
        if len(places) < 2:
            continue
        size = np.bincount(index).astype(np.float64)
        near = np.bincount(index, guess[rows]) / size
        logs = risen(np.bincount(index, seconds[rows]) / size, size) - near
        if operator.kind != "experts":
            yield Shape(key=key, bends=(_bend("both", axis, np.log2(places), logs),))
        elif np.median(logs) < np.log(UNTUNED):
            held, _, width = key
            yield Shape(key=key, bends=_reached(np.log2(places / width), logs, held, width))


def _reached(pairs: Array, logs: Array, held: float, width: float) -> tuple[Bend, ...]:
    """Bends of a layer of experts from the log2 of its pairs: along the experts that are reached,
    then along the pairs of each."""
    full = np.log2(held)
    first = np.union1d(pairs[pairs < full], full)
    more = np.union1d(full, pairs[pairs > full])
    along = np.interp(first, pairs, logs)
    beyond = np.interp(more, pairs, logs)
    bends = []
    if len(first) > 1:
        bends.append(_bend("both", "parallel", first + np.log2(width), along))
    if len(more) > 1:
        bends.append(_bend("both", "rows", more - full, beyond - beyond[0] * (len(first) > 1)))
    return tuple(bends)


def _lines(found: Samples, plain: Surface, gpu: Gpu) -> Iterator[Shape]:
    """Shapes of kinds that walk a context: a line in it for each count, so one factor on what the
    surface says of a launch and one on its work, of least squared relative error."""
    operator, top = found.operator, peak(gpu, found.operator.dtype)
    nothing = np.zeros_like(operator.flops)
    idle = replace(operator, flops=nothing, bytes=nothing, depth=nothing, buffers=nothing)
    launch = launch_seconds(plain, idle, top, gpu.bandwidth)
    guess = launch_seconds(plain, operator, top, gpu.bandwidth)
    counts = _column(operator, "parallel")
    keys = _columns(operator, KEYS[operator.kind])
    groups, index = np.unique(np.column_stack([keys, counts]), axis=0, return_inverse=True)
    index = index.ravel()

    def total(values: Array) -> Array:
        return np.asarray(np.bincount(index, values), np.float64)

    size = total(np.ones_like(counts))
    both = np.exp(total(np.log(found.seconds / guess)) / size)
    scale = both[index] / found.seconds
    x, y = launch * scale, (guess - launch) * scale
    # Least squares of a x + b y = 1 with a and b near 1.
    xx, yy, xy = total(x * x), total(y * y), total(x * y)
    sum_x, sum_y = total(x) + ALIKE, total(y) + ALIKE
    known = (xx / (xx + ALIKE), yy / (yy + ALIKE))
    a = (sum_x * (yy + ALIKE) - sum_y * xy) / ((xx + ALIKE) * (yy + ALIKE) - xy * xy)
    a = np.clip(a, 1 / FARTHEST, FARTHEST)
    b = np.clip((sum_y - a * xy) / (yy + ALIKE), 1 / FARTHEST, FARTHEST)
    # What the surface says of each group: its launch, and its slope in the context.
    further = replace(
        operator,
        flops=2 * operator.flops,
        depth=2 * _column(operator, "depth"),
        bytes=operator.bytes * (2 if operator.kind.startswith("decode") else 1),
    )
    slope = launch_seconds(plain, further, top, gpu.bandwidth) - guess
    slope = slope * counts / _column(operator, "depth")
    near = (total(np.log(launch)) / size, total(np.log(slope)) / size)
    logs = (np.log(a * both), np.log(b * both))
    for key, rows in _groups(groups[:, :-1]):
        if len(rows) < 2:
            continue
        knots = np.log2(groups[rows, -1])
        first, later = (
            risen(base[rows] + log[rows], weight[rows]) - base[rows]
            for base, log, weight in zip(near, logs, known, strict=True)
        )
        bends = (
            _bend("launch", "parallel", knots, first),
            _bend("work", "parallel", knots, later),
        )
        yield Shape(key=key, bends=bends)


def risen(values: Array, weights: Array) -> Array:
    """The values, nowhere falling, of least absolute change: runs that fall take their median (a
    few launches of every table took two or three times as long as the larger ones beside them)."""
    runs: list[list[int]] = []
    levels: list[float] = []
    for place, value in enumerate(values.tolist()):
        runs.append([place])
        levels.append(value)
        while len(runs) > 1 and levels[-2] > levels[-1]:
            runs[-2:] = [runs[-2] + runs[-1]]
            levels[-2:] = [middle(values, weights, np.array(runs[-1]))]
    return np.repeat(levels, [len(run) for run in runs])


def middle(values: Array, weights: Array, chosen: NDArray[np.int64]) -> float:
    """The median of the chosen values by their weights, the lower of two."""
    order = chosen[np.argsort(values[chosen])]
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])


def _bend(of: Literal["launch", "work", "both"], axis: Axis, knots: Array, logs: Array) -> Bend:
    return Bend(of=of, axes=(axis,), knots=(tuple(knots.tolist()),), logs=tuple(logs.tolist()))


def between(known: Mapping[Key, Shape], key: Key) -> Shape | None:
    """A product's shape from the measured ones around it: columns and depth between theirs, in
    proportion to the logarithms; None outside of them all, or where one is missing."""
    corners: list[tuple[float, Key]] = [(1.0, ())]
    for axis, value in enumerate(key):
        ticks = sorted({corner[axis] for corner in known})
        if not ticks or not ticks[0] <= value <= ticks[-1]:
            return None
        high = bisect_left(ticks, value)
        sides = [(1.0, value)]
        if ticks[high] > value:
            share = log(value / ticks[high - 1]) / log(ticks[high] / ticks[high - 1])
            sides = [(1.0 - share, ticks[high - 1]), (share, ticks[high])]
        corners = [(w * more, (*at, tick)) for w, at in corners for more, tick in sides]
    if not all(at in known for _, at in corners):
        return None
    lines = [(weight, known[at].bends[0]) for weight, at in corners]
    knots = np.unique(np.concatenate([bend.knots[0] for _, bend in lines]))
    logs = sum(weight * np.interp(knots, bend.knots[0], bend.logs) for weight, bend in lines)
    bend = _bend("both", "rows", knots, np.asarray(logs))
    return Shape(key=key, bends=(bend,), source=known[corners[0][1]].source)


@cache
def _found(wanted: Wanted, key: Key) -> Found:
    gpu = facts.gpu(wanted.gpu)
    plain = efficiency.surface(gpu, wanted.kind, wanted.dtype, wanted.engine)
    known = _known(wanted)
    shape = between(known, key) if wanted.kind == "gemm" else known.get(key)
    if shape is None:
        return Found(surface=plain)
    bent = replace(plain, bends=plain.bends + shape.bends)
    return Found(surface=bent, bends=shape.bends, source=shape.source)


@cache
def _known(wanted: Wanted) -> dict[Key, Shape]:
    """All shapes, from an earlier process where it read the same tables with the same code."""
    kept = _kept(wanted)
    with suppress(OSError, msgspec.MsgspecError):
        known = msgspec.msgpack.decode(kept.read_bytes(), type=list[Shape])
        return {shape.key: shape for shape in known}
    made = _read(wanted)
    # Where no folder can be written each process reads the tables.
    with suppress(OutsideError):
        files.write_atomic(kept, msgspec.msgpack.encode(list(made.values())))
    return made


def _read(wanted: Wanted) -> dict[Key, Shape]:
    """Each shape from the nearest version that lists it."""
    gpu = facts.gpu(wanted.gpu)
    plain = efficiency.surface(gpu, wanted.kind, wanted.dtype, wanted.engine)
    table = next(table for table in TABLES if table.kind == wanted.kind)
    engine = kernel_tables.lender(gpu, wanted.kind, wanted.engine, wanted.dtype)
    known: dict[Key, Shape] = {}
    for found, source in every_version(
        folder() / GPUS[gpu.name],
        engine,
        table,
        gpu,
        only=wanted.dtype,
        near=kernel_tables.numbers(wanted.version),
    ):
        short = _length(found.operator) <= (wanted.longest or np.inf)
        for shape in shapes(part(found, short), plain, gpu):
            known.setdefault(shape.key, replace(shape, source=source))
    return known


def _length(operator: Operator) -> Array:
    """Tokens that each query of a measured row attends, on average; 0 of kinds that attend none."""
    if not operator.kind.endswith(WALKS):
        return np.zeros_like(operator.flops)
    queries = _column(operator, "parallel")
    if operator.kind.startswith("decode"):
        queries = queries * operator.rows
    return np.asarray(_column(operator, "depth") / queries)


def _kept(wanted: Wanted) -> Path:
    """The file of earlier results, named by a digest of the tables, the surfaces and this code."""
    here = Path(__file__).parent
    digest = hashlib.sha256(msgspec.json.encode(wanted))
    table = next(table for table in TABLES if table.kind == wanted.kind)
    engine = kernel_tables.lender(facts.gpu(wanted.gpu), wanted.kind, wanted.engine, wanted.dtype)
    measured = (folder() / GPUS[wanted.gpu]).glob(table.files.format(engine=engine))
    code = (here / f"{name}.py" for name in ("operators", "efficiency", "kernel_tables"))
    fitted = here.parent / "facts" / "efficiency" / f"{GPUS[wanted.gpu]}.toml"
    for path in (*sorted(measured), *code, Path(__file__), fitted):
        digest.update(path.read_bytes())
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "splitpoint" / "tables" / digest.hexdigest()[:16]


def _stated(engine: Engine) -> str:
    """The engine's version, where a plan states it, or vLLM's usual one."""
    usual = engine.version == USUAL_VERSIONS[engine.name]
    return "" if usual and engine.name != "vllm" else engine.version


def _covering(length: int | None) -> int:
    """The shortest power of two that covers a context, as tables list them; 0: any."""
    return 0 if length is None else 1 << (length - 1).bit_length()


def _first(operator: Operator, name: str) -> float:
    """What all shapes of an operator have in common."""
    values: Array | float = getattr(operator, name)
    return float(values.flat[0]) if isinstance(values, np.ndarray) else float(values)


def _column(operator: Operator, name: str) -> Array:
    values: Array | float = getattr(operator, name)
    return np.broadcast_to(np.asarray(values, np.float64), operator.flops.shape)


def _columns(operator: Operator, names: tuple[str, ...]) -> Array:
    return np.column_stack([_column(operator, name) for name in names])


def _groups(keys: Array) -> Iterator[tuple[Key, NDArray[np.int64]]]:
    """Each distinct row of a table, and where it stands."""
    distinct, index = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(index.ravel(), kind="stable")
    bounds = np.searchsorted(index.ravel()[order], np.arange(len(distinct) + 1))
    for key, (first, last) in zip(distinct, pairwise(bounds), strict=True):
        yield tuple(key.tolist()), order[first:last]
