"""What every layer of one rank works with: grid, collectives, scheduler and number formats."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.runtime.core.beside import Beside
from weft.runtime.core.collectives import Collectives
from weft.runtime.core.grid import Grid
from weft.runtime.core.later import Later
from weft.runtime.core.overlap import Overlap, Switches
from weft.runtime.core.pace import Pace
from weft.runtime.core.precision import Precision
from weft.runtime.core.siblings import LastTaken


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One rank's means."""

    grid: Grid
    collectives: Collectives
    overlap: Overlap
    precision: Precision = field(default_factory=Precision)
    last: LastTaken = field(default_factory=LastTaken)
    later: Later = field(default_factory=Later)
    beside: Beside = field(default_factory=Beside)

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
            beside=Beside(grid.device),
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
