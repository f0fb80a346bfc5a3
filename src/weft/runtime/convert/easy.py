"""Easy mode: between layers every rank has all features of rows of its own, as plain data parallelism has.

Norms, activations and attention of a plain model then run unchanged.  Around a layer rows are exchanged for
features: an all-to-all over the axis of inputs, then the layer gathers rows over the axis of outputs; its
partial sums are scattered by rows over the axis of inputs, and an all-to-all over the axis of outputs brings
all features of a rank's own rows.  No rank receives an element that it does not need, or one twice.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import Replicated
from weft.runtime.layers.linear import Kind, Layer4D


class Easy4D(nn.Module):
    """A layer on (rows of this rank, all features, ...), for (rows of this rank, all outputs, ...).

    All ranks of the grid have different rows, each as many: the batch is split over x, y, z and data, and so
    losses are summed over all of them.  The result is in the number format of the input.

    Args:
        layer: made without bias.
        bias: add one to the rows; every rank holds it whole.
    """

    def __init__(self, layer: Layer4D, *, bias: bool) -> None:
        super().__init__()
        layer.gathers_rows = layer.scatters_rows = True
        self.layer = layer
        self.bias = None
        if bias:
            weight = layer.weight
            self.bias = Replicated.of(layer.machine, f"{weight.name}.bias", weight.placement.shape[:1])

    def forward(self, rows: Tensor) -> Tensor:
        machine, layer = self.layer.machine, self.layer
        given = rows.to(machine.precision.compute)
        if machine.grid.size(layer.over_in) > 1:
            given = _ToShares.apply(given, machine, layer.over_in)  # type: ignore[no-untyped-call]
        out = layer(given)
        if machine.grid.size(layer.over_out) > 1:
            out = _ToRows.apply(out, machine, layer.over_out)  # type: ignore[no-untyped-call]
        if self.bias is not None:
            out = out + self.bias.to(out.dtype).view(-1, *(1,) * (out.ndim - 2))
        return cast(Tensor, out).to(rows.dtype)


def cheaper_kind(machine: Machine, inputs: int, outputs: int) -> Kind:
    """The kind of layer that exchanges fewer bytes in easy mode.

    Each rank receives inputs times the axis of outputs, and outputs times the axis of inputs, for each row.
    """
    x, y = machine.grid.size("x"), machine.grid.size("y")
    return "normal" if inputs * x + outputs * y <= inputs * y + outputs * x else "transposed"


class _ToShares(Function):
    """Own rows with all features, to the rows of all ranks of an axis with this rank's share of features."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, machine: Machine, axis: str) -> Tensor:
        ctx.machine, ctx.axis = machine, axis
        return _to_shares(rows, machine, axis)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _to_rows(gradients[0], ctx.machine, ctx.axis), None, None


class _ToRows(Function):
    """The inverse."""

    @staticmethod
    def forward(ctx: Any, shares: Tensor, machine: Machine, axis: str) -> Tensor:
        ctx.machine, ctx.axis = machine, axis
        return _to_rows(shares, machine, axis)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _to_shares(gradients[0], ctx.machine, ctx.axis), None, None


def _to_shares(rows: Tensor, machine: Machine, axis: str) -> Tensor:
    parts = rows.reshape(len(rows), machine.grid.size(axis), -1, *rows.shape[2:])
    return machine.collectives.all_to_all(parts.transpose(0, 1).flatten(0, 1), axis).wait()


def _to_rows(shares: Tensor, machine: Machine, axis: str) -> Tensor:
    received = machine.collectives.all_to_all(shares, axis).wait()
    parts = received.reshape(machine.grid.size(axis), -1, *received.shape[1:])
    return parts.transpose(0, 1).flatten(1, 2)
