"""Tables of plain text: what wraps, and what never does."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from splitpoint.report.columns import Column, table, wrap

COLUMNS = [Column("deployment", "words"), Column("load", "name"), Column("tok/s\n/user")]
ROWS = [["P 6xTP1 + D 2xTP1", "64 users", "1,204"], ["8xTP1", "8 users", "87.5"]]


def test_a_wide_terminal_shows_one_line_a_row_with_numbers_to_the_right() -> None:
    assert [line.plain for line in table(COLUMNS, ROWS, 80)] == [
        "                             tok/s",
        "deployment         load      /user",
        "P 6xTP1 + D 2xTP1  64 users  1,204",
        "8xTP1              8 users    87.5",
    ]


def test_a_narrow_terminal_wraps_the_words_and_no_number() -> None:
    assert [line.plain for line in table(COLUMNS, ROWS, 32)][2:] == [
        "P 6xTP1 + D      64 users  1,204",
        "2xTP1",
        "8xTP1            8 users    87.5",
    ]


def test_a_tiny_terminal_puts_the_words_above_their_numbers() -> None:
    assert [line.plain for line in table(COLUMNS, ROWS, 20)] == [
        "          tok/s",
        "load      /user",
        "P 6xTP1 + D 2xTP1",
        "64 users  1,204",
        "8xTP1",
        "8 users    87.5",
    ]


def test_words_behind_the_numbers_go_below_them() -> None:
    columns = [Column("GiB"), Column("origin", "words")]
    lines = table(columns, [["26.35", "what the rungs above leave"]], 18)
    assert [line.plain for line in lines] == [
        "  GiB",
        "26.35",
        "  what the rungs",
        "  above leave",
    ]


@given(
    st.text(alphabet=st.characters(codec="utf-8", categories=("L", "N", "P"))), st.integers(2, 30)
)
def test_wrapping_loses_no_letter_and_keeps_the_width(words: str, width: int) -> None:
    lines = wrap(words, width)
    assert "".join(lines) == "".join(words.split())
    assert all(cell_len(line) <= width for line in lines)
