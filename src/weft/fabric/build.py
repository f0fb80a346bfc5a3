"""A fabric put together: nodes by role, cables as arrays, and the scale-up domains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Required, TypedDict

import numpy as np

from weft.errors import BadInput
from weft.fabric import checks
from weft.fabric.dimension import Dimension, pairs
from weft.fabric.spec import SCALE_UP, Fabric, Floats, Ints

NIC_LATENCY_S = 1.35e-6
"""Latency of a link between an accelerator and a switch: half of 2.7 us through one switch (NCCL's tuner)."""
SWITCH_LATENCY_S = 0.5e-6
"""Latency of a link between switches: a spine adds two of them, 1 us, switch crossings and fibre."""


class Ports(TypedDict, total=False):
    """What every network that hangs accelerators from switches takes.

    ``bandwidth_Bps`` is that of an accelerator's NIC and of every port, per direction; ``scale_up`` are the domains of
    the accelerators, none by default.  Latencies are of a link to a NIC and of one between switches.
    """

    bandwidth_Bps: Required[float]
    scale_up: Dimension | None
    nic_latency_s: float
    switch_latency_s: float


@dataclass(slots=True, kw_only=True)
class Builder:
    """Nodes and cables of a fabric to be.  Accelerators are nodes 0, 1, ... in rank order."""

    name: str
    accelerators: int
    domain_size: int = 1
    port_Bps: float = 0.0
    nic_latency_s: float = NIC_LATENCY_S
    switch_latency_s: float = SWITCH_LATENCY_S
    names: list[str] = field(default_factory=list)
    _count: dict[str, int] = field(default_factory=dict)
    _role: list[Ints] = field(default_factory=list)
    _ends: list[Ints] = field(default_factory=list)
    _figures: list[Floats] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.add("accelerator", self.accelerators)

    def add(self, role: str, count: int) -> Ints:
        """``count`` more nodes of that role; their numbers.  Named by the role and a count."""
        before, first = self._count.get(role, 0), len(self.names)
        self._count[role] = before + count
        self.names.extend(f"{role}-{i}" for i in range(before, before + count))
        self._role.append(np.full(count, list(self._count).index(role), dtype=np.int64))
        return np.arange(first, first + count, dtype=np.int64)

    def join(self, a: Ints, b: Ints, *, capacity_Bps: float, latency_s: float, tier: int, cables: int = 1) -> None:
        """``cables`` cables of ``capacity_Bps`` each (bytes/s, one way) between each ``a`` and ``b``."""
        a, b = (np.repeat(each, cables) for each in np.broadcast_arrays(a, b))
        self._ends.append(np.column_stack([a, b, np.full(a.size, tier)]).astype(np.int64))
        self._figures.append(np.broadcast_to(np.array([capacity_Bps, latency_s], dtype=np.float64), (a.size, 2)))

    def hang(self, members: Ints, switches: Ints) -> None:
        """A cable from each accelerator to its switch."""
        self.join(members, switches, capacity_Bps=self.port_Bps, latency_s=self.nic_latency_s, tier=1)

    def link(self, a: Ints, b: Ints, *, tier: int, cables: int = 1) -> None:
        """``cables`` cables between each two switches."""
        self.join(a, b, capacity_Bps=self.port_Bps, latency_s=self.switch_latency_s, tier=tier, cables=cables)

    def build(self) -> Fabric:
        """The fabric; link ``2 i`` and ``2 i + 1`` are the two directions of one cable."""
        ends: Ints = np.concatenate([np.zeros((0, 3), dtype=np.int64), *self._ends])
        figures: Floats = np.repeat(np.concatenate([np.zeros((0, 2)), *self._figures]), 2, axis=0)
        both = np.column_stack([ends[:, :2], ends[:, 1::-1]]).reshape(-1, 2)
        return Fabric(
            name=self.name,
            accelerators=self.accelerators,
            names=tuple(self.names),
            roles=tuple(self._count),
            role=np.concatenate(self._role),
            source=np.ascontiguousarray(both[:, 0]),
            target=np.ascontiguousarray(both[:, 1]),
            capacity_Bps=np.ascontiguousarray(figures[:, 0]),
            latency_s=np.ascontiguousarray(figures[:, 1]),
            cables=np.ones(len(both), dtype=np.int64),
            tier=np.repeat(ends[:, 2], 2),
            up=np.ones(len(both), dtype=bool),
            domain=np.arange(self.accelerators, dtype=np.int64) // self.domain_size,
            rail=np.arange(self.accelerators, dtype=np.int64) % self.domain_size,
        )


def start(
    name: str,
    accelerators: int,
    scale_up: Dimension | None = None,
    *,
    bandwidth_Bps: float | None = None,
    nic_latency_s: float = NIC_LATENCY_S,
    switch_latency_s: float = SWITCH_LATENCY_S,
) -> Builder:
    """A builder with the accelerators and the links inside scale-up domains; see ``Ports``."""
    checks.whole(accelerators, f"{name}: accelerators")
    size = scale_up.size if scale_up else 1
    if accelerators % size:
        below = accelerators // size * size
        raise BadInput(
            f"{accelerators} accelerators do not fill scale-up domains of {size}",
            where=f"{name}: accelerators",
            remedy=f"use {below or size} or {below + size}" if below else f"use {size}",
        )
    builder = Builder(
        name=name,
        accelerators=accelerators,
        domain_size=size,
        port_Bps=0.0 if bandwidth_Bps is None else checks.positive(bandwidth_Bps, f"{name}: bandwidth"),
        nic_latency_s=nic_latency_s,
        switch_latency_s=switch_latency_s,
    )
    if scale_up:
        members = np.arange(accelerators, dtype=np.int64).reshape(-1, size)
        wire(builder, members, scale_up, tier=SCALE_UP, role="scale-up")
    return builder


def wire(builder: Builder, groups: Ints, dimension: Dimension, *, tier: int, role: str) -> None:
    """Join the nodes in each row of ``groups`` as ``dimension`` says; its switches have the ``role``."""
    count, size = groups.shape
    if size == 1:
        return
    checks.cables(count * dimension.cables, f"{builder.name}: {role}")
    if dimension.kind == "switch":
        switches = builder.add(role, count)
        a, b = groups, np.repeat(switches[:, None], size, axis=1)
        latency = dimension.latency_s / 2
    else:
        left, right = pairs(dimension.kind, size)
        a, b, latency = groups[:, left], groups[:, right], dimension.latency_s
    builder.join(a, b, capacity_Bps=dimension.link_Bps, latency_s=latency, tier=tier)
