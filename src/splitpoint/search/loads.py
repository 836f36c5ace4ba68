"""The loads to try: a workload's rates or concurrencies, each with its trace, and its profile.

The profile is what the estimates of `phases` see of a trace: means only. The simulator sees the
trace itself.
"""

from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.trace import Trace, describe, first, reuse
from splitpoint.inputs.traces.requests import trace_of
from splitpoint.inputs.workload import Workload
from splitpoint.record import Record

# vLLM and SGLang refuse such requests.
TOO_LONG = (
    "{count:,} requests are longer than the {limit:,} tokens that the engine would accept: "
    "simulated as if it did (engine.max_len, with rope scaling where needed)"
)
# Sessions wait between their turns, so that a trace of few may never run at the rate asked for.
TOO_SLOW = (
    "{label} was asked for, but the trace has {peak:.3g} req/s in its busiest minute: its sessions "
    "pause, and there are too few of them for that rate (workload.requests makes a preset longer)"
)
# Assumed: the busiest minute of a Poisson process of the rate lies above it.
BUSY_ENOUGH = 0.9
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


class Given(NamedTuple):
    """What all loads of a workload share."""

    workload: Workload
    base: Path
    requests: int | None
    prefix_caching: bool


def loads(
    workload: Workload,
    *,
    base: Path,
    requests: int | None = None,
    prefix_caching: bool = True,
) -> tuple[Load, ...]:
    """Every load of a workload, lightest first; `requests` cuts each trace to its first ones."""
    given = Given(workload, base, requests, prefix_caching)
    if workload.concurrency is not None:
        return tuple(_users(given, users) for users in _each(workload.concurrency))
    if workload.rate is not None:
        return tuple(_paced(given, rate) for rate in _each(workload.rate))
    return (_timed(given),)


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


def at_load(workload: Workload, label: str) -> Workload:
    """A workload at the one of its rates or concurrencies that a load is labelled by."""
    for rate in _each(workload.rate or ()):
        if _rate_label(rate) == label:
            return replace(workload, rate=rate)
    for users in _each(workload.concurrency or ()):
        if _users_label(users) == label:
            return replace(workload, concurrency=users)
    return workload


def _users(given: Given, users: int) -> Load:
    trace = trace_of(given.workload, base=given.base, concurrency=users)
    return _load(given, trace, _users_label(users), users=users)


def _users_label(users: int) -> str:
    return f"concurrency {users:,}"


def _rate_label(rate: float) -> str:
    return f"{rate:g} req/s"


def _paced(given: Given, rate: float) -> Load:
    trace = trace_of(given.workload, base=given.base, rate=rate)
    return _load(given, trace, _rate_label(rate), rate=rate)


def _timed(given: Given) -> Load:
    trace = trace_of(given.workload, base=given.base)
    label = "trace" if given.workload.trace else "preset"
    return _load(given, trace, label, rate=describe(trace).peak_rate or None)


def _load(
    given: Given, trace: Trace, label: str, *, rate: float | None = None, users: int | None = None
) -> Load:
    trace = _cut(trace, given.requests)
    return Load(
        label=label,
        trace=trace,
        profile=profile(trace, prefix_caching=given.prefix_caching),
        rate=rate,
        concurrency=users,
    )


def _cut(trace: Trace, requests: int | None) -> Trace:
    if not len(trace):
        raise PlanError(trace.name, "holds no request")
    return trace if requests is None or requests >= len(trace) else first(trace, requests)


def _each(values: Number | tuple[Number, ...]) -> tuple[Number, ...]:
    return tuple(sorted(values)) if isinstance(values, tuple) else (values,)


def too_long(trace: Trace, limit: int) -> tuple[str, ...]:
    """A note on requests that are longer, with their output, than `limit` tokens."""
    count = int(np.count_nonzero(trace.isl + trace.osl > limit))
    return (TOO_LONG.format(count=count, limit=limit),) if count else ()


def too_slow(load: Load) -> tuple[str, ...]:
    """A note on a load whose trace never reaches the rate that it is named by."""
    if load.rate is None:
        return ()
    peak = describe(load.trace).peak_rate
    return (TOO_SLOW.format(label=load.label, peak=peak),) if peak < BUSY_ENOUGH * load.rate else ()
