"""The compiler of the numeric kernels, imported only where one runs.

Kernels are compiled without reference counting, which is much faster; so they must not make arrays, only
use them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

numba: Any = import_module("numba")
OPTIONS = {"error_model": "numpy", "_nrt": False}
Function = TypeVar("Function", bound=Callable[..., object])


@cache
def _stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """State of all sources that a folder's kernels hold machine code of: its own, and those of the
    solvers."""
    files = sorted({*folder.glob("_*.py"), *Path(__file__).parent.glob("_*.py")})
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)


def _watch_sources(kernel: Any, folder: Path) -> None:
    """Let the machine code kept on disk count only for these sources, and for none where it cannot be read.

    numba by itself looks at the file of the kernel, not at those of the kernels that it calls.
    """
    index: Any = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if not (hasattr(index, "_source_stamp") and hasattr(index, "_load_index")):
        return
    load = index._load_index

    def load_or_forget() -> Any:
        try:
            return load()
        except Exception:
            return {}

    index._source_stamp, index._load_index = _stamp(folder), load_or_forget


def jit(function: Function) -> Function:
    """Compile on first use and keep the machine code on disk, where some cache folder can be written."""
    try:
        kernel = numba.njit(cache=True, **OPTIONS)(function)
    except RuntimeError:
        return cast(Function, numba.njit(**OPTIONS)(function))
    _watch_sources(kernel, Path(function.__code__.co_filename).parent)
    return cast(Function, kernel)
