"""Do the instances of this recipe give the tokens that one instance alone gives?

Copied into every recipe as check.py; it needs Python 3.10 and nothing else. Numerics make equal
prompts differ now and then (another batch, another kernel), so the pair is held against a noise
floor: the same number of prompts served twice without a handoff. Fisher's exact test, one-sided,
tells whether the handoff differs more often than that.
Exit code: 0 within the noise, 1 wrong tokens, 2 no answer, 3 too noisy to judge.
"""

import argparse
import json
import math
import random
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

# One false alarm in a thousand checks; 23 of 24 against 12 of 24 is still seen.
ALPHA = 0.001
FLOOR_LIMIT = 0.5
OUTPUT_TOKENS = 16
SHORTEST = 5
# Ids that every vocabulary in use has, past the special ones at its start.
TOKEN_IDS = (100, 2000)
TIMEOUT = 600.0
FLUSH_TRIES = 50
FLUSH_PAUSE_S = 0.1


class Instance(NamedTuple):
    """A serving process: its name in this recipe, where it answers, what it says of its KV pool,
    and the port at which an SGLang prefill instance meets decode."""

    name: str
    url: str
    block_tokens: int | None
    kv_blocks: int | None
    bootstrap_port: int = 0


class Result(NamedTuple):
    """Prompts whose tokens differ, anywhere and from the first token on, out of `prompts`."""

    prompts: int
    differ: int
    first: int


def main(arguments: list[str] | None = None) -> int:
    """Check every pair, print one line each, and return the exit code."""
    options = _options(arguments)
    roles = {"prefill": options.prefill, "decode": options.decode, "mixed": options.mixed}
    ports = dict(zip(options.prefill, options.bootstrap_port, strict=False))
    engine: Engine = Sglang() if options.engine == "sglang" else Vllm(options.model)
    try:
        instances = {
            role: [
                engine.instance(f"{role}-{number}", url)._replace(bootstrap_port=ports.get(url, 0))
                for number, url in enumerate(urls)
            ]
            for role, urls in roles.items()
        }
        everyone = [instance for group in instances.values() for instance in group]
        if not everyone:
            print("nothing to check: name instances with --prefill, --decode or --mixed")
            return 2
        compare_pools(everyone, options.kv_blocks)
        if len({i.block_tokens for i in everyone if i.block_tokens}) > 1:
            sizes = ", ".join(f"{i.name} {i.block_tokens}" for i in everyone)
            print(f"WRONG: block tokens differ ({sizes}); a handoff would mix up tokens")
            return 1
        codes = list(_checks(options, engine, instances))
    except (OSError, ValueError, KeyError) as error:
        print(f"no answer: {error}")
        return 2
    return 1 if 1 in codes else max(codes, default=0)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="served model name")
    for role in ("prefill", "decode", "mixed"):
        parser.add_argument(f"--{role}", action="append", default=[], metavar="URL")
    parser.add_argument("--router", metavar="URL")
    parser.add_argument("--engine", choices=("vllm", "sglang"), default="vllm")
    parser.add_argument(
        "--bootstrap-port",
        type=int,
        action="append",
        default=[],
        help="of each prefill instance, in their order (SGLang)",
    )
    parser.add_argument(
        "--kv-blocks",
        action="append",
        default=[],
        metavar="NAME=BLOCKS",
        help="KV blocks of one rank as predicted",
    )
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def _checks(
    options: argparse.Namespace, engine: "Engine", groups: dict[str, list[Instance]]
) -> Iterable[int]:
    everyone = [instance for group in groups.values() for instance in group]
    block = next((i.block_tokens for i in everyone if i.block_tokens), 16)
    longest = min(_max_len(instance.url) for instance in everyone) - OUTPUT_TOKENS

    def fresh(*names: object) -> list[list[int]]:
        return prompts_for(options.prompts, block, longest, f"{options.seed} {names}")

    for prefill in groups["prefill"]:
        for decode in groups["decode"]:
            floor = compare(
                fresh("floor", prefill.name, decode.name),
                lambda p, at=prefill: engine.alone(at, p),
                lambda p, a=prefill, b=decode: engine.again(a, b, p),
            )
            pair = compare(
                fresh("pair", prefill.name, decode.name),
                lambda p, at=prefill: engine.alone(at, p),
                lambda p, a=prefill, b=decode: engine.hand_over(a, b, p),
            )
            yield judge(f"{prefill.name} -> {decode.name}", pair, floor)
    reference = (groups["prefill"] or groups["mixed"])[0]
    others = [(i.name, i.url) for i in groups["mixed"][1:]]
    others += [("router", options.router)] if options.router else []
    if not others:
        if len(everyone) == 1:
            print(f"nothing to compare: {reference.name} is alone")
        return
    floor = compare(
        fresh("floor", reference.name),
        lambda p: engine.alone(reference, p),
        lambda p: engine.again(reference, reference, p),
    )
    for name, url in others:
        pair = compare(
            fresh("pair", name),
            lambda p: engine.alone(reference, p),
            lambda p, at=url: engine.complete(at, p),
        )
        yield judge(f"{reference.name} alone, {name}", pair, floor)


def compare_pools(instances: list[Instance], predicted: list[str]) -> None:
    """Print the KV blocks that each instance reports beside the predicted ones."""
    expected = dict(entry.rsplit("=", 1) for entry in predicted)
    for instance in instances:
        blocks, wanted = instance.kv_blocks, expected.get(instance.name)
        if blocks is None:
            print(f"{instance.name}: reports no KV pool")
        elif wanted is None or int(wanted) == 0:
            print(f"{instance.name}: {blocks:,} KV blocks of {instance.block_tokens} tokens")
        else:
            off = 100 * (blocks / int(wanted) - 1)
            print(
                f"{instance.name}: {blocks:,} KV blocks of {instance.block_tokens} tokens, "
                f"predicted {int(wanted):,} ({off:+.1f}%)"
            )


def judge(name: str, pair: Result, floor: Result) -> int:
    """Print and return the finding: 0 within the noise, 1 wrong, 3 too noisy to say."""
    chance = min(
        exceeds(pair.differ, pair.prompts, floor.differ, floor.prompts),
        exceeds(pair.first, pair.prompts, floor.first, floor.prompts),
    )
    counts = (
        f"{pair.differ} of {pair.prompts} prompts differ, {pair.first} from the first token; "
        f"noise floor {floor.differ} and {floor.first} of {floor.prompts}"
    )
    if chance < ALPHA:
        print(f"{name}: WRONG: {counts} (chance {chance:.1e})")
        return 1
    if floor.differ > FLOOR_LIMIT * floor.prompts and pair.differ:
        print(f"{name}: TOO NOISY to judge: {counts}; serve with float32 or more prompts")
        return 3
    print(f"{name}: equal within the noise: {counts}")
    return 0


def exceeds(hits: int, tries: int, floor_hits: int, floor_tries: int) -> float:
    """Chance of `hits` or more of all differences falling to the first group, both groups alike:
    the upper tail of the hypergeometric distribution."""
    total, marked = tries + floor_tries, hits + floor_hits
    ways = sum(
        math.comb(tries, k) * math.comb(floor_tries, marked - k)
        for k in range(hits, min(tries, marked) + 1)
    )
    return ways / math.comb(total, marked)


def compare(prompts: list[list[int]], one: Any, other: Any) -> Result:
    """Serve each prompt both ways, one at a time, and count the differences."""
    pairs = [(one(prompt), other(prompt)) for prompt in prompts]
    return Result(
        prompts=len(pairs),
        differ=sum(a != b for a, b in pairs),
        first=sum(a[:1] != b[:1] for a, b in pairs),
    )


def prompts_for(count: int, block: int, longest: int, seed: str) -> list[list[int]]:
    """Random token ids of lengths on, beside and between block boundaries."""
    near = (
        SHORTEST,
        block - 1,
        block,
        block + 1,
        block + block // 2,
        2 * block,
        2 * block + 1,
        3 * block + 7,
    )
    lengths = sorted({min(max(n, SHORTEST), longest) for n in near})
    draw = random.Random(seed)
    return [
        [draw.randrange(*TOKEN_IDS) for _ in range(lengths[index % len(lengths)])]
        for index in range(count)
    ]


class Engine(Protocol):
    """How an engine is asked for the greedy tokens of a prompt of token ids."""

    def instance(self, name: str, url: str) -> Instance:
        """What the process at this address says of itself."""

    def complete(self, url: str, prompt: list[int]) -> list[int]:
        """By the router, or by an instance that serves whole requests."""

    def alone(self, at: Instance, prompt: list[int]) -> list[int]:
        """By one instance without a handoff."""

    def again(self, at: Instance, other: Instance, prompt: list[int]) -> list[int]:
        """Without a handoff another time, by other kernels or another process where possible."""

    def hand_over(self, prefill: Instance, decode: Instance, prompt: list[int]) -> list[int]:
        """By a pair, as the router asks it."""


class Vllm:
    """vLLM: every instance serves whole requests; the router asks prefill first, then decode."""

    def __init__(self, model: str) -> None:
        self.model = model

    def instance(self, name: str, url: str) -> Instance:
        line = re.search(r"^vllm:cache_config_info\{(.*)\}", _get(f"{url}/metrics"), re.MULTILINE)
        labels = dict(re.findall(r'(\w+)="([^"]*)"', line[1])) if line else {}
        return Instance(
            name=name,
            url=url,
            block_tokens=_number(labels.get("block_size")),
            kv_blocks=_number(labels.get("num_gpu_blocks")),
        )

    def complete(self, url: str, prompt: list[int]) -> list[int]:
        return self._tokens(self._post(url, self._body(prompt, OUTPUT_TOKENS)))

    def alone(self, at: Instance, prompt: list[int]) -> list[int]:
        return self.complete(at.url, prompt)

    def again(self, at: Instance, other: Instance, prompt: list[int]) -> list[int]:
        return self.complete(other.url, prompt)

    def hand_over(self, prefill: Instance, decode: Instance, prompt: list[int]) -> list[int]:
        request = {"X-Request-Id": str(uuid.uuid4())}
        params = {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        }
        first = self._body(prompt, 1) | {"kv_transfer_params": params}
        handed = self._post(prefill.url, first, request)["kv_transfer_params"]
        if not handed:
            raise ValueError(f"{prefill.url} handed nothing over: is it a kv_producer?")
        second = self._body(prompt, OUTPUT_TOKENS) | {"kv_transfer_params": handed}
        return self._tokens(self._post(decode.url, second, request))

    def _post(
        self, url: str, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        return _post(f"{url}/v1/completions", body, headers)

    def _body(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "min_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }

    def _tokens(self, answer: dict[str, Any]) -> list[int]:
        return list(answer["choices"][0]["token_ids"])


class Sglang:
    """SGLang: the router asks both sides at once, and no side of a split serves alone.

    So a prefill instance's own tokens are prefilled one by one, each behind the ones before it: a
    transfer to this host is taken as done (srt/disaggregation/utils.py, FAKE_BOOTSTRAP_HOST of
    0.5.10 to 0.5.23, which the servers' own warm-up uses). Its second time is without what the
    prefix cache kept of the first.
    """

    NOWHERE = "2.2.2.2"

    def instance(self, name: str, url: str) -> Instance:
        said = json.loads(_get(f"{url}/server_info"))
        block, tokens = said.get("page_size"), said.get("max_total_num_tokens")
        blocks = tokens // block if block and tokens else None
        return Instance(name=name, url=url, block_tokens=block, kv_blocks=blocks)

    def complete(self, url: str, prompt: list[int]) -> list[int]:
        return self._ask(url, prompt, OUTPUT_TOKENS)

    def alone(self, at: Instance, prompt: list[int]) -> list[int]:
        if not at.bootstrap_port:
            return self.complete(at.url, prompt)
        return self._prefilled(at, prompt, flush=False)

    def again(self, at: Instance, other: Instance, prompt: list[int]) -> list[int]:
        if not at.bootstrap_port:
            self._flush(at)
            return self.complete(at.url, prompt)
        return self._prefilled(at, prompt, flush=True)

    def hand_over(self, prefill: Instance, decode: Instance, prompt: list[int]) -> list[int]:
        meeting = {
            "bootstrap_host": urllib.parse.urlsplit(prefill.url).hostname,
            "bootstrap_port": prefill.bootstrap_port,
            "bootstrap_room": _room(),
        }
        with ThreadPoolExecutor(2) as both:
            sent = both.submit(self._ask, prefill.url, prompt, OUTPUT_TOKENS, meeting)
            tokens = both.submit(self._ask, decode.url, prompt, OUTPUT_TOKENS, meeting).result()
            sent.result()
        return tokens

    def _prefilled(self, at: Instance, prompt: list[int], *, flush: bool) -> list[int]:
        tokens: list[int] = []
        # The data-parallel rank follows from the room.
        meeting = {"bootstrap_host": self.NOWHERE, "bootstrap_room": _room()}
        for step in range(OUTPUT_TOKENS):
            if flush:
                self._flush(at)
            tokens += self._ask(at.url, prompt + tokens, 1, meeting)[:1]
            if len(tokens) <= step:
                raise ValueError(f"{at.url} prefilled {len(prompt)} tokens and gave none")
        return tokens

    def _flush(self, at: Instance) -> None:
        """Refused while the last request is being put away, after its answer."""
        for _ in range(FLUSH_TRIES):
            try:
                _get(f"{at.url}/flush_cache")
                return
            except urllib.error.HTTPError:
                time.sleep(FLUSH_PAUSE_S)
        raise ValueError(f"{at.url} does not flush its cache: is it idle?")

    def _ask(
        self, url: str, prompt: list[int], tokens: int, meeting: dict[str, Any] | None = None
    ) -> list[int]:
        sampling = {
            "max_new_tokens": tokens,
            "min_new_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        body = {"input_ids": prompt, "sampling_params": sampling} | (meeting or {})
        return list(_post(f"{url}/generate", body)["output_ids"])


def _room() -> int:
    """A number by which the two sides of a handoff find each other."""
    return random.SystemRandom().randrange(2**63)


def _post(url: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> dict[str, Any]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"} | (headers or {})
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as error:
        raise ValueError(f"{url} answers {error.code}: {error.read(300)!r}") from error


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
        text: bytes = answer.read()
    return text.decode()


def _max_len(url: str) -> int:
    models = json.loads(_get(f"{url}/v1/models"))["data"]
    return int(models[0]["max_model_len"])


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


if __name__ == "__main__":
    sys.exit(main())
