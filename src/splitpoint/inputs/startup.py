"""What an engine printed while it started: figures with their lines, and the settings it named.

A log is taken as it comes: coloured, prefixed by docker or Kubernetes, several ranks and several
engines in one file, cut or damaged. A figure that two lines state differently is dropped and named
in `conflicts`; a figure that no line states is absent; one that a second line or the engine's own
arithmetic bears out is `confirmed`. Nothing is guessed here.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

from msgspec.structs import replace

from splitpoint.record import Record

FigureName = Literal[
    "total",
    "free_at_start",
    "requested",
    "utilization",
    "weights",
    "peak_activation",
    "non_torch",
    "graph_estimate",
    "graph_actual",
    "kv",
    "state_slots",
    "state_pool",
    "kv_blocks",
    "kv_tokens",
    "concurrency",
    "concurrency_tokens",
    "block_tokens",
    "state_padding_percent",
    "padding_layers",
]


class Seen(Record, frozen=True, kw_only=True):
    """One printed figure: bytes as GiB, counts as they stand; `lines` counted from 1, one a rank.

    `low` and `high` are the least and the greatest over ranks; `digits` are the decimals printed.
    `confirmed`: another line says the same, or sums with other figures come out as printed.
    """

    name: FigureName
    low: float
    high: float
    digits: int
    lines: tuple[int, ...]
    confirmed: bool = False


class Settings(Record, frozen=True, kw_only=True):
    """What the engine said it was started with; None where the log does not say."""

    model: str | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    dcp: int | None = None
    expert_parallel: bool | None = None
    max_len: int | None = None
    batched_tokens: int | None = None
    max_seqs: int | None = None
    block_size: int | None = None
    kv_dtype: str | None = None
    state_dtype: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    prefix_caching: bool | None = None
    eager: bool | None = None
    max_graph: int | None = None
    graph_mode: str | None = None
    async_scheduling: bool | None = None
    drafts: int | None = None
    draft_method: str | None = None
    kv_role: str | None = None
    connector: str | None = None
    kv_cache_bytes: int | None = None


class StartupLog(Record, frozen=True, kw_only=True):
    """One engine's start: `source` is the file, with the container's name where lines carry one."""

    source: str
    engine: Literal["vllm", "sglang", "unknown"]
    version: str | None
    device: Literal["gpu", "cpu", "unknown"]
    settings: Settings
    figures: tuple[Seen, ...]
    conflicts: tuple[str, ...]
    errors: tuple[str, ...]
    finished: bool

    def seen(self, name: FigureName) -> Seen | None:
        """The figure of that name, or None where the log has none that can be trusted."""
        return next((figure for figure in self.figures if figure.name == name), None)


NUMBER = r"(\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)"
SIZE = NUMBER + r" ?Gi?B"


class _Pattern(Record, frozen=True, kw_only=True):
    """One line shape and the figures that its groups hold."""

    regex: str
    names: tuple[FigureName, ...]


# Line shapes of vLLM 0.6 to 0.33 (V0 printed "GB" for GiB) and of SGLang (its "GB" are GiB).
VLLM_LINES = (
    _Pattern(regex=r"Model loading took " + SIZE, names=("weights",)),
    _Pattern(regex=r"Loading model weights took " + SIZE, names=("weights",)),
    _Pattern(regex=r"Available KV cache memory: " + SIZE, names=("kv",)),
    _Pattern(regex=r"(?:GPU|CPU) KV cache size: " + NUMBER + r" tokens\b", names=("kv_tokens",)),
    _Pattern(
        regex=r"Maximum concurrency for " + NUMBER + r" tokens per request: " + NUMBER + "x",
        names=("concurrency_tokens", "concurrency"),
    ),
    _Pattern(regex=r"# (?:GPU|cuda|CUDA) blocks: " + NUMBER, names=("kv_blocks",)),
    _Pattern(
        regex=r"total_gpu_memory \("
        + SIZE
        + r"\) x gpu_memory_utilization \("
        + NUMBER
        + r"\) = "
        + SIZE,
        names=("total", "utilization", "requested"),
    ),
    _Pattern(
        regex=r"model weights take "
        + SIZE
        + r"; non_torch_memory takes "
        + SIZE
        + r"; PyTorch activation peak memory takes "
        + SIZE
        + r"; the rest of the memory reserved for KV Cache is "
        + SIZE,
        names=("weights", "non_torch", "peak_activation", "kv"),
    ),
    # 0.6: "name=value" at first, then a table of names and values, a line each.
    _Pattern(regex=r"total_gpu_memory(?:=|\s{2,})" + SIZE, names=("total",)),
    _Pattern(regex=r"gpu_memory_utilization\s{2,}" + NUMBER, names=("utilization",)),
    _Pattern(regex=r"current vLLM instance can use\s{2,}" + SIZE, names=("requested",)),
    _Pattern(regex=r"model weights take\s{2,}" + SIZE, names=("weights",)),
    _Pattern(regex=r"non_torch_memory(?:=|\s{2,})" + SIZE, names=("non_torch",)),
    _Pattern(regex=r"PyTorch activation peak memory\s{2,}" + SIZE, names=("peak_activation",)),
    _Pattern(regex=r"kv_cache_size=" + SIZE, names=("kv",)),
    _Pattern(regex=r"available_kv_cache_memory\s{2,}" + SIZE, names=("kv",)),
    _Pattern(regex=r"torch peak memory increase: " + SIZE, names=("peak_activation",)),
    _Pattern(regex=r"weights memory: " + SIZE, names=("weights",)),
    _Pattern(
        regex=r"Free memory on device \(" + NUMBER + "/" + SIZE + r"\) on startup",
        names=("free_at_start", "total"),
    ),
    _Pattern(
        regex=r"Desired GPU memory utilization is \(" + NUMBER + ", " + SIZE + r"\)",
        names=("utilization", "requested"),
    ),
    _Pattern(
        regex=r"Actual usage is "
        + SIZE
        + r" for weights?, "
        + SIZE
        + r" for peak activation, "
        + SIZE
        + r" for non-torch memory, and "
        + SIZE
        + r" for CUDAGraph memory",
        names=("weights", "peak_activation", "non_torch", "graph_actual"),
    ),
    _Pattern(regex=r"'gpu_memory_utilization': " + NUMBER, names=("utilization",)),
    _Pattern(regex=r"Estimated CUDA graph memory: " + SIZE + " total", names=("graph_estimate",)),
    _Pattern(
        regex=r"CUDA graph pool memory: " + SIZE + r" \(actual\), " + SIZE + r" \(estimated\)",
        names=("graph_actual", "graph_estimate"),
    ),
    _Pattern(regex=r"Graph capturing finished in \d+ secs?, took " + SIZE, names=("graph_actual",)),
    _Pattern(
        regex=r"Setting attention block size to " + NUMBER + " tokens", names=("block_tokens",)
    ),
    _Pattern(regex=r"Padding mamba page size by " + NUMBER + "%", names=("state_padding_percent",)),
    _Pattern(regex=r"Add " + NUMBER + " padding layers", names=("padding_layers",)),
    _Pattern(
        regex=r"(?:Auto|Explicitly) set \(" + NUMBER + "/" + NUMBER + r"\) GiB for KV cache",
        names=("kv", "total"),
    ),
    _Pattern(regex=r"with " + SIZE + r" requested memory for the worker", names=("requested",)),
)
SGLANG_LINES = (
    _Pattern(regex=r"Load weight begin\. avail mem=" + SIZE, names=("free_at_start",)),
    _Pattern(regex=r"Load weight end\..*mem usage=" + SIZE, names=("weights",)),
    _Pattern(regex=r"KV Cache is allocated\..*#tokens: " + NUMBER, names=("kv_tokens",)),
    _Pattern(regex=r"KV Cache is allocated\..*[ ,]KV size: " + SIZE, names=("kv",)),
    _Pattern(regex=r"max_total_num_tokens=" + NUMBER, names=("kv_tokens",)),
    _Pattern(regex=r"Capture cuda graph end\..*mem usage=" + SIZE, names=("graph_actual",)),
    _Pattern(regex=r"\bmem_fraction_static(?:=|': )" + NUMBER, names=("utilization",)),
    _Pattern(
        regex=r"Mamba Cache is allocated\..*max_mamba_cache_size: " + NUMBER, names=("state_slots",)
    ),
)
# Figures that SGLang prints in two halves.
SGLANG_HALVES: tuple[tuple[FigureName, re.Pattern[str]], ...] = (
    ("kv", re.compile(r"KV Cache is allocated\..*K size: " + SIZE + ", V size: " + SIZE)),
    (
        "state_pool",
        re.compile(
            r"Mamba Cache is allocated\..*conv_state size: " + SIZE + ".*ssm_state size: " + SIZE
        ),
    ),
)

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
CONTAINER = re.compile(r"^([A-Za-z0-9][\w./-]{0,80}?)\s+\| ")
POD = re.compile(r"^\[(pod/[\w./-]{1,200})\] ")
LAST_LINE = re.compile(r"init engine \(profile|Application startup complete|The server is fired up")
ERRORS = (
    r"To serve at least one request with the models?'s max seq len.*",
    r"No available memory for the cache blocks.*",
    r"Free memory on device .* is less than desired.*",
    r"CUDA out of memory.*",
    r"Local block size \d+ is not divisible by remote block size \d+.*",
    r"Failing \d+ request\(s\) due to KV load failure.*",
    r"[Nn]ot enough memory\. Please try to increase --mem-fraction-static.*",
)
ERROR = re.compile("|".join(ERRORS))
COMPILED_VLLM = tuple((re.compile(pattern.regex), pattern.names) for pattern in VLLM_LINES)
COMPILED_SGLANG = tuple((re.compile(pattern.regex), pattern.names) for pattern in SGLANG_LINES)


class _Lines:
    """The lines of one engine, numbered as in the file."""

    def __init__(self) -> None:
        self.numbered: list[tuple[int, str]] = []


def parse(lines: Iterable[str], source: str) -> tuple[StartupLog, ...]:
    """The starts found in a log's lines: one for each container, and one for all else."""
    engines: dict[str, _Lines] = defaultdict(_Lines)
    for number, raw in enumerate(lines, start=1):
        container, text = _unwrapped(raw.rstrip("\r\n"))
        engines[container].numbered.append((number, text))
    told = [
        _parse_one(one.numbered, f"{source} [{container}]" if container else source)
        for container, one in engines.items()
    ]
    return tuple(
        log
        for log in told
        if log.engine != "unknown" or log.figures or (len(told) == 1 and not log.figures)
    )


def _unwrapped(raw: str) -> tuple[str, str]:
    """The container a line names ('' for none), and the line without wrapping and colours."""
    text = raw
    if text.startswith("{"):
        try:
            wrapped = json.loads(text)
        except (ValueError, RecursionError):
            wrapped = None
        if isinstance(wrapped, dict):
            inner = wrapped.get("log", wrapped.get("message", wrapped.get("msg")))
            text = inner.rstrip("\r\n") if isinstance(inner, str) else text
    text = ANSI.sub("", text)
    for shape in (POD, CONTAINER):
        found = shape.match(text)
        if found:
            return found[1], text[found.end() :]
    return "", text


def _parse_one(lines: list[tuple[int, str]], source: str) -> StartupLog:
    texts = [text for _, text in lines]
    engine = _engine(texts)
    values: dict[FigureName, list[tuple[int, str, float, int]]] = defaultdict(list)
    for number, text in lines:
        rank = _rank(text)
        for name, printed in _figures(text, engine):
            value = _value(printed)
            if value is not None:
                values[name].append((number, rank, value, _digits(printed)))
    figures = []
    conflicts = []
    for name, seen in values.items():
        figure = _agreed(name, seen)
        if isinstance(figure, str):
            conflicts.append(figure)
        else:
            figures.append(figure)
    kept, broken = _judged(figures)
    return StartupLog(
        source=source,
        engine=engine,
        version=_version(texts),
        device=_device(texts),
        settings=_settings(texts, engine),
        figures=tuple(kept),
        conflicts=tuple(conflicts + broken),
        errors=tuple(dict.fromkeys(found[0] for text in texts if (found := ERROR.search(text)))),
        finished=any(LAST_LINE.search(text) for text in texts),
    )


def _engine(texts: list[str]) -> Literal["vllm", "sglang", "unknown"]:
    joined = "\n".join(texts)
    if re.search(r"server_args=ServerArgs\(|max_total_num_tokens=|Load weight begin\.", joined):
        return "sglang"
    if re.search(
        r"vLLM|vllm|LLM engine \(v|kv_cache_utils\.py|gpu_worker\.py|# GPU blocks", joined
    ):
        return "vllm"
    return "unknown"


def _figures(text: str, engine: str) -> Iterable[tuple[FigureName, str]]:
    patterns = COMPILED_SGLANG if engine == "sglang" else COMPILED_VLLM
    for regex, names in patterns:
        found = regex.search(text)
        if found:
            yield from zip(names, found.groups(), strict=True)
    if engine == "sglang":
        for name, halves in SGLANG_HALVES:
            if found := halves.search(text):
                yield name, f"{sum(float(half.replace(',', '')) for half in found.groups()):.2f}"


def _value(printed: str) -> float | None:
    value = float(printed.replace(",", ""))
    return value if value < 1e15 else None


def _digits(printed: str) -> int:
    return len(printed.partition(".")[2])


def _rank(text: str) -> str:
    found = re.search(r"\b(?:Worker|VllmWorker|EngineCore)[\w -]*?(?= pid=|\))|\bTP\d+\b", text)
    pid = re.search(r"pid=(\d+)", text)
    return " ".join(part for part in (found and found[0], pid and pid[0]) if part)


def _agreed(name: FigureName, seen: list[tuple[int, str, float, int]]) -> Seen | str:
    """The figure, unless one rank states it twice and differently beyond its rounding."""
    by_rank: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for _, rank, value, digits in seen:
        by_rank[rank].append((value, digits))
    for rank, stated in by_rank.items():
        low, high = min(stated), max(stated)
        half = 0.5 * (10.0 ** -low[1] + 10.0 ** -high[1])
        if high[0] - low[0] > half + 1e-9:
            where = f" by {rank}" if rank else ""
            return f"{name}: stated as {low[0]:g} and as {high[0]:g}{where}"
    finest = max(digits for *_, digits in seen)
    values = [value for _, _, value, digits in seen if digits == finest]
    return Seen(
        name=name,
        low=min(values),
        high=max(values),
        digits=finest,
        lines=tuple(number for number, *_ in seen),
        confirmed=len({number for number, *_ in seen}) > 1 and min(values) == max(values),
    )


class _Law(Record, frozen=True, kw_only=True):
    """Arithmetic that the engine did: `total` from `parts`, off by at most `slack` plus rounding.

    `bound`: `total` need only be the larger; then the law can refute figures but not confirm them.
    """

    total: FigureName
    parts: tuple[FigureName, ...]
    words: str
    product: bool = False
    bound: bool = False
    slack: float = 0.0


LAWS = (
    _Law(
        total="requested",
        parts=("total", "utilization"),
        product=True,
        words="total x utilization does not give the requested memory",
    ),
    _Law(
        total="requested",
        parts=("weights", "non_torch", "peak_activation", "graph_estimate", "kv"),
        slack=0.03,
        words="the rungs do not add up to the requested memory",
    ),
    _Law(total="requested", parts=("kv",), bound=True, words="KV exceeds the requested memory"),
    _Law(total="total", parts=("kv",), bound=True, words="KV exceeds the total memory"),
    _Law(total="total", parts=("weights",), bound=True, words="weights exceed the total memory"),
)


def _judged(figures: list[Seen]) -> tuple[list[Seen], list[str]]:
    """Figures with those dropped that contradict each other, and those confirmed that agree."""
    named = {figure.name: figure for figure in figures}
    broken: list[str] = []
    dropped: set[FigureName] = set()
    confirmed: set[FigureName] = set()
    for law in LAWS:
        names = (law.total, *law.parts)
        if any(name not in named for name in names):
            continue
        total = named[law.total]
        parts = [named[part] for part in law.parts]
        low, high = _range(parts, product=law.product)
        rounding = 0.5 * 10.0**-total.digits + law.slack
        if total.high + rounding < low or (not law.bound and total.low - rounding > high):
            broken.append(law.words)
            dropped.update(names)
        elif not law.bound:
            confirmed.update(names)
    tokens = ("kv_tokens", "concurrency", "concurrency_tokens")
    if all(name in named for name in tokens):
        low, high = _range([named["concurrency"], named["concurrency_tokens"]], product=True)
        if low - 1 <= named["kv_tokens"].high <= high + 1:
            confirmed.update(("kv_tokens", "concurrency", "concurrency_tokens"))
    kept = [
        replace(figure, confirmed=figure.confirmed or figure.name in confirmed)
        for figure in figures
        if figure.name not in dropped
    ]
    return kept, broken


def _range(parts: list[Seen], *, product: bool) -> tuple[float, float]:
    """Least and greatest sum or product of figures that were rounded when printed."""
    halves = [0.5 * 10.0**-part.digits if part.digits else 0.0 for part in parts]
    lows = [part.low - half for part, half in zip(parts, halves, strict=True)]
    highs = [part.high + half for part, half in zip(parts, halves, strict=True)]
    return (math.prod(lows), math.prod(highs)) if product else (sum(lows), sum(highs))


def _version(texts: list[str]) -> str | None:
    shapes = (
        r"LLM engine \(v([\w.+-]+)\)",
        r"vLLM API server version ([\w.+-]+)",
        r"\bversion (\d+\.\d+[\w.+-]*)",
        r"sglang[ =]v?(\d+\.\d+[\w.+-]*)",
    )
    for shape in shapes:
        stated = {found[1] for text in texts if (found := re.search(shape, text))}
        if stated:
            return stated.pop() if len(stated) == 1 else None
    return None


def _device(texts: list[str]) -> Literal["gpu", "cpu", "unknown"]:
    joined = "\n".join(texts)
    if re.search(r"CPU KV cache size|device_config=cpu|cpu_worker\.py", joined):
        return "cpu"
    if re.search(r"GPU KV cache size|device_config=cuda|gpu_worker\.py|# GPU blocks|CUDA", joined):
        return "gpu"
    return "gpu" if _engine(texts) == "sglang" else "unknown"


def _settings(texts: list[str], engine: str) -> Settings:
    """Settings from the engine's own account of its configuration, wherever it stands."""
    account = "\n".join(
        text
        for text in texts
        if re.search(r"LLM engine \(v|non-default args|ServerArgs\(|server_args=\{|# cmd:", text)
    )
    if engine == "sglang":
        # ServerArgs(...) up to 0.5.18, a dictionary from 0.5.20 on.
        account = re.sub(r"'(\w+)': ", r"\1=", account)

    def word(*shapes: str) -> str | None:
        for shape in shapes:
            stated = set(re.findall(shape, account))
            if len(stated) == 1:
                return str(stated.pop())
        return None

    def number(*shapes: str) -> int | None:
        stated = word(*shapes)
        return int(stated) if stated is not None and len(stated) < 16 else None

    def flag(*shapes: str) -> bool | None:
        stated = word(*shapes)
        return None if stated is None else stated.lower() == "true"

    if engine == "sglang":
        ranks = number(r"attn_dp_size=(\d+)") or 1
        if ranks == 1 and flag(r"enable_dp_attention=(True|False)"):
            ranks = number(r"\bdp_size=(\d+)") or 1
        # Its tp counts the GPUs of all attention ranks; dp without them are replicas.
        tp, ep = number(r"\btp_size=(\d+)"), number(r"\bep_size=(\d+)")
        return Settings(
            model=word(r"\bmodel_path='([^']+)'"),
            tp=tp and max(tp // ranks, 1),
            pp=number(r"\bpp_size=(\d+)"),
            dp=ranks,
            dcp=number(r"\bdcp_size=(\d+)"),
            expert_parallel=ep is not None and ep > 1,
            max_len=number(r"context_length=(\d+)"),
            batched_tokens=number(r"chunked_prefill_size=(\d+)"),
            max_seqs=number(r"max_running_requests=(\d+)"),
            block_size=number(r"page_size=(\d+)"),
            kv_dtype=word(r"kv_cache_dtype='([^']+)'"),
            state_dtype=word(r"mamba_ssm_dtype='([^']+)'"),
            dtype=word(r"\bdtype='([^']+)'"),
            quantization=word(r"quantization='([^']+)'"),
            eager=flag(r"disable_cuda_graph=(True|False)"),
            drafts=number(r"speculative_num_steps=(\d+)"),
            draft_method=word(r"speculative_algorithm='([^']+)'"),
            kv_role=word(r"disaggregation_mode='([^']+)'"),
            connector=word(r"disaggregation_transfer_backend='([^']+)'"),
        )
    return Settings(
        model=word(r"config: model='([^']+)'", r"'model': '([^']+)'"),
        tp=number(r"tensor_parallel_size=(\d+)", r"'tensor_parallel_size': (\d+)"),
        pp=number(r"pipeline_parallel_size=(\d+)", r"'pipeline_parallel_size': (\d+)"),
        dp=number(r"data_parallel_size=(\d+)", r"'data_parallel_size': (\d+)"),
        dcp=number(r"decode_context_parallel_size=(\d+)"),
        expert_parallel=flag(r"'enable_expert_parallel': (True|False)"),
        max_len=number(r"max_seq_len=(\d+)", r"'max_model_len': (\d+)"),
        batched_tokens=number(r"'max_num_batched_tokens': (\d+)"),
        max_seqs=number(r"'max_num_seqs': (\d+)"),
        block_size=number(r"'block_size': (\d+)"),
        kv_dtype=word(r"kv_cache_dtype=([\w.]+)", r"'kv_cache_dtype': '([^']+)'"),
        state_dtype=_state_dtype(texts) or word(r"'mamba_ssm_cache_dtype': '([^']+)'"),
        dtype=word(r"dtype=torch\.(\w+)"),
        quantization=word(r"\bquantization=(?!None)([\w-]+)"),
        prefix_caching=flag(r"enable_prefix_caching=(True|False)"),
        eager=flag(r"enforce_eager=(True|False)"),
        max_graph=number(r"max_cudagraph_capture_size'?[=:] ?(\d+)"),
        graph_mode=word(r"cudagraph_mode'?[=:] ?<?'?(?:CUDAGraphMode\.)?([A-Z_]+)"),
        async_scheduling=flag(r"'async_scheduling': (True|False)"),
        drafts=number(
            r"num_spec_tokens=(\d+)",
            r"'num_speculative_tokens': (\d+)",
            r'"num_speculative_tokens": ?(\d+)',
        ),
        draft_method=word(r"SpeculativeConfig\(method='([^']+)'"),
        kv_role=word(r"kv_role='([^']+)'"),
        connector=word(r"kv_connector='([^']+)'"),
        kv_cache_bytes=number(
            r"'kv_cache_memory_bytes': (\d+)", r"--kv-cache-memory(?:-bytes)?[ =](\d+)"
        ),
    )


def _state_dtype(texts: list[str]) -> str | None:
    """A state dtype that the engine chose against or beside its arguments (CPU backends do)."""
    shape = r"Reset SSM cache type to (\w+)|Using (\w+) SSM state storage"
    chosen = {found[1] or found[2] for text in texts if (found := re.search(shape, text))}
    return chosen.pop() if len(chosen) == 1 else None
