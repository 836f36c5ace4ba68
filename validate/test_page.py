"""The page in a real browser: figures drawn, nothing refused by its own policy, nothing fetched."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.report import sample

from splitpoint.report import html

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr", "--virtual-time-budget=10000", "--window-size=1280,3000",
)  # fmt: skip


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_every_figure_is_drawn_and_nothing_is_refused(tmp_path: Path) -> None:
    runs = {
        "P 6xTP1 + D 2xTP1 prefix_aware": sample.run(split=True),
        "8xTP1 prefix_aware": sample.run(),
    }
    page = tmp_path / "report.html"
    page.write_text(html.page(sample.answer(), runs))
    told = subprocess.run(
        [str(CHROMIUM), *QUIET, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom",
         page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in told.stderr
    drawn = re.findall(r'<div class="chart[^"]*"[^>]*>.*?<svg[^>]*>(.*?)</svg>', told.stdout, re.S)
    assert len(drawn) == 6
    assert all("<path" in svg for svg in drawn)
