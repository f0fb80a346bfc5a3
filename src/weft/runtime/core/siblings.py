"""Layers that take the same tensor one after the other: queries, keys and values, or a gate and its values.

What is made of the tensor is made once, and the partial gradients that they give for it are summed before one
collective brings them together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import Function

from weft.errors import Unsupported
from weft.runtime.core.collectives import Pending

T = TypeVar("T")


class LastTaken:
    """What was made of the tensors that were taken last, until others are taken or gradients flow back."""

    def __init__(self) -> None:
        self._taken: dict[str, tuple[Tensor, int, dict[Hashable, Any]]] = {}

    def made(self, level: str, taken: Tensor, how: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` gives, once for each tensor, unless no gradient will be asked for."""
        if not (torch.is_grad_enabled() and taken.requires_grad):
            return make()
        known, version, result = self._taken.get(level, (None, 0, {}))
        now = 0 if torch.compiler.is_compiling() else taken._version
        if known is not taken or version != now:
            result = {}
            self._taken[level] = taken, now, result
        if how not in result:
            result[how] = make()
        return cast(T, result[how])

    def forget(self) -> None:
        """Keep nothing alive any longer."""
        self._taken.clear()


class Joint:
    """The layers that take one tensor.

    Args:
        sum_gradient: begins to sum a partial gradient over ranks.
    """

    def __init__(self, sum_gradient: Callable[[Tensor], Pending]) -> None:
        self._sum = sum_gradient
        self._members = self._given = 0
        self._partial: Tensor | None = None
        self._pending: Pending | None = None

    def enter(self) -> None:
        """One more layer takes the tensor."""
        self._members += 1

    def add(self, partial: Tensor) -> None:
        """A layer's partial gradient; with the last one the sum over ranks begins."""
        self._given += 1
        self._partial = partial if self._partial is None else self._partial.add_(partial)
        if self._given == self._members:
            self._pending = self._sum(self._partial)

    def take(self) -> Tensor | None:
        """The gradient, when all layers that got one are through; None where none did."""
        if self._pending is None and self._partial is not None:
            self._pending = self._sum(self._partial)
        pending, self._pending, self._partial, self._given = self._pending, None, None, 0
        return None if pending is None else pending.wait()


def joined(rows: Tensor, sum_gradient: Callable[[Tensor], Pending]) -> tuple[Tensor, Joint]:
    """Rows for layers that hand their partial gradients to the joint."""
    joint = Joint(sum_gradient)
    return cast(Tensor, _Join.apply(rows, joint)), joint  # type: ignore[no-untyped-call]


class _Join(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, joint: Joint) -> Tensor:
        ctx.joint = joint
        ctx.set_materialize_grads(False)
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None]:
        # The gradient comes by the joint and not by autograd, which would take it for a constant without a word.
        if torch.is_grad_enabled():
            raise Unsupported(
                "second derivatives (create_graph=True) are not computed where weights are cut",
                where="backward",
                remedy="leave x out of the layout, or compute them on one rank",
            )
        return ctx.joint.take(), None
