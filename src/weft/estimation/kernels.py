"""Seconds of one kernel: a roofline with the shape effects that matter.

GEMM time is tiles in waves over the multiprocessors, each tile paying for its depth and its prologue, or the
operands' traffic to memory, whichever is longer (NVIDIA, "Matrix Multiplication Background User's Guide": tile
and wave quantization).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Accelerator
from weft.layout.operations import Computation, FlashAttention, Gemm
from weft.layout.table import Floats
from weft.model.job import Precision

TILES = ((256.0, 128.0, 1.0), (128.0, 128.0, 0.92), (64.0, 64.0, 0.62))
"""Output tiles that libraries choose from: rows, columns, share of the large-tile throughput."""

ATTENTION_TILE = 128.0
"""Keys of a tile of fused attention; those at a mask's edge are computed whole, half of them for nothing."""
USUAL_FEATURES = 128.0
"""Width of a head at which attention efficiency is stated."""

OPERAND_BYTES = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "mxfp8": 1.0, "nvfp4": 0.5625}
"""Bytes per operand element; nvfp4 carries a scale byte per 16 elements."""

CAST_BYTES = {"fp8": 3.0, "mxfp8": 6.0, "nvfp4": 6.0}
"""Bytes moved per operand element to quantize it (read 16 bits, write; twice where row and column copies
differ)."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Times computations on one accelerator with one calibration and precision."""

    accelerator: Accelerator
    calibration: Calibration
    precision: Precision

    def seconds(self, operation: Computation) -> Floats:
        """Device time of one computation, 0 where it has no work."""
        if isinstance(operation, Gemm):
            return self._gemm(operation)
        if isinstance(operation, FlashAttention):
            return self._attention(operation)
        constants = self.calibration
        routed = constants.routing_overhead if operation.name.startswith("expert.") else 1.0
        return self.memory_s(operation.bytes * constants.pass_overhead * routed)

    @property
    def launches(self) -> float:
        """Kernels of one GEMM: itself, and one that quantizes each operand."""
        return 3.0 if self.precision in CAST_BYTES else 1.0

    def memory_s(self, bytes_: Floats) -> Floats:
        """A memory-bound kernel."""
        Bps = self.accelerator.memory_Bps * self.calibration.memory_efficiency
        return np.where(bytes_ > 0, bytes_ / Bps + self.calibration.kernel_s, 0.0)

    def half_peak(self) -> float:
        """The 16-bit matrix peak in FLOP/s (that of the job's own precision in 32 bits)."""
        if self.precision in ("fp32", "tf32", "fp16"):
            return self.accelerator.peak_flops(self.precision)
        return self.accelerator.peak_flops("bf16")

    def peak(self, *, core: bool) -> float:
        """The matrix peak in FLOP/s for linear layers, or for what stays in 16 bits."""
        return self.half_peak() if core else self.accelerator.peak_flops(self.precision)

    def clock(self) -> float:
        """Share of the throughput at the reference power that the board's limit leaves."""
        reference = self.calibration.reference_power_w
        if not reference or self.accelerator.power_w >= reference:
            return 1.0
        return float((self.accelerator.power_w / reference) ** self.calibration.power_exponent)

    def _attention(self, operation: FlashAttention) -> Floats:
        share = self.calibration.attention_efficiency * self.calibration.attention_share
        width = operation.features / (operation.features + self.calibration.attention_softmax)
        usual = USUAL_FEATURES / (USUAL_FEATURES + self.calibration.attention_softmax)
        masked = 1.0 + operation.edges * ATTENTION_TILE / 2.0 / operation.pairs
        rate = self.half_peak() * share * self.clock() * width / usual
        compute = operation.flops * masked / rate
        moved = operation.bytes / (self.accelerator.memory_Bps * self.calibration.memory_efficiency)
        return np.maximum(compute, moved) + operation.calls * self.calibration.kernel_s

    def _gemm(self, gemm: Gemm) -> Floats:
        core = gemm.role != "linear"
        reduced = self.precision in CAST_BYTES and not core
        efficiency = self.calibration.low_precision_efficiency if reduced else self.calibration.gemm_efficiency
        rate = self.peak(core=core) * efficiency * self.calibration.gemm_share * self.clock()
        # A tile's prologue takes cycles, in which faster arithmetic would have gone deeper.
        depth = self.calibration.gemm_depth * self.peak(core=core) / self.half_peak()
        compute = self._tiles(gemm) * (gemm.k + depth) * 2.0 / rate
        width = max(OPERAND_BYTES[self.precision], 2.0)
        operand = width if core else OPERAND_BYTES[self.precision]
        elements = (gemm.m + gemm.n) * gemm.k * operand + gemm.m * gemm.n * width
        memory = self.accelerator.memory_Bps * self.calibration.memory_efficiency
        seconds = np.maximum(compute, gemm.copies * elements / memory) + self.calibration.kernel_s
        if reduced:
            cast = gemm.copies * (gemm.m + gemm.n) * gemm.k * CAST_BYTES[self.precision] / 2.0
            seconds = seconds + cast / memory
        return np.where(gemm.m * gemm.n * gemm.k > 0, seconds, 0.0)

    def _tiles(self, gemm: Gemm) -> Floats:
        """Output elements that the machine is busy for: tiles rounded up to the matrix, then to waves."""
        units = float(self.accelerator.multiprocessors)
        best = np.full_like(gemm.m, np.inf)
        for rows, columns, share in TILES:
            tiles = np.ceil(gemm.m / rows) * np.ceil(gemm.n / columns) * gemm.copies
            waves = np.maximum(0.5 * (np.ceil(tiles / units) + tiles / units), 1.0)
            best = np.minimum(best, waves * units * rows * columns / share)
        return best
