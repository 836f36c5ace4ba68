"""The isolated phases on a terminal, as a page and as figures."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from splitpoint.report import figures
from splitpoint.report.phases import page, render_phases, write_phases
from splitpoint.search.isolated import (
    PHASES,
    DraftsPay,
    Isolated,
    Phase,
    PhasePoint,
    Shape,
    turn_of,
)
from splitpoint.search.space import Shortfall

USERS = (1, 4, 16, 64, 128, 256, 512, 1024)


def line(phase: Phase, topology: str, drafts: int, top: float) -> tuple[PhasePoint, ...]:
    """A line that climbs to its sixth point and falls from there if it has drafts."""
    shares = (0.01, 0.1, 0.3, 0.6, 0.8, 1.0, 0.6, 0.5) if drafts else (0.01,) * 5 + (0.4, 0.7, 0.9)
    return tuple(
        PhasePoint(
            phase=phase,
            topology=topology,
            drafts=drafts,
            gpus=8,
            concurrency=users,
            tok_s_gpu=top * share,
            ttft_s=0.1 * users,
            tok_s_user=None if phase == "prefill" else 1000 / users,
            success=1.0,
            preemptions=0,
            held=450,
            seats=1024,
        )
        for users, share in zip(USERS, shares, strict=True)
    )


def sample(lines: int = 2) -> Isolated:
    """So many topologies with and without drafts; one of them turns over, one does not fit."""
    drawn = [
        line(phase, f"TP{2**i}DP4+EP", drafts, 1000.0 * (i + 1) + 100 * drafts)
        for phase in PHASES
        for i in range(lines)
        for drafts in (0, 3)
    ]
    return Isolated(
        model="someone/<b>model</b>",
        gpu="GB300",
        engine="vllm 0.32.0",
        shape=Shape(isl=8192, osl=1000, concurrencies=USERS),
        points=tuple(point for points in drawn for point in points),
        turns=tuple(turn_of(points) for points in drawn),
        drafts_pay=(
            DraftsPay(topology="TP1DP4+EP", drafts=3, pay_until=256, lose_from=512),
            DraftsPay(topology="TP2DP4+EP", drafts=3, pay_until=1024, lose_from=None),
        ),
        unfit=(Shortfall(name="TP4+EP", why="the model does not fit", bytes=90 * 2**30),),
        notes=("step times: assumed",),
    )


def told(found: Isolated, width: int) -> str:
    stream = io.StringIO()
    render_phases(found, Console(file=stream, width=width))
    return stream.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_number_is_printed_within_the_width(width: int) -> None:
    found = sample()
    text = told(found, width)
    assert max(cell_len(row) for row in text.splitlines()) <= width
    for point in found.points:
        assert f" {point.tok_s_gpu:,.0f}" in text
    assert "\x1b" not in text


def test_the_terminal_says_what_the_lines_show() -> None:
    text = " ".join(told(sample(), 80).split())
    assert "decode of TP1DP4+EP drafts=3 turns over: highest at 256 users" in text
    assert "the KV pools hold 450 requests" in text
    assert "3 drafts on TP1DP4+EP pay up to 256 users and lose from 512" in text
    assert "3 drafts on TP2DP4+EP pay at every concurrency tried" in text
    assert "TP4+EP does not fit: the model does not fit, short by 90.0 GiB a rank" in text


def test_nothing_that_fits_is_said_and_drawn_as_such(tmp_path: Path) -> None:
    empty = replace(sample(), points=(), turns=(), drafts_pay=())
    assert "no instance fits" in told(empty, 80)
    assert "No instance fits" in page(empty)
    written = write_phases(empty, tmp_path)
    assert [Path(name).name for name in written.files] == ["phases.json", "phases.html"]


def spec(found: Isolated, phase: Phase) -> dict[str, Any]:
    made: dict[str, Any] = figures.phase(found, phase).to_dict(validate=True)
    return made


def rows(made: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for data in made["datasets"].values() for row in data]


def test_a_figure_marks_where_a_line_turns_and_where_drafts_stop_paying() -> None:
    marks = [row for row in rows(spec(sample(), "decode")) if "mark" in row]
    assert {(row["topology"], row["users"], row["mark"]) for row in marks} == {
        ("TP1DP4+EP", 256, "turns over"),
        ("TP2DP4+EP", 256, "turns over"),
        ("TP1DP4+EP", 256, "drafts stop paying"),
    }
    assert "drafts stop paying" not in json.dumps(rows(spec(sample(), "prefill")))


def test_a_figure_of_many_lines_keeps_those_that_lead() -> None:
    many = sample(lines=7)
    drawn = [row for row in rows(spec(many, "decode")) if "drafts" in row]
    kept = {(row["topology"], row["drafts"]) for row in drawn}
    assert len(kept) == figures.MOST_LINES
    assert ("TP64DP4+EP", "3 drafts") in kept and ("TP1DP4+EP", "no drafts") not in kept


def test_the_page_holds_every_number_and_no_markup_of_a_name() -> None:
    html = page(sample())
    assert "<b>model" not in html and "&lt;b&gt;model" in html
    for point in sample().points:
        assert f">{point.tok_s_gpu:,.0f}<" in html
    assert "does not fit" in html and html.count('class="chart"') == 2
    # A row for each line, its peak in bold; all numbers of each point behind it, folded.
    assert html.count("<b>1,000</b>") == 0 and html.count("<b>900</b>") == 2
    assert html.count("<details><summary>32 points") == 2
    assert html.count(">tok/s/user</th>") == 1


def test_the_folder_has_the_numbers_the_page_and_the_figures(tmp_path: Path) -> None:
    write_phases(sample(), tmp_path / "new")
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == [
        "decode.png", "decode.svg", "phases.html", "phases.json", "prefill.png", "prefill.svg",
    ]  # fmt: skip
    assert json.loads((tmp_path / "new" / "phases.json").read_text())["gpu"] == "GB300"
