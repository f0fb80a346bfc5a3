"""Kernels: functions that numba compiles where that pays, and that Python runs where the problem is small.

``@jit`` marks a function.  It may use arrays but not make them (it is compiled without reference counting, which is
much faster), and may call other marked functions by their global names, but not itself.  Python and machine code do
the same operations in the same order, so that both give the same bytes.  numba is imported when the first kernel is
compiled.  Machine code is kept by numba, in a folder whose name changes with the sources: numba itself would look
only at the file of the kernel that Python calls, not at those of the kernels that it calls in turn.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dis import get_instructions
from functools import cache, cached_property
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from threading import Lock
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar, cast

import numpy as np

from weft.solvers import FOR_GOOD, FOR_NOW, NOT_KEPT, tell

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
OPTIONS = {"error_model": "numpy", "_nrt": False}
"""``_nrt`` is not documented; with reference counts flows take 4 times as long, and schedules 5 times."""
PART = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""A kernel takes in those that it calls, which Python does not call.  Not documented either; without them schedules
take 4 times as long, and compiling takes 1.4 times (without the wrappers alone: 1.4 times)."""
MOST_STEPS = 200_000
"""Steps (about 1 us each) that a process interprets before it compiles: they last no longer than to load numba."""
PACKAGE = Path(__file__).parents[1]
KERNELS = ("solvers", "fabric", "routing", "simulation", "collectives")
"""Packages with kernels, which lie in modules whose names begin with an underscore."""
LOCK = Lock()


@cache
def cache_folder() -> Path | None:
    """The folder of the machine code of these sources; None where none can be written."""
    numba: Any = import_module("numba")
    files = sorted(file for room in KERNELS for file in (PACKAGE / room).rglob("_*.py"))
    state = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    name = f"weft-{sha256(repr((numba.__version__, state)).encode()).hexdigest()[:16]}"
    for base in (numba.config.CACHE_DIR or PACKAGE / "__pycache__", Path.home() / ".cache"):
        folder = Path(base) / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return None


def linked(
    function: FunctionType, made: dict[Kernel[..., Any], Any], make: Callable[[FunctionType], Any]
) -> FunctionType:
    """A copy of a function that calls what ``make`` makes of copies of the kernels it names."""
    world = dict(function.__globals__)
    for name in {step.argval for step in get_instructions(function) if step.opname == "LOAD_GLOBAL"}:
        callee = world.get(name)
        if isinstance(callee, Kernel):
            if callee not in made:
                made[callee] = make(linked(callee.py_func, made, make))
            world[name] = made[callee]
    return FunctionType(function.__code__, world, function.__name__, function.__defaults__)


def with_fields(argument: Any) -> Any:
    """An argument whose structured arrays show the fields of their elements as attributes, as in compiled code."""
    if isinstance(argument, tuple):
        parts = map(with_fields, argument)
        return argument._make(parts) if hasattr(argument, "_make") else tuple(parts)
    structured = isinstance(argument, np.ndarray) and argument.dtype.names
    return argument.view(np.recarray) if structured else argument


class Kernel(Generic[Arguments, Answer]):
    """A marked function, as Python calls it."""

    steps = 0
    """Steps interpreted so far, of all kernels."""

    def __init__(self, function: Callable[Arguments, Answer]) -> None:
        self.py_func = cast(FunctionType, function)

    def __call__(self, *arguments: Arguments.args, **named: Arguments.kwargs) -> Answer:
        """Run compiled.

        A full disk or a damaged file shows before the kernel has changed anything, so that it can be run again.
        """
        try:
            return cast(Answer, self._compiled(*arguments))
        except OSError as error:
            tell(NOT_KEPT.format(reason=error.strerror or error))
            self._compiled = self._made(keep=False)
        except Exception:  # whatever a damaged pickle raises; an error in the kernel itself comes again below
            if not self._files():
                raise
            for file in self._files():
                file.unlink(missing_ok=True)
            tell(FOR_GOOD)
            self._compiled = self._made(keep=True)
        return cast(Answer, self._compiled(*arguments))

    def sized(self, steps: int) -> Callable[Arguments, Answer]:
        """What to call for a problem of about so many steps.

        As long as all that was interpreted takes less time than to load numba, interpreting one more is cheaper;
        in the worst case a process spends twice the least.
        """
        if "_compiled" in vars(self) or Kernel.steps + steps > MOST_STEPS:
            return self
        Kernel.steps += steps
        return self.interpret

    def interpret(self, *arguments: Arguments.args, **named: Arguments.kwargs) -> Answer:
        """Run in Python."""
        with np.errstate(all="ignore"):
            return cast(Answer, self._interpreted(*map(with_fields, arguments)))

    @cached_property
    def _interpreted(self) -> FunctionType:
        return linked(self.py_func, {}, lambda part: part)

    @cached_property
    def _compiled(self) -> Any:
        folder = cache_folder()
        if not self._files():
            tell(FOR_NOW if folder is None else FOR_GOOD)
        return self._made(keep=folder is not None)

    def _files(self) -> list[Path]:
        folder, module = cache_folder(), self.py_func.__module__.rpartition(".")[2]
        return [] if folder is None else list(folder.rglob(f"{module}.{self.py_func.__name__}-*.nb?"))

    def _made(self, *, keep: bool) -> Any:
        numba: Any = import_module("numba")
        whole = linked(self.py_func, {}, numba.njit(**OPTIONS, **PART))
        with LOCK:
            before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, os.fspath(cache_folder() or "")
            try:
                return numba.njit(cache=keep, **OPTIONS)(whole)
            finally:
                numba.config.CACHE_DIR = before


jit = Kernel
