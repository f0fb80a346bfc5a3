"""The arrays of a running simulation.

A *place* is a link on a flow's path, as numbered in ``Routes.links``; a *slot* is a seat of an active flow
on a link. A flow's *level* is its rate per weight, a place's *share* what it loads the link with at level
1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.fabric.traffic import Routes, Traffic
from weft.solvers._arrays import PAIR, Floats, Ints, Records, wide

(
    LIVE,
    ARRIVALS,
    READY,
    CHANGED,
    SEEDS,
    EPOCH,
    SOLVES,
    RIPPLES,
    EVENT,
    LOGGED,
    COME,
    TAKEN,
    STILL,
    MOVING,
    SIDE,
    HALTS,
    OPENED,
    PENDING,
    COUNTERS,
) = range(19)
"""Places in ``counter``: active flows; sizes of the heaps of arrivals and of ready phases; flows whose level
changed; links to look at again; the last stamp given; solutions; local ones; link events done; samples of
link rates taken; flows that came since the last solution; slots given to links; flows that stand and that move, in
order of bytes left, and which half of each list holds them; phases that ended and halt the simulation; flows that
rise; links that have held flows and wait to be looked at."""

NO_LINK = wide(-1)
FAN = 16
FEW = 4
"""Slots that a link gets first."""

LINK = np.dtype(
    [
        ("capacity", np.float64),
        ("left", np.float64),  # capacity that flows leave that are no members
        ("rising", np.float64),  # share of its members: flows that it holds, or without a level yet
        ("full_at", np.float64),  # level of the flows that it holds; infinity if it holds none
        ("look_at", np.float64),  # level at which it is looked at next
        ("stamp", np.int64),  # twice the number of the solution that used it last, and 1 more once it is full
        ("open", np.int32),  # number of its members
        ("first", np.int32),  # slots first .. first+count are taken
        ("count", np.int32),
        ("room", np.int32),  # slots that are its own
    ],
    align=True,
)
"""One cache line, as are flows."""
FLOW = np.dtype(
    [
        ("first", np.int64),  # places first .. end are its path
        ("end", np.int64),
        ("level", np.float64),
        ("fresh", np.float64),  # level in the solution that is being made
        ("touched", np.int64),
        ("limit", np.int64),  # link that holds it down
        ("top", np.float64),  # level of its cap
        ("weight", np.float64),
    ],
    align=True,
)
TRIP = np.dtype(
    [
        ("bytes_left", np.float64),
        ("rate", np.float64),
        ("since", np.float64),
        ("bytes", np.float64),
        ("remaining", np.float64),
        ("seat", np.int64),  # index among the active flows
        ("phase", np.int64),
        ("latency", np.float64),
        ("begin", np.float64),
        ("completion", np.float64),
    ],
    align=True,
)
PLACE = np.dtype([("link", np.int32), ("slot", np.int32)], align=True)
SLOT = np.dtype([("flow", np.int32), ("place", np.int32)], align=True)
RANK = np.dtype([("key", np.float64), ("flow", np.int32), ("link", np.int32)], align=True)
"""Bytes left of a flow, and the link that it waits behind."""
FLOW_LIST = np.dtype([(name, np.int64) for name in ("live", "changed", "ranked", "due")])
LINK_LIST = np.dtype([(name, np.int64) for name in ("used", "seed", "seeded")])
"""Links used in a solution; links to look at again; per link, whether it is one."""
PHASE = np.dtype(
    [
        ("delay", np.float64),
        ("start", np.float64),
        ("begin", np.float64),
        ("end", np.float64),
        ("waiting", np.int64),  # phases that must end before it begins
        ("unfinished", np.int64),  # flows of it that have not completed
        ("halts", np.int64),  # 1 if the simulation halts when it ends
        ("flow_first", np.int64),
        ("flow_end", np.int64),
        ("next_first", np.int64),
        ("next_end", np.int64),
    ]
)
EVENT_AT = np.dtype([("time", np.float64), ("link", np.int64), ("capacity", np.float64)])
SAMPLE = np.dtype([("time", np.float64), ("link", np.int64), ("rate", np.float64)])


class Net(NamedTuple):
    """Links, flows, who is where, and room to solve."""

    links: Records
    flows: Records
    trips: Records
    """What changes of a flow when it moves, not when rates are sought."""
    path: Records
    share: Floats
    """Of each place; not looked at where all are 1."""
    slots: Records
    flow_list: Records
    link_list: Records
    heap: Records
    ranks: Records
    """Flows in order of bytes left: those that stand, twice as many places as flows, then those that move."""
    counter: Ints
    even: bool
    """Every share is 1."""


class Timeline(NamedTuple):
    """What happens when: a tree of the soonest completions, phases, arrivals and link events."""

    finish: Floats
    nodes: Floats
    levels: Ints
    phases: Records
    flow_order: Ints
    next_phase: Ints
    ready: Records
    arrivals: Records
    events: Records
    samples: Records
    """Room for rates of links; none where they are not wanted."""
    sampled: Floats
    """Rates of links when last sampled."""
    now: Floats


def new_net(capacity: Floats, traffic: Traffic, routes: Routes) -> Net:
    """No flow active."""
    nlinks, nflows, places = len(capacity), len(traffic), len(routes.links)
    links, flows, trips, path = (blank(nlinks, LINK), blank(nflows, FLOW), blank(nflows, TRIP), blank(places, PLACE))
    links["capacity"], links["full_at"] = capacity, np.inf
    links["left"] = capacity
    flows["first"], flows["end"] = routes.indptr[:-1], routes.indptr[1:]
    flows["limit"], flows["weight"], flows["top"] = NO_LINK, traffic.weight, traffic.cap_Bps / traffic.weight
    trips["bytes"], trips["bytes_left"], trips["phase"] = traffic.bytes, traffic.bytes, traffic.phase
    trips["latency"], trips["begin"], trips["completion"] = routes.latency_s, np.nan, np.nan
    path["link"] = routes.links
    same = bool(np.all(traffic.weight == 1.0))
    share = routes.usage if same else routes.usage * np.repeat(traffic.weight, np.diff(routes.indptr))
    return Net(
        links=links,
        flows=flows,
        trips=trips,
        path=path,
        share=np.ascontiguousarray(share, dtype=np.float64),
        slots=blank(4 * places + FEW * nlinks, SLOT),
        flow_list=blank(nflows, FLOW_LIST),
        link_list=blank(nlinks, LINK_LIST),
        heap=blank(2 * places + nlinks + 2 * nflows + 1, PAIR),
        ranks=blank(4 * nflows, RANK),
        counter=np.zeros(COUNTERS, dtype=np.int64),
        even=same and bool(np.all(routes.usage == 1.0)),
    )


def blank(count: int, dtype: np.dtype[np.void]) -> Records:
    """Records with all fields zero."""
    return np.zeros(count, dtype=dtype)


def new_tree(leaves: int) -> tuple[Floats, Ints]:
    """A tree of minima with ``FAN`` children a node: its nodes, and the first node of each level; the last level only
    closes the list."""
    sizes = [-(-max(leaves, 1) // FAN)]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // FAN))
    return np.full(sum(sizes), np.inf), np.cumsum([0, *sizes])
