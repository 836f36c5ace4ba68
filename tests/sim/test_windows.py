"""Prefix caching of window groups, worked out by hand: a window of 33 tokens reaches back over two
blocks of 16, so a hit needs the two window columns before it."""

from typing import Any

import pytest

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.pricing.engines import rules
from splitpoint.pricing.layout import Group
from splitpoint.sim import simulate
from tests.sim.small import FULL, Row, mixed, trace

WINDOW = Group(kind="window", layers=1, window=33)
LAYOUT = (WINDOW, FULL)


def hits(*rows: Row, closed: bool = False, **changes: object) -> list[int]:
    """Hit tokens of each row, one after the other unless their times say otherwise."""
    fields: dict[str, Any] = {"groups": LAYOUT, "prefix_caching": True, "tails": True, **changes}
    later = [replace_time(row, 10.0 * i) for i, row in enumerate(rows)]
    run = simulate(mixed(**fields), trace(*later, closed=closed))
    return [int(tokens) for tokens in run.requests.hit_tokens]


def replace_time(row: Row, at: float) -> Row:
    return Row(row.isl, row.osl, row.arrive_s or at, row.ids, row.session, row.turn, row.think_s)


def test_a_prompt_is_taken_up_at_its_last_block_and_nowhere_before() -> None:
    prompt = list(range(10))
    again = Row(160, 1, ids=prompt)
    longer = Row(170, 1, ids=[*prompt, 99])
    shorter = Row(130, 1, ids=[*prompt[:8], 98])
    # Of 160 tokens the tail ends at block 9, for the last token is computed anew.
    assert hits(again, again) == [0, 144]
    assert hits(again, longer) == [0, 144]
    assert hits(again, shorter) == [0, 0]
    assert hits(again, shorter, tails=False) == [0, 128]


def test_who_finds_full_blocks_without_their_tail_keeps_it_for_the_next() -> None:
    head = list(range(6))
    rows = [Row(140, 1, ids=[*head, *range(100 * i, 100 * i + 3)]) for i in range(1, 5)]
    # The first keeps the end of its prompt alone; the second meets the head's full blocks.
    assert hits(*rows) == [0, 0, 96, 96]


def test_generated_tokens_are_computed_again_in_the_next_turn() -> None:
    first = Row(100, 60, ids=list(range(7)), session=1)
    second = Row(200, 1, ids=[*range(6), *range(20, 27)], session=1, turn=1, think_s=1.0)
    second.ids[6] = 6
    assert hits(first, second, closed=True) == [0, 96]
    assert hits(first, second, closed=True, tails=False) == [0, 144]


def test_what_is_left_of_a_short_prompt_is_found_from_its_start() -> None:
    # One block is less than a tail of two, and all that the window reaches.
    assert hits(Row(20, 1, ids=[1, 2]), Row(40, 1, ids=[1, 5, 6])) == [0, 16]


def test_blocks_that_pass_out_of_a_window_are_used_before_named_ones() -> None:
    # 16 usable blocks. The first prompt keeps 4 full blocks and a tail of 2 columns; the second
    # computes 12 chunks of one block, each of which frees the window column three before it.
    keep = Row(70, 1, ids=[1, 2, 3, 4, 5])
    other = Row(64, 1, ids=[11, 12, 13, 14])
    room: dict[str, Any] = {"kv_blocks": 17, "token_budget": 16, "in_flight": 16}
    assert hits(keep, other, keep, **room) == [0, 0, 64]


def test_a_window_group_beside_states_or_host_memory_does_not_count() -> None:
    prompt = Row(160, 1, ids=list(range(10)))
    shorter = Row(130, 1, ids=[*range(8), 98])
    tiers: dict[str, Any] = {"host_blocks": 50, "host_bandwidth": 1e9, "block_bytes": 100}
    assert hits(prompt, shorter, **tiers) == [0, 128]
    wide = Group(kind="window", layers=1, window=65)
    assert hits(prompt, shorter, groups=(WINDOW, wide, FULL)) == [0, 128]


def test_copies_of_blocks_that_two_compute_at_once_are_held_until_both_end() -> None:
    # The second finds 4 full blocks of the first in the same step, but no tail before them.
    rows = [Row(100, 40, 0.001, [1, 2, 3, 4, *range(10 * i, 10 * i + 3)]) for i in (1, 2)]
    fields: dict[str, Any] = {"prefix_caching": True, "groups": LAYOUT, "token_budget": 256}
    run = simulate(mixed(tails=True, **fields), trace(*rows))
    assert list(run.requests.hit_tokens) == [0, 0]
    # 7 full and 7 window blocks each, none of them shared.
    assert run.series.kv_used[0] == 28
    # Of the blocks that are full, 4 + 2 + 2 names; and three tails, one before the place they part.
    assert run.series.kv_used[-1] == 0
    assert run.series.kv_cached[-1] == 14
    shared = simulate(mixed(**fields), trace(*rows))
    assert list(shared.requests.hit_tokens) == [0, 64]


@pytest.mark.parametrize(("version", "kept"), [("0.28.0", False), ("0.29.0", True)])
def test_tails_are_kept_since_the_version_that_made_them_its_default(
    version: str, kept: bool
) -> None:
    assert rules(Engine(version=version), Topology()).tails is kept
    assert not rules(Engine(name="sglang", version="0.5.6"), Topology()).tails
