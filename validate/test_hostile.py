"""Ten thousand hostile files, at random: run before a release, minutes long."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_ten_thousand_hostile_files_give_a_clear_error_or_a_result() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "tests/inputs/test_hostile.py"],
        cwd=ROOT,
        env=os.environ | {"SPLITPOINT_HOSTILE": "full"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
