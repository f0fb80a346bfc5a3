"""The machine that was measured, as plans read it: a cluster of one tier per mesh axis, and constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from weft.calibration.fit import KernelFit, Line, NetworkFit, fit_kernels, fit_line, fit_network
from weft.cluster.calibration import Calibration, calibration, constants
from weft.cluster.files import cluster_to_dict
from weft.cluster.measurements import CollectiveTime, Measurements, ProductTime
from weft.cluster.spec import Accelerator, Cluster, Tier
from weft.results import Result
from weft.runtime.measure.measured import KINDS, PRECISIONS, Measured, Product, Rank, Sample, measured_to_dict
from weft.units import counted

DIGITS = 4
"""Significant digits of what is written."""
LIMITED = ("kernel_s", "launch_s", "collective_s")
"""Times that get a note where the fit ends at the limit of what is plausible."""
ASSUMED_POWER_W = {"cpu": 100.0, "cuda": 500.0}
"""Power of a rank; only the energy of a training run depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Described(Result):
    """A measurement, what was fitted to it, and the files made of that.

    Attributes:
        lines: one for each axis and collective.
        constants: of ``Calibration``, within their plausible ranges.
        notes: what does not fit into those.
    """

    SCHEMA = "weft.bench-comm/1"

    measured: Measured
    lines: tuple[Line, ...]
    network: NetworkFit
    kernels: KernelFit
    cluster: Cluster
    constants: dict[str, float]
    notes: tuple[str, ...]

    def line(self, axis: str, kind: str) -> Line:
        """The fit of one collective over an axis."""
        return next(one for one in self.lines if (one.axis, one.kind) == (axis, kind))

    def bus_Bps(self, sample: Sample) -> float:
        """Bytes/s that a ring sends in a sample."""
        return self.line(sample.axis, sample.kind).sent * sample.bytes / sample.seconds

    def by_shape(self) -> Measurements:
        """The products, and the collectives whose own line describes them no worse than the tier does, as a
        calibration file holds them."""
        products = tuple(
            ProductTime(m=one.m, n=one.n, k=one.k, precision=one.precision, seconds=_rounded(one.seconds))
            for one in self.measured.products
        )
        tiers = {one.axis: one for one in self.network.axes}
        collectives = tuple(
            CollectiveTime(
                kind=one.kind,
                scope=one.axis,
                ranks=tiers[one.axis].ranks,
                Bps=_rounded(one.Bps),
                latency_s=_rounded(one.latency_s),
            )
            for one in self.lines
            if one.worst <= tiers[one.axis].worst
        )
        return Measurements(products=products, collectives=collectives)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row a measured collective: bytes, seconds, and the bandwidths of nccl-tests in bytes/s."""
        return [
            asdict(one) | {"algorithm_Bps": one.bytes / one.seconds, "bus_Bps": self.bus_Bps(one)}
            for one in self.measured.samples
        ]

    def _document(self) -> dict[str, Any]:
        products = [asdict(one) | {"achieved_flops": one.achieved_flops} for one in self.measured.products]
        return {
            **measured_to_dict(self.measured),
            "samples": self.to_dicts(),
            "products": products,
            "lines": [asdict(one) for one in self.lines],
            "network": asdict(self.network),
            "kernels": asdict(self.kernels),
            "cluster": cluster_to_dict(self.cluster),
            "calibration": self.constants,
            "notes": list(self.notes),
        }

    def _facts(self) -> Sequence[str]:
        return (f"{counted(self.measured.layout.world, 'rank')} of {self.measured.rank.name}", *self.notes)


def describe(measured: Measured, *, with_constants: bool) -> Described:
    """Fit the models to a measurement.

    Bandwidths of the tiers are achieved ones over the efficiency of large collectives in the calibration
    that the accelerator gets; that stays as it is.  ``with_constants``: plans will read the constants too, so
    that the launch of a collective is fitted with the tiers; otherwise it keeps its default.
    """
    base = calibration(measured.rank.name)
    ranges = {name: (low, high) for name, _, low, high, _ in constants()}
    low, high = ranges["collective_s"] if with_constants else (base.collective_s, base.collective_s)
    network = NetworkFit(axes=(), launch_s=base.collective_s)
    if measured.axes:
        network = fit_network(measured.samples, measured.layout, low_launch_s=low, high_launch_s=high)
    tiers = _tiers(network, measured.rank, base)
    least, most = ranges["memory_efficiency"]
    memory_efficiency = min(max(measured.rank.copy_Bps / measured.rank.best_copy_Bps, least), most)
    chip = _accelerator(measured, tiers, measured.rank.copy_Bps / memory_efficiency)
    kernels = fit_kernels(measured.products, chip)
    found = {
        "gemm_efficiency": kernels.gemm_efficiency,
        "gemm_depth": kernels.gemm_depth,
        "memory_efficiency": memory_efficiency,
        "kernel_s": kernels.kernel_s,
        "launch_s": min(max(measured.rank.launch_s, ranges["launch_s"][0]), ranges["launch_s"][1]),
        "scale_up_efficiency": base.scale_up_efficiency,
        "scale_out_efficiency": base.scale_out_efficiency,
        "collective_s": network.launch_s,
    }
    return Described(
        measured=measured,
        lines=tuple(fit_line(measured.of(axis, kind)) for axis in measured.axes for kind in KINDS),
        network=network,
        kernels=kernels,
        cluster=_cluster(measured, chip, tiers),
        constants={name: _rounded(value) for name, value in found.items()},
        notes=_notes(found, {name: most for name, (_, most) in ranges.items()}),
    )


def peak_flops(products: Sequence[Product], precision: str) -> float:
    """The best of the products in FLOP/s, 0 without any."""
    return max((one.achieved_flops for one in products if one.precision == precision), default=0.0)


def _tiers(network: NetworkFit, rank: Rank, base: Calibration) -> tuple[Tier, ...]:
    if not network.axes:
        Bps = _rounded(rank.copy_Bps)
        return (Tier(name="alone", size=1, kind="switch", bandwidth_Bps=Bps, latency_s=0.0),)
    shares = (base.scale_up_efficiency, *[base.scale_out_efficiency] * (len(network.axes) - 1))
    return tuple(
        Tier(
            name=one.axis,
            size=one.ranks,
            kind="switch",
            bandwidth_Bps=_rounded(one.achieved_Bps / share),
            latency_s=_rounded(one.latency_s),
        )
        for one, share in zip(network.axes, shares, strict=True)
    )


def _accelerator(measured: Measured, tiers: tuple[Tier, ...], memory_Bps: float) -> Accelerator:
    peaks = {name: _rounded(peak_flops(measured.products, name)) for name in PRECISIONS}
    return Accelerator(
        name=measured.rank.name,
        vendor="unknown",
        fp32_flops=peaks["fp32"],
        fp16_flops=peaks["fp16"],
        bf16_flops=peaks["bf16"],
        fp8_flops=0.0,
        fp4_flops=0.0,
        memory_bytes=measured.rank.memory_bytes,
        memory_Bps=_rounded(memory_Bps),
        scale_up_size=tiers[0].size,
        scale_up_Bps=tiers[0].bandwidth_Bps,
        nic_Bps=tiers[-1].bandwidth_Bps,
        host_Bps=_rounded(measured.rank.host_Bps),
        multiprocessors=measured.rank.multiprocessors,
        power_w=ASSUMED_POWER_W[measured.device],
    )


def _cluster(measured: Measured, chip: Accelerator, tiers: tuple[Tier, ...]) -> Cluster:
    world = measured.layout.world
    assumed = [f"accelerator.power: {chip.power_w:g} W, was not measured"]
    if world == 1:
        assumed.append("tiers: one rank has no network to measure")
    return Cluster(name=f"{chip.name} x {world}", accelerator=chip, count=world, tiers=tiers, defaults=tuple(assumed))


def _notes(found: Mapping[str, float], most: Mapping[str, float]) -> tuple[str, ...]:
    """Times that end at their upper limit."""
    return tuple(
        f"{name} = {found[name]:g} s is the most that is plausible; what was measured is longer"
        for name in LIMITED
        if found[name] >= most[name]
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
