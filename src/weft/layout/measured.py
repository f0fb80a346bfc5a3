"""What was measured on a machine: times of collectives and products, and what one rank has to itself.

Nothing here needs torch, so that readers and schemas do not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Literal

from weft.cluster.calibration import AttentionTime
from weft.codec import Count, Name, Range, decode, encode
from weft.documents import parse_json
from weft.layout.spec import AXES, Layout
from weft.layout.text import WrittenLayout

_WHERE = "measurements"
MeasuredKind = Literal["all-reduce", "all-gather", "reduce-scatter"]
KINDS: tuple[MeasuredKind, ...] = ("all-reduce", "all-gather", "reduce-scatter")
MeasuredPrecision = Literal["fp32", "bf16", "fp16"]
PRECISIONS: tuple[MeasuredPrecision, ...] = ("fp32", "bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Median seconds of one collective among the ``ranks`` of a mesh axis; ``bytes`` of the full buffer."""

    axis: Name
    kind: MeasuredKind
    ranks: Count
    bytes: Annotated[int, Range(0, 2**62)]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Median seconds of one product (m x k) by (k x n)."""

    precision: MeasuredPrecision
    m: Count
    n: Count
    k: Count
    seconds: float

    @property
    def achieved_flops(self) -> float:
        """FLOP/s."""
        return 2.0 * self.m * self.n * self.k / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank's share of the machine while all ranks are busy.

    Attributes:
        name: the GPU, or how much of the CPU.
        memory_bytes: its memory.
        multiprocessors: of its GPU; a rank on a CPU counts as one.
        copy_Bps: bytes/s that a large copy reads and writes, by the median of its repeats.
        best_copy_Bps: the same of the fastest repeat.
        host_Bps: bytes/s from host memory.
        launch_s: host seconds to issue one small kernel.
    """

    name: Name
    memory_bytes: float
    multiprocessors: Count
    copy_Bps: float
    best_copy_Bps: float
    host_Bps: float
    launch_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All of it; samples by axis (inner to outer), collective and size."""

    device: Name
    repeats: Count
    rank: Rank
    samples: tuple[Sample, ...]
    products: tuple[Product, ...]
    layout: WrittenLayout
    attention: tuple[AttentionTime, ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        return measured_axes(self.layout)

    def of(self, axis: str, kind: MeasuredKind | None = None) -> tuple[Sample, ...]:
        """Samples of an axis, of one collective or of all."""
        return tuple(sample for sample in self.samples if sample.axis == axis and kind in (None, sample.kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestFinding:
    """One check on one grid: its verdict, the finding in words, and its figures (SI units); ``seen``: a figure
    that nothing is asked of."""

    check: str
    grid: str
    verdict: Literal["holds", "fails", "seen"]
    found: str
    figures: dict[str, float]


def measured_axes(layout: Layout) -> tuple[str, ...]:
    """The axes of more than one rank, inner to outer."""
    return tuple(axis for axis in layout.order if axis in AXES and getattr(layout, axis) > 1)


def measured_to_json(measured: Measured) -> str:
    """As text."""
    return json.dumps(encode(measured), allow_nan=False)


def measured_from_json(text: str) -> Measured:
    """What ``measured_to_json`` wrote.

    Raises:
        BadInput: the text is something else.
    """
    return decode(Measured, parse_json(text, _WHERE), _WHERE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step of the reporting rank; ``seconds`` of time, ``mfu`` as a fraction, None on unknown accelerators.

    ``eval_loss`` and ``perplexity``, its exponential (bounded, so that it is a number in every record), are of what
    was held out, None after steps without evaluation.
    """

    step: int
    loss: float
    gradient_norm: float
    learning_rate: float
    seconds: float
    tokens_per_s: float
    mfu: float | None
    eval_loss: float | None = None
    perplexity: float | None = None
