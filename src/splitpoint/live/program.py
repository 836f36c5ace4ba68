"""An outside program: its lines as they come, its exit code, and nothing of it left behind."""

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress

from splitpoint.errors import OutsideError, printable
from splitpoint.record import Record

# From being asked to end to being ended, seconds.
GRACE_S = 10.0


class Ended(Record, frozen=True, kw_only=True):
    """Exit code and lines of both outputs; each state of a progress bar is a line."""

    code: int
    lines: tuple[str, ...]


def run(command: Sequence[str], *, hear: Callable[[str], None]) -> Ended:
    """Run a program to its end; what it started ends with it if we are interrupted."""
    lines = []
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise OutsideError(
            f"{command[0]}: cannot be run: {error.strerror or error}; is it on PATH?"
        ) from None
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if told := printable(line.strip()):
                lines.append(told)
                hear(told)
        process.wait()
    finally:
        _end(process)
        process.stdout.close()
    return Ended(code=process.returncode, lines=tuple(lines))


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
