"""Folded Clos networks (fat-trees) of any number of tiers, radix and oversubscription.

A full-bisection network of radix-R switches with t tiers holds 2 (R/2)^t ports in (2 t - 1) n / R switches.
Units of tier 1 are leaves; a unit of tier i joins units of tier i-1 by groups of switches: switch j of every
unit below spreads its cables over the switches of group j above.  With fewer accelerators than the network
holds, units are filled in order and only the last one of a tier is short; each group then has the fewest
switches that carry its cables, and several cables join the same two switches.  Where the cables of a switch
do not divide, the first switches of each group take one more, from every switch below: the bisection stays whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from weft.errors import BadInput
from weft.fabric import checks
from weft.fabric.assemble import LEVEL_ROLES
from weft.fabric.build import Builder, Ports, start
from weft.fabric.spec import Fabric, Ints

MAX_TIERS = 12
CABLE_PORTS = 3
"""A cable with its two transceivers costs at most so many ports of a switch, in every list of prices so far."""
SPLITS = 128
"""Splits of a switch's ports that are tried for a leaf, at most."""
Oversubscription = float | Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosShape:
    """Sizes of a folded Clos, tier by tier from the leaves.

    ``units`` counts the units of a tier, ``joins`` the units of the tier below that one unit joins (ports of
    a leaf, for the first), ``per_unit`` the switches of a unit, and ``uplinks`` the cables up from one switch.
    """

    radix: int
    units: tuple[int, ...]
    joins: tuple[int, ...]
    per_unit: tuple[int, ...]
    uplinks: tuple[int, ...]

    @property
    def tiers(self) -> int:
        return len(self.units)

    @property
    def switches(self) -> tuple[int, ...]:
        """Switches of each tier."""
        return tuple(units * each for units, each in zip(self.units, self.per_unit, strict=True))


def shape(
    ports: int,
    radix: int,
    *,
    tiers: int | None = None,
    oversubscription: Oversubscription = 1.0,
    wiring: Callable[[int], tuple[int, int]] | None = None,
    host: int = 1,
    where: str = "fat-tree",
) -> ClosShape:
    """The Clos for that many ports.

    Starting from leaves of as many ports up as down, it takes more oversubscribed ones as long as each needs no more
    switches than the last and costs no more, with a cable at any price up to ``CABLE_PORTS`` ports of a switch.  So a
    network never costs more than one that is less oversubscribed.

    Args:
        tiers: of switches; the fewest that hold the ports by default.
        oversubscription: most ports down per port up, of the leaves, or of each tier below the top.
        wiring: leaves and ports down of each, by the most ports down that a leaf may have; all leaves but the last
            have the most by default.
        host: ports of a host, which an oversubscribed leaf takes whole where it has as many.
    """
    checks.whole(ports, f"{where}: ports")
    checks.whole(radix, f"{where}: radix", low=2, high=2**16)
    ratios = _ratios(oversubscription, where)
    if tiers is not None:
        checks.whole(tiers, f"{where}: tiers", high=MAX_TIERS)
    if tiers in (None, 1) and ports <= radix and (wiring is None or wiring(radix)[0] == 1):
        return ClosShape(radix=radix, units=(1,), joins=(ports,), per_unit=(1,), uplinks=(0,))

    def filled(most: int) -> tuple[int, int]:
        down = most - most % host if most > max(radix // 2, host) else most
        return -(-ports // down), down

    best: ClosShape | None = None
    counts = range(2, MAX_TIERS + 1) if tiers is None else (tiers,)
    for leaf in _leaves(radix, (*ratios, 1.0)[0], wiring or filled, where):
        forms = (_shape(radix, count, leaf, ratios[1:]) for count in counts if count > 1)
        form = next((each for each in forms if each is not None), None)
        if form is not None and (best is None or _cheaper(form, best)):
            best = form
    if best is not None:
        return best
    size = f"{tiers} tiers" if tiers else f"{MAX_TIERS} tiers"
    raise BadInput(
        f"{ports:,} ports do not fit a Clos of {size} of radix {radix}",
        where=where,
        remedy="choose a larger radix, or more tiers",
    )


def _ratios(oversubscription: Oversubscription, where: str) -> tuple[float, ...]:
    ratios = (oversubscription,) if isinstance(oversubscription, int | float) else tuple(oversubscription)
    for ratio in ratios:
        if checks.positive(ratio, f"{where}: oversubscription") < 1:
            place = f"{where}: oversubscription"
            raise BadInput(f"{ratio:g} is below 1", where=place, remedy="give 1 or more")
    return tuple(float(ratio) for ratio in ratios)


def _cheaper(form: ClosShape, other: ClosShape) -> bool:
    """Whether a Clos costs less at some price of a cable up to ``CABLE_PORTS`` ports of a switch, and more at none."""

    def costs(each: ClosShape) -> tuple[int, int]:
        switches = sum(each.switches)
        cables = sum(count * up for count, up in zip(each.switches, each.uplinks, strict=True))
        return switches, switches * each.radix + CABLE_PORTS * cables

    mine, its = costs(form), costs(other)
    return mine != its and mine[0] <= its[0] and mine[1] <= its[1]


def _leaves(
    radix: int, ratio: float, wiring: Callable[[int], tuple[int, int]], where: str
) -> list[tuple[int, int, int]]:
    """Leaves, ports down and ports up of each, that are oversubscribed by at most ``ratio``, the least so first.

    Splits of a large radix are tried in steps, the same ones whatever the ratio.
    """
    step = -(-radix // SPLITS)
    wired = {wiring(most) for most in range(radix // 2, radix, step)}
    fewest = {down: math.ceil(down / ratio - 1e-9) for _, down in wired}
    result = [
        (leaves, down, up) for leaves, down in wired for up in range(min(down, radix - down), fewest[down] - 1, -step)
    ]
    if not result:
        down, up = min(fewest.items())
        raise BadInput(
            f"a leaf with {down} ports down and {up} up exceeds the radix {radix}",
            where=where,
            remedy=f"join at most {_split(radix, ratio)[0]}",
        )
    return sorted(result, key=lambda leaf: (leaf[1] / leaf[2], leaf))


def _split(radix: int, ratio: float) -> tuple[int, int]:
    """Ports down and up of a switch, at most ``ratio`` down per port up."""
    up = max(1, int(radix / (1 + ratio) + 1e-9))
    return max(1, min(radix - up, int(up * ratio + 1e-9))), up


def _shape(radix: int, tiers: int, leaf: tuple[int, int, int], ratios: tuple[float, ...]) -> ClosShape | None:
    """The Clos of exactly that many tiers above some leaves, or None where it is too small; ``ratios`` are those of
    the tiers above the leaves."""
    leaves, down, up = leaf
    split = [(down, up), *(_split(radix, each) for each in (ratios + (1.0,) * tiers)[: tiers - 2])]
    units, joins, per_unit = [leaves], [down], [1]
    for tier in range(1, tiers):
        top, uplinks = tier == tiers - 1, split[tier - 1][1]
        holds = radix if top else split[tier][0]
        join = units[-1] if top else min(holds, units[-1])
        if join > holds:
            return None
        # A switch above has ports for so many cables from each of the units below.
        most = holds // join
        units.append(-(-units[-1] // join))
        joins.append(join)
        per_unit.append(per_unit[-1] * -(-uplinks // most))
    return ClosShape(
        radix=radix,
        units=tuple(units),
        joins=tuple(joins),
        per_unit=tuple(per_unit),
        uplinks=(*(up for _, up in split), 0),
    )


def wire(
    builder: Builder, members: Ints, leaf: Ints, form: ClosShape, *, roles: tuple[str, str, str] = LEVEL_ROLES
) -> None:
    """Add a Clos under which accelerator ``members[i]`` hangs from leaf number ``leaf[i]``.

    Switches have the ``roles`` of their tier, beyond the third with its number behind: core-4.
    """
    below = builder.add(roles[0], form.switches[0])
    builder.hang(members, below[leaf])
    for tier in range(1, form.tiers):
        above = builder.add(roles[tier] if tier < 3 else f"{roles[2]}-{tier + 1}", form.switches[tier])
        unit, position = np.divmod(np.arange(len(below)), form.per_unit[tier - 1])
        group = form.per_unit[tier] // form.per_unit[tier - 1]
        first = unit // form.joins[tier] * form.per_unit[tier] + position * group
        each, extra = divmod(form.uplinks[tier - 1], group)
        for columns, cables in ((np.arange(extra), each + 1), (np.arange(extra, group), each)):
            builder.link(below[:, None], above[first[:, None] + columns], tier=tier + 1, cables=cables)
        below = above


def build(
    accelerators: int,
    *,
    radix: int,
    tiers: int | None = None,
    oversubscription: Oversubscription = 1.0,
    **ports: Unpack[Ports],
) -> Fabric:
    """A fat-tree whose leaves take the accelerators in rank order; see ``shape`` and ``Ports``."""
    builder = start("fat-tree", accelerators, **ports)
    form = shape(accelerators, radix, tiers=tiers, oversubscription=oversubscription, host=builder.domain_size)
    members = np.arange(accelerators, dtype=np.int64)
    wire(builder, members, members // form.joins[0], form)
    return builder.build()


def two_layers(leaves: int = 64, spines: int = 32, per_leaf: int = 32) -> Fabric:
    """Leaves with accelerators in rank order, each joined to each spine once by links of 100 Gb/s without latency: by
    default the network of arXiv 2503.05324."""
    members = np.arange(leaves * per_leaf, dtype=np.int64)
    ports: Ports = {"bandwidth_Bps": 12.5e9, "nic_latency_s": 0.0, "switch_latency_s": 0.0}
    builder = start(f"{leaves} ToRs x {spines} spines", len(members), **ports)
    form = ClosShape(
        radix=max(per_leaf + spines, leaves),
        units=(leaves, 1),
        joins=(per_leaf, leaves),
        per_unit=(1, spines),
        uplinks=(spines, 0),
    )
    wire(builder, members, members // per_leaf, form)
    return builder.build()
