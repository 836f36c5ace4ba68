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
from splitpoint.inputs.trace import Floats, Longs, Trace, dense
from splitpoint.inputs.traces.columns import (
    MAX_LINE,
    BlockId,
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


class Entry(msgspec.Struct):
    """A call, or a sub-agent's marker with calls of its own. Times are seconds."""

    t: Seconds
    isl: Tokens | None = msgspec.field(default=None, name="in")
    osl: Tokens | None = msgspec.field(default=None, name="out")
    hash_ids: list[BlockId] = []
    api_time: Seconds | None = None
    think_time: Seconds | None = None
    requests: "list[Entry] | None" = None


class Session(msgspec.Struct):
    """One line of the file."""

    block_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    requests: list[Entry]
    hash_id_scope: Literal["local", "global"] = "local"


class Thread(NamedTuple):
    """Calls that follow one another, and the time that theirs may count from."""

    calls: list[Entry]
    start: float
    path: str


def read(lines: Iterator[Line], path: str) -> Trace:
    """The trace of a WEKA file: JSON lines, or one session as a JSON document."""
    decoder = msgspec.json.Decoder(Session)
    arrive, marked, service, think = array("d"), array("d"), array("d"), array("d")
    isl, osl, counts = array("i"), array("i"), array("q")
    session, scope, ids = array("q"), array("q"), array("q")
    block_tokens = 0
    threads = 0
    relative = False
    short = 0
    for index, line in enumerate(documents(lines)):
        record = decoded(decoder, line)
        if block_tokens not in (0, record.block_size):
            what = f"block_size: {record.block_size}"
            raise PlanError(line.where, what, f"{block_tokens} as in the lines before")
        block_tokens = record.block_size
        for thread in threads_of(record):
            relative |= any(call.t < thread.start for call in thread.calls)
            for place, call in enumerate(thread.calls):
                if call.requests is not None:
                    continue
                where = f"{line.where}, {thread.path}[{place}]"
                if call.isl is None or call.osl is None:
                    key = "in" if call.isl is None else "out"
                    raise PlanError(where, f"{key}: missing", "a count of tokens")
                blocks = -(-call.isl // block_tokens)
                if len(call.hash_ids) > blocks:
                    what = f"hash_ids: {len(call.hash_ids)} ids for {call.isl} tokens"
                    raise PlanError(where, what, f"at most {blocks} of {block_tokens} tokens")
                short += len(call.hash_ids) < call.isl // block_tokens
                arrive.append(call.t)
                marked.append(thread.start)
                service.append(call.api_time or 0.0)
                think.append(-1.0 if call.think_time is None else call.think_time)
                isl.append(call.isl)
                osl.append(call.osl)
                counts.append(len(call.hash_ids))
                session.append(threads)
                scope.append(index + 1 if record.hash_id_scope == "local" else 0)
                extended(ids, call.hash_ids, where)
            threads += 1
    if not len(isl):
        raise PlanError(path, "no request in it")
    times = floats(arrive) + (floats(marked) if relative else 0.0)
    owner, named = longs(session), longs(counts)
    tokens = ints(isl)
    return assembled(
        path,
        arrive_s=times,
        isl=tokens,
        osl=ints(osl),
        session=owner,
        think_s=known_or_gap(
            floats(think),
            think_times(times, owner, floats(service)),
        ),
        identities=completed(
            tokens,
            scoped(longs(ids), np.repeat(longs(scope), named)),
            named,
            block_tokens,
        ),
        closed=True,
        source=SOURCE,
        notes=(f"{short} calls name fewer blocks than they have",) if short else (),
    )


def documents(lines: Iterator[Line]) -> Iterator[Line]:
    """The sessions' lines, or all lines as one where a JSON document spans them."""
    head = next(lines, None)
    if head is None:
        return
    if head.text.rstrip().endswith("}"):
        yield head
        yield from lines
    else:
        yield head._replace(text=joined(itertools.chain([head], lines)))


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
    found = [Thread(session.requests, 0.0, "requests")]
    for thread in found:
        found.extend(
            Thread(entry.requests, entry.t, f"{thread.path}[{place}].requests")
            for place, entry in enumerate(thread.calls)
            if entry.requests is not None
        )
    return found


def scoped(ids: Longs, scope: Longs) -> Longs:
    """Ids that differ between scopes and agree within one."""
    numbered = dense(ids).astype(np.int64)
    return scope * (int(numbered.max(initial=0)) + 1) + numbered


def known_or_gap(think: Floats, gap: Floats) -> Floats:
    """The recorded think time, or the gap between calls where it is missing (-1)."""
    return np.where(think < 0, gap, think)
