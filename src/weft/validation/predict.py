"""Predicted time and memory of prepared runs: inputs grouped once, estimated as often as constants change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from weft.cluster.calibration import Calibration, calibration, with_constants
from weft.cluster.spec import Cluster
from weft.estimation.iteration import Estimator
from weft.estimation.result import EstimateTable
from weft.layout.table import Floats, Index, LayoutTable
from weft.model.job import Job
from weft.validation.inputs import Prepared

Constants = Callable[[str, str], Calibration]
"""The constants for an accelerator and a software stack, by their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """Seconds of an iteration and bytes of the peak, in the order of the runs; bytes are of the kind that the
    run states (allocated, reserved or used)."""

    seconds: Floats
    memory_bytes: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGroup:
    """Runs of one job, cluster and stack: ``rows`` are their places, ``table`` their layouts, ``stated`` the constants
    that their words state."""

    job: Job
    cluster: Cluster
    stack: str
    stated: tuple[tuple[str, float], ...]
    rows: Index
    table: LayoutTable

    def estimated(self, constants: Calibration) -> EstimateTable:
        """The runs with the constants of accelerator and stack, except those that are stated."""
        return Estimator(self.job, self.cluster, with_stated(constants, self.stated)).evaluate(self.table)


def with_stated(constants: Calibration, stated: Iterable[tuple[str, float]]) -> Calibration:
    """``constants`` except those that the words of a run state."""
    return with_constants(constants, dict(stated), where="the words of a run")


class Predictor:
    """Predicts a fixed set of runs with any constants.

    Args:
        runs: the prepared runs.
    """

    def __init__(self, runs: Iterable[Prepared]) -> None:
        self.runs = tuple(runs)
        places: dict[tuple[Job, Cluster, str, tuple[tuple[str, float], ...]], list[int]] = {}
        for place, run in enumerate(self.runs):
            places.setdefault((run.job, run.cluster, run.stack.name, run.stack.stated), []).append(place)
        self.groups = tuple(
            RunGroup(
                job=job,
                cluster=cluster,
                stack=stack,
                stated=stated,
                rows=np.array(rows, dtype=np.intp),
                table=LayoutTable.of([self.runs[row].layout for row in rows]),
            )
            for (job, cluster, stack, stated), rows in places.items()
        )
        self.counted = np.array([run.counted for run in self.runs])

    def predict(self, constants: Constants = calibration) -> Predictions:
        """Time and memory of every run with the constants of its accelerator and stack."""
        seconds, memory_bytes = np.zeros(len(self.runs)), np.zeros(len(self.runs))
        for group in self.groups:
            chosen = constants(group.cluster.accelerator.name, group.stack)
            result, counted = group.estimated(chosen), self.counted[group.rows]
            seconds[group.rows] = result.iteration_s
            stage_bytes = result.memory_bytes - result.communicators_bytes
            kinds = [result.memory_bytes, stage_bytes - chosen.reserved_bytes]
            allocated = stage_bytes - result.reserve_bytes
            memory_bytes[group.rows] = np.select([counted == "used", counted == "reserved"], kinds, allocated)
        return Predictions(seconds=seconds, memory_bytes=memory_bytes)
