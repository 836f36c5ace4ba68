"""Trace files: what each format's rows become, and that a bad row is refused with its place."""

import gzip
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from splitpoint.errors import PlanError
from splitpoint.inputs import files, traces
from splitpoint.inputs.trace import Trace, describe, reuse
from splitpoint.inputs.traces import columns
from splitpoint.inputs.traces.synth import preset

MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 7, "hash_ids": [4, 5, 6]},
    {"timestamp": 500, "input_length": 512, "output_length": 1, "hash_ids": [9]},
    {"timestamp": 2500, "input_length": 1600, "output_length": 3, "hash_ids": [4, 5, 7, 8]},
]
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:03.9799600,4808,10\r\n"
    "2023-11-16 18:17:04.0319600,3180,8\r\n"
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45,ChatGPT,0,0,0,Conversation log\n"
    "118,GPT-4,417,276,693,API log\n"
)
BURSTGPT_2 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "10,a,4,ChatGPT,100,20,120,Conversation log\n"
    "11,,1,ChatGPT,50,5,55,API log\n"
    "12,,1,ChatGPT,50,5,55,API log\n"
    "30,a,2.5,ChatGPT,150,20,170,Conversation log\n"
    "31,a,1,ChatGPT,180,20,200,Conversation log\n"
)
BAILIAN = [
    {"chat_id": 7, "parent_chat_id": -1, "timestamp": 61.0, "input_length": 40,
     "output_length": 100, "type": "text", "turn": 1, "hash_ids": [1, 2, 3]},
    {"chat_id": 8, "parent_chat_id": -1, "timestamp": 61.5, "input_length": 16,
     "output_length": 4, "type": "text", "turn": 1, "hash_ids": [1]},
    {"chat_id": 9, "parent_chat_id": 7, "timestamp": 71.0, "input_length": 150,
     "output_length": 4, "type": "text", "turn": 2, "hash_ids": [1, 2, *range(30, 38)]},
    {"chat_id": 10, "parent_chat_id": 9, "timestamp": 72.0, "input_length": 170,
     "output_length": 4, "type": "text", "turn": 3, "hash_ids": [1, 2, *range(30, 37), 50, 51]},
]  # fmt: skip
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n1.5,374,44\n0.5,396,109\n"


def call(t: float, isl: int, osl: int, ids: list[int], **times: float) -> dict[str, object]:
    return {"t": t, "type": "n", "model": "m", "in": isl, "out": osl, "hash_ids": ids, **times}


def weka_session(requests: list[object], scope: str = "local") -> dict[str, object]:
    return {"id": "x", "block_size": 64, "hash_id_scope": scope, "requests": requests}


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a trace file and gives its path."""

    def write(content: object, name: str = "trace.jsonl") -> Path:
        path = tmp_path / name
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        if isinstance(content, dict):
            content = json.dumps(content)
        data = content if isinstance(content, bytes) else str(content).encode()
        path.write_bytes(gzip.compress(data, mtime=0) if name.endswith(".gz") else data)
        return path

    return write


File = Callable[..., Path]


def ids_of(trace: Trace, row: int) -> list[int]:
    ids: list[int] = trace.block_ids[trace.block_starts[row] : trace.block_starts[row + 1]].tolist()
    return ids


def test_a_mooncake_file_keeps_seconds_lengths_and_prefixes(file: File) -> None:
    trace = traces.read(file(MOONCAKE))
    assert trace.arrive_s.tolist() == [0.0, 0.5, 2.5]
    assert trace.isl.tolist() == [1100, 512, 1600]
    assert trace.osl.tolist() == [7, 1, 3]
    assert trace.block_tokens == 512
    assert trace.block_starts.tolist() == [0, 3, 4, 8]
    assert ids_of(trace, 0)[:2] == ids_of(trace, 2)[:2]
    assert len({*ids_of(trace, 0), *ids_of(trace, 1), *ids_of(trace, 2)}) == 6
    assert trace.name == "trace"
    assert not trace.closed


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes of POSIX")
def test_a_pipe_is_read_by_the_name_of_its_format_only(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    # Nobody writes: to look at its first line would wait for ever.
    with pytest.raises(PlanError, match="is a pipe, which is read once"):
        traces.read(pipe)
    line = '{"timestamp": 0, "input_length": 100, "output_length": 10, "hash_ids": [1]}\n'
    writer = threading.Thread(target=pipe.write_text, args=(line,))
    writer.start()
    assert len(traces.read(pipe, "mooncake")) == 1
    writer.join()


def test_a_mooncake_request_that_extends_another_is_its_next_turn(file: File) -> None:
    trace = traces.read(file(MOONCAKE))
    assert trace.session.tolist() == [0, 1, 0]
    assert trace.turn.tolist() == [0, 0, 1]
    alone = traces.read(file(MOONCAKE), sessions="none")
    assert alone.session.tolist() == [0, 1, 2]


def test_a_shared_prefix_alone_makes_no_session(file: File) -> None:
    def row(isl: int, ids: list[int]) -> dict[str, object]:
        return {"timestamp": 0, "input_length": isl, "output_length": 1, "hash_ids": ids}

    # Block 0 is a system prompt that the first request brought; the second is no longer than it.
    rows = [
        row(1100, [0, 1, 2]),
        row(700, [0, 3]),
        row(1700, [0, 4, 5, 6]),
        # The next turn of the third, then a fork of it, then a next turn within one block.
        row(2200, [0, 4, 5, 7, 8]),
        row(2300, [0, 4, 5, 9, 10]),
        row(2400, [0, 4, 5, 7, 11]),
    ]
    trace = traces.read(file(rows))
    assert trace.session.tolist() == [0, 1, 2, 2, 3, 2]
    again = traces.read(file([row(700, [0, 1]), row(700, [0, 1])]))
    assert again.session.tolist() == [0, 1]


def test_aiperf_sessions_and_delays_make_a_closed_loop(file: File) -> None:
    rows = [
        {"session_id": "a", "timestamp": 1000, "input_length": 10, "output_length": 2},
        {"session_id": "b", "timestamp": 1500, "input_length": 10, "output_length": 2},
        {"session_id": "a", "delay": 250, "input_length": 30, "output_length": 2},
    ]
    trace = traces.read(file(rows))
    assert trace.closed
    assert trace.arrive_s.tolist() == [0.0, 0.25, 0.5]
    assert trace.session.tolist() == [0, 0, 1]
    assert trace.think_s.tolist() == [0.0, 0.25, 0.0]
    assert len(trace.block_ids) == 0


def test_a_delay_needs_a_session_whose_turn_it_follows(file: File) -> None:
    rows = [
        {"timestamp": 1000, "input_length": 10, "output_length": 2},
        {"delay": 250, "input_length": 30, "output_length": 2},
    ]
    with pytest.raises(PlanError, match="line 2: timestamp: missing"):
        traces.read(file(rows))
    with pytest.raises(PlanError, match="line 2: timestamp: missing"):
        traces.read(file([rows[0], rows[1] | {"session_id": "a"}]))
    zero = {"timestamp": 0, "input_length": 10, "output_length": 2}
    apart = traces.read(file([zero | {"session_id": 0}, zero | {"session_id": ""}, zero]))
    assert apart.session.tolist() == [0, 1, 2]


@pytest.mark.parametrize("block", [16, 64, 256])
def test_a_mooncake_file_with_another_block_size_is_recognised(file: File, block: int) -> None:
    lengths = [5 * block + 3, 9 * block, 2 * block + 1]
    rows = [
        {
            "timestamp": 0,
            "input_length": n,
            "output_length": 1,
            "hash_ids": [*range(-(-n // block))],
        }
        for n in lengths
    ]
    trace = traces.read(file(rows))
    assert trace.block_tokens == block
    assert np.diff(trace.block_starts).tolist() == [6, 9, 3]


def test_ids_that_name_a_block_alone_become_names_of_the_whole_prefix(file: File) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1536, "output_length": 1, "hash_ids": [1, 2, 3]},
        {"timestamp": 1, "input_length": 1536, "output_length": 1, "hash_ids": [9, 2, 3]},
        {"timestamp": 2, "input_length": 1536, "output_length": 1, "hash_ids": [1, 2, 4]},
    ]
    trace = traces.read(file(rows))
    assert not set(ids_of(trace, 0)) & set(ids_of(trace, 1))
    assert ids_of(trace, 0)[:2] == ids_of(trace, 2)[:2]
    assert reuse(trace).anywhere.tolist() == [0, 0, 1024]


def test_ids_that_wrap_around_64_bits_are_still_found_again(file: File) -> None:
    # Wrapped to 64 bits, the differences of neighbours are all positive.
    ids = [0, 2**62, 2**63 - 1, -(2**62), 0]
    rows = [
        {"timestamp": i, "input_length": 512, "output_length": 1, "hash_ids": [number]}
        for i, number in enumerate(ids)
    ]
    trace = traces.read(file(rows))
    assert ids_of(trace, 0) == ids_of(trace, 4)
    assert len(set(trace.block_ids.tolist())) == 4


def test_prompts_that_share_nothing_are_sessions_of_their_own(file: File) -> None:
    rows = [
        {"timestamp": i, "input_length": 1000, "output_length": 1, "hash_ids": [9 * i, 9 * i + 1]}
        for i in range(50)
    ]
    trace = traces.read(file(rows))
    assert trace.session.tolist() == list(range(50))
    assert trace.block_ids.tolist() == list(range(100))


def test_a_file_is_read_alike_in_one_piece_and_in_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [json.dumps(row) for row in MOONCAKE for _ in range(40)]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n\n".join(lines) + "\n  \n")
    whole = traces.read(path)
    monkeypatch.setattr(files, "CHUNK", 300)
    parts = traces.read(path)
    assert len(whole) == 120
    assert parts.isl.tolist() == whole.isl.tolist()
    assert parts.block_ids.tolist() == whole.block_ids.tolist()
    for last, what in (("{}", "line 241: "), ('{"x": "\xe9"}', "line 241: byte 8 is not UTF-8")):
        path.write_bytes("\n\n".join([*lines, last]).encode("latin-1"))
        with pytest.raises(PlanError, match=what):
            traces.read(path)
    monkeypatch.setattr(traces, "MAX_LINE", 1000)
    path.write_text("\n\n".join([*lines, "9" * 2000]))
    with pytest.raises(PlanError, match="line 241: is longer than 1,000 bytes"):
        traces.read(path)


def test_ids_may_be_any_64_bit_numbers(file: File) -> None:
    def row(ids: list[int]) -> dict[str, object]:
        return {"timestamp": 0, "input_length": 1100, "output_length": 1, "hash_ids": ids}

    rows = [row([2**64 - 1, -5]), row([2**64 - 1, -5]), row([2**63 - 1, -5]), row([2**63, 2**62])]
    trace = traces.read(file(rows))
    # 1,100 tokens are three blocks, of which the file names the full ones.
    assert np.diff(trace.block_starts).tolist() == [3, 3, 3, 3]
    assert reuse(trace).anywhere.tolist() == [0, 1024, 0, 0]


def test_an_azure_file_starts_at_its_first_request(file: File) -> None:
    trace = traces.read(file(AZURE, "azure.csv.gz"))
    assert trace.arrive_s == pytest.approx([0.0, 0.052], abs=1e-6)
    assert trace.isl.tolist() == [4808, 3180]
    assert trace.osl.tolist() == [10, 8]
    assert trace.session.tolist() == [0, 1]
    assert not trace.closed
    assert trace.name == "azure"


def test_azure_zones_of_the_2024_files_are_read(file: File) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 02:00:00.509930+02:00,2399,6\n"
    )
    assert traces.read(file(text, "a.csv")).arrive_s == pytest.approx([0.0, 0.5])


def test_burstgpt_drops_failed_calls_and_counts_them(file: File) -> None:
    trace = traces.read(file(BURSTGPT, "b.csv"))
    assert trace.arrive_s.tolist() == [0.0, 113.0]
    assert trace.isl.tolist() == [472, 417]
    assert "1 failed calls without tokens dropped" in trace.notes
    assert not trace.closed


def test_burstgpt_release_2_knows_sessions_and_think_times(file: File) -> None:
    trace = traces.read(file(BURSTGPT_2, "b.csv"))
    assert trace.closed
    assert trace.session.tolist() == [0, 1, 2, 0, 0]
    assert trace.turn.tolist() == [0, 0, 0, 1, 2]
    # 30 - (10 + 4) = 16; 31 - (30 + 2.5) < 0.
    assert trace.think_s.tolist() == [0.0, 0.0, 0.0, 16.0, 0.0]


def test_bailian_chats_under_one_root_are_a_session(file: File) -> None:
    trace = traces.read(file(BAILIAN))
    assert trace.block_tokens == 16
    assert trace.arrive_s.tolist() == [0.0, 0.5, 10.0, 11.0]
    assert trace.session.tolist() == [0, 1, 0, 0]
    assert trace.turn.tolist() == [0, 0, 1, 2]
    # The gaps of 10 s and 1 s less 100 and 4 tokens at the assumed 25 ms.
    assert trace.think_s == pytest.approx([0.0, 0.0, 7.5, 0.9])
    assert trace.closed
    # 16 tokens are one block of which the last token is always computed.
    assert reuse(trace).anywhere.tolist() == [0, 0, 32, 144]


def test_a_vidur_file_is_sorted_by_arrival(file: File) -> None:
    trace = traces.read(file(VIDUR, "v.csv"))
    assert trace.arrive_s.tolist() == [0.0, 1.0]
    assert trace.isl.tolist() == [396, 374]
    assert trace.osl.tolist() == [109, 44]


def test_weka_sessions_close_and_do_not_share_local_ids(file: File) -> None:
    first = weka_session(
        [
            call(0.0, 130, 5, [1, 2], api_time=2.0, think_time=0.0),
            call(9.0, 200, 6, [1, 2, 3], api_time=1.0, think_time=7.0),
            call(20.0, 260, 6, [1, 2, 3, 4]),
        ]
    )
    second = weka_session([call(0.0, 128, 5, [1, 2])])
    trace = traces.read(file([first, second]))
    assert trace.closed
    assert trace.session.tolist() == [0, 1, 0, 0]
    assert trace.turn.tolist() == [0, 0, 1, 2]
    # The last has no think time of its own: 20 - (9 + 1).
    assert trace.think_s.tolist() == [0.0, 0.0, 7.0, 10.0]
    # Full blocks only are named, so the partial tails are unique ids.
    assert np.diff(trace.block_starts).tolist() == [3, 2, 4, 5]
    assert reuse(trace).anywhere.tolist() == [0, 0, 128, 192]
    shared = [weka_session([call(0.0, 130, 5, [1, 2])], "global") for _ in range(2)]
    assert reuse(traces.read(file(shared))).anywhere.tolist() == [0, 128]


@pytest.mark.parametrize(("nested", "expected"), [((1.0, 3.0), (11.0, 13.0)), ((11.0, 13.0),) * 2])
def test_weka_sub_agents_are_sessions_at_their_own_time(
    file: File, nested: tuple[float, float], expected: tuple[float, float]
) -> None:
    inner = [call(nested[0], 64, 5, [8]), call(nested[1], 130, 5, [8, 9])]
    marker = {"t": 10.0, "type": "subagent", "agent_id": "a", "requests": inner}
    session = weka_session([call(0.0, 130, 5, [1, 2]), marker, call(30.0, 200, 5, [1, 2, 3])])
    trace = traces.read(file([session]))
    assert trace.arrive_s.tolist() == [0.0, *expected, 30.0]
    assert trace.session.tolist() == [0, 1, 1, 0]
    assert trace.turn.tolist() == [0, 0, 1, 1]


def test_one_weka_session_may_be_a_json_document_over_many_lines(file: File) -> None:
    text = json.dumps(weka_session([call(0.0, 130, 5, [1, 2])]), indent=2)
    trace = traces.read(file(text, "session.json"))
    assert trace.isl.tolist() == [130]


def test_a_folder_of_weka_sessions_is_one_trace(file: File, tmp_path: Path) -> None:
    file(json.dumps(weka_session([call(0.0, 130, 5, [1, 2])]), indent=1), "b.json")
    file([weka_session([call(0.0, 140, 5, [1, 2])])] * 2, "a.jsonl.gz")
    file("not a trace", "readme.txt")
    trace = traces.read(tmp_path)
    assert trace.isl.tolist() == [140, 140, 130]
    assert trace.session.tolist() == [0, 1, 2]
    assert not reuse(trace).anywhere.any()
    file(weka_session([]) | {"block_size": 16}, "c.json")
    with pytest.raises(PlanError, match=r"c\.json"):
        traces.read(tmp_path)


def test_a_folder_of_other_traces_is_refused(file: File, tmp_path: Path) -> None:
    file(MOONCAKE, "a.jsonl")
    with pytest.raises(PlanError, match="folder"):
        traces.read(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PlanError, match="empty"):
        traces.read(tmp_path / "empty")


@pytest.mark.parametrize(
    ("content", "name", "expected"),
    [
        (MOONCAKE, "t.jsonl", "mooncake"),
        (AZURE, "t.csv", "azure"),
        (BURSTGPT, "t.csv", "burstgpt"),
        (BURSTGPT_2, "t.txt", "burstgpt"),
        (BAILIAN, "t.jsonl.gz", "bailian"),
        ([weka_session([call(0, 64, 5, [1])])], "t", "weka"),
        (VIDUR, "t.csv", "vidur"),
        ("\ufeff" + VIDUR, "t.csv", "vidur"),
        ('"arrived_at", "num_prefill_tokens","num_decode_tokens"\n"0","5","6"\n', "q", "vidur"),
    ],
)
def test_the_format_is_known_from_the_content(
    file: File, content: object, name: str, expected: str
) -> None:
    path = file(content, name)
    assert traces.format_of(path) == expected
    assert len(traces.read(path)) > 0


def mooncake_with(**changes: object) -> str:
    row = {"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]} | changes
    return json.dumps(MOONCAKE[0]) + "\n" + json.dumps(row) + "\n"


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        ("", "t.jsonl", ("t.jsonl", "empty")),
        ("\n \n\n", "t.jsonl", ("t.jsonl", "empty")),
        ("hello\n", "t.jsonl", ("line 1", "hello", "mooncake")),
        (mooncake_with(output_length=0), "t.jsonl", ("line 2", "output_length", ">= 1")),
        (mooncake_with(input_length=-5), "t.jsonl", ("line 2", "input_length", ">= 1")),
        (mooncake_with(input_length=2**31), "t.jsonl", ("line 2", "input_length", "<=")),
        (mooncake_with(input_length="600"), "t.jsonl", ("line 2", "input_length", "str")),
        (mooncake_with(input_length=None), "t.jsonl", ("line 2", "input_length", "null")),
        (mooncake_with(input_length=600.5), "t.jsonl", ("line 2", "input_length", "float")),
        (mooncake_with(timestamp=-1), "t.jsonl", ("line 2", "timestamp", ">= 0")),
        (mooncake_with(timestamp=1e300), "t.jsonl", ("line 2", "timestamp")),
        (mooncake_with(timestamp=None), "t.jsonl", ("line 2", "timestamp", "missing")),
        (mooncake_with(hash_ids=[1, "x"]), "t.jsonl", ("line 2", "hash_ids[")),
        (mooncake_with(hash_ids=[1, 2**70]), "t.jsonl", ("line 2", "hash_ids[1]", "64 bits")),
        (mooncake_with(hash_ids=[1, 2, 3]), "t.jsonl", ("line 2", "3 ids for 600 tokens")),
        (mooncake_with() + '{"timestamp": NaN', "t.jsonl", ("line 3", "JSON")),
        (mooncake_with() + '{"timestamp": 1}', "t.jsonl", ("line 3", "input_length")),
        (mooncake_with() + '{"a":' + "[" * 5000, "t.jsonl", ("line 3", "JSON")),
        (mooncake_with() + "[1, 2]", "t.jsonl", ("line 3", "object")),
        (mooncake_with().encode() + b'{"x": "\xff"}', "t.jsonl", ("line 3", "UTF-8")),
        (AZURE + "yesterday,5,6", "t.csv", ("line 4", "TIMESTAMP", "yesterday")),
        (AZURE + "2023-11-16,5", "t.csv", ("line 4", "2 cells", "3")),
        (AZURE + "2023-11-16,-5,6", "t.csv", ("line 4", "ContextTokens", "-5")),
        (AZURE + "2023-11-16,5,0", "t.csv", ("line 4", "GeneratedTokens", "0")),
        (AZURE + "2023-11-16,5,1e3", "t.csv", ("line 4", "GeneratedTokens", "1e3")),
        (AZURE + "2023-11-16,99999999999,4", "t.csv", ("line 4", "ContextTokens")),
        (AZURE + "2023-11-16,3000000000,4", "t.csv", ("line 4", "ContextTokens")),
        (AZURE + '2023-11-16,"5,4', "t.csv", ("line 4", "CSV")),
        (VIDUR + "nan,5,6", "t.csv", ("line 4", "arrived_at", "nan")),
        (VIDUR + "inf,5,6", "t.csv", ("line 4", "arrived_at", "inf")),
        (VIDUR + "-1,5,6", "t.csv", ("line 4", "arrived_at", "-1")),
        (VIDUR + "1_0,5,6", "t.csv", ("line 4", "arrived_at", "1_0")),
        (VIDUR + "1,٣,6", "t.csv", ("line 4", "num_prefill_tokens")),
        (VIDUR.splitlines()[0], "t.csv", ("no request",)),
        (BURSTGPT + "7,GPT-4,x,5,5,API log", "t.csv", ("line 5", "Request tokens", "'x'")),
        ([weka_session([])], "t.jsonl", ("no request",)),
        ([weka_session([{"t": 0, "out": 5}])], "t.jsonl", ("line 1", "requests[0]", "in: missing")),
        ([weka_session([call(0, 64, 0, [1])])], "t.jsonl", ("line 1", "requests[0].out", ">= 1")),
        ([weka_session([call(0, 64, 1, [1, 2])])], "t.jsonl", ("requests[0]", "2 ids for 64")),
        (
            [weka_session([call(0, 9, 1, [])]), weka_session([]) | {"block_size": 16}],
            "t.jsonl",
            ("line 2", "block_size", "64"),
        ),
        ('{\n"requests": [\n', "t.json", ("line 1", "JSON")),
        (gzip.compress(b"x" * 99, mtime=0)[:-9], "t.csv", ("t.csv",)),
    ],
)
def test_a_bad_row_is_refused_with_its_line_and_field(
    file: File, content: object, name: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(PlanError) as caught:
        traces.read(file(content, name))
    for word in words:
        assert word in str(caught.value)


def test_a_missing_column_and_a_wrong_format_are_named(file: File) -> None:
    with pytest.raises(PlanError, match="no column 'TIMESTAMP'"):
        traces.read(file(VIDUR, "v.csv"), "azure")
    with pytest.raises(PlanError, match="one of mooncake, azure"):
        traces.read(file(VIDUR, "v.csv"), "parquet")
    with pytest.raises(PlanError, match="no such file"):
        traces.read("/nowhere/trace.csv")


def test_a_header_of_endless_names_is_told_in_short(tmp_path: Path) -> None:
    file = tmp_path / "long.csv"
    file.write_text(",".join(["a" * 5000] * 100) + "\n1\n")
    with pytest.raises(PlanError) as told:
        traces.read(file, "azure")
    assert len(str(told.value)) < 1200 + len(str(file))


def test_rows_and_ids_are_bounded(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_ROWS", 3)
    with pytest.raises(PlanError, match="line 4: more than 3 rows"):
        traces.read(file("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "1,2,3\n" * 4, "v"))
    monkeypatch.setattr(columns, "MAX_IDS", 5)
    with pytest.raises(PlanError, match="line 3: more than 5 block ids"):
        traces.read(file(MOONCAKE))


def test_a_gzip_bomb_stops_early(file: File) -> None:
    line = b"1,2,3" + b" " * 1000 + b"\n"
    bomb = b"arrived_at,num_prefill_tokens,num_decode_tokens\n" + line * 20_000
    with pytest.raises(PlanError, match="unpacks to more than"):
        traces.read(file(bomb, "bomb.csv.gz"))


def same(one: Trace, other: Trace) -> None:
    assert one.isl.tolist() == other.isl.tolist()
    assert one.osl.tolist() == other.osl.tolist()
    assert one.arrive_s == pytest.approx(other.arrive_s - other.arrive_s[0], abs=1e-6)


def test_mooncake_files_keep_a_whole_trace(tmp_path: Path) -> None:
    trace = preset("chat", seed=3, requests=300)
    path = tmp_path / "chat.jsonl.gz"
    lost = traces.write(trace, path, "mooncake")
    assert lost == ("ids stand for 64 tokens, not 512",)
    back = traces.read(path)
    same(back, trace)
    assert back.closed
    assert back.session.tolist() == trace.session.tolist()
    assert back.turn.tolist() == trace.turn.tolist()
    assert back.think_s == pytest.approx(trace.think_s)
    assert back.block_tokens == 64
    assert back.block_starts.tolist() == trace.block_starts.tolist()
    assert reuse(back).anywhere.tolist() == reuse(trace).anywhere.tolist()
    assert reuse(back).in_session.tolist() == reuse(trace).in_session.tolist()
    traces.write(trace, tmp_path / "again.jsonl.gz", "mooncake")
    assert (tmp_path / "again.jsonl.gz").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("format", ["azure", "burstgpt", "vidur"])
def test_csv_files_keep_arrivals_and_lengths_and_say_what_they_lose(
    tmp_path: Path, format: str
) -> None:
    trace = preset("chat", seed=3, requests=300)
    path = tmp_path / "chat.csv"
    lost = traces.write(trace, path, format)
    assert any("identities are lost" in words for words in lost)
    assert any("sessions" in words for words in lost)
    assert traces.format_of(path) == format
    same(traces.read(path), trace)


def test_a_format_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="mooncake, azure, burstgpt, vidur"):
        traces.write(preset("chat", requests=5), tmp_path / "t", "weka")


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True),
    st.text(max_size=5),
    st.lists(st.integers(-5, 2**65), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
MOONCAKE_KEYS = ["timestamp", "input_length", "output_length", "hash_ids", "session_id", "delay"]
OTHER_KEYS = ["chat_id", "parent_chat_id", "requests", "t", "in", "out", "block_size", "api_time"]
KEYS = st.sampled_from([*MOONCAKE_KEYS, *OTHER_KEYS])


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(st.dictionaries(KEYS, VALUES, min_size=1, max_size=6), min_size=1, max_size=3),
    start=st.sampled_from([MOONCAKE, BAILIAN, [weka_session([call(0, 64, 5, [1])])]]),
    cut=st.integers(0, 60),
)
def test_hostile_json_lines_give_a_trace_or_a_plan_error(
    tmp_path: Path, rows: list[dict[str, object]], start: list[dict[str, object]], cut: int
) -> None:
    path = tmp_path / "hostile.jsonl"
    text = "\n".join(json.dumps(row) for row in [*start, *(start[0] | row for row in rows)])
    path.write_text(text[: len(text) - cut])
    try:
        trace = traces.read(path)
    except PlanError:
        return
    describe(trace)
    assert (trace.isl >= 1).all()
    assert (trace.osl >= 1).all()
    assert np.isfinite(trace.arrive_s).all()
    assert (np.diff(trace.arrive_s) >= 0).all()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    head=st.sampled_from([AZURE, BURSTGPT, BURSTGPT_2, VIDUR]),
    tail=st.one_of(
        st.binary(max_size=40),
        st.lists(st.one_of(st.integers().map(str), st.floats().map(str), st.text(max_size=4)))
        .map(",".join)
        .map(lambda text: text.encode("utf-8", "replace")),
    ),
)
def test_hostile_csv_rows_give_a_trace_or_a_plan_error(
    tmp_path: Path, head: str, tail: bytes
) -> None:
    path = tmp_path / "hostile.csv"
    path.write_bytes(head.encode() + tail)
    try:
        trace = traces.read(path)
    except PlanError:
        return
    describe(trace)
    assert (trace.osl >= 1).all()
    assert np.isfinite(trace.arrive_s).all()
