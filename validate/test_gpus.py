"""The GPU catalogue against what engines printed on real servers."""

import json
import re
from pathlib import Path

import pytest

from splitpoint.errors import PlanError
from splitpoint.inputs import facts

PRINTED = Path(__file__).parents[2] / "shared" / "truth" / "kv_printed.json"


@pytest.mark.skipif(not PRINTED.exists(), reason="the collected evidence is not at hand")
def test_every_printed_total_is_the_catalogues() -> None:
    totals: dict[str, float] = {}
    for case in json.loads(PRINTED.read_text()):
        found = re.search(r"([0-9.]+) ?GiB", case["gpu"])
        name = re.sub(r"^[0-9]+x |[0-9.]+ ?Gi?B|[()]", "", case["gpu"]).strip()
        # "2x H20 95GiB" is a figure without decimals.
        if found and "." in found[1]:
            totals[name] = float(found[1])
    assert len(totals) >= 4
    for name, total in totals.items():
        assert facts.gpu(name).hbm_gib == pytest.approx(total, abs=0.01), name


@pytest.mark.skipif(not PRINTED.exists(), reason="the collected evidence is not at hand")
def test_every_gpu_of_the_evidence_has_a_place_or_is_known_to_have_none() -> None:
    missing = set()
    for case in json.loads(PRINTED.read_text()):
        name = re.sub(r"^[0-9]+x |[0-9.]+ ?Gi?B|[()]", "", case["gpu"]).strip()
        try:
            facts.gpu(name)
        except PlanError:
            missing.add(name)
    # An APU, and a card that its reporter does not name.
    assert missing == {"Ryzen AI Max+ 395", "WSL Blackwell"}
