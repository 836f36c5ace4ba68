"""`vllm bench serve` and `vllm bench sweep`: a JSON result, or a CSV with one in each row.

Times of the summary are milliseconds, of the arrays seconds (vllm/benchmarks/serve.py, 2026-09).
TPOT is ours; ITL is taken per streamed chunk. Rates are over the whole run. The arrays are there
with --save-detailed. SGLang's bench_serving writes nearly the same names.
"""

import numpy as np
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.live.imports.foreign import MOST_COUNT, Fields, Floats
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
from splitpoint.run import DONE, Run

SOURCE = "vllm bench serve"
MS = 1e-3
# Without `start_times` (vLLM before 0.11) arrivals are not known, so requests make no run.
ARRAYS = ("ttfts", "input_lens", "output_lens", "start_times")


def measurement(fields: Fields, name: str) -> Measurement:
    """The result of one run; with every request where they were saved."""
    completed, seconds = fields.count("completed"), fields.number("duration")
    if not completed or not seconds:
        place = "completed" if seconds else "duration"
        raise PlanError(fields.place(place), "is 0", "a run in which requests finished")
    failed = fields.optional("failed") or 0
    asked = max(completed + int(failed), int(fields.optional("num_prompts") or 0))
    tokens_in = fields.number("total_input_tokens")
    tokens_out = fields.number("total_output_tokens")
    users = fields.optional("max_concurrency")
    summary = Measurement(
        name=name,
        source=SOURCE,
        origin="measured",
        requests=asked,
        success=completed / asked,
        concurrency=int(users) if users else None,
        rate=_rate(fields),
        isl=tokens_in / completed,
        osl=tokens_out / completed,
        ttft=_statistic(fields, "ttft", completed),
        tpot=_statistic(fields, "tpot", completed),
        itl=replace(_statistic(fields, "itl", round(tokens_out)), of="gaps"),
        e2el=_statistic(fields, "e2el", completed),
        whole=Rates(
            requests=completed / seconds, input=tokens_in / seconds, output=tokens_out / seconds
        ),
    )
    if not all(array in fields for array in ARRAYS):
        return summary
    # What stands in the summary only is kept: the load, and ITL by chunks, which a Run has not.
    return replace(
        of_run(_run(fields, name), name=name, source=f"{SOURCE}, every request"),
        concurrency=summary.concurrency,
        rate=summary.rate,
        itl=summary.itl,
        whole=summary.whole,
    )


def _run(fields: Fields, name: str) -> Run:
    """Every request of a detailed result; a failed one has no output or says its error."""
    start, ttft = fields.numbers("start_times"), fields.numbers("ttfts")
    isl, osl = (fields.numbers(name, MOST_COUNT) for name in ("input_lens", "output_lens"))
    latency = (
        fields.numbers("latencies") if "latencies" in fields else ttft + _decode(fields, len(ttft))
    )
    columns = {"ttfts": ttft, "input_lens": isl, "output_lens": osl, "latencies": latency}
    for column, values in columns.items():
        if len(values) != len(start):
            what = f"has {len(values)} entries where start_times has {len(start)}"
            raise PlanError(fields.place(column), what)
    failed = osl < 1
    if "errors" in fields:
        errors = fields.words("errors")
        if len(errors) != len(start):
            raise PlanError(fields.place("errors"), f"has {len(errors)} entries")
        failed |= np.array([bool(error) for error in errors], bool)
    return measured_run(
        name,
        arrive_s=start,
        first_token_s=np.where(failed, np.nan, start + ttft),
        end_s=np.where(failed, np.nan, start + np.maximum(latency, ttft)),
        isl=isl.astype(np.int64),
        osl=osl.astype(np.int64),
        outcome=np.where(failed, outcome_number("unfinished"), DONE),
    )


def _decode(fields: Fields, count: int) -> Floats:
    """Seconds from first to last token of each request, by its gaps."""
    gaps = fields.sums("itls")
    if len(gaps) != count:
        raise PlanError(fields.place("itls"), f"has {len(gaps)} entries where ttfts has {count}")
    return gaps


def _statistic(fields: Fields, metric: str, count: int) -> Statistic:
    """Mean and percentiles of a metric; 0 is what is written where nothing was seen."""
    names = (metric, "e2e_latency") if metric == "e2el" else (metric,)
    found = next((name for name in names if f"mean_{name}_ms" in fields), None)
    if found is None or not fields.number(f"mean_{found}_ms"):
        return Statistic()
    mean = fields.number(f"mean_{found}_ms")
    spread = fields.optional(f"std_{found}_ms")
    error = error_of_mean(mean, spread, count)

    def at(*labels: str) -> Estimate | None:
        values = (fields.optional(f"{label}_{found}_ms") for label in labels)
        value = next((v for v in values if v is not None), None)
        return None if value is None else Estimate(value=value * MS)

    return Statistic(
        mean=Estimate(value=mean * MS, error=error),
        p50=at("median", "p50"),
        p90=at("p90"),
        p99=at("p99"),
    )


def _rate(fields: Fields) -> float | None:
    """Requests per second that were asked for; None where all are sent at once ("inf")."""
    if fields.text("request_rate") is not None:
        return None
    return fields.optional("request_rate")
