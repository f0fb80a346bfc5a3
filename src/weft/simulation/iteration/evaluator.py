"""Many layouts of one job on one fabric: seconds of an iteration at flow level, and floors under them.

What ``simulate_iteration`` gives one layout, with what layouts share found once: contention by kind and groups of
a collective, and the closed form for tables of layouts that differ in nothing that a collective's groups follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster, Tier
from weft.errors import BadInput
from weft.estimation.frame import Frame
from weft.estimation.iteration import Estimator, estimate_rows, floor_s
from weft.estimation.result import EstimateTable
from weft.fabric.checks import components
from weft.fabric.lump import lumped
from weft.fabric.placement import Placement
from weft.fabric.spec import SCALE_UP, Fabric, Floats, Ints
from weft.fabric.transport import transport
from weft.layout.check import check_layout
from weft.layout.mesh import EXPERT_AXES, WEIGHT_GROUPS, degrees
from weft.layout.spec import Layout
from weft.layout.step import TrainingStep
from weft.layout.table import Index, LayoutTable, collapse
from weft.model.job import Job
from weft.routing.plan import route
from weft.routing.problem import sharing_ports
from weft.routing.traffic import JobTraffic, job_traffic
from weft.simulation.iteration.contention import Cuts, FlowRoutes, Wires, title
from weft.simulation.iteration.demand import Key, StageTotals, demand, demand_of, message_bytes, rank_stages, totals
from weft.simulation.iteration.stepping import Clocks, Stepped

# Traffic of a layout -------------------------------------------------------------------------------------------
# The network traffic of a planned job: every axis that leaves the scale-up domains, as flows that repeat.
#
# All collectives of an iteration count together: the busiest NIC sends all its bytes in the time that its bandwidth
# needs, and every flow moves at the pace at which it would end with it. So a flow's demand is its share of that
# NIC's traffic, whichever axis it belongs to.


def planned_traffic(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    fabric: Fabric,
    *,
    placement: Placement | None = None,
    name: str = "job",
) -> JobTraffic:
    """The flows of one iteration of a layout between scale-up domains.

    Rings, trees, all-to-alls and pipeline sends are merged to one flow a pair of accelerators and collective,
    with all its bytes in an iteration; the compute pause is what the closed form's iteration lasts beyond
    them.

    Args:
        placement: of every rank; rank r on accelerator r by default.
        name: of the job.
    """
    (parts, _), iteration_s = _asked(job, cluster, layout, fabric, placement, None)
    if not parts:
        problem = f"{name} sends nothing over the network of {fabric.name}"
        raise BadInput(problem, where="traffic", remedy="route other jobs")
    return _together(parts, name, iteration_s, fabric)


def planned_routes(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    fabric: Fabric,
    *,
    placement: Placement | None = None,
    constants: Calibration | None = None,
    seed: int = 0,
) -> FlowRoutes | None:
    """What a router gives the flows of ``planned_traffic``; None where nothing leaves the domains."""
    return _routed(*_asked(job, cluster, layout, fabric, placement, constants), fabric, seed)


def routes_over(
    wires: Wires, wanted: Mapping[Key, StageTotals], iteration_s: float, *, seed: int = 0
) -> FlowRoutes | None:
    """As ``planned_routes``, of the layout of ``wires``, with what it asks for and its closed form's seconds."""
    return _routed(_parts(wires, wanted), iteration_s, wires.fabric, seed)


def _routed(flows: _Asked, iteration_s: float, fabric: Fabric, seed: int) -> FlowRoutes | None:
    if not flows.parts:
        return None
    traffic = _together(flows.parts, "job", iteration_s, fabric)
    result = route(fabric, traffic, router="auto", seed=seed)
    return FlowRoutes(fabric, traffic, result, name="planned", idle=flows.idle)


def _asked(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    fabric: Fabric,
    placement: Placement | None,
    constants: Calibration | None,
) -> tuple[_Asked, float]:
    """The flows of an iteration between domains, and the seconds that the closed form gives it."""
    check_layout(job, layout.world, layout)
    closed = Estimator(job, cluster, constants)
    table = LayoutTable.of([layout])
    wires = Wires(layout, cluster, fabric, closed.constants, placement=placement, routing="spray")
    wanted = totals(layout, demand(layout, next(iter(closed.frames(table)))))
    return _parts(wires, wanted), float(closed.evaluate(table).iteration_s[0])


_Part = tuple[str, Ints, Ints, Floats]
"""Name of a collective, and its flows: source, target, bytes in an iteration."""


class _Asked(NamedTuple):
    """Flows between domains, and the ends of messages that carry nothing."""

    parts: list[_Part]
    idle: tuple[Ints, Ints]


def _parts(wires: Wires, wanted: Mapping[Key, StageTotals]) -> _Asked:
    """The flows of an iteration between domains."""
    stages = np.zeros(wires.fabric.accelerators, dtype=np.int64)
    stages[wires.placement] = rank_stages(wires.layout)
    domain, none = wires.fabric.domain, np.zeros(0, dtype=np.int64)
    parts: list[_Part] = []
    idle = [(none, none)]
    for key, total in wanted.items():
        for source, target, bytes_, group in wires.outlines(key):
            flows = message_bytes(wires.layout, bytes_, total, key, stages[source], stages[target])
            # Messages inside a domain never see the network that is routed.
            leaves = domain[source] != domain[target]
            sends, rests = np.flatnonzero(leaves & (flows > 0)), np.flatnonzero(leaves & (flows <= 0))
            idle.append((source[rests], target[rests]))
            # The messages of a group stand together.
            rows = np.split(sends, np.flatnonzero(np.diff(group[sends])) + 1) if len(sends) else []
            parts += [(title(key, int(group[mine[0]])), source[mine], target[mine], flows[mine]) for mine in rows]
    return _Asked(parts, (np.concatenate([ends[0] for ends in idle]), np.concatenate([ends[1] for ends in idle])))


def _together(parts: list[_Part], name: str, iteration_s: float, fabric: Fabric) -> JobTraffic:
    """One job of all parts; those of one name are one collective, and demands follow from all bytes
    together.
    """
    number: dict[str, int] = {}
    for part in parts:
        number.setdefault(part[0], len(number))
    titles = list(number)
    group = np.repeat([number[part[0]] for part in parts], [len(part[1]) for part in parts])
    source, target, bytes_ = (np.concatenate([part[i] for part in parts]) for i in (1, 2, 3))
    # Messages of one collective between the same two accelerators are one flow.
    pair = np.stack([group, source, target])
    unique, at = np.unique(pair, axis=1, return_inverse=True)
    traffic = job_traffic(
        unique[1],
        unique[2],
        np.bincount(at.reshape(-1), bytes_).astype(np.float64),
        collective=unique[0],
        names=titles,
        job=np.zeros(len(titles), dtype=np.int64),
        jobs=(name,),
    )
    traffic = sharing_ports(fabric, traffic)
    busy_s = float((traffic.bytes / traffic.cap_Bps).max())
    return replace(traffic, pause_s=np.array([max(iteration_s - busy_s, 0.0)]))


# Many layouts --------------------------------------------------------------------------------------------------

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
