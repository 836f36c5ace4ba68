"""Messages between the ranks of one instance: what a step sends, and how long that takes.

seconds = latency + hops x hop + bytes on the busiest link / (bandwidth x share). Inside an NVLink
domain (or a node) the inside link serves; a group that spans several goes through it and the
network in turn.
"""

import math
from collections import Counter
from functools import cache
from importlib import resources
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.drafter import draft_layers, method_of
from splitpoint.inputs.engine import Engine, EngineName
from splitpoint.inputs.gpu import Gpu, Link
from splitpoint.inputs.model import Attention, Experts, Latent, Layer, Model
from splitpoint.pricing.caches import kv_dtype_of
from splitpoint.pricing.engines.rules import Version, version_of
from splitpoint.record import Record
from splitpoint.timing.operators import (
    ACTIVATION_BYTES,
    HIDDEN_BYTES,
    STORED_BYTES,
    Array,
    Batch,
    exchanged,
    later_pass,
    tokens,
)
from splitpoint.units import MIB

Pattern = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]

# vLLM sums by FlashInfer's kernels from 0.29 on (VLLM_ALLREDUCE_USE_FLASHINFER in envs.py of 0.28
# and 0.29; in main since pull request 52998 of 2026-08-20) up to so many MiB, by GPU and ranks
# (FI_ALLREDUCE_FUSION_MAX_SIZE_MB and FI_MNNVL_ALLREDUCE_MAX_SIZE_MB of 0.29, the latter measured
# in pull request 53318). Hopper's limits are lower and its kernels others: not counted.
FLASHINFER_SUMS = Version(0, 29)
FLASHINFER_MIB: dict[str, dict[int, int]] = {
    "B200": {2: 64, 4: 32, 8: 1},
    "GB200": {2: 64, 4: 32, 8: 1, 16: 64},
    "B300": {2: 64, 4: 80, 8: 64},
    "GB300": {2: 64, 4: 80, 8: 64, 16: 8},
}


class Exchange(Record, frozen=True, kw_only=True):
    """One collective, `count` times a step: `bytes` is the whole message that every rank ends up
    with (all_reduce, all_gather), starts from (reduce_scatter), or that one rank sends
    (all_to_all, send). `ranks` take part; `stride` is the distance between neighbours. `walks`:
    its bytes grow with what is already cached."""

    name: str
    pattern: Pattern
    bytes: Array
    ranks: int
    stride: int = 1
    count: int = 1
    walks: bool = False


class LinkSpeed(Record, frozen=True, kw_only=True):
    """What a kind of link gives to collectives (of one architecture, pattern and engine, which may
    have kernels of its own, and of ranks that lie within so many neighbours; None: any).

    `base`: seconds before the first byte; `hop`: seconds per further rank; `share`: of the
    bandwidth that large messages reach; `crowding`: how bytes slow down on a shared bus, as
    (ranks / 2)^crowding. Errors are those of measured rows that the fit did not see.
    """

    kind: str
    architecture: str | None = None
    pattern: Pattern | None = None
    engine: EngineName | None = None
    within: int | None = None
    base: float
    hop: float
    share: float
    crowding: float = 0.0
    samples: int = 0
    error_median: float | None = None
    error_p90: float | None = None
    origin: str


class _Links(Record, frozen=True, kw_only=True):
    links: tuple[LinkSpeed, ...]


def stage_exchanges(
    layers: tuple[Layer, ...], model: Model, topology: Topology, engine: Engine, batch: Batch
) -> tuple[Exchange, ...]:
    """Collectives of a stage: the sums of tensor-parallel halves, experts' dispatch and combine,
    and the hidden states handed to the next stage."""
    new = tokens(batch, engine.drafts)
    hidden = new * model.hidden * HIDDEN_BYTES
    result = []
    mixers = sum(layer.mixer is not None for layer in layers)
    dense = sum(layer.ffn is not None and not isinstance(layer.ffn, Experts) for layer in layers)
    routed = [layer.ffn for layer in layers if isinstance(layer.ffn, Experts)]
    if topology.tp > 1:
        wide = sum(isinstance(a := layer.mixer, Attention) and a.wide_norm for layer in layers)
        # The squares of a token's queries and of its keys, in fp32 (vLLM mamba/linear_attn.py).
        result.append(_reduce("attention.norm", new * 8.0, topology.tp, wide))
        result.append(_reduce("mixer.sum", hidden, topology.tp, mixers))
        result.append(_reduce("mlp.sum", hidden, topology.tp, dense))
    if topology.dcp > 1:
        for mixer, times in Counter(layer.mixer for layer in layers).items():
            if isinstance(mixer, Attention | Latent):
                result += _context_exchanges(mixer, times, model, topology, engine, batch)
    group = topology.tp * topology.dp
    if routed and topology.dp > 1:
        result += _dispatch(routed[0], model, topology, engine, batch, len(routed))
    elif routed and group > 1:
        result.append(_reduce("experts.sum", hidden, group, len(routed)))
    if topology.pp > 1:
        result.append(
            Exchange(
                name="stage.send",
                pattern="send",
                bytes=2 * hidden / topology.tp,
                ranks=2,
                stride=topology.tp * topology.dp,
            )
        )
    return tuple(e for e in result if e.count)


def embedding_exchanges(model: Model, topology: Topology, new: Array) -> tuple[Exchange, ...]:
    """The sum of a token's embedding over the ranks that the table is cut by (vLLM 0.32
    vocab_parallel_embedding.py; SGLang and TensorRT-LLM taken to do the same)."""
    if topology.tp == 1:
        return ()
    return (_reduce("embedding.sum", new * model.hidden * HIDDEN_BYTES, topology.tp, 1),)


def logits_exchanges(model: Model, topology: Topology, rows: Array) -> tuple[Exchange, ...]:
    """Logits gathered from the ranks that the head is cut by, in 16 bit (vLLM 0.32
    logits_processor.py, which gathers on every rank)."""
    if topology.tp == 1:
        return ()
    size = rows * model.vocab * HIDDEN_BYTES
    return (
        Exchange(
            name="logits.gather", pattern="all_gather", bytes=size, ranks=topology.tp, count=1
        ),
    )


def draft_exchanges(
    model: Model, topology: Topology, engine: Engine, batch: Batch
) -> tuple[Exchange, ...]:
    """Collectives of what drafts, on the last stage: once with all tokens of the step, then once
    per further draft with a token of every decoding sequence."""
    layers = draft_layers(engine, model)
    if not engine.drafts or not layers:
        return ()
    own = model if method_of(engine, model) == "mtp" else model.drafter
    assert own is not None
    whole = replace(topology, pp=1)
    plain, single = later_pass(engine, batch)
    first = _pass_exchanges(layers, own, whole, engine, batch)
    later = _pass_exchanges(layers, own, whole, plain, single)
    repeated = (replace(sent, count=sent.count * (engine.drafts - 1)) for sent in later)
    named = (replace(sent, name=f"draft.{sent.name}") for sent in (*first, *repeated))
    return tuple(sent for sent in named if sent.count)


def _pass_exchanges(
    layers: tuple[Layer, ...], model: Model, topology: Topology, engine: Engine, batch: Batch
) -> tuple[Exchange, ...]:
    """Collectives of one pass of what drafts, its embeddings and its logits among them."""
    return (
        *embedding_exchanges(model, topology, tokens(batch, engine.drafts)),
        *stage_exchanges(layers, model, topology, engine, batch),
        *logits_exchanges(model, topology, batch.rows),
    )


def seconds(exchange: Exchange, gpu: Gpu, engine: Engine) -> Array:
    """Seconds of all of an exchange's repetitions; 0 where nothing is sent."""
    span = exchange.ranks * exchange.stride
    if span <= gpu.domain:
        once = _on(gpu.inside, gpu, exchange, exchange.bytes, exchange.ranks, engine)
    else:
        # A hierarchy: what near ranks shared inside, each takes its part of to the far ones.
        near = min(exchange.ranks, max(1, gpu.domain // exchange.stride))
        part = exchange.bytes if exchange.pattern == "send" else exchange.bytes / near
        once = _on(gpu.outside, gpu, exchange, part, -(-exchange.ranks // near), engine)
        if near > 1:
            once = once + _on(gpu.inside, gpu, exchange, exchange.bytes, near, engine)
    return np.asarray(np.where(exchange.bytes > 0, exchange.count * once, 0.0))


def link_speed(
    link: Link, architecture: str, pattern: Pattern, engine: EngineName, span: float = math.inf
) -> LinkSpeed:
    """The speed entry of a link that says most about it: pattern before architecture before
    engine before the neighbours that the ranks `span`."""
    table = [
        e
        for e in _speeds()
        if e.kind == link.kind
        and e.engine in (None, engine)
        and (e.within is None or span <= e.within)
    ]
    fitting = [
        e for e in table if e.pattern in (None, pattern) and e.architecture in (None, architecture)
    ]
    nearest = fitting or [e for e in table if e.pattern == pattern] or table
    return max(
        nearest,
        key=lambda e: (
            e.pattern == pattern,
            e.architecture == architecture,
            e.engine == engine,
            -(math.inf if e.within is None else e.within),
        ),
    )


def message_seconds(
    speed: LinkSpeed, pattern: Pattern, size: Array, ranks: Array | int, bandwidth: float
) -> Array:
    """base + hop x (ranks - 1) + bytes through the busiest link / (bandwidth x share)."""
    crowd = (np.maximum(ranks, 2) / 2.0) ** speed.crowding
    wire = size * travelled(pattern, ranks) * crowd / (bandwidth * speed.share)
    return np.asarray(speed.base + speed.hop * (ranks - 1) + wire)


def travelled(pattern: Pattern, ranks: Array | int) -> Array | float:
    """The share of a message's bytes that crosses the busiest link."""
    others = (ranks - 1) / ranks
    return {
        "all_reduce": 2.0 * others,
        "all_gather": others,
        "reduce_scatter": others,
        "all_to_all": others,
        "send": 1.0,
    }[pattern]


def _on(link: Link, gpu: Gpu, exchange: Exchange, size: Array, ranks: int, engine: Engine) -> Array:
    def taken(kernels: EngineName) -> Array:
        speed = link_speed(
            link, gpu.architecture, exchange.pattern, kernels, ranks * exchange.stride
        )
        return message_seconds(speed, exchange.pattern, size, ranks, link.bandwidth)

    limit = _flashinfer_bytes(exchange, gpu, engine)
    if not limit:
        return taken(engine.name)
    # FlashInfer's kernels are TensorRT-LLM's, and as fast: 64 MiB over 8 GB300 take 180.9 us, 8 MiB
    # over 16 take 36.9 (pull request 53318), in TensorRT-LLM's table 181.4 and 36.0. The limits are
    # where vLLM's own begin to be faster.
    own = taken(engine.name)
    return np.where(size <= limit, np.minimum(taken("trtllm"), own), own)


def _flashinfer_bytes(exchange: Exchange, gpu: Gpu, engine: Engine) -> int:
    """Bytes of the largest sum that vLLM leaves to FlashInfer; 0: none, as where ranks lie outside
    one NVLink domain."""
    told = engine.flashinfer_sums
    uses = version_of(engine) >= FLASHINFER_SUMS if told is None else told
    inside = exchange.ranks * exchange.stride <= gpu.domain
    if engine.name != "vllm" or not uses or exchange.pattern != "all_reduce" or not inside:
        return 0
    return FLASHINFER_MIB.get(gpu.name, {}).get(exchange.ranks, 0) * MIB


def _reduce(name: str, size: Array, ranks: int, count: int) -> Exchange:
    return Exchange(name=name, pattern="all_reduce", bytes=size, ranks=ranks, count=count)


def _dispatch(
    ffn: Experts, model: Model, topology: Topology, engine: Engine, batch: Batch, count: int
) -> list[Exchange]:
    """Tokens of all attention ranks to their experts and back: the cheaper of all-gather with
    reduce-scatter and of all-to-all, which sends a token once to each rank that it needs.

    SGLang gathers a step with prefill by a sum over all ranks, each of which adds its tokens to a
    buffer of zeros, and sums up the results the same way (`DpPaddingMode.SUM_LEN`,
    layers/dp_attention.py and communicator.py, read 2026-11-30).
    """
    dim = ffn.latent_dim or model.hidden
    new = tokens(batch, engine.drafts)
    there = ACTIVATION_BYTES[model.weights.experts]
    ranks = topology.tp * topology.dp
    distinct = ranks * (1.0 - (1.0 - 1.0 / ranks) ** ffn.active)
    gathered = new * topology.dp * dim
    # Ranks of one tensor-parallel group hold the same tokens: each sends its part.
    sent = new / topology.tp * distinct * dim
    if exchanged(ffn, topology, engine):
        # Each rank of a group has the results of its part of the tokens; attention needs all
        # (vLLM 0.32, `is_sequence_parallel` of its mixture blocks).
        whole = Exchange(
            name="experts.share",
            pattern="all_gather",
            bytes=new * model.hidden * HIDDEN_BYTES,
            ranks=topology.tp,
            count=count if topology.tp > 1 else 0,
        )
        return [
            whole,
            Exchange(
                name="experts.dispatch",
                pattern="all_to_all",
                bytes=sent * there,
                ranks=ranks,
                count=count,
            ),
            Exchange(
                name="experts.combine",
                pattern="all_to_all",
                bytes=sent * HIDDEN_BYTES,
                ranks=ranks,
                count=count,
            ),
        ]
    summed = (batch.prefill > 0) & (engine.name == "sglang")
    buffer = np.where(summed, new * topology.dp * model.hidden * HIDDEN_BYTES, 0.0)
    gathered = np.where(summed, 0.0, gathered)
    exchanges = [
        _reduce("experts.sums", buffer, ranks, 2 * count if engine.name == "sglang" else 0),
        Exchange(
            name="experts.gather",
            pattern="all_gather",
            bytes=gathered * there,
            ranks=topology.dp,
            stride=topology.tp,
            count=count,
        ),
        Exchange(
            name="experts.scatter",
            pattern="reduce_scatter",
            bytes=gathered * HIDDEN_BYTES,
            ranks=topology.dp,
            stride=topology.tp,
            count=count,
        ),
    ]
    if topology.tp > 1:
        own = np.where(summed, 0.0, new * dim * HIDDEN_BYTES)
        exchanges.append(_reduce("experts.sum", own, topology.tp, count))
    return exchanges


def _context_exchanges(
    mixer: Attention | Latent,
    count: int,
    model: Model,
    topology: Topology,
    engine: Engine,
    batch: Batch,
) -> list[Exchange]:
    """What the ranks of dcp tell each other about `count` layers (vLLM 0.32, backend ag_rs):
    queries are gathered; each rank's result over its share of the keys is weighed by the gathered
    logarithms of the sums and summed up. Prompts do the same, but those of latent attention gather
    the cached vectors of their prefix, once a chunk (under an indexer they work as decodes do)."""
    dcp = topology.dcp
    heads = -(-mixer.heads // topology.tp) * dcp
    new = tokens(batch, engine.drafts)
    gathers: list[Exchange] = []
    if isinstance(mixer, Attention):
        query, out = mixer.head_dim, mixer.value_dim
    else:
        query, out = mixer.kv_rank + mixer.rope_dim, mixer.kv_rank
        if mixer.indexer is None:
            new = new - batch.prefill
            prefix = batch.pairs / np.maximum(batch.prefill, 1.0)
            size = prefix * query * STORED_BYTES[kv_dtype_of(model, engine)]
            gathers.append(
                Exchange(
                    name="context.prefix",
                    pattern="all_gather",
                    bytes=size,
                    ranks=dcp,
                    count=count,
                    walks=True,
                )
            )
    sizes: dict[str, tuple[Pattern, Array]] = {
        "queries": ("all_gather", new * heads * query * HIDDEN_BYTES),
        "sums": ("all_gather", new * heads * dcp * 4.0),
        "results": ("reduce_scatter", new * heads * out * HIDDEN_BYTES),
    }
    return gathers + [
        Exchange(name=f"context.{name}", pattern=pattern, bytes=size, ranks=dcp, count=count)
        for name, (pattern, size) in sizes.items()
    ]


@cache
def _speeds() -> tuple[LinkSpeed, ...]:
    file = resources.files("splitpoint") / "facts" / "efficiency" / "links.toml"
    return msgspec.toml.decode(file.read_bytes(), type=_Links).links
