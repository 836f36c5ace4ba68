"""Everything random about a request, drawn before the run: same seed, same numbers, whatever
order the events take."""

import numpy as np

from splitpoint.inputs.trace import Floats, Longs
from splitpoint.sim.kernel import entry

ONE = 1 << 20
DRAWN_AT_ONCE = 1 << 14


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
    steps = np.maximum(_drawn_steps(np.random.default_rng([seed, 1]), tokens, chances), 1)
    rate: Longs = np.maximum(-(-tokens * ONE // steps), ONE)
    return rate


def _drawn_steps(random: np.random.Generator, tokens: Longs, chances: Floats) -> Longs:
    """Steps that each request takes; requests draw one after the other, one number a step."""
    steps = np.zeros(len(tokens), np.int64)
    left = tokens.copy()
    i = 0
    while i < len(tokens):
        i = _step(random.random(DRAWN_AT_ONCE), i, left, chances, steps)
    return steps


@entry
def _step(lots: Floats, i: int, left: Longs, chances: Floats, steps: Longs) -> int:
    """Take steps from request `i` on, one lot each, until the lots are used up or all are done;
    the first request that is not done."""
    for lot in lots:
        while i < len(left) and left[i] <= 0:
            i += 1
        if i == len(left):
            break
        left[i] -= 1
        for chance in chances:
            if lot >= chance:
                break
            left[i] -= 1
        steps[i] += 1
    return i
