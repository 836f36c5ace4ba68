"""How requests find instances: what a pool is for, the routers, and their settings."""

from typing import Annotated, Literal

from msgspec import Meta

from splitpoint.record import Record

Role = Literal["mixed", "prefill", "decode"]
Routing = Literal[
    "random",
    "round_robin",
    "least_requests",
    "least_kv",
    "power_of_two",
    "session",
    "prefix_aware",
    "prefix_approx",
    "linear",
]

# Assumed: past any deployment's.
MAX_TOKENS = 2**31 - 1
MAX_WEIGHT = 1e6
MAX_SECONDS = 1e6

Weight = Annotated[float, Meta(ge=0, le=MAX_WEIGHT)]


class Scores(Record, frozen=True, kw_only=True):
    """Weights of the `linear` router: the scorers of llm-d's endpoint picker.

    Published defaults (Gateway API Inference Extension's default EndpointPickerConfig, 2025-26):
    prefix cache 3, queue 2, KV utilisation 2; Red Hat's llm-d 3.4 documents 3 and 2.
    """

    cache_weight: Weight = 3.0
    load_weight: Weight = 2.0


class Tree(Record, frozen=True, kw_only=True):
    """Settings of the `prefix_approx` router: what vllm-router and SGLang's router call
    `cache_aware`, with their published defaults (command line of both, 2025-26).

    `cache_threshold`: share of a prompt that must match. `balance_abs`, `balance_rel`: in-flight
    requests apart, and times as many, from which load alone decides. `tokens`: the most that the
    tree remembers; their `max_tree_size` of 2^26 characters, at 4 a token (assumed). `lost_s`: when
    the router restarts and knows no prompt any more; None: never. `holder`: which of the workers
    that were sent a start takes it: the first that was (sglang-router 0.3.2), or the one with the
    fewest requests (vllm-router 0.1.17); both were run beside ours. None: as the engine's own.
    """

    cache_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.3
    balance_abs: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 64
    balance_rel: Annotated[float, Meta(ge=0, le=MAX_WEIGHT)] = 1.5
    tokens: Annotated[int, Meta(ge=0, le=2**40)] = 2**24
    lost_s: Annotated[float, Meta(ge=0, le=MAX_SECONDS)] | None = None
    holder: Literal["first", "lightest"] | None = None
