"""Fit the surfaces of facts/efficiency to measured kernel tables, and print their held-out errors.

The tables are those of the `aic` extra's package (aiconfigurator-core, NVIDIA, Apache-2.0); only
fitted coefficients are shipped. A row is fitted or held out by the CRC-32 of its own columns, so
the split depends on nothing else. Run: python -m benchmarks.fit_efficiency [--gpu NAME] [--write]
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from numpy.typing import NDArray

from splitpoint.inputs import facts
from splitpoint.inputs.engine import EngineName
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Dtype
from splitpoint.timing.efficiency import (
    Axis,
    Bend,
    Surface,
    bent_seconds,
    efficiency,
    launch_seconds,
    log_factor,
    peak,
)
from splitpoint.timing.kernel_tables import (
    GPUS,
    LENDS,
    LENT,
    TABLES,
    UNTUNED,
    Samples,
    part,
    samples,
)
from splitpoint.timing.operators import Array, Kind, Operator

# Which GPU stands in for those of its architecture that have no tables.
DONORS = {"A100 SXM 80GB", "L40S", "H200", "RTX PRO 6000 Server", "B200"}
# Rows of the first and of the last fit of a surface.
FEW_ROWS, FIT_ROWS = 1000, 2000
# What may vary: a start and the bounds that keep it physical.
START = {
    "compute": (0.6, 0.02, 1.0),
    "memory": (0.8, 0.02, 1.0),
    "launch": (4e-6, 5e-7, 2e-4),
    "wave": (3e4, 1.0, 1e9),
    "pad_rows": (16.0, 1e-3, 2e3),
    "half_parallel": (64.0, 1e-3, 1e4),
    "serial": (1e-10, 1e-16, 1e-7),
    "sharpness": (2.0, 1.0, 6.0),
    "buffers": (0.5, 1e-3, 3.0),
    "spilled": (0.5, 1e-3, 3.0),
    "cache": (64.0 * 2**20, 16.0 * 2**20, 256.0 * 2**20),
    "held": (1e-8, 1e-11, 2e-6),
    "whole_128": (0.3, 1e-3, 0.5),
    "whole_256": (0.3, 1e-3, 0.5),
    "whole_listed": (0.3, 1e-3, 1.0),
}
# A decode attention multiplies tiles of at most 64 queries a key-value head (wgmma); what holds it
# up beside them is no matrix work and must not scale with a GPU's FLOP/s.
DECODE = {"compute": (0.7, 0.5, 1.0), "pad_rows": (16.0, 1e-3, 64.0)}
# What is known of a GPU rather than fitted. Multiprocessors: NVIDIA's H100 whitepaper (SXM5), and
# B200's device properties (assumed alike: B300, GB200, GB300).
MULTIPROCESSORS = {"hopper": 132, "blackwell": 148}
# Heads that FlashMLA's sparse kernel takes at once, fewer are padded to (SGLang's dsa_backend.py,
# `_forward_flashmla_sparse`), and the multiprocessors that such a tile takes: on Blackwell 128
# queries take twice as long as 64, 256 four times and 512 seven times, so two.
TILES = {"hopper": (64, 1), "blackwell": (128, 2)}
# A selection's blocks have 1,024 threads (sgl-kernel's topk.cu), of which a multiprocessor holds
# 2,048: 512 queries take twice as long as 256 in the tables.
BLOCKS = 2
# Assumed: the share of HBM bandwidth that decode attention reaches.
DECODED = 0.8
BOUNDS: dict[Kind, dict[str, tuple[float, float, float]]] = {
    "decode_attention": DECODE,
    "decode_latent": DECODE,
    "decode_indexer": {
        "launch": (1e-6, 5e-7, 2e-5),
        "serial": (5e-6, 1e-6, 2e-5),
    },
    # All blocks move what they spill again, one block a small share of the bandwidth.
    "selection": {"spilled": (5.0, 1e-3, 100.0), "cache": (40.0 * 2**20, 16 * 2**20, 256 * 2**20)},
    # What fits in the L2 is read from there, several times as fast.
    "prefill_attention": {"memory": (1.5, 0.02, 8.0), "buffers": (0.5, 1e-3, 10.0)},
    # Of one row, not of one number.
    "vector": {"serial": (2e-6, 1e-7, 1e-5), "launch": (5e-7, 1e-7, 2e-5)},
}
PRODUCT = ("compute", "memory", "launch", "pad_rows", "half_parallel", "serial", "sharpness")
WALK = ("compute", "memory", "launch", "pad_rows", "serial", "sharpness")
# Prefill attention is a plain sum, so that it stays linear in its pairs beside its queries.
PREFILL = ("compute", "memory", "launch", "wave", "serial")
FREE: dict[Kind, tuple[str, ...]] = {
    "gemm": (*PRODUCT, "whole_128", "whole_256"),
    "experts": (*PRODUCT, "buffers", "held", "whole_listed"),
    "prefill_attention": (*PREFILL, "buffers", "spilled", "cache"),
    "prefill_latent": PREFILL,
    "prefill_sparse": ("compute", "memory", "launch", "serial"),
    "decode_attention": WALK,
    "decode_latent": WALK,
    # Each query's block walks all 2,048 places, whatever it attends.
    "decode_sparse": ("launch",),
    # A plain sum too: a query costs the same whatever it attends, and every key that it attends.
    "prefill_indexer": ("compute", "memory", "launch", "serial"),
    # The reading of few keys hides behind what a launch takes anyhow: its depth is one.
    "decode_indexer": ("launch", "serial", "sharpness"),
    "selection": ("memory", "launch", "spilled", "cache"),
    "prefill_state": ("compute", "memory", "launch", "serial", "sharpness"),
    "decode_state": ("memory", "launch"),
    "vector": ("memory", "launch", "half_parallel", "serial", "sharpness"),
}


class Shape(NamedTuple):
    """A bend that a kind may have: what it multiplies and its axes with their knots (log2).

    Along `rising` axes, which more tokens lengthen, its logarithm never falls by more than `fall`
    times that of the axis: the work of an attention is proportional to its sequences, so its factor
    may fall as fast as they grow and more are still never faster; elsewhere it may not fall.
    """

    of: Literal["launch", "work", "both"]
    axes: dict[Axis, tuple[float, ...]]
    rising: tuple[Axis, ...]
    fall: float = 0.0


SHAPES_OF: dict[Kind, tuple[Shape, ...]] = {
    "gemm": (
        Shape(
            "both",
            {"rows": (0, 3, 5, 7, 9, 12), "parallel": (9, 12, 16), "depth": (9, 12, 16)},
            ("rows",),
        ),
    ),
    # Triton's tiles of 16 rows become tiles of 64 where a step has more tokens than the rank has
    # experts, unless a layer was tuned (vLLM 0.24 and SGLang 0.5.14, `get_default_config`).
    "experts": (
        Shape(
            "both",
            {"rows": (0, 2, 4, 6, 8, 11), "parallel": (6, 10, 14, 18)},
            ("rows", "parallel"),
        ),
        Shape("both", {"width": (5, 7, 9, 11, 13), "depth": (11, 12, 13)}, ()),
        Shape("work", {"rows": (0, 3, 6, 9), "width": (5, 8, 11)}, ("rows",)),
        Shape("work", {"crowd": (-3, 0, 0.33, 3), "width": (7, 11)}, ("crowd",)),
    ),
    # Other kernels serve wide heads, single and very many queries a key-value head: 48 and more are
    # read once a query by TRT-LLM, 192, 256 and 512 are Triton's in SGLang on Blackwell. Two bends
    # share what factors may fall along the sequences.
    "prefill_attention": (
        Shape(
            "work",
            {"parallel": (9, 12, 14, 16, 18, 21), "rows": (0, 1, 3, 5)},
            ("parallel",),
            0.5,
        ),
        Shape("work", {"width": (6, 7, 7.585, 8, 9), "rows": (0, 1, 3, 5)}, ()),
        Shape(
            "work",
            {"width": (6, 7, 7.585, 8, 9), "parallel": (9, 13, 16, 19)},
            ("parallel",),
            0.5,
        ),
        Shape("launch", {"rows": (0, 1, 3, 5), "width": (6, 7, 7.585, 8, 9)}, ()),
    ),
    # 160 pieces take a second wave where 128 take one, and heads of each width fill a GPU at their
    # own pace. SGLang on Blackwell takes another kernel for 3 or 6 queries a key-value head of 256.
    "decode_attention": (
        Shape(
            "work",
            {"parallel": (0, 3, 5, 7, 7.35, 9, 12), "rows": (0, 1, 3, 5, 5.585)},
            ("parallel",),
            0.5,
        ),
        Shape(
            "work",
            {"width": (6, 7, 7.585, 8, 9), "parallel": (0, 3, 5, 7, 7.35, 9, 12)},
            ("parallel",),
            0.5,
        ),
        Shape(
            "work",
            {"width": (6, 7, 7.585, 8, 9), "rows": (0, 1, 1.585, 2, 2.585, 3, 5, 5.585)},
            (),
        ),
        Shape("launch", {"parallel": (0, 4, 7, 10), "width": (6, 7, 8)}, ("parallel",)),
    ),
    "prefill_latent": (
        Shape("work", {"parallel": (9, 11, 13, 14, 15, 16, 17, 18, 19, 21)}, ("parallel",), 0.5),
        Shape("work", {"width": (0, 2, 4, 7), "parallel": (9, 13, 16, 19)}, ("parallel",), 0.5),
        Shape("launch", {"width": (0, 2, 4, 7)}, ()),
        Shape("launch", {"parallel": (9, 13, 17)}, ("parallel",)),
    ),
    # 32 heads take a tile of 64 on Blackwell, half of it empty; Triton has another kernel for one.
    "decode_latent": (
        Shape(
            "work",
            {"parallel": (0, 2, 4, 6, 8, 10), "rows": (0, 1, 2, 4, 5, 6, 7)},
            ("parallel",),
            1.0,
        ),
        Shape("launch", {"parallel": (0, 4, 7, 10), "rows": (0, 4, 7)}, ("parallel",)),
    ),
    "prefill_sparse": (Shape("work", {"parallel": (9, 12, 15, 18, 21)}, ("parallel",), 1.0),),
    "decode_sparse": (),
    "prefill_indexer": (
        Shape("work", {"parallel": (7, 8, 9, 10, 11, 13, 15, 17)}, ("parallel",), 1.0),
    ),
    "decode_indexer": (Shape("launch", {"parallel": (0, 2, 4, 6, 8)}, ("parallel",)),),
    "selection": (Shape("work", {"parallel": (0, 4, 6, 7, 8, 9, 11, 14)}, ("parallel",), 1.0),),
    # Triton tunes its chunked kernels for each number of heads.
    "prefill_state": (
        Shape(
            "work",
            {"rows": (6, 8, 10, 12, 14), "parallel": (1, 2, 3, 5, 7, 9, 11)},
            ("rows",),
            1.0,
        ),
        Shape("work", {"width": (1, 2, 3, 4, 5, 5.585, 6)}, ()),
    ),
    "decode_state": (Shape("work", {"parallel": (3, 6, 9, 12, 15)}, ("parallel",), 1.0),),
    "vector": (
        Shape("work", {"rows": (0, 3, 6, 9, 12, 15), "width": (5, 8, 11, 13, 16)}, ("rows",)),
    ),
}
# Weights of the fit beside its rows: neighbouring logs alike and near zero where no row speaks, and
# walls against falling faster than a shape allows.
ALIKE, NEAR = 0.3, 0.03
WALLS = (30.0, 300.0, 3000.0)
SOFT = 0.1  # log error past which a row counts by its size, no longer by the square
# Of tables of a few dozen rows, up to a seventh of which something beside the kernel slowed.
SOFT_OF: dict[Kind, float] = {"decode_sparse": 0.03, "decode_indexer": 0.03}


class Rules(NamedTuple):
    """Linear terms in all bends' logs: `soft` ones near zero, `rising` ones at least `least`."""

    soft: Array
    rising: Array
    least: Array


def fit(found: Samples, gpu: Gpu, engine: EngineName, source: str) -> Surface:
    """The surface of all rows, for experts without the layers that no kernel was tuned for."""
    every = surface_of(found, gpu, engine, source)
    if found.operator.kind != "experts":
        return every
    untuned = _untuned(found, every, gpu)
    if not untuned.any():
        return every
    share = f"{untuned.mean():.0%} of rows untuned, dropped"
    return surface_of(part(found, ~untuned), gpu, engine, f"{source}; {share}")


def _untuned(found: Samples, every: Surface, gpu: Gpu) -> NDArray[np.bool_]:
    """Rows of layers whose fitted rows are UNTUNED times slower than the surface (median)."""
    guess = launch_seconds(every, found.operator, peak(gpu, every.dtype or "bf16"), gpu.bandwidth)
    ratio = pd.Series(np.where(found.held_out, np.nan, found.seconds / guess))
    slow = ratio.groupby(found.layer).median() > UNTUNED
    return np.asarray(slow[found.layer], dtype=np.bool_)


def surface_of(found: Samples, gpu: Gpu, engine: EngineName, source: str) -> Surface:
    """The surface that fits the even rows best (log error, soft L1), and its error on the odd."""
    few = Problem(_thin(found, ~found.held_out, FEW_ROWS), gpu)
    start = np.array([np.log(_start(n, few.kind)) for n in few.names])
    # Bends can take over from either bound, so one start has bounds fitted alone, one has not, and
    # one has short launches that come again soon.
    bases = [few.best(start, 40), start]
    if "wave" in few.names:
        bases.append(start - np.log(16.0) * np.isin(few.names, ("launch", "wave")))
    tries = [few.best(np.append(base, np.zeros(few.bent)), 100) for base in bases]
    near = min(tries, key=few.cost)
    # Low walls are found over, high ones hard to walk along: each is tried from the one before, and
    # the fitted rows say which surface is best once its falls are lifted.
    many = Problem(_thin(found, ~found.held_out, FIT_ROWS), gpu)
    lifted = []
    for wall in WALLS:
        many.wall = wall
        near = many.best(near, 30)
        lifted.append(many.rounded(near))
    final = min(lifted, key=many.misfit)
    final = msgspec.structs.replace(final, engine=engine, origin=source)
    odd = part(found, found.held_out)
    guess = launch_seconds(final, odd.operator, peak(gpu, many.dtype), gpu.bandwidth)
    error = np.abs(guess / odd.seconds - 1.0)
    return msgspec.structs.replace(
        final,
        samples=int((~found.held_out).sum()),
        error_median=round(float(np.median(error)), 3),
        error_p90=round(float(np.quantile(error, 0.9)), 3),
    )


class Factors(NamedTuple):
    """What multiplies the launch and the work of every row."""

    launch: Array
    work: Array


class Problem:
    """Rows to fit one surface to. Its unknowns are the logarithms of the free coefficients, then
    those of all bends (which may be left out: none)."""

    def __init__(self, rows: Samples, gpu: Gpu) -> None:
        self.operator = rows.operator
        self.kind, self.dtype = rows.operator.kind, rows.operator.dtype
        self.observed = np.log(rows.seconds)
        self.names, self.shapes = FREE[self.kind], SHAPES_OF[self.kind]
        self.peak, self.bandwidth = peak(gpu, self.dtype), gpu.bandwidth
        self.known = _known(self.kind, gpu)
        ranges = START | BOUNDS.get(self.kind, {})
        self.low = np.array([np.log(ranges[n][1]) for n in self.names])
        self.high = np.array([np.log(ranges[n][2]) for n in self.names])
        self.weights = [_weights(shape, rows.operator) for shape in self.shapes]
        self.rules = _rules(self.shapes)
        self.soft = SOFT_OF.get(self.kind, SOFT)
        self.wall = WALLS[0]

    @property
    def bent(self) -> int:
        """Number of the bends' logarithms."""
        return sum(w.shape[1] for w in self.weights)

    def best(self, start: Array, evaluations: int) -> Array:
        """The unknowns of least cost, from a start."""
        from scipy.optimize import least_squares  # type: ignore[import-untyped]

        more = np.full(len(start) - len(self.names), 3.0)
        low, high = np.append(self.low, -more), np.append(self.high, more)
        found = least_squares(
            self.residuals,
            np.clip(start, low + 1e-6, high - 1e-6),
            jac=self.slopes,
            bounds=(low, high),
            loss="soft_l1",
            f_scale=self.soft,
            max_nfev=evaluations,
        )
        return np.asarray(found.x)

    def cost(self, values: Array) -> float:
        """Soft L1 of all residuals, as the fit sees it."""
        return float(np.sum(np.sqrt(1.0 + (self.residuals(values) / self.soft) ** 2)))

    def misfit(self, surface: Surface) -> float:
        """Soft L1 of the rows alone on a surface."""
        guess = launch_seconds(surface, self.operator, self.peak, self.bandwidth)
        errors = np.log(guess) - self.observed
        return float(np.sum(np.sqrt(1.0 + (errors / self.soft) ** 2)))

    def residuals(self, values: Array) -> Array:
        """Log errors of the rows, then what the rules of the bends say."""
        logs = values[len(self.names) :]
        rows = np.log(self.seconds(values, self.factors(logs))) - self.observed
        if not len(logs):
            return np.asarray(rows)
        broken = np.minimum(self.rules.rising @ logs - self.rules.least, 0.0)
        return np.concatenate([rows, self.rules.soft @ logs, self.wall * broken])

    def slopes(self, values: Array) -> Array:
        """Derivatives of the residuals."""
        free = len(self.names)
        logs = values[free:]
        factors = self.factors(logs)
        seconds = self.seconds(values, factors)
        columns = []
        for index in range(free):
            moved = values.copy()
            moved[index] += 1e-6 if values[index] + 1e-6 <= self.high[index] else -1e-6
            change = np.log(self.seconds(moved, factors) / seconds)
            columns.append(change / (moved[index] - values[index]))
        base = np.stack(columns, axis=1)
        if not len(logs):
            return base
        # What a row gains if all of its launch, or all of its work, grows: work at the roofline
        # does not, so it is tried rather than taken as the rest.
        launch = columns[self.names.index("launch")]
        longer = self.seconds(values, Factors(factors.launch, factors.work * (1.0 + 1e-6)))
        work = np.log(longer / seconds) / 1e-6
        part = {"launch": launch, "work": work, "both": launch + work}
        bent = [part[s.of][:, None] * w for s, w in zip(self.shapes, self.weights, strict=True)]
        broken = self.rules.rising @ logs < self.rules.least
        under = np.vstack([self.rules.soft, self.wall * broken[:, None] * self.rules.rising])
        nothing = np.zeros((len(under), free))
        return np.vstack([np.hstack([base, *bent]), np.hstack([nothing, under])])

    def factors(self, logs: Array) -> Factors:
        """What the bends multiply the launch and the work of every row by."""
        launch, work = np.zeros(len(self.observed)), np.zeros(len(self.observed))
        for shape, weights in zip(self.shapes, self.weights, strict=True):
            if len(logs):
                own, logs = weights @ logs[: weights.shape[1]], logs[weights.shape[1] :]
                launch = launch + own if shape.of != "work" else launch
                work = work + own if shape.of != "launch" else work
        return Factors(np.exp(launch), np.exp(work))

    def seconds(self, values: Array, factors: Factors) -> Array:
        """Seconds of all rows."""
        plain = self._surface(np.exp(values[: len(self.names)]), ())
        return bent_seconds(
            plain,
            self.operator,
            self.peak,
            self.bandwidth,
            launch=factors.launch,
            work=factors.work,
        )

    def rounded(self, values: Array) -> Surface:
        """The same in as many digits as are shipped, its bends in no way falling."""
        free = len(self.names)
        base = np.array([float(f"{value:.4g}") for value in np.exp(values[:free])])
        return self._surface(base, _bends(self.shapes, values[free:], risen=True))

    def _surface(self, base: Array, bends: tuple[Bend, ...]) -> Surface:
        plain = Surface(
            kind=self.kind,
            dtype=self.dtype,
            compute=1.0,
            memory=1.0,
            launch=1.0,
            sharpness=1.0,
            bends=bends,
            origin="",
        )
        fitted = dict(zip(self.names, base.tolist(), strict=True))
        return msgspec.structs.replace(plain, **self.known, **fitted)


def _known(kind: Kind, gpu: Gpu) -> dict[str, float]:
    """Coefficients that no row tells: how many pieces a GPU's multiprocessors hold at once, and the
    bandwidth where larger rows are read from the cache."""
    if kind == "selection":
        return {"slots": float(BLOCKS * MULTIPROCESSORS[gpu.architecture])}
    if kind == "decode_indexer":
        return {"memory": DECODED}
    if kind == "decode_sparse":
        heads, taken = TILES[gpu.architecture]
        slots = MULTIPROCESSORS[gpu.architecture] / taken
        return {"slots": slots, "tile": float(heads), "memory": DECODED, "sharpness": 4.0}
    return {}


def _bends(shapes: tuple[Shape, ...], logs: Array, risen: bool = False) -> tuple[Bend, ...]:
    """Bends of these logs (none without any), shape after shape; `risen` if they are shipped."""
    result: list[Bend] = []
    if not len(logs):
        return ()
    for shape in shapes:
        sizes = [len(knots) for knots in shape.axes.values()]
        own, logs = logs[: int(np.prod(sizes))], logs[int(np.prod(sizes)) :]
        if risen:
            own = _risen(shape, own.reshape(sizes)).ravel()
        result.append(
            Bend(
                of=shape.of,
                axes=tuple(shape.axes),
                knots=tuple(tuple(float(k) for k in knots) for knots in shape.axes.values()),
                logs=tuple(own.tolist()),
            )
        )
    return tuple(result)


def _risen(shape: Shape, logs: Array) -> Array:
    """Logs in three decimals, each lifted where its neighbour before it forbids so deep a fall."""
    logs = np.round(logs, 3)
    for index, (axis, knots) in enumerate(shape.axes.items()):
        if axis not in shape.rising:
            continue
        along = np.moveaxis(logs, index, 0)
        for place in range(1, len(knots)):
            fall = shape.fall * np.log(2.0) * (knots[place] - knots[place - 1])
            least = np.ceil((along[place - 1] - fall) * 1e3 - 1e-6) / 1e3
            along[place] = np.maximum(along[place], least)
    return np.round(logs, 3)


def _weights(shape: Shape, operator: Operator) -> Array:
    """Weight of every log of a shape at every row of an operator."""
    (bend,) = _bends((shape,), np.zeros(int(np.prod([len(k) for k in shape.axes.values()]))))
    ones = np.eye(len(bend.logs))
    return np.stack(
        [
            np.broadcast_to(
                log_factor(msgspec.structs.replace(bend, logs=tuple(one)), operator),
                operator.flops.shape,
            )
            for one in ones
        ],
        axis=1,
    )


def _rules(shapes: tuple[Shape, ...]) -> Rules:
    soft, rising, least = [], [], []
    sizes = [int(np.prod([len(k) for k in s.axes.values()])) for s in shapes]
    for place, shape in enumerate(shapes):
        before, after = sum(sizes[:place]), sum(sizes[place + 1 :])
        grid = np.arange(sizes[place]).reshape([len(k) for k in shape.axes.values()])
        rows = np.eye(sizes[place])
        soft.append(np.pad(NEAR * rows, ((0, 0), (before, after))))
        for index, (axis, knots) in enumerate(shape.axes.items()):
            cells = np.moveaxis(grid, index, 0)
            step = np.pad(
                rows[cells[1:].ravel()] - rows[cells[:-1].ravel()], ((0, 0), (before, after))
            )
            soft.append(ALIKE * step)
            if axis in shape.rising:
                rising.append(step)
                falls = -shape.fall * np.log(2.0) * np.diff(knots)
                least.append(np.repeat(falls, cells[0].size))
    empty = np.zeros((0, sum(sizes)))
    return Rules(
        np.vstack([empty, *soft]),
        np.vstack([empty, *rising]),
        np.concatenate([np.zeros(0), *least]),
    )


def _start(name: str, kind: Kind) -> float:
    # Depth counts exponentials for attention: billions a millisecond, not thousands.
    attention = kind.endswith(("attention", "latent", "sparse"))
    return (
        1e-13
        if name == "serial" and attention
        else BOUNDS.get(kind, START).get(name, START[name])[0]
    )


def _thin(found: Samples, chosen: NDArray[np.bool_], count: int) -> Samples:
    """Of the chosen rows at least `count`, or all, evenly through the table."""
    index = np.flatnonzero(chosen)
    index = index[:: max(1, len(index) // count)]
    mask = np.zeros(len(chosen), bool)
    mask[index] = True
    return part(found, mask)


class Wanted(NamedTuple):
    """Which surfaces are fitted: of these kinds and dtypes, of all where none is named."""

    kinds: list[str] | None
    dtypes: list[str] | None

    def holds(self, kind: Kind, dtype: Dtype | None) -> bool:
        """Whether a surface of this kind and dtype is among them."""
        return (not self.kinds or kind in self.kinds) and (not self.dtypes or dtype in self.dtypes)


def fitted(name: str, data: Path, wanted: Wanted) -> list[Surface]:
    """The wanted surfaces of one GPU, each printed as it is found, and the others as shipped."""
    gpu = facts.gpu(name)
    lends = gpu.architecture == LENDS
    others = [
        surface
        for surface in efficiency(gpu).surfaces
        if surface.samples or (lends and _lender(surface))
        if not wanted.holds(surface.kind, surface.dtype)
    ]
    surfaces: list[Surface] = []
    for table in TABLES:
        for engine in table.engines if table.kind in (wanted.kinds or [table.kind]) else ():
            for found, source in samples(data / GPUS[name], engine, table, gpu):
                if not wanted.holds(table.kind, found.operator.dtype):
                    continue
                surface = fit(found, gpu, engine, f"fitted: {source}")
                surfaces.append(surface)
                print(
                    f"{name:20} {surface.kind:18} {surface.dtype or '':6} {engine:7}"
                    f" {surface.samples:6} {surface.error_median:6.3f} {surface.error_p90:6.3f}"
                    f"  compute {surface.compute:.3f} memory {surface.memory:.3f}"
                    f" launch {surface.launch * 1e6:.1f} pad {surface.pad_rows:.1f}"
                    f" half {surface.half_parallel:.0f} serial {surface.serial:.1e}"
                    f" s {surface.sharpness:.1f}",
                    flush=True,
                )
    order = [table.kind for table in TABLES]
    found_here = lent(surfaces) if lends else surfaces
    return sorted([*others, *found_here], key=lambda surface: order.index(surface.kind))


def lent(surfaces: list[Surface]) -> list[Surface]:
    """The surfaces of a data-centre Blackwell with those of `LENT` as their lender's."""
    of = {(s.kind, s.engine, s.dtype): s for s in surfaces}
    result = []
    for own in surfaces:
        lender = _lender(own)
        if lender is None or (own.kind, lender, own.dtype) not in of:
            result.append(own)
        else:
            other = of[own.kind, lender, own.dtype]
            result.append(_assumed(other, lender, engine=own.engine))
    return result


def _lender(own: Surface) -> EngineName | None:
    return LENT.get((own.kind, own.engine, own.dtype)) if own.engine and own.dtype else None


def _assumed(surface: Surface, lender: str, *, engine: EngineName | None) -> Surface:
    return msgspec.structs.replace(
        surface,
        engine=engine,
        samples=0,
        error_median=None,
        error_p90=None,
        origin=f"assumed: as {lender} ({surface.origin})",
    )


def borrowed(own: list[Surface], lender: str, others: list[Surface]) -> list[Surface]:
    """Surfaces of the kinds that a GPU's tables lack, as another GPU's."""
    kinds = {surface.kind for surface in own}
    return [
        _assumed(surface, lender, engine=surface.engine)
        for surface in others
        if surface.kind not in kinds
    ]


def amd(lent: list[Surface]) -> list[Surface]:
    """Shares of AMD GPUs where no table of theirs is read: H200's memory, and its compute times the
    ratio of the shares that both reach in bf16 products. Of each kind and dtype vLLM's, of MLA
    those of TensorRT-LLM: what SGLang falls back to on Hopper with an fp8 cache reaches 6% of the
    bandwidth, and AMD's servers run kernels of their own (--attention-backend aiter)."""
    # SemiAnalysis, "MI300X vs H100 vs H200 Benchmark Part 1", 2024-12-22: about 620 of 1,307
    # TFLOP/s on MI300X, 720 of 989 on H100 and H200.
    ratio = (620 / 1307) / (720 / 989)
    return [
        msgspec.structs.replace(
            surface,
            engine=None,
            compute=round(surface.compute * ratio, 4),
            samples=0,
            error_median=None,
            error_p90=None,
            origin=f"assumed: {ratio:.2f} of H200's share of compute, its share of bandwidth",
        )
        for surface in _of_one_engine(lent)
    ]


def _of_one_engine(surfaces: list[Surface]) -> list[Surface]:
    """One surface of each kind and dtype that AMD's GPUs are lent."""
    found: dict[tuple[str, str | None], Surface] = {}
    for surface in surfaces:
        latent = "latent" in surface.kind
        if surface.engine == ("trtllm" if latent else "vllm"):
            found[surface.kind, surface.dtype] = surface
        elif surface.kind == "selection" or (surface.dtype == "fp8" and not latent):
            found.setdefault((surface.kind, surface.dtype), surface)
    return list(found.values())


def write_amd(folder: Path, name: str, own: list[Surface], lent: list[Surface]) -> None:
    """The file of an AMD GPU's architecture: its own surfaces (`fit_aiter`), of other kinds and
    dtypes what it is lent."""
    architecture = facts.gpu(name).architecture
    known = {(surface.kind, surface.dtype) for surface in own}
    others = [surface for surface in lent if (surface.kind, surface.dtype) not in known]
    order = [table.kind for table in TABLES]
    head = {
        "gpus": [name],
        "architecture": architecture,
        "donor": True,
        "source": "products and experts fitted to the tuned tables of AITER (AMD, MIT) by "
        "benchmarks/fit_aiter.py, else assumed: derived from H200's shares",
    }
    write(folder, architecture, head, sorted([*own, *others], key=lambda s: order.index(s.kind)))


def write(folder: Path, name: str, head: Mapping[str, object], surfaces: list[Surface]) -> None:
    """One file: its head, then one line per surface."""
    lines = [f"{key} = {_toml(value)}" for key, value in head.items()]
    lines.append("surfaces = [")
    for surface in surfaces:
        fields = msgspec.to_builtins(surface)
        # What is left out takes its default.
        lines.append(f"  {_toml({k: v for k, v in fields.items() if v})},")
    lines.append("]")
    (folder / f"{name}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, str):
        return '"' + value.replace('"', "'") + '"'
    return repr(value)


SOURCE = (
    "fitted to the measured kernel tables of aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0) by "
    "benchmarks/fit_efficiency.py"
)


def main() -> int:
    """Fit every GPU that has tables; print the errors, and write the files if asked."""
    import aiconfigurator_core

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", choices=list(GPUS), action="append")
    parser.add_argument("--kind", action="append", help="these only; others stay as shipped")
    parser.add_argument("--dtype", action="append", help="these only; others stay as shipped")
    parser.add_argument("--write", type=Path, help="folder for the TOML files (all GPUs)")
    parser.add_argument("--cache", type=Path, help="folder where finished GPUs are kept")
    options = parser.parse_args()
    data = Path(aiconfigurator_core.__file__).parent / "systems" / "data"
    found = {}
    for name in options.gpu or GPUS:
        kept = options.cache / f"{GPUS[name]}.json" if options.cache else None
        if kept is not None and kept.exists():
            found[name] = msgspec.json.decode(kept.read_bytes(), type=list[Surface])
            continue
        found[name] = fitted(name, data, Wanted(options.kind, options.dtype))
        if kept is not None:
            kept.write_bytes(msgspec.json.encode(found[name]))
    if options.write is None:
        return 0
    for name, surfaces in found.items():
        gpu = facts.gpu(name)
        lender = "B200" if gpu.architecture == "blackwell" else "H200"
        own = surfaces + borrowed(surfaces, lender, found[lender])
        own += borrowed(own, "H200", found["H200"])
        head = {
            "gpus": [name],
            "architecture": gpu.architecture,
            "donor": name in DONORS,
            "source": SOURCE,
        }
        write(options.write, GPUS[name], head, own)
    for name in ("MI300X", "MI355X"):
        shipped = efficiency(facts.gpu(name)).surfaces
        write_amd(options.write, name, [s for s in shipped if s.samples], amd(found["H200"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
