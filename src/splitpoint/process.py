"""How a process that does one piece of work and ends uses Python: before it imports NumPy.

The `splitpoint` command is such a process. A program that imports the package as a library keeps
its own settings.
"""

import atexit
import ctypes
import gc
import os
import sys

# New objects after which Python looks for cycles among them; its own number is 700.
GARBAGE = 50_000
# Bytes of arrays that get large pages: the best of 16, 31, 64 and 128 MiB for 100,000 requests
# (measured). Those from which an array has memory of its own: the most that glibc before 2.35
# takes. And more than Python leaves free as it starts (assumed).
LARGE_PAGES = 128 << 20
ALONE = 32 << 20
PIECE = 1 << 20
# glibc's malloc.h, its own padding, and Linux's mman-common.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
TOP_PAD = 128 << 10
MADV_HUGEPAGE = 14


def settle() -> None:
    """Starts no threads for matrix products, looks for cycles of garbage seldom and keeps arrays
    in large pages."""
    # Nothing here multiplies matrices worth a second thread, and NumPy's BLAS starts one for each
    # core as it is imported: measured, 50 to 100 ms of CPU time on two cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # What a command makes lives until it ends: looking through it for cycles takes a tenth of the
    # CPU time of a short one (measured), so it is done seldom, and not once more at the end.
    gc.set_threshold(GARBAGE)
    atexit.register(gc.freeze)
    if sys.platform == "linux":
        _take_large_pages()


def _take_large_pages() -> None:
    """The first arrays come out of memory that Linux may give in pages of 2 MB instead of 4 kB,
    and what is given back is kept for the next ones: a tenth of the CPU time of a simulation of
    100,000 requests is otherwise spent on first touches of pages (measured on a virtual machine).
    Pages never touched cost nothing."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return  # another C library than glibc
    libc.malloc.restype = ctypes.c_void_p
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    libc.mallopt(M_MMAP_THRESHOLD, ALONE)
    # Memory for this piece is taken with as much behind it, of which nothing is touched yet.
    libc.mallopt(M_TOP_PAD, LARGE_PAGES)
    piece = libc.malloc(ctypes.c_size_t(PIECE))
    libc.mallopt(M_TOP_PAD, TOP_PAD)
    if piece is not None:
        page = os.sysconf("SC_PAGESIZE")
        first = -(-piece // page) * page
        libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(LARGE_PAGES), MADV_HUGEPAGE)
        libc.free(ctypes.c_void_p(piece))
