"""A fit on a terminal."""

import io

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from splitpoint.report.fits import render_fit
from splitpoint.timing.fitted import Residual, sealed
from tests.timing.test_fitted import FITTED

CURVE = sealed(
    replace(
        FITTED,
        residuals=(
            Residual(
                load="a-long-name-of-a-file-of-results-in-a-folder.json",
                metric="TTFT mean",
                measured=0.5,
                predicted=0.25,
                fitted=0.51,
            ),
            Residual(
                load="b\x1b[31m", metric="output tok/s", measured=1e4, predicted=2e4, fitted=1e4
            ),
        ),
    )
)


def told(width: int) -> str:
    stream = io.StringIO()
    render_fit(CURVE, Console(file=stream, width=width))
    return stream.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = told(width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "\x1b" not in text


def test_factors_stand_with_their_errors_and_residuals_before_and_after() -> None:
    lines = [" ".join(line.split()) for line in told(100).splitlines()]
    assert "decode step, constant part x 1.500 +- 10.0%" in lines
    assert "step with prefill x 0.500 not determined" in lines
    assert "of a request, outside of steps 100 ms not determined" in lines
    assert any(line.endswith("TTFT mean 500 ms -50% +2.0%") for line in lines)
    assert any(line.endswith("output tok/s 10,000 +100% +0.0%") for line in lines)
    assert any(line.startswith("Holds for 1 to 20 sequences") for line in lines)
