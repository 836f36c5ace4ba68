"""Engine logs of several ages and shapes, transcribed line by line, and damaged on purpose."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitpoint.inputs.startup import StartupLog, parse

V1_GPU = """\
INFO 04-13 22:09:25 [core.py:77] Initializing a V1 LLM engine (v0.19.0) with config: \
model='Qwen/Qwen3-32B', speculative_config=None, dtype=torch.bfloat16, max_seq_len=16000, \
tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, enforce_eager=False, \
kv_cache_dtype=auto, device_config=cuda, enable_prefix_caching=True
INFO 04-13 22:09:33 [gpu_model_runner.py:4879] Model loading took 61.03 GiB memory and 31.6 seconds
INFO 04-13 22:09:35 [gpu_model_runner.py:5914] Profiling CUDA graph memory: PIECEWISE=51 \
(largest=512), FULL=35 (largest=256)
INFO 04-13 22:09:36 [gpu_model_runner.py:5993] Estimated CUDA graph memory: 0.73 GiB total
INFO 04-13 22:09:36 [gpu_worker.py:349] Available KV cache memory: 3.72 GiB
INFO 04-13 22:09:36 [kv_cache_utils.py:1229] GPU KV cache size: 15,232 tokens
INFO 04-13 22:09:36 [kv_cache_utils.py:1234] Maximum concurrency for 16,000 tokens per request: \
0.95x
INFO 04-13 22:09:46 [gpu_worker.py:621] CUDA graph pool memory: 0.61 GiB (actual), 0.73 GiB \
(estimated), difference: 0.12 GiB (19.7%).
INFO 04-13 22:09:46 [core.py:299] init engine (profile, create kv cache, warmup model) took 13 s
"""

V0_GPU = """\
INFO 03-21 20:15:16 [llm_engine.py:232] Initializing a V0 LLM engine (v0.8.1) with config: \
model='meta-llama/Llama-3.1-8B', tensor_parallel_size=1, max_seq_len=2048
INFO 03-21 20:15:45 [worker.py:267] the current vLLM instance can use total_gpu_memory (79.19GiB) \
x gpu_memory_utilization (0.90) = 71.27GiB
INFO 03-21 20:15:45 [worker.py:267] model weights take 12.55GiB; non_torch_memory takes 0.16GiB; \
PyTorch activation peak memory takes 2.38GiB; the rest of the memory reserved for KV Cache is \
56.18GiB.
INFO 03-21 20:15:46 [executor_base.py:111] # cuda blocks: 7191, # CPU blocks: 512
"""

SGLANG = """\
[2026-07-01 15:19:00] server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-R1', tp_size=8, \
dp_size=1, mem_fraction_static=0.82, kv_cache_dtype='auto', max_running_requests=512, page_size=1)
[2026-07-01 15:19:10 TP0] Load weight begin. avail mem=138.02 GB
[2026-07-01 15:19:50 TP0] Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, \
avail mem=58.21 GB, mem usage=79.80 GB.
[2026-07-01 15:19:55 TP0] KV Cache is allocated. #tokens: 509157, KV size: 33.32 GB
[2026-07-01 15:19:55 TP0] Memory pool end. avail mem=24.54 GB
[2026-07-01 15:20:10 TP0] Capture cuda graph end. Time elapsed: 5.37 s. mem usage=1.85 GB. \
avail mem=19.56 GB.
[2026-07-01 15:20:11 TP0] max_total_num_tokens=509157, chunked_prefill_size=32768
"""


def one(text: str) -> StartupLog:
    (log,) = parse(text.splitlines(), "a.log")
    return log


def printed(log: StartupLog) -> dict[str, float]:
    return {figure.name: figure.high for figure in log.figures}


def test_a_v1_log_gives_every_rung_it_prints() -> None:
    log = one(V1_GPU)
    assert (log.engine, log.version, log.device, log.finished) == ("vllm", "0.19.0", "gpu", True)
    assert printed(log) == {
        "weights": 61.03,
        "graph_estimate": 0.73,
        "graph_actual": 0.61,
        "kv": 3.72,
        "kv_tokens": 15232,
        "concurrency_tokens": 16000,
        "concurrency": 0.95,
    }
    assert log.settings.model == "Qwen/Qwen3-32B"
    assert (log.settings.tp, log.settings.max_len, log.settings.prefix_caching) == (1, 16000, True)
    assert log.conflicts == ()


def test_a_v0_log_states_its_whole_ladder_and_the_sum_confirms_the_request() -> None:
    log = one(V0_GPU)
    figures = printed(log)
    assert figures["total"] == 79.19
    assert figures["requested"] == 71.27
    assert figures["kv_blocks"] == 7191
    assert (figures["weights"], figures["non_torch"], figures["peak_activation"]) == (
        12.55,
        0.16,
        2.38,
    )
    confirmed = {figure.name for figure in log.figures if figure.confirmed}
    assert {"total", "utilization", "requested"} <= confirmed


def test_sglang_prints_gib_under_the_name_of_gb() -> None:
    log = one(SGLANG)
    assert (log.engine, log.device) == ("sglang", "gpu")
    assert printed(log) == {
        "utilization": 0.82,
        "free_at_start": 138.02,
        "weights": 79.80,
        "kv_tokens": 509157,
        "kv": 33.32,
        "graph_actual": 1.85,
    }
    tokens = log.seen("kv_tokens")
    assert tokens is not None and tokens.confirmed
    assert log.settings.tp == 8


def test_sglang_tells_its_settings_as_a_dictionary_from_0_5_20_on() -> None:
    _, rest = SGLANG.split("\n", 1)
    told = "server_args={'model_path': 'deepseek-ai/DeepSeek-R1', 'tp_size': 8, 'dp_size': 1, "
    told += "'mem_fraction_static': 0.82, 'kv_cache_dtype': 'auto', 'max_running_requests': 512, "
    told += "'page_size': 1, 'speculative_draft_model_path': None}"
    new = one(f"[2026-07-01 15:19:00] {told}\n{rest}")
    old = one(SGLANG)
    assert new.settings == old.settings and new.settings.model == "deepseek-ai/DeepSeek-R1"
    assert printed(new) == printed(old)


@pytest.mark.parametrize(
    ("told", "degrees"),
    [
        ("tp_size=16, dp_size=8, enable_dp_attention=True, ep_size=16", (2, 8, True)),
        ("tp_size=16, dp_size=1, attn_dp_size=8, ep_size=1", (2, 8, False)),
        ("tp_size=16, dp_size=2, enable_dp_attention=False, ep_size=16", (16, 1, True)),
    ],
)
def test_sglangs_tp_counts_the_gpus_of_its_attention_ranks(
    told: str, degrees: tuple[int, int, bool]
) -> None:
    settings = one(SGLANG.replace("tp_size=8, dp_size=1", told)).settings
    assert (settings.tp, settings.dp, settings.expert_parallel) == degrees


def test_docker_and_kubernetes_prefixes_and_colours_do_not_matter() -> None:
    plain = printed(one(V1_GPU))
    lines = V1_GPU.splitlines()
    docker = "\n".join(json.dumps({"log": line + "\n", "stream": "stderr"}) for line in lines)
    coloured = "\n".join(f"\x1b[36mvllm-1  |\x1b[0m {line}" for line in lines)
    pod = "\n".join(f"[pod/decode-0/vllm] {line}" for line in lines)
    for wrapped in (docker, coloured, pod):
        assert printed(one(wrapped)) == plain


def test_two_containers_in_one_file_are_two_engines() -> None:
    mixed = [
        line
        for pair in zip(
            V1_GPU.splitlines(), V1_GPU.replace("3.72", "9.72").splitlines(), strict=True
        )
        for line in (f"prefill-1  | {pair[0]}", f"decode-1  | {pair[1]}")
    ]
    prefill, decode = parse(mixed, "compose.log")
    assert (printed(prefill)["kv"], printed(decode)["kv"]) == (3.72, 9.72)
    assert prefill.source == "compose.log [prefill-1]"


def test_ranks_may_differ_but_one_rank_may_not_contradict_itself() -> None:
    ranks = (
        "(Worker_TP0 pid=1) INFO gpu_worker.py] Available KV cache memory: 2.30 GiB\n"
        "(Worker_TP1 pid=2) INFO gpu_worker.py] Available KV cache memory: 2.41 GiB\n"
    )
    kv = one(ranks).seen("kv")
    assert kv is not None and (kv.low, kv.high) == (2.30, 2.41)
    twice = ranks.replace("TP1 pid=2", "TP0 pid=1")
    log = one(twice)
    assert log.seen("kv") is None
    assert log.conflicts == ("kv: stated as 2.3 and as 2.41 by Worker_TP0 pid=1",)


def test_a_ladder_that_does_not_add_up_is_not_believed() -> None:
    log = one(V0_GPU.replace("71.27GiB", "17.27GiB"))
    assert log.seen("total") is None
    assert "total x utilization does not give the requested memory" in log.conflicts


def test_an_empty_log_has_no_figures_and_no_engine() -> None:
    log = one("\n")
    assert (log.engine, log.figures, log.finished) == ("unknown", (), False)


@settings(max_examples=150, deadline=None)
@given(
    text=st.sampled_from([V1_GPU, V0_GPU, SGLANG]),
    cut=st.integers(0, 2000),
    flips=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_a_damaged_log_never_confirms_a_wrong_figure(
    text: str, cut: int, flips: list[tuple[int, int]], order: object
) -> None:
    truth = printed(one(text))
    damaged = bytearray(text.encode()[: max(1, len(text) - cut)])
    for place, value in flips:
        damaged[place % len(damaged)] = value
    lines = damaged.decode(errors="replace").splitlines() or [""]
    order.shuffle(lines)  # type: ignore[attr-defined]
    for log in parse(lines, "damaged.log"):
        for figure in log.figures:
            if figure.confirmed:
                slack = 1.0 if figure.name == "kv_tokens" else 10.0**-figure.digits
                assert abs(figure.high - truth[figure.name]) <= max(slack, 0.01 * figure.high)
