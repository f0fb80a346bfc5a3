"""Seconds of one kernel: a roofline with the shape effects that matter.

GEMM time is tiles in waves over the multiprocessors, each tile paying for its depth and its prologue, or the
operands' traffic to memory, whichever is longer (NVIDIA, "Matrix Multiplication Background User's Guide": tile
and wave quantization).  Where the calibration holds measured times, they count for their shapes
(``ShapeTable``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from weft.cluster.calibration import DEFAULT, AttentionTime, Calibration, MemoryTime
from weft.cluster.spec import Accelerator, Cluster
from weft.layout.operations import (
    AttentionShape,
    Computation,
    FlashAttention,
    Gemm,
    Pass,
    Phase,
    Scan,
    causal_attention,
)
from weft.layout.spec import Layout
from weft.layout.step import TrainingStep
from weft.layout.table import Floats, Index, LayoutTable, collapse
from weft.model.job import Job, Precision

TILES = ((256.0, 128.0, 1.0), (128.0, 128.0, 0.92), (64.0, 64.0, 0.62))
"""Output tiles that libraries choose from: rows, columns, share of the large-tile throughput."""

ATTENTION_TILE = 128.0
"""Keys of a tile of fused attention; those at a mask's edge are computed whole, half of them for nothing."""
USUAL_FEATURES = 128.0
"""Width of a head at which attention efficiency is stated."""

OPERAND_BYTES = {
    "fp32": 4.0,
    "tf32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8-rowwise": 1.0,
    "mxfp8": 1.0,
    "nvfp4": 0.5625,
    "int8": 1.0,
}
"""Bytes per operand element; nvfp4 carries a scale byte per 16 elements."""

CAST_BYTES = {"fp8": 3.0, "fp8-rowwise": 10.0, "mxfp8": 6.0, "nvfp4": 6.0, "int8": 10.0}
"""Bytes moved per operand element to quantize it (read 16 bits, write; twice where row and column copies
differ, and read once more for the largest of each row, which scales by row need beforehand)."""

ACCUMULATION = 0.5
"""Share of the time to read and write a gradient accumulated in place that the product behind it does not hide, as
in SimuMax's table of kernels measured on B200 (configs/system/b200_bf16_ceperm.json; matmul and group_matmul)."""

NO_FASTER = "fp8-rowwise"
"""The products that run no faster than in 16 bits: torchtitan's benchmark of June 2025 (benchmarks/
asyncTP_llama3_h100_2025-06_torchtitan.md) has them slower than bf16, where scales by tensor are 1.4 times faster."""


NORMS = ("norms", "final-norm")
"""The passes whose traffic grows by ``norm_overhead``."""


EXACT = 0.01
"""Powers of two within which a shape counts as measured."""
REACH = 2.0
"""A measured shape speaks for shapes no side of which is further from its own than by this factor."""
APART = 16.0
"""A side of this against 1 keeps families apart."""
_STEPS = 64.0
"""Sides closer than one over this are one."""


@dataclass(frozen=True, slots=True)
class ShapeTable:
    """Measured shapes of one family of kernels.

    ``logs`` holds log2 of each side (a row a shape), ``ratios`` the measured over the modelled seconds.
    """

    logs: Floats
    ratios: Floats

    def scale(self, sides: Sequence[Floats]) -> Floats:
        """By what modelled seconds of shapes are to be multiplied: the ratio of the nearest measured shape (itself
        where it was measured), 1 where none is within ``REACH``."""
        distance, nearest = self._nearest(sides)
        result: Floats = np.where(np.isfinite(distance), self.ratios[nearest] if len(self.ratios) else 1.0, 1.0)
        return result

    def distance(self, sides: Sequence[Floats]) -> Floats:
        """How far the nearest measured shape is, in powers of two over all sides; infinite beyond ``REACH``."""
        return self._nearest(sides)[0]

    def _nearest(self, sides: Sequence[Floats]) -> tuple[Floats, Index]:
        shape = np.broadcast_shapes(*(np.shape(side) for side in sides))
        columns = [np.broadcast_to(side, shape) for side in sides]
        if not len(self.ratios):
            return np.full(shape, np.inf), np.zeros(shape, dtype=np.intp)
        # Distances are computed once for each distinct shape, as whole numbers of 1/64 of an element.
        groups = collapse([np.rint(column * _STEPS).astype(np.int64) for column in columns])
        # Shape (sides, distinct shapes, measured shapes): powers of two between each pair.
        wanted = np.log2(np.maximum([column[groups.first] for column in columns], 1e-9))
        off = np.abs(wanted[:, :, None] - self.logs.T[:, None, :])
        distance = np.where(off.max(axis=0) <= np.log2(REACH), off.sum(axis=0), np.inf)
        nearest = distance.argmin(axis=1)
        return distance[np.arange(len(nearest)), nearest][groups.group], nearest[groups.group]


@dataclass(frozen=True, slots=True)
class KernelModel:
    """Times computations on one accelerator with one calibration and precision."""

    accelerator: Accelerator
    calibration: Calibration
    precision: Precision
    gradient_bytes: float = 4.0
    ranks: int = 1

    def seconds(self, operation: Computation) -> Floats:
        """Device time of one computation, 0 where it has no work."""
        if isinstance(operation, Gemm):
            return self._gemm(operation)
        if isinstance(operation, FlashAttention):
            return self._attention(operation)
        if isinstance(operation, Scan):
            return self._scan(operation)
        constants = self.calibration
        routed = constants.routing_overhead if operation.name.startswith("expert.") else 1.0
        normed = constants.norm_overhead if operation.name in NORMS else 1.0
        bytes_ = operation.bytes * constants.pass_overhead * routed * normed
        if constants.measured is None or (time := self._measured_pass(operation)) is None:
            return self.memory_s(bytes_)
        moved = bytes_ if time.name == DEFAULT else operation.bytes
        return np.where(moved > 0, moved / time.Bps + time.latency_s, 0.0)

    @property
    def launches(self) -> float:
        """Kernels of one GEMM: itself, and one that quantizes each operand."""
        return 3.0 if self.precision in CAST_BYTES else 1.0

    def memory_s(self, bytes_: Floats) -> Floats:
        """A memory-bound kernel."""
        return np.where(bytes_ > 0, bytes_ / self._memory_Bps() + self.calibration.kernel_s, 0.0)

    @property
    def half_precision(self) -> Precision:
        """What stays in 16 bits where linear layers have fewer; the job's own precision otherwise."""
        return "bf16" if self.precision in CAST_BYTES else self.precision

    def peak(self, *, core: bool) -> float:
        """The matrix peak in FLOP/s for linear layers, or for what stays in 16 bits."""
        return self.accelerator.peak_flops(self.half_precision if core else self.precision)

    def clock(self) -> float:
        """Share of the throughput at the reference power that the board's limit leaves to the slowest of all ranks,
        for which the others wait."""
        reference = self.calibration.reference_power_w
        if not reference:
            return 1.0
        slowest = 1.0 - self.calibration.clock_spread * expected_largest(self.ranks)
        power = min(self.accelerator.power_w / reference, 1.0)
        return float(slowest * power**self.calibration.power_exponent)

    def _measured_pass(self, operation: Pass) -> MemoryTime | None:
        """Measured time of a memory-bound kernel: under its name, else under none.  The first
        says how fast the software's own kernel is, and needs no constant for its traffic."""
        times = self.calibration.measured.memory if self.calibration.measured is not None else ()
        for name in (operation.name, DEFAULT):
            for time in times:
                if time.name == name and time.phase in ("any", operation.phase):
                    return time
        return None

    def origin(self, operation: Gemm | FlashAttention) -> str:
        """Whether the time of an operation of one layout was measured, is that of a near shape, or modelled."""
        measured = self._lookup(operation)
        distance = np.inf if measured is None else float(measured[0].distance(measured[1])[0])
        if distance <= EXACT:
            return "measured"
        return "near" if distance < np.inf else "modelled"

    def _lookup(self, operation: Gemm | FlashAttention) -> tuple[ShapeTable, tuple[Floats, ...]] | None:
        """Measured shapes of an operation's family, and its sides; None where nothing was measured."""
        if self.calibration.measured is None:
            return None
        if isinstance(operation, Gemm):
            precision = self.precision if self._reduced(operation) else self.half_precision
            return _product_table(self, operation.phase, precision), _sides(operation)
        if operation.shape is None or operation.edges != 1:
            return None
        return _attention_table(self, operation.phase), _attention_sides(operation.shape)

    def _attention(self, operation: FlashAttention) -> Floats:
        result = self._lookup(operation)
        seconds = self._modelled_attention(operation)
        return seconds if result is None else seconds * result[0].scale(result[1])

    def _modelled_attention(self, operation: FlashAttention) -> Floats:
        share = self.calibration.attention_efficiency * self.calibration.attention_share
        width = operation.features / (operation.features + self.calibration.attention_softmax)
        usual = USUAL_FEATURES / (USUAL_FEATURES + self.calibration.attention_softmax)
        # Tiles on a mask's edge are computed whole: half a tile for each query is done for nothing.
        masked = 1.0 + operation.edges * ATTENTION_TILE / 2.0 / operation.pairs
        rate = self.peak(core=True) * share * self.clock() * width / usual
        compute = operation.flops * masked / rate
        # Loads of queries, stores and the passes that prepare a backward kernel overlap nothing.
        moved = operation.bytes / self._memory_Bps()
        return compute + moved + operation.calls * self.calibration.kernel_s

    def _scan(self, operation: Scan) -> Floats:
        """A share of its roofline: products at the pace of fused attention, whose tiles and depths are alike."""
        compute = operation.flops / (self.peak(core=True) * self.calibration.attention_efficiency * self.clock())
        roof = np.maximum(compute, operation.bytes / self._memory_Bps())
        return roof / self.calibration.scan_share + operation.calls * self.calibration.kernel_s

    def _gemm(self, gemm: Gemm) -> Floats:
        reduced = self._reduced(gemm)
        seconds = self._modelled_product(gemm)
        if (result := self._lookup(gemm)) is not None:
            seconds = seconds * result[0].scale(result[1])
        if reduced:
            cast = gemm.copies * (gemm.m + gemm.n) * gemm.k * CAST_BYTES[self.precision] / 2.0
            seconds = seconds + cast / self._memory_Bps()
        return np.where(gemm.m * gemm.n * gemm.k > 0, seconds, 0.0)

    def _reduced(self, gemm: Gemm) -> bool:
        """Whether the product runs in 8 or 4 bits, its operands being quantized before."""
        return self.precision in CAST_BYTES and gemm.role == "linear"

    def _modelled_product(self, gemm: Gemm) -> Floats:
        """The product alone."""
        core, reduced = gemm.role != "linear", self._reduced(gemm)
        faster = reduced and self.precision != NO_FASTER
        efficiency = self.calibration.low_precision_efficiency if faster else self.calibration.gemm_efficiency
        peak = self.peak(core=not faster) if reduced else self.peak(core=core)
        rate = peak * efficiency * self.calibration.gemm_share * self.clock()
        # A tile's prologue takes cycles, in which faster arithmetic would have gone deeper.
        depth = self.calibration.gemm_depth * peak / self.peak(core=True)
        # Roofline: tiles that the machine is busy for, each as deep as k and a prologue, or the operands' traffic.
        compute = self._tiles(gemm) * (gemm.k + depth) * 2.0 / rate
        width = max(OPERAND_BYTES[self.precision], 2.0)
        operand = width if core else OPERAND_BYTES[self.precision]
        moved = (gemm.m + gemm.n) * gemm.k * operand
        if gemm.phase == "weight-gradient" and gemm.role != "core":
            gradient_bytes = gemm.copies * gemm.m * gemm.n * 2.0 * self.gradient_bytes
            added = ACCUMULATION * gradient_bytes / self._memory_Bps()
        else:
            moved, added = moved + gemm.m * gemm.n * width, np.zeros_like(gemm.m)
        calls = 1.0 if gemm.role == "core" else gemm.copies
        seconds = np.maximum(compute, gemm.copies * moved / self._memory_Bps())
        return seconds + added + calls * self.calibration.kernel_s

    def _memory_Bps(self) -> float:
        return self.accelerator.memory_Bps * self.calibration.memory_efficiency

    def _tiles(self, gemm: Gemm) -> Floats:
        """Output elements that the machine is busy for: tiles rounded up to the matrix, then to waves."""
        units = float(self.accelerator.multiprocessors)
        best = np.full_like(gemm.m, np.inf)
        for rows, columns, share in TILES:
            tiles = np.ceil(gemm.m / rows) * np.ceil(gemm.n / columns) * gemm.copies
            # Half-way between whole waves and any share of one, but at least one wave.
            waves = np.maximum(0.5 * (np.ceil(tiles / units) + tiles / units), 1.0)
            # Libraries choose the tile that takes least.
            best = np.minimum(best, waves * units * rows * columns / share)
        return best


@lru_cache(maxsize=1024)
def expected_largest(count: int) -> float:
    """About the expected largest of so many draws from the standard normal distribution: the median of its
    distribution, a little further out (Chen and Tyler 1999, doi:10.1080/00031305.1999.10474431)."""
    return NormalDist().inv_cdf(0.5264 ** (1.0 / count)) if count > 1 else 0.0


SAME_SPEED: dict[Precision, Precision] = {"fp16": "bf16", "mxfp8": "fp8"}
"""Precisions whose products take the time of another's."""


def _speed(precision: Precision) -> Precision:
    return SAME_SPEED.get(precision, precision)


def _sides(gemm: Gemm) -> tuple[Floats, ...]:
    copies = np.ones_like(gemm.m) * gemm.copies
    return gemm.m, gemm.n, gemm.k, copies, np.where(copies > 1, APART, 1.0)


def _attention_sides(shape: AttentionShape) -> tuple[Floats, ...]:
    ones = np.ones_like(shape.heads)
    sides = (shape.batch, shape.sequence, shape.heads, shape.kv_heads, ones * shape.qk_dim, ones * shape.v_dim)
    return tuple(ones * side for side in sides)


@lru_cache(maxsize=64)
def _product_table(kernels: KernelModel, phase: Phase, precision: Precision) -> ShapeTable:
    """Measured products of a phase and a precision; those of any phase also stand for their transposes."""
    measured = kernels.calibration.measured
    entries = [
        entry
        for entry in (measured.products if measured is not None else ())
        if entry.phase in ("any", phase) and _speed(entry.precision) == _speed(precision)
    ]
    entries += [replace(entry, m=entry.n, n=entry.m) for entry in entries if entry.phase == "any"]
    named = ("m", "n", "k", "groups")
    m, n, k, copies = (np.array([getattr(entry, side) for entry in entries], dtype=np.float64) for side in named)
    gemm = Gemm(name="measured", phase=phase, m=m, n=n, k=k, copies=copies)
    if precision != kernels.precision:
        gemm = replace(gemm, role="head")
    seconds = kernels._modelled_product(gemm)
    return _table(_sides(gemm), np.array([entry.seconds for entry in entries]), seconds)


@lru_cache(maxsize=64)
def _attention_table(kernels: KernelModel, phase: Phase) -> ShapeTable:
    """Measured attention, forward or backward."""
    measured = kernels.calibration.measured
    entries = [
        entry
        for entry in (measured.attention if measured is not None else ())
        if entry.phase in ("any", phase) and _speed(entry.precision) == _speed(kernels.half_precision)
    ]
    shapes = [_attention_shape(entry) for entry in entries]
    calls = [causal_attention(shape)[phase != "forward"] for shape in shapes]
    seconds = np.array([kernels._modelled_attention(call)[0] for call in calls])
    sides = [np.concatenate(side) for side in zip(*map(_attention_sides, shapes), strict=True)]
    return _table(sides, np.array([entry.seconds for entry in entries]), seconds)


def _attention_shape(time: AttentionTime) -> AttentionShape:
    return AttentionShape(
        batch=np.array([time.batch]),
        sequence=np.array([time.sequence]),
        heads=np.array([time.heads]),
        kv_heads=np.array([time.kv_heads]),
        qk_dim=time.qk_dim,
        v_dim=time.v_dim,
    )


def _table(sides: Sequence[Floats], measured: Floats, modelled: Floats) -> ShapeTable:
    logs = np.log2(np.stack(sides, axis=1)) if sides else np.zeros((0, 0))
    return ShapeTable(logs, measured / modelled)


def coverage(job: Job, cluster: Cluster, layout: Layout, constants: Calibration) -> str | None:
    """How many shapes of products and attention were measured, are near a measured one, or take the closed form, and
    where collectives were measured; None where nothing was."""
    if constants.measured is None:
        return None
    kernels = KernelModel(cluster.accelerator, constants, job.recipe.precision)
    result: dict[object, str] = {}
    for part in TrainingStep(job.model, job.recipe, LayoutTable.of([layout])).operations:
        for computation in part.computations:
            if isinstance(computation, Gemm):
                sides = (float(computation.m[0]), float(computation.n[0]), float(computation.k[0]))
                result[computation.phase, *sides, str(computation.copies), computation.role] = kernels.origin(
                    computation
                )
            elif isinstance(computation, FlashAttention):
                result[computation.phase, float(computation.flops[0]), float(computation.bytes[0])] = kernels.origin(
                    computation
                )
    counts = Counter(result.values())
    scopes = " and ".join(dict.fromkeys(entry.scope for entry in constants.measured.collectives))
    return (
        f"of {len(result)} shapes of products and attention {counts['measured']} as measured,"
        f" {counts['near']} from near ones, {counts['modelled']} by the closed form ({constants.name})"
        + (f"; collectives of {scopes} as measured" if scopes else "")
    )
