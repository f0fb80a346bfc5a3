"""Links and switches of a fabric that go down and come up."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from weft.errors import BadInput
from weft.fabric.spec import Fabric

Down = frozenset[tuple[str, ...]]
"""What is down: a switch as one name, a link as those of its two ends, sorted."""


def changed(whole: Fabric, down: Collection[tuple[str, ...]], nodes: tuple[str, ...], *, fails: bool) -> Down:
    """What is down after a link (two nodes) or switch (one) went down or came up.

    Raises:
        BadInput: no such node or link, or it comes up without having been down.
    """
    for name in nodes:
        if name not in whole.names:
            raise BadInput(
                f"{name!r} is no node of {whole.name}", where="event", remedy=f"use names like {whole.names[-1]}"
            )
    names = tuple(sorted(nodes))
    ends = [whole.names.index(name) for name in names]
    if len(ends) == 2 and not np.any((whole.source == ends[0]) & (whole.target == ends[1])):
        raise BadInput(f"{names[0]} and {names[1]} share no link", where="event", remedy="name joined nodes")
    if fails:
        return frozenset(down) | {names}
    if names not in down:
        raise BadInput(f"{' - '.join(names)} is not down", where="event", remedy="report it down before it comes up")
    return frozenset(down) - {names}


def without(whole: Fabric, down: Collection[tuple[str, ...]]) -> Fabric:
    """The fabric without what is down."""
    number = {name: node for node, name in enumerate(whole.names)}
    dead = ~whole.up
    for names in down:
        nodes = [number[name] for name in names]
        if len(nodes) == 1:
            dead = dead | (whole.source == nodes[0]) | (whole.target == nodes[0])
        else:
            for a, b in (nodes, nodes[::-1]):
                dead = dead | ((whole.source == a) & (whole.target == b))
    return replace(whole, up=~dead)
