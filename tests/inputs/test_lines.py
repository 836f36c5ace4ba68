"""Mooncake lines read by compiled code and by the JSON reader give the same, or the same error."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from splitpoint.errors import PlanError
from splitpoint.inputs.traces import mooncake, read
from splitpoint.inputs.traces.columns import Lines
from splitpoint.native import lines
from splitpoint.native.lines import numbers

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
    for text in (RIGHT, RIGHT.replace(" ", "")):
        found = mooncake.plain(Lines("t", range(1, 3), f"{text}\n{text}"))
        assert found is not None
        assert found.columns.tolist() == [[5, 5], [700, 700], [3, 3]]
        assert found.counts.tolist() == [2, 2]
        assert found.listed[: found.found[1]].tolist() == [0, 1, 0, 1]
    assert mooncake.plain(Lines("t", range(1, 3), f"{RIGHT}\n")) is None


@given(st.binary(max_size=60))
@example(b"<1|2[3]>\n<4|5[6,7, 8]>\n")
@example(b"<1|2[3,]>\n")
def test_interpreted_and_compiled_scans_agree(text: bytes) -> None:
    text = text.replace(b"\r", b"7") + b"\n"
    reads = [lines._unread(text, FORM, text.count(b"\n")) for _ in range(2)]
    lines.scan(reads[0])
    lines.scan.function(reads[1])
    assert reads[0].found.tolist() == reads[1].found.tolist()
    done, listed = reads[0].found
    for name in ("columns", "counts"):
        first, second = (getattr(read, name)[..., :done].tolist() for read in reads)
        assert first == second
    assert reads[0].listed[:listed].tolist() == reads[1].listed[:listed].tolist()


def test_numbers_stand_in_columns_and_lists() -> None:
    found = numbers(b"<1|2[3]>\n<4|5[6,7, 8]>\n", FORM, 2)
    assert found is not None
    assert found.columns.tolist() == [[1, 4], [2, 5]]
    assert found.counts.tolist() == [1, 3]
    assert found.listed[:4].tolist() == [3, 6, 7, 8]
