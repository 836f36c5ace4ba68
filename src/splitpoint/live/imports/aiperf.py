"""AIPerf: `profile_export_aiperf.json` (a summary) and `profile_export.jsonl` (every request).

Its "inter-token latency" is TPOT ((latency - TTFT) / (output tokens - 1) of a request), its
"inter-chunk latency" ITL; every metric names its unit. The output sequence length counts reasoning
tokens too (docs/metrics-reference.md and json-export-schema.md of AIPerf 0.14, 2026).
"""

from collections.abc import Iterable

import numpy as np

from splitpoint.errors import PlanError
from splitpoint.live.imports.foreign import MOST_NS, Fields
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

SOURCE = "AIPerf"
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
NANO = 1e-9


def summary(fields: Fields, name: str) -> Measurement:
    """The measurement of a summary export."""
    done = _average(fields, "request_count")
    failed = _average(fields, "error_request_count") or 0.0
    isl = _average(fields, "input_sequence_length")
    requests = _average(fields, "request_throughput")
    users = _load(fields, "concurrency")
    return Measurement(
        name=name,
        source=SOURCE,
        origin="measured",
        requests=None if done is None else round(done + failed),
        success=None if not done else done / (done + failed),
        concurrency=round(users) if users else None,
        rate=None if users else _load(fields, "rate") or _load(fields, "request_rate"),
        isl=isl,
        osl=_average(fields, "output_sequence_length"),
        isl_cv=_variation(fields, "input_sequence_length"),
        osl_cv=_variation(fields, "output_sequence_length"),
        ttft=_statistic(fields, "time_to_first_token", done),
        tpot=_statistic(fields, "inter_token_latency", done),
        itl=_statistic(fields, "inter_chunk_latency", None, gaps=True),
        e2el=_statistic(fields, "request_latency", done),
        whole=Rates(
            requests=requests,
            input=None if isl is None or requests is None else isl * requests,
            output=_average(fields, "output_token_throughput"),
        ),
    )


def requests(lines: Iterable[Fields], name: str) -> Measurement:
    """The measurement of every request's record; those of a warm-up phase are left out."""
    rows: list[tuple[float, float, float, int, int, int]] = []
    warm = 0
    for fields in lines:
        about = fields.inner("metadata")
        if about.text("benchmark_phase") not in (None, "profiling"):
            warm += 1
            continue
        start = about.number("request_start_ns", MOST_NS) * NANO
        if fields.is_object("error") or about.true("was_cancelled"):
            rows.append((start, np.nan, np.nan, 0, 0, _failure(fields, about)))
            continue
        metrics = fields.inner("metrics")
        if "time_to_first_token" not in metrics:
            place = metrics.place("time_to_first_token")
            raise PlanError(place, "is missing", "profile with --streaming")
        first = start + _seconds(metrics.inner("time_to_first_token"), "value")
        end = start + _seconds(metrics.inner("request_latency"), "value")
        isl, osl = (
            metrics.inner(f"{side}_sequence_length").count("value") for side in ("input", "output")
        )
        rows.append((start, first, max(end, first), isl, osl, outcome_number("done")))
    if not rows:
        raise PlanError(name, "holds no request", "expected AIPerf's profile_export.jsonl")
    start_s, first_s, end_s, inputs, outputs, outcome = (
        np.array(c) for c in zip(*rows, strict=True)
    )
    run = measured_run(
        name,
        arrive_s=start_s,
        first_token_s=first_s,
        end_s=end_s,
        isl=inputs,
        osl=outputs,
        outcome=outcome,
        notes=(f"{warm:,} warm-up requests left out",) if warm else (),
    )
    return of_run(run, name=name, source=f"{SOURCE}, every request")


def _failure(fields: Fields, about: Fields) -> int:
    kind = fields.inner("error").text("type") or "" if fields.is_object("error") else ""
    if about.true("was_cancelled") or "cancel" in kind.lower():
        return outcome_number("aborted")
    return outcome_number("timed_out" if "timeout" in kind.lower() else "unfinished")


def _statistic(fields: Fields, metric: str, count: float | None, gaps: bool = False) -> Statistic:
    kind: Statistic = Statistic(of="gaps" if gaps else "requests")
    if not fields.is_object(metric):
        return kind
    found = fields.inner(metric)
    mean = _seconds(found, "avg") if "avg" in found else None
    spread = _seconds(found, "std") if "std" in found else None
    error = error_of_mean(mean, spread, count)

    def at(name: str) -> Estimate | None:
        return Estimate(value=_seconds(found, name)) if name in found else None

    return Statistic(
        mean=None if mean is None else Estimate(value=mean, error=error),
        p50=at("p50"),
        p90=at("p90"),
        p99=at("p99"),
        of=kind.of,
    )


def _seconds(fields: Fields, name: str) -> float:
    unit = fields.text("unit") or "ms"
    if unit not in UNITS:
        raise PlanError(fields.place("unit"), f"is {unit[:20]!r}", "ns, us, ms or s")
    return fields.number(name) * UNITS[unit]


def _average(fields: Fields, metric: str) -> float | None:
    return fields.inner(metric).optional("avg") if fields.is_object(metric) else None


def _variation(fields: Fields, metric: str) -> float:
    if not fields.is_object(metric):
        return 0.0
    found = fields.inner(metric)
    mean = found.optional("avg")
    return (found.optional("std") or 0.0) / mean if mean else 0.0


def _load(fields: Fields, name: str) -> float | None:
    """The concurrency or the request rate of the run's own configuration, where it has one: in its
    profiling phase, or before 0.10 in its load generator."""
    if not fields.is_object("input_config"):
        return None
    config = fields.inner("input_config")
    phases = config.rows("phases") if "phases" in config else []
    places = [phase for phase in phases if phase.text("name") == "profiling"]
    places += [config.inner("loadgen")] if config.is_object("loadgen") else []
    return next((found for place in places if (found := place.optional(name))), None)
