"""One rank's training step without hardware: real code on PyTorch's fake backend, of any world size.

Tensors are on the meta device, with shapes but without values, so that a step of one rank among thousands
takes seconds and no memory.  What is counted are the operations that reach ``torch.distributed``, not what
the runtime says of itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from weft.errors import BadInput
from weft.layout.check import check_trainable
from weft.layout.mesh import EXPERT_GROUPS, GROUPS, ROWS
from weft.layout.operations import CollectiveKind
from weft.layout.spec import Layout
from weft.layout.step import Issue
from weft.model.job import Job
from weft.runtime.core.beneath import TorchDispatchMode, start_fake_ranks
from weft.runtime.core.grid import SEQUENCE, Grid
from weft.runtime.core.machine import Machine, Precision
from weft.runtime.core.parameters import holdings
from weft.runtime.run.flat import Flat
from weft.runtime.run.pipeline import StepPasses, build_stages
from weft.runtime.run.session import micro_batches_of

_OPERATIONS: dict[str, tuple[CollectiveKind, int]] = {
    "allreduce_": ("all-reduce", 0),
    "_allgather_base_": ("all-gather", 0),
    "_reduce_scatter_base_": ("reduce-scatter", 1),
    "alltoall_base_": ("all-to-all", 1),
    "send": ("send", 0),
}
"""Operations of c10d, and which argument is the full buffer."""
_BACKEND = "weft_trace"
"""PyTorch's fake process group, also for tensors on the meta device."""
_SILENT = frozenset({"recv_", "barrier"})


def trace(job: Job, layout: Layout, *, rank: int = 0, precision: Precision | None = None) -> Counter[Issue]:
    """The collectives that ``rank`` issues in one training step.

    Raises:
        BadInput: no such rank, the layout breaks a rule, or ``torch.distributed`` is in use.
        Unsupported: the runtime cannot run the model or the layout.
    """
    check_trainable(job, layout)
    return trace_step(layout, lambda grid: bare_step(job, Machine.of(grid, precision=precision))(), rank=rank)


def trace_step(layout: Layout, step: Callable[[Grid], object], *, rank: int = 0) -> Counter[Issue]:
    """The collectives that ``rank`` issues in a caller's step, with a plain model too.

    Args:
        step: builds its model on the meta device, by ``parallelize`` with ``Machine.of(grid)``, and trains it on
            tensors there.

    Raises:
        BadInput: no such rank, or ``torch.distributed`` is in use.
    """
    with on_fake_ranks(layout, rank) as grid:
        counting = _Counting(grid)
        with counting:
            step(grid)
    return counting.found


@contextmanager
def on_fake_ranks(layout: Layout, rank: int, device: str = "meta") -> Iterator[Grid]:
    """Inside, this process is a rank of a layout, beside others that are not there.

    Raises:
        BadInput: as ``trace_step``.
    """
    if not 0 <= rank < layout.world:
        raise BadInput(f"there is no rank {rank}", where="trace", remedy=f"choose 0 to {layout.world - 1}")
    if dist.is_initialized():
        raise BadInput("torch.distributed is in use", where="trace", remedy="trace in a new process")
    start_fake_ranks(_BACKEND, rank, layout.world)
    try:
        yield Grid.of(layout, device)
    finally:
        dist.destroy_process_group()


def extrapolate(
    job: Job, layout: Layout, *, rank: int = 0, precision: Precision | None = None
) -> tuple[Counter[Issue], tuple[int, ...]]:
    """As ``trace``, in a time that does not grow with the number of micro-batches; and how many were traced.

    Each micro-batch after the first adds the same collectives (interleaved: each round of as many as
    there are stages), so that two short steps give those of any longer one exactly.

    Raises:
        BadInput, Unsupported: as ``trace``.
    """
    check_trainable(job, layout)
    count = micro_batches_of(job, layout)

    def traced(micro_batches: int) -> Counter[Issue]:
        rows = micro_batches * layout.micro_batch * layout.dp
        part = replace(job, recipe=replace(job.recipe, global_batch=rows))
        return trace(part, layout, rank=rank, precision=precision)

    first = layout.pipeline
    second = 2 * first if layout.schedule.rounds else first + 1
    if count <= second:
        return traced(count), (count,)
    short, long = traced(first), traced(second)
    rounds, rest = divmod(count - first, second - first)
    assert rest == 0, "a rule of weft.layout.check: interleaving needs whole rounds"
    each = Counter({issue: times - short[issue] for issue, times in long.items()})
    return Counter({issue: short[issue] + rounds * more for issue, more in each.items()}), (first, second)


def bare_step(job: Job, machine: Machine) -> Callable[[], None]:
    """A step as ``Session.step`` trains it, but of zeros and without an update."""
    grid = machine.grid
    recipe, micro_batch, count = job.recipe, grid.layout.micro_batch, micro_batches_of(job, grid.layout)
    stages = build_stages(machine, job.model, sequence=recipe.sequence)
    flat = Flat(machine, stages, holdings(stages))
    passes = StepPasses(machine, stages, micro_batch=micro_batch, micro_batches=count, tokens=recipe.tokens)
    own = recipe.sequence // grid.size("context")
    ids = torch.zeros(count * micro_batch, own, dtype=torch.int64, device=grid.device)

    def step() -> None:
        with flat.step(count, loss="sum"):
            loss = passes.run(ids, ids)
        if passes.has_head:
            machine.collectives.all_reduce(loss, *ROWS).wait()
        flat.clip(1.0)
        flat.publish()

    return step


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of c10d by the axes of their group."""

    def __init__(self, grid: Grid) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Counter[Issue] = Counter()
        self._grid = grid

    def _axes_of(self, group: dist.ProcessGroup) -> tuple[str, ...]:
        grid = self._grid
        if grid.ends is not None and group.group_name == grid.ends.group_name:
            return ("pipeline",)
        routed = (SEQUENCE, *((axis,) for axis in EXPERT_GROUPS)) if grid.routes else ()
        for axes in (*GROUPS, *routed):
            known = grid.group(*axes)
            if known is not None and known.group_name == group.group_name:
                return grid.axes(*axes)
        raise AssertionError(f"{group.group_name} is not a group of the grid")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace == "c10d":
            self._count(func.overloadpacket.__name__, args)
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, args: tuple[Any, ...]) -> None:
        if name in _SILENT:
            return
        kind, place = _OPERATIONS[name]
        full: Tensor = args[place][0] if isinstance(args[place], list) else args[place]
        group = next(dist.ProcessGroup.unbox(arg) for arg in args if isinstance(arg, torch.ScriptObject))
        axes = self._axes_of(group)
        if kind == "send" and axes != ("pipeline",):
            kind = "exchange"
        issue = Issue(kind, axes, full.numel(), full.element_size())
        self.found[issue] += 1
