"""Embedding, output projection and cross-entropy with the vocabulary split over x and y.

Between them hidden states are split over y (features) and, with sequence parallelism, over x (tokens).
Source: arXiv 1909.08053, section 3, over AxoNN's combined x and y group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from weft.errors import BadInput
from weft.layout.operations import padded_rows
from weft.layout.step import WIDENED_LOGITS
from weft.runtime.core.beneath import assert_on_device
from weft.runtime.core.collectives import Pending
from weft.runtime.core.machine import Machine, refuse_autocast
from weft.runtime.core.parameters import Matrix, Range, Vector, share

IGNORED = -100
"""The target of tokens that do not count, as ``torch.nn.functional.cross_entropy`` has it."""


def vocabulary_matrix(machine: Machine, name: str, vocab: int, hidden: int) -> Matrix:
    """A table of ``vocab`` rows, split over x and y, padded to equal parts."""
    grid = machine.grid
    height = int(padded_rows(vocab, hidden, grid.layout.x, grid.layout.y, grid.size(*grid.shard)))
    return Matrix(
        machine,
        name,
        shape=(vocab, hidden),
        rows=(vocabulary_rows(machine, vocab, height),),
        columns=(0, hidden),
        split_over=("x", "y"),
        padded_rows=height,
    )


def positions_table(machine: Machine, name: str, positions: int, hidden: int) -> Vector:
    """A table of positions, its features split over y, whole along the other axes."""
    grid = machine.grid
    grid.divided(hidden, "y", what=f"{name.removesuffix('.weight')}: features")
    return Vector(
        machine,
        name,
        shape=(positions, hidden),
        columns=share(hidden, grid.size("y"), grid.index("y")),
        split_over=("y",),
        own_tokens=True,
    )


def vocabulary_rows(machine: Machine, vocab: int, height: int) -> Range:
    """This rank's range of token ids."""
    start = min(machine.grid.index("x", "y") * height, vocab)
    return start, min(start + height, vocab)


def _check_known(ids: Tensor, vocab: int, where: str, *, ignored: int | None = None) -> None:
    """Refuse ids outside the vocabulary: at once on the CPU, by an assertion on the device on a GPU."""
    if not (ids.is_cpu or ids.is_cuda) or not ids.numel():
        return
    unknown = (ids < 0) | (ids >= vocab)
    if ignored is not None:
        unknown &= ids != ignored
    if ids.is_cuda:
        assert_on_device(~unknown.any(), f"{where}: outside the vocabulary of {vocab}")
    elif unknown.any():
        first = int(ids[unknown][0])
        more = "" if ignored is None else f", or {ignored} for what is not to count"
        raise BadInput(
            f"{first:,} is outside the vocabulary of {vocab:,}", where=where, remedy=f"give 0 to {vocab - 1:,}{more}"
        )


class Embedding4D(nn.Module):
    """Token ids (tokens,) to hidden states (tokens, hidden / y), or (tokens / x, hidden / y).

    Args:
        padding_index: a row of the table that gets no gradient.

    Raises:
        BadInput: features cannot be divided over y, or the padding index is in no row; in ``forward``, on the
            CPU, an id is in no row.
    """

    def __init__(
        self, machine: Machine, name: str, vocab: int, hidden: int, *, padding_index: int | None = None
    ) -> None:
        super().__init__()
        self.machine, self.name, self.vocab, self.padding_index = machine, name, vocab, padding_index
        machine.grid.divided(hidden, "y", what=f"{name}: hidden features")
        if padding_index is not None and not 0 <= padding_index < vocab:
            raise BadInput(
                f"{padding_index} is outside the vocabulary of {vocab:,}",
                where=f"{name}: padding_index",
                remedy=f"give 0 to {vocab - 1:,}",
            )
        self.table = vocabulary_matrix(machine, name, vocab, hidden)

    def forward(self, ids: Tensor) -> Tensor:
        if self.machine.rows_cut:
            self.machine.grid.divided(len(ids), "x", what="tokens of a micro-batch")
        _check_known(ids, self.vocab, f"{self.name}: ids")
        result = _Lookup.apply(ids, self.table.shard, self)  # type: ignore[no-untyped-call]
        return cast(Tensor, result)


class _Lookup(Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, shard: Tensor, embedding: Embedding4D) -> Tensor:
        machine, table = embedding.machine, embedding.table
        start, stop = table.placement.rows[0]
        local = torch.where((ids >= start) & (ids < stop), ids - start, -1)
        trained = local
        if embedding.padding_index is not None:
            trained = torch.where(ids == embedding.padding_index, -1, local)
        ctx.save_for_backward(trained)
        ctx.table = table
        rows = table.gather()[local.clamp(min=0)] * (local >= 0).unsqueeze(1)
        if machine.rows_cut:
            return machine.collectives.reduce_scatter(_to_ranks(machine, rows), "x", "y").wait()[0]
        whole = machine.collectives.all_reduce(rows, "x", "y").wait()
        return _own_features(machine, whole)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        (local,) = ctx.saved_tensors
        table: Matrix = ctx.table
        gradient = whole_rows(table.machine, gradients[0])
        table.scatter_rows(torch.where((local >= 0).unsqueeze(1), gradient, 0), local.clamp(min=0))
        return None, None, None


class Head4D(nn.Module):
    """Hidden states (tokens [/ x], hidden / y) to logits (tokens, padded vocabulary / (x y)).

    Args:
        table: the matrix to share with the embedding; its own by default.
    """

    def __init__(
        self, machine: Machine, name: str, vocab: int, hidden: int, *, bias: bool = False, table: Matrix | None = None
    ) -> None:
        super().__init__()
        self.table = vocabulary_matrix(machine, name, vocab, hidden) if table is None else table
        if table is not None:
            table.uses += 1
        self.bias = None
        if bias:
            self.bias = Vector(
                machine,
                f"{name}.bias",
                shape=(vocab,),
                rows=self.table.placement.rows,
                height=self.table.block_shape[0],
                split_over=("x", "y"),
            )

    def forward(self, rows: Tensor) -> Tensor:
        refuse_autocast(rows, self.table.name)
        logits = cast(Tensor, _Logits.apply(rows, self.table.shard, self.table))  # type: ignore[no-untyped-call]
        return logits if self.bias is None else logits + self.bias().to(logits.dtype)


class _Logits(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, shard: Tensor, table: Matrix) -> Tensor:
        machine = table.machine
        whole = whole_rows(machine, rows)
        ctx.table = table
        ctx.save_for_backward(rows if machine.rows_cut else whole)
        return whole @ table.gather().to(rows.dtype).t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        table: Matrix = ctx.table
        machine = table.machine
        (saved,) = ctx.saved_tensors
        gradient = gradients[0].contiguous()

        def gather() -> Pending:
            return _gathered(machine, saved) if machine.rows_cut else Pending(saved)

        again = None if machine.later.collects else gather()
        if again is not None and not machine.overlap.all_reduce:
            again.wait()

        def scatter() -> None:
            rows = (again or gather()).wait()
            table.scatter_product(gradient, _side_by_side(machine, rows) if machine.rows_cut else rows)

        partial = gradient @ table.gather().to(gradient.dtype)
        if machine.rows_cut:
            pending = machine.collectives.reduce_scatter(_to_ranks(machine, partial), "x", "y")
        else:
            pending = machine.collectives.all_reduce(partial, "x", "y")
        if not machine.overlap.all_reduce:
            pending.wait()
        machine.later.do(scatter)
        summed = pending.wait()
        return summed[0] if machine.rows_cut else _own_features(machine, summed), None, None


def _gathered(machine: Machine, rows: Tensor) -> Pending:
    """Gather hidden states (tokens [/ x], hidden / y), to be put ``_side_by_side``."""
    return machine.collectives.all_gather(rows, *(("x", "y") if machine.rows_cut else ("y",)))


def whole_rows(machine: Machine, rows: Tensor) -> Tensor:
    """Hidden states (tokens [/ x], hidden / y) as (tokens, hidden)."""
    return _side_by_side(machine, _gathered(machine, rows).wait())


def _side_by_side(machine: Machine, gathered: Tensor) -> Tensor:
    """Shards of the ranks of (x and) y as one (tokens, hidden)."""
    y = machine.grid.size("y")
    if not machine.rows_cut:
        return gathered.view(y, -1, gathered.shape[1]).permute(1, 0, 2).flatten(1) if y > 1 else gathered
    x, width = machine.grid.size("x"), gathered.shape[1]
    if _x_inside_y(machine):
        return gathered.view(y, x, -1, width).permute(1, 2, 0, 3).reshape(-1, y * width)
    return gathered.view(x, y, -1, width).permute(0, 2, 1, 3).reshape(-1, y * width)


def _to_ranks(machine: Machine, rows: Tensor) -> Tensor:
    """(tokens, hidden) as (ranks of x and y, tokens / x, hidden / y), in the order of the group."""
    x, y = machine.grid.size("x"), machine.grid.size("y")
    cut = rows.view(x, rows.shape[0] // x, y, rows.shape[1] // y)
    order = (2, 0, 1, 3) if _x_inside_y(machine) else (0, 2, 1, 3)
    return cut.permute(order).flatten(0, 1).contiguous()


def _x_inside_y(machine: Machine) -> bool:
    order = machine.grid.layout.order
    return order.index("x") < order.index("y")


def _own_features(machine: Machine, whole: Tensor) -> Tensor:
    """This rank's slice of the features over y."""
    start, stop = share(whole.shape[1], machine.grid.size("y"), machine.grid.index("y"))
    return whole[:, start:stop].contiguous()


def cross_entropy(machine: Machine, logits: Tensor, targets: Tensor, vocab: int) -> Tensor:
    """Losses per token, shape (tokens,), of logits split over the vocabulary; 0 for targets ``IGNORED``.

    Three collectives of one number per token: maximum, target's logit, sum of exponentials.  Logits are kept as they
    are, and widened and exponentiated a few rows at a time, in both passes.

    Raises:
        BadInput: on the CPU, a target is outside the vocabulary.
    """
    _check_known(targets, vocab, "targets", ignored=IGNORED)
    if torch.compiler.is_compiling() and machine.grid.size("x", "y") == 1:  # fused, it keeps no more
        wide = logits[:, :vocab].to(machine.precision.wide)
        return functional.cross_entropy(wide, targets, reduction="none", ignore_index=IGNORED)
    return cast(Tensor, _CrossEntropy.apply(logits, targets, machine, vocab))  # type: ignore[no-untyped-call]


class _CrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, machine: Machine, vocab: int) -> Tensor:
        all_reduce, wide = machine.collectives.all_reduce, machine.precision.wide
        start, stop = vocabulary_rows(machine, vocab, logits.shape[1])
        real = logits[:, : stop - start]
        greatest, total = _sums_of_exponentials(real, wide)
        highest = all_reduce(greatest.clone(), "x", "y", op=dist.ReduceOp.MAX).wait()
        here = (targets >= start) & (targets < stop)
        local = torch.where(here, targets - start, 0)
        target = torch.where(here, logits.gather(1, local.unsqueeze(1)).squeeze(1).to(wide) - highest, 0)
        target = all_reduce(target, "x", "y").wait()
        total *= (greatest - highest).exp_()
        whole = all_reduce(total.clone(), "x", "y").wait()
        losses = torch.where(targets != IGNORED, whole.log() - target, 0)
        ctx.save_for_backward(real, total / whole, losses, targets, local, here)
        ctx.width = logits.shape[1]
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        real, share, losses, targets, local, here = ctx.saved_tensors
        gradient = torch.where(targets != IGNORED, gradients[0], 0)
        slope = real.new_zeros(len(real), ctx.width) if ctx.width > real.shape[1] else torch.empty_like(real)
        for rows in _pieces(real):
            chances = real[rows].softmax(1, dtype=losses.dtype)
            torch.mul(chances, (gradient * share)[rows].unsqueeze(1), out=slope[rows, : real.shape[1]])
        # A target's chance is exp(-loss); its slope is set, as a rounded chance less 1 would be of no use.
        place = local.unsqueeze(1)
        of_target = torch.where(
            here, (losses.neg().expm1() * gradient).to(slope.dtype), slope.gather(1, place).squeeze(1)
        )
        return slope.scatter_(1, place, of_target.unsqueeze(1)), None, None, None


def _sums_of_exponentials(logits: Tensor, wide: torch.dtype) -> tuple[Tensor, Tensor]:
    """The greatest of each row, and the sum of the exponentials of what the others are less."""
    if not logits.shape[1]:
        none = logits.new_zeros(len(logits), dtype=wide)
        return none - torch.inf, none
    greatest, places = logits.max(1)
    total = torch.empty_like(greatest, dtype=wide)
    for rows in _pieces(logits):  # the greatest has the chance 1 / total
        total[rows] = logits[rows].softmax(1, dtype=wide).gather(1, places[rows].unsqueeze(1)).squeeze(1).reciprocal_()
    return greatest.to(wide), total


def _pieces(logits: Tensor) -> Iterator[slice]:
    """Ranges of rows that have at most ``WIDENED_LOGITS`` elements, or one row."""
    height = max(int(WIDENED_LOGITS) // max(logits.shape[1], 1), 1)
    for start in range(0, len(logits) if logits.shape[1] else 0, height):
        yield slice(start, start + height)
