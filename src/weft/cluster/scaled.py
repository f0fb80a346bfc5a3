"""Clusters with other hardware: what if the network, the memory or the accelerator were faster."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.cluster.spec import Cluster
from weft.errors import BadInput

LEAST, MOST = 0.01, 100.0
_PEAKS = ("fp32_flops", "fp16_flops", "bf16_flops", "fp8_flops", "fp4_flops", "int8_flops")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Factors of what a cluster has; 1 leaves it as it is.

    Attributes:
        peak: of the matrix units' FLOP/s.
        hbm: of the memory's bandwidth.
        scale_up: of the bandwidth of the innermost tier.
        nic: of the bandwidth of all other tiers.
        latency: of the latency of every tier.

    Raises:
        BadInput: a factor is not between ``LEAST`` and ``MOST``.
    """

    peak: float = 1.0
    hbm: float = 1.0
    scale_up: float = 1.0
    nic: float = 1.0
    latency: float = 1.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not LEAST <= getattr(self, name) <= MOST:
                problem = f"{getattr(self, name):g} is no factor of {name}"
                raise BadInput(problem, where="what if", remedy=f"give {LEAST:g} to {MOST:g}; 1 changes nothing")

    @property
    def words(self) -> str:
        """What changes, as "nic x2, latency x0.5"; empty where nothing does."""
        changed = [(name, getattr(self, name)) for name in self.__slots__ if getattr(self, name) != 1.0]
        return ", ".join(f"{name.replace('_', '-')} x{factor:g}" for name, factor in changed)


def scaled(cluster: Cluster, scales: Scales) -> Cluster:
    """A cluster with its figures multiplied; its name and its constants stay."""
    chip = cluster.accelerator
    faster = {name: scales.peak * getattr(chip, name) for name in _PEAKS}
    tiers = tuple(
        replace(
            tier,
            bandwidth_Bps=(scales.nic if place else scales.scale_up) * tier.bandwidth_Bps,
            latency_s=scales.latency * tier.latency_s,
        )
        for place, tier in enumerate(cluster.tiers)
    )
    return replace(cluster, accelerator=replace(chip, memory_Bps=scales.hbm * chip.memory_Bps, **faster), tiers=tiers)
