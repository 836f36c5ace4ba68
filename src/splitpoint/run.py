"""What one run gave: per-request columns and per-instance series, simulated or measured.

The simulator and the measuring client both write a `Run`, so every metric, verdict and
comparison exists once. Times are seconds from the run's start; NaN where a moment never came.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from splitpoint.record import Record

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

OUTCOMES = ("done", "timed_out", "aborted", "infeasible", "unfinished")


class Requests(Record, frozen=True, kw_only=True):
    """Columns of n requests, in trace order.

    Mixed pools leave the transfer columns NaN and `decode_instance` equal to
    `prefill_instance`. `hit_tokens`: input tokens found in the prefix cache where prefill ran.
    `outcome` indexes `OUTCOMES`.
    """

    isl: Ints
    osl: Ints
    session: Ints
    turn: Ints
    arrive_s: Floats
    prefill_start_s: Floats
    prefill_end_s: Floats
    transfer_start_s: Floats
    transfer_end_s: Floats
    first_token_s: Floats
    end_s: Floats
    hit_tokens: Ints
    preemptions: Ints
    prefill_instance: Ints
    decode_instance: Ints
    outcome: Ints


class Series(Record, frozen=True, kw_only=True):
    """State at change points, rows in time order: which instance, when, and its counts.

    `kv_used`: blocks held by live requests; `kv_cached`: free blocks that still hold a prefix;
    `held`: blocks of finished prefills that wait for their transfer (part of `kv_used`).
    """

    instance: Ints
    time_s: Floats
    kv_used: Ints
    kv_cached: Ints
    held: Ints
    running: Ints
    waiting: Ints


class Instances(Record, frozen=True, kw_only=True):
    """Columns of m KV pools (an instance of dp ranks has dp rows): totals over the run."""

    pool: Ints
    instance: Ints
    rank: Ints
    kv_blocks: Ints
    busy_s: Floats
    prefill_steps: NDArray[np.int64]
    decode_steps: NDArray[np.int64]
    mixed_steps: NDArray[np.int64]
    preemptions: Ints
    hit_tokens: NDArray[np.int64]
    queried_tokens: NDArray[np.int64]


class Run(Record, frozen=True, kw_only=True):
    """A finished run. `roles` names the role of each pool, `gpus` counts all GPUs."""

    name: str
    origin: Literal["simulated", "measured"]
    roles: tuple[str, ...]
    gpus: int
    duration_s: float
    requests: Requests
    instances: Instances
    series: Series
    notes: tuple[str, ...] = ()
