"""Seeded workloads made from stated marginals: agentic coding, chat, questions on long documents.

A session's prompt only grows: a prefix that all sessions share (tools, system prompt), then its
own history. Ids are cut from those token positions, so reuse follows from the lengths alone.

The agentic study states reuse R = 71% of input tokens, of which 79% inside a session. Inside a
session a turn reuses its whole predecessor; across sessions a first turn reuses the shared prefix
only. So the number of sessions follows from R, and the growth per turn from the 79%: both are
solved for, not chosen. With a prefix of 15,200 tokens that means about 400 sessions of 2.1 turns.
The study's mean of 33.6k cannot stand beside its p50 of 33.5k and p90 of 101k unless nearly nothing
lies between the two: with log-linear quantiles the upper half of the requests alone adds 36k to the
mean. The percentiles are kept; the mean comes out at 48k.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from typing import TypeVar

import msgspec
import numpy as np

from splitpoint.errors import PlanError
from splitpoint.inputs.trace import Floats, Ints, Longs, Trace
from splitpoint.inputs.traces.columns import MAX_IDS, Identities, assembled
from splitpoint.inputs.workload import Lengths
from splitpoint.record import Record

# The 90th percentile of the standard normal.
Z90 = 1.2815515655446004
BLOCK_TOKENS = 64
# Nominal speeds, for the arrival times that an open-loop reading of a preset uses.
# Published: the agentic study's prefill rate on one H20. Measured: median answer time per output
# token of the public WEKA sessions (340 calls).
NOMINAL_PREFILL = 7000.0
NOMINAL_S_PER_TOKEN = 0.025


class Skewed(Record, frozen=True, kw_only=True):
    """A lognormal by its p50 and p90."""

    p50: float
    p90: float

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        """n values: p50 x exp(ln(p90 / p50) / 1.2816 x normal)."""
        sigma = np.log(self.p90 / self.p50) / Z90
        values: Floats = self.p50 * np.exp(sigma * rng.standard_normal(n))
        return values


class Agentic(Record, frozen=True, kw_only=True):
    """Marginals of an agentic workload. `isl` maps shares 0..1 to input tokens, ascending."""

    requests: int
    duration_s: float
    isl: dict[float, float]
    osl: Skewed
    think_s: Skewed
    shared_tokens: int
    growth_sigma: float
    reuse: float
    session_reuse: float
    source: str


class Dialogue(Record, frozen=True, kw_only=True):
    """Marginals of sessions that open with `opening` tokens, then alternate answers and messages.

    Turns per session are geometric with mean `turns`.
    """

    requests: int
    duration_s: float
    shared_tokens: int
    opening: Lengths
    message: Lengths
    answer: Lengths
    turns: float
    think_s: Skewed
    source: str


class Turns(Record, frozen=True, kw_only=True):
    """Columns of generated turns, session by session, turns in order."""

    session: Longs
    isl: Ints
    osl: Ints


Kind = TypeVar("Kind", Agentic, Dialogue)

# Published: the agentic study (8 x H20, Qwen3-30B-A3B): requests, duration, percentiles, reuse.
# Measured on the 20 public WEKA Claude Code sessions: shared_tokens (median of tool_tokens +
# system_tokens), think_s, and the spread of growth per turn and of osl (p90 / p50 = 4.4).
# Assumed: the ends of isl; the median of osl, which the study does not state: its E2EL less TTFT
# at the median, 1.6-2.3 s, over its TPOT of 0.013-0.027 s is 60-180 tokens.
AGENTIC = Agentic(
    requests=850,
    duration_s=600.0,
    isl={0.0: 15_500, 0.5: 33_500, 0.9: 101_000, 0.99: 132_000, 1.0: 140_000},
    osl=Skewed(p50=120, p90=520),
    think_s=Skewed(p50=10.0, p90=200.0),
    shared_tokens=15_200,
    growth_sigma=1.2,
    reuse=0.71,
    session_reuse=0.79,
    source="synthetic, from the published marginals of an agentic PD study on 8 x H20",
)

# Published: ShareGPT's mean input of 161 and output of 338 tokens (vLLM paper, SOSP 2023, fig. 11);
# LMSYS-Chat-1M's mean of 2.0 turns (Zheng et al. 2023). Assumed: the system prompt, spreads,
# think time, and 5 requests/s.
CHAT = Dialogue(
    requests=2000,
    duration_s=400.0,
    shared_tokens=400,
    opening=Lengths(mean=161, cv=1.2, low=4, high=8192),
    message=Lengths(mean=161, cv=1.2, low=4, high=8192),
    answer=Lengths(mean=338, cv=0.9, low=4, high=4096),
    turns=2.0,
    think_s=Skewed(p50=30.0, p90=120.0),
    source="synthetic, from published means of ShareGPT and LMSYS-Chat-1M",
)

# Published: 8.3 questions a document (LooGLE, 6,448 on 776 documents); answers of 149 tokens
# (Mooncake's LooGLE and L-Eval mix, FAST'25). Assumed: document lengths, half of a 128k window in
# the mean; questions; think time; 0.5 requests/s.
LONG_CONTEXT = Dialogue(
    requests=600,
    duration_s=1200.0,
    shared_tokens=400,
    opening=Lengths(mean=64_000, cv=0.5, low=16_000, high=120_000),
    message=Lengths(mean=60, cv=0.5, low=8, high=1024),
    answer=Lengths(mean=149, cv=0.8, low=4, high=2048),
    turns=8.3,
    think_s=Skewed(p50=30.0, p90=120.0),
    source="synthetic, question rates of LooGLE on assumed document lengths",
)

MARGINALS: dict[str, Agentic | Dialogue] = {
    "agentic-coding": AGENTIC,
    "chat": CHAT,
    "long-context": LONG_CONTEXT,
}
# Assumed: up to this much faster a preset keeps its own number of requests.
SOONER = 1.1


def preset(
    name: str, *, seed: int = 0, requests: int | None = None, rate: float | None = None
) -> Trace:
    """The named workload; another number of requests keeps its rate, unless `rate` is given."""
    if requests is not None and requests < 1:
        raise PlanError("workload.requests", f"{requests}", "at least 1")
    rng = np.random.default_rng(seed)
    match MARGINALS.get(name):
        case Agentic() as marginals:
            return agentic(name, scaled(marginals, requests, rate), rng)
        case Dialogue() as talk:
            return dialogue(name, scaled(talk, requests, rate), rng)
    raise PlanError("workload.preset", f"{name!r}", "agentic-coding, chat or long-context")


def sustained(name: str, rate: float) -> int | None:
    """Requests that keep a preset going for its own seconds at a rate; None where its own number
    does. Its sessions last about that long: started within less, they never reach the rate."""
    own = MARGINALS[name]
    wanted = math.ceil(rate * own.duration_s)
    return wanted if wanted > SOONER * own.requests else None


def scaled(marginals: Kind, requests: int | None, rate: float | None) -> Kind:
    """The marginals for another number of requests, at the same rate or at another."""
    if requests is None:
        return marginals
    own = marginals.duration_s * requests / marginals.requests
    duration = own if rate is None else requests / rate
    return msgspec.structs.replace(marginals, requests=requests, duration_s=duration)


def drawn(lengths: Lengths, n: int, rng: np.random.Generator) -> Ints:
    """n token counts: lognormal with the given mean and cv, rounded, cut to [low, high].

    sigma^2 = ln(1 + cv^2), mu = ln(mean) - sigma^2 / 2; cv 0 draws nothing at random.
    """
    sigma = np.sqrt(np.log1p(lengths.cv**2))
    normal = rng.standard_normal(n) if lengths.cv else np.zeros(n)
    values = np.exp(np.log(lengths.mean) - sigma**2 / 2 + sigma * normal)
    high = lengths.high or np.iinfo(np.int32).max
    tokens: Ints = np.clip(np.rint(values), max(lengths.low, 1), high).astype(np.int32)
    return tokens


def agentic(name: str, marginals: Agentic, rng: np.random.Generator) -> Trace:
    """Sessions whose lengths and reuse have the given marginals.

    Lengths are drawn by strata, one from each of n equal shares of the distribution. Going up
    through them, each is a first turn or extends the open session that is nearest to its own
    length less a drawn growth; the median growth is solved for.
    """
    n = marginals.requests
    shares = (np.arange(n) + rng.random(n)) / n
    knots, lengths = np.array(list(marginals.isl)), np.array(list(marginals.isl.values()))
    isl = np.rint(np.exp(np.interp(shares, knots, np.log(lengths)))).astype(np.int64)
    # No two alike, so that every later turn is longer than the one before.
    isl = np.maximum.accumulate(isl - np.arange(n)) + np.arange(n)
    opens = first_turns(isl, marginals, rng)
    growth = np.exp(marginals.growth_sigma * rng.standard_normal(n))
    wanted = marginals.reuse * marginals.session_reuse * isl.sum()

    def reused(median: float) -> float:
        before = predecessors(isl, opens, median * growth)
        return float((isl[before[before >= 0]] // BLOCK_TOKENS * BLOCK_TOKENS).sum())

    median = solved(reused, wanted, (1.0, float(isl[-1])))
    before = predecessors(isl, opens, median * growth)
    session = np.arange(n)
    for row in np.flatnonzero(before >= 0):
        session[row] = session[before[row]]
    # An answer is part of what the next turn adds.
    osl = np.clip(np.rint(marginals.osl.draw(n, rng)), 1, 32_768).astype(np.int64)
    extended = before[before >= 0]
    osl[extended] = np.minimum(osl[extended], isl[before >= 0] - isl[extended])
    order = np.lexsort((isl, session))
    turns = Turns(
        session=session[order], isl=isl[order].astype(np.int32), osl=osl[order].astype(np.int32)
    )
    return timed(name, turns, marginals, rng)


def dialogue(name: str, marginals: Dialogue, rng: np.random.Generator) -> Trace:
    """Sessions of an opening and messages, each turn's input holding all that went before."""
    n = marginals.requests
    session = np.repeat(np.arange(n), rng.geometric(1 / marginals.turns, n))[:n]
    turn = np.arange(n) - np.searchsorted(session, session)
    opening = drawn(marginals.opening, n, rng).astype(np.int64)
    message = drawn(marginals.message, n, rng).astype(np.int64)
    answer = drawn(marginals.answer, n, rng).astype(np.int64)
    said = np.where(turn == 0, opening, message)
    before = np.cumsum(said + answer) - (said + answer)
    history = before - before[np.searchsorted(session, session)]
    isl = marginals.shared_tokens + history + said
    turns = Turns(session=session, isl=isl.astype(np.int32), osl=answer.astype(np.int32))
    return timed(name, turns, marginals, rng)


def first_turns(isl: Longs, marginals: Agentic, rng: np.random.Generator) -> Longs:
    """Which of the ascending lengths open a session, 0 or 1: short ones more often (1 / isl).

    Each but the very first reuses the shared prefix, so their number is 1 + reuse across sessions
    over that prefix's full blocks.
    """
    across = marginals.reuse * (1 - marginals.session_reuse) * isl.sum()
    prefix = marginals.shared_tokens // BLOCK_TOKENS * BLOCK_TOKENS
    count = min(1 + round(across / prefix), len(isl))
    keys = rng.exponential(size=len(isl)) * isl
    keys[0] = -1.0
    opens = np.zeros(len(isl), np.int64)
    opens[np.argsort(keys)[:count]] = 1
    return opens


def predecessors(isl: Longs, opens: Longs, growth: Floats) -> Longs:
    """For each of the ascending lengths the row that it extends, -1 for first turns."""
    ends: list[int] = []
    rows: list[int] = []
    before = np.full(len(isl), -1)
    lengths, targets, first = isl.tolist(), (isl - growth).tolist(), opens.tolist()
    for row, length in enumerate(lengths):
        if not first[row]:
            target = targets[row]
            place = bisect.bisect_left(ends, target)
            if place == len(ends) or (
                place > 0 and target - ends[place - 1] <= ends[place] - target
            ):
                place -= 1
            before[row] = rows[place]
            del ends[place], rows[place]
        ends.append(length)
        rows.append(row)
    return before


def solved(value: Callable[[float], float], wanted: float, bounds: tuple[float, float]) -> float:
    """Where the falling function comes nearest to `wanted`, by bisection on a log scale."""
    low, high = bounds
    tried = [(abs(value(bound) - wanted), bound) for bound in bounds]
    for _ in range(24):
        middle = (low * high) ** 0.5
        found = value(middle)
        tried.append((abs(found - wanted), middle))
        low, high = (middle, high) if found > wanted else (low, middle)
    return min(tried)[1]


def timed(
    name: str, turns: Turns, marginals: Agentic | Dialogue, rng: np.random.Generator
) -> Trace:
    """The turns with think times, session starts spread evenly over the duration, and ids.

    A session that would outlast the duration at nominal speeds thinks proportionally less.
    """
    heads = np.flatnonzero(np.diff(turns.session, prepend=-1))
    sizes = np.diff(np.append(heads, len(turns.session)))
    later = np.ones(len(turns.session), bool)
    later[heads] = False
    new = np.where(later, turns.isl - np.roll(turns.isl, 1), turns.isl)
    service = new / NOMINAL_PREFILL + turns.osl * NOMINAL_S_PER_TOKEN
    think = np.where(later, marginals.think_s.draw(len(turns.session), rng), 0.0)
    gap = np.where(later, np.roll(service, 1) + think, 0.0)
    total = np.cumsum(gap)
    offset = total - np.repeat(total[heads], sizes)
    span = offset[np.append(heads[1:], len(offset)) - 1]
    pace = np.minimum(1.0, marginals.duration_s / np.maximum(span, 1e-9))
    start = rng.random(len(heads)) * (marginals.duration_s - span * pace)
    return assembled(
        name,
        arrive_s=np.repeat(start, sizes) + offset * np.repeat(pace, sizes),
        isl=turns.isl,
        osl=turns.osl,
        session=turns.session,
        think_s=think * np.repeat(pace, sizes),
        identities=grown_identities(turns, marginals.shared_tokens),
        closed=True,
        source=marginals.source,
    )


def grown_identities(turns: Turns, shared_tokens: int) -> Identities:
    """Ids of prompts that share their first `shared_tokens` and then grow session by session."""
    counts = -(-turns.isl.astype(np.int64) // BLOCK_TOKENS)
    if counts.sum() > MAX_IDS:
        what = f"{len(counts):,} requests hold {counts.sum():,} block ids"
        raise PlanError("workload.requests", what, f"at most {MAX_IDS:,}: ask for fewer requests")
    row = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    shared = shared_tokens // BLOCK_TOKENS
    _, number = np.unique(turns.session, return_inverse=True)
    longest = np.zeros(int(number.max()) + 1, np.int64)
    np.maximum.at(longest, number, counts)
    base = shared + np.cumsum(longest) - longest
    own = base[number][row] + place
    ids = np.where(place < shared, place, own)
    partial = place >= (turns.isl // BLOCK_TOKENS)[row]
    ids[partial] = shared + int(longest.sum()) + row[partial]
    return Identities(ids, counts, BLOCK_TOKENS)
