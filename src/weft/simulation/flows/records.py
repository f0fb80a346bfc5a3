"""What a simulation of flows is told beside its flows, and what it tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from weft.fabric.spec import Floats, Ints

Mode = Literal["fair", "shortest-remaining"]
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEvent:
    """From ``time_s`` on a link has another capacity; 0 is a failure."""

    time_s: float
    link: int
    capacity_Bps: float


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
