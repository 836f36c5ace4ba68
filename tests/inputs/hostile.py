"""Hostile files: honest ones of every kind, changed until they are not.

Whatever a reader is given, it answers with a result or a PlanError, within 2 GiB of memory.
"""

import gzip
import itertools
import json
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Topology, problems
from splitpoint.inputs.huggingface import load_model
from splitpoint.inputs.huggingface.sources import entries
from splitpoint.inputs.plan import read_plan_or_deployment
from splitpoint.inputs.traces import read as read_trace

LIMIT = 2 * 1024**3

PLANS: list[dict[str, Any]] = [
    {
        "model": "Qwen/Qwen3-30B-A3B",
        "gpu": "H20",
        "gpus": 8,
        "workload": {"trace": "t.jsonl", "format": "mooncake", "scale": 2.0, "seed": 1},
        "slo": {"ttft_s": 5.0, "tpot_s": 0.05, "percentile": 90},
        "engine": {"utilization": 0.9, "drafts": [0, 3], "acceptance": [0.9, 0.8, 0.7]},
        "search": {"roles": ["mixed", "split"], "tp": [1, 2], "ep": [1, "all"]},
    },
    {
        "model": "m",
        "gpu": {
            "name": "mine",
            "architecture": "hopper",
            "hbm_gib": 95.0,
            "marketed_gb": 96,
            "bandwidth": 4e12,
            "flops": {"bf16": 148e12, "fp8": 296e12},
            "gpus_per_node": 8,
            "domain": 8,
            "inside": {"kind": "nvswitch", "bandwidth": 450e9, "latency": 2e-6},
            "outside": {"kind": "ib", "bandwidth": 50e9, "latency": 4e-6},
        },
        "gpus": 48,
        "workload": {"isl": {"mean": 900, "cv": 1.5, "high": 4000}, "osl": 200, "rate": [1, 2.5]},
        "slo": {"ttft_s": 1, "tpot_s": 0.1},
    },
    {
        "model": "m",
        "gpu": "GB300",
        "pools": [
            {"role": "prefill", "tp": 4, "replicas": 3},
            {"role": "decode", "tp": 2, "dp": 4, "ep": "all", "engine": {"drafts": 3}},
        ],
        "workload": {"preset": "chat", "concurrency": [1, 64]},
    },
]

CONFIGS: list[dict[str, Any]] = [entry.config for entry in entries()]

MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 20, "hash_ids": [1, 2, 3]},
    {"timestamp": 900, "input_length": 1500, "output_length": 30, "hash_ids": [1, 2, 4]},
    {"timestamp": 900, "input_length": 7, "output_length": 1, "hash_ids": [9]},
]
BAILIAN = [
    {
        "chat_id": i,
        "parent_chat_id": i - 1 if i else -1,
        "timestamp": 3.5 * i,
        "input_length": 20 + 16 * i,
        "output_length": 9,
        "type": "text",
        "turn": i + 1,
        "hash_ids": list(range(2 + i)),
    }
    for i in range(3)
]
WEKA = [
    {
        "id": f"s{i}",
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": [
            {"t": 0.0, "type": "n", "in": 130, "out": 9, "hash_ids": [0, 1], "api_time": 1.5},
            {"t": 4.0, "type": "n", "in": 200, "out": 5, "hash_ids": [0, 1, 2], "api_time": 0.5},
        ],
    }
    for i in range(2)
]
TABLES = [
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n",
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,a,1.5,ChatGPT,472,18,490,Conversation log\n45,a,2.5,GPT-4,1087,230,1317,API log\n",
    "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,100,20\n0.5,200,30\n",
]
FORMATS = [None, "mooncake", "azure", "burstgpt", "bailian", "weka", "vidur", "csv"]

SCALARS: SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 1, 2, 3, 7, 100, 2**24, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63]),
    st.sampled_from([10**18, -(10**18), 10**30, 10**400]),
    st.floats(),
    st.sampled_from([1e308, 5e-324, 1e-300, -0.0, 0.5, 1e18, 3.0, float("nan"), float("inf")]),
    st.text(max_size=8),
    st.sampled_from(["", " ", "auto", "bf16", "1", "null", "\0", "\x1b[2J", "\ud800", "a" * 5000]),
)
TREES: SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=4,
)
SETS = st.one_of(
    st.text(max_size=12),
    st.builds(
        "{}={}".format,
        st.sampled_from(["gpus", "slo.ttft_s", "engine.drafts", "pools.0.tp", "workload.seed"]),
        st.one_of(st.text(max_size=8), st.floats(), st.integers()),
    ),
)
DEEP = st.sampled_from([1, 3, 60, 70, 150])


class Case(NamedTuple):
    """A hostile file: its name, its bytes, and `--set` options or a format to read it with."""

    name: str
    data: bytes
    option: Any = None


def survives(reader: Callable[[], object]) -> bool:
    """Whether the reader gave a result; a PlanError in one readable line is the other way."""
    try:
        reader()
    except PlanError as error:
        text = str(error)
        assert text.strip() and "\n" not in text and "\r" not in text
        assert len(text) < 8000, text[:300]
        text.encode()
        return False
    return True


def run_plan(folder: Path, case: Case) -> bool:
    """Read the case as a plan or deployment file."""
    path = folder / case.name
    path.write_bytes(case.data)
    return survives(lambda: read_plan_or_deployment(path, case.option or ()))


def run_config(folder: Path, case: Case) -> bool:
    """Read the case as a config.json; a model that comes of it can be judged."""
    path = folder / case.name
    path.write_bytes(case.data)
    return survives(lambda: problems(Topology(tp=8), load_model(str(path), offline=True)))


def run_trace(folder: Path, case: Case) -> bool:
    """Read the case as a trace."""
    path = folder / case.name
    path.write_bytes(case.data)
    return survives(lambda: len(read_trace(path, case.option)))


@contextmanager
def bounded() -> Iterator[None]:
    """Let the process grow by no more than 2 GiB (Linux): past it there is a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + LIMIT, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@st.composite
def plans(draw: st.DrawFn) -> Case:
    """A plan or deployment file in any of the three formats, with options to set."""
    tree = changed(draw, draw(st.sampled_from(PLANS)))
    suffix = draw(st.sampled_from(["toml", "yaml", "json"]))
    writers: dict[str, Callable[[Any], str]]
    writers = {"toml": as_toml, "yaml": as_yaml, "json": json.dumps}
    text = writers[suffix](tree)
    sets = (draw(SETS),) if draw(st.integers(0, 4)) == 0 else ()
    return packed(draw, f"plan.{suffix}", text, sets)


@st.composite
def configs(draw: st.DrawFn) -> Case:
    """A config.json of any family of the catalogue."""
    tree = changed(draw, draw(st.sampled_from(CONFIGS)))
    return packed(draw, "config.json", json.dumps(tree))


@st.composite
def traces(draw: st.DrawFn) -> Case:
    """A trace of any format, read as what it is or as another."""
    form = draw(st.sampled_from([None, None, None, *FORMATS]))
    if draw(st.integers(0, 2)) == 0:
        cells = [line.split(",") for line in draw(st.sampled_from(TABLES)).splitlines()]
        for _ in range(draw(st.integers(0, 2))):
            row = draw(st.sampled_from(cells))
            row[draw(st.integers(0, len(row) - 1))] = str(draw(SCALARS))
        text = "".join(",".join(row) + "\n" for row in cells)
        return packed(draw, "trace.csv", text, form)
    rows = draw(st.sampled_from([MOONCAKE, BAILIAN, WEKA]))
    text = "".join(json.dumps(changed(draw, row, most=1)) + "\n" for row in rows)
    return packed(draw, "trace.jsonl", text, form)


def changed(draw: st.DrawFn, tree: Any, most: int = 2) -> Any:
    """The tree with a few of its values replaced, removed, doubled or wrapped."""
    tree = json.loads(json.dumps(tree))
    for _ in range(draw(st.integers(0, most))):
        holder, key = draw(st.sampled_from(list(places(tree))))
        match draw(st.sampled_from(["replace", "replace", "replace", "remove", "add", "wrap"])):
            case "replace":
                holder[key] = draw(TREES)
            case "remove":
                del holder[key]
            case "add" if isinstance(holder, dict):
                holder[draw(st.text(max_size=9))] = draw(TREES)
            case _:
                for _ in range(draw(DEEP)):
                    holder[key] = [holder[key]]
        if not tree:
            return tree
    return tree


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every (holder, key) of the tree."""
    stack = [tree]
    while stack:
        holder = stack.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            yield holder, key
            if isinstance(holder[key], dict | list):
                stack.append(holder[key])


def packed(draw: st.DrawFn, name: str, text: str, option: Any = None) -> Case:
    """The text as bytes, perhaps cut, flipped, repeated or badly packed."""
    data = text.encode("utf-8", "surrogatepass")
    match draw(st.sampled_from(["whole"] * 6 + ["cut", "flip", "twice", "insert", "gz", "bad gz"])):
        case "cut":
            data = data[: draw(st.integers(0, len(data)))]
        case "flip" if data:
            place = draw(st.integers(0, len(data) - 1))
            data = data[:place] + bytes([draw(st.integers(0, 255))]) + data[place + 1 :]
        case "twice":
            start, end = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
            data = data[:end] + data[start:]
        case "insert":
            place = draw(st.integers(0, len(data)))
            words = [b"\xff\xfe", b"\xef\xbb\xbf", b"\0", b"\r\n", b"NaN", b"1e999", b"&a *a", b'"']
            data = data[:place] + draw(st.sampled_from(words)) + data[place:]
        case "gz":
            return Case(f"{name}.gz", gzip.compress(data, 1), option)
        case "bad gz":
            full = gzip.compress(data, 1)
            return Case(f"{name}.gz", full[: draw(st.integers(0, len(full)))], option)
    return Case(name, data, option)


def as_yaml(tree: Any) -> str:
    """The tree as YAML, by JSON where it is deeper than PyYAML writes."""
    try:
        return str(yaml.safe_dump(tree))
    except RecursionError:
        return json.dumps(tree)


def as_toml(tree: Any) -> str:
    """The tree as TOML with inline tables: not always valid, which is the point."""
    return "".join(f"{json.dumps(key)} = {_inline(value)}\n" for key, value in tree.items())


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{json.dumps(key)} = {_inline(item)}" for key, item in value.items())
        return "{" + inner + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value) if isinstance(value, str | bool) else repr(value)


def bombs() -> Iterator[Case]:
    """Files of some MiB that unpack to 1 GiB of one thing, as every kind of reader gets them."""
    honest = json.dumps(MOONCAKE[0]).encode() + b"\n"
    table = TABLES[2].encode()
    fillings = [b" ", b"[", b"\n", b"1,", b'{"a":', b"a.", b"a: ", honest, b"\xff", b"\0"]
    for filling in fillings:
        member = gzip.compress(filling * (16 * 1024**2 // len(filling)), 6)
        for name in ("plan.toml", "plan.yaml", "config.json", "trace.jsonl"):
            yield Case(f"{name}.gz", member * 64)
    row = gzip.compress(b"0.5,200,30\n" * (16 * 1024**2 // 11), 6)
    yield Case("trace.csv.gz", gzip.compress(table) + row * 64)
    opening = gzip.compress(b'{"input_length": 5, "timestamp": 0, "hash_ids": [1')
    ids = gzip.compress(b",1" * (8 * 1024**2), 6)
    yield Case("trace.jsonl.gz", opening + ids * 64)


def run(folder: Path, case: Case) -> bool:
    """Read the case by the reader that its name asks for."""
    kind = case.name.partition(".")[0]
    return {"plan": run_plan, "config": run_config, "trace": run_trace}[kind](folder, case)


def main(folder: Path, stride: int) -> None:
    """Read every `stride`-th bomb; print how many, how many were read, and the peak of memory."""
    outcomes = [run(folder, case) for case in itertools.islice(bombs(), 0, None, stride)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"bombs": len(outcomes), "read": sum(outcomes), "peak": peak}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
