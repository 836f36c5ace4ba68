"""What is asked of the cluster: lengths, arrivals, and the service level to hold."""

from typing import Literal

from splitpoint.record import Record

Preset = Literal["agentic-coding", "chat", "long-context"]


class Lengths(Record, frozen=True, kw_only=True):
    """A distribution of token counts: `mean` with coefficient of variation `cv` (lognormal; 0 is
    a constant), cut to [`low`, `high`]."""

    mean: float
    cv: float = 0.0
    low: int = 1
    high: int | None = None


class Workload(Record, frozen=True, kw_only=True):
    """The `[workload]` table: one of `trace`, `preset`, or `isl` with `osl`.

    Arrivals: `rate` (requests per second, Poisson, `burstiness` the gamma shape as in
    `vllm bench serve`), or `concurrency` (closed loop), each a value or a list to sweep; a trace
    without either keeps its own timestamps. `scale` multiplies a trace's rate. `closed_loop`:
    later turns of a session wait for the one before plus think time.
    """

    trace: str | None = None
    format: str | None = None
    preset: Preset | None = None
    isl: int | Lengths | None = None
    osl: int | Lengths | None = None
    rate: float | tuple[float, ...] | None = None
    concurrency: int | tuple[int, ...] | None = None
    burstiness: float = 1.0
    requests: int | None = None
    scale: float = 1.0
    closed_loop: bool = True
    seed: int = 0


class Slo(Record, frozen=True, kw_only=True):
    """The service level: `percentile` of requests must see TTFT and TPOT within these seconds."""

    ttft_s: float
    tpot_s: float
    percentile: float = 90.0
