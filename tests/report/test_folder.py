"""A plan's folder is replaced whole or not at all."""

import json
from pathlib import Path

import pytest

from splitpoint.errors import PlanError
from splitpoint.inputs.files import to_json
from splitpoint.report.folder import read_answer, staged
from tests.report import sample


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


def test_a_link_to_a_folder_stays_one_and_a_link_to_nothing_is_refused(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to(real)
    with pytest.raises(PlanError, match="leads to no folder"), staged(link):
        pass
    real.mkdir()
    with staged(link) as folder:
        (folder / "plan.json").write_text("{}")
    assert link.is_symlink() and (real / "plan.json").is_file()
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(PlanError, match="leads to no folder"), staged(loop):
        pass


def test_a_folder_of_the_users_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(PlanError, match="no plan wrote"), staged(tmp_path):
        raise AssertionError("the block must not run")
    with pytest.raises(PlanError, match="is a file"), staged(tmp_path / "mine.txt"):
        raise AssertionError("the block must not run")


def test_an_answer_of_another_version_says_which_and_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    tree = json.loads(to_json(sample.answer()))
    path.write_text(json.dumps(tree))
    assert read_answer(tmp_path) == sample.answer()
    path.write_text(json.dumps(tree | {"version": 0}))
    with pytest.raises(PlanError, match=r"form 0, and does not read as form \d .*plan again"):
        read_answer(tmp_path)
    # A field that this version asks for and the other did not write.
    old = {name: value for name, value in tree.items() if name != "walls"} | {"splitpoint": "0.0.9"}
    path.write_text(json.dumps(old))
    with pytest.raises(PlanError, match=r"written by splitpoint 0\.0\.9 .*walls.*plan again"):
        read_answer(path)
    path.write_text("{}")
    with pytest.raises(PlanError) as caught:
        read_answer(path)
    assert "written by" not in str(caught.value)
