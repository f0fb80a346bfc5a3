"""Results: tables of estimates for a search, one estimate for a person."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from weft.estimation.trust import ErrorBar
from weft.layout.spec import Layout
from weft.layout.table import Floats, Index

TIME_PARTS = (
    "forward_s",
    "backward_s",
    "recompute_s",
    "tensor_s",
    "context_s",
    "expert_s",
    "weights_s",
    "stage_send_s",
    "bubble_s",
    "data_s",
    "optimizer_s",
    "offload_s",
    "host_s",
)
"""Parts of the iteration time, in seconds; they add up to it."""

TOTALS = ("iteration_s", "memory_bytes", "lower_bound_s", "executed_flops", "replayed_flops")

MEMORY_PARTS = (
    "weights_bytes",
    "gradients_bytes",
    "optimizer_bytes",
    "activations_bytes",
    "buffers_bytes",
    "reserve_bytes",
)
"""Parts of the memory of the fullest stage, in bytes; they add up to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeParts:
    """Seconds of the slowest stage's iteration: computation, *exposed* communication by axis, bubble and
    the rest.

    ``forward``/``backward`` are kernels (backward with the slow-down by hidden collectives); ``weights`` is
    gathering and scattering
    over z; ``data`` gradient reduction and parameter gathering over the replicas.
    """

    forward_s: Floats
    backward_s: Floats
    recompute_s: Floats
    tensor_s: Floats
    context_s: Floats
    expert_s: Floats
    weights_s: Floats
    stage_send_s: Floats
    bubble_s: Floats
    data_s: Floats
    optimizer_s: Floats
    offload_s: Floats
    host_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts:
    """Bytes on the fullest stage."""

    weights_bytes: Floats
    gradients_bytes: Floats
    optimizer_bytes: Floats
    activations_bytes: Floats
    buffers_bytes: Floats
    reserve_bytes: Floats
    stage: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateTable:
    """Estimates of many layouts.

    ``executed_flops`` counts what runs on all ranks, recomputed forward passes (``replayed_flops``) included.
    """

    iteration_s: Floats
    memory_bytes: Floats
    lower_bound_s: Floats
    executed_flops: Floats
    replayed_flops: Floats
    time: TimeParts
    memory: MemoryParts

    def __len__(self) -> int:
        return len(self.iteration_s)

    def take(self, rows: Index) -> EstimateTable:
        return EstimateTable(
            iteration_s=self.iteration_s[rows],
            memory_bytes=self.memory_bytes[rows],
            lower_bound_s=self.lower_bound_s[rows],
            executed_flops=self.executed_flops[rows],
            replayed_flops=self.replayed_flops[rows],
            time=TimeParts(**{f.name: getattr(self.time, f.name)[rows] for f in fields(TimeParts)}),
            memory=MemoryParts(**{f.name: getattr(self.memory, f.name)[rows] for f in fields(MemoryParts)}),
        )

    @staticmethod
    def joined(tables: Sequence[EstimateTable], rows: Sequence[Index]) -> EstimateTable:
        """One table of several, each of which has the given rows of it."""
        if len(tables) == 1:
            return tables[0]
        length = sum(map(len, rows))

        def column(parts: Iterable[Floats]) -> Floats:
            whole = np.empty(length)
            for part, at in zip(parts, rows, strict=True):
                whole[at] = part
            return whole

        def joined(names: tuple[str, ...], owner: Callable[[EstimateTable], object]) -> dict[str, Floats]:
            return {name: column(getattr(owner(table), name) for table in tables) for name in names}

        return EstimateTable(
            **joined(TOTALS, lambda table: table),
            time=TimeParts(**joined(TIME_PARTS, lambda table: table.time)),
            memory=MemoryParts(**joined((*MEMORY_PARTS, "stage"), lambda table: table.memory)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One named part of a total."""

    name: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One layout's iteration: ``time`` parts add up to ``iteration_s``, ``memory`` parts to ``memory_bytes``.

    ``mfu`` counts the whole square of attention, ``mfu_unmasked`` only what the causal mask leaves.
    ``mfu`` and ``hfu`` are fractions of the dense peak of the job's precision; ``capacity_bytes`` is one
    accelerator's memory;
    ``fullest_stage`` holds ``memory_bytes``.  ``provenance`` is analytic, calibrated, simulated or measured;
    ``error`` how far estimates of similar runs were from measured ones, None with a user's constants.
    """

    layout: Layout
    iteration_s: float
    lower_bound_s: float
    tokens_per_s: float
    mfu: float
    mfu_unmasked: float
    hfu: float
    model_tflops: float
    memory_bytes: float
    capacity_bytes: float
    fullest_stage: int
    time: tuple[Part, ...]
    memory: tuple[Part, ...]
    provenance: str
    error: ErrorBar | None

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.capacity_bytes
