"""What every layer of one rank works with: grid, collectives, scheduler and number formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from weft.runtime.core.collectives import Collectives
from weft.runtime.core.grid import Grid
from weft.runtime.core.overlap import Overlap, SideQueue, Switches
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
    def of(cls, grid: Grid, *, precision: Precision | None = None, switches: Switches | None = None) -> Machine:
        """The means of a grid's rank; overlaps are those of its layout unless given."""
        return cls(
            grid=grid,
            collectives=Collectives(grid),
            overlap=Overlap(switches or Switches.of(grid.layout), grid.device),
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
