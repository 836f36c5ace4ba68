"""SGLang's scheduling: prefills alone, room kept for outputs, retraction, and its decode side.

16 tokens a block, 1 ms a prefill token, 10 ms a decode step.
"""

from typing import Any

import pytest

from splitpoint.errors import PlanError
from splitpoint.sim import simulate
from splitpoint.sim.world import Reserve
from tests.sim.small import Row, curve, mixed, split, trace

SGLANG = Reserve()


def test_prefills_go_alone_and_decodes_rest_meanwhile() -> None:
    rows = trace(Row(isl=10, osl=50), Row(isl=20, osl=1, arrive_s=0.015))
    run = simulate(mixed(reserve=SGLANG), rows)
    # A's step ends at 20 ms, B's 20 tokens at 40 ms; A's 49 decode steps are 20 ms later by it.
    assert run.requests.first_token_s[1] == pytest.approx(0.04, abs=1e-12)
    assert run.requests.end_s[0] == pytest.approx(0.01 + 0.49 + 0.02, abs=1e-12)
    i = run.instances
    assert (i.prefill_steps[0], i.decode_steps[0], i.mixed_steps[0]) == (2, 49, 0)


def test_with_mixed_chunks_decodes_join_the_steps_that_prefill() -> None:
    # The step from 20 ms on is B's 20 tokens and A's one: 21 ms. So A ends 11 ms after it would
    # alone, not 20, and B's tokens come 1 ms later.
    rows = trace(Row(isl=10, osl=50), Row(isl=20, osl=1, arrive_s=0.015))
    run = simulate(mixed(reserve=Reserve(mixed=True)), rows)
    assert run.requests.first_token_s[1] == pytest.approx(0.041, abs=1e-12)
    assert run.requests.end_s[0] == pytest.approx(0.01 + 0.49 + 0.011, abs=1e-12)
    i = run.instances
    assert (i.prefill_steps[0], i.decode_steps[0], i.mixed_steps[0]) == (1, 48, 1)


@pytest.mark.parametrize(("drafts", "decoded"), [(0, 21), (1, 1)])
def test_ranks_that_prefill_nothing_decode_meanwhile_but_with_drafts(
    drafts: int, decoded: int
) -> None:
    # A's rank decodes from 10 ms on, in steps of 10 ms. B's 960 tokens take 20 steps of 48 ms on
    # the other rank, the first of them from 20 ms on; A's tokens then come one with each of them.
    rows = trace(Row(isl=10, osl=100), Row(isl=960, osl=1, arrive_s=0.015))
    world = mixed(
        dp=2, token_budget=48, curve=curve(drafts=drafts), reserve=SGLANG, routing="round_robin"
    )
    run = simulate(world, rows)
    assert run.requests.first_token_s[1] == pytest.approx(0.98, abs=1e-12)
    assert run.instances.decode_steps[0] == 99
    # What A has not decoded by B's end takes 10 ms each.
    assert run.requests.end_s[0] == pytest.approx(0.98 + 0.01 * (99 - decoded), abs=1e-12)


def test_who_decodes_takes_of_the_budget_of_mixed_chunks() -> None:
    # 32 tokens a step. A decodes when B's 63 tokens come: 16, which is a whole block, 31 and 16
    # instead of 32 and 31.
    rows = trace(Row(isl=10, osl=50), Row(isl=63, osl=1, arrive_s=0.015))
    for reserve, steps in ((Reserve(mixed=True), (1, 3)), (SGLANG, (3, 0))):
        i = simulate(mixed(token_budget=32, reserve=reserve), rows).instances
        assert (i.prefill_steps[0], i.mixed_steps[0]) == steps


@pytest.mark.parametrize(("osl", "start"), [(16, 0.016), (64, 0.646)])
def test_admission_keeps_room_for_outputs(osl: int, start: float) -> None:
    # 8 blocks, one in use. A may generate 63 more tokens, 70% of which are 44. With B's own 16 they
    # are 4 blocks beside its prompt's one: room. With 64, 7 blocks: B waits for A's end, at
    # 16 + 63 x 10 ms; vLLM admits both.
    rows = trace(Row(isl=16, osl=64), Row(isl=16, osl=osl, arrive_s=0.005))
    for reserve, seen in ((SGLANG, start), (None, 0.016)):
        run = simulate(mixed(kv_blocks=9, reserve=reserve), rows)
        assert run.requests.prefill_start_s[1] == pytest.approx(seen, abs=1e-12)


def test_who_has_generated_least_is_retracted_and_of_those_the_longest_prompt() -> None:
    # 8 blocks, 3 for each prompt. A takes its 4th at once, B at its 49th token; when A needs its
    # 5th, both have generated as much. vLLM preempts B, which came last.
    rows = trace(Row(isl=48, osl=60), Row(isl=40, osl=60))
    careless = Reserve(first=0.0, least=0.0, horizon=1)
    for reserve, preempted in ((careless, [1, 0]), (None, [0, 1])):
        run = simulate(mixed(kv_blocks=9, token_budget=128, reserve=reserve), rows)
        assert list(run.requests.preemptions) == preempted
        assert (run.requests.outcome == 0).all()


def test_a_retracted_request_waits_behind_those_that_came_before() -> None:
    # C needs more blocks than are left until A or B has ended, at 678 ms. Then its 64 tokens are
    # next, before A's; with vLLM B's 40 + 17 come first, in the same step.
    rows = trace(Row(isl=48, osl=60), Row(isl=40, osl=60), Row(isl=64, osl=1, arrive_s=0.1))
    careless = Reserve(first=0.0, least=0.0, horizon=1)
    for reserve, preempted, tokens in ((careless, [1, 0, 0], 64), (None, [0, 1, 0], 64 + 57)):
        run = simulate(mixed(kv_blocks=9, token_budget=128, reserve=reserve), rows)
        assert list(run.requests.preemptions) == preempted
        assert run.requests.first_token_s[2] == pytest.approx(0.678 + tokens / 1000, abs=1e-12)


def test_the_first_token_comes_with_the_kv() -> None:
    world = split(prefill={"reserve": SGLANG}, decode={"reserve": SGLANG})
    r = simulate(world, trace(Row(isl=40, osl=3), Row(isl=40, osl=1, arrive_s=1.0))).requests
    assert r.transfer_end_s[0] == r.first_token_s[0] == pytest.approx(0.085)
    assert r.end_s[0] == pytest.approx(0.105)
    assert r.end_s[1] == r.transfer_end_s[1]


def test_a_first_token_that_came_with_the_kv_leaves_at_the_end_of_the_step_that_runs() -> None:
    # A decodes from 85 ms on, a step each 10 ms. B's reservation waits for 215 ms, its transfer of
    # 45 ms ends at 260 ms; the step that starts at 265 ms is over at 275 ms, with B's first token,
    # and B's second comes with the step that starts then.
    decode = {"reserve": SGLANG, "batches_in_flight": 2}
    world = split(prefill={"reserve": SGLANG, "replicas": 2}, decode=decode)
    rows = trace(Row(isl=40, osl=40), Row(isl=40, osl=2, arrive_s=0.17))
    r = simulate(world, rows).requests
    assert r.transfer_end_s[1] == pytest.approx(0.26)
    assert r.first_token_s[1] == pytest.approx(0.275)
    assert r.end_s[1] == pytest.approx(0.285)
    # What A's first token is: nothing ran.
    assert r.first_token_s[0] == r.transfer_end_s[0]


def test_who_comes_with_its_kv_takes_of_the_budget_of_a_step_that_prefills_beside_it() -> None:
    # B prefills on the decode side, and comes as A's KV is there: of 64 tokens A takes one, so B
    # is cut at the end of a block: 49 tokens, then 17.
    world = split(decode={"reserve": Reserve(mixed=True)}, direct_below=70)
    a = Row(isl=80, osl=9)
    there = float(simulate(world, trace(a)).requests.transfer_end_s[0])
    r = simulate(world, trace(a, Row(isl=64, osl=1, arrive_s=there))).requests
    assert r.prefill_start_s[1] == r.first_token_s[0] == there
    assert r.first_token_s[1] == pytest.approx(there + 0.066)


def test_the_decode_side_keeps_tokens_free_for_each_of_its_requests() -> None:
    # 8 blocks; 2 for each prompt, and 2 kept free for each request there and the new one. The
    # second fits (2 + 4 of 6), the third would need 2 + 6 of 4.
    def starts(**decode: Any) -> list[float]:
        world = split(prefill={"replicas": 3}, decode={"kv_blocks": 9, **decode})
        run = simulate(world, trace(*(Row(isl=32, osl=3) for _ in range(3))))
        return [float(second) for second in run.requests.transfer_start_s]

    assert starts() == [0.032] * 3
    kept = starts(reserve=Reserve(remote=32))
    assert kept[:2] == [0.032] * 2
    assert kept[2] > 0.032 + 0.005 + 0.064


def test_a_request_retracted_on_the_decode_side_decodes_on_from_host_memory() -> None:
    # B is there at 40 ms, A at 48 and in the step from 50 ms. At 210 ms A's 65th token wants a
    # ninth block: A has 17 tokens, B 18. 4 blocks for A and one for each must be free: when B has
    # ended, at 630 ms. Then 43 steps; computed again it would be 65 ms and 42 steps.
    careless = Reserve(first=0.0, least=0.0, horizon=1, remote=16)
    world = split(
        prefill={"replicas": 2, "reserve": careless},
        decode={"kv_blocks": 9, "reserve": careless},
        link={"bandwidth": 1e15, "latency": 0.0},
    )
    run = simulate(world, trace(Row(isl=48, osl=60), Row(isl=40, osl=60)))
    assert list(run.requests.preemptions) == [1, 0]
    assert list(run.requests.end_s) == pytest.approx([1.06, 0.63])
    assert (run.instances.prefill_steps[-1], run.instances.mixed_steps[-1]) == (0, 0)


def test_the_decode_side_keeps_what_one_request_needs_to_end_when_the_others_have_left() -> None:
    # Both need 6 of 8 blocks to end. With g tokens of A out, B may count on the 32 + g of a
    # retracted A: it needs 2 blocks, ceil((32 - g) / 16) for its output and ceil((64 - g) / 16) for
    # A's. That is 4, as many as are free, when A has 32 tokens, 31 steps after 32 ms.
    world = split(
        prefill={"replicas": 2, "reserve": SGLANG},
        decode={"kv_blocks": 9, "reserve": Reserve(remote=0)},
        link={"bandwidth": 1e15, "latency": 0.0},
    )
    run = simulate(world, trace(Row(isl=32, osl=64), Row(isl=32, osl=64, arrive_s=0.02)))
    assert list(run.requests.transfer_start_s) == pytest.approx([0.032, 0.342])


@pytest.mark.parametrize(
    ("longest_first", "starts"), [(False, [0.206, 0.27]), (True, [0.222, 0.206])]
)
def test_who_finds_most_of_its_prompt_goes_first(longest_first: bool, starts: list[float]) -> None:
    # One seat. While it is taken until 1,206 ms a cold prompt comes, then one of 80 tokens, 64 of
    # which an earlier request has left.
    rows = trace(
        Row(isl=64, osl=1, ids=[1, 2, 3, 4]),
        Row(isl=16, osl=20, ids=[5], arrive_s=1.0),
        Row(isl=64, osl=1, ids=[6, 7, 8, 9], arrive_s=1.05),
        Row(isl=80, osl=1, ids=[1, 2, 3, 4, 10], arrive_s=1.06),
    )
    reserve = Reserve(longest_first=longest_first)
    r = simulate(mixed(max_seqs=1, prefix_caching=True, reserve=reserve), rows).requests
    assert list(r.prefill_start_s[2:]) == pytest.approx([1 + start for start in starts])
    assert list(r.hit_tokens) == [0, 0, 0, 64]


@pytest.mark.parametrize(
    ("longest_first", "hits", "tokens_s"),
    [(False, 0, [0.16, 0.16, 0.224]), (True, 48, [0.16, 0.176, 0.16])],
)
def test_prompts_that_begin_alike_do_not_share_a_step_but_wait_for_the_first_of_them(
    longest_first: bool, hits: int, tokens_s: list[float]
) -> None:
    # Three prompts of 64 tokens wait at 32 ms, the first two are one prompt; a step takes two. A
    # step's own blocks are in the tree when it has ended.
    rows = trace(
        Row(isl=32, osl=1, ids=[1, 2]),
        Row(isl=64, osl=1, ids=[3, 4, 5, 6], arrive_s=0.01),
        Row(isl=64, osl=1, ids=[3, 4, 5, 6], arrive_s=0.01),
        Row(isl=64, osl=1, ids=[7, 8, 9, 10], arrive_s=0.01),
    )
    reserve = Reserve(longest_first=longest_first)
    r = simulate(mixed(token_budget=128, prefix_caching=True, reserve=reserve), rows).requests
    assert r.hit_tokens[2] == hits
    assert list(r.first_token_s[1:]) == pytest.approx(tokens_s)


def test_the_end_of_a_prompt_is_evicted_as_it_was_computed() -> None:
    # 8 blocks. A leaves 4 in the cache, B needs 5: vLLM takes one of A's, SGLang all four.
    rows = trace(
        Row(isl=64, osl=1, ids=[1, 2, 3, 4]),
        Row(isl=80, osl=1, ids=[5, 6, 7, 8, 9], arrive_s=1.0),
        Row(isl=80, osl=1, ids=[1, 2, 3, 4, 10], arrive_s=2.0),
    )
    for reserve, hits in ((SGLANG, 0), (None, 48)):
        world = mixed(kv_blocks=9, token_budget=128, prefix_caching=True, reserve=reserve)
        assert list(simulate(world, rows).requests.hit_tokens) == [0, 0, hits]


def test_a_prompt_is_first_cut_at_the_end_of_a_block() -> None:
    # 32, 40 and 8 of 80 tokens; with vLLM 40 and 40.
    for reserve, steps in ((SGLANG, 3), (None, 2)):
        run = simulate(mixed(token_budget=40, reserve=reserve), trace(Row(isl=80, osl=1)))
        assert run.instances.prefill_steps[0] == steps


def test_a_retraction_goes_on_until_the_next_step_fits() -> None:
    # 12 blocks, all taken when three requests need another. One gives 4 back, which is less than
    # two need for 60 steps.
    careless = Reserve(first=0.0, least=0.0, horizon=1, retract_steps=60)
    rows = trace(*(Row(isl=48, osl=40) for _ in range(3)))
    run = simulate(mixed(kv_blocks=13, token_budget=256, reserve=careless), rows)
    assert list(run.requests.preemptions) == [0, 0, 1]


@pytest.mark.parametrize(
    "changes", [{"first": 1.1}, {"least": 0.8}, {"fall_steps": 0}, {"horizon": 0}, {"remote": -1}]
)
def test_a_reserve_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="reserve"):
        simulate(mixed(reserve=Reserve(**changes)), trace(Row(isl=1, osl=1)))
