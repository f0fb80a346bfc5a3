"""What happens to a network with training jobs on it, as the controller is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from weft.fabric.traffic import Routes
from weft.routing.telemetry import LinkSample
from weft.routing.traffic import JobTraffic

Kind = Literal["job-arrives", "job-ends", "link-down", "link-up", "switch-down", "switch-up", "traffic", "tick"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Those that files of events have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened at ``time_s``.

    ``job`` names the job of "job-arrives", "job-ends" and "traffic", ``traffic`` its flows (for "traffic" those that
    were measured); ``nodes`` are the two ends of a link, or a switch.  "counters" has ``samples`` of links;
    "installed" the ``traffic`` of all jobs and the ``routes`` that it has.  A "tick" says that time has passed.
    ``text`` is the event as it was read.
    """

    time_s: float
    kind: Kind | Literal["counters", "installed"]
    job: str = ""
    traffic: JobTraffic | None = None
    nodes: tuple[str, ...] = ()
    samples: tuple[LinkSample, ...] = ()
    routes: Routes | None = None
    text: str = ""
