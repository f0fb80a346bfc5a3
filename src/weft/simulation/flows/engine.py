"""Flow-level simulation: phases begin, their flows share the links, every change of the sharing is an event.

Flows are fluid.  Between two events each has a constant rate; an event is a flow that starts or completes, or a phase
that begins.  Everything that falls on one instant is one event.  Rates are weighted max-min fair with caps
(``weft.solvers.maxmin``).  Packet spraying needs no mode: routes that split a flow over several paths carry shares in
``Routes.usage``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from weft.errors import BadInput
from weft.fabric.spec import Floats, Ints
from weft.fabric.traffic import Phases, Routes, Traffic, at_once, spans
from weft.simulation.flows._clock import PHASE, SAMPLE, Timeline, advance
from weft.solvers._arrays import PAIR, Records
from weft.solvers._filling import HALTS, LIVE, LOGGED, READY, RIPPLES, SOLVES, Net, blank, new_net


def run(capacity_Bps: Floats, traffic: Traffic, routes: Routes, *, sample: bool = False) -> Simulation:
    """Simulate until the last flow and phase have ended.

    Where phases follow each other in a chain, those with equal flows (paths, bytes, weights, caps, latencies) are
    simulated once: the result is the same up to rounding, and ``solutions`` counts what was done.

    Args:
        capacity_Bps: per link, bytes/s; 0 for a link that is down.
        traffic: flows and phases.
        routes: links of each flow.
        sample: also record the rates of links in time, which belong to points in time: equal phases are not reused.
    """
    chain = None if sample else simulate_chain(capacity_Bps, traffic, routes)
    return simulate(capacity_Bps, traffic, routes, sample=sample) if chain is None else chain


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


def simulate(
    capacity: Floats,
    traffic: Traffic,
    routes: Routes,
    *,
    local: float = LOCAL,
    sample: bool = False,
    first_flow: int = 0,
) -> Simulation:
    """``run`` without reuse; messages count flows from ``first_flow``.  The result is the same for every ``local``."""
    capacity = np.asarray(capacity, dtype=np.float64)
    check_inputs(capacity, traffic, routes)
    net = net_of(capacity, traffic, routes)
    clock, net.counter[READY] = new_clock(traffic, routes, SAMPLES + len(capacity) if sample else 0)
    samples = []
    ended, run = False, advance.sized(steps_of(traffic, routes))
    # The event loop stops when its room for samples is full; all its state is in `net` and `clock`, so that it goes
    # on.
    while not ended:
        ended = run(net, clock, float(local), np.inf)
        samples.append(clock.samples[: net.counter[LOGGED]].copy())
        net.counter[LOGGED] = 0
    # Nothing happens any more, but flows are active: their rate is 0 for good.
    if net.counter[LIVE] > 0:
        live = net.flow_list["live"][: net.counter[LIVE]]
        raise stalled(capacity, traffic, routes, live, first_flow)
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


def stalled(capacity: Floats, traffic: Traffic, routes: Routes, flows: Ints, first: int = 0) -> BadInput:
    """The flows that never end, and the links that let nothing pass (else those that others have filled)."""
    names, holding = [], list[int]()
    for flow in sorted(flows.tolist()):
        path = routes.links[routes.indptr[flow] : routes.indptr[flow + 1]].tolist()
        shut = [link for link in path if capacity[link] <= 0.0]
        holding += [link for link in shut or path if link not in holding] if len(holding) < SHOWN else []
        names.append(f"{flow + first} ({traffic.source[flow]} -> {traffic.target[flow]})")
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


KINDS = 64
"""Most kinds of phases among which an equal one is looked for."""


def simulate_chain(capacity: Floats, traffic: Traffic, routes: Routes) -> Simulation | None:
    """The simulation of a chain with equal phases; None if the phases make no chain or all differ."""
    # A phase of a chain begins on empty links, so that equal phases last equally long wherever they come in the chain.
    if len(traffic.phases) < 2:
        return None
    check_inputs(capacity, traffic, routes)
    if not _is_chain(traffic):
        return None
    first = np.searchsorted(traffic.phase, np.arange(len(traffic.phases) + 1))
    kind, example = _kinds(traffic, routes, first)
    if len(example) > KINDS or 2 * len(example) > len(kind):
        return None
    # One run of each kind; it is worth it only if at least half of the phases repeat another.
    parts = [
        simulate(
            capacity, *_part(traffic, routes, int(first[phase]), int(first[phase + 1])), first_flow=int(first[phase])
        )
        for phase in example
    ]
    return _assemble(traffic, first, kind, parts)


def _kinds(traffic: Traffic, routes: Routes, first: Ints) -> tuple[Ints, list[int]]:
    """The kind of each phase, and the first phase of each kind; cut short where there are too many kinds."""
    of_flow = traffic.bytes, traffic.weight, traffic.cap_Bps, routes.latency_s, np.diff(routes.indptr)
    known: dict[tuple[bytes, ...], int] = {}
    kind, example = np.zeros(len(traffic.phases), dtype=np.int64), list[int]()
    for phase, (begin, end) in enumerate(pairwise(first.tolist())):
        places = slice(int(routes.indptr[begin]), int(routes.indptr[end]))
        # The bytes of all columns are the key: flows are alike only if they agree bit for bit.
        same = *(column[begin:end] for column in of_flow), routes.links[places], routes.usage[places]
        kind[phase] = known.setdefault(tuple(column.tobytes() for column in same), len(example))
        if kind[phase] == len(example):
            example.append(phase)
        if len(example) > KINDS:
            break
    return kind, example


def _is_chain(traffic: Traffic) -> bool:
    """Each phase but the first waits for the one before, nothing more, and flows lie in the order of phases."""
    phases, count = traffic.phases, len(traffic.phases)
    return bool(
        len(traffic)
        and len(phases.waits) == count - 1
        and np.all(phases.indptr[1:] == np.arange(count))
        and np.all(phases.waits == np.arange(count - 1))
        and np.all(traffic.phase[1:] >= traffic.phase[:-1])
    )


def _part(traffic: Traffic, routes: Routes, begin: int, end: int) -> tuple[Traffic, Routes]:
    """Some flows that follow each other, alone at time 0."""
    places = slice(int(routes.indptr[begin]), int(routes.indptr[end]))
    alone = at_once(traffic.source[begin:end], traffic.target[begin:end], traffic.bytes[begin:end])
    part = replace(alone, weight=traffic.weight[begin:end], cap_Bps=traffic.cap_Bps[begin:end])
    return part, Routes(
        indptr=routes.indptr[begin : end + 1] - routes.indptr[begin],
        links=routes.links[places],
        usage=routes.usage[places],
        latency_s=routes.latency_s[begin:end],
    )


def _assemble(traffic: Traffic, first: Ints, kind: Ints, parts: list[Simulation]) -> Simulation:
    phases = traffic.phases
    begin, end, now = np.empty(len(kind)), np.empty(len(kind)), 0.0
    spans = [part.makespan_s for part in parts]
    # The next phase begins its delay after the end of the one before, but not before its start.
    for phase, (which, delay, start) in enumerate(
        zip(kind.tolist(), phases.delay_s.tolist(), phases.start_s.tolist(), strict=True)
    ):
        begin[phase] = max(now + delay, start)
        end[phase] = now = float(begin[phase]) + spans[which]
    # Every flow has the times and the limit of its place in its kind, shifted to where its phase begins.
    starts = np.cumsum([0, *(len(part.completion_s) for part in parts)])[kind]
    at = np.repeat(starts - first[:-1], np.diff(first)) + np.arange(len(traffic))
    since = np.repeat(begin, np.diff(first))
    completion, moved, limit = (
        np.concatenate([getattr(part, name) for part in parts])[at]
        for name in ("completion_s", "begin_s", "bottleneck")
    )
    times = np.bincount(kind, minlength=len(parts))
    return Simulation(
        makespan_s=float(end[-1]),
        completion_s=since + completion,
        begin_s=since + moved,
        phase_begin_s=begin,
        phase_end_s=end,
        link_bytes=np.sum([count * part.link_bytes for count, part in zip(times, parts, strict=True)], axis=0),
        bottleneck=limit,
        solutions=sum(part.solutions for part in parts),
        local_solutions=sum(part.local_solutions for part in parts),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Halt:
    """What has happened by ``time_s``; times of what has not happened are nan.

    ``left_bytes`` is what each flow still has to send.  ``ready_s`` is when a phase that waits for no other
    any more, but has not begun, will begin.
    """

    time_s: float
    left_bytes: Floats
    begin_s: Floats
    completion_s: Floats
    phase_begin_s: Floats
    phase_end_s: Floats
    ready_s: Floats

    @property
    def done(self) -> bool:
        """Whether every phase has ended."""
        return not bool(np.isnan(self.phase_end_s).any())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rest:
    """The rest of a halted simulation, as a simulation on the same clock.

    Its flows and phases are ``flows`` and ``phases`` of the halted one; ``latency_s`` is the rest of the
    latency of flows whose phase has begun, nan for the others, which have that of their routes.
    """

    traffic: Traffic
    flows: Ints
    phases: Ints
    latency_s: Floats

    def routes(self, new: Routes) -> Routes:
        """Routes of its flows, which may differ from those before, with the rest of their latencies."""
        latency = np.where(np.isnan(self.latency_s), new.latency_s, self.latency_s)
        return Routes(indptr=new.indptr, links=new.links, usage=new.usage, latency_s=latency)


def run_until(
    capacity_Bps: Floats,
    traffic: Traffic,
    routes: Routes,
    *,
    until_s: float = np.inf,
    stop_phases: Sequence[int] | Ints = (),
) -> Halt:
    """Simulate (max-min fair) up to a time, or until one of some phases has ended, whichever is first.

    Everything that falls on the instant of the halt has happened: flows completed, phases begun.
    """
    if not until_s >= 0:
        raise BadInput(f"halt at {until_s:g} s", where="until_s", remedy="give a time of 0 or later")
    capacity = np.asarray(capacity_Bps, dtype=np.float64)
    check_inputs(capacity, traffic, routes)
    net = net_of(capacity, traffic, routes)
    clock, net.counter[READY] = new_clock(traffic, routes, 0)
    clock.phases["halts"][np.asarray(stop_phases, dtype=np.int64)] = 1
    advance.sized(steps_of(traffic, routes))(net, clock, LOCAL, float(until_s))
    live = net.flow_list["live"][: net.counter[LIVE]]
    if len(live) and until_s == np.inf and not net.counter[HALTS]:
        raise stalled(capacity, traffic, routes, live)
    trips, phases = net.trips, clock.phases
    # Halted by a phase or run to the end: the clock shows the last event.  Otherwise nothing happens between that
    # event and `until_s`, and flows go on at their rates.
    halted = bool(net.counter[HALTS]) or until_s == np.inf
    now = float(clock.now[0]) if halted else until_s
    left = np.where(np.isnan(trips["completion"]), traffic.bytes, 0.0)
    sent = trips["rate"][live] * (now - trips["since"][live])
    left[live] = np.maximum(trips["bytes_left"][live] - sent, 0.0)
    ready = np.full(len(phases), np.nan)
    coming = clock.ready[: net.counter[READY]]
    ready[coming["number"]] = coming["key"]
    return Halt(
        time_s=now,
        left_bytes=left,
        begin_s=trips["begin"].copy(),
        completion_s=trips["completion"].copy(),
        phase_begin_s=phases["begin"].copy(),
        phase_end_s=phases["end"].copy(),
        ready_s=ready,
    )


def rest_of(traffic: Traffic, routes: Routes, halt: Halt) -> Rest:
    """What is left of a simulation that was halted."""
    flows = np.flatnonzero(np.isnan(halt.completion_s))
    phases = np.flatnonzero(np.isnan(halt.phase_end_s))
    number = np.full(len(traffic.phases), -1, dtype=np.int64)
    number[phases] = np.arange(len(phases))
    # A flow whose phase has begun but whose first byte is under way keeps the rest of its latency.
    due = halt.phase_begin_s[traffic.phase[flows]] + routes.latency_s[flows] - halt.time_s
    under_way = ~np.isnan(halt.begin_s[flows])
    return Rest(
        traffic=Traffic(
            source=traffic.source[flows],
            target=traffic.target[flows],
            bytes=halt.left_bytes[flows],
            phase=number[traffic.phase[flows]],
            weight=traffic.weight[flows],
            cap_Bps=traffic.cap_Bps[flows],
            phases=_phases_left(traffic.phases, halt, phases, number),
        ),
        flows=flows,
        phases=phases,
        latency_s=np.where(under_way, 0.0, np.where(np.isnan(due), np.nan, np.maximum(due, 0.0))),
    )


def _phases_left(before: Phases, halt: Halt, phases: Ints, number: Ints) -> Phases:
    """Begun phases begin at once, ready ones when they would have, others after what they still wait for."""
    begun = ~np.isnan(halt.phase_begin_s[phases])
    ready = ~np.isnan(halt.ready_s[phases])
    start = np.where(begun, halt.time_s, np.where(ready, halt.ready_s[phases], before.start_s[phases]))
    count = np.diff(before.indptr)[phases]
    # Phases that have ended have no number among those left: waits for them are dropped.
    waits = number[before.waits[spans(before.indptr[phases], count)]]
    owner = np.repeat(np.arange(len(phases)), count)[waits >= 0]
    left = np.bincount(owner, minlength=len(phases))
    return Phases(
        delay_s=np.where(begun | ready, 0.0, before.delay_s[phases]),
        start_s=start,
        indptr=np.concatenate([[0], np.cumsum(left)]).astype(np.int64),
        waits=waits[waits >= 0],
        label=before.label[phases],
        labels=before.labels,
        job=before.job[phases],
    )
