"""Numbers on lines of one form, read straight into columns by compiled code.

A text with a line of any other form is not read here at all: its caller has a parser that judges
what is odd or wrong, and takes seconds where this takes a tenth of them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from splitpoint.native.arrays import Arrays, Longs
from splitpoint.native.kernel import entry

# A whole number stands where a # stands; the last one may be followed by more after commas.
NUMBER, COMMA, SPACE, ZERO, LINE_END = b"#, 0\n"
# So many digits fit every type that holds them later, and 64-bit floats exactly.
MOST_DIGITS = 15


class Numbers(Arrays):
    """Bytes of some lines, of which the last is ended; their `form`; and what is read of them.

    `columns[k, i]`: number k of line i, but for the last, which are `counts[i]` ones that stand
    one line after the other in `listed`. `found`: bytes that there are, then lines, listed numbers
    and bytes that were read. All have room for the lines of any such text.
    """

    text: NDArray[np.int8]
    form: NDArray[np.int8]
    columns: Longs
    counts: Longs
    listed: Longs
    found: Longs


class Found(NamedTuple):
    """What `Numbers` were read of a text, which stand there until the next text is read."""

    columns: Longs
    counts: Longs
    listed: Longs


class Scanner:
    """Reads texts whose lines are of one form, one after the other."""

    def __init__(self, form: bytes, room: int = 0) -> None:
        self.form = form
        self.numbers = _numbers(form, room)

    def read(self, text: bytes) -> Found | None:
        """The numbers on its lines, of which the last may lack its end; None if one has another
        form."""
        size = len(text) + 1
        if size > len(self.numbers.text):
            self.numbers = _numbers(self.form, size)
        read = self.numbers
        read.text[: size - 1] = np.frombuffer(text, np.int8)
        read.text[size - 1] = LINE_END
        read.found[:] = size, 0, 0, 0
        scan(read)
        _, lines, listed, taken = read.found.tolist()
        if taken < size:
            return None
        return Found(read.columns[:, :lines], read.counts[:lines], read.listed[:listed])


def prepare() -> None:
    """Have the machine code ready."""
    scan.load(_numbers(b"#\n", 0))


def _numbers(form: bytes, room: int) -> Numbers:
    """Arrays for texts of so many bytes; what is not touched of them costs nothing."""
    lines = room // len(form) + 1
    return Numbers(
        text=np.empty(room, np.int8),
        form=np.array(bytearray(form)).view(np.int8),
        columns=np.empty((form.count(b"#") - 1, lines), np.int64),
        counts=np.empty(lines, np.int64),
        listed=np.empty(room // 2 + 1, np.int64),
        found=np.zeros(4, np.int64),
    )


@entry
def scan(t: Numbers) -> None:
    """Read lines up to the first of another form."""
    size = t.found[0]
    at = listed = line = 0
    # No line's form goes past a line's end, with which the text ends.
    while at < size:
        count = place = 0
        while place < len(t.form):
            expected = t.form[place]
            place += 1
            if expected != NUMBER:
                if t.text[at] != expected:
                    return
                at += 1
                continue
            start = at
            number = 0
            while 0 <= int(t.text[at]) - ZERO <= 9 and at - start <= MOST_DIGITS:
                number = 10 * number + int(t.text[at]) - ZERO
                at += 1
            digits = at - start
            if digits == 0 or digits > MOST_DIGITS or (digits > 1 and t.text[start] == ZERO):
                return
            count += 1
            if count <= len(t.columns):
                t.columns[count - 1, line] = number
                continue
            t.listed[listed] = number
            listed += 1
            if t.text[at] == COMMA:
                at += 2 if t.text[at + 1] == SPACE else 1
                place -= 1
        t.counts[line] = count - len(t.columns)
        line += 1
        t.found[1] = line
        t.found[2] = listed
        t.found[3] = at
