"""Small models and GPUs that a step can be worked out for by hand."""

import numpy as np
from msgspec.structs import replace

from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import Flops, Gpu, Link
from splitpoint.inputs.model import Attention, Experts, Layer, Mlp, Model
from splitpoint.timing.operators import Batch

ATTENTION = Attention(heads=8, kv_heads=2, head_dim=16, value_dim=16)
DENSE = Model(
    name="dense",
    layers=(Layer(mixer=ATTENTION, ffn=Mlp(width=256)),) * 4,
    hidden=128,
    vocab=1000,
    max_len=4096,
)
MOE = Model(
    name="moe",
    layers=(Layer(mixer=ATTENTION, ffn=Experts(count=16, active=2, width=64, shared_width=64)),)
    * 4,
    hidden=128,
    vocab=1000,
    max_len=4096,
)
# An EAGLE-3 head for the dense model: one layer of its width that drafts 100 tokens of its 1,000.
HEADED = replace(
    DENSE,
    drafter=Model(
        name="head",
        layers=(Layer(mixer=replace(ATTENTION, joined=True), ffn=Mlp(width=448)),),
        hidden=128,
        vocab=100,
        max_len=4096,
        fused=3 * 128,
    ),
)
GPU = Gpu(
    name="test GPU",
    architecture="hopper",
    hbm_gib=80.0,
    marketed_gb=86.0,
    bandwidth=1e12,
    flops=Flops(bf16=1e14, fp8=2e14),
    gpus_per_node=8,
    domain=8,
    inside=Link(kind="nvswitch", bandwidth=4e11, latency=2e-6),
    outside=Link(kind="ib", bandwidth=5e10, latency=4e-6),
    sources={},
)
ENGINE = Engine(
    max_seqs=32, batched_tokens=256, max_graph=64, max_len=4096, block_size=16, utilization=0.9
)


def batch(
    *, decode: float = 0, context: float = 0, prefill: float = 0, pairs: float = 0, rows: float = 0
) -> Batch:
    """A step at one point."""
    return Batch(
        decode=np.array([decode], float),
        context=np.array([context], float),
        prefill=np.array([prefill], float),
        pairs=np.array([pairs], float),
        rows=np.array([rows], float),
    )
