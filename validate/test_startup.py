"""The 20 whole logs of real servers: every figure that vllm_cpu_golden.json has is read exactly."""

import gzip
import json
from pathlib import Path

import pytest

from splitpoint.inputs.startup import parse

TRUTH = Path(__file__).resolve().parents[2] / "shared" / "truth"
LOGS = sorted((TRUTH / "startup_logs").glob("*.log.gz"))
pytestmark = pytest.mark.skipif(not LOGS, reason="../shared is absent")


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name.removesuffix(".log.gz"))
def test_a_real_log_is_read_like_the_engine_printed_it(path: Path) -> None:
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as lines:
        (log,) = parse(lines, path.name)
    assert (log.engine, log.version, log.device) == ("vllm", "0.32.0", "cpu")
    assert log.conflicts == ()
    assert log.seen("graph_estimate") is None  # a CPU server has no such rung: absent, not zero
    golden = json.loads((TRUTH / "vllm_cpu_golden.json").read_text())
    case = golden.get(path.name.removesuffix(".log.gz"))
    if case is None:
        return
    for name, key in (
        ("kv_tokens", "tokens"),
        ("concurrency", "concurrency"),
        ("block_tokens", "block"),
        ("state_padding_percent", "pad_pct"),
    ):
        if key in case["logged"]:
            figure = log.seen(name)  # type: ignore[arg-type]
            assert figure is not None and figure.high == case["logged"][key]
