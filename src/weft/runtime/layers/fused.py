"""Element-wise steps between linear layers whose gradients are written straight into one buffer.

PyTorch's own would split a fused output into views and concatenate their gradients again; ``torch.compile`` fuses
them.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional


def gated_silu(both: Tensor) -> Tensor:
    """SiLU of the first half of the features times the second (SwiGLU, arXiv 2002.05202).

    (tokens, 2 features) to (tokens, features); the input alone is kept for the backward pass.
    """
    if torch.compiler.is_compiling():
        gate, value = both.chunk(2, dim=1)
        return functional.silu(gate) * value
    return cast(Tensor, _GatedSilu.apply(both))  # type: ignore[no-untyped-call]


class _GatedSilu(Function):
    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        ctx.save_for_backward(both)
        gate, value = both.chunk(2, dim=1)
        return functional.silu(gate).mul_(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (both,) = ctx.saved_tensors
        gate, value = both.chunk(2, dim=1)
        slope = torch.empty_like(both)
        for_gate, for_value = slope.chunk(2, dim=1)
        torch.ops.aten.silu.out(gate, out=for_value).mul_(gradients[0])
        torch.mul(gradients[0], value, out=for_gate)
        torch.ops.aten.silu_backward.grad_input(for_gate, gate, grad_input=for_gate)
        return slope


def split_heads(
    fused: Tensor, heads: int, kv_heads: int, angles: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of a fused output, the first two rotated.

    Args:
        fused: shape (batch, sequence, heads + 2 kv_heads, features).
        angles: cosines and sines, shape (at least sequence, features / 2) each; None for no rotation.

    Returns:
        Queries (batch, heads, sequence, features), keys and values (batch, kv_heads, sequence, features).
    """
    parts = (heads, kv_heads, kv_heads)
    if angles is not None:
        angles = (angles[0][: fused.shape[1]].unsqueeze(1), angles[1][: fused.shape[1]].unsqueeze(1))
    if torch.compiler.is_compiling():
        return _split_rotated(fused, parts, angles)
    return cast(tuple[Tensor, Tensor, Tensor], _SplitHeads.apply(fused, parts, angles))  # type: ignore[no-untyped-call]


def _split_rotated(
    fused: Tensor, parts: tuple[int, int, int], angles: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    both, values = fused.split((parts[0] + parts[1], parts[2]), dim=2)  # type: ignore[no-untyped-call]
    if angles is not None:
        (cosine, sine), (first, second) = angles, both.chunk(2, dim=-1)
        both = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    queries, keys = both.split(parts[:2], dim=2)
    return queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)


class _SplitHeads(Function):
    @staticmethod
    def forward(
        ctx: Any, fused: Tensor, parts: tuple[int, int, int], angles: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, ...]:
        ctx.parts, ctx.angles, ctx.shape = parts, angles, fused.shape
        if angles is not None:  # values move too, so that ``fused`` is not kept for their sake
            turned = torch.empty_like(fused)
            _rotate(fused[:, :, : -parts[2]], *angles, turned[:, :, : -parts[2]])
            turned[:, :, -parts[2] :].copy_(fused[:, :, -parts[2] :])
            fused = turned
        return tuple(part.transpose(1, 2) for part in fused.split(parts, dim=2))  # type: ignore[no-untyped-call]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        slope = gradients[0].new_empty(ctx.shape)
        *rotated, values = zip(slope.split(ctx.parts, dim=2), gradients, strict=True)  # type: ignore[no-untyped-call]
        values[0].copy_(values[1].transpose(1, 2))
        for place, gradient in rotated:
            if ctx.angles is None:
                place.copy_(gradient.transpose(1, 2))
            else:
                cosine, sine = ctx.angles
                _rotate(gradient.transpose(1, 2), cosine, -sine, place)
        return slope, None, None


def _rotate(heads: Tensor, cosine: Tensor, sine: Tensor, into: Tensor) -> Tensor:
    """Turn the halves of the features against each other (arXiv 2104.09864, as in Hugging Face's Llama)."""
    first, second = heads.chunk(2, dim=-1)
    low, high = into.chunk(2, dim=-1)
    torch.mul(first, cosine, out=low).addcmul_(second, sine, value=-1)
    torch.mul(second, cosine, out=high).addcmul_(first, sine)
    return into
