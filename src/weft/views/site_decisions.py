"""Decisions of a site's controller: one line each with what changed below it, or one line of JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from weft.units import counted, format_seconds

if TYPE_CHECKING:
    from weft.arrangement.online import Change, Decision
    from weft.arrangement.site import Site

SCHEMA = "weft.arrangement-decision/1"
SHOWN = 8
"""Hosts that a line names."""


def decision_lines(decision: Decision, site: Site) -> str:
    """A decision for people."""
    at = format_seconds(decision.time_s) if decision.time_s else "0 s"
    counts = f"{decision.running} running, {len(decision.waiting)} waiting, {counted(decision.free, 'host')} free"
    head = f"{decision.number}. {at}  {decision.kind} {decision.subject}: {counts}, objective {decision.objective:.4f}"
    return "\n".join([head, *(f"   {_change_line(one, site)}" for one in decision.changes)])


def _change_line(one: Change, site: Site) -> str:
    parts = [f"{one.job} {one.what}"]
    if one.seat is not None:
        names = [site.host_names[host] for host in one.seat.hosts]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        if one.what != "retimed":
            parts.append(f" on {' '.join(names[:SHOWN])}{more}")
        parts.append(
            f": {one.seat.router}, offset {format_seconds(one.seat.offset_s)}, class {one.traffic_class},"
            f" slowdown {one.slowdown:.4f}"
        )
    return "".join(parts) + (f"\n     {one.why}" if one.why else "")


def decision_to_json(decision: Decision, site: Site) -> str:
    """A decision as one line of JSON of schema ``weft.arrangement-decision/1``."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "number": decision.number,
        "time_s": decision.time_s,
        "event": decision.kind,
        "subject": decision.subject,
        "running": decision.running,
        "waiting": list(decision.waiting),
        "free_hosts": decision.free,
        "objective": decision.objective,
        "changes": [_change(one, site) for one in decision.changes],
    }
    return json.dumps(document, allow_nan=False)


def _change(one: Change, site: Site) -> dict[str, Any]:
    found: dict[str, Any] = {"job": one.job, "change": one.what, "why": one.why}
    if one.seat is None:
        return found
    return found | {
        "hosts": [site.host_names[host] for host in one.seat.hosts],
        "router": one.seat.router,
        "offset_s": one.seat.offset_s,
        "class": one.traffic_class,
        "slowdown": one.slowdown,
    }
