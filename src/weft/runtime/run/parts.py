"""Gradients of which a rank has a part: what torch would compute of them wrongly is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.errors import Unsupported
from weft.runtime.core.machine import Machine

_NORMS = frozenset(
    {torch._foreach_norm, torch.linalg.vector_norm, torch.linalg.norm, torch.norm, Tensor.norm, torch.norm_except_dim}
)
WHOLE = ("Adafactor", "LBFGS", "Muon", "SparseAdam")
"""Optimizers of torch whose update of an element depends on others of its parameter."""


class Part(Tensor):
    """A gradient, or a part of one, of this rank alone: its norm is not the model's."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _NORMS:
            raise Unsupported(
                "the norm of a rank's part of a gradient is not the model's",
                where=getattr(func, "__name__", "norm"),
                remedy="call clip() or norm() of the model's Flat instead of clip_grad_norm_",
            )
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def as_part(machine: Machine, gradient: Tensor) -> Tensor:
    """A gradient that refuses what is only right of a whole model's, where a rank has a part of that."""
    layout = machine.grid.layout
    if layout.world == layout.data and not machine.shares_updates:
        return gradient
    return gradient.as_subclass(Part)
