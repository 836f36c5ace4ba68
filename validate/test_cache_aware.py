"""`prefix_approx` beside the real `cache_aware` of vllm-router and sglang-router, placement by
placement: what our run dealt out is asked of the router in the same order, from stand-ins that
answer when the request ended there.

ROUTERS_PYTHON names a Python with `vllm-router` 0.1.17, `sglang-router` 0.3.2 or both.
"""

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from socket import socket
from threading import Event, Thread
from typing import Literal
from urllib.request import Request, urlopen

import numpy as np
import pytest

from splitpoint.inputs.routing import Tree
from splitpoint.inputs.trace import Trace
from splitpoint.pricing.layout import Group
from splitpoint.sim import PoolSpec, World, simulate
from splitpoint.timing.curve import StepCurve

PYTHON = os.environ.get("ROUTERS_PYTHON", "")
ID_TOKENS, WORKERS, COUNT = 16, 3, 240
# Low enough that load alone decides now and then.
APART, TIMES = 3, 1.2
STARTS_S = 20.0


def prompts(seed: int) -> Trace:
    """Conversations that begin with one of six heads and grow; the first prompts are of their own,
    one for each worker, and tell the order in which the router knows them."""
    random = Random(seed)
    heads = [list(range(k * 10**6, k * 10**6 + random.randint(3, 12))) for k in range(1, 7)]
    open_ones: list[list[int]] = []
    ids: list[list[int]] = [[9 * 10**6 + 100 * n + j for j in range(5)] for n in range(WORKERS)]
    arrive, osl, now, fresh = [n / 1000 for n in range(WORKERS)], [60] * WORKERS, 0.1, 1
    for _ in range(COUNT - WORKERS):
        now += random.expovariate(20)
        if open_ones and random.random() < 0.6:
            prompt = random.choice(open_ones[-12:])
        else:
            prompt = list(random.choice(heads))
            open_ones.append(prompt)
        more = random.randint(1, 12)
        prompt += range(fresh, fresh + more)
        fresh += more
        ids.append(list(prompt))
        arrive.append(now)
        osl.append(random.randint(5, 90))
    lengths = [len(prompt) for prompt in ids]
    return Trace(
        name="conversations",
        arrive_s=np.array(arrive),
        isl=np.array(lengths, np.int32) * ID_TOKENS,
        osl=np.array(osl, np.int32),
        session=np.arange(COUNT, dtype=np.int32),
        turn=np.zeros(COUNT, np.int32),
        think_s=np.zeros(COUNT),
        block_starts=np.cumsum([0, *lengths]).astype(np.int64),
        block_ids=np.array([name for prompt in ids for name in prompt], np.int32),
        block_tokens=ID_TOKENS,
        closed=False,
    )


def world(holder: Literal["first", "lightest"]) -> World:
    """Instances that hold everything, steps of 10 ms."""
    step = np.full(2049, 10**10, np.int64)
    step[0] = 0
    pool = PoolSpec(
        role="mixed",
        replicas=WORKERS,
        dp=1,
        kv_blocks=100_001,
        block_tokens=16,
        groups=(Group(kind="full", layers=1),),
        in_flight=0,
        max_seqs=128,
        token_budget=2048,
        prefix_caching=False,
        curve=StepCurve(
            decode=step[:129], decode_context=np.zeros(129, np.int64), mixed=step, prefill_pair=0
        ),
    )
    tree = Tree(balance_abs=APART, balance_rel=TIMES, holder=holder)
    return World(pools=(pool,), routing="prefix_approx", tree=tree)


class Workers:
    """Stand-ins that note who gets which request and hold it until told."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.placed: dict[int, int] = {}
        self.came = [Event() for _ in range(COUNT)]
        self.let_go = [Event() for _ in range(COUNT)]
        self.servers = [self._server() for _ in range(WORKERS)]
        self.ports = [server.server_address[1] for server in self.servers]

    def ids(self, request: int) -> list[int]:
        """The ids of a request's prompt."""
        starts = self.trace.block_starts
        return [int(x) for x in self.trace.block_ids[starts[request] : starts[request + 1]]]

    def _server(self) -> ThreadingHTTPServer:
        workers = self

        class Answer(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                pass

            def answer(self, body: object, status: int = 200) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self) -> None:
                self.answer({"object": "list", "data": [{"id": "m"}], "model_path": "m"})

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
                request = asked.get("max_tokens", 1000) - 1000
                if self.path.endswith("/render"):
                    # vLLM's own tokenizer, which vllm-router asks.
                    tokens = [
                        number(f"{name}.{k}") % 150_000
                        for name in workers.ids(request)
                        for k in range(ID_TOKENS)
                    ]
                    self.answer([{"request_id": "a", "token_ids": tokens, "sampling_params": {}}])
                elif self.path.endswith("/completions"):
                    workers.placed[request] = int(self.connection.getsockname()[1])
                    workers.came[request].set()
                    workers.let_go[request].wait(60)
                    choice = {"index": 0, "text": "a", "finish_reason": "stop"}
                    self.answer({"id": "x", "object": "text_completion", "choices": [choice]})
                else:
                    self.answer({}, 404)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        return server


def number(name: str) -> int:
    """A number that looks like chance, the same for the same name."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)


def text(ids: list[int]) -> str:
    """Four characters a token; ids begin differently, as the router matches characters and where a
    prompt goes on as another does by chance takes that one's worker."""
    return "".join(chr(0x4E00 + x * 7919 % 20_000) + f"{number(str(x)):063d}" for x in ids)


def free_port() -> int:
    """A port nobody listens on."""
    with socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def router(package: str, workers: Workers, log: Path) -> Iterator[str]:
    """The real router before these workers, as its address."""
    port = free_port()
    urls = [f"http://127.0.0.1:{p}" for p in workers.ports]
    command = [PYTHON, "-m", f"{package}.launch_router", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--prometheus-port", str(free_port()), "--disable-retries"]
    command += ["--policy", "cache_aware", "--balance-abs-threshold", str(APART)]
    command += ["--balance-rel-threshold", str(TIMES), "--worker-urls", *urls]
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + STARTS_S
            while time.monotonic() < deadline:
                try:
                    with urlopen(f"{address}/health", timeout=1):
                        break
                except OSError:
                    time.sleep(0.2)
            # It is healthy before it has asked its workers what they serve.
            time.sleep(3)
            yield address
        finally:
            process.terminate()


def ask(address: str, request: int, prompt: str, ended: Event) -> None:
    """Send a request, whose number its limit of tokens tells, and wait for the answer."""
    body = {"model": "m", "prompt": prompt, "max_tokens": 1000 + request}
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"{address}/v1/completions", json.dumps(body).encode(), headers)) as told:
        told.read()
    ended.set()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("package", "holder"), [("vllm_router", "lightest"), ("sglang_router", "first")]
)
def test_every_prompt_goes_where_the_real_router_sends_it(
    package: str, holder: Literal["first", "lightest"], seed: int, tmp_path: Path
) -> None:
    present = [PYTHON, "-c", f"import {package}.launch_router"]
    if not PYTHON or subprocess.run(present, capture_output=True, check=False).returncode:
        pytest.skip(f"ROUTERS_PYTHON names no Python with {package}")
    trace = prompts(seed)
    ours = simulate(world(holder), trace).requests
    workers = Workers(trace)
    ended = [Event() for _ in range(COUNT)]
    moments = [(float(ours.arrive_s[n]), 1, n) for n in range(COUNT)]
    moments += [(float(ours.end_s[n]), 0, n) for n in range(COUNT)]
    with router(package, workers, tmp_path / "log") as address:
        for _, arrives, n in sorted(moments):
            if arrives:
                told = (address, n, text(workers.ids(n)), ended[n])
                Thread(target=ask, args=told, daemon=True).start()
                assert workers.came[n].wait(10)
            else:
                workers.let_go[n].set()
                assert ended[n].wait(10)
                # Its count of requests falls after the answer.
                time.sleep(0.005)
    order = list(dict.fromkeys(workers.placed[n] for n in range(WORKERS)))
    theirs = [order.index(workers.placed[n]) for n in range(COUNT)]
    assert theirs == [int(place) for place in ours.prefill_instance]
