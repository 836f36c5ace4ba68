"""The token budget that lets a mixed instance keep its pace: the fair rival of a split.

With the engine's default budget a prefill chunk may stall decodes for a second; a smaller one
bounds every step. Comparing a split with the default alone would blame mixing for a setting.
"""

import numpy as np

from splitpoint.search.instance import Instance
from splitpoint.search.loads import Profile
from splitpoint.timing.curve import PICO, StepCurve

# Below this many tokens a step is mostly weight traffic and overhead (assumed; vLLM's own
# long-prefill threshold and published chunked-prefill settings start at 256).
LEAST = 256


def pacing_budget(instance: Instance, profile: Profile, tpot_s: float) -> int | None:
    """The power of two below the instance's budget whose full steps hold the TPOT at the highest
    rate, prefill and decode in balance; None if no smaller one does better than nothing.

    In balance each step's new tokens feed as many requests as its decodes finish:
    (b - n (1 + drafts)) / new = n x tokens_per_step / osl; rate = that over the step's seconds.
    """
    default = len(instance.curve.mixed) - 1
    rates = {
        budget: rate
        for budget in (2**i for i in range(default.bit_length()))
        if LEAST <= budget < default
        and (rate := _paced_rate(instance, profile, budget, tpot_s)) > 0
    }
    return max(rates, key=lambda budget: rates[budget], default=None)


def _paced_rate(instance: Instance, profile: Profile, budget: int, tpot_s: float) -> float:
    """Requests per second of a rank whose every step is full; 0 where a step breaks the TPOT.

    In a pipeline the slowest stage sets the pace, and a sequence gets a token each time that the
    batches of all stages have passed it.
    """
    curve = instance.curve
    batches = len(curve.stages)
    finished = instance.tokens_per_step / profile.osl
    n = budget / (profile.new_tokens * finished + 1 + curve.drafts)
    held = instance.requests_held(round(profile.isl + profile.osl))
    n = min(n, held / batches, (len(curve.decode) - 1) / batches)
    seconds = max(_seconds(instance, stage, profile, budget, n) for stage in curve.stages)
    in_time = batches * seconds <= tpot_s * instance.tokens_per_step
    return n * finished / seconds if in_time else 0.0


def _seconds(
    instance: Instance, curve: StepCurve, profile: Profile, budget: int, n: float
) -> float:
    """Seconds of a full step with `n` decodes in one stage."""
    fresh = budget - n * (1 + curve.drafts)
    index = int(np.ceil(n))
    if instance.engine.name == "sglang":
        # Its prefill batches run between its decode steps.
        work = curve.decode[index] + curve.mixed[int(np.ceil(fresh))]
    else:
        work = curve.mixed[budget]
        if curve.mixed_decode is not None:
            work += curve.mixed_decode[index]
    picos = (
        float(work)
        + float(curve.decode_context[index]) * n * profile.context
        + fresh * profile.pairs / profile.new_tokens * curve.prefill_pair
        + (profile.isl - profile.new_tokens) * curve.prefill_prefix
    )
    return picos * PICO
