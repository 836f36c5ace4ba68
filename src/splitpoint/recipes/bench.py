"""A workload as options of `vllm bench serve`: in the README of a recipe, and to measure it.

Written for vLLM 0.32 (vllm/benchmarks/serve.py, read 2026-11).
"""

from splitpoint.inputs.slo import Slo
from splitpoint.inputs.traces.requests import default_requests
from splitpoint.inputs.workload import Workload


def shape(workload: Workload) -> tuple[str, ...]:
    """Options for requests of one fixed length; none where lengths vary."""
    if not isinstance(workload.isl, int) or not isinstance(workload.osl, int):
        return ()
    return (
        "--dataset-name random",
        f"--random-input-len {workload.isl}",
        f"--random-output-len {workload.osl}",
    )


def loads(workload: Workload) -> tuple[tuple[str, ...], ...]:
    """Options for each load of the workload; none where a trace's own times hold."""
    if workload.concurrency is not None:
        users = workload.concurrency
        return tuple(
            (f"--max-concurrency {c}", f"--num-prompts {_count(workload, None, c)}")
            for c in (users if isinstance(users, tuple) else (users,))
        )
    if workload.rate is not None:
        rates = workload.rate
        return tuple(
            (
                f"--request-rate {r:g}",
                f"--burstiness {workload.burstiness:g}",
                f"--num-prompts {_count(workload, r, None)}",
            )
            for r in (rates if isinstance(rates, tuple) else (rates,))
        )
    return ()


def figures(slo: Slo) -> tuple[str, ...]:
    """Options that ask for the metrics and percentiles that a comparison needs."""
    percentiles = ",".join(f"{p:g}" for p in sorted({50.0, slo.percentile, 99.0}))
    return (
        f"--percentile-metrics ttft,tpot,itl,e2el --metric-percentiles {percentiles}",
        f"--goodput ttft:{slo.ttft_s * 1000:g} tpot:{slo.tpot_s * 1000:g}",
    )


def _count(workload: Workload, rate: float | None, users: int | None) -> int:
    return workload.requests or default_requests(rate, users)
