"""BurstGPT traces: CSV of Timestamp (seconds), Model, Request tokens, Response tokens, ...

Rows without request or response tokens are failed calls by the data set's own account: dropped
and counted in the notes. Release 2 adds Session ID and Elapsed time: conversations then are
sessions, and think time is the gap between the end of one call and the next, so loops may close.
Models are not told apart. There are no identities: nothing is reused.
"""

from collections.abc import Iterator

import numpy as np

from splitpoint.inputs.trace import Trace
from splitpoint.inputs.traces.columns import Line, assembled, joined, think_times
from splitpoint.inputs.traces.table import batches, header_of, seconds, token_counts

SOURCE = "BurstGPT (HPMLL/BurstGPT, CC-BY-4.0)"
COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
SESSION_COLUMNS = ("Session ID", "Elapsed time")


def read(lines: Iterator[Line], path: str) -> Trace:
    """The trace of a BurstGPT CSV file, with sessions where its header has them."""
    head = next(lines, None)
    names = header_of(head.text) if head else []
    sessions = all(column in names for column in SESSION_COLUMNS)
    wanted = COLUMNS + (SESSION_COLUMNS if sessions else ())
    arrive, isl, osl, owner, elapsed = [], [], [], [], []
    numbers: dict[str, int] = {}
    failed = 0
    for batch in batches(with_first(head, lines), wanted):
        prompt = token_counts(batch, 1, COLUMNS[1], least=0)
        answer = token_counts(batch, 2, COLUMNS[2], least=0)
        kept = np.flatnonzero((prompt > 0) & (answer > 0))
        failed += len(prompt) - len(kept)
        arrive.append(seconds(batch, 0, COLUMNS[0])[kept])
        isl.append(prompt[kept])
        osl.append(answer[kept])
        if sessions:
            # API calls have an empty session: each is one of its own.
            keys = [
                cell or line.where for cell, line in zip(batch.columns[3], batch.lines, strict=True)
            ]
            own = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
            owner.append(own[kept])
            answered = [cell or "0" for cell in batch.columns[4]]
            times = batch._replace(columns=[*batch.columns[:4], answered])
            elapsed.append(seconds(times, 4, SESSION_COLUMNS[1])[kept])
    session = joined(owner) if sessions and owner else None
    think = None
    if session is not None:
        think = think_times(joined(arrive), session, joined(elapsed))
    return assembled(
        path,
        arrive_s=joined(arrive),
        isl=joined(isl),
        osl=joined(osl),
        session=session,
        think_s=think,
        closed=sessions,
        source=SOURCE,
        notes=(
            "no prefix identities in the source",
            *((f"{failed} failed calls without tokens dropped",) if failed else ()),
        ),
    )


def with_first(head: Line | None, lines: Iterator[Line]) -> Iterator[Line]:
    """The lines with the one already taken put back in front."""
    if head:
        yield head
    yield from lines
