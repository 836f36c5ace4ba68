"""Everything random about a request, drawn before the run: same seed, same numbers, whatever
order the events take."""

import numpy as np

from splitpoint.inputs.trace import Floats, Longs
from splitpoint.sim.kernel import allocating_entry

ONE = 1 << 20


def lots(seed: int, requests: int) -> Longs:
    """Four numbers per request for routers that choose by lot: two per side."""
    return np.random.default_rng([seed, 0]).integers(0, 2**31, (requests, 4), np.int64)


def rates(seed: int, tokens: Longs, drafts: int, acceptance: tuple[float, ...]) -> Longs:
    """Tokens a decode step yields for each request, in units of 1/`ONE`.

    Each step yields 1 + the drafts accepted in a row; the steps that `tokens` take are drawn
    step by step, and the rate is their mean, so that the request ends at the drawn step.
    """
    chances = np.multiply.accumulate(np.array(acceptance[:drafts], np.float64))
    if len(chances) == 0:
        return np.full(len(tokens), ONE, np.int64)
    steps = np.maximum(_steps(np.random.default_rng([seed, 1]), tokens, chances), 1)
    rate: Longs = np.maximum(-(-tokens * ONE // steps), ONE)
    return rate


@allocating_entry
def _steps(rng: np.random.Generator, tokens: Longs, chances: Floats) -> Longs:
    steps = np.zeros(len(tokens), np.int64)
    for i in range(len(tokens)):
        left = tokens[i]
        while left > 0:
            lot = rng.random()
            left -= 1
            for chance in chances:
                if lot >= chance:
                    break
                left -= 1
            steps[i] += 1
    return steps
