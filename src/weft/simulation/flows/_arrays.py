"""Checked arrays of phases, flows and link events for the event loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.errors import BadInput
from weft.fabric.spec import Floats, Ints
from weft.fabric.traffic import Phases, Routes, Traffic
from weft.simulation.flows._state import EVENT_AT, PHASE, SAMPLE, Clock, blank, new_tree
from weft.simulation.flows.records import LinkEvent
from weft.solvers._arrays import PAIR, Records

SHOWN = 5
"""Names in a message before the rest is counted."""


def grouped(group: Ints, groups: int) -> tuple[Ints, Ints]:
    """Members of each group in their order: first place of each group, and the members."""
    first = np.zeros(groups + 1, dtype=np.int64)
    np.cumsum(np.bincount(group, minlength=groups), out=first[1:])
    if len(group) == 0 or bool(np.all(group[:-1] <= group[1:])):
        return first, np.arange(len(group), dtype=np.int64)
    return first, np.argsort(group, kind="stable").astype(np.int64)


def new_clock(traffic: Traffic, routes: Routes, events: Sequence[LinkEvent], samples: int) -> tuple[Clock, int]:
    """Nothing done, with room for some samples of links; also the number of phases that are ready.

    Raises:
        BadInput: phases wait for each other in a circle.
    """
    phases, flow_order, next_phase = _phases(traffic)
    ready = np.flatnonzero(phases["waiting"] == 0)
    begin = np.maximum(phases["delay"], phases["start"])[ready]
    order = np.lexsort((ready, begin))
    heap = blank(len(phases) + 1, PAIR)
    heap["key"][: len(ready)], heap["item"][: len(ready)] = begin[order], ready[order]
    timed = sorted(events, key=lambda event: (event.time_s, event.link))
    nodes, levels = new_tree(len(traffic))
    clock = Clock(
        finish=np.full(len(traffic), np.inf),
        nodes=nodes,
        levels=levels,
        phases=phases,
        flow_order=flow_order,
        next_phase=next_phase,
        ready=heap,
        arrivals=blank(len(traffic) if bool(np.any(routes.latency_s > 0)) else 0, PAIR),
        events=np.array([(event.time_s, event.link, event.capacity_Bps) for event in timed], dtype=EVENT_AT),
        samples=blank(samples, SAMPLE),
        sampled=np.zeros(samples),
        now=np.zeros(1),
    )
    return clock, len(ready)


def _phases(traffic: Traffic) -> tuple[Records, Ints, Ints]:
    """Phases, flows by phase, and the phases that wait for each."""
    given = traffic.phases
    phases, waiting = blank(len(given), PHASE), np.diff(given.indptr)
    flow_first, flow_order = grouped(traffic.phase, len(given))
    next_first, order = grouped(given.waits, len(given))
    next_phase = np.repeat(np.arange(len(given)), waiting)[order]
    _check_circle(given, waiting, next_first, next_phase)
    phases["delay"], phases["start"], phases["waiting"] = given.delay_s, given.start_s, waiting
    phases["begin"], phases["end"] = np.nan, np.nan
    phases["flow_first"], phases["flow_end"] = flow_first[:-1], flow_first[1:]
    phases["next_first"], phases["next_end"] = next_first[:-1], next_first[1:]
    phases["unfinished"] = np.diff(flow_first)
    return phases, flow_order, next_phase


def _check_circle(phases: Phases, waiting: Ints, next_first: Ints, next_phase: Ints) -> None:
    """Take phases off that wait for nothing more, until none is left."""
    left, ready = waiting.tolist(), np.flatnonzero(waiting == 0).tolist()
    first, later = next_first.tolist(), next_phase.tolist()
    taken = 0
    while ready:
        phase = ready.pop()
        taken += 1
        for after in later[first[phase] : first[phase + 1]]:
            left[after] -= 1
            if left[after] == 0:
                ready.append(after)
    if taken < len(left):
        circle = _circle(phases, [count > 0 for count in left])
        shown = " <- ".join(_phase_name(phases, phase) for phase in circle[: SHOWN + 1])
        more = f" <- ... ({len(circle)} phases)" if len(circle) > SHOWN + 1 else ""
        raise BadInput(
            f"phases wait for each other in a circle: {shown}{more}", where="phases", remedy="drop one of these waits"
        )


def _circle(phases: Phases, stuck: list[bool]) -> list[int]:
    """Follow waits among stuck phases until one comes again."""
    phase, at, path = stuck.index(True), dict[int, int](), list[int]()
    while phase not in at:
        at[phase] = len(path)
        path.append(phase)
        waits = phases.waits[phases.indptr[phase] : phases.indptr[phase + 1]].tolist()
        phase = next(other for other in waits if stuck[other])
    return [*path[at[phase] :], phase]


def _phase_name(phases: Phases, phase: int) -> str:
    label = int(phases.label[phase]) if len(phases.label) > phase else -1
    return f"{phase} ({phases.labels[label]})" if 0 <= label < len(phases.labels) else str(phase)


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
    what = f"flows {', '.join(names)}{more} can never end: links {', '.join(map(str, holding[:SHOWN]))}"
    return BadInput(
        f"{what} let nothing pass",
        where="simulation",
        remedy="route them around links without capacity, or let a later event restore these links",
    )
