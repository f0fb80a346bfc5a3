"""Parameters and gradients of which a rank has a part: what torch would compute of them wrongly is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

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


def guard_updates(machine: Machine, parameters: Sequence[nn.Parameter]) -> None:
    """From here on no optimizer of torch updates these where ranks along data have shares of their gradients."""
    global _guarded
    for parameter in parameters:
        parameter.weft_shared = machine.shares_updates  # type: ignore[attr-defined]
    if not _guarded:
        register_optimizer_step_pre_hook(_refuse_shared)
        _guarded = True


_guarded = False


def _refuse_shared(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        if any(getattr(parameter, "weft_shared", False) for parameter in group["params"]):
            raise Unsupported(
                "with zero=1 a rank has the gradients of its own share of the parameters alone",
                where=type(optimizer).__name__,
                remedy="make it with weft.runtime.run.optimizer.torch_optimizer, or set zero=0",
            )
