"""One Run as each tool would have written it, from the tools' own descriptions of their files."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from splitpoint import metrics
from splitpoint.live.imports.inferencex import MEAN_SHARE
from splitpoint.run import DONE, Ints, Run

START = 1_759_813_207.5


def summary(values: metrics.Floats, name: str) -> dict[str, float]:
    """Mean, median, deviation and percentiles in milliseconds, named as vllm bench serve does."""
    known = values[~np.isnan(values)] * 1e3
    return {
        f"mean_{name}_ms": float(known.mean()),
        f"median_{name}_ms": float(np.median(known)),
        f"std_{name}_ms": float(known.std()),
        f"p90_{name}_ms": float(np.percentile(known, 90)),
        f"p99_{name}_ms": float(np.percentile(known, 99)),
    }


def vllm_bench(run: Run, *, detailed: bool = False, users: int = 4) -> dict[str, Any]:
    """The JSON of `vllm bench serve`, with --save-detailed if asked."""
    done = metrics.finished(run)
    rows = run.requests
    seconds = metrics.whole_seconds(run)
    tokens_in, tokens_out = int(rows.isl[done].sum()), int(rows.osl[done].sum())
    made: dict[str, Any] = {
        "date": "20261130-021223",
        "endpoint_type": "openai",
        "label": None,
        "model_id": "tiny",
        "num_prompts": len(rows),
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": users,
        "duration": seconds,
        "completed": int(done.sum()),
        "failed": int((~done).sum()),
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": float(done.sum()) / seconds,
        "output_throughput": tokens_out / seconds,
        "total_token_throughput": (tokens_in + tokens_out) / seconds,
    }
    for name, values in (
        ("ttft", metrics.ttft(run)),
        ("tpot", metrics.tpot(run)),
        ("itl", metrics.tpot(run)),
        ("e2el", metrics.e2el(run)),
    ):
        made |= summary(values, name)
    if detailed:
        wait = np.where(done, metrics.ttft(run), 0.0)
        pace = np.nan_to_num(metrics.tpot(run))
        made |= {
            "input_lens": rows.isl.tolist(),
            "output_lens": np.where(done, rows.osl, 0).tolist(),
            "ttfts": wait.tolist(),
            "itls": [
                [float(p)] * (int(n) - 1) if ok else []
                for p, n, ok in zip(pace, rows.osl, done, strict=True)
            ],
            "start_times": (1000 + rows.arrive_s).tolist(),
            "generated_texts": ["some, text [with] {brackets}"] * len(rows),
            "errors": ["" if ok else "Traceback: refused" for ok in done],
        }
    return made


def aiperf_lines(run: Run) -> str:
    """AIPerf's profile_export.jsonl, with one warm-up request before it."""
    rows = run.requests
    lines = [
        {
            "metadata": {
                "request_start_ns": int((START - 5) * 1e9),
                "benchmark_phase": "warmup",
                "was_cancelled": False,
            },
            "metrics": {},
            "error": None,
        }
    ]
    wait, latency, pace = metrics.ttft(run), metrics.e2el(run), metrics.tpot(run)
    for i in range(len(rows)):
        about = {
            "session_num": i,
            "x_request_id": f"r{i}",
            "request_start_ns": round((START + float(rows.arrive_s[i])) * 1e9),
            "benchmark_phase": "profiling",
            "was_cancelled": False,
            "cancellation_time_ns": None,
        }
        if rows.outcome[i] != DONE:
            error = {"code": 504, "type": "TimeoutError", "message": "took too long"}
            lines.append({"metadata": about, "metrics": {}, "error": error})
            continue
        lines.append(
            {
                "metadata": about,
                "metrics": {
                    "input_sequence_length": {"value": int(rows.isl[i]), "unit": "tokens"},
                    "output_sequence_length": {"value": int(rows.osl[i]), "unit": "tokens"},
                    "time_to_first_token": {"value": float(wait[i]) * 1e3, "unit": "ms"},
                    "request_latency": {"value": float(latency[i]) * 1e3, "unit": "ms"},
                    "inter_token_latency": {"value": float(pace[i]) * 1e3, "unit": "ms"},
                    "inter_chunk_latency": {"value": [1.0, 2.0], "unit": "ms"},
                },
                "error": None,
            }
        )
    return "".join(json.dumps(line) + "\n" for line in lines)


def aiperf_summary(run: Run, *, users: int = 4) -> dict[str, Any]:
    """AIPerf's profile_export_aiperf.json."""
    done = metrics.finished(run)
    seconds = metrics.whole_seconds(run)

    def block(values: metrics.Floats) -> dict[str, Any]:
        known = values[~np.isnan(values)] * 1e3
        percents = {f"p{p}": float(np.percentile(known, p)) for p in (1, 50, 90, 99)}
        return {"unit": "ms", "avg": float(known.mean()), "std": float(known.std()), **percents}

    def scalar(value: float, unit: str) -> dict[str, Any]:
        return {"unit": unit, "avg": value}

    def tokens(values: Ints) -> dict[str, Any]:
        return scalar(float(values.mean()), "tokens") | {"std": float(values.std())}

    return {
        "schema_version": "1.4",
        "aiperf_version": "0.14.0",
        "input_config": {
            "phases": [
                {"name": "warmup", "type": "concurrency", "concurrency": 1},
                {"name": "profiling", "type": "concurrency", "concurrency": users},
            ]
        },
        "time_to_first_token": block(metrics.ttft(run)),
        "inter_token_latency": block(metrics.tpot(run)),
        "inter_chunk_latency": block(metrics.tpot(run)),
        "request_latency": block(metrics.e2el(run)),
        "input_sequence_length": tokens(run.requests.isl[done]),
        "output_sequence_length": tokens(run.requests.osl[done]),
        "output_token_throughput": scalar(
            float(run.requests.osl[done].sum()) / seconds, "tokens/sec"
        ),
        "request_throughput": scalar(float(done.sum()) / seconds, "requests/sec"),
        "request_count": scalar(float(done.sum()), "requests"),
        "error_request_count": scalar(float((~done).sum()), "requests"),
    }


def guidellm(run: Run, *, users: int = 4, detailed: bool = True) -> dict[str, Any]:
    """A GuideLLM report of one benchmark, with every request or none of them."""
    done = metrics.finished(run)
    rows = run.requests
    seconds = metrics.whole_seconds(run)
    wait, latency, pace = metrics.ttft(run), metrics.e2el(run), metrics.tpot(run)

    def shape(values: metrics.Floats, weights: metrics.Floats | None = None) -> dict[str, Any]:
        known = ~np.isnan(values)
        mean = float(np.average(values[known], weights=None if weights is None else weights[known]))
        kept = values[known]
        percents = {f"p{p}": float(np.percentile(kept, p)) for p in (50, 90, 99)}
        return {
            "successful": {
                "mean": mean,
                "median": percents["p50"],
                "std_dev": float(kept.std()),
                "count": len(kept),
                "percentiles": percents,
            }
        }

    def scalar(value: float) -> dict[str, Any]:
        return {"successful": {"mean": value}}

    totals = {"successful": int(done.sum()), "incomplete": 2, "errored": int((~done).sum())}
    requests = [
        {
            "request_id": f"r{i}",
            "output": "text",
            "request_start_time": START + float(rows.arrive_s[i]),
            "request_end_time": START + float(rows.arrive_s[i] + latency[i]) if done[i] else None,
            "time_to_first_token_ms": float(wait[i]) * 1e3 if done[i] else None,
            "prompt_tokens": int(rows.isl[i]),
            "output_tokens": int(rows.osl[i]),
        }
        for i in range(len(rows))
    ]
    return {
        "metadata": {"version": 1},
        "benchmarks": [
            {
                "type_": "generative_benchmark",
                "config": {"strategy": {"type_": "concurrent", "streams": users}},
                "metrics": {
                    "request_totals": totals | {"total": len(rows)},
                    "requests_per_second": scalar(float(done.sum()) / seconds),
                    "prompt_tokens_per_second": scalar(float(rows.isl[done].sum()) / seconds),
                    "output_tokens_per_second": scalar(float(rows.osl[done].sum()) / seconds),
                    "prompt_token_count": shape(rows.isl[done].astype(np.float64)),
                    "output_token_count": shape(rows.osl[done].astype(np.float64)),
                    "request_latency": shape(latency),
                    "time_to_first_token_ms": shape(wait * 1e3),
                    "time_per_output_token_ms": shape(latency / rows.osl * 1e3),
                    "inter_token_latency_ms": shape(pace * 1e3, (rows.osl - 1).astype(np.float64)),
                },
                "requests": {
                    "successful": [r for r, ok in zip(requests, done, strict=True) if ok],
                    "errored": [r for r, ok in zip(requests, done, strict=True) if not ok],
                    "incomplete": requests[:2],
                }
                if detailed
                else {"successful": [], "errored": [], "incomplete": []},
            }
        ],
    }


def inferencex(run: Run, *, gpus: int, users: int = 4) -> dict[str, Any]:
    """A row of InferenceX's interface for an aggregated deployment."""
    whole = metrics.whole_throughput(run)
    row: dict[str, Any] = {
        "hardware": "b200",
        "framework": "vllm",
        "disagg": False,
        "num_prefill_gpu": gpus,
        "num_decode_gpu": gpus,
        "isl": float(run.requests.isl.mean()) / MEAN_SHARE,
        "osl": float(run.requests.osl.mean()) / MEAN_SHARE,
        "conc": users,
    }
    found: dict[str, float] = {
        "tput_per_gpu": whole.total / gpus,
        "output_tput_per_gpu": whole.output / gpus,
    }
    for name, values in (("ttft", metrics.ttft(run)), ("tpot", metrics.tpot(run))):
        for key, value in summary(values, name).items():
            found[key.removesuffix("_ms")] = value / 1e3
    return row | {"metrics": found}


def written(path: Path, made: object) -> Path:
    """The path, after JSON (or text as it is) was written to it."""
    path.write_text(made if isinstance(made, str) else json.dumps(made))
    return path


def written_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The path, after a CSV of the rows was written to it, a comment above its header."""
    with path.open("w", newline="") as file:
        file.write("# somebody's table\n")
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path
