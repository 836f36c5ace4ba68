"""How a process that does one piece of work and ends uses Python: before it imports NumPy.

The `splitpoint` command is such a process. A program that imports the package as a library keeps
its own settings.
"""

import atexit
import gc
import os

# New objects after which Python looks for cycles among them; its own number is 700.
GARBAGE = 50_000


def settle() -> None:
    """Starts no threads for matrix products and looks for cycles of garbage seldom."""
    # Nothing here multiplies matrices worth a second thread, and NumPy's BLAS starts one for each
    # core as it is imported: measured, 50 to 100 ms of CPU time on two cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # What a command makes lives until it ends: looking through it for cycles takes a tenth of the
    # CPU time of a short one (measured), so it is done seldom, and not once more at the end.
    gc.set_threshold(GARBAGE)
    atexit.register(gc.freeze)
