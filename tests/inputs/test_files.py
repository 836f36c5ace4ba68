"""Files of the user: every fault at once and in place, and nothing past the bounds."""

import gzip
import json
from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from splitpoint.errors import OutsideError, PlanError
from splitpoint.inputs import files
from splitpoint.inputs.checks import Problem, Rule
from splitpoint.record import Record


class Leaf(Record, frozen=True, kw_only=True, tag="leaf"):
    size: int


class Branch(Record, frozen=True, kw_only=True, tag="branch"):
    name: str


def odd_faults(value: int) -> list[Problem]:
    return [] if value % 2 else [Problem("", f"{value} is even", "an odd number")]


class Box(Record, frozen=True, kw_only=True):
    width: Annotated[int, Meta(ge=1, le=10)]
    odd: Annotated[int, Rule(odd_faults)] | None = None
    height: float = 1.0
    tags: tuple[str, ...] = ()
    pair: tuple[int, str] | None = None
    either: int | tuple[int, ...] = 0
    names: dict[str, int] = {}  # noqa: RUF012 - msgspec copies it
    part: Leaf | Branch | None = None
    full: bool = False

    def problems(self) -> list[Problem]:
        fits = self.width <= 5 or self.height <= 5
        return [] if fits else [Problem("", "is too large", "smaller than 5 one way")]


class Shelf(Record, frozen=True, kw_only=True):
    box: Box
    boxes: tuple[Box, ...] = ()


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(path: Path, kind: type = Shelf, sets: tuple[str, ...] = ()) -> str:
    with pytest.raises(PlanError) as caught:
        files.read(path, kind, sets)
    text = str(caught.value)
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


TOML = """
[box]
width = 3
tags = ["a", "b"]
either = [1, 2]
part = {type = "leaf", size = 4}
[box.names]
x = 1
[[boxes]]
width = 4
height = 2
"""
YAML = """
box:
  width: 3
  tags: [a, b]
  either: [1, 2]
  part: {type: leaf, size: 4}
  names:
    x: 1
boxes:
  - width: 4
    height: 2
"""
JSON = """
{"box": {"width": 3, "tags": ["a", "b"], "either": [1, 2], "part": {"type": "leaf", "size": 4},
"names": {"x": 1}}, "boxes": [{"width": 4, "height": 2}]}
"""


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("name", "text"), [("a.toml", TOML), ("a.yaml", YAML), ("a.yml", YAML), ("a.json", JSON)]
)
def test_three_formats_give_one_record(tmp_path: Path, name: str, text: str, packed: bool) -> None:
    path = write(tmp_path, name, text)
    if packed:
        path = write(tmp_path, f"{name}.gz", gzip.compress(text.encode()))
    box = Box(width=3, tags=("a", "b"), either=(1, 2), names={"x": 1}, part=Leaf(size=4))
    assert files.read(path, Shelf) == Shelf(box=box, boxes=(Box(width=4, height=2.0),))


def test_every_fault_of_a_file_is_told_at_once_with_its_place(tmp_path: Path) -> None:
    text = """
    box = {widht = 3, height = "tall", tags = ["a", 2], pair = [1], either = "x", part = {}}
    [[boxes]]
    width = 11
    odd = 4
    [[boxes]]
    width = 2.0
    full = 1
    [[boxes]]
    width = 6
    height = 6
    """
    assert refusal(write(tmp_path, "a.toml", text)).split("; ") == [
        "box.widht: unknown key (did you mean 'width'?)",
        "box.width: is missing (expected a whole number)",
        "box.height: found 'tall' (expected a number)",
        "box.tags.1: found 2 (expected text)",
        "box.pair: has 1 entries (expected 2)",
        "box.either: found 'x' (expected a whole number or a list, each entry a whole number)",
        "box.part.type: is missing (known: leaf, branch)",
        "boxes.0.width: 11 is out of range (from 1 to 10)",
        "boxes.0.odd: 4 is even (an odd number)",
        "boxes.1.width: found 2.0 (write 2)",
        "boxes.1.full: found 1 (expected true or false)",
        "boxes.2: is too large (smaller than 5 one way)",
    ]


def test_one_fault_keeps_its_place_and_hint_apart(tmp_path: Path) -> None:
    path = write(tmp_path, "a.toml", "box = {width = 0}")
    with pytest.raises(PlanError) as caught:
        files.read(path, Shelf)
    assert caught.value.where == f"{path}: box.width"
    assert caught.value.hint == "from 1 to 10"


def test_a_thousand_faults_make_a_readable_line(tmp_path: Path) -> None:
    text = "[box]\nwidth = 1\n" + "".join(f"k{i} = 1\n" for i in range(1000))
    assert refusal(write(tmp_path, "a.toml", text)).count("unknown key") == 20
    text = "box = {width = 1}\nboxes = [" + "1, " * 1000 + "]"
    words = refusal(write(tmp_path, "a.toml", text))
    assert words.count("found 1") == 20
    assert words.endswith("and 1 more")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", '{"box": 1, "box": 2}', "key 'box' is given twice (keep one of them)"),
        ("a.yaml", "box: 1\nbox: 2", "key 'box' is given twice (keep one of them)"),
        ("a.toml", "box = 1\nbox = 2", "is not TOML: Cannot overwrite a value"),
        ("a.json", '{"box": NaN}', "holds NaN (give a finite number)"),
        ("a.json", '{"box": -Infinity}', "holds -Infinity (give a finite number)"),
        ("a.json", '{"box": [1e999]}', "box.0: inf is not a finite number"),
        ("a.yaml", "box: .nan", "holds .nan (give a finite number)"),
        ("a.yaml", "box: 1e999", "box: inf is not a finite number"),
        ("a.toml", "box = [{width = nan}]", "box.0.width: nan is not a finite number"),
        ("a.json", '{"box": 9223372036854775808}', "box: the number is past 2^63"),
        ("a.json", '{"box": 1' + "0" * 5000 + "}", "holds a number of more than 4,300 digits"),
        ("a.yaml", "box: " + "9" * 5000, "box: inf is not a finite number"),
        ("a.json", '{"box": "\\ud800"}', "box: the text holds half of a surrogate pair"),
        ("a.json", '{"\\udfff": 1}', "a key holds half of a surrogate pair"),
        ("a.json", '{"box": }', "line 1: is not JSON: Expecting value at column 9"),
        ("a.json", "", "line 1: is not JSON: Expecting value at column 1"),
        ("a.json", "[1]", "holds a list (expected a table of keys)"),
        ("a.yaml", "", "holds nothing (expected a table of keys)"),
        ("a.yaml", "a: b: c", "line 1: is not YAML: mapping values are not allowed"),
        ("a.yaml", "a: 1\n---\nb: 2", "holds more than one YAML document"),
        ("a.yaml", "a: &x 1\nb: *x", "line 1: sets an anchor (&x) (write the value out)"),
        ("a.yaml", "a: *x", "line 1: refers to an anchor (*x) (write the value out)"),
        ("a.yaml", "a: !!python/name:os.system x", "line 1: has a tag"),
        ("a.yaml", "[1, 2]: 3", "has a list or a table as a key"),
        ("a.toml", "a = 2026-02-30", "is not TOML"),
        ("a.toml", b"\xff\xfea\x00", "line 1: is not UTF-8"),
        ("a.toml", b"a = 1\nb = '\xe9'", "line 2: is not UTF-8"),
        ("a.toml", b"\xef\xbb\xbfbox = 1", "starts with a byte-order mark"),
        ("a.toml.gz", b"box = 1", "is not a whole gzip file: Not a gzipped file"),
        ("a.toml.gz", gzip.compress(TOML.encode(), mtime=0)[:-9], "is not a whole gzip file"),
        (
            "a.toml.gz",
            gzip.compress(TOML.encode(), mtime=0)[:12] + b"\xff" * 9,
            "is not a whole gzip file",
        ),
        ("a.txt", "box = 1", "cannot tell its format"),
        ("a", "box = 1", "cannot tell its format"),
    ],
)
def test_what_is_not_a_plain_tree_is_refused(
    tmp_path: Path, name: str, text: str | bytes, words: str
) -> None:
    assert refusal(write(tmp_path, name, text)).startswith(words)


def test_yaml_words_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    text = (
        'a: no\nb: 5e-2\nc: 1:30\nd: "1"\ne: ~\nf: yes\ng: 0x10\nh: True\ni: .5\nj: -3\nk:\nl: 010'
    )
    assert files.load(write(tmp_path, "a.yaml", text)) == {
        "a": "no", "b": 0.05, "c": "1:30", "d": "1", "e": None, "f": "yes", "g": "0x10",
        "h": True, "i": 0.5, "j": -3, "k": None, "l": 10,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"a":' * 65 + "1" + "}" * 65),
        ("a.json", "[" * 100_000),
        ("a.yaml", "{a: " * 65 + "1" + "}" * 65),
        ("a.toml", "a = " + "[" * 65 + "]" * 65),
        ("a.toml", "a = " + "[" * 100_000),
        ("a.toml", "a = " + "{a = " * 100_000),
        # Quadratic in tomllib: these took hours before they were looked at first.
        ("a.toml", "a." * 500_000 + "a = 1"),
        ("a.toml", '"=".' * 500_000 + "a = 1"),
        ("a.toml", "[" + "a." * 500_000 + "a]"),
    ],
)
def test_deep_nesting_is_refused_quickly(tmp_path: Path, name: str, text: str) -> None:
    assert refusal(write(tmp_path, name, text)).startswith("is nested deeper than 64 levels")


def test_deep_yaml_is_refused_by_whichever_parser_is_there(tmp_path: Path) -> None:
    words = refusal(write(tmp_path, "a.yaml", "[" * 100_000))
    assert "nest" in words


def test_sixty_four_levels_are_read(tmp_path: Path) -> None:
    for name, text in (
        ("a.json", '{"a":' * 64 + "1" + "}" * 64),
        ("a.yaml", "{a: " * 64 + "1" + "}" * 64),
        ("a.toml", "a = " + "[" * 63 + "]" * 63),
        ("b.toml", ".".join(["a"] * 64) + " = 1"),
    ):
        assert files.load(write(tmp_path, name, text))


def test_large_files_are_refused_before_they_are_parsed(tmp_path: Path) -> None:
    spaces = b" " * (files.MAX_BYTES + 1)
    assert refusal(write(tmp_path, "a.json", spaces)).startswith("is larger than 64 MiB")
    assert refusal(write(tmp_path, "a.toml", spaces)).startswith("is larger than 4 MiB")
    many = b'{"a": [' + b"1," * 2_000_000 + b"1]}"
    assert refusal(write(tmp_path, "b.json", many)).startswith("holds more than 2,000,000 values")


def test_a_gzip_bomb_is_refused_after_few_bytes(tmp_path: Path) -> None:
    bomb = gzip.compress((b" " * 999 + b"\n") * 30_000)
    assert refusal(write(tmp_path, "a.json.gz", bomb)).startswith("unpacks to more than 100 times")
    assert refusal(write(tmp_path, "a.toml.gz", bomb)).startswith("unpacks to more than 100 times")
    path = write(tmp_path, "a.jsonl.gz", bomb)
    with pytest.raises(PlanError, match="unpacks to more than 100 times its size"):
        sum(1 for _ in files.open_text(path))


def test_places_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    assert refusal(tmp_path / "a.toml") == "no such file"
    (tmp_path / "b.toml").mkdir()
    assert refusal(tmp_path / "b.toml") == "is a folder (expected a file)"
    with pytest.raises(PlanError, match="null byte"):
        files.load(Path("a\0b.toml"))
    with pytest.raises(PlanError, match="cannot be read"):
        files.load(tmp_path / ("a" * 300 + ".toml"))
    write(tmp_path, "c.toml", "")
    with pytest.raises(PlanError, match="cannot be read"):
        files.load(tmp_path / "c.toml" / "d.toml")


@pytest.mark.parametrize("name", ["a.toml", "a.yaml", "a.json"])
def test_a_key_cannot_paint_the_terminal_or_break_the_line(tmp_path: Path, name: str) -> None:
    key = r'"\u001b[31m\n"'
    text = {"a.toml": f"{key} = 1", "a.yaml": f"{key}: 1", "a.json": f"{{{key}: 1}}"}[name]
    assert r"\x1b[31m\n: unknown key" in refusal(write(tmp_path, name, text))
    long = json.dumps({"k" * 1000: 1})
    assert len(refusal(write(tmp_path, "long.json", long))) < 200


def test_set_changes_values_and_makes_tables(tmp_path: Path) -> None:
    path = write(tmp_path, "a.toml", TOML)
    sets = (
        "box.width=7",
        "box.tags=['c']",
        "boxes.0.height = 0.5",
        "box.names.y=2",
        "box.either=5",
        "box.full=true",
    )
    shelf = files.read(path, Shelf, sets)
    assert shelf.box.width == 7
    assert shelf.box.tags == ("c",)
    assert shelf.boxes[0].height == 0.5
    assert shelf.box.names == {"x": 1, "y": 2}
    assert shelf.box.either == 5
    assert shelf.box.full is True


def test_bare_words_of_set_are_text(tmp_path: Path) -> None:
    path = write(tmp_path, "a.toml", "name = 'x'")
    for word in ("Qwen/Qwen3-30B-A3B", "two words", "2026-01-02", "[1, 2", "a=b", "1\nb = 2", ""):
        assert files.read(path, Branch, (f"name={word}",)).name == word.strip()
    assert files.read(path, Branch, ('name="7"',)).name == "7"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("box.widht=3", "--set box.widht: unknown key (did you mean 'width'?)"),
        ("crate.width=3", "--set crate.width: unknown key (known: box, boxes)"),
        ("box.width=wide", "--set box.width: found 'wide' (expected a whole number)"),
        ("box.width=99", "--set box.width: 99 is out of range (from 1 to 10)"),
        ("boxes.0.width=0", "--set boxes.0.width: 0 is out of range (from 1 to 10)"),
        ("boxes.1.width=1", "--set boxes.1.width: no entry '1' (entries 0 to 0)"),
        ("boxes.x.width=1", "--set boxes.x.width: no entry 'x' (entries 0 to 0)"),
        ("box.width.x=1", "--set box.width.x: cannot set 'x' inside 3"),
        ("box.height=nan", "--set box.height: nan is not a finite number"),
        ("box.width=99999999999999999999", "--set box.width: the number is past 2^63"),
        ("box.tags=['\udcff']", "--set box.tags: 0: the text holds half of a surrogate pair"),
        ("box", "--set box: is not of the form a.b=c"),
        ("=3", "--set =3: is not of the form a.b=c"),
        ("box..width=3", "--set box..width=3: is not of the form a.b=c"),
    ],
)
def test_a_wrong_set_is_named(tmp_path: Path, text: str, words: str) -> None:
    assert refusal(write(tmp_path, "a.toml", TOML), sets=(text,)) == words


def test_a_fault_of_the_file_is_not_blamed_on_a_set(tmp_path: Path) -> None:
    path = write(tmp_path, "a.toml", "box = {width = 0}\n[[boxes]]\nwidth = 0")
    words = refusal(path, sets=("box.height=x", "boxes.0.height=1"))
    assert words.split("; ") == [
        "box.width: 0 is out of range (from 1 to 10)",
        "--set box.height: found 'x' (expected a number)",
        "boxes.0.width: 0 is out of range (from 1 to 10)",
    ]


def test_a_set_does_not_change_the_tree_that_was_given() -> None:
    tree = {"box": {"width": 3}}
    from splitpoint.inputs.conversion import convert

    assert convert(tree, Shelf, "here", ("box.width=4",)).box.width == 4
    assert tree == {"box": {"width": 3}}


def test_lines_come_without_their_ends_in_order(tmp_path: Path) -> None:
    text = "\ufeffa\r\nb\n\nç d".encode()
    plain, packed = write(tmp_path, "a.csv", text), write(tmp_path, "a.csv.gz", gzip.compress(text))
    assert list(files.open_text(plain)) == ["a", "b", "", "ç d"]
    assert list(files.open_text(packed)) == ["a", "b", "", "ç d"]
    assert list(files.open_text(write(tmp_path, "b.csv", b""))) == []


@given(st.lists(st.text(st.characters(exclude_characters="\r\n\ufeff", codec="utf-8"))))
def test_any_lines_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "lines.txt"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    assert list(files.open_text(path)) == lines


def test_a_bad_line_is_named_by_its_number(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", b"ok\nok\n\xff\n")
    with pytest.raises(PlanError, match=r"line 3: byte 1 is not UTF-8"):
        list(files.open_text(path))
    path = write(tmp_path, "b.csv", b"ok\n" + b"x" * 101 + b"\n")
    with pytest.raises(PlanError, match=r"line 2: is longer than 100 bytes"):
        list(files.open_text(path, max_line=100))
    path = write(tmp_path, "c.csv", b"ok\n" + b"x" * 101)
    with pytest.raises(PlanError, match=r"line 2: is longer than 100 bytes"):
        list(files.open_text(path, max_line=100))


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("before", range(12))
def test_a_bad_line_is_named_wherever_the_parts_of_its_file_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, end: bytes
) -> None:
    monkeypatch.setattr(files, "CHUNK", 7)
    good = b"".join(b"x" * (i % 5) + b"\n" for i in range(before))
    path = write(tmp_path, "a.csv", good + b"ab\xff" + end)
    with pytest.raises(PlanError, match=rf"line {before + 1}: byte 3 is not UTF-8"):
        list(files.open_text(path))
    path = write(tmp_path, "b.csv", good + b"x" * 30 + end)
    with pytest.raises(PlanError, match=rf"line {before + 1}: is longer than 20 bytes"):
        list(files.open_text(path, max_line=20))


def test_a_text_past_the_given_bytes_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", b"x\n" * 100)
    with pytest.raises(PlanError, match="is larger than"):
        list(files.open_text(path, max_bytes=199))
    assert len(list(files.open_text(path, max_bytes=200))) == 100


def test_a_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "plan.json"
    files.write_atomic(path, "one")
    files.write_atomic(path, b"two")
    assert path.read_bytes() == b"two"

    def interrupted(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write_atomic(path, b"three")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_an_outside_failure(tmp_path: Path) -> None:
    blocked = write(tmp_path, "file", "")
    with pytest.raises(OutsideError, match="cannot be written"):
        files.write_atomic(blocked / "plan.json", b"")


def test_a_record_written_as_json_is_read_back(tmp_path: Path) -> None:
    shelf = Shelf(box=Box(width=3, tags=("a",), pair=(1, "x"), part=Branch(name="ç")))
    path = tmp_path / "a.json"
    files.write_atomic(path, files.to_json(shelf))
    assert files.read(path, Shelf) == shelf
    assert path.read_bytes().endswith(b"}\n")
