"""Every number under an answer that is not arithmetic, with its origin, from the parts that used
it; and which assumed ones the verdict would turn on."""

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Dtype, Model
from splitpoint.metrics import THROUGHPUT_NOISE
from splitpoint.pricing.engines.rules import version_of
from splitpoint.record import Record
from splitpoint.run import Run
from splitpoint.search.instance import Instance
from splitpoint.search.loads import Profile
from splitpoint.search.world import Candidate
from splitpoint.timing import collectives, drafts
from splitpoint.timing.bake import SENT, shown, step_exchanges, step_parts
from splitpoint.timing.efficiency import inherited, peak, seconds, surface
from splitpoint.timing.operators import Batch, Kind, Operator, step_operators
from splitpoint.timing.path import LinkSpec
from splitpoint.verdict.answer import Figure, Origin
from splitpoint.verdict.conditions import decode_batch, prefill_batch
from splitpoint.verdict.turnover import Turnover

# How far a prediction may be off before a flip counts as resting on it, where the source of a
# number states no error of its own: the link's is assumed, four of five step times are nearer than
# this to what others measured (docs/accuracy.md).
LINK_BAND = 2.0
TIME_BAND = 1.25
# Standard errors that a fitted step time may be off, as a normal variable is in 19 of 20 cases.
FITTED_ERRORS = 2.0
# Messages that take less of a step than this are not listed.
LEAST_PART = 0.02

Part = Literal["prefill", "decode"]
PARTS: tuple[Part, ...] = get_args(Part)


class Step(Record, frozen=True, kw_only=True):
    """A step as a run had it on average, and the instance that ran it."""

    name: str
    instance: Instance
    batch: Batch


def mean_steps(candidate: Candidate, run: Run, profile: Profile) -> list[Step]:
    """The prefill and the decode step of a deployment's run."""
    steps = []
    for pool, ready in zip(candidate.deployment.pools, candidate.instances, strict=True):
        if pool.role != "decode":
            batch = prefill_batch(ready, run, profile)
            steps.append(Step(name=f"prefill of {ready.topology}", instance=ready, batch=batch))
        if pool.role != "prefill":
            batch = decode_batch(run, profile, pool.replicas * pool.topology.dp)
            steps.append(Step(name=f"decode of {ready.topology}", instance=ready, batch=batch))
    return steps


def assumptions(
    candidates: Sequence[Candidate],
    steps: Sequence[Step],
    links: Sequence[LinkSpec],
    model: Model,
    gpu: Gpu,
) -> tuple[Figure, ...]:
    """The figures that these deployments and their mean steps rest on, each once."""
    figures: dict[str, Figure] = {}
    for figure in _all(candidates, steps, links, model, gpu):
        figures.setdefault(figure.name, figure)
    return tuple(figures.values())


def time_band(candidates: Sequence[Candidate]) -> float:
    """The factor that the step times of some of these deployments may be off by."""
    instances = [ready for candidate in candidates for ready in candidate.instances]
    bands = [_time_band(ready, part) for ready in instances for part in PARTS]
    return max(bands, default=TIME_BAND)


def rests_on(found: Turnover, candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """The assumed numbers whose stated error is enough to turn the verdict, the nearest first."""
    instances = [ready for candidate in candidates for ready in candidate.instances]
    bands = {
        "link bandwidth": LINK_BAND,
        "prefill time": max(_time_band(ready, "prefill") for ready in instances),
        "decode time": max(_time_band(ready, "decode") for ready in instances),
        "KV pool": 1 + _pool_band(candidates),
    }
    turning = [
        (max(flip.factor, 1 / flip.factor), flip)
        for flip in found.flips
        if flip.knob.assumed and flip.factor is not None
    ]
    return tuple(
        f"{flip.knob.name}: x {flip.factor:.3g} of the value taken makes {flip.winner} win"
        f" (its error is taken as x {bands[flip.knob.name]:.3g})"
        for far, flip in sorted(turning, key=lambda pair: pair[0])
        if far <= bands[flip.knob.name]
    )


def guessed_acceptance(candidates: Sequence[Candidate], model: Model) -> tuple[str, ...]:
    """How often drafts are taken to be accepted, where they are used and nobody measured it."""
    found = {
        f"draft acceptance, not measured on this workload: {drafts.origin(ready.engine, model)}"
        for candidate in candidates
        for ready in candidate.instances
        if ready.engine.drafts and not ready.engine.acceptance
    }
    return tuple(sorted(found))


def origin_of(words: str) -> Origin:
    """The origin that a source opens with; assumed where it names none, or names that one too."""
    if "assumed" in words:
        return "assumed"
    return next((origin for origin in get_args(Origin) if words.startswith(origin)), "assumed")


def _time_band(ready: Instance, part: Part) -> float:
    """How far the step times of an instance may be off: what their fit says, where it does."""
    error = getattr(ready.fitted.errors, part) if ready.fitted is not None else None
    if ready.fitted is None or error is None:
        return TIME_BAND
    return float(1 + FITTED_ERRORS * max(error, ready.fitted.rms))


def _pool_band(candidates: Sequence[Candidate]) -> float:
    """The largest error of a KV pool over its size."""
    holdings = [ready.holding for candidate in candidates for ready in candidate.instances]
    return max((held.ladder.band / max(held.kv_bytes, 1) for held in holdings), default=0.0)


def _all(
    candidates: Sequence[Candidate],
    steps: Sequence[Step],
    links: Sequence[LinkSpec],
    model: Model,
    gpu: Gpu,
) -> Iterator[Figure]:
    instances = [ready for candidate in candidates for ready in candidate.instances]
    for ready in instances:
        yield from _rungs(ready)
    for step in steps:
        yield from _shares(step, model, gpu)
    for ready in instances:
        if ready.engine.drafts:
            words = drafts.origin(ready.engine, model)
            yield Figure(
                name=f"tokens a decode step yields with {ready.engine.drafts} drafts",
                value=ready.tokens_per_step,
                unit="tokens",
                origin=origin_of(words),
                source=words,
            )
    for ready in instances:
        yield from _fitted(ready)
    for link in links:
        yield Figure(
            name="KV transfer bandwidth between two instances",
            value=link.bandwidth,
            unit="B/s",
            origin=origin_of(link.origin),
            source=link.origin,
        )
    for name, value, unit in (
        ("HBM of the GPU as the driver reports it", float(gpu.hbm), "B"),
        ("HBM bandwidth", gpu.bandwidth, "B/s"),
        ("dense bf16 compute", gpu.flops.bf16, "FLOP/s"),
        ("link inside a node or domain, one GPU", gpu.inside.bandwidth, "B/s"),
        ("network port of one GPU", gpu.outside.bandwidth, "B/s"),
    ):
        words = gpu.sources.get(_FIELDS[name], "assumed: given without a source")
        yield Figure(name=name, value=value, unit=unit, origin=origin_of(words), source=words)
    yield Figure(
        name="noise of a repeated run: leads below it are ties",
        value=THROUGHPUT_NOISE,
        unit="share",
        origin="published",
        source="InferenceX DeepSeek-R1: median coefficient of variation of throughput",
    )


_FIELDS = {
    "HBM of the GPU as the driver reports it": "hbm_gib",
    "HBM bandwidth": "bandwidth",
    "dense bf16 compute": "flops",
    "link inside a node or domain, one GPU": "inside",
    "network port of one GPU": "outside",
}


def _rungs(ready: Instance) -> Iterator[Figure]:
    """The rungs of the ladder that are estimates."""
    for rung in ready.holding.ladder.rungs:
        if rung.origin == "assumed":
            yield Figure(
                name=f"{rung.name.replace('_', ' ')} of {ready.topology}",
                value=float(rung.bytes),
                unit="B",
                origin=rung.origin,
                source=rung.source,
            )


def _fitted(ready: Instance) -> Iterator[Figure]:
    """The measured factors on the step times, if a curve file gives them."""
    if ready.fitted is None:
        return
    factors, errors = ready.fitted.factors, ready.fitted.errors
    origin = f"measured: curve {ready.fitted.name}, " + ", ".join(
        source.file for source in ready.fitted.sources
    )
    for name, value, unit, error in (
        (
            "constant part of a decode step, measured over predicted",
            factors.decode,
            "x",
            errors.decode,
        ),
        ("decode step per token, measured over predicted", factors.context, "x", errors.context),
        ("step with prefill, measured over predicted", factors.prefill, "x", errors.prefill),
        ("time of a request outside of steps", ready.front_s, "s", errors.front_s),
    ):
        if value is None:
            continue
        known = origin if error is not None else "assumed: the results do not determine it"
        yield Figure(name=name, value=value, unit=unit, origin=origin_of(known), source=known)


def _shares(step: Step, model: Model, gpu: Gpu) -> Iterator[Figure]:
    """The share of the roofline that each kind of operator reaches in a step, of the bound that
    it is nearer to: sum FLOPs / peak, or sum bytes / bandwidth, over its seconds."""
    ready, engine = step.instance, step.instance.engine.name
    version = version_of(step.instance.engine)
    if ready.engine.kernels == "measured":
        rests = shown(model, gpu, ready.topology, ready.engine)
        for name, part in (("decode", rests.decode), ("prefill", rests.prefill)):
            yield Figure(
                name=f"GPU time of a {name} step by measured kernels",
                value=part.share,
                unit="share",
                origin="measured",
                source=ready.curve.origin,
            )
    alike: dict[tuple[Kind, Dtype], list[Operator]] = {}
    for operator in step_operators(model, ready.topology, ready.engine, step.batch):
        alike.setdefault((operator.kind, operator.dtype), []).append(operator)
    note = f", taken over to {gpu.name} from its architecture" if inherited(gpu) else ""
    for (kind, dtype), operators in alike.items():
        taken = sum(float(seconds(o, gpu, engine, version).sum()) for o in operators)
        if not taken:
            continue
        compute = sum(float(o.count * o.flops.sum()) for o in operators) / peak(gpu, dtype)
        memory = sum(float(o.count * o.bytes.sum()) for o in operators) / gpu.bandwidth
        source = surface(gpu, kind, dtype, engine, version).origin
        yield Figure(
            name=f"{kind.replace('_', ' ')} ({dtype}), {step.name}: share of "
            f"{'compute' if compute > memory else 'bandwidth'} reached",
            value=max(compute, memory) / taken,
            unit="share",
            # A surface that another GPU was measured for is an assumption about this one.
            origin="assumed" if inherited(gpu) else origin_of(source),
            source=source + note,
        )
    yield from _messages(step, model, gpu)


def _messages(step: Step, model: Model, gpu: Gpu) -> Iterator[Figure]:
    """The share of their link's bandwidth that the messages of a step reach, by pattern and ranks:
    bytes over the busiest link / bandwidth, over their seconds."""
    ready = step.instance
    whole = sum(step_parts(model, gpu, ready.topology, ready.engine, step.batch).values())
    alike: dict[tuple[collectives.Pattern, int, bool], list[collectives.Exchange]] = {}
    for sent in step_exchanges(model, ready.topology, ready.engine, step.batch):
        inside = sent.ranks * sent.stride <= gpu.domain
        if float(sent.bytes.sum()):
            alike.setdefault((sent.pattern, sent.ranks, inside), []).append(sent)
    for (pattern, ranks, inside), exchanges in alike.items():
        # A hierarchy of links has no one bandwidth.
        if not inside:
            continue
        span = max(sent.ranks * sent.stride for sent in exchanges)
        speed = collectives.link_speed(
            gpu.inside, gpu.architecture, pattern, ready.engine.name, span
        )
        taken = sum(float(collectives.seconds(e, gpu, ready.engine).sum()) for e in exchanges)
        if taken < LEAST_PART * whole:
            continue
        moved = sum(float(e.count * e.bytes.sum()) for e in exchanges)
        wire = moved * float(collectives.travelled(pattern, ranks)) / gpu.inside.bandwidth
        off = (
            ""
            if speed.error_p90 is None
            else f"; off by {speed.error_p90:.0%} at the 90th percentile"
        )
        yield Figure(
            name=f"{SENT[pattern]} over {ranks} ranks, {step.name}: share of bandwidth reached",
            value=wire / taken,
            unit="share",
            origin=origin_of(speed.origin),
            source=f"{speed.origin}{off}",
        )
