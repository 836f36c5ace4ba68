"""Pricing against the files of printed figures beside the repository, where they are.

The tests in tests/published hold the same facts transcribed; here the files themselves are read,
so a case that is added to them is checked or listed.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.published.test_kv_printed import H100, HYBRIDS, INCOMPLETE, POOLS
from tests.published.test_qwen38_gb300 import RUNS

from splitpoint.pricing.blocks import blocks_per_request
from splitpoint.pricing.concurrency import max_concurrency, num_blocks
from splitpoint.pricing.layout import Group, KvLayout

TRUTH = Path(__file__).parents[2] / "shared" / "truth"
pytestmark = pytest.mark.skipif(not TRUTH.is_dir(), reason="../shared is absent")


def load(name: str) -> Any:
    return json.loads((TRUTH / name).read_text("utf-8"))


def test_every_printed_start_up_is_a_test_or_is_listed_as_incomplete() -> None:
    printed = load("kv_printed.json")
    ladders = sum("available_kv_gib" in c["printed"] and "gb300-run" in c["id"] for c in printed)
    # Beside the tables: two GB10 servers, two on H20, bytes a token of R1 on GB300. Mistral stands
    # in two tables, the GB10 control in one and in a test of its own.
    others = 2 + 2 + 1
    tested = len(POOLS) + len(HYBRIDS) + len(H100) + ladders + others - 2
    assert tested + len(INCOMPLETE) == len(printed)
    assert len(printed) - len(INCOMPLETE) >= 30


def test_the_eight_runs_are_those_of_the_file() -> None:
    runs = load("published_studies.json")["vllm_qwen38_pd"]["runs"]
    assert [
        (run["run"], run["weights_gib"], run["peak_act_gib"], run["non_torch_gib"]) for run in runs
    ] == [(run.number, run.weights, run.activations, run.non_torch) for run in RUNS]
    assert [
        (run["n_graphs"], run["graph_reserved_gib"], run["kv_gib"], run["max_num_seqs"])
        for run in runs
    ] == [(run.graphs, run.reserved, run.pool, run.max_seqs) for run in RUNS]


def test_real_start_ups_follow_from_pages_and_groups_alone() -> None:
    golden = load("vllm_cpu_golden.json")
    assert len(golden) == 13
    for name, case in golden.items():
        given, predicted = case["input"], case["predicted"]
        kv = laid_from(given, predicted)
        pool = given["kv_bytes"]
        assert num_blocks(kv, pool) == predicted["num_blocks"], name
        assert blocks_per_request(kv, given["max_len"]) == predicted["blocks_per_req"], name
        ours = max_concurrency(kv, pool, given["max_len"])
        assert f"{ours:.2f}" == f"{case['logged']['concurrency']:.2f}", name
        assert int(ours * given["max_len"]) == case["logged"]["tokens"], name


def laid_from(given: dict[str, Any], predicted: dict[str, Any]) -> KvLayout:
    """The layout that a file's geometry names, group by group."""
    spec = given.get("spec", 0)
    fixed = (2 if given.get("mamba_mode") == "align" else 1) + spec
    kinds = {"full": ("full", 0), "sw": ("window", 0), "gdn": ("state", fixed)}
    size = predicted["group_size"]
    groups = tuple(
        Group(
            kind=kinds[name][0],  # type: ignore[arg-type]
            layers=size,
            window=given.get("window", 0) if name == "sw" else 0,
            fixed=kinds[name][1],
        )
        for name, count in predicted["groups"].items()
        for _ in range(count)
    )
    return KvLayout(
        block_tokens=predicted.get("block", given["block"]),
        page_bytes=predicted["page_bytes"],
        group_layers=size,
        groups=groups,
        in_flight=given.get("in_flight", 0),
    )
