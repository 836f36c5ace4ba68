"""What an engine printed beside what we predict, rung by rung; the first that differs is marked.

Later figures are predicted from the printed ones above them (KV tokens from the printed KV
memory), so that one wrong rung is not counted again below it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs import facts
from splitpoint.inputs.deployment import Topology, problems
from splitpoint.inputs.drafter import with_drafter
from splitpoint.inputs.engine import DraftMethod, Engine, EngineName, GraphMode, KvDtype
from splitpoint.inputs.files import open_text
from splitpoint.inputs.gpu import GIB, Gpu
from splitpoint.inputs.huggingface import load_model
from splitpoint.inputs.model import Model
from splitpoint.inputs.startup import FigureName, Seen, Settings, StartupLog, parse
from splitpoint.pricing.blocks import layout
from splitpoint.pricing.concurrency import kv_tokens_reported, max_concurrency, num_blocks
from splitpoint.pricing.engines import resolved, rules
from splitpoint.pricing.handoff import refusal
from splitpoint.pricing.ladder import ladder
from splitpoint.pricing.layout import KvLayout
from splitpoint.record import Record

TOLERANCE = 0.02  # a rung that differs by more is marked
PROFILED: tuple[FigureName, ...] = ("graph_estimate", "peak_activation", "non_torch")
ROWS: tuple[FigureName, ...] = (
    "total",
    "utilization",
    "requested",
    "weights",
    "peak_activation",
    "non_torch",
    "graph_estimate",
    "kv",
    "state_slots",
    "state_pool",
    "block_tokens",
    "state_padding_percent",
    "kv_blocks",
    "concurrency",
    "kv_tokens",
)
POOL: tuple[FigureName, ...] = ("kv", "block_tokens", "kv_blocks", "kv_tokens", "concurrency")
# vLLM 0.32 on CPUs (platforms/cpu.py, read 2026-11): block 128 unless set, 32 the smallest;
# 2,048 batched tokens a rank; steps are not overlapped (measured: its printed window groups).
CPU_BLOCK = 128
CPU_SMALLEST_BLOCK = 32
CPU_BATCHED_TOKENS = 2048

State = Literal["agrees", "differs", "not printed", "not predicted", "absent here"]


class Compared(Record, frozen=True, kw_only=True):
    """One figure. GiB for memory; `off` is predicted over printed - 1; `why` says what is amiss."""

    name: FigureName
    printed: float | None
    predicted: float | None
    off: float | None
    state: State
    confirmed: bool
    lines: tuple[int, ...]
    why: str = ""


class GraphCost(Record, frozen=True, kw_only=True):
    """CUDA-graph memory in GiB: what was charged, what was used, and the difference in requests
    of the longest length that the pool could have held besides (None where not predicted)."""

    estimated: float
    actual: float
    unused: float
    requests: float | None


class EngineAudit(Record, frozen=True, kw_only=True):
    """One engine's start. `first_off`: the first rung that differs by more than 2%."""

    source: str
    engine: str
    version: str | None
    device: str
    model: str | None
    topology: str
    finished: bool
    figures: tuple[Compared, ...]
    first_off: FigureName | None
    graphs: GraphCost | None
    conflicts: tuple[str, ...]
    errors: tuple[str, ...]
    not_predicted: tuple[str, ...]


class Meeting(Record, frozen=True, kw_only=True):
    """Whether a prefill and a decode engine can hand over; None where the logs do not tell."""

    prefill: str
    decode: str
    can: bool | None
    words: str


class Audit(Record, frozen=True, kw_only=True):
    """All engines of the logs, and every pair of prefill and decode among them."""

    engines: tuple[EngineAudit, ...]
    meetings: tuple[Meeting, ...]


class _Known(Record, frozen=True, kw_only=True):
    """What a log and the user let us compute with."""

    log: StartupLog
    model: Model | None
    gpu: Gpu | None
    topology: Topology | None
    engine: Engine | None
    layout: KvLayout | None
    missing: tuple[str, ...]


def audit(
    logs: Sequence[StartupLog], models: Mapping[str, Model], gpus: Sequence[Gpu | None]
) -> Audit:
    """The audit of some engine starts.

    `models`: the configuration for each model name that a log states, as far as one was found;
    `gpus`: what each engine ran on, where it is known.
    """
    known = [
        _known(log, models.get(log.settings.model or ""), gpu)
        for log, gpu in zip(logs, gpus, strict=True)
    ]
    return Audit(
        engines=tuple(_audited(one) for one in known),
        meetings=tuple(
            _meeting(p, d) for p in known for d in known if _role(p) == "p" and _role(d) == "d"
        ),
    )


def recognised(log: StartupLog, gpus: Sequence[Gpu]) -> Gpu | None:
    """The one GPU whose memory, as its driver reports it, is the printed total; else None."""
    total = log.seen("total")
    if log.device != "gpu" or total is None:
        return None
    fitting = [gpu for gpu in gpus if abs(gpu.hbm_gib - total.high) <= 0.006 + 0.001 * total.high]
    return fitting[0] if len(fitting) == 1 else None


def _known(log: StartupLog, model: Model | None, gpu: Gpu | None) -> _Known:
    missing = []
    if log.engine == "unknown":
        missing.append("the log names no engine that is known here")
    elif log.version is None:
        missing.append(f"the version is not stated: the rules of {_engine(log).version} are used")
    if model is None:
        named = log.settings.model
        missing.append(
            f"no configuration of {named!r} is at hand: give --model" if named else "no model named"
        )
    if gpu is None and log.device == "gpu":
        missing.append("the GPU is not named: give --gpu")
    topology = _topology(log.settings)
    engine = settled = kv = None
    if model is not None and log.engine != "unknown":
        try:
            model = _cast(model, log.settings.dtype)
            if faults := problems(topology, model):
                raise PlanError(f"layout {topology}", faults[0])
            engine = _engine(log)
            model = with_drafter(model, [engine])
            if engine.draft_method == "eagle3":
                missing.append("the EAGLE-3 head is not at hand: one of the usual shape is assumed")
            settled = resolved(engine, gpu, topology, model)
            smallest = CPU_SMALLEST_BLOCK if log.device == "cpu" else 16
            kv = layout(model, topology, settled, smallest_block=smallest)
        except PlanError as error:
            missing.append(str(error))
    if kv is not None and log.engine == "sglang" and len(kv.groups) > 1:
        missing.append("SGLang keeps a pool for each kind of layer: how it divides them is not")
    elif kv is not None and log.engine == "vllm" and log.settings.max_len is None:
        missing.append("the longest length is not stated")
    return _Known(
        log=log,
        model=model,
        gpu=gpu if log.device == "gpu" else None,
        topology=topology,
        engine=settled,
        layout=kv,
        missing=tuple(missing),
    )


def _cast(model: Model, word: str | None) -> Model:
    """The model in the dtype that the engine runs it in, where weights are not quantised."""
    dtype = _dtype(word)
    if dtype in ("auto", model.dtype):
        return model
    stored = {
        name: dtype if getattr(model.weights, name) == model.dtype else getattr(model.weights, name)
        for name in model.weights.__struct_fields__
    }
    return replace(model, dtype=dtype, weights=replace(model.weights, **stored))


def _topology(settings: Settings) -> Topology:
    tp, dp, pp = (degree or 1 for degree in (settings.tp, settings.dp, settings.pp))
    ep = tp * dp if settings.expert_parallel else 1
    return Topology(tp=tp, dp=dp, pp=pp, ep=ep, dcp=settings.dcp or 1)


def _engine(log: StartupLog) -> Engine:
    settings = log.settings
    name: EngineName = "sglang" if log.engine == "sglang" else "vllm"
    cpu = log.device == "cpu"
    utilization = log.seen("utilization")
    return Engine(
        name=name,
        version=log.version or "",
        utilization=utilization.high if utilization else 0.0,
        kv_dtype=_dtype(settings.kv_dtype),
        state_dtype=_dtype(settings.state_dtype),
        block_size=settings.block_size or (CPU_BLOCK if cpu else None),
        batched_tokens=settings.batched_tokens
        or (CPU_BATCHED_TOKENS * (settings.tp or 1) * (settings.pp or 1) if cpu else None),
        max_seqs=settings.max_seqs,
        max_len=settings.max_len,
        prefix_caching=settings.prefix_caching is not False,
        async_scheduling=settings.async_scheduling is not False and not cpu,
        graphs=not settings.eager and not cpu and settings.graph_mode != "NONE",
        max_graph=settings.max_graph or None,
        graph_mode=_graph_mode(settings.graph_mode),
        drafts=settings.drafts or 0,
        draft_method=_draft_method(settings) if settings.drafts else None,
    )


def _draft_method(settings: Settings) -> DraftMethod | None:
    """What drafts, by the engine's word; None is the model's own MTP layers (EAGLE in SGLang)."""
    word = (settings.draft_method or "mtp").lower()
    if word in ("eagle3", "ngram"):
        return word  # type: ignore[return-value]
    if word in ("eagle", "nextn") or word.endswith("mtp"):
        return None
    raise PlanError("log", f"drafts by {word} are not predicted", "mtp, eagle3 or ngram")


def _graph_mode(word: str | None) -> GraphMode:
    """vLLM's word as one of ours; FULL alone captures mixed steps too, as piecewise graphs do."""
    name = (word or "").lower()
    return name if name in get_args(GraphMode) else Engine().graph_mode  # type: ignore[return-value]


def _dtype(word: str | None) -> KvDtype:
    """The engine's word for a dtype as one of ours; what is not known is left to the model."""
    ours = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32"}
    name = ours.get(word or "auto", (word or "auto").split("_")[0])
    flat = {word for part in get_args(KvDtype) for word in (get_args(part) or (part,))}
    return name if name in flat else "auto"  # type: ignore[return-value]


def _audited(known: _Known) -> EngineAudit:
    log = known.log
    predicted = _predictions(known)
    figures = tuple(_compared(name, log, predicted) for name in ROWS)
    return EngineAudit(
        source=log.source,
        engine=log.engine,
        version=log.version,
        device=log.device,
        model=log.settings.model,
        topology=str(known.topology or Topology()),
        finished=log.finished,
        figures=figures,
        first_off=next((row.name for row in figures if row.state == "differs"), None),
        graphs=_graph_cost(known),
        conflicts=log.conflicts,
        errors=log.errors,
        not_predicted=known.missing,
    )


class _Range(Record, frozen=True, kw_only=True):
    """A prediction, and the range it has because the figures it rests on were rounded."""

    value: float
    low: float
    high: float


def _exact(value: float) -> _Range:
    return _Range(value=value, low=value, high=value)


def _predictions(known: _Known) -> dict[FigureName, _Range]:
    return {**_of_layout(known), **_of_ladder(known)}


def _of_layout(known: _Known) -> dict[FigureName, _Range]:
    kv, engine, log = known.layout, known.engine, known.log
    if kv is None or engine is None or known.topology is None:
        return {}
    found: dict[FigureName, _Range] = {}
    if kv.unpadded_state_bytes:
        found["block_tokens"] = _exact(kv.block_tokens)
        found["state_padding_percent"] = _exact(100 * kv.padding_share)
    slots = log.seen("state_slots")
    if engine.name == "sglang" and slots is not None and not engine.drafts:
        # One slot more than it says takes what padded batches write (measured: Qwen3.8-27B on
        # GB10, 360 slots of 0.99 and 50.77 GiB; sgl-project/sglang#32184).
        states = sum(group.content_bytes for group in kv.groups if group.kind == "state")
        found["state_pool"] = _exact((slots.high + 1) * states / GIB)
    pool = _pool(log)
    length = log.settings.max_len or 0
    if pool is None or (not length and engine.name == "vllm"):
        return found
    topology = known.topology

    def spread(figure: list[float]) -> _Range:
        return _Range(value=figure[0], low=figure[1], high=figure[2])

    if engine.name == "sglang":
        if not any(group.window for group in kv.groups):
            found["kv_tokens"] = spread([size / _token_bytes(kv) for size in pool])
        return found
    found["kv_blocks"] = spread([float(num_blocks(kv, size)) for size in pool])
    found["concurrency"] = spread([max_concurrency(kv, size, length) for size in pool])
    found["kv_tokens"] = spread(
        [float(kv_tokens_reported(kv, size, length, engine, topology)) for size in pool]
    )
    return found


def _token_bytes(kv: KvLayout) -> float:
    """Bytes that a token takes of SGLang's attention pool: the layers that keep every token."""
    full = [group for group in kv.groups if group.kind == "full"]
    return sum(group.content_bytes / (group.block_tokens or kv.block_tokens) for group in full)


def _pool(log: StartupLog) -> tuple[int, int, int] | None:
    """Bytes of the KV pool as printed: its value, and the least and most that rounds to it."""
    if log.settings.kv_cache_bytes is not None:
        return (log.settings.kv_cache_bytes,) * 3
    printed = log.seen("kv")
    if printed is None:
        return None
    half = 0.5 * 10.0**-printed.digits
    # The rank with the least memory sets the blocks of all.
    return tuple(round(x * GIB) for x in (printed.low, printed.low - half, printed.low + half))  # type: ignore[return-value]


def _of_ladder(known: _Known) -> dict[FigureName, _Range]:
    log = known.log
    if (
        known.gpu is None
        or known.model is None
        or known.engine is None
        or known.topology is None
        or known.layout is None
    ):
        return {}
    model, topology, engine = known.model, known.topology, known.engine
    rungs = ladder(model, known.gpu, topology, engine)
    printed_total = log.seen("total")
    total = printed_total.high if printed_total else known.gpu.hbm_gib
    found: dict[FigureName, _Range] = {
        "total": _exact(known.gpu.hbm_gib),
        "weights": _exact(rungs["weights"].bytes / GIB),
    }
    if engine.name == "vllm":
        found["peak_activation"] = _exact(rungs["activations"].bytes / GIB)
        found["non_torch"] = _exact(rungs["non_torch"].bytes / GIB)
        if rules(engine, topology).charges_graphs:
            found["graph_estimate"] = _exact(rungs["graphs"].bytes / GIB)
        found["requested"] = _exact(total * engine.utilization)
    # The rest of what was printed above: a rung that is off is marked once, not again here.
    above = replace(known.gpu, hbm_gib=total)
    rest = ladder(model, above, topology, engine, overrides=_printed_rungs(log, above))
    if not any(group.kind == "state" for group in known.layout.groups) or engine.name == "vllm":
        found["kv"] = _exact(rest.kv_bytes / GIB)
    return found


def _printed_rungs(log: StartupLog, gpu: Gpu) -> dict[str, int]:
    names: dict[str, FigureName] = {
        "weights": "weights",
        "activations": "peak_activation",
        "non_torch": "non_torch",
        "graphs": "graph_estimate",
    }
    printed = {rung: seen for rung, name in names.items() if (seen := log.seen(name)) is not None}
    given = {rung: round(seen.high * GIB) for rung, seen in printed.items()}
    free = log.seen("free_at_start")
    if log.engine == "sglang" and free is not None and free.low <= gpu.hbm_gib:
        # SGLang takes its fraction of what is free then; the rest of the device is lost before.
        given["non_torch"] = gpu.hbm - round(free.low * GIB)
    return given


def _compared(name: FigureName, log: StartupLog, predicted: dict[FigureName, _Range]) -> Compared:
    seen = log.seen(name)
    ours = predicted.get(name)
    if log.device == "cpu" and name in PROFILED:
        return _row(name, None, None, "absent here", "a CPU engine has no such rung")
    if seen is None:
        state: State = "not printed"
        return _row(name, None, ours, state, _conflict(name, log))
    if ours is None:
        return _row(name, seen, None, "not predicted", "")
    half = 0.5 * 10.0**-seen.digits + 1e-9
    slack = max(half, TOLERANCE * abs(seen.high)) if name not in EXACT else half
    agrees = ours.low - slack <= seen.high and ours.high + slack >= seen.low
    return _row(name, seen, ours, "agrees" if agrees else "differs", "")


EXACT: frozenset[FigureName] = frozenset({"block_tokens", "state_padding_percent"})


def _row(
    name: FigureName, seen: Seen | None, ours: _Range | None, state: State, why: str
) -> Compared:
    printed = None if seen is None else seen.high
    predicted = None if ours is None else ours.value
    return Compared(
        name=name,
        printed=printed,
        predicted=predicted,
        off=predicted / printed - 1 if printed and predicted is not None else None,
        state=state,
        confirmed=seen is not None and seen.confirmed,
        lines=() if seen is None else seen.lines,
        why=why,
    )


def _conflict(name: FigureName, log: StartupLog) -> str:
    return next((told for told in log.conflicts if told.startswith(f"{name}:")), "")


def _graph_cost(known: _Known) -> GraphCost | None:
    estimated, actual = known.log.seen("graph_estimate"), known.log.seen("graph_actual")
    if estimated is None or actual is None:
        return None
    unused = estimated.high - actual.high
    requests = None
    if known.layout is not None and known.log.settings.max_len is not None:
        requests = max_concurrency(
            known.layout, round(abs(unused) * GIB), known.log.settings.max_len
        ) * (1 if unused >= 0 else -1)
    return GraphCost(estimated=estimated.high, actual=actual.high, unused=unused, requests=requests)


def _role(known: _Known) -> Literal["p", "d", ""]:
    role = known.log.settings.kv_role
    if role in ("kv_producer", "prefill"):
        return "p"
    return "d" if role in ("kv_consumer", "decode") else ""


def _meeting(p: _Known, d: _Known) -> Meeting:
    can, words = _can_meet(p, d)
    return Meeting(prefill=p.log.source, decode=d.log.source, can=can, words=words)


def _can_meet(p: _Known, d: _Known) -> tuple[bool | None, str]:
    """First what the engines printed, which needs no model; then the layouts, where known."""
    for side in (p, d):
        failed = [line for line in side.log.errors if line.startswith("Local block size")]
        if failed:
            return False, failed[0]
    if p.log.settings.model != d.log.settings.model:
        return False, (
            f"prefill serves {p.log.settings.model!r} and decode {d.log.settings.model!r}: the "
            "connector compares the name as given"
        )
    blocks = [side.log.seen("block_tokens") for side in (p, d)]
    if blocks[0] is not None and blocks[1] is not None and blocks[0].high != blocks[1].high:
        return False, (
            f"blocks of {blocks[0].high:,.0f} tokens on prefill and {blocks[1].high:,.0f} on "
            "decode: only equal blocks are safe"
        )
    if None not in (p.layout, d.layout, p.engine, d.engine):
        why = refusal(p.layout, d.layout, p.engine, d.engine)  # type: ignore[arg-type]
        return why is None, why or "block tokens, dtypes, drafts and versions agree"
    configured = [side.log.settings.block_size for side in (p, d)]
    if configured[0] != configured[1]:
        return None, (
            f"--block-size {configured[0] or 'default'} on prefill and "
            f"{configured[1] or 'default'} on decode: give --model to see whether they meet"
        )
    if p.log.version != d.log.version:
        return False, f"engine versions differ ({p.log.version} and {d.log.version})"
    return None, "nothing printed forbids it; give --model to compare the layouts"


def audit_files(paths: Sequence[Path], model: str | None, gpu: str | None) -> Audit:
    """The audit of log files.

    `model` stands for every engine's; without it each log's own name is looked up, which may find
    nothing. Without `gpu` the GPU is recognised by the memory that the log prints.
    """
    logs = [log for path in paths for log in parse(open_text(path, errors="replace"), str(path))]
    if not any(log.figures or log.engine != "unknown" for log in logs):
        raise PlanError(
            str(paths[0]), "holds no line that a known engine prints", "a vLLM or SGLang log"
        )
    named = {log.settings.model or "" for log in logs}
    stated = None if model is None else load_model(model)
    models = {name: found for name in named if (found := stated or _found(name)) is not None}
    chosen = None if gpu is None else facts.gpu(gpu)
    known = [facts.gpu(name) for name in facts.gpu_names()]
    gpus = [chosen or recognised(log, known) for log in logs]
    return audit(logs, models, gpus)


def started_figures(log: Path) -> tuple[Compared, ...]:
    """What a log prints of the KV pool beside what is predicted; nothing of a log without it."""
    try:
        audited = audit_files([log], None, None)
    except PlanError:
        return ()
    return tuple(
        row
        for engine in audited.engines[:1]
        for row in engine.figures
        if row.name in POOL and row.printed is not None
    )


def _found(name: str) -> Model | None:
    """The configuration of the name that a log states, if the catalogue or this disk has it."""
    try:
        return load_model(name, offline=True) if name else None
    except PlanError:
        return None
