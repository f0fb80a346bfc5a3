"""One rank's real training steps among ranks that are not there, over links and products of stated speed.

A process group of PyTorch without any transport: each set of mesh axes has a link that serves one collective
after the other, and whoever waits for a collective waits until the link would have served it.  Results are
plausible copies (as with PyTorch's fake backend), not sums.  So the runtime's overlaps can be timed where
computation and communication would share cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from weft.layout.mesh import coordinates
from weft.layout.operations import CollectiveKind
from weft.layout.spec import AXES, Layout
from weft.layout.step import Issue, wide_axes
from weft.model.job import Job
from weft.runtime.core.grid import Grid
from weft.runtime.core.machine import Machine, Precision
from weft.runtime.measure.trace import bare_step

Axes = tuple[str, ...]
ProductTime = Callable[[int, int, int], float]
"""Seconds of a product (m x k) by (k x n), of m, n and k."""
CollectiveTime = Callable[[CollectiveKind, Axes, int], float]
"""Seconds of a collective by its kind, axes (those of more than one rank) and bytes of the full buffer."""

_BACKEND = "weft_emulated"


@dataclass(slots=True)
class EmulatedClock:
    """Emulated time, which passes in delays alone.

    Where it is paced the wall's clock goes along with the sum of the delays: a late awakening, or Python between them,
    shortens the next.
    """

    paced: bool
    now: float = 0.0
    _start: float = 0.0

    def begin(self) -> None:
        """From here on the wall's clock goes along."""
        self._start = time.perf_counter() - self.now

    def sleep_until(self, moment: float) -> None:
        """Return when ``now`` is not before a moment."""
        self.now = max(self.now, moment)
        left = self._start + self.now - time.perf_counter()
        if self.paced and left > 0:
            time.sleep(left)


# Links -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The link of every rank of an axis: seconds until the first byte arrives, bytes/s in each direction."""

    latency_s: float
    bandwidth_Bps: float


def ring_times(layout: Layout, links: Mapping[str, Link]) -> CollectiveTime:
    """Collectives as rings; one over several axes goes at the pace of the slowest link of them.

    Each of n ranks sends (n - 1) / n of the buffer, twice for an all-reduce.
    """

    def seconds(kind: CollectiveKind, axes: Axes, bytes_: int) -> float:
        ranks: int = prod(getattr(layout, axis) for axis in axes)
        rounds = 2 if kind == "all-reduce" else 1
        latency = max(links[axis].latency_s for axis in axes)
        slowest = min(links[axis].bandwidth_Bps for axis in axes)
        return latency + rounds * (ranks - 1) / ranks * bytes_ / slowest

    return seconds


@dataclass(slots=True, eq=False)
class _Links:
    """The links of one rank: when each is free, and how long the rank has waited for it."""

    clock: EmulatedClock
    collective_s: CollectiveTime
    free: dict[Axes, float] = field(default_factory=dict)
    exposed_s: dict[Axes, float] = field(default_factory=dict)

    def issue(self, kind: CollectiveKind, axes: Axes, full: Tensor) -> _Work:
        begin = max(self.clock.now, self.free.get(axes, 0.0))
        end = begin + self.collective_s(kind, axes, full.numel() * full.element_size())
        self.free[axes] = end
        return _Work(self, axes, end)

    def wait(self, axes: Axes, end: float) -> None:
        self.exposed_s[axes] = self.exposed_s.get(axes, 0.0) + max(end - self.clock.now, 0.0)
        self.clock.sleep_until(end)


class _Work(dist.Work):
    """A collective under way."""

    def __init__(self, links: _Links, axes: Axes, end: float) -> None:
        super().__init__()
        self._links, self._axes, self._end = links, axes, end

    def wait(self, timeout: Any = None) -> bool:
        self._links.wait(self._axes, self._end)
        return True


class _Group(dist.ProcessGroup):
    """The rank's process group over some axes."""

    def __init__(self, name: str, rank: int, size: int, axes: Axes, links: _Links) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._name, self._axes, self._links = name, axes, links

    @property
    def group_name(self) -> Any:
        return self._name

    def allreduce(self, tensors: Sequence[Tensor], options: Any = None) -> _Work:  # type: ignore[override]
        return self._links.issue("all-reduce", self._axes, tensors[0])

    def all_gather_single(self, whole: Tensor, shard: Tensor, options: Any = None) -> _Work:
        whole.view(self.size(), -1).copy_(shard.view(1, -1))
        return self._links.issue("all-gather", self._axes, whole)

    def reduce_scatter_single(self, own: Tensor, values: Tensor, options: Any = None) -> _Work:
        own.copy_(values[: len(own)])
        return self._links.issue("reduce-scatter", self._axes, values)


# A rank ------------------------------------------------------------------------------------------


PRODUCTS = {"mm": 0, "addmm_": 1}
"""Products of two matrices, and which argument is the first of them."""


class _TimedProducts(TorchDispatchMode):
    """Inside, products are computed and then last as long as they should."""

    def __init__(self, clock: EmulatedClock, gemm_s: ProductTime) -> None:
        super().__init__()
        self._clock, self._gemm_s = clock, gemm_s

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        place = PRODUCTS.get(func.overloadpacket.__name__)
        if place is None:
            return func(*args, **(kwargs or {}))
        a, b = args[place : place + 2]
        end = self._clock.now + self._gemm_s(a.shape[0], b.shape[1], a.shape[1])
        product = func(*args, **(kwargs or {}))
        self._clock.sleep_until(end)
        return product


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """A rank whose collectives and products take the time that they were said to take; its waiting, by axes."""

    machine: Machine
    clock: EmulatedClock
    exposed_s: Mapping[Axes, float]


@contextmanager
def emulated(
    layout: Layout,
    *,
    gemm_s: ProductTime,
    collective_s: CollectiveTime,
    paced: bool = True,
    precision: Precision | None = None,
) -> Iterator[Emulation]:
    """Rank 0 of a layout without stages, on the CPU; delays take their time where paced, else they are added up."""
    assert layout.pipeline == layout.context == 1
    assert not dist.is_initialized()
    links = _Links(EmulatedClock(paced), collective_s)
    _join(layout, links)
    try:
        machine = Machine.of(Grid.of(layout), precision=precision)
        links.clock.begin()
        with _TimedProducts(links.clock, gemm_s):
            yield Emulation(machine=machine, clock=links.clock, exposed_s=links.exposed_s)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _join(layout: Layout, links: _Links) -> None:
    if layout.world == 1:
        return

    def group(options: Any, _: Any) -> _Group:
        ranks = options.global_ranks_in_group or range(layout.world)
        places = [coordinates(layout, rank) for rank in ranks]
        axes = wide_axes(layout, [axis for axis in AXES if len({place[axis] for place in places}) > 1])
        return _Group(options.group_id, options.group_rank, options.group_size, axes, links)

    dist.Backend.register_backend(_BACKEND, group, extended_api=True, devices=["cpu"])
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(_BACKEND, rank=0, world_size=layout.world, store=store)


# Steps -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedStep:
    """One step in emulated time and by the wall's clock; waiting by axes, and collectives in their order."""

    seconds: float
    wall_s: float
    exposed_s: Mapping[Axes, float]
    issued: tuple[Issue, ...]


def measure_steps(job: Job, rank: Emulation, steps: int) -> list[EmulatedStep]:
    """Train some steps without data and updates; in the first nothing is gathered ahead."""
    step = bare_step(job, rank.machine)
    return [_measured(rank, step) for _ in range(steps)]


def _measured(rank: Emulation, step: Callable[[], None]) -> EmulatedStep:
    waited, before, wall = dict(rank.exposed_s), rank.clock.now, time.perf_counter()
    rank.clock.begin()
    with rank.machine.collectives.logged() as log:
        step()
    return EmulatedStep(
        seconds=rank.clock.now - before,
        wall_s=time.perf_counter() - wall,
        exposed_s={axes: total - waited.get(axes, 0.0) for axes, total in rank.exposed_s.items()},
        issued=tuple(log.issued),
    )
