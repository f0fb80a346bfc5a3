"""What every rank reaches on every dimension of a schedule when its stages meet on a fabric.

All dimensions are taken to be busy at once, as a good schedule keeps them, each stage with all its messages
flowing (the steady state of a pipeline of chunks).  Their max-min fair rates, under the caps that the
dimensions state, are what ``weft.collectives.schedules.per_rank.play_ranks`` takes for bandwidths.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.collectives.messages.flows import expand
from weft.collectives.schedules.chunks import Request
from weft.fabric.families.torus import lines_of
from weft.fabric.paths import Mode, Paths
from weft.fabric.placement import Placement
from weft.fabric.spec import Fabric, Floats, Ints
from weft.solvers.maxmin import solve


class _Flows(NamedTuple):
    source: Ints
    target: Ints
    cap_Bps: Floats
    dimension: Ints


def dimension_rates(
    collective: Request, fabric: Fabric, *, placement: Placement | None = None, routing: Mode = "ecmp"
) -> Floats:
    """Bytes/s of every rank on every dimension, shape (dimensions, ranks).

    Args:
        placement: of every rank; rank r on accelerator r by default.
    """
    ranks = collective.accelerators
    placed = placement or Placement.in_order(ranks)
    placed.check(ranks, fabric)
    at = placed.accelerators
    nominal = np.array([dimension.bandwidth_Bps for dimension in collective.dimensions])
    flows = _all_flows(collective)
    routes = Paths(fabric).routes(at[flows.source], at[flows.target], mode=routing)
    # Every flow wants its rate at full bandwidth of its dimension; where links are shared, max-min fairness says what
    # it gets.
    rates = solve(
        np.asarray(fabric.capacity_Bps, dtype=np.float64),
        routes.indptr,
        routes.links,
        routes.usage,
        flows.cap_Bps,
        flows.cap_Bps,
    )
    share = np.ones((len(nominal), ranks))
    # A stage waits for its slowest message: a rank reaches on a dimension the least share of its flows.
    np.minimum.at(share, (flows.dimension, flows.source), rates / flows.cap_Bps)
    reached: Floats = share * nominal[:, None]
    return reached


def _all_flows(collective: Request) -> _Flows:
    lines = lines_of(collective.accelerators, [flows.size for flows in collective.dimensions])
    parts = [_flows(collective, i, lines[i]) for i in collective.used]
    none = np.zeros(0, dtype=np.int64)
    return _Flows(
        source=np.concatenate([none, *(flows.source for flows in parts)]),
        target=np.concatenate([none, *(flows.target for flows in parts)]),
        cap_Bps=np.concatenate([np.zeros(0), *(flows.cap_Bps for flows in parts)]),
        dimension=np.concatenate([none, *(flows.dimension for flows in parts)]),
    )


def _flows(collective: Request, dimension: int, groups: Ints) -> _Flows:
    """Messages of a stage in all groups; those of a ring go around both ways, half each."""
    network, cost = collective.dimensions[dimension], collective.stage("all-gather", dimension)
    steps = expand("all-gather", cost.algorithm, groups, 1.0).pipelined()
    source, target, bytes_ = steps.source, steps.target, steps.bytes
    if network.kind == "ring":
        source, target = np.concatenate([source, target]), np.concatenate([target, source])
        bytes_ = np.tile(bytes_ / 2, 2)
    return _Flows(
        source=source,
        target=target,
        cap_Bps=bytes_ / cost.sent * network.bandwidth_Bps,
        dimension=np.full(len(source), dimension, dtype=np.int64),
    )
