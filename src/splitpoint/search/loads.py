"""The loads to try: a workload's rates or concurrencies, each with its trace, and its profile.

The profile is what the estimates of `phases` see of a trace: means only. The simulator sees the
trace itself.
"""

from pathlib import Path
from typing import TypeVar

import numpy as np

from splitpoint.errors import PlanError
from splitpoint.inputs.trace import Trace, describe, first, reuse
from splitpoint.inputs.traces.requests import trace_of
from splitpoint.inputs.workload import Workload
from splitpoint.record import Record

Number = TypeVar("Number", int, float)


class Profile(Record, frozen=True, kw_only=True):
    """Means of a trace. With h the input tokens that an infinite prefix cache would hold:

    `new_tokens` = mean(isl - h); `pairs` = mean of the (query, key) pairs of the new tokens,
    new x h + new (new + 1) / 2; `context` = context of a decoding request, averaged over all
    decode steps: sum(osl (isl + osl / 2)) / sum(osl); `longest` = p99 of isl + osl.
    """

    isl: float
    osl: float
    new_tokens: float
    pairs: float
    context: float
    longest: int


class Load(Record, frozen=True, kw_only=True):
    """One load: requests per second (for a trace's own timestamps those of its busiest minute),
    or a number of users in a closed loop."""

    label: str
    trace: Trace
    profile: Profile
    rate: float | None = None
    concurrency: int | None = None


def loads(workload: Workload, *, base: Path, requests: int | None = None) -> tuple[Load, ...]:
    """Every load of a workload, lightest first; `requests` cuts each trace to its first ones."""
    if workload.concurrency is not None:
        return tuple(
            _users(workload, base, users, requests) for users in _each(workload.concurrency)
        )
    if workload.rate is not None:
        return tuple(_paced(workload, base, rate, requests) for rate in _each(workload.rate))
    trace = _cut(trace_of(workload, base=base), requests)
    return (_timed(trace, label="trace" if workload.trace else "preset"),)


def profile(trace: Trace, *, prefix_caching: bool = True) -> Profile:
    """The means of a trace; without prefix caching every input token is new."""
    isl, osl = trace.isl.astype(float), trace.osl.astype(float)
    hits = reuse(trace).anywhere if prefix_caching else np.zeros(len(trace))
    new = isl - hits
    return Profile(
        isl=float(isl.mean()),
        osl=float(osl.mean()),
        new_tokens=float(new.mean()),
        pairs=float((new * hits + new * (new + 1) / 2).mean()),
        context=float((osl * (isl + osl / 2)).sum() / osl.sum()),
        longest=int(np.ceil(np.percentile(isl + osl, 99))),
    )


def _users(workload: Workload, base: Path, users: int, requests: int | None) -> Load:
    trace = _cut(trace_of(workload, base=base, concurrency=users), requests)
    return Load(
        label=f"concurrency {users:,}", trace=trace, profile=profile(trace), concurrency=users
    )


def _paced(workload: Workload, base: Path, rate: float, requests: int | None) -> Load:
    trace = _cut(trace_of(workload, base=base, rate=rate), requests)
    return Load(label=f"{rate:g} req/s", trace=trace, profile=profile(trace), rate=rate)


def _timed(trace: Trace, *, label: str) -> Load:
    return Load(
        label=label, trace=trace, profile=profile(trace), rate=describe(trace).peak_rate or None
    )


def _cut(trace: Trace, requests: int | None) -> Trace:
    if not len(trace):
        raise PlanError(trace.name, "holds no request")
    return trace if requests is None or requests >= len(trace) else first(trace, requests)


def _each(values: Number | tuple[Number, ...]) -> tuple[Number, ...]:
    return tuple(sorted(values)) if isinstance(values, tuple) else (values,)
