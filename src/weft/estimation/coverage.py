"""Which of a layout's kernels a calibration's measurements cover."""

from __future__ import annotations

from collections import Counter

from weft.cluster.calibration import Calibration
from weft.cluster.spec import Cluster
from weft.estimation.kernels import Kernels
from weft.layout.operations import FlashAttention, Gemm
from weft.layout.spec import Layout
from weft.layout.step import Step
from weft.layout.table import LayoutTable
from weft.model.job import Job

EXACT = 0.01
"""Powers of two within which a shape counts as measured."""


def coverage(job: Job, cluster: Cluster, layout: Layout, constants: Calibration) -> str | None:
    """How many shapes of products and attention were measured, are near a measured one, or take the closed form, and
    where collectives were measured; None where nothing was."""
    if constants.measured is None:
        return None
    kernels = Kernels(cluster.accelerator, constants, job.recipe.precision)
    found: dict[object, str] = {}
    for part in Step(job.model, job.recipe, LayoutTable.of([layout])).operations:
        for one in part.computations:
            if isinstance(one, Gemm):
                sides = (float(one.m[0]), float(one.n[0]), float(one.k[0]))
                found[one.phase, *sides, str(one.copies), one.role] = _class(kernels, one)
            elif isinstance(one, FlashAttention):
                found[one.phase, float(one.flops[0]), float(one.bytes[0])] = _class(kernels, one)
    counts = Counter(found.values())
    scopes = " and ".join(dict.fromkeys(one.scope for one in constants.measured.collectives))
    return (
        f"of {len(found)} shapes of products and attention {counts['measured']} as measured,"
        f" {counts['near']} from near ones, {counts['modelled']} by the closed form ({constants.name})"
        + (f"; collectives of {scopes} as measured" if scopes else "")
    )


def _class(kernels: Kernels, one: Gemm | FlashAttention) -> str:
    distance = float(kernels.distance(one)[0])
    if distance <= EXACT:
        return "measured"
    return "near" if distance < float("inf") else "modelled"
