"""A choice of one path per flow, which routers make and improve."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.fabric.spec import Floats, Ints
from weft.fabric.traffic import Routes
from weft.routing import _kernels
from weft.routing.problem import Problem

ENOUGH = 1e-9
"""Relative distance to a target that counts as reached."""
LONGEST_QUEUE = 4096
ROUNDS = 4
"""Rounds over all links in which chains are tried."""


class _Net(NamedTuple):
    """Arrays of ``_kernels``: loads, who is where, and room for chains.

    ``clock``: stamps given, chains begun, flows moved in this one, chains failed, how many may fail.
    """

    load: Floats
    fixed: Floats
    inverse: Floats
    demand: Floats
    up: Ints
    down: Ints
    head: Ints
    after: Ints
    before: Ints
    stamp: Ints
    moved: Ints
    log: Ints
    old_up: Ints
    old_down: Ints
    queue: Ints
    clock: Ints


class PathChoice:
    """Paths of the flows of a problem: ``up[f]`` and ``down[f]`` are ways, -1 where a flow has none yet."""

    def __init__(self, problem: Problem, up: Ints | None = None, down: Ints | None = None) -> None:
        flows, links, width = len(problem.demand_Bps), problem.fabric.links, 2 * problem.ways.up.shape[1]
        self.problem = problem
        places = flows * width
        self._net = _Net(
            load=problem.fixed.copy(),
            fixed=problem.fixed,
            inverse=problem.inverse,
            demand=problem.demand_Bps,
            up=np.full(flows, -1, dtype=np.int64),
            down=np.full(flows, -1, dtype=np.int64),
            head=np.full(links, -1, dtype=np.int64),
            after=np.full(places, -1, dtype=np.int64),
            before=np.full(places, -1, dtype=np.int64),
            stamp=np.zeros(links, dtype=np.int64),
            moved=np.zeros(flows, dtype=np.int64),
            log=np.zeros(flows + 1, dtype=np.int64),
            old_up=np.zeros(flows, dtype=np.int64),
            old_down=np.zeros(flows, dtype=np.int64),
            queue=np.zeros(LONGEST_QUEUE, dtype=np.int64),
            clock=np.zeros(5, dtype=np.int64),
        )
        if up is not None and down is not None:
            _kernels.settle_all(self._net, problem.ways, up, down)

    @property
    def up(self) -> Ints:
        return self._net.up

    @property
    def down(self) -> Ints:
        return self._net.down

    @property
    def load(self) -> Floats:
        """Load of every link."""
        return self._net.load

    @property
    def congestion(self) -> float:
        """The highest load of a link."""
        return float(self._net.load.max(initial=0.0))

    def place(self, order: Ints, *, smooth: bool) -> None:
        """Give the flows of ``order`` without a path the one with the least highest load, one by one.

        The first of equals is taken, or (``smooth``) the one that adds least to the sum of squared loads.
        """
        _kernels.place_all(self._net, self.problem.ways, order, smooth)

    def relax(self, target: float, passes: int) -> None:
        """Move single flows off the links above ``target``, until that helps no more."""
        for _ in range(passes):
            # Each pass goes over all links; one without a move is the last, as the next would see the same loads.
            if self.congestion <= target * (1 + ENOUGH) or not _kernels.relax(self._net, self.problem.ways, target):
                return

    def reach(self, target: float, *, steps: int = 400, failures: int = 400) -> bool:
        """Bring every link within ``target`` by chains of moves; True if that succeeds.

        Args:
            target: highest load wanted; nothing is below the load that no choice changes.
            steps: moves in one chain.
            failures: chains that may fail before it is given up.
        """
        self._net.clock[3], self._net.clock[4] = 0, failures
        return bool(_kernels.repair(self._net, self.problem.ways, target, steps, ROUNDS))

    def keep(self, up: Ints, down: Ints, target: float) -> None:
        """Put moved flows back on their former ways (-1: none) as long as no link then exceeds ``target``.

        Afterwards no single flow can go back: no move is left that the target does not need.
        """
        # A flow that goes back frees its present links, which may let another go back: repeat until none does.
        while _kernels.keep(self._net, self.problem.ways, up, down, target):
            pass


def on_links(problem: Problem, links: Ints, flows: Ints) -> PathChoice:
    """The choice of some flows' ways by the links of their paths: rows of ``links``, -1 behind (``links_of``).

    A flow whose path is none of its ways has no path.
    """
    chosen = np.full((2, len(links)), -1, dtype=np.int64)
    follow(problem, links, flows, chosen)
    return PathChoice(problem, chosen[0], chosen[1])


def follow(problem: Problem, links: Ints, flows: Ints, chosen: Ints) -> None:
    """Write the numbers of some flows' ways, up and down, into ``chosen``."""
    _kernels.follow(problem.ways, problem.fabric.target, flows, links, chosen[0], chosen[1])


def links_of(routes: Routes, width: int = 0) -> Ints:
    """The links of every flow in order, -1 behind: a row each, of ``width`` columns or as many as it takes."""
    counts = np.diff(routes.indptr)
    links = np.full((len(counts), max(width, int(counts.max(initial=0)))), -1, dtype=np.int64)
    column = np.arange(len(routes.links)) - np.repeat(routes.indptr[:-1], counts)
    links[np.repeat(np.arange(len(counts)), counts), column] = routes.links
    return links


def ordered(problem: Problem) -> Ints:
    """Flows by falling demand; of equals in the order given."""
    return np.argsort(-problem.demand_Bps, kind="stable")
