"""Vidur traces: CSV of arrived_at (seconds), num_prefill_tokens, num_decode_tokens.

Open-loop arrivals, no sessions and no identities: nothing is reused.
"""

from collections.abc import Iterator

from splitpoint.inputs.trace import Trace
from splitpoint.inputs.traces.columns import Line, assembled, joined
from splitpoint.inputs.traces.table import batches, seconds, token_counts

SOURCE = "Vidur trace format (microsoft/vidur)"
COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")


def read(lines: Iterator[Line], path: str) -> Trace:
    """The trace of a Vidur CSV file."""
    arrive, isl, osl = [], [], []
    for batch in batches(lines, COLUMNS):
        arrive.append(seconds(batch, 0, COLUMNS[0]))
        isl.append(token_counts(batch, 1, COLUMNS[1]))
        osl.append(token_counts(batch, 2, COLUMNS[2]))
    return assembled(
        path,
        arrive_s=joined(arrive),
        isl=joined(isl),
        osl=joined(osl),
        source=SOURCE,
        notes=("no sessions and no prefix identities in the source",),
    )
