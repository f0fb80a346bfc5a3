"""Simulated annealing over one path number per destination host, as Hedera does (NSDI 2010)."""

from __future__ import annotations

import math

import numpy as np

from weft.fabric.spec import SCALE_UP, Floats, Ints
from weft.routing.ecmp import picked
from weft.routing.problem import Problem

HOTTEST, COLDEST, COOLING = 1000.0, 0.1, 0.99
"""Temperatures of the routing paper's code: about 917 steps."""


def anneal(asked: Problem, *, seed: int) -> tuple[Ints, Ints]:
    """Swap the path numbers of two destinations as long as it is hot, less and less for the worse.

    A host begins with its place below its switch; the energy is the highest load times the number of links
    that have it.  The best choice met is returned.
    """
    draw = np.random.default_rng(seed)
    hosts, at = np.unique(asked.traffic.target, return_inverse=True)
    number = _place(asked)[hosts]
    state = _energy(asked, number[at])
    found, best = number.copy(), state
    heat = HOTTEST
    while heat > COLDEST and len(hosts) > 1:
        a, b = draw.choice(len(hosts), 2, replace=False)
        number[a], number[b] = number[b], number[a]
        now = _energy(asked, number[at])
        if now <= state or draw.random() < math.exp((state - now) / heat):
            state = now
            if state < best:
                found, best = number.copy(), state
        else:
            number[a], number[b] = number[b], number[a]
        heat *= COOLING
    return picked(asked, found[at])


def _energy(asked: Problem, turn: Ints) -> float:
    load = _loads(asked, *picked(asked, turn))
    highest = float(load.max(initial=0.0))
    return highest * int(np.count_nonzero(load >= highest * (1 - 1e-9)))


def _loads(asked: Problem, up: Ints, down: Ints) -> Floats:
    """Load of the links that are a choice."""
    load = np.zeros(asked.fabric.links + 1)
    for links in (asked.ways.up[up], asked.ways.down[down]):
        for column in range(links.shape[1]):
            link = np.where(links[:, column] < 0, asked.fabric.links, links[:, column])
            load += np.bincount(link, asked.demand_Bps, len(load))
    return np.asarray(load[:-1] * np.where(np.isfinite(asked.inverse), asked.inverse, 0.0))


def _place(asked: Problem) -> Ints:
    """The place of every accelerator below its first switch."""
    fabric = asked.fabric
    nics = np.flatnonzero((fabric.tier > SCALE_UP) & (fabric.source < fabric.accelerators))
    order = nics[np.lexsort((fabric.source[nics], fabric.target[nics]))]
    switch = fabric.target[order]
    begin = np.searchsorted(switch, switch)
    place = np.zeros(fabric.accelerators, dtype=np.int64)
    place[fabric.source[order]] = np.arange(len(order)) - begin
    return place
