"""Small worlds for tests: round step times, few blocks, traces written row by row."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from splitpoint.inputs.trace import Trace
from splitpoint.pricing.layout import Group
from splitpoint.sim import PoolSpec, World
from splitpoint.timing.curve import StepCurve
from splitpoint.timing.path import LinkSpec

MS = 10**9
FULL = Group(kind="full", layers=1)
STATE = Group(kind="state", layers=1, fixed=2)


def curve(
    decode_ms: int = 10, token_ms: int = 1, context_us: int = 0, drafts: int = 0
) -> StepCurve:
    """A decode step of `decode_ms`, a step with prefill of `token_ms` per token."""
    tokens = np.arange(2049, dtype=np.int64)
    return StepCurve(
        decode=np.full(129, decode_ms * MS, np.int64),
        decode_context=np.full(129, context_us * MS // 1000, np.int64),
        mixed=tokens * token_ms * MS,
        prefill_pair=0,
        drafts=drafts,
    )


def pool(**changes: Any) -> PoolSpec:
    """One mixed instance of 100 usable blocks of 16 tokens, 64 tokens a step."""
    fields: dict[str, Any] = {
        "role": "mixed",
        "replicas": 1,
        "dp": 1,
        "kv_blocks": 101,
        "block_tokens": 16,
        "groups": (FULL,),
        "in_flight": 0,
        "max_seqs": 16,
        "token_budget": 64,
        "prefix_caching": False,
        "curve": curve(),
    }
    return PoolSpec(**{**fields, **changes})


def mixed(routing: Any = "round_robin", timeout_s: float | None = None, **changes: Any) -> World:
    """A world of one mixed pool."""
    return World(pools=(pool(**changes),), routing=routing, timeout_s=timeout_s)


def split(
    prefill: dict[str, Any] | None = None,
    decode: dict[str, Any] | None = None,
    link: dict[str, Any] | None = None,
    **world: Any,
) -> World:
    """One prefill and one decode instance; 1 ms per token on the link, 5 ms latency."""
    path = {"bandwidth": 1000.0, "latency": 0.005, "bytes_per_token": 1.0, "fixed_bytes": 0.0}
    return World(
        pools=(
            pool(role="prefill", **(prefill or {})),
            pool(role="decode", **(decode or {})),
        ),
        **{"routing": "round_robin", "decode_routing": "round_robin", **world},
        link=LinkSpec(**{**path, **(link or {})}),
    )


@dataclass
class Row:
    """One request of a trace."""

    isl: int
    osl: int
    arrive_s: float = 0.0
    ids: list[int] = field(default_factory=list)
    session: int = -1
    turn: int = 0
    think_s: float = 0.0


def trace(*rows: Row, block_tokens: int = 16, closed: bool = False) -> Trace:
    """A trace of these rows; a row without a session is one of its own."""
    return Trace(
        name="small",
        arrive_s=np.array([row.arrive_s for row in rows]),
        isl=np.array([row.isl for row in rows], np.int32),
        osl=np.array([row.osl for row in rows], np.int32),
        session=np.array(
            [row.session if row.session >= 0 else 1000 + i for i, row in enumerate(rows)], np.int32
        ),
        turn=np.array([row.turn for row in rows], np.int32),
        think_s=np.array([row.think_s for row in rows]),
        block_starts=np.cumsum([0, *(len(row.ids) for row in rows)]).astype(np.int64),
        block_ids=np.array([name for row in rows for name in row.ids], np.int32),
        block_tokens=block_tokens,
        closed=closed,
    )
