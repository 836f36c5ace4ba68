"""How compiled kernels see the state: one pointer to a table of array addresses and lengths.

A tuple of sixty arrays would be copied into every call, and compiling that takes minutes. Here a
kernel gets one address and `s.ranks` loads the array from the table; interpreted, `s` is the
plain object. The table never changes and the Python side keeps the arrays alive.
"""

import hashlib
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core.datamodel import models, register_default
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import typeof_impl
from numba.np.arrayobj import populate_array

from splitpoint.native.arrays import Arrays

WORD = ir.IntType(64)


class ArraysType(types.Type):  # type: ignore[misc]
    """The numba type of an `Arrays`: its fields are arrays, or named tuples of arrays."""

    def __init__(self, fields: tuple[tuple[str, Any], ...]) -> None:
        self.fields = dict(fields)
        # Names are part of every symbol; spelling all fields out makes them 20 KB each.
        super().__init__(name=f"Arrays({hashlib.sha256(str(fields).encode()).hexdigest()[:16]})")


@typeof_impl.register(Arrays)
def _typeof(arrays: Arrays, c: Any) -> ArraysType:
    fields = zip(arrays.names(), arrays.fields(), strict=True)
    return ArraysType(tuple((name, numba.typeof(field)) for name, field in fields))


register_default(ArraysType)(models.OpaqueModel)


@infer_getattr
class _Fields(AttributeTemplate):  # type: ignore[misc]
    key = ArraysType

    def generic_resolve(self, kind: ArraysType, name: str) -> Any:
        return kind.fields.get(name)


@lower_getattr_generic(ArraysType)
def _load_field(context: Any, builder: Any, kind: ArraysType, value: Any, name: str) -> Any:
    place = 0
    for other, field in kind.fields.items():
        if other == name:
            break
        place += len(field) if isinstance(field, types.BaseTuple) else 1
    words = builder.bitcast(value, WORD.as_pointer())
    field = kind.fields[name]
    if not isinstance(field, types.BaseTuple):
        return _load_array(context, builder, field, words, place)
    arrays = [
        _load_array(context, builder, array, words, place + i) for i, array in enumerate(field)
    ]
    return context.make_tuple(builder, field, arrays)


def _load_array(context: Any, builder: Any, kind: Any, words: Any, place: int) -> Any:
    address, rows, columns = (_load_word(builder, words, 3 * place + i) for i in range(3))
    array = context.make_array(kind)(context, builder)
    item = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    itemsize = ir.Constant(WORD, item)
    shape = [rows] if kind.ndim == 1 else [rows, columns]
    strides = [itemsize] if kind.ndim == 1 else [builder.mul(columns, itemsize), itemsize]
    populate_array(
        array,
        data=builder.inttoptr(address, array.data.type),
        shape=shape,
        strides=strides,
        itemsize=itemsize,
        meminfo=None,
    )
    return array._getvalue()


def _load_word(builder: Any, words: Any, place: int) -> Any:
    word = builder.load(builder.gep(words, [ir.Constant(WORD, place)]))
    # The table is never written while kernels run, so LLVM may keep what it loaded.
    word.set_metadata("invariant.load", builder.module.add_metadata([]))
    return word
