"""A result in numbers, whoever made it: the simulator, our client, or another tool's benchmark.

Some results carry a Run (every request with its times), others only means and percentiles. Both
become a `Measurement`, under our names: what others call a metric is settled by the readers.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from splitpoint import metrics
from splitpoint.errors import PlanError
from splitpoint.record import Record
from splitpoint.run import DONE, OUTCOMES, Instances, Requests, Run, Series, no_rows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Estimate(Record, frozen=True, kw_only=True):
    """A number and its relative standard error by the requests it was taken over; None where
    they are not known. Requests of one run are not independent, so it is the least it may be."""

    value: float
    error: float | None = None


class Statistic(Record, frozen=True, kw_only=True):
    """Mean and percentiles of one latency, seconds; None where the source has none.

    `of`: whether the values are requests, single gaps between chunks, or gaps that each stand at
    their request's mean. Percentiles of different kinds are different things.
    """

    mean: Estimate | None = None
    p50: Estimate | None = None
    p90: Estimate | None = None
    p99: Estimate | None = None
    of: Literal["requests", "gaps", "mean gaps"] = "requests"


class Rates(Record, frozen=True, kw_only=True):
    """Requests and tokens per second of the whole cluster; None where the source has none."""

    requests: float | None = None
    input: float | None = None
    output: float | None = None


class Measurement(Record, frozen=True, kw_only=True):
    """A result under our names.

    `source`: which tool wrote it, in words. `steady`: rates of the steady window
    (`metrics.steady_window`), `whole`: of the whole run. `concurrency` or `rate`: the load that was
    asked for. `isl`, `osl`: mean tokens, with their coefficients of variation (0 where the source
    tells none). `success`: finished / sent. `run`: every request, where
    the source has them with their arrivals.
    """

    name: str
    source: str
    origin: Literal["simulated", "measured"]
    requests: int | None = None
    success: float | None = None
    concurrency: int | None = None
    rate: float | None = None
    isl: float | None = None
    osl: float | None = None
    isl_cv: float = 0.0
    osl_cv: float = 0.0
    gpus: int | None = None
    ttft: Statistic = Statistic()
    tpot: Statistic = Statistic()
    itl: Statistic = Statistic()
    e2el: Statistic = Statistic()
    steady: Rates | None = None
    whole: Rates | None = None
    hit_share: float | None = None
    run: Run | None = None
    notes: tuple[str, ...] = ()


def of_run(run: Run, *, name: str, source: str, gpus: int | None = None) -> Measurement:
    """The measurement of a Run; `gpus` where they are known."""
    done = metrics.finished(run)
    if not done.any():
        raise PlanError(name, "holds no finished request", "there is nothing to compare")
    steady, whole = metrics.throughput(run), metrics.whole_throughput(run)
    seconds = metrics.whole_seconds(run)
    window = metrics.steady_window(run)
    ends = run.requests.end_s[done]
    ended = np.count_nonzero((ends > window.start) & (ends <= window.end))
    queried = int(run.instances.queried_tokens.sum())
    return Measurement(
        name=name,
        source=source,
        origin=run.origin,
        requests=len(run.requests),
        success=metrics.success(run),
        isl=float(run.requests.isl[done].mean()),
        osl=float(run.requests.osl[done].mean()),
        isl_cv=variation(run.requests.isl[done]),
        osl_cv=variation(run.requests.osl[done]),
        gpus=gpus,
        ttft=spread(metrics.ttft(run)),
        tpot=spread(metrics.tpot(run)),
        itl=_gaps(metrics.itl(run)),
        e2el=spread(metrics.e2el(run)),
        steady=Rates(
            requests=float(ended) / window.length if window.length > 0 else None,
            input=steady.input,
            output=steady.output,
        ),
        whole=Rates(
            requests=float(done.sum()) / seconds if seconds > 0 else None,
            input=whole.input,
            output=whole.output,
        ),
        hit_share=float(run.instances.hit_tokens.sum()) / queried if queried else None,
        run=run,
        notes=run.notes,
    )


def spread(values: Floats) -> Statistic:
    """Mean and percentiles of the values that are not NaN, with their standard errors."""
    known = np.sort(values[~np.isnan(values)])
    if not len(known):
        return Statistic()
    mean = float(known.mean())
    error = float(known.std() / np.sqrt(len(known))) / mean if mean > 0 else None
    return Statistic(
        mean=Estimate(value=mean, error=error),
        p50=_percentile(known, 50),
        p90=_percentile(known, 90),
        p99=_percentile(known, 99),
    )


def error_of_mean(mean: float | None, spread: float | None, count: float | None) -> float | None:
    """Standard error of a mean relative to it, from the standard deviation `spread` of `count`
    values; None where one of them is not told."""
    return spread / mean / count**0.5 if mean and spread is not None and count else None


def variation(tokens: NDArray[np.integer]) -> float:
    """Standard deviation over mean of token counts; 0 of none."""
    mean = float(tokens.mean()) if len(tokens) else 0.0
    return float(tokens.std()) / mean if mean > 0 else 0.0


def measured_run(
    name: str,
    *,
    arrive_s: Floats,
    first_token_s: Floats,
    end_s: Floats,
    isl: Ints,
    osl: Ints,
    outcome: Ints | None = None,
    gpus: int = 1,
    notes: tuple[str, ...] = (),
) -> Run:
    """A Run of what a client saw. The moments inside the engine are NaN, but prefill is taken to
    end with the first token, which it does at the latest; there are no instances."""
    order = np.argsort(arrive_s, kind="stable")
    begin = float(arrive_s[order[0]]) if len(order) else 0.0
    absent = np.full(len(order), np.nan)
    none = np.zeros(len(order), np.int32)
    first = first_token_s[order] - begin
    ended = np.full(len(order), DONE, np.int32) if outcome is None else outcome[order]
    last = end_s[order] - begin
    return Run(
        name=name,
        origin="measured",
        roles=(),
        gpus=gpus,
        duration_s=float(last[~np.isnan(last)].max(initial=0.0)),
        requests=Requests(
            isl=isl[order].astype(np.int32),
            osl=osl[order].astype(np.int32),
            session=np.arange(len(order), dtype=np.int32),
            turn=none,
            arrive_s=arrive_s[order] - begin,
            prefill_start_s=absent,
            prefill_end_s=first,
            transfer_start_s=absent,
            transfer_end_s=absent,
            first_token_s=first,
            end_s=last,
            hit_tokens=none,
            host_hit_tokens=none,
            preemptions=none,
            prefill_instance=none,
            decode_instance=none,
            outcome=ended.astype(np.int32),
        ),
        instances=no_rows(Instances),
        series=no_rows(Series),
        notes=notes,
    )


def outcome_number(word: str) -> int:
    """The number of an outcome in a Run."""
    return OUTCOMES.index(word)


def _percentile(ordered: Floats, percent: float) -> Estimate:
    """The percentile, and half the distance between the order statistics one standard error of
    its rank to either side (binomial, free of any distribution)."""
    value = float(np.percentile(ordered, percent))
    share, count = percent / 100, len(ordered)
    reach = float(np.sqrt(count * share * (1 - share)))
    low, high = (
        np.interp(share * (count - 1) + way * reach, np.arange(count), ordered) for way in (-1, 1)
    )
    return Estimate(value=value, error=float(high - low) / 2 / value if value > 0 else None)


def _gaps(gaps: metrics.Gaps) -> Statistic:
    """Mean and percentiles over gaps that stand at their request's mean."""
    if not len(gaps.seconds) or not gaps.counts.sum():
        return Statistic(of="mean gaps")
    by_request = spread(gaps.seconds)

    def at(percent: float, like: Estimate | None) -> Estimate:
        value = metrics.gap_percentile(gaps, percent)
        return Estimate(value=value, error=None if like is None else like.error)

    mean = float(np.average(gaps.seconds, weights=gaps.counts))
    return Statistic(
        mean=Estimate(value=mean, error=by_request.mean.error if by_request.mean else None),
        p50=at(50, by_request.p50),
        p90=at(90, by_request.p90),
        p99=at(99, by_request.p99),
        of="mean gaps",
    )
