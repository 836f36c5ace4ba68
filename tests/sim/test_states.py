"""Prefix caching of a hybrid's states, worked out by hand in blocks of 16: a hit needs the state at
its end, and states are kept where chunks end."""

from typing import Any

import pytest

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.pricing.engines import rules
from splitpoint.sim import simulate
from tests.sim.small import FULL, STATE, Row, curve, mixed, split, trace

LAYOUT = (STATE, STATE, FULL)


def hits(*rows: Row, closed: bool = False, **changes: object) -> list[int]:
    """Hit tokens of each row, ten seconds after the one before unless their times say otherwise."""
    fields: dict[str, Any] = {
        "groups": LAYOUT,
        "prefix_caching": True,
        "states": True,
        "tails": True,
        **changes,
    }
    for i, row in enumerate(rows):
        row.arrive_s = row.arrive_s or 10.0 * i
    run = simulate(mixed(**fields), trace(*rows, closed=closed))
    return [int(tokens) for tokens in run.requests.hit_tokens]


def prompt(isl: int, *tail: int) -> Row:
    """A prompt that begins as all others do, and ends with ids of its own."""
    return Row(isl, 1, ids=[*range(-(-isl // 16) - len(tail)), *tail])


def test_a_prompt_is_taken_up_at_its_last_block_and_nowhere_before() -> None:
    # Of 160 tokens the last is computed anew, so the state after 144 is kept.
    assert hits(prompt(160), prompt(160)) == [0, 144]
    assert hits(prompt(160), prompt(170, 99)) == [0, 144]
    assert hits(prompt(160), prompt(130, 98)) == [0, 0]


def test_an_older_version_keeps_the_state_of_every_chunk_that_ends_at_a_block() -> None:
    # Chunks of 64 tokens: states after 64, 128 and 144.
    dense = {"tails": False, "nameless_first": True}
    assert hits(prompt(160), prompt(130, 98), **dense) == [0, 128]
    assert hits(prompt(160), prompt(100, 98), **dense) == [0, 64]
    assert hits(prompt(160), prompt(60, 98), **dense) == [0, 0]


def test_who_finds_full_blocks_without_a_state_keeps_one_there_for_the_next() -> None:
    rows = [prompt(140, 100 * i, 100 * i + 1, 100 * i + 2) for i in range(1, 5)]
    assert hits(*rows) == [0, 0, 96, 96]


def test_before_vllm_looked_for_shared_heads_they_were_found_at_chunk_ends_alone() -> None:
    rows = [prompt(140, 100 * i, 100 * i + 1, 100 * i + 2) for i in range(1, 5)]
    assert hits(*rows, tails=False, nameless_first=False) == [0, 64, 64, 64]


def test_generated_tokens_are_found_again_where_every_boundary_is_kept() -> None:
    def turns() -> tuple[Row, Row]:
        ids = [*range(7), *range(20, 26)]
        first = Row(100, 60, ids=list(range(7)), session=1)
        return first, Row(200, 1, ids=ids, session=1, turn=1, think_s=1.0)

    assert hits(*turns(), closed=True) == [0, 96]
    # 159 tokens are in the cache: nine blocks, and the state after them.
    assert hits(*turns(), closed=True, tails=False) == [0, 144]


def test_drafts_of_a_head_cost_the_last_block_of_a_hit() -> None:
    rows = (prompt(170), prompt(190, 98, 99))
    assert hits(*rows) == [0, 160]
    for row in rows:
        row.arrive_s = 0.0
    assert hits(*rows, curve=curve(drafts=1), drops_block=True) == [0, 144]


def test_a_state_that_is_named_in_this_step_is_read_in_the_next() -> None:
    # Both are there at the first step, whose budget would hold both: the second waits for the state
    # that the first writes after 64 tokens, until no step names it.
    rows = [Row(70, 1, 0.001, list(range(5))), Row(70, 1, 0.001, [*range(4), 9])]
    fields: dict[str, Any] = {"groups": LAYOUT, "prefix_caching": True, "token_budget": 256}
    run = simulate(mixed(states=True, tails=True, **fields), trace(*rows))
    assert list(run.requests.hit_tokens) == [0, 64]
    # 64 tokens at a millisecond each, and the other 6, in which that state is named once more.
    starts = run.requests.prefill_start_s
    assert starts[1] - starts[0] == pytest.approx(0.070)
    dense = simulate(mixed(states=True, **fields), trace(*rows)).requests.prefill_start_s
    assert dense[1] - dense[0] == pytest.approx(0.064)
    plain = simulate(mixed(prefix_caching=True, token_budget=256), trace(*rows))
    assert plain.requests.prefill_start_s[1] == plain.requests.prefill_start_s[0]


def test_a_request_holds_one_state_of_a_group_and_two_where_a_chunk_reads_and_writes() -> None:
    rows = [Row(100, 1, 0.001)]
    fields: dict[str, Any] = {"groups": LAYOUT, "prefix_caching": True, "states": True}
    run = simulate(mixed(tails=True, **fields), trace(*rows))
    # Chunks to 64, 96 and 100: 4 + 2, 6 + 2 x 2 and 7 + 2 x 2 blocks.
    assert list(run.series.kv_used[:3]) == [6, 10, 11]


def test_a_decode_instance_pulls_what_its_full_groups_lack_and_the_state() -> None:
    rows = [Row(100, 2, 0.001, list(range(7))), Row(100, 2, 10.0, list(range(7)))]
    fields = {"groups": LAYOUT, "prefix_caching": True, "states": True, "tails": True}
    run = simulate(split(fields, fields), trace(*rows))
    moved = run.requests.transfer_end_s - run.requests.transfer_start_s
    assert moved[0] == pytest.approx(0.105)
    assert moved[1] == pytest.approx(0.005 + (100 - 96) * 0.001)


def test_beside_windows_or_host_memory_states_are_taken_to_be_where_full_blocks_are() -> None:
    tiers: dict[str, Any] = {"host_blocks": 50, "host_bandwidth": 1e9, "block_bytes": 100}
    assert hits(prompt(160), prompt(130, 98), **tiers) == [0, 112]


@pytest.mark.parametrize(("version", "kept"), [("0.16.0", False), ("0.17.0", True)])
def test_states_are_kept_since_the_version_that_has_them_aligned(version: str, kept: bool) -> None:
    assert rules(Engine(version=version, prefix_caching=True), Topology()).states is kept
    assert not rules(Engine(name="sglang", version="0.5.6"), Topology()).states
