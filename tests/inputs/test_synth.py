"""Generated workloads hold the marginals they state, and `[workload]` tables mean what they say."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import convert
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs import traces
from splitpoint.inputs.trace import Trace, describe, reuse
from splitpoint.inputs.traces.requests import default_requests, gamma_arrivals, trace_of
from splitpoint.inputs.traces.synth import AGENTIC, CHAT, LONG_CONTEXT, Dialogue, drawn, preset
from splitpoint.inputs.workload import Lengths, Workload

HERE = Path()
SEEDS = range(5)


def ids_of(trace: Trace, row: int) -> list[int]:
    ids: list[int] = trace.block_ids[trace.block_starts[row] : trace.block_starts[row + 1]].tolist()
    return ids


@pytest.mark.parametrize("seed", SEEDS)
def test_agentic_sessions_have_the_published_marginals(seed: int) -> None:
    summary = describe(preset("agentic-coding", seed=seed))
    assert summary.requests == 850
    assert 560 <= summary.duration_s <= 600
    # The study: p50 33.5k, p90 101k, p99 132k, 71% reused, 79% of that inside a session.
    assert summary.isl.p50 == pytest.approx(33_500, rel=0.01)
    assert summary.isl.p90 == pytest.approx(101_000, rel=0.01)
    assert summary.isl.p99 == pytest.approx(132_000, rel=0.01)
    assert summary.reuse_share == pytest.approx(0.71, abs=0.005)
    assert summary.session_reuse_share == pytest.approx(0.79, abs=0.005)
    # What follows from them, with the 15,200 shared tokens; the study's mean of 33.6k does not.
    assert summary.isl.mean == pytest.approx(48_000, rel=0.01)
    assert 380 <= summary.sessions <= 420
    assert summary.osl.p50 == pytest.approx(120, rel=0.15)
    assert summary.think_p50_s == pytest.approx(10, rel=0.25)


def test_the_published_mean_cannot_stand_beside_the_published_percentiles() -> None:
    shares, lengths = np.array(list(AGENTIC.isl)), np.array(list(AGENTIC.isl.values()))
    upper = np.linspace(0.5, 1, 200_001)
    above = np.exp(np.interp(upper, shares, np.log(lengths)))
    # The upper half alone, with the lower half at no tokens at all.
    assert 0.5 * above.mean() > 33_600


@pytest.mark.parametrize("requests", [60, 2000])
def test_another_number_of_requests_keeps_rate_and_reuse(requests: int) -> None:
    summary = describe(preset("agentic-coding", seed=1, requests=requests))
    assert summary.requests == requests
    assert summary.duration_s == pytest.approx(600 / 850 * requests, rel=0.1)
    assert summary.reuse_share == pytest.approx(0.71, abs=0.02)
    assert summary.session_reuse_share == pytest.approx(0.79, abs=0.02)


@pytest.mark.parametrize("name", ["agentic-coding", "chat", "long-context"])
def test_a_later_turn_begins_with_the_whole_turn_before(name: str) -> None:
    trace = preset(name, seed=4, requests=300)
    assert trace.closed
    assert np.diff(trace.block_starts).tolist() == (-(-trace.isl // 64)).tolist()
    last: dict[int, int] = {}
    shared_tokens = AGENTIC.shared_tokens if name == "agentic-coding" else CHAT.shared_tokens
    assert LONG_CONTEXT.shared_tokens == CHAT.shared_tokens
    system = ids_of(trace, 0)[: shared_tokens // 64]
    found = reuse(trace)
    for row, session in enumerate(trace.session.tolist()):
        ids = ids_of(trace, row)
        assert ids[: len(system)] == system
        if session in last:
            before = last[session]
            full = int(trace.isl[before]) // 64
            assert ids[:full] == ids_of(trace, before)[:full]
            # Answer and new message are what the context grew by.
            assert trace.isl[row] - trace.isl[before] >= trace.osl[before]
            assert found.in_session[row] == min(full, (int(trace.isl[row]) - 1) // 64) * 64
        last[session] = row
    # Apart from the shared beginning no two sessions have an id in common.
    owner: dict[int, int] = {}
    for row, session in enumerate(trace.session.tolist()):
        for block in ids_of(trace, row)[len(system) :]:
            assert owner.setdefault(block, session) == session


@pytest.mark.parametrize(("name", "stated"), [("chat", CHAT), ("long-context", LONG_CONTEXT)])
def test_dialogues_have_the_stated_means(name: str, stated: Dialogue) -> None:
    trace = preset(name, seed=2, requests=6000)
    summary = describe(trace)
    openings = trace.isl[trace.turn == 0] - stated.shared_tokens
    assert summary.turns_mean == pytest.approx(stated.turns, rel=0.1)
    assert openings.mean() == pytest.approx(stated.opening.mean, rel=0.06)
    assert summary.osl.mean == pytest.approx(stated.answer.mean, rel=0.04)
    assert summary.rate == pytest.approx(stated.requests / stated.duration_s, rel=0.05)
    assert summary.think_p50_s == pytest.approx(stated.think_s.p50, rel=0.15)


@pytest.mark.parametrize(("name", "rate"), [("chat", 20.0), ("long-context", 3.0)])
def test_a_preset_reaches_the_rate_that_is_asked_of_it(name: str, rate: float) -> None:
    # The middle half of its own seconds, in which sessions start and go on.
    asked = convert({"preset": name, "rate": rate}, Workload)
    trace = trace_of(asked, base=Path())
    own = CHAT if name == "chat" else LONG_CONTEXT
    assert len(trace) == rate * own.duration_s
    middle = (trace.arrive_s > own.duration_s / 4) & (trace.arrive_s < 3 * own.duration_s / 4)
    assert middle.sum() / (own.duration_s / 2) == pytest.approx(rate, rel=0.25)
    counted = trace_of(replace(asked, requests=500), base=Path())
    assert len(counted) == 500
    slow = trace_of(replace(asked, rate=0.1), base=Path())
    assert len(slow) == own.requests


def test_the_same_seed_gives_the_same_bytes() -> None:
    for name in ("agentic-coding", "chat", "long-context"):
        one, same, other = (preset(name, seed=seed, requests=90) for seed in (3, 3, 4))
        for column in ("arrive_s", "isl", "osl", "session", "think_s", "block_ids"):
            assert getattr(one, column).tobytes() == getattr(same, column).tobytes()
        assert one.arrive_s.tobytes() != other.arrive_s.tobytes()


def test_one_request_is_a_workload_and_none_is_not() -> None:
    for name in ("agentic-coding", "chat", "long-context"):
        assert len(preset(name, requests=1)) == 1
        with pytest.raises(PlanError, match="at least 1"):
            preset(name, requests=0)
    with pytest.raises(PlanError, match="agentic-coding, chat or long-context"):
        preset("coding")


@given(
    st.floats(1, 5e4), st.floats(0, 3), st.integers(1, 50), st.integers(51, 100_000), st.integers()
)
@settings(max_examples=60, deadline=None)
def test_lengths_stay_within_their_bounds(
    mean: float, cv: float, low: int, high: int, seed: int
) -> None:
    rng = np.random.default_rng(abs(seed))
    tokens = drawn(Lengths(mean=mean, cv=cv, low=low, high=high), 50, rng)
    assert tokens.min() >= low
    assert tokens.max() <= high


def test_lengths_have_their_mean_and_spread() -> None:
    rng = np.random.default_rng(7)
    tokens = drawn(Lengths(mean=2000, cv=0.5), 200_000, rng)
    assert tokens.mean() == pytest.approx(2000, rel=0.01)
    assert tokens.std() / tokens.mean() == pytest.approx(0.5, rel=0.02)
    assert set(drawn(Lengths(mean=777), 9, rng)) == {777}


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_are_gamma_and_end_where_the_rate_says(burstiness: float) -> None:
    arrive = gamma_arrivals(50_000, 8.0, burstiness, np.random.default_rng(1))
    assert arrive[-1] == pytest.approx(50_000 / 8)
    gaps = np.diff(arrive, prepend=0.0)
    # A gamma of shape k has a coefficient of variation of 1 / sqrt(k).
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.03)
    assert gamma_arrivals(3, math.inf, 1.0, np.random.default_rng(1)).tolist() == [0, 0, 0]


def test_a_rate_of_shapes_is_an_open_loop_without_reuse() -> None:
    trace = trace_of(Workload(isl=100, osl=10, rate=20.0, requests=200), base=HERE)
    assert set(trace.isl) == {100}
    assert set(trace.osl) == {10}
    assert trace.arrive_s[-1] == pytest.approx(10.0)
    assert trace.session.tolist() == list(range(200))
    assert not trace.closed
    assert describe(trace).reuse_share == 0


def test_a_concurrency_of_shapes_is_that_many_users_who_ask_again_at_once() -> None:
    trace = trace_of(Workload(isl=100, osl=10, concurrency=(3, 5)), base=HERE, concurrency=5)
    assert len(trace) == 64
    assert trace.closed
    assert set(trace.arrive_s) == {0.0}
    assert set(trace.think_s) == {0.0}
    assert np.bincount(trace.session).tolist() == [13, 13, 13, 13, 12]
    assert trace.turn[:11].tolist() == [0] * 5 + [1] * 5 + [2]
    assert len(trace.block_ids) == 0


@pytest.mark.parametrize(
    ("rate", "concurrency", "expected"),
    [
        (None, 1, 64),
        (None, 32, 256),
        (None, 1024, 8192),
        (None, 2560, 10_240),
        (0.1, None, 1000),
        (50.0, None, 6000),
        (1e6, None, 20_000),
        (math.inf, None, 1000),
    ],
)
def test_a_workload_without_a_count_runs_long_enough(
    rate: float | None, concurrency: int | None, expected: int
) -> None:
    assert default_requests(rate, concurrency) == expected


def test_drawn_shapes_depend_on_the_seed_only() -> None:
    def isl(seed: int = 0) -> list[int]:
        table = Workload(isl=Lengths(mean=900, cv=0.4), osl=10, rate=1.0, requests=50, seed=seed)
        tokens: list[int] = trace_of(table, base=HERE).isl.tolist()
        return tokens

    assert isl() == isl()
    assert isl(1) != isl()
    assert len(set(isl())) > 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an open and a closed trace of 8 requests."""
    rows = [
        {"timestamp": 1000 * n, "input_length": 600, "output_length": 3, "hash_ids": [0, n + 1]}
        for n in range(8)
    ]
    (tmp_path / "open.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    closed = []
    for session in range(4):
        for turn in range(2):
            row = {"session_id": session, "input_length": 10 + turn, "output_length": session + 1}
            closed.append(row | ({"delay": 9000} if turn else {"timestamp": 1000 * session}))
    (tmp_path / "closed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in closed))
    return tmp_path


def test_a_trace_keeps_its_own_times_unless_told_otherwise(folder: Path) -> None:
    plain = trace_of(Workload(trace="open.jsonl"), base=folder)
    assert plain.arrive_s.tolist() == list(range(8))
    assert not plain.closed
    scaled = trace_of(Workload(trace="open.jsonl", scale=2.0, requests=4), base=folder)
    assert scaled.arrive_s.tolist() == [0, 0.5, 1, 1.5]
    closed = trace_of(Workload(trace="closed.jsonl"), base=folder)
    assert closed.closed
    assert not trace_of(Workload(trace="closed.jsonl", closed_loop=False), base=folder).closed
    capped = trace_of(Workload(trace="closed.jsonl", think_cap_s=2.0), base=folder)
    assert capped.think_s.max() == 2.0


def test_a_rate_draws_new_arrivals_for_requests_or_sessions(folder: Path) -> None:
    drawn_open = trace_of(Workload(trace="open.jsonl", rate=4.0), base=folder)
    assert drawn_open.arrive_s[-1] == pytest.approx(2.0)
    assert reuse(drawn_open).anywhere.sum() == 7 * 512
    drawn_closed = trace_of(Workload(trace="closed.jsonl"), base=folder, rate=4.0)
    # Four sessions of two turns at 4 requests/s: the last starts at 4 / 2.
    starts = drawn_closed.arrive_s[drawn_closed.turn == 0]
    assert starts.max() == pytest.approx(2.0)
    later = drawn_closed.arrive_s[drawn_closed.turn == 1]
    assert sorted(later) == pytest.approx(sorted(starts + 9.0))


def test_users_replay_whole_sessions_one_after_the_other(folder: Path) -> None:
    trace = trace_of(Workload(trace="closed.jsonl", concurrency=2), base=folder)
    assert trace.closed
    assert set(trace.arrive_s) == {0.0}
    rows = zip(
        trace.session.tolist(),
        trace.turn.tolist(),
        trace.osl.tolist(),
        trace.think_s.tolist(),
        strict=True,
    )
    # osl names the source's session; user 0 has the first and third, each with its own pause.
    assert [row[1:] for row in rows if row[0] == 0] == [(0, 1, 0), (1, 1, 9), (2, 3, 0), (3, 3, 9)]
    single = trace_of(Workload(trace="open.jsonl", concurrency=3), base=folder)
    assert np.bincount(single.session).tolist() == [3, 3, 2]
    assert reuse(single).anywhere.sum() == 7 * 512


@pytest.mark.parametrize(("name", "units"), [("open", 8), ("closed", 4)])
def test_more_users_than_sessions_get_copies_of_them(folder: Path, name: str, units: int) -> None:
    table = Workload(trace=f"{name}.jsonl", concurrency=2 * units + 1)
    trace = trace_of(table, base=folder)
    assert trace.session.max() == 2 * units
    assert len(trace) == 24
    assert "3 times" in trace.notes[-1]


def test_a_preset_grows_until_every_user_has_work() -> None:
    trace = trace_of(Workload(preset="long-context", concurrency=90), base=HERE)
    assert trace.session.max() + 1 == 90
    assert len(trace) > LONG_CONTEXT.requests
    assert len(trace_of(Workload(preset="chat", requests=50), base=HERE)) == 50


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"isl": 5, "osl": 5}, "a rate or a concurrency"),
        ({"isl": 5, "rate": 1.0}, "workload.osl"),
        ({"isl": 5, "osl": 5, "rate": 0.0}, "workload.rate"),
        ({"isl": 5, "osl": 5, "rate": (1.0, 2.0)}, "a list of 2"),
        ({"isl": 5, "osl": 5, "rate": 1.0, "concurrency": 1}, "one of them"),
        ({"isl": 5, "osl": 5, "concurrency": 0}, "workload.concurrency"),
        ({"isl": 5, "osl": 5, "concurrency": 2, "closed_loop": False}, "closed loop"),
        ({"isl": 5, "osl": 5, "rate": 1.0, "burstiness": 0.0}, "burstiness"),
        ({"isl": 5, "osl": 5, "rate": 1.0, "requests": -1}, "workload.requests"),
        ({"trace": "nowhere.jsonl"}, "no such file"),
        ({"trace": "open.jsonl", "format": "parquet"}, "unknown trace format"),
    ],
)
def test_a_workload_that_means_nothing_is_refused(
    folder: Path, table: dict[str, object], words: str
) -> None:
    with pytest.raises(PlanError, match=words):
        trace_of(Workload(**table), base=folder)  # type: ignore[arg-type]


def test_a_preset_survives_a_file(tmp_path: Path) -> None:
    trace = preset("agentic-coding", seed=1, requests=100)
    traces.write(trace, tmp_path / "agentic.jsonl.gz", "mooncake")
    again = trace_of(Workload(trace="agentic.jsonl.gz"), base=tmp_path)
    assert describe(again).reuse_share == describe(trace).reuse_share
    assert describe(again).session_reuse_share == describe(trace).session_reuse_share


def test_a_preset_too_large_to_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splitpoint.inputs.traces.synth.MAX_IDS", 1000)
    with pytest.raises(PlanError, match="ask for fewer requests"):
        preset("agentic-coding", requests=50)


@pytest.mark.parametrize("workload", [Workload(isl=9, osl=9), Workload(preset="chat")])
def test_a_rate_that_no_replay_could_last_for_is_named(workload: Workload) -> None:
    with pytest.raises(PlanError, match=r"workload\.rate: [\d,]+ requests at 1e-06 per second"):
        trace_of(workload, base=Path(), rate=1e-6)
