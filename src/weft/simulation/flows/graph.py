"""Phases under construction: added in any order, then wired, then handed to the engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from weft.fabric.spec import Floats, Ints
from weft.fabric.traffic import Phases, Routes, Traffic


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    """Flows of one phase, and which of a list of routes each takes."""

    source: Ints
    target: Ints
    bytes: Floats
    route: Ints

    def times(self, factor: float) -> Load:
        """The same flows with that many times the bytes."""
        return replace(self, bytes=self.bytes * factor)


class Graph:
    """Phases that wait for each other, with the flows of some."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self.waits: list[list[int]] = []
        self.names: list[str] = []
        self.loads: list[tuple[int, Load]] = []

    def add(self, name: str, delay_s: float, waits: Iterable[int] = ()) -> int:
        """A phase; returns its number."""
        self.delays.append(max(delay_s, 0.0))
        self.waits.append(list(waits))
        self.names.append(name)
        return len(self.delays) - 1

    def wait(self, phase: int, other: int) -> None:
        """Let a phase wait for another."""
        self.waits[phase].append(other)

    def carry(self, phase: int, load: Load) -> None:
        """Give a phase flows."""
        self.loads.append((phase, load))

    def phases(self) -> Phases:
        """All phases as arrays."""
        labels = {name: i for i, name in enumerate(dict.fromkeys(self.names))}
        lengths = [len(waits) for waits in self.waits]
        return Phases(
            delay_s=np.array(self.delays),
            start_s=np.zeros(len(self.delays)),
            indptr=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            waits=np.array([other for waits in self.waits for other in waits], dtype=np.int64),
            label=np.array([labels[name] for name in self.names], dtype=np.int64),
            labels=tuple(labels),
            job=np.zeros(len(self.delays), dtype=np.int64),
        )

    def traffic(self) -> Traffic:
        """All phases and flows."""
        none = np.zeros(0)
        flows = [load for _, load in self.loads]
        count = sum(len(load.source) for load in flows)
        phase = [np.full(len(load.source), phase) for phase, load in self.loads]
        return Traffic(
            source=np.concatenate([none, *(load.source for load in flows)]).astype(np.int64),
            target=np.concatenate([none, *(load.target for load in flows)]).astype(np.int64),
            bytes=np.concatenate([none, *(load.bytes for load in flows)]),
            phase=np.concatenate([none, *phase]).astype(np.int64),
            weight=np.ones(count),
            cap_Bps=np.full(count, np.inf),
            phases=self.phases(),
        )

    def routes(self, known: Routes) -> Routes:
        """The routes of the flows of ``traffic``, from the list that loads number."""
        numbers = [load.route for _, load in self.loads]
        return known.of(np.concatenate([np.zeros(0, dtype=np.int64), *numbers]))
