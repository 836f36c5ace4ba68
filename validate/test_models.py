"""Weights of a rank against every loading figure in ../shared/truth/kv_printed.json."""

import json
import re
from pathlib import Path

import pytest

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.huggingface import load_model
from splitpoint.pricing.weights import rank_weights

PRINTED = Path(__file__).resolve().parents[2] / "shared" / "truth" / "kv_printed.json"
KEYS = ("model_loading_gib", "weights_gib", "weights_gb")
GIB = 2**30

pytestmark = pytest.mark.skipif(not PRINTED.is_file(), reason="../shared is absent")


def cases() -> list[dict[str, dict[str, object]]]:
    """The cases that print how much memory the weights took."""
    if not PRINTED.is_file():
        return []
    found = json.loads(PRINTED.read_text())
    return [case for case in found if any(key in case["printed"] for key in KEYS)]


def degree(letters: str, named: str, config: dict[str, object]) -> int:
    """One parallel degree: from a name such as TP4DP4+EP, else from its own key."""
    found = re.search(rf"{letters}(\d+)", named)
    return int(found.group(1)) if found else int(str(config.get(letters.lower(), 1)))


def topology(config: dict[str, object]) -> Topology:
    """The layout of a case; `dep` is attention by data, experts dealt over the same ranks."""
    named = str(config.get("topology", ""))
    if "dep" in config:
        ranks = int(str(config["dep"]))
        return Topology(dp=ranks, ep=ranks)
    tp, dp = degree("TP", named, config), degree("DP", named, config)
    return Topology(tp=tp, dp=dp, ep=tp * dp if "EP" in named else 1)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_the_weights_of_a_rank_are_within_one_per_cent(case: dict[str, dict[str, object]]) -> None:
    config, printed = case["config"], case["printed"]
    name = str(case["model"]).split(" ")[0]
    names = {
        "Qwen3.8-2.4T-A95B-NVFP4": "qwen3.8-2.4t",
        "GLM-5.2": "zai-org/GLM-5.2-FP8",
    }
    version = re.search(r"vLLM (\d+\.\d+)", str(case["engine"]))
    engine = Engine(version=f"{version.group(1)}.0") if version else Engine()
    drafts = bool(config.get("mtp_tokens") or config.get("mtp"))
    held = rank_weights(
        load_model(names.get(name, name), offline=True),
        topology(config),
        drafts=drafts,
        engine=engine,
    )
    wanted = next(float(str(printed[key])) for key in KEYS if key in printed)
    assert held.total / GIB == pytest.approx(wanted, rel=0.01)
