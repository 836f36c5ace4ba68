"""How the simulator's functions become machine code, once, and are called from then on.

Kernels are compiled with numba as part of the entry that calls them; the machine code of an entry
is a file, in a folder named by a digest of this package's sources and of the processor, so it is
never older than its source. A process that finds the file needs neither numba nor a compiler.
"""

import ctypes
import hashlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import llvmlite.binding as llvm
import numpy as np

from splitpoint.sim.arrays import Arrays

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=Arrays)
Rows = np.recarray[tuple[int], np.dtype[np.record]]

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
# The entry that kernels belong to.
PROGRAM = "run"


def _folder() -> Path:
    numba = find_spec("numba")
    assert numba is not None and numba.origin is not None
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(np.__version__.encode())
    digest.update(f"{llvm.llvm_version_info} {llvm.get_host_cpu_name()}".encode())
    digest.update(llvm.get_host_cpu_features().flatten().encode())
    for path in (Path(numba.origin).with_name("_version.py"), *sources):
        digest.update(path.read_bytes())
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "splitpoint" / "kernels" / digest.hexdigest()[:16]


FOLDER = _folder()


def _stored(name: str) -> bytes | None:
    """The machine code kept for an entry: its symbol, a newline, an object file."""
    try:
        return (FOLDER / name).read_bytes()
    except OSError:
        return None


def _store(name: str, code: bytes) -> None:
    """Keep machine code; where no folder can be written each process compiles."""
    part = FOLDER / f"{name}.{os.getpid()}"
    with suppress(OSError):
        FOLDER.mkdir(parents=True, exist_ok=True)
        part.write_bytes(code)
        part.replace(FOLDER / name)


KEPT = None if INTERPRETED else _stored(PROGRAM)


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """A function that compiled code calls: it becomes part of its `entry`.

    Kernels allocate nothing: their arrays belong to the caller, so no references are counted.
    """
    if INTERPRETED or KEPT is not None:
        return function
    # Heavy: imported only where something is to be compiled.
    from splitpoint.sim.inner import inner

    compiled: Callable[P, R] = inner(function)
    return compiled


class Entry(Generic[S]):
    """A function of kernels that Python calls with the arrays it works on."""

    def __init__(self, function: Callable[[S], None]) -> None:
        self.function = function
        self.name = function.__name__.lstrip("_")
        self.code: Any = None
        self.engine: Any = None

    def __call__(self, arrays: S) -> None:
        """Run it."""
        if INTERPRETED:
            self.function(arrays)
            return
        if self.code is None:
            self._load(arrays)
        result, exception = ctypes.c_void_p(), ctypes.c_void_p()
        if self.code(ctypes.byref(result), ctypes.byref(exception), arrays.address) > 0:
            raise RuntimeError(f"{self.name} met what cannot happen")

    def _load(self, arrays: S) -> None:
        code = KEPT if self.name == PROGRAM else _stored(self.name)
        if code is None:
            from splitpoint.sim.inner import compiled

            if self.name == PROGRAM:
                print("splitpoint: compiling the simulator (once, about 15 s)", file=sys.stderr)
            code = compiled(self.function, arrays)
            _store(self.name, code)
        symbol, _, machine_code = code.partition(b"\n")
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(
            codemodel="jitdefault", jit=True
        )
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self.engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(machine_code))
        self.engine.finalize_object()
        # numba's convention: where the result goes, where an exception goes, the arguments; the
        # status is above 0 where an exception was raised.
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self.code = kind(self.engine.get_function_address(symbol.decode()))


def entry(function: Callable[[S], None]) -> Entry[S]:
    """A function of kernels that Python calls; its machine code is kept in `FOLDER`."""
    return Entry(function)
