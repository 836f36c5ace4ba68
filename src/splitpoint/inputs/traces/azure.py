"""Azure LLM inference traces (2023 and 2024): CSV of TIMESTAMP, ContextTokens, GeneratedTokens.

Open-loop arrivals, no sessions and no identities: nothing is reused. Timestamps are read to the
microsecond (the 2023 files print tenths of one).
"""

from array import array
from collections.abc import Iterator
from datetime import UTC, datetime

from splitpoint.errors import PlanError
from splitpoint.inputs.trace import Trace
from splitpoint.inputs.traces.columns import (
    Line,
    assembled,
    floats,
    ints,
    token_count,
)
from splitpoint.inputs.traces.table import rows

SOURCE = "Azure LLM inference trace (Azure/AzurePublicDataset, CC-BY)"
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read(lines: Iterator[Line], path: str) -> Trace:
    """The trace of an Azure CSV file."""
    arrive, isl, osl = array("d"), array("i"), array("i")
    for line, (stamp, context, generated) in rows(lines, COLUMNS):
        arrive.append(unix_seconds(stamp, line))
        isl.append(token_count(context, line, "ContextTokens"))
        osl.append(token_count(generated, line, "GeneratedTokens"))
    return assembled(
        path,
        arrive_s=floats(arrive),
        isl=ints(isl),
        osl=ints(osl),
        source=SOURCE,
        notes=("no sessions and no prefix identities in the source",),
    )


def unix_seconds(stamp: str, line: Line) -> float:
    """Seconds since 1970 of an ISO timestamp; UTC where it names no zone."""
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        hint = "a date and time such as 2023-11-16 18:17:03.9799600"
        raise PlanError(line.where, f"TIMESTAMP: {stamp[:40]!r}", hint) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
