"""Many simulations side by side, one process per core; the results do not depend on the order.

Every job carries its own seed and sees only its own world and trace. What a run is boiled down to
(`measure`) is computed where it ran, so whole runs cross processes only where they are asked for.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Generic, NamedTuple, TypeVar

from splitpoint.errors import OutsideError
from splitpoint.inputs.trace import Trace
from splitpoint.record import Record
from splitpoint.run import Run
from splitpoint.sim.world import World

Result = TypeVar("Result")


class Job(Record, frozen=True, kw_only=True):
    """One simulation: a world, and which of the sweep's traces it replays."""

    name: str
    world: World
    trace: int
    seed: int = 0
    closed_loop: bool = True
    series: bool = True


def sweep(
    jobs: Sequence[Job],
    traces: Sequence[Trace],
    measure: Callable[[Job, Run], Result],
    *,
    workers: int | None = None,
    done: Callable[[int], None] | None = None,
) -> tuple[Result, ...]:
    """`measure` of every job's run, in the order of the jobs.

    `workers` processes (default: one per core; 1 stays in this one); `done` hears how many jobs
    have ended. Ctrl-C ends the workers with it.
    """
    count = min(workers or os.cpu_count() or 1, len(jobs))
    found: dict[int, Result] = {}
    runs = _here(jobs, traces, measure) if count <= 1 else _apart(jobs, traces, measure, count)
    for index, result in runs:
        found[index] = result
        if done is not None:
            done(len(found))
    return tuple(found[index] for index in range(len(jobs)))


def _here(
    jobs: Sequence[Job], traces: Sequence[Trace], measure: Callable[[Job, Run], Result]
) -> Iterator[tuple[int, Result]]:
    for index, job in enumerate(jobs):
        yield index, measure(job, _run(job, traces[job.trace]))


def _apart(
    jobs: Sequence[Job],
    traces: Sequence[Trace],
    measure: Callable[[Job, Run], Result],
    workers: int,
) -> Iterator[tuple[int, Result]]:
    # Compiled once here, so that no two workers compile the same kernels side by side.
    yield 0, measure(jobs[0], _run(jobs[0], traces[jobs[0].trace]))
    # Forked workers share the traces and the loaded kernels; elsewhere both are sent and loaded.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pool = ProcessPoolExecutor(
        workers, mp_context=context, initializer=_prepare, initargs=(traces, measure)
    )
    try:
        waiting: dict[Future[Result], int] = {}
        for index in range(1, len(jobs)):
            waiting[pool.submit(_work, jobs[index])] = index
        while waiting:
            ended, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ended:
                yield waiting.pop(future), future.result()
    except BrokenProcessPool:
        raise OutsideError(
            "a simulating process ended without a result; was the machine out of memory?"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _Shared(NamedTuple, Generic[Result]):
    """What a worker process keeps between jobs."""

    traces: Sequence[Trace]
    measure: Callable[[Job, Run], Result]


_shared: list[_Shared[Any]] = []


def _prepare(traces: Sequence[Trace], measure: Callable[[Job, Run], Result]) -> None:
    # The parent alone answers Ctrl-C: it stops handing out jobs and shuts the pool down.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _shared[:] = [_Shared(traces, measure)]


def _work(job: Job) -> Any:
    (shared,) = _shared
    return shared.measure(job, _run(job, shared.traces[job.trace]))


def _run(job: Job, trace: Trace) -> Run:
    from splitpoint.sim import simulate

    return simulate(
        job.world,
        trace,
        seed=job.seed,
        name=job.name,
        closed_loop=job.closed_loop,
        series=job.series,
    )
