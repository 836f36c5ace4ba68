"""Step times from measured requests: the StepCurve whose replay gives the times that were seen.

No engine prints its steps; it shows when a request's first and last token came. Which steps lie
between follows from the scheduler, so the curve is fitted through a replay of the same requests:
damped least squares (Levenberg-Marquardt) on the logarithms of TTFT and of the time from first to
last token. With the sequence of steps held, those times are linear in every parameter.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from splitpoint.errors import PlanError
from splitpoint.live.descent import Flags, Floats, descended, huber
from splitpoint.record import Record
from splitpoint.run import DONE, Run
from splitpoint.timing.curve import PICO, StepCurve
from splitpoint.timing.fitted import Range

# Replays the measured requests with these step times, each arriving `delay` seconds later.
Replay = Callable[[StepCurve, float], Run]

# Shares of a typical step.
DIFFERENCES = (0.1, 0.02, 0.005, 0.001)
# Residuals below a thousandth are taken as one: clocks and rounding, not step times.
LEAST_RESIDUAL = 1e-3
# Further searches, each from the best parameters moved by up to this share. More gained little on
# simulated runs of 150 requests (loss -8.1 after 6, -8.2 after 7).
HOPS = 6
HOP = 0.25
# Relative gain of a round under which the search has ended.
ENOUGH = 1e-4


class CurveShape(Record, frozen=True, kw_only=True):
    """What is fitted: decode time linear between `batches` (first 1, last the most sequences),
    time of a step with prefill linear between `tokens` (first 0, last the token budget).

    `least_context`: seconds per token of context that memory cannot beat (KV bytes a token and
    rank / HBM bandwidth); a run whose batch never changes cannot tell it from the decode time.
    `most_delay`: seconds up to which a delay before the scheduler is fitted too. It trades with
    the time of a step with prefill, so leave it at 0 where there is none.
    """

    batches: tuple[int, ...]
    tokens: tuple[int, ...]
    least_context: float = 0.0
    most_delay: float = 0.0


class CurveFit(Record, frozen=True, kw_only=True):
    """A fitted curve, how well it fits, and where it was seen.

    `delay_s`: seconds from a request's arrival until the scheduler sees it, as a front end takes.
    `pace_error`, `ttft_error`: root mean square of the relative residuals of the time from first
    to last token, and the median of the absolute ones of TTFT (queues magnify chance).
    `batch`: sequences that decoded together on one KV pool, `context`: their summed tokens, while
    a fitted request decoded. The curve says nothing outside.
    """

    curve: StepCurve
    delay_s: float
    pace_error: float
    ttft_error: float
    batch: Range
    context: Range
    requests: int


def fitted_curve(
    measured: Run,
    replay: Replay,
    shape: CurveShape,
    rows: Flags | None = None,
    hops: int = HOPS,
    seed: int = 0,
) -> CurveFit:
    """The step times under which `replay` gives the measured times of the requests in `rows`.

    Minimises the Huber loss of log(simulated / measured) over TTFT and last - first token, each
    kind divided by its own spread; every parameter is at least zero. On simulated runs of 150
    requests decode steps come out within 5%, full steps with prefill within 5% (8% of ranks that
    step together), and steps with little prefill only within 30% (tests/live/test_fit.py).
    """
    _check(shape)
    seen = _times(measured)
    usable = measured.requests.outcome == DONE
    usable &= (seen.ttft > 0) & (seen.decode > 0)
    if rows is not None:
        usable &= rows
    problem = _Problem(measured, replay, shape, usable)
    if usable.sum() < len(problem.scale):
        what = f"has {usable.sum()} finished requests of two or more tokens to fit"
        hint = f"{len(problem.scale)} parameters need as many; fewer knots need fewer"
        raise PlanError("measured run", what, hint)
    best = _search(problem, hops, seed)
    run = problem.run(best)
    residual = problem.residual_of(run)
    return CurveFit(
        curve=problem.curve(best),
        delay_s=float(best[-1]),
        pace_error=float(np.sqrt(np.mean(residual.pace**2))),
        ttft_error=float(np.median(np.abs(residual.ttft))),
        batch=_batches(run, usable),
        context=_contexts(run, usable),
        requests=int(usable.sum()),
    )


class _Times(NamedTuple):
    """Seconds to the first token, and from it to the last, of each request."""

    ttft: Floats
    decode: Floats


class _Residual(NamedTuple):
    """Logarithms of simulated over measured time."""

    ttft: Floats
    pace: Floats


class _Problem:
    """The parameters in order: decode at the first batch and its rises, context, pair, mixed at
    no token and its rises, delay. All seconds, all within `floor` and `ceiling`."""

    def __init__(self, measured: Run, replay: Replay, shape: CurveShape, rows: Flags) -> None:
        self.measured = _times(measured)
        self.arrive = measured.requests.arrive_s
        self.replay = replay
        self.shape = shape
        self.rows = rows
        osl, isl = measured.requests.osl[rows], measured.requests.isl[rows]
        pace = float(np.median(self.measured.decode[rows] / (osl - 1))) if rows.any() else 1.0
        length = float(np.mean(isl + osl / 2)) if rows.any() else 1.0
        batch = shape.batches[-1]
        # How much of each parameter makes about one typical decode step.
        token = pace / batch
        rises = token * np.diff(np.array((0, *shape.tokens[1:]), np.float64))
        self.scale = np.concatenate(
            (
                np.full(len(shape.batches), pace),
                (pace / (batch * length), pace / shape.tokens[-1] / length, pace),
                rises,
                (pace,),
            )
        )
        self.floor = np.zeros(len(self.scale))
        self.floor[len(shape.batches)] = shape.least_context
        # A step takes time: the simulator's clock counts picoseconds.
        self.floor[[0, len(shape.batches) + 2]] = PICO
        self.ceiling = np.full(len(self.scale), np.inf)
        self.ceiling[-1] = shape.most_delay

    def start(self) -> Floats:
        """Where the search begins: shares of a typical step, of no consequence to its end."""
        shares = np.full(len(self.scale), 0.5)
        shares[1 : len(self.shape.batches) + 2] = 0.1
        return self.within(shares * self.scale)

    def within(self, values: Floats) -> Floats:
        """The nearest parameters inside their bounds."""
        bounded: Floats = np.clip(values, self.floor, self.ceiling)
        return bounded

    def curve(self, values: Floats) -> StepCurve:
        """The parameters as tables."""
        knots = len(self.shape.batches)
        batches, tokens = np.array(self.shape.batches), np.array(self.shape.tokens)
        n = np.arange(batches[-1] + 1)
        t = np.arange(tokens[-1] + 1)
        decode = np.interp(n, batches, np.cumsum(values[:knots]))
        mixed = np.interp(t, tokens, np.cumsum(values[knots + 2 : -1]))
        return StepCurve(
            decode=_picos(decode),
            decode_context=_picos(np.full(len(n), values[knots])),
            mixed=_picos(mixed),
            prefill_pair=int(_picos(values[knots + 1 : knots + 2])[0]),
            origin="fitted to measured requests",
        )

    def run(self, values: Floats) -> Run:
        """The replay under these parameters."""
        return self.replay(self.curve(values), float(values[-1]))

    def residual_of(self, run: Run) -> _Residual:
        """How far a replay is from what was measured."""
        rows = self.rows
        requests = run.requests
        if (requests.outcome[rows] != DONE).any():
            raise PlanError("replay", "leaves requests of the measured run unfinished")
        # A replay shifts arrivals by the delay; TTFT counts from the measured arrival.
        ttft = (requests.first_token_s - self.arrive)[rows]
        decode = (requests.end_s - requests.first_token_s)[rows]
        if (ttft <= 0).any() or (decode <= 0).any():
            raise PlanError("replay", "gives a token in no time, or before its request")
        return _Residual(
            np.log(ttft / self.measured.ttft[rows]), np.log(decode / self.measured.decode[rows])
        )

    def residual(self, values: Floats) -> Floats:
        """Both kinds behind one another."""
        return np.concatenate(self.residual_of(self.run(values)))


def _search(problem: _Problem, hops: int, seed: int) -> Floats:
    """Levenberg-Marquardt, once for each size of the differences, and again from places near the
    best one found (basin hopping).

    Requests jump by whole steps as parameters move: wide differences look over the jumps while
    the sequence of steps is still wrong, narrow ones end the search once it is right.
    """
    random = np.random.default_rng(seed)
    best = problem.start()
    least = np.inf
    for hop in range(hops + 1):
        values = best
        if hop:
            values = problem.within(best * random.uniform(1 - HOP, 1 + HOP, len(best)))
        for share in DIFFERENCES:
            values = descended(problem, values, share, enough=ENOUGH, weights=_weights)
        loss = _loss(problem.residual(values))
        if loss < least:
            best, least = values, loss
    return best


def _loss(residual: Floats) -> float:
    """What hops are compared by: the summed logarithms of both kinds' mean absolute residual."""
    means = [max(float(np.mean(np.abs(kind))), LEAST_RESIDUAL) for kind in np.split(residual, 2)]
    return float(np.log(means).sum())


def _weights(residual: Floats) -> Floats:
    """Huber weights, each kind of residual measured by its own spread."""
    return np.concatenate([huber(kind, LEAST_RESIDUAL) for kind in np.split(residual, 2)])


def _times(run: Run) -> _Times:
    requests = run.requests
    return _Times(
        requests.first_token_s - requests.arrive_s, requests.end_s - requests.first_token_s
    )


def _picos(seconds: Floats) -> NDArray[np.int64]:
    return np.rint(seconds / PICO).astype(np.int64)


def _batches(run: Run, rows: Flags) -> Range:
    """Sequences decoding on the KV pool of a fitted request when it begins or ends to decode."""
    counts = [np.count_nonzero(here) for here in _together(run, rows)]
    return Range(low=float(min(counts)), high=float(max(counts)))


def _contexts(run: Run, rows: Flags) -> Range:
    """Tokens in cache of the sequences decoding then, generated ones by their share of time."""
    requests = run.requests
    moments = _moments(run, rows)
    pace = (requests.osl - 1) / np.maximum(requests.end_s - requests.first_token_s, PICO)
    sums = []
    for moment, here in zip(moments, _together(run, rows), strict=True):
        grown = (moment - requests.first_token_s[here]) * pace[here]
        sums.append(float((requests.isl[here] + grown).sum()))
    return Range(low=min(sums), high=max(sums))


def _moments(run: Run, rows: Flags) -> Floats:
    return np.concatenate((run.requests.first_token_s[rows], run.requests.end_s[rows]))


def _together(run: Run, rows: Flags) -> list[Flags]:
    """Which requests decode on the same pool at each of `_moments`, the moment's own included."""
    requests = run.requests
    places = np.tile(requests.decode_instance[rows], 2)
    return [
        (requests.decode_instance == place)
        & (requests.first_token_s <= moment)
        & (requests.end_s >= moment)
        for moment, place in zip(_moments(run, rows), places, strict=True)
    ]


def _check(shape: CurveShape) -> None:
    """Knots must rise, from 1 and from 0."""
    for name, knots, first in (("batches", shape.batches, 1), ("tokens", shape.tokens, 0)):
        if len(knots) < 2 or knots[0] != first or (np.diff(knots) <= 0).any():
            raise PlanError(f"shape.{name}", f"is {knots}", f"rising numbers from {first}")
    if not shape.least_context >= 0:
        raise PlanError("shape.least_context", f"is {shape.least_context}", "0 or more")
