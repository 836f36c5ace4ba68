"""Mooncake lines read by compiled code and by the JSON reader give the same, or the same error."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from splitpoint.errors import PlanError
from splitpoint.inputs.traces import mooncake, read
from splitpoint.native import lines
from splitpoint.native.lines import Scanner

FORM = b"<#|#[#]>\n"


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    lines.prepare()


def outcome(path: Path) -> object:
    """Every column of the trace in a file, or what is wrong with it."""
    try:
        trace = read(path, "mooncake")
    except PlanError as error:
        return str(error)
    fields = {name: getattr(trace, name) for name in trace.__struct_fields__}
    return {
        name: (value.dtype, value.tolist()) if isinstance(value, np.ndarray) else value
        for name, value in fields.items()
    }


def both(path: Path, text: str) -> tuple[object, object]:
    """What is made of a text, and of one that means the same and is not of the usual form: every
    line ends with a space, of which JSON takes no notice."""
    path.write_bytes(text.encode())
    quick = outcome(path)
    path.write_bytes((text.replace("\n", " \n") + " ").encode())
    return quick, outcome(path)


COUNT = st.one_of(
    st.integers(0, 5000),
    st.integers(-3, 2**33),
    st.integers(10**14, 10**17),
    st.floats(0, 1e5),
    st.sampled_from([None, True, "7", 2**31 - 1, 2**31, 10**15 - 1, 10**15, 10**10, 10**10 + 1]),
)
ID = st.one_of(st.integers(0, 40), st.integers(-(2**63), 2**64), st.just(2**70), st.floats(0, 9))


@st.composite
def line(draw: st.DrawFn) -> str:
    """A line that is right, or wrong in one of many ways."""
    isl = draw(st.integers(1, 2000))
    row: dict[str, object] = {
        "timestamp": draw(st.integers(0, 10**6)),
        "input_length": isl,
        "output_length": draw(st.integers(1, 500)),
        "hash_ids": [draw(st.integers(0, 40)) for _ in range(-(-isl // 512))],
    }
    match draw(st.sampled_from(["right"] * 8 + ["value", "ids", "order", "less", "more", "text"])):
        case "value":
            row[draw(st.sampled_from(["timestamp", "input_length", "output_length"]))] = draw(COUNT)
        case "ids":
            row["hash_ids"] = draw(st.lists(ID, max_size=4))
        case "order":
            row = {key: row[key] for key in draw(st.permutations(list(row)))}
        case "less":
            del row[draw(st.sampled_from(list(row)))]
        case "more":
            row[draw(st.sampled_from(["session_id", "delay", "x", "hash_ids2"]))] = draw(COUNT)
        case "text":
            text: str = json.dumps(row)
            place: int = draw(st.integers(0, len(text) - 1))
            put: str = draw(
                st.sampled_from([*'0 19-.,:[]{}"e\t\r\\#x\0', "\u0661", "\ufeff", "00", "\n"])
            )
            return text[:place] + put + text[place + int(draw(st.integers(0, 1))) :]
    separators = draw(st.sampled_from([(", ", ": "), (",", ":"), (" , ", ": "), (",", ": ")]))
    return json.dumps(row, separators=separators)


RIGHT = '{"timestamp": 5, "input_length": 700, "output_length": 3, "hash_ids": [0, 1]}'
TWICE = RIGHT.replace('"timestamp": 5', '"timestamp": 5, "timestamp": 6')


@given(
    st.lists(line(), min_size=1, max_size=6), st.sampled_from(["\n", "\r\n", "\n\n"]), st.booleans()
)
@example([RIGHT, RIGHT.replace("700", "0700")], "\n", False)
@example([RIGHT, RIGHT.replace("[0, 1]", "[]")], "\n", True)
@example([RIGHT, RIGHT.replace("[0, 1]", "[0,  1]")], "\n", True)
@example([RIGHT, RIGHT.replace("[0, 1]", "[0, 1],")], "\n", True)
@example([RIGHT, TWICE], "\n", True)
@example([RIGHT, RIGHT + " "], "\n", True)
@example(["\ufeff" + RIGHT, RIGHT], "\n", True)
@example([RIGHT, RIGHT[:-9]], "\n", False)
@example([RIGHT + RIGHT], "\n", False)
@example([RIGHT.replace("5", "1" * 20)], "\n", False)
def test_both_readers_agree_on_any_file(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str], end: str, ended: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "t.jsonl"
    quick, judged = both(path, end.join(rows) + (end if ended else ""))
    assert quick == judged


def test_the_usual_lines_are_read_by_compiled_code() -> None:
    for text in (RIGHT.encode(), RIGHT.replace(" ", "").encode()):
        scanner = Scanner(mooncake.form_of(text))
        for end in (b"", b"\n" + text):
            found = scanner.read(text + b"\n" + text + end)
            assert found is not None
            lines = 2 + (end != b"")
            assert found.columns.tolist() == [[5] * lines, [700] * lines, [3] * lines]
            assert found.counts.tolist() == [2] * lines
            assert found.listed.tolist() == [0, 1] * lines
        assert scanner.read(text + b"\n") is None
        assert scanner.read(b"") is None


@given(st.binary(max_size=60))
@example(b"<1|2[3]>\n<4|5[6,7, 8]>\n")
@example(b"<1|2[3,]>\n")
def test_interpreted_and_compiled_scans_agree(text: bytes) -> None:
    text = text.replace(b"\r", b"7")
    scanner = Scanner(FORM, len(text) + 1)
    found = scanner.read(text)
    first, again = scanner.numbers, Scanner(FORM, len(text) + 1).numbers
    again.text[:] = first.text
    again.found[0] = first.found[0]
    lines.scan.function(again)
    assert first.found.tolist() == again.found.tolist()
    _, done, listed, taken = first.found.tolist()
    assert (found is not None) == (taken == len(text) + 1)
    for name in ("columns", "counts"):
        assert np.array_equal(getattr(first, name)[..., :done], getattr(again, name)[..., :done])
    assert first.listed[:listed].tolist() == again.listed[:listed].tolist()


def test_numbers_stand_in_columns_and_lists() -> None:
    found = Scanner(FORM).read(b"<1|2[3]>\n<4|5[6,7, 8]>")
    assert found is not None
    assert found.columns.tolist() == [[1, 4], [2, 5]]
    assert found.counts.tolist() == [1, 3]
    assert found.listed.tolist() == [3, 6, 7, 8]


def test_an_arena_that_grew_is_read_again_for_shorter_texts() -> None:
    scanner = Scanner(FORM)
    long = b"\n".join(b"<%d|2[3]>" % i for i in range(50))
    for text, first in ((long, 0), (b"<7|2[3]>", 7), (long, 0)):
        found = scanner.read(text)
        assert found is not None
        assert found.columns[0].tolist() == list(range(first, first + text.count(b"\n") + 1))
