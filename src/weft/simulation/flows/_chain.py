"""Chains of phases: equal ones, such as the rounds of a ring, are simulated once.

In a chain each phase waits for the one before and begins when the network is empty, so what happens in it
depends on its own flows alone.
"""

from __future__ import annotations

import numpy as np

from weft.fabric.spec import Floats, Ints
from weft.fabric.traffic import Routes, Traffic, at_once
from weft.simulation.flows._run import check_lengths, simulate
from weft.simulation.flows.records import Simulation
from weft.solvers._jit import jit

KINDS = 64
"""Most kinds of phases among which an equal one is looked for."""


@jit
def equal_flows(
    one: int,
    other: int,
    count: int,
    numbers: tuple[Floats, Floats, Floats, Floats],
    indptr: Ints,
    links: Ints,
    usage: Floats,
) -> bool:
    """Whether ``count`` flows from ``one`` and ``other`` on are equal, pair by pair."""
    for values in numbers:
        for at in range(count):
            if values[one + at] != values[other + at]:
                return False
    places, shift = indptr[one + count] - indptr[one], indptr[other] - indptr[one]
    for at in range(count + 1):
        if indptr[one + at] + shift != indptr[other + at]:
            return False
    for place in range(indptr[one], indptr[one] + places):
        if links[place] != links[place + shift] or usage[place] != usage[place + shift]:
            return False
    return True


@jit
def find_kinds(
    first: Ints,
    numbers: tuple[Floats, Floats, Floats, Floats],
    indptr: Ints,
    links: Ints,
    usage: Floats,
    kind: Ints,
    example: Ints,
) -> int:
    """Number the kinds of phases and give each an example; returns how many, or -1 if there are too many."""
    found, last = 0, 0
    for phase in range(len(kind)):
        count, kind[phase] = first[phase + 1] - first[phase], -1
        # The kind of the phase before comes first: equal phases mostly follow each other.
        for step in range(found):
            candidate = (last + step) % found
            begin = first[example[candidate]]
            if first[example[candidate] + 1] - begin == count and equal_flows(
                begin, first[phase], count, numbers, indptr, links, usage
            ):
                kind[phase] = candidate
                break
        if kind[phase] < 0:
            if found == len(example):
                return -1
            kind[phase], example[found] = found, phase
            found += 1
        last = kind[phase]
    return found


@jit
def spread(
    first: Ints,
    kind: Ints,
    kind_first: Ints,
    begin: Floats,
    of_kind: tuple[Floats, Floats, Ints],
    completion: Floats,
    moved: Floats,
    limit: Ints,
) -> None:
    """Give every phase's flows the times and limits of its kind, shifted to where it begins."""
    ends, begins, limits = of_kind
    for phase in range(len(kind)):
        shift = kind_first[kind[phase]] - first[phase]
        for flow in range(first[phase], first[phase + 1]):
            completion[flow] = begin[phase] + ends[flow + shift]
            moved[flow] = begin[phase] + begins[flow + shift]
            limit[flow] = limits[flow + shift]


def simulate_chain(capacity: Floats, traffic: Traffic, routes: Routes, mode: int, local: float) -> Simulation | None:
    """The simulation of a chain with equal phases; None if the phases are no chain or all differ."""
    if len(traffic.phases) < 2 or not _is_chain(traffic):
        return None
    check_lengths(traffic, routes)
    first = np.searchsorted(traffic.phase, np.arange(len(traffic.phases) + 1))
    kind, example = np.empty(len(traffic.phases), dtype=np.int64), np.empty(KINDS, dtype=np.int64)
    numbers = (_floats(traffic.bytes), _floats(traffic.weight), _floats(traffic.cap_Bps), _floats(routes.latency_s))
    links, usage = np.ascontiguousarray(routes.links, dtype=np.int64), _floats(routes.usage)
    indptr = np.ascontiguousarray(routes.indptr, dtype=np.int64)
    steps = 20 * (len(traffic) + len(links)) + 100 * len(kind)
    kinds = find_kinds.sized(steps)(first, numbers, indptr, links, usage, kind, example)
    if kinds < 0 or 2 * kinds > len(kind):
        return None
    parts = [
        simulate(
            capacity,
            *_part(traffic, routes, int(first[phase]), int(first[phase + 1])),
            mode,
            local,
            first_flow=int(first[phase]),
        )
        for phase in example[:kinds].tolist()
    ]
    return _assemble(traffic, first, kind, parts)


def _floats(values: Floats) -> Floats:
    return np.ascontiguousarray(values, dtype=np.float64)


def _is_chain(traffic: Traffic) -> bool:
    """Each phase but the first waits for the one before, nothing more, and flows lie in the order of
    phases."""
    phases = traffic.phases
    count = len(phases)
    if len(phases.waits) != count - 1 or len(phases.indptr) != count + 1 or len(traffic.phase) == 0:
        return False
    return bool(
        phases.indptr[0] == 0
        and np.all(phases.indptr[1:] == np.arange(count))
        and np.all(phases.waits == np.arange(count - 1))
        and np.all(traffic.phase[1:] >= traffic.phase[:-1])
        and traffic.phase[0] >= 0
        and traffic.phase[-1] < count
    )


def _part(traffic: Traffic, routes: Routes, begin: int, end: int) -> tuple[Traffic, Routes]:
    """Some flows that follow each other, alone at time 0."""
    places = slice(int(routes.indptr[begin]), int(routes.indptr[end]))
    alone = at_once(traffic.source[begin:end], traffic.target[begin:end], traffic.bytes[begin:end])
    part = Traffic(
        source=alone.source,
        target=alone.target,
        bytes=alone.bytes,
        phase=alone.phase,
        weight=traffic.weight[begin:end],
        cap_Bps=traffic.cap_Bps[begin:end],
        phases=alone.phases,
    )
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
    for phase, (which, delay, start) in enumerate(
        zip(kind.tolist(), phases.delay_s.tolist(), phases.start_s.tolist(), strict=True)
    ):
        begin[phase] = max(now + delay, start)
        end[phase] = now = float(begin[phase]) + spans[which]
    sizes = [len(part.completion_s) for part in parts]
    of_kind = (
        np.concatenate([part.completion_s for part in parts]),
        np.concatenate([part.begin_s for part in parts]),
        np.concatenate([part.bottleneck for part in parts]),
    )
    completion, moved, limit = (np.empty(len(traffic)), np.empty(len(traffic)), np.empty(len(traffic), np.int64))
    spread.sized(10 * (len(traffic) + len(kind)))(
        first, kind, np.cumsum([0, *sizes[:-1]]), begin, of_kind, completion, moved, limit
    )
    times = np.bincount(kind, minlength=len(parts))
    return Simulation(
        makespan_s=float(end[-1]),
        completion_s=completion,
        begin_s=moved,
        phase_begin_s=begin,
        phase_end_s=end,
        link_bytes=np.sum([count * part.link_bytes for count, part in zip(times, parts, strict=True)], axis=0),
        bottleneck=limit,
        solutions=sum(part.solutions for part in parts),
        local_solutions=sum(part.local_solutions for part in parts),
    )
