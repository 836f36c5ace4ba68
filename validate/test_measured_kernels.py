"""Measured rows as a source of kernel times: their errors on rows left out, and their curves."""

from typing import NamedTuple

import numpy as np
import pytest
from msgspec.structs import replace

from splitpoint.inputs import facts
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine, EngineName
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.huggingface import load_model
from splitpoint.pricing.engines import resolved
from splitpoint.timing import bake, kernel_tables, measured_kernels
from splitpoint.timing.bake import step_curve
from splitpoint.timing.efficiency import Surface, efficiency, launch_seconds, peak
from splitpoint.timing.kernel_tables import ENGINES, GPUS, TABLES, Samples, part
from splitpoint.timing.measured_kernels import KEYS, between, shapes
from splitpoint.timing.operators import Array

pytest.importorskip("aiconfigurator_core")

# An NVSwitch GPU of each architecture, and the one whose tables are the least regular.
SHOWN = ("H200", "B200", "L40S")


class Errors(NamedTuple):
    """Relative errors on odd rows, of the fitted surface and of the even rows between them."""

    fitted: Array
    measured: Array


def errors(found: Samples, plain: Surface, gpu: Gpu) -> Errors:
    """How far both are off on the odd rows of shapes that even rows speak of."""
    known = {shape.key: shape for shape in shapes(part(found, ~found.held_out), plain, gpu)}
    odd = part(found, found.held_out)
    top = peak(gpu, odd.operator.dtype)
    keys = measured_kernels._columns(odd.operator, KEYS[plain.kind])
    fitted: list[Array] = []
    measured: list[Array] = []
    for key, rows in measured_kernels._groups(keys):
        shape = between(known, key) if plain.kind == "gemm" else known.get(key)
        if shape is None:
            continue
        chosen = np.zeros(len(keys), bool)
        chosen[rows] = True
        these = part(odd, chosen)
        for surface, to in (
            (plain, fitted),
            (replace(plain, bends=plain.bends + shape.bends), measured),
        ):
            guess = launch_seconds(surface, these.operator, top, gpu.bandwidth)
            to.append(np.abs(guess / these.seconds - 1))
    return Errors(np.concatenate(fitted), np.concatenate(measured))


def test_odd_rows_between_even_ones(capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, list[Errors]] = {}
    for name in SHOWN:
        gpu = facts.gpu(name)
        surfaces = {(s.kind, s.dtype, s.engine): s for s in efficiency(gpu).surfaces if s.samples}
        for table in TABLES:
            for engine in ENGINES if table.kind in KEYS else ():
                folder = measured_kernels.folder() / GPUS[name]
                for rows, _ in kernel_tables.samples(folder, engine, table, gpu):
                    plain = surfaces.get((table.kind, rows.operator.dtype, engine))
                    if plain is not None:
                        found.setdefault(table.kind, []).append(errors(rows, plain, gpu))
    with capsys.disabled():
        print(f"\nodd rows on {', '.join(SHOWN)}, median over tables of median / p90 error")
        for kind, tables in found.items():
            fitted, measured = (
                [np.quantile(side, (0.5, 0.9)) for side in sides]
                for sides in zip(*tables, strict=True)
            )
            low, high = np.median(fitted, axis=0), np.median(measured, axis=0)
            print(
                f"  {kind:18} {len(tables):3} tables  fitted {low[0]:6.1%} / {low[1]:6.1%}"
                f"  rows {high[0]:6.1%} / {high[1]:6.1%}"
            )
            assert high[0] <= low[0] + 0.005, kind
    for kind in ("gemm", "experts", "prefill_state"):
        middle = [(np.median(e.fitted), np.median(e.measured)) for e in found[kind]]
        assert np.median([m for _, m in middle]) < 0.85 * np.median([f for f, _ in middle])


@pytest.mark.parametrize(
    ("model", "gpu", "topology", "engine"),
    [
        ("Qwen/Qwen3-32B", "H200", Topology(tp=2), "vllm"),
        ("Qwen/Qwen3-30B-A3B", "B200", Topology(tp=2), "sglang"),
        ("deepseek-ai/DeepSeek-R1", "H200", Topology(tp=8, ep=8), "trtllm"),
    ],
)
def test_a_curve_keeps_to_its_measured_source(
    model: str,
    gpu: str,
    topology: Topology,
    engine: EngineName,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, card = load_model(model, offline=True), facts.gpu(gpu)
    settings = resolved(Engine(name=engine, kernels="measured"), card, topology, found)
    curve = step_curve(found, card, topology, settings)
    assert (np.diff(curve.decode) >= 0).all() and (np.diff(curve.mixed) >= 0).all()
    n = np.arange(len(curve.decode))
    # Slopes are whole picoseconds.
    assert (np.diff(curve.decode_context * n) >= -n[1:]).all()
    monkeypatch.setattr(bake, "grid", lambda most: np.arange(1.0, most + 1.0))
    exact = step_curve(found, card, topology, settings)
    error = np.abs(curve.mixed[1:] / exact.mixed[1:] - 1)
    with capsys.disabled():
        print(f"\n{model} on {gpu}: chunks off by {np.median(error):.3%}, p95 ", end="")
        print(f"{np.percentile(error, 95):.3%}, at most {error.max():.2%}\n  {curve.origin}")
    assert np.median(error) < 0.01
    assert np.percentile(error, 95) < 0.05
