"""From operators to a StepCurve: every table entry is a sum over one step's operators.

A decode step is linear in its summed context and a prefill step in its pairs once contexts
exceed every window, so two evaluations give the constant and the slope exactly.
"""

import numpy as np

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Attention, Compressed, Layer, Model
from splitpoint.timing import collectives, efficiency, host
from splitpoint.timing.curve import PICO, Picos, StepCurve
from splitpoint.timing.operators import Array, Batch, stage_operators, stages


def step_curve(model: Model, gpu: Gpu, topology: Topology, engine: Engine) -> StepCurve:
    """The tables of one rank of an instance, for an engine whose settings are all resolved."""
    assert engine.max_seqs is not None and engine.batched_tokens is not None
    bound = float(_largest_bound(model))
    sequences = np.arange(1.0, engine.max_seqs + 1)
    run = host.padded(engine, sequences)
    work, _ = _line(model, gpu, topology, engine, decode=run, prefill=np.zeros_like(run), at=bound)
    _, slope = _line(
        model, gpu, topology, engine, decode=sequences, prefill=np.zeros_like(run), at=bound
    )
    kernels = _kernels(model, topology, engine)
    step = host.launch_floor(engine, run * (1 + engine.drafts), kernels)
    decode = np.maximum(work, step) + host.gap(engine, sequences)
    new = np.arange(1.0, engine.batched_tokens + 1)
    mixed, pair = _line(
        model, gpu, topology, engine, decode=np.zeros_like(new), prefill=new, at=bound
    )
    floor = host.launch_floor(engine, new, kernels)
    mixed = np.maximum(mixed, floor) + host.gap(engine, np.ones_like(new))
    return StepCurve(
        decode=_picos(decode),
        decode_context=_picos(slope),
        mixed=_picos(mixed),
        prefill_pair=int(np.rint(pair[-1] / PICO)),
        drafts=engine.drafts,
        origin=origin(gpu),
    )


def gpu_seconds(model: Model, gpu: Gpu, topology: Topology, engine: Engine, batch: Batch) -> Array:
    """Seconds a step keeps the GPUs busy: micro-batches of 1/pp of it, rounded up, pass the slowest
    stage one after the other, so a step takes pp x (operators + collectives) of that stage."""
    pp = topology.pp
    decode, prefill = np.ceil(batch.decode / pp), np.ceil(batch.prefill / pp)
    part = Batch(
        decode=decode,
        context=batch.context * decode / np.maximum(batch.decode, 1.0),
        prefill=prefill,
        pairs=batch.pairs * prefill / np.maximum(batch.prefill, 1.0),
        rows=np.ceil(batch.rows / pp),
    )
    each = [_stage_seconds(model, gpu, topology, engine, part, stage) for stage in range(pp)]
    return np.asarray(pp * np.max(each, axis=0))


def origin(gpu: Gpu) -> str:
    """What the step times of a GPU rest on, in words."""
    found = efficiency.efficiency(gpu)
    if efficiency.inherited(gpu):
        return (
            f"assumed for {gpu.name}: shares of its roofline as "
            f"{', '.join(found.gpus) or found.architecture} reach them; {found.source}"
        )
    return found.source


def _stage_seconds(
    model: Model, gpu: Gpu, topology: Topology, engine: Engine, batch: Batch, stage: int
) -> Array:
    layers = stages(model, topology.pp)[stage]
    busy = np.zeros_like(batch.decode)
    for operator in stage_operators(model, topology, engine, batch, stage):
        busy = busy + efficiency.seconds(operator, gpu, engine.name)
    for exchange in collectives.stage_exchanges(layers, model, topology, engine, batch):
        busy = busy + collectives.seconds(exchange, gpu)
    return busy


def _line(
    model: Model,
    gpu: Gpu,
    topology: Topology,
    engine: Engine,
    *,
    decode: Array,
    prefill: Array,
    at: float,
) -> tuple[Array, Array]:
    """Seconds without context, and seconds more per token of context (decode) or pair (prefill),
    taken where every sequence is `at` or more tokens long."""
    near = _batch(decode, prefill, at)
    far = _batch(decode, prefill, 2 * at)
    low = gpu_seconds(model, gpu, topology, engine, near)
    high = gpu_seconds(model, gpu, topology, engine, far)
    slope = (high - low) / (far.context + far.pairs - near.context - near.pairs)
    return low - slope * (near.context + near.pairs), slope


def _batch(decode: Array, prefill: Array, length: float) -> Batch:
    # A step with prefill samples few rows, and the logits' weights are read once whatever they
    # are: one row stands for them (n more rows cost 2 x hidden x vocab / tp FLOPs each).
    rows = np.where(prefill > 0, 1.0, decode)
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
        sent = collectives.stage_exchanges(layers, model, topology, engine, batch)
        counts.append(sum(o.count for o in launched) + sum(e.count for e in sent))
    return float(topology.pp * max(counts))


def _picos(table: Array) -> Picos:
    """Integer picoseconds, with 0 in front for the empty step."""
    return np.rint(np.concatenate([[0.0], table]) / PICO).astype(np.int64)
