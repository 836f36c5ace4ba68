"""Python functions as machine code: compiled once with numba, kept as a file, loaded by ctypes."""
