"""A stand-in for `vllm` and `vllm-router`: it prints as vLLM 0.32 does and answers on loopback.

STAND_IN_<port> says how it behaves there: `die` with a fault as an engine's core tells it, `hang`
without ever answering, `wrong` tokens after a handoff; else it serves.
"""

import os
import sys
import time
from http.server import ThreadingHTTPServer

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


def main() -> None:
    """Serve at --host and --port, die or hang."""
    said = dict(zip(sys.argv, sys.argv[1:], strict=False))
    behaviour = os.environ.get(f"STAND_IN_{said['--port']}", "serve")
    print(STARTS, flush=True)
    if behaviour == "die":
        print(FAULT, flush=True)
        sys.exit(1)
    if behaviour == "hang":
        time.sleep(600)
    print(READY, flush=True)
    handler = type("Own", (Handler,), {"behaviour": Behaviour(corrupt=behaviour == "wrong")})
    ThreadingHTTPServer((said["--host"], int(said["--port"])), handler).serve_forever()


if __name__ == "__main__":
    main()
