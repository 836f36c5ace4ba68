"""BurstGPT traces: CSV of Timestamp (seconds), Model, Request tokens, Response tokens, ...

Rows without request or response tokens are failed calls by the data set's own account: dropped
and counted in the notes. Release 2 adds Session ID and Elapsed time: conversations then are
sessions, and think time is the gap between the end of one call and the next, so loops may close.
Models are not told apart. There are no identities: nothing is reused.
"""

from array import array
from collections.abc import Iterator

from splitpoint.inputs.trace import Trace
from splitpoint.inputs.traces.columns import (
    Line,
    assembled,
    floats,
    ints,
    longs,
    seconds,
    think_times,
    token_count,
)
from splitpoint.inputs.traces.table import header_of, rows

SOURCE = "BurstGPT (HPMLL/BurstGPT, CC-BY-4.0)"
COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
SESSION_COLUMNS = ("Session ID", "Elapsed time")


def read(lines: Iterator[Line], path: str) -> Trace:
    """The trace of a BurstGPT CSV file, with sessions where its header has them."""
    head = next(lines, None)
    names = header_of(head.text) if head else []
    sessions = all(column in names for column in SESSION_COLUMNS)
    table = rows(with_first(head, lines), COLUMNS + (SESSION_COLUMNS if sessions else ()))
    arrive, isl, osl = array("d"), array("i"), array("i")
    session, elapsed = array("q"), array("d")
    numbers: dict[str, int] = {}
    failed = 0
    for line, cells in table:
        prompt = token_count(cells[1], line, "Request tokens", least=0)
        answer = token_count(cells[2], line, "Response tokens", least=0)
        if not (prompt and answer):
            failed += 1
            continue
        arrive.append(seconds(cells[0], line, "Timestamp"))
        isl.append(prompt)
        osl.append(answer)
        if sessions:
            # API calls have an empty session: each is one of its own.
            key = cells[3] or line.where
            session.append(numbers.setdefault(key, len(numbers)))
            elapsed.append(seconds(cells[4] or "0", line, "Elapsed time"))
    owner, times = longs(session), floats(arrive)
    return assembled(
        path,
        arrive_s=times,
        isl=ints(isl),
        osl=ints(osl),
        session=owner if sessions else None,
        think_s=think_times(times, owner, floats(elapsed)) if sessions else None,
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
