"""Keeping weights and gradients together: per block over z, per step over the replicas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.collectives.cost import Network, collective_s, lower_bound_s
from weft.layout.iteration import bucket_count
from weft.layout.mesh import Spread, degrees, spread, spread_of, strides
from weft.layout.table import Floats, Index, LayoutTable, Mask
from weft.model.job import Recipe


@dataclass(frozen=True, slots=True)
class WeightGroups:
    """Ranks that share a weight at rest (``shard``) and that hold copies of it (``replica``), for dense and
    expert weights.

    With z = 1 weights are whole and replicas are the ranks of context and data; with z > 1 they are cut
    over context
    and z, as torchtitan and Megatron-FSDP do, and replicas are the ranks of data.
    """

    shard: Spread
    replica: Spread
    expert_shard: Spread
    expert_replica: Spread


def weight_groups(mesh: LayoutTable, spans: tuple[int, ...]) -> WeightGroups:
    """The groups of each distinct mesh."""
    sharded = mesh.z > 1
    shard = _where(sharded, spread(mesh, ("context", "z"), spans), _single(mesh, spans))
    replica = _where(sharded, spread(mesh, ("data",), spans), spread(mesh, ("context", "data"), spans))
    copies, step = degrees(mesh, "expert_data"), strides(mesh, "expert_data")
    cut = np.where(sharded, copies // np.gcd(copies, mesh.data), 1)
    expert_shard = spread_of([cut], [step], spans, ("expert_shard",))
    expert_replica = spread_of([copies // cut], [step * cut], spans, ("expert_replica",))
    return WeightGroups(shard, replica, expert_shard, expert_replica)


def _single(mesh: LayoutTable, spans: tuple[int, ...]) -> Spread:
    one = np.ones(len(mesh))
    return Spread(one, tuple(one for _ in spans))


def _where(mask: Mask, yes: Spread, no: Spread) -> Spread:
    members = tuple(np.where(mask, a, b) for a, b in zip(yes.members, no.members, strict=True))
    return Spread(np.where(mask, yes.size, no.size), members, yes.axes if mask.all() else no.axes)


def take(group: Spread, rows: Index) -> Spread:
    """The given rows of a spread."""
    return Spread(group.size[rows], tuple(members[rows] for members in group.members), group.axes)


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds per step to reduce gradients and to gather updated parameters, whole and as the last bucket
    alone.

    ``all_reduce_s`` is for replicated gradients, ``scatter_s`` and ``gather_s`` for sharded ones.
    """

    all_reduce_s: Floats
    scatter_s: Floats
    gather_s: Floats
    buckets: Floats


def step_costs(elements: Floats, recipe: Recipe, replica: Spread, network: Network) -> StepCosts:
    """Costs of synchronising ``elements`` gradients per rank over their replicas."""
    buckets = bucket_count(elements, replica.size)
    gradients = elements / buckets * recipe.gradient_bytes
    weights = elements / buckets * recipe.element_bytes
    return StepCosts(
        all_reduce_s=buckets * collective_s("all-reduce", gradients, replica, network),
        scatter_s=buckets * collective_s("reduce-scatter", gradients, replica, network),
        gather_s=buckets * collective_s("all-gather", weights, replica, network),
        buckets=buckets,
    )


@dataclass(frozen=True, slots=True)
class GradientCosts:
    """Gradients of the largest stage that a rank keeps (``elements``), their ``replicas``, and what a step
    costs."""

    elements: Floats
    replicas: Floats
    step: StepCosts


@dataclass(frozen=True, slots=True)
class ShardCosts:
    """Seconds to gather one block's weights over z (and context), and to reduce-scatter its gradients."""

    gather_s: Floats
    scatter_s: Floats
    bound_s: Floats

    def __add__(self, other: ShardCosts) -> ShardCosts:
        return ShardCosts(
            self.gather_s + other.gather_s, self.scatter_s + other.scatter_s, self.bound_s + other.bound_s
        )


def shard_costs(elements: Floats, recipe: Recipe, shard: Spread, network: Network, pieces: float) -> ShardCosts:
    """Costs of one block of ``elements`` weights per rank (gathered), in so many ``pieces``."""
    weights, gradients = elements / pieces * recipe.element_bytes, elements / pieces * recipe.gradient_bytes
    gather = pieces * collective_s("all-gather", weights, shard, network)
    scatter = pieces * collective_s("reduce-scatter", gradients, shard, network)
    bound = lower_bound_s("all-gather", elements * recipe.element_bytes, shard, network)
    return ShardCosts(gather, scatter, np.where(shard.size > 1, bound, 0.0))
