"""Where a prediction leaves what its curve file was measured on: other instances, batches, lengths.

Factors on step times hold where they were seen. Beyond, the prediction may still be the best there
is, but it is no longer a measured one, and says so.
"""

from collections.abc import Iterator

from splitpoint import metrics
from splitpoint.run import Run
from splitpoint.search.instance import Instance
from splitpoint.search.world import Candidate
from splitpoint.timing.fitted import Range, instance_name

# So far beyond the measured range a value still counts as seen (assumed): loads are tried in steps.
MARGIN = 1.25


def outside(candidate: Candidate, run: Run) -> tuple[str, ...]:
    """Every way in which a run leaves the conditions of its instances' curve files."""
    found = [
        line
        for pool, ready in enumerate(candidate.instances)
        for line in _outside(ready, run, pool)
    ]
    return tuple(dict.fromkeys(found))


def _outside(ready: Instance, run: Run, pool: int) -> Iterator[str]:
    fitted = ready.fitted
    if fitted is None:
        return
    was, where = fitted.conditions, f"curve {fitted.name}"
    name = instance_name(ready.topology, ready.engine)
    if name not in was.instances:
        yield f"{where} was measured on {', '.join(was.instances)}, and is taken for {name} too"
    if ready.engine.version != was.engine_version:
        yield (
            f"{where} was measured on {was.engine} {was.engine_version}, and is taken for "
            f"{ready.engine.version}"
        )
    seen = [
        ("input tokens of a request", fitted.isl, float(run.requests.isl.mean())),
        (
            "tokens of a request",
            fitted.tokens,
            float((run.requests.isl + run.requests.osl).mean()),
        ),
    ]
    if run.roles[pool] != "prefill":
        ranks = max(int((run.instances.pool == pool).sum()), 1)
        batch = metrics.mean_decoding(run) / ranks
        seen.append(("sequences decoding together on a rank", fitted.batch, batch))
    for what, span, value in seen:
        if span is not None and _beyond(span, value):
            yield f"{where} was measured at {_told(span)} {what}, here {value:,.0f} on average"


def _told(span: Range) -> str:
    low, high = f"{span.low:,.0f}", f"{span.high:,.0f}"
    return low if low == high else f"{low} to {high}"


def _beyond(span: Range, value: float) -> bool:
    return not span.low / MARGIN <= value <= span.high * MARGIN
