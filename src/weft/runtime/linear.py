"""A linear layer over the grid: Agarwal's 3D matrix product as AxoNN arranges it.

A normal layer splits inputs over y and outputs over x, a transposed one inputs over x and outputs over y, so
that one's output is the other's input.  Rows (tokens) are split over z and data; weights rest cut over z.
Source: arXiv 2305.13525, algorithm 1; sequence parallelism: arXiv 2205.05198, section 4.2.2.
"""

from __future__ import annotations

from typing import Any, Literal, cast

from torch import Tensor, nn
from torch.autograd import Function

from weft.runtime.collectives import Pending
from weft.runtime.machine import Machine
from weft.runtime.parameters import Matrix, Vector
from weft.runtime.placement import fused, share


class Linear4D(nn.Module):
    """One rank's part of ``rows @ weight.T + bias``.

    Input rows have shape (tokens, inputs / the axis of inputs), the result (tokens, outputs / the axis of
    outputs).  With sequence parallelism a normal layer takes, and a transposed layer gives, tokens / x rows.

    Args:
        inputs: features of the whole input.
        outputs: features of the whole output; several numbers for layers fused along their outputs, each of
            which is split on its own (queries, keys and values).

    Raises:
        BadInput: a size cannot be divided over its axis.
    """

    def __init__(
        self,
        machine: Machine,
        name: str,
        inputs: int,
        outputs: int | tuple[int, ...],
        *,
        kind: Literal["normal", "transposed"] = "normal",
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.machine = machine
        self.over_in, self.over_out = ("y", "x") if kind == "normal" else ("x", "y")
        self.transposed = kind == "transposed"
        grid = machine.grid
        parts = (outputs,) if isinstance(outputs, int) else outputs
        grid.divided(inputs, self.over_in, what=f"{name}: inputs")
        for part in parts:
            grid.divided(part, self.over_out, what=f"{name}: outputs")
        rows = fused(parts, grid.size(self.over_out), grid.index(self.over_out))
        self.weight = Matrix(
            machine,
            name,
            shape=(sum(parts), inputs),
            rows=rows,
            columns=share(inputs, grid.size(self.over_in), grid.index(self.over_in)),
            split_over=("x", "y"),
        )
        self.bias = None
        if bias:
            self.bias = Vector(
                machine,
                f"{name}.bias",
                shape=(sum(parts),),
                rows=rows,
                local_shape=(sum(parts) // grid.size(self.over_out),),
                split_over=(self.over_out,),
                own_tokens=self.transposed,
            )

    def forward(self, rows: Tensor) -> Tensor:
        out = cast(Tensor, _Product.apply(rows, self.weight.shard, self))  # type: ignore[no-untyped-call]
        return out if self.bias is None else out + self.bias()

    @property
    def gathers_rows(self) -> bool:
        return self.machine.rows_cut and not self.transposed

    @property
    def scatters_rows(self) -> bool:
        return self.machine.rows_cut and self.transposed

    def sum_output(self, partial: Tensor) -> Tensor:
        """Sum partial outputs over the axis of inputs (step 3)."""
        collectives = self.machine.collectives
        if self.scatters_rows:
            return collectives.reduce_scatter(partial, "x").wait()
        return collectives.all_reduce(partial, self.over_in).wait()

    def sum_input_gradient(self, partial: Tensor) -> Pending:
        """Sum partial input gradients over the axis of outputs (step 5)."""
        collectives = self.machine.collectives
        if self.gathers_rows:
            pending = collectives.reduce_scatter(partial, "x")
        else:
            pending = collectives.all_reduce(partial, self.over_out)
        if not self.machine.overlap.switches.all_reduce:
            pending.wait()
        return pending


class _Product(Function):
    """Steps 1 to 6 of the algorithm; the weight's gradient is delivered to the parameter by the scheduler."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, shard: Tensor, layer: Linear4D) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(rows)
        machine = layer.machine
        if layer.gathers_rows:
            rows = machine.collectives.all_gather(rows, "x").wait()
        partial = machine.matmul(rows, layer.weight.gather().t())
        return layer.sum_output(partial)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        layer: Linear4D = ctx.layer
        (rows,) = ctx.saved_tensors
        machine = layer.machine
        gradient = gradients[0].contiguous()
        if layer.scatters_rows:
            gradient = machine.collectives.all_gather(gradient, "x").wait()
        again = machine.collectives.all_gather(rows, "x") if layer.gathers_rows else Pending(rows)
        if not machine.overlap.switches.all_reduce:
            again.wait()
        scatter_first = (
            machine.grid.size(layer.over_out) == 1
            and machine.grid.size("z") > 1
            and machine.overlap.switches.reduce_scatter
        )
        if scatter_first:
            layer.weight.scatter(machine.matmul(gradient.t(), again.wait()))
        summed = None
        if ctx.needs_input_grad[0]:
            summed = layer.sum_input_gradient(machine.matmul(gradient, layer.weight.gather()))
        if not scatter_first:
            layer.weight.scatter(machine.matmul(gradient.t(), again.wait()))
        return summed.wait() if summed else None, None, None
