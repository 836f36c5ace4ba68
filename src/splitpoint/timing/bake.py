"""From operators to a StepCurve: every table entry is a sum over one step's operators.

A decode step is linear in its summed context and a prefill step in its pairs once contexts
exceed every window, so two evaluations give the constant and the slope exactly.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.drafter import draft_layers
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Attention, Compressed, Layer, Model
from splitpoint.pricing.engines import prefill_sizes, rules
from splitpoint.pricing.engines.rules import version_of
from splitpoint.timing import collectives, efficiency, host
from splitpoint.timing.collectives import (
    Exchange,
    draft_exchanges,
    embedding_exchanges,
    logits_exchanges,
    stage_exchanges,
)
from splitpoint.timing.curve import PICO, Picos, StepCurve, Together
from splitpoint.timing.operators import (
    Array,
    Batch,
    Kind,
    Operator,
    prefix_operators,
    quantised,
    stage_operators,
    stages,
    tokens,
    verified,
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
        "selection",
    }
)
# Of those, kernels that are no line in what they attend, as reading it hides behind a launch or as
# it leaves the cache: a step's line meets them without a context and at the model's longest.
CURVED: frozenset[Kind] = frozenset({"decode_indexer", "selection"})
# Tokens of a prefix past which a matrix product takes as long for each further one.
LONG_PREFIX = 8192.0


class Line(NamedTuple):
    """Seconds of a step without context, and per token of context (or pair of a prefill)."""

    work: Array
    slope: Array


def step_curve(model: Model, gpu: Gpu, topology: Topology, engine: Engine) -> StepCurve:
    """The tables of one rank of an instance, for an engine whose settings are all resolved; in a
    pipeline those of its first stage with the `later` ones."""
    if engine.kernels == "measured":
        # Few plans ask for it.
        from splitpoint.timing import measured_kernels

        measured_kernels.check(gpu)
    words = origin(model, gpu, topology, engine)
    curves: dict[tuple[frozenset[tuple[Layer, int]], bool, bool], StepCurve] = {}
    parts = []
    for stage, layers in enumerate(stages(model, topology.pp)):
        # Stages between the first and the last with the same layers are the same.
        kind = (frozenset(Counter(layers).items()), stage == 0, stage == topology.pp - 1)
        if kind not in curves:
            curves[kind] = replace(_stage_curve(model, gpu, topology, engine, stage), origin=words)
        parts.append(curves[kind])
    return replace(parts[0], later=tuple(parts[1:]))


def _stage_curve(
    model: Model, gpu: Gpu, topology: Topology, engine: Engine, stage: int
) -> StepCurve:
    assert engine.max_seqs is not None and engine.batched_tokens is not None
    bound = float(_largest_bound(model, engine))
    sequences = np.arange(1.0, engine.max_seqs + 1)
    run = host.padded(engine, sequences)
    sizes, place = np.unique(run, return_inverse=True)
    line = partial(_line, model, gpu, topology, engine, stage, at=bound)
    padded = line(decode=sizes, prefill=np.zeros_like(sizes))
    slope = _slope(model, gpu, topology, engine, stage, sequences, at=bound)
    slope = _rising(engine, slope * sequences) / sequences
    kernels = _kernels(model, topology, engine, stage)
    step = host.launch_floor(engine, gpu, run * (1 + engine.drafts), kernels, decode=True)
    work = _rising(engine, padded.work)
    if stage == topology.pp - 1:
        work = work + _host_behind(model, gpu, topology, engine, sizes, work, at=bound)
    # The scheduler fills a batch before its first stage; the others compute meanwhile.
    scheduled = float(stage == 0)
    decode = np.maximum(work[place], step) + scheduled * host.gap(engine, gpu, sequences)
    new = np.arange(1.0, engine.batched_tokens + 1)
    points = grid(engine.batched_tokens)
    chunk = line(decode=np.zeros_like(points), prefill=points)
    floor = host.launch_floor(engine, gpu, new, kernels)
    work = np.interp(new, points, _rising(engine, chunk.work))
    pair, prefix = walks(points, chunk.slope)
    again = sum(seconds for _, seconds in _again(model, gpu, topology, engine, stage))
    prefix += int(np.rint(again / PICO))
    mixed = np.maximum(work, floor) + scheduled * host.gap(engine, gpu, np.ones_like(new))
    gap = host.gap(engine, gpu, sequences + 1.0) - host.gap(engine, gpu, np.ones_like(sequences))
    joined = _joined(line, gpu, engine, sequences, kernels) + scheduled * gap
    return StepCurve(
        decode=_picos(decode),
        decode_context=_picos(slope + host.lookup(engine)),
        mixed=_picos(mixed),
        prefill_pair=pair,
        prefill_prefix=prefix,
        mixed_decode=_picos(joined),
        together=_together(model, gpu, topology, engine, stage, mixed),
        drafts=engine.drafts,
    )


def _rising(engine: Engine, seconds: Array) -> Array:
    """Seconds of ever more tokens, none less than of fewer: fitted surfaces are so, interpolated
    rows nearly."""
    return seconds if engine.kernels == "fitted" else np.maximum.accumulate(seconds)


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


def _again(
    model: Model, gpu: Gpu, topology: Topology, engine: Engine, stage: int
) -> list[tuple[Operator, float]]:
    """What a chunk computes again of the tokens before it in a stage, with the seconds of each."""
    near, far = LONG_PREFIX, 2 * LONG_PREFIX
    items = prefix_operators(model, topology, engine, np.array([near, far]), stage)
    taken = [_seconds(item, gpu, engine) for item in items]
    return [
        (item, float(seconds[1] - seconds[0]) / (far - near))
        for item, seconds in zip(items, taken, strict=True)
    ]


def _joined(
    line: Callable[..., Line], gpu: Gpu, engine: Engine, decode: Array, kernels: float
) -> Array:
    """What decoding sequences add to a step beside their tokens and context, in a step as long as
    the token budget: kernels of their own, states, windows, drafts after the first, logits."""
    own = decode * (1 + engine.drafts)
    total = np.maximum(float(engine.batched_tokens or 0), own + 1.0)
    totals, place = np.unique(total, return_inverse=True)
    none = np.zeros_like(totals)
    joined = line(decode=decode, prefill=total - own)
    alone = line(decode=none, prefill=totals)
    # What the GPUs do while the host launches costs nothing more.
    floor = host.launch_floor(engine, gpu, total, kernels)
    more = np.maximum(joined.work, floor) - np.maximum(alone.work[place], floor)
    return np.asarray(np.maximum(more, 0.0))


def _together(
    model: Model, gpu: Gpu, topology: Topology, engine: Engine, stage: int, mixed: Array
) -> Together | None:
    """What dp ranks do together of steps with 1, 2, ... prefill tokens that last `mixed` seconds
    in a stage; None where each is by itself.

    A step that no graph replays gathers as many tokens as there are: vLLM pads ranks to the fullest
    under graphs only (v1/worker/dp_utils.py, should_dp_pad), SGLang gathers SUM_LEN where a rank
    prefills (layers/dp_attention.py, pull request 10414), TensorRT-LLM gathers by
    `all_rank_num_tokens` (modeling_deepseekv3.py); read 2026-11-30.
    """
    if topology.dp == 1:
        return None
    points = grid(len(mixed))
    items = _stage(model, topology, engine, _batch(np.zeros_like(points), points, 1.0), stage)
    shared = sum(
        (_seconds(item, gpu, engine) for item in _shared_out(items, engine)),
        np.zeros_like(points),
    )
    if not np.any(shared):
        return None
    new = np.arange(1.0, len(mixed) + 1)
    share = np.interp(new, points, shared)
    sizes = prefill_sizes(engine)
    launched = host.launch_floor(
        engine, gpu, new[-1:] + 1, _kernels(model, topology, engine, stage)
    )
    least = launched + float(stage == 0) * host.gap(engine, gpu, np.ones(1))
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


def _host_behind(
    model: Model,
    gpu: Gpu,
    topology: Topology,
    engine: Engine,
    decode: Array,
    work: Array,
    *,
    at: float,
) -> Array:
    """Seconds by which the host is slower than the GPU it works beside in a decode step: to launch
    what drafts, beside its kernels, or, where the host runs ahead of the GPU, to prepare a step, to
    launch what drafts and to agree with other dp ranks' hosts, beside the whole step's `work`."""
    ahead = rules(engine, topology).overlapped
    launches, busy = _drafting(model, gpu, topology, engine, _batch(decode, 0.0 * decode, at))
    taken = host.launch_seconds(engine, gpu) * launches
    if not ahead:
        return np.asarray(np.maximum(taken - busy, 0.0)) if launches else np.zeros_like(decode)
    taken = taken + host.agreement_seconds(engine, model, gpu, topology)
    shown = work + host.gap(engine, gpu, decode)
    return np.asarray(np.maximum(taken + host.preparation(engine, gpu, decode) - shown, 0.0))


def _drafting(
    model: Model, gpu: Gpu, topology: Topology, engine: Engine, batch: Batch
) -> tuple[int, Array]:
    """Launches by which the host drafts in a decode step, and seconds that drafting takes the
    GPU."""
    if not engine.drafts:
        return 0, np.zeros_like(batch.decode)
    items = _stage(model, topology, engine, batch, topology.pp - 1)
    drafting = [item for item in items if item.name.startswith("draft.")]
    operators = [item for item in drafting if isinstance(item, Operator)]
    launches = host.draft_launches(
        engine,
        model,
        kernels=sum(item.count for item in drafting),
        attentions=sum(o.count for o in operators if o.kind.startswith("decode_")),
        passes=sum(o.count for o in operators if o.name == "draft.sampling"),
    )
    nothing = np.zeros_like(batch.decode)
    return launches, sum((_seconds(item, gpu, engine) for item in drafting), nothing)


# What a step takes beside the seconds of its kernels and messages.
HOST = "host: launches, and gaps between steps"
SENT = {
    "all_reduce": "all-reduces",
    "all_gather": "all-gathers",
    "reduce_scatter": "reduce-scatters",
    "all_to_all": "all-to-alls",
    "send": "sends",
}


def step_exchanges(
    model: Model, topology: Topology, engine: Engine, batch: Batch
) -> tuple[Exchange, ...]:
    """The messages of a step on the ranks of all its stages."""
    return tuple(
        item
        for stage in range(topology.pp)
        for item in _stage(model, topology, engine, batch, stage)
        if isinstance(item, Exchange)
    )


def step_parts(
    model: Model, gpu: Gpu, topology: Topology, engine: Engine, batch: Batch
) -> dict[str, float]:
    """Seconds of one step, of decodes or of a prompt's chunk, by what takes them: kernels by kind
    and dtype, messages by pattern and ranks, and the host."""
    running = np.rint(batch.decode)
    if batch.prefill.sum() == 0:
        batch = replace(batch, decode=host.padded(engine, running))
    parts: dict[str, float] = defaultdict(float)
    for stage in range(topology.pp):
        items = _stage(model, topology, engine, batch, stage)
        taken = [_seconds(item, gpu, engine) for item in items]
        for item, seconds in zip(items, taken, strict=True):
            parts[_part(item)] += float(seconds.sum())
        for again, each in _again(model, gpu, topology, engine, stage):
            parts[_part(again)] += each * float(_prefix(batch).sum())
        hidden = float(_beside(items, taken, batch, gpu, engine).sum())
        if hidden:
            parts["shared experts"] -= hidden
        waited = _host_alone(model, gpu, topology, engine, batch, running, stage)
        parts[HOST] += float(waited.sum())
    return dict(parts)


def _host_alone(
    model: Model,
    gpu: Gpu,
    topology: Topology,
    engine: Engine,
    batch: Batch,
    running: Array,
    stage: int,
) -> Array:
    """Seconds of a step, padded to `batch` from the sequences `running`, in which the GPUs of a
    stage wait for the host, as `_stage_curve` counts them: context passes beside none of it."""
    at = float(_largest_bound(model, engine))
    decode, prefill = batch.decode, batch.prefill
    decodes = bool(prefill.sum() == 0)
    work = _line(model, gpu, topology, engine, stage, decode=decode, prefill=prefill, at=at).work
    shown = work
    if decodes and stage == topology.pp - 1:
        shown = work + _host_behind(model, gpu, topology, engine, decode, work, at=at)
    launched = decode * (1 + engine.drafts) + prefill
    kernels = _kernels(model, topology, engine, stage)
    floor = host.launch_floor(engine, gpu, launched, kernels, decode=decodes)
    waited = np.maximum(shown, floor) - work + host.lookup(engine) * batch.context
    if stage == 0:
        waited = waited + host.gap(engine, gpu, np.maximum(running, 1.0))
    return np.asarray(waited)


def _prefix(batch: Batch) -> Array:
    """Tokens before the new ones of a prompt's chunk, whose mean query attends all of them and half
    of the new ones; 0 without one."""
    new = batch.prefill
    return np.maximum(batch.pairs / np.maximum(new, 1.0) - (new + 1.0) / 2.0, 0.0)


def _part(item: Operator | Exchange) -> str:
    if isinstance(item, Exchange):
        return f"{SENT[item.pattern]} over {item.ranks} ranks"
    if item.name.startswith("shared."):
        return "shared experts"
    return f"{_words(item.kind)} ({item.dtype})"


def gpu_seconds(model: Model, gpu: Gpu, topology: Topology, engine: Engine, batch: Batch) -> Array:
    """Seconds of a step on the GPUs: operators and collectives of its stages, one after the
    other."""
    total = np.zeros_like(batch.decode)
    for stage in range(topology.pp):
        items = _stage(model, topology, engine, batch, stage)
        taken = [_seconds(item, gpu, engine) for item in items]
        total = total + np.sum(taken, axis=0) - _beside(items, taken, batch, gpu, engine)
    return np.asarray(total)


def origin(model: Model, gpu: Gpu, topology: Topology, engine: Engine) -> str:
    """What step times rest on, in words."""
    found = efficiency.head(gpu)
    if engine.kernels == "measured":
        return _measured_origin(shown(model, gpu, topology, engine), gpu)
    if efficiency.inherited(gpu):
        return (
            f"assumed for {gpu.name}: shares of its roofline as "
            f"{', '.join(found.gpus) or found.architecture} reach them; {found.source}"
        )
    return found.source


class Spoken(NamedTuple):
    """Seconds of the GPUs in one step by what they rest on: versions of measured tables, and the
    kinds of kernels that no table speaks for."""

    measured: dict[str, float]
    fitted: dict[str, float]

    @property
    def share(self) -> float:
        """The share of the time that kernels were measured for."""
        return sum(self.measured.values()) / self.seconds

    @property
    def seconds(self) -> float:
        """All of the time."""
        return sum(self.measured.values()) + sum(self.fitted.values())


class Shown(NamedTuple):
    """What a decode step and a prefill step rest on."""

    decode: Spoken
    prefill: Spoken


# A step of middling size, for which a curve says what it rests on.
SHOWN_SEQUENCES, SHOWN_CONTEXT = 64, 4096


def shown(model: Model, gpu: Gpu, topology: Topology, engine: Engine) -> Shown:
    """What the GPUs' time of a decode step and of a prefill rests on."""
    from splitpoint.timing import measured_kernels

    assert engine.max_seqs is not None and engine.batched_tokens is not None
    context = float(min(SHOWN_CONTEXT, engine.max_len or model.max_len))
    sequences = float(min(SHOWN_SEQUENCES, engine.max_seqs))
    steps = _batch(
        np.array([sequences, 0.0]),
        np.array([0.0, float(engine.batched_tokens)]),
        np.array([context, context / 2]),
    )
    found = Shown(*(Spoken(defaultdict(float), defaultdict(float)) for _ in Shown._fields))
    for stage in range(topology.pp):
        for item in _stage(model, topology, engine, steps, stage):
            taken = _seconds(item, gpu, engine)
            kind, inside, source = "collectives", np.zeros(2, np.bool_), ""
            if isinstance(item, Operator):
                rests = measured_kernels.surface(item, gpu, engine)
                kind, inside, source = item.kind, rests.inside(item), rests.source
            for part, seconds, measured in zip(found, taken.tolist(), inside, strict=True):
                if seconds and measured:
                    part.measured[source] += seconds
                elif seconds:
                    part.fitted[kind] += seconds
    return found


def _measured_origin(found: Shown, gpu: Gpu) -> str:
    decode, prefill = found.decode, found.prefill
    versions = sorted({*decode.measured, *prefill.measured})
    rest = {
        kind: (decode.fitted[kind] / decode.seconds, prefill.fitted[kind] / prefill.seconds)
        for kind in {*decode.fitted, *prefill.fitted}
    }
    left = ", ".join(
        f"{_words(kind)} {shares[0]:.0%} and {shares[1]:.0%}"
        for kind, shares in sorted(rest.items(), key=lambda item: -sum(item[1]))
        if max(shares) >= 0.005
    )
    return (
        f"measured: {', '.join(versions) or 'no engine'} on {gpu.name} (kernel tables of "
        f"aiconfigurator-core, NVIDIA) for {decode.share:.0%} of the GPUs' time in a decode step "
        f"(up to {SHOWN_SEQUENCES} sequences of {SHOWN_CONTEXT:,} tokens) and {prefill.share:.0%} "
        f"in a full prefill; fitted to others: {left}"
    )


WORDS = {"gemm": "products", "vector": "small kernels"}


def _words(kind: str) -> str:
    """A kind of kernels as people call it."""
    return WORDS.get(kind, kind.replace("_", " "))


def _stage(
    model: Model, topology: Topology, engine: Engine, batch: Batch, stage: int
) -> tuple[Operator | Exchange, ...]:
    layers = stages(model, topology.pp)[stage]
    fused = host.fused(engine, topology)
    counted = [
        operator
        for operator in stage_operators(model, topology, engine, batch, stage)
        if operator.name.removeprefix("draft.") not in fused
    ]
    apart = host.host_speed(engine).quantises
    operators = (
        *counted,
        *(quantised(o) for o in counted if o.kind == "gemm" and o.dtype in apart),
    )
    sent = stage_exchanges(layers, model, topology, engine, batch)
    if stage == 0:
        sent = (*embedding_exchanges(model, topology, tokens(batch, engine.drafts)), *sent)
    if stage < topology.pp - 1:
        return (*operators, *sent)
    # The last stage has nobody to send to, and makes logits and drafts.
    return (
        *operators,
        *(exchange for exchange in sent if exchange.pattern != "send"),
        *logits_exchanges(model, topology, verified(batch, engine.drafts)),
        *draft_exchanges(model, topology, engine, batch),
    )


def _seconds(item: Operator | Exchange, gpu: Gpu, engine: Engine) -> Array:
    if isinstance(item, Exchange):
        taken = collectives.seconds(item, gpu, engine)
    else:
        taken = _kernel_seconds(item, gpu, engine)
    return np.maximum(taken - item.count * host.dependent(engine, gpu), 0.0)


def _kernel_seconds(operator: Operator, gpu: Gpu, engine: Engine) -> Array:
    if engine.kernels == "measured":
        from splitpoint.timing import measured_kernels

        found = measured_kernels.surface(operator, gpu, engine)
        if found.source:
            return efficiency.seconds_on(found.surface, operator, gpu)
    return efficiency.seconds(operator, gpu, engine.name, version_of(engine))


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
    stage: int,
    *,
    decode: Array,
    prefill: Array,
    at: float,
) -> Line:
    """The line through steps of a stage at two contexts: only operators that walk the context
    differ between them."""
    step = partial(_at, model, topology, engine, stage, decode, prefill)
    items, near = step(at), _batch(decode, prefill, at)
    taken = [_seconds(item, gpu, engine) for item in items]
    total = np.sum(taken, axis=0) - _beside(items, taken, near, gpu, engine)
    growth = _growth(step, items, taken, gpu, engine, at=at, longest=model.max_len)
    return Line(work=total - growth.work, slope=growth.slope / (near.context + near.pairs))


def _slope(
    model: Model,
    gpu: Gpu,
    topology: Topology,
    engine: Engine,
    stage: int,
    decode: Array,
    *,
    at: float,
) -> Array:
    """Seconds per context token of decoding sequences in a stage."""
    none = np.zeros_like(decode)
    step = partial(_at, model, topology, engine, stage, decode, none)
    items = step(at)
    taken = [_seconds(item, gpu, engine) if _walks(item) else none for item in items]
    growth = _growth(step, items, taken, gpu, engine, at=at, longest=model.max_len)
    return np.asarray(growth.slope / (decode * at))


def _growth(
    step: Callable[[float], Sequence[Operator | Exchange]],
    items: Sequence[Operator | Exchange],
    taken: Sequence[Array],
    gpu: Gpu,
    engine: Engine,
    *,
    at: float,
    longest: float,
) -> Line:
    """Seconds that `at` tokens of context add to a step whose `items` were `taken` at that context,
    and those by which they exceed a step without."""
    straight = [n for n, item in enumerate(items) if _walks(item) and not _curved(item)]
    curved = [n for n, item in enumerate(items) if _curved(item)]
    slope = np.zeros_like(taken[0])
    longer = step(2.0 * at) if straight else ()
    for n in straight:
        slope = slope + _seconds(longer[n], gpu, engine) - taken[n]
    work = slope
    if curved:
        first, last = step(1.0), step(longest)
    for n in curved:
        once = _seconds(first[n], gpu, engine)
        token = (_seconds(last[n], gpu, engine) - once) / (longest - 1.0)
        work = work + taken[n] - (once - token)
        slope = slope + token * at
    return Line(work=work, slope=slope)


def _walks(item: Operator | Exchange) -> bool:
    """Whether a longer context makes an item longer."""
    return item.walks if isinstance(item, Exchange) else item.kind in WALKS


def _curved(item: Operator | Exchange) -> bool:
    """Whether it does so along no line."""
    return isinstance(item, Operator) and item.kind in CURVED


def _at(
    model: Model,
    topology: Topology,
    engine: Engine,
    stage: int,
    decode: Array,
    prefill: Array,
    length: float,
) -> tuple[Operator | Exchange, ...]:
    """A stage's step of sequences and new tokens that each attend `length` tokens."""
    return _stage(model, topology, engine, _batch(decode, prefill, length), stage)


def _batch(decode: Array, prefill: Array, length: float | Array) -> Batch:
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


def _kernels(model: Model, topology: Topology, engine: Engine, stage: int) -> float:
    """Kernels that the host launches in one step of a stage."""
    one = np.ones(1)
    batch = Batch(decode=one, context=one, prefill=one, pairs=one, rows=one)
    return float(sum(item.count for item in _stage(model, topology, engine, batch, stage)))


def _picos(table: Array) -> Picos:
    """Integer picoseconds, with 0 in front for the empty step."""
    return np.rint(np.concatenate([[0.0], table]) / PICO).astype(np.int64)
