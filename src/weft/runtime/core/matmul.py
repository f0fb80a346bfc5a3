"""Matrix products, and the choice of operand layouts that BLAS runs fastest (arXiv 2502.08145, section 5).

On first sight of a product's shape the variants are timed, copies included, and the fastest is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

WARM_UPS, RUNS = 2, 5
"""Untimed and timed runs of each variant."""


def _as_given(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def _row_major(a: Tensor, b: Tensor) -> Tensor:
    return a.contiguous() @ b.contiguous()


def _first_column_major(a: Tensor, b: Tensor) -> Tensor:
    return a.t().contiguous().t() @ b.contiguous()


def _second_column_major(a: Tensor, b: Tensor) -> Tensor:
    return a.contiguous() @ b.t().contiguous().t()


Variant = Callable[[Tensor, Tensor], Tensor]


def _flipped(variant: Variant) -> Variant:
    return lambda a, b: variant(b.t(), a.t()).t().contiguous()


_ROWS: dict[str, Variant] = {
    "as given": _as_given,
    "NN": _row_major,
    "TN": _first_column_major,
    "NT": _second_column_major,
}
VARIANTS = _ROWS | {f"{name} flipped": _flipped(variant) for name, variant in _ROWS.items()}
"""A B with operands as given, both row-major, first or second column-major; and the same of (B' A')'."""

Key = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], torch.dtype]


class Matmul:
    """Products of two matrices, of one rank.

    Attributes:
        chosen: with ``tuned``, the variant of each signature (sizes and strides of both, format).
    """

    def __init__(self, *, tuned: bool = False) -> None:
        self.tuned = tuned
        self.chosen: dict[Key, str] = {}

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """The product of (m x k) and (k x n)."""
        if not self.tuned:
            return a @ b
        key = (tuple(a.shape), tuple(b.shape), a.stride(), b.stride(), a.dtype)
        if key not in self.chosen:
            self.chosen[key] = min(VARIANTS, key=lambda name: _seconds(VARIANTS[name], a, b))
        return VARIANTS[self.chosen[key]](a, b)

    def add(self, total: Tensor, a: Tensor, b: Tensor) -> None:
        """Add the product of (m x k) and (k x n) to ``total`` in place."""
        if self.tuned or total.dtype != a.dtype:
            total.add_(self(a, b))
        else:
            total.addmm_(a, b)


def _seconds(variant: Variant, a: Tensor, b: Tensor) -> float:
    """The fastest of some runs."""
    best = float("inf")
    for run in range(WARM_UPS + RUNS):
        _synchronize(a)
        start = perf_counter()
        variant(a, b)
        _synchronize(a)
        if run >= WARM_UPS:
            best = min(best, perf_counter() - start)
    return best


def _synchronize(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
