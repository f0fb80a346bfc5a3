"""Decisions of the route controller, one a line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from weft.codec import Document, encode
from weft.fabric.spec import Fabric, ranks
from weft.routing.controller import Decision, Move
from weft.routing.telemetry import Kind
from weft.units import format_seconds

_COLUMNS = ("#", "time", "event", "flows", "placed", "moved", "cut", "before", "after", "at most")
_WIDTHS = (3, 8, 12, 6, 6, 5, 3, 6, 6, 7)


def heading_line() -> str:
    """The names of the columns; before, after and at most are paces of the slowest group against its pace alone."""
    return _line(list(_COLUMNS))


def decision_line(decision: Decision) -> str:
    """A decision under those names."""
    cells = [
        str(decision.number),
        format_seconds(decision.time_s) if decision.time_s else "0 s",
        decision.kind,
        f"{decision.flows:,}",
        f"{decision.placed:,}",
        f"{decision.moved:,}",
        f"{decision.cut:,}",
        "-" if decision.gain.before is None else f"{decision.gain.before:.1%}",
        f"{decision.gain.after:.1%}",
        f"{decision.gain.bound:.1%}",
    ]
    return _line(cells)


def change_lines(decision: Decision, fabric: Fabric) -> list[str]:
    """Links that measurements changed, a line each."""
    words = {
        "avoided": "{ends} loses {value:.2g} of its packets: avoided",
        "kept": "{ends} loses {value:.2g} of its packets: kept, because no other path leads there",
        "back": "{ends} no longer loses packets: used again",
        "beyond": "{ends} carries unknown traffic of {value:.1%} of its capacity: left to it",
        "released": "{ends} no longer carries unknown traffic",
    }
    result = []
    for change in decision.changes:
        arrow = " -> " if change.kind in ("beyond", "released") else " - "
        ends = arrow.join(fabric.names[node] for node in change.ends)
        result.append(words[change.kind].format(ends=ends, value=change.value))
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedLink:
    """A change of a link between two nodes, from measurements."""

    ends: tuple[str, ...]
    kind: Kind
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedFlow:
    """A flow's path and its path before, by the names of nodes and the number of each hop among parallel links."""

    job: str
    collective: str
    source: str
    target: str
    queue_pair: int
    path: tuple[str, ...]
    old_path: tuple[str, ...]
    links: tuple[int, ...]
    old_links: tuple[int, ...]
    new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionLine(Document):
    """A decision with names of nodes; ``push`` is the outcome of carrying it out."""

    SCHEMA = "weft.route-decision/1"
    DOCUMENT = """
        number=decision.number time_s=decision.time_s event=decision.kind routes=decision.how flows=decision.flows
        placed=decision.placed moved=decision.moved cut=decision.cut alpha=decision.alpha
        alpha_bound=decision.alpha_bound efficiency=decision.gain changes push? moves"""

    decision: Decision
    fabric: Fabric
    push: Literal["none", "dry-run", "applied", "rolled-back"] | None = None

    @property
    def changes(self) -> tuple[ChangedLink, ...]:
        names = self.fabric.names
        return tuple(
            ChangedLink(ends=tuple(names[node] for node in one.ends), kind=one.kind, value=one.value)
            for one in self.decision.changes
        )

    @property
    def moves(self) -> tuple[MovedFlow, ...]:
        fabric = self.fabric
        names, beside = fabric.names, ranks(fabric.source * fabric.nodes + fabric.target)

        def path(move: Move, links: Sequence[int]) -> tuple[str, ...]:
            return (names[move.flow[2]], *(names[fabric.target[link]] for link in links))

        return tuple(
            MovedFlow(
                job=move.flow[0],
                collective=move.flow[1],
                source=names[move.flow[2]],
                target=names[move.flow[3]],
                queue_pair=move.flow[4],
                path=path(move, move.path),
                old_path=path(move, move.old) if move.old else (),
                links=tuple(beside[list(move.path)].tolist()),
                old_links=tuple(beside[list(move.old)].tolist()),
                new=move.new,
            )
            for move in self.decision.moves
        )


def decision_to_json(decision: Decision, fabric: Fabric, *, push: Any = None) -> str:
    """A decision as one line of JSON of schema ``weft.route-decision/1``, with the outcome of its ``push``."""
    line = DecisionLine(decision=decision, fabric=fabric, push=push)
    return json.dumps({"schema": line.SCHEMA} | encode(line), allow_nan=False)


def _line(cells: list[str]) -> str:
    padded = [
        cell.ljust(width) if at == _COLUMNS.index("event") else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=True))
    ]
    return "  ".join(padded).rstrip()
