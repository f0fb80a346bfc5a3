"""Seconds that depend only on the distinct meshes of a table, each computed once per distinct cause.

A block's cost depends on how the groups that it talks to lie on the tiers, not on the degrees of the other axes;
weights do not depend on the micro-batch.  ``once`` computes a cost on rows that differ in its causes and copies
it to the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

from weft.collectives.cost import Network, collective_s
from weft.estimation.costs import CostModel, PartCosts
from weft.estimation.frame import MeshCosts, Shared
from weft.estimation.kernels import Kernels
from weft.estimation.weights import GradientCosts, ShardCosts, gradient_costs, shard_costs
from weft.layout.mesh import Spread, spread
from weft.layout.spec import AXES
from weft.layout.step import SCALAR_BYTES, Reduction, Software, Step
from weft.layout.table import Floats, Index, Ints, LayoutTable, collapse
from weft.model.job import Job

T = TypeVar("T")

PART_COLUMNS = ("x", "y", "context", "expert", "expert_tensor", "micro_batch", "sequence_parallel", "context_method")
PART_AXES = (("x",), ("y",), ("x", "y"), ("context",), ("expert",), ("expert_tensor",))
WEIGHT_COLUMNS = ("x", "y", "z", "expert", "expert_tensor")
SHARD_AXES = (("shard",), ("expert_shard",))
COPY_AXES = (("replica",), ("expert_replica",), ("copies",), ("token_copies",))


def once(causes: Sequence[Ints], compute: Callable[[Index], T]) -> T:
    """A result computed on one row of each distinct combination of causes, copied to all rows.

    Results are arrays whose last axis is the row, or tuples or dataclasses of them.
    """
    groups = collapse(causes)
    copied: T = _rows(compute(groups.first), groups.group)
    return copied


def _rows(result: Any, rows: Index) -> Any:
    if isinstance(result, tuple):
        return tuple(_rows(one, rows) for one in result)
    if is_dataclass(result) and not isinstance(result, type):
        return type(result)(**{f.name: _rows(getattr(result, f.name), rows) for f in fields(result)})
    return result[..., rows]


def _causes(mesh: LayoutTable, names: Sequence[str], groups: Sequence[Spread]) -> list[Ints]:
    columns = [mesh.column(name) for name in names]
    return columns + [members.astype(np.int64) for group in groups for members in group.members]


class MeshCostModel:
    """Times the distinct meshes of a table."""

    def __init__(self, job: Job, kernels: Kernels, network: Network, software: Software) -> None:
        self.job, self.kernels, self.network, self.software = job, kernels, network, software

    def costs(self, mesh: LayoutTable) -> MeshCosts:
        """Costs of each row of a table of distinct meshes."""
        spans = self.network.spans
        spreads = [spread(mesh, axes, spans) for axes in PART_AXES]
        parts = once(_causes(mesh, PART_COLUMNS, spreads), lambda rows: self._parts(mesh.take(rows)))
        cuts = [spread(mesh, axes, spans) for axes in SHARD_AXES]
        shards = once(_causes(mesh, WEIGHT_COLUMNS, cuts), lambda rows: self._shards(mesh.take(rows)))
        return MeshCosts(
            parts=parts,
            shards=shards,
            send_s=self._sends(mesh, spreads[0]),
            tied_s=self._tied(mesh),
            scalars_s=self._scalars(mesh),
        )

    def gradients(self, shared: Shared, mesh: LayoutTable, row: Index, line: Index) -> tuple[GradientCosts, ...]:
        """Gradients of the largest stage, as the step sums them, for pairs of mesh and stage split."""
        pairs = mesh.take(row)
        spreads = [spread(pairs, axes, self.network.spans) for axes in (*SHARD_AXES, *COPY_AXES)]
        return once(
            [line, *_causes(pairs, WEIGHT_COLUMNS, spreads)],
            lambda rows: self._gradients(shared, mesh, row[rows], line[rows]),
        )

    def _step(self, mesh: LayoutTable) -> Step:
        return Step(self.job.model, self.job.recipe, mesh, self.software)

    def _parts(self, mesh: LayoutTable) -> tuple[PartCosts, ...]:
        return CostModel(self.kernels, self.network, self._step(mesh)).parts()

    def _shards(self, mesh: LayoutTable) -> tuple[ShardCosts, ...]:
        units = self._step(mesh).units
        return tuple(shard_costs(part, self.job.recipe, mesh, self.network) for part in units)

    def _sends(self, mesh: LayoutTable, tensor: Spread) -> Floats:
        stages = spread(mesh, ("pipeline",), self.network.spans)
        names = ("x", "y", "context", "micro_batch", "sequence_parallel")

        def seconds(rows: Index) -> Floats:
            step = self._step(mesh.take(rows))
            return CostModel(self.kernels, self.network, step).collective_sum(step.boundary)

        return once(_causes(mesh, names, (stages, tensor)), seconds)

    def _tied(self, mesh: LayoutTable) -> Floats:
        """All-reduce of a tied embedding's gradient between the first and the last stage."""
        group = spread(mesh, ("tied",), self.network.spans)

        def seconds(rows: Index) -> Floats:
            few = mesh.take(rows)
            gradients = self._step(few).tied_at_rest * self.job.recipe.gradient_bytes
            return collective_s("all-reduce", gradients, spread(few, ("tied",), self.network.spans), self.network)

        return once(_causes(mesh, ("x", "y", "z", "context"), (group,)), seconds)

    def _scalars(self, mesh: LayoutTable) -> Floats:
        """Loss and norm of the gradients, where the software's step lists them."""
        total = np.zeros(len(mesh))
        if self.software.scalars:
            for axes in (("copies",), AXES):
                group = spread(mesh, axes, self.network.spans)
                total += collective_s("all-reduce", np.full(len(mesh), float(SCALAR_BYTES)), group, self.network)
        return total

    def _gradients(self, shared: Shared, mesh: LayoutTable, row: Index, line: Index) -> tuple[GradientCosts, ...]:
        step = shared.sizes.step
        pairs, stages = mesh.take(row), shared.stages
        every = []
        for stage in range(stages.repeats.shape[1]):
            counts = [array[line, stage] for array in (*stages.counts, stages.embedding, stages.head)]
            every.append(step.reductions(step.stage_held(counts, row), row))
        largest = [Reduction.largest(some) for some in zip(*every, strict=True)]
        return tuple(gradient_costs(one, self.job.recipe, pairs, self.network) for one in largest)
