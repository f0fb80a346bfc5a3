"""A simulated iteration with what was simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.cluster.spec import Cluster
from weft.codec import encode
from weft.fabric.spec import Fabric
from weft.fabric.transport import carrier, crossing
from weft.layout.spec import Layout
from weft.model.job import Job
from weft.results import Result
from weft.simulation.iteration.result import IterationSimulation
from weft.units import format_seconds


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class IterationReport(Result):
    """One iteration of a layout at flow level on a fabric."""

    SCHEMA = "weft.simulate/1"
    DOCUMENT = """
        job cluster layout fabric=fabric.name routing=result.routing transport exact=result.exact slow failed
        makespan_s=iteration_s iteration_s closed_form_s=result.closed_form_s scheduled_s=result.scheduled_s
        lower_bound_s=result.lower_bound_s cross_rail_bytes=result.cross_rail_bytes collectives=result.collectives
        busiest=result.busiest tiers=result.tiers"""

    job: Job
    cluster: Cluster
    layout: Layout
    fabric: Fabric
    result: IterationSimulation
    slow: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    @property
    def iteration_s(self) -> float:
        return self.result.iteration_s

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for every collective."""
        return [encode(row) for row in self.result.collectives]

    @property
    def transport(self) -> str:
        return carrier(self.result.routing)

    def _facts(self) -> Sequence[str]:
        found = self.result
        return (
            f"{self.job.model.name} on {self.fabric.name}",
            crossing(found.routing),
            f"iteration {format_seconds(found.iteration_s)}",
            f"closed form {format_seconds(found.closed_form_s)}",
        )
