"""How functions become machine code, once, and are called from then on.

Kernels are compiled with numba as part of the entry that calls them; the machine code of an entry
is a file, in a folder named by a digest of the sources and of the processor, so it is never older
than its source. A process that finds the file needs neither numba nor a compiler.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec, source_hash
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from splitpoint.native.arrays import Arrays

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=Arrays)
Rows = np.recarray[tuple[int], np.dtype[np.record]]

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
# The entry that kernels belong to.
PROGRAM = "run"
# What tells processors apart in Linux's list of them, on x86 and on Arm.
TELLING = (
    *(b"vendor_id", b"cpu family", b"model", b"model name", b"stepping", b"flags"),
    *(b"Features", b"CPU implementer", b"CPU architecture", b"CPU variant", b"CPU part"),
)
# Numba's convention: a status, where the result goes, where an exception goes, the arguments.
CALL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """A function that compiled code calls: it becomes part of its `entry`.

    Kernels allocate nothing: their arrays belong to the caller, so no references are counted.
    """
    if INTERPRETED or _is_program_kept(function.__code__.co_filename):
        return function
    # Heavy: imported only where something is to be compiled.
    from splitpoint.native.inner import inner

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
            self.load(arrays)
        result, exception = ctypes.c_void_p(), ctypes.c_void_p()
        # Above 0 where an exception was raised, as one is with NUMBA_BOUNDSCHECK=1.
        if self.code(ctypes.byref(result), ctypes.byref(exception), arrays.address) > 0:
            raise RuntimeError(f"{self.name} met what cannot happen")

    @property
    def kept(self) -> bool:
        """Whether machine code is there already, so that a call compiles nothing."""
        return not INTERPRETED and (self.code is not None or _is_kept(self._path))

    @property
    def _path(self) -> Path:
        """The files of machine code, without their suffixes."""
        return _folder(Path(self.function.__code__.co_filename).parent) / self.name

    def load(self, arrays: S) -> None:
        """Have the machine code for such arrays ready; compiled and kept where there is none."""
        library = self._path.with_suffix(".so")
        with suppress(OSError):
            self.code = CALL((self.name, ctypes.CDLL(str(library))))
            return
        machine_code = _stored(self._path.with_suffix(".o"))
        if machine_code is None:
            from splitpoint.native.inner import compiled

            if self.name == PROGRAM:
                print("splitpoint: compiling the simulator (once, about 15 s)", file=sys.stderr)
            machine_code = compiled(self.function, self.name, arrays)
            _store(self._path, machine_code)
        # Heavy, and needed only where no linker made a library that the system can load.
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(
            codemodel="jitdefault", jit=True
        )
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self.engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(machine_code))
        self.engine.finalize_object()
        self.code = CALL(self.engine.get_function_address(self.name))


def entry(function: Callable[[S], None]) -> Entry[S]:
    """A function of kernels that Python calls; its machine code is kept."""
    return Entry(function)


@cache
def _folder(home: Path) -> Path:
    """Where the machine code of entries in the modules of `home` is kept."""
    sources = [*sorted(Path(__file__).parent.glob("*.py")), *sorted(home.glob("*.py"))]
    for package in ("numba", "llvmlite"):
        spec = find_spec(package)
        assert spec is not None and spec.origin is not None
        sources.append(Path(spec.origin).with_name("_version.py"))
    checks = os.environ.get("NUMBA_BOUNDSCHECK", "")
    texts = [
        checks.encode(),
        np.__version__.encode(),
        _processor(),
        *(path.read_bytes() for path in sources),
    ]
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "splitpoint" / "kernels" / source_hash(b"\0".join(texts)).hex()


def _processor() -> bytes:
    """The kind of processor and its instructions, in some words."""
    with suppress(OSError), Path("/proc/cpuinfo").open("rb", buffering=0) as file:
        lines = file.read(1 << 14).partition(b"\n\n")[0].split(b"\n")
        told = [line for line in lines if line.partition(b":")[0].strip() in TELLING]
        if told:
            return b"\n".join(told)
    import llvmlite.binding as llvm

    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}".encode()


@cache
def _is_program_kept(source: str) -> bool:
    """Whether the kernels in a source file need no compiling; asked for each of them."""
    return _is_kept(_folder(Path(source).parent) / PROGRAM)


@cache
def _is_kept(path: Path) -> bool:
    return path.with_suffix(".o").exists()


def _stored(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _store(path: Path, machine_code: bytes) -> None:
    """Keep an object file, and a library of it where the system has a linker, which loads without
    llvmlite; where no folder can be written each process compiles."""
    import shutil
    import subprocess

    part = path.with_suffix(f".{os.getpid()}.o")
    linked = part.with_suffix(".so")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(machine_code)
        for linker in filter(None, map(shutil.which, ("ld", "cc"))):
            command = [linker, "-shared", "-nostdlib", "-o", str(linked), str(part)]
            if subprocess.run(command, check=False, capture_output=True).returncode == 0:
                linked.replace(path.with_suffix(".so"))
                break
        part.replace(path.with_suffix(".o"))
