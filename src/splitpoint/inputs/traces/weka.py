"""WEKA agentic traces: one coding session per JSON line, its calls with times and block ids.

Kept: arrival, lengths, think time, ids, and sub-agents, which become sessions of their own that
start at their recorded time and share the parent's ids. Dropped: models (calls of all models run
on one), the wait of a parent for its sub-agents (it stays inside the parent's think time), calls
of one thread that overlapped (a closed loop runs them one after another), time to first token,
stop reasons. Where a call has no `api_time`, the next think time includes its answer.
Ids name full blocks and are local to a session (`hash_id_scope` "local") or shared by all
("global"). Sessions carry no start time of their own: all begin at 0 unless a rate spreads them.
"""

import itertools
from array import array
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np

from splitpoint.errors import PlanError
from splitpoint.inputs.trace import Trace
from splitpoint.inputs.traces.columns import (
    MAX_ID,
    MAX_LINE,
    Line,
    Seconds,
    Tokens,
    assembled,
    completed,
    decoded,
    extended,
    floats,
    ints,
    longs,
    think_times,
)

SOURCE = "WEKA agentic coding traces (callanjfox/kv-cache-tester, Apache-2.0)"


LocalId = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]


class Entry(msgspec.Struct):
    """A call, or a sub-agent's marker with calls of its own. Times are seconds."""

    t: Seconds
    isl: Tokens | None = msgspec.field(default=None, name="in")
    osl: Tokens | None = msgspec.field(default=None, name="out")
    hash_ids: list[LocalId] = []
    api_time: Seconds | None = None
    think_time: Seconds | None = None
    requests: "list[Entry] | None" = None


class Session(msgspec.Struct):
    """One line of the file."""

    block_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    requests: list[Entry]
    hash_id_scope: Literal["local", "global"] = "local"


class Thread(NamedTuple):
    """Calls that follow one another.

    `marker` is the time on their sub-agent's marker as written, `start` the sum of the markers
    above them: files differ in whether a nested time counts from the session or from its marker.
    """

    entries: list[Entry]
    marker: float
    start: float
    path: str


class Calls(NamedTuple):
    """Columns of the calls read so far; `start` is their thread's, -1 a think time not given."""

    arrive: "array[float]"
    start: "array[float]"
    service: "array[float]"
    think: "array[float]"
    isl: "array[int]"
    osl: "array[int]"
    session: "array[int]"
    counts: "array[int]"
    ids: "array[int]"


def read(lines: Iterator[Line], path: str) -> Trace:
    """The trace of WEKA files: JSON lines, or one session a file as a JSON document."""
    decoder = msgspec.json.Decoder(Session)
    calls = Calls(
        arrive=array("d"),
        start=array("d"),
        service=array("d"),
        think=array("d"),
        isl=array("i"),
        osl=array("i"),
        session=array("q"),
        counts=array("q"),
        ids=array("q"),
    )
    block_tokens = threads = scopes = short = 0
    relative = False
    for line in documents(lines):
        record = decoded(decoder, line)
        if block_tokens not in (0, record.block_size):
            what = f"block_size: {record.block_size}"
            raise PlanError(line.where, what, f"{block_tokens} as in the lines before")
        block_tokens = record.block_size
        begin = len(calls.ids)
        for thread in threads_of(record):
            relative |= any(entry.t < thread.marker for entry in thread.entries)
            for place, entry in enumerate(thread.entries):
                if entry.requests is None:
                    where = f"{line.where}, {thread.path}[{place}]"
                    add(calls, entry, thread.start, threads, block_tokens, where)
                    short += len(entry.hash_ids) < calls.isl[-1] // block_tokens
            threads += 1
        if record.hash_id_scope == "local":
            scopes += hide(calls.ids, begin, scopes)
    times = floats(calls.arrive) + (floats(calls.start) if relative else 0.0)
    gaps = think_times(times, longs(calls.session), floats(calls.service))
    given = floats(calls.think)
    return assembled(
        path,
        arrive_s=times,
        isl=ints(calls.isl),
        osl=ints(calls.osl),
        session=longs(calls.session),
        think_s=np.where(given < 0, gaps, given),
        identities=completed(
            ints(calls.isl), longs(calls.ids), longs(calls.counts), max(block_tokens, 1), path
        ),
        closed=True,
        source=SOURCE,
        notes=(f"{short} calls name fewer blocks than they have",) if short else (),
    )


def add(
    calls: Calls, entry: Entry, start: float, session: int, block_tokens: int, where: str
) -> None:
    """Append a call to the columns."""
    if entry.isl is None or entry.osl is None:
        key = "in" if entry.isl is None else "out"
        raise PlanError(where, f"{key}: missing", "a count of tokens")
    blocks = -(-entry.isl // block_tokens)
    if len(entry.hash_ids) > blocks:
        what = f"hash_ids: {len(entry.hash_ids)} ids for {entry.isl} tokens"
        raise PlanError(where, what, f"at most {blocks} of {block_tokens} tokens")
    calls.arrive.append(entry.t)
    calls.start.append(start)
    calls.service.append(entry.api_time or 0.0)
    calls.think.append(-1.0 if entry.think_time is None else entry.think_time)
    calls.isl.append(entry.isl)
    calls.osl.append(entry.osl)
    calls.session.append(session)
    calls.counts.append(len(entry.hash_ids))
    extended(calls.ids, entry.hash_ids, where)


def hide(ids: "array[int]", begin: int, used: int) -> int:
    """Make the ids from `begin` on this session's own: negative, below the `used` ones before."""
    names, name = np.unique(np.array(ids[begin:], np.int64), return_inverse=True)
    ids[begin:] = array("q", (-1 - used - name).astype(np.int64).tobytes())
    return len(names)


def documents(lines: Iterator[Line]) -> Iterator[Line]:
    """The sessions' lines, or all lines of a file as one where a JSON document spans them."""
    for _, of_file in itertools.groupby(lines, lambda line: line.path):
        yield from sessions_of(of_file)


def sessions_of(of_file: Iterator[Line]) -> Iterator[Line]:
    """The sessions of one file that has at least one line."""
    head = next(of_file)
    if head.text.rstrip().endswith("}"):
        yield head
        yield from of_file
    else:
        yield head._replace(text=joined(itertools.chain([head], of_file)))


def joined(lines: Iterable[Line]) -> str:
    """The lines as one text of bounded length."""
    texts: list[str] = []
    length = 0
    for line in lines:
        length += len(line.text) + 1
        if length > MAX_LINE:
            raise PlanError(line.where, f"a JSON document of more than {MAX_LINE:,} characters")
        texts.append(line.text)
    return "\n".join(texts)


def threads_of(session: Session) -> list[Thread]:
    """The main thread, then every sub-agent's in document order."""
    found = [Thread(session.requests, 0.0, 0.0, "requests")]
    for thread in found:
        for place, entry in enumerate(thread.entries):
            if entry.requests is not None:
                path = f"{thread.path}[{place}].requests"
                found.append(Thread(entry.requests, entry.t, thread.start + entry.t, path))
    return found
