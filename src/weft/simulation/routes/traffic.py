"""The network traffic of a planned job: every axis that leaves the scale-up domains, as flows that repeat.

All collectives of an iteration count together: the busiest NIC sends all its bytes in the time that its
bandwidth needs, and every flow moves at the pace at which it would end with it.  So a flow's demand is its
share of that NIC's traffic, whichever axis it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.errors import BadInput
from weft.estimation.iteration import Estimator
from weft.fabric.placement import Placement
from weft.fabric.spec import Fabric, Floats, Ints
from weft.layout.check import check_layout
from weft.layout.spec import Layout
from weft.layout.table import LayoutTable
from weft.model.job import Job
from weft.routing.plan import route
from weft.routing.problem import sharing_ports
from weft.routing.traffic import JobTraffic, job_traffic
from weft.simulation.iteration.contention import FlowRoutes, Wires, title
from weft.simulation.iteration.demand import Key, StageTotals, demand, message_bytes, rank_stages, totals


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
