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

from weft.collectives.communicators import VENDORS, communicator_bytes
from weft.collectives.cost import Network, collective_s
from weft.estimation.costs import CostModel, PartCosts
from weft.estimation.frame import MeshCosts, Shared
from weft.estimation.kernels import Kernels
from weft.estimation.weights import GradientCosts, ShardCosts, gradient_costs, shard_costs
from weft.layout.mesh import Spread, spread
from weft.layout.spec import AXES
from weft.layout.step import SCALAR_BYTES, Reduction, Software, Step, Use
from weft.layout.table import Floats, Index, Ints, LayoutTable, Mask, collapse
from weft.model.job import Job

T = TypeVar("T")

PART_COLUMNS = ("x", "y", "context", "expert", "expert_tensor", "micro_batch", "sequence_parallel", "context_method")
PART_AXES = (("x",), ("y",), ("x", "y"), ("context",), ("expert",), ("expert_tensor",))
COMMUNICATOR_COLUMNS = (
    *("x", "y", "z", "data", "pipeline", "context", "expert", "expert_tensor"),
    *("sequence_parallel", "context_method"),
)
WEIGHT_COLUMNS = ("x", "y", "context", "z", "expert", "expert_tensor")
KEPT = 65536
"""Costs of distinct causes that are kept."""
SHARD_AXES = (("shard",), ("expert_shard",))
COPY_AXES = (
    *(("replica",), ("expert_replica",)),
    *(("copies",), ("token_copies",), ("head_copies",), ("router_copies",)),
)


def once(causes: Sequence[Ints], compute: Callable[[Index], T]) -> T:
    """A result computed on one row of each distinct combination of causes, copied to all rows.

    Results are arrays whose last axis is the row, or tuples or dataclasses of them.
    """
    groups = collapse(causes)
    copied: T = _rows(compute(groups.first), groups.group)
    return copied


class Known:
    """Results of earlier calls of ``once``, by their causes."""

    def __init__(self) -> None:
        self._result: Any = None
        self._places: dict[bytes, int] = {}

    def once(self, causes: Sequence[Ints], compute: Callable[[Index], T]) -> T:
        """As ``once``, but what is known is not computed again."""
        groups = collapse(causes)
        if len(groups.first) > KEPT:
            return once(causes, compute)
        lines = np.stack([cause[groups.first] for cause in causes], axis=1)
        keys = [line.tobytes() for line in lines]
        if fresh := [i for i, key in enumerate(keys) if key not in self._places]:
            if len(self._places) + len(fresh) > KEPT:
                self._places.clear()
                fresh = list(range(len(keys)))
            found = compute(groups.first[fresh])
            self._result = _joined(self._result, found) if self._places else found
            for i in fresh:
                self._places[keys[i]] = len(self._places)
        places = np.array([self._places[key] for key in keys], dtype=np.intp)
        copied: T = _rows(self._result, places[groups.group])
        return copied


def _rows(result: Any, rows: Index) -> Any:
    return _each([result], lambda one: one[0][..., rows])


def _joined(one: Any, other: Any) -> Any:
    return _each([one, other], lambda some: np.concatenate(some, axis=-1))


def _each(results: list[Any], change: Callable[[list[Floats]], Floats]) -> Any:
    """Results of the same kind, made one array by array."""
    first = results[0]
    if isinstance(first, tuple):
        return tuple(_each(list(some), change) for some in zip(*results, strict=True))
    if is_dataclass(first) and not isinstance(first, type):
        names = [f.name for f in fields(first)]
        return type(first)(**{name: _each([getattr(one, name) for one in results], change) for name in names})
    return change(results)


def _causes(mesh: LayoutTable, names: Sequence[str], groups: Sequence[Spread]) -> list[Ints]:
    columns = [mesh.column(name) for name in names]
    return columns + [members.astype(np.int64) for group in groups for members in group.members]


class MeshCostModel:
    """Times the distinct meshes of a table."""

    def __init__(self, job: Job, kernels: Kernels, network: Network, software: Software) -> None:
        self.job, self.kernels, self.network, self.software = job, kernels, network, software
        self._known_parts, self._known_shards, self._known_communicators = Known(), Known(), Known()

    def blocks(self, mesh: LayoutTable) -> tuple[tuple[PartCosts, ...], tuple[ShardCosts, ...]]:
        """Costs of the parts of each row, and of gathering and scattering their weights."""
        spreads = [spread(mesh, axes, self.network.spans) for axes in PART_AXES]
        cuts = [spread(mesh, axes, self.network.spans) for axes in SHARD_AXES]
        parts = self._known_parts.once(_causes(mesh, PART_COLUMNS, spreads), lambda rows: self._parts(mesh.take(rows)))
        shards = self._known_shards.once(
            _causes(mesh, WEIGHT_COLUMNS, cuts), lambda rows: self._shards(mesh.take(rows))
        )
        return parts, shards

    def costs(self, mesh: LayoutTable) -> MeshCosts:
        """Costs of each row of a table of distinct meshes."""
        parts, shards = self.blocks(mesh)
        return MeshCosts(
            parts=parts,
            shards=shards,
            send_s=self._sends(mesh, spread(mesh, ("x",), self.network.spans)),
            tied_s=self._tied(mesh),
            scalars_s=self._scalars(mesh),
        )

    def communicators(self, mesh: LayoutTable) -> Floats:
        """Bytes of a rank's communicators: without and with ``zero``, shape (2, rows); none without an order of the
        axes, which no order undercuts."""
        if not mesh.order or self.kernels.accelerator.vendor.lower() not in VENDORS:
            return np.zeros((2, len(mesh)))
        columns = [mesh.column(name) for name in COMMUNICATOR_COLUMNS]

        def held(rows: Index) -> Floats:
            few = mesh.take(rows)
            both = (few.replaced({"zero": np.full(len(few), zero)}) for zero in (0, 1))
            return np.stack([communicator_bytes(one, self._groups(one), self.network) for one in both])

        found: Floats = self._known_communicators.once(columns, held)
        return found

    def _groups(self, mesh: LayoutTable) -> dict[tuple[Use, tuple[str, ...]], Mask]:
        """What groups are for; DeepEP and its like have experts' exchange in buffers of their own."""
        found = self._step(mesh).groups()
        own = self.kernels.calibration.dispatch_once
        return {use: mask for use, mask in found.items() if not (own and use == ("all-to-all", ("expert",)))}

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
