"""Measured times of single kernels and collectives, by shape: what a calibration may hold beside its constants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from weft.codec import Name, NonNegative, Positive, Range, decode
from weft.model.job import Precision

MeasuredPhase = Literal["any", "forward", "input-gradient", "weight-gradient"]
MeasuredCollective = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send"]
SCALE_UP, SCALE_OUT = "scale-up", "scale-out"
DEFAULT = "default"
"""The memory-bound kernels that no other entry names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTime:
    """Seconds of ``groups`` products (m x k) by (k x n) in one kernel.

    The sides are those of the phase: forward (tokens x inputs) by (inputs x outputs), input-gradient (tokens x
    outputs) by (outputs x inputs), weight-gradient (outputs x tokens) by (tokens x inputs).  ``any`` phase stands
    for all three, and for the transposed product.
    """

    m: Positive
    n: Positive
    k: Positive
    seconds: Positive
    groups: Positive = 1.0
    phase: MeasuredPhase = "any"
    precision: Precision = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTime:
    """Seconds of one fused, causal attention kernel, forward or backward (``input-gradient``); heads are those
    of one rank."""

    batch: Positive
    sequence: Positive
    heads: Positive
    kv_heads: Positive
    qk_dim: Positive
    v_dim: Positive
    seconds: Positive
    phase: MeasuredPhase = "forward"
    precision: Precision = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTime:
    """``seconds = latency_s + bytes / Bps`` of the memory-bound kernels of a ``name``: ``default``, or what
    ``weft.layout.operations`` calls them (``cross-entropy``, ``expert.permute``, ``norms``)."""

    name: Name
    Bps: Positive
    latency_s: NonNegative = 0.0
    phase: MeasuredPhase = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """``seconds = latency_s + steps * step_s + bytes / Bps`` of a collective.

    ``scope`` is the outermost tier that the group spans: ``scale-up`` (the innermost), ``scale-out`` (any other),
    or a tier's name.  ``ranks`` limits the entry to groups of that size; 0 is any.  ``Bps`` is per accelerator and
    direction, over the bytes that a ring's rank sends (nccl-tests' bus bandwidth); ranks of one unit below the
    scope's tier share the crossing.  Steps are a ring's.
    """

    kind: MeasuredCollective
    scope: Name
    Bps: Positive
    latency_s: NonNegative = 0.0
    step_s: NonNegative = 0.0
    ranks: Annotated[int, Range(0, 10**9)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Everything that was measured by shape; empty parts leave Weft's closed forms as they are."""

    products: tuple[ProductTime, ...] = ()
    attention: tuple[AttentionTime, ...] = ()
    memory: tuple[MemoryTime, ...] = ()
    collectives: tuple[CollectiveTime, ...] = ()


PARTS = tuple(field.name for field in fields(Measurements))
"""Names of the lists of a calibration file."""


def measurements_from(values: Mapping[str, Any], *, where: str) -> Measurements:
    """The lists of a calibration file, each an array of tables with the fields of its record."""
    return decode(Measurements, {name: values[name] for name in PARTS if name in values}, where)


def measurements_to_toml(result: Measurements) -> Iterator[str]:
    """Lines that ``measurements_from`` reads back: a list a part, an entry a line, without what is default."""
    for part in PARTS:
        entries: Sequence[Any] = getattr(result, part)
        if entries:
            yield ""
            yield f"{part} = ["
            for entry in entries:
                stated = [field.name for field in fields(entry) if getattr(entry, field.name) != field.default]
                yield f"  {{{', '.join(f'{name} = {_toml(getattr(entry, name))}' for name in stated)}}},"
            yield "]"


def _toml(value: float | int | str) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(int(value) if float(value).is_integer() and abs(value) < 2**53 else value)
