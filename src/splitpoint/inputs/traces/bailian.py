"""Bailian usage traces (Qwen): JSON lines with chat_id, parent_chat_id and hash_ids of 16 tokens.

Requests that lead back to one root chat are a session. The file has arrivals only, so think time
is the gap between two turns less an assumed answer time of the earlier one; a turn can only follow
its answer, which makes the trace a closed loop. `type` and `turn` are not kept: turns are counted.
"""

from array import array
from collections.abc import Iterator

import msgspec
import numpy as np

from splitpoint.inputs.trace import Trace
from splitpoint.inputs.traces.columns import (
    Line,
    Seconds,
    Tokens,
    assembled,
    decoded,
    extended,
    floats,
    ints,
    longs,
    think_times,
)
from splitpoint.inputs.traces.mooncake import identities_of

# Published: alibaba-edu/qwen-bailian-usagetraces-anon (2025), 16 tokens per id.
BLOCK_TOKENS = 16
# Assumed: a hosted service's time per output token, 40 tokens/s; only think times rest on it.
ANSWER_S_PER_TOKEN = 0.025
SOURCE = "Qwen Bailian usage traces (alibaba-edu/qwen-bailian-usagetraces-anon)"


class Request(msgspec.Struct):
    """One line. `timestamp` is in seconds, a root has the parent -1."""

    chat_id: str | int
    timestamp: Seconds
    input_length: Tokens
    output_length: Tokens
    parent_chat_id: str | int | None = -1
    hash_ids: list[int] = []


def read(lines: Iterator[Line], path: str) -> Trace:
    """The trace of a Bailian file; sessions are the trees of chats under one root."""
    decoder = msgspec.json.Decoder(Request)
    arrive, isl, osl = array("d"), array("i"), array("i")
    session, counts, ids, places = array("q"), array("q"), array("q"), array("q")
    roots: dict[str | int, int] = {}
    for line in lines:
        row = decoded(decoder, line)
        # A parent outside the file leaves its child the root of what follows.
        root = len(isl) if row.parent_chat_id is None else roots.get(row.parent_chat_id, len(isl))
        roots[row.chat_id] = root
        session.append(root)
        arrive.append(row.timestamp)
        isl.append(row.input_length)
        osl.append(row.output_length)
        counts.append(len(row.hash_ids))
        extended(ids, row.hash_ids, line.where)
        places.append(line.number)
    times, owner, answers = (
        floats(arrive),
        longs(session),
        ints(osl),
    )
    tokens = ints(isl)
    blocks = identities_of(
        tokens,
        longs(ids),
        longs(counts),
        places,
        path,
        BLOCK_TOKENS,
    )
    return assembled(
        path,
        arrive_s=times,
        isl=tokens,
        osl=answers,
        session=owner,
        think_s=think_times(times, owner, answers * np.float64(ANSWER_S_PER_TOKEN)),
        identities=blocks,
        closed=True,
        source=SOURCE,
        notes=(f"think times rest on an assumed {ANSWER_S_PER_TOKEN} s per output token",),
    )
