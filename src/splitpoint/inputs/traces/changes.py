"""What `splitpoint trace` does to a trace before it describes or writes it, in one order.

Cut first (it names seconds of the file), then sample, then the first requests, then the rate.
"""

from splitpoint.errors import PlanError
from splitpoint.inputs.trace import Trace, scale_rate
from splitpoint.inputs.trace import cut as cut_out
from splitpoint.inputs.trace import first as first_of
from splitpoint.inputs.trace import sample as sample_of


def apply(
    trace: Trace,
    *,
    cut: str | None,
    sample: float | None,
    first: int | None,
    scale: float | None,
    seed: int,
) -> Trace:
    """The trace after the changes that are asked for.

    `cut`: "A:B" in seconds; `sample`: a share of the sessions up to 1, else a number of requests.
    """
    if cut is not None:
        trace = cut_out(trace, *_bounds(cut, trace.duration_s))
    if sample is not None:
        if sample > 1 and sample != int(sample):
            raise PlanError(
                "--sample", f"{sample:g} requests", "a share up to 1, or whole requests"
            )
        share, count = (sample, None) if sample <= 1 else (None, int(sample))
        trace = sample_of(trace, share=share, n=count, seed=seed)
    if first is not None:
        trace = first_of(trace, first)
    return trace if scale is None else scale_rate(trace, scale)


def _bounds(text: str, duration: float) -> tuple[float, float]:
    start, colon, end = text.partition(":")
    try:
        # The last arrival itself belongs to an open end.
        bounds = float(start or 0), float(end) if end else duration + 1.0
    except ValueError:
        colon = ""
    if not colon:
        raise PlanError("--cut", f"{text!r} is not A:B", "two times in seconds, as in 600:1200")
    return bounds
