"""Numbers on lines of one form, read straight into columns by compiled code.

A text with a line of any other form is not read here at all: its caller has a parser that judges
what is odd or wrong, and takes seconds where this takes a tenth of them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splitpoint.native.arrays import Arrays, Longs
from splitpoint.native.kernel import entry

# A whole number stands where a # stands; the last one may be followed by more after commas.
NUMBER, COMMA, SPACE, ZERO = b"#, 0"
# So many digits fit every type that holds them later, and 64-bit floats exactly.
MOST_DIGITS = 15


@dataclass(frozen=True, eq=False)
class Numbers(Arrays):
    """Bytes of some lines, each with its end; their `form`; and what is read of them.

    `columns[k, i]`: number k of line i, but for the last, which are `counts[i]` ones that stand
    one line after the other in `listed`. `found`: lines, and listed numbers, that were read.
    """

    text: NDArray[np.int8]
    form: NDArray[np.int8]
    columns: Longs
    counts: Longs
    listed: Longs
    found: Longs


def numbers(text: bytes, form: bytes, lines: int) -> Numbers | None:
    """The numbers on so many lines, None if one of them has another form than `form`."""
    read = _unread(text, form, lines)
    scan(read)
    return read if read.found[0] == lines else None


def prepare() -> None:
    """Have the machine code ready."""
    scan.load(_unread(b"", b"#", 0))


def _unread(text: bytes, form: bytes, lines: int) -> Numbers:
    assert text.endswith(b"\n") or not lines
    return Numbers(
        text=_writeable(text),
        form=_writeable(form),
        columns=np.empty((form.count(b"#") - 1, lines), np.int64),
        counts=np.empty(lines, np.int64),
        listed=np.empty(len(text) // 2, np.int64),
        found=np.zeros(2, np.int64),
    )


def _writeable(text: bytes) -> NDArray[np.int8]:
    """Bytes as an array of the kind that kernels take."""
    return np.frombuffer(bytearray(text), np.int8)


@entry
def scan(t: Numbers) -> None:
    """Read lines up to the first of another form."""
    at = listed = 0
    for line in range(len(t.counts)):
        # No line's form goes past a line's end, with which the text ends.
        if at == len(t.text):
            return
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
        t.found[0] = line + 1
        t.found[1] = listed
