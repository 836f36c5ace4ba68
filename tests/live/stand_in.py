"""A stand-in for `vllm`, `vllm-router` and the modules of SGLang: it prints as vLLM 0.32 or SGLang
0.5.23 do and answers on loopback.

STAND_IN_<port> says how it behaves there: `die` with a fault as an engine's core tells it, `hang`
without ever answering, `wrong` tokens after a handoff; else it serves.
"""

import json
import os
import sys
import time
from http.server import ThreadingHTTPServer
from pathlib import Path

import numpy as np

from splitpoint.measurement import measured_run, outcome_number
from splitpoint.run import DONE
from tests.live import exports
from tests.recipes.fake import Behaviour, Handler

STARTS = """\
(APIServer pid=7) INFO 11-30 11:34:15 [api_utils.py:347]   █▄█▀ █     █     █     █  model   m
(EngineCore pid=8) INFO 11-30 11:34:20 [core.py:107] Initializing a V1 LLM engine (v0.32.0) with \
config: model='m', max_seq_len=4096
(EngineCore pid=8) INFO 11-30 11:34:21 [gpu_model_runner.py:5080] Starting to load model m...
"""
FAULT = """\
(EngineCore pid=8) ERROR 11-30 11:34:29 [core.py:1104] EngineCore failed to start.
(EngineCore pid=8) ERROR 11-30 11:34:29 [core.py:1104] Traceback (most recent call last):
(EngineCore pid=8) ERROR 11-30 11:34:29 [core.py:1104] ValueError: the weights are of another shape
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
/lib/resource_tracker.py:254: UserWarning: leaked shared_memory objects to clean up at shutdown
"""
READY = """\
(EngineCore pid=8) INFO 11-30 11:34:25 [gpu_model_runner.py:5150] Model loading took 1.50 GiB \
memory and 0.41 seconds
(EngineCore pid=8) INFO 11-30 11:34:30 [kv_cache_utils.py:2327] GPU KV cache size: 16,000 tokens, \
Maximum concurrency for 4,096 tokens per request: 3.91x
(APIServer pid=7) INFO:     Application startup complete.
"""


SGLANG_STARTS = """\
[2026-11-30 11:34:15] server_args={{'model_path': 'm', 'tp_size': {tp}, 'dp_size': 1, \
'attn_dp_size': 1, 'mem_fraction_static': 0.85, 'page_size': 1, 'disaggregation_mode': '{mode}'}}
[2026-11-30 11:34:21 TP0] Load weight begin. avail mem=138.02 GB
"""
SGLANG_FAULT = """\
[2026-11-30 11:34:29 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/sglang/srt/managers/scheduler.py", line 3300, in run_scheduler_process
ValueError: the weights are of another shape

[2026-11-30 11:34:29] Received sigquit from a child process. It usually means the child failed.
"""
SGLANG_READY = """\
[2026-11-30 11:34:25 TP0] Load weight end. elapsed=3.1 s, type=Qwen3ForCausalLM, \
dtype=torch.bfloat16, avail mem=122.10 GB, mem usage=15.92 GB.
[2026-11-30 11:34:26 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 16000, \
K size: 1.10 GB, V size: 1.10 GB
[2026-11-30 11:34:30 TP0] max_total_num_tokens=16000, chunked_prefill_size=8192
[2026-11-30 11:34:31] The server is fired up and ready to roll!
"""


def main() -> None:
    """Be `vllm serve`, SGLang's server or a router, or `vllm bench serve`."""
    said = dict(zip(sys.argv, sys.argv[1:], strict=False))
    if sys.argv[1] == "bench":
        ask(said)
    else:
        serve(said)


def serve(said: dict[str, str]) -> None:
    """Serve at --host and --port, die or hang."""
    behaviour = os.environ.get(f"STAND_IN_{said['--port']}", "serve")
    sglang = sys.argv[1].startswith("sglang")
    mode = said.get("--disaggregation-mode", "null")
    begin = SGLANG_STARTS.format(tp=said.get("--tp-size"), mode=mode) if sglang else STARTS
    print(begin, flush=True)
    if behaviour == "die":
        print(SGLANG_FAULT if sglang else FAULT, flush=True)
        sys.exit(1)
    if behaviour == "hang":
        time.sleep(600)
    print(SGLANG_READY if sglang else READY, flush=True)
    served = Behaviour(corrupt=behaviour == "wrong", role=mode)
    handler = type("Own", (Handler,), {"behaviour": served})
    ThreadingHTTPServer((said["--host"], int(said["--port"])), handler).serve_forever()


def ask(said: dict[str, str]) -> None:
    """Write a result as if every request had seen TTFT 0.2 s and TPOT 0.01 s; STAND_IN_BENCH says
    which share of them failed, or `die`. What was asked for goes to STAND_IN_SEEN."""
    behaviour = os.environ.get("STAND_IN_BENCH", "0")
    if behaviour == "die":
        print("vllm bench serve: error: argument --dataset-name: invalid choice: 'timed_trace'")
        sys.exit(2)
    count = int(said["--num-prompts"])
    if said["--dataset-name"] == "timed_trace":
        lines = [json.loads(line) for line in Path(said["--dataset-path"]).read_text().splitlines()]
        arrive, isl, osl = (
            np.array([line[name] for line in lines])
            for name in ("timestamp", "input_length", "output_length")
        )
    else:
        lines, arrive = [], np.arange(count) / 10
        isl, osl = (np.full(count, int(said[f"--random-{w}-len"])) for w in ("input", "output"))
    failed = np.arange(count) < float(behaviour) * count
    run = measured_run(
        "stand-in",
        arrive_s=arrive.astype(float),
        first_token_s=np.where(failed, np.nan, arrive + 0.2),
        end_s=np.where(failed, np.nan, arrive + 0.2 + 0.01 * (osl - 1)),
        isl=isl,
        osl=osl,
        outcome=np.where(failed, outcome_number("unfinished"), DONE),
    )
    print(f"Warming up\n  0%|  | 0/{count} [00:00<?]\r100%|##| {count}/{count} [00:01<00:00]")
    if failed.all():
        made = {"completed": 0, "duration": 1.0, "errors": ["Traceback:\nOSError: refused"] * count}
    else:
        made = exports.vllm_bench(run, detailed=True)
    Path(said["--result-dir"], said["--result-filename"]).write_text(json.dumps(made))
    Path(os.environ["STAND_IN_SEEN"]).write_text(json.dumps([sys.argv, lines]))


if __name__ == "__main__":
    main()
