"""Fit the surfaces of facts/efficiency to measured kernel tables, and print their held-out errors.

The tables are those of the `aic` extra's package (aiconfigurator-core, NVIDIA, Apache-2.0); only
fitted coefficients are shipped. A row is fitted or held out by the CRC-32 of its own columns, so
the split depends on nothing else. Run: python -m benchmarks.fit_efficiency [--gpu NAME] [--write]
"""

import argparse
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from numpy.typing import NDArray

from splitpoint.inputs import facts
from splitpoint.inputs.engine import EngineName
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Dtype, LinearState
from splitpoint.timing.efficiency import Surface, launch_seconds, peak
from splitpoint.timing.operators import (
    Array,
    Batch,
    Kind,
    Operator,
    Stored,
    attend,
    chunk_flops,
    grouped,
    matmul,
    vector,
)

ENGINES: tuple[EngineName, ...] = ("vllm", "sglang", "trtllm")
# Facts name of each GPU that has tables, and the folder they lie in.
GPUS = {
    "A100 SXM 80GB": "a100_sxm",
    "H100 SXM": "h100_sxm",
    "H200": "h200_sxm",
    "L40S": "l40s",
    "RTX PRO 6000 Server": "rtx_pro_6000_server",
    "B200": "b200_sxm",
    "B300": "b300_sxm",
    "GB200": "gb200",
    "GB300": "gb300",
}
# Which GPU stands in for those of its architecture that have no tables.
DONORS = {"A100 SXM 80GB", "L40S", "H200", "RTX PRO 6000 Server", "B200"}
FIT_ROWS = 2000
# Shapes that models have; the tables start at 32, where launches are all that is measured.
SHAPES = (512, 66000)
# A table of products whose cheapest rows take longer than this was timed with the host in the loop.
HOST_BOUND = 30e-6
# Faster than this share of HBM bandwidth: the operands stayed in the cache between repetitions.
CACHED = 0.95

DTYPES: dict[str, Dtype] = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "nvfp4": "nvfp4",
    "int4_wo": "int4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4",
    "fp8_e4m3": "fp8",
}
STORED: dict[Dtype, float] = {
    "bf16": 2.0,
    "fp8": 1.0 + 4 / 128**2,
    "nvfp4": 0.5625,
    "int4": 0.5 + 2 / 128,
    "mxfp4": 0.5 + 1 / 32,
}


class Samples(NamedTuple):
    """Measured launches of one kind and dtype: the operator as arrays, seconds, and row keys."""

    operator: Operator
    seconds: Array
    held_out: NDArray[np.bool_]


Reader = Callable[[pd.DataFrame, Dtype], Operator]


def gemm(rows: pd.DataFrame, dtype: Dtype) -> Operator:
    """Dense products m x k by k x n."""
    m, n, k = columns(rows, "m", "n", "k")
    return matmul("gemm", m, k, n, Stored(dtype=dtype, bytes=STORED[dtype]))


def experts(rows: pd.DataFrame, dtype: Dtype) -> Operator:
    """Grouped products with evenly spread tokens: every expert is reached as soon as possible."""
    new, hidden, inter, topk, count, tp, ep = columns(
        rows,
        "num_tokens",
        "hidden_size",
        "inter_size",
        "topk",
        "num_experts",
        "moe_tp_size",
        "moe_ep_size",
    )
    pairs = new * topk / ep
    reached = np.minimum(count / ep, pairs)
    return grouped(
        pairs, new * topk, reached, hidden, inter / tp, 2, Stored(dtype=dtype, bytes=STORED[dtype])
    )


def prefill_attention(rows: pd.DataFrame, dtype: Dtype) -> Operator:
    """Causal attention of whole prompts without a prefix."""
    batch, isl, heads, kv_heads, dim = columns(
        rows, "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim"
    )
    pairs = batch * isl * (isl + 1) / 2
    return _attend("attention", heads, kv_heads, dim, dtype, pairs=pairs, new=batch * isl)[0]


def decode_attention(rows: pd.DataFrame, dtype: Dtype) -> Operator:
    """One query per sequence over its cache."""
    batch, step, heads, kv_heads, dim = columns(
        rows, "batch_size", "step", "num_heads", "num_key_value_heads", "head_dim"
    )
    return _attend(
        "attention", heads, kv_heads, dim, dtype, context=batch * (step + 1), sequences=batch
    )[1]


def prefill_latent(rows: pd.DataFrame, dtype: Dtype) -> Operator:
    """MLA prefill on made heads: DeepSeek's 128 + 64 score and 128 value dimensions."""
    batch, isl, heads = columns(rows, "batch_size", "isl", "num_heads")
    pairs = batch * isl * (isl + 1) / 2
    return Operator(
        name="prefill_latent",
        kind="prefill_latent",
        dtype="bf16",
        flops=2.0 * pairs * heads * (192 + 128),
        bytes=batch * isl * heads * (192 + 128) * 2.0,
        rows=batch * isl * heads / 128,
        parallel=batch * isl * heads,
        depth=pairs * heads,
    )


def decode_latent(rows: pd.DataFrame, dtype: Dtype) -> Operator:
    """Absorbed MLA decode over 576 cached numbers a token."""
    batch, step, heads = columns(rows, "batch_size", "step", "num_heads")
    context = batch * (step + 1)
    return Operator(
        name="decode_latent",
        kind="decode_latent",
        dtype=dtype,
        flops=2.0 * context * heads * (576 + 512),
        bytes=context * 576 * (1.0 if dtype == "fp8" else 2.0),
        rows=heads,
        parallel=batch,
        depth=context * heads,
    )


def prefill_sparse(rows: pd.DataFrame, dtype: Dtype) -> Operator:
    """GLM-5's sparse attention of prompts: at most 2,048 selected latents a token."""
    batch, isl, step, heads = columns(rows, "batch_size", "isl", "step", "num_heads")
    pairs = batch * np.minimum(isl * step + isl * (isl + 1) / 2, isl * 2048)
    return _sparse(heads, dtype, pairs=pairs, new=batch * isl)[0]


def decode_sparse(rows: pd.DataFrame, dtype: Dtype) -> Operator:
    """GLM-5's sparse attention of one token per sequence."""
    batch, step, heads = columns(rows, "batch_size", "step", "num_heads")
    context = batch * np.minimum(step + 1, 2048.0)
    return _sparse(heads, dtype, context=context, sequences=batch)[1]


def prefill_indexer(rows: pd.DataFrame, dtype: Dtype) -> Operator:
    """GLM-5's selector of prompts: 32 heads of 128 score every earlier token in fp8."""
    batch, isl, step = columns(rows, "batch_size", "isl", "step")
    pairs = batch * (isl * step + isl * (isl + 1) / 2)
    return _indexer("prefill_indexer", 32, pairs, 8.0 + 128 / 128, batch * isl)


def decode_indexer(rows: pd.DataFrame, dtype: Dtype) -> Operator:
    """DeepSeek V4's selector over a paged cache: 64 heads of 128 score every fourth token."""
    batch, isl, step = columns(rows, "batch_size", "isl", "step")
    pairs = batch * (step + isl) / 4
    return _indexer("decode_indexer", 64, pairs, 8.0 + 128, batch)


def _indexer(kind: Kind, heads: int, pairs: Array, moved: float, parallel: Array) -> Operator:
    return Operator(
        name=kind,
        kind=kind,
        dtype="fp8",
        flops=2.0 * pairs * heads * 128,
        bytes=pairs * moved,
        rows=np.ones_like(pairs),
        parallel=parallel,
    )


def prefill_state(rows: pd.DataFrame, dtype: Dtype) -> Operator:
    """Gated DeltaNet's chunked form."""
    batch, length, heads, dim = columns(rows, "batch_size", "seq_len", "num_v_heads", "head_v_dim")
    (keys,) = columns(rows, "num_k_heads")
    one = LinearState(
        kind="gdn", heads=1, rows=128, columns=128, conv_channels=384, conv_kernel=4, key_heads=1
    )
    new = batch * length
    vectors = (2 * keys * dim + 2 * heads * dim) * 2.0
    return Operator(
        name="prefill_state",
        kind="prefill_state",
        dtype="bf16",
        flops=new * heads * chunk_flops(one, 1),
        bytes=new * (vectors + 2 * heads * dim * dim * 2.0 / 64),
        rows=length,
        parallel=batch * heads,
    )


def decode_state(rows: pd.DataFrame, dtype: Dtype) -> Operator:
    """Gated DeltaNet's recurrence: one bf16 state read and written per sequence."""
    batch, heads, keys, dim = columns(
        rows, "batch_size", "num_v_heads", "num_k_heads", "head_v_dim"
    )
    elements = heads * dim * dim
    vectors = (2 * keys * dim + 2 * heads * dim) * 2.0
    return Operator(
        name="decode_state",
        kind="decode_state",
        dtype="bf16",
        flops=batch * 8.0 * elements,
        bytes=batch * (2 * elements * 2.0 + vectors),
        rows=np.ones_like(batch),
        parallel=batch * heads,
    )


def quantise(rows: pd.DataFrame, dtype: Dtype) -> Operator:
    """Activations read as bf16 and written as fp8: one and a half passes of bf16."""
    m, k = columns(rows, "m", "k")
    return vector("quantise", m * k, 1.5)


class Table(NamedTuple):
    """Where the rows of a kind lie, how they are chosen, and how they become operators."""

    kind: Kind
    files: str
    dtype_column: str
    reader: Reader
    keep: Callable[[pd.DataFrame], pd.DataFrame]
    floor: float = np.inf
    engines: tuple[EngineName, ...] = ENGINES


def _shapes(rows: pd.DataFrame) -> pd.DataFrame:
    low, high = SHAPES
    return rows[rows.n.between(low, high) & rows.k.between(low, high)]


def _balanced(rows: pd.DataFrame) -> pd.DataFrame:
    spread = rows[(rows.distribution == "balanced") & ~rows.kernel_source.str.contains("nongated")]
    # Engines choose among kernels: the fastest of a shape speaks for it, then the commonest of a
    # dtype for all (the others serve shapes that it cannot).
    shape = [c for c in spread.columns if c not in ("latency", "kernel_source", "version")]
    spread = spread.sort_values("latency").drop_duplicates(shape).sort_index()
    usual = spread.groupby("moe_dtype").kernel_source.agg(lambda names: names.mode()[0])
    spread = spread[spread.kernel_source == spread.moe_dtype.map(usual)]
    # Two-matrix experts (Nemotron) are listed without saying so.
    spread = spread[~spread.inter_size.isin([1856, 2688])]
    return spread[spread.num_tokens * spread.topk >= spread.moe_ep_size]


def _whole(rows: pd.DataFrame) -> pd.DataFrame:
    plain = rows[(rows.isl >= 128) & (rows.step == 0)]
    if "window_size" in plain:
        plain = plain[plain.window_size == 0]
    if "attn_dtype" in plain and (plain.attn_dtype == "fp8").any():
        # An fp8 cache is read by fp8 attention wherever the engine has it.
        plain = plain[(plain.attn_dtype == "fp8") == (plain.kv_cache_dtype == "fp8")]
    return plain


def _steps(rows: pd.DataFrame) -> pd.DataFrame:
    plain = rows[rows.step >= 127]
    return plain[plain.window_size == 0] if "window_size" in plain else plain


def _state(phase: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def keep(rows: pd.DataFrame) -> pd.DataFrame:
        chosen = rows[(rows.phase == phase) & ~rows.kernel_source.str.contains("conv1d")]
        return chosen[chosen.seq_len >= 64] if phase == "context" else chosen

    return keep


TABLES = (
    Table("gemm", "gemm/{engine}/*/gemm_perf.parquet", "gemm_dtype", gemm, _shapes, HOST_BOUND),
    Table("experts", "moe/{engine}/*/moe_perf.parquet", "moe_dtype", experts, _balanced),
    Table(
        "prefill_attention",
        "attention/{engine}/*/context_attention_perf.parquet",
        "kv_cache_dtype",
        prefill_attention,
        _whole,
    ),
    Table(
        "decode_attention",
        "attention/{engine}/*/generation_attention_perf.parquet",
        "kv_cache_dtype",
        decode_attention,
        _steps,
    ),
    Table(
        "prefill_latent",
        "mla/{engine}/*/context_mla_perf.parquet",
        "mla_dtype",
        prefill_latent,
        _whole,
    ),
    Table(
        "decode_latent",
        "mla/{engine}/*/generation_mla_perf.parquet",
        "kv_cache_dtype",
        decode_latent,
        _steps,
    ),
    Table(
        "prefill_sparse",
        "sparse_attention/{engine}/*/glm5_dsa_attn_module_perf.parquet",
        "kv_cache_dtype",
        prefill_sparse,
        lambda rows: rows[rows.isl >= 128],
    ),
    Table(
        "decode_sparse",
        "sparse_attention/{engine}/*/glm5_dsa_attn_module_perf.parquet",
        "kv_cache_dtype",
        decode_sparse,
        lambda rows: rows[(rows.isl == 1) & (rows.step >= 127)],
    ),
    Table(
        "prefill_indexer",
        "sparse_attention/{engine}/*/glm5_mqa_logits_module_perf.parquet",
        "kv_cache_dtype",
        prefill_indexer,
        lambda rows: rows[(rows.isl >= 128) & (rows.isl * rows.step >= 4096)],
    ),
    Table(
        "decode_indexer",
        "sparse_attention/{engine}/*/dsv4_paged_mqa_logits_module_perf.parquet",
        "kv_cache_dtype",
        decode_indexer,
        lambda rows: rows[(rows.isl == 1) & (rows.step >= 512)],
    ),
    Table(
        "prefill_state",
        "linear_attention/{engine}/*/gdn_perf.parquet",
        "",
        prefill_state,
        _state("context"),
    ),
    Table(
        "decode_state",
        "linear_attention/{engine}/*/gdn_perf.parquet",
        "",
        decode_state,
        _state("generation"),
    ),
    Table(
        "vector",
        "quantize/{engine}/*/scale_matrix_perf.parquet",
        "",
        quantise,
        lambda rows: rows,
        # SGLang's table times a kernel of two passes, ten times off the bandwidth of the others.
        engines=("vllm", "trtllm"),
    ),
)


def samples(
    folder: Path, engine: EngineName, table: Table, gpu: Gpu
) -> Iterator[tuple[Samples, str]]:
    """The rows of one kind, one dtype at a time from the newest version of an engine that has it,
    without rows timed through the host or out of the cache; and that version."""
    seen: set[Dtype] = set()
    files = sorted(folder.glob(table.files.format(engine=engine)), key=_version, reverse=True)
    for file in files:
        for found in _file_samples(pd.read_parquet(file), table, gpu):
            if found.operator.dtype not in seen:
                seen.add(found.operator.dtype)
                yield found, f"{engine} {file.parent.name}"


def _file_samples(rows: pd.DataFrame, table: Table, gpu: Gpu) -> Iterator[Samples]:
    rows = table.keep(rows)
    rows = rows[rows.latency > 0]
    named = rows[table.dtype_column].map(DTYPES) if table.dtype_column else "bf16"
    for dtype, group in rows.assign(stored=named).groupby("stored"):
        # Per-tensor and block fp8 share a dtype here but not a harness: each is judged alone.
        parts = group.groupby(table.dtype_column) if table.dtype_column else [("", group)]
        kept = [part for _, part in parts if part.latency.quantile(0.02) / 1e3 < table.floor]
        if not kept:
            continue
        # Block scales are what published fp8 checkpoints carry; per-tensor rows are a second best.
        blocks = [
            p for p in kept if table.dtype_column and "fp8_block" in set(p[table.dtype_column])
        ]
        chosen = pd.concat(blocks or kept)
        operator = table.reader(chosen, dtype)
        seconds = chosen.latency.to_numpy(float) / 1e3
        cold = operator.bytes / seconds < CACHED * gpu.bandwidth
        possible = operator.flops / seconds < peak(gpu, operator.dtype)
        cells = zip(*(chosen[c].tolist() for c in chosen.columns if c != "latency"), strict=True)
        odd = np.array([zlib.crc32(repr(row).encode()) % 2 == 1 for row in cells])
        good = cold & possible
        if good.sum() >= 40:
            yield Samples(_take(operator, good), seconds[good], odd[good])


# What may vary: a start and the bounds that keep it physical.
START = {
    "compute": (0.6, 0.02, 1.0),
    "memory": (0.8, 0.02, 1.0),
    "launch": (4e-6, 5e-7, 2e-4),
    "pad_rows": (16.0, 1e-3, 2e3),
    "half_parallel": (64.0, 1e-3, 1e4),
    "serial": (1e-10, 1e-16, 1e-7),
    "sharpness": (2.0, 1.0, 6.0),
}
# A decode attention multiplies tiles of at most 64 queries a key-value head (wgmma); what holds it
# up beside them is no matrix work and must not scale with a GPU's FLOP/s.
DECODE = {"compute": (0.7, 0.5, 1.0), "pad_rows": (16.0, 1e-3, 64.0)}
BOUNDS: dict[Kind, dict[str, tuple[float, float, float]]] = {
    "decode_attention": DECODE,
    "decode_latent": DECODE,
    "decode_sparse": DECODE,
}
PRODUCT = ("compute", "memory", "launch", "pad_rows", "half_parallel", "serial", "sharpness")
# Prefill attention is a plain sum, so that it stays linear in its pairs beside its queries.
PREFILL = ("compute", "memory", "launch", "pad_rows", "serial")
FREE: dict[Kind, tuple[str, ...]] = {
    "gemm": PRODUCT,
    "experts": PRODUCT,
    "prefill_attention": PREFILL,
    "prefill_latent": PREFILL,
    "prefill_sparse": PREFILL,
    "decode_attention": PRODUCT,
    "decode_latent": PRODUCT,
    "decode_sparse": PRODUCT,
    "prefill_indexer": ("compute", "memory", "launch", "sharpness"),
    "decode_indexer": ("memory", "launch", "half_parallel"),
    "prefill_state": ("compute", "memory", "launch", "pad_rows", "half_parallel", "sharpness"),
    "decode_state": ("memory", "launch", "half_parallel"),
    "vector": ("memory", "launch"),
}


def fit(found: Samples, gpu: Gpu, engine: EngineName, source: str) -> Surface:
    """The surface that fits the even rows best (log error, soft L1), and its error on the odd."""
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    kind, dtype = found.operator.kind, found.operator.dtype
    names = FREE[kind]
    ranges = START | BOUNDS.get(kind, {})
    fixed = {name: 1.0 for name in ("compute", "sharpness") if name not in names}
    top = peak(gpu, dtype)
    even = _thin(found, ~found.held_out)
    observed = np.log(even.seconds)

    def surface(logs: Array) -> Surface:
        values = fixed | dict(zip(names, np.exp(logs).tolist(), strict=True))
        return Surface(kind=kind, dtype=dtype, engine=engine, origin=source, **values)

    def residuals(logs: Array) -> Array:
        seconds = launch_seconds(surface(logs), even.operator, top, gpu.bandwidth)
        return np.asarray(np.log(seconds) - observed)

    best = least_squares(
        residuals,
        np.log([_start(n, kind) for n in names]),
        bounds=(np.log([ranges[n][1] for n in names]), np.log([ranges[n][2] for n in names])),
        loss="soft_l1",
        f_scale=0.1,
        max_nfev=80,
    )
    odd = _thin(found, found.held_out)
    guess = launch_seconds(surface(best.x), odd.operator, top, gpu.bandwidth)
    error = np.abs(guess / odd.seconds - 1.0)
    rounded = fixed | {
        name: float(f"{value:.4g}")
        for name, value in zip(names, np.exp(best.x).tolist(), strict=True)
    }
    return Surface(
        kind=kind,
        dtype=dtype,
        engine=engine,
        samples=int((~found.held_out).sum()),
        error_median=round(float(np.median(error)), 3),
        error_p90=round(float(np.quantile(error, 0.9)), 3),
        origin=source,
        **rounded,
    )


def _start(name: str, kind: Kind) -> float:
    # Depth counts exponentials for attention: billions a millisecond, not thousands.
    attention = kind.endswith(("attention", "latent", "sparse"))
    return (
        1e-13
        if name == "serial" and attention
        else BOUNDS.get(kind, START).get(name, START[name])[0]
    )


def columns(rows: pd.DataFrame, *names: str) -> list[Array]:
    """Columns as float arrays."""
    return [rows[name].to_numpy(float) for name in names]


def _attend(
    kind: Literal["attention", "sparse"],
    heads: Array,
    kv_heads: Array,
    dim: Array,
    dtype: Dtype,
    **counts: Array,
) -> list[Operator]:
    return attend(
        kind,
        heads=heads,
        kv_heads=kv_heads,
        score_dim=dim,
        value_dim=dim,
        cached=kv_heads * 2 * dim,
        dtype=dtype,
        batch=_batch(heads, **counts),
        drafts=0,
    )


def _sparse(heads: Array, dtype: Dtype, **counts: Array) -> list[Operator]:
    return attend(
        "sparse",
        heads=heads,
        kv_heads=1,
        score_dim=576,
        value_dim=512,
        cached=576,
        dtype=dtype,
        batch=_batch(heads, **counts),
        drafts=0,
    )


def _batch(like: Array, **counts: Array) -> Batch:
    zero = np.zeros_like(like)
    return Batch(
        decode=counts.get("sequences", zero),
        context=counts.get("context", zero),
        prefill=counts.get("new", zero),
        pairs=counts.get("pairs", zero),
        rows=zero,
    )


def _take(operator: Operator, chosen: NDArray[np.bool_]) -> Operator:
    depth = operator.depth
    return msgspec.structs.replace(
        operator,
        flops=operator.flops[chosen],
        bytes=operator.bytes[chosen],
        rows=np.broadcast_to(operator.rows, chosen.shape)[chosen],
        parallel=np.broadcast_to(operator.parallel, chosen.shape)[chosen],
        depth=depth[chosen] if isinstance(depth, np.ndarray) else depth,
    )


def _thin(found: Samples, chosen: NDArray[np.bool_]) -> Samples:
    """At most FIT_ROWS of the chosen rows, evenly through the table."""
    index = np.flatnonzero(chosen)
    index = index[:: max(1, len(index) // FIT_ROWS)]
    mask = np.zeros(len(chosen), bool)
    mask[index] = True
    return Samples(_take(found.operator, mask), found.seconds[mask], found.held_out[mask])


def _version(path: Path) -> tuple[int, ...]:
    digits = "".join(c if c.isdigit() else " " for c in path.parent.name)
    return tuple(int(d) for d in digits.split())


def fitted(name: str, data: Path, kinds: list[str] | None) -> list[Surface]:
    """All surfaces of one GPU, each printed as it is found."""
    gpu = facts.gpu(name)
    surfaces = []
    for table in TABLES:
        if kinds and table.kind not in kinds:
            continue
        for engine in table.engines:
            for found, source in samples(data / GPUS[name], engine, table, gpu):
                surface = fit(found, gpu, engine, f"fitted: {source}")
                surfaces.append(surface)
                print(
                    f"{name:20} {surface.kind:18} {surface.dtype or '':6} {engine:7}"
                    f" {surface.samples:6} {surface.error_median:6.3f} {surface.error_p90:6.3f}"
                    f"  compute {surface.compute:.3f} memory {surface.memory:.3f}"
                    f" launch {surface.launch * 1e6:.1f} pad {surface.pad_rows:.1f}"
                    f" half {surface.half_parallel:.0f} serial {surface.serial:.1e}"
                    f" s {surface.sharpness:.1f}",
                    flush=True,
                )
    return surfaces


def borrowed(own: list[Surface], lender: str, lent: list[Surface]) -> list[Surface]:
    """Surfaces of the kinds that a GPU's tables lack, as another GPU's."""
    kinds = {surface.kind for surface in own}
    return [
        msgspec.structs.replace(
            surface,
            samples=0,
            error_median=None,
            error_p90=None,
            origin=f"assumed: as {lender} ({surface.origin})",
        )
        for surface in lent
        if surface.kind not in kinds
    ]


def amd(lent: list[Surface]) -> list[Surface]:
    """Shares of AMD GPUs, which no table covers: H200's memory, and its compute times the ratio of
    the shares that both reach in bf16 products."""
    # SemiAnalysis, "MI300X vs H100 vs H200 Benchmark Part 1", 2024-12-22: about 620 of 1,307
    # TFLOP/s on MI300X, 720 of 989 on H100 and H200.
    ratio = (620 / 1307) / (720 / 989)
    return [
        msgspec.structs.replace(
            surface,
            engine=None,
            compute=round(surface.compute * ratio, 4),
            samples=0,
            error_median=None,
            error_p90=None,
            origin=f"assumed: {ratio:.2f} of H200's share of compute, its share of bandwidth",
        )
        for surface in lent
        if surface.engine == "vllm" or surface.dtype == "fp8" or "latent" in surface.kind
    ]


def write(folder: Path, name: str, head: Mapping[str, object], surfaces: list[Surface]) -> None:
    """One file: its head, then one line per surface."""
    lines = [f"{key} = {_toml(value)}" for key, value in head.items()]
    lines.append("surfaces = [")
    for surface in surfaces:
        fields = msgspec.to_builtins(surface)
        pairs = [f"{k} = {_toml(v)}" for k, v in fields.items() if v is not None]
        lines.append(f"  {{ {', '.join(pairs)} }},")
    lines.append("]")
    (folder / f"{name}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, str):
        return '"' + value.replace('"', "'") + '"'
    return repr(value)


def table() -> str:
    """Held-out errors of the shipped files as a Markdown table: kinds down, GPUs across."""
    from splitpoint.timing.efficiency import efficiency

    lines = [f"| kind | {' | '.join(GPUS)} |", "|---" * (len(GPUS) + 1) + "|"]
    for kind in FREE:
        cells = []
        for name in GPUS:
            own = [s for s in efficiency(facts.gpu(name)).surfaces if s.kind == kind and s.samples]
            middle = [s.error_median for s in own if s.error_median is not None]
            high = [s.error_p90 for s in own if s.error_p90 is not None]
            cells.append(
                f"{np.median(middle):.0%} / {np.median(high):.0%} ({len(own)})"
                if own
                else "as donor"
            )
        lines.append(f"| {kind.replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(lines)


SOURCE = (
    "fitted to the measured kernel tables of aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0) by "
    "benchmarks/fit_efficiency.py"
)


def main() -> int:
    """Fit every GPU that has tables; print the errors, and write the files if asked."""
    import aiconfigurator_core

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", choices=list(GPUS), action="append")
    parser.add_argument("--kind", action="append")
    parser.add_argument("--write", type=Path, help="folder for the TOML files (all GPUs)")
    parser.add_argument("--cache", type=Path, help="folder where finished GPUs are kept")
    parser.add_argument("--table", action="store_true", help="print the shipped errors and stop")
    options = parser.parse_args()
    if options.table:
        print(table())
        return 0
    data = Path(aiconfigurator_core.__file__).parent / "systems" / "data"
    found = {}
    for name in options.gpu or GPUS:
        kept = options.cache / f"{GPUS[name]}.json" if options.cache else None
        if kept is not None and kept.exists():
            found[name] = msgspec.json.decode(kept.read_bytes(), type=list[Surface])
            continue
        found[name] = fitted(name, data, options.kind)
        if kept is not None:
            kept.write_bytes(msgspec.json.encode(found[name]))
    if options.write is None:
        return 0
    for name, surfaces in found.items():
        gpu = facts.gpu(name)
        lender = "B200" if gpu.architecture == "blackwell" else "H200"
        own = surfaces + borrowed(surfaces, lender, found[lender])
        own += borrowed(own, "H200", found["H200"])
        head = {
            "gpus": [name],
            "architecture": gpu.architecture,
            "donor": name in DONORS,
            "source": SOURCE,
        }
        write(options.write, GPUS[name], head, own)
    for architecture in ("cdna3", "cdna4"):
        head = {
            "gpus": [],
            "architecture": architecture,
            "donor": True,
            "source": "assumed: derived from H200's shares, no kernel of this GPU was measured",
        }
        write(options.write, architecture, head, amd(found["H200"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
