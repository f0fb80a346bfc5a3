"""Keeping weights and gradients together: per block over z, per step over the replicas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from weft.collectives.cost import Network, collective_s, lower_bound_s
from weft.layout.mesh import spread
from weft.layout.step import Reduction, Unit
from weft.layout.table import Floats, LayoutTable
from weft.model.job import Recipe


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


@dataclass(frozen=True, slots=True)
class GradientCosts:
    """Gradients of the largest stage that a rank keeps (``elements``), their ``replicas``, what a step costs,
    and whether ``zero`` shards them (``by_zero``, 0 or 1)."""

    elements: Floats
    replicas: Floats
    step: StepCosts
    by_zero: Floats


def gradient_costs(one: Reduction, recipe: Recipe, table: LayoutTable, network: Network) -> GradientCosts:
    """Costs of synchronising a stage's gradients over their replicas."""
    group, buckets = spread(table, one.axes, network.spans), one.buckets
    whole = one.elements / buckets * recipe.gradient_bytes
    gradients, weights = (one.padded / buckets * width for width in (recipe.gradient_bytes, recipe.element_bytes))
    step = StepCosts(
        all_reduce_s=buckets * collective_s("all-reduce", whole, group, network),
        scatter_s=buckets * collective_s("reduce-scatter", gradients, group, network),
        gather_s=buckets * collective_s("all-gather", weights, group, network),
        buckets=buckets,
    )
    return GradientCosts(one.elements, group.size, step, np.full_like(group.size, float(one.by_zero)))


@dataclass(frozen=True, slots=True)
class ShardCosts:
    """Seconds in one micro-batch to gather a part's weights over their shards, forward, backward and to replay,
    and to scatter its gradients; the least that the first two and the last take at peak."""

    forward_s: Floats
    backward_s: Floats
    replay_s: Floats
    scatter_s: Floats
    bound_s: Floats


def shard_costs(units: Iterable[Unit], recipe: Recipe, table: LayoutTable, network: Network) -> ShardCosts:
    """Costs of a part's units of sharding, one after the other."""
    forward, backward, replay, scatter, bound = (np.zeros(len(table)) for _ in range(5))
    for one in units:
        group = spread(table, one.axes, network.spans)
        weights = one.elements * recipe.element_bytes
        gather_s = one.calls * collective_s("all-gather", weights, group, network)
        gradients = one.elements * recipe.gradient_bytes
        forward += one.forward * gather_s
        backward += one.backward * gather_s
        replay += one.replay * gather_s
        scatter += one.calls * collective_s("reduce-scatter", gradients, group, network)
        least = one.calls * lower_bound_s("all-gather", weights, group, network)
        bound += (one.forward + one.backward + 1) * np.where(group.size > 1, least, 0.0)
    return ShardCosts(forward, backward, replay, scatter, bound)
