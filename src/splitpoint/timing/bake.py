"""From operators to a StepCurve: every table entry is a sum over one step's operators.

A decode step is linear in its summed context and a prefill step in its pairs once contexts
exceed every window, so two evaluations give the constant and the slope exactly.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Attention, Compressed, Layer, Model
from splitpoint.timing import collectives, efficiency, host
from splitpoint.timing.collectives import Exchange, stage_exchanges
from splitpoint.timing.curve import PICO, Picos, StepCurve
from splitpoint.timing.operators import (
    Array,
    Batch,
    Kind,
    Operator,
    stage_operators,
    stages,
)

# Operators whose time grows with what is already cached.
WALKS: frozenset[Kind] = frozenset(
    {
        "prefill_attention",
        "decode_attention",
        "prefill_latent",
        "decode_latent",
        "prefill_sparse",
        "decode_sparse",
        "prefill_indexer",
        "decode_indexer",
    }
)


class Line(NamedTuple):
    """Seconds of a step without context, and per token of context (or pair of a prefill)."""

    work: Array
    slope: Array


def step_curve(model: Model, gpu: Gpu, topology: Topology, engine: Engine) -> StepCurve:
    """The tables of one rank of an instance, for an engine whose settings are all resolved."""
    assert engine.max_seqs is not None and engine.batched_tokens is not None
    bound = float(_largest_bound(model))
    sequences = np.arange(1.0, engine.max_seqs + 1)
    run = host.padded(engine, sequences)
    none = np.zeros_like(run)
    padded = _line(model, gpu, topology, engine, decode=run, prefill=none, at=bound)
    exact = _line(model, gpu, topology, engine, decode=sequences, prefill=none, at=bound)
    kernels = _kernels(model, topology, engine)
    step = host.launch_floor(engine, run * (1 + engine.drafts), kernels, decode=True)
    decode = np.maximum(padded.work, step) + host.gap(engine, sequences)
    new = np.arange(1.0, engine.batched_tokens + 1)
    points = grid(engine.batched_tokens)
    chunk = _line(
        model, gpu, topology, engine, decode=np.zeros_like(points), prefill=points, at=bound
    )
    floor = host.launch_floor(engine, new, kernels)
    work = np.interp(new, points, chunk.work)
    pair, prefix = walks(points, chunk.slope)
    mixed = np.maximum(work, floor) + host.gap(engine, np.ones_like(new))
    return StepCurve(
        decode=_picos(decode),
        decode_context=_picos(exact.slope),
        mixed=_picos(mixed),
        prefill_pair=pair,
        prefill_prefix=prefix,
        mixed_decode=_picos(_joined(model, gpu, topology, engine, sequences, at=bound)),
        drafts=engine.drafts,
        origin=origin(gpu),
    )


def grid(most: int) -> Array:
    """The chunks of 1 to `most` tokens that are priced: all up to 512, then 256 an octave; between
    them a chunk costs in proportion."""
    counts = np.arange(1, most + 1)
    step = 2 ** np.maximum(np.log2(counts).astype(np.int64) - 8, 0)
    return np.asarray(counts[(counts % step == 0) | (counts == most)], np.float64)


def walks(tokens: Array, slope: Array) -> tuple[int, int]:
    """Picoseconds of a pair and of a prefix token from the seconds of a pair in chunks of these
    many tokens: slope = pair + prefix / tokens, through the longest chunk and one of 512."""
    short = int(np.searchsorted(tokens, min(512.0, tokens[-1])))
    gap = 1 / tokens[short] - 1 / tokens[-1]
    prefix = max((slope[short] - slope[-1]) / gap, 0.0) if gap > 0 else 0.0
    prefix = min(prefix, slope[-1] * tokens[-1])
    pair = slope[-1] - prefix / tokens[-1]
    return int(np.rint(pair / PICO)), int(np.rint(prefix / PICO))


def _joined(
    model: Model, gpu: Gpu, topology: Topology, engine: Engine, decode: Array, *, at: float
) -> Array:
    """What decoding sequences add to a step beside their tokens and context, in a step as long as
    the token budget: kernels of their own, states, windows, drafts after the first, logits."""
    own = decode * (1 + engine.drafts)
    total = np.maximum(float(engine.batched_tokens or 0), own + 1.0)
    none = np.zeros_like(decode)
    joined = _line(model, gpu, topology, engine, decode=decode, prefill=total - own, at=at)
    alone = _line(model, gpu, topology, engine, decode=none, prefill=total, at=at)
    gap = host.gap(engine, decode + 1.0) - host.gap(engine, np.ones_like(decode))
    return np.asarray(np.maximum(joined.work - alone.work, 0.0) + gap)


def gpu_seconds(model: Model, gpu: Gpu, topology: Topology, engine: Engine, batch: Batch) -> Array:
    """Seconds a step keeps the GPUs busy: micro-batches of 1/pp of it, rounded up, pass the slowest
    stage one after the other, so a step takes pp x (operators + collectives) of that stage."""
    part = _part(batch, topology.pp)
    slowest = np.zeros_like(batch.decode)
    for stage in range(topology.pp):
        items = _stage(model, topology, engine, part, stage)
        taken = [_seconds(item, gpu, engine) for item in items]
        busy = np.sum(taken, axis=0) - _beside(items, taken, part, gpu, engine)
        slowest = np.maximum(slowest, busy)
    return np.asarray(topology.pp * slowest)


def origin(gpu: Gpu) -> str:
    """What the step times of a GPU rest on, in words."""
    found = efficiency.efficiency(gpu)
    if efficiency.inherited(gpu):
        return (
            f"assumed for {gpu.name}: shares of its roofline as "
            f"{', '.join(found.gpus) or found.architecture} reach them; {found.source}"
        )
    return found.source


def _part(batch: Batch, pp: int) -> Batch:
    decode, prefill = np.ceil(batch.decode / pp), np.ceil(batch.prefill / pp)
    return Batch(
        decode=decode,
        context=batch.context * decode / np.maximum(batch.decode, 1.0),
        prefill=prefill,
        pairs=batch.pairs * prefill / np.maximum(batch.prefill, 1.0),
        rows=np.ceil(batch.rows / pp),
    )


def _stage(
    model: Model, topology: Topology, engine: Engine, batch: Batch, stage: int
) -> tuple[Operator | Exchange, ...]:
    layers = stages(model, topology.pp)[stage]
    return (
        *stage_operators(model, topology, engine, batch, stage),
        *stage_exchanges(layers, model, topology, engine, batch),
    )


def _seconds(item: Operator | Exchange, gpu: Gpu, engine: Engine) -> Array:
    if isinstance(item, Exchange):
        return collectives.seconds(item, gpu, engine.name)
    return efficiency.seconds(item, gpu, engine.name)


def _beside(
    items: Sequence[Operator | Exchange],
    taken: Sequence[Array],
    batch: Batch,
    gpu: Gpu,
    engine: Engine,
) -> Array:
    """Seconds of a decode step's shared experts that pass beside the routed ones on a second
    stream; the bytes of both still cross one memory."""
    routed = np.zeros_like(batch.decode)
    shared = np.zeros_like(batch.decode)
    for item, seconds in zip(items, taken, strict=True):
        if isinstance(item, Operator) and item.kind == "experts":
            routed = routed + seconds
        elif isinstance(item, Operator) and item.name.startswith("shared."):
            shared = shared + seconds - item.count * item.bytes / gpu.bandwidth
    tokens = batch.decode * (1 + engine.drafts)
    apart = (batch.prefill == 0) & (tokens <= host.host_speed(engine).beside_tokens)
    return np.where(apart, np.clip(shared, 0.0, routed), 0.0)


def _line(
    model: Model,
    gpu: Gpu,
    topology: Topology,
    engine: Engine,
    *,
    decode: Array,
    prefill: Array,
    at: float,
) -> Line:
    """The line through two steps, one twice as long as the other, of whichever stage is slower:
    only operators that walk the context differ between them."""
    pp = topology.pp
    near, far = _batch(decode, prefill, at), _batch(decode, prefill, 2 * at)
    length = near.context + near.pairs
    works, slopes = [], []
    for stage in range(pp):
        items = _stage(model, topology, engine, _part(near, pp), stage)
        longer = _stage(model, topology, engine, _part(far, pp), stage)
        taken = [_seconds(item, gpu, engine) for item in items]
        total = np.sum(taken, axis=0) - _beside(items, taken, _part(near, pp), gpu, engine)
        growth = np.zeros_like(length)
        for item, more, once in zip(items, longer, taken, strict=True):
            if isinstance(item, Operator) and item.kind in WALKS:
                growth = growth + _seconds(more, gpu, engine) - once
        works.append(pp * (total - growth))
        slopes.append(pp * growth / length)
    return Line(work=np.max(works, axis=0), slope=np.max(slopes, axis=0))


def _batch(decode: Array, prefill: Array, length: float) -> Batch:
    # One prompt of a step ends in it and is sampled.
    rows = decode + (prefill > 0)
    return Batch(
        decode=decode, context=decode * length, prefill=prefill, pairs=prefill * length, rows=rows
    )


def _largest_bound(model: Model) -> int:
    """The context past which every bounded layer costs the same."""
    return max(_bound(layer) for layer in {*model.layers, *model.draft_layers})


def _bound(layer: Layer) -> int:
    mixer = layer.mixer
    if isinstance(mixer, Attention):
        topk = mixer.indexer.topk if mixer.indexer else 0
        return max(1, mixer.window, mixer.chunk, topk)
    if isinstance(mixer, Compressed):
        topk = mixer.indexer.topk if mixer.indexer else 0
        return max(1, mixer.window, topk * mixer.ratio)
    indexer = getattr(mixer, "indexer", None)
    return indexer.topk if indexer else 1


def _kernels(model: Model, topology: Topology, engine: Engine) -> float:
    """Kernels that the host launches in one step of the fullest stage, times the stages."""
    one = np.ones(1)
    batch = Batch(decode=one, context=one, prefill=one, pairs=one, rows=one)
    counts = []
    for stage, layers in enumerate(stages(model, topology.pp)):
        launched = stage_operators(model, topology, engine, batch, stage)
        sent = stage_exchanges(layers, model, topology, engine, batch)
        counts.append(sum(o.count for o in launched) + sum(e.count for e in sent))
    return float(topology.pp * max(counts))


def _picos(table: Array) -> Picos:
    """Integer picoseconds, with 0 in front for the empty step."""
    return np.rint(np.concatenate([[0.0], table]) / PICO).astype(np.int64)
