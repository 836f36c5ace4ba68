"""The world of the speed benchmarks: eight mixed instances whose steps take an assumed time."""

import numpy as np

from splitpoint.inputs.routing import Routing
from splitpoint.pricing.layout import Group
from splitpoint.sim import PoolSpec, World
from splitpoint.timing.curve import StepCurve

INSTANCES = 8


def world(routing: Routing, *, blocks: int, block_tokens: int = 16, caching: bool = False) -> World:
    """Eight mixed instances whose steps last about as long as those of a 30B MoE on one GPU:
    8 ms + 20 us a sequence + 24 ns a context token; 130 us a prefill token. Assumed: only the
    number of events matters here."""
    seats, budget = 256, 8192
    n = np.arange(seats + 1, dtype=np.int64)
    curve = StepCurve(
        decode=8_000_000_000 + n * 20_000_000,
        decode_context=np.full(seats + 1, 24_000, np.int64),
        mixed=8_000_000_000 + np.arange(budget + 1, dtype=np.int64) * 130_000_000,
        prefill_pair=1500,
    )
    pool = PoolSpec(
        role="mixed",
        replicas=INSTANCES,
        dp=1,
        kv_blocks=blocks,
        block_tokens=block_tokens,
        groups=(Group(kind="full", layers=48),),
        in_flight=2 * budget,
        max_seqs=seats,
        token_budget=budget,
        prefix_caching=caching,
        curve=curve,
    )
    return World(pools=(pool,), routing=routing)
