"""The four conditions under which a split pays, each with its numbers and its margin.

Arithmetic intensity of a step is the sum of its FLOPs over the sum of the bytes it moves to and
from HBM, operator by operator, on one rank; the ridge is the rate at which the GPU could do those
FLOPs in their dtypes over its bandwidth. Above the ridge compute limits, below it memory does.
"""

import numpy as np

from splitpoint import metrics
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Model
from splitpoint.inputs.slo import Slo
from splitpoint.record import Record
from splitpoint.run import Run
from splitpoint.search.instance import Instance
from splitpoint.search.loads import Profile
from splitpoint.timing.efficiency import peak
from splitpoint.timing.operators import Batch, step_operators
from splitpoint.units import percent, seconds
from splitpoint.verdict.answer import Condition, Figure, Wall


class Intensity(Record, frozen=True, kw_only=True):
    """FLOP per byte of a step, and of a GPU that would be busy with both alike."""

    step: float
    ridge: float


def intensity(model: Model, gpu: Gpu, instance: Instance, batch: Batch) -> Intensity:
    """step = sum FLOPs / sum bytes; ridge = sum FLOPs / sum (FLOPs / peak of their dtype) /
    bandwidth."""
    operators = step_operators(model, instance.topology, instance.engine, batch)
    flops = sum(float(o.count * o.flops.sum()) for o in operators)
    moved = sum(float(o.count * o.bytes.sum()) for o in operators)
    compute = sum(float(o.count * o.flops.sum()) / peak(gpu, o.dtype) for o in operators)
    return Intensity(step=flops / moved, ridge=flops / compute / gpu.bandwidth)


def prefill_batch(instance: Instance, run: Run, profile: Profile) -> Batch:
    """A step of a mean prompt after the cache hits that the run had."""
    new = max(profile.isl * (1 - metrics.pool_load(run, 0).hit_share), 1.0)
    step = min(new, instance.engine.batched_tokens or new)
    # The mean query of the new tokens attends all that was cached and half of the new ones.
    return _batch(prefill=step, pairs=step * (profile.isl - new / 2))


def decode_batch(run: Run, profile: Profile, ranks: int) -> Batch:
    """A step of the sequences that decoded together on each of the ranks on average."""
    sequences = max(metrics.mean_decoding(run) / ranks, 1.0)
    return _batch(decode=sequences, context=sequences * profile.context)


def prefill_bound(
    model: Model, gpu: Gpu, instance: Instance, run: Run, profile: Profile
) -> Condition:
    """Whether prefill steps are compute-bound after the cache hits that the run had."""
    batch = prefill_batch(instance, run, profile)
    step, hit_share = float(batch.prefill[0]), metrics.pool_load(run, 0).hit_share
    found = intensity(model, gpu, instance, batch)
    return _condition(
        name="prefill is compute-bound",
        value=_flop_byte("prefill step", found.step),
        threshold=_flop_byte("ridge", found.ridge),
        above=True,
        words=f"{step:,.0f} new tokens a step after {percent(hit_share)} of the input was cached",
    )


def decode_bound(
    model: Model, gpu: Gpu, instance: Instance, run: Run, profile: Profile, ranks: int
) -> Condition:
    """Whether decode steps are memory-bound at the batch that the run had."""
    batch = decode_batch(run, profile, ranks)
    sequences = float(batch.decode[0])
    found = intensity(model, gpu, instance, batch)
    return _condition(
        name="decode is memory-bound",
        value=_flop_byte("decode step", found.step),
        threshold=_flop_byte("ridge", found.ridge),
        above=False,
        words=f"{sequences:,.1f} sequences a rank of {profile.context:,.0f} tokens on average",
    )


def walls_hold(walls: tuple[Wall, ...]) -> Condition:
    """Whether what no side uses or waits for at p99 is more than its pools hold."""
    worst = max(walls, key=lambda wall: wall.peak)
    return _condition(
        name="both KV walls hold",
        value=Figure(
            name=f"KV used or waited for on the {worst.side} side",
            value=worst.peak,
            unit="of its pools",
            origin="simulated",
            source="p99 over time and ranks of the steady window",
        ),
        threshold=Figure(name="full", value=1.0, unit="of its pools", origin="computed"),
        above=False,
        words="; ".join(wall.words for wall in walls),
    )


def transfer_pays(split: Run, mixed: Run | None, slo: Slo) -> Condition:
    """Whether a request waits less for its transfer than the split saves it in decode stalls.

    Cost: mean transfer and decode wait of the split. Saved: (mixed TPOT - split TPOT) at the
    SLO's percentile x mean (OSL - 1).
    """
    parts = metrics.ttft_parts(split)
    paid = metrics.mean(parts.transfer) + metrics.mean(parts.decode_wait)
    name = "the transfer costs less than the decode stall it saves"
    value = Figure(
        name="transfer and wait for the decode side", value=paid, unit="s", origin="simulated"
    )
    if mixed is None:
        unknown = Figure(name="decode stall saved", value=0.0, unit="s", origin="simulated")
        return Condition(
            name=name,
            holds=None,
            value=value,
            threshold=unknown,
            margin=None,
            words="no mixed deployment was simulated to compare with",
        )
    tails = [metrics.percentile(metrics.tpot(run), slo.percentile) for run in (mixed, split)]
    gaps = float(np.mean(np.maximum(split.requests.osl - 1, 0)))
    saved = (tails[0] - tails[1]) * gaps
    return _condition(
        name=name,
        value=value,
        threshold=Figure(
            name="decode stall saved",
            value=saved,
            unit="s",
            origin="simulated",
            source=f"TPOT p{slo.percentile:g} mixed - split, x {gaps:,.0f} gaps",
        ),
        above=False,
        words=f"TPOT p{slo.percentile:g}: {seconds(tails[0])} mixed, {seconds(tails[1])} split",
    )


def _condition(
    *, name: str, value: Figure, threshold: Figure, above: bool, words: str
) -> Condition:
    """A condition that the value stands `above` its threshold, or below it."""
    if threshold.value <= 0:
        # Nothing to gain: whatever stands below it cannot.
        return Condition(
            name=name, holds=above, value=value, threshold=threshold, margin=None, words=words
        )
    excess = value.value / threshold.value - 1
    margin = excess if above else -excess
    return Condition(
        name=name,
        holds=margin >= 0,
        value=value,
        threshold=threshold,
        margin=margin,
        words=words,
    )


def _flop_byte(name: str, value: float) -> Figure:
    return Figure(name=name, value=value, unit="FLOP/byte", origin="computed", source="operators")


def _batch(
    *, decode: float = 0.0, context: float = 0.0, prefill: float = 0.0, pairs: float = 0.0
) -> Batch:
    return Batch(
        decode=np.array([decode]),
        context=np.array([context]),
        prefill=np.array([prefill]),
        pairs=np.array([pairs]),
        rows=np.array([decode or 1.0]),
    )
