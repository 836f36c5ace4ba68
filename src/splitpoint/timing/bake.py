"""From operators to a StepCurve: every table entry is a sum over one step's operators.

A decode step is linear in its summed context and a prefill step in its pairs once contexts
exceed every window, so two evaluations give the constant and the slope exactly.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.drafter import draft_layers
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Attention, Compressed, Layer, Model
from splitpoint.pricing.engines import prefill_sizes, rules
from splitpoint.timing import collectives, efficiency, host
from splitpoint.timing.collectives import Exchange, draft_exchanges, stage_exchanges
from splitpoint.timing.curve import PICO, Picos, StepCurve, Together
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
    bound = float(_largest_bound(model, engine))
    sequences = np.arange(1.0, engine.max_seqs + 1)
    run = host.padded(engine, sequences)
    sizes, place = np.unique(run, return_inverse=True)
    none = np.zeros_like(sizes)
    padded = _line(model, gpu, topology, engine, decode=sizes, prefill=none, at=bound)
    slope = _slope(model, gpu, topology, engine, sequences, at=bound)
    kernels = _kernels(model, topology, engine)
    step = host.launch_floor(engine, gpu, run * (1 + engine.drafts), kernels, decode=True)
    work = padded.work + _draft_launches(model, gpu, topology, engine, sizes, padded.work, at=bound)
    decode = np.maximum(work[place], step) + host.gap(engine, sequences)
    new = np.arange(1.0, engine.batched_tokens + 1)
    points = grid(engine.batched_tokens)
    chunk = _line(
        model, gpu, topology, engine, decode=np.zeros_like(points), prefill=points, at=bound
    )
    floor = host.launch_floor(engine, gpu, new, kernels)
    work = np.interp(new, points, chunk.work)
    pair, prefix = walks(points, chunk.slope)
    mixed = np.maximum(work, floor) + host.gap(engine, np.ones_like(new))
    return StepCurve(
        decode=_picos(decode),
        decode_context=_picos(slope),
        mixed=_picos(mixed),
        prefill_pair=pair,
        prefill_prefix=prefix,
        mixed_decode=_picos(_joined(model, gpu, topology, engine, sequences, at=bound)),
        together=_together(model, gpu, topology, engine, mixed),
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
    totals, place = np.unique(total, return_inverse=True)
    none = np.zeros_like(totals)
    joined = _line(model, gpu, topology, engine, decode=decode, prefill=total - own, at=at)
    alone = _line(model, gpu, topology, engine, decode=none, prefill=totals, at=at)
    gap = host.gap(engine, decode + 1.0) - host.gap(engine, np.ones_like(decode))
    # What the GPUs do while the host launches costs nothing more.
    floor = host.launch_floor(engine, gpu, total, _kernels(model, topology, engine))
    more = np.maximum(joined.work, floor) - np.maximum(alone.work[place], floor)
    return np.asarray(np.maximum(more, 0.0) + gap)


def _together(
    model: Model, gpu: Gpu, topology: Topology, engine: Engine, mixed: Array
) -> Together | None:
    """What dp ranks do together of steps with 1, 2, ... prefill tokens that last `mixed` seconds;
    None where each is by itself.

    A step that no graph replays gathers as many tokens as there are: vLLM pads ranks to the fullest
    under graphs only (v1/worker/dp_utils.py, should_dp_pad), SGLang gathers SUM_LEN where a rank
    prefills (layers/dp_attention.py, pull request 10414), TensorRT-LLM gathers by
    `all_rank_num_tokens` (modeling_deepseekv3.py); read 2026-11-30.
    """
    if topology.dp == 1:
        return None
    points = grid(len(mixed))
    batch = _part(_batch(np.zeros_like(points), points, 1.0), topology.pp)
    shares = [
        sum(
            (
                _seconds(item, gpu, engine)
                for item in _shared_out(_stage(model, topology, engine, batch, stage), engine)
            ),
            np.zeros_like(points),
        )
        for stage in range(topology.pp)
    ]
    if not np.any(shares):
        return None
    new = np.arange(1.0, len(mixed) + 1)
    share = np.interp(new, points, topology.pp * np.max(shares, axis=0))
    sizes = prefill_sizes(engine)
    launched = host.launch_floor(engine, gpu, new[-1:] + 1, _kernels(model, topology, engine))
    least = launched + host.gap(engine, np.ones(1))
    return Together(
        # A picosecond stays with the rank, so that its own part is never nothing.
        work=_picos(np.minimum(share, mixed - PICO)),
        padded=sizes[-1] if sizes else 0,
        least=int(_picos(least)[-1]),
    )


def _shared_out(items: Sequence[Operator | Exchange], engine: Engine) -> list[Operator | Exchange]:
    """Items whose work dp ranks share out among them. A rank that sends tokens one by one sends all
    of its own. SGLang gathers before the router, so all of a mixture is shared out."""
    gathers = any(item.name == "experts.gather" for item in items)
    names = {"experts.gather", "experts.scatter", "experts", "experts.route"}
    parts = ("experts.", "shared.") if gathers and engine.name == "sglang" else ()
    plain = [(item.name.removeprefix("draft."), item) for item in items]
    return [item for name, item in plain if name in names or name.startswith(parts)]


def _draft_launches(
    model: Model,
    gpu: Gpu,
    topology: Topology,
    engine: Engine,
    decode: Array,
    work: Array,
    *,
    at: float,
) -> Array:
    """Seconds by which the host launches what drafts more slowly than the GPU runs it, or, where
    the host runs ahead of the GPU, than it runs the whole step's `work`."""
    if not engine.drafts or not host.launches_drafts(engine):
        return np.zeros_like(decode)
    part = _part(_batch(decode, np.zeros_like(decode), at), topology.pp)
    items = _stage(model, topology, engine, part, topology.pp - 1)
    drafting = [item for item in items if item.name.startswith("draft.")]
    busy = np.sum([_seconds(item, gpu, engine) for item in drafting], axis=0)
    launched = host.launch_seconds(engine, gpu) * sum(item.count for item in drafting)
    covered = work if rules(engine, topology).overlapped else busy
    return np.asarray(np.maximum(launched - covered, 0.0) if drafting else np.zeros_like(decode))


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
    last = stage == topology.pp - 1
    return (
        *stage_operators(model, topology, engine, batch, stage),
        *stage_exchanges(layers, model, topology, engine, batch),
        *(draft_exchanges(model, topology, engine, batch) if last else ()),
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
    for stage in _unlike_stages(model, pp):
        items = _stage(model, topology, engine, _part(near, pp), stage)
        longer = _stage(model, topology, engine, _part(far, pp), stage)
        taken = [_seconds(item, gpu, engine) for item in items]
        total = np.sum(taken, axis=0) - _beside(items, taken, _part(near, pp), gpu, engine)
        growth = np.zeros_like(length)
        for item, more, once in zip(items, longer, taken, strict=True):
            if item.walks if isinstance(item, Exchange) else item.kind in WALKS:
                growth = growth + _seconds(more, gpu, engine) - once
        works.append(pp * (total - growth))
        slopes.append(pp * growth / length)
    return Line(work=np.max(works, axis=0), slope=np.max(slopes, axis=0))


def _slope(
    model: Model, gpu: Gpu, topology: Topology, engine: Engine, decode: Array, *, at: float
) -> Array:
    """Seconds per context token of decoding sequences, of whichever stage is slower."""
    pp = topology.pp
    none = np.zeros_like(decode)
    near, far = (_part(_batch(decode, none, length), pp) for length in (at, 2 * at))
    slopes = []
    for stage in _unlike_stages(model, pp):
        growth = np.zeros_like(decode)
        for once, more in zip(
            *(_stage(model, topology, engine, part, stage) for part in (near, far)), strict=True
        ):
            if isinstance(once, Operator) and once.kind in WALKS:
                growth = growth + _seconds(more, gpu, engine) - _seconds(once, gpu, engine)
        slopes.append(pp * growth / (decode * at))
    return np.asarray(np.max(slopes, axis=0))


def _unlike_stages(model: Model, pp: int) -> list[int]:
    """One stage of each kind: the first, the last, and those between that differ in layers."""
    parts = stages(model, pp)
    seen = {(i == 0, i == pp - 1, parts[i]): i for i in reversed(range(pp))}
    return sorted(seen.values())


def _batch(decode: Array, prefill: Array, length: float) -> Batch:
    # One prompt of a step ends in it and is sampled.
    rows = decode + (prefill > 0)
    return Batch(
        decode=decode, context=decode * length, prefill=prefill, pairs=prefill * length, rows=rows
    )


def _largest_bound(model: Model, engine: Engine) -> int:
    """The context past which every bounded layer costs the same."""
    return max(_bound(layer) for layer in {*model.layers, *draft_layers(engine, model)})


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
    counts = [
        sum(item.count for item in _stage(model, topology, engine, batch, stage))
        for stage in range(topology.pp)
    ]
    return float(topology.pp * max(counts))


def _picos(table: Array) -> Picos:
    """Integer picoseconds, with 0 in front for the empty step."""
    return np.rint(np.concatenate([[0.0], table]) / PICO).astype(np.int64)
