"""A convolution over the grid: channels split as a linear layer's features, images over z and data.

What a linear layer multiplies, a convolution correlates; gathering, summing and scattering are the same.
"""

from __future__ import annotations

from math import prod

from torch import Size, Tensor
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from weft.errors import BadInput, Unsupported
from weft.runtime.core.machine import Machine
from weft.runtime.layers.linear import Kind, Layer4D

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
        found: Tensor = conv2d_input(  # type: ignore[no-untyped-call]
            size, kernels, gradient, self.stride, self.padding, self.dilation
        )
        return found.contiguous()

    def scatter_weight(self, gradient: Tensor, rows: Tensor) -> None:
        size = (gradient.shape[1], rows.shape[1], *self.kernel)
        found: Tensor = conv2d_weight(  # type: ignore[no-untyped-call]
            rows, size, gradient, self.stride, self.padding, self.dilation
        )
        self.weight.scatter(found)

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
