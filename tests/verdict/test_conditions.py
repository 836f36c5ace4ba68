"""The four conditions, by hand where they can be."""

import numpy as np
import pytest

from splitpoint.run import Run
from splitpoint.search.loads import Profile
from splitpoint.timing.operators import Batch
from splitpoint.verdict.answer import Figure, Wall
from splitpoint.verdict.conditions import (
    decode_bound,
    intensity,
    prefill_bound,
    transfer_pays,
    walls_hold,
)
from tests.search import small
from tests.test_metrics import run_of
from tests.verdict.made import SLO

PROFILE = Profile(isl=64_000, osl=400, new_tokens=18_600, pairs=1e9, context=64_000, longest=65_000)


def run(tpot: float = 0.02, transfer: float = 0.0) -> Run:
    """One request of 401 tokens."""
    return run_of(
        1,
        roles=("prefill", "decode"),
        osl=401,
        arrive_s=0.0,
        prefill_start_s=0.0,
        prefill_end_s=1.0,
        transfer_start_s=1.0,
        transfer_end_s=1.0 + transfer,
        first_token_s=1.0 + transfer,
        end_s=1.0 + transfer + 400 * tpot,
    )


def test_the_ridge_of_an_h20_is_37_flop_per_byte() -> None:
    one = np.array([1000.0])
    batch = Batch(decode=0 * one, context=0 * one, prefill=one, pairs=one, rows=one)
    found = intensity(small.model(), small.h20(), small.ready(), batch)
    assert found.ridge == pytest.approx(37.0)


def test_prefill_is_compute_bound_and_decode_memory_bound_on_an_h20() -> None:
    ours = (small.model(), small.h20(), small.ready(budget=8192), run(), PROFILE)
    prefill = prefill_bound(*ours)
    decode = decode_bound(*ours, ranks=1)
    assert prefill.holds and prefill.margin is not None and prefill.margin > 1
    assert decode.holds and decode.margin is not None and 0 < decode.margin < 1


def test_the_walls_hold_below_one_with_the_margin_that_is_left() -> None:
    def wall(occupancy: float) -> Wall:
        figure = Figure(name="x", value=occupancy, unit="B", origin="simulated")
        return Wall(
            side="decode",
            deployment="d",
            demand=figure,
            pool=figure,
            occupancy=occupancy / 2,
            peak=occupancy,
            words="w",
        )

    found = walls_hold((wall(0.2), wall(0.75)))
    assert found.holds and found.margin == pytest.approx(0.25)
    assert walls_hold((wall(1.0),)).holds  # full, and nobody waits for room
    over = walls_hold((wall(1.4),))
    assert not over.holds and over.margin == pytest.approx(-0.4)


def test_a_transfer_pays_if_it_saves_more_stall_than_it_costs() -> None:
    # 400 gaps x (30 - 20 ms) = 4 s saved, for 1 s of transfer.
    found = transfer_pays(run(0.02, transfer=1.0), run(0.03), SLO)
    assert found.holds
    assert found.value.value == pytest.approx(1.0)
    assert found.threshold.value == pytest.approx(4.0)
    assert found.margin == pytest.approx(0.75)


def test_a_split_that_decodes_no_faster_has_nothing_to_pay_with() -> None:
    found = transfer_pays(run(0.03, transfer=1.0), run(0.02), SLO)
    assert found.holds is False and found.margin is None


def test_without_a_mixed_run_the_transfer_cannot_be_judged() -> None:
    assert transfer_pays(run(), None, SLO).holds is None
