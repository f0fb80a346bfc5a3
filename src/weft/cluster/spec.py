"""On what: accelerators, and the tiers of network that join them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from weft.codec import Document
from weft.errors import Unsupported
from weft.model.job import Precision

TierKind = Literal["ring", "fully-connected", "switch"]


TF32_SHARE = {"nvidia": 0.5}
"""Dense peak in tf32 over that in bf16, by vendor (NVIDIA data sheets, A100 to B300)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator(Document):
    """One accelerator as its scheduler sees it (one GCD of an MI250X, one GPU of a GB200).

    Peaks are dense (no sparsity), in FLOP/s; 0 means the format has no matrix units.  ``memory_Bps`` is the peak
    of its HBM.  ``scale_up_Bps`` and ``nic_Bps`` are bytes/s per accelerator and direction.  ``multiprocessors``
    counts SMs or compute units; ``power_w`` is the board's limit; ``host_Bps`` its path to host memory, per
    direction, and ``host_memory_bytes`` its share of that memory (None: not known, and no limit).
    """

    DOCUMENT = """
        name vendor fp32_flops fp16_flops bf16_flops fp8_flops fp4_flops memory_bytes memory_Bps scale_up_size
        scale_up_Bps nic_Bps host_Bps multiprocessors power_w int8_flops in_switch_reduction usd_per_hour
        host_memory_bytes?"""

    name: str
    vendor: str
    fp32_flops: float
    fp16_flops: float
    bf16_flops: float
    fp8_flops: float
    fp4_flops: float
    memory_bytes: float
    memory_Bps: float
    scale_up_size: int
    scale_up_Bps: float
    nic_Bps: float
    host_Bps: float
    multiprocessors: int
    power_w: float
    int8_flops: float = 0.0
    in_switch_reduction: bool = False
    usd_per_hour: float = 0.0
    host_memory_bytes: float | None = None

    def peak_flops(self, precision: Precision) -> float:
        """Dense peak in FLOP/s for the linear layers of ``precision``.

        Raises:
            Unsupported: the accelerator has no matrix units for it.
        """
        peak = {
            "fp32": self.fp32_flops,
            "tf32": TF32_SHARE.get(self.vendor.lower(), 0.0) * self.bf16_flops,
            "fp16": self.fp16_flops,
            "bf16": self.bf16_flops,
            "fp8": self.fp8_flops,
            "fp8-rowwise": self.fp8_flops,
            "mxfp8": self.fp8_flops,
            "int8": self.int8_flops,
            "nvfp4": self.fp4_flops,
        }[precision]
        if peak <= 0:
            raise Unsupported(
                f"{self.name} has no matrix units for {precision}",
                remedy="choose another precision or another accelerator",
            )
        return peak


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One dimension of the network.

    ``size`` is how many units of the next inner tier (accelerators, for the innermost) it joins.
    ``bandwidth_Bps`` is per accelerator and direction before ``oversubscription`` (>= 1) divides it;
    ``latency_s`` is one hop through it. ``in_network_reduction``: its switches can reduce (NVLink SHARP, Quantum
    SHARP).
    """

    name: str
    size: int
    kind: TierKind
    bandwidth_Bps: float
    latency_s: float
    oversubscription: float = 1.0
    in_network_reduction: bool = False

    @property
    def effective_Bps(self) -> float:
        return self.bandwidth_Bps / self.oversubscription


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster(Document):
    """``count`` accelerators joined by ``tiers``, inner to outer; the product of their sizes is ``count``.

    ``whole_domains``: scale-up domains are bought whole, with all ``scale_up_size`` accelerators; those that
    ``tiers[0]`` does not join are spares.
    """

    DOCUMENT = "name accelerator count tiers defaults used_per_domain?"

    name: str
    accelerator: Accelerator
    count: int
    tiers: tuple[Tier, ...]
    defaults: tuple[str, ...] = ()
    whole_domains: bool = False

    @property
    def used_per_domain(self) -> int | None:
        """Accelerators that are used of each scale-up domain, where domains are bought whole."""
        return self.tiers[0].size if self.whole_domains else None

    @property
    def spares_per_domain(self) -> int:
        """Accelerators of each scale-up domain that are paid for and not used."""
        return max(0, self.accelerator.scale_up_size - self.tiers[0].size) if self.whole_domains else 0

    @property
    def spares(self) -> int:
        """Accelerators of all scale-up domains that are paid for and not used."""
        return self.count // self.tiers[0].size * self.spares_per_domain

    @property
    def spans(self) -> tuple[int, ...]:
        """Accelerators that one unit of each tier holds, inner to outer."""
        return tuple(prod(tier.size for tier in self.tiers[: i + 1]) for i in range(len(self.tiers)))
