"""State that compiled code works on: a frozen dataclass of arrays, and how such code gets it.

Compiled code is given one address, that of a table with the place and the lengths of every array
in field order. The table never changes, and the Python object keeps the arrays alive.
"""

import dataclasses
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]


class Arrays:
    """Base of such a dataclass: its fields are contiguous arrays, or named tuples of them."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all fields, in order."""
        return tuple(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]

    def fields(self) -> tuple[NDArray[np.generic] | tuple[NDArray[np.generic], ...], ...]:
        """All fields, in order."""
        return tuple(getattr(self, name) for name in self.names())

    @cached_property
    def words(self) -> Longs:
        """Address, then first and last length, of every array, in field order."""
        words: list[int] = []
        for field in self.fields():
            for array in field if isinstance(field, tuple) else (field,):
                assert array.flags.c_contiguous and array.flags.writeable
                words += [array.ctypes.data, array.shape[0], array.shape[-1]]
        return np.array(words, np.int64)

    @property
    def address(self) -> int:
        """Where `words` lies in memory: all that compiled code is given."""
        return int(self.words.ctypes.data)
