"""What Weft's models make of measured times: lines, tiers of a network, constants of kernels.

All fits are least squares of relative errors, so that small messages and products count as large ones do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, prod

import numpy as np

from weft.cluster.calibration import Calibration, constants
from weft.cluster.spec import Accelerator
from weft.collectives.cost import PROTOCOLS, Network, candidates
from weft.collectives.stages import stage
from weft.estimation.kernels import Kernels
from weft.layout.mesh import spread
from weft.layout.operations import Gemm
from weft.layout.spec import Layout
from weft.layout.table import Floats, Index, LayoutTable
from weft.runtime.measure.measured import MeasuredKind, Product, Sample, measured_axes

BEYOND = 10.0
"""A fit claims at most this multiple of the best bandwidth seen; only larger messages would tell more."""
ROUNDS = 30
"""Most times that a fit chooses algorithms anew."""
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
    found = np.clip(np.zeros(matrix.shape[1]), low, high)
    free = low < high
    while free.any():
        rest = target - matrix[:, ~free] @ found[~free]
        scale = np.linalg.norm(matrix[:, free], axis=0)
        scale = np.where(scale > 0, scale, 1.0)
        found[free] = np.linalg.lstsq(matrix[:, free] / scale, rest, rcond=None)[0] / scale
        inside = np.clip(found, low, high)
        outside = np.abs(found - inside) * np.linalg.norm(matrix, axis=0)
        if not outside.any():
            break
        worst = int(outside.argmax())
        found[worst] = inside[worst]
        free[worst] = False
    return found


# Lines -------------------------------------------------------------------------------------------


def fit_line(samples: Sequence[Sample]) -> Line:
    """The line of one collective's samples over one axis."""
    first = samples[0]
    sent = stage(first.kind, "ring", first.ranks).sent
    passed = sent * np.array([float(one.bytes) for one in samples])
    seconds = np.array([one.seconds for one in samples])
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
    terms = [_terms([one for one in samples if one.axis == axis], layout, axis) for axis in axes]
    found, count = [], LAUNCHES if low_launch_s < high_launch_s else 1
    for launch_s in np.geomspace(low_launch_s, high_launch_s, count):
        for start in range(len(PROTOCOLS) + 1):
            choices = [one.rings(start) for one in terms]
            near = _descend(terms, choices, launch_s, launch_s)
            found.append(_descend(terms, near.choices, low_launch_s, high_launch_s))
    best = min(found, key=lambda one: one.error)
    fitted = tuple(
        AxisFit(
            axis=axis,
            ranks=getattr(layout, axis),
            achieved_Bps=float(1.0 / pace),
            latency_s=float(latency),
            worst=float(np.max(np.abs(one.errors(one.modelled(best.unknowns[0], latency, pace))))),
        )
        for axis, one, (latency, pace) in zip(axes, terms, _pairs(best.unknowns), strict=True)
    )
    return NetworkFit(axes=fitted, launch_s=float(best.unknowns[0]))


@dataclass(frozen=True, slots=True)
class _Trial:
    """Unknowns (launch, then latency and seconds per byte of each axis), the model's choices of algorithms
    with them, and the sum of the squared relative errors."""

    unknowns: Floats
    choices: list[Index]
    error: float


def _descend(terms: Sequence[_Terms], choices: list[Index], low_s: float, high_s: float) -> _Trial:
    """Fit the unknowns to the choices, choose anew, and so on; the best of the rounds."""
    trials: list[_Trial] = []
    for _ in range(ROUNDS):
        found = _solve(terms, choices, low_s, high_s)
        made = [one.modelled(found[0], *pair) for one, pair in zip(terms, _pairs(found), strict=True)]
        errors = np.concatenate([one.errors(each) for one, each in zip(terms, made, strict=True)])
        chosen = [each.argmin(axis=0) for each in made]
        trials.append(_Trial(found, chosen, float(np.sum(errors**2))))
        if all(np.array_equal(new, old) for new, old in zip(chosen, choices, strict=True)):
            break
        choices = chosen
    return min(trials, key=lambda one: one.error)


def _pairs(unknowns: Floats) -> Floats:
    """Latency and seconds per byte, a row per axis."""
    return unknowns[1:].reshape(-1, 2)


def _solve(terms: Sequence[_Terms], choices: Sequence[Index], low_s: float, high_s: float) -> Floats:
    """Launch, then latency and seconds per byte of each axis, for given choices of algorithms."""
    count = 1 + 2 * len(terms)
    rows, targets = [], []
    low, high = np.zeros(count), np.full(count, inf)
    low[0], high[0] = low_s, high_s
    for i, (one, choice) in enumerate(zip(terms, choices, strict=True)):
        which = (choice, np.arange(len(one.seconds)))
        row = np.zeros((len(one.seconds), count))
        row[:, 0], row[:, 1 + 2 * i], row[:, 2 + 2 * i] = 1.0, one.hops[which], one.paces[which]
        rows.append(row / one.seconds[:, None])
        targets.append(1.0 - one.fixed[which] / one.seconds)
        low[2 + 2 * i] = np.min(one.seconds / one.paces[which]) / BEYOND
    return bounded_least_squares(np.vstack(rows), np.concatenate(targets), low, high)


def _terms(samples: Sequence[Sample], layout: Layout, axis: str) -> _Terms:
    """What the model says without latency, of a hop of a second, and at one byte a second."""
    tables = []
    for latency_s, Bps in ((0.0, inf), (1.0, inf), (0.0, 1.0)):
        network = _plain_network(layout, latency_s, Bps)
        group = spread(LayoutTable.of([layout]), (axis,), network.spans)
        found = [candidates(one.kind, np.array([float(one.bytes)]), group, network) for one in samples]
        names = sorted({name for each in found for name in each})
        tables.append(np.array([[float(each[n][0]) if n in each else inf for each in found] for n in names]))
    fixed = tables[0]
    never = np.isinf(fixed)
    hops, paces = (np.where(never, 0.0, table - np.where(never, 0.0, fixed)) for table in tables[1:])
    return _Terms(names, np.array([one.seconds for one in samples]), fixed, hops, paces)


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
    seconds = np.array([one.seconds for one in products])
    bare = np.array([_product_s(one, chip, depth=0.0) for one in products])
    per_depth = np.array([_product_s(one, chip, depth=1.0) for one in products]) - bare
    matrix = np.stack([bare, per_depth, np.ones_like(bare)], axis=1) / seconds[:, None]
    (worst_share, best_share), deepest = ranges["gemm_efficiency"], ranges["gemm_depth"][1]
    low = np.array([1.0 / best_share, 0.0, ranges["kernel_s"][0]])
    high = np.array([1.0 / worst_share, deepest / worst_share, ranges["kernel_s"][1]])
    found = bounded_least_squares(matrix, np.ones_like(seconds), low, high)
    found[1] = min(found[1], deepest * found[0])
    return KernelFit(
        gemm_efficiency=float(1.0 / found[0]),
        gemm_depth=float(found[1] / found[0]),
        kernel_s=float(found[2]),
        worst=float(np.max(np.abs(matrix @ found - 1.0))),
    )


def _product_s(product: Product, chip: Accelerator, *, depth: float) -> float:
    """Seconds at the peak, where only the depth of tiles costs anything."""
    ideal = replace(Calibration(), gemm_efficiency=1.0, gemm_depth=depth, kernel_s=0.0)
    sides = (np.array([float(side)]) for side in (product.m, product.n, product.k))
    m, n, k = sides
    gemm = Gemm(name="product", phase="forward", m=m, n=n, k=k)
    kernels = Kernels(replace(chip, memory_Bps=inf), ideal, product.precision)
    return float(kernels.seconds(gemm)[0])
