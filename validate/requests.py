"""The traces of measured servers whose requests share no prefix."""

import numpy as np

from splitpoint.inputs.trace import Trace


def unshared(arrive_s: np.ndarray, isl: np.ndarray, osl: np.ndarray) -> Trace:
    """Requests that share nothing, each a session of one turn."""
    n = len(isl)
    return Trace(
        name="replay",
        arrive_s=arrive_s.astype(np.float64),
        isl=isl.astype(np.int32),
        osl=osl.astype(np.int32),
        session=np.arange(n, dtype=np.int32),
        turn=np.zeros(n, np.int32),
        think_s=np.zeros(n),
        block_starts=np.zeros(n + 1, np.int64),
        block_ids=np.zeros(0, np.int32),
        block_tokens=16,
    )
