"""How the simulator's functions are compiled: one decorator, one cache on disk.

numba keys its cache by the file of each function alone, so an edit in one module would leave the
callers in others stale. The cache folder here is named by a digest of every source file of this
package; compiled code is therefore never older than its source.
"""

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import numba
import numpy as np

from splitpoint.sim.inner import InnerCompiler

P = ParamSpec("P")
R = TypeVar("R")
Rows = np.recarray[tuple[int], np.dtype[np.record]]


def _digest() -> str:
    digest = hashlib.sha256(f"{numba.__version__} {np.__version__}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "splitpoint" / "kernels" / _digest()


FOLDER = _folder()


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """A function that compiled code calls: it becomes part of its `entry`.

    Kernels allocate nothing: their arrays belong to the caller, so no references are counted.
    """
    if numba.config.DISABLE_JIT:
        return function
    compiled: Callable[P, R] = numba.njit(
        pipeline_class=InnerCompiler, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)
    return compiled


def entry(function: Callable[P, R]) -> Callable[P, R]:
    """A function of kernels that Python calls; its machine code is kept in `FOLDER`."""
    if numba.config.DISABLE_JIT:
        return function
    given = numba.config.CACHE_DIR
    try:
        if not given:
            FOLDER.mkdir(parents=True, exist_ok=True)
            numba.config.CACHE_DIR = str(FOLDER)
        compiled: Callable[P, R] = numba.njit(cache=True, _nrt=False)(function)
    except OSError:
        # No folder that can be written (a read-only container): compile in each process.
        compiled = numba.njit(_nrt=False)(function)
    finally:
        numba.config.CACHE_DIR = given
    return compiled


def announce() -> None:
    """Say on stderr, when nothing is compiled yet, why the first run takes some seconds."""
    if numba.config.DISABLE_JIT or numba.config.CACHE_DIR or any(FOLDER.rglob("*.nbi")):
        return
    print("splitpoint: compiling the simulator (once, about 15 s)", file=sys.stderr, flush=True)
