"""A recipe is started, watched and stopped, with a stand-in for `vllm` and its router."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from splitpoint.cli import main
from splitpoint.errors import OutsideError, PlanError
from splitpoint.inputs.deployment import Deployment
from splitpoint.inputs.engine import Engine
from splitpoint.live import launch
from splitpoint.recipes import bundle
from splitpoint.recipes.serving import serving
from tests.live.programs import put_on_path
from tests.recipes.fake import Handler
from tests.report import sample

SPLIT = Deployment(pools=(sample.pool("prefill", 1), sample.pool("decode", 1)))
MIXED = Deployment(pools=(sample.pool("mixed", 1),))


@pytest.fixture
def address() -> str:
    """A loopback address of this process's own, so that parallel tests share no port."""
    pid = os.getpid()
    return f"127.{pid // 65025 % 100 + 120}.{pid // 255 % 255}.{pid % 255}"


@pytest.fixture
def programs(tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in as `vllm` and `vllm-router`, and its address."""
    put_on_path(tmp_path / "bin", monkeypatch)
    monkeypatch.setenv("NODE_0", address)


@pytest.fixture
def recipe(tmp_path: Path, programs: None) -> Iterator[Path]:
    yield from made(tmp_path / "a recipe", SPLIT)


@pytest.fixture
def single(tmp_path: Path, programs: None) -> Iterator[Path]:
    yield from made(tmp_path / "single", MIXED)


def made(folder: Path, deployment: Deployment) -> Iterator[Path]:
    """A recipe's folder; what a failed test leaves running of it is stopped."""
    bundle.write(serving("m", sample.H20, deployment), folder)
    yield folder
    assert launch.stop(folder).stopped == () or sys.exc_info()[0]


@pytest.fixture
def sglang(tmp_path: Path, programs: None) -> Iterator[Path]:
    engine = Engine(name="sglang", version="0.5.23", utilization=0.85)
    pools = (sample.pool("prefill", 1), sample.pool("decode", 1))
    both = tuple(replace(pool, engine=engine) for pool in pools)
    yield from made(tmp_path / "sglang", Deployment(pools=both))


def start(recipe: Path, told: list[str], *flags: str, timeout_s: float = 60) -> launch.Launched:
    return launch.start(recipe, flags, node=0, timeout_s=timeout_s, tell=told.append)


def test_what_starts_is_told_answers_and_is_stopped(recipe: Path) -> None:
    told: list[str] = []
    launched = start(recipe, told)
    assert [one.name for one in launched.instances] == ["prefill-0", "decode-0", "router"]
    assert launched.endpoint == launched.instances[-1].url
    assert "GPU KV cache size" in Path(launched.instances[0].log).read_text()
    assert "prefill-0: starting, log in logs/prefill-0.log" in told
    assert launch.running(recipe) == ("decode-0", "prefill-0", "router")
    with pytest.raises(OutsideError, match="already run"):
        start(recipe, told)
    assert launch.running(recipe) == ("decode-0", "prefill-0", "router")
    assert launch.check(recipe, told.append).found == "equal within the noise"
    assert launch.stop(recipe).stopped == ("decode-0", "prefill-0", "router")
    assert launch.running(recipe) == ()


def test_sglang_starts_hands_over_and_stops(sglang: Path) -> None:
    told: list[str] = []
    launched = start(sglang, told)
    assert [one.name for one in launched.instances] == ["prefill-0", "decode-0", "router"]
    assert launch.check(sglang, told.append).found == "equal within the noise"
    assert any("prefill-0 -> decode-0: equal within the noise: 0 of 24" in line for line in told)
    assert launch.stop(sglang).stopped == ("decode-0", "prefill-0", "router")


def test_wrong_tokens_of_sglang_stop_it(sglang: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_8101", "wrong")
    told: list[str] = []
    start(sglang, told)
    with pytest.raises(OutsideError, match="the token check failed: "):
        launch.check(sglang, told.append)
    assert launch.running(sglang) == ()


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ("die", "decode-0 died: ValueError: the weights are of another shape"),
        ("hang", "no answer after 600 s from decode-0: Load weight begin. avail mem=138.02 GB"),
    ],
)
def test_an_sglang_server_that_does_not_start_is_named_with_what_it_said_last(
    sglang: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str, words: str
) -> None:
    monkeypatch.setenv("STAND_IN_8101", behaviour)
    told: list[str] = []
    with pytest.raises(OutsideError) as error:
        launch.start(
            sglang,
            (),
            node=0,
            timeout_s=600,
            tell=told.append,
            clock=lambda: 600.0 * (behaviour == "hang" and "decode-0: loading weights" in told),
        )
    assert words in str(error.value)
    assert launch.running(sglang) == ()


def test_one_that_dies_is_named_with_its_cause_and_the_others_are_stopped(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_8101", "die")
    told: list[str] = []
    with pytest.raises(OutsideError) as error:
        start(recipe, told)
    assert str(error.value).startswith("decode-0 died: ValueError: the weights are of another")
    assert launch.running(recipe) == ()
    assert any(line.startswith("stopping ") and "prefill-0" in line for line in told)


def test_one_that_hangs_past_the_time_is_named_with_what_it_was_at(
    single: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_8100", "hang")
    told: list[str] = []
    with pytest.raises(OutsideError) as error:
        launch.start(
            single,
            (),
            node=0,
            timeout_s=600,
            tell=told.append,
            clock=lambda: 600.0 * ("mixed-0: loading weights" in told),
        )
    assert str(error.value).startswith("no answer after 600 s from mixed-0: Starting to load model")
    assert launch.running(single) == ()


def test_wrong_tokens_stop_the_recipe(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_8101", "wrong")
    told: list[str] = []
    start(recipe, told)
    with pytest.raises(OutsideError, match="the token check failed: "):
        launch.check(recipe, told.append)
    assert launch.running(recipe) == ()
    assert any("prefill-0 -> decode-0: WRONG" in line for line in told)


def test_a_stranger_on_the_port_is_not_taken_for_the_instance(single: Path, address: str) -> None:
    with ThreadingHTTPServer((address, 8100), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        with pytest.raises(OutsideError, match="mixed-0: something answers at"):
            start(single, [])
        server.shutdown()
        thread.join()
    assert launch.running(single) == ()


def test_an_interrupted_start_leaves_nothing_running(
    single: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_8100", "hang")
    # Tests that run in the background have interrupts ignored, which a child inherits.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-m", "splitpoint.cli", "up", str(single), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    signal.signal(signal.SIGINT, before)
    assert process.stderr is not None and process.stdout is not None
    said = [process.stderr.readline(), process.stderr.readline()]
    assert "starting" in said[0] and "loading weights" in said[1]
    assert launch.running(single) == ("mixed-0",)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert "stopping mixed-0" in err
    assert launch.running(single) == ()


def test_the_command_hands_flags_on_tells_and_stops(
    single: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["splitpoint", "up", "--json", *words])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 0
        return json.loads(capsys.readouterr().out)

    started = said(str(single), "--", "--block-size", "128")
    pid = int(next(single.glob("pids/*/mixed-0")).read_text().split()[0])
    assert "--block-size\x00128\x00" in Path(f"/proc/{pid}/cmdline").read_text()
    assert started["tokens"] == "nothing to compare"
    figures = {row["name"]: row["printed"] for row in started["instances"][0]["figures"]}
    assert (figures["kv_tokens"], figures["concurrency"]) == (16_000, 3.91)
    assert said(str(single), "--down") == {"stopped": ["mixed-0"]}
    assert said(str(single), "--down") == {"stopped": []}


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("vllm: error: unrecognized arguments: --nope", "error: unrecognized arguments: --n"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried", "CUDA out of memory. Tried"),
        ("(Worker_TP0 pid=3) INFO 11-30 11:34:21 [a.py:1] Loading\n\n", "Loading"),
        ("shards:  10%\rshards:  20%\r", "shards:  20%"),
        ("", "its log is empty"),
    ],
)
def test_the_last_words_of_a_log_are_its_cause(
    single: Path, monkeypatch: pytest.MonkeyPatch, log: str, words: str
) -> None:
    (single / "mixed-0.sh").write_text(f"printf '%b' {log!r}; exit 1")
    with pytest.raises(OutsideError) as error:
        start(single, [])
    assert words in str(error.value)


def test_a_folder_without_a_recipe_says_what_would_do(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="is no folder"):
        launch.recipe_folder(tmp_path / "absent")
    with pytest.raises(PlanError, match="splitpoint recipe"):
        launch.recipe_folder(tmp_path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "README.md").write_text("# No recipe for m\n\nP 1xTP1: no such thing\n")
    with pytest.raises(PlanError, match="no such thing"):
        launch.recipe_folder(tmp_path)


def test_a_broken_env_is_bad_input(single: Path) -> None:
    (single / "env.sh").write_text("export START_TIMEOUT=soon ENDPOINT= MODEL= SERVED_NAME=\n")
    with pytest.raises(PlanError, match="START_TIMEOUT is 'soon'"):
        launch.settings(single)
    (single / "env.sh").write_text(': "${NODE_9:?set NODE_9}"\n')
    with pytest.raises(PlanError, match="set NODE_9"):
        launch.settings(single)
