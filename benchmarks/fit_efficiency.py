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
from splitpoint.timing.efficiency import (
    Axis,
    Bend,
    Surface,
    bent_seconds,
    efficiency,
    launch_seconds,
    log_factor,
    peak,
)
from splitpoint.timing.operators import (
    SCORE_BYTES,
    Array,
    Batch,
    Kind,
    Operator,
    Stored,
    attend,
    chunk_flops,
    grouped,
    matmul,
    selection,
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
# Rows of the first and of the last fit of a surface.
FEW_ROWS, FIT_ROWS = 1000, 2000
# Shapes that models have; the tables start at 32, where launches are all that is measured.
SHAPES = (512, 66000)
# A table of products whose cheapest rows take longer than this was timed with the host in the loop.
HOST_BOUND = 30e-6
# Faster than this share of HBM bandwidth: the operands stayed in the cache between repetitions.
CACHED = 0.95
# Last-level cache in MiB. The tables repeat one launch over the same cache or state, so what fits
# is read from there, while a serving step reads every layer's from HBM. Published: NVIDIA's
# whitepapers of A100, H100, Ada and RTX Blackwell; B200: `l2CacheSize` of its device properties
# (assumed alike: B300, GB200, GB300).
CACHE_MIB = {
    "A100 SXM 80GB": 40,
    "H100 SXM": 50,
    "H200": 50,
    "L40S": 96,
    "RTX PRO 6000 Server": 128,
    "B200": 126,
    "B300": 126,
    "GB200": 126,
    "GB300": 126,
}
# Rates of L40S and B200 change at 1.0 to 1.5 times the size of their cache; a row whose bytes take
# less than this share of its time says as much from either place.
HALF_CACHED = 1.5
NOTICED = 0.15
# A table whose repeats of one shape differ by more at their 90th percentile was timed beside other
# work (measured: chunked states of SGLang on H200, 2.1, and of TRT-LLM on GB200, 1.7; the others
# 1.0 to 1.3).
UNSTEADY = 1.5
# Products are timed with weights that rotate through several copies: L40S's rates change at a
# quarter of its cache. Only GDDR is so much slower that it shows.
COPIES = 4
GDDR = 2e12

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
# Of two formats that share a dtype, which one speaks for it: block scales are what published fp8
# checkpoints carry, and fp8 activations what `peak` counts mxfp4 weights on; InferenceX's
# gptoss_fp4_b200.sh sets VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8.
USUAL = {"fp8_block", "w4a8_mxfp4_mxfp8"}
# Engines whose surface of a kind and dtype is another's on data-centre Blackwell.
# nvfp4 products: all three run a CuTe DSL kernel of FlashInfer or CUTLASS. TensorRT-LLM chooses
# among several by tuning when it starts, and its table was taken without: 1.7 times SGLang's up to
# 256 rows, the same for 7,168 and 10,240 columns. vLLM's table counts the quantisation of the
# inputs, 2 to 3 us, SGLang's does not; SGLang launches it too (modelopt_quant.py), TensorRT-LLM's
# norms and activations hand on quantised numbers.
# fp8 experts: TensorRT-LLM's table holds DeepGEMM alone; its servers run trtllm-gen's kernel where
# attention is not data-parallel (InferenceX, dsr1_fp8_b200_trt.sh, MOE_BACKEND=TRTLLM), the one
# that FlashInfer gives to SGLang, two to three times faster on cut experts.
# mxfp4 experts: vLLM and SGLang call the same kernel (trtllm_mxfp4_mxfp8), SGLang's table has more
# layers of it, gpt-oss's among them.
LENT: dict[tuple[Kind, EngineName, Dtype], EngineName] = {
    ("gemm", "trtllm", "nvfp4"): "sglang",
    ("gemm", "sglang", "nvfp4"): "vllm",
    ("experts", "trtllm", "fp8"): "sglang",
    ("experts", "vllm", "mxfp4"): "sglang",
}
STORED: dict[Dtype, float] = {
    "bf16": 2.0,
    "fp8": 1.0 + 4 / 128**2,
    "nvfp4": 0.5625,
    "int4": 0.5 + 2 / 128,
    "mxfp4": 0.5 + 1 / 32,
}


class Samples(NamedTuple):
    """Measured launches of one kind and dtype: the operator as arrays, seconds, which rows the fit
    does not see, and the number of each row's layer (its columns but for the tokens)."""

    operator: Operator
    seconds: Array
    held_out: NDArray[np.bool_]
    layer: NDArray[np.int64]


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
    """MLA prefill on made heads: DeepSeek's 128 + 64 score and 128 value dimensions. An fp8 cache
    costs a quarter to a third more, as the new tokens are rounded to it."""
    batch, isl, heads = columns(rows, "batch_size", "isl", "num_heads")
    pairs = batch * isl * (isl + 1) / 2
    return Operator(
        name="prefill_latent",
        kind="prefill_latent",
        dtype=dtype,
        flops=2.0 * pairs * heads * (192 + 128),
        bytes=batch * isl * heads * (192 + 128) * 2.0,
        rows=np.ones_like(batch),
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
    return _indexer("prefill_indexer", 32, pairs, SCORE_BYTES + 128 / 128, batch * isl)


def decode_indexer(rows: pd.DataFrame, dtype: Dtype) -> Operator:
    """DeepSeek V4's selector over a paged cache: 64 heads of 128 score every fourth token."""
    batch, isl, step = columns(rows, "batch_size", "isl", "step")
    pairs = batch * (step + isl) / 4
    return _indexer("decode_indexer", 64, pairs, SCORE_BYTES + 128, batch)


def selected(rows: pd.DataFrame, dtype: Dtype) -> Operator:
    """GLM-5's choice of the 2,048 best scores of every new token."""
    batch, isl, step = columns(rows, "batch_size", "isl", "step")
    scores = batch * (isl * step + isl * (isl + 1) / 2)
    return selection("selection", scores, batch * isl, 2048)


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
    # The commonest kernel of a dtype speaks for all (the others serve shapes that it cannot).
    spread = _fastest(spread)
    usual = spread.groupby("moe_dtype").kernel_source.agg(lambda names: names.mode()[0])
    spread = spread[spread.kernel_source == spread.moe_dtype.map(usual)]
    # Two-matrix experts (Nemotron) are listed without saying so.
    spread = spread[~spread.inter_size.isin([1856, 2688])]
    return spread[spread.num_tokens * spread.topk >= spread.moe_ep_size]


def _fastest(rows: pd.DataFrame) -> pd.DataFrame:
    """Engines choose among kernels: the fastest of a shape speaks for it."""
    shape = [c for c in rows.columns if c not in ("latency", "kernel_source", "version")]
    return rows.sort_values("latency").drop_duplicates(shape).sort_index()


def _whole(rows: pd.DataFrame) -> pd.DataFrame:
    plain = rows[(rows.isl >= 128) & (rows.step == 0)]
    if "window_size" in plain:
        plain = plain[plain.window_size == 0]
    if "attn_dtype" in plain and (plain.attn_dtype == "fp8").any():
        # An fp8 cache is read by fp8 attention wherever the engine has it.
        plain = plain[(plain.attn_dtype == "fp8") == (plain.kv_cache_dtype == "fp8")]
    return _fastest(plain)


def _steps(rows: pd.DataFrame) -> pd.DataFrame:
    # A context of 128 is one tile of keys, which no kernel splits over the GPU as it does more.
    plain = rows[rows.step >= 255]
    return _fastest(plain[plain.window_size == 0] if "window_size" in plain else plain)


def _state(phase: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def keep(rows: pd.DataFrame) -> pd.DataFrame:
        chosen = rows[(rows.phase == phase) & ~rows.kernel_source.str.contains("conv1d")]
        chosen = chosen[chosen.seq_len >= 64] if phase == "context" else chosen
        # Layers of two models may be one shape: the table repeats itself.
        shape = [c for c in chosen if c not in ("latency", "model_name", "d_model")]
        again = chosen.groupby(shape).latency.agg(["size", "min", "max"])
        again = again[again["size"] > 1]
        if len(again) and (again["max"] / again["min"]).quantile(0.9) > UNSTEADY:
            return chosen[:0]
        return chosen

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
        "kv_cache_dtype",
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
        lambda rows: rows[(rows.isl == 1) & (rows.step >= 255)],
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
    # Scores whose best come last; equal ones, which the tables have too, take twice as long and are
    # no model's. Below 4,096 scores little or nothing is left to choose.
    Table(
        "selection",
        "sparse_attention/{engine}/*/glm5_topk_module_perf.parquet",
        "",
        selected,
        lambda rows: rows[(rows.score_mode == "top_last") & (rows.isl + rows.step >= 4096)],
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
        usual = [
            p for p in kept if table.dtype_column and USUAL & set(p[table.dtype_column].unique())
        ]
        chosen = pd.concat(usual or kept)
        operator = table.reader(chosen, dtype)
        seconds = chosen.latency.to_numpy(float) / 1e3
        cold = _cold(operator, seconds, gpu)
        possible = operator.flops / seconds < peak(gpu, operator.dtype)
        cells = zip(*(chosen[c].tolist() for c in chosen.columns if c != "latency"), strict=True)
        odd = np.array([zlib.crc32(repr(row).encode()) % 2 == 1 for row in cells])
        good = cold & possible
        if operator.kind == "experts":
            partly = _partly_reached(chosen, operator, seconds, ~odd, gpu)
            if partly.mean() > 0.5:
                continue
            good &= ~partly & ~_all_pairs(chosen, ~odd)
        counted = ("latency", "num_tokens", "batch_size", "isl", "step", "m", "seq_len")
        layer = chosen.groupby([c for c in chosen if c not in counted], dropna=False).ngroup()
        if good.sum() >= 40:
            every = Samples(operator, seconds, odd, layer.to_numpy())
            yield _part(every, good)


def _cold(operator: Operator, seconds: Array, gpu: Gpu) -> NDArray[np.bool_]:
    """Rows whose operands came from HBM, or were too few to notice."""
    slow = operator.bytes / seconds < CACHED * gpu.bandwidth
    if operator.kind not in REPEATED and not (operator.kind == "gemm" and gpu.bandwidth < GDDR):
        return slow
    copies = COPIES if operator.kind == "gemm" else 1
    fits = operator.bytes * copies < HALF_CACHED * CACHE_MIB[gpu.name] * 2**20
    return slow & ~(fits & (operator.bytes / gpu.bandwidth > NOTICED * seconds))


LAYER = ["hidden_size", "inter_size", "topk", "num_experts"]
# A rank among as many as topk takes at least this share of the time of one that holds all experts,
# where it computes all pairs of the tokens that reach it; else 0.1 to 0.7.
SAME = 0.75


def _all_pairs(rows: pd.DataFrame, fitted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows of several ranks in layers whose ranks were given all topk experts of every token that
    reaches them: fitted rows of up to topk ranks take as long a token as those of one, at 256 pairs
    an expert and more. SGLang's tables up to 0.5.10 are so, and a few layers of others."""
    many = rows[fitted & (rows.num_tokens * rows.topk >= 256 * rows.num_experts)]
    many = many.assign(token=many.latency / many.num_tokens)
    cut = [*LAYER, "moe_tp_size"]
    spread = many[(many.moe_ep_size > 1) & (many.moe_ep_size <= many.topk)]
    widest = spread[spread.moe_ep_size == spread.groupby(LAYER).moe_ep_size.transform("max")]
    one = many[many.moe_ep_size == 1].groupby(cut).token.median()
    same = (widest.groupby(cut).token.median() / one).groupby(LAYER).median() > SAME
    alike = pd.MultiIndex.from_frame(rows[LAYER]).isin(same[same].index)
    return np.asarray(alike & (rows.moe_ep_size > 1), dtype=np.bool_)


def _partly_reached(
    rows: pd.DataFrame, operator: Operator, seconds: Array, fitted: Array, gpu: Gpu
) -> NDArray[np.bool_]:
    """Rows of layers whose experts would be read faster than memory allows in some fitted row.

    Their router chose among groups of experts, and equal scores led it to the first ones: half of
    the experts have no token, and a few have most. A table with more of them than of others is
    left out.
    """
    large = operator.bytes > HALF_CACHED * CACHE_MIB[gpu.name] * 2**20
    (ep,) = columns(rows, "moe_ep_size")
    # Four pairs an expert: each is reached, if tokens are spread at all.
    every = large & (ep == 1) & (operator.rows >= 4)
    faster = fitted & every & (operator.bytes / seconds > gpu.bandwidth)
    layers = [rows[name] for name in LAYER]
    found = pd.Series(faster, index=rows.index).groupby(layers).transform("any")
    return np.asarray(found, dtype=np.bool_)


# Kinds that read a cache, a state or experts, which the tables keep in place between repetitions.
REPEATED: frozenset[Kind] = frozenset(
    {
        "experts",
        "decode_attention",
        "decode_latent",
        "decode_sparse",
        "decode_indexer",
        "decode_state",
    }
)
# What may vary: a start and the bounds that keep it physical.
START = {
    "compute": (0.6, 0.02, 1.0),
    "memory": (0.8, 0.02, 1.0),
    "launch": (4e-6, 5e-7, 2e-4),
    "pad_rows": (16.0, 1e-3, 2e3),
    "half_parallel": (64.0, 1e-3, 1e4),
    "serial": (1e-10, 1e-16, 1e-7),
    "sharpness": (2.0, 1.0, 6.0),
    "buffers": (0.5, 1e-3, 3.0),
    "whole_128": (0.3, 1e-3, 0.5),
    "whole_256": (0.3, 1e-3, 0.5),
}
# A decode attention multiplies tiles of at most 64 queries a key-value head (wgmma); what holds it
# up beside them is no matrix work and must not scale with a GPU's FLOP/s.
DECODE = {"compute": (0.7, 0.5, 1.0), "pad_rows": (16.0, 1e-3, 64.0)}
BOUNDS: dict[Kind, dict[str, tuple[float, float, float]]] = {
    "decode_attention": DECODE,
    "decode_latent": DECODE,
    "decode_sparse": DECODE,
    # All of its larger rows are read from the cache, so that only launches can be fitted; assumed:
    # the share of HBM bandwidth that decode attention reaches.
    "decode_indexer": {"memory": (0.8, 0.75, 0.85)},
}
PRODUCT = ("compute", "memory", "launch", "pad_rows", "half_parallel", "serial", "sharpness")
WALK = ("compute", "memory", "launch", "pad_rows", "serial", "sharpness")
# Prefill attention is a plain sum, so that it stays linear in its pairs beside its queries.
PREFILL = ("compute", "memory", "launch", "serial")
FREE: dict[Kind, tuple[str, ...]] = {
    "gemm": (*PRODUCT, "whole_128", "whole_256"),
    "experts": (*PRODUCT, "buffers"),
    "prefill_attention": PREFILL,
    "prefill_latent": PREFILL,
    "prefill_sparse": PREFILL,
    "decode_attention": WALK,
    "decode_latent": WALK,
    "decode_sparse": WALK,
    "prefill_indexer": ("compute", "memory", "launch", "sharpness"),
    "decode_indexer": ("memory", "launch"),
    "selection": ("memory", "launch", "serial"),
    "prefill_state": ("compute", "memory", "launch", "sharpness"),
    "decode_state": ("memory", "launch"),
    "vector": ("memory", "launch"),
}


class Shape(NamedTuple):
    """A bend that a kind may have: what it multiplies and its axes with their knots (log2).

    Along `rising` axes, which more tokens lengthen, its logarithm never falls by more than `fall`
    times that of the axis: the work of an attention is proportional to its sequences, so its factor
    may fall as fast as they grow and more are still never faster; elsewhere it may not fall.
    """

    of: Literal["launch", "work", "both"]
    axes: dict[Axis, tuple[float, ...]]
    rising: tuple[Axis, ...]
    fall: float = 0.0


SHAPES_OF: dict[Kind, tuple[Shape, ...]] = {
    "gemm": (
        Shape(
            "both",
            {"rows": (0, 3, 5, 7, 9, 12), "parallel": (9, 12, 16), "depth": (9, 12, 16)},
            ("rows",),
        ),
    ),
    "experts": (
        Shape(
            "both",
            {"rows": (0, 2, 4, 6, 8, 11), "parallel": (6, 10, 14, 18)},
            ("rows", "parallel"),
        ),
        Shape("both", {"width": (5, 7, 9, 11, 13), "depth": (11, 12, 13)}, ()),
        Shape("work", {"rows": (0, 3, 6, 9), "width": (5, 8, 11)}, ("rows",)),
    ),
    # Other kernels serve wide heads, single and very many queries a key-value head: 48 and more are
    # read once a query by TRT-LLM, 192, 256 and 512 are Triton's in SGLang on Blackwell.
    "prefill_attention": (
        Shape(
            "work",
            {"parallel": (9, 12, 14, 16, 18, 21), "rows": (0, 1, 3, 5)},
            ("parallel",),
            1.0,
        ),
        Shape("work", {"width": (6, 7, 7.585, 8, 9), "rows": (0, 1, 3)}, ()),
        Shape("launch", {"parallel": (9, 13, 17), "width": (6, 7, 8)}, ("parallel",)),
    ),
    "decode_attention": (
        Shape(
            "work",
            {"parallel": (0, 3, 5, 7, 9, 12), "rows": (0, 1, 3, 5, 5.585)},
            ("parallel",),
            1.0,
        ),
        Shape("work", {"width": (6, 7, 7.585, 8, 9), "rows": (0, 3, 5.585)}, ()),
        Shape("launch", {"parallel": (0, 4, 7, 10), "width": (6, 7, 8)}, ("parallel",)),
    ),
    "prefill_latent": (
        Shape("work", {"parallel": (9, 12, 14, 16, 18, 21)}, ("parallel",), 1.0),
        Shape("launch", {"parallel": (9, 13, 17)}, ("parallel",)),
    ),
    "decode_latent": (
        Shape("work", {"parallel": (0, 2, 4, 6, 8, 10), "rows": (0, 2, 4, 7)}, ("parallel",), 1.0),
        Shape("launch", {"parallel": (0, 4, 7, 10), "rows": (0, 4, 7)}, ("parallel",)),
    ),
    "prefill_sparse": (Shape("work", {"parallel": (9, 12, 15, 18, 21)}, ("parallel",), 1.0),),
    "decode_sparse": (Shape("work", {"parallel": (0, 3, 6, 9)}, ("parallel",), 1.0),),
    "prefill_indexer": (Shape("work", {"parallel": (7, 9, 11, 13, 15)}, ("parallel",), 1.0),),
    "decode_indexer": (Shape("work", {"parallel": (0, 3, 6, 9)}, ("parallel",), 1.0),),
    "selection": (Shape("work", {"parallel": (0, 4, 6, 7, 8, 9, 11, 14)}, ("parallel",), 1.0),),
    "prefill_state": (
        Shape("work", {"rows": (6, 8, 10, 12, 14), "parallel": (2, 5, 8, 11)}, ("rows",), 1.0),
    ),
    "decode_state": (Shape("work", {"parallel": (3, 6, 9, 12, 15)}, ("parallel",), 1.0),),
    "vector": (Shape("work", {"parallel": (12, 15, 18, 21, 24)}, ("parallel",), 1.0),),
}
# Some layers of experts are 2 to 6 times slower than the same ones cut otherwise, at every number
# of tokens (measured: TRT-LLM's bf16 table of H200), the others within 0.8 to 1.4 of the surface:
# what an autotuner falls back to.
UNTUNED = 1.75
# Weights of the fit beside its rows: neighbouring logs alike and near zero where no row speaks, and
# walls against falling faster than a shape allows.
ALIKE, NEAR = 0.3, 0.03
WALLS = (30.0, 300.0, 3000.0)
SOFT = 0.1  # log error past which a row counts by its size, no longer by the square


class Rules(NamedTuple):
    """Linear terms in all bends' logs: `soft` ones near zero, `rising` ones at least `least`."""

    soft: Array
    rising: Array
    least: Array


def fit(found: Samples, gpu: Gpu, engine: EngineName, source: str) -> Surface:
    """The surface of all rows, for experts without the layers that no kernel was tuned for."""
    every = surface_of(found, gpu, engine, source)
    if found.operator.kind != "experts":
        return every
    untuned = _untuned(found, every, gpu)
    if not untuned.any():
        return every
    share = f"{untuned.mean():.0%} of rows untuned, dropped"
    return surface_of(_part(found, ~untuned), gpu, engine, f"{source}; {share}")


def _untuned(found: Samples, every: Surface, gpu: Gpu) -> NDArray[np.bool_]:
    """Rows of layers whose fitted rows are UNTUNED times slower than the surface (median)."""
    guess = launch_seconds(every, found.operator, peak(gpu, every.dtype or "bf16"), gpu.bandwidth)
    ratio = pd.Series(np.where(found.held_out, np.nan, found.seconds / guess))
    slow = ratio.groupby(found.layer).median() > UNTUNED
    return np.asarray(slow[found.layer], dtype=np.bool_)


def surface_of(found: Samples, gpu: Gpu, engine: EngineName, source: str) -> Surface:
    """The surface that fits the even rows best (log error, soft L1), and its error on the odd."""
    few = Problem(_thin(found, ~found.held_out, FEW_ROWS), gpu)
    start = np.array([np.log(_start(n, few.kind)) for n in few.names])
    # Bends can take over from either bound, so one start has bounds fitted alone and one has not.
    bases = (few.best(start, 40), start)
    tries = [few.best(np.append(base, np.zeros(few.bent)), 60) for base in bases]
    near = min(tries, key=few.cost)
    # Low walls are found over, high ones hard to walk along: each is tried from the one before, and
    # the fitted rows say which surface is best once its falls are lifted.
    many = Problem(_thin(found, ~found.held_out, FIT_ROWS), gpu)
    lifted = []
    for wall in WALLS:
        many.wall = wall
        near = many.best(near, 30)
        lifted.append(many.rounded(near))
    final = min(lifted, key=many.misfit)
    final = msgspec.structs.replace(final, engine=engine, origin=source)
    odd = _part(found, found.held_out)
    guess = launch_seconds(final, odd.operator, peak(gpu, many.dtype), gpu.bandwidth)
    error = np.abs(guess / odd.seconds - 1.0)
    return msgspec.structs.replace(
        final,
        samples=int((~found.held_out).sum()),
        error_median=round(float(np.median(error)), 3),
        error_p90=round(float(np.quantile(error, 0.9)), 3),
    )


class Factors(NamedTuple):
    """What multiplies the launch and the work of every row."""

    launch: Array
    work: Array


class Problem:
    """Rows to fit one surface to. Its unknowns are the logarithms of the free coefficients, then
    those of all bends (which may be left out: none)."""

    def __init__(self, rows: Samples, gpu: Gpu) -> None:
        self.operator = rows.operator
        self.kind, self.dtype = rows.operator.kind, rows.operator.dtype
        self.observed = np.log(rows.seconds)
        self.names, self.shapes = FREE[self.kind], SHAPES_OF[self.kind]
        self.peak, self.bandwidth = peak(gpu, self.dtype), gpu.bandwidth
        ranges = START | BOUNDS.get(self.kind, {})
        self.low = np.array([np.log(ranges[n][1]) for n in self.names])
        self.high = np.array([np.log(ranges[n][2]) for n in self.names])
        self.weights = [_weights(shape, rows.operator) for shape in self.shapes]
        self.rules = _rules(self.shapes)
        self.wall = WALLS[0]

    @property
    def bent(self) -> int:
        """Number of the bends' logarithms."""
        return sum(w.shape[1] for w in self.weights)

    def best(self, start: Array, evaluations: int) -> Array:
        """The unknowns of least cost, from a start."""
        from scipy.optimize import least_squares  # type: ignore[import-untyped]

        more = np.full(len(start) - len(self.names), 3.0)
        low, high = np.append(self.low, -more), np.append(self.high, more)
        found = least_squares(
            self.residuals,
            np.clip(start, low + 1e-6, high - 1e-6),
            jac=self.slopes,
            bounds=(low, high),
            loss="soft_l1",
            f_scale=SOFT,
            max_nfev=evaluations,
        )
        return np.asarray(found.x)

    def cost(self, values: Array) -> float:
        """Soft L1 of all residuals, as the fit sees it."""
        return float(np.sum(np.sqrt(1.0 + (self.residuals(values) / SOFT) ** 2)))

    def misfit(self, surface: Surface) -> float:
        """Soft L1 of the rows alone on a surface."""
        guess = launch_seconds(surface, self.operator, self.peak, self.bandwidth)
        errors = np.log(guess) - self.observed
        return float(np.sum(np.sqrt(1.0 + (errors / SOFT) ** 2)))

    def residuals(self, values: Array) -> Array:
        """Log errors of the rows, then what the rules of the bends say."""
        logs = values[len(self.names) :]
        rows = np.log(self.seconds(values, self.factors(logs))) - self.observed
        if not len(logs):
            return np.asarray(rows)
        broken = np.minimum(self.rules.rising @ logs - self.rules.least, 0.0)
        return np.concatenate([rows, self.rules.soft @ logs, self.wall * broken])

    def slopes(self, values: Array) -> Array:
        """Derivatives of the residuals."""
        free = len(self.names)
        logs = values[free:]
        factors = self.factors(logs)
        seconds = self.seconds(values, factors)
        columns = []
        for index in range(free):
            moved = values.copy()
            moved[index] += 1e-6 if values[index] + 1e-6 <= self.high[index] else -1e-6
            change = np.log(self.seconds(moved, factors) / seconds)
            columns.append(change / (moved[index] - values[index]))
        base = np.stack(columns, axis=1)
        if not len(logs):
            return base
        # What a row gains if all of its launch, or all of its work, grows: work at the roofline
        # does not, so it is tried rather than taken as the rest.
        launch = columns[self.names.index("launch")]
        longer = self.seconds(values, Factors(factors.launch, factors.work * (1.0 + 1e-6)))
        work = np.log(longer / seconds) / 1e-6
        part = {"launch": launch, "work": work, "both": launch + work}
        bent = [part[s.of][:, None] * w for s, w in zip(self.shapes, self.weights, strict=True)]
        broken = self.rules.rising @ logs < self.rules.least
        under = np.vstack([self.rules.soft, self.wall * broken[:, None] * self.rules.rising])
        nothing = np.zeros((len(under), free))
        return np.vstack([np.hstack([base, *bent]), np.hstack([nothing, under])])

    def factors(self, logs: Array) -> Factors:
        """What the bends multiply the launch and the work of every row by."""
        launch, work = np.zeros(len(self.observed)), np.zeros(len(self.observed))
        for shape, weights in zip(self.shapes, self.weights, strict=True):
            if len(logs):
                own, logs = weights @ logs[: weights.shape[1]], logs[weights.shape[1] :]
                launch = launch + own if shape.of != "work" else launch
                work = work + own if shape.of != "launch" else work
        return Factors(np.exp(launch), np.exp(work))

    def seconds(self, values: Array, factors: Factors) -> Array:
        """Seconds of all rows."""
        plain = self._surface(np.exp(values[: len(self.names)]), ())
        return bent_seconds(
            plain,
            self.operator,
            self.peak,
            self.bandwidth,
            launch=factors.launch,
            work=factors.work,
        )

    def rounded(self, values: Array) -> Surface:
        """The same in as many digits as are shipped, its bends in no way falling."""
        free = len(self.names)
        base = np.array([float(f"{value:.4g}") for value in np.exp(values[:free])])
        return self._surface(base, _bends(self.shapes, values[free:], risen=True))

    def _surface(self, base: Array, bends: tuple[Bend, ...]) -> Surface:
        plain = Surface(
            kind=self.kind,
            dtype=self.dtype,
            compute=1.0,
            memory=1.0,
            launch=1.0,
            sharpness=1.0,
            bends=bends,
            origin="",
        )
        return msgspec.structs.replace(plain, **dict(zip(self.names, base.tolist(), strict=True)))


def _bends(shapes: tuple[Shape, ...], logs: Array, risen: bool = False) -> tuple[Bend, ...]:
    """Bends of these logs (none without any), shape after shape; `risen` if they are shipped."""
    result: list[Bend] = []
    if not len(logs):
        return ()
    for shape in shapes:
        sizes = [len(knots) for knots in shape.axes.values()]
        own, logs = logs[: int(np.prod(sizes))], logs[int(np.prod(sizes)) :]
        if risen:
            own = _risen(shape, own.reshape(sizes)).ravel()
        result.append(
            Bend(
                of=shape.of,
                axes=tuple(shape.axes),
                knots=tuple(tuple(float(k) for k in knots) for knots in shape.axes.values()),
                logs=tuple(own.tolist()),
            )
        )
    return tuple(result)


def _risen(shape: Shape, logs: Array) -> Array:
    """Logs in three decimals, each lifted where its neighbour before it forbids so deep a fall."""
    logs = np.round(logs, 3)
    for index, (axis, knots) in enumerate(shape.axes.items()):
        if axis not in shape.rising:
            continue
        along = np.moveaxis(logs, index, 0)
        for place in range(1, len(knots)):
            fall = shape.fall * np.log(2.0) * (knots[place] - knots[place - 1])
            least = np.ceil((along[place - 1] - fall) * 1e3 - 1e-6) / 1e3
            along[place] = np.maximum(along[place], least)
    return np.round(logs, 3)


def _weights(shape: Shape, operator: Operator) -> Array:
    """Weight of every log of a shape at every row of an operator."""
    (bend,) = _bends((shape,), np.zeros(int(np.prod([len(k) for k in shape.axes.values()]))))
    ones = np.eye(len(bend.logs))
    return np.stack(
        [
            np.broadcast_to(
                log_factor(msgspec.structs.replace(bend, logs=tuple(one)), operator),
                operator.flops.shape,
            )
            for one in ones
        ],
        axis=1,
    )


def _rules(shapes: tuple[Shape, ...]) -> Rules:
    soft, rising, least = [], [], []
    sizes = [int(np.prod([len(k) for k in s.axes.values()])) for s in shapes]
    for place, shape in enumerate(shapes):
        before, after = sum(sizes[:place]), sum(sizes[place + 1 :])
        grid = np.arange(sizes[place]).reshape([len(k) for k in shape.axes.values()])
        rows = np.eye(sizes[place])
        soft.append(np.pad(NEAR * rows, ((0, 0), (before, after))))
        for index, (axis, knots) in enumerate(shape.axes.items()):
            cells = np.moveaxis(grid, index, 0)
            step = np.pad(
                rows[cells[1:].ravel()] - rows[cells[:-1].ravel()], ((0, 0), (before, after))
            )
            soft.append(ALIKE * step)
            if axis in shape.rising:
                rising.append(step)
                falls = -shape.fall * np.log(2.0) * np.diff(knots)
                least.append(np.repeat(falls, cells[0].size))
    empty = np.zeros((0, sum(sizes)))
    return Rules(
        np.vstack(soft), np.vstack([empty, *rising]), np.concatenate([np.zeros(0), *least])
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
    fields = ("flops", "bytes", "rows", "parallel", "depth", "width", "buffers")
    return msgspec.structs.replace(
        operator,
        **{name: np.broadcast_to(getattr(operator, name), chosen.shape)[chosen] for name in fields},
    )


def _thin(found: Samples, chosen: NDArray[np.bool_], count: int) -> Samples:
    """Of the chosen rows at least `count`, or all, evenly through the table."""
    index = np.flatnonzero(chosen)
    index = index[:: max(1, len(index) // count)]
    mask = np.zeros(len(chosen), bool)
    mask[index] = True
    return _part(found, mask)


def _part(found: Samples, chosen: NDArray[np.bool_]) -> Samples:
    return Samples(
        _take(found.operator, chosen),
        found.seconds[chosen],
        found.held_out[chosen],
        found.layer[chosen],
    )


def _version(path: Path) -> tuple[int, ...]:
    digits = "".join(c if c.isdigit() else " " for c in path.parent.name)
    return tuple(int(d) for d in digits.split())


class Wanted(NamedTuple):
    """Which surfaces are fitted: of these kinds and dtypes, of all where none is named."""

    kinds: list[str] | None
    dtypes: list[str] | None

    def holds(self, kind: Kind, dtype: Dtype | None) -> bool:
        """Whether a surface of this kind and dtype is among them."""
        return (not self.kinds or kind in self.kinds) and (not self.dtypes or dtype in self.dtypes)


def fitted(name: str, data: Path, wanted: Wanted) -> list[Surface]:
    """The wanted surfaces of one GPU, each printed as it is found, and the others as shipped."""
    gpu = facts.gpu(name)
    lends = gpu.architecture == "blackwell"
    others = [
        surface
        for surface in efficiency(gpu).surfaces
        if surface.samples or (lends and _lender(surface))
        if not wanted.holds(surface.kind, surface.dtype)
    ]
    surfaces: list[Surface] = []
    for table in TABLES:
        for engine in table.engines if table.kind in (wanted.kinds or [table.kind]) else ():
            for found, source in samples(data / GPUS[name], engine, table, gpu):
                if not wanted.holds(table.kind, found.operator.dtype):
                    continue
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
    order = [table.kind for table in TABLES]
    found_here = lent(surfaces) if lends else surfaces
    return sorted([*others, *found_here], key=lambda surface: order.index(surface.kind))


def lent(surfaces: list[Surface]) -> list[Surface]:
    """The surfaces of a data-centre Blackwell with those of `LENT` as their lender's."""
    of = {(s.kind, s.engine, s.dtype): s for s in surfaces}
    result = []
    for own in surfaces:
        lender = _lender(own)
        if lender is None or (own.kind, lender, own.dtype) not in of:
            result.append(own)
        else:
            other = of[own.kind, lender, own.dtype]
            result.append(_assumed(other, lender, engine=own.engine))
    return result


def _lender(own: Surface) -> EngineName | None:
    return LENT.get((own.kind, own.engine, own.dtype)) if own.engine and own.dtype else None


def _assumed(surface: Surface, lender: str, *, engine: EngineName | None) -> Surface:
    return msgspec.structs.replace(
        surface,
        engine=engine,
        samples=0,
        error_median=None,
        error_p90=None,
        origin=f"assumed: as {lender} ({surface.origin})",
    )


def borrowed(own: list[Surface], lender: str, others: list[Surface]) -> list[Surface]:
    """Surfaces of the kinds that a GPU's tables lack, as another GPU's."""
    kinds = {surface.kind for surface in own}
    return [
        _assumed(surface, lender, engine=surface.engine)
        for surface in others
        if surface.kind not in kinds
    ]


def amd(lent: list[Surface]) -> list[Surface]:
    """Shares of AMD GPUs, which no table covers: H200's memory, and its compute times the ratio of
    the shares that both reach in bf16 products. Of each kind and dtype vLLM's, of MLA those of
    TensorRT-LLM: what SGLang falls back to on Hopper with an fp8 cache reaches 6% of the bandwidth,
    and AMD's servers run kernels of their own (--attention-backend aiter)."""
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
        for surface in _of_one_engine(lent)
    ]


def _of_one_engine(surfaces: list[Surface]) -> list[Surface]:
    """One surface of each kind and dtype that AMD's GPUs are lent."""
    found: dict[tuple[str, str | None], Surface] = {}
    for surface in surfaces:
        latent = "latent" in surface.kind
        if surface.engine == ("trtllm" if latent else "vllm"):
            found[surface.kind, surface.dtype] = surface
        elif surface.kind == "selection" or (surface.dtype == "fp8" and not latent):
            found.setdefault((surface.kind, surface.dtype), surface)
    return list(found.values())


def write(folder: Path, name: str, head: Mapping[str, object], surfaces: list[Surface]) -> None:
    """One file: its head, then one line per surface."""
    lines = [f"{key} = {_toml(value)}" for key, value in head.items()]
    lines.append("surfaces = [")
    for surface in surfaces:
        fields = msgspec.to_builtins(surface)
        # What is left out takes its default.
        lines.append(f"  {_toml({k: v for k, v in fields.items() if v})},")
    lines.append("]")
    (folder / f"{name}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, str):
        return '"' + value.replace('"', "'") + '"'
    return repr(value)


def table() -> str:
    """Held-out errors of the shipped files as a Markdown table: kinds down, GPUs across."""
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
    parser.add_argument("--kind", action="append", help="these only; others stay as shipped")
    parser.add_argument("--dtype", action="append", help="these only; others stay as shipped")
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
        found[name] = fitted(name, data, Wanted(options.kind, options.dtype))
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
