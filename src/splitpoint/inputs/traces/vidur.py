"""Vidur traces: CSV of arrived_at (seconds), num_prefill_tokens, num_decode_tokens.

Open-loop arrivals, no sessions and no identities: nothing is reused.
"""

from array import array
from collections.abc import Iterator

from splitpoint.inputs.trace import Trace
from splitpoint.inputs.traces.columns import (
    Line,
    assembled,
    floats,
    ints,
    seconds,
    token_count,
)
from splitpoint.inputs.traces.table import rows

SOURCE = "Vidur trace format (microsoft/vidur)"
COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")


def read(lines: Iterator[Line], path: str) -> Trace:
    """The trace of a Vidur CSV file."""
    arrive, isl, osl = array("d"), array("i"), array("i")
    for line, (arrived, prefill, decode) in rows(lines, COLUMNS):
        arrive.append(seconds(arrived, line, "arrived_at"))
        isl.append(token_count(prefill, line, "num_prefill_tokens"))
        osl.append(token_count(decode, line, "num_decode_tokens"))
    return assembled(
        path,
        arrive_s=floats(arrive),
        isl=ints(isl),
        osl=ints(osl),
        source=SOURCE,
        notes=("no sessions and no prefix identities in the source",),
    )
