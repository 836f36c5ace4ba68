"""Start a recipe on this node, wait until all of it answers, and stop what was started.

The recipe's own run.sh, stop.sh and check.sh do the work, so what runs is what the user reads.
This module watches them: what each instance is doing, which one died, and with what last words.
"""

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from splitpoint.errors import OutsideError, PlanError, printable
from splitpoint.inputs.startup import ANSI, parse
from splitpoint.live import program
from splitpoint.record import Record

Tell = Callable[[str], None]
Finding = Literal["equal within the noise", "too noisy to judge", "nothing to compare"]

# How often run.sh and the logs are looked at, seconds; nothing waits for it but the user's eye.
PAUSE_S = 0.2
# run.sh notices a stop between two probes, each of which may take 6 s.
HALT_S = 10.0
# Of a log's end: more than the longest traceback of an engine that died.
TAIL_BYTES = 256 * 1024
LONGEST_WORDS = 300
STEP = 20  # per cent between two lines of progress
NOISY = 3  # exit code of check.sh

ANSWERS = re.compile(r"^(\S+): answers at (\S+) after (\d+) s$", re.MULTILINE)
DIED = re.compile(r"^(\S+): died;", re.MULTILINE)
SILENT = re.compile(r"^(\S+): no answer from", re.MULTILINE)

# What a line of vLLM's or SGLang's log says of the start; the last one that matches is where it
# stands.
STAGES = (
    (re.compile(r"Loading safetensors checkpoint shards:\s+(\d+)%"), "loading weights"),
    (re.compile(r"Multi-thread loading shards:\s+(\d+)%"), "loading weights"),
    (re.compile(r"Starting to load model|Load weight begin"), "loading weights"),
    (re.compile(r"Loading weights took|Model loading took|Load weight end"), "weights are loaded"),
    (re.compile(r"Compiling a graph|Dynamo bytecode|torch\.compile takes"), "compiling"),
    (re.compile(r"(?:GPU|CPU) KV cache size|KV Cache is allocated"), "KV cache is laid out"),
    (re.compile(r"Memory pool end"), "KV cache is laid out"),
    (re.compile(r"Capturing CUDA graphs?[^%]*?(\d+)%"), "capturing graphs"),
    (re.compile(r"Capturing batches[^%]*?(\d+)%"), "capturing graphs"),
    (re.compile(r"(?i:capture [\w ]*cuda graph begin)"), "capturing graphs"),
    (re.compile(r"Warming up|Profiling CUDA graph memory"), "warming up"),
    (re.compile(r"init engine \(profile|The server is fired up"), "engine is ready"),
)
# Their prefixes of a line: vLLM's process, level, time and place in the source; SGLang's time and
# rank.
PREFIX = re.compile(
    r"^(?:\((?:\w+ pid=\d+|[\w ]+)\) )*(?:(?:INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[[^\]]*\] ?)?"
    r"(?:\[[\d-]+ [\d:]+[^\]]*\] ?)?"
)
FAULT = re.compile(r"^\w[\w.]*(?:Error|Exception|Interrupt|Exit)\b|\berror: |CUDA error|Killed$")
# What vLLM says after the cause, of a process that only waited for the one that failed.
ECHOES = re.compile(r"See root cause above|[Ff]ailed core proc|WorkerProc initialization failed")


class Answering(Record, frozen=True, kw_only=True):
    """An instance or the router that answers: where, seconds after its wait began, its log."""

    name: str
    url: str
    after_s: int
    log: str


class Launched(Record, frozen=True, kw_only=True):
    """What runs of a recipe on this node."""

    endpoint: str
    instances: tuple[Answering, ...]


class Tokens(Record, frozen=True, kw_only=True):
    """What the recipe's token check found, with its lines."""

    found: Finding
    lines: tuple[str, ...]


class Stopped(Record, frozen=True, kw_only=True):
    """What ran of a recipe on this node and was stopped."""

    stopped: tuple[str, ...]


class Settings(Record, frozen=True, kw_only=True):
    """What the recipe's env.sh and the environment say together."""

    model: str
    served_name: str
    endpoint: str
    start_timeout_s: float


def recipe_folder(place: Path) -> Path:
    """The recipe in a folder, or in the `recipes` of a plan's folder."""
    if not place.is_dir():
        raise PlanError(str(place), "is no folder", "a recipe, or the folder of a plan")
    found = next((at for at in (place, place / "recipes") if (at / "run.sh").is_file()), None)
    if found is not None:
        return found
    for readme in (place / "README.md", place / "recipes" / "README.md"):
        if readme.is_file() and (lines := readme.read_text(errors="replace").split("\n\n"))[1:]:
            raise PlanError(str(place), f"holds no recipe: {lines[1].strip()}")
    raise PlanError(str(place), "holds no recipe", "write one with splitpoint recipe PLAN_FOLDER")


def settings(recipe: Path) -> Settings:
    """The recipe's settings, as its own scripts see them."""
    names = ("MODEL", "SERVED_NAME", "ENDPOINT", "START_TIMEOUT")
    script = '. "$1/env.sh" && printf "%s\\0" ' + " ".join(f'"${name}"' for name in names)
    told = subprocess.run(
        ["bash", "-c", script, "bash", str(recipe)], text=True, capture_output=True, check=False
    )
    values = told.stdout.split("\0")
    if told.returncode or len(values) != len(names) + 1:
        words = told.stderr.strip().splitlines()[-1:] or ["it does not set what it should"]
        raise PlanError(str(recipe / "env.sh"), _short(words[0]))
    try:
        timeout = float(values[3])
    except ValueError:
        what = f"START_TIMEOUT is {values[3][:20]!r}"
        raise PlanError(str(recipe / "env.sh"), what, "seconds") from None
    return Settings(
        model=values[0], served_name=values[1], endpoint=values[2], start_timeout_s=timeout
    )


def start(
    recipe: Path,
    flags: Sequence[str],
    *,
    node: int,
    timeout_s: float | None,
    tell: Tell,
    clock: Callable[[], float] = time.monotonic,
) -> Launched:
    """Start this node's part of the recipe and wait until it answers; where it does not within
    `timeout_s` (None: the recipe's own), or is interrupted, nothing of it is left running."""
    stated = settings(recipe)
    if alive := running(recipe):
        raise OutsideError(
            f"{recipe}: {', '.join(alive)} already run; stop with splitpoint up {recipe} --down"
        )
    _stop(recipe)  # forgets what ended without it
    limit = stated.start_timeout_s if timeout_s is None else timeout_s
    environment = os.environ | {"NODE": str(node), "START_TIMEOUT": str(max(1, round(limit)))}
    with tempfile.TemporaryDirectory() as scratch:
        said = Path(scratch) / "run.log"
        with said.open("ab") as out:
            process = subprocess.Popen(
                ["bash", str(recipe / "run.sh"), *flags],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _watch(process, recipe, said, limit, tell, clock)
            words = said.read_text(errors="replace")
            if process.returncode:
                raise OutsideError(_why(words, recipe))
            if gone := [name for name in _started(recipe) if name not in running(recipe)]:
                raise OutsideError(_death(gone[0], recipe))
        except BaseException:
            _halt(process)
            _abandon(recipe, tell)
            raise
    return Launched(
        endpoint=stated.endpoint,
        instances=tuple(
            Answering(name=name, url=url, after_s=int(after), log=str(_log(recipe, name)))
            for name, url, after in ANSWERS.findall(words)
            if _log(recipe, name).is_file()
        ),
    )


def check(recipe: Path, tell: Tell) -> Tokens:
    """The recipe's token check; wrong tokens and no answer stop the recipe."""
    command = ["bash", str(recipe / "check.sh")]
    try:
        ended = program.run(command, hear=lambda line: tell(f"token check: {line}"))
        if ended.code not in (0, NOISY):
            told = ended.lines[-1] if ended.lines else "it says nothing"
            raise OutsideError(f"{recipe}: the token check failed: {_short(told)}")
    except BaseException:
        _abandon(recipe, tell)
        raise
    if ended.code == NOISY:
        found: Finding = "too noisy to judge"
    elif any(line.startswith("nothing to compare") for line in ended.lines):
        found = "nothing to compare"
    else:
        found = "equal within the noise"
    return Tokens(found=found, lines=ended.lines)


def stop(recipe: Path) -> Stopped:
    """Stop what runs of the recipe on this node."""
    names = running(recipe)
    _stop(recipe)
    if left := [name for name in names if name in running(recipe)]:
        raise OutsideError(f"{recipe}: {', '.join(left)} could not be stopped")
    return Stopped(stopped=names)


def running(recipe: Path) -> tuple[str, ...]:
    """Names of what run.sh started on this node and still lives."""
    return tuple(name for name, words in _started(recipe).items() if _lives(words))


def _started(recipe: Path) -> Mapping[str, str]:
    folder = recipe / "pids" / os.uname().nodename
    # Recipes of 0.2 keep the ids of all nodes together.
    files = [*folder.glob("*"), *(recipe / "pids").glob("*")]
    return {file.name: file.read_text() for file in sorted(files) if file.is_file()}


def _lives(words: str) -> bool:
    """Whether a process of this id began when run.sh wrote it down, in ticks since boot."""
    pid, _, ticks = words.strip().partition(" ")
    if not pid.isdigit():
        return False
    try:
        about = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return False
    return about[0] not in "ZX" and about[19] == ticks


def _watch(
    process: subprocess.Popen[bytes],
    recipe: Path,
    said: Path,
    limit: float,
    tell: Tell,
    clock: Callable[[], float],
) -> None:
    """Tell what run.sh says and how far each log is, until run.sh ends or the time is over."""
    begin, told = clock(), 0
    stages: dict[str, str] = {}
    while True:
        code = _ended(process)
        lines = said.read_text(errors="replace").splitlines()
        # The end of a dead one's log stands in the error.
        for line in lines[told:] if code in (None, 0) else ():
            tell(printable(line))
        told = len(lines)
        if code is not None:
            return
        for name in running(recipe):
            stage = _stage(_tail(_log(recipe, name)))
            if stage and stages.get(name) != stage:
                stages[name] = stage
                tell(f"{name}: {stage}")
        if clock() - begin >= limit:
            raise OutsideError(_late("\n".join(lines), recipe, limit))


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(PAUSE_S)
    except subprocess.TimeoutExpired:
        return None


def _halt(process: subprocess.Popen[bytes]) -> None:
    """End run.sh where it has written down all that it started."""
    process.terminate()
    try:
        process.wait(HALT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _abandon(recipe: Path, tell: Tell) -> None:
    if names := running(recipe):
        tell(f"stopping {', '.join(names)}")
    _stop(recipe)


def _stop(recipe: Path) -> None:
    # In a session of its own and not killed with the wait for it, as `subprocess.run` would: a
    # second Ctrl-C does not leave it half done.
    subprocess.Popen(
        ["bash", str(recipe / "stop.sh")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ).wait()


def _why(words: str, recipe: Path) -> str:
    """Why run.sh gave up, with the last words of the instance that is to blame."""
    if died := DIED.search(words):
        return _death(died[1], recipe)
    if silent := SILENT.search(words):
        return f"{silent[0]}: {_last_words(_log(recipe, silent[1]))}"
    last = words.strip().splitlines()[-1:] or ["run.sh failed without a word"]
    return f"{recipe}: {_short(last[0])}"


def _death(name: str, recipe: Path) -> str:
    log = _log(recipe, name)
    return f"{name} died: {_last_words(log)} (whole log: {log})"


def _late(words: str, recipe: Path, limit: float) -> str:
    ready = [found[0] for found in ANSWERS.findall(words)]
    waited = [name for name in _started(recipe) if name not in ready]
    told = "; ".join(f"{name}: {_last_words(_log(recipe, name))}" for name in waited)
    return f"no answer after {limit:g} s from {told or recipe}"


def _log(recipe: Path, name: str) -> Path:
    return recipe / "logs" / f"{name}.log"


def _stage(lines: Sequence[str]) -> str:
    for line in reversed(lines):
        for shape, words in STAGES:
            if found := shape.search(line):
                if not shape.groups:
                    return words
                return f"{words}, {int(found[1]) // STEP * STEP}%"
    return ""


def _last_words(log: Path) -> str:
    return cause(_tail(log), str(log))


def cause(lines: Sequence[str], source: str) -> str:
    """The line of a log that says best why it ends: a known cause, else the last fault that is no
    echo of another, else its last line."""
    known = [error for one in parse(lines, source) for error in one.errors]
    if known:
        return _short(known[-1])
    bare = [text for line in lines if (text := PREFIX.sub("", line, count=1).strip())]
    faults = [text for text in bare if FAULT.search(text) and not ECHOES.search(text)]
    return _short((faults or bare or ["its log is empty"])[-1])


def _tail(log: Path) -> list[str]:
    """The last lines of a log, without colours; a progress bar counts as its last state."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [ANSI.sub("", line.rstrip("\r").rpartition("\r")[2]) for line in text.split("\n")]


def _short(words: str) -> str:
    told = printable(words.strip())
    return told if len(told) <= LONGEST_WORDS else told[:LONGEST_WORDS] + "..."
