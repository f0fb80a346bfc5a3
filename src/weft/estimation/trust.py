"""How far estimates of such runs have been from measured ones: cross-validated errors of similar runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from weft.cluster.calibration import shipped_tables
from weft.cluster.spec import Cluster
from weft.layout.spec import Layout
from weft.model.job import Job

FEWEST = 8
"""Runs from which an error is stated."""
COVERED = 0.8
"""Share of similar runs whose error is at most the stated one."""
SIZE, COUNT = 4.0, 8.0
"""Factors of parameters, and of accelerators, between which runs are similar."""
WIDTHS = {"fp32": "32-bit", "fp16": "16-bit", "bf16": "16-bit", "fp8": "8-bit", "mxfp8": "8-bit", "nvfp4": "4-bit"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What makes runs alike.

    Attributes:
        accelerator: its table in the calibration.
        kind: dense, or experts.
        width: of the linear layers' arithmetic.
        parameters: of the model.
        accelerators: how many.
    """

    accelerator: str
    kind: str
    width: str
    parameters: float
    accelerators: int

    @classmethod
    def of(cls, job: Job, cluster: Cluster, layout: Layout) -> Traits:
        """The traits of an estimate."""
        tables = shipped_tables().used(cluster.accelerator.name)
        return cls(
            accelerator=tables[-1] if tables else cluster.accelerator.name,
            kind="experts" if any(kind.moe for kind in job.model.kinds) else "dense",
            width=WIDTHS[job.recipe.precision],
            parameters=float(job.model.parameters),
            accelerators=layout.world,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A measured run: its traits, and predicted / measured - 1 by constants that had not seen its model."""

    traits: Traits
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBar:
    """``COVERED`` of ``runs`` similar runs were predicted within the share ``error``; None: none is similar.

    ``alike`` says in what they are similar.
    """

    error: float | None
    runs: int
    alike: str


def error_bar(traits: Traits, known: Sequence[Known] | None = None) -> ErrorBar:
    """The error of the runs that are most like these traits and at least ``FEWEST``."""
    runs = shipped_runs() if known is None else known
    for alike, similar in _circles(traits, runs):
        if len(similar) >= FEWEST:
            errors = np.abs([one.error for one in similar])
            bar = float(np.quantile(errors, COVERED, method="higher"))
            return ErrorBar(error=bar, runs=len(similar), alike=alike)
    return ErrorBar(error=None, runs=0, alike="")


def _circles(traits: Traits, runs: Sequence[Known]) -> Iterator[tuple[str, list[Known]]]:
    """Similar runs, from the most to the least similar."""

    def near(a: float, b: float, factor: float) -> bool:
        return max(a, b) <= factor * min(a, b)

    machine = [one for one in runs if one.traits.accelerator == traits.accelerator]
    same = [one for one in machine if one.traits.kind == traits.kind and one.traits.width == traits.width]
    sized = [one for one in same if near(one.traits.parameters, traits.parameters, SIZE)]
    counted = [one for one in sized if near(one.traits.accelerators, traits.accelerators, COUNT)]
    what = f"{traits.width} {traits.kind} models on {traits.accelerator}"
    yield f"{what} of about this size and number", counted
    yield f"{what} of about this size", sized
    yield what, same
    kind = [one for one in machine if one.traits.kind == traits.kind]
    yield f"{traits.kind} models on {traits.accelerator}", kind


@cache
def shipped_runs() -> tuple[Known, ...]:
    """The runs with which the shipped constants were set (``weft calibrate --errors``)."""
    text = files("weft.estimation").joinpath("data", "errors.json").read_text(encoding="utf-8")
    return runs_from_json(text)


def runs_to_json(runs: Sequence[Known]) -> str:
    """As columns, one line each."""
    columns: dict[str, list[Any]] = {name: [] for name in (*Traits.__slots__, "error")}
    for one in runs:
        for name in Traits.__slots__:
            columns[name].append(getattr(one.traits, name))
        columns["error"].append(round(one.error, 4))
    lines = [f" {json.dumps(name)}: {json.dumps(values)}" for name, values in columns.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def runs_from_json(text: str) -> tuple[Known, ...]:
    """What ``runs_to_json`` wrote."""
    columns = json.loads(text)
    rows = zip(*(columns[name] for name in (*Traits.__slots__, "error")), strict=True)
    return tuple(
        Known(traits=Traits(**dict(zip(Traits.__slots__, row[:-1], strict=True))), error=row[-1]) for row in rows
    )
