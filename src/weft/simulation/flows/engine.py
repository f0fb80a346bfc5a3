"""Flow-level simulation: phases begin, their flows share the links, every change of the sharing is an event.

Flows are fluid.  Between two events each has a constant rate; an event is a flow that starts or completes,
a phase that begins, or a link whose capacity changes.  Everything that falls on one instant is one event.

``fair`` rates are weighted max-min fair with caps (``weft.solvers.maxmin``).  ``shortest-remaining`` serves
flows in the order of the bytes they have left, the fewest first; flows with equally many (to 1e-12) share
what is left to them max-min fairly; the order is made anew when a flow on a link starts or completes or a
capacity changes, and kept in between; a path must then list each link once.  Packet spraying needs no mode:
routes that split a flow over several paths carry shares in ``Routes.usage``.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import UnknownName
from weft.fabric.spec import Floats
from weft.fabric.traffic import Routes, Traffic
from weft.simulation.flows.records import MODES, LinkEvent, Mode, Simulation


def run(
    capacity_Bps: Floats,
    traffic: Traffic,
    routes: Routes,
    *,
    mode: Mode = "fair",
    events: Sequence[LinkEvent] = (),
    local_share: float = 0.25,
    reuse: bool = True,
    sample: bool = False,
) -> Simulation:
    """Simulate until the last flow and phase have ended.

    Args:
        capacity_Bps: per link, bytes/s; 0 for a link that is down.
        traffic: flows and phases.
        routes: links of each flow.
        mode: how flows share links.
        events: changes of capacity.
        local_share: rates are solved again only around a change while that touches at most this share of
            the active flows; 0 always solves everything.  The result is the same.
        reuse: where phases follow each other in a chain, those with equal flows (paths, bytes, weights, caps,
            latencies) are simulated once.  The result is the same up to rounding, ``solutions`` counts what
            was done.
        sample: also record the rates of links in time.

    Raises:
        BadInput: inputs that do not fit together, phases that wait for each other in a circle, or flows
            that can never end (with the flows and the links that hold them).
    """
    if mode not in MODES:
        raise UnknownName("sharing mode", mode, MODES, where="mode")
    from weft.simulation.flows._chain import simulate_chain
    from weft.simulation.flows._run import simulate

    number = MODES.index(mode)
    if reuse and not events and not sample:
        found = simulate_chain(capacity_Bps, traffic, routes, number, local_share)
        if found is not None:
            return found
    return simulate(capacity_Bps, traffic, routes, number, local_share, events=tuple(events), sample=sample)
