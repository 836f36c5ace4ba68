"""Compile a hundred small kernels as one program.

numba optimises each function together with everything it calls, again at every level of calls;
for this package that is most of a minute. Inner kernels are never called from Python, so their
code is only collected here, and optimised and turned to machine code once, in their entry.
"""

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.typed_passes import IRLegalization


class _Unbound:
    """Stands for the code generator once a `Collected` is complete: nothing is loaded, so there
    is no place to bind the function's Python environment to, which kernels never use."""

    def set_env(self, name: str, environment: Any) -> None:
        """Bind nothing."""


class Collected(JITCodeLibrary):  # type: ignore[misc]
    """The code of a function and of those it calls, not optimised and not executable."""

    def finalize(self) -> None:
        """Link in what the function calls, each once."""
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True

    @property
    def codegen(self) -> Any:
        """numba's code generator while code is added."""
        return _Unbound() if self._finalized else self._codegen

    def get_pointer_to_function(self, name: str) -> int:
        """No address: nobody calls it but compiled code."""
        self._ensure_finalized()
        return 0


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


class InnerCompiler(CompilerBase):  # type: ignore[misc]
    """numba's own pipeline with `Collect` before the lowering."""

    def define_pipelines(self) -> list[Any]:
        """The one pipeline."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        order = [kind for kind, _ in passes.passes]
        passes.add_pass_after(Collect, order[order.index(IRLegalization) - 1])
        passes.finalize()
        return [passes]
