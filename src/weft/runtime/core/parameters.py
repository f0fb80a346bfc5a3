"""Parameters at rest: matrices cut over ``Grid.shard``, vectors whole, and what each rank holds of the whole model.

Initial values do not depend on the grid: each tile of a parameter has its own random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import prod, sqrt
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_pre_hook

from weft.errors import BadInput, Unsupported
from weft.layout.mesh import ROWS
from weft.model.spec import Model
from weft.runtime.core.collectives import Pending, of_every_rank
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine

# Where a piece lies --------------------------------------------------------------------------------------------
# Where a rank's piece of a parameter lies in the whole parameter.
#
# A whole matrix is fused of `parts` along its rows (queries, keys, values; gate and value), each of which is split
# on its own, so that one rank's block is a list of row ranges and one column range. The block, flattened, is cut
# once more over z (and by the optimizer over data): a piece is a range of that flat block.

Range = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    """A rectangle of a whole parameter, and where it starts in the flat piece."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatRange:
    """The flat range ``start`` to ``stop`` of the block ``rows`` x ``columns`` of a whole of ``shape``.

    ``rows`` are ranges of whole rows in the order of the block; flat positions past them are padding.
    Vectors have a shape of one dimension and ``columns`` (0, 1).
    """

    shape: tuple[int, ...]
    rows: tuple[Range, ...]
    columns: Range
    start: int
    stop: int

    @property
    def width(self) -> int:
        return self.columns[1] - self.columns[0]

    def part(self, start: int, stop: int) -> FlatRange:
        """A range of this piece, as a piece."""
        return replace(self, start=self.start + start, stop=self.start + stop)

    def rectangles(self) -> Iterator[Rectangle]:
        """The piece as rectangles of the whole, at most three per range of rows."""
        before = 0
        for first, last in self.rows:
            size = (last - first) * self.width
            low, high = max(self.start - before, 0), min(self.stop - before, size)
            if low < high:
                yield from self._within(first, low, high, before - self.start)
            before += size

    def _within(self, first: int, low: int, high: int, shift: int) -> Iterator[Rectangle]:
        """Flat positions ``low`` to ``high`` of the rows from ``first``: a part of a row, rows, a part."""
        width = self.width
        while low < high:
            row, column = divmod(low, width)
            whole_rows = (high - low) // width if column == 0 else 0
            taken = whole_rows * width or min(width - column, high - low)
            offsets: tuple[int, ...] = (first + row, self.columns[0] + column)
            sizes: tuple[int, ...] = (max(whole_rows, 1), taken // max(whole_rows, 1))
            dimensions = len(self.shape)
            yield Rectangle(offsets=offsets[:dimensions], sizes=sizes[:dimensions], start=low + shift)
            low += taken


def share(size: int, degree: int, index: int) -> Range:
    """The ``index``-th of ``degree`` equal parts of a range from 0."""
    return index * (size // degree), (index + 1) * (size // degree)


def fused(parts: tuple[int, ...], degree: int, index: int) -> tuple[Range, ...]:
    """One rank's rows of a matrix that is fused of parts."""
    result, start = [], 0
    for part in parts:
        low, high = share(part, degree, index)
        result.append((start + low, start + high))
        start += part
    return tuple(result)


# Parameters ----------------------------------------------------------------------------------------------------

EVERY_ROW = ("x", "y", *ROWS)
"""Axes whose ranks have different rows in easy mode."""
Whole = Callable[[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]], Tensor]
"""Values of a rectangle of a whole parameter: of its name, whole shape, offsets and sizes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Holding:
    """What a rank holds of one parameter.

    Attributes:
        placement: which piece of the whole ``parameter``, flattened, is.
        sum_over: axes over which gradients are to be summed once per step.
        split_over: axes whose ranks hold different pieces; along the others they hold copies.
        matrix: a matrix cut over z, not what is whole along it.
        decayed: optimizers decay it: what has two or more dimensions as a whole (learned positions too).
        on_ends: the first and the last pipeline stage both hold it, and sum its gradients.
        rows_over: axes whose ranks have different rows, as many each.
    """

    name: str
    parameter: nn.Parameter
    placement: FlatRange
    sum_over: tuple[str, ...]
    split_over: tuple[str, ...]
    matrix: bool
    decayed: bool
    on_ends: bool = False
    rows_over: tuple[str, ...] = ROWS

    @property
    def routed(self) -> bool:
        """Whether it belongs to experts, whose copies do not lie along mesh axes."""
        return "expert" in self.split_over

    def is_first_copy(self, grid: Grid, *, cut_over_copies: bool = False) -> bool:
        """Whether this rank's copy is the one that counts.

        Args:
            cut_over_copies: ranks of ``Grid.replica`` have different pieces of it.
        """
        split = (*self.split_over, *grid.replica) if cut_over_copies else self.split_over
        copied = [axis for axis in ("x", "y", *ROWS) if axis not in split]
        if self.routed and not cut_over_copies:
            copied = ["expert_replica"]
        if self.on_ends:
            copied.append("pipeline")
        return all(grid.index(axis) == 0 for axis in copied)

    def fill(self, whole: Whole) -> None:
        """Take the piece's values from the whole parameter; padding becomes zero."""
        flat = torch.zeros_like(self.parameter.detach()).view(-1)
        for rectangle in self.placement.rectangles():
            values = whole(self.name, self.placement.shape, rectangle.offsets, rectangle.sizes)
            flat[rectangle.start : rectangle.start + prod(rectangle.sizes)] = values.reshape(-1).to(flat)
        with torch.no_grad():
            self.parameter.copy_(flat.view_as(self.parameter))


P = TypeVar("P", bound=nn.Parameter)


def _ownerless(machine: Machine, parameter: P) -> P:
    """The parameter; no optimizer of torch updates it until ``weft_owner`` gives who sums its gradients over ranks."""
    if machine.grid.layout.world > 1:
        parameter.weft_owner = lambda: None  # type: ignore[attr-defined]
    return parameter


def _refuse_update(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for parameter in (one for group in optimizer.param_groups for one in group["params"]):
        if not hasattr(parameter, "weft_owner"):
            continue
        owner = parameter.weft_owner()
        if owner is not None and not owner.machine.shares_updates:
            continue
        raise Unsupported(
            "with zero > 0 a rank has the gradients of its share of the parameters alone"
            if owner is not None
            else "nothing sums the gradients of these parameters over ranks, so that their copies would drift apart",
            where=type(optimizer).__name__,
            remedy="give prepare(..., optimizer=functools.partial(torch.optim.SGD, lr=0.1)), and call the step",
        )


register_optimizer_step_pre_hook(_refuse_update)


class Matrix(nn.Module):
    """A rank's block of a weight matrix, cut over z at rest, padded to equal parts, and gathered for use.

    Args:
        shape: rows and columns of the whole.
        rows: ranges of whole rows of this rank's block, in order.
        columns: the block's range of columns.
        split_over: axes besides z that split the whole.
        padded_rows: rows of the block; those past ``rows`` are padding.
        cut_over: axes over which the block is cut at rest, ``Grid.shard`` by default.
        copied_over: axes whose ranks hold copies, ``Grid.replica`` by default.
    """

    def __init__(
        self,
        machine: Machine,
        name: str,
        *,
        shape: tuple[int, int],
        rows: tuple[Range, ...],
        columns: Range,
        split_over: tuple[str, ...],
        padded_rows: int | None = None,
        cut_over: tuple[str, ...] | None = None,
        copied_over: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__()
        self.machine, self.name = machine, name
        height = padded_rows or sum(stop - start for start, stop in rows)
        self.block_shape = (height, columns[1] - columns[0])
        grid = machine.grid
        size = prod(self.block_shape)
        self.cut_over = grid.shard if cut_over is None else cut_over
        cut = -(-size // grid.size(*self.cut_over))
        start, stop = grid.index(*self.cut_over) * cut, (grid.index(*self.cut_over) + 1) * cut
        self.placement = FlatRange(shape=shape, rows=rows, columns=columns, start=start, stop=stop)
        self.alone = grid.size(*self.cut_over) == 1
        """No other rank has a part of the block, which is cast and not gathered."""
        self.uses = 1
        """Gradients that one micro-batch gives (2 where embedding and head share the matrix)."""
        self.accumulated: Callable[[nn.Parameter], None] | None = None
        """Told of each gradient that has been added."""
        self.gradient: Tensor | None = None
        """Where ``Flat`` wants the gradient; the first one of a step is copied there."""
        self.input: Tensor | None = None
        """What ``as_leaf`` gave, while torch.compile's graph has it as an input."""
        values = torch.zeros(cut, dtype=machine.precision.master, device=machine.grid.device)
        self.shard = _ownerless(machine, nn.Parameter(values))
        self.holding = Holding(
            name=f"{name}.weight",
            parameter=self.shard,
            placement=self.placement,
            sum_over=grid.replica if copied_over is None else copied_over,
            split_over=(*split_over, *self.cut_over),
            matrix=True,
            decayed=True,
        )

    def gather(self) -> Tensor:
        """The block, shape ``block_shape``, in the format of computation."""
        whole = self.machine.overlap.gather(self).detach().view(-1)[: prod(self.block_shape)]
        return whole.view(self.block_shape).to(self.machine.precision.compute)

    def scatter(self, gradient: Tensor) -> None:
        """Sum the block's gradient over z into this rank's piece."""
        self.machine.overlap.scatter(self, gradient)

    def as_leaf(self) -> Tensor:
        """The same where it is ``alone``, for autograd, which hands its gradient to ``scatter``."""
        return self.machine.overlap.gather(self)

    def _take(self, leaf: Tensor) -> None:
        gradient, leaf.grad = leaf.grad, None
        assert gradient is not None
        self.scatter(gradient)

    def scatter_product(self, gradient: Tensor, rows: Tensor) -> None:
        """The same of the gradient ``gradient.T @ rows``; with z = 1 it is added in place."""
        machine, kept = self.machine, self.shard.grad
        if kept is None or machine.grid.size(*self.cut_over) > 1 or machine.precision.reduce != gradient.dtype:
            self.scatter(gradient.t() @ rows)
            return
        total = kept.view(self.block_shape)
        if total.dtype == gradient.dtype:
            total.addmm_(gradient.t(), rows)
        else:
            total.add_(gradient.t() @ rows)
        self._tell()

    def scatter_rows(self, gradient: Tensor, places: Tensor) -> None:
        """The same of a gradient (n, columns) of the rows at ``places``; with z = 1 they are added in place."""
        alone = self.machine.grid.size(*self.cut_over) == 1
        if alone and self.shard.grad is None and self.gradient is not None:
            self.shard.grad = self.gradient.zero_()
        total = self.shard.grad
        if total is None or not alone:
            rows = gradient.new_zeros(self.block_shape, dtype=self.machine.precision.wide)
            self.scatter(rows.index_add_(0, places, gradient.to(rows.dtype)))
            return
        total.view(self.block_shape).index_add_(0, places, gradient.to(total.dtype))
        self._tell()

    def start_gather(self) -> Pending:
        machine, shard = self.machine, self.shard.detach()
        gather, compute = machine.precision.gather, machine.precision.compute
        cast = None
        if not self.alone or not shard.dtype == gather == compute:
            with machine.beside.queue():
                shard = shard.to(gather)
                if not self.alone:
                    return machine.collectives.all_gather(shard, *self.cut_over)
                shard = shard.to(compute)
                cast = machine.beside.done()
        leaf = shard.view(self.block_shape).requires_grad_()
        leaf.register_post_accumulate_grad_hook(self._take)  # type: ignore[no-untyped-call]
        return Pending(leaf, cast)

    def start_scatter(self, gradient: Tensor) -> Pending:
        flat = gradient.to(self.machine.precision.reduce).reshape(-1)
        padding = self.shard.numel() * self.machine.grid.size(*self.cut_over) - len(flat)
        if padding:
            flat = functional.pad(flat, (0, padding))
        return self.machine.collectives.reduce_scatter(flat, *self.cut_over)

    def accumulate(self, gradient: Tensor) -> None:
        """Add a piece's gradient to the parameter's."""
        gradient = gradient.reshape(-1)
        if self.shard.grad is not None:
            self.shard.grad.add_(gradient)
        elif self.gradient is not None:
            self.shard.grad = self.gradient
            self.gradient.copy_(gradient)
        else:
            self.shard.grad = gradient.to(self.shard.dtype)
        self._tell()

    def _tell(self) -> None:
        if self.accumulated is not None:
            self.accumulated(self.shard)


class Vector(nn.Module):
    """A small parameter, whole on every rank along z and data.

    Args:
        shape: of the whole.
        rows: ranges of the whole's first dimension that this rank holds, in order; all by default.
        columns: range of its second dimension, all by default.
        height: of this rank's values, where it is more than ``rows`` have: the rest is padding.
        split_over: axes over which ranks hold different values.
        own_tokens: under sequence parallelism the rank uses it on its share of the tokens only.
        own_heads: the rank uses it in its share of the heads only.
        sum_over: axes over which gradients are summed, where they are none of these.
    """

    def __init__(
        self,
        machine: Machine,
        name: str,
        *,
        shape: tuple[int, ...],
        rows: tuple[Range, ...] | None = None,
        columns: Range | None = None,
        height: int | None = None,
        split_over: tuple[str, ...] = (),
        own_tokens: bool = False,
        own_heads: bool = False,
        sum_over: tuple[str, ...] | None = None,
        initial: float = 0.0,
    ) -> None:
        super().__init__()
        rows = rows or ((0, shape[0]),)
        columns = columns or (0, prod(shape[1:]))
        height = height or sum(stop - start for start, stop in rows)
        local_shape = (height, columns[1] - columns[0])[: len(shape)]
        apart = own_heads or (own_tokens and machine.rows_cut)
        values = torch.full(local_shape, initial, dtype=machine.precision.master, device=machine.grid.device)
        self.values = _ownerless(machine, nn.Parameter(values))
        self.holding = Holding(
            name=name,
            parameter=self.values,
            placement=FlatRange(shape=shape, rows=rows, columns=columns, start=0, stop=prod(local_shape)),
            sum_over=sum_over or (("x", *ROWS) if apart else ROWS),
            split_over=split_over,
            matrix=False,
            decayed=len(shape) > 1,
        )
        self._compute = machine.precision.compute

    def forward(self) -> Tensor:
        """The values in the format of computation."""
        return self.values.to(self._compute)


class Replicated(nn.Parameter):
    """A plain module's parameter that every rank holds whole and uses on its rows.

    Attributes:
        plain_name: in the plain model.
        second_names: further ones of a tied parameter.
        rows_over: axes whose ranks have different rows; over these gradients are summed.
    """

    machine: Machine
    plain_name: str
    second_names: tuple[str, ...]
    rows_over: tuple[str, ...]

    @classmethod
    def of(
        cls,
        machine: Machine,
        name: str,
        shape: tuple[int, ...],
        second_names: tuple[str, ...] = (),
        rows_over: tuple[str, ...] = EVERY_ROW,
    ) -> Replicated:
        """Zeros under a name."""
        made = _ownerless(machine, cls(torch.zeros(shape, dtype=machine.precision.master, device=machine.grid.device)))
        made.machine, made.plain_name, made.second_names = machine, name, second_names
        made.rows_over = rows_over
        return made

    @property
    def holding(self) -> Holding:
        """What the rank holds: all of it."""
        size = self.numel()
        shape = (size,) if self.ndim < 2 else (self.shape[0], size // self.shape[0])
        placement = FlatRange(shape=shape, rows=((0, shape[0]),), columns=(0, size // shape[0]), start=0, stop=size)
        return Holding(
            name=self.plain_name,
            parameter=self,
            placement=placement,
            sum_over=self.rows_over,
            split_over=(),
            matrix=False,
            decayed=self.ndim > 1,
            rows_over=self.rows_over,
        )


def holdings(model: nn.Module) -> list[Holding]:
    """What this rank holds, each parameter once, in order of declaration.

    Raises:
        BadInput: a parameter that no Weft module made.
    """
    result = [module.holding for module in model.modules() if isinstance(module, Matrix | Vector)]
    result += [parameter.holding for parameter in model.parameters() if isinstance(parameter, Replicated)]
    known = {id(holding.parameter) for holding in result}
    for name, parameter in model.named_parameters():
        if id(parameter) not in known:
            raise BadInput(
                f"parameter {name} is in no layer of weft.runtime",
                where=type(model).__name__,
                remedy="convert its module with weft.runtime.convert, or freeze it outside the model",
            )
    return result


TILE = 256
"""Rows and columns of one tile; a rank draws only the tiles that it holds a part of."""
DEVIATION = 0.02
"""Standard deviation of weights (GPT-2)."""


class Initial:
    """Whole initial parameters of a model, rectangle by rectangle.

    Matrices and the position table are normal with a deviation of 0.02, those that write to the residual
    stream divided by sqrt(2 layers) (GPT-2); gains are 1, biases 0.
    """

    def __init__(self, model: Model, seed: int) -> None:
        self._seed = seed
        self._residual = 1.0 / sqrt(2 * max(model.layers, 1))

    def __call__(self, name: str, shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
        """Values of a rectangle of a whole parameter, fp32."""
        if len(shape) == 1:
            return torch.full(sizes, 0.0 if name.endswith("bias") else 1.0)
        scale = DEVIATION * (self._residual if name.endswith(("proj.weight", "fc2.weight")) else 1.0)
        values = torch.empty(sizes)
        (top, left), (height, width) = offsets, sizes
        for row in range(top // TILE, -(-(top + height) // TILE)):
            for column in range(left // TILE, -(-(left + width) // TILE)):
                first, start = max(row * TILE, top), max(column * TILE, left)
                last, stop = min((row + 1) * TILE, top + height), min((column + 1) * TILE, left + width)
                values[first - top : last - top, start - left : stop - left] = self._tile(name, row, column)[
                    first - row * TILE : last - row * TILE, start - column * TILE : stop - column * TILE
                ]
        return values * scale

    def _tile(self, name: str, row: int, column: int) -> Tensor:
        digest = blake2b(f"{self._seed}:{name}:{row}:{column}".encode(), digest_size=7).digest()
        return torch.randn(TILE, TILE, generator=torch.Generator().manual_seed(int.from_bytes(digest)))


def initialize(held: list[Holding], model: Model, seed: int) -> None:
    """Fill what a rank holds with a model's initial values."""
    whole = Initial(model, seed)
    for holding in held:
        holding.fill(whole)


# Copies ------------------------------------------------------------------------------------------

_AXES = ("x", "y", *ROWS)


class Diverged(BadInput):
    """Copies of a parameter differ."""


def check_replicas(machine: Machine, holdings: Sequence[Holding]) -> None:
    """Compare the bits of all copies of parameters, by one number each; every rank calls it.

    With ZeRO-1 the copies of a matrix are compared in the format in which its updates are published.

    Raises:
        Diverged: on every rank: copies differ.
    """
    words = ""
    for axis in (*_AXES, *(("expert_replica",) if machine.grid.routes else ())):
        copied = {
            one.name: _comparable(machine, one)
            for one in holdings
            if (one.routed if axis == "expert_replica" else axis not in one.split_over)
        }
        different = differing(machine, copied, axis)
        if different and not words:
            more = f" and {len(different) - 1} more" if len(different) > 1 else ""
            words = f"copies of {different[0]}{more} along {axis} differ"
    result = of_every_rank(words) if machine.grid.runs else [words]
    rank = next((rank for rank, said in enumerate(result) if said), None)
    if rank is not None:
        raise Diverged(
            result[rank],
            where=f"rank {rank}",
            remedy="use no numbers of one process (seeds, clocks) in what ranks hold alike",
        )


def differing(machine: Machine, values: Mapping[str, Tensor], *axes: str) -> list[str]:
    """Names of what is not the same on all ranks along some axes; every rank there calls it with all names."""
    if machine.grid.size(*axes) == 1 or not values or not machine.grid.runs:
        return []
    sums = torch.tensor([_bits(value) for value in values.values()], dtype=torch.int64, device=machine.grid.device)
    ends = torch.cat([sums, -sums])
    machine.collectives.all_reduce(ends, *axes, op=dist.ReduceOp.MIN).wait()
    least, most = ends[: len(sums)], -ends[len(sums) :]
    return [name for name, differs in zip(values, (least != most).tolist(), strict=True) if differs]


def _comparable(machine: Machine, holding: Holding) -> Tensor:
    values = holding.parameter.detach()
    return values.to(machine.precision.gather) if machine.shares_updates and holding.matrix else values


def _bits(values: Tensor) -> int:
    """The sum of the bits of all values, exact in any order."""
    if values.is_meta:
        return 0
    if values.is_complex():
        values = torch.view_as_real(values)
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    return int(values.contiguous().view(whole).sum(dtype=torch.int64))
