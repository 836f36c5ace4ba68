"""Small models by geometry alone, for tests of bytes."""

from collections.abc import Sequence

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import GIB, Flops, Gpu, Link
from splitpoint.inputs.model import (
    Attention,
    Compressed,
    Indexer,
    Latent,
    Layer,
    LinearState,
    Mixer,
    Mlp,
    Model,
)
from splitpoint.pricing.blocks import layout
from splitpoint.pricing.engines import resolved
from splitpoint.pricing.layout import KvLayout


def attention(kv_heads: int, dim: int, *, window: int = 0, chunk: int = 0) -> Attention:
    return Attention(
        heads=max(kv_heads, 64),
        kv_heads=kv_heads,
        head_dim=dim,
        value_dim=dim,
        window=window,
        chunk=chunk,
    )


def latent(kv_rank: int = 512, rope_dim: int = 64) -> Latent:
    return Latent(heads=64, kv_rank=kv_rank, nope_dim=128, rope_dim=rope_dim, value_dim=128)


def gdn(heads: int, key_heads: int, *, dim: int = 128, kernel: int = 4) -> LinearState:
    return LinearState(
        kind="gdn",
        heads=heads,
        rows=dim,
        columns=dim,
        conv_channels=2 * key_heads * dim + heads * dim,
        conv_kernel=kernel,
        key_heads=key_heads,
    )


def compressed(ratio: int) -> Compressed:
    """A DeepSeek V4 Flash layer."""
    return Compressed(
        heads=64,
        head_dim=512,
        rope_dim=64,
        window=128,
        ratio=ratio,
        q_rank=1024,
        o_rank=1024,
        o_groups=8,
        indexer=Indexer(heads=64, dim=128, topk=512) if ratio == 4 else None,
    )


def model(mixers: Sequence[Mixer], *, drafts: Sequence[Mixer] = (), max_len: int = 2**18) -> Model:
    kinds: dict[Mixer, Layer] = {}
    for mixer in (*mixers, *drafts):
        kinds.setdefault(mixer, Layer(mixer=mixer, ffn=Mlp(width=4096)))
    return Model(
        name="geometry",
        layers=tuple(kinds[mixer] for mixer in mixers),
        draft_layers=tuple(kinds[mixer] for mixer in drafts),
        hidden=1024,
        vocab=32000,
        max_len=max_len,
    )


def laid(
    subject: Model,
    engine: Engine,
    *,
    tp: int = 1,
    pp: int = 1,
    dcp: int = 1,
    smallest_block: int = 16,
) -> KvLayout:
    topology = Topology(tp=tp, pp=pp, dcp=dcp)
    settled = resolved(engine, None, topology, subject)
    return layout(subject, topology, settled, smallest_block=smallest_block)


def gpu(hbm_gib: float, marketed_gb: float, name: str = "test") -> Gpu:
    link = Link(kind="nvlink", bandwidth=1e11, latency=1e-6)
    return Gpu(
        name=name,
        architecture="hopper",
        hbm_gib=hbm_gib,
        marketed_gb=marketed_gb,
        bandwidth=3e12,
        flops=Flops(bf16=1e15),
        gpus_per_node=8,
        domain=8,
        inside=link,
        outside=link,
        sources={},
    )


def gib(value: float) -> int:
    return round(value * GIB)
