"""A check on a terminal."""

import io

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from splitpoint.measurement import Estimate, Statistic
from splitpoint.report.checks import render_check
from splitpoint.verdict.check import Check, check
from tests.verdict.test_check import side


def told(found: Check, width: int = 80) -> str:
    stream = io.StringIO()
    render_check(found, Console(file=stream, width=width))
    return stream.getvalue()


def full() -> Check:
    """A check with everything: beyond noise, within, not comparable, another workload."""
    tail = Statistic(mean=Estimate(value=150.0), p99=Estimate(value=1500.0))
    measured = replace(side(), name="their\x1b[31m file.json", isl=900, ttft=tail, hit_share=0.123)
    return check(replace(side(ttft=1234.5), notes=("a note",)), measured)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = told(full(), width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "\x1b" not in text


def test_what_is_beyond_noise_is_marked_and_summed_up() -> None:
    text = told(full())
    assert "TTFT mean 20.6 min 2.5 min 8.23 +723%* 10.0%" in " ".join(text.split())
    assert "Beyond noise: TTFT +723%." in text
    assert "- not compared: TTFT p99, prefix hits: not predicted" in text
    assert "- another workload? mean input tokens: 1,000.0 predicted, 900.0 measured" in text
    assert "- a note" in text


def test_agreement_is_said_in_words() -> None:
    assert "All 6 numbers that can be compared are within noise." in told(check(side(), side()))
