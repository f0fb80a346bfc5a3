"""A job on a network with parts failed: which accelerators are cut off, and how fast the rest of it still is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.fabric.spec import Fabric
from weft.layout.spec import Layout
from weft.model.job import Job
from weft.reliability.classes import FailureBook
from weft.reliability.parts import broken, drawn_failures, stranded_accelerators
from weft.simulation.iteration.result import IterationSimulation
from weft.simulation.iteration.simulate import simulate_iteration


@dataclass(frozen=True, slots=True, kw_only=True)
class Simultaneous:
    """``failed`` parts of the network at once, in ``draws`` draws.

    ``stranded`` accelerators at the most; ``cut`` draws in which there were any, so that the job stopped;
    ``slowdown`` and ``worst``: the mean and the largest iteration over the healthy one of the others (None: there is
    no other).
    """

    failed: int
    draws: int
    cut: int
    stranded: int
    slowdown: float | None
    worst: float | None


class DegradedNetwork:
    """A job on a fabric, healthy and with parts failed."""

    def __init__(
        self,
        job: Job,
        cluster: Cluster,
        layout: Layout,
        fabric: Fabric,
        *,
        routing: str,
        seed: int,
        constants: Calibration | None = None,
    ) -> None:
        self.job, self.cluster, self.layout, self.fabric = job, cluster, layout, fabric
        self.routing, self.seed, self.constants = routing, seed, constants
        self._healthy: IterationSimulation | None = None

    @property
    def healthy(self) -> IterationSimulation:
        """An iteration with nothing failed."""
        if self._healthy is None:
            self._healthy = self._simulated(self.fabric)
        return self._healthy

    @property
    def healthy_s(self) -> float:
        return self.healthy.iteration_s

    def iteration_s(self, fabric: Fabric) -> float:
        """Seconds of an iteration on another state of the fabric."""
        return self._simulated(fabric).iteration_s

    def _simulated(self, fabric: Fabric) -> IterationSimulation:
        return simulate_iteration(
            self.job, self.cluster, self.layout, fabric, routing=self.routing, seed=self.seed, constants=self.constants
        )

    def speed(self, failed: Sequence[tuple[str, int, float]]) -> float | None:
        """Speed with parts failed (kind, part, share of capacity left); None where accelerators are cut off."""
        left = broken(self.fabric, failed)
        if len(stranded_accelerators(left)):
            return None
        return min(1.0, self.healthy_s / self.iteration_s(left))

    def simultaneous(self, book: FailureBook, count: int, *, draws: int, seed: int) -> Simultaneous:
        """``count`` parts failed at once, drawn as ``drawn_failures`` draws them.

        Raises:
            BadInput: there are not so many parts that the book knows of.
        """
        slow, worst_cut, cut = [], 0, 0
        for draw in range(draws):
            failed = drawn_failures(self.fabric, book, count, seed=seed, draw=draw, where="--simultaneous")
            left = broken(self.fabric, failed)
            lost = len(stranded_accelerators(left))
            worst_cut, cut = max(worst_cut, lost), cut + (lost > 0)
            if not lost:
                slow.append(self.iteration_s(left) / self.healthy_s)
        return Simultaneous(
            failed=count,
            draws=draws,
            cut=cut,
            stranded=worst_cut,
            slowdown=fsum(slow) / len(slow) if slow else None,
            worst=max(slow, default=None),
        )
