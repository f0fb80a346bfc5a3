"""Mixture of experts: a router sends each token to its top experts, which lie on the ranks of the axis of experts.

No token is dropped: ranks first tell each other how many copies they send, then exchange copies by all-to-all, and
back.  Experts are balanced within each sequence (arXiv 2412.19437, section 2.1.2: the share of a sequence's copies
that an expert gets, times its mean probability), so that the loss does not depend on the grid.  Sources:
arXiv 2101.03961, section 2 (loss); arXiv 2211.15841 (dropless); arXiv 2504.14960 (experts on a mesh of their own).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from weft.model.spec import MixtureOfExperts
from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import Matrix, Vector
from weft.runtime.core.placement import share

AXIS = "expert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How a router weighs and balances.

    Attributes:
        normalized: the weights of a token's experts add up to 1 (Mixtral, Qwen3).
        balance: factor of the balancing loss, the mean over all sequences, in each layer.
    """

    normalized: bool = True
    balance: float = 0.0


class Activation(Protocol):
    def __call__(self, up: Tensor) -> Tensor:
        """What the second product takes, of what the first one gives."""


class ExpertLinear(nn.Module):
    """One linear layer of this rank's experts; the whole matrix has the rows of all experts, one after the other."""

    def __init__(self, machine: Machine, name: str, inputs: int, outputs: int, experts: int) -> None:
        super().__init__()
        grid = machine.grid
        self.machine, self.experts = machine, grid.divided(experts, AXIS, what=f"{name}: experts")
        first, last = share(experts, grid.size(AXIS), grid.index(AXIS))
        self.weight = Matrix(
            machine,
            name,
            shape=(experts * outputs, inputs),
            rows=((first * outputs, last * outputs),),
            columns=(0, inputs),
            split_over=("x", "y", "context", "z", "data", AXIS),
            cut_over=("expert_shard",),
            copied_over=("expert_replica",),
        )

    def forward(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Rows (copies, inputs), so many of each expert in order, to (copies, outputs)."""
        return cast(Tensor, _Grouped.apply(rows, self.weight.shard, self, counts))  # type: ignore[no-untyped-call]

    def matrices(self) -> Tensor:
        """The weights, shape (experts, outputs, inputs)."""
        block = self.weight.gather()
        return block.view(self.experts, -1, block.shape[1])


class _Grouped(Function):
    """A product for each expert; the weights' gradient is delivered to the parameter by the scheduler."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, shard: Tensor, layer: ExpertLinear, counts: Sequence[int]) -> Tensor:
        ctx.layer, ctx.counts = layer, counts
        ctx.save_for_backward(rows)
        parts = zip(torch.split(rows, list(counts)), layer.matrices(), strict=True)
        return torch.cat([layer.machine.matmul(part, weight.t()) for part, weight in parts])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        layer: ExpertLinear = ctx.layer
        (rows,) = ctx.saved_tensors
        matmul, weights = layer.machine.matmul, layer.matrices()
        slopes = torch.split(gradients[0].contiguous(), ctx.counts)
        for_rows = torch.cat([matmul(slope, weight) for slope, weight in zip(slopes, weights, strict=True)])

        def scatter() -> None:
            parts = zip(slopes, torch.split(rows, ctx.counts), strict=True)
            layer.weight.scatter(torch.cat([matmul(slope.t(), part) for slope, part in parts]))

        if ctx.needs_input_grad[1]:
            layer.machine.later.do(scatter)
        return for_rows, None, None, None


class Experts4D(nn.Module):
    """Rows (tokens [/ x], hidden) to rows of the same shape; features are whole (y = 1).

    Args:
        sequence: this rank's tokens of one sequence.
        whole_sequence: all tokens of one sequence.
        activation: between the two products of an expert.
        shared: a dense part that every token meets, added; or None.

    Attributes:
        tokens: of the global batch, by whose number losses are divided; 0: nothing is balanced.
    """

    def __init__(
        self,
        machine: Machine,
        name: str,
        hidden: int,
        moe: MixtureOfExperts,
        routing: Routing,
        *,
        sequence: int,
        whole_sequence: int,
        activation: Activation,
        shared: nn.Module | None,
    ) -> None:
        super().__init__()
        self.machine, self.experts, self.top_k, self.routing = machine, moe.experts, moe.top_k, routing
        self.sequence, self.whole_sequence, self.activation, self.shared = sequence, whole_sequence, activation, shared
        self.tokens = 0
        self.router = Vector(
            machine,
            f"{name}.router.weight",
            shape=(moe.experts, hidden),
            rows=((0, moe.experts),),
            columns=(0, hidden),
            local_shape=(moe.experts, hidden),
            split_over=(),
            own_tokens=True,
        )
        width = moe.expert.intermediate
        up = width * (2 if moe.expert.gated else 1)
        self.fc1 = ExpertLinear(machine, f"{name}.expert.fc1", hidden, up, moe.experts)
        self.fc2 = ExpertLinear(machine, f"{name}.expert.fc2", width, hidden, moe.experts)

    def forward(self, rows: Tensor) -> Tensor:
        wide = self.machine.precision.wide
        chances = (rows.to(wide) @ self.router.values.to(wide).t()).softmax(-1)
        weights, chosen = chances.topk(self.top_k)
        if self.routing.normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        load = self._load(chosen)
        if self.tokens and self.routing.balance:
            crowd = load[self._sequences(len(rows))] * (self.experts / (self.top_k * self.whole_sequence))
            loss = (chances * crowd).sum() * (self.routing.balance / self.tokens)
            rows = cast(Tensor, _Balanced.apply(rows, loss))  # type: ignore[no-untyped-call]
        order = chosen.flatten().argsort(stable=True)
        copies = rows.unsqueeze(1).expand(-1, self.top_k, -1).reshape(-1, rows.shape[1])[order]
        back = self._dealt(copies, chosen)
        home = torch.empty_like(order)
        home[order] = torch.arange(len(order), device=order.device)
        mixed = (back[home].view(len(rows), self.top_k, -1) * weights.unsqueeze(-1).to(rows.dtype)).sum(1)
        return mixed if self.shared is None else mixed + self.shared(rows)

    def _dealt(self, copies: Tensor, chosen: Tensor) -> Tensor:
        """Copies of tokens in the order of their experts, through these and back in the same order."""
        sent, table, told = self._announced(chosen)
        received = [sum(row) for row in table]
        arrived = cast(Tensor, _Deal.apply(copies, self.machine, sent, received, True))  # type: ignore[no-untyped-call]
        # What came is in the order (rank, expert); products take (expert, rank).
        which = torch.arange(len(table[0]), device=copies.device).repeat(len(table))
        order = which.repeat_interleave(told, output_size=len(arrived)).argsort(stable=True)
        every = [sum(column) for column in zip(*table, strict=True)]
        out = self.fc2(self.activation(self.fc1(arrived[order], every)), every)
        turned = torch.empty_like(order)
        turned[order] = torch.arange(len(order), device=order.device)
        return cast(Tensor, _Deal.apply(out[turned], self.machine, received, sent, False))  # type: ignore[no-untyped-call]

    def _announced(self, chosen: Tensor) -> tuple[list[int], list[list[int]], Tensor]:
        """Copies that go to each rank, and that come from each for each expert here, as numbers and on the device.

        Without values (on the meta device, or a fake one) copies are spread evenly, each rank getting what it sends.
        """
        ranks = self.machine.grid.size(AXIS)
        counts = torch.zeros(self.experts, dtype=torch.int64, device=chosen.device)
        counts.index_add_(0, chosen.flatten(), torch.ones_like(chosen).flatten())
        told = self.machine.collectives.all_to_all(counts, AXIS).wait()
        if chosen.is_meta or isinstance(chosen, FakeTensor):
            sent = _evenly(chosen.numel(), ranks)
            return sent, [_evenly(size, self.experts // ranks) for size in sent], told
        here, there = torch.stack((counts, told)).view(2, ranks, -1).tolist()
        return [sum(row) for row in here], there, told

    def _load(self, chosen: Tensor) -> Tensor:
        """Copies of each whole sequence that each expert gets, shape (sequences, experts)."""
        grid, tokens = self.machine.grid, len(chosen) * self.machine.grid.size("x")
        load = torch.zeros(tokens // self.sequence * self.experts, device=chosen.device)
        places = self._sequences(len(chosen)).unsqueeze(1) * self.experts + chosen
        load.index_add_(0, places.flatten(), torch.ones(places.numel(), device=chosen.device))
        if grid.size("x", "context") > 1:
            load = self.machine.collectives.all_reduce(load, "x", "context").wait()
        return load.view(-1, self.experts).to(self.machine.precision.wide)

    def _sequences(self, rows: int) -> Tensor:
        """Which sequence of the micro-batch each of this rank's rows is of."""
        grid = self.machine.grid
        first = grid.index("x") * rows if self.machine.rows_cut else 0
        return (torch.arange(rows, device=grid.device) + first) // self.sequence


def _evenly(size: int, parts: int) -> list[int]:
    base, more = divmod(size, parts)
    return [base + (part < more) for part in range(parts)]


class _Deal(Function):
    """Rows to other ranks; gradients come back the same way."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, machine: Machine, sent: Sequence[int], received: Sequence[int], home: bool
    ) -> Tensor:
        ctx.machine, ctx.sent, ctx.received, ctx.home = machine, sent, received, home
        return machine.collectives.deal(rows, AXIS, sent, received, home=home).wait()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        back = ctx.machine.collectives.deal(gradients[0], AXIS, ctx.received, ctx.sent, home=not ctx.home)
        return back.wait(), None, None, None, None


class _Balanced(Function):
    """Rows as they are; backward the loss gets its gradient of 1 although nobody adds it to the others."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, loss: Tensor) -> Tensor:
        ctx.like = loss.detach()
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], torch.ones_like(ctx.like)
