"""The stand-in put on the path as `vllm` and `vllm-router`, and as the modules of SGLang."""

import os
import sys
from pathlib import Path

import pytest

from tests.live import stand_in

ROOT = Path(__file__).parents[2]


def put_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs in `folder`, found before any other, that find what this process imports."""
    folder.mkdir()
    for name in ("vllm", "vllm-router"):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {stand_in.__name__} "$@"\n')
        program.chmod(0o755)
    python = folder / "python"
    python.write_text(
        '#!/bin/sh\n[ "$1" != -m ] || { shift; set -- -m '
        f'{stand_in.__name__} "$@"; }}\nexec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
    monkeypatch.setenv("PYTHON", str(python))
