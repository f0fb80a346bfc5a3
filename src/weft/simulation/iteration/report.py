"""A simulated iteration with what was simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from weft.cluster.spec import Cluster
from weft.fabric.spec import Fabric
from weft.fabric.transport import carrier, crossing
from weft.layout.spec import Layout
from weft.layout.text import layout_to_dict
from weft.model.job import Job
from weft.model.text import job_to_dict
from weft.results import Result
from weft.simulation.iteration.result import IterationSimulation
from weft.units import format_seconds


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class IterationReport(Result):
    """One iteration of a layout at flow level on a fabric."""

    SCHEMA = "weft.simulate/1"

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
        return [asdict(row) | {"slowdown": row.slowdown} for row in self.result.collectives]

    def _document(self) -> dict[str, Any]:
        from weft.cluster.files import cluster_to_dict  # pydantic loads only for files

        found = self.result
        return {
            "job": job_to_dict(self.job),
            "cluster": cluster_to_dict(self.cluster),
            "layout": layout_to_dict(self.layout),
            "fabric": self.fabric.name,
            "routing": found.routing,
            "transport": carrier(found.routing),
            "exact": found.exact,
            "slow": list(self.slow),
            "failed": list(self.failed),
            "makespan_s": found.iteration_s,
            "iteration_s": found.iteration_s,
            "closed_form_s": found.closed_form_s,
            "scheduled_s": found.scheduled_s,
            "lower_bound_s": found.lower_bound_s,
            "cross_rail_bytes": found.cross_rail_bytes,
            "collectives": self.to_dicts(),
            "busiest": [asdict(link) for link in found.busiest],
            "tiers": [asdict(tier) for tier in found.tiers],
        }

    def _facts(self) -> Sequence[str]:
        found = self.result
        return (
            f"{self.job.model.name} on {self.fabric.name}",
            crossing(found.routing),
            f"iteration {format_seconds(found.iteration_s)}",
            f"closed form {format_seconds(found.closed_form_s)}",
        )
