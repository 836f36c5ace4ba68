"""Compile a hundred small kernels as one program.

numba optimises each function together with everything it calls, again at every level of calls;
for this package that is most of a minute. Kernels are never called from Python, so their code is
only collected here, and linked, optimised and turned into machine code once, in their entry.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import types
from numba.core import typed_passes, untyped_passes
from numba.core.codegen import CPUCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, PassManager, register_pass
from numba.np import arrayobj

from splitpoint.native import pointer  # noqa: F401 (teaches numba what arrays are)
from splitpoint.native.arrays import Arrays


class _Unbound:
    """Stands for the code generator once a `Collected` is complete: nothing is loaded, so there
    is no place to bind the function's Python environment to, which kernels never use."""

    def set_env(self, name: str, environment: Any) -> None:
        """Bind nothing."""


class Collected(CPUCodeLibrary):  # type: ignore[misc]
    """The code of a function, not linked, not optimised and not executable."""

    def _optimize_functions(self, module: Any) -> None:
        """Nothing: the program is optimised as a whole."""

    def finalize(self) -> None:
        """Nothing to do."""
        self._finalized = True

    @property
    def codegen(self) -> Any:
        """numba's code generator while code is added."""
        return _Unbound() if self._finalized else self._codegen

    def get_pointer_to_function(self, name: str) -> int:
        """No address: nobody calls it but compiled code."""
        self._ensure_finalized()
        return 0

    def program(self, symbol: str, name: str) -> bytes:
        """This function and all it calls as an object file, in which it is called `name`."""
        for library in dict.fromkeys(_reached(self._linking_libraries)):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        # What nobody else can call need not be kept where it is inlined.
        for function in self._final_module.functions:
            if function.name == symbol:
                function.name = name
            elif not function.is_declaration:
                function.linkage = "internal"
        # Code that may lie anywhere, as a linker wants it; its calls are shorter than numba's.
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(),
            features=llvm.get_host_cpu_features().flatten(),
            opt=2,
            reloc="pic",
            codemodel="small",
        )
        # Measured: the loop is as fast without vectors. Less inlining (100) saves half a second of
        # compiling and costs the loop 7%.
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = options.slp_vectorization = False
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(self._final_module, builder)
        self._final_module.verify()
        code: bytes = machine.emit_object(self._final_module)
        return code


def _reached(libraries: list[Any]) -> Iterator[Any]:
    """Libraries and all that they call, however deep."""
    seen: set[Any] = set()
    left = list(libraries)
    while left:
        library = left.pop()
        if library not in seen:
            seen.add(library)
            left += library._linking_libraries
            yield library


@register_pass(mutates_CFG=False, analysis_only=False)
class Collect(FunctionPass):  # type: ignore[misc]
    """Has the lowering write into a `Collected`."""

    _name = "collect_inner_kernel"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        """Before lowering: choose the library."""
        state.library = Collected(state.targetctx.codegen(), state.func_id.func_qualname)
        return True


# Passes for closures, `with`, literals, constant indices and array expressions, without which
# kernels become the same machine code.
UNUSED = (
    untyped_passes.RewriteSemanticConstants,
    untyped_passes.GenericRewrites,
    untyped_passes.WithLifting,
    untyped_passes.InlineClosureLikes,
    untyped_passes.MakeFunctionToJitFunction,
    untyped_passes.InlineInlinables,
    untyped_passes.FindLiterallyCalls,
    untyped_passes.LiteralUnroll,
    untyped_passes.LiteralPropagationSubPipelinePass,
    typed_passes.InlineOverloads,
    typed_passes.NopythonRewrites,
)


class InnerCompiler(CompilerBase):  # type: ignore[misc]
    """numba's own pipeline without what is `UNUSED`, and with `Collect` late in it."""

    def define_pipelines(self) -> list[Any]:
        """The one pipeline."""
        kept = PassManager("kernels")
        for kind, purpose in DefaultPassBuilder.define_nopython_pipeline(self.state).passes:
            if kind is typed_passes.IRLegalization:
                kept.add_pass(Collect, "collect the code")
            if kind not in UNUSED:
                kept.add_pass(kind, purpose)
        kept.finalize()
        return [kept]


def inner(function: Callable[..., Any]) -> Any:
    """A function whose code is only collected, once for all constants that it is called with."""
    # Divisors are never 0: a test of each, and of each call for an exception, takes a sixth too.
    dispatcher = numba.njit(
        pipeline_class=InnerCompiler,
        error_model="numpy",
        _nrt=False,
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
    )(function)
    template = dispatcher.get_call_template

    def for_any_value(args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        return template(tuple(map(types.unliteral, args)), kws)

    dispatcher.get_call_template = for_any_value
    return dispatcher


def compiled(function: Callable[..., None], name: str, arrays: Arrays) -> bytes:
    """The program of an entry for such arrays as an object file, in which it is called `name`."""
    dispatcher = inner(function)
    with _hurried(dispatcher.targetdescr.target_context):
        dispatcher.compile((numba.typeof(arrays),))
        result = next(iter(dispatcher.overloads.values()))
        machine_code: bytes = result.library.program(result.fndesc.llvm_func_name, name)
    return machine_code


def _index(context: Any, builder: Any, kind: Any, index: Any, size: Any) -> Any:
    """An index as it stands."""
    return context.cast(builder, index, kind, types.intp)


_find_signature = types.BaseFunction.get_call_type


@cache
def _signature(function: Any, context: Any, args: tuple[Any, ...], kws: tuple[Any, ...]) -> Any:
    return _find_signature(function, context, args, dict(kws))


def _call_type(function: Any, context: Any, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
    """The signature of a builtin for such arguments, sought once."""
    return _signature(function, context, args, tuple(kws.items()))


@contextmanager
def _hurried(context: Any) -> Iterator[None]:
    """Without habits of numba that take half of the time (measured): it parses a module to learn
    the size of a type and tries every definition of an operator, each time anew; and it makes
    millions of objects that live until it ends, which are looked through for cycles again and
    again. And without one that takes a sixth of the loop: it lets every index count from the end.
    Kernels have none below 0 (a test runs them with bounds checked)."""
    collecting = gc.isenabled()
    gc.disable()
    context.get_abi_sizeof = cache(context.get_abi_sizeof)
    types.BaseFunction.get_call_type = _call_type
    from_the_end, arrayobj.fix_integer_index = arrayobj.fix_integer_index, _index
    try:
        yield
    finally:
        arrayobj.fix_integer_index = from_the_end
        types.BaseFunction.get_call_type = _find_signature
        del context.get_abi_sizeof
        if collecting:
            gc.enable()
