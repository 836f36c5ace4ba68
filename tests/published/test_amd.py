"""Kernels of AMD's GPUs as AMD and users published their times: products and experts of AITER's
tuned tables (ROCm/aiter, aiter/configs, read 2026-11-30), sums over xGMI, and what SGLang 0.5.9
took on MI325X."""

import numpy as np
import pytest

from splitpoint.inputs import facts
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.model import Dtype
from splitpoint.pricing.engines.rules import Version
from splitpoint.timing import collectives, efficiency
from splitpoint.timing.collectives import Exchange
from splitpoint.timing.operators import Stored, grouped, matmul, touched

# GPU, dtype, rows, columns, depth, microseconds of the kernel alone.
PRODUCTS: tuple[tuple[str, Dtype, int, int, int, float], ...] = (
    ("MI300X", "fp8", 16, 2112, 7168, 15.2),
    ("MI300X", "fp8", 64, 3072, 1536, 6.7),
    ("MI300X", "fp8", 64, 7168, 2048, 11.1),
    ("MI300X", "fp8", 8192, 2112, 7168, 291.6),
    ("MI300X", "fp8", 16384, 7168, 2048, 662.7),
    ("MI355X", "fp8", 2, 7168, 2048, 8.4),
    ("MI355X", "fp8", 1255, 9216, 7168, 146.6),
    ("MI355X", "fp8", 4898, 7168, 4096, 218.0),
    ("MI355X", "bf16", 16, 7168, 2048, 8.2),
    ("MI355X", "bf16", 16, 16160, 7168, 38.0),
    ("MI355X", "bf16", 8192, 50016, 6144, 3931.1),
)
# GPU, dtype, tokens, hidden size, width on a rank, experts on it, experts a token, microseconds of
# both products without sorting and quantising.
EXPERTS: tuple[tuple[str, Dtype, int, int, int, int, int, float], ...] = (
    ("MI355X", "fp8", 16, 7168, 256, 257, 9, 112.7),
    ("MI355X", "fp8", 128, 7168, 256, 257, 9, 241.6),
    ("MI355X", "fp8", 8192, 7168, 256, 257, 9, 1342.5),
    ("MI355X", "fp8", 64, 3072, 1536, 256, 8, 546.1),
    ("MI355X", "fp8", 4096, 3072, 384, 256, 8, 384.1),
    ("MI300X", "fp8", 64, 7168, 2048, 33, 9, 363.5),
    ("MI300X", "fp8", 8192, 7168, 2048, 33, 9, 6928.7),
    ("MI355X", "nvfp4", 16, 7168, 256, 257, 9, 65.5),
    ("MI355X", "nvfp4", 256, 7168, 512, 257, 9, 264.1),
    ("MI355X", "nvfp4", 8192, 7168, 512, 257, 9, 1100.6),
)
# Ranks of eight MI355X (vllm-project/vllm#39080) and four MI300X (sgl-project/sglang#6619), bytes,
# microseconds.
SUMS = (
    ("MI355X", 8, 24576, 6.4),
    ("MI355X", 8, 393216, 7.5),
    ("MI355X", 8, 1572864, 12.9),
    ("MI300X", 4, 32768, 7.6),
    ("MI300X", 4, 2097152, 36.6),
    ("MI300X", 4, 8388608, 118.3),
)
# Rows, columns, depth, microseconds (SemiAnalysisAI/InferenceX#863, 2026-03-05).
UNCONFIGURED = ((2112, 7168, 123.0), (3072, 1536, 30.0), (7168, 2048, 34.0), (4608, 7168, 122.0))


@pytest.mark.parametrize(("gpu", "dtype", "rows", "columns", "depth", "measured"), PRODUCTS)
def test_products_take_what_aiters_tables_say(
    gpu: str, dtype: Dtype, rows: int, columns: int, depth: int, measured: float
) -> None:
    by = Stored(dtype=dtype, bytes={"fp8": 1.0, "bf16": 2.0}[dtype])
    product = matmul("product", np.array([float(rows)]), depth, columns, by)
    taken = float(efficiency.seconds(product, facts.gpu(gpu), "vllm")[0]) * 1e6
    assert taken - 1.0 == pytest.approx(measured, rel=0.25)


@pytest.mark.parametrize(
    ("gpu", "dtype", "tokens", "hidden", "width", "count", "active", "measured"), EXPERTS
)
def test_experts_take_what_aiters_tables_say(
    gpu: str,
    dtype: Dtype,
    tokens: int,
    hidden: int,
    width: int,
    count: int,
    active: int,
    measured: float,
) -> None:
    new = np.array([float(tokens)])
    pairs = new * active
    by = Stored(dtype=dtype, bytes={"fp8": 1.0, "nvfp4": 0.5625}[dtype])
    reached = touched(count, active, new)
    layer = grouped(new, pairs, pairs, reached, float(count), hidden, width, 2, by)
    taken = float(efficiency.seconds(layer, facts.gpu(gpu), "vllm")[0]) * 1e6
    # Sorting, quantising and the gaps between the kernels.
    assert taken - 20.5 == pytest.approx(measured, rel=0.25)


@pytest.mark.parametrize(("name", "ranks", "size", "measured"), SUMS)
def test_sums_over_links_of_each_pair_take_what_users_measured(
    name: str, ranks: int, size: int, measured: float
) -> None:
    sent = Exchange(name="sum", pattern="all_reduce", bytes=np.array([float(size)]), ranks=ranks)
    taken = collectives.seconds(sent, facts.gpu(name), Engine(name="sglang"))
    assert float(taken[0]) * 1e6 == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(("columns", "depth", "measured"), UNCONFIGURED)
def test_products_without_a_configuration_take_what_sglang_059_took(
    columns: int, depth: int, measured: float
) -> None:
    by = Stored(dtype="fp8", bytes=1.0)
    product = matmul("product", np.array([64.0]), depth, columns, by)
    taken = efficiency.seconds(product, facts.gpu("MI325X"), "sglang", Version(0, 5, 9))
    assert float(taken[0]) * 1e6 == pytest.approx(measured, rel=0.15)
