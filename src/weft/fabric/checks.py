"""What makes a fabric usable, and what makes a parameter of a generator usable."""

from __future__ import annotations

import math

import numpy as np

from weft.errors import BadInput
from weft.fabric.spec import SCALE_UP, Fabric, Ints

MAX_ACCELERATORS = 2**22
"""Accelerators that a generator builds at most."""
MAX_CABLES = 2**25
"""Cables (or bundles of them) that a generator builds at most."""
SHOWN = 5
"""Offending names that an error lists."""


def whole(value: int, where: str, *, low: int = 1, high: int = MAX_ACCELERATORS) -> int:
    """``value`` where it is a whole number between ``low`` and ``high``."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not low <= value <= high:
        shown = f"{value!r}"[:40]
        raise BadInput(f"{shown} is not a whole number from {low:,} to {high:,}", where=where)
    return int(value)


def positive(value: float, where: str, *, zero: bool = False) -> float:
    """``value`` where it is finite and above zero (or zero, where that is allowed)."""
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        low = "at least 0" if zero else "above 0"
        raise BadInput(f"{value!r} is not a finite number {low}", where=where)
    return float(value)


def cables_apart(fabric: Fabric) -> None:
    """Refuse to hash or plan over scale-out links of several cables (as in ``weft.fabric.lump``)."""
    if (fabric.cables[fabric.tier != SCALE_UP] > 1).any():
        where = f"fabric {fabric.name}"
        raise BadInput("has links of several cables", where=where, remedy="make every cable a link")


def cables(count: int, where: str) -> None:
    """Refuse a fabric with more cables than fit in memory."""
    if count > MAX_CABLES:
        raise BadInput(
            f"{count:,} cables are more than {MAX_CABLES:,}", where=where, remedy="choose a sparser network"
        )


def some(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def components(nodes: int, source: Ints, target: Ints) -> Ints:
    """The smallest node that each node is joined with."""
    from weft.fabric._walk import join

    label = np.arange(nodes, dtype=np.int64)
    join.sized(nodes + 4 * len(source))(source, target, label)
    return label
