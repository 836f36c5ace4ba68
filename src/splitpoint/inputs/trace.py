"""A request trace as columns, and what may be done with one: cut, sample, scale, describe.

Rows stand in arrival order, sessions interleaved. In a closed loop turn 0 arrives at `arrive_s`
and turn n+1 arrives `think_s` after turn n ends; only a source that knows think times makes one
(`closed`). An open loop takes every `arrive_s` as it stands.
"""

import math

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from splitpoint.errors import PlanError
from splitpoint.record import Record

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

BUSIEST_WINDOW = 60.0
# Bounds the memory that a description takes beside the trace itself.
IDS_AT_ONCE = 1 << 22
MAX_COPIED = 1 << 26

# The latest arrival that can be replayed: the simulator's clock counts picoseconds in 64 bits, and
# needs room for what happens after it.
LONGEST_S = 2_000_000.0

# Tokens of a block where no block has an id: of no consequence.
NO_IDENTITY = 16


class Trace(Record, frozen=True, kw_only=True):
    """Columns of n requests, sorted by `arrive_s`.

    `isl`, `osl`: input and output tokens. `session`: id, equal for turns of one conversation
    (each request its own where the source has none). `turn`: 0, 1, ... inside the session.
    `think_s`: seconds between the end of the previous turn and this one's arrival (0 at turn 0).
    Prefix identity of request i: `block_ids[block_starts[i]:block_starts[i+1]]`, one id per
    `block_tokens` input tokens (the last one may be partial); equal leading ids mean equal
    leading tokens. A source without identities has empty ids: nothing is ever reused. So a row has
    either no ids or ceil(isl / block_tokens) of them.

    Readers number ids densely from 0 so that an id names its whole prefix: equal ids mean equal
    tokens from the start of the request to the end of that block. `closed`: think times are
    known, so sessions may run as closed loops. `notes`: what the source lacks or was dropped.
    """

    name: str
    arrive_s: Floats
    isl: Ints
    osl: Ints
    session: Ints
    turn: Ints
    think_s: Floats
    block_starts: Longs
    block_ids: Ints
    block_tokens: int
    source: str = ""
    closed: bool = False
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.isl)

    @property
    def duration_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return float(self.arrive_s[-1] - self.arrive_s[0]) if len(self) else 0.0


class Spread(Record, frozen=True, kw_only=True):
    """Mean, percentiles (linear interpolation) and maximum of one column."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class TraceSummary(Record, frozen=True, kw_only=True):
    """A trace in numbers. Shares are 0..1; rates are requests per second.

    `rate` = requests / duration (0 when all arrive at once); `peak_rate` is that of the busiest
    minute. `reuse_share`: input tokens an infinite prefix cache would have held, over all input
    tokens. `session_reuse_share`: the part of that reuse whose blocks an earlier turn of the same
    session had brought. `shared_prefix_share`: input tokens reused from other sessions only, over
    all input tokens. `think_p50_s` is over later turns, None where think times are not known.
    """

    name: str
    requests: int
    sessions: int
    duration_s: float
    rate: float
    peak_rate: float
    isl: Spread
    osl: Spread
    input_tokens: int
    output_tokens: int
    reuse_share: float
    session_reuse_share: float
    shared_prefix_share: float
    turns_mean: float
    turns_max: int
    think_p50_s: float | None
    closed: bool
    block_tokens: int | None
    source: str
    notes: tuple[str, ...]


class Reuse(Record, frozen=True, kw_only=True):
    """Input tokens of each request that an infinite cache holds when it arrives.

    `anywhere`: brought by any earlier request; `in_session`: by an earlier turn of its session.
    """

    anywhere: Longs
    in_session: Longs


def unshared(arrive_s: Floats, isl: Ints | Longs, osl: Ints | Longs, *, name: str) -> Trace:
    """Requests in order of arrival that share nothing, each a session of one turn."""
    n = len(isl)
    return Trace(
        name=name,
        arrive_s=arrive_s.astype(np.float64),
        isl=isl.astype(np.int32),
        osl=osl.astype(np.int32),
        session=np.arange(n, dtype=np.int32),
        turn=np.zeros(n, np.int32),
        think_s=np.zeros(n),
        block_starts=np.zeros(n + 1, np.int64),
        block_ids=np.zeros(0, np.int32),
        block_tokens=NO_IDENTITY,
    )


def take(trace: Trace, rows: NDArray[np.integer]) -> Trace:
    """The trace of some of its rows, times kept, sessions, turns and ids numbered anew."""
    part = arranged(trace, np.sort(rows))
    session = dense(part.session)
    turn = turns_of(session)
    return replace(
        part,
        session=session,
        turn=turn,
        think_s=np.where(turn == 0, 0.0, part.think_s),
        block_ids=dense(part.block_ids),
    )


def first(trace: Trace, n: int) -> Trace:
    """The n requests that arrive first (all of them if there are fewer)."""
    if n < 1:
        raise PlanError("requests", f"{n} requests asked for", "at least 1")
    return take(trace, np.arange(min(n, len(trace))))


def cut(trace: Trace, start_s: float, end_s: float) -> Trace:
    """The requests that arrive in [start_s, end_s), with times counted from start_s."""
    if not start_s < end_s:
        raise PlanError("cut", f"an empty window [{start_s}, {end_s})", "start before end")
    bounds = np.searchsorted(trace.arrive_s, (start_s, end_s), side="left")
    if bounds[0] == bounds[1]:
        span = f"arrivals run from {trace.arrive_s[0]:g} to {trace.arrive_s[-1]:g} s"
        raise PlanError("cut", f"no request arrives in [{start_s}, {end_s})", span)
    part = take(trace, np.arange(bounds[0], bounds[1]))
    return replace(part, arrive_s=part.arrive_s - start_s)


def sample(
    trace: Trace, *, share: float | None = None, n: int | None = None, seed: int = 0
) -> Trace:
    """Whole sessions drawn at random: `share` of the sessions, or sessions until n requests.

    Times are kept, so the rate falls with the number of requests.
    """
    sessions = int(trace.session.max()) + 1 if len(trace) else 0
    order = np.random.default_rng(seed).permutation(sessions)
    if (share is None) == (n is None):
        raise PlanError("sample", "give either a share or a number of requests")
    if share is not None:
        if not 0 < share <= 1:
            raise PlanError("sample", f"a share of {share}", "above 0 and at most 1")
        keep = order[: max(1, round(share * sessions))]
    else:
        if n is None or n < 1:
            raise PlanError("sample", f"{n} requests asked for", "at least 1")
        sizes = np.bincount(trace.session, minlength=sessions)[order]
        keep = order[: int(np.searchsorted(np.cumsum(sizes), n)) + 1]
    kept = np.zeros(sessions, bool)
    kept[keep] = True
    return take(trace, np.flatnonzero(kept[trace.session]))


def scale_rate(trace: Trace, factor: float) -> Trace:
    """The trace at `factor` times its rate.

    Open loop: every arrival is divided by the factor. Closed loop: session starts are, while the
    pace inside a session stays its user's own, so that more sessions run at the same time. Sessions
    that all start together (a trace of users, not of arrivals) become `factor` times as many.
    """
    if not (factor > 0 and np.isfinite(factor)):
        raise PlanError("scale", f"a factor of {factor}", "a finite number above 0")
    if not trace.closed:
        return replace(trace, arrive_s=trace.arrive_s / factor)
    starts = trace.arrive_s[session_heads(trace)]
    if starts.max() > starts.min():
        return with_starts(trace, starts / factor)
    wanted = max(round(factor * len(starts)), 1)
    more = repeated(trace, math.ceil(wanted / len(starts)))
    return take(more, np.flatnonzero(more.session < wanted))


def repeated(trace: Trace, copies: int) -> Trace:
    """Every session `copies` times, at the same times; session s of copy c is s + c x sessions.

    A copy is another user: what only one session holds is new in each copy, what several
    sessions share stays shared.
    """
    if copies == 1:
        return trace
    counts = np.diff(trace.block_starts)
    if copies * len(trace.block_ids) > MAX_COPIED or copies * len(trace) > MAX_COPIED:
        what = f"{copies} copies of {trace.name} ({len(trace):,} requests)"
        raise PlanError("trace", what, "fewer users, or fewer requests of each")
    owner = np.repeat(trace.session, counts)
    width, sessions = int(trace.block_ids.max(initial=-1)) + 1, int(trace.session.max()) + 1
    holder = np.full(width, -1, np.int32)
    holder[trace.block_ids] = owner
    shared = np.zeros(width, bool)
    shared[trace.block_ids[holder[trace.block_ids] != owner]] = True
    private = np.where(shared[trace.block_ids], 0, width)
    copy = np.repeat(np.arange(copies), len(trace))
    ids = np.tile(trace.block_ids, copies) + np.repeat(np.arange(copies), len(owner)) * np.tile(
        private, copies
    )
    whole = replace(
        trace,
        arrive_s=np.tile(trace.arrive_s, copies),
        isl=np.tile(trace.isl, copies),
        osl=np.tile(trace.osl, copies),
        session=(np.tile(trace.session, copies) + copy * sessions).astype(np.int32),
        turn=np.tile(trace.turn, copies),
        think_s=np.tile(trace.think_s, copies),
        block_starts=np.concatenate((np.zeros(1, np.int64), np.cumsum(np.tile(counts, copies)))),
        block_ids=dense(ids),
        notes=(*trace.notes, f"every session stands {copies} times, as so many users"),
    )
    return sorted_by_arrival(whole)


def cap_think(trace: Trace, limit_s: float) -> Trace:
    """The trace with no think time above `limit_s`; later turns' nominal arrivals move up."""
    if not limit_s >= 0:
        raise PlanError("think_cap_s", f"a limit of {limit_s} s", "0 or more")
    order = np.argsort(trace.session, kind="stable")
    heads = np.flatnonzero(np.diff(trace.session[order], prepend=-1))
    sizes = np.diff(np.append(heads, len(trace)))
    # Recorded times are rounded: a think time may exceed the gap it stands in.
    gap = np.diff(trace.arrive_s[order], prepend=0.0)
    gap = np.maximum(gap - np.maximum(trace.think_s[order] - limit_s, 0.0), 0.0)
    gap[heads] = 0.0
    running = np.cumsum(gap)
    since_head = running - np.repeat(running[heads], sizes)
    arrive = np.empty(len(trace))
    arrive[order] = np.repeat(trace.arrive_s[order][heads], sizes) + since_head
    capped = replace(trace, arrive_s=arrive, think_s=np.minimum(trace.think_s, limit_s))
    return sorted_by_arrival(capped)


def with_starts(trace: Trace, starts: Floats) -> Trace:
    """The trace with session s starting at `starts[s]`, the pace inside sessions kept."""
    shift = starts - trace.arrive_s[session_heads(trace)]
    return sorted_by_arrival(replace(trace, arrive_s=trace.arrive_s + shift[trace.session]))


def describe(trace: Trace) -> TraceSummary:
    """The trace in numbers; see `TraceSummary` for each definition."""
    if not len(trace):
        raise PlanError(trace.name, "an empty trace")
    found = reuse(trace)
    total = int(trace.isl.sum(dtype=np.int64))
    anywhere, in_session = int(found.anywhere.sum()), int(found.in_session.sum())
    sizes = np.bincount(trace.session)
    later = trace.think_s[trace.turn > 0]
    duration = trace.duration_s
    rate = len(trace) / duration if duration else 0.0
    return TraceSummary(
        name=trace.name,
        requests=len(trace),
        sessions=len(sizes),
        duration_s=duration,
        rate=rate,
        peak_rate=peak_rate(trace.arrive_s) if duration > BUSIEST_WINDOW else rate,
        isl=spread(trace.isl),
        osl=spread(trace.osl),
        input_tokens=total,
        output_tokens=int(trace.osl.sum(dtype=np.int64)),
        reuse_share=anywhere / total,
        session_reuse_share=in_session / anywhere if anywhere else 0.0,
        shared_prefix_share=(anywhere - in_session) / total,
        turns_mean=float(sizes.mean()),
        turns_max=int(sizes.max()),
        think_p50_s=float(np.median(later)) if trace.closed and len(later) else None,
        closed=trace.closed,
        block_tokens=trace.block_tokens if len(trace.block_ids) else None,
        source=trace.source,
        notes=trace.notes,
    )


def reuse(trace: Trace) -> Reuse:
    """Tokens in leading blocks that earlier inputs brought, as an engine counts hits.

    Full blocks only, at most (isl - 1) // block_tokens of them because an engine computes the
    last input token itself. Blocks of generated text count once a later input holds them.
    """
    in_session = np.zeros(len(trace), np.int64)
    for rows in session_runs(trace):
        part = arranged(trace, rows)
        owner = np.repeat(part.session.astype(np.int64), np.diff(part.block_starts))
        width = int(part.block_ids.max(initial=0)) + 1
        keys = np.unique(owner * width + part.block_ids, return_inverse=True)[1]
        in_session[rows] = found_blocks(part, keys)
    return Reuse(
        anywhere=found_blocks(trace, trace.block_ids) * trace.block_tokens,
        in_session=in_session * trace.block_tokens,
    )


def found_blocks(trace: Trace, keys: NDArray[np.integer]) -> Longs:
    """Usable blocks of each row whose key is that of a full block in an earlier row."""
    counts = np.diff(trace.block_starts)
    row = np.repeat(np.arange(len(trace), dtype=np.int32), counts)
    last = trace.block_starts[1:][counts > 0] - 1
    partial = trace.isl[counts > 0] % trace.block_tokens > 0
    full = np.ones(len(keys), bool)
    full[last[partial]] = False
    # Of several values for one place the last is kept: backwards, that is the first row.
    brought = np.full(int(keys.max(initial=0)) + 1, len(trace), np.int32)
    brought[keys[full][::-1]] = row[full][::-1]
    hit = brought[keys] < row
    hit[last] = False
    return np.bincount(row[hit], minlength=len(trace))


def session_runs(trace: Trace) -> list[Longs]:
    """Rows of sessions with several turns, session by session, in parts of bounded size."""
    sizes = np.bincount(trace.session)
    several = np.flatnonzero(sizes[trace.session] > 1)
    rows = several[np.argsort(trace.session[several], kind="stable")]
    if not len(rows) or not len(trace.block_ids):
        return []
    held = np.cumsum(np.diff(trace.block_starts)[rows])
    heads = np.flatnonzero(np.diff(trace.session[rows], prepend=-1))
    cuts = heads[np.flatnonzero(np.diff(held[heads] // IDS_AT_ONCE)) + 1]
    return np.split(rows, cuts)


def peak_rate(arrive_s: Floats) -> float:
    """Requests per second of the busiest minute, wherever it begins."""
    ends = np.searchsorted(arrive_s, arrive_s + BUSIEST_WINDOW, side="left")
    return float((ends - np.arange(len(arrive_s))).max()) / BUSIEST_WINDOW


def spread(column: Ints) -> Spread:
    """Mean, p50, p90, p99 and maximum of a column."""
    p50, p90, p99 = np.percentile(column, (50, 90, 99))
    return Spread(
        mean=float(column.mean()),
        p50=float(p50),
        p90=float(p90),
        p99=float(p99),
        max=float(column.max()),
    )


def session_heads(trace: Trace) -> Longs:
    """The row of each session's first turn, by session."""
    return np.unique(trace.session, return_index=True)[1].astype(np.int64)


def dense(keys: NDArray[np.integer]) -> Ints:
    """The keys numbered 0, 1, ... in the order in which they first appear."""
    _, heads, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rank = np.empty(len(heads), np.int32)
    rank[np.argsort(heads)] = np.arange(len(heads), dtype=np.int32)
    numbered: Ints = rank[inverse]
    return numbered


def turns_of(session: Ints) -> Ints:
    """0, 1, ... for the rows of each session, in row order."""
    if (session[1:] > session[:-1]).all():
        return np.zeros(len(session), np.int32)
    order = np.argsort(session, kind="stable")
    heads = np.flatnonzero(np.diff(session[order], prepend=-1))
    sizes = np.diff(np.append(heads, len(session)))
    turn = np.empty(len(session), np.int32)
    turn[order] = np.arange(len(session)) - np.repeat(heads, sizes)
    return turn


def sorted_by_arrival(trace: Trace) -> Trace:
    """The trace with rows in arrival order again; equal times keep their order."""
    if (np.diff(trace.arrive_s) >= 0).all():
        return trace
    return arranged(trace, np.argsort(trace.arrive_s, kind="stable"))


def arranged(trace: Trace, rows: NDArray[np.integer]) -> Trace:
    """The trace with these rows in this order, nothing numbered anew."""
    counts = np.diff(trace.block_starts)[rows]
    ids = trace.block_ids
    if len(ids):
        spans = zip(trace.block_starts[rows].tolist(), counts.tolist(), strict=True)
        ids = np.concatenate([ids[start : start + count] for start, count in spans])
    return replace(
        trace,
        arrive_s=trace.arrive_s[rows],
        isl=trace.isl[rows],
        osl=trace.osl[rows],
        session=trace.session[rows],
        turn=trace.turn[rows],
        think_s=trace.think_s[rows],
        block_starts=np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))),
        block_ids=ids,
    )
