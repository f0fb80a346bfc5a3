"""How plain modules store parameters that Weft holds as matrices of (outputs, inputs) or as vectors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Stored:
    """A plain parameter's shape; ``flipped``: it is (inputs, outputs)."""

    shape: tuple[int, ...]
    flipped: bool = False

    def whole(self, plain: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A plain parameter in the shape in which Weft holds it."""
        return (plain.t() if self.flipped else plain).reshape(shape)

    def plain(self, whole: Tensor) -> Tensor:
        """The inverse."""
        return (whole.t() if self.flipped else whole).reshape(self.shape).contiguous()
