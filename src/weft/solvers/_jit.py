"""The compiler of the numeric kernels, imported only where one runs.

Kernels are compiled without reference counting, which is much faster; so they must not make arrays, only
use them.

numba would compile every kernel by itself, to machine code, and then again inside each that calls it.  Here
a kernel that Python calls is compiled as a whole, once; those that it calls become parts of it, which are
translated for LLVM but not optimized, turned into machine code, wrapped for Python or kept on disk by
themselves.  Types of constants are widened, so that ``f(0)`` and ``f(n)`` share a part.  No kernel may call
itself.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar, cast

from weft.solvers._kept import kept

numba: Any = import_module("numba")
codegen: Any = import_module("numba.core.codegen")
compiler: Any = import_module("numba.core.compiler")
registry: Any = import_module("numba.core.registry")

OPTIONS = {"nopython": True, "boundscheck": None, "error_model": "numpy", "_nrt": False}
Function = TypeVar("Function", bound=Callable[..., object])


@contextmanager
def _uncollected() -> Iterator[None]:
    """Leave garbage for later: a compiler makes many objects that live until it is done."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class _PartCode(codegen.JITCodeLibrary):  # type: ignore[misc]
    """Code of a part, as it was translated; the library of a whole takes it in."""

    def finalize(self) -> None:
        self._finalized = True

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout


class _WholeCode(codegen.JITCodeLibrary):  # type: ignore[misc]
    """Code of a kernel with all of its parts, and of theirs."""

    def add_linking_library(self, library: Any) -> None:
        if library in self._linking_libraries:
            return
        super().add_linking_library(library)
        if isinstance(library, _PartCode):
            for other in library._linking_libraries:
                self.add_linking_library(other)


class _PartCompiler(compiler.CompilerBase):  # type: ignore[misc]
    def define_pipelines(self) -> list[Any]:
        state = self.state
        state.library = _PartCode(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = state.flags.no_cpython_wrapper = state.flags.no_cfunc_wrapper = True
        return [compiler.DefaultPassBuilder.define_nopython_pipeline(state)]


class _WholeCompiler(compiler.CompilerBase):  # type: ignore[misc]
    def define_pipelines(self) -> list[Any]:
        state = self.state
        state.library = _WholeCode(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        state.flags.no_cfunc_wrapper = True
        return [compiler.DefaultPassBuilder.define_nopython_pipeline(state)]


class _Part(registry.CPUDispatcher):  # type: ignore[misc]
    """A kernel as other kernels call it."""

    def add_overload(self, cres: Any) -> None:
        # Callers find the code of a part by its entry point; there is no function to enter, so any object does.
        entry = object()
        self.targetctx.insert_user_function(entry, cres.fndesc, [cres.library])
        self.overloads[tuple(cres.signature.args)] = cres._replace(entry_point=entry)


class Kernel(registry.CPUDispatcher):  # type: ignore[misc]
    """A kernel as Python calls it."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function, targetoptions=OPTIONS, pipeline_class=_WholeCompiler)
        self._part = _Part(function, targetoptions=OPTIONS, pipeline_class=_PartCompiler)
        self._sought = False

    def compile(self, sig: Any) -> Any:
        """Machine code for some types of arguments, from disk where it is there."""
        if not self._sought:
            self._sought, self._cache = True, kept(self.py_func)
        with _uncollected():
            return super().compile(sig)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """How a kernel types its call of this one."""
        return self._part.get_call_template([numba.types.unliteral(one) for one in args], kws)

    def get_overload(self, sig: Any) -> Any:
        """What a kernel calls."""
        return self._part.get_overload(sig)


def jit(function: Function) -> Function:
    """Compile on first use and keep the machine code on disk, where some cache folder can be written."""
    return function if numba.config.DISABLE_JIT else cast(Function, Kernel(function))
