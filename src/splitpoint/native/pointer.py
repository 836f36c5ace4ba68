"""How compiled kernels see the state: one pointer to a table of array addresses and lengths.

A tuple of sixty arrays would be copied into every call, and compiling that takes minutes. Here a
kernel gets one address and `s.ranks` loads the array from the table; interpreted, `s` is the
plain object. The table never changes and the Python side keeps the arrays alive.
"""

import hashlib
import operator
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core.datamodel import models, register_default
from numba.core.imputils import lower_builtin, lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import typeof_impl
from numba.np import arrayobj

from splitpoint.native.arrays import Arrays

WORD = ir.IntType(64)


class Column(types.Array):  # type: ignore[misc]
    """The numba type of one array of an `Arrays`. Its items are found with three instructions
    where numba's own way, made for any strides, takes thirty: a fifth of the time to compile."""

    def __init__(self, array: types.Array) -> None:
        super().__init__(array.dtype, array.ndim, "C", name=f"Column({_short(array)})")


class ArraysType(types.Type):  # type: ignore[misc]
    """The numba type of an `Arrays`: its fields are arrays, or named tuples of arrays."""

    def __init__(self, fields: tuple[tuple[str, Any], ...]) -> None:
        self.fields = dict(fields)
        super().__init__(name=f"Arrays({_short(fields)})")


def _short(kind: object) -> str:
    """A digest: names are part of every symbol; spelling all fields out makes them 20 KB each."""
    return hashlib.sha256(str(kind).encode()).hexdigest()[:16]


@typeof_impl.register(Arrays)
def _typeof(arrays: Arrays, c: Any) -> ArraysType:
    fields = zip(arrays.names(), arrays.fields(), strict=True)
    return ArraysType(tuple((name, _columns(numba.typeof(field))) for name, field in fields))


def _columns(kind: Any) -> Any:
    if isinstance(kind, types.BaseNamedTuple):
        return types.NamedTuple([Column(array) for array in kind], kind.instance_class)
    return Column(kind)


register_default(ArraysType)(models.OpaqueModel)
register_default(Column)(models.ArrayModel)


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
    itemsize = ir.Constant(WORD, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    shape = [rows] if kind.ndim == 1 else [rows, columns]
    strides = [itemsize] if kind.ndim == 1 else [builder.mul(columns, itemsize), itemsize]
    # In the order of numba's `ArrayModel`, after two for who owns the memory: nobody here.
    array = ir.Constant(context.get_value_type(kind), None)
    members = array.type.elements
    values = [
        rows if kind.ndim == 1 else builder.mul(rows, columns),
        itemsize,
        builder.inttoptr(address, members[4]),
        _packed(builder, members[5], shape),
        _packed(builder, members[6], strides),
    ]
    for member, value in enumerate(values, 2):
        array = builder.insert_value(array, value, member)
    return array


def _packed(builder: Any, kind: Any, values: list[Any]) -> Any:
    packed = ir.Constant(kind, ir.Undefined)
    for i, value in enumerate(values):
        packed = builder.insert_value(packed, value, i)
    return packed


@lower_builtin(operator.getitem, Column, types.Integer)
def _get_item(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    kind, index = signature.args
    if kind.ndim > 1 or context.enable_boundscheck:
        return arrayobj.getitem_arraynd_intp(context, builder, signature, args)
    return arrayobj.load_item(context, builder, kind, _place(context, builder, index, args))


@lower_builtin(operator.setitem, Column, types.Integer, types.Any)
def _set_item(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    kind, index, given = signature.args
    if kind.ndim > 1 or context.enable_boundscheck:
        return arrayobj.setitem_array(context, builder, signature, args)
    value = context.cast(builder, args[2], given, kind.dtype)
    arrayobj.store_item(context, builder, kind, value, _place(context, builder, index, args))
    return context.get_dummy_value()


def _place(context: Any, builder: Any, kind: Any, args: Any) -> Any:
    """Where the item of an index lies; no index counts from the end."""
    index = context.cast(builder, args[1], kind, types.intp)
    return builder.gep(builder.extract_value(args[0], 4), [index], inbounds=True)


def _load_word(builder: Any, words: Any, place: int) -> Any:
    word = builder.load(builder.gep(words, [ir.Constant(WORD, place)]))
    # The table is never written while kernels run, so LLVM may keep what it loaded.
    word.set_metadata("invariant.load", builder.module.add_metadata([]))
    return word
