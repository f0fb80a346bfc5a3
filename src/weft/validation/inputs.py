"""From a measured run to what an estimate needs, with every assumption; or why that cannot be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weft.cluster.spec import Cluster
from weft.errors import BadInput
from weft.layout.spec import Layout
from weft.model.job import Job
from weft.validation.cut import cut, degrees
from weft.validation.machine import machine
from weft.validation.measured import seconds_from_rate, stated_seconds
from weft.validation.recipe import training
from weft.validation.runs import Run, Unparsed
from weft.validation.shape import shape
from weft.validation.stack import Stack, recognise

GIB = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run as Weft estimates it.

    ``measured_s`` is the iteration's time, ``derived`` whether it follows from a rate in FLOP/s;
    ``measured_bytes`` is the peak per accelerator, None where not stated.  ``assumptions`` are sentences.
    """

    run: Run
    stack: Stack
    job: Job
    cluster: Cluster
    layout: Layout
    measured_s: float
    derived: bool
    measured_bytes: float | None
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A row that cannot be predicted, and why."""

    name: str
    family: str
    reason: str


def prepare_all(rows: Iterable[Run | Unparsed]) -> tuple[Prepared | Skipped, ...]:
    """Every row in order, prepared or skipped."""
    return tuple(
        prepare(row)
        if isinstance(row, Run)
        else Skipped(name=row.name, family=row.family, reason=f"unreadable: {row.reason}")
        for row in rows
    )


def prepare(run: Run) -> Prepared | Skipped:
    """One run with the defaults of its software; skipped with a reason where something does not fit."""
    try:
        return _prepared(run)
    except BadInput as error:
        return Skipped(name=run.name, family=run.family, reason=error.what)


def _prepared(run: Run) -> Prepared:
    stack = recognise(run)
    where, what = machine(run), shape(run, prediction=stack.prediction)
    mesh_assumptions: list[str] = []
    mesh = degrees(run, what.model, where.cluster, mesh_assumptions)
    chip = where.cluster.accelerator
    how = training(run, stack, what.model, chip, mesh.data)
    job = Job(model=what.model, recipe=how.recipe)
    split = cut(run, stack, job, where.cluster, mesh)
    measured, note = stated_seconds(run, job)
    derived = measured is None
    if measured is None:
        measured, note = seconds_from_rate(run, stack, job, split.layout, chip)
    if measured is None:
        raise BadInput("no time, rate or MFU is stated")
    words = (*what.assumptions, *how.assumptions, *where.assumptions, *mesh_assumptions, *split.assumptions)
    return Prepared(
        run=run,
        stack=stack,
        job=job,
        cluster=where.cluster,
        layout=split.layout,
        measured_s=measured,
        derived=derived,
        measured_bytes=None if run.peak_memory_gib is None else run.peak_memory_gib * GIB,
        assumptions=(*words, note) if note else words,
    )
