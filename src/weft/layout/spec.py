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

from dataclasses import dataclass, fields
from typing import Literal

AXES = ("x", "y", "context", "z", "data", "pipeline")
"""The axes of the mesh in the default placement, inner to outer."""

Schedule = Literal["1f1b", "interleaved", "zb1p", "zbv"]
"""Pipeline schedule: plain and interleaved 1F1B; ZB-1P (one third of the bubble, activation memory of 1F1B)
and ZB-V (no bubble, two chunks a rank),
both of arXiv 2401.10241 and its follow-up 2405.15362."""
SCHEDULES: tuple[Schedule, ...] = ("1f1b", "interleaved", "zb1p", "zbv")

Recompute = Literal["none", "selective", "full"]
RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")

ContextMethod = Literal["ring", "ulysses"]
CONTEXT_METHODS: tuple[ContextMethod, ...] = ("ring", "ulysses")

TensorOverlap = Literal["none", "backward", "full"]
"""``backward``: the input-gradient collective runs behind the weight-gradient GEMM (AxoNN's OAR, Megatron's
default);
``full``: forward and backward collectives are also pipelined with their GEMM in chunks (Megatron's
userbuffers, torchtitan's async TP)."""
TENSOR_OVERLAPS: tuple[TensorOverlap, ...] = ("none", "backward", "full")


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
    schedule: Schedule = "1f1b"
    zero: int = 1
    recompute: Recompute = "none"
    recompute_layers: int = 0
    sequence_parallel: bool = False
    context_method: ContextMethod = "ring"
    overlap_tensor: TensorOverlap = "backward"
    overlap_reduce: bool = True
    overlap_gather: bool = True
    offload_optimizer: bool = False
    offload_activations: bool = False
    order: tuple[str, ...] = AXES

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
