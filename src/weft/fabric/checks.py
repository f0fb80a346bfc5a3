"""What makes a fabric usable, and what makes a parameter of a generator usable."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from weft.errors import BadInput
from weft.fabric.spec import SCALE_UP, Fabric, Ints, Mask
from weft.units import counted

MAX_ACCELERATORS = 2**22
"""Accelerators that a generator builds at most."""
MAX_CABLES = 2**25
"""Cables (or bundles of them) that a generator builds at most."""
SHOWN = 5
"""Offending names that an error lists."""


def whole(value: int, where: str, *, low: int = 1, high: int = MAX_ACCELERATORS) -> int:
    """``value`` where it is a whole number between ``low`` and ``high``.

    Raises:
        BadInput: it is not.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not low <= value <= high:
        shown = f"{value!r}"[:40]
        raise BadInput(f"{shown} is not a whole number from {low:,} to {high:,}", where=where)
    return int(value)


def positive(value: float, where: str, *, zero: bool = False) -> float:
    """``value`` where it is finite and above zero (or zero, where that is allowed).

    Raises:
        BadInput: it is not.
    """
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        low = "at least 0" if zero else "above 0"
        raise BadInput(f"{value!r} is not a finite number {low}", where=where)
    return float(value)


def cables(count: int, where: str) -> None:
    """Refuse a fabric with more cables than fit in memory.

    Raises:
        BadInput: there are more than ``MAX_CABLES``.
    """
    if count > MAX_CABLES:
        raise BadInput(
            f"{count:,} cables are more than {MAX_CABLES:,}", where=where, remedy="choose a sparser network"
        )


def check(fabric: Fabric) -> None:
    """Refuse a fabric that no traffic can be simulated on.

    Raises:
        BadInput: names repeat, a link has no node, no capacity or no reverse, scale-up domains differ in size
            or are left by a scale-up link, or an accelerator cannot reach the others over links that are up.
    """
    where = f"fabric {fabric.name}"
    _check_names(fabric, where)
    _check_links(fabric, where)
    _check_reverse(fabric, where)
    _check_domains(fabric, where)
    _check_connected(fabric, where)


def some(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def _links(fabric: Fabric, bad: Mask) -> str:
    picked = np.flatnonzero(bad)
    ends = zip(fabric.source[picked].tolist(), fabric.target[picked].tolist(), strict=True)
    return some([f"{fabric.names[a]} -> {fabric.names[b]}" for a, b in ends])


def _check_names(fabric: Fabric, where: str) -> None:
    if len(fabric.names) != fabric.nodes:
        raise BadInput(f"{len(fabric.names)} names for {fabric.nodes} nodes", where=where)
    repeated = [name for name, count in Counter(fabric.names).items() if count > 1]
    if repeated:
        raise BadInput(f"names of nodes repeat: {some(repeated)}", where=where, remedy="rename them")


def _check_links(fabric: Fabric, where: str) -> None:
    ends = np.concatenate([fabric.source, fabric.target])
    if len(ends) and not (ends.min() >= 0 and ends.max() < fabric.nodes):
        raise BadInput("a link joins a node that does not exist", where=where)
    loops = fabric.source == fabric.target
    if loops.any():
        raise BadInput(f"links join a node to itself: {_links(fabric, loops)}", where=where)
    dead = ~(np.isfinite(fabric.capacity_Bps) & (fabric.capacity_Bps > 0)) & fabric.up
    if dead.any():
        remedy = "give a finite capacity above 0, or mark them as failed"
        raise BadInput(f"links without capacity: {_links(fabric, dead)}", where=where, remedy=remedy)
    late = ~(np.isfinite(fabric.latency_s) & (fabric.latency_s >= 0))
    if late.any():
        raise BadInput(
            f"latencies below 0 or not finite: {_links(fabric, late)}",
            where=where,
            remedy="give finite latencies of at least 0",
        )


def _check_reverse(fabric: Fabric, where: str) -> None:
    forward = fabric.source * fabric.nodes + fabric.target
    backward = fabric.target * fabric.nodes + fabric.source
    lonely = ~np.isin(forward, backward)
    if lonely.any():
        raise BadInput(
            f"links without the reverse direction: {_links(fabric, lonely)}",
            where=where,
            remedy="give both directions of every cable",
        )


def _check_domains(fabric: Fabric, where: str) -> None:
    if len(fabric.domain) != fabric.accelerators or len(fabric.rail) != fabric.accelerators:
        raise BadInput("domain and rail must be given for every accelerator", where=where)
    _, sizes = np.unique(fabric.domain, return_counts=True)
    if len(np.unique(sizes)) > 1:
        raise BadInput(
            f"scale-up domains have {sizes.min()} to {counted(sizes.max(), 'accelerator')}",
            where=where,
            remedy="make all domains equal",
        )
    inside = (fabric.tier == SCALE_UP) & (np.maximum(fabric.source, fabric.target) < fabric.accelerators)
    picked = np.flatnonzero(inside)
    leaves = np.zeros(fabric.links, dtype=bool)
    leaves[picked] = fabric.domain[fabric.source[picked]] != fabric.domain[fabric.target[picked]]
    if leaves.any():
        raise BadInput(f"scale-up links leave their domain: {_links(fabric, leaves)}", where=where)


def _check_connected(fabric: Fabric, where: str) -> None:
    label = components(fabric.nodes, fabric.source[fabric.up], fabric.target[fabric.up])
    apart = np.flatnonzero(label[: fabric.accelerators] != label[0]) if fabric.accelerators else label[:0]
    if len(apart):
        names = some([fabric.names[node] for node in apart.tolist()])
        raise BadInput(
            f"{len(apart):,} of {fabric.accelerators:,} accelerators cannot reach {fabric.names[0]}: {names}",
            where=where,
            remedy="add links between the parts",
        )


def components(nodes: int, source: Ints, target: Ints) -> Ints:
    """The smallest node that each node is joined with: labels spread over links, halved by jumps."""
    label = np.arange(nodes, dtype=np.int64)
    while True:
        low = np.minimum(label[source], label[target])
        spread = label.copy()
        np.minimum.at(spread, label[source], low)
        np.minimum.at(spread, label[target], low)
        spread = spread[spread]
        if np.array_equal(spread, label):
            return label
        label = spread
