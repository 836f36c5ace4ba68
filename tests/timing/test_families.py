"""Families worked by hand from their published configurations: FLOPs and cached bytes of a token.

Each product is written out as its config.json states it (hidden size x columns), so that nothing of
`pricing` or of the model reader stands behind the expected numbers.
"""

import pytest

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.huggingface import load_model
from splitpoint.pricing.caches import layer_caches
from splitpoint.timing.operators import step_operators
from tests.timing.worlds import batch

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
DEEPSEEK = "deepseek-ai/DeepSeek-V3.2"
KIMI = "moonshotai/Kimi-K2-Instruct"
NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct"
OSS = "openai/gpt-oss-120b"
GEMMA = "google/gemma-3-27b-it"
NEMOTRON = "nvidia/Nemotron-H-56B-Base-8K"
GRANITE = "ibm-granite/granite-4.0-h-small"
MINIMAX = "MiniMaxAI/MiniMax-M2.5"
SPARSE_MINIMAX = "MiniMaxAI/MiniMax-M3"

# Multiplications of a prompt's token in every matrix that it passes, logits apart.
PRODUCTS = {
    LLAMA: 32 * (4096 * (32 + 2 * 8) * 128 + 4096 * 4096 + 3 * 4096 * 14336),
    # Down to 1,536 and 512 + 64, up by 128 heads of 192 and of 128 + 128, out; the indexer's 64
    # heads of 128, one key and 64 weights; three dense layers, then 8 experts and a shared one.
    DEEPSEEK: 61
    * (
        7168 * (1536 + 576)
        + 1536 * 128 * 192
        + 512 * 128 * 256
        + 128 * 128 * 7168
        + 1536 * 64 * 128
        + 7168 * (128 + 64)
    )
    + 3 * 3 * 7168 * 18432
    + 58 * (7168 * 256 + 9 * 3 * 7168 * 2048),
    KIMI: 61 * (7168 * (1536 + 576) + 1536 * 64 * 192 + 512 * 64 * 256 + 64 * 128 * 7168)
    + 3 * 7168 * 18432
    + 60 * (7168 * 384 + 9 * 3 * 7168 * 2048),
    # Queries and keys of 16 heads, values and gates of 32, a decay and a step for each of these;
    # every fourth layer gated attention.
    NEXT: 36 * (2048 * ((2 * 16 + 2 * 32) * 128 + 2 * 32) + 32 * 128 * 2048)
    + 12 * (2048 * (2 * 16 + 2 * 2) * 256 + 16 * 256 * 2048)
    + 48 * (2048 * 512 + (10 + 1) * 3 * 2048 * 512),
    OSS: 36 * (2880 * (64 + 2 * 8) * 64 + 64 * 64 * 2880 + 2880 * 128 + 4 * 3 * 2880 * 2880),
    GEMMA: 62 * (5376 * (32 + 2 * 16) * 128 + 32 * 128 * 5376 + 3 * 5376 * 21504),
    # Gate and values of 256 heads of 64, two maps of 8 groups of 256, a step for each head.
    NEMOTRON: 54 * (8192 * (2 * 16384 + 2 * 8 * 256 + 256) + 16384 * 8192)
    + 54 * 2 * 8192 * 32768
    + 10 * (8192 * (64 + 2 * 8) * 128 + 8192 * 8192),
    GRANITE: 36 * (4096 * (2 * 8192 + 2 * 128 + 128) + 8192 * 4096)
    + 4 * (4096 * (32 + 2 * 8) * 128 + 4096 * 4096)
    + 40 * (4096 * 72 + 10 * 3 * 4096 * 768 + 3 * 4096 * 1536),
    MINIMAX: 62 * (3072 * (48 + 2 * 8) * 128 + 48 * 128 * 3072 + 3072 * 256 + 8 * 3 * 3072 * 1536),
}

# 1,000 new tokens behind 5,000 cached ones.
NEW, CACHED = 1000, 5000
PAIRS = NEW * CACHED + NEW * (NEW + 1) // 2

# 2 x layers x heads x (width of a score + width of a value) x pairs.
PROMPT = {
    LLAMA: 2 * 32 * 32 * (128 + 128) * PAIRS,
    # In the latent space, for the 2,048 chosen tokens.
    DEEPSEEK: 2 * 61 * 128 * (576 + 512) * NEW * 2048,
    KIMI: 2 * 61 * 64 * (192 + 128) * PAIRS,
    NEXT: 2 * 12 * 16 * (256 + 256) * PAIRS,
    OSS: 2 * 18 * 64 * (64 + 64) * (PAIRS + NEW * 128),
    GEMMA: 2 * 32 * (128 + 128) * (10 * PAIRS + 52 * NEW * 1024),
    NEMOTRON: 2 * 10 * 64 * (128 + 128) * PAIRS,
    GRANITE: 2 * 4 * 32 * (128 + 128) * PAIRS,
    MINIMAX: 2 * 62 * 48 * (128 + 128) * PAIRS,
    SPARSE_MINIMAX: 2 * 64 * (128 + 128) * (3 * PAIRS + 57 * NEW * 2048),
}

# Bytes that one more token of context caches, and what a request holds whatever its length.
CACHED_BYTES = {
    LLAMA: (32 * 8 * (128 + 128) * 2, 0),
    # 512 + 64 numbers and the selector's key in fp8 with one fp32 scale.
    DEEPSEEK: (61 * (576 * 2 + 128 + 4), 0),
    KIMI: (61 * 576 * 2, 0),
    NEXT: (12 * 2 * (256 + 256) * 2, 36 * (32 * 128 * 128 + (2 * 16 + 32) * 128 * 3) * 2),
    OSS: (18 * 8 * (64 + 64) * 2, 0),
    GEMMA: (10 * 16 * (128 + 128) * 2, 0),
    NEMOTRON: (
        10 * 8 * (128 + 128) * 2,
        54 * (256 * 64 * 256 + (256 * 64 + 2 * 8 * 256) * 3) * 2,
    ),
    GRANITE: (4 * 8 * (128 + 128) * 2, 36 * (128 * 64 * 128 + (128 * 64 + 2 * 128) * 3) * 2),
    MINIMAX: (62 * 8 * (128 + 128) * 2, 0),
    SPARSE_MINIMAX: (60 * 4 * (128 + 128) * 2 + 57 * 128 * 2, 0),
}

ENGINE = Engine()
ONE = Topology()


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_token_is_multiplied_by_every_matrix_that_it_passes(name: str) -> None:
    step = batch(prefill=1)
    operators = step_operators(load_model(name), ONE, ENGINE, step)
    products = [o for o in operators if o.kind in ("gemm", "experts")]
    assert sum(o.count * o.flops[0] for o in products) == 2 * PRODUCTS[name]


@pytest.mark.parametrize("name", PROMPT)
def test_a_prompt_behind_a_prefix_attends_its_pairs(name: str) -> None:
    step = batch(prefill=NEW, pairs=PAIRS, rows=1)
    operators = step_operators(load_model(name), ONE, ENGINE, step)
    kinds = ("prefill_attention", "prefill_latent", "prefill_sparse")
    attention = [o for o in operators if o.kind in kinds]
    assert sum(o.count * o.flops[0] for o in attention) == PROMPT[name]


@pytest.mark.parametrize("name", CACHED_BYTES)
def test_a_token_and_a_request_cache_what_the_layers_keep(name: str) -> None:
    model = load_model(name)
    caches = [c for layer in model.layers for c in layer_caches(layer, model, ONE, ENGINE)]
    token = sum(cache.entry for cache in caches if cache.kind == "full")
    fixed = sum(cache.entry for cache in caches if cache.kind == "state")
    assert (token, fixed) == CACHED_BYTES[name]


def test_a_decode_step_reads_the_latents_once_for_all_heads() -> None:
    sequences, context = 64, 64 * 5000
    step = batch(decode=sequences, context=context, rows=sequences)
    kimi = step_operators(load_model(KIMI), ONE, ENGINE, step)
    latent = [o for o in kimi if o.kind == "decode_latent"]
    assert sum(o.count * o.flops[0] for o in latent) == 2 * 61 * 64 * (576 + 512) * context
    assert sum(o.count * o.bytes[0] for o in latent) == 61 * 576 * 2 * context
    gemma = step_operators(load_model(GEMMA), ONE, ENGINE, step)
    walked = sum(o.count * o.bytes[0] for o in gemma if o.kind == "decode_attention")
    assert walked == 16 * (128 + 128) * 2 * (10 * context + 52 * sequences * 1024)
