"""What is asked of the cluster: lengths, arrivals, and the service level to hold."""

from typing import Literal

from splitpoint.inputs.checks import Problem, each, positive, within
from splitpoint.inputs.engine import MAX_TOKENS
from splitpoint.record import Record

Preset = Literal["agentic-coding", "chat", "long-context"]

# Assumed bounds: what the simulator's columns and a sweep can carry.
MAX_REQUESTS = 10**7
MAX_THINK_S = 1e6
MAX_RATE = 1e6
MIN_RATE = 1e-6
MAX_SWEEP = 64


class Lengths(Record, frozen=True, kw_only=True):
    """A distribution of token counts: `mean` with coefficient of variation `cv` (lognormal; 0 is
    a constant), cut to [`low`, `high`]."""

    mean: float
    cv: float = 0.0
    low: int = 1
    high: int | None = None

    def problems(self) -> list[Problem]:
        """Faults of the distribution."""
        faults = [
            *within("mean", self.mean, 1, MAX_TOKENS),
            *within("cv", self.cv, 0, 10),
            *within("low", self.low, 1, MAX_TOKENS),
            *within("high", self.high, 1, MAX_TOKENS),
        ]
        if not faults and not self.low <= self.mean <= (self.high or MAX_TOKENS):
            faults.append(Problem("mean", f"{self.mean} is not between low and high"))
        return faults


class Workload(Record, frozen=True, kw_only=True):
    """The `[workload]` table: one of `trace`, `preset`, or `isl` with `osl`.

    Arrivals: `rate` (requests per second, Poisson, `burstiness` the gamma shape as in
    `vllm bench serve`), or `concurrency` (closed loop), each a value or a list to sweep; a trace
    without either keeps its own timestamps. `scale` multiplies a trace's rate. `closed_loop`:
    later turns of a session wait for the one before plus think time, of which no more than
    `think_cap_s` is replayed.
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
    think_cap_s: float | None = None
    seed: int = 0

    def problems(self) -> list[Problem]:
        """Faults of the values, and of what is given together."""
        faults = [*self._source_problems(), *self._arrival_problems()]
        for name, value in (("isl", self.isl), ("osl", self.osl)):
            if isinstance(value, int):
                faults += within(name, value, 1, MAX_TOKENS)
        faults += within("requests", self.requests, 1, MAX_REQUESTS)
        faults += within("think_cap_s", self.think_cap_s, 0, MAX_THINK_S)
        faults += within("seed", self.seed, 0, 2**63 - 1)
        return faults

    def _source_problems(self) -> list[Problem]:
        lengths = self.isl is not None or self.osl is not None
        given = [self.trace is not None, self.preset is not None, lengths]
        one_of = "one of trace, preset, or isl with osl"
        if not any(given):
            return [Problem("", "says nothing of its requests", f"give {one_of}")]
        if sum(given) > 1:
            return [Problem("", "describes its requests twice", f"keep {one_of}")]
        if lengths and (self.isl is None or self.osl is None):
            missing = "osl" if self.osl is None else "isl"
            return [Problem(missing, "is missing", "isl and osl go together")]
        if self.trace == "":
            return [Problem("trace", "is empty", "the path of a trace file")]
        if self.format is not None and self.trace is None:
            return [Problem("format", "has no trace to describe", "drop it or give trace")]
        return []

    def _arrival_problems(self) -> list[Problem]:
        faults: list[Problem] = []
        for path, value in each("rate", self.rate):
            faults += within(path, value, MIN_RATE, MAX_RATE)
        for path, value in each("concurrency", self.concurrency):
            faults += within(path, value, 1, MAX_REQUESTS)
        for name, values in (("rate", self.rate), ("concurrency", self.concurrency)):
            if isinstance(values, tuple) and not 0 < len(values) <= MAX_SWEEP:
                what = f"has {len(values)} entries"
                faults.append(Problem(name, what, f"from 1 to {MAX_SWEEP}"))
        if self.rate is not None and self.concurrency is not None:
            faults.append(Problem("", "has both rate and concurrency", "keep one of them"))
        own_times = self.rate is None and self.concurrency is None
        if own_times and (self.isl is not None or self.osl is not None):
            hint = "give rate (requests per second) or concurrency"
            faults.append(Problem("", "does not say when requests arrive", hint))
        if self.scale != 1 and not own_times:
            hint = "drop scale, or keep the source's own times"
            faults.append(Problem("scale", "has no effect beside rate or concurrency", hint))
        faults += within("scale", self.scale, MIN_RATE, MAX_RATE)
        faults += within("burstiness", self.burstiness, 1e-3, 1e6)
        return faults


class Slo(Record, frozen=True, kw_only=True):
    """The service level: `percentile` of requests must see TTFT and TPOT within these seconds."""

    ttft_s: float
    tpot_s: float
    percentile: float = 90.0

    def problems(self) -> list[Problem]:
        """Faults of the service level."""
        faults = [*positive("ttft_s", self.ttft_s), *positive("tpot_s", self.tpot_s)]
        if not 0 < self.percentile < 100:
            what = f"{self.percentile} is out of range"
            faults.append(Problem("percentile", what, "between 0 and 100, such as 90"))
        return faults
