"""Every metric, defined once, for simulated and measured runs alike.

Per-request metrics are columns with NaN where the request has none. Percentiles are taken over
the requests that finished, by linear interpolation between order statistics (NumPy's default,
Hyndman and Fan's type 7); what failed stands beside them as `success` and `attainment`.
Rates are taken over the steady window (`steady_window`), so that ramp-up and drain do not count.
"""

import numpy as np
from numpy.typing import NDArray

from splitpoint.errors import PlanError
from splitpoint.inputs.slo import Slo
from splitpoint.record import Record
from splitpoint.run import DONE, LOST, Run

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Cuts(Record, frozen=True, kw_only=True):
    """Shares of the finished requests, in order of their ends, that are warm-up and cool-down.

    An eighth each unless asked otherwise: in a closed loop of c users that sends 8 x c requests
    these are exactly the first and the last wave.
    """

    warm_up: float = 1 / 8
    cool_down: float = 1 / 8


EIGHTHS = Cuts()
# What an SLO's percentile takes for the TTFT of a client that went: later than any other's.
TOO_LATE_S = 1e12
# A steady window of which more than this lies after the last arrival shows no load (assumed).
MOSTLY = 0.5

# Published: median coefficient of variation of the same configuration run again, InferenceX
# DeepSeek-R1 rows (2025-10 to 2026-09). The simulator itself repeats exactly.
THROUGHPUT_NOISE = 0.06
TTFT_NOISE = 0.10
TPOT_NOISE = 0.06


class TtftParts(Record, frozen=True, kw_only=True):
    """Seconds of each request's TTFT by cause, as columns; they sum to TTFT."""

    queue: Floats
    prefill: Floats
    transfer: Floats
    decode_wait: Floats


class Gaps(Record, frozen=True, kw_only=True):
    """Gaps between tokens: `seconds` of a gap, and how many such gaps there were."""

    seconds: Floats
    counts: NDArray[np.int64]


class Window(Record, frozen=True, kw_only=True):
    """A stretch of a run, seconds from its start."""

    start: float
    end: float

    @property
    def length(self) -> float:
        """Seconds of the window."""
        return self.end - self.start


class Throughput(Record, frozen=True, kw_only=True):
    """Tokens per second of the whole cluster, of finished requests. Input tokens include those
    that a prefix cache served."""

    input: float
    output: float

    @property
    def total(self) -> float:
        """Input and output tokens per second."""
        return self.input + self.output


class PoolLoad(Record, frozen=True, kw_only=True):
    """What some KV pools saw. Shares are of usable blocks, averaged over time and
    pools; `waiting_mean` is per pool; `busy_share`, preemptions and hits are over the whole
    run: `hit_share` of the tokens asked for, `host_share` of them from host memory."""

    used_mean: float
    used_p99: float
    held_mean: float
    waiting_mean: float
    busy_share: float
    preemptions: int
    hit_share: float
    host_share: float


def finished(run: Run) -> Flags:
    """Which requests got all of their tokens."""
    done: Flags = run.requests.outcome == DONE
    return done


def success(run: Run) -> float:
    """Finished requests over all requests."""
    return float(np.mean(finished(run))) if len(run.requests) else 1.0


def ttft(run: Run) -> Floats:
    """Time to first token of each finished request = first token - arrival, seconds."""
    wait = run.requests.first_token_s - run.requests.arrive_s
    return np.where(finished(run), wait, np.nan)


def e2el(run: Run) -> Floats:
    """End-to-end latency of each finished request = end - arrival, seconds."""
    return np.where(finished(run), run.requests.end_s - run.requests.arrive_s, np.nan)


def tpot(run: Run) -> Floats:
    """Time per output token of each finished request = (E2EL - TTFT) / (OSL - 1), seconds.

    NaN for requests of one token, which have no gap.
    """
    gaps = run.requests.osl - 1.0
    absent = np.full(len(gaps), np.nan)
    pace: Floats = np.divide(e2el(run) - ttft(run), gaps, out=absent, where=gaps > 0)
    return pace


def itl(run: Run) -> Gaps:
    """Inter-token latency: each gap between two tokens of a request, seconds.

    A Run keeps no single gaps, so every gap of a request stands at the request's mean, TPOT:
    means over all gaps are exact, percentiles hide the variation inside a request.
    """
    seconds = tpot(run)
    known = ~np.isnan(seconds)
    return Gaps(seconds=seconds[known], counts=run.requests.osl[known].astype(np.int64) - 1)


def ttft_parts(run: Run) -> TtftParts:
    """TTFT by cause.

    queue = prefill start - arrival; prefill = prefill end - prefill start;
    transfer = transfer end - the later of transfer start and prefill end (what prefill does not
    hide), 0 where nothing moved; decode wait = the rest: waiting for the decode pool to have room
    before the transfer, and for its first step after it.
    """
    requests = run.requests
    total = ttft(run)
    queue = np.where(np.isnan(total), np.nan, requests.prefill_start_s - requests.arrive_s)
    prefill = requests.prefill_end_s - requests.prefill_start_s
    exposed = np.maximum(requests.transfer_start_s, requests.prefill_end_s)
    transfer = np.nan_to_num(np.maximum(requests.transfer_end_s - exposed, 0.0))
    decode_wait = total - queue - prefill - transfer
    return TtftParts(queue=queue, prefill=prefill, transfer=transfer, decode_wait=decode_wait)


def percentile(values: Floats, percent: float) -> float:
    """The `percent`-th percentile of the values that are not NaN; NaN if there is none."""
    return percentiles(values, (percent,))[0]


def percentiles(values: Floats, percents: tuple[float, ...]) -> list[float]:
    """`percentile` at several places, for one search."""
    known = np.sort(values[~np.isnan(values)])
    if not len(known):
        return [np.nan] * len(percents)
    # What `np.percentile` gives, which imports `numpy.ma` for it: a twentieth of a short process.
    ranks = np.array(percents) / 100 * (len(known) - 1)
    return [float(value) for value in np.interp(ranks, np.arange(len(known)), known)]


def mean(values: Floats) -> float:
    """The mean of the values that are not NaN; NaN if there is none."""
    known = values[~np.isnan(values)]
    return float(np.mean(known)) if len(known) else np.nan


def gap_percentile(gaps: Gaps, percent: float) -> float:
    """The `percent`-th percentile over all gaps: the smallest gap that so many do not exceed."""
    return gap_percentiles(gaps, (percent,))[0]


def gap_percentiles(gaps: Gaps, percents: tuple[float, ...]) -> list[float]:
    """`gap_percentile` at several places, for one sort."""
    if len(gaps.seconds) == 0:
        return [np.nan] * len(percents)
    return _weighted_percentiles([gaps.seconds], gaps.counts.astype(float), percents)


def interactivity(run: Run) -> float:
    """1 / median TPOT, tokens per second and user; 0 where no request has a gap."""
    median = percentile(tpot(run), 50)
    return 1 / median if median > 0 else 0.0


def good(run: Run, slo: Slo) -> Flags:
    """Which requests finished with TTFT and TPOT within the SLO (one token: TTFT alone)."""
    # NaN compares false, so a request without gaps is asked for its absence instead.
    slow = tpot(run) > slo.tpot_s
    return finished(run) & (ttft(run) <= slo.ttft_s) & ~slow


def attainment(run: Run, slo: Slo) -> float:
    """Good requests over all requests, failures included."""
    return float(np.mean(good(run, slo))) if len(run.requests) else 1.0


def meets_slo(run: Run, slo: Slo) -> bool:
    """Whether no request was left unserved and TTFT and TPOT at the SLO's percentile are within it;
    one whose client lost patience counts as later than all others."""
    lost = np.isin(run.requests.outcome, LOST)
    if not (finished(run) | lost).all():
        return False
    starts = ttft(run)
    starts[lost] = TOO_LATE_S
    slowest_start = percentile(starts, slo.percentile)
    slowest_pace = percentile(tpot(run), slo.percentile)
    # Without a value there is nothing that could be late.
    return not (slowest_start > slo.ttft_s or slowest_pace > slo.tpot_s)


def steady_window(run: Run, cuts: Cuts = EIGHTHS) -> Window:
    """From the end of the last request of the warm-up to that of the last before the cool-down;
    from the first arrival without a warm-up (also where its share makes no whole request).

    The whole run, from first arrival to last end, where that is no stretch of time.
    """
    if not (cuts.warm_up >= 0 and cuts.cool_down >= 0 and cuts.warm_up + cuts.cool_down < 1):
        what = f"{cuts.warm_up} and {cuts.cool_down} of the requests"
        raise PlanError("warm-up and cool-down", what, "shares that leave something between them")
    ends = run.requests.end_s[finished(run)]
    if len(ends) == 0:
        return Window(start=0.0, end=max(run.duration_s, 0.0))
    arrived = float(np.nanmin(run.requests.arrive_s))
    first = int(len(ends) * cuts.warm_up)
    last = len(ends) - int(len(ends) * cuts.cool_down) - 1
    ends = np.partition(ends, (max(first - 1, 0), last, len(ends) - 1))
    window = Window(start=float(ends[first - 1]) if first else arrived, end=float(ends[last]))
    return window if window.length > 0 else Window(start=arrived, end=float(ends[-1]))


def draining(run: Run, cuts: Cuts = EIGHTHS) -> float:
    """Share of the steady window that lies after the last arrival: there no load is left, and
    rates are those of emptying the queues."""
    window = steady_window(run, cuts)
    if window.length <= 0:
        return 0.0
    last = float(np.nanmax(run.requests.arrive_s))
    return min(max(window.end - max(last, window.start), 0.0) / window.length, 1.0)


def throughput(run: Run, cuts: Cuts = EIGHTHS) -> Throughput:
    """Tokens of finished requests in the steady window over its seconds.

    Input tokens count when their prefill ends, the first output token when it comes, the others
    evenly from it to the end of the request.
    """
    window = steady_window(run, cuts)
    if window.length <= 0:
        return Throughput(input=0.0, output=0.0)
    done = finished(run)
    requests = run.requests
    first, end = requests.first_token_s[done], requests.end_s[done]
    osl = requests.osl[done]
    inputs = requests.isl[done][_inside(requests.prefill_end_s[done], window)].sum()
    span = end - first
    shared = _overlap(first, end, window)
    share = np.divide(shared, span, out=_inside(end, window).astype(float), where=span > 0)
    outputs = _inside(first, window).sum() + (share * np.maximum(osl - 1, 0)).sum()
    return Throughput(input=float(inputs) / window.length, output=float(outputs) / window.length)


def whole_throughput(run: Run) -> Throughput:
    """All tokens of finished requests over the seconds from the first arrival to the last end, as
    load generators count them: ramp-up and drain are in it."""
    done = finished(run)
    length = whole_seconds(run)
    if length <= 0:
        return Throughput(input=0.0, output=0.0)
    isl, osl = (int(column[done].sum()) for column in (run.requests.isl, run.requests.osl))
    return Throughput(input=isl / length, output=osl / length)


def whole_seconds(run: Run) -> float:
    """Seconds from the first arrival to the last end of a finished request."""
    ends = run.requests.end_s[finished(run)]
    return float(ends.max() - run.requests.arrive_s.min()) if len(ends) else 0.0


def goodput(run: Run, slo: Slo, cuts: Cuts = EIGHTHS) -> float:
    """Good requests that end in the steady window over its seconds, of the whole cluster."""
    window = steady_window(run, cuts)
    if window.length <= 0:
        return 0.0
    return float(_inside(run.requests.end_s[good(run, slo)], window).sum()) / window.length


def mean_prefilling(run: Run, cuts: Cuts = EIGHTHS) -> float:
    """Mean number of requests that hold prefill-side KV, from prefill start to transfer end (or
    prefill end), in the steady window."""
    requests = run.requests
    end = np.where(
        np.isnan(requests.transfer_end_s), requests.prefill_end_s, requests.transfer_end_s
    )
    return _mean_present(requests.prefill_start_s, end, steady_window(run, cuts))


def mean_decoding(run: Run, cuts: Cuts = EIGHTHS) -> float:
    """Mean number of requests between their first and their last token, in the steady window."""
    requests = run.requests
    return _mean_present(requests.first_token_s, requests.end_s, steady_window(run, cuts))


def mean_after_prefill(run: Run, cuts: Cuts = EIGHTHS) -> float:
    """Mean number of requests that hold decode-side KV or wait for it, from the end of their
    prefill to their end, in the steady window."""
    requests = run.requests
    return _mean_present(requests.prefill_end_s, requests.end_s, steady_window(run, cuts))


def mean_shut_out(run: Run, pool: int, blocks: int, cuts: Cuts = EIGHTHS) -> float:
    """Mean number of requests that wait while their rank has fewer than `blocks` blocks free, in
    the steady window: those that KV memory keeps waiting, not compute."""
    window = steady_window(run, cuts)
    if window.length <= 0:
        return 0.0
    total = 0.0
    for row in np.flatnonzero(run.instances.pool == pool):
        here = run.series.instance == row
        start = run.series.time_s[here]
        seconds = _overlap(start, np.append(start[1:], run.duration_s), window)
        room = int(run.instances.kv_blocks[row]) - run.series.kv_used[here]
        total += float((seconds * run.series.waiting[here] * (room < blocks)).sum())
    return total / window.length


def demand_p99(run: Run, pool: int, blocks: int, cuts: Cuts = EIGHTHS) -> float:
    """The 99th percentile, over time and ranks of the steady window, of
    (blocks in use + `blocks` x requests that they keep waiting) / usable blocks.

    Requests wait for memory where fewer than `blocks` are free, so it is above 1 if and only if
    that is so for more than a hundredth of the time.
    """
    window = steady_window(run, cuts)
    weights: list[Floats] = []
    asked: list[Floats] = []
    for row in np.flatnonzero(run.instances.pool == pool):
        here = run.series.instance == row
        start, used = run.series.time_s[here], run.series.kv_used[here]
        usable = max(int(run.instances.kv_blocks[row]), 1)
        shut_out = run.series.waiting[here] * (usable - used < blocks)
        weights.append(_overlap(start, np.append(start[1:], run.duration_s), window))
        asked.append((used + shut_out * float(blocks)) / usable)
    return _weighted_percentile(asked, np.concatenate(weights), 99) if weights else 0.0


def pool_load(run: Run, pool: int, cuts: Cuts = EIGHTHS) -> PoolLoad:
    """What pool number `pool` saw in the steady window."""
    return load_of(run, np.flatnonzero(run.instances.pool == pool), cuts)


def load_of(run: Run, rows: NDArray[np.intp], cuts: Cuts = EIGHTHS) -> PoolLoad:
    """What these KV pools (rows of `Run.instances`) saw together in the steady window."""
    window = steady_window(run, cuts)
    weights: list[Floats] = []
    used: list[Floats] = []
    held: list[Floats] = []
    waiting: list[Floats] = []
    for row in rows:
        here = run.series.instance == row
        # A state holds until the next row of the same KV pool.
        start = run.series.time_s[here]
        end = np.append(start[1:], run.duration_s)
        blocks = max(int(run.instances.kv_blocks[row]), 1)
        weights.append(_overlap(start, end, window))
        used.append(run.series.kv_used[here] / blocks)
        held.append(run.series.held[here] / blocks)
        waiting.append(run.series.waiting[here].astype(float))
    seconds = np.concatenate(weights) if weights else np.empty(0)
    queried = int(run.instances.queried_tokens[rows].sum())
    hits = int(run.instances.hit_tokens[rows].sum())
    reloaded = int(run.instances.host_hit_tokens[rows].sum())
    busy = float(run.instances.busy_s[rows].sum())
    return PoolLoad(
        used_mean=_weighted_mean(used, seconds),
        used_p99=_weighted_percentile(used, seconds, 99),
        held_mean=_weighted_mean(held, seconds),
        waiting_mean=_weighted_mean(waiting, seconds),
        busy_share=busy / (run.duration_s * len(rows)) if run.duration_s and len(rows) else 0.0,
        preemptions=int(run.instances.preemptions[rows].sum()),
        hit_share=hits / queried if queried else 0.0,
        host_share=reloaded / queried if queried else 0.0,
    )


def _weighted_mean(values: list[Floats], weights: Floats) -> float:
    """Mean of values that each held for `weights` seconds; 0 where nothing did."""
    if weights.sum() <= 0:
        return 0.0
    return float(np.average(np.concatenate(values), weights=weights))


def _weighted_percentile(values: list[Floats], weights: Floats, percent: float) -> float:
    """The smallest value that was not exceeded for `percent` of the seconds."""
    return _weighted_percentiles(values, weights, (percent,))[0]


def _weighted_percentiles(
    values: list[Floats], weights: Floats, percents: tuple[float, ...]
) -> list[float]:
    if weights.sum() <= 0:
        return [0.0] * len(percents)
    column = np.concatenate(values)
    order = np.argsort(column, kind="stable")
    reached = np.cumsum(weights[order])
    ranks = [
        int(np.searchsorted(reached, percent / 100 * reached[-1], side="left"))
        for percent in percents
    ]
    return [float(column[order[min(rank, len(order) - 1)]]) for rank in ranks]


def _mean_present(start: Floats, end: Floats, window: Window) -> float:
    """Mean number of intervals that cover a moment of the window."""
    known = ~np.isnan(start) & ~np.isnan(end)
    if window.length <= 0:
        return 0.0
    return float(_overlap(start[known], end[known], window).sum()) / window.length


def _overlap(start: Floats, end: Floats, window: Window) -> Floats:
    """Seconds of each interval that lie in the window."""
    shared: Floats = np.minimum(end, window.end) - np.maximum(start, window.start)
    return np.maximum(shared, 0.0, out=shared)


def _inside(moments: Floats, window: Window) -> Flags:
    """Which moments lie in (start, end]: the request that opens the window is ramp-up."""
    return (moments > window.start) & (moments <= window.end)
