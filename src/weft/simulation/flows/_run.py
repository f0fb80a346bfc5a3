"""From records to arrays, through the compiled event loop, and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.fabric.spec import Floats
from weft.fabric.traffic import Routes, Traffic
from weft.simulation.flows._arrays import new_clock, stalled
from weft.simulation.flows._check import check_distinct_links, check_inputs
from weft.simulation.flows._clock import advance
from weft.simulation.flows._state import LIVE, LOGGED, READY, RIPPLES, SOLVES, new_net
from weft.simulation.flows.records import MODES, LinkEvent, LinkRates, Simulation
from weft.solvers._arrays import Records

SAMPLES = 1 << 20
"""Samples of link rates that the event loop may take before they are put away."""


def simulate(
    capacity: Floats,
    traffic: Traffic,
    routes: Routes,
    mode: int,
    local: float,
    *,
    events: Sequence[LinkEvent] = (),
    sample: bool = False,
    first_flow: int = 0,
) -> Simulation:
    """``engine.run`` with numpy and numba at hand; messages count flows from ``first_flow``."""
    capacity = np.asarray(capacity, dtype=np.float64)
    check_inputs(capacity, traffic, routes, events)
    if MODES[mode] == "shortest-remaining":
        check_distinct_links(routes, len(capacity), first_flow)
    net = new_net(capacity, traffic, routes)
    clock, net.counter[READY] = new_clock(traffic, routes, events, SAMPLES + len(capacity) if sample else 0)
    taken = []
    ended = False
    while not ended:
        ended = advance(net, clock, mode, float(local), np.inf)
        taken.append(clock.samples[: net.counter[LOGGED]].copy())
        net.counter[LOGGED] = 0
    if net.counter[LIVE] > 0:
        live = net.flow_list["live"][: net.counter[LIVE]]
        raise stalled(net.links["capacity"], traffic, routes, live, first_flow)
    trips, phases = net.trips, clock.phases
    return Simulation(
        makespan_s=float(phases["end"].max()) if len(phases) else 0.0,
        completion_s=trips["completion"].copy(),
        begin_s=trips["begin"].copy(),
        phase_begin_s=phases["begin"].copy(),
        phase_end_s=phases["end"].copy(),
        link_bytes=_carried(len(capacity), traffic, routes),
        bottleneck=net.flows["limit"].copy(),
        solutions=int(net.counter[SOLVES]),
        local_solutions=int(net.counter[RIPPLES]),
        rates=_rates(np.concatenate(taken)) if sample else None,
    )


def _rates(taken: Records) -> LinkRates:
    """The last rate of each link at each instant."""
    later = np.lexsort((np.arange(len(taken)), taken["link"], taken["time"]))
    ordered = taken[later]
    last = np.ones(len(ordered), dtype=bool)
    last[:-1] = (ordered["link"][1:] != ordered["link"][:-1]) | (ordered["time"][1:] != ordered["time"][:-1])
    kept = ordered[last]
    return LinkRates(time_s=kept["time"].copy(), link=kept["link"].copy(), rate_Bps=kept["rate"].copy())


def _carried(links: int, traffic: Traffic, routes: Routes) -> Floats:
    loads = np.repeat(traffic.bytes, np.diff(routes.indptr)) * routes.usage
    return np.bincount(routes.links, loads, links).astype(np.float64)
