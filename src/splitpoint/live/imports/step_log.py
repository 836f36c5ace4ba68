"""What a vLLM server logged of its steps: batch, tokens, time, and how full its KV pool was.

The lines of `--enable-logging-iteration-details` (0.27 and later tell the KV usage, from which the
contexts are known). Their time is how long the engine waited for the step's result: the step
itself only where no other step runs meanwhile, so without asynchronous scheduling.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from splitpoint.errors import PlanError
from splitpoint.inputs import files
from splitpoint.inputs.startup import StartupLog, parse
from splitpoint.record import Record

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# vLLM v1/metrics/loggers.py, _log_iteration_details, of 0.32; earlier versions end after "ms".
STEP = re.compile(
    r"(?:Engine (\d{1,6}): )?Iteration\(\d{1,12}\): (\d{1,9}) context requests, "
    r"(\d{1,9}) context tokens, (\d{1,9}) generation requests, (\d{1,9}) generation tokens, "
    r"iteration elapsed time: (\d{1,9}\.?\d{0,6}) ms( \(dummy\))?"
    r"(?:, \w+ KV cache usage: (\d{1,3}\.?\d{0,6})%)?"
)
# Past any log that somebody fits to (assumed): four hours of steps of 5 ms on one rank.
MOST_STEPS = 3_000_000


class Steps(Record, frozen=True, kw_only=True):
    """Steps of a server, one array entry each: `new` tokens of `prompts` with `prefix` tokens
    cached before them, `decoding` sequences with `context` tokens in all that verify `verified`
    ones, and the `seconds` until the result. `left_out`: steps whose contexts cannot be told."""

    name: str
    prompts: Ints
    new: Ints
    prefix: Floats
    decoding: Ints
    verified: Ints
    context: Floats
    seconds: Floats
    left_out: int

    def __len__(self) -> int:
        return len(self.seconds)


class _Line(NamedTuple):
    """A line's numbers; `cached`: tokens in the pool when the step had ended."""

    rank: int
    prompts: int
    new: int
    decoding: int
    verified: int
    seconds: float
    cached: float


def is_log(path: Path) -> bool:
    """Whether a file's name is a log's."""
    suffix = path.with_suffix("").suffix if path.suffix.lower() == ".gz" else path.suffix
    return suffix.lower() in (".log", ".txt")


def read(path: Path) -> Steps:
    """The steps of a server's log, which must hold its start too."""
    found: list[re.Match[str]] = []
    starts = parse(_others(files.open_text(path, errors="replace"), found, path), path.name)
    if not found:
        hint = "start vLLM with --enable-logging-iteration-details --no-async-scheduling"
        raise PlanError(str(path), "holds no iteration", hint)
    tokens = _pool(starts, path)
    rows, left_out = [], 0
    before: dict[int, _Line] = {}
    for match in found:
        line = _line(match, tokens, path)
        if line is None:
            continue
        row = _row(line, before.get(line.rank))
        before[line.rank] = line
        if row is None:
            left_out += 1
        else:
            rows.append(row)
    if not rows:
        raise PlanError(str(path), "holds no step whose contexts can be told")
    prompts, new, prefix, decoding, verified, context, seconds = np.array(rows).T
    return Steps(
        name=path.name,
        prompts=prompts.astype(np.int64),
        new=new.astype(np.int64),
        prefix=prefix,
        decoding=decoding.astype(np.int64),
        verified=verified.astype(np.int64),
        context=context,
        seconds=seconds,
        left_out=left_out,
    )


def _others(lines: Iterable[str], found: list[re.Match[str]], path: Path) -> Iterator[str]:
    """The lines that are no steps; the steps go to `found`."""
    for text in lines:
        match = STEP.search(text) if "Iteration(" in text else None
        if match is None:
            yield text
            continue
        if len(found) >= MOST_STEPS:
            raise PlanError(str(path), f"has more than {MOST_STEPS:,} steps", "cut it")
        found.append(match)


def _pool(starts: tuple[StartupLog, ...], path: Path) -> float:
    """Tokens that the pool holds, of a start whose steps ran one at a time."""
    where = str(path)
    start = next((one for one in starts if one.engine == "vllm"), None)
    if start is None:
        raise PlanError(
            where, "does not hold the server's start", "keep the log from its first line"
        )
    if start.settings.async_scheduling is not False:
        what = "is of asynchronous scheduling: its times are waits beside another step, not steps"
        raise PlanError(where, what, "start vLLM with --no-async-scheduling")
    tokens = start.seen("kv_tokens")
    if tokens is None or tokens.low <= 0:
        raise PlanError(where, 'does not tell its pool: no "KV cache size: N tokens"')
    return (tokens.low + tokens.high) / 2


def _line(match: re.Match[str], tokens: float, path: Path) -> _Line | None:
    """The numbers of a step's line; None for the empty steps that keep ranks together."""
    rank, prompts, new, decoding, verified, elapsed, dummy, usage = match.groups()
    if usage is None:
        hint = "vLLM 0.27 and later print it"
        raise PlanError(str(path), "does not tell the KV usage of its steps", hint)
    seconds = float(elapsed) * 1e-3
    if dummy or not (int(prompts) or int(decoding)) or seconds <= 0:
        return None
    return _Line(
        rank=int(rank or 0),
        prompts=int(prompts),
        new=int(new),
        decoding=int(decoding),
        verified=int(verified),
        seconds=seconds,
        cached=float(usage) / 100 * tokens,
    )


def _row(line: _Line, before: _Line | None) -> tuple[float, ...] | None:
    """A step's numbers with its contexts: what was cached when the step before had ended. Where
    both steps have prompts and decodes run beside them, whose it was is not told: None."""
    was = 0.0 if before is None else before.cached
    context, prefix = was, 0.0
    if line.prompts and line.decoding:
        if before is None or before.prompts:
            return None
        prefix = line.cached - was - line.new - line.verified
    elif line.prompts:
        # Prompts that end with their first token leave nothing behind.
        context, prefix = 0.0, max(was, line.cached - line.new)
    return (
        line.prompts,
        line.new,
        max(prefix, 0.0),
        line.decoding,
        line.verified,
        context,
        line.seconds,
    )
