"""What a `[workload]` table means as a Trace: file, preset or shapes, with its arrivals.

A fixed concurrency c becomes c users, each one session of a closed loop that asks again as soon as
it is answered, so a simulator needs no other notion. Users are dealt work in turn, not from one
queue: near the end some finish before others, which is why the first and last requests of such a
run are cut from its figures.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from splitpoint.errors import PlanError
from splitpoint.inputs.trace import (
    LONGEST_S,
    Floats,
    Trace,
    cap_think,
    dense,
    first,
    repeated,
    scale_rate,
    session_heads,
    sorted_by_arrival,
    turns_of,
    with_starts,
)
from splitpoint.inputs.traces import read
from splitpoint.inputs.traces.columns import assembled
from splitpoint.inputs.traces.synth import drawn, preset, sustained
from splitpoint.inputs.workload import Lengths, Workload

Number = TypeVar("Number", int, float)

# How many requests show a steady state. Published: `vllm bench serve` sends 1,000 by default and
# InferenceX 10 per user. Assumed: eight per user (two sessions where there are sessions), two
# minutes of a rate, and the caps, which keep a sweep's heaviest point near the cost of the others.
PER_USER = 8
LEAST_CLOSED = 64
CAP_CLOSED = 8192
LEAST_PER_USER = 4
SESSIONS_PER_USER = 2
LEAST_OPEN = 1000
OPEN_SECONDS = 120.0
CAP_OPEN = 20_000


def trace_of(
    workload: Workload,
    *,
    base: Path,
    rate: float | None = None,
    concurrency: int | None = None,
) -> Trace:
    """The requests of a workload; `rate` or `concurrency` is the sweep's current value.

    `base` is the folder that a relative trace path starts from. Without `rate` and `concurrency`
    the workload's own single value holds, and without that a trace's own timestamps.
    """
    if rate is None and concurrency is None:
        rate, concurrency = (
            single(workload.rate, "rate"),
            single(workload.concurrency, "concurrency"),
        )
    if rate is not None and concurrency is not None:
        raise PlanError("workload", "both a rate and a concurrency", "one of them")
    check_arrivals(workload, rate, concurrency)
    if workload.trace is None and workload.preset is None:
        return shaped(workload, rate, concurrency)
    trace = source_of(workload, base, concurrency or 0, rate or 0.0)
    if workload.scale != 1.0:
        trace = scale_rate(trace, workload.scale)
    if concurrency is not None:
        return by_users(trace, concurrency)
    if rate is not None:
        rng = np.random.default_rng(workload.seed)
        trace = at_rate(trace, rate, workload.burstiness, rng)
        _check_span(len(trace), rate)
    return trace


def gamma_arrivals(n: int, rate: float, burstiness: float, rng: np.random.Generator) -> Floats:
    """Arrival times of n requests as `vllm bench serve` spaces them.

    Gaps are gamma with shape `burstiness` and mean 1 / rate (1: Poisson, larger: more even), then
    stretched so that the last request arrives at n / rate. An infinite rate sends all at 0.
    """
    if math.isinf(rate):
        return np.zeros(n)
    arrive = np.cumsum(rng.gamma(burstiness, 1 / (rate * burstiness), n))
    return arrive * (n / rate / arrive[-1]) if arrive[-1] > 0 else arrive


def _check_span(n: int, rate: float) -> None:
    """Refuse a rate so low that its requests would not fit a replay."""
    if n / rate > LONGEST_S:
        raise PlanError(
            "workload.rate",
            f"{n:,} requests at {rate:g} per second take {n / rate:,.0f} s",
            f"{LONGEST_S:,.0f} s at most: a higher rate or fewer requests",
        )


def default_requests(rate: float | None, concurrency: int | None) -> int:
    """How many requests to run where the workload does not say."""
    if concurrency is not None:
        steady = max(PER_USER * concurrency, LEAST_CLOSED)
        return min(steady, max(CAP_CLOSED, LEAST_PER_USER * concurrency))
    if rate is None or math.isinf(rate):
        return LEAST_OPEN
    return min(max(LEAST_OPEN, math.ceil(rate * OPEN_SECONDS)), CAP_OPEN)


def shaped(workload: Workload, rate: float | None, concurrency: int | None) -> Trace:
    """Requests of stated lengths that share nothing, at a rate or from a number of users."""
    if workload.isl is None or workload.osl is None:
        missing = "isl" if workload.isl is None else "osl"
        raise PlanError(f"workload.{missing}", "missing", "isl and osl, or a trace, or a preset")
    if rate is None and concurrency is None:
        raise PlanError("workload", "no arrivals for these lengths", "a rate or a concurrency")
    rng = np.random.default_rng(workload.seed)
    n = workload.requests or default_requests(rate, concurrency)
    isl, osl = (
        drawn(Lengths(mean=size) if isinstance(size, int) else size, n, rng)
        for size in (workload.isl, workload.osl)
    )
    if concurrency is not None:
        arrive, session = np.zeros(n), np.arange(n, dtype=np.int64) % concurrency
    else:
        _check_span(n, rate or math.inf)
        arrive = gamma_arrivals(n, rate or math.inf, workload.burstiness, rng)
        session = np.arange(n, dtype=np.int64)
    trace = assembled(
        "stated lengths",
        arrive_s=arrive,
        isl=isl,
        osl=osl,
        session=session,
        closed=concurrency is not None,
        source="stated lengths, no shared prefixes",
    )
    name = f"isl {mean(workload.isl):g}, osl {mean(workload.osl):g}"
    return msgspec.structs.replace(trace, name=name, arrive_s=trace.arrive_s + arrive.min())


def source_of(workload: Workload, base: Path, users: int, rate: float) -> Trace:
    """The trace or preset itself, cut to the number of requests, open where it must be."""
    if workload.preset is not None:
        more = None if workload.requests else sustained(workload.preset, rate)
        trace = preset(
            workload.preset,
            seed=workload.seed,
            requests=min(more, CAP_OPEN) if more else workload.requests,
            rate=rate if more else None,
        )
        while not workload.requests and sessions_of(trace) < SESSIONS_PER_USER * users:
            trace = preset(workload.preset, seed=workload.seed, requests=2 * len(trace))
    else:
        trace = read(base / (workload.trace or ""), workload.format)
        if workload.requests is not None:
            trace = first(trace, workload.requests)
    if workload.think_cap_s is not None and trace.closed:
        trace = cap_think(trace, workload.think_cap_s)
    return trace if workload.closed_loop else msgspec.structs.replace(trace, closed=False)


def at_rate(trace: Trace, rate: float, burstiness: float, rng: np.random.Generator) -> Trace:
    """The trace's requests, in order, at new arrivals of `rate` requests per second.

    In a closed loop whole sessions arrive, at rate / turns per session.
    """
    if trace.closed:
        sessions = sessions_of(trace)
        starts = gamma_arrivals(sessions, rate * sessions / len(trace), burstiness, rng)
        return with_starts(trace, starts)
    arrive = gamma_arrivals(len(trace), rate, burstiness, rng)
    return msgspec.structs.replace(trace, arrive_s=arrive)


def by_users(trace: Trace, users: int) -> Trace:
    """The trace's sessions dealt to `users` in order of arrival, each one after the other.

    In a trace without think times the single requests are dealt. Where there are more users than
    sessions, copies of the sessions make up the number. All users begin at 0. Prefix identities
    stay, so reuse between sessions does.
    """
    units = sessions_of(trace) if trace.closed else len(trace)
    trace = repeated(trace, math.ceil(users / units))

    if trace.closed:
        unit = np.argsort(np.argsort(trace.arrive_s[session_heads(trace)], kind="stable"))
        rank = unit[trace.session]
    else:
        rank = np.arange(len(trace))
    # Rows in the order in which each user asks; nominal arrivals play no part once it has begun.
    ordered = sorted_by_arrival(msgspec.structs.replace(trace, arrive_s=rank.astype(np.float64)))
    session = dense(np.sort(rank) % users)
    return msgspec.structs.replace(
        ordered,
        arrive_s=np.zeros(len(trace)),
        session=session,
        turn=turns_of(session),
        closed=True,
    )


def sessions_of(trace: Trace) -> int:
    """How many sessions a trace has."""
    return int(trace.session.max()) + 1


def single(value: Number | tuple[Number, ...] | None, what: str) -> Number | None:
    """The one value of a field that may be a list."""
    if not isinstance(value, tuple):
        return value
    if len(value) == 1:
        return value[0]
    raise PlanError(f"workload.{what}", f"a list of {len(value)}", "pass the one to run")


def check_arrivals(workload: Workload, rate: float | None, concurrency: int | None) -> None:
    """Refuse arrivals that mean nothing."""
    if rate is not None and not rate > 0:
        raise PlanError("workload.rate", f"{rate}", "requests per second, above 0")
    if concurrency is not None and concurrency < 1:
        raise PlanError("workload.concurrency", f"{concurrency}", "at least 1")
    if not (workload.burstiness > 0 and math.isfinite(workload.burstiness)):
        raise PlanError("workload.burstiness", f"{workload.burstiness}", "finite, above 0")
    if concurrency is not None and not workload.closed_loop:
        raise PlanError("workload.closed_loop", "false", "a concurrency is a closed loop")
    if workload.requests is not None and workload.requests < 1:
        raise PlanError("workload.requests", f"{workload.requests}", "at least 1")


def mean(size: int | Lengths) -> float:
    """The mean of a length or a distribution of lengths."""
    return size if isinstance(size, int) else size.mean
