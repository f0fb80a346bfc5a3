"""Linear layers and convolutions over the grid: Agarwal's 3D matrix product as AxoNN arranges it.

A normal layer splits inputs over y and outputs over x, a transposed one inputs over x and outputs over y, so
that one's output is the other's input.  Rows (tokens) are split over z and data; weights rest cut over z.
Source: arXiv 2305.13525, algorithm 1; sequence parallelism: arXiv 2205.05198, section 4.2.2.

A convolution splits channels as a linear layer does its features, and images over z and data.  What a linear
layer multiplies, a convolution correlates; gathering, summing and scattering are the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import prod
from typing import Any, Literal, cast

import torch
from torch import Size, Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from weft.errors import BadInput, Unsupported
from weft.layout.stages import weight_gradient_first
from weft.runtime.core.collectives import Pending
from weft.runtime.core.machine import Machine, refuse_autocast
from weft.runtime.core.parameters import Matrix, Vector, fused, share

Kind = Literal["normal", "transposed"]


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


class Layer4D(nn.Module, ABC):
    """A layer whose weight leads from features over one axis to features over the other.

    Dimension 0 of what it takes and gives is rows (tokens, images), dimension 1 features (channels): from
    (rows, inputs / the axis of inputs, ...) to (rows, outputs / the axis of outputs, ...).  Subclasses say
    what is computed with the weight.

    Args:
        inputs: features of the whole input.
        outputs: features of the whole output; several numbers for layers fused along their outputs, each of
            which is split on its own (queries, keys and values).
        window: weights between one input feature and one output feature.

    Attributes:
        gathers_rows: it takes rows / the axis of outputs, and gathers the rest.
        scatters_rows: it gives rows / the axis of inputs, instead of all of them.

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
        kind: Kind = "normal",
        bias: bool = True,
        window: int = 1,
    ) -> None:
        super().__init__()
        self.machine = machine
        self.over_in, self.over_out = ("y", "x") if kind == "normal" else ("x", "y")
        self.transposed = kind == "transposed"
        self.gathers_rows = machine.rows_cut and not self.transposed
        self.scatters_rows = machine.rows_cut and self.transposed
        grid = machine.grid
        parts = (outputs,) if isinstance(outputs, int) else outputs
        grid.divided(inputs, self.over_in, what=f"{name}: inputs")
        for part in parts:
            grid.divided(part, self.over_out, what=f"{name}: outputs")
        rows = fused(parts, grid.size(self.over_out), grid.index(self.over_out))
        width = inputs * window
        self.weight = Matrix(
            machine,
            name,
            shape=(sum(parts), width),
            rows=rows,
            columns=share(width, grid.size(self.over_in), grid.index(self.over_in)),
            split_over=("x", "y"),
        )
        self.bias = None
        if bias:
            self.bias = Vector(
                machine,
                f"{name}.bias",
                shape=(sum(parts),),
                rows=rows,
                split_over=(self.over_out,),
                own_tokens=self.transposed,
            )

    @property
    def is_whole(self) -> bool:
        """No other rank has a part of it or of its features, and its backward pass is in one piece: PyTorch's own."""
        return self.weight.alone and self.machine.grid.size("x", "y") == 1 and not self.machine.later.collects

    def forward(self, rows: Tensor) -> Tensor:
        refuse_autocast(rows, self.weight.name)
        if not self.is_whole:
            return cast(Tensor, self._communicated(rows))
        weight = self.weight.as_leaf() if self.weight.input is None else self.weight.input
        return self._biased(self.product(rows, weight.to(rows.dtype)))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _communicated(self, rows: Tensor) -> Tensor:
        joint: Joint | None = None
        if self.machine.grid.size(self.over_out) > 1:
            how = self.over_out, self.gathers_rows
            rows, joint = self.machine.last.made("layer", rows, how, lambda: joined(rows, self.sum_input_gradient))
        out = cast(Tensor, _Product.apply(rows, self.weight.shard, self, joint))  # type: ignore[no-untyped-call]
        return self._biased(out)

    def _biased(self, out: Tensor) -> Tensor:
        return out if self.bias is None else out + self.bias().to(out.dtype).view(-1, *(1,) * (out.ndim - 2))

    @abstractmethod
    def product(self, rows: Tensor, weight: Tensor) -> Tensor:
        """Partial outputs of all rows; ``weight`` is the block, shape (outputs here, columns here)."""

    @abstractmethod
    def input_gradient(self, gradient: Tensor, weight: Tensor, features: Size) -> Tensor:
        """Partial gradients of inputs, each row's of shape ``features``."""

    @abstractmethod
    def scatter_weight(self, gradient: Tensor, rows: Tensor) -> None:
        """Compute the block's gradient and hand it to the scheduler."""

    def gather_rows(self, rows: Tensor) -> Pending:
        """The rows of all ranks along the axis of outputs."""
        if not self.gathers_rows:
            return Pending(rows)
        return self.machine.collectives.all_gather(rows, self.over_out)

    def gather_gradient(self, gradient: Tensor) -> Tensor:
        """Output gradients of the rows that ``sum_output`` scattered."""
        if not self.scatters_rows:
            return gradient.contiguous()
        gathered = self.machine.collectives.all_gather(gradient, self.over_in).wait()
        return self._turned(gathered, self.over_in, self.over_out)

    def sum_output(self, partial: Tensor) -> Tensor:
        """Sum partial outputs over the axis of inputs (step 3)."""
        collectives = self.machine.collectives
        if self.scatters_rows:
            turned = self._turned(partial, self.over_out, self.over_in)
            return collectives.reduce_scatter(turned, self.over_in).wait()
        return collectives.all_reduce(partial, self.over_in).wait()

    def sum_input_gradient(self, partial: Tensor) -> Pending:
        """Sum partial input gradients over the axis of outputs (step 5)."""
        collectives = self.machine.collectives
        if self.gathers_rows:
            pending = collectives.reduce_scatter(partial, self.over_out)
        else:
            pending = collectives.all_reduce(partial, self.over_out)
        if not self.machine.overlap.all_reduce:
            pending.wait()
        return pending

    def _turned(self, rows: Tensor, outer: str, inner: str) -> Tensor:
        """Blocks of rows in the order (outer axis, inner axis) as (inner axis, outer axis)."""
        if not (self.gathers_rows and self.scatters_rows):
            return rows
        size = self.machine.grid.size
        blocks = rows.reshape(size(outer), size(inner), -1, *rows.shape[1:])
        return blocks.transpose(0, 1).flatten(0, 2)


class Linear4D(Layer4D):
    """One rank's part of ``rows @ weight.T + bias``.

    Input rows have shape (tokens, inputs / the axis of inputs), the result (tokens, outputs / the axis of
    outputs).  With sequence parallelism a normal layer takes, and a transposed one gives, tokens / x rows.
    """

    def product(self, rows: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(rows, weight)

    def input_gradient(self, gradient: Tensor, weight: Tensor, features: Size) -> Tensor:
        return gradient @ weight

    def scatter_weight(self, gradient: Tensor, rows: Tensor) -> None:
        self.weight.scatter_product(gradient, rows)


class _Product(Function):
    """Steps 1 to 6 of the algorithm; the weight's gradient is delivered to the parameter by the scheduler."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, shard: Tensor, layer: Layer4D, joint: Joint | None) -> Tensor:
        ctx.layer, ctx.joint = layer, joint
        ctx.save_for_backward(rows)
        if joint is not None:
            joint.enter()
        whole = layer.gather_rows(rows).wait()
        return layer.sum_output(layer.product(whole, layer.weight.gather().to(rows.dtype)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Steps 4 to 6; the gradient of rows, where it is wanted and goes to no joint."""
        (rows,) = ctx.saved_tensors
        layer: Layer4D = ctx.layer
        machine, overlap = layer.machine, layer.machine.overlap
        machine.last.forget()
        gradient = layer.gather_gradient(gradients[0])
        again = None if machine.later.collects else layer.gather_rows(rows)
        if again is not None and not overlap.all_reduce:
            again.wait()

        def scatter() -> None:
            layer.scatter_weight(gradient, (layer.gather_rows(rows) if again is None else again).wait())

        outputs, shards = machine.grid.size(layer.over_out), machine.grid.size(*machine.grid.shard)
        scatter_first = weight_gradient_first(outputs, shards, overlap_reduce=overlap.reduce_scatter)
        if scatter_first:
            machine.later.do(scatter)
        partial = None
        if ctx.needs_input_grad[0]:
            weight = layer.weight.gather().to(gradient.dtype)
            partial = layer.input_gradient(gradient, weight, rows.shape[1:])
            if ctx.joint is not None:
                ctx.joint.add(partial)
                partial = None
        if not scatter_first:
            machine.later.do(scatter)
        return partial, None, None, None


Pair = tuple[int, int]


class Conv4D(Layer4D):
    """One rank's part of a 2D convolution in one group, padded with zeros.

    Images have shape (images, inputs / the axis of inputs, height, width), the result (images, outputs / the
    axis of outputs, height, width).  The whole weight is the matrix (outputs, inputs * kernel elements).

    Args:
        kernel: height and width, as ``stride``, ``padding`` and ``dilation``.

    Raises:
        Unsupported: the layout asks for sequence parallelism.
        BadInput: channels cannot be divided over their axis; in ``forward``, the kernel does not fit into
            the images.
    """

    def __init__(
        self,
        machine: Machine,
        name: str,
        inputs: int,
        outputs: int | tuple[int, ...],
        kernel: Pair,
        *,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
        kind: Kind = "normal",
        bias: bool = True,
    ) -> None:
        if machine.rows_cut:
            raise Unsupported(
                "sequence_parallel: images have no tokens to split over x",
                where=name,
                remedy="set sequence_parallel=False",
            )
        super().__init__(machine, name, inputs, outputs, kind=kind, bias=bias, window=prod(kernel))
        self.kernel, self.stride, self.padding, self.dilation = kernel, stride, padding, dilation

    def product(self, rows: Tensor, weight: Tensor) -> Tensor:
        self._check_size(rows)
        images, kernels = rows.contiguous(), self._kernels(weight)
        return functional.conv2d(images, kernels, None, self.stride, self.padding, self.dilation)

    def input_gradient(self, gradient: Tensor, weight: Tensor, features: Size) -> Tensor:
        kernels, size = self._kernels(weight), (gradient.shape[0], *features)
        result: Tensor = conv2d_input(  # type: ignore[no-untyped-call]
            size, kernels, gradient, self.stride, self.padding, self.dilation
        )
        return result.contiguous()

    def scatter_weight(self, gradient: Tensor, rows: Tensor) -> None:
        size = (gradient.shape[1], rows.shape[1], *self.kernel)
        result: Tensor = conv2d_weight(  # type: ignore[no-untyped-call]
            rows, size, gradient, self.stride, self.padding, self.dilation
        )
        self.weight.scatter(result)

    def _check_size(self, images: Tensor) -> None:
        """Refuse images into which the kernel does not fit."""
        for size, kernel, padding, dilation in zip(
            images.shape[2:], self.kernel, self.padding, self.dilation, strict=True
        ):
            span = dilation * (kernel - 1) + 1
            if size + 2 * padding < span:
                height, width = images.shape[2:]
                raise BadInput(
                    f"got images of {height} x {width}, but the kernel spans {span}, padding is {padding}",
                    where=self.weight.name,
                    remedy="give larger images, or pad them",
                )

    def _kernels(self, weight: Tensor) -> Tensor:
        """The block as (outputs, inputs, height, width)."""
        return weight.view(weight.shape[0], -1, *self.kernel)
