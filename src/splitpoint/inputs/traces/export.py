"""A Trace as a file of another format, and what that format cannot hold.

Mooncake lines keep everything: sessions and think times as AIPerf's `session_id` and `delay`, ids
with the trace's own block size. The CSV formats hold arrivals and lengths only.
"""

import gzip
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, get_args

import msgspec
import numpy as np

from splitpoint.errors import PlanError
from splitpoint.inputs.files import write_atomic
from splitpoint.inputs.trace import Trace
from splitpoint.inputs.traces.columns import fitting_block
from splitpoint.inputs.traces.mooncake import BLOCK_TOKENS

Writable = Literal["mooncake", "azure", "burstgpt", "vidur"]
WRITABLE: tuple[Writable, ...] = get_args(Writable)

# A CSV of dates needs a first one; any will do.
EPOCH = datetime(2024, 1, 1)


def write(trace: Trace, path: str | Path, format: str) -> tuple[str, ...]:
    """Write the trace (compressed if the name ends in .gz) and say what the file lacks."""
    path = Path(path)
    match format:
        case "mooncake":
            lines = mooncake_lines(trace)
        case "azure":
            lines = azure_lines(trace)
        case "burstgpt":
            lines = burstgpt_lines(trace)
        case "vidur":
            lines = vidur_lines(trace)
        case _:
            hint = f"one of {', '.join(WRITABLE)}"
            raise PlanError("format", f"traces cannot be written as {format!r}", hint)
    text = "".join(lines).encode()
    # No clock in the header: the same trace gives the same bytes.
    write_atomic(path, gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
    return losses(trace, format)


def losses(trace: Trace, format: str) -> tuple[str, ...]:
    """What a file of this format does not hold of the trace, in words."""
    lost = []
    sessions = bool((trace.turn > 0).any())
    if format == "mooncake":
        counts = np.diff(trace.block_starts)
        if len(trace.block_ids) and trace.block_tokens != BLOCK_TOKENS:
            lost.append(f"ids stand for {trace.block_tokens} tokens, not {BLOCK_TOKENS}")
            found = fitting_block(trace.isl, counts, BLOCK_TOKENS)
            if found != trace.block_tokens:
                lost.append(f"the lengths would let a reader take {found} tokens per id")
        if sessions and not trace.closed:
            lost.append("sessions of an open loop are not written")
        return tuple(lost)
    if len(trace.block_ids):
        lost.append("prefix identities are lost: nothing will be reused")
    if sessions:
        lost.append("sessions and think times are lost")
    return tuple(lost)


def mooncake_lines(trace: Trace) -> Iterator[str]:
    """JSON lines; times in milliseconds."""
    encoder = msgspec.json.Encoder()
    starts, ids = trace.block_starts.tolist(), trace.block_ids.tolist()
    times, thinks = (trace.arrive_s * 1000).tolist(), (trace.think_s * 1000).tolist()
    turns, sessions = trace.turn.tolist(), trace.session.tolist()
    for row, (isl, osl) in enumerate(zip(trace.isl.tolist(), trace.osl.tolist(), strict=True)):
        line: dict[str, object] = {
            "timestamp": plain(times[row]),
            "input_length": isl,
            "output_length": osl,
            "hash_ids": ids[starts[row] : starts[row + 1]],
        }
        if trace.closed:
            line["session_id"] = str(sessions[row])
            if turns[row]:
                line["delay"] = plain(thinks[row])
        yield encoder.encode(line).decode() + "\n"


def azure_lines(trace: Trace) -> Iterator[str]:
    """CSV as the 2023 release prints it, to the microsecond."""
    yield "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    for at, isl, osl in rows(trace):
        stamp = (EPOCH + timedelta(seconds=at)).isoformat(" ", "microseconds")
        yield f"{stamp},{isl},{osl}\n"


def burstgpt_lines(trace: Trace) -> Iterator[str]:
    """CSV as release 1 prints it, with fractions of a second."""
    yield "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    for at, isl, osl in rows(trace):
        yield f"{plain(at)},any,{isl},{osl},{isl + osl},API log\n"


def vidur_lines(trace: Trace) -> Iterator[str]:
    """CSV of seconds and token counts."""
    yield "arrived_at,num_prefill_tokens,num_decode_tokens\n"
    for at, isl, osl in rows(trace):
        yield f"{plain(at)},{isl},{osl}\n"


def rows(trace: Trace) -> Iterator[tuple[float, int, int]]:
    """Arrival, input and output tokens of each request."""
    return zip(trace.arrive_s.tolist(), trace.isl.tolist(), trace.osl.tolist(), strict=True)


def plain(value: float) -> float | int:
    """The number without a fraction where it has none."""
    return int(value) if value.is_integer() else value
