"""Surfaces: the formula by hand, what a GPU inherits, and what the shipped files must keep."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs import facts
from splitpoint.inputs.gpu import Flops
from splitpoint.timing.efficiency import (
    Surface,
    efficiency,
    inherited,
    launch_seconds,
    peak,
    seconds,
    surface,
)
from splitpoint.timing.operators import BF16, matmul, vector
from tests.timing.worlds import GPU

PLAIN = Surface(
    kind="gemm", compute=0.5, memory=0.8, launch=1e-6, sharpness=1.0, origin="assumed: a test"
)


def test_the_formula_by_hand() -> None:
    product = matmul("x", np.array([100.0]), 1000, 2000, BF16)
    flops, moved = 2 * 100 * 1000 * 2000, 2 * (1000 * 2000 + 100 * 3000)
    by_hand = 1e-6 + flops / (1e14 * 0.5) + moved / (1e12 * 0.8)
    assert launch_seconds(PLAIN, product, 1e14, 1e12)[0] == pytest.approx(by_hand)
    padded = replace(PLAIN, pad_rows=25.0, half_parallel=500.0, serial=1e-9)
    by_hand = 1e-6 + 1.25 * flops / 5e13 + 1.25 * moved / 8e11 + 1e-9 * 1000
    assert launch_seconds(padded, product, 1e14, 1e12)[0] == pytest.approx(by_hand)


@given(sharpness=st.floats(1.0, 8.0), rows=st.floats(1.0, 1e5))
def test_a_launch_is_never_faster_than_its_roofline(sharpness: float, rows: float) -> None:
    product = matmul("x", np.array([rows]), 4096, 4096, BF16)
    found = launch_seconds(replace(PLAIN, sharpness=sharpness), product, 1e14, 1e12)[0]
    assert found >= max(product.flops[0] / 1e14, product.bytes[0] / 1e12)


def test_nothing_to_do_takes_no_time() -> None:
    nothing = matmul("x", np.array([0.0, 1.0]), 4096, 4096, BF16)
    taken = seconds(nothing, GPU, "vllm")
    assert taken[0] == 0.0 < taken[1]


def test_weights_without_units_of_their_own_are_widened() -> None:
    assert peak(GPU, "nvfp4") == peak(GPU, "int4") == peak(GPU, "mxfp4") == GPU.flops.bf16
    assert peak(GPU, "fp8") == GPU.flops.fp8
    newer = replace(GPU, flops=Flops(bf16=1e14, fp8=2e14, fp4=4e14))
    assert peak(newer, "nvfp4") == 4e14
    assert peak(newer, "mxfp4") == 2e14
    assert peak(replace(GPU, flops=Flops(bf16=1e14)), "fp8") == 1e14


def test_a_gpu_without_tables_takes_its_architectures_shares_of_its_own_roofline() -> None:
    h20, h200 = facts.gpu("H20"), facts.gpu("H200")
    assert inherited(h20) and not inherited(h200)
    assert surface(h20, "gemm", "bf16", "vllm") == surface(h200, "gemm", "bf16", "vllm")
    product = matmul("x", np.array([16384.0]), 8192, 8192, BF16)
    ratio = seconds(product, h20, "vllm")[0] / seconds(product, h200, "vllm")[0]
    assert ratio == pytest.approx(h200.flops.bf16 / h20.flops.bf16, rel=0.05)


def test_a_missing_architecture_is_named() -> None:
    # No plan can name one; a table with a new architecture would.
    odd = replace(GPU, architecture="volta")
    with pytest.raises(PlanError, match="no step times are known for volta"):
        efficiency(odd)


@pytest.mark.parametrize("name", facts.gpu_names())
def test_every_gpu_of_the_catalogue_has_every_kind_of_surface_with_an_origin(name: str) -> None:
    found = efficiency(facts.gpu(name))
    kinds = {s.kind for s in found.surfaces}
    assert kinds >= {
        "gemm",
        "experts",
        "prefill_attention",
        "decode_attention",
        "prefill_latent",
        "decode_latent",
        "prefill_sparse",
        "decode_sparse",
        "prefill_indexer",
        "decode_indexer",
        "prefill_state",
        "decode_state",
        "vector",
    }
    for entry in found.surfaces:
        assert 0 < entry.compute <= 1 and 0 < entry.memory <= 1 and entry.launch > 0
        assert entry.sharpness >= 1
        assert entry.origin.split(":")[0] in ("fitted", "assumed")
        assert (entry.samples > 0) == (entry.error_median is not None)
        # A prefill's pairs must add to its queries' bytes, or the step would not be linear.
        assert entry.sharpness == 1 or entry.kind not in (
            "prefill_attention",
            "prefill_latent",
            "prefill_sparse",
        )


def test_more_bandwidth_is_never_slower() -> None:
    copied = vector("x", np.array([1e6]), 2)
    faster = replace(GPU, bandwidth=2 * GPU.bandwidth)
    assert seconds(copied, faster, "vllm")[0] < seconds(copied, GPU, "vllm")[0]
