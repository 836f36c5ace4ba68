"""A plan's folder is replaced whole or not at all."""

from pathlib import Path

import pytest

from splitpoint.errors import PlanError
from splitpoint.report.folder import staged


def test_a_folder_appears_when_the_work_is_done(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with staged(out) as folder:
        (folder / "plan.json").write_text("{}")
        assert not out.exists()
    assert [path.name for path in out.iterdir()] == ["plan.json"]
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("end", [KeyboardInterrupt, OSError, PlanError("a", "b")])
def test_an_interrupted_plan_leaves_the_old_folder_as_it_was(
    tmp_path: Path, end: type[BaseException] | BaseException
) -> None:
    out = tmp_path / "out"
    with staged(out) as folder:
        (folder / "plan.json").write_text("old")
    with pytest.raises(BaseException), staged(out) as folder:  # noqa: B017
        (folder / "plan.json").write_text("half")
        raise end
    assert (out / "plan.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_new_plan_takes_the_place_of_an_old_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for text in ("old", "new"):
        with staged(out) as folder:
            (folder / "plan.json").write_text(text)
            (folder / text).write_text(text)
    assert sorted(path.name for path in out.iterdir()) == ["new", "plan.json"]


def test_a_folder_of_the_users_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(PlanError, match="no plan wrote"), staged(tmp_path):
        raise AssertionError("the block must not run")
    with pytest.raises(PlanError, match="is a file"), staged(tmp_path / "mine.txt"):
        raise AssertionError("the block must not run")
