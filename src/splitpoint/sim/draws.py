"""Everything random about a request, drawn before the run: same seed, same numbers, whatever
order the events take."""

import numpy as np

from splitpoint.inputs.trace import Floats, Longs
from splitpoint.native.arrays import Arrays
from splitpoint.native.kernel import entry

ONE = 1 << 20
SHARE_BITS = 32
SHARE = 1 << SHARE_BITS
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


def _drawn_steps(random: "np.random.Generator", tokens: Longs, chances: Floats) -> Longs:
    """Steps that each request takes; requests draw one after the other, one number a step."""
    draws = Draws(
        at=np.zeros(1, np.int64),
        left=np.array(tokens, np.int64),
        steps=np.zeros(len(tokens), np.int64),
        chances=chances,
        lots=np.empty(DRAWN_AT_ONCE),
    )
    while draws.at[0] < len(tokens):
        random.random(out=draws.lots)
        take_steps(draws)
    return draws.steps


class Draws(Arrays):
    """Requests with tokens `left` from request `at` on, and numbers in [0, 1) not used yet."""

    at: Longs
    left: Longs
    steps: Longs
    chances: Floats
    lots: Floats


@entry
def take_steps(d: Draws) -> None:
    """Take one step for each number, until they are used up or all requests are done."""
    i = d.at[0]
    for lot in d.lots:
        while i < len(d.left) and d.left[i] <= 0:
            i += 1
        if i == len(d.left):
            break
        d.left[i] -= 1
        for chance in d.chances:
            if lot >= chance:
                break
            d.left[i] -= 1
        d.steps[i] += 1
    d.at[0] = i
