"""What Weft's models make of measured times: lines, tiers of a network, constants of kernels.

All fits are least squares of relative errors, so that small messages and products count as large ones do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from operator import itemgetter
from typing import Any

import numpy as np

from weft.cluster.calibration import Calibration, CollectiveTime, Measurements, ProductTime, calibration, constants
from weft.cluster.spec import Accelerator, Cluster, Tier
from weft.codec import Document, encode
from weft.collectives.cost import PROTOCOLS, Network, candidates
from weft.collectives.stages import stage
from weft.estimation.kernels import KernelModel
from weft.layout.measured import KINDS, PRECISIONS, Measured, MeasuredKind, Product, Rank, Sample, measured_axes
from weft.layout.mesh import spread
from weft.layout.operations import Gemm
from weft.layout.spec import Layout
from weft.layout.table import Floats, Index, LayoutTable
from weft.results import Result

BEYOND = 10.0
"""A fit claims at most this multiple of the best bandwidth seen; only larger messages would tell more."""
ROUNDS = 30
"""Most times that a fit chooses algorithms again."""
LAUNCHES = 5
"""Launches from which a fit starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """``seconds = latency_s + sent bytes / Bps`` of one collective over an axis.

    Attributes:
        sent: bytes that a rank of a ring sends per byte of the buffer, by which ``Bps`` is nccl-tests' bus
            bandwidth of endless messages.
        r2: share of the (weighted) variance of the times that the line explains.
        worst: largest relative error.
    """

    axis: str
    kind: MeasuredKind
    sent: float
    latency_s: float
    Bps: float
    r2: float
    worst: float

    def seconds(self, bytes_: float) -> float:
        """Seconds of a buffer of ``bytes_``."""
        return self.latency_s + self.sent * bytes_ / self.Bps


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisFit:
    """A mesh axis as a tier: achieved bytes/s, seconds of a hop, and the largest relative error of
    ``weft.collectives.cost`` with them."""

    axis: str
    ranks: int
    achieved_Bps: float
    latency_s: float
    worst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFit:
    """The axes, inner to outer, and what each collective costs besides (``Calibration.collective_s``)."""

    axes: tuple[AxisFit, ...]
    launch_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFit:
    """Constants of ``weft.estimation.kernels``, and the largest relative error with them."""

    gemm_efficiency: float
    gemm_depth: float
    kernel_s: float
    worst: float


def bounded_least_squares(matrix: Floats, target: Floats, low: Floats, high: Floats) -> Floats:
    """The unknowns that minimize ``|matrix @ unknowns - target|`` within bounds.

    Unknowns that leave their bounds are put onto them for good, the farthest first, until the rest stays
    inside: exact where at most one is bounded, near where more are.
    """
    result = np.clip(np.zeros(matrix.shape[1]), low, high)
    free = low < high
    while free.any():
        residual = target - matrix[:, ~free] @ result[~free]
        scale = np.linalg.norm(matrix[:, free], axis=0)
        scale = np.where(scale > 0, scale, 1.0)
        result[free] = np.linalg.lstsq(matrix[:, free] / scale, residual, rcond=None)[0] / scale
        inside = np.clip(result, low, high)
        outside = np.abs(result - inside) * np.linalg.norm(matrix, axis=0)
        if not outside.any():
            break
        worst = int(outside.argmax())
        result[worst] = inside[worst]
        free[worst] = False
    return result


# Lines -------------------------------------------------------------------------------------------


def fit_line(samples: Sequence[Sample]) -> Line:
    """The line of one collective's samples over one axis."""
    first = samples[0]
    sent = stage(first.kind, "ring", first.ranks).sent
    passed = sent * np.array([float(sample.bytes) for sample in samples])
    seconds = np.array([sample.seconds for sample in samples])
    least = np.min(seconds / passed) / BEYOND
    matrix = np.stack([np.ones_like(seconds), passed], axis=1) / seconds[:, None]
    low, high = np.array([0.0, least]), np.array([inf, inf])
    latency, pace = bounded_least_squares(matrix, np.ones_like(seconds), low, high)
    errors = (latency + pace * passed) / seconds - 1.0
    mean = np.sum(1.0 / seconds) / np.sum(1.0 / seconds**2)
    spread_out = float(np.sum((1.0 - mean / seconds) ** 2))
    return Line(
        axis=first.axis,
        kind=first.kind,
        sent=sent,
        latency_s=float(latency),
        Bps=float(1.0 / pace),
        r2=1.0 - float(np.sum(errors**2)) / spread_out if spread_out > 0 else 1.0,
        worst=float(np.max(np.abs(errors))),
    )


# Tiers -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Terms:
    """The seconds of one axis' samples as ``fixed + hops * latency + paces / bandwidth``, for every algorithm
    and protocol of ``names`` (rows)."""

    names: list[tuple[str, str]]
    seconds: Floats
    fixed: Floats
    hops: Floats
    paces: Floats

    def rings(self, start: int) -> Index:
        """A ring for every sample, with one protocol; or, last, from the first for the shortest times to the
        last for the longest."""
        ranks = np.argsort(np.argsort(self.seconds)) * len(PROTOCOLS) // len(self.seconds)
        which = ranks if start == len(PROTOCOLS) else np.full(len(ranks), start)
        rows = np.array([self.names.index(("ring", protocol.name)) for protocol in PROTOCOLS])
        return rows[which]

    def modelled(self, launch_s: float, latency_s: float, pace: float) -> Floats:
        """Seconds of every algorithm and sample."""
        return launch_s + self.fixed + self.hops * latency_s + self.paces * pace

    def errors(self, seconds: Floats) -> Floats:
        """Relative errors of the fastest algorithm."""
        relative: Floats = seconds.min(axis=0) / self.seconds - 1.0
        return relative


def fit_network(samples: Sequence[Sample], layout: Layout, *, low_launch_s: float, high_launch_s: float) -> NetworkFit:
    """Latency and bandwidth of a tier per axis, with which ``weft.collectives.cost`` comes nearest.

    Which algorithm and protocol the model takes depends on the unknowns, so that they are sought from several
    launches and protocols; the best counts.
    """
    axes = measured_axes(layout)
    terms = [_terms([sample for sample in samples if sample.axis == axis], layout, axis) for axis in axes]
    result, count = [], LAUNCHES if low_launch_s < high_launch_s else 1
    for launch_s in np.geomspace(low_launch_s, high_launch_s, count):
        for start in range(len(PROTOCOLS) + 1):
            choices = [term.rings(start) for term in terms]
            _, _, near = _descend(terms, choices, launch_s, launch_s)
            result.append(_descend(terms, near, low_launch_s, high_launch_s))
    _, best, _ = min(result, key=itemgetter(0))
    fitted = tuple(
        AxisFit(
            axis=axis,
            ranks=getattr(layout, axis),
            achieved_Bps=float(1.0 / pace),
            latency_s=float(latency),
            worst=float(np.max(np.abs(term.errors(term.modelled(best[0], latency, pace))))),
        )
        for axis, term, (latency, pace) in zip(axes, terms, _pairs(best), strict=True)
    )
    return NetworkFit(axes=fitted, launch_s=float(best[0]))


_Trial = tuple[float, Floats, list[Index]]
"""The sum of the squared relative errors, the unknowns (launch, then latency and seconds per byte of each axis), and
the model's choices of algorithms with them."""


def _descend(terms: Sequence[_Terms], choices: list[Index], low_s: float, high_s: float) -> _Trial:
    """Fit the unknowns to the choices, choose again, and so on; the best of the rounds."""
    trials: list[_Trial] = []
    for _ in range(ROUNDS):
        result = _solve(terms, choices, low_s, high_s)
        modelled = [term.modelled(result[0], *pair) for term, pair in zip(terms, _pairs(result), strict=True)]
        errors = np.concatenate([term.errors(each) for term, each in zip(terms, modelled, strict=True)])
        chosen = [each.argmin(axis=0) for each in modelled]
        trials.append((float(np.sum(errors**2)), result, chosen))
        if all(np.array_equal(new, old) for new, old in zip(chosen, choices, strict=True)):
            break
        choices = chosen
    return min(trials, key=itemgetter(0))


def _pairs(unknowns: Floats) -> Floats:
    """Latency and seconds per byte, a row per axis."""
    return unknowns[1:].reshape(-1, 2)


def _solve(terms: Sequence[_Terms], choices: Sequence[Index], low_s: float, high_s: float) -> Floats:
    """Launch, then latency and seconds per byte of each axis, for given choices of algorithms."""
    count = 1 + 2 * len(terms)
    rows, targets = [], []
    low, high = np.zeros(count), np.full(count, inf)
    low[0], high[0] = low_s, high_s
    for i, (term, choice) in enumerate(zip(terms, choices, strict=True)):
        which = (choice, np.arange(len(term.seconds)))
        row = np.zeros((len(term.seconds), count))
        row[:, 0], row[:, 1 + 2 * i], row[:, 2 + 2 * i] = 1.0, term.hops[which], term.paces[which]
        rows.append(row / term.seconds[:, None])
        targets.append(1.0 - term.fixed[which] / term.seconds)
        low[2 + 2 * i] = np.min(term.seconds / term.paces[which]) / BEYOND
    return bounded_least_squares(np.vstack(rows), np.concatenate(targets), low, high)


def _terms(samples: Sequence[Sample], layout: Layout, axis: str) -> _Terms:
    """What the model says without latency, of a hop of a second, and at one byte a second."""
    tables = []
    for latency_s, Bps in ((0.0, inf), (1.0, inf), (0.0, 1.0)):
        network = _plain_network(layout, latency_s, Bps)
        group = spread(LayoutTable.of([layout]), (axis,), network.spans)
        result = [candidates(sample.kind, np.array([float(sample.bytes)]), group, network) for sample in samples]
        names = sorted({name for each in result for name in each})
        tables.append(np.array([[float(each[n][0]) if n in each else inf for each in result] for n in names]))
    fixed = tables[0]
    never = np.isinf(fixed)
    hops, paces = (np.where(never, 0.0, table - np.where(never, 0.0, fixed)) for table in tables[1:])
    return _Terms(names, np.array([sample.seconds for sample in samples]), fixed, hops, paces)


def _plain_network(layout: Layout, latency_s: float, Bps: float) -> Network:
    """A tier per axis, all alike."""
    sizes = tuple(getattr(layout, axis) for axis in measured_axes(layout))
    return Network(
        spans=tuple(prod(sizes[: i + 1]) for i in range(len(sizes))),
        sizes=sizes,
        kinds=tuple("switch" for _ in sizes),
        achieved_Bps=(Bps,) * len(sizes),
        peak_Bps=(Bps,) * len(sizes),
        latency_s=(latency_s,) * len(sizes),
        reduces=(False,) * len(sizes),
        switch_efficiency=1.0,
        launch_s=0.0,
    )


# Kernels -----------------------------------------------------------------------------------------


def fit_kernels(products: Sequence[Product], chip: Accelerator) -> KernelFit:
    """Constants that give the times of products at the peaks of ``chip``, within the calibration's ranges.

    The products are taken to be bound by arithmetic, not by memory.
    """
    ranges = {name: (low, high) for name, _, low, high, _ in constants()}
    seconds = np.array([product.seconds for product in products])
    bare = np.array([_product_s(product, chip, depth=0.0) for product in products])
    per_depth = np.array([_product_s(product, chip, depth=1.0) for product in products]) - bare
    matrix = np.stack([bare, per_depth, np.ones_like(bare)], axis=1) / seconds[:, None]
    (worst_share, best_share), deepest = ranges["gemm_efficiency"], ranges["gemm_depth"][1]
    low = np.array([1.0 / best_share, 0.0, ranges["kernel_s"][0]])
    high = np.array([1.0 / worst_share, deepest / worst_share, ranges["kernel_s"][1]])
    result = bounded_least_squares(matrix, np.ones_like(seconds), low, high)
    result[1] = min(result[1], deepest * result[0])
    return KernelFit(
        gemm_efficiency=float(1.0 / result[0]),
        gemm_depth=float(result[1] / result[0]),
        kernel_s=float(result[2]),
        worst=float(np.max(np.abs(matrix @ result - 1.0))),
    )


def _product_s(product: Product, chip: Accelerator, *, depth: float) -> float:
    """Seconds at the peak, where only the depth of tiles costs anything."""
    ideal = replace(Calibration(), gemm_efficiency=1.0, gemm_depth=depth, kernel_s=0.0)
    sides = (np.array([float(side)]) for side in (product.m, product.n, product.k))
    m, n, k = sides
    gemm = Gemm(name="product", phase="forward", m=m, n=n, k=k)
    kernels = KernelModel(replace(chip, memory_Bps=inf), ideal, product.precision)
    return float(kernels.seconds(gemm)[0])


DIGITS = 4
"""Significant digits of what is written."""
LIMITED = ("kernel_s", "launch_s", "collective_s")
"""Times that get a note where the fit ends at the limit of what is plausible."""
ASSUMED_POWER_W = {"cpu": 100.0, "cuda": 500.0}
"""Power of a rank; only the energy of a training run depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedSample(Document):
    """A measured collective with the bandwidths of nccl-tests."""

    DOCUMENT = "sample.* algorithm_Bps bus_Bps"

    sample: Sample
    algorithm_Bps: float
    bus_Bps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedProduct(Document):
    """A measured product with its FLOP/s."""

    DOCUMENT = "product.* achieved_flops=product.achieved_flops"

    product: Product


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Described(Result):
    """A measurement, what was fitted to it, and the files made of that.

    Attributes:
        lines: one for each axis and collective.
        constants: of ``Calibration``, within their plausible ranges.
        notes: what does not fit into those.
    """

    SCHEMA = "weft.bench/1"
    DOCUMENT = """
        device=measured.device repeats=measured.repeats rank=measured.rank samples products
        attention=measured.attention layout=measured.layout lines network kernels cluster calibration=constants
        notes"""

    measured: Measured
    lines: tuple[Line, ...]
    network: NetworkFit
    kernels: KernelFit
    cluster: Cluster
    constants: dict[str, float]
    notes: tuple[str, ...]

    def line(self, axis: str, kind: str) -> Line:
        """The fit of one collective over an axis."""
        return next(line for line in self.lines if (line.axis, line.kind) == (axis, kind))

    def bus_Bps(self, sample: Sample) -> float:
        """Bytes/s that a ring sends in a sample."""
        return self.line(sample.axis, sample.kind).sent * sample.bytes / sample.seconds

    def by_shape(self) -> Measurements:
        """The products, attention, and the collectives whose own line describes them no worse than the tier does, as a
        calibration file holds them."""
        products = tuple(
            ProductTime(
                m=product.m, n=product.n, k=product.k, precision=product.precision, seconds=_rounded(product.seconds)
            )
            for product in self.measured.products
        )
        tiers = {axis.axis: axis for axis in self.network.axes}
        collectives = tuple(
            CollectiveTime(
                kind=line.kind,
                scope=line.axis,
                ranks=tiers[line.axis].ranks,
                Bps=_rounded(line.Bps),
                latency_s=_rounded(line.latency_s),
            )
            for line in self.lines
            if line.worst <= tiers[line.axis].worst
        )
        attention = tuple(replace(time, seconds=_rounded(time.seconds)) for time in self.measured.attention)
        return Measurements(products=products, attention=attention, collectives=collectives)

    @property
    def samples(self) -> tuple[RatedSample, ...]:
        """The measured collectives with their bandwidths."""
        return tuple(
            RatedSample(sample=sample, algorithm_Bps=sample.bytes / sample.seconds, bus_Bps=self.bus_Bps(sample))
            for sample in self.measured.samples
        )

    @property
    def products(self) -> tuple[RatedProduct, ...]:
        """The measured products with their FLOP/s."""
        return tuple(RatedProduct(product=product) for product in self.measured.products)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row a measured collective: bytes, seconds, and the bandwidths of nccl-tests in bytes/s."""
        return [encode(sample) for sample in self.samples]


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
    result = {
        "gemm_efficiency": kernels.gemm_efficiency,
        "gemm_depth": kernels.gemm_depth,
        "memory_efficiency": memory_efficiency,
        "kernel_s": kernels.kernel_s,
        "launch_s": min(max(measured.rank.launch_s, ranges["launch_s"][0]), ranges["launch_s"][1]),
        "scale_up_efficiency": base.scale_up_efficiency,
        "scale_out_efficiency": base.scale_out_efficiency,
        "collective_s": network.launch_s,
    }
    world = measured.layout.world
    alone = ("tiers: one rank has no network to measure",) if world == 1 else ()
    return Described(
        measured=measured,
        lines=tuple(fit_line(measured.of(axis, kind)) for axis in measured.axes for kind in KINDS),
        network=network,
        kernels=kernels,
        cluster=Cluster(
            name=f"{chip.name} x {world}",
            accelerator=chip,
            count=world,
            tiers=tiers,
            defaults=(f"accelerator.power: {chip.power_w:g} W, was not measured", *alone),
        ),
        constants={name: _rounded(value) for name, value in result.items()},
        notes=tuple(
            f"{name} = {result[name]:g} s is the most that is plausible; what was measured is longer"
            for name in LIMITED
            if result[name] >= ranges[name][1]
        ),
    )


def peak_flops(products: Sequence[Product], precision: str) -> float:
    """The best of the products in FLOP/s, 0 without any."""
    return max((product.achieved_flops for product in products if product.precision == precision), default=0.0)


def _tiers(network: NetworkFit, rank: Rank, base: Calibration) -> tuple[Tier, ...]:
    if not network.axes:
        Bps = _rounded(rank.copy_Bps)
        return (Tier(name="alone", size=1, kind="switch", bandwidth_Bps=Bps, latency_s=0.0),)
    shares = (base.scale_up_efficiency, *[base.scale_out_efficiency] * (len(network.axes) - 1))
    return tuple(
        Tier(
            name=axis.axis,
            size=axis.ranks,
            kind="switch",
            bandwidth_Bps=_rounded(axis.achieved_Bps / share),
            latency_s=_rounded(axis.latency_s),
        )
        for axis, share in zip(network.axes, shares, strict=True)
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


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
