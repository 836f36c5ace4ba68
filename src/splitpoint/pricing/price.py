"""The price of one request on one GPU rank, and of layouts side by side.

Everything is per GPU rank unless a name says otherwise. A model that does not fit is a result
with its shortfall.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.checks import require
from splitpoint.inputs.deployment import Topology, problems
from splitpoint.inputs.drafter import with_drafter
from splitpoint.inputs.engine import DraftMethod, Engine, EngineName, KvDtype
from splitpoint.inputs.gpu import GIB, Gpu
from splitpoint.inputs.model import Attention, Compressed, Latent, Model
from splitpoint.pricing.blocks import blocks_per_request, group_blocks, layout
from splitpoint.pricing.caches import kv_dtype_of
from splitpoint.pricing.concurrency import (
    Cost,
    bytes_for,
    costs,
    kv_tokens_reported,
    max_concurrency,
    num_blocks,
    requests_held,
)
from splitpoint.pricing.engines import resolved
from splitpoint.pricing.handoff import refusal
from splitpoint.pricing.ladder import SET_BY_USER, Ladder, Origin, RungName, ladder
from splitpoint.pricing.layout import GroupKind, KvLayout
from splitpoint.record import Record
from splitpoint.units import gib, parse_size

# A CUDA context takes 2.5 GiB or more on GB300 (vLLM blog 2026-09-21): above that a given
# non-torch figure probably has it inside.
MEETING_DEGREES = (1, 2, 4, 8)
KIND_ORDER: tuple[GroupKind, ...] = ("full", "window", "chunk", "state")
CONTEXT_TWICE = round(3.1 * GIB)


class PricedGroup(Record, frozen=True, kw_only=True):
    """Layers of one kind. `blocks`: pages that one request takes of them, one per layer and block;
    `pool_blocks`: blocks of the shared pool, each `group_layers` pages."""

    kind: GroupKind
    layers: int
    blocks: int
    pool_blocks: int
    block_tokens: int
    padding: int


class Request(Record, frozen=True, kw_only=True):
    """What one request takes. `blocks` are pages (one layer each), `pool_blocks` what the engine
    counts. Fixed bytes do not grow with the context; unused slots are allocated, never written."""

    tokens: int
    blocks: int
    pool_blocks: int
    bytes: int
    fixed_bytes: int
    fixed_share: float
    slots: int
    unused_slots: int
    unused_share: float


class PricedRung(Record, frozen=True, kw_only=True):
    """One rung of the ladder in bytes, where its number is from, and how far it may be off."""

    rung: RungName
    bytes: int
    origin: Origin
    source: str
    band: int


class Price(Record, frozen=True, kw_only=True):
    """What one request costs and what one rank holds.

    `unsharded_request_bytes`: the same request on one GPU without tensor parallelism.
    `max_concurrency` as the engine prints it, for `tokens`; `requests_held` whole ones, block 0
    left out. `shortfall`: bytes missing for one request.
    """

    model: str
    gpu: str | None
    topology: str
    engine: str
    kv_dtype: str
    block_tokens: int
    page_bytes: int
    group_layers: int
    block_bytes: int
    groups: tuple[PricedGroup, ...]
    request: Request
    unsharded_request_bytes: int
    ladder: tuple[PricedRung, ...]
    kv_bytes_available: int
    kv_bytes_band: int
    num_blocks: int
    max_concurrency: float
    requests_held: int
    kv_tokens_reported: int
    fits: bool
    shortfall: int
    costs: tuple[Cost, ...]
    warnings: tuple[str, ...]


class Row(Record, frozen=True, kw_only=True):
    """One layout of a comparison. Requests are of an instance: all its dp ranks together."""

    layout: str
    gpus: int
    block_tokens: int
    request_bytes: int
    weights_bytes: int
    kv_bytes_available: int
    requests_per_rank: int
    requests: int
    requests_per_gpu: float
    fits: bool
    shortfall: int


class Table(Record, frozen=True, kw_only=True):
    """Layouts side by side, in the order asked."""

    model: str
    gpu: str
    tokens: int
    rows: tuple[Row, ...]


class Question(Record, frozen=True, kw_only=True):
    """What `splitpoint price` is asked, read from its options."""

    model: Model
    gpu: Gpu | None
    topology: Topology
    engine: Engine
    context: int | None
    kv_bytes: int | None
    overrides: dict[str, int]

    @classmethod
    def of(
        cls,
        *,
        model: str,
        gpu: str | None,
        tp: int,
        dp: int,
        pp: int,
        ep: int,
        dcp: int = 1,
        engine: str,
        engine_version: str | None,
        kv_dtype: str,
        state_dtype: str,
        drafts: int,
        context: int | None,
        utilization: float | None,
        batched_tokens: int | None,
        max_seqs: int | None,
        prefix_caching: bool,
        block_size: int | None,
        kv_bytes_available: str | None,
        rungs: Sequence[str],
        draft_method: str | None = None,
        draft_model: str | None = None,
        weights_index: Path | None = None,
    ) -> "Question":
        """The question that these options ask, or a PlanError that names the option."""
        from splitpoint.inputs.facts import gpu as gpu_by_name
        from splitpoint.inputs.huggingface import load_model, with_index

        if (draft_model or draft_method) and not drafts:
            option = "--draft-model" if draft_model else "--draft-method"
            raise PlanError(option, "has nothing to draft", "give --drafts K")
        name = _word("--engine", engine, EngineName)
        if utilization == 0:
            raise PlanError("--utilization", "0 is out of range", "above 0, up to 1")
        settings = Engine(
            name=name,
            version=engine_version or "",
            utilization=utilization or 0.0,
            kv_dtype=_word("--kv-dtype", kv_dtype, KvDtype),
            state_dtype=_word("--state-dtype", state_dtype, KvDtype),
            drafts=drafts,
            draft_method=None
            if draft_method is None
            else _word("--draft-method", draft_method, DraftMethod),
            draft_model=draft_model,
            batched_tokens=batched_tokens,
            max_seqs=max_seqs,
            prefix_caching=prefix_caching,
            block_size=block_size,
        )
        require("--engine options", settings)
        subject = load_model(model)
        if weights_index is not None:
            subject = with_index(subject, weights_index)
        subject = with_drafter(subject, [settings])
        question = cls(
            model=subject,
            gpu=None if gpu is None else gpu_by_name(gpu),
            topology=Topology(tp=tp, dp=dp, pp=pp, ep=ep, dcp=dcp),
            engine=settings,
            context=context,
            kv_bytes=None if kv_bytes_available is None else _size(kv_bytes_available),
            overrides=dict(_rung_override(text) for text in rungs),
        )
        if question.gpu is None and question.kv_bytes is None:
            raise PlanError(
                "price", "knows no memory", "give --gpu NAME or --kv-bytes-available SIZE"
            )
        return question

    def price(self) -> Price:
        """The price of one request."""
        return price(
            self.model,
            self.gpu,
            self.topology,
            self.engine,
            context=self.context,
            overrides=self.overrides,
            kv_bytes=self.kv_bytes,
        )

    def compare(self, layouts: Sequence[str]) -> Table:
        """The layouts side by side."""
        if self.gpu is None:
            raise PlanError("--compare", "needs a GPU", "give --gpu NAME")
        if not layouts:
            raise PlanError("--compare", "names no layout", "such as tp8 tp4dp4 dp8ep8")
        return compare(
            self.model,
            self.gpu,
            [parse_layout(text) for text in layouts],
            self.engine,
            context=self.context,
            overrides=self.overrides,
        )


def price(
    model: Model,
    gpu: Gpu | None,
    topology: Topology,
    engine: Engine,
    *,
    context: int | None = None,
    overrides: Mapping[str, int] | None = None,
    kv_bytes: int | None = None,
) -> Price:
    """The price of a request of `context` tokens on one rank.

    Without a context it is the engine's longest length. `kv_bytes` replaces the ladder's result;
    without a GPU it is required.
    """
    _legal(topology, model)
    tokens = _tokens(model, engine, context)
    settled = resolved(
        engine if engine.max_len else replace(engine, max_len=tokens), gpu, topology, model
    )
    kv = layout(model, topology, settled)
    rungs = None
    if gpu is not None:
        given = dict(overrides or {})
        if kv_bytes is not None:
            given["kv"] = kv_bytes
        rungs = ladder(model, gpu, topology, settled, overrides=given)
    pool = _pool(rungs, kv_bytes)
    need = bytes_for(kv, tokens)
    unsharded = _unsharded_bytes(model, topology, engine, gpu, tokens)
    held = requests_held(kv, pool, tokens)
    request = _request(kv, tokens)
    return Price(
        model=model.name,
        gpu=None if gpu is None else gpu.name,
        topology=str(topology),
        engine=f"{settled.name} {settled.version}",
        kv_dtype=kv_dtype_of(model, settled),
        block_tokens=kv.block_tokens,
        page_bytes=kv.page_bytes,
        group_layers=kv.group_layers,
        block_bytes=kv.block_bytes,
        groups=_priced_groups(kv, tokens),
        request=request,
        unsharded_request_bytes=unsharded,
        ladder=() if rungs is None else _priced_rungs(rungs),
        kv_bytes_available=pool,
        kv_bytes_band=0 if rungs is None else rungs.band,
        num_blocks=num_blocks(kv, pool),
        max_concurrency=max_concurrency(kv, pool, tokens),
        requests_held=held,
        kv_tokens_reported=kv_tokens_reported(
            kv, pool, settled.max_len or tokens, settled, topology
        ),
        fits=held > 0,
        shortfall=_shortfall(rungs, pool, need) if held == 0 else 0,
        costs=()
        if gpu is None or kv_bytes is not None
        else costs(model, gpu, topology, engine, tokens, overrides=overrides or {}),
        warnings=tuple(_warnings(model, topology, settled, kv, request, unsharded, held, rungs)),
    )


def compare(
    model: Model,
    gpu: Gpu,
    layouts: Sequence[Topology],
    engine: Engine,
    *,
    context: int | None = None,
    overrides: Mapping[str, int] | None = None,
) -> Table:
    """Layouts of one model on one GPU side by side, for requests of `context` tokens."""
    tokens = _tokens(model, engine, context)
    return Table(
        model=model.name,
        gpu=gpu.name,
        tokens=tokens,
        rows=tuple(_row(model, gpu, t, engine, tokens, overrides or {}) for t in layouts),
    )


def parse_layout(text: str) -> Topology:
    """The topology of "tp4dp4ep16" or "tp8dcp8": degrees in any order, ep without a number means
    tp x dp."""
    where = f"layout {text[:40]!r}"
    parts = re.findall(r"(dcp|tp|dp|pp|ep)(\d{0,5})", text.lower())
    if not parts or "".join(name + degree for name, degree in parts) != text.lower():
        raise PlanError(where, "is not a layout", "such as tp8, tp4dp4 or dp8ep8")
    degrees: dict[str, int] = {}
    for name, degree in parts:
        if name in degrees:
            raise PlanError(where, f"gives {name} twice", "give each degree once")
        if not degree and name != "ep":
            raise PlanError(where, f"gives {name} without a number", f"such as {name}8")
        degrees[name] = int(degree) if degree else 0
    if "ep" in degrees and degrees["ep"] == 0 and re.search(r"ep0", text.lower()) is None:
        degrees["ep"] = degrees.get("tp", 1) * degrees.get("dp", 1)
    if min(degrees.values()) < 1:
        raise PlanError(where, "has a degree of 0", "degrees start at 1")
    return Topology(**degrees)


def _row(
    model: Model,
    gpu: Gpu,
    topology: Topology,
    engine: Engine,
    tokens: int,
    overrides: Mapping[str, int],
) -> Row:
    _legal(topology, model)
    settled = resolved(
        engine if engine.max_len else replace(engine, max_len=tokens), gpu, topology, model
    )
    kv = layout(model, topology, settled)
    rungs = ladder(model, gpu, topology, settled, overrides=overrides)
    held = requests_held(kv, rungs.kv_bytes, tokens)
    return Row(
        layout=str(topology),
        gpus=topology.gpus,
        block_tokens=kv.block_tokens,
        request_bytes=blocks_per_request(kv, tokens) * kv.block_bytes,
        weights_bytes=rungs["weights"].bytes,
        kv_bytes_available=rungs.kv_bytes,
        requests_per_rank=held,
        requests=held * topology.dp,
        requests_per_gpu=held * topology.dp / topology.gpus,
        fits=held > 0,
        shortfall=_shortfall(rungs, rungs.kv_bytes, bytes_for(kv, tokens)) if held == 0 else 0,
    )


def _tokens(model: Model, engine: Engine, context: int | None) -> int:
    tokens = context or engine.max_len or model.max_len
    longest = engine.max_len or max(model.max_len, 1)
    if tokens > longest:
        raise PlanError(
            "--context",
            f"{tokens:,} tokens are past the longest length {longest:,}",
            "ask for less",
        )
    return tokens


def _legal(topology: Topology, model: Model) -> None:
    faults = problems(topology, model)
    if faults:
        raise PlanError(f"layout {topology}", faults[0], "; ".join(faults[1:]))


def _pool(rungs: Ladder | None, kv_bytes: int | None) -> int:
    if kv_bytes is not None:
        return kv_bytes
    if rungs is None:
        raise PlanError("price", "knows no memory", "give a GPU or the bytes of the KV pool")
    return rungs.kv_bytes


def _shortfall(rungs: Ladder | None, pool: int, need: int) -> int:
    missing = 0 if rungs is None else rungs.shortfall
    return missing + need - pool


def _unsharded_bytes(
    model: Model, topology: Topology, engine: Engine, gpu: Gpu | None, tokens: int
) -> int:
    one = Topology()
    kv = layout(model, one, resolved(engine, gpu, one, model))
    return blocks_per_request(kv, tokens) * kv.block_bytes


def _request(kv: KvLayout, tokens: int) -> Request:
    pool_blocks = blocks_per_request(kv, tokens)
    fixed = sum(group.fixed for group in kv.groups)
    full = next((group for group in kv.groups if group.kind == "full"), None)
    block = kv.block_tokens if full is None else full.block_tokens or kv.block_tokens
    slots = 0 if full is None else group_blocks(kv, full, tokens) * block * kv.dcp
    unused = max(slots - tokens, 0)
    return Request(
        tokens=tokens,
        blocks=pool_blocks * kv.group_layers,
        pool_blocks=pool_blocks,
        bytes=pool_blocks * kv.block_bytes,
        fixed_bytes=fixed * kv.block_bytes,
        fixed_share=fixed / pool_blocks,
        slots=slots,
        unused_slots=unused,
        unused_share=unused / slots if slots else 0.0,
    )


def _priced_groups(kv: KvLayout, tokens: int) -> tuple[PricedGroup, ...]:
    kinds = sorted(
        {(g.kind, g.window, g.block_tokens) for g in kv.groups},
        key=lambda key: (KIND_ORDER.index(key[0]), key[1:]),
    )
    priced = []
    for kind, window, block_tokens in kinds:
        alike = [
            g
            for g in kv.groups
            if (g.kind, g.window, g.block_tokens) == (kind, window, block_tokens)
        ]
        taken = sum(group_blocks(kv, group, tokens) for group in alike)
        priced.append(
            PricedGroup(
                kind=kind,
                layers=sum(group.layers for group in alike),
                blocks=taken * kv.group_layers,
                pool_blocks=taken,
                block_tokens=block_tokens or kv.block_tokens,
                padding=sum(group.padding for group in alike),
            )
        )
    return tuple(priced)


def _priced_rungs(rungs: Ladder) -> tuple[PricedRung, ...]:
    return tuple(
        PricedRung(
            rung=rung.name,
            bytes=rung.bytes,
            origin=rung.origin,
            source=rung.source,
            band=rung.band,
        )
        for rung in rungs.rungs
    )


def _warnings(
    model: Model,
    topology: Topology,
    engine: Engine,
    kv: KvLayout,
    request: Request,
    unsharded: int,
    held: int,
    rungs: Ladder | None,
) -> list[str]:
    """Where published practice goes wrong with these settings."""
    words = []
    tp, dcp = topology.tp, topology.dcp
    mixers = [layer.mixer for layer in model.layers]
    if tp > dcp and any(isinstance(mixer, Latent | Compressed) for mixer in mixers):
        same = f"all {tp} ranks" if dcp == 1 else f"{tp // dcp} of {tp} ranks each"
        words.append(
            f"latent attention is not divided by tp: {same} hold the same cache; "
            "dp ranks would each hold other requests"
        )
    heads = [m.kv_heads for m in mixers if isinstance(m, Attention)]
    if heads and tp // dcp > max(heads):
        copies = tp // dcp // max(heads)
        words.append(f"{max(heads)} key-value heads on {tp} ranks are copied {copies} times")
    if tp > 1 and unsharded != request.bytes:
        words.append(
            f"a request takes {gib(request.bytes)} of a rank, {gib(unsharded)} unsharded: "
            "dividing a rank's memory by the unsharded bytes gives too few requests"
        )
    words += _meeting_warnings(model, topology, engine, kv)
    if any(group.kind == "state" for group in kv.groups) and engine.drafts:
        words.append(
            f"each of {sum(g.kind == 'state' for g in kv.groups)} state groups holds "
            f"{engine.drafts} more whole blocks per request for its drafts"
        )
    words += [f"inferred, not stated: {told}" for told in model.inferred]
    if engine.drafts and model.drafter is not None:
        words += model.drafter.inferred
    if 0 < held < (engine.max_seqs or 0):
        words.append(
            f"the pool holds {held:,} such requests, max_num_seqs admits {engine.max_seqs:,}: "
            "past that the engine preempts and recomputes"
        )
    if rungs is not None:
        words += _ladder_warnings(rungs)
    return words


def _meeting_warnings(
    model: Model, topology: Topology, engine: Engine, kv: KvLayout
) -> Iterator[str]:
    """Other tensor parallel degrees of this model whose blocks could not be handed over."""
    apart = []
    for tp in MEETING_DEGREES:
        other = replace(topology, tp=tp, ep=1, dp=1, dcp=1)
        if problems(other, model):
            continue
        theirs = layout(model, other, engine)
        if theirs.block_tokens != kv.block_tokens and refusal(kv, theirs, engine, engine):
            apart.append(f"tp {tp} ({theirs.block_tokens:,})")
    if apart:
        yield (
            f"blocks of {kv.block_tokens:,} tokens cannot be handed between prefill and decode "
            f"pools of {', '.join(apart)}"
        )


def _ladder_warnings(rungs: Ladder) -> list[str]:
    words = []
    non_torch = rungs["non_torch"]
    if non_torch.source == SET_BY_USER and non_torch.bytes > CONTEXT_TWICE:
        words.append(
            "non_torch this large may have the CUDA context inside (2.5 to 3.1 GiB on GB300), "
            "which the reported total already leaves out"
        )
    assumed = [rung.name for rung in rungs.rungs if rung.origin == "assumed" and rung.bytes]
    if assumed and rungs["kv"].source != SET_BY_USER:
        off = f" (together off by up to {gib(rungs.band)})" if rungs.band else ""
        words.append(f"the pool rests on estimates of {', '.join(assumed)}{off}")
    return words


def _word(option: str, text: str, kind: object) -> Any:
    allowed = _literals(kind)
    if text not in allowed:
        raise PlanError(option, f"{text[:40]!r} is not known", f"one of {', '.join(allowed)}")
    return text


def _literals(kind: object) -> list[str]:
    found = []
    for value in get_args(kind):
        found += [value] if isinstance(value, str) else _literals(value)
    return found


def _size(text: str) -> int:
    if text.strip().isascii() and text.strip().isdigit() and len(text) < 20:
        return parse_size(int(text), "--kv-bytes-available")
    return parse_size(text, "--kv-bytes-available")


def _rung_override(text: str) -> tuple[str, int]:
    """The rung and bytes of "weights=169.28": GiB unless it says otherwise."""
    name, equals, value = text.partition("=")
    where = f"--set {text[:60]}"
    if not equals:
        raise PlanError(where, "has no value", "such as --set weights=169.28")
    value = value.strip()
    plain = re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value) is not None
    return name.strip(), parse_size(f"{value} GiB" if plain else value, where)
