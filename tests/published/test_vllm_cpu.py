"""Thirteen start-ups of real vLLM 0.32.0 servers (CPU build, 2026): geometry in, printed lines out.

Measured on a two-core machine with tiny and dummy-weight models. The CPU backend's smallest block
is 32 tokens, its default block 128 (16 for its latent attention), and it schedules one batch at a
time; the rules of groups, pages and concurrency are the engine's own on every device.
"""

from typing import NamedTuple

import pytest
from msgspec.structs import replace

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.model import Model
from splitpoint.pricing.blocks import layout
from splitpoint.pricing.concurrency import kv_tokens_reported, max_concurrency
from splitpoint.pricing.engines import resolved
from tests.pricing.geometry import attention, gdn, latent, model

MIB = 2**20


class Startup(NamedTuple):
    """What a server was given, and what it printed."""

    name: str
    model: Model
    engine: Engine
    tp: int
    kv_mib: int
    tokens: int
    concurrency: float
    block: int | None = None
    padding: str | None = None


def fp32(subject: Model) -> Model:
    return replace(subject, dtype="fp32")


CPU = Engine(block_size=128, batched_tokens=2048, async_scheduling=False, max_len=8192)
NO_PREFIXES = replace(CPU, prefix_caching=False)
DENSE = model([attention(2, 64)] * 4)
NEXT = model([*[gdn(4, 2)] * 6, *[attention(2, 64)] * 2])
QWEN38 = model([*[gdn(128, 16)] * 69, *[attention(4, 256)] * 23], drafts=[attention(4, 256)])
QWEN38_FP8 = replace(
    CPU, block_size=16, max_len=9216, kv_dtype="fp8", state_dtype="bf16", prefix_caching=False
)

STARTUPS = (
    Startup("tiny qwen3", DENSE, CPU, 1, 256, 131072, 16.00),
    Startup("tiny qwen3 fp32", fp32(DENSE), CPU, 1, 256, 65536, 8.00),
    Startup("tiny deepseek_v2", model([latent()] * 4), CPU, 1, 256, 58240, 7.11),
    Startup(
        "tiny deepseek fp32",
        fp32(model([latent()] * 4)),
        replace(CPU, block_size=16),
        1,
        256,
        29120,
        3.55,
    ),
    Startup(
        "tiny gemma3",
        model([*[attention(2, 64, window=512)] * 5, attention(2, 64)]),
        CPU,
        1,
        256,
        198546,
        24.24,
    ),
    Startup(
        "tiny gpt_oss",
        model([attention(2, 64, window=128), attention(2, 64)] * 2),
        CPU,
        1,
        256,
        204600,
        24.98,
    ),
    Startup("tiny qwen3_next", NEXT, CPU, 1, 256, 199533, 24.36, 384, "43.28"),
    Startup(
        "tiny qwen3_next fp32",
        fp32(NEXT),
        replace(CPU, state_dtype="bf16"),
        1,
        256,
        110376,
        13.47,
        256,
        "82.86",
    ),
    Startup("dummy qwen3 0.6b", model([attention(8, 128)] * 28), CPU, 1, 2048, 18688, 2.28),
    Startup("dummy qwen3.8", QWEN38, QWEN38_FP8, 1, 4096, 49536, 5.38, 2112, "0.19"),
    Startup(
        "dummy qwen3.8, 3 drafts",
        QWEN38,
        replace(QWEN38_FP8, drafts=3),
        1,
        4096,
        21684,
        2.35,
        2176,
        "0.37",
    ),
    Startup(
        "dummy hybrid, one head on two ranks",
        model([*[gdn(32, 16)] * 6, *[attention(1, 256)] * 2]),
        replace(NO_PREFIXES, state_dtype="fp32"),
        2,
        512,
        169053,
        20.64,
        1152,
        "9.92",
    ),
    Startup("tiny qwen3, 23 usable blocks", DENSE, replace(CPU, max_len=2048), 1, 6, 3072, 1.50),
)


@pytest.mark.parametrize("startup", STARTUPS, ids=lambda startup: startup.name)
def test_a_start_up_is_reproduced_to_the_last_printed_digit(startup: Startup) -> None:
    topology = Topology(tp=startup.tp)
    engine = resolved(startup.engine, None, topology, startup.model)
    kv = layout(startup.model, topology, engine, smallest_block=32)
    pool = startup.kv_mib * MIB
    longest = engine.max_len or 0
    assert kv_tokens_reported(kv, pool, longest, engine, topology) == startup.tokens
    assert f"{max_concurrency(kv, pool, longest):.2f}" == f"{startup.concurrency:.2f}"
    if startup.block is not None:
        assert kv.block_tokens == startup.block
        assert f"{100 * kv.padding_share:.2f}" == startup.padding
