"""State that compiled code works on: a record of arrays, and how such code gets it.

Compiled code is given one address, that of a table with the place and the lengths of every array
in field order. The table never changes, and the Python object keeps the arrays alive.
"""

from functools import cached_property
from typing import dataclass_transform

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]


@dataclass_transform(eq_default=False, kw_only_default=True, frozen_default=True)
class Arrays:
    """Base of such a record: its fields are contiguous arrays, or named tuples of them.

    Type checkers read it as a dataclass; one of sixty fields would take 5 ms to make.
    """

    def __init__(self, **fields: NDArray[np.generic] | tuple[NDArray[np.generic], ...]) -> None:
        assert fields.keys() == self.__annotations__.keys()
        vars(self).update(fields)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all fields, in order."""
        return tuple(cls.__annotations__)

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
