"""The rows of the agentic study that `benchmarks.agentic_study` quotes, against their source."""

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.agentic_study import (
    NONE,
    PREFILL_RATE,
    PUBLISHED,
    SEEDS,
    SHAPES,
    TRANSFER_RATE,
    measured,
    stated_curve,
    study_world,
)

from splitpoint import metrics

SOURCE = Path(__file__).parents[1] / "../shared/truth/published_studies.json"


@pytest.mark.skipif(not SOURCE.exists(), reason="no ../shared here")
def test_published_rows_are_quoted_to_the_digit() -> None:
    study = json.loads(SOURCE.read_text())["agentic_pd_study"]
    assert study["prefill_tok_s"] == PREFILL_RATE
    crossing = 40_000 * study["kv_bytes_per_token"] / TRANSFER_RATE
    assert crossing == pytest.approx(study["kv_transfer_s"]["p50_heavy_40k"], rel=0.03)
    for ours, row in zip(PUBLISHED, study["results"], strict=True):
        assert ours[1:] == (
            row["ttft_p50"],
            row["ttft_p90"],
            row["tpot_p90"],
            row["e2e_p50"],
            row["success"],
            row["wall_s"],
        )


def test_transfers_have_the_tail_that_the_study_prints() -> None:
    source = json.loads(SOURCE.read_text()) if SOURCE.exists() else None
    if source is None:
        pytest.skip("no ../shared here")
    low, high = map(float, source["agentic_pd_study"]["kv_transfer_s"]["tail"].split("-"))
    world = study_world(SHAPES[2], "round_robin", stated_curve())
    parts = [metrics.ttft_parts(measured(world, NONE, seed)).transfer for seed in SEEDS]
    assert low <= float(np.percentile(np.concatenate(parts), 99)) <= high
