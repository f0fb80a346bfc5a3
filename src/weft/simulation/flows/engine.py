"""Flow-level simulation: phases begin, their flows share the links, every change of the sharing is an event.

Flows are fluid.  Between two events each has a constant rate; an event is a flow that starts or completes, or a phase
that begins.  Everything that falls on one instant is one event.  Rates are weighted max-min fair with caps
(``weft.solvers.maxmin``).  Packet spraying needs no mode: routes that split a flow over several paths carry shares in
``Routes.usage``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.errors import BadInput
from weft.fabric.spec import Floats, Ints
from weft.fabric.traffic import Routes, Traffic
from weft.simulation.flows._clock import PHASE, SAMPLE, Timeline, advance
from weft.solvers._arrays import PAIR, Records
from weft.solvers._filling import LIVE, LOGGED, READY, RIPPLES, SOLVES, Net, blank, new_net


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkRates:
    """Rates of links in time: from ``time_s`` on ``link`` carries ``rate_Bps``, until its next entry."""

    time_s: Floats
    link: Ints
    rate_Bps: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulation:
    """When everything happened.

    ``begin_s`` is when a flow's first byte moves: its path's latency after its phase begins.
    ``link_bytes`` counts what each link carried, ``bottleneck`` is the link that limited a flow last (-1:
    its own cap, or nothing). ``solutions`` counts how often rates were computed, ``local_solutions`` how
    many of those only around a change.
    """

    makespan_s: float
    completion_s: Floats
    begin_s: Floats
    phase_begin_s: Floats
    phase_end_s: Floats
    link_bytes: Floats
    bottleneck: Ints
    solutions: int
    local_solutions: int
    rates: LinkRates | None = None


_FAN = 16
SAMPLES = 1 << 20
"""Samples of link rates that the event loop may take before they are put away."""
LOCAL = 0.25
"""Rates are solved again only around a change while that touches at most this share of the active flows."""


def run(
    capacity_Bps: Floats, traffic: Traffic, routes: Routes, *, sample: bool = False, local: float = LOCAL
) -> Simulation:
    """Simulate until the last flow and phase have ended.

    Args:
        capacity_Bps: per link, bytes/s; 0 for a link that is down.
        traffic: flows and phases.
        routes: links of each flow.
        sample: also record the rates of links in time.
        local: see ``LOCAL``; the result is the same for every value.
    """
    capacity = np.asarray(capacity_Bps, dtype=np.float64)
    check_inputs(capacity, traffic, routes)
    net = net_of(capacity, traffic, routes)
    clock, net.counter[READY] = new_clock(traffic, routes, SAMPLES + len(capacity) if sample else 0)
    samples = []
    ended, step = False, advance.sized(steps_of(traffic, routes))
    # The event loop stops when its room for samples is full; all its state is in `net` and `clock`, so that it goes
    # on.
    while not ended:
        ended = step(net, clock, float(local))
        samples.append(clock.samples[: net.counter[LOGGED]].copy())
        net.counter[LOGGED] = 0
    # Nothing happens any more, but flows are active: their rate is 0 for good.
    if net.counter[LIVE] > 0:
        live = net.flow_list["live"][: net.counter[LIVE]]
        raise stalled(capacity, traffic, routes, live)
    trips, phases = net.trips, clock.phases
    never = np.flatnonzero(np.isnan(phases["end"]))
    if len(never):
        problem = f"phases {', '.join(map(str, never[:SHOWN]))} never begin: some wait for each other in a circle"
        raise BadInput(problem, where="phases", remedy="drop one of these waits")
    loads = np.repeat(traffic.bytes, np.diff(routes.indptr)) * routes.usage
    return Simulation(
        makespan_s=float(phases["end"].max()) if len(phases) else 0.0,
        completion_s=trips["completion"].copy(),
        begin_s=trips["begin"].copy(),
        phase_begin_s=phases["begin"].copy(),
        phase_end_s=phases["end"].copy(),
        link_bytes=np.bincount(routes.links, loads, len(capacity)).astype(np.float64),
        bottleneck=net.flows["limit"].copy(),
        solutions=int(net.counter[SOLVES]),
        local_solutions=int(net.counter[RIPPLES]),
        rates=_rates(np.concatenate(samples)) if sample else None,
    )


def steps_of(traffic: Traffic, routes: Routes) -> int:
    """About how many steps a simulation takes: a solution for each flow that ends, over all places on paths."""
    return 500 + 40 * len(traffic) * (len(traffic) + len(routes.links)) + 50 * len(traffic.phases)


def _rates(samples: Records) -> LinkRates:
    """The last rate of each link at each instant."""
    # A link may be sampled several times at one instant; only its last rate lasts.
    later = np.lexsort((np.arange(len(samples)), samples["link"], samples["time"]))
    ordered = samples[later]
    last = np.ones(len(ordered), dtype=bool)
    last[:-1] = (ordered["link"][1:] != ordered["link"][:-1]) | (ordered["time"][1:] != ordered["time"][:-1])
    final = ordered[last]
    return LinkRates(time_s=final["time"].copy(), link=final["link"].copy(), rate_Bps=final["rate"].copy())


SHOWN = 5
"""Names in a message before the rest is counted."""


def grouped(group: Ints, groups: int) -> tuple[Ints, Ints]:
    """Members of each group in their order: first place of each group, and the members."""
    first = np.zeros(groups + 1, dtype=np.int64)
    np.cumsum(np.bincount(group, minlength=groups), out=first[1:])
    if len(group) == 0 or bool(np.all(group[:-1] <= group[1:])):
        return first, np.arange(len(group), dtype=np.int64)
    return first, np.argsort(group, kind="stable").astype(np.int64)


def net_of(capacity: Floats, traffic: Traffic, routes: Routes) -> Net:
    """No flow active."""
    net = new_net(capacity, routes.indptr, routes.links, routes.usage, traffic.weight, traffic.cap_Bps)
    trips = net.trips
    trips["bytes"], trips["bytes_left"], trips["phase"] = traffic.bytes, traffic.bytes, traffic.phase
    trips["latency"], trips["begin"], trips["completion"] = routes.latency_s, np.nan, np.nan
    return net


def new_clock(traffic: Traffic, routes: Routes, samples: int) -> tuple[Timeline, int]:
    """Nothing done, with room for some samples of links; also the number of phases that are ready."""
    phases, flow_order, next_phase = _phases(traffic)
    ready = np.flatnonzero(phases["waiting"] == 0)
    begin = np.maximum(phases["delay"], phases["start"])[ready]
    # Pairs in the order of (time, number) are a heap already.
    order = np.lexsort((ready, begin))
    heap = blank(len(phases) + 1, PAIR)
    heap["key"][: len(ready)], heap["number"][: len(ready)] = begin[order], ready[order]
    nodes, levels = _new_tree(len(traffic))
    clock = Timeline(
        finish=np.full(max(len(traffic), 1), np.inf),
        nodes=nodes,
        levels=levels,
        phases=phases,
        flow_order=flow_order,
        next_phase=next_phase,
        ready=heap,
        arrivals=blank(len(traffic) if bool(np.any(routes.latency_s > 0)) else 0, PAIR),
        samples=blank(samples, SAMPLE),
        sampled=np.zeros(samples),
        now=np.zeros(1),
    )
    return clock, len(ready)


def _new_tree(leaves: int) -> tuple[Floats, Ints]:
    """A tree of minima with ``_FAN`` children a node: its nodes, and the first node of each level; the last level only
    closes the list."""
    sizes = [-(-max(leaves, 1) // _FAN)]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // _FAN))
    return np.full(sum(sizes), np.inf), np.cumsum([0, *sizes])


def _phases(traffic: Traffic) -> tuple[Records, Ints, Ints]:
    """Phases, flows by phase, and the phases that wait for each."""
    wanted = traffic.phases
    phases, waiting = blank(len(wanted), PHASE), np.diff(wanted.indptr)
    flow_first, flow_order = grouped(traffic.phase, len(wanted))
    next_first, order = grouped(wanted.waits, len(wanted))
    next_phase = np.repeat(np.arange(len(wanted)), waiting)[order]
    phases["delay"], phases["start"], phases["waiting"] = wanted.delay_s, wanted.start_s, waiting
    phases["begin"], phases["end"] = np.nan, np.nan
    phases["flow_first"], phases["flow_end"] = flow_first[:-1], flow_first[1:]
    phases["next_first"], phases["next_end"] = next_first[:-1], next_first[1:]
    phases["unfinished"] = np.diff(flow_first)
    return phases, flow_order, next_phase


def stalled(capacity: Floats, traffic: Traffic, routes: Routes, flows: Ints) -> BadInput:
    """The flows that never end, and the links that let nothing pass (else those that others have filled)."""
    names, holding = [], list[int]()
    for flow in sorted(flows.tolist()):
        path = routes.links[routes.indptr[flow] : routes.indptr[flow + 1]].tolist()
        shut = [link for link in path if capacity[link] <= 0.0]
        holding += [link for link in shut or path if link not in holding] if len(holding) < SHOWN else []
        names.append(f"{flow} ({traffic.source[flow]} -> {traffic.target[flow]})")
        if len(names) == SHOWN:
            break
    more = f" and {len(flows) - SHOWN} more" if len(flows) > SHOWN else ""
    problem = f"flows {', '.join(names)}{more} can never end: links {', '.join(map(str, holding[:SHOWN]))}"
    return BadInput(
        f"{problem} let nothing pass", where="simulation", remedy="route them around links without capacity"
    )


def check_inputs(capacity: Floats, traffic: Traffic, routes: Routes) -> None:
    """Refuse arrays that do not fit together: compiled code would read past their ends."""
    flows, phases, most, least = len(traffic), traffic.phases, np.finfo(np.float64).max, np.finfo(np.float64).tiny
    for where, indptr, items, count in (
        ("phases", phases.indptr, phases.waits, len(phases)),
        ("routes", routes.indptr, routes.links, flows),
    ):
        if len(indptr) != count + 1 or indptr[0] != 0 or indptr[-1] != len(items) or (np.diff(indptr) < 0).any():
            problem = f"indptr does not divide {len(items)} places among {count}"
            raise BadInput(problem, where=where, remedy="let it rise from 0 to their number")
    for where, values, count, low, high in (
        ("capacity_Bps", capacity, len(capacity), 0.0, most),
        ("traffic: target", traffic.target, flows, 0.0, most),
        ("traffic: bytes", traffic.bytes, flows, 0.0, most),
        ("traffic: weight", traffic.weight, flows, least, most),
        ("traffic: cap_Bps", traffic.cap_Bps, flows, least, np.inf),
        ("traffic: phase", traffic.phase, flows, 0, len(phases) - 1),
        ("phases: delay_s", phases.delay_s, len(phases), 0.0, most),
        ("phases: start_s", phases.start_s, len(phases), 0.0, most),
        ("phases: waits", phases.waits, len(phases.waits), 0, len(phases) - 1),
        ("routes: latency_s", routes.latency_s, flows, 0.0, most),
        ("routes: links", routes.links, len(routes.links), 0, len(capacity) - 1),
        ("routes: usage", routes.usage, len(routes.links), least, most),
    ):
        # Not a number is never within bounds.
        if len(values) != count or (count and not (values.min() >= low and values.max() <= high)):
            raise BadInput("bad values", where=where, remedy=f"give {count} of {low:g} to {high:g}")
    # Slots are numbered with 32 bits, and there are up to four for each place and link (`new_net`).
    if 4 * (len(routes.links) + len(capacity)) >= 2**31:
        raise BadInput(f"{len(routes.links)} places on paths", where="routes", remedy="give at most 500 million")
