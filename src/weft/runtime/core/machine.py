"""What every layer of one rank works with: grid, collectives, scheduler and number formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.runtime.core.collectives import Collectives, Pace
from weft.runtime.core.grid import Grid
from weft.runtime.core.overlap import Overlap, Switches
from weft.runtime.core.precision import Precision
from weft.runtime.core.siblings import LastTaken


class Later:
    """Weight gradients: computed at once, or with ``collects`` kept until their pass (arXiv 2401.10241, section 2)."""

    def __init__(self) -> None:
        self.collects = False
        self._kept: list[Callable[[], None]] = []

    def do(self, work: Callable[[], None]) -> None:
        """Do it, or keep it."""
        if self.collects:
            self._kept.append(work)
        else:
            work()

    def take(self) -> Callable[[], None]:
        """What does all that was kept, in order."""
        kept, self._kept = self._kept, []

        @torch.no_grad()
        def do() -> None:
            while kept:
                kept.pop(0)()

        return do


@dataclass(frozen=True, slots=True)
class Done:
    """A place in the queue."""

    device: Any
    event: Any

    def wait(self) -> None:
        """What computation queues from here on begins after it."""
        self.device.current_stream().wait_event(self.event)


class SideQueue:
    """A queue of the device beside that of computation, in which weights are cast and gathered; the CPU has none.

    It waits for what computation has queued before it takes anything on, so that parameters are read after they were
    updated, and memory that is taken in this queue, and given out again in it alone, after computation has used it
    (``record_stream`` would hold it until the host asks again).  A collective waits for the queue that begins it.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        queues = device is not None and device.type not in ("cpu", "meta")
        self._device: Any = torch.get_device_module(device) if queues else None
        self._stream: Any = None

    @contextmanager
    def queue(self) -> Iterator[None]:
        """What is done inside is queued beside computation, behind what that has queued."""
        if self._device is None:
            yield
            return
        if self._stream is None:
            self._stream = self._device.Stream()
        self._stream.wait_stream(self._device.current_stream())
        with self._device.stream(self._stream):
            yield

    def done(self) -> Done | None:
        """What was queued until now."""
        return None if self._stream is None else Done(self._device, self._stream.record_event())


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One rank's means."""

    grid: Grid
    collectives: Collectives
    overlap: Overlap
    precision: Precision = field(default_factory=Precision)
    last: LastTaken = field(default_factory=LastTaken)
    later: Later = field(default_factory=Later)
    beside: SideQueue = field(default_factory=SideQueue)

    @classmethod
    def of(
        cls, grid: Grid, *, precision: Precision | None = None, switches: Switches | None = None, slow: float = 1.0
    ) -> Machine:
        """The means of a grid's rank; overlaps are those of its layout unless given.  ``slow``: how many times
        longer it computes."""
        return cls(
            grid=grid,
            collectives=Collectives(grid, Pace(slow)),
            overlap=Overlap(switches or Switches.of(grid.layout)),
            precision=precision or Precision(),
            beside=SideQueue(grid.device),
        )

    @property
    def shares_updates(self) -> bool:
        """ZeRO-1: each rank that has a copy of the matrices updates a share of them."""
        return self.cuts_updates(self.grid.replica)

    def cuts_updates(self, copies: tuple[str, ...]) -> bool:
        """Whether ranks along the copies of some matrices each update a share of them."""
        return self.grid.layout.zero > 0 and self.grid.size(*copies) > 1

    @property
    def rows_cut(self) -> bool:
        """Sequence parallelism: between linear layers tokens are split over x."""
        return self.grid.layout.sequence_parallel and self.grid.size("x") > 1
