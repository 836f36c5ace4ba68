"""Which topologies an engine accepts for which model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitpoint.inputs.deployment import Deployment, Pool, Topology, problems
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.huggingface import catalogue, load_model
from splitpoint.inputs.model import (
    Attention,
    Compressed,
    Experts,
    Ffn,
    Latent,
    Layer,
    LinearState,
    Mixer,
    Mlp,
    Model,
)
from splitpoint.inputs.routing import Role

LATENT = Latent(heads=128, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
ATTENTION = Attention(heads=32, kv_heads=4, head_dim=128, value_dim=128)
GDN = LinearState(
    kind="gdn",
    heads=32,
    rows=128,
    columns=128,
    conv_channels=8192,
    conv_kernel=4,
    key_heads=16,
)
MLP = Mlp(width=6144)
EXPERTS = Experts(count=128, active=8, width=768)


def model_of(*halves: Mixer | Ffn, layers: int = 4) -> Model:
    mixers = [half for half in halves if not isinstance(half, Mlp | Experts)]
    ffns = [half for half in halves if isinstance(half, Mlp | Experts)]
    pairs = [(mixers[i % len(mixers)], ffns[i % len(ffns)]) for i in range(layers)]
    return Model(
        name="m",
        layers=tuple(Layer(mixer=mixer, ffn=ffn) for mixer, ffn in pairs),
        hidden=2048,
        vocab=151936,
        max_len=40960,
    )


DENSE = model_of(ATTENTION, MLP)
MOE = model_of(ATTENTION, EXPERTS)


@pytest.mark.parametrize(
    ("topology", "model"),
    [
        (Topology(), DENSE),
        (Topology(tp=4), DENSE),
        # KV heads are repeated past their number.
        (Topology(tp=32), DENSE),
        (Topology(tp=2, pp=4), DENSE),
        (Topology(tp=2, dp=4, ep=8), MOE),
        (Topology(tp=2, dp=4), MOE),
        (Topology(tp=8, ep=8), MOE),
        (Topology(tp=16), model_of(GDN, ATTENTION, MLP)),
        (Topology(tp=8), model_of(LATENT, EXPERTS)),
        # Every rank of a latent cache is a copy; four KV heads on eight ranks make two.
        (Topology(tp=8, dcp=8), model_of(LATENT, EXPERTS)),
        (Topology(tp=8, dcp=2), model_of(GDN, ATTENTION, MLP)),
    ],
)  # fmt: skip
def test_what_the_engine_accepts_has_no_problems(topology: Topology, model: Model) -> None:
    assert problems(topology, model) == ()


WINDOW = Attention(heads=32, kv_heads=1, head_dim=128, value_dim=128, window=512)
SIX_KV = Attention(heads=36, kv_heads=6, head_dim=64, value_dim=64)
V4 = Compressed(
    heads=64, head_dim=512, rope_dim=64, window=128, ratio=4, q_rank=1536, o_rank=1024, o_groups=8
)
MAMBA1 = LinearState(
    kind="mamba1", heads=1, rows=16, columns=8192, conv_channels=8192, conv_kernel=4, key_heads=256
)
MAMBA2 = LinearState(
    kind="mamba2",
    heads=128,
    rows=128,
    columns=64,
    conv_channels=10240,
    conv_kernel=4,
    key_heads=1,
)


@pytest.mark.parametrize(
    ("topology", "model", "word"),
    [
        (Topology(tp=3), model_of(LATENT, MLP), "tp 3 does not divide its 128 attention heads"),
        (
            Topology(tp=4, dcp=3),
            model_of(LATENT, MLP),
            "dcp: 3 does not divide tp 4 (a divisor of tp)",
        ),
        (
            Topology(tp=8, dcp=4),
            model_of(ATTENTION, MLP),
            "dcp 4 is more than the 2 copies of each KV head",
        ),
        (
            Topology(tp=2, dcp=2),
            model_of(WINDOW, MLP),
            "dcp does not cut sliding windows or chunks",
        ),
        (Topology(tp=64), DENSE, "tp 64 does not divide its 32 attention heads"),
        (Topology(tp=4), model_of(SIX_KV, MLP), "tp 4 neither divides nor repeats 6 KV heads"),
        (Topology(pp=5), DENSE, "pp 5 is more than its 4 layers"),
        (Topology(dp=2), DENSE, "dp above 1 is for mixture-of-experts models; use replicas"),
        (Topology(tp=2, ep=2), DENSE, "ep is for mixture-of-experts models"),
        (Topology(tp=2, dp=2, ep=2), MOE, "ep: 2 is not possible (1 or tp x dp = 4)"),
        (Topology(dp=256, ep=256), MOE, "ep 256 is more than its 128 experts"),
        (
            Topology(tp=32, dp=16),
            MOE,
            "tp x dp 512 does not divide its 768 columns of each expert",
        ),
        (
            Topology(tp=32),
            model_of(GDN, ATTENTION, MLP),
            "tp 32 does not divide its 16 key heads of the recurrent layers",
        ),
        (
            Topology(tp=3),
            model_of(MAMBA1, MLP),
            "tp 3 does not divide its 8192 channels of the recurrent layers",
        ),
        (
            Topology(tp=3),
            model_of(MAMBA2, MLP),
            "tp 3 does not divide its 128 heads of the recurrent layers",
        ),
        (Topology(tp=16), model_of(V4, EXPERTS), "tp 16 does not divide its 8 output groups"),
        (
            Topology(tp=4),
            model_of(ATTENTION, Mlp(width=6146)),
            "tp 4 does not divide its 6146 columns of the feed-forward layers",
        ),
        (
            Topology(tp=4, ep=4),
            model_of(ATTENTION, Experts(count=8, active=2, width=7, shared_width=6)),
            "tp 4 does not divide its 6 columns of the shared experts",
        ),
    ],
)
def test_what_the_engine_refuses_says_why(topology: Topology, model: Model, word: str) -> None:
    assert problems(topology, model) == (word,)


def test_groups_of_mamba2_are_repeated_where_tp_does_not_divide_them() -> None:
    assert problems(Topology(tp=8), model_of(MAMBA2, MLP)) == ()


def test_equal_layers_are_told_once() -> None:
    words = problems(Topology(tp=3), model_of(ATTENTION, EXPERTS, layers=60))
    assert words == (
        "tp 3 does not divide its 32 attention heads",
        "tp 3 neither divides nor repeats 4 KV heads",
    )


@given(st.integers(0, 5), st.integers(0, 5), st.integers(1, 4))
def test_powers_of_two_that_fit_a_model_fit_any_model_with_more_heads(
    tp: int, dp: int, pp: int
) -> None:
    topology = Topology(tp=2**tp, dp=2**dp, pp=pp, ep=2 ** (tp + dp))
    wider = model_of(
        Attention(heads=64, kv_heads=8, head_dim=128, value_dim=128),
        Experts(count=2048, active=8, width=4096),
    )
    if not problems(topology, MOE):
        assert problems(topology, wider) == ()


def test_deployments_print_as_people_write_them() -> None:
    def pool(role: Role, topology: Topology, replicas: int, drafts: int = 0) -> Pool:
        return Pool(role=role, topology=topology, replicas=replicas, engine=Engine(drafts=drafts))

    mixed = Deployment(pools=(pool("mixed", Topology(tp=4, pp=2), 2),))
    assert str(mixed) == "2xTP4PP2"
    assert (mixed.gpus, mixed.split) == (16, False)
    split = Deployment(
        pools=(
            pool("prefill", Topology(tp=2), 3),
            pool("decode", Topology(tp=2, dp=4, ep=8), 1, drafts=3),
        )
    )
    assert str(split) == "P 3xTP2 + D 1xTP2DP4+EP drafts=3"
    assert (split.gpus, split.split) == (14, True)


# Published: deployments that ran (vLLM and SGLang recipes of DeepSeek-R1; the model cards of
# Qwen3-235B-A22B-FP8 and MiniMax-M2.5, which ask for expert parallelism at 8; gpt-oss's recipe).
RAN = [
    ("deepseek-ai/DeepSeek-R1", Topology(tp=8)),
    ("deepseek-ai/DeepSeek-R1", Topology(tp=1, dp=8, ep=8)),
    ("deepseek-ai/DeepSeek-R1", Topology(tp=8, pp=2)),
    ("deepseek-ai/DeepSeek-R1", Topology(tp=16)),
    ("Qwen/Qwen3-235B-A22B-FP8", Topology(tp=4)),
    ("Qwen/Qwen3-235B-A22B-FP8", Topology(tp=8, ep=8)),
    ("Qwen/Qwen3-235B-A22B", Topology(tp=8)),
    ("MiniMaxAI/MiniMax-M2.5", Topology(tp=4)),
    ("MiniMaxAI/MiniMax-M2.5", Topology(tp=8, ep=8)),
    ("openai/gpt-oss-120b", Topology(tp=8)),
    ("Qwen/Qwen3.8-2.4T-A95B", Topology(tp=8, ep=8)),
    ("Qwen/Qwen3.8-2.4T-A95B", Topology(tp=4, dp=4, ep=16)),
]


@pytest.mark.parametrize(("name", "topology"), RAN)
def test_deployments_that_ran_have_no_problems(name: str, topology: Topology) -> None:
    assert problems(topology, load_model(name, offline=True)) == ()


# Published: starts that failed. Qwen3-235B-A22B-FP8 and MiniMax-M2.5 at TP8 with 192 columns
# (vllm-project/vllm#17569; a bench report of vLLM 0.25), DeepSeek-R1 at TP32 with 576
# (vllm-project/vllm#12256, sgl-project/sglang#3345), DeepSeek-V4-Pro at TP16 with EP and 192
# columns of the shared experts (vllm-project/vllm#45784), phi-4's 10 KV heads at TP4.
FAILED = [
    ("Qwen/Qwen3-235B-A22B-FP8", Topology(tp=8), "tp x dp 8 leaves 192 columns of each expert"),
    ("MiniMaxAI/MiniMax-M2.5", Topology(tp=8), "tp x dp 8 leaves 192 columns of each expert"),
    ("deepseek-ai/DeepSeek-R1", Topology(tp=32), "tp 32 leaves 576 columns of the feed-forward"),
    (
        "deepseek-ai/DeepSeek-V4-Pro",
        Topology(tp=16, ep=16),
        "tp 16 leaves 192 columns of the shared experts, which FP8 blocks of 128 do not divide",
    ),
    ("microsoft/phi-4", Topology(tp=4), "tp 4 neither divides nor repeats 10 KV heads"),
]


@pytest.mark.parametrize(("name", "topology", "word"), FAILED)
def test_starts_that_failed_are_refused_for_their_reason(
    name: str, topology: Topology, word: str
) -> None:
    words = problems(topology, load_model(name, offline=True))
    assert any(told.startswith(word) for told in words), words


@pytest.mark.parametrize("name", catalogue())
def test_every_model_of_the_catalogue_runs_on_one_gpu(name: str) -> None:
    assert problems(Topology(), load_model(name, offline=True)) == ()
