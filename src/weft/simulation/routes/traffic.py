"""The network traffic of a planned job: every axis that leaves the scale-up domains, as flows that repeat.

All collectives of an iteration count together: the busiest NIC sends all its bytes in the time that its
bandwidth needs, and every flow moves at the pace at which it would end with it.  So a flow's demand is its
share of that NIC's traffic, whichever axis it belongs to.
"""

from __future__ import annotations

from dataclasses import replace

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
from weft.routing.problem import demands
from weft.routing.traffic import JobTraffic, job_traffic
from weft.simulation.iteration.contention import Messages, Wires, title
from weft.simulation.iteration.demand import Key, demand
from weft.simulation.iteration.routed import FlowRoutes
from weft.simulation.iteration.usage import StageTotals, crossings, rank_stages, totals


def planned_traffic(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    fabric: Fabric,
    *,
    placement: Placement | None = None,
    name: str = "job",
    constants: Calibration | None = None,
) -> JobTraffic:
    """The flows of one iteration of a layout between scale-up domains.

    Rings, trees, all-to-alls and pipeline sends are merged to one flow a pair of accelerators and collective,
    with all its bytes in an iteration; the compute pause is what the closed form's iteration lasts beyond
    them.

    Args:
        placement: of every rank; rank r on accelerator r by default.
        name: of the job.

    Raises:
        BadInput: the layout breaks a rule, the ranks do not fit on the fabric, or nothing leaves the domains.
    """
    parts, iteration_s = _asked(job, cluster, layout, fabric, placement, constants)
    if not parts:
        what = f"{name} sends nothing over the network of {fabric.name}"
        raise BadInput(what, where="traffic", remedy="route other jobs")
    return _together(parts, name, iteration_s, fabric)


def planned_routes(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    fabric: Fabric,
    *,
    placement: Placement | None = None,
    constants: Calibration | None = None,
    router: str = "auto",
    seed: int = 0,
) -> FlowRoutes | None:
    """What a router gives the flows of ``planned_traffic``; None where nothing leaves the domains.

    Raises:
        BadInput: the layout breaks a rule, or the ranks do not fit on the fabric.
        UnknownName: there is no such router.
        Unsupported: the router does not apply.
    """
    parts, iteration_s = _asked(job, cluster, layout, fabric, placement, constants)
    if not parts:
        return None
    traffic = _together(parts, "job", iteration_s, fabric)
    return FlowRoutes(fabric, traffic, route(fabric, traffic, router=router, seed=seed), name="planned")


def _asked(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    fabric: Fabric,
    placement: Placement | None,
    constants: Calibration | None,
) -> tuple[list[_Part], float]:
    """The flows of an iteration between domains, and the seconds that the closed form gives it."""
    check_layout(job, layout.world, layout)
    closed = Estimator(job, cluster, constants)
    table = LayoutTable.of([layout])
    wires = Wires(layout, cluster, fabric, closed.constants, placement=placement, routing="spray")
    wanted = totals(layout, demand(layout, next(iter(closed.frames(table)))))
    stages = np.zeros(fabric.accelerators, dtype=np.int64)
    stages[wires.placement] = rank_stages(layout)
    parts: list[_Part] = []
    for key, total in wanted.items():
        parts += _flows(wires.messages(key), total, key, stages, layout, fabric)
    return parts, float(closed.evaluate(table).iteration_s[0])


_Part = tuple[str, Ints, Ints, Floats]
"""Name of a collective, and its flows: source, target, bytes in an iteration."""


def _flows(
    messages: Messages, wanted: StageTotals, key: Key, stages: Ints, layout: Layout, fabric: Fabric
) -> list[_Part]:
    """The flows of a collective's groups between domains."""
    sent = crossings(layout)
    sent = sent / np.maximum(sent.sum(axis=1, keepdims=True), 1.0)
    found = []
    for wave in messages.waves:
        flows = wave.bytes * wanted.bytes[stages[wave.source]]
        if key[0] == "send":
            flows = flows * sent[stages[wave.source], stages[wave.target]]
        if key[1] == ("tied",):
            flows = wave.bytes * wanted.bytes[0]
        leaves = np.flatnonzero((fabric.domain[wave.source] != fabric.domain[wave.target]) & (flows > 0))
        for group in np.unique(wave.group[leaves]).tolist():
            mine = leaves[wave.group[leaves] == group]
            found.append((title(key, group), wave.source[mine], wave.target[mine], flows[mine]))
    return found


def _together(parts: list[_Part], name: str, iteration_s: float, fabric: Fabric) -> JobTraffic:
    """One job of all parts; those of one name are one collective, and demands follow from all bytes
    together.
    """
    titles = list(dict.fromkeys(part[0] for part in parts))
    group = np.concatenate([np.full(len(part[1]), titles.index(part[0])) for part in parts])
    source, target, bytes_ = (np.concatenate([part[i] for part in parts]) for i in (1, 2, 3))
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
    whole = replace(traffic, collective=np.zeros(len(traffic), dtype=np.int64))
    rate = demands(fabric, whole)
    busy_s = float((traffic.bytes / rate).max())
    return replace(traffic, cap_Bps=rate, pause_s=np.array([max(iteration_s - busy_s, 0.0)]))
