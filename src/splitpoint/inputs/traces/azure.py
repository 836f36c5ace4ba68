"""Azure LLM inference traces (2023 and 2024): CSV of TIMESTAMP, ContextTokens, GeneratedTokens.

Open-loop arrivals, no sessions and no identities: nothing is reused. Timestamps are read to the
microsecond (the 2023 files print tenths of one).
"""

from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np

from splitpoint.errors import PlanError
from splitpoint.inputs.trace import Floats, Trace
from splitpoint.inputs.traces.columns import Line, assembled, joined
from splitpoint.inputs.traces.table import Batch, batches, token_counts

SOURCE = "Azure LLM inference trace (Azure/AzurePublicDataset, CC-BY)"
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read(lines: Iterator[Line], path: str) -> Trace:
    """The trace of an Azure CSV file."""
    arrive, isl, osl = [], [], []
    for batch in batches(lines, COLUMNS):
        arrive.append(unix_seconds(batch, 0))
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


def unix_seconds(batch: Batch, place: int) -> Floats:
    """Seconds since 1970 of a column of ISO timestamps; UTC where they name no zone."""
    times = np.empty(len(batch.lines))
    for row, stamp in enumerate(batch.columns[place]):
        try:
            moment = datetime.fromisoformat(stamp)
        except ValueError:
            hint = "a date and time such as 2023-11-16 18:17:03.9799600"
            what = f"{COLUMNS[0]}: {stamp[:40]!r}"
            raise PlanError(batch.lines[row].where, what, hint) from None
        times[row] = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return times
