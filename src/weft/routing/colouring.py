"""Flows on a Clos without a collision that can be avoided: edge colouring, layer by layer.

Flows between the leaves are the edges of a bipartite multigraph, sending leaves left, receiving ones right.
The switches above the leaves fall into parts that hang together without the leaves: single spines on two
layers, planes of spines and cores on three; k parallel cables to one part count as k parts.  With n parts,
one link from each leaf to each, and at most Delta flows in or out of a leaf, ceil(Delta / n) flows on a link
are unavoidable, and enough: Koenig colours the edges with Delta colours, and colour c goes to part c modulo n.
Inside a part the flows go on between its lowest switches in the same way.  With equal flows and as many links
up as down that is optimal on any number of layers.

Where links are down, some colours are closed at some switches; flows that find none are left out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.errors import Unsupported
from weft.fabric.checks import components
from weft.fabric.spec import Ints, Mask, ranks
from weft.routing import _kernels
from weft.routing.problem import Problem


class ColouredGraph(NamedTuple):
    """Edges with their ends and colours, and the edge of each colour at each vertex (see ``_kernels``)."""

    left: Ints
    right: Ints
    colour: Ints
    out: Ints
    into: Ints


def coloured(problem: Problem, order: Ints | None = None) -> tuple[Ints, Ints]:
    """Ways up and down of every flow; -1 for those that found none.

    Args:
        order: in which flows are coloured; as given by default.

    Raises:
        Unsupported: the fabric is not a Clos under hosts with one NIC, or a switch reaches a part by several
        switches.
    """
    ways, fabric = problem.ways, problem.fabric
    if not (problem.climbs.sound and np.all(ways.first >= 0) and np.all(ways.last >= 0)):
        raise _unsupported("not every flow goes over one NIC and the switches of a Clos")
    flows = np.arange(len(problem.demand_Bps)) if order is None else order
    left, right = fabric.target[ways.first[flows]], fabric.source[ways.last[flows]]
    width = ways.up.shape[1]
    links = np.full((2, len(flows), width), -1, dtype=np.int64)
    lost = np.zeros(len(flows), dtype=bool)
    # Layer by layer: colour the flows that have not met, take each one link up at both ends, go on above.
    for layer in range(1, width + 1):
        open_ = np.flatnonzero((left != right) & ~lost)
        if not len(open_):
            break
        lost[open_], steps = _layer(problem, layer, left[open_], right[open_])
        going, links[:, open_, layer - 1] = open_[~lost[open_]], steps
        # Both ends are now in the same part of the fabric; they meet where they are on the same switch.
        left[going] = fabric.target[links[0, going, layer - 1]]
        right[going] = fabric.target[links[1, going, layer - 1]]
    lost |= left != right
    up, down = np.full(len(flows), -1, dtype=np.int64), np.full(len(flows), -1, dtype=np.int64)
    result = np.flatnonzero(~lost)
    up[flows[result]] = _numbers(problem, flows[result], left[result], links[0, result], 0)
    down[flows[result]] = _numbers(problem, flows[result], left[result], links[1, result], 1)
    return up, down


def _layer(problem: Problem, layer: int, left: Ints, right: Ints) -> tuple[Mask, Ints]:
    """Colour flows between switches of a layer: which found no part, and the links up at both ends."""
    fabric, table = problem.fabric, problem.climbs
    above = table.usable & (table.level[fabric.source] > layer) & (table.level[fabric.target] > layer)
    part = components(fabric.nodes, fabric.source[above], fabric.target[above])
    low, high = table.level[fabric.source] == layer, table.level[fabric.target] == layer + 1
    upward = np.flatnonzero(table.usable & low & high)
    # Planes: what hangs together from this layer upwards.
    inside = table.usable & (table.level[fabric.source] >= layer) & (table.level[fabric.target] >= layer)
    plane = components(fabric.nodes, fabric.source[inside], fabric.target[inside])
    links = np.full((2, len(left)), -1, dtype=np.int64)
    # Planes share no link above this layer, so that each is a graph by itself.
    for each in np.unique(plane[left]).tolist():
        flows = np.flatnonzero(plane[left] == each)
        mine = upward[plane[fabric.source[upward]] == each]
        # Parallel cables count as parts: the k-th up at one end goes with the k-th at the other.
        member = ranks(fabric.source[mine] * fabric.nodes + fabric.target[mine])
        switches, at = np.unique(fabric.source[mine], return_inverse=True)
        parts, to = np.unique(part[fabric.target[mine]] * (len(mine) + 1) + member, return_inverse=True)
        grid = np.full((len(switches), len(parts)), -1, dtype=np.int64)
        if len(np.unique(at * len(parts) + to)) < len(mine):
            raise _unsupported("a switch reaches the same part of the fabric by several switches")
        grid[at, to] = mine
        ends = [np.searchsorted(switches, side[flows]) for side in (left, right)]
        graph = _graph(grid, *ends)
        _kernels.insert_all(graph, np.arange(len(flows)))
        # Colour c goes to part c modulo n: ceil(Delta / n) flows on a link, the least that is possible.
        colour = np.where(graph.colour >= 0, graph.colour % len(parts), 0)
        for side in (0, 1):
            links[side, flows] = np.where(graph.colour >= 0, grid[ends[side], colour], -1)
    return links[0] < 0, links


def _graph(grid: Ints, left: Ints, right: Ints) -> ColouredGraph:
    """No edge coloured: as many colours for each part as the busiest switch needs, closed where it has
    no link.
    """
    open_ = np.maximum(np.count_nonzero(grid >= 0, axis=1), 1)
    # Koenig needs as many colours as the busiest switch has flows: that many rounds of one colour for each link.
    busiest = [np.bincount(ends, minlength=len(grid)) for ends in (left, right)]
    per_link = max(int(np.ceil(np.max(count / open_, initial=1.0) - 1e-12)) for count in busiest)
    closed = np.tile(grid < 0, (1, per_link))
    places = np.where(closed, _kernels.CLOSED, _kernels.FREE).astype(np.int64)
    return ColouredGraph(left, right, np.full(len(left), -1, dtype=np.int64), places, places.copy())


def _numbers(problem: Problem, flows: Ints, top: Ints, links: Ints, side: int) -> Ints:
    """The number of the way with given links up."""
    ways = problem.ways
    first, end = (ways.up_first, ways.up_end) if side == 0 else (ways.down_first, ways.down_end)
    result = np.full(len(flows), -1, dtype=np.int64)
    _kernels.locate(ways, first[flows], end[flows], top, links, result)
    return result


def _unsupported(why: str) -> Unsupported:
    return Unsupported(
        f"edge colouring is for a Clos; {why}",
        where="--router edge-coloring",
        remedy="use repair, which takes any fabric",
    )
