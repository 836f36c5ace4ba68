"""Mooncake traces: JSON lines of timestamp (ms), input_length, output_length, hash_ids.

An id stands for 512 tokens; files made with another block (vLLM's timed_trace uses 16) are
recognised by their counts. The format has no sessions: a request whose full blocks begin with all
full blocks of an earlier one, of which the last was new there, is taken as its next turn; arrivals
stay those of the file (open loop). AIPerf's `session_id` and `delay` (ms) are kept where present,
and such a trace is a closed loop.
"""

import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from splitpoint.errors import PlanError
from splitpoint.inputs.trace import Ints, Longs, Trace, dense, turns_of
from splitpoint.inputs.traces.columns import (
    MAX_SECONDS,
    MAX_TOKENS,
    Identities,
    Lines,
    Seconds,
    Tokens,
    append,
    assembled,
    completed,
    decoded_lines,
    extended_by_rows,
    fitting_block,
    floats,
    have_room,
    ints,
    longs,
)
from splitpoint.native.lines import Numbers, numbers, scan

# Published: Mooncake's open traces (kvcache-ai/Mooncake, FAST'25, Apache-2.0).
BLOCK_TOKENS = 512
PER_MS = 1e-3
# The usual line; some writers put no spaces.
FORM = b'{"timestamp": #, "input_length": #, "output_length": #, "hash_ids": [#]}\n'
NO_SESSION, NO_PAUSE = array("q", [-1]), array("d", [0.0])
SOURCE = "Mooncake trace format (kvcache-ai/Mooncake)"


class Request(msgspec.Struct, gc=False):
    """One line. Times are milliseconds."""

    input_length: Tokens
    output_length: Tokens
    timestamp: Seconds | None = None
    hash_ids: list[int] = []
    session_id: str | int | None = None
    delay: Seconds | None = None


def read(lines: Iterator[Lines], path: str, *, derive_sessions: bool = True) -> Trace:
    """The trace of a Mooncake file; sessions from prefix chains unless the file names them."""
    decoder = msgspec.json.Decoder(Request)
    arrive, think = array("d"), array("d")
    isl, osl, counts, session = array("i"), array("i"), array("q"), array("q")
    ids = array("q")
    numbers: dict[str | int, int] = {}
    clock: dict[int, float] = {}
    delays = 0
    places: list[Sequence[int]] = []
    for part in lines:
        read = plain(part) if scan.kept else None
        if read is not None and within_bounds(read) and have_room(ids, read.found[1]):
            many = len(read.counts)
            arrive.frombytes(read.columns[0].astype(np.float64).tobytes())
            isl.frombytes(read.columns[1].astype(np.int32).tobytes())
            osl.frombytes(read.columns[2].astype(np.int32).tobytes())
            session.extend(NO_SESSION * many)
            think.extend(NO_PAUSE * many)
            counts.frombytes(read.counts.tobytes())
            ids.frombytes(read.listed[: read.found[1]].tobytes())
            places.append(part.numbers)
            continue
        taken, rows = decoded_lines(decoder, part)
        times = [row.timestamp for row in rows]
        keys = [row.session_id for row in rows]
        pauses = [row.delay for row in rows]
        count = len(rows)
        if keys.count(None) == pauses.count(None) == count and None not in times:
            session.extend(NO_SESSION * count)
            think.extend(NO_PAUSE * count)
        else:
            for i, row in enumerate(rows):
                key = row.session_id
                number = -1 if key is None else numbers.setdefault(key, len(numbers))
                times[i] = time = moment(row, clock.get(number), taken, i)
                delays += row.delay is not None
                if key is not None:
                    clock[number] = time
                session.append(number)
                think.append(row.delay or 0.0)
        append(arrive, times, count)  # type: ignore[arg-type]
        append(isl, [row.input_length for row in rows], count)
        append(osl, [row.output_length for row in rows], count)
        blocks = [row.hash_ids for row in rows]
        append(counts, map(len, blocks), count)
        extended_by_rows(ids, blocks, taken)
        places.append(taken.numbers)
    tokens = ints(isl)
    named = len(numbers) > 0
    numbered = itertools.chain.from_iterable(places)
    identities = identities_of(tokens, longs(ids), longs(counts), numbered, path)
    # Requests outside any named session are sessions of their own.
    owner = np.array(session)
    owner[owner < 0] = len(numbers) + np.flatnonzero(owner < 0)
    trace = assembled(
        path,
        arrive_s=floats(arrive) * PER_MS,
        isl=tokens,
        osl=ints(osl),
        session=owner if named else None,
        think_s=floats(think) * PER_MS if named and delays else None,
        identities=identities,
        closed=named and delays > 0,
        source=SOURCE,
        notes=() if named or not derive_sessions else ("sessions derived from prefix chains",),
    )
    if named or not derive_sessions or identities is None:
        return trace
    chained = chained_sessions(trace)
    return msgspec.structs.replace(trace, session=chained, turn=turns_of(chained))


def plain(lines: Lines) -> Numbers | None:
    """The columns of lines that all are of the usual form, None if one is not."""
    text = lines.text.encode() + b"\n"
    form = FORM if text.startswith(FORM[: FORM.index(b"#")]) else FORM.replace(b" ", b"")
    return numbers(text, form, len(lines.numbers))


def within_bounds(read: Numbers) -> bool:
    """Whether the JSON reader would take these times and lengths too."""
    times, lengths = read.columns[0], read.columns[1:]
    return bool(times.max() <= MAX_SECONDS and 1 <= lengths.min() <= lengths.max() <= MAX_TOKENS)


def moment(row: Request, before: float | None, lines: Lines, place: int) -> float:
    """When a request arrives, in milliseconds; `before`: when the turn before it did."""
    if row.timestamp is not None:
        return row.timestamp
    if row.delay is None or before is None:
        what = "timestamp: missing"
        raise PlanError(lines.where(place), what, "only a later turn with a delay may lack it")
    return min(before + row.delay, MAX_SECONDS)


def identities_of(
    isl: Ints, ids: Longs, counts: Longs, lines: Iterable[int], path: str, usual: int = BLOCK_TOKENS
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
        line = next(itertools.islice(lines, odd, None))
        raise PlanError(f"{path}: line {line}", what, hint)
    return completed(isl, ids, counts, block, path)


def chained_sessions(trace: Trace) -> Ints:
    """Sessions where each request continues the longest earlier chain that it extends.

    A chain is continued once; a second continuation (a fork) is a session of its own. A chain
    whose last full block another session brought first is only a shared prefix and proves nothing.
    """
    if int(trace.block_ids.max(initial=-1)) + 1 == len(trace.block_ids):
        # Ids are dense, so none is there twice.
        return np.arange(len(trace), dtype=np.int32)
    counts = np.diff(trace.block_starts)
    full = np.minimum(trace.isl // trace.block_tokens, counts)
    last = trace.block_starts[:-1] + full - 1
    rows = np.repeat(np.arange(len(trace)), full)
    ids = trace.block_ids[np.arange(len(trace.block_ids)) <= np.repeat(last, counts)]
    width = int(ids.max(initial=-1)) + 1
    # By block id: the row that brought it first, and the row that waits for a continuation there.
    brought = np.empty(width, np.int64)
    brought[ids[::-1]] = rows[::-1]
    # A row can wait only at its last block, for a row that holds that block too.
    ends = np.zeros(width, bool)
    ends[trace.block_ids[last[full > 0]]] = True
    met = np.flatnonzero(ends[ids] & (np.bincount(ids, minlength=width)[ids] > 1))
    waiting: dict[int, int] = {}
    session = list(range(len(trace)))
    isl = trace.isl.tolist()
    owners, blocks = rows[met], ids[met]
    cuts = np.append(np.flatnonzero(np.diff(owners, prepend=-1)), len(met)).tolist()
    for start, stop in itertools.pairwise(cuts):
        row = int(owners[start])
        chain = blocks[start:stop].tolist()
        for block in reversed(chain):
            before = waiting.get(block)
            if before is not None and isl[before] < isl[row]:
                session[row] = session[before]
                del waiting[block]
                break
        ending = int(trace.block_ids[last[row]])
        if chain[-1] == ending and session[int(brought[ending])] == session[row]:
            waiting[ending] = row
    return dense(np.array(session))
