"""Plays random worlds interpreted, with arrays that refuse an index below 0.

Compiled kernels take an index as it stands and a divisor as not 0. Run by a test as a process of
its own, with NUMBA_DISABLE_JIT=1 and warnings as errors.
"""

from random import Random
from typing import Any

import numpy as np

from splitpoint.native.kernel import INTERPRETED
from splitpoint.sim.build import build
from splitpoint.sim.loop import run
from splitpoint.sim.state import Sim
from tests.oracle import worlds

WORLDS = 40


class Strict(np.recarray):
    """An array or rows whose places are counted from the start only."""

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, int | np.integer) and place < 0:
            raise IndexError(f"place {place}")
        return super().__getitem__(place)

    def __setitem__(self, place: Any, value: Any) -> None:
        if isinstance(place, int | np.integer) and place < 0:
            raise IndexError(f"place {place}")
        super().__setitem__(place, value)


def strict(s: Sim) -> Sim:
    """The state with all its arrays strict."""
    fields: dict[str, Any] = {}
    for name, field in zip(s.names(), s.fields(), strict=True):
        if isinstance(field, tuple):
            fields[name] = type(field)(*(array.view(Strict) for array in field))
        else:
            fields[name] = field.view(Strict)
    return Sim(**fields)


if __name__ == "__main__":
    assert INTERPRETED
    for seed in range(WORLDS):
        random = Random(seed)
        world, trace = worlds.world(random), worlds.trace(random)
        run(strict(build(world, trace, seed, closed=trace.closed, leaps=seed % 2 == 0)))
    print("played")
