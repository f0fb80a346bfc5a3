"""Seconds that depend only on the distinct meshes of a table, each computed once per distinct cause.

A block's cost depends on how the groups that it talks to lie on the tiers, not on the degrees of the other
axes; weights do not
depend on the micro-batch.  ``once`` computes a cost on rows that differ in its causes and copies it to the
rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

from weft.collectives.cost import Network, collective_s
from weft.estimation.costs import CostModel, PartCosts
from weft.estimation.frame import MeshCosts, MeshSizes, Shared
from weft.estimation.kernels import Kernels
from weft.estimation.memory import Parameters
from weft.estimation.weights import GradientCosts, ShardCosts, shard_costs, step_costs, take
from weft.layout.mesh import Spread, spread, spread_of, strides
from weft.layout.operations import Sizes, stage_boundary
from weft.layout.stages import StageTable
from weft.layout.table import Floats, Index, Ints, LayoutTable, collapse
from weft.model.job import Job

T = TypeVar("T")

PART_COLUMNS = ("x", "y", "context", "expert", "expert_tensor", "micro_batch", "sequence_parallel", "context_method")
PART_AXES = (("x",), ("y",), ("x", "y"), ("context",), ("expert",), ("expert_tensor",))
WEIGHT_COLUMNS = ("x", "y", "expert", "expert_tensor")


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

    def __init__(self, job: Job, kernels: Kernels, network: Network) -> None:
        self.job, self.kernels, self.network = job, kernels, network

    def costs(self, mesh: LayoutTable, sizes: MeshSizes) -> MeshCosts:
        """Costs of each row of a table of distinct meshes."""
        spreads = [spread(mesh, axes, self.network.spans) for axes in PART_AXES]
        blocks, embedding, head = once(_causes(mesh, PART_COLUMNS, spreads), lambda rows: self._parts(mesh.take(rows)))
        shards, embedding_shards, head_shards = once(
            _causes(mesh, WEIGHT_COLUMNS, (sizes.groups.shard, sizes.groups.expert_shard)),
            lambda rows: self._all_shards(sizes, rows),
        )
        return MeshCosts(
            blocks=blocks,
            embedding=embedding,
            head=head,
            shards=shards,
            embedding_shards=embedding_shards,
            head_shards=head_shards,
            send_s=self._sends(mesh, spreads[0]),
            tied_s=self._tied(mesh, sizes.tied_parameters),
        )

    def gradients(self, shared: Shared, mesh: LayoutTable, row: Index, line: Index) -> tuple[GradientCosts, ...]:
        """Dense and expert gradients of the largest stage, for pairs of mesh and stage split."""
        groups = shared.sizes.groups
        spreads = [
            take(group, row) for group in (groups.shard, groups.replica, groups.expert_shard, groups.expert_replica)
        ]
        return once(
            [line, *_causes(mesh.take(row), WEIGHT_COLUMNS, spreads)],
            lambda rows: self._gradients(shared, row[rows], line[rows]),
        )

    def _parts(self, mesh: LayoutTable) -> tuple[tuple[PartCosts, ...], PartCosts, PartCosts]:
        model = CostModel(self.job, self.kernels, self.network, mesh)
        return model.blocks(), model.embedding(), model.head()

    def _all_shards(self, sizes: MeshSizes, rows: Index) -> tuple[tuple[ShardCosts, ...], ShardCosts, ShardCosts]:
        head = Parameters(sizes.head_parameters.dense + sizes.tied_parameters, sizes.head_parameters.expert)
        embedding = Parameters(sizes.embedding_parameters, np.zeros_like(sizes.embedding_parameters))
        return (
            tuple(self._shards(sizes, parameters, rows) for parameters in sizes.parameters),
            self._shards(sizes, embedding, rows),
            self._shards(sizes, head, rows),
        )

    def _shards(self, sizes: MeshSizes, parameters: Parameters, rows: Index) -> ShardCosts:
        recipe, network, groups = self.job.recipe, self.network, sizes.groups
        pieces = self.kernels.calibration.shard_collectives
        dense = shard_costs(parameters.dense[rows], recipe, take(groups.shard, rows), network, pieces)
        cut = take(groups.expert_shard, rows)
        return dense + shard_costs(parameters.expert[rows], recipe, cut, network, pieces)

    def _sends(self, mesh: LayoutTable, tensor: Spread) -> Floats:
        stages = spread(mesh, ("pipeline",), self.network.spans)
        names = ("x", "y", "context", "micro_batch", "sequence_parallel")

        def seconds(rows: Index) -> Floats:
            few = mesh.take(rows)
            boundary = stage_boundary(self.job.model, self.job.recipe, Sizes.of(few, self.job.recipe))
            model = CostModel(self.job, self.kernels, self.network, few)
            return model.collective_sum(boundary.collectives)

        return once(_causes(mesh, names, (stages, tensor)), seconds)

    def _tied(self, mesh: LayoutTable, tied: Floats) -> Floats:
        """All-reduce of a tied embedding's gradient between the first and the last stage."""
        apart = mesh.pipeline - 1
        pair = np.where(apart > 0, 2, 1)
        step = strides(mesh, "pipeline") * np.maximum(apart, 1)
        group = spread_of([pair], [step], self.network.spans, ("tied",))
        gradients = tied * self.job.recipe.gradient_bytes

        def seconds(rows: Index) -> Floats:
            return collective_s("all-reduce", gradients[rows], take(group, rows), self.network)

        return once(_causes(mesh, ("x", "y"), (group,)), seconds)

    def _gradients(self, shared: Shared, mesh: Index, line: Index) -> tuple[GradientCosts, ...]:
        dense, expert = largest_stage(shared.sizes, shared.stages, mesh, line)
        groups = shared.sizes.groups
        found = []
        for elements, shard, replica in (
            (dense, groups.shard, groups.replica),
            (expert, groups.expert_shard, groups.expert_replica),
        ):
            local, copies = elements / shard.size[mesh], take(replica, mesh)
            step = step_costs(local, self.job.recipe, copies, self.network)
            found.append(GradientCosts(local, copies.size, step))
        return tuple(found)


def largest_stage(sizes: MeshSizes, stages: StageTable, mesh: Index, line: Index) -> tuple[Floats, Floats]:
    """Dense and expert parameters of the largest stage, for pairs of mesh and stage split."""
    dense, expert = np.zeros(len(line)), np.zeros(len(line))
    for stage in range(stages.repeats.shape[1]):
        embedding, head = stages.embedding[line, stage], stages.head[line, stage]
        here = embedding * sizes.embedding_parameters[mesh] + head * sizes.head_parameters.dense[mesh]
        here += head * (1 - embedding) * sizes.tied_parameters[mesh]
        routed = head * sizes.head_parameters.expert[mesh]
        for counts, parameters in zip(stages.counts, sizes.parameters, strict=True):
            here += counts[line, stage] * parameters.dense[mesh]
            routed += counts[line, stage] * parameters.expert[mesh]
        dense, expert = np.maximum(dense, here), np.maximum(expert, routed)
    return dense, expert
