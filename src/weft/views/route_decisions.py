"""Decisions of the route controller, one a line."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from weft.fabric.spec import ranks
from weft.routing.telemetry import BEYOND, CLEAN, HOLD_S, LOSSY
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
    "before",
    "after",
    "at most",
)
_WIDTHS = (5, 10, 12, 11, 7, 7, 7, 5, 10, 6, 6, 7)


def heading_line() -> str:
    """The names of the columns; before, after and at most are paces of the slowest group against its pace alone."""
    return _line(list(_COLUMNS))


def decision_line(decision: Decision) -> str:
    """A decision under those names."""
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
        "-" if decision.gain.before is None else f"{decision.gain.before:.1%}",
        f"{decision.gain.after:.1%}",
        f"{decision.gain.bound:.1%}",
    ]
    return _line(cells)


def change_lines(decision: Decision, fabric: Fabric) -> list[str]:
    """What measurements changed, a line each."""
    words = {
        "avoided": "{ends} loses {value:.2g} of its packets: avoided",
        "kept": "{ends} loses {value:.2g} of its packets: kept, nothing else leads there",
        "back": "{ends} loses nothing any more: taken again",
        "beyond": "{ends} carries {value:.1%} of its capacity beyond the known flows: so much is not there",
        "released": "{ends} carries no more than the known flows",
    }
    found = []
    for change in decision.changes:
        arrow = " -> " if change.kind in ("beyond", "released") else " - "
        ends = arrow.join(fabric.names[node] for node in change.ends)
        found.append(words[change.kind].format(ends=ends, value=change.value))
    return found


def thresholds_line() -> str:
    """When measurements count."""
    return (
        f"Links that lose {LOSSY:g} of their packets are avoided until they lose at most {CLEAN:g} for {HOLD_S:g} s;"
        f" load beyond the known flows counts from {BEYOND:.0%} of capacity until {BEYOND / 2:.1%}."
    )


def decision_to_json(decision: Decision, fabric: Fabric, *, push: str | None = None) -> str:
    """A decision as one line of JSON of schema ``weft.route-decision/1``; ``push`` says what became of it."""
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
        "efficiency": asdict(decision.gain),
        "changes": [
            {"ends": [fabric.names[node] for node in change.ends], "kind": change.kind, "value": change.value}
            for change in decision.changes
        ],
    }
    if push is not None:
        document["push"] = push
    names, beside = fabric.names, ranks(fabric.source * fabric.nodes + fabric.target)
    document["moves"] = [
        {
            "job": move.flow[0],
            "collective": move.flow[1],
            "source": names[move.flow[2]],
            "target": names[move.flow[3]],
            "queue_pair": move.flow[4],
            "path": [names[move.flow[2]], *(names[fabric.target[link]] for link in move.path)],
            "old_path": [names[move.flow[2]], *(names[fabric.target[link]] for link in move.old)] if move.old else [],
            "links": beside[list(move.path)].tolist(),
            "old_links": beside[list(move.old)].tolist(),
            "new": move.new,
        }
        for move in decision.moves
    ]
    return json.dumps(document, allow_nan=False)


def _line(cells: list[str]) -> str:
    left = (2, 3)
    padded = [
        cell.ljust(width) if at in left else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=True))
    ]
    return "  ".join(padded).rstrip()
