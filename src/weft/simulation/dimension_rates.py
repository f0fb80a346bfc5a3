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
    asked: Request, fabric: Fabric, *, placement: Placement | None = None, routing: Mode = "ecmp", seed: int = 0
) -> Floats:
    """Bytes/s of every rank on every dimension, shape (dimensions, ranks).

    Args:
        placement: of every rank; rank r on accelerator r by default.

    Raises:
        BadInput: the ranks do not fit on the fabric, or it does not join some.
    """
    ranks = asked.accelerators
    placed = placement or Placement.in_order(ranks)
    placed.check(ranks, fabric)
    at = placed.accelerators
    nominal = np.array([one.bandwidth_Bps for one in asked.dimensions])
    flows = _all_flows(asked)
    routes = Paths(fabric).routes(at[flows.source], at[flows.target], mode=routing, seed=seed)
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


def _all_flows(asked: Request) -> _Flows:
    lines = lines_of(asked.accelerators, [one.size for one in asked.dimensions])
    parts = [_flows(asked, i, lines[i]) for i in asked.used]
    none = np.zeros(0, dtype=np.int64)
    return _Flows(
        source=np.concatenate([none, *(one.source for one in parts)]),
        target=np.concatenate([none, *(one.target for one in parts)]),
        cap_Bps=np.concatenate([np.zeros(0), *(one.cap_Bps for one in parts)]),
        dimension=np.concatenate([none, *(one.dimension for one in parts)]),
    )


def _flows(asked: Request, dimension: int, groups: Ints) -> _Flows:
    """Messages of a stage in all groups; those of a ring go around both ways, half each."""
    one, cost = asked.dimensions[dimension], asked.stage("all-gather", dimension)
    steps = expand("all-gather", cost.algorithm, groups, 1.0).pipelined()
    source, target, bytes_ = steps.source, steps.target, steps.bytes
    if one.kind == "ring":
        source, target = np.concatenate([source, target]), np.concatenate([target, source])
        bytes_ = np.tile(bytes_ / 2, 2)
    return _Flows(
        source=source,
        target=target,
        cap_Bps=bytes_ / cost.sent * one.bandwidth_Bps,
        dimension=np.full(len(source), dimension, dtype=np.int64),
    )
