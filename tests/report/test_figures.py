"""Figures: what they show, checked in the rows they are drawn from."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from splitpoint.errors import PlanError
from splitpoint.report import figures, words
from splitpoint.run import Run
from tests.report import sample

if TYPE_CHECKING:
    import altair as alt

CHARTS: dict[str, "Callable[[], alt.LayerChart]"] = {
    "frontier": lambda: figures.frontier(sample.answer()),
    "ttft": lambda: figures.ttft(words.best(sample.answer())),
    "ladder": lambda: figures.ladder(sample.HOLDINGS[0]),
    "walls": lambda: figures.walls(sample.WALLS),
    "occupancy of a split": lambda: figures.occupancy(sample.run(split=True)),
    "occupancy of a mixed pool": lambda: figures.occupancy(sample.run()),
}


def rows(chart: "alt.LayerChart") -> list[dict[str, Any]]:
    """Every data row of the chart."""
    spec = chart.to_dict(validate=False)
    sets = (data for data in spec["datasets"].values() if not isinstance(data, str))
    return [row for data in sets for row in data]


def strips(run: Run) -> list[dict[str, Any]]:
    """The rows of an occupancy figure."""
    spec = figures.occupancy(run).to_dict(validate=False)
    text = next(data for data in spec["datasets"].values() if isinstance(data, str))
    found: list[dict[str, Any]] = json.loads(text)
    return found


@pytest.mark.parametrize("name", CHARTS)
def test_every_figure_keeps_to_the_schema_and_fits_its_container(name: str) -> None:
    spec = CHARTS[name]().to_dict(validate=True)
    assert spec["width"] == "container"


@pytest.mark.parametrize("name", CHARTS)
def test_no_figure_fixes_a_neutral_colour(name: str) -> None:
    spec = str([layer["mark"] for layer in CHARTS[name]().to_dict()["layer"]])
    assert "black" not in spec and "white" not in spec and "#000" not in spec


def test_png_and_svg_are_drawn_without_a_browser(tmp_path: Path) -> None:
    chart = CHARTS["walls"]()
    figures.save(chart, tmp_path / "walls.png")
    figures.save(chart, tmp_path / "walls.svg")
    assert (tmp_path / "walls.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    svg = (tmp_path / "walls.svg").read_text()
    assert "112.0%" in svg and "prefill side of P 6xTP1 + D 2xTP1" in svg


def test_strips_stay_inside_the_figure_when_drawn(tmp_path: Path) -> None:
    figures.save(CHARTS["occupancy of a split"](), tmp_path / "kv.svg")
    svg = (tmp_path / "kv.svg").read_text()
    areas = re.findall(r'aria-roledescription="area mark" d="([^"]*)"', svg)
    heights = [float(y) for area in areas for y in re.findall(r"[ML][-.\d]+,([-.\d]+)", area)]
    assert len(areas) >= 4 and len(heights) > 200
    assert min(heights) >= 0 and max(heights) <= 4 * 44


def test_a_figure_has_no_other_format(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"\.png or \.svg"):
        figures.save(CHARTS["walls"](), tmp_path / "walls.pdf")


def test_the_waterfall_ends_where_the_kv_pool_begins() -> None:
    found = [row for row in rows(CHARTS["ladder"]()) if "origin" in row]
    assert [row["start"] for row in found[1:-1]] == [row["value"] for row in found[:-2]]
    assert found[-1]["start"] == 0
    assert found[-2]["value"] == pytest.approx(found[-1]["value"], abs=0.01)


def test_the_frontier_line_holds_only_points_that_no_other_of_the_arm_beats() -> None:
    answer = sample.answer()
    lines = [row for row in rows(figures.frontier(answer)) if set(row) == {"user", "gpu", "arm"}]
    for line in lines:
        arm = [p for p in answer.points if p.deployment.split == (line["arm"] == "split")]
        assert not any(
            p.interactivity > line["user"] and p.total_tok_s_gpu > line["gpu"] for p in arm
        )
    assert len(lines) == 5


def test_a_wide_range_of_throughput_is_drawn_on_a_logarithmic_scale() -> None:
    points = (
        sample.point(sample.MIXED, total=40, tpot=0.01),
        sample.point(sample.SPLIT, total=5000, tpot=0.02),
    )
    spec = figures.frontier(sample.answer(points=points)).to_dict()
    axes = [layer["encoding"].get("y", {}) for layer in spec["layer"]]
    scales = [axis["scale"]["type"] for axis in axes if axis.get("field") == "gpu"]
    assert scales and set(scales) == {"log"}


def test_a_point_without_a_median_tpot_is_left_out() -> None:
    point = sample.point(sample.MIXED, tpot=0.02)
    endless = msgspec.structs.replace(point, name="endless", interactivity=float("inf"))
    found = rows(figures.frontier(sample.answer(points=(point, endless))))
    assert not any(row.get("deployment") == "endless" for row in found)


def test_layers_without_a_row_are_not_drawn() -> None:
    point = sample.point(sample.MIXED, meets=False, name="alone")
    spec = figures.frontier(sample.answer(points=(point,))).to_dict(validate=False)
    assert not any("filter" in str(layer.get("transform")) for layer in spec["layer"])


def test_the_parts_of_a_bar_sum_to_the_number_behind_it() -> None:
    found = rows(CHARTS["ttft"]())
    for name in {row["row"] for row in found}:
        parts = sum(row["value"] for row in found if row["row"] == name and "part" in row)
        total = next(row["end"] for row in found if row["row"] == name and "end" in row)
        assert parts == pytest.approx(total)


def one_pool(times: list[float], used: list[int], held: list[int]) -> Run:
    """A run of ten seconds with one pool of 100 usable blocks."""
    plain = sample.run(instances=1, blocks=100)
    ints = np.array(used, np.int32)
    series = msgspec.structs.replace(
        plain.series,
        instance=np.zeros(len(times), np.int32),
        time_s=np.array(times),
        kv_used=ints,
        kv_cached=ints * 0,
        held=np.array(held, np.int32),
        running=ints * 0,
        waiting=ints * 0,
    )
    return msgspec.structs.replace(plain, series=series, duration_s=10.0)


def strip(run: Run, monkeypatch: pytest.MonkeyPatch, slots: int) -> tuple[list[float], list[float]]:
    """Used and held shares of the run's only strip in so many slots."""
    monkeypatch.setattr(figures, "SLOTS", slots)
    found = strips(run)
    return [row["u"] for row in found], [row["h"] for row in found]


def test_a_slot_shows_its_highest_use_and_what_it_began_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = one_pool([0.5, 1.0, 3.0, 7.9], [100, 40, 20, 60], [0, 10, 0, 0])
    # Slots of 2 s: the peak of 100 fell within the first; 40 held into the second until 3 s.
    assert strip(run, monkeypatch, 5) == ([1.0, 0.4, 0.2, 0.6, 0.6], [0.1, 0.1, 0.0, 0.0, 0.0])


def test_a_pool_without_a_change_point_is_an_empty_strip(monkeypatch: pytest.MonkeyPatch) -> None:
    assert strip(one_pool([], [], []), monkeypatch, 3) == ([0.0] * 3, [0.0] * 3)


def test_cached_prefixes_stand_on_top_of_what_is_used() -> None:
    found = strips(sample.run())
    assert all(0 < row["c"] <= 1 - row["u"] + 0.03 for row in found if row["u"] < 0.9)


def test_a_change_at_the_very_end_is_seen_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    run = one_pool([0.0, 10.0], [50, 0], [0, 0])
    assert strip(run, monkeypatch, 2)[0] == [0.5, 0.5]


def test_many_pools_keep_the_fullest_and_the_figure_small() -> None:
    found = strips(sample.run(instances=96, rows=100))
    assert len(found) <= figures.MOST_ROWS
    assert len({row["b"] for row in found}) == figures.MOST_POOLS


def test_pools_are_named_by_role_number_and_rank() -> None:
    run = sample.run(split=True)
    assert [figures.pool_name(run, pool) for pool in range(4)] == [
        "prefill 0",
        "prefill 1",
        "decode 0",
        "decode 1",
    ]
    ranks = msgspec.structs.replace(
        run.instances,
        instance=np.array([0, 0, 1, 1], np.int32),
        rank=np.array([0, 1, 0, 1], np.int32),
    )
    ranked = msgspec.structs.replace(run, instances=ranks)
    assert [figures.pool_name(ranked, pool) for pool in range(4)] == [
        "prefill 0.0",
        "prefill 0.1",
        "decode 0.0",
        "decode 0.1",
    ]
