"""Hostile plan files, configs and traces: a clear error or a result, never anything else.

1,500 made files by default, 10,000 with SPLITPOINT_HOSTILE=full; bombs of 1 GiB in a process of
their own, whose memory is measured.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from tests.inputs import hostile
from tests.inputs.hostile import Case

FULL = os.environ.get("SPLITPOINT_HOSTILE") == "full"
ROOT = Path(__file__).parents[2]


def outcomes_of(
    cases: SearchStrategy[Case], run: Callable[[Path, Case], bool], folder: Path
) -> list[bool]:
    outcomes = []

    @settings(
        max_examples=3400 if FULL else 500,
        deadline=None,
        derandomize=not FULL,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def read(case: Case) -> None:
        outcomes.append(run(folder, case))

    with hostile.bounded():
        read()
    return outcomes


@pytest.mark.parametrize(
    ("cases", "run"),
    [
        (hostile.plans(), hostile.run_plan),
        (hostile.configs(), hostile.run_config),
        (hostile.traces(), hostile.run_trace),
    ],
    ids=["plans", "configs", "traces"],
)
def test_a_hostile_file_gives_a_clear_error_or_a_result(
    tmp_path: Path, cases: SearchStrategy[Case], run: Callable[[Path, Case], bool]
) -> None:
    outcomes = outcomes_of(cases, run, tmp_path)
    assert len(outcomes) >= (3300 if FULL else 490)
    # Neither all broken nor all honest, or the files would test one path only.
    assert 0.05 < sum(outcomes) / len(outcomes) < 0.8


def test_bombs_of_a_gibibyte_are_refused_in_little_memory(tmp_path: Path) -> None:
    stride = "1" if FULL else "5"
    command = [sys.executable, "-m", "tests.inputs.hostile", str(tmp_path), stride]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["bombs"] == (42 if FULL else 9)
    assert told["read"] == 0
    assert told["peak"] < 2**30
