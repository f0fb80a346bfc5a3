"""Many layouts of one job on one fabric: seconds of an iteration at flow level, and floors under them.

What ``simulate_iteration`` gives one layout, with what layouts share found once: contention by kind and groups of
a collective, and the closed form for tables of layouts that differ in nothing that a collective's groups follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster, Tier
from weft.estimation.frame import Frame
from weft.estimation.iteration import Estimator, estimate_rows, floor_s
from weft.estimation.result import EstimateTable
from weft.fabric.checks import components
from weft.fabric.lump import lumped
from weft.fabric.placement import Placement
from weft.fabric.spec import SCALE_UP, Fabric, Floats
from weft.fabric.transport import transport
from weft.layout.mesh import EXPERT_AXES, WEIGHT_GROUPS, degrees
from weft.layout.spec import Layout
from weft.layout.step import TrainingStep
from weft.layout.table import Index, Ints, LayoutTable, collapse
from weft.model.job import Job
from weft.simulation.iteration.contention import Cuts, Wires
from weft.simulation.iteration.demand import Key, StageTotals, demand_of, totals
from weft.simulation.iteration.stepping import Clocks, Stepped
from weft.simulation.routes.traffic import routes_over

PLANNED = "planned"
"""Routes by the routers of ``weft.routing``, for the traffic of each layout."""
DEGREES = ("x", "y", "z", "data", "pipeline", "context", "expert", "expert_tensor")
KINDS = ("sequence_parallel", "context_method", "zero", "recompute")
"""Columns that decide, with which groups there are, the kinds of collectives that a layout has."""
Extras = Mapping[Key, float]
FASTER = 1 + 1e-9
"""By how much a port may exceed the cluster's figure for rounding."""


class _Nothing(Mapping[Key, float]):
    """Contention under which no collective takes time."""

    def __getitem__(self, key: Key) -> float:
        return -1e30

    def __iter__(self) -> Iterator[Key]:
        return iter(())

    def __len__(self) -> int:
        return 1


class LayoutSlice:
    """Some rows of a table of layouts: their numbers, frame, estimates and floors."""

    uneven = False
    """As of ``floor_s``."""

    def __init__(self, rows: Index, frame: Frame) -> None:
        self.rows, self.frame = rows, frame
        self.estimates: EstimateTable = estimate_rows(frame)
        self.floor_s: Floats = floor_s(frame, self.estimates, uneven=self.uneven)

    @cached_property
    def clocks(self) -> Clocks:
        """What the phases of the rows last."""
        return Clocks(self.frame)

    def stepped_s(self, at: int) -> float:
        """Seconds of the iteration of the row at a place of the slice."""
        layout = self.frame.table.row(at)
        return Stepped(layout, self.clocks.of(at, layout, float(self.estimates.offload_s[at]))).seconds


class Evaluator:
    """Seconds of layouts of a job on a fabric.

    Args:
        job: model and recipe.
        cluster: accelerators and tiers, which the closed form takes for the network.
        fabric: the network, with at least as many accelerators as the cluster.
        routing: ``PLANNED``, or a mode or a transport as ``weft.fabric.transport`` reads it, with ``seed``.
        placement: of every rank; rank r on accelerator r by default.

    Raises:
        UnknownName: there is no such routing.
    """

    def __init__(
        self,
        job: Job,
        cluster: Cluster,
        fabric: Fabric,
        *,
        routing: str = "ecmp",
        seed: int = 0,
        constants: Calibration | None = None,
        placement: Placement | None = None,
    ) -> None:
        self.job, self.seed, self.planned = job, seed, routing == PLANNED
        routing = "ecmp" if self.planned else routing
        self.closed = Estimator(job, cluster, constants)
        fabric = lumped(fabric).fabric if transport(routing).mode == "spray" else fabric
        self.wires = Wires(
            Layout(data=cluster.count),
            cluster,
            fabric,
            self.closed.constants,
            placement=placement,
            routing=routing,
            seed=seed,
            in_network=not self.planned,
        )
        self.cuts = Cuts(fabric, self.wires.capacity_Bps)
        self._known: dict[tuple[int, ...], list[Key]] = {}
        self._planned: dict[tuple[tuple[object, bytes], ...], Extras] = {}
        self.sound = self._follows_the_cluster()
        self.bounding = Estimator(job, _without_blocking(cluster), self.closed.constants)
        if not self.sound:
            self.bounding.network = replace(self.bounding.network, contention=_Nothing())

    # Floors and seconds of tables --------------------------------------------------------------------

    def unblocked(self, table: LayoutTable) -> Iterator[LayoutSlice]:
        """The rows on a network whose tiers above the ports never block, which no fabric undercuts; where a
        fabric's ports are not the cluster's, with communication that takes no time."""
        return self._slices(self.bounding, table)

    def under(self, table: LayoutTable, extras: Extras) -> Iterator[LayoutSlice]:
        """The rows with what the fabric adds to each collective."""
        closed = copy(self.closed)
        closed.network = replace(closed.network, contention=dict(extras))
        return self._slices(closed, table)

    def _slices(self, estimator: Estimator, table: LayoutTable) -> Iterator[LayoutSlice]:
        for rows, frame in estimator.slices(table):
            yield LayoutSlice(rows, frame)

    # What a fabric adds ------------------------------------------------------------------------------

    def least_extras(self, table: LayoutTable) -> Extras:
        """What no routing keeps the fabric from adding to the collectives of layouts that ``alike`` puts together."""
        layout, least = table.row(0), 0.0 if self.sound else -np.inf
        wires = self.wires.of(layout)
        return {key: max(wires.least_extra(key, self.cuts), least) for key in self._keys(table)}

    def knows(self, table: LayoutTable) -> bool:
        """Whether ``extras`` need no simulation."""
        wires = self.wires.of(table.row(0))
        return not self.planned and all(wires.knows(key) for key in self._keys(table))

    def extras(self, table: LayoutTable) -> Extras:
        """What the fabric adds to them, where routes are not planned."""
        wires = self.wires.of(table.row(0))
        return {key: wires.extra(key) for key in self._keys(table)}

    def planned_extras(self, layout: Layout) -> Extras:
        """What the fabric adds under routes that are planned for a layout; found once for equal traffic."""
        wanted = self._wanted(layout)
        wires = self.wires.of(layout)
        # Equal patterns with equal bytes are equal traffic, for which a router gives equal routes.
        traffic = tuple((wires.pattern(key), total.bytes.tobytes()) for key, total in wanted.items())
        if traffic not in self._planned:
            closed_s = float(self.closed.evaluate(LayoutTable.of([layout])).iteration_s[0])
            wires = wires.of(layout, routes_over(wires, wanted, closed_s, seed=self.seed))
            self._planned[traffic] = {key: wires.extra(key) for key in wanted}
        return self._planned[traffic]

    def alike(self, table: LayoutTable) -> list[Ints]:
        """Columns in which layouts agree whose collectives of a kind have the same groups."""
        rounds = table.scheduled("rounds").astype(np.int64)
        return [rounds, *(table.column(name) for name in (*DEGREES, "sequence_parallel"))]

    def _keys(self, table: LayoutTable) -> list[Key]:
        """The collectives of all rows, which ``alike`` puts together."""
        # Layouts that agree in these columns have the same kinds of collectives: one row of each will do.
        kinds = collapse(
            [np.minimum(table.column(name), 1) if name == "zero" else table.column(name) for name in KINDS]
        )
        result: dict[Key, None] = {}
        for row in kinds.first.tolist():
            result |= dict.fromkeys(self._kinds_of(table.take(np.array([row]))))
        return list(result)

    def _kinds_of(self, row: LayoutTable) -> list[Key]:
        """The collectives of the layout of a table of one; found once for those that have the same groups."""
        long = [int(degrees(row, axis)[0] > 1) for axis in (*DEGREES, *EXPERT_AXES, *WEIGHT_GROUPS)]
        signature = *long, *(int(row.column(name)[0]) for name in KINDS)
        if signature not in self._known:
            self._known[signature] = list(self._wanted(row.row(0)))
        return self._known[signature]

    def seconds(self, layout: Layout) -> float:
        """The iteration of a layout that passes ``weft.layout.check``, as ``simulate_iteration`` has it."""
        wires = self.wires.of(layout)
        extras = (
            self.planned_extras(layout) if self.planned else {key: wires.extra(key) for key in self._wanted(layout)}
        )
        return next(self.under(LayoutTable.of([layout]), extras)).stepped_s(0)

    def _wanted(self, layout: Layout) -> dict[Key, StageTotals]:
        """What each stage asks of every collective."""
        step = TrainingStep(self.job.model, self.job.recipe, LayoutTable.of([layout]), self.closed.software)
        return totals(layout, demand_of(layout, step))

    # ------------------------------------------------------------------------------------------------

    def _follows_the_cluster(self) -> bool:
        """Whether no port of the fabric has more than the cluster's figure, no domain joins ranks that the cluster
        keeps apart, and no accelerator passes on what others send.

        Then no message beats the ports that the closed form counts.
        """
        cluster, fabric, wires = self.closed.cluster, self.wires.fabric, self.wires
        tiers, constants = cluster.tiers, self.closed.constants
        if any(tier.kind != "switch" for tier in tiers):
            return False
        blocked = any(tier.effective_Bps < tiers[1].bandwidth_Bps for tier in tiers[1:])
        if blocked and (constants.dispatch_once or all(tier.in_network_reduction for tier in tiers)):
            return False
        within = fabric.tier == SCALE_UP
        for inside, most in ((within, tiers[0]), (~within, tiers[1] if len(tiers) > 1 else None)):
            for ends in (fabric.source, fabric.target):
                mine = inside & (ends < fabric.accelerators)
                port = np.bincount(ends[mine], fabric.capacity_Bps[mine], minlength=1)
                if port.max() > (0.0 if most is None else most.bandwidth_Bps) * FASTER:
                    return False
        # The domains of the fabric must not cut across hosts: no domain joins ranks of two hosts.
        host = np.arange(len(wires.placement)) // cluster.spans[0]
        domain = fabric.domain[wires.placement]
        pairs = np.unique(np.stack([domain, host]), axis=1)
        return len(np.unique(pairs[0])) == pairs.shape[1] and _switched(fabric)


def _switched(fabric: Fabric) -> bool:
    """Whether switches join all accelerators without the help of others."""
    beyond = fabric.up & (fabric.tier != SCALE_UP)
    source, target = fabric.source[beyond], fabric.target[beyond]
    if not len(source):
        return len(np.unique(fabric.domain)) == 1
    # Switches that hang together without accelerators are a part; one part must reach every accelerator.
    between = (source >= fabric.accelerators) & (target >= fabric.accelerators)
    part = components(fabric.nodes, source[between], target[between])
    down = (source >= fabric.accelerators) & (target < fabric.accelerators)
    reached = np.unique(np.stack([target[down], part[source[down]]]), axis=1)
    return len(np.unique(reached[1])) == 1 and len(np.unique(reached[0])) == fabric.accelerators


def _without_blocking(cluster: Cluster) -> Cluster:
    """The cluster with tiers that let through all that the ports below them send."""
    inner, *outer = cluster.tiers

    def free(tier: Tier) -> Tier:
        return replace(tier, bandwidth_Bps=max(tier.effective_Bps, outer[0].bandwidth_Bps), oversubscription=1.0)

    return replace(cluster, tiers=(replace(inner, oversubscription=1.0), *(free(tier) for tier in outer)))
