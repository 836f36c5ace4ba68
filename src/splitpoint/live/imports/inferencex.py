"""InferenceX rows (SemiAnalysis): its JSON, from a run or from its interface, or a CSV of them.

Times are seconds. Throughput is per GPU: total over all GPUs, and of split deployments input over
the prefill GPUs and output over the decode GPUs only (utils/process_result.py, 2026). Lengths are
nominal; inputs and outputs are drawn from 0.8 to 1.0 of them, 0.9 on average.
"""

import math

from splitpoint.errors import PlanError
from splitpoint.live.imports.foreign import Fields
from splitpoint.measurement import Estimate, Measurement, Rates, Statistic

SOURCE = "InferenceX"
# Published: --random-range-ratio 0.8 of its benchmark scripts; evenly drawn from 0.8 to 1.
MEAN_SHARE = 0.9
SHARE_CV = 0.2 / math.sqrt(12) / MEAN_SHARE


def measurement(fields: Fields, number: int) -> Measurement:
    """The measurement of a JSON row, flat or with its `metrics` in an object."""
    metrics = fields.inner("metrics") if fields.is_object("metrics") else fields
    split = fields.true("disagg")
    gpus, decode = _gpus(fields, split)
    isl, osl = fields.optional("isl"), fields.optional("osl")
    total = metrics.number("tput_per_gpu") * gpus
    output = metrics.optional("output_tput_per_gpu")
    output = None if output is None else output * (decode if split else gpus)
    users = fields.count("conc")
    return Measurement(
        name=_name(fields, number, users),
        source=SOURCE,
        origin="measured",
        concurrency=users,
        gpus=gpus,
        isl=None if isl is None else isl * MEAN_SHARE,
        osl=None if osl is None else osl * MEAN_SHARE,
        isl_cv=SHARE_CV,
        osl_cv=SHARE_CV,
        ttft=_statistic(metrics, "ttft"),
        tpot=_statistic(metrics, "tpot"),
        itl=Statistic(mean=_estimate(metrics, "mean_itl"), of="gaps"),
        e2el=_statistic(metrics, "e2el"),
        whole=Rates(input=None if output is None else total - output, output=output),
    )


def table_row(fields: Fields, number: int) -> Measurement:
    """The measurement of a CSV row: `tput` in total tokens per second and GPU, `ttft`, `tpot`.

    Whether those are means or medians the table does not say; they are taken as medians. A mean
    TTFT holds the first wave of all users at once: the rows of 1,024 input tokens on H200 show
    0.15 s at 64 users, where the first wave alone prefills for seconds.
    """
    gpus, users = fields.count("gpus"), fields.count("conc")
    isl, osl = fields.number("isl") * MEAN_SHARE, fields.number("osl") * MEAN_SHARE
    if not gpus or not osl:
        raise PlanError(fields.place("gpus" if osl else "osl"), "is 0")
    total = fields.number("tput") * gpus
    output = total * osl / (isl + osl)
    return Measurement(
        name=_name(fields, number, users),
        source=SOURCE,
        origin="measured",
        concurrency=users,
        gpus=gpus,
        isl=isl,
        osl=osl,
        isl_cv=SHARE_CV,
        osl_cv=SHARE_CV,
        ttft=Statistic(p50=_estimate(fields, "ttft")),
        tpot=Statistic(p50=_estimate(fields, "tpot")),
        whole=Rates(requests=output / osl, input=total - output, output=output),
    )


def _gpus(fields: Fields, split: bool) -> tuple[int, int]:
    """GPUs in all, and of the decode side."""
    if "num_decode_gpu" in fields:
        decode = fields.count("num_decode_gpu")
        # An aggregated row names the same GPUs on both sides.
        return (decode + fields.count("num_prefill_gpu") if split else decode), decode
    wide = max(fields.count("tp"), int(fields.optional("ep") or 1))
    return wide, wide


def _name(fields: Fields, number: int, users: int) -> str:
    words = [fields.text(key) for key in ("hw", "hardware", "framework", "precision", "model")]
    kind = "split" if fields.true("disagg") else "aggregated"
    return " ".join([f"#{number}", *(word for word in words if word), kind, f"concurrency {users}"])


def _statistic(metrics: Fields, metric: str) -> Statistic:
    return Statistic(
        mean=_estimate(metrics, f"mean_{metric}"),
        p50=_estimate(metrics, f"median_{metric}"),
        p90=_estimate(metrics, f"p90_{metric}"),
        p99=_estimate(metrics, f"p99_{metric}"),
    )


def _estimate(fields: Fields, name: str) -> Estimate | None:
    value = fields.optional(name)
    return None if value is None else Estimate(value=value)
