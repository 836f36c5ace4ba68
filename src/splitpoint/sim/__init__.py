"""The simulator: a world and a trace in, a `Run` out. `simulate` is its public name."""

from splitpoint.inputs.trace import Trace
from splitpoint.run import Run
from splitpoint.sim.world import PoolSpec, World

__all__ = ["PoolSpec", "World", "simulate"]


def simulate(
    world: World,
    trace: Trace,
    *,
    seed: int = 0,
    name: str = "",
    closed_loop: bool = True,
    series: bool = True,
) -> Run:
    """Replay `trace` through `world`.

    `closed_loop`: where the trace knows think times, turn n+1 of a session arrives its think
    time after turn n ended; else every request arrives at its `arrive_s`. Without `series` the
    run keeps no state rows.
    """
    # numba is heavy: it is imported by the first simulation, not by the command line. The module
    # must not be called `simulate`: importing it would put it in the place of this function.
    from splitpoint.sim.play import play

    return play(
        world, trace, seed=seed, name=name, closed_loop=closed_loop, series=series, leaps=True
    )
