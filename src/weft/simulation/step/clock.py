"""The time of one training step of ``weft.runtime``, operation by operation.

A rank is one stream of computation that issues collectives without waiting for them.  Each set of mesh axes
has a link of its own that serves collectives in the order of their issue; all ranks do the same at the same
time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.collectives.cost import collective_s as cost_of
from weft.errors import BadInput
from weft.estimation.blocks import BlockRows
from weft.estimation.iteration import Estimator
from weft.estimation.pace import slowest_stage
from weft.estimation.synchronisation import StepSynchronisation
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
    """One step in seconds: ``compute_s``, ``other_s`` and the waiting of ``exposed_s`` add up to ``seconds``.

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
) -> StepTime:
    """One step of a layout, with its overlaps, in which only products compute.

    Args:
        gemm_s: seconds of the products of linear layers and of the head.
        collective_s: seconds of a collective that has its link to itself.
        options: how the runtime trains.
        other_s: seconds at the update.

    Raises:
        Unsupported: pipeline stages, or what the runtime does not train.
        BadInput: the layout breaks a rule of ``weft.layout.check``, or a size does not divide.
    """

    def computation_s(one: Computation) -> float:
        if not isinstance(one, Gemm) or one.role == "core":
            return 0.0
        return gemm_s(float(one.m[0]), float(one.n[0]), float(one.k[0]))

    program = step_program(job, layout, options)
    return play(program, computation_s=computation_s, collective_s=collective_s, other_s=other_s)


def predict_on(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    constants: Calibration | None = None,
    *,
    options: StepOptions | None = None,
) -> StepTime:
    """One step of a layout on a cluster, by the estimator's times of kernels, collectives, update and host.

    No kernel is shorter than its launch.  What collectives that hide behind computation slow it down
    (``Calibration.overlap_cost``) is part of ``other_s``.

    Args:
        constants: calibration; the shipped one of the accelerator by default.

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

    frame = next(estimator.frames(table))
    update = StepSynchronisation(frame).costs(slowest_stage(frame, BlockRows(frame).all()))
    once = fixed.iteration_s + float(update.update_s[0])
    found = play(program, computation_s=computation_s, collective_s=collective_s, other_s=once)
    hidden = sum(found.busy_s.values()) - sum(found.exposed_s.values())
    slowed = fixed.overlap_cost * hidden
    return replace(found, seconds=found.seconds + slowed, other_s=once + slowed)


def play(
    program: Program,
    *,
    computation_s: Callable[[Computation], float],
    collective_s: CollectiveTime,
    other_s: float = 0.0,
) -> StepTime:
    """A program in time; ``other_s`` is spent at the update."""
    player = _Player(computation_s, collective_s)
    for one in program.instructions:
        if isinstance(one, Compute):
            player.compute(one.computation)
        elif isinstance(one, Start):
            player.start(one.issue)
        elif isinstance(one, Wait):
            player.wait(one.number)
        else:
            player.now += other_s
    return StepTime(
        seconds=player.now,
        compute_s=player.compute_s,
        other_s=other_s,
        exposed_s=player.exposed_s,
        busy_s=player.busy_s,
        collectives=Counter(program.issued),
    )


class _Player:
    """The clock of a rank and of its links."""

    def __init__(self, computation_s: Callable[[Computation], float], collective_s: CollectiveTime) -> None:
        self.now = self.compute_s = 0.0
        self.exposed_s: dict[Axes, float] = {}
        self.busy_s: dict[Axes, float] = {}
        self._computation_s, self._collective_s = computation_s, collective_s
        self._free: dict[Axes, float] = {}
        self._under_way: list[tuple[Axes, float]] = []
        self._computations: dict[int, float] = {}
        self._collectives: dict[Issue, float] = {}

    def compute(self, computation: Computation) -> None:
        """A program repeats few computations, which are timed once each."""
        key = id(computation)
        if key not in self._computations:
            self._computations[key] = self._computation_s(computation)
        self.now += self._computations[key]
        self.compute_s += self._computations[key]

    def start(self, issue: Issue) -> None:
        """Queue a collective on its link."""
        axes = issue.axes
        if issue not in self._collectives:
            self._collectives[issue] = self._collective_s(issue.kind, axes, issue.bytes)
        seconds = self._collectives[issue]
        end = max(self.now, self._free.get(axes, 0.0)) + seconds
        self._free[axes] = end
        self._under_way.append((axes, end))
        self.busy_s[axes] = self.busy_s.get(axes, 0.0) + seconds
        self.exposed_s.setdefault(axes, 0.0)

    def wait(self, number: int) -> None:
        """Until a collective has ended."""
        axes, end = self._under_way[number]
        self.exposed_s[axes] += max(end - self.now, 0.0)
        self.now = max(self.now, end)
