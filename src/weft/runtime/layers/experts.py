"""Feed-forward layers: dense ones, and mixtures of experts.

A router sends each token to its top experts, which lie on the ranks of the axis of experts.
No token is dropped: ranks first tell each other how many copies they send, then deal these by all-to-all, and back.

Experts are balanced within each sequence (arXiv 2412.19437, section 2.1.2: the share of a sequence's copies that an
expert is chosen for, times its mean probability), so that the loss does not depend on the grid.  Sources:
arXiv 2101.03961, section 2 (loss); arXiv 2211.15841 (dropless); arXiv 2504.14960 (experts on a mesh of
their own).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from weft.layout.mesh import ROWS
from weft.model.spec import FeedForward, MixtureOfExperts
from weft.runtime.core.beneath import FakeTensor
from weft.runtime.core.collectives import moved
from weft.runtime.core.grid import SEQUENCE
from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import Matrix, Vector, fused, share
from weft.runtime.layers.attention import own_tokens
from weft.runtime.layers.linear import Linear4D

EXPERT, TENSOR = "expert", "expert_tensor"
Activation = Literal["gelu", "gelu-tanh", "relu", "silu"]


class _Copied(Function):
    """Copies of rows in any order: copy i of each row's ``times`` is number row * times + i.

    Backward no two threads add to one place, so that sums of a row's copies are in one order and in fp32.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, times: int) -> Tensor:
        ctx.shape = len(rows), times, rows.shape[1]
        ctx.save_for_backward(order)
        return rows.index_select(0, order // times)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (order,) = ctx.saved_tensors
        rows, times, features = ctx.shape
        copies = gradients[0].new_zeros(rows * times, features).index_copy_(0, order, gradients[0])
        return copies if times == 1 else copies.view(ctx.shape).sum(1), None, None


def copied(rows: Tensor, order: Tensor, times: int = 1) -> Tensor:
    """Copies of rows, ``times`` of each, in an order of their numbers."""
    return cast(Tensor, _Copied.apply(rows, order, times))  # type: ignore[no-untyped-call]


def to_tokens(machine: Machine, rows: Tensor) -> Tensor:
    """Rows (tokens, features / y) to the rows that this rank routes, with all features."""
    there, back = partial(_to_tokens, machine), partial(_to_features, machine)
    return moved(rows, there, back) if machine.grid.size("y") > 1 else rows


def to_features(machine: Machine, rows: Tensor) -> Tensor:
    """The way back."""
    there, back = partial(_to_features, machine), partial(_to_tokens, machine)
    return moved(rows, there, back) if machine.grid.size("y") > 1 else rows


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
    def ends(self) -> Tensor:
        """Where the rows of each expert here end, in their order."""
        return self.told.view(-1, len(self.gathered[0][0])).sum(0).cumsum(0).int()

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
        return expert.argsort(stable=True)[: sum(sum(map(sum, table)) for table in self.gathered)]

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
        """As many elements as this rank's own copies cause on all ranks of the cut; the sum over ranks is fixed."""
        shape = len(self.gathered), sum(self.sent), rows.shape[1]
        return torch.empty(shape, dtype=rows.dtype, device="meta")


def evenly(size: int, parts: int) -> list[int]:
    """A number of copies as equal parts, larger ones first."""
    base, more = divmod(size, parts)
    return [base + (part < more) for part in range(parts)]


class ExpertLinear(nn.Module):
    """One linear layer of this rank's experts; the whole matrix has the rows of all experts, one after the other.

    The tensor cut of an expert splits outputs, each of ``outputs`` on its own, or with ``transposed`` inputs, whose
    products are then to be summed.
    """

    def __init__(
        self,
        machine: Machine,
        name: str,
        inputs: int,
        outputs: tuple[int, ...],
        experts: int,
        *,
        transposed: bool = False,
    ) -> None:
        super().__init__()
        grid, height = machine.grid, sum(outputs)
        self.machine, self.experts = machine, grid.divided(experts, EXPERT, what=f"{name}: experts")
        first, last = share(experts, grid.size(EXPERT), grid.index(EXPERT))
        cut, place = grid.size(TENSOR), grid.index(TENSOR)
        for size in (inputs,) if transposed else outputs:
            grid.divided(size, TENSOR, what=f"{name}: features")
        rows: tuple[tuple[int, int], ...] = ((first * height, last * height),)
        if cut > 1 and not transposed:
            own = fused(outputs, cut, place)
            rows = tuple(
                (one * height + start, one * height + stop) for one in range(first, last) for start, stop in own
            )
        self.weight = Matrix(
            machine,
            name,
            shape=(experts * height, inputs),
            rows=rows,
            columns=share(inputs, cut, place) if transposed else (0, inputs),
            split_over=("x", "y", "context", "z", "data", EXPERT, TENSOR),
            cut_over=("expert_shard",),
            copied_over=("expert_replica",),
        )

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Rows (copies, inputs), those of each expert together up to its end, int32, to (copies, outputs)."""
        return cast(Tensor, _Grouped.apply(rows, self.weight.shard, self, ends))  # type: ignore[no-untyped-call]

    def matrices(self) -> Tensor:
        """The weights, shape (experts, outputs, inputs)."""
        block = self.weight.gather()
        return block.view(self.experts, -1, block.shape[1])


class _Grouped(Function):
    """A product for each expert; the weights' gradient is delivered to the parameter by the scheduler."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, shard: Tensor, layer: ExpertLinear, ends: Tensor) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(rows, ends)
        return grouped_product(rows, layer.matrices().mT, ends)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        layer: ExpertLinear = ctx.layer
        rows, ends = ctx.saved_tensors
        slopes = gradients[0].contiguous()
        for_rows = grouped_product(slopes, layer.matrices(), ends)
        layer.machine.later.do(lambda: layer.weight.scatter(grouped_outer(slopes, rows, ends).flatten(0, 1)))
        return for_rows, None, None, None


def grouped_product(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Rows (copies, inputs), each times the matrix of its group (groups, inputs, outputs), to (copies, outputs)."""
    if _fits_grouped(rows, matrices):
        return functional.grouped_mm(rows, matrices, offs=ends)
    return torch.cat([part @ matrix for part, matrix in zip(_groups(rows, ends), matrices, strict=True)])


def grouped_outer(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """``left.T @ right`` of each group's rows, shape (groups, features of left, features of right)."""
    if _fits_grouped(left, right):
        return functional.grouped_mm(left.t(), right, offs=ends)
    groups = zip(_groups(left, ends), _groups(right, ends), strict=True)
    return torch.stack([left_part.t() @ right_part for left_part, right_part in groups])


def _fits_grouped(rows: Tensor, factor: Tensor) -> bool:
    """Whether PyTorch's grouped product takes them: bf16, and 16 bytes divide a row of each."""
    widths = rows.shape[1], factor.shape[-1]
    return rows.dtype == torch.bfloat16 and len(rows) > 0 and all(width % 8 == 0 for width in widths)


def _groups(rows: Tensor, ends: Tensor) -> tuple[Tensor, ...]:
    """The rows of each group; where ``ends`` has no values, groups of one size."""
    if _has_values(ends):
        return torch.tensor_split(rows, ends[:-1].tolist())
    return torch.split(rows, evenly(len(rows), len(ends)))


def _has_values(tensor: Tensor) -> bool:
    return not (tensor.is_meta or isinstance(tensor, FakeTensor))


class Experts4D(nn.Module):
    """Rows (tokens [/ x], hidden / y) to rows of the same shape.

    Args:
        normalized: the weights of a token's experts add up to 1 (Mixtral, Qwen3).
        balance: factor of the balancing loss, the mean over all sequences, in each layer.
        sequence: all tokens of one, of which a rank of context has ``own_tokens``.
        activation: between the two products of an expert, and of the dense part that every token meets, if any.

    Attributes:
        tokens: of the global batch, by whose number losses are divided; 0: nothing is balanced.
    """

    def __init__(
        self,
        machine: Machine,
        name: str,
        hidden: int,
        moe: MixtureOfExperts,
        *,
        normalized: bool,
        balance: float,
        sequence: int,
        activation: Activation | None,
    ) -> None:
        super().__init__()
        self.machine, self.experts, self.top_k = machine, moe.experts, moe.top_k
        self.normalized, self.balance = normalized, balance
        self.places = own_tokens(machine.grid, sequence).to(machine.grid.device)
        """Of this rank's tokens in their sequence."""
        self.whole_sequence = sequence
        self.activation, self.gated = activation or ("silu" if moe.expert.gated else "gelu"), moe.expert.gated
        self.shared: FeedForward4D | None = None
        if moe.shared is not None:
            self.shared = FeedForward4D(machine, f"{name}.shared_expert", hidden, moe.shared, activation)
        self.tokens = 0
        self.router = Vector(machine, f"{name}.router.weight", shape=(moe.experts, hidden), sum_over=("x", "y", *ROWS))
        width = moe.expert.intermediate
        up = (width,) * (2 if moe.expert.gated else 1)
        self.fc1 = ExpertLinear(machine, f"{name}.expert.fc1", hidden, up, moe.experts)
        self.fc2 = ExpertLinear(machine, f"{name}.expert.fc2", width, (hidden,), moe.experts, transposed=True)

    def forward(self, rows: Tensor) -> Tensor:
        mixed = to_features(self.machine, self._mixed(to_tokens(self.machine, rows), len(rows)))
        return mixed if self.shared is None else mixed + self.shared(rows)

    def _mixed(self, rows: Tensor, given: int) -> Tensor:
        """What experts make of the rows that this rank routes, with all features, of so many that it was given."""
        wide = self.machine.precision.wide
        chances = (rows.to(wide) @ self.router.values.to(wide).t()).softmax(-1)
        weights, chosen = chances.topk(self.top_k)
        if self.normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        sequence, place = self._where(given)
        load = self._load(self._choices(chosen, sequence, place))
        if self.tokens and self.balance:
            crowd = load[sequence] * (self.experts / (self.top_k * self.whole_sequence))
            loss = (chances * crowd).sum() * (self.balance / self.tokens)
            rows = cast(Tensor, _Balanced.apply(rows, loss))  # type: ignore[no-untyped-call]
        which, order = chosen.flatten().sort(stable=True)  # copies by their experts
        experts = torch.arange(self.experts, device=chosen.device)
        ends = torch.searchsorted(which, experts, right=True, out_int32=True)
        back = self._worked(copied(rows, order, self.top_k), ends)
        home = back.new_zeros(chosen.numel(), rows.shape[1]).index_copy(0, order, back)
        return (home.view(len(rows), self.top_k, -1) * weights.unsqueeze(-1).to(rows.dtype)).sum(1)

    def _worked(self, copies: Tensor, ends: Tensor) -> Tensor:
        """Copies of tokens in the order of their experts, through these and back in the same order."""
        if self.machine.grid.size(EXPERT, TENSOR) == 1:
            return self._computed(copies, ends)
        deal = self._deal(copies, ends)
        order, arrived = deal.order(), deal.arrived(copies)
        out = self._computed(copied(arrived, order), deal.ends)
        return deal.returned(out.new_zeros(arrived.shape).index_copy(0, order, out))

    def _computed(self, rows: Tensor, ends: Tensor) -> Tensor:
        return self.fc2(_between(self.fc1(rows, ends), self.activation, self.gated), ends)  # type: ignore[no-any-return]

    def _deal(self, copies: Tensor, ends: Tensor) -> Deal:
        """Ranks tell each other how many copies go to which expert; the host waits for it, as it gives the sizes.

        Without values (on the meta device, or a fake one) copies are spread evenly, each rank getting what it sends.
        """
        grid, collectives = self.machine.grid, self.machine.collectives
        ranks, cut = grid.size(EXPERT), grid.size(TENSOR)
        counts = ends.long().diff(prepend=ends.new_zeros(1))
        told = collectives.all_gather(collectives.all_to_all(counts, EXPERT).wait(), TENSOR).wait()
        if not _has_values(ends):
            sent = received = evenly(len(copies), ranks)
            gathered = [[evenly(size, self.experts // ranks) for size in sent]] * cut
        else:
            here, *gathered = torch.cat((counts, told)).view(1 + cut, ranks, -1).tolist()
            sent, received = ([sum(row) for row in table] for table in (here, gathered[grid.index(TENSOR)]))
        return Deal(machine=self.machine, sent=sent, received=received, gathered=gathered, told=told)

    def _where(self, given: int) -> tuple[Tensor, Tensor]:
        """Of each row that this rank routes: which sequence of the micro-batch it is of, and its place there."""
        grid = self.machine.grid
        axes = ("y",) if self.machine.rows_cut or grid.size("y") == 1 else ("x", "y")
        own = grid.divided(given, *axes, what="tokens of a micro-batch")
        first = (grid.index("x") * grid.size("y") + grid.index("y")) * own
        rows = torch.arange(own, device=self.places.device) + first
        return rows // len(self.places), self.places[rows % len(self.places)]

    def _choices(self, chosen: Tensor, sequence: Tensor, place: Tensor) -> Tensor:
        """Experts that all tokens of the micro-batch's whole sequences chose, shape (sequences, tokens, top k)."""
        grid = self.machine.grid
        count = len(chosen) * grid.size("x", "y") // len(self.places)
        shape = count, self.whole_sequence, self.top_k
        result = torch.zeros(shape, dtype=torch.int32, device=chosen.device)
        result[sequence, place] = chosen.int()
        return self.machine.collectives.all_reduce(result, *SEQUENCE).wait().long()

    def _load(self, choices: Tensor) -> Tensor:
        """Copies of each sequence that choose each expert, shape (sequences, experts)."""
        load = torch.zeros(len(choices) * self.experts, device=choices.device)
        places = choices.flatten(1) + torch.arange(len(choices), device=choices.device).unsqueeze(1) * self.experts
        load.index_add_(0, places.flatten(), torch.ones(places.numel(), device=choices.device))
        return load.view(-1, self.experts).to(self.machine.precision.wide)


class _Balanced(Function):
    """Rows as they are; backward the loss gets its gradient of 1 although nobody adds it to the others."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, loss: Tensor) -> Tensor:
        ctx.like = loss.detach()
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], torch.ones_like(ctx.like)


# Dense ones, and what is between two products -----------------------------------------------------


class FeedForward4D(nn.Module):
    """Two linear layers; gated ones multiply the first one's two halves (SwiGLU, arXiv 2002.05202)."""

    def __init__(
        self, machine: Machine, name: str, hidden: int, layer: FeedForward, activation: Activation | None
    ) -> None:
        super().__init__()
        self.gated = layer.gated
        self.activation = activation or ("silu" if layer.gated else "gelu")
        outputs = (layer.intermediate,) * (2 if layer.gated else 1)
        self.fc1 = Linear4D(machine, f"{name}.fc1", hidden, outputs, bias=layer.bias)
        self.fc2 = Linear4D(machine, f"{name}.fc2", layer.intermediate, hidden, kind="transposed", bias=layer.bias)

    def forward(self, rows: Tensor) -> Tensor:
        return self.fc2(_between(self.fc1(rows), self.activation, self.gated))  # type: ignore[no-any-return]


def _between(up: Tensor, activation: Activation, gated: bool) -> Tensor:
    """What a feed-forward layer's second product takes."""
    if gated and activation == "silu" and not torch.compiler.is_compiling():
        return cast(Tensor, GatedSilu.apply(up))  # type: ignore[no-untyped-call]
    if gated:
        gate, value = up.chunk(2, dim=1)
        return _activate(activation, gate) * value
    return _activate(activation, up)


class GatedSilu(Function):
    """SiLU of the first half of the features times the second; PyTorch's own would also keep the SiLU for backward."""

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


def _activate(name: Activation, values: Tensor) -> Tensor:
    if name == "silu":
        return functional.silu(values)
    if name == "relu":
        return functional.relu(values)
    return functional.gelu(values, approximate="tanh" if name == "gelu-tanh" else "none")
