"""The public trace files beside the repository: published figures, and how fast they are read."""

import time
from pathlib import Path

import numpy as np
import pytest

from splitpoint.inputs import traces
from splitpoint.inputs.trace import Trace, describe, reuse
from splitpoint.inputs.traces.requests import trace_of
from splitpoint.inputs.workload import Workload

FOLDER = Path(__file__).parents[2] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="no ../shared/traces")


@pytest.fixture(scope="module")
def mooncake() -> Trace:
    return traces.read(FOLDER / "mooncake_conversation.jsonl.gz")


def test_the_mooncake_conversation_trace_has_its_published_means(mooncake: Trace) -> None:
    summary = describe(mooncake)
    # Published (Mooncake, FAST'25, table of traces): 12,031 requests, 12,035 in, 343 out.
    assert summary.requests == 12_031
    assert round(summary.isl.mean) == 12_035
    assert round(summary.osl.mean) == 343
    assert summary.block_tokens == 512
    assert summary.duration_s == pytest.approx(3537, abs=1)
    # Its 40% cache ratio counts blocks, the partial last ones too; tokens of full blocks are less.
    assert 0.36 < summary.reuse_share < 0.40
    ids, heads = np.unique(mooncake.block_ids, return_index=True)
    assert 1 - len(heads) / len(mooncake.block_ids) == pytest.approx(0.40, abs=0.05)
    assert len(ids) == 182_790


def test_reuse_of_the_mooncake_trace_agrees_with_a_plain_count(mooncake: Trace) -> None:
    seen: set[int] = set()
    starts, ids = mooncake.block_starts.tolist(), mooncake.block_ids.tolist()
    found = 0
    for row, isl in enumerate(mooncake.isl.tolist()):
        chain = ids[starts[row] : starts[row] + isl // 512]
        usable = chain[: (isl - 1) // 512]
        hits = next((n for n, block in enumerate(usable) if block not in seen), len(usable))
        found += hits * 512
        seen.update(chain)
    assert found == int(reuse(mooncake).anywhere.sum())


def test_the_mooncake_trace_is_read_in_two_seconds_and_described_in_one() -> None:
    began = time.process_time()
    trace = traces.read(FOLDER / "mooncake_conversation.jsonl.gz")
    read = time.process_time()
    describe(trace)
    described = time.process_time()
    assert read - began < 2.0
    assert described - read < 1.0


def test_the_azure_code_trace_has_its_published_medians() -> None:
    summary = describe(traces.read(FOLDER / "azure_2023_code.csv.gz"))
    # Published (Splitwise, ISCA'24): 8,819 requests in an hour, medians of 1,500 and 13 tokens.
    assert summary.requests == 8819
    assert summary.osl.p50 == 13
    assert summary.isl.p50 == pytest.approx(1500, rel=0.03)
    assert 3400 < summary.duration_s < 3600


def test_the_weka_sessions_keep_their_totals_and_their_reuse() -> None:
    trace = traces.read(FOLDER / "weka_agentic_20.jsonl.gz")
    summary = describe(trace)
    assert (summary.requests, summary.sessions) == (395, 20)
    # The file states the totals of its first session.
    first = trace.session == 0
    assert int(trace.isl[first].sum()) == 4_766_146
    assert int(trace.osl[first].sum()) == 28_243
    assert summary.session_reuse_share == 1.0
    assert 0.90 < summary.reuse_share < 0.95
    assert summary.closed


def test_each_public_trace_makes_a_workload() -> None:
    for name in ("mooncake_conversation.jsonl", "azure_2023_code.csv", "weka_agentic_20.jsonl"):
        for table in ({"rate": 2.0}, {"concurrency": 8}, {}):
            workload = Workload(trace=f"{name}.gz", requests=200, **table)
            trace = trace_of(workload, base=FOLDER)
            assert len(trace) == 200
            assert trace.closed == (name.startswith("weka") or "concurrency" in table)
