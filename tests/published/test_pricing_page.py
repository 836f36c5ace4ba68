"""The tables of docs/pricing.md, held against what is computed now."""

from pathlib import Path

from splitpoint.pricing.blocks import blocks_per_request, layout
from splitpoint.pricing.concurrency import requests_held
from tests.pricing.geometry import gib
from tests.published.test_kv_printed import alone, predicted_pool
from tests.published.test_qwen38_gb300 import MODEL, RUNS, engine_of

PAGE = (Path(__file__).parents[2] / "docs" / "pricing.md").read_text("utf-8")


def rows(head: str) -> list[list[str]]:
    """Cells of the table whose head begins so."""
    lines = PAGE.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(head)) + 2
    found = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def test_the_eight_runs_stand_there_with_the_allocators_requests_and_the_reason() -> None:
    shown = rows("| run | layout |")
    assert len(shown) == len(RUNS)
    for cells, run in zip(shown, RUNS, strict=True):
        kv = layout(MODEL, run.topology, engine_of(run))
        held = requests_held(kv, gib(run.pool), 9216)
        need = blocks_per_request(kv, 9216) * kv.block_bytes / 2**20
        assert cells[:-1] == [
            str(run.number),
            str(run.topology),
            str(run.drafts),
            f"{run.pool:.2f}",
            f"{run.published:.1f}",
            f"{need:,.1f}",
            str(held),
            f"{held * run.topology.dp:,}",
        ]
        assert ("drafts" in cells[-1]) and ("KV head" in cells[-1])


def test_the_misses_of_the_ladder_are_those_that_are_told() -> None:
    shown = {cells[0]: cells[1:] for cells in rows("| start-up | printed")}
    cases = alone()
    misses = []
    for case in cases:
        ours = predicted_pool(case)
        miss = ours / gib(case.pool_gib) - 1
        misses.append((abs(miss), case.name))
        assert shown[case.name] == [
            f"{case.pool_gib:.2f}",
            f"{ours / gib(1):.2f}",
            f"{100 * miss:+.1f}%",
        ]
    assert len(shown) == len(cases)
    ordered = sorted(misses)
    told = f"Median {100 * ordered[len(ordered) // 2][0]:.1f}%, worst {ordered[-1][1]}."
    assert told in PAGE
