"""Mooncake traces: JSON lines of timestamp (ms), input_length, output_length, hash_ids.

An id stands for 512 tokens; files made with another block (vLLM's timed_trace uses 16) are
recognised by their counts. The format has no sessions: a request whose full blocks begin with all
full blocks of an earlier one, of which the last was new there, is taken as its next turn; arrivals
stay those of the file (open loop). AIPerf's `session_id` and `delay` (ms) are kept where present,
and such a trace is a closed loop.
"""

import itertools
from array import array
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from splitpoint.errors import PlanError
from splitpoint.inputs.files import Part
from splitpoint.inputs.trace import Ints, Longs, Trace, dense, turns_of
from splitpoint.inputs.traces.columns import (
    MAX_ROWS,
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
    extend,
    extended_by_rows,
    fitting_block,
    floats,
    have_room,
    ints,
    longs,
    too_many_rows,
)
from splitpoint.native.lines import Found, Scanner, scan

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

    @property
    def names_more(self) -> bool:
        """Whether the line has what only some files have, or lacks what those may lack."""
        return self.timestamp is None or self.session_id is not None or self.delay is not None


class Sessions:
    """Sessions and pauses that lines name: of all rows up to the last that names one."""

    def __init__(self) -> None:
        self.numbers: dict[str | int, int] = {}
        self.delays = 0
        self.session, self.think = array("q"), array("d")
        self._clock: dict[int, float] = {}

    def fill(self, rows: int) -> None:
        """So many rows have been read: those that are not here yet name nothing."""
        missing = rows - len(self.session)
        self.session.extend(NO_SESSION * missing)
        self.think.extend(NO_PAUSE * missing)

    def follow(self, rows: list[Request], lines: Lines) -> None:
        """Take the next rows, and tell those without a time when they arrive."""
        for i, row in enumerate(rows):
            key = row.session_id
            number = -1 if key is None else self.numbers.setdefault(key, len(self.numbers))
            row.timestamp = moment(row, self._clock.get(number), lines, i)
            self.delays += row.delay is not None
            if key is not None:
                self._clock[number] = row.timestamp
            self.session.append(number)
            self.think.append(row.delay or 0.0)

    def owners(self) -> Longs:
        """The session of each row; those outside any named one are sessions of their own."""
        owner = np.array(self.session)
        alone = owner < 0
        owner[alone] = len(self.numbers) + np.flatnonzero(alone)
        return owner


def read(parts: Iterable[Part], path: str, *, derive_sessions: bool = True) -> Trace:
    """The trace of a Mooncake file; sessions from prefix chains unless the file names them."""
    decoder = msgspec.json.Decoder(Request)
    scanner: Scanner | None = None
    arrive, isl, osl, counts, ids = array("d"), array("i"), array("i"), array("q"), array("q")
    sessions = Sessions()
    places: list[Sequence[int]] = []
    number = 1
    for part in parts:
        scanner = scanner or Scanner(form_of(part.lines))
        found = scanner.read(part.lines) if scan.kept else None
        if found is not None and within_bounds(found) and have_room(ids, len(found.listed)):
            extend(arrive, found.columns[0].astype(np.float64))
            extend(isl, found.columns[1].astype(np.int32))
            extend(osl, found.columns[2].astype(np.int32))
            extend(counts, found.counts)
            extend(ids, found.listed)
            numbers: Sequence[int] = range(number, number + len(found.counts))
            number += len(numbers)
        else:
            lines = lines_of(part, path, number)
            number += len(lines.numbers)
            lines, rows = decoded_lines(decoder, lines)
            count = len(rows)
            if any(row.names_more for row in rows):
                sessions.fill(len(isl))
                sessions.follow(rows, lines)
            append(arrive, [row.timestamp for row in rows], count)  # type: ignore[misc]
            append(isl, [row.input_length for row in rows], count)
            append(osl, [row.output_length for row in rows], count)
            blocks = [row.hash_ids for row in rows]
            append(counts, map(len, blocks), count)
            extended_by_rows(ids, blocks, lines)
            numbers = lines.numbers
        places.append(numbers)
        if number - 1 > MAX_ROWS:
            raise too_many_rows(f"{path}: line {MAX_ROWS + 1}")
    tokens = ints(isl)
    named = len(sessions.numbers) > 0
    closed = named and sessions.delays > 0
    numbered = itertools.chain.from_iterable(places)
    identities = identities_of(tokens, longs(ids), longs(counts), numbered, path)
    sessions.fill(len(isl))
    trace = assembled(
        path,
        arrive_s=floats(arrive) * PER_MS,
        isl=tokens,
        osl=ints(osl),
        session=sessions.owners() if named else None,
        think_s=floats(sessions.think) * PER_MS if closed else None,
        identities=identities,
        closed=closed,
        source=SOURCE,
        notes=() if named or not derive_sessions else ("sessions derived from prefix chains",),
    )
    if named or not derive_sessions or identities is None:
        return trace
    chained = chained_sessions(trace)
    return msgspec.structs.replace(trace, session=chained, turn=turns_of(chained))


def lines_of(part: Part, path: str, first: int) -> Lines:
    """The lines of a part, of which the first has that number, as text."""
    text = part.text()
    if text is None:
        # One of them is not UTF-8, which is said here.
        text = "\n".join(part.texts())
    return Lines(path, range(first, first + text.count("\n") + 1), text)


def form_of(lines: bytes) -> bytes:
    """The form that the lines of a file have if they are of a usual one, as they begin."""
    return FORM if lines.startswith(FORM[: FORM.index(b"#")]) else FORM.replace(b" ", b"")


def within_bounds(found: Found) -> bool:
    """Whether the JSON reader would take these times and lengths too."""
    times, lengths = found.columns[0], found.columns[1:]
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
