"""run.sh and stop.sh with a stand-in for `vllm` and `vllm-router` on the path."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from splitpoint.inputs.deployment import Deployment
from splitpoint.recipes import bundle
from splitpoint.recipes.placement import HTTP_PORT
from splitpoint.recipes.serving import serving
from tests.recipes import fake
from tests.report import sample

SPLIT = Deployment(pools=(sample.pool("prefill", 1), sample.pool("decode", 1)))


@pytest.fixture
def recipe(tmp_path: Path, free_address: str) -> Path:
    folder = tmp_path / "recipe with space"
    bundle.write(serving("m", sample.H20, SPLIT), folder)
    (folder / "env.sh").write_text(
        f"export NODE_0={free_address}\n{(folder / 'env.sh').read_text()}"
    )
    return folder


@pytest.fixture
def free_address() -> str:
    """A loopback address of this process's own, so that parallel tests share no port."""
    pid = os.getpid()
    return f"127.{pid // 65025 % 100 + 100}.{pid // 255 % 255}.{pid % 255}"


def path_with(folder: Path, command: str) -> dict[str, str]:
    """An environment whose `vllm` and `vllm-router` are this command."""
    programs = folder.parent / "bin"
    programs.mkdir(exist_ok=True)
    for name in ("vllm", "vllm-router"):
        program = programs / name
        program.write_text(f"#!/bin/sh\n{command}\n")
        program.chmod(0o755)
    return {"PATH": f"{programs}:{os.environ['PATH']}", "START_TIMEOUT": "30"}


def pids_of(folder: Path) -> Path:
    """Where this node's process ids stand."""
    return folder / "pids" / os.uname().nodename


def bash(folder: Path, script: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(folder / script)],
        env=env,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_run_starts_all_waits_for_all_and_stop_ends_all(recipe: Path) -> None:
    env = path_with(recipe, f'exec "{sys.executable}" "{fake.__file__}" "$@"')
    # In a folder that nodes share, ids of another node mean nothing here.
    (recipe / "pids" / "another node").mkdir(parents=True)
    (recipe / "pids" / "another node" / "decode-1").write_text("1 1\n")
    try:
        told = bash(recipe, "run.sh", env)
        assert told.returncode == 0, told.stderr
        assert "prefill-0: answers" in told.stdout and "router: answers" in told.stdout
        pids = {file.name: int(file.read_text().split()[0]) for file in pids_of(recipe).iterdir()}
        assert set(pids) == {"prefill-0", "decode-0", "router"}
        assert all(Path(f"/proc/{pid}").exists() for pid in pids.values())
        again = bash(recipe, "run.sh", env)
        assert again.returncode == 1 and "already started" in again.stderr
    finally:
        stopped = bash(recipe, "stop.sh", env)
    assert stopped.returncode == 0
    assert not any(running(pid) for pid in pids.values())
    assert list(pids_of(recipe).iterdir()) == []
    assert [file.name for file in (recipe / "pids" / "another node").iterdir()] == ["decode-1"]


def running(pid: int) -> bool:
    """Whether the process lives; one that waits to be reaped does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_an_instance_that_dies_is_named_with_the_end_of_its_log(recipe: Path) -> None:
    env = path_with(recipe, 'echo "CUDA out of memory"; exit 3')
    told = bash(recipe, "run.sh", env)
    bash(recipe, "stop.sh", env)
    assert told.returncode == 1
    assert "died" in told.stderr and "CUDA out of memory" in told.stderr


def test_stop_leaves_a_process_alone_that_took_over_an_old_id(recipe: Path) -> None:
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        pids_of(recipe).mkdir(parents=True)
        (pids_of(recipe) / "decode-0").write_text(f"{other.pid} 1\n")
        assert bash(recipe, "stop.sh", dict(os.environ)).returncode == 0
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_the_first_port_is_the_one_the_scripts_name(recipe: Path) -> None:
    assert f"--port {HTTP_PORT} " in (recipe / "prefill-0.sh").read_text()
