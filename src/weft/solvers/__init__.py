"""Numeric kernels that know no networks: max-min fair sharing and its certificate; and the divisors of a number.

``listener`` hears that kernels are compiled: nobody does, until a program has set it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

FOR_GOOD = "Compiling kernels for this machine, once: this takes some seconds."
FOR_NOW = (
    "Compiling kernels for this run alone: no folder that would keep them can be written "
    "(NUMBA_CACHE_DIR names another)."
)
NOT_KEPT = "The compiled kernels cannot be kept: {reason}."

listener: Callable[[str], None] | None = None
heard: set[str] = set()
"""What need not be said again."""


def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive number, ascending."""
    low = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*low, *(number // n for n in low)}))


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor of ``number`` up to ``most``, which is at least 1."""
    return max(n for n in divisors(number) if n <= most)


def tell(words: str) -> None:
    """Say a line, once in the life of a process."""
    if listener is not None and words not in heard:
        heard.add(words)
        listener(words)
