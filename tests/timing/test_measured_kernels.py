"""Surfaces bent through measured rows: small tables by hand, and the laws that a step keeps."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs import facts
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Attention, Layer, Mlp, Model
from splitpoint.timing import bake, host, measured_kernels
from splitpoint.timing.bake import gpu_seconds, shown, step_curve
from splitpoint.timing.curve import PICO
from splitpoint.timing.efficiency import Surface, launch_seconds, surface
from splitpoint.timing.kernel_tables import Samples
from splitpoint.timing.measured_kernels import Shape, between, risen, shapes
from splitpoint.timing.operators import (
    BF16,
    Array,
    Batch,
    Operator,
    attend,
    grouped,
    matmul,
)
from tests.timing.worlds import GPU, batch

PLAIN = Surface(
    kind="gemm", compute=0.5, memory=0.8, launch=1e-6, sharpness=1.0, origin="assumed: a test"
)


def seconds(operator: Operator, plain: Surface, shape: Shape | None = None) -> Array:
    """Seconds on the test GPU, on a surface that is bent to a shape."""
    bent = plain if shape is None else replace(plain, bends=plain.bends + shape.bends)
    return launch_seconds(bent, operator, GPU.flops.bf16, GPU.bandwidth)


def table(operator: Operator, taken: Array) -> Samples:
    """A table of an operator's rows that took so long."""
    none = np.zeros(len(taken), np.int64)
    return Samples(operator, taken, none.astype(bool), none, taken[:, None])


def product(rows: Array, columns: Array | float, depth: Array | float) -> Operator:
    """A product in bf16."""
    return matmul("x", np.asarray(rows, float), depth, columns, BF16)


def test_a_bent_surface_takes_the_measured_seconds_and_their_logarithms_between() -> None:
    operator = product(np.array([1.0, 4.0, 16.0]), np.full(3, 4096.0), np.full(3, 4096.0))
    taken = seconds(operator, PLAIN) * [2.0, 2.0, 3.0]
    (shape,) = shapes(table(operator, taken), PLAIN, GPU)
    assert seconds(operator, PLAIN, shape) == pytest.approx(taken)
    # Halfway between 4 and 16 rows in their logarithm: 2 and 3 times the surface.
    between_them = product(np.array([8.0, 64.0]), 4096.0, 4096.0)
    ratio = seconds(between_them, PLAIN, shape) / seconds(between_them, PLAIN)
    assert ratio == pytest.approx([6.0**0.5, 3.0])


def test_a_product_between_the_measured_ones_takes_from_its_corners() -> None:
    grid = [(n, k, m) for n in (1024.0, 4096.0) for k in (512.0, 2048.0) for m in (1.0, 64.0)]
    n, k, m = np.array(grid).T
    factor = np.where(n == 4096, 2.0, 1.5) * np.where(k == 2048, 3.0, 1.0)
    operator = product(m, n, k)
    known = {
        shape.key: shape
        for shape in shapes(table(operator, seconds(operator, PLAIN) * factor), PLAIN, GPU)
    }
    assert len(known) == 4

    def ratio(columns: float, depth: float) -> float:
        one = product(np.array([8.0]), columns, depth)
        found = between(known, (columns, depth))
        assert found is not None
        return float((seconds(one, PLAIN, found) / seconds(one, PLAIN))[0])

    assert ratio(4096, 512) == pytest.approx(2.0)
    assert ratio(2048, 512) == pytest.approx(3.0**0.5)
    assert ratio(2048, 1024) == pytest.approx(3.0)
    assert between(known, (8192.0, 512.0)) is None
    assert between({k: v for k, v in known.items() if k != (1024.0, 512.0)}, (2048, 1024)) is None


def test_a_launch_that_took_longer_than_larger_ones_is_no_measure_of_them() -> None:
    assert risen(np.array([1.0, 2.0, 3.0]), np.ones(3)).tolist() == [1.0, 2.0, 3.0]
    # As in vLLM's fp8 table of B200: one row of 65 tokens takes 2.5 times as long as 64 or 96.
    found = risen(np.array([13.4, 13.6, 34.2, 14.3, 14.6, 16.6]), np.ones(6))
    assert found.tolist() == pytest.approx([13.4, 13.6, 14.3, 14.3, 14.6, 16.6])


WALK = replace(PLAIN, kind="decode_attention", memory=0.9)


def decoding(sequences: Array, context: Array, heads: float = 8.0) -> Operator:
    """Attention of decoding sequences, 8 heads of 128 over 2 of the cache, each this long."""
    nothing = np.zeros_like(sequences)
    batch = Batch(
        decode=sequences,
        context=sequences * context,
        prefill=nothing,
        pairs=nothing,
        rows=nothing,
    )
    like = np.ones_like(sequences)
    return attend(
        "attention",
        heads=heads * like,
        kv_heads=heads / 4 * like,
        score_dim=128 * like,
        value_dim=128 * like,
        cached=heads / 2 * 128 * like,
        dtype="bf16",
        batch=batch,
        drafts=0,
    )[1]


def test_a_walk_stays_a_line_in_its_context_through_the_measured_rows() -> None:
    sequences, context = (
        a.ravel() for a in np.meshgrid([1.0, 8.0, 64.0], [1024.0, 8192.0, 65536.0])
    )
    operator = decoding(sequences, context)
    work = seconds(operator, WALK) - WALK.launch
    taken = 3 * WALK.launch + np.where(sequences == 64, 1.2, 1.6) * work
    (shape,) = shapes(table(operator, taken), WALK, GPU)
    # The same line for each number of sequences, but for what draws both factors together.
    assert seconds(operator, WALK, shape) == pytest.approx(taken, rel=0.02)
    lengths = np.array([500.0, 5000.0, 50_000.0, 100_000.0])
    for n in (1.0, 3.0, 64.0, 200.0):
        line = seconds(decoding(np.full(4, n), lengths), WALK, shape)
        slope = (line[1:] - line[:-1]) / np.diff(lengths)
        assert slope == pytest.approx(np.full(3, slope[0]), rel=1e-9)


def layer(tokens: Array, held: float = 16.0, reached: Array | None = None) -> Operator:
    """A layer of experts of which each token takes 2, dealt out evenly unless said otherwise."""
    new = np.asarray(tokens)
    pairs = 2.0 * new
    spread = np.minimum(pairs, held) if reached is None else reached
    dim, width = np.full_like(pairs, 1024.0), np.full_like(pairs, 512.0)
    return grouped(new, pairs, pairs, spread, held, dim, width, 2, BF16)


EXPERTS = replace(PLAIN, kind="experts")
WALKED = replace(EXPERTS, held=2e-8)  # a third of a launch for all 16


@pytest.mark.parametrize("plain", [EXPERTS, WALKED], ids=["reached", "walked"])
def test_experts_are_measured_along_those_reached_and_then_along_the_pairs_of_each(
    plain: Surface,
) -> None:
    tokens = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 64.0])
    factor = np.array([1.1, 1.2, 1.3, 1.4, 1.5, 1.6])
    taken = seconds(layer(tokens), plain) * factor
    (shape,) = shapes(table(layer(tokens), taken), plain, GPU)
    assert shape.key == (16.0, 1024.0, 512.0)
    assert seconds(layer(tokens), plain, shape) == pytest.approx(taken)
    # 8 of 16 experts with two pairs each: as far along the first as 4 tokens, as far along the
    # second as 16 tokens are beyond 8.
    odd = layer(np.array([8.0]), reached=np.array([8.0]))
    # What the rank takes for each of its experts, reached or not, is the same at every number.
    walked = 16 * plain.held
    ratio = (taken - walked) / (seconds(layer(tokens), plain) - walked)
    found = (seconds(odd, plain, shape) - walked) / (seconds(odd, plain) - walked)
    assert found == pytest.approx([ratio[2] * ratio[4] / ratio[3]])


def test_a_layer_that_no_kernel_was_tuned_for_is_left_to_the_surface() -> None:
    tokens = np.array([1.0, 8.0, 64.0])
    slow = seconds(layer(tokens), EXPERTS) * 2.5
    assert shapes(table(layer(tokens), slow), EXPERTS, GPU) == ()


@given(factors=st.lists(st.floats(0.2, 5.0), min_size=6, max_size=6))
def test_no_measured_row_beats_the_roofline_nor_is_faster_than_fewer_rows(
    factors: list[float],
) -> None:
    rows = np.exp2(np.arange(0.0, 12.0, 2.0))
    operator = product(rows, np.full(6, 2048.0), np.full(6, 2048.0))
    taken = seconds(operator, PLAIN) * factors
    (shape,) = shapes(table(operator, taken), PLAIN, GPU)
    found = seconds(operator, PLAIN, shape)
    assert (np.diff(found) >= -1e-9 * found[1:]).all()
    bound = np.maximum(operator.flops / GPU.flops.bf16, operator.bytes / GPU.bandwidth)
    assert (found >= bound).all()


# A dense model whose products are all in the table below.
SMALL = Model(
    name="small",
    layers=(
        Layer(
            mixer=Attention(heads=16, kv_heads=4, head_dim=128, value_dim=128), ffn=Mlp(width=4096)
        ),
    )
    * 4,
    hidden=2048,
    vocab=4096,
    max_len=8192,
)
# Its host waits for the GPU: one that runs ahead is a bound of a small model's step.
ENGINE = Engine(
    async_scheduling=False,
    kernels="measured",
    max_seqs=64,
    batched_tokens=512,
    max_graph=64,
    max_len=8192,
    block_size=16,
    version="0.24.7",
)


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A package of measured tables: every product of H200 takes 1.5 times its surface's seconds;
    nothing else is in it."""
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    gpu = facts.gpu("H200")
    grid = [
        (m, n, k)
        for m in (1, 4, 16, 64, 256, 1024)
        for n in (1024, 2048, 4096, 8192)
        for k in (1024, 2048, 4096)
    ]
    m, n, k = np.array(grid, float).T
    operator = product(m, n, k)
    plain = surface(gpu, "gemm", "bf16", "vllm")
    taken = 1.5 * launch_seconds(plain, operator, gpu.flops.bf16, gpu.bandwidth)
    rows = pd.DataFrame({"m": m, "n": n, "k": k, "latency": 1e3 * taken})
    rows = rows.assign(gemm_dtype="bfloat16", kernel_source="one", version="0.24.0")
    package = tmp_path / "aiconfigurator_core"
    folder = package / "systems" / "data" / "h200_sxm" / "gemm" / "vllm" / "0.24.0"
    folder.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    rows.to_parquet(folder / "gemm_perf.parquet")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "aiconfigurator_core", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    importlib.invalidate_caches()
    forget()
    yield gpu
    forget()


def forget() -> None:
    """As in a new process."""
    measured_kernels._known.cache_clear()
    measured_kernels._found.cache_clear()


def test_a_curve_of_measured_kernels_says_how_much_of_it_was_measured(wheel: Gpu) -> None:
    fitted = step_curve(SMALL, wheel, Topology(), replace(ENGINE, kernels="fitted"))
    curve = step_curve(SMALL, wheel, Topology(), ENGINE)
    found = shown(SMALL, wheel, Topology(), ENGINE)
    assert found.decode.measured.keys() == {"vllm 0.24.0"}
    assert found.decode.fitted.keys() == {"decode_attention", "vector"}
    for part in found:
        assert 0.1 < part.share < 0.9
    words = "vllm 0.24.0 on H200 (kernel tables of aiconfigurator-core, NVIDIA) for "
    assert curve.origin.startswith(f"measured: {words}{found.decode.share:.0%} of the GPUs' time")
    # Products take half as long again, everything else what it took.
    gained = float((curve.decode - fitted.decode)[64]) * PICO
    assert gained == pytest.approx(sum(found.decode.measured.values()) / 3, rel=1e-3)
    assert (curve.decode_context == fitted.decode_context).all()
    assert (np.diff(curve.decode) >= 0).all() and (np.diff(curve.mixed) >= 0).all()


def test_tables_are_kept_for_the_next_process(wheel: Gpu, tmp_path: Path) -> None:
    first = step_curve(SMALL, wheel, Topology(), ENGINE)
    kept = list((tmp_path / "cache" / "splitpoint" / "tables").iterdir())
    written = [file.stat().st_mtime_ns for file in kept]
    forget()
    again = step_curve(SMALL, wheel, Topology(), ENGINE)
    assert (again.decode == first.decode).all() and again.origin == first.origin
    assert [file.stat().st_mtime_ns for file in kept] == written
    # What cannot be read is read from the tables again.
    for file in kept:
        file.write_bytes(b"no table")
    forget()
    assert (step_curve(SMALL, wheel, Topology(), ENGINE).decode == first.decode).all()


def test_a_gpu_that_was_not_measured_is_named(wheel: Gpu) -> None:
    with pytest.raises(PlanError, match=r"engine\.kernels: no kernel of H20 was measured"):
        step_curve(SMALL, facts.gpu("H20"), Topology(), ENGINE)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    with pytest.raises(PlanError, match=r"not installed.*splitpoint\[aic\]"):
        step_curve(SMALL, facts.gpu("H200"), Topology(), ENGINE)


def test_a_curve_is_within_a_percent_of_its_measured_source(
    wheel: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = replace(ENGINE, batched_tokens=4096, max_graph=4096)
    curve = step_curve(SMALL, wheel, Topology(), engine)
    monkeypatch.setattr(bake, "grid", lambda most: np.arange(1.0, most + 1.0))
    exact = step_curve(SMALL, wheel, Topology(), engine)
    error = np.abs(curve.mixed[1:] / exact.mixed[1:] - 1)
    assert np.median(error) < 0.01
    assert np.percentile(error, 95) < 0.05
    # And every number of sequences is the sum of its kernels, at any context.
    for n, length in ((1, 100), (16, 3000), (64, 8000)):
        step = batch(decode=n, context=n * length, rows=n)
        gap = host.gap(engine, wheel, np.array([float(n)]))[0]
        whole = gpu_seconds(SMALL, wheel, Topology(), engine, step)[0] + gap
        taken = (curve.decode[n] + curve.decode_context[n] * n * length) * PICO
        assert taken == pytest.approx(whole, abs=n * length * PICO, rel=1e-6)
