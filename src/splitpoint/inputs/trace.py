"""A request trace as columns. Order is arrival order within a session, sessions interleaved.

A closed loop is the default reading of sessions: turn 0 arrives at `arrive_s`, turn n+1 arrives
`think_s` after turn n ends. An open loop takes every `arrive_s` as it stands.
"""

import numpy as np
from numpy.typing import NDArray

from splitpoint.record import Record

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


class Trace(Record, frozen=True, kw_only=True):
    """Columns of n requests, sorted by `arrive_s`.

    `isl`, `osl`: input and output tokens. `session`: id, equal for turns of one conversation
    (each request its own where the source has none). `turn`: 0, 1, ... inside the session.
    `think_s`: seconds between the end of the previous turn and this one's arrival (0 at turn 0).
    Prefix identity of request i: `block_ids[block_starts[i]:block_starts[i+1]]`, one id per
    `block_tokens` input tokens (the last one may be partial); equal leading ids mean equal
    leading tokens. A source without identities has empty ids: nothing is ever reused.
    """

    name: str
    arrive_s: Floats
    isl: Ints
    osl: Ints
    session: Ints
    turn: Ints
    think_s: Floats
    block_starts: Longs
    block_ids: Ints
    block_tokens: int
    source: str = ""

    def __len__(self) -> int:
        return len(self.isl)
