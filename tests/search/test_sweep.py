"""Sweeps: the same results whatever the number of processes, and errors that are not swallowed."""

import os
import signal

import pytest

from splitpoint import metrics
from splitpoint.errors import OutsideError, PlanError
from splitpoint.run import Run
from splitpoint.search.sweep import Job, sweep
from splitpoint.search.world import candidate_of, world
from tests.search import small


def jobs() -> list[Job]:
    """Two mixed and two split worlds, each on two traces."""
    one = small.ready()
    candidates = [
        candidate_of([("mixed", one, 2)], "round_robin"),
        candidate_of([("mixed", one, 1)], "least_requests"),
        candidate_of([("prefill", one, 1), ("decode", one, 1)], "round_robin"),
        candidate_of([("prefill", one, 2), ("decode", one, 1)], "random"),
    ]
    return [
        Job(
            name=f"{candidate.name} on {trace}",
            world=world(candidate, small.model(), tokens=2000),
            trace=trace,
            seed=7,
        )
        for candidate in candidates
        for trace in (0, 1)
    ]


def boiled(job: Job, run: Run) -> tuple[str, float, float]:
    """Name and two figures of a run."""
    return job.name, metrics.mean(metrics.ttft(run)), metrics.mean(metrics.e2el(run))


def broken(job: Job, run: Run) -> None:
    """A measure that fails for one job."""
    if "random" in job.name:
        raise PlanError(job.name, "is broken")


TRACES = (small.trace(12), small.trace(30, isl=700))


def test_the_results_do_not_depend_on_the_number_of_processes() -> None:
    alone = sweep(jobs(), TRACES, boiled, workers=1)
    together = sweep(jobs(), TRACES, boiled, workers=2)
    assert alone == together
    assert [name for name, _, _ in alone] == [job.name for job in jobs()]
    backwards = sweep(jobs()[::-1], TRACES, boiled, workers=1)
    assert backwards[::-1] == alone


def test_progress_counts_every_job() -> None:
    heard: list[int] = []
    sweep(jobs()[:3], TRACES, boiled, workers=2, done=heard.append)
    assert heard == [1, 2, 3]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_one_job_ends_the_sweep(workers: int) -> None:
    with pytest.raises(PlanError, match="is broken"):
        sweep(jobs(), TRACES, broken, workers=workers)


def test_no_jobs_are_no_results() -> None:
    assert sweep([], TRACES, boiled) == ()


def dying(job: Job, run: Run) -> None:
    """A measure that takes its process with it, as the kernel does when memory is short."""
    if "random" in job.name:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_dies_is_an_error_outside() -> None:
    with pytest.raises(OutsideError, match="out of memory"):
        sweep(jobs(), TRACES, dying, workers=2)
