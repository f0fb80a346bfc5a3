"""Folded Clos networks (fat-trees) of any number of tiers, radix and oversubscription.

A full-bisection network of radix-R switches with t tiers holds 2 (R/2)^t ports in (2 t - 1) n / R switches.
Units of tier 1 are leaves; a unit of tier i joins units of tier i-1 by groups of switches: switch j of every
unit below takes the same number of cables to each switch of group j above.  With fewer accelerators than the
network holds, units are filled in order and only the last one of a tier is short; each group then has the
fewest switches that carry its cables and divide them evenly, so that the bisection stays whole, and several
cables join the same two switches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.errors import BadInput
from weft.fabric import checks
from weft.fabric.build import NIC_LATENCY_S, SWITCH_LATENCY_S, Builder, start
from weft.fabric.dimension import Dimension
from weft.fabric.spec import Fabric, Ints

MAX_TIERS = 12
Oversubscription = float | Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosShape:
    """Sizes of a folded Clos, tier by tier from the leaves.

    ``units`` counts the units of a tier, ``joins`` the units of the tier below that one unit joins (ports of
    a leaf, for the first), ``per_unit`` the switches of a unit, ``uplinks`` the cables up from one switch and
    ``bundle`` how many of them end at the same switch.
    """

    radix: int
    units: tuple[int, ...]
    joins: tuple[int, ...]
    per_unit: tuple[int, ...]
    uplinks: tuple[int, ...]
    bundle: tuple[int, ...]

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
    leaves: int | None = None,
    leaf_ports: int | None = None,
    pod: int | None = None,
    where: str = "fat-tree",
) -> ClosShape:
    """The Clos for that many ports.

    Args:
        tiers: of switches; the fewest that hold the ports by default.
        oversubscription: ports down over ports up, of the leaves, or of each tier below the top.
        leaves, leaf_ports: leaves and ports down of each, where the wiring fixes them.
        pod: leaves that one unit of tier 2 joins, fewer than the radix allows.

    Raises:
        BadInput: no such network.
    """
    checks.whole(ports, f"{where}: ports")
    checks.whole(radix, f"{where}: radix", low=2, high=2**16)
    ratios = _ratios(oversubscription, where)
    if tiers is not None:
        checks.whole(tiers, f"{where}: tiers", high=MAX_TIERS)
    for count in range(1, MAX_TIERS + 1) if tiers is None else (tiers,):
        found = _shape(ports, radix, count, ratios, (leaves, leaf_ports, pod), where)
        if found is not None:
            return found
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


def leaf_split(radix: int, oversubscription: Oversubscription, where: str) -> tuple[int, int]:
    """Ports down and up of a leaf."""
    checks.whole(radix, f"{where}: radix", low=2, high=2**16)
    return _split(radix, (*_ratios(oversubscription, where), 1.0)[0])


def _split(radix: int, ratio: float) -> tuple[int, int]:
    """Ports down and up of a switch, at most ``ratio`` down per port up."""
    up = max(1, int(radix / (1 + ratio) + 1e-9))
    return max(1, min(radix - up, int(up * ratio + 1e-9))), up


def _shape(
    ports: int,
    radix: int,
    tiers: int,
    ratios: tuple[float, ...],
    given: tuple[int | None, int | None, int | None],
    where: str,
) -> ClosShape | None:
    """The Clos of exactly that many tiers, or None where it is too small."""
    leaves, leaf_ports, pod = given
    if tiers == 1:
        one = ports <= radix and leaves in (None, 1)
        sizes = ((1,), (ports,), (1,), (0,), (0,))
        return ClosShape(radix=radix, **dict(zip(ClosShape.__slots__[1:], sizes, strict=True))) if one else None
    ratio = (ratios + (1.0,) * tiers)[: tiers - 1]
    split = [_split(radix, each) for each in ratio]
    if leaf_ports is not None:
        split[0] = _fixed_leaf(leaf_ports, radix, ratio[0], where)
    units, joins, per_unit, bundle = [leaves or -(-ports // split[0][0])], [split[0][0]], [1], [0]
    for tier in range(1, tiers):
        top, uplinks = tier == tiers - 1, split[tier - 1][1]
        holds = radix if top else split[tier][0]
        wanted = pod if pod is not None and tier == 1 and not top else holds
        if wanted > holds:
            raise BadInput(f"a pod of {wanted} leaves exceeds {holds}", where=f"{where}: pod")
        join = units[-1] if top else min(wanted, units[-1])
        if join > holds:
            return None
        group = _group(uplinks, -(-join * uplinks // holds))
        units.append(-(-units[-1] // join))
        joins.append(join)
        per_unit.append(per_unit[-1] * group)
        bundle.append(uplinks // group)
    return ClosShape(
        radix=radix,
        units=tuple(units),
        joins=tuple(joins),
        per_unit=tuple(per_unit),
        uplinks=(*(up for _, up in split), 0),
        bundle=(*bundle[1:], 0),
    )


def _fixed_leaf(leaf_ports: int, radix: int, ratio: float, where: str) -> tuple[int, int]:
    up = max(1, math.ceil(leaf_ports / ratio - 1e-9))
    if leaf_ports + up > radix:
        raise BadInput(
            f"a leaf with {leaf_ports} ports down and {up} up exceeds the radix {radix}",
            where=where,
            remedy=f"join at most {_split(radix, ratio)[0]}",
        )
    return leaf_ports, up


def _group(uplinks: int, fewest: int) -> int:
    """The fewest switches, at least ``fewest``, that share ``uplinks`` evenly."""
    return next(count for count in range(max(1, fewest), uplinks + 1) if uplinks % count == 0)


def level_roles(tiers: int) -> tuple[str, ...]:
    """Roles of the switches, from the leaves: leaf, spine, core, core-4, ..."""
    return (*("leaf", "spine", "core")[:tiers], *(f"core-{tier}" for tier in range(4, tiers + 1)))


def wire(
    builder: Builder,
    members: Ints,
    leaf: Ints,
    form: ClosShape,
    *,
    port_Bps: float,
    roles: Sequence[str],
    nic_latency_s: float = NIC_LATENCY_S,
    switch_latency_s: float = SWITCH_LATENCY_S,
) -> None:
    """Add a Clos under which accelerator ``members[i]`` hangs from leaf number ``leaf[i]``."""
    below = builder.add(roles[0], form.switches[0])
    builder.join(members, below[leaf], capacity_Bps=port_Bps, latency_s=nic_latency_s, tier=1)
    for tier in range(1, form.tiers):
        above = builder.add(roles[tier], form.switches[tier])
        unit, position = np.divmod(np.arange(len(below)), form.per_unit[tier - 1])
        group = form.per_unit[tier] // form.per_unit[tier - 1]
        first = unit // form.joins[tier] * form.per_unit[tier] + position * group
        builder.join(
            np.repeat(below[:, None], group, axis=1),
            above[first[:, None] + np.arange(group)],
            capacity_Bps=port_Bps,
            latency_s=switch_latency_s,
            tier=tier + 1,
            cables=form.bundle[tier - 1],
        )
        below = above


def build(
    accelerators: int,
    *,
    radix: int,
    bandwidth_Bps: float,
    tiers: int | None = None,
    oversubscription: Oversubscription = 1.0,
    pod: int | None = None,
    scale_up: Dimension | None = None,
    nic_latency_s: float = NIC_LATENCY_S,
    switch_latency_s: float = SWITCH_LATENCY_S,
) -> Fabric:
    """A fat-tree whose leaves take the accelerators in rank order.

    Args:
        bandwidth_Bps: of every port, per direction; each accelerator has one.
        tiers, oversubscription, pod: see ``shape``.
        scale_up: the domains of the accelerators; none by default.

    Raises:
        BadInput: no such network.
    """
    builder = start("fat-tree", accelerators, scale_up)
    form = shape(accelerators, radix, tiers=tiers, oversubscription=oversubscription, pod=pod)
    members = np.arange(accelerators, dtype=np.int64)
    wire(
        builder,
        members,
        members // form.joins[0],
        form,
        port_Bps=checks.positive(bandwidth_Bps, "fat-tree: bandwidth"),
        roles=level_roles(form.tiers),
        nic_latency_s=nic_latency_s,
        switch_latency_s=switch_latency_s,
    )
    return builder.build()
