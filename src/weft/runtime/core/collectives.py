"""Collectives over the axes of a grid: asynchronous, counted, and skipped where a rank is alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from weft.errors import WeftError
from weft.layout.operations import CollectiveKind
from weft.layout.step import Issue
from weft.runtime.core.beneath import all_gather, reduce_scatter
from weft.runtime.core.grid import Grid


@dataclass(slots=True)
class Log:
    """What was issued, and the seconds that computation waited for it, by axes.

    On accelerators waiting is queued on the device: ``events`` bracket it there until ``exposed_s`` is asked.
    """

    timed: bool
    issued: list[Issue] = field(default_factory=list)
    waited_s: dict[tuple[str, ...], float] = field(default_factory=dict)
    events: list[tuple[tuple[str, ...], torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)

    def exposed_s(self) -> dict[tuple[str, ...], float] | None:
        """Seconds of waiting by axes; None where nothing was timed."""
        if not self.timed:
            return None
        result = dict(self.waited_s)
        for axes, before, after in self.events:
            after.synchronize()
            result[axes] = result.get(axes, 0.0) + before.elapsed_time(after) / 1e3
        return result


class CollectiveFailed(WeftError):
    """A collective did not end in time, or lost a rank; another try may be better off."""

    exit_code = 1
    temporary = True


@dataclass(frozen=True, slots=True)
class _Works:
    """Several waited for as one."""

    works: Sequence[dist.Work]

    def wait(self) -> None:
        for work in self.works:
            work.wait()


class Waitable(Protocol):
    """Something to wait for."""

    def wait(self) -> object:
        """Wait for it."""


@dataclass(slots=True, eq=False)
class Pending:
    """A collective or a cast under way; ``wait`` gives its result.  Its tensors are kept until then."""

    _result: Tensor
    _work: Waitable | None = None
    _inputs: Tensor | None = None
    _axes: tuple[str, ...] = ()
    _log: Log | None = None
    _kind: str = ""

    def wait(self) -> Tensor:
        """Wait until the result can be used."""
        if self._work is not None:
            work, self._work = self._work, None
            try:
                if self._log is None:
                    work.wait()
                else:
                    _timed_wait(work, self._log, self._axes, self._result)
            except RuntimeError as error:
                where, reason = f"{self._kind} over {' '.join(self._axes)}", str(error).partition("\n")[0]
                raise CollectiveFailed(f"rank {dist.get_rank()} gave up waiting in {where}: {reason}") from error
            self._inputs = None
        return self._result

    def use_here(self, use: Callable[[Tensor], None], done: Callable[[], Waitable | None], kept: Tensor) -> None:
        """Wait in the present queue, and use the result there; from now on ``wait`` is for what ``done`` says, and
        gives ``kept``."""
        log, self._log = self._log, None
        use(self.wait())
        self._result, self._work, self._log = kept, done(), log


def settle(pendings: Iterable[Pending]) -> None:
    """Wait for all; if some fail, the first one's exception is raised when all have ended."""
    problem: Exception | None = None
    for pending in pendings:
        try:
            pending.wait()
        except Exception as error:
            problem = problem or error
    if problem is not None:
        raise problem


def _timed_wait(work: Waitable, log: Log, axes: tuple[str, ...], result: Tensor) -> None:
    if result.is_cuda:
        if not log.timed:
            work.wait()
            return
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        work.wait()
        after.record()
        log.events.append((axes, before, after))
        return
    start = perf_counter()
    work.wait()
    log.waited_s[axes] = log.waited_s.get(axes, 0.0) + perf_counter() - start


class Collectives:
    """The collectives of one grid."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._log: Log | None = None

    @contextmanager
    def logged(self, *, timed: bool = False) -> Iterator[Log]:
        """Count what is issued inside.

        Args:
            timed: time waiting on accelerators too, which takes two events for each collective.
        """
        outer, self._log = self._log, Log(timed=timed or self.grid.device.type == "cpu")
        try:
            yield self._log
        finally:
            self._log = outer

    def all_reduce(self, values: Tensor, *axes: str, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Pending:
        """Sum (or maximum) over a group, in place."""
        group = self.grid.group(*axes)
        if group is None:
            return Pending(values)
        work = dist.all_reduce(values, op=op, group=group, async_op=True)
        return self._issued("all-reduce", axes, values, values, work, None)

    def all_reduce_ends(self, values: Tensor) -> Pending:
        """Sum over the first and the last pipeline stage, in place."""
        work = dist.all_reduce(values, group=self.grid.ends, async_op=True)
        return self._issued("all-reduce", ("pipeline",), values, values, work, None)

    def all_gather(self, shard: Tensor, *axes: str, counted: Tensor | None = None) -> Pending:
        """The shards of a group one after the other along the first dimension.

        Args:
            counted: has the elements that count as the full buffer, whose size depends on the router.
        """
        group = self.grid.group(*axes)
        if group is None:
            return Pending(shard)
        shard = shard.detach().contiguous()
        whole = shard.new_empty((shard.shape[0] * self.grid.size(*axes), *shard.shape[1:]))
        work = all_gather(whole, shard, group=group, async_op=True)
        return self._issued("all-gather", axes, whole if counted is None else counted, whole, work, shard)

    def reduce_scatter(self, values: Tensor, *axes: str, counted: Tensor | None = None) -> Pending:
        """This rank's slice, along the first dimension, of the sum over a group; ``counted`` as of ``all_gather``."""
        group = self.grid.group(*axes)
        if group is None:
            return Pending(values)
        values = values.contiguous()
        own = values.new_empty((values.shape[0] // self.grid.size(*axes), *values.shape[1:]))
        work = reduce_scatter(own, values, group=group, async_op=True)
        return self._issued("reduce-scatter", axes, values if counted is None else counted, own, work, values)

    def all_to_all(self, values: Tensor, *axes: str) -> Pending:
        """Equal slices along the first dimension, one to each rank of a group, for one from each."""
        group = self.grid.group(*axes)
        if group is None:
            return Pending(values)
        values = values.contiguous()
        received = torch.empty_like(values)
        work = dist.all_to_all_single(received, values, group=group, async_op=True)
        return self._issued("all-to-all", axes, values, received, work, values)

    def deal(self, values: Tensor, axis: str, sent: Sequence[int], received: Sequence[int], *, home: bool) -> Pending:
        """Slices along the first dimension, of ``sent`` rows to each rank, for slices of ``received`` rows.

        Args:
            home: the rows are this rank's own tokens, and not those that come back; they are counted, as what arrives
                from elsewhere depends on the router.
        """
        group = self.grid.group(axis)
        if group is None:
            return Pending(values)
        values = values.contiguous()
        result = values.new_empty((sum(received), *values.shape[1:]))
        work = dist.all_to_all_single(result, values, list(received), list(sent), group=group, async_op=True)
        return self._issued("all-to-all", (axis,), values if home else result, result, work, values)

    def pass_on(self, values: Tensor, axis: str) -> Pending:
        """What the rank before on an axis has, for what the one behind gets; the last one's next is the first."""
        group = self.grid.group(axis)
        if group is None:
            return Pending(values)
        values = values.contiguous()
        received = torch.empty_like(values)
        place, size = self.grid.index(axis), self.grid.size(axis)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, values, group=group, group_peer=(place + 1) % size),
                dist.P2POp(dist.irecv, received, group=group, group_peer=(place - 1) % size),
            ]
        )
        return self._issued("exchange", (axis,), values, received, _Works(works), values)

    def note(self, kind: CollectiveKind, axes: tuple[str, ...], values: Tensor) -> None:
        """Count what PyTorch communicates for us (pipeline sends)."""
        if self._log is not None:
            found = Issue(kind, self.grid.axes(*axes), values.numel(), values.element_size())
            self._log.issued.append(found)

    def _issued(
        self,
        kind: CollectiveKind,
        axes: tuple[str, ...],
        full: Tensor,
        result: Tensor,
        work: Waitable | None,
        inputs: Tensor | None,
    ) -> Pending:
        self.note(kind, axes, full)
        return Pending(result, work, inputs, self.grid.axes(*axes), self._log, kind)


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


def own_part(calls: Collectives, values: Tensor, axis: str, dim: int = 0) -> Tensor:
    """This rank's part along a dimension of what ranks along an axis hold alike; gradients are gathered."""
    return moved(values, partial(_part, calls, axis, dim), partial(_parts, calls, axis, dim))


def all_parts(calls: Collectives, values: Tensor, axis: str, dim: int = 0) -> Tensor:
    """The inverse; ranks along the axis have the same gradient of the result."""
    return moved(values, partial(_parts, calls, axis, dim), partial(_part, calls, axis, dim))


def _part(calls: Collectives, axis: str, dim: int, every: Tensor) -> Tensor:
    part = every.chunk(calls.grid.size(axis), dim)[calls.grid.index(axis)]
    return part.clone(memory_format=torch.contiguous_format)  # a view would keep all of them


def _parts(calls: Collectives, axis: str, dim: int, part: Tensor) -> Tensor:
    return calls.all_gather(part.movedim(dim, 0), axis).wait().movedim(0, dim).contiguous()


T = TypeVar("T")


def of_every_rank(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """A value of every rank, on all of them."""
    values = [value]
    if dist.is_initialized():
        values *= dist.get_world_size()
        dist.all_gather_object(values, value, group=group)
    return values


def from_first_rank(work: Callable[[], T]) -> T:
    """What a function gives on the first rank, on all of them; every rank calls it.

    Raises:
        WeftError: on every rank, what the first rank raises.
    """
    shared: list[Any] = [None]
    if not dist.is_initialized() or dist.get_rank() == 0:
        try:
            shared = [work()]
        except WeftError as error:
            shared = [error]
    if dist.is_initialized():
        dist.broadcast_object_list(shared, src=0)
    if isinstance(shared[0], WeftError):
        raise shared[0]
    return cast(T, shared[0])
