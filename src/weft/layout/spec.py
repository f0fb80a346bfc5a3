"""How a job is cut: one layout of the mesh.

The mesh of one pipeline stage is ``x * y * context * z * data``; the world multiplies it by ``pipeline``.
Axes
have one meaning each: ``x`` splits the output features of a normal linear layer and the input features of a
transposed
one (Megatron's tensor parallelism), ``y`` splits the other side (AxoNN's column), ``z`` splits batch rows
and stored
weights (FSDP / ZeRO-3), ``data`` splits batch rows and replicates weights, ``context`` splits the sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

from weft.errors import UnknownName

AXES = ("x", "y", "context", "z", "data", "pipeline")
"""The axes of the mesh in the default placement, inner to outer."""


class Choice(StrEnum):
    """A word of a vocabulary.  Tables of layouts hold its ``code``."""

    @property
    def code(self) -> int:
        """The word's place in its vocabulary."""
        return list(type(self)).index(self)

    def __repr__(self) -> str:
        return repr(self.value)

    @classmethod
    def _missing_(cls, value: object) -> Choice:
        raise UnknownName(next(name for name, one in VOCABULARIES.items() if one is cls), str(value)[:40], cls)


class PipelineSchedule(Choice):
    """The order in which a pipeline's stages run (``weft.layout.schedule``): plain 1F1B (arXiv 1806.03377),
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


class Recompute(Choice):
    """What backward computes again: nothing, what is cheap for its size (the attention core, norms), or whole
    blocks."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class ContextMethod(Choice):
    """How attention sees the whole sequence: keys and values go round, or heads are exchanged for tokens."""

    RING = "ring"
    ULYSSES = "ulysses"


class TensorOverlap(Choice):
    """``backward``: the input-gradient collective runs behind the weight-gradient GEMM (AxoNN's OAR,
    Megatron's default); ``full``: forward and backward collectives are also pipelined with their GEMM in
    chunks (Megatron's userbuffers, torchtitan's async TP)."""

    NONE = "none"
    BACKWARD = "backward"
    FULL = "full"


VOCABULARIES: Mapping[str, type[Choice]] = {
    "schedule": PipelineSchedule,
    "recompute": Recompute,
    "context_method": ContextMethod,
    "overlap_tensor": TensorOverlap,
}
"""The fields of ``Layout`` that are words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees of the mesh axes and the switches that change time or memory.

    ``micro_batch`` counts sequences per data-parallel rank and micro-batch; a rank's share of the global
    batch is
    ``micro_batch * micro_batches``.  ``zero`` (0-2) shards over ``data``: 1 the optimizer, 2 gradients too
    (z > 1 is ZeRO-3).
    ``recompute_layers`` limits full recomputation to that many layers of a stage (0: all of them).
    ``overlap_reduce`` hides gradient reduction behind backward (bucketed DDP, AxoNN's ORS);
    ``overlap_gather`` hides
    weight gathering behind compute (FSDP prefetch, Megatron's parameter gather, AxoNN's OAG).
    ``expert`` and ``expert_tensor`` cut the experts of a stage; ``expert * expert_tensor * expert_data`` is
    the
    stage's mesh.  ``order`` is the placement, inner to outer.
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
        """Words may be given as strings."""
        for name, vocabulary in VOCABULARIES.items():
            object.__setattr__(self, name, vocabulary(getattr(self, name)))

    @property
    def world(self) -> int:
        """Accelerators used."""
        return self.x * self.y * self.z * self.data * self.pipeline * self.context

    @property
    def data_parallel(self) -> int:
        """The users' ``dp``: ranks that see different sequences, z * data."""
        return self.z * self.data

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
"""Users' words accepted at the edge; ``dp`` stands for z * data and is handled where it is read."""

FIELDS = tuple(field.name for field in fields(Layout))
