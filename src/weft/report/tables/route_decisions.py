"""Decisions of the route controller, one a line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from weft.units import format_seconds

if TYPE_CHECKING:
    from weft.fabric import Fabric
    from weft.routing.controller import Decision

SCHEMA = "weft.route-decision/1"
_COLUMNS = (
    "event",
    "time",
    "kind",
    "routes",
    "flows",
    "placed",
    "moved",
    "cut",
    "congestion",
    "bound",
    "next expected",
)
_WIDTHS = (5, 10, 12, 10, 7, 7, 7, 5, 10, 7, 14)


def heading_line(*, timings: bool = False) -> str:
    """The names of the columns."""
    return _line([*_COLUMNS, *(["took"] if timings else [])])


def decision_line(decision: Decision, *, timings: bool = False) -> str:
    """A decision under those names."""
    expected = decision.expected
    cells = [
        str(decision.number),
        format_seconds(decision.time_s) if decision.time_s else "0 s",
        decision.kind,
        decision.how,
        f"{decision.flows:,}",
        f"{decision.placed:,}",
        f"{decision.moved:,}",
        f"{decision.cut:,}",
        f"{decision.alpha:g}",
        f"{decision.alpha_bound:g}",
        f"at {expected.next_s:g} s" if expected else "-",
    ]
    return _line([*cells, *([format_seconds(decision.solve_s)] if timings else [])])


def decision_to_json(decision: Decision, fabric: Fabric, *, moves: bool = False, timings: bool = False) -> str:
    """A decision as one line of JSON of schema ``weft.route-decision/1``."""
    expected = decision.expected
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "number": decision.number,
        "time_s": decision.time_s,
        "event": decision.kind,
        "routes": decision.how,
        "flows": decision.flows,
        "placed": decision.placed,
        "moved": decision.moved,
        "cut": decision.cut,
        "alpha": decision.alpha,
        "alpha_bound": decision.alpha_bound,
        "expected": None
        if expected is None
        else {
            "next_s": expected.next_s,
            "period_s": expected.period_s,
            "off_s": expected.off_s,
            "bytes": expected.bytes,
        },
    }
    if timings:
        document["solve_s"] = decision.solve_s
    if moves:
        names = fabric.names
        document["moves"] = [
            {
                "job": move.flow[0],
                "collective": move.flow[1],
                "source": names[move.flow[2]],
                "target": names[move.flow[3]],
                "queue_pair": move.flow[4],
                "path": [names[move.flow[2]], *(names[fabric.target[link]] for link in move.path)],
                "new": move.new,
                "apply_by_s": move.apply_by_s,
            }
            for move in decision.moves
        ]
    return json.dumps(document, allow_nan=False)


def _line(cells: list[str]) -> str:
    widths = (*_WIDTHS, 8)
    left = (2, 3)
    padded = [
        cell.ljust(width) if at in left else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=False))
    ]
    return "  ".join(padded).rstrip()
