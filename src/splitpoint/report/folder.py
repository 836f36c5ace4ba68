"""The folder of a plan: written beside its place first, then moved there whole.

Ctrl-C or a full disk leaves the old folder as it was, never half of a new one.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from splitpoint.errors import OutsideError, PlanError

ANSWER = "plan.json"


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A new folder that takes the place of `out` when the block ends without an error.

    An existing `out` is replaced only if it is empty or an earlier plan's.
    """
    if out.exists() and not out.is_dir():
        raise PlanError(f"--out {out}", "is a file", "name a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / ANSWER).is_file():
        raise PlanError(
            f"--out {out}", "holds files that no plan wrote", "name a new or empty folder"
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise OutsideError(f"--out {out}: cannot write there ({error.strerror})") from error
    try:
        yield staging
        _swap(staging, out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _swap(staging: Path, out: Path) -> None:
    staging.chmod(0o755)  # mkdtemp makes private folders; a report is meant to be shared
    if not out.exists():
        staging.rename(out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old.", dir=out.parent))
    out.rename(old / out.name)
    try:
        staging.rename(out)
    except BaseException:
        (old / out.name).rename(out)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
