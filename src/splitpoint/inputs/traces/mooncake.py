"""Mooncake traces: JSON lines of timestamp (ms), input_length, output_length, hash_ids.

An id stands for 512 tokens; files made with another block (vLLM's timed_trace uses 16) are
recognised by their counts. The format has no sessions: a request whose full blocks begin with all
full blocks of an earlier one, of which the last was new there, is taken as its next turn; arrivals
stay those of the file (open loop). AIPerf's `session_id` and `delay` (ms) are kept where present,
and such a trace is a closed loop.
"""

from array import array
from collections.abc import Iterator

import msgspec
import numpy as np

from splitpoint.errors import PlanError
from splitpoint.inputs.trace import Ints, Longs, Trace, dense, turns_of
from splitpoint.inputs.traces.columns import (
    MAX_SECONDS,
    Identities,
    Line,
    Seconds,
    Tokens,
    assembled,
    completed,
    decoded,
    extended,
    fitting_block,
    floats,
    ints,
    longs,
)

# Published: Mooncake's open traces (kvcache-ai/Mooncake, FAST'25, Apache-2.0).
BLOCK_TOKENS = 512
PER_MS = 1e-3
SOURCE = "Mooncake trace format (kvcache-ai/Mooncake)"


class Request(msgspec.Struct):
    """One line. Times are milliseconds."""

    input_length: Tokens
    output_length: Tokens
    timestamp: Seconds | None = None
    hash_ids: list[int] = []
    session_id: str | int | None = None
    delay: Seconds | None = None


def read(lines: Iterator[Line], path: str, *, derive_sessions: bool = True) -> Trace:
    """The trace of a Mooncake file; sessions from prefix chains unless the file names them."""
    decoder = msgspec.json.Decoder(Request)
    arrive, think = array("d"), array("d")
    isl, osl, counts, session = array("i"), array("i"), array("q"), array("q")
    ids = array("q")
    numbers: dict[str | int, int] = {}
    clock: dict[int, float] = {}
    delays = 0
    places = array("q")
    for line in lines:
        row = decoded(decoder, line)
        key = row.session_id
        number = -1 if key is None else numbers.setdefault(key, len(numbers))
        time = row.timestamp
        if time is None:
            if row.delay is None or number not in clock:
                what = "timestamp: missing"
                raise PlanError(line.where, what, "only a later turn with a delay may lack it")
            time = min(clock[number] + row.delay, MAX_SECONDS)
        delays += row.delay is not None
        if key is not None:
            clock[number] = time
        arrive.append(time * PER_MS)
        think.append((row.delay or 0.0) * PER_MS)
        isl.append(row.input_length)
        osl.append(row.output_length)
        session.append(number)
        counts.append(len(row.hash_ids))
        extended(ids, row.hash_ids, line.where)
        places.append(line.number)
    tokens = ints(isl)
    identities = identities_of(tokens, longs(ids), longs(counts), places, path)
    named = len(numbers) > 0
    owner = np.array(session)
    # Requests outside any named session are sessions of their own.
    owner[owner < 0] = len(numbers) + np.flatnonzero(owner < 0)
    trace = assembled(
        path,
        arrive_s=floats(arrive),
        isl=tokens,
        osl=ints(osl),
        session=owner,
        think_s=floats(think) if delays else None,
        identities=identities,
        closed=named and delays > 0,
        source=SOURCE,
        notes=() if named or not derive_sessions else ("sessions derived from prefix chains",),
    )
    if named or not derive_sessions or identities is None:
        return trace
    chained = chained_sessions(trace)
    return msgspec.structs.replace(trace, session=chained, turn=turns_of(chained))


def identities_of(
    isl: Ints, ids: Longs, counts: Longs, lines: "array[int]", path: str, usual: int = BLOCK_TOKENS
) -> Identities | None:
    """The ids with their block size found, None where the file has none."""
    if not len(ids):
        return None
    block = fitting_block(isl, counts, usual)
    if block is None:
        needed = -(-isl.astype(np.int64) // usual)
        odd = int(np.flatnonzero((counts > 0) & (counts != needed) & (counts != isl // usual))[0])
        what = f"hash_ids: {counts[odd]} ids for {isl[odd]} tokens"
        hint = f"{needed[odd]} ids of {usual} tokens; no other block size fits all lines either"
        raise PlanError(f"{path}: line {lines[odd]}", what, hint)
    return completed(isl, ids, counts, block, path)


def chained_sessions(trace: Trace) -> Ints:
    """Sessions where each request continues the longest earlier chain that it extends.

    A chain is continued once; a second continuation (a fork) is a session of its own. A chain
    whose last full block another session brought first is only a shared prefix and proves nothing.
    """
    full = trace.isl // trace.block_tokens
    ends = trace.block_starts[:-1] + np.minimum(full, np.diff(trace.block_starts))
    session = np.arange(len(trace), dtype=np.int32)
    # By block id: the session that brought it, and the row that waits for a continuation there.
    width = int(trace.block_ids.max(initial=0)) + 1
    brought, waiting = np.full(width, -1, np.int32), np.full(width, -1, np.int32)
    spans = zip(trace.block_starts[:-1].tolist(), ends.tolist(), strict=True)
    for row, (start, end) in enumerate(spans):
        if start == end:
            continue
        chain = trace.block_ids[start:end]
        before = waiting[chain]
        longest = np.flatnonzero((before >= 0) & (trace.isl[before] < trace.isl[row]))[-1:]
        for place in longest:
            session[row] = session[before[place]]
            waiting[chain[place]] = -1
        brought[chain[brought[chain] < 0]] = session[row]
        if brought[chain[-1]] == session[row]:
            waiting[chain[-1]] = row
    return dense(session)
