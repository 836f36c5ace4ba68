"""From the columns that a reader gathered to a Trace: sorted, from time 0, ids made global.

The one idea: ids are numbered anew so that an id names its whole prefix, even where the source's
ids name one block's tokens only. Also what all readers refuse.
"""

import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from splitpoint.errors import PlanError
from splitpoint.inputs.trace import (
    NO_IDENTITY,
    Floats,
    Ints,
    Longs,
    Trace,
    dense,
    sorted_by_arrival,
    turns_of,
)

T = TypeVar("T")
Scalar = TypeVar("Scalar", bound=np.generic)

# Bounds on one trace, assumed: above the public traces, and such that reading one that reaches
# them stays near 2 GiB.
MAX_ROWS = 50_000_000
MAX_IDS = 1 << 26
MAX_TOKENS = 2**31 - 1
MAX_SECONDS = 1e10
# Ids that readers add themselves stand above the source's.
MAX_ID = 2**62
# Assumed: a WEKA session is one line, of some MiB at most in the public files.
MAX_LINE = 64 * 1024**2

Tokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)]


class Line(NamedTuple):
    """A line of a file, and which one it is."""

    path: str
    number: int
    text: str

    @property
    def where(self) -> str:
        """The place as messages name it."""
        return f"{self.path}: line {self.number}"


class Lines(NamedTuple):
    """Some lines of a file and which ones they are."""

    path: str
    numbers: Sequence[int]
    text: str

    def where(self, place: int) -> str:
        """The place of one of them as messages name it."""
        return f"{self.path}: line {self.numbers[place]}"

    def filled(self) -> "Lines":
        """Those of them that are not blank."""
        texts = zip(self.numbers, self.text.split("\n"), strict=True)
        kept = [(number, text) for number, text in texts if text and not text.isspace()]
        return Lines(self.path, [n for n, _ in kept], "\n".join(text for _, text in kept))


class Identities(NamedTuple):
    """Block ids as read: row i has `counts[i]` of them, each for `block_tokens` tokens."""

    ids: Longs
    counts: Longs
    block_tokens: int


def assembled(
    path: str,
    *,
    arrive_s: Floats,
    isl: Ints,
    osl: Ints,
    session: Longs | None = None,
    think_s: Floats | None = None,
    identities: Identities | None = None,
    closed: bool = False,
    source: str,
    notes: tuple[str, ...] = (),
) -> Trace:
    """The Trace of columns in file order: rows sorted by arrival, the first one at 0 s."""
    n = len(isl)
    if n == 0:
        raise PlanError(path, "no request in it")
    if identities is None:
        starts, ids, block_tokens = np.zeros(n + 1, np.int64), np.zeros(0, np.int32), NO_IDENTITY
    else:
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(identities.counts)))
        ids, block_tokens = prefix_ids(identities), identities.block_tokens
    # Zeros cost no memory until they are written, which matters at tens of millions of rows.
    trace = sorted_by_arrival(
        Trace(
            name=plain_name(path),
            arrive_s=arrive_s - arrive_s.min(),
            isl=isl,
            osl=osl,
            session=np.arange(n, dtype=np.int32) if session is None else dense(session),
            turn=np.zeros(n, np.int32),
            think_s=np.zeros(n) if think_s is None else think_s,
            block_starts=starts,
            block_ids=ids,
            block_tokens=block_tokens,
            source=source,
            closed=closed,
            notes=notes,
        )
    )
    if session is None:
        return msgspec.structs.replace(trace, session=np.arange(n, dtype=np.int32))
    owner = dense(trace.session)
    turn = turns_of(owner)
    think = np.where(turn == 0, 0.0, trace.think_s)
    return msgspec.structs.replace(trace, session=owner, turn=turn, think_s=think)


def plain_name(path: str) -> str:
    """The file's name without its folder and suffixes."""
    return Path(path).name.partition(".")[0] or path


def prefix_ids(identities: Identities) -> Ints:
    """Dense ids that are equal exactly where the source's ids agree from the first block on."""
    if (identities.ids[1:] > identities.ids[:-1]).all():
        return np.arange(len(identities.ids), dtype=np.int32)  # each is new
    named = named_prefixes(identities)
    return prefixes_by_level(identities) if named is None else named


def named_prefixes(identities: Identities) -> Ints | None:
    """The ids numbered densely if each already names its prefix: it always follows the same id.

    None if some does not, or if they are spread too widely for a table of them.
    """
    ids, counts = identities.ids, identities.counts
    if not len(ids):
        return np.zeros(0, np.int32)
    low, width = int(ids.min()), int(ids.max()) - int(ids.min()) + 1
    if width > 4 * len(ids):
        return None
    place = (ids - low).astype(np.int32)
    before = np.empty(len(ids), np.int32)
    before[1:] = place[:-1]
    before[(np.cumsum(counts) - counts)[counts > 0]] = -1
    follows = np.full(width, -2, np.int32)
    follows[place] = before
    if (follows[place] != before).any():
        return None
    rank = np.cumsum(follows > -2, dtype=np.int32) - 1
    numbered: Ints = rank[place].astype(np.int32)
    return numbered


def prefixes_by_level(identities: Identities) -> Ints:
    """Dense ids, one for each pair of the prefix so far and the source's id at the next place."""
    ids, counts = identities.ids, identities.counts
    starts = np.cumsum(counts) - counts
    numbered = np.empty(len(ids), np.int32)
    prefix = np.zeros(len(counts), np.int64)
    known = 0
    rows = np.flatnonzero(counts)
    for level in range(int(counts.max(initial=0))):
        rows = rows[counts[rows] > level]
        places = starts[rows] + level
        names, name = np.unique(ids[places], return_inverse=True)
        keys, key = np.unique(prefix[rows] * len(names) + name, return_inverse=True)
        numbered[places] = known + key
        prefix[rows] = known + key
        known += len(keys)
    return numbered


def completed(isl: Ints, ids: Longs, counts: Longs, block_tokens: int, path: str) -> Identities:
    """Identities with ceil(isl / block_tokens) ids a row; those not in the source are unique."""
    needed = -(-isl.astype(np.int64) // block_tokens)
    missing = needed - counts
    if not missing.any():
        return Identities(ids, needed, block_tokens)
    ends = np.repeat(np.cumsum(counts), missing)
    if len(ids) + len(ends) > MAX_IDS:
        raise PlanError(path, f"more than {MAX_IDS:,} block ids", "cut the trace first")
    if ids.max(initial=0) > MAX_ID:
        ids = dense(ids).astype(np.int64)
    own = int(ids.max(initial=0)) + 1 + np.arange(len(ends))
    return Identities(np.insert(ids, ends, own), needed, block_tokens)


def fitting_block(isl: Ints, counts: Longs, usual: int) -> int | None:
    """The block size at which every row's ids cover its tokens, `usual` before powers of two.

    A row of isl tokens has ceil(isl / block) ids, or floor where a source names full blocks only;
    rows without ids say nothing. None where no size fits.
    """
    lengths, named = isl[counts > 0].astype(np.int64), counts[counts > 0]
    for block in (usual, *(1 << power for power in range(4, 17)), 8, 4, 2, 1):
        # What the ids cover and the tokens are less than a block apart, either way.
        if (abs(block * named - lengths) < block).all():
            return block
    return None


def think_times(arrive_s: Floats, session: Longs, service_s: Floats) -> Floats:
    """Seconds from the end of the previous turn (its arrival + service) to each arrival, >= 0."""
    order = np.lexsort((arrive_s, session))
    later = np.flatnonzero(np.diff(session[order]) == 0) + 1
    think = np.zeros(len(arrive_s))
    rows, before = order[later], order[later - 1]
    think[rows] = np.maximum(arrive_s[rows] - arrive_s[before] - service_s[before], 0.0)
    return think


def counted(lines: Iterable[str], path: str) -> Iterator[Line]:
    """The lines that are not blank, each with its place; too many of them are refused."""
    rows = 0
    for number, text in enumerate(lines, start=1):
        if text and not text.isspace():
            rows += 1
            line = Line(path, number, text)
            if rows > MAX_ROWS:
                raise too_many_rows(line.where)
            yield line


def too_many_rows(where: str) -> PlanError:
    """What is said of a line past the bound."""
    return PlanError(where, f"more than {MAX_ROWS:,} rows", "cut the trace first")


def decoded(decoder: "msgspec.json.Decoder[T]", line: Line) -> T:
    """The record on a JSON line, or a PlanError that names line and field."""
    try:
        return decoder.decode(line.text)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        field = place.rstrip("`").lstrip(".")
        prefix = f"{field}: " if field else ""
        raise PlanError(line.where, prefix + what.replace("`", "'")) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise PlanError(line.where, f"not a JSON object: {error}") from None


class Decoded(NamedTuple, Generic[T]):
    """The records on lines, none of which is blank."""

    lines: Lines
    rows: list[T]


def decoded_lines(decoder: "msgspec.json.Decoder[T]", lines: Lines) -> Decoded[T]:
    """The records on many JSON lines, or a PlanError that names line and field."""
    try:
        rows = decoder.decode_lines(lines.text)
    except (msgspec.DecodeError, RecursionError):
        rows = []
    if len(rows) == len(lines.numbers):
        return Decoded(lines, rows)
    filled = lines.filled()
    texts = zip(filled.numbers, filled.text.split("\n"), strict=False)
    return Decoded(filled, [decoded(decoder, Line(lines.path, n, text)) for n, text in texts])


def joined(parts: list[NDArray[Scalar]]) -> NDArray[Scalar]:
    """The parts of a column as one."""
    return np.concatenate(parts) if parts else np.zeros(0)  # type: ignore[return-value]


def floats(buffer: "array[float]") -> Floats:
    """The buffer as a column, not copied."""
    return np.frombuffer(buffer, np.float64)


def ints(buffer: "array[int]") -> Ints:
    """The buffer of 32-bit integers as a column, not copied."""
    return np.frombuffer(buffer, np.int32)


def longs(buffer: "array[int]") -> Longs:
    """The buffer of 64-bit integers as a column, not copied."""
    return np.frombuffer(buffer, np.int64)


def extend(buffer: "array[Any]", values: NDArray[Any]) -> None:
    """Append numbers of the buffer's own kind, which lie one after the other."""
    buffer.frombytes(values.view(np.uint8).data)


def append(buffer: "array[Any]", values: Iterable[float], count: int) -> None:
    """Append so many numbers to a buffer, in half of the time that its own `extend` takes."""
    buffer.frombytes(np.fromiter(values, buffer.typecode, count).tobytes())


def extended(ids: "array[int]", more: list[int], where: str) -> None:
    """Append a row's ids, within the bound on all ids of a trace; 64 bits, signed or not."""
    before = len(ids)
    if before + len(more) > MAX_IDS:
        raise PlanError(where, f"more than {MAX_IDS:,} block ids", "cut the trace first")
    try:
        ids.extend(more)
    except OverflowError:
        del ids[before:]
        for number, block in enumerate(more):
            if not -(2**63) <= block < 2**64:
                raise PlanError(where, f"hash_ids[{number}]: an id of over 64 bits") from None
        ids.extend(block - 2**64 if block >= 2**63 else block for block in more)


def have_room(ids: "array[int]", more: int) -> bool:
    """Whether so many more ids are within the bound on all ids of a trace."""
    return len(ids) + more <= MAX_IDS


def extended_by_rows(ids: "array[int]", rows: list[list[int]], lines: Lines) -> None:
    """Append the ids of many rows as `extended` does; `lines` are where they stand."""
    count = sum(map(len, rows))
    if have_room(ids, count):
        with suppress(OverflowError):
            append(ids, itertools.chain.from_iterable(rows), count)
            return
    for i, row in enumerate(rows):
        extended(ids, row, lines.where(i))
