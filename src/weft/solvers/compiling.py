"""Who hears that kernels are compiled: nobody, until a program has set ``listener``."""

from __future__ import annotations

from collections.abc import Callable

FOR_GOOD = "Compiling kernels for this machine, once: this takes some seconds."
FOR_NOW = (
    "Compiling kernels for this run alone: no folder that would keep them can be written "
    "(NUMBA_CACHE_DIR names another)."
)
NOT_KEPT = "The compiled kernels cannot be kept: {reason}."

listener: Callable[[str], None] | None = None
heard: set[str] = set()
"""What need not be said again."""


def tell(words: str) -> None:
    """Say a line, once in the life of a process."""
    if listener is not None and words not in heard:
        heard.add(words)
        listener(words)
