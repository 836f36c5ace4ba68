"""Measured kernel tables of the `aic` extra (aiconfigurator-core, NVIDIA, Apache-2.0) as operators.

A table lists how long one kernel took at many shapes. What is read here is fitted to surfaces
(benchmarks/fit_efficiency.py) or baked into curves as it is (`measured_kernels`): the same rows
for both, without those that were timed through the host, out of a cache or over uneven experts.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from splitpoint.inputs.engine import EngineName
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Dtype, LinearState
from splitpoint.timing.efficiency import peak
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

if TYPE_CHECKING:
    # Comes with the extra, and takes most of a second to import.
    import pandas as pd  # type: ignore[import-untyped]

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
# Some layers of experts are 2 to 6 times slower than the same ones cut otherwise, at every number
# of tokens (measured: TRT-LLM's bf16 table of H200), the others within 0.8 to 1.4 of the surface:
# what an autotuner falls back to.
UNTUNED = 1.75
# Tokens of a step at most, as engines set their budgets: vLLM's and SGLang's largest defaults are
# 16,384 (`max_num_batched_tokens`, `chunked_prefill_size`).
MOST_QUERIES = 16384
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
LENDS = "blackwell"
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
    does not see, the number of each row's layer (its columns but for the tokens), and the numbers
    of its shape (rows x columns of the table)."""

    operator: Operator
    seconds: Array
    held_out: NDArray[np.bool_]
    layer: NDArray[np.int64]
    shapes: Array


Reader: TypeAlias = "Callable[[pd.DataFrame, Dtype], Operator]"


def gemm(rows: pd.DataFrame, dtype: Dtype) -> Operator:
    """Dense products m x k by k x n."""
    m, n, k = columns(rows, "m", "n", "k")
    return matmul("gemm", m, k, n, Stored(dtype=dtype, bytes=STORED[dtype]))


def experts(rows: pd.DataFrame, dtype: Dtype) -> Operator:
    """Grouped products of the first of the ranks that evenly spread tokens reach."""
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
    dealt = [_first_rank(*map(int, layer)) for layer in zip(new, topk, count, ep, strict=True)]
    pairs, reached = np.array(dealt, np.float64).reshape(-1, 2).T
    by = Stored(dtype=dtype, bytes=STORED[dtype])
    return grouped(new, pairs, new * topk, reached, count / ep, hidden, inter / tp, 2, by)


class Dealt(NamedTuple):
    """What a rank computes: (token, expert) pairs, and experts that have one."""

    pairs: int
    reached: int


@cache
def _first_rank(new: int, topk: int, count: int, ep: int) -> Dealt:
    """Of "balanced" tokens on the first of `ep` ranks, as the tables' collectors deal them
    (aiconfigurator, collector/helper.py, `balanced_logits`): token t takes every n-th expert from
    t on, n = ceil(count / topk), and from t x n / new on where there are fewer tokens than n."""
    step, held = -(-count // topk), count // ep
    # So many tokens give every expert topk pairs.
    rounds, left = divmod(new, count)
    first = np.arange(left) if new >= step else np.arange(left) * step // new
    experts = (first[:, None] + step * np.arange(topk)) % count
    own = experts[experts < held]
    reached = held if rounds else len(np.unique(own))
    return Dealt(rounds * held * topk + len(own), reached)


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
        width=heads,
        held=heads,
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
        held=heads,
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
    found = _indexer("prefill_indexer", 32, pairs, SCORE_BYTES + 128 / 128, batch * isl)
    return msgspec.structs.replace(found, depth=batch * isl)


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
        depth=1.0,
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
        depth=length,
        width=heads,
        held=heads,
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
        held=heads,
    )


def quantise(rows: pd.DataFrame, dtype: Dtype) -> Operator:
    """Activations read as bf16 and written as fp8: one and a half passes of bf16."""
    m, k = columns(rows, "m", "k")
    return vector("quantise", m, k, 1.5)


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
    spread = _fastest(spread)
    # The commonest kernel of a dtype speaks for all (the others serve shapes that it cannot): one
    # for whole experts on several ranks, which vLLM's fp8 gives to CUTLASS on Hopper, and one for
    # experts on one rank or cut, which it leaves to Triton.
    kernel = spread.groupby([spread.moe_dtype, spread.moe_ep_size > 1]).kernel_source
    spread = spread[spread.kernel_source == kernel.transform(lambda names: names.mode()[0])]
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


def _made_heads(rows: pd.DataFrame) -> pd.DataFrame:
    # Off data-centre Blackwell SGLang's collector runs the absorbed kernel (576 and 512 wide) on
    # prompts; its servers make the heads (192 and 128), as attention_backend_handler.py decides.
    return _whole(rows[~rows.kernel_source.isin(["flash_attention", "triton"])])


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
        _made_heads,
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
    # no model's. Below 4,096 scores little or nothing is left to choose. Steps of more than
    # MOST_QUERIES are not served, and double in time from one row to the next.
    Table(
        "selection",
        "sparse_attention/{engine}/*/glm5_topk_module_perf.parquet",
        "",
        selected,
        lambda rows: rows[
            (rows.score_mode == "top_last")
            & (rows.isl + rows.step >= 4096)
            & (rows.batch_size * rows.isl <= MOST_QUERIES)
        ],
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
    """The rows of one kind, one dtype at a time from the newest version of an engine that has it;
    and that version."""
    seen: set[Dtype] = set()
    for found, version in every_version(folder, engine, table, gpu):
        if found.operator.dtype not in seen:
            seen.add(found.operator.dtype)
            yield found, version


def every_version(
    folder: Path,
    engine: EngineName,
    table: Table,
    gpu: Gpu,
    *,
    only: Dtype | None = None,
    near: tuple[int, ...] = (),
) -> Iterator[tuple[Samples, str]]:
    """The rows of one kind, one dtype (or `only` this) at a time, without rows timed through the
    host or out of the cache; of every version of an engine, the newest first, or the newest that is
    not after `near`, then older ones, then later ones."""
    import pandas as pd

    files = sorted(folder.glob(table.files.format(engine=engine)), key=_version, reverse=True)
    if near:
        later = [file for file in files if _version(file) > near]
        files = files[len(later) :] + later[::-1]
    for file in files:
        for found in _file_samples(pd.read_parquet(file), table, gpu, only):
            yield found, f"{engine} {file.parent.name}"


def _file_samples(
    rows: pd.DataFrame, table: Table, gpu: Gpu, only: Dtype | None
) -> Iterator[Samples]:
    import pandas as pd

    rows = table.keep(rows)
    rows = rows[rows.latency > 0]
    named = rows[table.dtype_column].map(DTYPES) if table.dtype_column else "bf16"
    for dtype, group in rows.assign(stored=named).groupby("stored"):
        if only not in (None, dtype):
            continue
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
            shape = chosen.drop(columns=["latency", "d_model"], errors="ignore")
            shapes = shape.select_dtypes("number").to_numpy(float)
            every = Samples(operator, seconds, odd, layer.to_numpy(), shapes)
            yield part(every, good)


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
    import pandas as pd

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
    import pandas as pd

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


def take(operator: Operator, chosen: NDArray[np.bool_]) -> Operator:
    """The operator at the chosen ones of its shapes."""
    own = ("crowd", "listed", "spread")
    fields = ("flops", "bytes", "rows", "parallel", "depth", "width", "buffers", "held", *own)
    return msgspec.structs.replace(
        operator,
        **{name: np.broadcast_to(getattr(operator, name), chosen.shape)[chosen] for name in fields},
    )


def part(found: Samples, chosen: NDArray[np.bool_]) -> Samples:
    """The chosen rows."""
    return Samples(
        take(found.operator, chosen),
        found.seconds[chosen],
        found.held_out[chosen],
        found.layer[chosen],
        found.shapes[chosen],
    )


def _version(path: Path) -> tuple[int, ...]:
    return numbers(path.parent.name)


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, in order."""
    digits = "".join(c if c.isdigit() else " " for c in version)
    return tuple(int(d) for d in digits.split())


def lender(gpu: Gpu, kind: Kind, engine: EngineName, dtype: Dtype) -> EngineName:
    """The engine whose rows speak for another one's kernels on a GPU: its own, but for `LENT`."""
    if gpu.architecture != LENDS:
        return engine
    return LENT.get((kind, engine, dtype), engine)
