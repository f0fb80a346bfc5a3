"""RMSNorm and LayerNorm over features that are split over y: exact, one exchange of sums each way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import Vector, share


class Norm4D(nn.Module):
    """A norm over ``features`` of rows of shape (tokens, features / y).

    Args:
        centred: LayerNorm with bias; otherwise RMSNorm.
    """

    def __init__(self, machine: Machine, name: str, features: int, *, centred: bool, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.machine, self.features, self.centred, self.epsilon = machine, features, centred, epsilon
        grid = machine.grid
        grid.divided(features, "y", what=f"{name}: features")
        rows = (share(features, grid.size("y"), grid.index("y")),)

        def vector(what: str, initial: float) -> Vector:
            return Vector(
                machine,
                f"{name}.{what}",
                shape=(features,),
                rows=rows,
                split_over=("y",),
                own_tokens=True,
                initial=initial,
            )

        self.gain = vector("weight", 1.0)
        self.bias = vector("bias", 0.0) if centred else None

    @property
    def is_whole(self) -> bool:
        """No other rank has a part of its features."""
        return self.machine.grid.size("y") == 1

    def forward(self, rows: Tensor) -> Tensor:
        gain, bias = self.gain(), None if self.bias is None else self.bias()
        if self.is_whole:
            if self.centred:
                return functional.layer_norm(rows, (self.features,), gain, bias, self.epsilon)
            if rows.is_cuda or torch.compiler.is_compiling():  # elsewhere PyTorch composes it, and keeps more
                return functional.rms_norm(rows, (self.features,), gain, self.epsilon)
        return cast(Tensor, self._communicated(rows, gain, bias))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _communicated(self, rows: Tensor, gain: Tensor, bias: Tensor | None) -> Tensor:
        return cast(Tensor, _Normalize.apply(rows, gain, bias, self))  # type: ignore[no-untyped-call]


class _Normalize(Function):
    """Rows with mean 0 (LayerNorm) and mean square 1, times a gain; statistics are summed over y.

    Rows and their statistics are kept.  LayerNorm's variance is of deviations from this rank's own means, to which the
    spread of the ranks' means is added (Chan et al. 1979): no difference of large sums of squares is taken, and only
    numbers of rows are in fp64.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, gain: Tensor, bias: Tensor | None, norm: Norm4D) -> Tensor:
        wide = rows.to(norm.machine.precision.wide)
        around: list[Tensor] = []
        if norm.centred:
            mean, square = _moments(norm, wide)
            around.append(mean.to(wide.dtype).unsqueeze(1))
        else:
            square = _mean(norm, [wide.square().sum(1)])[0]
        scale = (square + norm.epsilon).rsqrt().to(wide.dtype).unsqueeze(1)
        ctx.norm = norm
        ctx.save_for_backward(rows, gain, scale, *around)
        out = _normed(wide, scale, around) * gain
        return (out if bias is None else out + bias).to(rows.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        rows, gain, scale, *around = ctx.saved_tensors
        norm, (_, gain_wanted, bias_wanted, _) = ctx.norm, ctx.needs_input_grad
        wide, normed = gradients[0].to(scale.dtype), _normed(rows.to(scale.dtype), scale, around)
        for_gain = (wide * normed).sum(0).to(gain.dtype) if gain_wanted else None
        for_bias = wide.sum(0).to(gain.dtype) if bias_wanted else None
        wide = wide * gain
        sums = [(wide * normed).sum(1)]
        if norm.centred:
            sums.append(wide.sum(1))
        means = _mean(norm, sums)
        slope = wide.addcmul_(normed, means[0].unsqueeze(1), value=-1.0)
        if norm.centred:
            slope.sub_(means[1].unsqueeze(1))
        return slope.mul_(scale).to(rows.dtype), for_gain, for_bias, None


def _normed(wide: Tensor, scale: Tensor, around: Sequence[Tensor]) -> Tensor:
    """Rows around their means (there are none in RMSNorm), in units of their spread."""
    return (wide - around[0] if around else wide) * scale


def _moments(norm: Norm4D, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each row over all features, fp64, shape (tokens,) each."""
    local = rows.mean(1)
    around = (rows - local.unsqueeze(1)).square().sum(1).double()
    local = local.double()
    width = rows.shape[1]
    # Squares of means are exact enough in fp64 that their difference is the spread of fp32 means.
    sums = _mean(norm, [local * width, around + local.square() * width])
    return sums[0], (sums[1] - sums[0].square()).clamp(min=0.0)


def _mean(norm: Norm4D, sums: list[Tensor]) -> Tensor:
    """Means over all features of stacked local sums, shape (sums, tokens)."""
    total = norm.machine.collectives.all_reduce(torch.stack(sums), "y").wait()
    return total / norm.features
