"""How a command's process uses Python and memory."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="settings of Linux")
LARGE_PAGES = (
    Path("/sys/kernel/mm/transparent_hugepage").exists() and platform.libc_ver()[0] == "glibc"
)
# Prints the flags of the mapping that an array of 16 MiB lies in, as Linux abbreviates them.
FLAGS = """
from splitpoint.process import settle
settle()
import numpy as np
array = np.ones(2 << 20)
inside = False
for line in open("/proc/self/smaps"):
    first, _, rest = line.partition(" ")
    if "-" in first:
        low, high = (int(end, 16) for end in first.split("-"))
        inside = low <= array.ctypes.data < high
    elif inside and first == "VmFlags:":
        print(rest)
"""
ODD = """
import ctypes, {modules}
{spoiled}
from splitpoint.process import settle
settle()
settle()
import numpy as np
print(int(np.arange(5_000_000).sum()))
"""


def said(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(not LARGE_PAGES, reason="a system without large pages")
def test_arrays_of_a_command_may_have_large_pages() -> None:
    assert "hg" in said(FLAGS).split()


@pytest.mark.parametrize(
    ("modules", "spoiled"),
    [
        ("os", "ctypes.CDLL = lambda name: object()"),
        ("resource", "resource.setrlimit(resource.RLIMIT_DATA, (200 << 20, 200 << 20))"),
    ],
    ids=["another C library", "little memory"],
)
def test_a_system_that_gives_none_changes_no_result(modules: str, spoiled: str) -> None:
    assert said(ODD.format(modules=modules, spoiled=spoiled)) == "12499997500000"
