"""The rows of the agentic study that `benchmarks.agentic_study` quotes, against their source."""

import json
from pathlib import Path

import pytest
from benchmarks.agentic_study import PREFILL_RATE, PUBLISHED, TRANSFER_RATE

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
