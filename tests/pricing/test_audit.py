"""Start-up logs audited: what real engines printed on GPUs, and logs built to go wrong.

Lines are written in the engines' shapes around figures that others published; sources beside them.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from splitpoint.errors import PlanError
from splitpoint.inputs.engine import KvDtype
from splitpoint.inputs.facts import gpu
from splitpoint.inputs.files import to_json
from splitpoint.inputs.huggingface import load_model
from splitpoint.inputs.startup import FigureName, parse
from splitpoint.pricing.audit import Audit, Compared, EngineAudit, audit, audit_files
from splitpoint.report.audits import render_audit


def vllm_log(
    model: str,
    version: str,
    *,
    tp: int = 1,
    max_len: int = 4096,
    options: str = "{}",
    kv_dtype: KvDtype = "auto",
    prefix_caching: bool = True,
    lines: str = "",
) -> str:
    return f"""\
INFO 11-06 10:50:00 [api_server.py:1] vLLM API server version {version}
INFO 11-06 10:50:00 [utils.py:2] non-default args: {options}
INFO 11-06 10:50:09 [core.py:77] Initializing a V1 LLM engine (v{version}) with config: \
model='{model}', speculative_config=None, max_seq_len={max_len}, tensor_parallel_size={tp}, \
pipeline_parallel_size=1, data_parallel_size=1, enforce_eager=False, kv_cache_dtype={kv_dtype}, \
device_config=cuda, enable_prefix_caching={prefix_caching}
{lines}
INFO 11-06 10:52:00 [core.py:299] init engine (profile, create kv cache, warmup model) took 13 s
"""


def of(text: str, model: str, gpu_name: str | None) -> EngineAudit:
    (log,) = parse(text.splitlines(), "a.log")
    device = None if gpu_name is None else gpu(gpu_name)
    facts = load_model(model)
    (engine,) = audit([log], {log.settings.model or "": facts}, [device]).engines
    return engine


def row(engine: EngineAudit, name: FigureName) -> Compared:
    return next(row for row in engine.figures if row.name == name)


GPT_OSS = "openai/gpt-oss-120b"
GPT_OSS_OPTIONS = (
    "{'max_num_batched_tokens': 8192, 'max_num_seqs': %d, 'max_cudagraph_capture_size': 2048, "
    "'gpu_memory_utilization': 0.9}"
)
# heyram74/nebius_sopertors_inferencex_benchmark@4c8d50b, gptoss_h200_vllm22.0_sweep1.
GPT_OSS_RUNS = (
    (2, 64, 34.38, 1.03, 0.98, 88.77, "2,560,976", 1238.38),
    (4, 4, 17.22, 1.00, 0.96, 106.27, "6,131,120", 2964.76),
    (8, 64, 8.66, 1.01, 1.01, 114.84, "13,251,688", 6407.97),
    (8, 8, 8.66, 1.00, 1.00, 114.85, "13,253,035", 6408.62),
)


def gpt_oss_log(run: tuple[int, int, float, float, float, float, str, float]) -> str:
    tp, seqs, weights, estimated, actual, kv, tokens, concurrency = run
    return vllm_log(
        GPT_OSS,
        "0.22.1",
        tp=tp,
        max_len=2068,
        prefix_caching=False,
        options=GPT_OSS_OPTIONS % seqs,
        lines="\n".join(
            f"(Worker_TP{rank} pid={100 + rank}) INFO gpu_model_runner.py] {words}"
            for words in (
                f"Model loading took {weights} GiB memory and 31.6 seconds",
                f"Estimated CUDA graph memory: {estimated:.2f} GiB total",
                f"Available KV cache memory: {kv} GiB",
                f"CUDA graph pool memory: {actual:.2f} GiB (actual), {estimated:.2f} GiB "
                "(estimated), difference: 0.05 GiB (5.1%).",
            )
            for rank in range(tp)
        )
        + f"\nINFO [kv_cache_utils.py] GPU KV cache size: {tokens} tokens\n"
        "INFO [kv_cache_utils.py] Maximum concurrency for 2,068 tokens per request: "
        f"{concurrency}x",
    )


@pytest.mark.parametrize("run", GPT_OSS_RUNS, ids=lambda run: f"tp {run[0]}, {run[1]} sequences")
def test_the_ladder_of_a_gpt_oss_server_is_met_rung_by_rung(
    run: tuple[int, int, float, float, float, float, str, float],
) -> None:
    engine = of(gpt_oss_log(run), GPT_OSS, "H200")
    assert engine.not_predicted == ()
    for name in ("weights", "kv", "concurrency", "kv_tokens"):
        found = row(engine, name)
        assert found.state == "agrees", found
    assert row(engine, "weights").off == pytest.approx(0, abs=0.005)
    assert row(engine, "concurrency").off == pytest.approx(0, abs=0.002)
    assert engine.graphs is not None and engine.graphs.requests is not None
    assert engine.graphs.unused == pytest.approx(run[3] - run[4])


# llm-d planner, "vLLM Empirical Memory Profiling Results", 0.11.0 on H100; the rungs are printed
# at the debug level as one line.
H100_RUNS = (
    ("meta-llama/Llama-3.1-8B-Instruct", 1, 0.9, 14.99, 4.76, 0.13, 51.38),
    ("Qwen/Qwen3-0.6B", 1, 0.9, 1.12, 5.56, 0.13, 64.45),
    ("Qwen/Qwen3-32B", 1, 0.9, 61.03, 5.64, 0.14, 4.45),
    ("openai/gpt-oss-20b", 1, 0.9, 13.47, 7.38, 0.13, 50.28),
)


@pytest.mark.parametrize("run", H100_RUNS, ids=lambda run: run[0])
def test_the_ladder_of_an_h100_server_is_met_rung_by_rung(
    run: tuple[str, int, float, float, float, float, float],
) -> None:
    model, tp, fraction, weights, peak, outside, kv = run
    text = vllm_log(
        model,
        "0.11.0",
        tp=tp,
        max_len=16000,
        options="{'block_size': 128}",
        lines=f"INFO [gpu_worker.py:1] Model loading took {weights} GiB and 3.6 seconds\n"
        "DEBUG [gpu_worker.py:2] Free memory on device (78.66/79.18 GiB) on startup. Desired GPU "
        f"memory utilization is ({fraction}, 71.26 GiB). Actual usage is {weights} GiB for weight, "
        f"{peak} GiB for peak activation, {outside} GiB for non-torch memory, and 0.39 GiB for "
        "CUDAGraph memory.\n"
        f"INFO [gpu_worker.py:3] Available KV cache memory: {kv} GiB",
    )
    engine = of(text, model, "H100 SXM")
    for name in ("weights", "kv", "requested", "total"):
        found = row(engine, name)
        assert found.state == "agrees", found
    assert row(engine, "non_torch").predicted == pytest.approx(0.14)


def test_the_first_rung_that_is_off_is_named_and_not_counted_again_below() -> None:
    run = GPT_OSS_RUNS[0]
    # Ten GiB more weights than the engine loads, and the pool that they leave.
    heavier = gpt_oss_log((*run[:2], 44.38, run[3], run[4], 78.77, *run[6:]))
    engine = of(heavier, GPT_OSS, "H200")
    assert engine.first_off == "weights"
    assert row(engine, "kv").state == "agrees"


def test_the_method_that_a_log_drafts_by_decides_what_layers_it_keeps() -> None:
    named = "meta-llama/Llama-3.1-8B"
    line = "INFO gpu_worker.py] Available KV cache memory: 40.00 GiB"
    plain = vllm_log(named, "0.22.1", lines=line)

    def blocks(method: str) -> tuple[float | None, EngineAudit]:
        config = f"SpeculativeConfig(method='{method}', model='a/head', num_spec_tokens=3)"
        text = plain.replace("speculative_config=None", f"speculative_config={config}")
        engine = of(text, named, "H100-SXM")
        return row(engine, "kv_blocks").predicted, engine

    # A token of a layer is 8 heads x 128 x 2 x 2 bytes; the head of EAGLE-3 keeps one layer more.
    block, pool = 16 * 8 * 128 * 2 * 2, 40 * 2**30
    assert blocks("ngram")[0] == pool // (32 * block)
    found, engine = blocks("eagle3")
    assert found == pool // (33 * block)
    assert any("head is not at hand" in words for words in engine.not_predicted)
    found, engine = blocks("medusa")
    assert found is None
    assert any("drafts by medusa" in words for words in engine.not_predicted)


def test_a_v0_server_prints_its_ladder_in_one_line() -> None:
    # vllm-project/vllm#10517: Llama-3.1-8B on RTX 3090, 0.6, 23.58 GiB, and the line's shape.
    text = vllm_log(
        "meta-llama/Llama-3.1-8B-Instruct",
        "0.6.3",
        max_len=20000,
        lines="INFO model_runner.py:1077] Loading model weights took 14.9888 GB\n"
        "INFO worker.py:232] Memory profiling results: total_gpu_memory=23.58GiB "
        "initial_memory_usage=15.41GiB peak_torch_memory=17.06GiB memory_usage_post_profile="
        "15.46GiB non_torch_memory=0.35GiB kv_cache_size=3.81GiB gpu_memory_utilization=0.90\n"
        "INFO gpu_executor.py:113] # GPU blocks: 1952, # CPU blocks: 2048\n"
        "INFO gpu_executor.py:117] Maximum concurrency for 20000 tokens per request: 1.56x",
    )
    engine = of(text, "meta-llama/Llama-3.1-8B-Instruct", "RTX 3090")
    for name in ("weights", "kv_blocks", "concurrency"):
        assert row(engine, name).state == "agrees"
    assert row(engine, "weights").off == pytest.approx(0, abs=0.001)
    assert row(engine, "total").printed == 23.58


def test_a_table_of_names_and_values_is_read() -> None:
    # vllm-project/vllm#10511, comment of 2024-12-14.
    text = """\
INFO 12-13 19:54:18 worker.py:243] Memory profiling results:
INFO 12-13 19:54:18 worker.py:243] duration     0.75 seconds
INFO 12-13 19:54:18 worker.py:243] total_gpu_memory     79.22GiB
INFO 12-13 19:54:18 worker.py:243] gpu_memory_utilization       0.90
INFO 12-13 19:54:18 worker.py:243] the current vLLM instance can use    71.29GiB
INFO 12-13 19:54:18 worker.py:243] model weights take   14.96GiB
INFO 12-13 19:54:18 worker.py:243] non_torch_memory     1.79GiB
INFO 12-13 19:54:18 worker.py:243] PyTorch activation peak memory       1.26GiB
INFO 12-13 19:54:18 worker.py:243] available_kv_cache_memory    53.29GiB
"""
    (log,) = parse(text.splitlines(), "a.log")
    # total x utilization is 71.298: printed cut, not rounded, and still the same figure.
    printed = {figure.name: figure.high for figure in log.figures}
    assert printed["weights"] == 14.96
    assert printed["kv"] == 53.29
    assert {"total", "requested", "utilization", "non_torch", "peak_activation"} <= set(printed)


def test_four_ranks_that_print_in_turns_are_one_engine() -> None:
    # vllm-project/vllm#14447: 0.8, four workers, 23.58 GiB x 0.99.
    lines = [
        f"(VllmWorkerProcess pid={pid}) INFO 04-12 08:21:19 [worker.py:267] {words}"
        for words in (
            "the current vLLM instance can use total_gpu_memory (23.58GiB) x "
            "gpu_memory_utilization (0.99) = 23.35GiB",
            "model weights take 21.21GiB; non_torch_memory takes 0.20GiB; PyTorch activation peak "
            "memory takes 0.37GiB; the rest of the memory reserved for KV Cache is 1.57GiB.",
        )
        for pid in (493, 507, 521, 577)
    ]
    (log,) = parse(lines, "a.log")
    assert log.conflicts == ()
    kv = log.seen("kv")
    assert kv is not None and (kv.high, kv.confirmed, len(kv.lines)) == (1.57, True, 4)


SGLANG_R1 = """\
[2026-07-01 15:19:00] server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-R1', tp_size=8, \
dp_size=1, mem_fraction_static=0.82, kv_cache_dtype='auto', chunked_prefill_size=32768, \
max_running_requests=512, page_size=1)
[2026-07-01 15:19:00] sglang 0.5.12
[2026-07-01 15:19:10 TP0] Load weight begin. avail mem=138.02 GB
[2026-07-01 15:19:50 TP0] Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, \
avail mem=58.21 GB, mem usage=79.80 GB.
[2026-07-01 15:19:55 TP0] KV Cache is allocated. #tokens: 509157, KV size: 33.32 GB
[2026-07-01 15:19:55 TP0] Memory pool end. avail mem=24.54 GB
[2026-07-01 15:20:10 TP0] Capture cuda graph end. Time elapsed: 5.37 s. mem usage=1.85 GB. \
avail mem=19.56 GB.
[2026-07-01 15:20:11 TP0] max_total_num_tokens=509157, chunked_prefill_size=32768
[2026-07-01 15:20:12] The server is fired up and ready to roll!
"""


def test_sglang_takes_its_fraction_of_what_was_free_before_loading() -> None:
    engine = of(SGLANG_R1, "deepseek-ai/DeepSeek-R1", "H200")
    assert engine.version == "0.5.12"
    assert engine.not_predicted == ()
    # 138.02 x 0.82 - 79.80 = 33.38 GiB, and 61 x 576 x 2 bytes a token on every rank.
    assert row(engine, "kv").predicted == pytest.approx(138.02 * 0.82 - 79.80, abs=0.001)
    assert row(engine, "kv_tokens").predicted == pytest.approx(509157, rel=0.001)
    assert [row(engine, name).state for name in ("weights", "kv", "kv_tokens")] == ["agrees"] * 3
    assert row(engine, "concurrency").state == "not printed"


def test_sglang_prints_keys_and_values_apart() -> None:
    # vllm-project/vllm#21348: Qwen3-235B-A22B-FP8 on four H100.
    text = SGLANG_R1.replace("deepseek-ai/DeepSeek-R1", "Qwen/Qwen3-235B-A22B-FP8")
    text = text.replace("tp_size=8", "tp_size=4").replace("509157", "367404")
    text = text.replace("KV size: 33.32 GB", "K size: 8.23 GB, V size: 8.23 GB")
    engine = of(text, "Qwen/Qwen3-235B-A22B-FP8", "H100 SXM")
    assert row(engine, "kv").printed == 16.46
    assert row(engine, "kv_tokens").off == pytest.approx(0, abs=0.001)


def test_sglang_keeps_the_states_of_a_hybrid_in_slots_of_their_own() -> None:
    # A public note on Qwen3.8-27B-NVFP4 on DGX Spark, SGLang, 360 slots.
    text = """\
[2026-09-01 10:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3.8-27B-FP8', tp_size=1, \
mem_fraction_static=0.7, kv_cache_dtype='fp8_e4m3', mamba_ssm_dtype='float32', page_size=1)
[2026-09-01 10:01:00] Mamba Cache is allocated. max_mamba_cache_size: 360, \
conv_state size: 0.99GB, ssm_state size: 50.77GB
[2026-09-01 10:01:01] KV Cache is allocated. #tokens: 228520, K size: 3.49 GB, V size: 3.49 GB
[2026-09-01 10:01:02] max_total_num_tokens=228520, max_running_requests=72, available_gpu_mem=29.76
"""
    engine = of(text, "Qwen/Qwen3.8-27B-FP8", "GB10")
    assert row(engine, "state_pool").printed == pytest.approx(51.76)
    assert row(engine, "state_pool").off == pytest.approx(0, abs=0.0005)
    assert row(engine, "kv_tokens").off == pytest.approx(0, abs=0.002)
    assert any("version is not stated" in words for words in engine.not_predicted)


def test_a_log_may_be_compressed_cut_off_and_not_utf_8(tmp_path: Path) -> None:
    whole = gpt_oss_log(GPT_OSS_RUNS[0]).encode()
    dirty = tmp_path / "dirty.log"
    dirty.write_bytes(b"\xff\xfe\x00 torn\n" + whole)
    packed = tmp_path / "packed.log.gz"
    # Stored, not deflated, so that the break falls where it is put.
    packed.write_bytes(gzip.compress(whole + b"INFO rest\n" * 20_000, 0)[: len(whole) + 5_000])
    for path in (dirty, packed):
        (engine,) = audit_files([path], GPT_OSS, "H200").engines
        assert row(engine, "kv").state == "agrees"


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("nothing of the kind\n")
    with pytest.raises(PlanError, match="no line that a known engine prints"):
        audit_files([path], None, None)
    missing = tmp_path / "none.log"
    with pytest.raises(PlanError, match="no such file"):
        audit_files([missing], None, None)


def audited_pair(tmp_path: Path, p_tp: int, d_tp: int) -> Audit:
    paths = []
    for side, role, tp in (("p", "kv_producer", p_tp), ("d", "kv_consumer", d_tp)):
        text = vllm_log(
            "Qwen/Qwen3.5-27B",
            "0.32.0",
            tp=tp,
            options=f"{{'kv_transfer_config': KVTransferConfig(kv_connector='NixlConnector', "
            f"kv_role='{role}')}}",
            lines="INFO [gpu_worker.py] Available KV cache memory: 20.0 GiB",
        )
        path = tmp_path / f"{side}.log"
        path.write_text(text)
        paths.append(path)
    return audit_files(paths, "Qwen/Qwen3.5-27B", "H200")


def test_prefill_and_decode_logs_say_whether_they_can_hand_over(tmp_path: Path) -> None:
    (meeting,) = audited_pair(tmp_path, 2, 2).meetings
    assert meeting.can is True
    # Four KV heads on eight ranks are copied, which halves the block.
    (meeting,) = audited_pair(tmp_path, 2, 8).meetings
    assert meeting.can is False
    assert "blocks of" in meeting.words


def test_json_has_every_field_of_every_row() -> None:
    run = GPT_OSS_RUNS[0]
    (log,) = parse(gpt_oss_log(run).splitlines(), "a.log")
    report = audit([log], {GPT_OSS: load_model(GPT_OSS)}, [gpu("H200")])
    tree: Any = json.loads(to_json(report))
    assert set(tree) == {"engines", "meetings"}
    assert set(tree["engines"][0]) == set(EngineAudit.__struct_fields__)
    for figure in tree["engines"][0]["figures"]:
        assert set(figure) == set(Compared.__struct_fields__)
    assert msgspec.json.decode(to_json(report), type=Audit) == report


def test_the_terminal_shows_printed_beside_predicted_and_the_cost_of_graphs() -> None:
    (log,) = parse(gpt_oss_log(GPT_OSS_RUNS[0]).splitlines(), "a.log")
    report = audit([log], {GPT_OSS: load_model(GPT_OSS)}, [gpu("H200")])
    console = Console(width=100, record=True, file=None, quiet=False)
    with console.capture() as shown:
        render_audit(report, console)
    text = shown.get()
    assert "KV tokens" in text and "2,560,976" in text
    assert "state slots" not in text
    assert "0.05 GiB never used" in text


TEXTS = (gpt_oss_log(GPT_OSS_RUNS[0]), SGLANG_R1)


@settings(max_examples=60, deadline=None)
@given(
    which=st.integers(0, len(TEXTS) - 1),
    start=st.integers(0, 4000),
    length=st.integers(0, 4000),
    flips=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=6),
    order=st.randoms(use_true_random=False),
    shuffled=st.booleans(),
)
def test_a_damaged_log_is_audited_without_a_confirmed_lie(
    which: int,
    start: int,
    length: int,
    flips: list[tuple[int, int]],
    order: Any,
    shuffled: bool,
) -> None:
    truth = {
        figure.name: (figure.low, figure.high)
        for log in parse(TEXTS[which].splitlines(), "a.log")
        for figure in log.figures
    }
    damaged = bytearray(TEXTS[which].encode()[start : start + length] or b"\n")
    for place, value in flips:
        damaged[place % len(damaged)] = value
    lines = damaged.decode(errors="replace").splitlines()
    if shuffled:
        order.shuffle(lines)
    logs = parse(lines, "damaged.log")
    models = {log.settings.model or "": load_model(GPT_OSS) for log in logs}
    for engine in audit(logs, models, [gpu("H200") for _ in logs]).engines:
        for figure in engine.figures:
            if figure.confirmed and figure.printed is not None:
                low, high = truth[figure.name]
                assert low * 0.99 - 0.01 <= figure.printed <= high * 1.01 + 0.01
