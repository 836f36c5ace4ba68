"""GuideLLM: `benchmarks.json`, one benchmark for each load of a sweep.

Its "inter-token latency" is the mean gap of a request, each counted once for every gap: our ITL as
a Run has it (src/guidellm/benchmark/schemas/generative/metrics.py of 0.4 and later, 2026), and
TPOT too where all outputs are equally long. Its "time per output token" counts the first token and
is no TPOT, so it is not read. Latencies of requests are in seconds, the others in milliseconds.
"Incomplete" requests are those that the end of the benchmark cut off, not failures.
"""

import numpy as np
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.live.imports.foreign import Fields
from splitpoint.measurement import (
    Estimate,
    Measurement,
    Rates,
    Statistic,
    error_of_mean,
    measured_run,
    of_run,
    outcome_number,
)
from splitpoint.run import Run

SOURCE = "GuideLLM"
MS = 1e-3
OUTCOMES = {"successful": "done", "errored": "unfinished"}


def measurements(fields: Fields, name: str) -> tuple[Measurement, ...]:
    """The measurement of each benchmark of a report."""
    found = fields.rows("benchmarks")
    if not found:
        raise PlanError(fields.place("benchmarks"), "is empty")
    return tuple(_measurement(one, f"{name} #{i}") for i, one in enumerate(found, start=1))


def _measurement(fields: Fields, name: str) -> Measurement:
    metrics = fields.inner("metrics")
    totals = metrics.inner("request_totals")
    done = totals.count("successful")
    if not done:
        raise PlanError(totals.place("successful"), "is 0", "a run in which requests finished")
    lost = totals.count("errored") if "errored" in totals else 0
    cut = totals.count("incomplete") if "incomplete" in totals else 0
    notes = (f"{cut:,} requests that the benchmark's end cut off are left out",) if cut else ()
    itl = replace(_statistic(metrics, "inter_token_latency_ms", MS), of="mean gaps")
    streams, rate = _load(fields)
    summary = Measurement(
        name=name,
        source=SOURCE,
        origin="measured",
        requests=done + lost,
        success=done / (done + lost),
        concurrency=streams,
        rate=rate,
        isl=_mean(metrics, "prompt_token_count"),
        osl=_mean(metrics, "output_token_count"),
        isl_cv=_variation(metrics, "prompt_token_count"),
        osl_cv=_variation(metrics, "output_token_count"),
        ttft=_statistic(metrics, "time_to_first_token_ms", MS),
        itl=itl,
        e2el=_statistic(metrics, "request_latency", 1.0),
        whole=Rates(
            requests=_mean(metrics, "requests_per_second"),
            input=_mean(metrics, "prompt_tokens_per_second"),
            output=_mean(metrics, "output_tokens_per_second"),
        ),
        notes=notes,
    )
    run = _run(fields, name, done)
    if run is None:
        return summary
    whole = of_run(run, name=name, source=f"{SOURCE}, every request")
    return replace(whole, concurrency=streams, rate=rate, whole=summary.whole, notes=notes)


def _run(fields: Fields, name: str, done: int) -> Run | None:
    """Every request, unless the report holds only a sample of them or none."""
    if not fields.is_object("requests"):
        return None
    groups = fields.inner("requests")
    rows: list[tuple[float, float, float, int, int, int]] = []
    for group, outcome in OUTCOMES.items():
        for one in groups.rows(group) if group in groups else []:
            start = _moment(one, "request_start_time", "start_time")
            if start is None:
                continue
            if outcome != "done":
                rows.append((start, np.nan, np.nan, 0, 0, outcome_number(outcome)))
                continue
            first = start + one.number("time_to_first_token_ms") * MS
            end = _moment(one, "request_end_time", "end_time") or first
            isl, osl = one.count("prompt_tokens"), one.count("output_tokens")
            rows.append((start, first, max(end, first), isl, osl, outcome_number("done")))
    if sum(row[-1] == outcome_number("done") for row in rows) != done:
        return None
    start_s, first_s, end_s, inputs, outputs, ended = (np.array(c) for c in zip(*rows, strict=True))
    return measured_run(
        name,
        arrive_s=start_s,
        first_token_s=first_s,
        end_s=end_s,
        isl=inputs,
        osl=outputs,
        outcome=ended,
    )


def _moment(fields: Fields, *names: str) -> float | None:
    return next((fields.number(name) for name in names if name in fields), None)


def _load(fields: Fields) -> tuple[int | None, float | None]:
    """The streams or the rate of a benchmark's strategy, wherever its version keeps it."""
    for path in (("config", "strategy"), ("args", "strategy"), ("scheduler", "strategy")):
        found = fields
        for name in path:
            if not found.is_object(name):
                break
            found = found.inner(name)
        else:
            alone = 1.0 if found.text("type_") == "synchronous" else None
            streams = alone or found.optional("streams") or found.optional("max_concurrency")
            rate = found.optional("rate") if "rate" in found else None
            return (int(streams) if streams and not rate else None), rate
    return None, None


def _statistic(metrics: Fields, metric: str, unit: float) -> Statistic:
    """The distribution of a metric over successful requests."""
    if not metrics.is_object(metric) or not metrics.inner(metric).is_object("successful"):
        return Statistic()
    found = metrics.inner(metric).inner("successful")
    at = found.inner("percentiles") if found.is_object("percentiles") else found
    count, mean = found.optional("count"), found.optional("mean")
    spread = found.optional("std_dev")
    error = error_of_mean(mean, spread, count)

    def value(fields: Fields, *names: str) -> Estimate | None:
        number = next((fields.number(name) for name in names if name in fields), None)
        return None if number is None else Estimate(value=number * unit)

    return Statistic(
        mean=None if mean is None else Estimate(value=mean * unit, error=error),
        p50=value(at, "p50") or value(found, "median"),
        p90=value(at, "p90"),
        p99=value(at, "p99"),
    )


def _variation(metrics: Fields, metric: str) -> float:
    if not metrics.is_object(metric) or not metrics.inner(metric).is_object("successful"):
        return 0.0
    found = metrics.inner(metric).inner("successful")
    mean = found.optional("mean")
    return (found.optional("std_dev") or 0.0) / mean if mean else 0.0


def _mean(metrics: Fields, metric: str) -> float | None:
    found = _statistic(metrics, metric, 1.0).mean
    return None if found is None else found.value
