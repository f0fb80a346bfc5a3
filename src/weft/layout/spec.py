"""How a job is cut: one layout of the mesh.

The mesh of one pipeline stage is ``x * y * context * z * data``; the world multiplies it by ``pipeline``. Axes
have one meaning each: ``x`` splits the output features of a normal linear layer and the input features of a
transposed one (Megatron's tensor parallelism), ``y`` splits the other side (AxoNN's column), ``z`` splits batch
rows and stored weights (FSDP / ZeRO-3), ``data`` splits batch rows and replicates weights, ``context`` splits the
sequence.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from weft.errors import BadInput, UnknownName

AXES = ("x", "y", "context", "z", "data", "pipeline")
"""The axes of the mesh in the default placement, inner to outer."""


class CodedEnum(StrEnum):
    """A word of a vocabulary.  Tables of layouts hold its ``code``."""

    @property
    def code(self) -> int:
        """The word's place in its vocabulary."""
        return list(type(self)).index(self)

    def __repr__(self) -> str:
        return repr(self.value)


class PipelineSchedule(CodedEnum):
    """The order in which a pipeline's stages run (``weft.layout.stages``): plain 1F1B (arXiv 1806.03377),
    interleaved 1F1B (2104.04473), ZB-H1 as ``zb1p`` and ZB-V as ``zbv`` (2401.10241)."""

    PLAIN = "1f1b"
    INTERLEAVED = "interleaved"
    ZB1P = "zb1p"
    ZBV = "zbv"

    @property
    def splits_backward(self) -> bool:
        """Whether weight gradients run apart from input gradients."""
        return self in (PipelineSchedule.ZB1P, PipelineSchedule.ZBV)

    @property
    def wraps(self) -> bool:
        """Whether the second chunk runs back through the stages, so that the first stage also has the last
        chunk."""
        return self is PipelineSchedule.ZBV

    @property
    def rounds(self) -> bool:
        """Whether chunks go round the stages, for which micro-batches come in multiples of the stages."""
        return self is PipelineSchedule.INTERLEAVED

    @property
    def blocks(self) -> bool:
        """Whether a stage waits for its sends."""
        return self is PipelineSchedule.PLAIN

    @property
    def chunks(self) -> int | None:
        """Chunks of a stage; None: any number above one."""
        return {PipelineSchedule.INTERLEAVED: None, PipelineSchedule.ZBV: 2}.get(self, 1)


class Recompute(CodedEnum):
    """What backward computes again: nothing, what is cheap for its size (the attention core, norms), or whole
    blocks."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class ContextMethod(CodedEnum):
    """How attention sees the whole sequence: keys and values go round, or heads are exchanged for tokens."""

    RING = "ring"
    ULYSSES = "ulysses"


class TensorOverlap(CodedEnum):
    """``backward``: the input-gradient collective runs behind the weight-gradient GEMM (AxoNN's OAR,
    Megatron's default); ``full``: forward and backward collectives are also pipelined with their GEMM in
    chunks (Megatron's userbuffers, torchtitan's async TP)."""

    NONE = "none"
    BACKWARD = "backward"
    FULL = "full"


VOCABULARIES: Mapping[str, type[CodedEnum]] = {
    "schedule": PipelineSchedule,
    "recompute": Recompute,
    "context_method": ContextMethod,
    "overlap_tensor": TensorOverlap,
}
"""The fields of ``Layout`` that are words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees of the mesh axes and the options that change time or memory.

    ``micro_batch`` counts sequences per data-parallel rank and micro-batch; a rank's share of the global batch is
    ``micro_batch * micro_batches``.  ``zero`` (0-2) shards over ``data``: 1 the optimizer, 2 gradients too (z > 1
    is ZeRO-3).  ``recompute_layers`` limits full recomputation to that many layers of a stage (0: all of them).
    ``overlap_reduce`` hides gradient reduction behind backward (bucketed DDP, AxoNN's ORS); ``overlap_gather``
    hides weight gathering behind compute (FSDP prefetch, Megatron's parameter gather, AxoNN's OAG).  ``expert``
    and ``expert_tensor`` cut the experts of a stage; ``expert * expert_tensor * expert_data`` is the stage's
    mesh.  ``order`` is the placement, inner to outer.
    """

    x: int = 1
    y: int = 1
    z: int = 1
    data: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    micro_batch: int = 1
    virtual_stages: int = 1
    schedule: PipelineSchedule = PipelineSchedule.PLAIN
    zero: int = 1
    recompute: Recompute = Recompute.NONE
    recompute_layers: int = 0
    sequence_parallel: bool = False
    context_method: ContextMethod = ContextMethod.RING
    overlap_tensor: TensorOverlap = TensorOverlap.BACKWARD
    overlap_reduce: bool = True
    overlap_gather: bool = True
    offload_optimizer: bool = False
    offload_activations: bool = False
    order: tuple[str, ...] = AXES

    def __post_init__(self) -> None:
        for name in FIELDS:
            value = getattr(self, name)
            checked = checked_field(name, value, f"layout: {name}")
            if checked is not value:
                object.__setattr__(self, name, checked)

    @property
    def world(self) -> int:
        """Accelerators used."""
        return self.x * self.y * self.z * self.data * self.pipeline * self.context

    @property
    def tp(self) -> int:
        """Tensor-parallel ranks, ``x``; AxoNN's second tensor axis ``y`` comes on top."""
        return self.x

    @property
    def cp(self) -> int:
        """Context-parallel ranks."""
        return self.context

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return self.pipeline

    @property
    def dp(self) -> int:
        """Ranks that see different sequences, z * data."""
        return self.z * self.data

    @property
    def fsdp(self) -> int:
        """Ranks of ``dp`` that share the weights (ZeRO-3), ``z``."""
        return self.z

    @property
    def ep(self) -> int:
        """Expert-parallel ranks."""
        return self.expert

    @property
    def stage_ranks(self) -> int:
        return self.world // self.pipeline

    @property
    def expert_data(self) -> int:
        """Replicas of an expert shard within a stage."""
        return self.stage_ranks // (self.expert * self.expert_tensor)


ALIASES = {
    "tp": "x",
    "fsdp": "z",
    "pp": "pipeline",
    "cp": "context",
    "ep": "expert",
    "etp": "expert_tensor",
    "vpp": "virtual_stages",
    "mbs": "micro_batch",
    "sp": "sequence_parallel",
}
"""Users' words for fields; ``dp`` stands for z * data."""

FIELDS = tuple(field.name for field in fields(Layout))
_SHORT = {name: short for short, name in ALIASES.items()}
FLAGS = tuple(field.name for field in fields(Layout) if isinstance(field.default, bool))
_MAY_BE_ZERO = ("zero", "recompute_layers")
_LARGEST = 10**9


def checked_field(name: str, value: Any, where: str) -> Any:
    """A field's value as ``Layout`` holds it; ``where`` names the field in messages.

    Raises:
        BadInput: a value of the wrong kind or out of range.
        UnknownName: a word that the field does not know.
    """
    if name in VOCABULARIES:
        words = VOCABULARIES[name]
        if isinstance(value, words):
            return value
        if not isinstance(value, str):
            raise BadInput(f"{shown(value)} is not a name", where=where, remedy=f"use {', '.join(words)}")
        if value.lower() not in set(words):
            raise UnknownName(name, value[:40], words, where=where)
        return words(value.lower())
    if name == "order":
        listed = isinstance(value, (list, tuple)) and all(isinstance(axis, str) for axis in value)
        axes = tuple(ALIASES.get(axis.lower(), axis.lower()) for axis in value) if listed else ()
        if sorted(axes) != sorted(AXES):
            problem = f"{shown(value)} does not name every axis once"
            raise BadInput(problem, where=where, remedy=f"write them inner to outer, like {'/'.join(AXES)}")
        return value if value == axes else axes
    if name in FLAGS:
        if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
            return bool(value)
        raise BadInput(f"{shown(value)} is not true or false", where=where, remedy="write true, false, 1 or 0")
    return _integer(name, value, where)


def _integer(name: str, value: Any, where: str) -> int:
    least = 0 if name in _MAY_BE_ZERO else 1
    integer: Any = numbers.Integral
    if isinstance(value, bool) or not isinstance(value, integer):
        raise BadInput(f"{shown(value)} is not a whole number", where=where, remedy=f"write it like {max(least, 1)}")
    if name == "zero" and value == 3:
        raise BadInput(
            "zero is 0, 1 or 2 in a layout's fields",
            where=where,
            remedy="for ZeRO-3 give fsdp (z), the number of ranks that share the weights",
        )
    largest = 2 if name == "zero" else _LARGEST
    if not least <= value <= largest:
        problem = f"{shown(value)} is not between {least} and {largest}"
        remedy = f"choose a value from {least} on" if largest == _LARGEST else f"choose {least} to {largest}"
        raise BadInput(problem, where=where, remedy=remedy)
    return value if isinstance(value, int) else int(value)


def word_of(name: str) -> str:
    """What users call a field: tp, pp, fsdp, vpp, ..."""
    return "dp" if name == "data_parallel" else _SHORT.get(name, name)


def shown(value: Any) -> str:
    """A value in a message, however long it is."""
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a very large number"
    if isinstance(value, (Mapping, list, tuple)):
        return f"a {type(value).__name__} of {len(value)} items"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
