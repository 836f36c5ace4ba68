"""The folder of a plan: written beside its place first, then moved there whole.

Ctrl-C or a full disk leaves the old folder as it was, never half of a new one.
"""

import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from msgspec.structs import replace

from splitpoint import run as run_files
from splitpoint.errors import OutsideError, PlanError
from splitpoint.inputs.conversion import convert
from splitpoint.inputs.files import load, to_json, write_atomic
from splitpoint.record import Record
from splitpoint.report.html import page
from splitpoint.run import Run
from splitpoint.verdict.answer import SCHEMA_VERSION, Answer

ANSWER = "plan.json"
PAGE = "report.html"


class Written(Record, frozen=True, kw_only=True):
    """Files that a command wrote, and their folder."""

    folder: str
    files: tuple[str, ...]


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A new folder that takes the place of `out` when the block ends without an error.

    An existing `out` is replaced only if it is empty or an earlier plan's.
    """
    if out.is_symlink() and not out.is_dir():
        raise PlanError(f"--out {out}", "is a link that leads to no folder", "name a folder")
    if out.exists() and not out.is_dir():
        raise PlanError(f"--out {out}", "is a file", "name a folder")
    out = out.resolve()  # a link to a folder stays one
    if out.is_dir() and any(out.iterdir()) and not (out / ANSWER).is_file():
        raise PlanError(
            f"--out {out}", "holds files that no plan wrote", "name a new or empty folder"
        )
    # Named before it is made: a signal may come between the two.
    staging = _beside(out)
    try:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            staging.mkdir(0o700)
        except OSError as error:
            raise OutsideError(f"--out {out}: cannot write there ({error.strerror})") from error
        yield staging
        _swap(staging, out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _beside(out: Path) -> Path:
    """A name beside `out` that nothing has."""
    return out.with_name(f".{out.name}.{secrets.token_hex(8)}")


def _swap(staging: Path, out: Path) -> None:
    staging.chmod(0o755)  # private until now; a report is meant to be shared
    if not out.exists():
        staging.rename(out)
        return
    old = _beside(out)
    out.rename(old)
    try:
        staging.rename(out)
    except BaseException:
        old.rename(out)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def fill(folder: Path, answer: Answer, runs: Mapping[str, Run], recipes: Sequence[Path]) -> Answer:
    """Write runs, page and answer into the folder; the answer then names its recipe's files."""
    answer = replace(answer, recipes=tuple(str(path.relative_to(folder)) for path in recipes))
    for point in answer.points:
        if point.run_file:
            run_files.write(runs[point.name], folder / point.run_file)
    write_atomic(folder / PAGE, page(answer, runs))
    write_atomic(folder / ANSWER, to_json(answer))
    return answer


def read_answer(place: Path) -> Answer:
    """The answer in a plan's folder, or in a plan.json itself. One that another version wrote in
    another form is refused with both versions named."""
    path = place / ANSWER if place.is_dir() else place
    tree = load(path)
    try:
        found = convert(tree, Answer, str(path))
    except PlanError as error:
        if not isinstance(tree, dict) or not isinstance(wrote := tree.get("splitpoint"), str):
            raise
        raise _of_another(path, wrote, tree.get("version"), _inside(error, path)) from None
    if found.version != SCHEMA_VERSION:
        raise _of_another(path, found.splitpoint, found.version, "")
    return found


def _inside(error: PlanError, path: Path) -> str:
    return f"{error.where.removeprefix(str(path))}: {error.what}"[:200]


def _of_another(path: Path, wrote: str, form: object, fault: str) -> PlanError:
    what = (
        f"was written by splitpoint {wrote[:40]} in form {str(form)[:10]}, and does not read as "
        f"form {SCHEMA_VERSION} of this one, {version('splitpoint')}{fault}"
    )
    return PlanError(str(path), what, "plan again, or read it with the version that wrote it")


def rewrite_page(folder: Path, answer: Answer) -> Path:
    """Write the folder's page anew from its answer and its runs."""
    root = folder if folder.is_dir() else folder.parent
    runs = {
        point.name: run_files.read(root / point.run_file)
        for point in answer.points
        if point.run_file
    }
    write_atomic(root / PAGE, page(answer, runs))
    return root / PAGE
