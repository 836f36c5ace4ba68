"""Operations on a trace, on small worlds by hand and against a plain rereading of each rule."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitpoint.errors import PlanError
from splitpoint.inputs.trace import (
    Trace,
    cap_think,
    cut,
    describe,
    first,
    repeated,
    reuse,
    sample,
    scale_rate,
    take,
    with_starts,
)
from splitpoint.inputs.traces.columns import (
    Identities,
    assembled,
    named_prefixes,
    prefixes_by_level,
)
from splitpoint.inputs.traces.synth import preset


def world(
    rows: list[tuple[float, int, int, int, list[int]]],
    *,
    block: int = 4,
    think: list[float] | None = None,
    closed: bool = False,
) -> Trace:
    """A trace of (arrive, isl, osl, session, ids) rows."""
    ids = [block for row in rows for block in row[4]]
    return assembled(
        "world",
        arrive_s=np.array([row[0] for row in rows], float),
        isl=np.array([row[1] for row in rows], np.int32),
        osl=np.array([row[2] for row in rows], np.int32),
        session=np.array([row[3] for row in rows], np.int64),
        think_s=None if think is None else np.array(think),
        identities=Identities(
            np.array(ids, np.int64), np.array([len(row[4]) for row in rows], np.int64), block
        ),
        closed=closed,
        source="by hand",
    )


# Blocks of 4 tokens. Session 7 grows; session 9 shares its first block; the last has a tail.
ROWS = [
    (10.0, 8, 2, 7, [1, 2]),
    (12.0, 12, 4, 9, [1, 5, 6]),
    (20.0, 13, 2, 7, [1, 2, 3, 4]),
    (100.0, 18, 2, 7, [1, 2, 3, 8, 9]),
]
THINK = [0.0, 0.0, 5.0, 60.0]


def test_a_trace_starts_at_zero_with_turns_counted() -> None:
    trace = world(ROWS, think=THINK, closed=True)
    assert trace.arrive_s.tolist() == [0, 2, 10, 90]
    assert trace.session.tolist() == [0, 1, 0, 0]
    assert trace.turn.tolist() == [0, 0, 1, 2]
    assert trace.duration_s == 90


def test_reuse_counts_full_blocks_and_never_the_last_token() -> None:
    found = reuse(world(ROWS))
    # Row 1: block 1. Row 2 (13 tokens): blocks 1 and 2; row 3: blocks 1, 2 and the full block 3.
    assert found.anywhere.tolist() == [0, 4, 8, 12]
    assert found.in_session.tolist() == [0, 0, 8, 12]
    again = world([(0, 8, 1, 0, [1, 2]), (1, 8, 1, 1, [1, 2])])
    assert reuse(again).anywhere.tolist() == [0, 4]


def test_a_partial_block_is_not_reused() -> None:
    trace = world([(0, 6, 1, 0, [1, 2]), (1, 7, 1, 1, [1, 2]), (2, 12, 1, 2, [1, 2, 3])])
    assert reuse(trace).anywhere.tolist() == [0, 4, 4]


def test_describe_says_each_number() -> None:
    summary = describe(world(ROWS, think=THINK, closed=True))
    assert (summary.requests, summary.sessions) == (4, 2)
    assert summary.rate == pytest.approx(4 / 90)
    assert summary.peak_rate == pytest.approx(3 / 60)
    assert summary.isl.mean == 51 / 4
    assert summary.isl.p50 == 12.5
    assert summary.isl.max == 18
    assert summary.osl.p90 == pytest.approx(3.4)
    assert (summary.input_tokens, summary.output_tokens) == (51, 10)
    assert summary.reuse_share == pytest.approx(24 / 51)
    assert summary.session_reuse_share == pytest.approx(20 / 24)
    assert summary.shared_prefix_share == pytest.approx(4 / 51)
    assert (summary.turns_mean, summary.turns_max) == (2.0, 3)
    assert summary.think_p50_s == 32.5
    assert summary.block_tokens == 4


def test_an_open_loop_has_no_think_time_and_one_burst_no_rate() -> None:
    summary = describe(world([(3, 8, 2, 0, []), (3, 8, 2, 1, [])]))
    assert summary.think_p50_s is None
    assert (summary.duration_s, summary.rate, summary.peak_rate) == (0, 0, 0)
    assert summary.reuse_share == 0
    # Two rows of 8 tokens without ids in a trace that has none.
    assert summary.block_tokens is None


def test_first_and_cut_number_sessions_turns_and_ids_anew() -> None:
    trace = world(ROWS, think=THINK, closed=True)
    assert first(trace, 2).session.tolist() == [0, 1]
    assert len(first(trace, 99)) == 4
    part = cut(trace, 5.0, 90.5)
    assert part.arrive_s.tolist() == [5.0, 85.0]
    assert part.session.tolist() == [0, 0]
    assert part.turn.tolist() == [0, 1]
    assert part.think_s.tolist() == [0.0, 60.0]
    assert part.block_ids.tolist() == [0, 1, 2, 3, 0, 1, 2, 4, 5]
    with pytest.raises(PlanError, match="no request arrives"):
        cut(trace, 91, 99)
    with pytest.raises(PlanError, match="empty window"):
        cut(trace, 5, 5)
    with pytest.raises(PlanError, match="0 requests"):
        first(trace, 0)


def test_a_sample_takes_whole_sessions() -> None:
    trace = preset("chat", seed=1, requests=400)
    sizes = np.bincount(trace.session)
    part = sample(trace, share=0.25, seed=5)
    assert part.session.max() + 1 == round(0.25 * len(sizes))
    for session in range(int(part.session.max()) + 1):
        turns = part.turn[part.session == session]
        assert turns.tolist() == list(range(len(turns)))
    some = sample(trace, n=100, seed=5)
    assert 100 <= len(some) < 100 + sizes.max()
    assert sample(trace, n=100, seed=5).arrive_s.tolist() == some.arrive_s.tolist()
    assert sample(trace, n=100, seed=6).arrive_s.tolist() != some.arrive_s.tolist()
    assert len(sample(trace, share=1.0)) == len(sample(trace, n=10_000)) == 400


@pytest.mark.parametrize(
    "how", [{}, {"share": 0.5, "n": 3}, {"share": 0.0}, {"share": 1.5}, {"n": 0}]
)
def test_a_sample_needs_one_measure(how: dict[str, float]) -> None:
    with pytest.raises(PlanError, match="sample"):
        sample(world(ROWS), **how)  # type: ignore[arg-type]


def test_an_open_loop_is_scaled_request_by_request() -> None:
    trace = world(ROWS)
    assert scale_rate(trace, 2.0).arrive_s.tolist() == [0, 1, 5, 45]
    assert describe(scale_rate(trace, 2.0)).rate == pytest.approx(2 * describe(trace).rate)


def test_a_closed_loop_is_scaled_session_by_session() -> None:
    trace = world(ROWS, think=THINK, closed=True)
    scaled = scale_rate(trace, 4.0)
    # Session 1 starts at 2 / 4; the turns of session 0 keep their distance from its start at 0.
    assert scaled.arrive_s.tolist() == [0, 0.5, 10, 90]
    assert scaled.think_s.tolist() == THINK
    for factor in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(PlanError, match="scale"):
            scale_rate(trace, factor)


def test_sessions_that_start_together_are_scaled_in_number() -> None:
    together = with_starts(world(ROWS, think=THINK, closed=True), np.zeros(2))
    assert together.arrive_s.tolist() == [0, 0, 10, 90]
    more = scale_rate(together, 1.5)
    assert sorted(np.bincount(more.session)) == [1, 3, 3]
    assert more.arrive_s.tolist() == [0, 0, 0, 10, 10, 90, 90]
    fewer = scale_rate(together, 0.5)
    assert fewer.isl.tolist() == [8, 13, 18]
    assert scale_rate(together, 1.0).isl.tolist() == together.isl.tolist()


def test_a_copy_of_a_session_shares_only_what_sessions_share() -> None:
    trace = world(ROWS, think=THINK, closed=True)
    twice = repeated(trace, 2)
    assert np.bincount(twice.session).tolist() == [3, 1, 3, 1]
    assert twice.isl.tolist() == [8, 8, 12, 12, 13, 13, 18, 18]
    # Block 1 is in both sessions; the rest of a copy is its own.
    assert reuse(twice).anywhere.tolist() == [0, 4, 4, 4, 8, 8, 12, 12]
    assert reuse(twice).in_session.tolist() == [0, 0, 0, 0, 8, 8, 12, 12]
    assert "2 times" in twice.notes[-1]
    assert repeated(trace, 1) is trace
    with pytest.raises(PlanError, match="copies of world"):
        repeated(trace, 10**8)


def test_a_cap_on_think_time_moves_later_turns_up() -> None:
    trace = world(ROWS, think=THINK, closed=True)
    capped = cap_think(trace, 4.0)
    assert capped.think_s.tolist() == [0, 0, 4, 4]
    assert capped.arrive_s.tolist() == [0, 2, 9, 33]
    assert cap_think(trace, 1e9).arrive_s == pytest.approx(trace.arrive_s)
    with pytest.raises(PlanError, match="think_cap_s"):
        cap_think(trace, -1.0)


def test_a_cap_may_change_the_order_of_arrival() -> None:
    rows = [(0.0, 4, 1, 0, [1]), (50.0, 4, 1, 1, [2]), (90.0, 8, 1, 0, [1, 3])]
    capped = cap_think(world(rows, think=[0, 0, 80.0], closed=True), 10.0)
    assert capped.arrive_s.tolist() == [0, 20, 50]
    assert capped.session.tolist() == [0, 0, 1]
    assert capped.isl.tolist() == [4, 8, 4]
    assert reuse(capped).anywhere.tolist() == [0, 4, 0]
    # A think time of 80 s in a gap of 30 s takes away no more than the gap.
    rows = [(0.0, 4, 1, 0, [1]), (30.0, 8, 1, 0, [1, 3]), (50.0, 12, 1, 0, [1, 3, 4])]
    capped = cap_think(world(rows, think=[0, 80.0, 5.0], closed=True), 10.0)
    assert capped.arrive_s.tolist() == [0, 0, 20]


def plain_reuse(trace: Trace, *, same_session: bool) -> list[int]:
    """Leading full blocks that some earlier row (of the session) holds, in tokens."""
    size = trace.block_tokens
    rows = [
        trace.block_ids[start:end].tolist()
        for start, end in zip(trace.block_starts[:-1], trace.block_starts[1:], strict=True)
    ]
    found = []
    for row, ids in enumerate(rows):
        best = 0
        for before in range(row):
            if same_session and trace.session[before] != trace.session[row]:
                continue
            common = 0
            limit = min(int(trace.isl[before]) // size, (int(trace.isl[row]) - 1) // size)
            while common < limit and rows[before][common] == ids[common]:
                common += 1
            best = max(best, common)
        found.append(best * size)
    return found


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    rows = []
    for _ in range(draw(st.integers(1, 12))):
        isl = draw(st.integers(1, 30))
        ids = draw(st.lists(st.integers(0, 2), min_size=-(-isl // 4), max_size=-(-isl // 4)))
        arrive = draw(st.integers(0, 200))
        rows.append((float(arrive), isl, draw(st.integers(1, 9)), draw(st.integers(0, 3)), ids))
    think = [float(draw(st.integers(0, 90))) for _ in rows]
    return world(rows, think=think, closed=draw(st.booleans()))


@settings(max_examples=100, deadline=None)
@given(traces())
def test_reuse_agrees_with_a_search_of_all_earlier_rows(trace: Trace) -> None:
    found = reuse(trace)
    assert found.anywhere.tolist() == plain_reuse(trace, same_session=False)
    assert found.in_session.tolist() == plain_reuse(trace, same_session=True)


@settings(max_examples=50, deadline=None)
@given(traces(), st.data())
def test_every_part_of_a_trace_is_a_trace(trace: Trace, data: st.DataObject) -> None:
    rows = data.draw(st.sets(st.integers(0, len(trace) - 1), min_size=1))
    kept = sorted(rows)
    for part in (trace, take(trace, np.array(kept)), cap_think(trace, 10.0)):
        assert (np.diff(part.arrive_s) >= 0).all()
        assert np.diff(part.block_starts).tolist() == (-(-part.isl // 4)).tolist()
        assert set(part.block_ids) == set(range(int(part.block_ids.max()) + 1))
        assert set(part.session) == set(range(int(part.session.max()) + 1))
        for session in set(part.session.tolist()):
            own = part.turn[part.session == session]
            assert own.tolist() == list(range(len(own)))
        assert (part.think_s[part.turn == 0] == 0).all()
        describe(part)
    part = take(trace, np.array(kept))
    assert part.isl.tolist() == trace.isl[kept].tolist()
    # What is left of the rows cannot be reused more than all of them were.
    assert (reuse(part).anywhere <= reuse(trace).anywhere[kept]).all()


def test_a_description_of_many_sessions_is_the_same_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = preset("chat", seed=2, requests=300)
    whole = reuse(trace).in_session
    monkeypatch.setattr("splitpoint.inputs.trace.IDS_AT_ONCE", 50)
    assert reuse(trace).in_session.tolist() == whole.tolist()


def test_an_empty_trace_cannot_be_described() -> None:
    trace = world(ROWS)
    with pytest.raises(PlanError, match="empty"):
        describe(
            msgspec.structs.replace(
                trace,
                isl=trace.isl[:0],
                osl=trace.osl[:0],
                arrive_s=trace.arrive_s[:0],
            )
        )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=8))
def test_ids_that_name_their_prefix_are_told_without_a_walk_by_level(rows: list[list[int]]) -> None:
    counts = np.array([len(row) for row in rows], np.int64)
    loose = Identities(np.array([block for row in rows for block in row], np.int64), counts, 4)
    named = prefixes_by_level(loose)
    told = named_prefixes(Identities(named.astype(np.int64) + 7, counts, 4))
    assert told is not None
    assert told.tolist() == named.tolist()
    prefixes = [tuple(row[: place + 1]) for row in rows for place in range(len(row))]
    assert (
        len(set(prefixes))
        == len(set(named.tolist()))
        == len(set(zip(prefixes, named.tolist(), strict=True)))
    )
