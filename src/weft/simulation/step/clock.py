"""The time of one training step of ``weft.runtime``, operation by operation.

A rank is one stream of computation that issues collectives without waiting for them.  Each set of mesh axes
has a link of its own that serves collectives in the order of their issue; all ranks do the same at the same
time, unless some compute more slowly: then a collective begins when the last of its ranks has issued it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import fsum

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.collectives.cost import collective_s as cost_of
from weft.errors import BadInput
from weft.estimation.iteration import Estimator, step_totals
from weft.fabric.spec import Floats
from weft.layout.mesh import spread
from weft.layout.operations import CollectiveKind, Computation, Gemm
from weft.layout.spec import Layout
from weft.layout.step import Issue, StepOptions
from weft.layout.table import LayoutTable
from weft.model.job import Job
from weft.simulation.step.program import Compute, Program, Start, Wait, step_program

Axes = tuple[str, ...]
ProductTime = Callable[[float, float, float], float]
"""Seconds of a product (m x k) by (k x n), of m, n and k."""
CollectiveTime = Callable[[CollectiveKind, Axes, int], float]
"""Seconds of a collective by its kind, axes (those of more than one rank) and bytes of the full buffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """A step of rank 0 in seconds: ``compute_s``, ``other_s`` and the waiting of ``exposed_s`` add up to ``seconds``.

    Attributes:
        exposed_s: waiting for the collectives of each set of axes.
        busy_s: service of each link.
        other_s: what happens once per step besides.
        collectives: what was issued.
    """

    seconds: float
    compute_s: float
    other_s: float
    exposed_s: Mapping[Axes, float]
    busy_s: Mapping[Axes, float]
    collectives: Counter[Issue]


def predict_step(
    job: Job,
    layout: Layout,
    *,
    gemm_s: ProductTime,
    collective_s: CollectiveTime,
    options: StepOptions | None = None,
    other_s: float = 0.0,
    slow: Floats | None = None,
) -> StepTime:
    """One step of a layout, with its overlaps, in which only products compute.

    Args:
        gemm_s: seconds of the products of linear layers and of the head.
        collective_s: seconds of a collective that has its link to itself.
        options: how the runtime trains.
        other_s: seconds at the update.
        slow: how many times longer each rank computes, shape (world,).

    Raises:
        Unsupported: pipeline stages, or what the runtime does not train.
        BadInput: the layout breaks a rule of ``weft.layout.check``, or a size does not divide.
    """

    def computation_s(one: Computation) -> float:
        if not isinstance(one, Gemm) or one.role == "core":
            return 0.0
        return gemm_s(float(one.m[0]), float(one.n[0]), float(one.k[0]))

    program = step_program(job, layout, options)
    ranks = None if slow is None else Ranks.of(layout, slow)
    return play(program, computation_s=computation_s, collective_s=collective_s, other_s=other_s, ranks=ranks)


def predict_on(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    constants: Calibration | None = None,
    *,
    options: StepOptions | None = None,
    slow: Floats | None = None,
) -> StepTime:
    """One step of a layout on a cluster, by the estimator's times of kernels, collectives, update and host.

    No kernel is shorter than its launch.  What collectives that hide behind computation slow it down
    (``Calibration.overlap_cost``) is part of ``other_s``.

    Args:
        constants: calibration; the shipped one of the accelerator by default.
        slow: how many times longer each rank computes, update and host included, shape (world,).

    Raises:
        Unsupported: pipeline stages, what the runtime does not train, or a precision that the accelerator
            lacks.
        BadInput: the layout is for another number of accelerators or breaks a rule of ``weft.layout.check``.
    """
    program = step_program(job, layout, options)
    if layout.world != cluster.count:
        raise BadInput(
            f"the layout is for {layout.world} accelerators, the cluster has {cluster.count}",
            where="layout",
            remedy="change one of them",
        )
    estimator, table = Estimator(job, cluster, constants), LayoutTable.of([layout])
    fixed = estimator.constants

    def computation_s(one: Computation) -> float:
        return max(float(estimator.kernels.seconds(one)[0]), fixed.launch_s)

    def collective_s(kind: CollectiveKind, axes: Axes, bytes_: int) -> float:
        network = estimator.network
        return float(cost_of(kind, np.array([float(bytes_)]), spread(table, axes, network.spans), network)[0])

    once = fixed.iteration_s + float(step_totals(estimator.frame(table)).update_s[0])
    found = play(program, computation_s=computation_s, collective_s=collective_s, other_s=once)
    hidden = fsum(found.busy_s.values()) - fsum(found.exposed_s.values())
    slowed = fixed.overlap_cost * hidden
    if slow is None:
        return replace(found, seconds=found.seconds + slowed, other_s=once + slowed)
    ranks = Ranks.of(layout, slow)
    return play(program, computation_s=computation_s, collective_s=collective_s, other_s=once + slowed, ranks=ranks)


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """The ranks of a mesh that do not all compute alike.

    Attributes:
        axes: of the mesh, outer to inner.
        slow: how many times longer each rank computes, with a dimension for each axis.
    """

    axes: Axes
    slow: Floats

    @classmethod
    def of(cls, layout: Layout, slow: Floats) -> Ranks:
        """From factors in the order of the ranks."""
        axes = tuple(reversed(layout.order))
        return cls(axes, slow.reshape([getattr(layout, axis) for axis in axes]))


ALIKE = Ranks((), np.ones(()))
"""One rank that stands for all."""


def play(
    program: Program,
    *,
    computation_s: Callable[[Computation], float],
    collective_s: CollectiveTime,
    other_s: float = 0.0,
    ranks: Ranks | None = None,
) -> StepTime:
    """A program in time; ``other_s`` is spent at the update.

    With ``ranks`` it is the second of two steps: a slow rank is late at the end of the first.
    """
    player = _Player(ranks or ALIKE, computation_s, collective_s)
    if ranks is not None:
        player.step(program, other_s)
    begin, compute_s, begun_s = player.now, player.compute_s, dict(player.exposed_s)
    player.busy_s.clear()
    player.step(program, other_s)
    return StepTime(
        seconds=_first(player.now - begin),
        compute_s=_first(player.compute_s - compute_s),
        other_s=_first((ranks or ALIKE).slow) * other_s,
        exposed_s={axes: _first(seconds - begun_s.get(axes, 0.0)) for axes, seconds in player.exposed_s.items()},
        busy_s=player.busy_s,
        collectives=Counter(program.issued),
    )


def _first(values: Floats) -> float:
    return float(values.flat[0])


class _Player:
    """The clocks of ranks and of their links: arrays with a dimension for each axis of the mesh."""

    def __init__(
        self, ranks: Ranks, computation_s: Callable[[Computation], float], collective_s: CollectiveTime
    ) -> None:
        self.ranks = ranks
        self.now = self.compute_s = np.zeros(ranks.slow.shape)
        self.exposed_s: dict[Axes, Floats] = {}
        self.busy_s: dict[Axes, float] = {}
        self._computation_s, self._collective_s = computation_s, collective_s
        self._free: dict[Axes, Floats] = {}
        self._under_way: list[tuple[Axes, Floats]] = []
        self._computations: dict[int, Floats] = {}
        self._collectives: dict[Issue, float] = {}

    def step(self, program: Program, other_s: float) -> None:
        """Play all instructions."""
        self._under_way.clear()
        for one in program.instructions:
            if isinstance(one, Compute):
                self.compute(one.computation)
            elif isinstance(one, Start):
                self.start(one.issue)
            elif isinstance(one, Wait):
                self.wait(one.number)
            else:
                self.now = self.now + other_s * self.ranks.slow

    def compute(self, computation: Computation) -> None:
        """A program repeats few computations, which are timed once each."""
        key = id(computation)
        if key not in self._computations:
            self._computations[key] = self._computation_s(computation) * self.ranks.slow
        self.now = self.now + self._computations[key]
        self.compute_s = self.compute_s + self._computations[key]

    def start(self, issue: Issue) -> None:
        """Queue a collective on the link of each group: it begins when all have issued it and the link is free."""
        axes = issue.axes
        if issue not in self._collectives:
            self._collectives[issue] = self._collective_s(issue.kind, axes, issue.bytes)
        seconds = self._collectives[issue]
        of_group = tuple(at for at, axis in enumerate(self.ranks.axes) if axis in axes)
        ready = np.maximum(self.now, self._free.get(axes, 0.0))
        end = np.broadcast_to(ready.max(axis=of_group, keepdims=True) + seconds, ready.shape)
        self._free[axes] = end
        self._under_way.append((axes, end))
        self.busy_s[axes] = self.busy_s.get(axes, 0.0) + seconds
        self.exposed_s.setdefault(axes, np.zeros(self.ranks.slow.shape))

    def wait(self, number: int) -> None:
        """Until a collective has ended."""
        axes, end = self._under_way[number]
        self.exposed_s[axes] = self.exposed_s[axes] + np.maximum(end - self.now, 0.0)
        self.now = np.maximum(self.now, end)
