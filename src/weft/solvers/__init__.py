"""Numeric kernels that know no networks: max-min fair sharing and its certificate; and the divisors of a number."""

from __future__ import annotations

from math import isqrt


def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive number, ascending."""
    low = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*low, *(number // n for n in low)}))


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor of ``number`` up to ``most``, which is at least 1."""
    return max(n for n in divisors(number) if n <= most)
