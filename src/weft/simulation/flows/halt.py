"""Simulations that stop on their way, so that something can be changed before they go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.errors import BadInput
from weft.fabric.spec import Floats, Ints
from weft.fabric.traffic import Phases, Routes, Traffic, spans
from weft.simulation.flows._clock import FAIR, advance
from weft.simulation.flows._run import check_inputs, net_of, new_clock, stalled, steps_of
from weft.solvers._filling import HALTS, LIVE, READY

LOCAL = 0.25
"""As ``weft.simulation.flows.engine.run`` has it by default."""


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
    """What is left of a simulation as one of its own, in the same time.

    Its flows and phases are ``flows`` and ``phases`` of the whole; ``latency_s`` is what is left of the
    latency of flows whose phase has begun, nan for the others, which have that of their routes.
    """

    traffic: Traffic
    flows: Ints
    phases: Ints
    latency_s: Floats

    def routes(self, given: Routes) -> Routes:
        """Routes of its flows, which may be others than before, with what is left of latencies."""
        latency = np.where(np.isnan(self.latency_s), given.latency_s, self.latency_s)
        return Routes(indptr=given.indptr, links=given.links, usage=given.usage, latency_s=latency)


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

    Raises:
        BadInput: as ``weft.simulation.flows.engine.run``; ``until_s`` is no time.
    """
    if not until_s >= 0:
        raise BadInput(f"halt at {until_s:g} s", where="until_s", remedy="give a time of 0 or later")
    capacity = np.asarray(capacity_Bps, dtype=np.float64)
    check_inputs(capacity, traffic, routes, ())
    net = net_of(capacity, traffic, routes)
    clock, net.counter[READY] = new_clock(traffic, routes, (), 0)
    clock.phases["halts"][np.asarray(stop_phases, dtype=np.int64)] = 1
    advance.sized(steps_of(traffic, routes))(net, clock, FAIR, LOCAL, float(until_s))
    live = net.flow_list["live"][: net.counter[LIVE]]
    if len(live) and until_s == np.inf and not net.counter[HALTS]:
        raise stalled(net.links["capacity"], traffic, routes, live)
    trips, phases = net.trips, clock.phases
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


def _phases_left(given: Phases, halt: Halt, phases: Ints, number: Ints) -> Phases:
    """Begun phases begin at once, ready ones when they would have, others after what they still wait for."""
    begun = ~np.isnan(halt.phase_begin_s[phases])
    ready = ~np.isnan(halt.ready_s[phases])
    start = np.where(begun, halt.time_s, np.where(ready, halt.ready_s[phases], given.start_s[phases]))
    count = np.diff(given.indptr)[phases]
    waits = number[given.waits[spans(given.indptr[phases], count)]]
    owner = np.repeat(np.arange(len(phases)), count)[waits >= 0]
    left = np.bincount(owner, minlength=len(phases))
    return Phases(
        delay_s=np.where(begun | ready, 0.0, given.delay_s[phases]),
        start_s=start,
        indptr=np.concatenate([[0], np.cumsum(left)]).astype(np.int64),
        waits=waits[waits >= 0],
        label=given.label[phases],
        labels=given.labels,
        job=given.job[phases],
    )
