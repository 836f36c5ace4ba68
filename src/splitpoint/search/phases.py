"""What one instance can do in each phase alone: estimates that choose what is simulated.

Prefill alone is compute, decode alone is memory; taken apart, neither needs a queue. Means only,
and an infinite prefix cache: these numbers rank instances, they are never an answer.
"""

import numpy as np
from numpy.typing import NDArray

from splitpoint.record import Record
from splitpoint.search.instance import Instance
from splitpoint.search.loads import Profile
from splitpoint.timing.curve import PICO

Floats = NDArray[np.float64]


class Pace(Record, frozen=True, kw_only=True):
    """An instance with 1, 2, ... sequences decoding on each rank, up to what its pool and its
    settings hold: requests per second of the instance, and mean TPOT. Empty if none is held."""

    rate: Floats
    tpot: Floats

    def held(self, tpot_s: float) -> int:
        """The most sequences per rank that keep the TPOT; 0 if one is too slow already."""
        return int(np.count_nonzero(np.cumprod(self.tpot <= tpot_s)))

    def rate_within(self, tpot_s: float) -> float:
        """Requests per second at the most sequences that keep the TPOT."""
        n = self.held(tpot_s)
        return float(self.rate[:n].max()) if n else 0.0


def prefill_seconds(instance: Instance, profile: Profile) -> float:
    """Seconds of one rank's steps that a mean request's new tokens take, steps being full; of a
    pipeline in its slowest stage.

    new x mixed[budget] / budget + pairs x prefill_pair + chunks x prefix x prefill_prefix, with
    new / budget chunks but at least one.
    """
    budget = len(instance.curve.mixed) - 1
    chunks = max(profile.new_tokens / budget, 1.0)
    before = chunks * (profile.isl - profile.new_tokens)
    return PICO * max(
        profile.new_tokens * float(stage.mixed[budget]) / budget
        + before * stage.prefill_prefix
        + profile.pairs * stage.prefill_pair
        for stage in instance.curve.stages
    )


def prefill_rate(instance: Instance, profile: Profile) -> float:
    """Requests per second of an instance that only prefills: dp / prefill_seconds."""
    return instance.topology.dp / prefill_seconds(instance, profile)


def decode_pace(instance: Instance, profile: Profile) -> Pace:
    """An instance that only decodes: tpot(n) = step(n) / tokens_per_step."""
    return _pace(instance, profile, _decode_tpot(instance, profile))


def mixed_pace(instance: Instance, profile: Profile) -> Pace:
    """An instance that does both, prefill taking its time from decode.

    A request takes prefill_seconds and its share of osl / tokens_per_step decode steps, so
    tpot(n) = n x prefill_seconds / osl + step(n) / tokens_per_step.
    """
    decode = _decode_tpot(instance, profile)
    stolen = np.arange(1, len(decode) + 1) * prefill_seconds(instance, profile) / profile.osl
    return _pace(instance, profile, decode + stolen)


def _decode_tpot(instance: Instance, profile: Profile) -> Floats:
    """Seconds per token with n = 1, 2, ... sequences of mean context on a rank.

    A pipeline of s stages has them in g = min(n, s) batches of ceil(n / s): each passes all
    stages, and the slowest stage computes all g in turn.
    """
    stages = instance.curve.stages
    n = np.arange(1, len(stages[0].decode))
    each = -(-n // len(stages))
    times = [s.decode[each] + s.decode_context[each] * (each * profile.context) for s in stages]
    picos = np.maximum(np.sum(times, axis=0), np.minimum(n, len(stages)) * np.max(times, axis=0))
    return np.asarray(picos * (PICO / instance.tokens_per_step), dtype=np.float64)


def _pace(instance: Instance, profile: Profile, tpot: Floats) -> Pace:
    """rate(n) = dp x n / (tpot(n) x osl), cut to the sequences that the pool holds."""
    most = min(instance.requests_held(round(profile.isl + profile.osl)), len(tpot))
    n = np.arange(1, most + 1)
    rate = instance.topology.dp * n / (tpot[:most] * profile.osl)
    return Pace(rate=rate, tpot=tpot[:most])
