"""How tokens get to the ranks of their experts, and what comes of them back; gradients go the same ways in reverse.

Where y cuts features, a rank exchanges its features of all tokens for all features of a share of them; of ranks along
x, which hold the same tokens, each takes a share.  Copies of tokens are then dealt over the axis of experts, and
gathered over that of an expert's tensor cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from weft.runtime.core.machine import Machine

EXPERT, TENSOR = "expert", "expert_tensor"

Move = Callable[[Tensor], Tensor]
"""A linear map of rows that ranks carry out together."""


def moved(rows: Tensor, there: Move, back: Move) -> Tensor:
    """``there`` of rows; ``back``, its adjoint, of their gradient."""
    return cast(Tensor, _Moved.apply(rows, there, back))  # type: ignore[no-untyped-call]


class _Moved(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, there: Move, back: Move) -> Tensor:
        ctx.back = back
        return there(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradients[0]), None, None


def routed_rows(machine: Machine, rows: int) -> tuple[int, int]:
    """Of so many rows of a layer, how many this rank routes, and the place of the first in the micro-batch.

    Raises:
        BadInput: they cannot be divided over x and y.
    """
    grid = machine.grid
    axes = ("y",) if machine.rows_cut or grid.size("y") == 1 else ("x", "y")
    own = grid.divided(rows, *axes, what="tokens of a micro-batch")
    return own, (grid.index("x") * grid.size("y") + grid.index("y")) * own


def to_tokens(machine: Machine, rows: Tensor) -> Tensor:
    """Rows (tokens, features / y) to the rows that this rank routes, with all features."""
    if machine.grid.size("y") == 1:
        return rows
    return moved(rows, lambda some: _to_tokens(machine, some), lambda some: _to_features(machine, some))


def to_features(machine: Machine, rows: Tensor) -> Tensor:
    """The way back."""
    if machine.grid.size("y") == 1:
        return rows
    return moved(rows, lambda some: _to_features(machine, some), lambda some: _to_tokens(machine, some))


def _to_tokens(machine: Machine, rows: Tensor) -> Tensor:
    grid = machine.grid
    own = rows.chunk(grid.size("x"))[grid.index("x")]
    parts = machine.collectives.all_to_all(own, "y").wait().view(grid.size("y"), -1, rows.shape[1])
    return parts.transpose(0, 1).flatten(1)


def _to_features(machine: Machine, rows: Tensor) -> Tensor:
    parts = rows.view(len(rows), machine.grid.size("y"), -1).transpose(0, 1).flatten(0, 1)
    return machine.collectives.all_gather(machine.collectives.all_to_all(parts, "y").wait(), "x").wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """One micro-batch's copies of tokens on their way to experts.

    Attributes:
        sent: copies that go to each rank of the axis of experts.
        received: copies that come from each.
        gathered: copies that come to each rank of an expert's tensor cut, for each of its experts, from each rank;
            shape (ranks of the cut, ranks of experts, experts here).
        told: the same on the device.
    """

    machine: Machine
    sent: Sequence[int]
    received: Sequence[int]
    gathered: Sequence[Sequence[Sequence[int]]]
    told: Tensor

    @property
    def each(self) -> list[int]:
        """Rows of each expert here."""
        return [sum(one) for one in zip(*(row for table in self.gathered for row in table), strict=True)]

    @property
    def _height(self) -> int:
        """The most copies that a rank of the tensor cut gets, to which all pad."""
        return max(sum(map(sum, table)) for table in self.gathered)

    def order(self) -> Tensor:
        """Places of the rows of ``arrived``, by expert, without padding."""
        ranks, experts = len(self.gathered[0]), len(self.gathered[0][0])
        told = self.told.view(len(self.gathered), -1)
        times = torch.cat((told, self._height - told.sum(1, keepdim=True)), dim=1).flatten()
        which = torch.arange(experts, device=told.device).repeat(ranks)
        which = torch.cat((which, which.new_full((1,), experts))).repeat(len(self.gathered))
        expert = which.repeat_interleave(times, output_size=self._height * len(self.gathered))
        return expert.argsort(stable=True)[: sum(self.each)]

    def arrived(self, copies: Tensor) -> Tensor:
        """Copies of this rank's tokens, by expert, to those that experts here take: for each rank of the tensor cut,
        by rank of origin and expert, and padding."""
        dealt = moved(copies, self._out, self._home)
        if len(self.gathered) == 1:
            return dealt
        padded = functional.pad(dealt, (0, 0, 0, self._height - len(dealt)))
        return moved(padded, self._joined, self._summed)

    def returned(self, rows: Tensor) -> Tensor:
        """What comes of them, in the order of ``arrived``, summed over the cut, to the copies of own tokens."""
        if len(self.gathered) > 1:
            rows = moved(rows, self._summed, self._joined)[: sum(self.received)]
        return moved(rows, self._home, self._out)

    def _out(self, rows: Tensor) -> Tensor:
        return self.machine.collectives.deal(rows, EXPERT, self.sent, self.received, home=True).wait()

    def _home(self, rows: Tensor) -> Tensor:
        return self.machine.collectives.deal(rows, EXPERT, self.received, self.sent, home=False).wait()

    def _joined(self, rows: Tensor) -> Tensor:
        return self.machine.collectives.all_gather(rows, TENSOR, counted=self._counted(rows)).wait()

    def _summed(self, rows: Tensor) -> Tensor:
        return self.machine.collectives.reduce_scatter(rows, TENSOR, counted=self._counted(rows)).wait()

    def _counted(self, rows: Tensor) -> Tensor:
        """As many elements as this rank's own copies cause on all ranks of the cut: what is gathered here depends on
        the router, and adds up to the same over all ranks, but for padding."""
        shape = len(self.gathered), sum(self.sent), rows.shape[1]
        return torch.empty(shape, dtype=rows.dtype, device="meta")


def evenly(size: int, parts: int) -> list[int]:
    """A number of copies as equal parts, larger ones first."""
    base, more = divmod(size, parts)
    return [base + (part < more) for part in range(parts)]
