"""A rank's parameters and gradients in flat buffers: summed over copies in buckets, cut over data by ZeRO-1 and 2.

A bucket of matrices is summed as soon as the last micro-batch has given all its gradients (as PyTorch's DDP
does), behind the rest of the backward pass; with ZeRO-2 after each micro-batch, and then a rank keeps the gradients
of its share alone.  Vectors are few: one buffer per set of axes, summed at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.errors import BadInput, Unsupported
from weft.layout.mesh import ROWS
from weft.layout.step import buckets
from weft.runtime.core.beneath import DisableTorchFunctionSubclass, foreach_norm
from weft.runtime.core.collectives import Pending, settle
from weft.runtime.core.grid import GRID_AXES
from weft.runtime.core.machine import Machine
from weft.runtime.core.parameters import Holding, Matrix, Range, share

_NORMS = frozenset(
    {foreach_norm, torch.linalg.vector_norm, torch.linalg.norm, torch.norm, Tensor.norm, torch.norm_except_dim}
)
WHOLE = ("Adafactor", "LBFGS", "Muon", "SparseAdam")
"""Optimizers of torch whose update of an element depends on others of its parameter."""


class PartGradient(Tensor):
    """A gradient, or a part of one, of this rank alone: its norm is not the model's."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _NORMS:
            raise Unsupported(
                "the norm of a rank's part of a gradient is not the model's",
                where=getattr(func, "__name__", "norm"),
                remedy="call clip() or norm() of the model's Flat instead of clip_grad_norm_",
            )
        with DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def as_part(machine: Machine, gradient: Tensor) -> Tensor:
    """A gradient that refuses what is only right of a whole model's, where a rank has a part of that."""
    layout = machine.grid.layout
    if layout.world == layout.data and not machine.shares_updates:
        return gradient
    return gradient.as_subclass(PartGradient)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slot:
    """A holding's range in a buffer; ``counted``: of its copies, this rank's counts in the norm."""

    holding: Holding
    start: int
    stop: int
    counted: bool


class Buffer:
    """Some holdings one after the other, values and gradients; the parameters become views of it.

    ``bounds`` are its buckets; ``sum_over`` the axes over which gradients are summed.  With ``passing`` gradients
    (ZeRO-2) it has none: parameters keep them until their bucket is summed.
    """

    def __init__(
        self, machine: Machine, holdings: Sequence[Holding], sizes: Sequence[int], sum_over: tuple[str, ...]
    ) -> None:
        self.machine, self.sum_over = machine, sum_over
        self.bounds = list(pairwise(accumulate(sizes, initial=0)))
        self.values = torch.zeros(sum(sizes), dtype=machine.precision.master, device=machine.grid.device)
        self.passing = machine.grid.layout.zero == 2 and holdings[0].matrix and machine.cuts_updates(sum_over)
        self.gradients = torch.zeros_like(self.values[: 0 if self.passing else None])
        self.slots: list[Slot] = []
        start = 0
        for holding in holdings:
            stop = start + holding.parameter.numel()
            cut = holding.matrix and machine.cuts_updates(sum_over)
            counted = holding.is_first_copy(machine.grid, cut_over_copies=cut)
            self.slots.append(Slot(holding=holding, start=start, stop=stop, counted=counted))
            self.values[start:stop] = holding.parameter.detach().view(-1)
            holding.parameter.data = self.values[start:stop].view_as(holding.parameter)
            start = stop
        self.clear()

    def clear(self) -> None:
        """Forget all gradients: those of matrices are there when they are given, those of vectors are zero."""
        matrices = self.slots[0].holding.matrix
        if not matrices:
            self.gradients.zero_()
        for slot in self.slots:
            slot.holding.parameter.grad = None if matrices else self.gradient_of(slot)

    def gradient_of(self, slot: Slot) -> Tensor | None:
        """A parameter's part of the gradients, where they are not passing."""
        if self.passing:
            return None
        parameter = slot.holding.parameter
        return as_part(self.machine, self.gradients[slot.start : slot.stop].view_as(parameter))

    def complete(self) -> None:
        """Let gradients that were not given be zero."""
        for slot in self.slots:
            parameter = slot.holding.parameter
            if parameter.grad is None and not self.passing:
                parameter.grad = self.gradient_of(slot)
                self.gradients[slot.start : slot.stop].zero_()

    def passed(self, start: int, stop: int, *, last: bool) -> Tensor:
        """The gradients of a range, as those of copies are summed; where they are passing they end here, with the last
        micro-batch also those that both ends of the pipeline sum."""
        if not self.passing:
            return self.gradients[start:stop].to(self.machine.precision.reduce)
        values = torch.zeros(stop - start, dtype=self.machine.precision.reduce, device=self.values.device)
        for slot, (low, high) in self.within(start, stop):
            parameter = slot.holding.parameter
            if parameter.grad is not None and (last or not slot.holding.on_ends):
                part = parameter.grad.view(-1)[low - slot.start : high - slot.start]
                values[low - start : high - start] = part
                part.zero_()  # what lies in another bucket stays
                if len(part) == parameter.numel():
                    parameter.grad = None
        return values

    def within(self, start: int, stop: int) -> Iterator[tuple[Slot, Range]]:
        """Slots that a range of the buffer meets, and where it meets them (positions in the buffer)."""
        for slot in self.slots:
            low, high = max(start, slot.start), min(stop, slot.stop)
            if low < high:
                yield slot, (low, high)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Owned:
    """A range of a buffer that this rank updates.

    ``leaf`` is the values as an optimizer takes them; after a step its ``gradient`` is the whole batch's.
    ``counted`` are its ranges that the norm counts, ``decayed`` says that weight decay is for it.
    """

    buffer: Buffer
    start: int
    stop: int
    leaf: nn.Parameter
    matrix: bool
    decayed: bool
    counted: tuple[Range, ...]
    gradient: Tensor


class Flat:
    """All that a rank holds of a model or stage; ``owned`` is what it updates.

    Raises:
        Unsupported: a parameter is frozen.
    """

    def __init__(self, machine: Machine, model: nn.Module, holdings: Sequence[Holding]) -> None:
        self.machine = machine
        for holding in holdings:
            if not holding.parameter.requires_grad:
                remedy = "the runtime trains all parameters: call requires_grad_(True)"
                raise Unsupported("is frozen", where=holding.name, remedy=remedy)
        layout = machine.grid.layout
        self._matrices = []
        for routed in (False, True):
            matrices = [holding for holding in holdings if holding.matrix and holding.routed == routed]
            if matrices:
                copies = matrices[0].sum_over
                elements = sum(holding.parameter.numel() for holding in matrices)
                sizes = buckets(elements, machine.grid.size(*copies), layout.zero)
                self._matrices.append(Buffer(machine, matrices, sizes, copies))
        self._buckets = [(buffer, bound) for buffer in self._matrices for bound in buffer.bounds]
        alike: dict[tuple[str, ...], list[Holding]] = {}
        for holding in sorted(holdings, key=lambda one: one.decayed):
            if not holding.matrix:
                alike.setdefault(machine.grid.axes(*holding.sum_over), []).append(holding)
        self._vectors = [
            Buffer(machine, members, [sum(member.parameter.numel() for member in members)], axes)
            for axes, members in alike.items()
        ]
        self.owned = [*self._own_matrices(), *self._own_vectors()]
        self.holdings = tuple(holdings)
        self._rows_over = max((holding.rows_over for holding in holdings), key=len, default=ROWS)
        self._given: set[nn.Parameter] = set()
        """What has got a gradient in this step."""
        self._unused: set[nn.Parameter] | None = None
        """What got none on any rank in the last step; None before the first."""
        owner = ref(self)  # the model lives longer, and so would what it refers to

        def tell(parameter: nn.Parameter) -> None:
            flat = owner()
            if flat is not None:
                flat._accumulated(parameter)

        for holding in holdings:
            if machine.grid.layout.world > 1:
                holding.parameter.weft_owner = owner  # type: ignore[attr-defined]
            if not holding.matrix:
                holding.parameter.register_post_accumulate_grad_hook(tell)  # type: ignore[no-untyped-call]
        self._uses: dict[nn.Parameter, int] = {}
        gradients = {
            slot.holding.parameter: buffer.gradient_of(slot) for buffer in self._matrices for slot in buffer.slots
        }
        for module in model.modules():
            if isinstance(module, Matrix):
                module.accumulated, module.gradient = tell, gradients[module.shard]
                self._uses[module.shard] = module.uses
        self._buckets_of: dict[nn.Parameter, list[int]] = {}
        for index, (buffer, bound) in enumerate(self._buckets):
            for slot, _ in buffer.within(*bound):
                self._buckets_of.setdefault(slot.holding.parameter, []).append(index)
        self._shared = [(buffer, slot) for buffer in self._matrices for slot in buffer.slots if slot.holding.on_ends]
        self._late = {index for _, slot in self._shared for index in self._buckets_of[slot.holding.parameter]}
        self._micro_batches = 0
        self._rounds = [0] * len(self._buckets)
        """How often each bucket of passing gradients has been summed."""
        self._left: dict[nn.Parameter, int] = {}
        """Gradients that each matrix is still to give, and below those of each bucket."""
        self._missing = [0] * len(self._buckets)
        self._summing: dict[int, Pending] = {}
        """By the index of what is owned."""

    def _own_matrices(self) -> Iterator[Owned]:
        grid = self.machine.grid
        for buffer, (start, stop) in self._buckets:
            low, high = 0, stop - start
            if self.machine.cuts_updates(buffer.sum_over):
                low, high = share(stop - start, grid.size(*buffer.sum_over), grid.index(*buffer.sum_over))
            yield _owned(buffer, start + low, start + high, matrix=True, decayed=True)

    def _own_vectors(self) -> Iterator[Owned]:
        for buffer in self._vectors:
            border = max((slot.stop for slot in buffer.slots if not slot.holding.decayed), default=0)
            for start, stop, decayed in ((0, border, False), (border, len(buffer.values), True)):
                if start < stop:
                    yield _owned(buffer, start, stop, matrix=False, decayed=decayed)

    @contextmanager
    def step(self, micro_batches: int, *, loss: Literal["mean", "sum"]) -> Iterator[None]:
        """One step's forward and backward passes; when it ends, gradients are summed over all copies.

        Args:
            micro_batches: backward passes of this rank.
            loss: "mean": each pass gives the mean over its own rows, of which all passes and ranks have as many, as
                with DistributedDataParallel and FSDP; gradients are then those of the mean over the whole batch.
                "sum": each pass gives its part of the whole batch's loss, as ``losses.sum() / tokens_of_all_ranks``.

        The sums are in ``leaf.grad`` of what is ``owned``, which may be a share: with ZeRO-1 the ``grad`` of
        a matrix's parameter keeps, outside this rank's share, values that have not been summed; with ZeRO-2 it has
        none.  When the
        block raises, what was under way is waited for and dropped.

        What gets no gradient on any rank is not to be updated (``untouched``).  Ranks agree on it in the first step;
        if all is used there, what one rank's rows do not use later counts as used.

        Raises:
            BadInput: ``loss`` is neither, or a matrix gives more gradients than ``micro_batches`` passes do.
        """
        if loss not in ("mean", "sum"):
            raise BadInput(f"loss = {loss!r}", where="Flat.step", remedy='give "mean" or "sum": how it was reduced')
        for buffer in (*self._matrices, *self._vectors):
            buffer.clear()
        for owned in self.owned:
            if owned.buffer.passing:
                owned.gradient.zero_()
            owned.leaf.grad = as_part(self.machine, owned.gradient)
        self._rounds = [0] * len(self._buckets)
        self._given.clear()
        self._micro_batches = micro_batches
        self._left = {parameter: micro_batches * uses for parameter, uses in self._uses.items()}
        self._missing = [
            sum(self._left[slot.holding.parameter] for slot, _ in buffer.within(*bound))
            for buffer, bound in self._buckets
        ]
        try:
            with self.machine.overlap.step():
                yield
            self._finish()
            if loss == "mean":
                for owned in self.owned:
                    owned.gradient.div_(micro_batches * self.machine.grid.size(*self._rows_over))
            self._agree_on_use()
        except BaseException:
            with suppress(Exception):
                settle(self._summing.values())
            raise
        finally:
            self._summing.clear()
            self._micro_batches = 0

    def _accumulated(self, parameter: nn.Parameter) -> None:
        """One more gradient has been added; sum the buckets of matrices that are now complete."""
        self._given.add(parameter)
        if parameter in self._uses:
            self._left[parameter] = self._left.get(parameter, 0) - 1
        if self._left.get(parameter, 0) < 0 or not self._micro_batches:
            raise BadInput(
                f"gave more gradients than Flat.step was told of (micro_batches = {self._micro_batches})",
                where=next(one.name for one in self.holdings if one.parameter is parameter),
                remedy="call each module once in a pass, or give it Whole() in the plan; count every backward pass",
            )
        for index in self._buckets_of.get(parameter, ()):
            self._missing[index] -= 1
            early = self.machine.overlap.reduce_scatter and index not in self._late
            if self._buckets[index][0].passing:
                self._pass_on(index, min(self._given_by_all(index), self._micro_batches - (index in self._late)))
                if not early:
                    self._keep(index)
            elif self._missing[index] == 0 and early:
                self._summing[index] = self._sum(index)

    def _given_by_all(self, index: int) -> int:
        """Micro-batches of which a bucket has all gradients, whichever of its parameters come first."""
        buffer, bound = self._buckets[index]
        held = (slot.holding.parameter for slot, _ in buffer.within(*bound))
        return min(self._micro_batches - -(-self._left[one] // self._uses[one]) for one in held)

    def _pass_on(self, index: int, rounds: int) -> None:
        """Sum passing gradients of a bucket until that has been done so often."""
        while self._rounds[index] < rounds:
            self._rounds[index] += 1
            self._keep(index)
            self._summing[index] = self._sum(index)

    def _keep(self, index: int) -> None:
        """Add what is under way of passing gradients to this rank's share."""
        if index in self._summing:
            self.owned[index].gradient.add_(self._summing.pop(index).wait())

    def _sum(self, index: int) -> Pending:
        buffer, (start, stop) = self._buckets[index]
        values = buffer.passed(start, stop, last=self._rounds[index] == self._micro_batches)
        if self.machine.cuts_updates(buffer.sum_over):
            return self.machine.collectives.reduce_scatter(values, *buffer.sum_over)
        return self.machine.collectives.all_reduce(values, *buffer.sum_over)

    def _finish(self) -> None:
        """Sum what has not been summed yet; first what both ends of the pipeline hold."""
        collectives = self.machine.collectives
        reduced = self.machine.precision.reduce
        buckets_made = len(self._buckets)
        for buffer in self._matrices:
            buffer.complete()
        for index, buffer in enumerate(self._vectors, start=buckets_made):
            self._summing[index] = collectives.all_reduce(buffer.gradients.to(reduced), *buffer.sum_over)
        for buffer, slot in self._shared:
            parameter = slot.holding.parameter
            if buffer.passing and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            own = parameter.grad if buffer.passing else buffer.gradients[slot.start : slot.stop]
            assert own is not None
            own.copy_(collectives.all_reduce_ends(own.to(reduced)).wait())
        for index in range(buckets_made):
            if self._buckets[index][0].passing:
                self._pass_on(index, self._micro_batches)
            elif index not in self._summing:
                self._summing[index] = self._sum(index)
        targets = [owned.gradient for owned in self.owned[:buckets_made]]
        for index, target in enumerate((*targets, *(buffer.gradients for buffer in self._vectors))):
            if index < buckets_made and self._buckets[index][0].passing:
                self._keep(index)
                continue
            summed = self._summing.pop(index).wait()
            if summed.data_ptr() != target.data_ptr():
                target.copy_(summed)

    def _agree_on_use(self) -> None:
        """After the first step ranks tell each other what they used, then what was never used until now."""
        asked = [one.parameter for one in self.holdings if self._unused is None or one.parameter in self._unused]
        if not asked:  # from then on no step waits for what devices have queued
            return
        group = self.machine.grid.group("x", "y", *ROWS)
        used = torch.tensor([one in self._given for one in asked], dtype=torch.uint8, device=self.machine.grid.device)
        if group is not None and self.machine.grid.runs:
            dist.all_reduce(used, op=dist.ReduceOp.MAX, group=group)
        if self.machine.grid.device.type != "meta":
            self._unused = {one for one, is_used in zip(asked, used.tolist(), strict=True) if not is_used}

    @contextmanager
    def untouched(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Inside an optimizer updates; what got no gradient keeps its values and moments, as torch keeps them."""
        if not self._unused:
            yield
            return
        kept = [(values, values.clone()) for values in self._unused_values(optimizer)]
        known = {values.data_ptr() for values, _ in kept}
        yield
        for values, before in kept:
            values.copy_(before)
        for values in self._unused_values(optimizer):
            if values.data_ptr() not in known:
                values.zero_()

    def _unused_values(self, optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
        """The parts of values and moments that got no gradient."""
        assert self._unused is not None
        for owned in self.owned:
            state = optimizer.state.get(owned.leaf, {}).values()
            alike = [one for one in state if isinstance(one, Tensor) and one.shape == owned.leaf.shape]
            for slot, (low, high) in owned.buffer.within(owned.start, owned.stop):
                if slot.holding.parameter in self._unused:
                    yield from (one[low - owned.start : high - owned.start] for one in (owned.leaf.detach(), *alike))

    def publish(self) -> None:
        """With ZeRO-1, bring updated values to the other ranks of data, in the format of gathering."""
        waiting = []
        for (buffer, bound), owned in zip(self._buckets, self.owned, strict=False):
            if self.machine.cuts_updates(buffer.sum_over):
                shard = owned.leaf.detach().to(self.machine.precision.gather)
                waiting.append((owned, bound, self.machine.collectives.all_gather(shard, *buffer.sum_over)))
        for owned, (start, stop), pending in waiting:
            own = owned.leaf.detach().clone()
            owned.buffer.values[start:stop] = pending.wait()
            owned.leaf.detach().copy_(own)

    def norm(self, loss: Tensor | None = None) -> Tensor:
        """Euclidean norm of all gradients of the whole model, each parameter counted once, shape (1,).

        Args:
            loss: where any rank's is not finite the norm is NaN on every rank, without another collective.
        """
        wide = self.machine.precision.wide
        total = torch.zeros(1, dtype=wide, device=self.machine.grid.device)
        for owned in self.owned:
            for low, high in owned.counted:
                total += torch.linalg.vector_norm(owned.gradient[low:high], dtype=wide).square()
        if loss is not None:
            total += 0.0 * loss
        self.machine.collectives.all_reduce(total, *GRID_AXES).wait()
        return total.sqrt_()

    def clip(self, maximum: float, loss: Tensor | None = None) -> Tensor:
        """Scale gradients so that their norm is at most ``maximum``; the norm before, shape (1,)."""
        norm = self.norm(loss)
        scale = (maximum / (norm + 1e-6)).clamp(max=1.0)
        for owned in self.owned:
            owned.gradient.mul_(scale.to(owned.leaf.dtype))
        return norm


def _owned(buffer: Buffer, start: int, stop: int, *, matrix: bool, decayed: bool) -> Owned:
    leaf = nn.Parameter(buffer.values[start:stop])
    gradient = torch.zeros_like(leaf.detach()) if buffer.passing else buffer.gradients[start:stop]
    leaf.grad = as_part(buffer.machine, gradient)
    counted: list[Range] = []
    for slot, (low, high) in buffer.within(start, stop):
        if slot.counted:
            first = counted.pop()[0] if counted and counted[-1][1] == low - start else low - start
            counted.append((first, high - start))
    return Owned(
        buffer=buffer,
        start=start,
        stop=stop,
        leaf=leaf,
        matrix=matrix,
        decayed=decayed,
        counted=tuple(counted),
        gradient=gradient,
    )
