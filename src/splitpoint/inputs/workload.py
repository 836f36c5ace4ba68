"""What is asked of the cluster: lengths, arrivals, and the service level to hold."""

from typing import Annotated, Literal

from msgspec import Meta

from splitpoint.inputs.checks import Problem
from splitpoint.inputs.engine import MAX_TOKENS, Tokens
from splitpoint.record import Record

Preset = Literal["agentic-coding", "chat", "long-context"]

# Assumed bounds: what the simulator's columns and a sweep can carry.
MAX_REQUESTS = 10**7
MAX_THINK_S = 1e6
MAX_RATE = 1e6
MIN_RATE = 1e-6
MAX_SWEEP = 64

Rate = Annotated[float, Meta(ge=MIN_RATE, le=MAX_RATE)]
Rates = Annotated[tuple[Rate, ...], Meta(min_length=1, max_length=MAX_SWEEP)]
Patience = Annotated[float, Meta(gt=0, le=MAX_THINK_S)]
RequestCount = Annotated[int, Meta(ge=1, le=MAX_REQUESTS)]
Concurrencies = Annotated[tuple[RequestCount, ...], Meta(min_length=1, max_length=MAX_SWEEP)]


class Lengths(Record, frozen=True, kw_only=True):
    """A distribution of token counts: `mean` with coefficient of variation `cv` (lognormal; 0 is
    a constant), cut to [`low`, `high`]."""

    mean: Annotated[float, Meta(ge=1, le=MAX_TOKENS)]
    cv: Annotated[float, Meta(ge=0, le=10)] = 0.0
    low: Tokens = 1
    high: Tokens | None = None

    def problems(self) -> list[Problem]:
        """Faults of the distribution."""
        if self.low <= self.mean <= (self.high or MAX_TOKENS):
            return []
        return [Problem("mean", f"{self.mean} is not between low and high")]


class Workload(Record, frozen=True, kw_only=True):
    """The `[workload]` table: one of `trace`, `preset`, or `isl` with `osl`.

    Arrivals: `rate` (requests per second, Poisson, `burstiness` the gamma shape as in
    `vllm bench serve`), or `concurrency` (closed loop), each a value or a list to sweep; a trace
    without either keeps its own timestamps. `scale` multiplies a trace's rate. `closed_loop`:
    later turns of a session wait for the one before plus think time, of which no more than
    `think_cap_s` is replayed. `timeout_s`: a request without a first token by then fails;
    `abort_s`: the client of one that has not ended by then goes away. Both count as failures.
    """

    trace: Annotated[str, Meta(min_length=1)] | None = None
    format: str | None = None
    preset: Preset | None = None
    isl: Tokens | Lengths | None = None
    osl: Tokens | Lengths | None = None
    rate: Rate | Rates | None = None
    concurrency: RequestCount | Concurrencies | None = None
    burstiness: Annotated[float, Meta(ge=1e-3, le=1e6)] = 1.0
    requests: RequestCount | None = None
    scale: Rate = 1.0
    closed_loop: bool = True
    think_cap_s: Annotated[float, Meta(ge=0, le=MAX_THINK_S)] | None = None
    timeout_s: Patience | None = None
    abort_s: Patience | None = None
    seed: Annotated[int, Meta(ge=0)] = 0

    def problems(self) -> list[Problem]:
        """Faults of what is given together."""
        return [*self._source_problems(), *self._arrival_problems()]

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
        if self.format is not None and self.trace is None:
            return [Problem("format", "has no trace to describe", "drop it or give trace")]
        return []

    def _arrival_problems(self) -> list[Problem]:
        faults: list[Problem] = []
        if self.rate is not None and self.concurrency is not None:
            faults.append(Problem("", "has both rate and concurrency", "keep one of them"))
        own_times = self.rate is None and self.concurrency is None
        if own_times and (self.isl is not None or self.osl is not None):
            hint = "give rate (requests per second) or concurrency"
            faults.append(Problem("", "does not say when requests arrive", hint))
        if self.scale != 1 and not own_times:
            hint = "drop scale, or keep the source's own times"
            faults.append(Problem("scale", "has no effect beside rate or concurrency", hint))
        return faults
