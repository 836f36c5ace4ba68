"""Run files: what is written comes back, and nothing else is read."""

import io
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from splitpoint.errors import PlanError
from splitpoint.run import Run, read, write
from tests.test_metrics import split_run

KINDS = ["run.npz", "run.parquet"]


def assert_equal(one: Run, other: Run) -> None:
    """Two runs with equal heads and bit-equal columns."""
    for name in Run.__struct_fields__:
        left, right = getattr(one, name), getattr(other, name)
        if not isinstance(left, msgspec.Struct):
            assert left == right
            continue
        for column in left.__struct_fields__:
            ours, theirs = getattr(left, column), getattr(right, column)
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", KINDS)
def test_a_run_comes_back_as_it_was(tmp_path: Path, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    run = msgspec.structs.replace(split_run(), notes=("one", "two"))
    write(run, tmp_path / name)
    write(run, tmp_path / name)
    assert_equal(read(tmp_path / name), run)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_equal_runs_give_equal_bytes(tmp_path: Path) -> None:
    write(split_run(), tmp_path / "a.npz")
    write(split_run(), tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_an_empty_run_comes_back(tmp_path: Path) -> None:
    run = split_run()
    empty = {name: getattr(run.series, name)[:0] for name in run.series.__struct_fields__}
    run = msgspec.structs.replace(run, series=msgspec.structs.replace(run.series, **empty))
    write(run, tmp_path / "run.npz")
    assert len(read(tmp_path / "run.npz").series) == 0


@pytest.mark.parametrize("name", ["run.csv", "run", "run.npz.bak"])
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(PlanError):
        write(split_run(), tmp_path / name)
    with pytest.raises(PlanError):
        read(tmp_path / name)


@pytest.mark.parametrize("name", KINDS)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(PlanError, match=r"run\."):
        read(tmp_path / name)


def test_a_folder_that_is_no_run_is_not_replaced(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    folder = tmp_path / "run.parquet"
    folder.mkdir()
    (folder / "precious.txt").write_text("keep")
    with pytest.raises(PlanError, match="not a run"):
        write(split_run(), folder)
    assert (folder / "precious.txt").read_text() == "keep"


def changed(path: Path, name: str, content: bytes | None) -> None:
    """Write the sample run to `path` with one member replaced, or left out for None."""
    write(split_run(), path)
    with zipfile.ZipFile(path) as archive:
        members = {entry: archive.read(entry) for entry in archive.namelist()}
    members.pop(name, None)
    if content is not None:
        members[name] = content
    with zipfile.ZipFile(path, "w") as archive:
        for entry, bytes_ in members.items():
            archive.writestr(entry, bytes_)


def npy(column: NDArray[Any]) -> bytes:
    """The bytes of a column as a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, column, allow_pickle=True)
    return buffer.getvalue()


HEADER_OF_A_TERABYTE = npy(np.zeros(3)).replace(b"(3,)", b"(9999999999999,)")
DAMAGE = {
    "missing column": ("requests.isl.npy", None),
    "unknown column": ("requests.colour.npy", npy(np.zeros(3))),
    "wrong type": ("requests.isl.npy", npy(np.zeros(3))),
    "wrong length": ("requests.isl.npy", npy(np.zeros(2, np.int32))),
    "two dimensions": ("requests.isl.npy", npy(np.zeros((3, 1), np.int32))),
    "objects": ("requests.isl.npy", npy(np.array([{}, 1, None], object))),
    "garbage": ("requests.isl.npy", b"\x93NUMPY\x01\x00\x10\x00(((((((((((((((("),
    "huge header": ("requests.arrive_s.npy", HEADER_OF_A_TERABYTE),
    "unknown outcome": ("requests.outcome.npy", npy(np.full(3, 9, np.int32))),
    "negative length": ("requests.osl.npy", npy(np.full(3, -1, np.int32))),
    "infinite time": ("requests.end_s.npy", npy(np.full(3, np.inf))),
    "unknown pool": ("instances.pool.npy", npy(np.array([0, 2], np.int32))),
    "no head": ("run.json", None),
    "head no json": ("run.json", b"\xff{"),
    "head of another version": ("run.json", b'{"version": 99}'),
    "head no table": ("run.json", b"[1]"),
    "head with unknown key": ("run.json", b'{"version": 1, "colour": 3}'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, damage: str) -> None:
    changed(tmp_path / "run.npz", *DAMAGE[damage])
    with pytest.raises(PlanError, match=r"run\.npz"):
        read(tmp_path / "run.npz")


def test_an_archive_that_unpacks_to_too_much_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("requests.isl.npy", "w") as member,
    ):
        for _ in range(520):
            member.write(bytes(1024**2))
    with pytest.raises(PlanError, match="512 MiB"):
        read(path)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_flipped_and_cut_bytes_never_surprise(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "flipped.npz"
    write(split_run(), path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        read(path)
    except PlanError as error:
        assert "flipped.npz" in str(error)
