"""LoRA: what the products of two narrow matrices add to linear layers (arXiv 2106.09685)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weft.errors import BadInput
from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import DOWN, UP, Replicated
from weft.runtime.core.placement import share


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRA:
    """Adapters of linear layers.

    Attributes:
        rank: features between the two matrices.
        alpha: what they add is multiplied by alpha / rank.
        targets: layers of a block that get one; of fused layers (qkv, fc1) each part has its own.

    Raises:
        BadInput: a value out of range.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...] = ("qkv", "proj", "fc1", "fc2")

    def __post_init__(self) -> None:
        if self.rank < 1 or not 0 < self.alpha < 1e6 or not self.targets:
            raise BadInput(
                f"rank {self.rank}, alpha {self.alpha:g}, targets {self.targets}",
                where="LoRA",
                remedy="give a rank and an alpha above 0, and a layer",
            )

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class Adapter(nn.Module):
    """What is added to a layer's product: of each of its parts two narrow matrices.

    Every rank holds them whole and uses the rows and columns of its block, so that gradients are summed over all.

    Args:
        parts: outputs of each layer that is fused in one.
        over: the axes of inputs and of outputs.
    """

    def __init__(
        self, machine: Machine, name: str, inputs: int, parts: Sequence[int], over: tuple[str, str], lora: LoRA
    ) -> None:
        super().__init__()
        grid, (over_in, over_out) = machine.grid, over
        self.scale = lora.scale
        self.columns = share(inputs, grid.size(over_in), grid.index(over_in))
        self.rows = [share(part, grid.size(over_out), grid.index(over_out)) for part in parts]

        def matrices(ends: str, shapes: Sequence[tuple[int, int]]) -> nn.ParameterList:
            made = (Replicated.of(machine, f"{name}.{i}.{ends}", shape) for i, shape in enumerate(shapes))
            return nn.ParameterList(made)

        self.down = matrices(DOWN, [(lora.rank, inputs) for _ in parts])
        self.up = matrices(UP, [(part, lora.rank) for part in parts])

    def local(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """This rank's columns and rows of the matrices, all down and then all up."""
        first, last = self.columns
        down = (one[:, first:last].to(dtype) for one in self.down)
        return *down, *(one[top:end].to(dtype) for one, (top, end) in zip(self.up, self.rows, strict=True))

    def product(self, rows: Tensor, added: Sequence[Tensor]) -> Tensor:
        """Partial outputs of rows (tokens, inputs here): (tokens, outputs here)."""
        outs = [(rows @ down.t()) @ up.t() for down, up in self._pairs(added)]
        return self.scale * torch.cat(outs, dim=1)

    def input_gradient(self, gradient: Tensor, added: Sequence[Tensor]) -> Tensor:
        """Partial gradients of the rows."""
        return self.scale * torch.stack([(g @ up) @ down for g, down, up in self._split(gradient, added)]).sum(0)

    def gradients(self, gradient: Tensor, rows: Tensor, added: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Of ``local``, from this rank's rows."""
        slopes = [
            (self.scale * (g @ up).t() @ rows, self.scale * g.t() @ (rows @ down.t()))
            for g, down, up in self._split(gradient, added)
        ]
        return tuple(one for both in zip(*slopes, strict=True) for one in both)

    def _pairs(self, added: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        half = len(added) // 2
        return zip(added[:half], added[half:], strict=True)

    def _split(self, gradient: Tensor, added: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The output gradient of each part, and its matrices."""
        start = 0
        for down, up in self._pairs(added):
            yield gradient[:, start : start + len(up)], down, up
            start += len(up)
