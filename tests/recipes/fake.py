"""A small engine on loopback that answers like `vllm serve`, or like an SGLang server: its tokens
follow from its prompt."""

import itertools
import json
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SEEDS = itertools.count()


class Behaviour:
    """`noise`: share of prompts that come out differently at random; `corrupt`: what arrives by a
    handoff is wrong; `block`: tokens of a block as told in /metrics; `role` of an SGLang server."""

    def __init__(
        self, noise: float = 0.0, corrupt: bool = False, block: int = 16, role: str = "null"
    ) -> None:
        self.noise, self.corrupt, self.block, self.role = noise, corrupt, block, role
        self.flushed = 0
        self.rooms: list[tuple[str, int, int]] = []
        self.draw = random.Random(next(SEEDS))
        self.handed = 0


def tokens(prompt: list[int], count: int, salt: object = "") -> list[int]:
    """The greedy tokens of a prompt."""
    draw = random.Random(f"{prompt}{salt}")
    return [draw.randrange(5000) for _ in range(count)]


def greedy(prompt: list[int], count: int) -> list[int]:
    """The tokens of a prompt, each of which follows from all before it."""
    ids = list(prompt)
    for _ in range(count):
        ids += tokens(ids, 1)
    return ids[len(prompt) :]


class Handler(BaseHTTPRequestHandler):
    """/health, /metrics, /v1/models and /v1/completions."""

    behaviour = Behaviour()

    def do_GET(self) -> None:
        """Answer a probe."""
        if self.path == "/metrics":
            self._reply(
                f'vllm:cache_config_info{{block_size="{self.behaviour.block}",engine="0",'
                'num_gpu_blocks="1000"} 1.0\n'
            )
        elif self.path == "/server_info":
            block = self.behaviour.block
            self._reply(json.dumps({"page_size": block, "max_total_num_tokens": 1000 * block}))
        elif self.path == "/flush_cache":
            self.behaviour.flushed += 1
            self._reply("")
        elif self.path == "/v1/models":
            self._reply(json.dumps({"data": [{"id": "m", "max_model_len": 4096}]}))
        else:
            self._reply("")

    def do_POST(self) -> None:
        """Answer a completion, alone or as one side of a handoff."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/generate":
            self._generate(body)
            return
        params = body.get("kv_transfer_params") or {}
        at = self.behaviour
        salt: object = ""
        if at.draw.random() < at.noise or (at.corrupt and params.get("do_remote_prefill")):
            salt = at.draw.random()
        answer: dict[str, Any] = {
            "choices": [{"token_ids": tokens(body["prompt"], body["max_tokens"], salt)}]
        }
        if params.get("do_remote_decode"):
            answer["kv_transfer_params"] = {"do_remote_prefill": True, "remote_block_ids": [[1]]}
        at.handed += bool(params.get("do_remote_prefill"))
        self._reply(json.dumps(answer))

    def _generate(self, body: dict[str, Any]) -> None:
        """As SGLang: a side of a split serves nothing without a place to meet the other."""
        at, prompt = self.behaviour, body["input_ids"]
        count = body["sampling_params"]["max_new_tokens"]
        host = body.get("bootstrap_host")
        if (at.role == "null") == bool(host):
            self.send_error(400, "bootstrap room id")
            return
        if host and host != "2.2.2.2":
            at.rooms.append((host, body["bootstrap_port"], body["bootstrap_room"]))
        out = greedy(prompt, 1 if at.role == "prefill" else count)
        # The first token comes from the prefill side, so a wrong cache shows from the second on.
        wrong = at.corrupt and at.role == "decode"
        if wrong or at.draw.random() < at.noise:
            out = [out[0] if wrong else at.draw.randrange(5000)] + [
                at.draw.randrange(5000) for _ in out[1:]
            ]
        self._reply(json.dumps({"output_ids": out}))

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _reply(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())


@contextmanager
def engine(behaviour: Behaviour) -> Iterator[str]:
    """The address of an engine that runs inside the block."""
    handler = type("Own", (Handler,), {"behaviour": behaviour})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def main() -> None:
    """Serve at --host and --port, as a program of its own."""
    said = dict(zip(sys.argv, sys.argv[1:], strict=False))
    ThreadingHTTPServer((said["--host"], int(said["--port"])), Handler).serve_forever()


if __name__ == "__main__":
    main()
