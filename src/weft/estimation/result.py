"""Results: tables of estimates for a search, one estimate for a person, and a whole training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Annotated, Any, Literal

import numpy as np

from weft.codec import Coded, number, table_of
from weft.errors import BadInput
from weft.estimation.trust import ErrorBar
from weft.layout.table import Floats, Index
from weft.layout.text import DEGREES, OPTION_FIELDS, WrittenLayout, format_layout, product
from weft.reliability.renewal import ClassCost
from weft.results import Result

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

MEMORY_PARTS = (
    "weights_bytes",
    "gradients_bytes",
    "optimizer_bytes",
    "activations_bytes",
    "buffers_bytes",
    "communicators_bytes",
    "reserve_bytes",
)
"""Parts of the memory of the fullest stage, in bytes; they add up to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateTable:
    """Estimates of many layouts, an array over them each.

    ``executed_flops`` counts what runs on all ranks, recomputed forward passes (``replayed_flops``) included.
    ``TIME_PARTS`` are seconds of the slowest stage's iteration: computation, *exposed* communication by axis, bubble
    and the rest.  Forward and backward are kernels (backward with the slow-down by hidden collectives); weights is
    gathering and scattering over z; data is gradient reduction and parameter gathering over the replicas.
    ``MEMORY_PARTS`` are bytes on the fullest stage, ``fullest_stage``; ``host_bytes`` are those in host memory, of the
    stage that has most there.
    """

    iteration_s: Floats
    memory_bytes: Floats
    lower_bound_s: Floats
    executed_flops: Floats
    replayed_flops: Floats
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
    weights_bytes: Floats
    gradients_bytes: Floats
    optimizer_bytes: Floats
    activations_bytes: Floats
    buffers_bytes: Floats
    communicators_bytes: Floats
    reserve_bytes: Floats
    host_bytes: Floats
    fullest_stage: Floats

    def __len__(self) -> int:
        return len(self.iteration_s)

    def take(self, rows: Index) -> EstimateTable:
        return EstimateTable(**{name: getattr(self, name)[rows] for name in self.__slots__})

    @staticmethod
    def joined(tables: Sequence[EstimateTable], rows: Sequence[Index]) -> EstimateTable:
        """One table made of several, each of which holds the given rows."""
        if len(tables) == 1:
            return tables[0]
        columns = {}
        for name in EstimateTable.__slots__:
            columns[name] = np.empty(sum(map(len, rows)))
            for table, at in zip(tables, rows, strict=True):
                columns[name][at] = getattr(table, name)
        return EstimateTable(**columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One named part of a total."""

    name: str
    value: float


def _named(names: tuple[str, ...]) -> Coded:
    """Parts as a table of their values by name; those that documents of before do not have are 0."""

    def read(raw: object) -> tuple[Part, ...]:
        table = {"communicators_bytes": 0.0} if names is MEMORY_PARTS else {}
        table |= table_of(raw, "")
        if set(table) != set(names):
            raise BadInput("does not hold every part once", remedy=f"give {', '.join(names)}")
        return tuple(Part(name=name, value=number(table[name], f".{name}")) for name in names)

    shape = Mapping[Literal[names], float]  # type: ignore[valid-type]
    return Coded(read, lambda parts: {part.name: part.value for part in parts}, shape)


RENAMED = {"model_tflops_per_accelerator": "model_tflops", "host_memory_bytes": "host_bytes"}
"""Figures whose name in documents and rows is not that in ``Estimate``."""
ROW_FIELDS = (
    *("iteration_s", "lower_bound_s", "tokens_per_s", "mfu", "mfu_unmasked", "hfu", "model_tflops_per_accelerator"),
    *("memory_bytes", "capacity_bytes", "fullest_stage", "provenance", "host_memory_bytes", "host_capacity_bytes"),
)
COLUMNS = (
    *(word for word, _ in DEGREES),
    *OPTION_FIELDS,
    *ROW_FIELDS,
    *(f"time_{name}" for name in TIME_PARTS),
    *(f"memory_{name}" for name in MEMORY_PARTS),
)
"""Columns of an estimate's row."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Estimate(Result):
    """One layout's iteration: ``time`` parts add up to ``iteration_s``, ``memory`` parts to ``memory_bytes``.

    ``mfu`` counts the whole square of attention, ``mfu_unmasked`` only what the causal mask leaves.  ``mfu`` and
    ``hfu`` are fractions of the dense peak of the job's precision; ``capacity_bytes`` is one accelerator's memory;
    ``fullest_stage`` holds ``memory_bytes``.  ``host_bytes`` are pinned in host memory per accelerator, of
    ``host_capacity_bytes`` that can be (None: not known).  ``provenance`` is analytic, calibrated, simulated or
    measured; ``error`` how far estimates of similar runs were from measured ones, None with a user's constants.
    """

    DOCUMENT = """
        layout layout_text iteration_s lower_bound_s tokens_per_s mfu mfu_unmasked hfu
        model_tflops_per_accelerator=model_tflops memory_bytes capacity_bytes host_memory_bytes=host_bytes
        host_capacity_bytes fits fullest_stage provenance error time memory"""

    layout: WrittenLayout
    iteration_s: float
    lower_bound_s: float
    tokens_per_s: float
    mfu: float
    mfu_unmasked: float
    hfu: float
    model_tflops: float
    memory_bytes: float
    capacity_bytes: float
    host_bytes: float = 0.0
    host_capacity_bytes: float | None = None
    fullest_stage: int
    time: Annotated[tuple[Part, ...], _named(TIME_PARTS)]
    memory: Annotated[tuple[Part, ...], _named(MEMORY_PARTS)]
    provenance: str
    error: ErrorBar | None = None

    @property
    def allocated_bytes(self) -> float:
        """What tensors allocate, as ``torch.cuda.max_memory_allocated`` counts."""
        outside = ("communicators_bytes", "reserve_bytes")
        return self.memory_bytes - fsum(part.value for part in self.memory if part.name in outside)

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.capacity_bytes and self.fits_host

    @property
    def fits_host(self) -> bool:
        """Whether what is offloaded fits the host's memory."""
        return self.host_capacity_bytes is None or self.host_bytes <= self.host_capacity_bytes

    @property
    def layout_text(self) -> str:
        return format_layout(self.layout)

    def check_world(self, count: int, where: str) -> None:
        """Refuse an estimate in a document of a layout that is not for so many accelerators."""
        if self.layout.world != count:
            problem = f"{product(self.layout)}, but there are {count} accelerators"
            raise BadInput(problem, where=where, remedy="change a degree")

    def row(self) -> dict[str, Any]:
        """Degrees and options of the layout, totals and parts side by side, under ``COLUMNS``."""
        flat = {word: getattr(self.layout, name) for word, name in DEGREES}
        flat |= {name: getattr(self.layout, name) for name in OPTION_FIELDS}
        flat["order"] = "/".join(self.layout.order)
        flat |= {name: getattr(self, RENAMED.get(name, name)) for name in ROW_FIELDS}
        flat |= {f"time_{part.name}": part.value for part in self.time}
        flat |= {f"memory_{part.name}": part.value for part in self.memory}
        return {name: flat[name] for name in COLUMNS}

    def to_dicts(self) -> list[dict[str, Any]]:
        return [self.row()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """What failures and checkpoints cost.

    ``mtbf_s`` is one accelerator's mean time between failures, ``job_mtbf_s`` that of all of them together.
    A checkpoint of ``checkpoint_bytes`` stops training for ``checkpoint_s`` after every
    ``interval_iterations`` (``interval_s`` of training); ``daly_interval_s`` and ``young_interval_s`` are the
    optima before rounding to whole iterations.  The shares of the expected time add up to one; ``other_share`` is
    waiting for repairs, reduced speed and planned pauses, where failures are told apart.  ``source`` names the rates,
    ``classes`` are what each class of failures costs.
    """

    mtbf_s: float
    job_mtbf_s: float
    checkpoint_bytes: float
    checkpoint_s: float
    restart_s: float
    young_interval_s: float
    daly_interval_s: float
    interval_iterations: int
    interval_s: float
    expected_failures: float
    goodput: float
    checkpoint_share: float
    rework_share: float
    restart_share: float
    other_share: float = 0.0
    source: str = ""
    classes: tuple[ClassCost, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """One run over ``tokens``: ``training_s`` without failures, ``expected_s`` with them.

    Hours, dollars and energy cover ``expected_s``; ``usd`` is None without a price.  ``accelerators`` and their hours
    count spares.  ``energy_mwh`` is that of the accelerators at their board limit, times ``pue``; spares of whole
    domains do not draw power.  ``defaults`` lists what was assumed.
    """

    tokens: float
    iterations: int
    accelerators: int
    training_s: float
    expected_s: float
    accelerator_hours: float
    usd_per_accelerator_hour: float | None
    usd: float | None
    pue: float
    energy_mwh: float
    failures: Failures | None
    defaults: tuple[str, ...]

    @property
    def days(self) -> float:
        """Days without failures."""
        return self.training_s / 86400.0

    @property
    def expected_days(self) -> float:
        """Days with failures."""
        return self.expected_s / 86400.0
