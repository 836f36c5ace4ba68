"""Matching of prefill and decode counts."""

import pytest
from msgspec.structs import replace

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.slo import Slo
from splitpoint.search.loads import Load
from splitpoint.search.match import PER_ARM, Matched, matched
from splitpoint.search.phases import decode_pace, prefill_rate
from tests.search import small

SLO = Slo(ttft_s=5.0, tpot_s=0.05)


def match(load: Load, *, all_gpus: bool = True) -> Matched:
    instances = [small.ready(), small.ready(Topology(tp=2))]
    return matched(load, SLO, mixed=instances, apart=instances, gpus=8, all_gpus=all_gpus)


def test_both_arms_are_chosen_on_all_gpus() -> None:
    found = match(small.load()).chosen
    assert {estimate.gpus for estimate in found} == {8}
    arms = [estimate.decode is None for estimate in found]
    assert 0 < arms.count(True) <= PER_ARM
    assert 0 < arms.count(False) <= PER_ARM


def test_a_light_load_is_also_tried_on_fewer_gpus() -> None:
    counts = {estimate.gpus for estimate in match(small.load(0.5), all_gpus=False).chosen}
    assert 8 in counts
    assert min(counts) < 8


def test_long_prompts_ask_for_prefill_and_long_answers_for_decode() -> None:
    def prefill_share(isl: int, osl: int) -> float:
        found = match(small.load(1000.0, isl=isl, osl=osl)).chosen
        first = next(estimate for estimate in found if estimate.decode is not None)
        return first.firsts * first.first.topology.gpus / first.gpus

    assert prefill_share(12_000, 10) > 0.5 > prefill_share(200, 2_000)


def test_a_split_serves_the_lesser_of_its_sides() -> None:
    load = small.load(1e6)
    instance = small.ready()
    found = matched(load, SLO, mixed=(), apart=[instance], gpus=3, all_gpus=True)
    decode = decode_pace(instance, load.profile).rate_within(SLO.tpot_s)
    for estimate in found.chosen:
        prefill = estimate.firsts * prefill_rate(instance, load.profile)
        assert estimate.rate <= min(prefill, estimate.decodes * decode) * 1.001


def test_everything_that_was_estimated_is_either_chosen_or_pruned() -> None:
    one = small.ready()
    load = small.load()
    found = matched(load, SLO, mixed=[one], apart=[], gpus=8, all_gpus=True)
    assert sorted(e.firsts for e in (*found.chosen, *found.pruned)) == list(range(1, 9))


def test_pools_that_cannot_hand_over_are_refused_with_the_reason() -> None:
    one = small.ready()
    layout = replace(one.holding.layout, block_tokens=24)
    other = replace(one, holding=replace(one.holding, layout=layout))
    found = matched(small.load(), SLO, mixed=(), apart=[one, other], gpus=2, all_gpus=True)
    assert all(e.decode is e.first for e in found.chosen)
    assert any("blocks of" in why for _, _, why in found.refused)


@pytest.mark.parametrize("users", [1, 8, 64, 1000])
def test_more_users_never_do_less_work(users: int) -> None:
    def rate(count: int) -> float:
        load = small.load(users=count)
        found = matched(load, SLO, mixed=[small.ready()], apart=[], gpus=1, all_gpus=True)
        return found.chosen[0].rate

    assert rate(users) <= rate(2 * users) * 1.001


def test_no_instances_give_no_candidates() -> None:
    found = matched(small.load(), SLO, mixed=(), apart=(), gpus=8, all_gpus=False)
    assert found.chosen == found.pruned == ()


def test_of_splits_that_hold_a_rate_the_one_with_most_room_comes_first() -> None:
    # Long prompts and few tokens: a wide decode side is quickest and leaves prefill at its limit.
    load = small.load(0.6, isl=12_000, osl=20)
    instances = [small.ready(), small.ready(Topology(tp=2)), small.ready(Topology(tp=4))]
    found = matched(load, SLO, mixed=(), apart=instances, gpus=6, all_gpus=True, per_arm=2)
    able = [e for e in (*found.chosen, *found.pruned) if e.feasible and e.gpus == 6]
    assert len({f"{e.rate_gpu:.2g}" for e in able}) == 1
    assert found.chosen[0].strain == min(e.strain for e in able)
    assert found.chosen[0].strain < min(able, key=lambda e: e.tpot).strain


def test_of_splits_that_are_too_slow_those_that_serve_most_are_tried() -> None:
    # An overload: whoever starves its decode side has the best pace and the least use.
    load = small.load(1000.0, isl=12_000, osl=200)
    instances = [small.ready(), small.ready(Topology(tp=2)), small.ready(Topology(tp=4))]
    found = matched(load, SLO, mixed=(), apart=instances, gpus=6, all_gpus=True, per_arm=3)
    level = [e for e in (*found.chosen, *found.pruned) if e.gpus == 6]
    third = sorted((e.rate for e in level), reverse=True)[2]
    assert not any(e.feasible for e in level)
    assert min(e.tpot for e in level) < min(e.tpot for e in level if e.rate >= third)
    # Rates are told apart to two digits.
    assert all(e.rate > 0.97 * third for e in found.chosen)
