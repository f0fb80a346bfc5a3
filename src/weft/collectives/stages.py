"""What one stage of a hierarchical collective costs: steps, bytes and latency of an algorithm on a dimension.

A stage runs among the accelerators that differ in one dimension's coordinate.  Its *buffer* is the larger of
what an accelerator holds before and after it: a reduce-scatter shrinks the buffer by the dimension's size, an
all-gather grows it.  Sent bytes and steps are those of Themis (arXiv 2110.04478, section 4) for ring, direct
and halving-doubling; of Sanders et al. (2009) for double trees; of NVLink SHARP for ``in-switch``: each
accelerator reads its share reduced and writes it to all.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import Literal

from weft.errors import Unsupported
from weft.fabric.dimension import Dimension, DimensionKind

Algorithm = Literal["ring", "line", "direct", "halving-doubling", "double-tree", "in-switch"]
ALGORITHMS: tuple[Algorithm, ...] = ("ring", "line", "direct", "halving-doubling", "double-tree", "in-switch")
StageKind = Literal["reduce-scatter", "all-gather", "all-reduce", "all-to-all", "broadcast", "reduce"]
STAGE_KINDS: tuple[StageKind, ...] = (
    "reduce-scatter",
    "all-gather",
    "all-reduce",
    "all-to-all",
    "broadcast",
    "reduce",
)

_DEFAULT: dict[DimensionKind, Algorithm] = {
    "ring": "ring",
    "line": "line",
    "fully-connected": "direct",
    "switch": "halving-doubling",
}
_POSSIBLE: dict[DimensionKind, tuple[Algorithm, ...]] = {
    "ring": ("ring",),
    "line": ("line",),
    "fully-connected": ("direct", "ring"),
    "switch": ("halving-doubling", "ring", "direct", "double-tree", "in-switch"),
}
ONE_OPERATION: tuple[Algorithm, ...] = ("double-tree", "in-switch")
"""Algorithms that all-reduce at once instead of scattering and gathering."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The cost of a stage: the share of its buffer that an accelerator sends over the dimension's bandwidth
    (bytes count once for each link that they cross on the way), and the steps that each cost its latency."""

    algorithm: Algorithm
    sent: float
    steps: int


def choose(dimension: Dimension, wanted: Algorithm | None = None) -> tuple[Algorithm, str | None]:
    """The algorithm of a dimension, and a sentence where it is not the one that was asked for.

    Raises:
        Unsupported: the dimension's links cannot carry the algorithm.
    """
    algorithm = wanted or ("in-switch" if dimension.reduces else _DEFAULT[dimension.kind])
    possible = _POSSIBLE[dimension.kind]
    if algorithm not in possible or (algorithm == "in-switch" and not dimension.reduces):
        without = tuple(one for one in possible if one != "in-switch" or dimension.reduces)
        problem = " that does not reduce" if algorithm == "in-switch" else ""
        raise Unsupported(
            f"no {algorithm} on a {dimension.kind}{problem}",
            where="algorithm",
            remedy=f"it takes {', '.join(without)}",
        )
    if algorithm == "halving-doubling" and dimension.size & (dimension.size - 1):
        return "ring", f"ring instead of halving-doubling on a switch of {dimension.size}: not a power of two"
    return algorithm, None


def stage(kind: StageKind, algorithm: Algorithm, size: int) -> Stage:
    """The cost of a stage among ``size`` accelerators.

    ``double-tree`` and ``in-switch`` are for all-reduce, broadcast and reduce; a reduce-scatter or all-gather
    takes halving-doubling (or a ring, where the size is no power of two) there, an all-to-all goes direct.
    """
    share = (size - 1) / size
    half = size * size // 4 / size
    tree = ceil(log2(size)) if size > 1 else 0
    if kind in ("reduce-scatter", "all-gather"):
        if algorithm in ONE_OPERATION:
            algorithm = "ring" if size & (size - 1) else "halving-doubling"
        sent = {"line": 2 * share}.get(algorithm, share)
        return Stage(algorithm=algorithm, sent=sent, steps=_steps(algorithm, size))
    if kind == "all-reduce":
        if algorithm not in ONE_OPERATION:
            once = stage("reduce-scatter", algorithm, size)
            return Stage(algorithm=algorithm, sent=2 * once.sent, steps=2 * once.steps)
        if algorithm == "in-switch":
            return Stage(algorithm=algorithm, sent=(size + 1) / size, steps=2)
        return Stage(algorithm=algorithm, sent=2.0, steps=2 * tree)
    if kind == "all-to-all":
        if algorithm in ("ring", "line"):
            sent, steps = (half, size // 2) if algorithm == "ring" else (2 * half, size - 1)
            return Stage(algorithm=algorithm, sent=sent, steps=steps)
        return Stage(algorithm="direct", sent=share, steps=1)
    if algorithm in ("ring", "line"):
        return Stage(algorithm=algorithm, sent=1.0 if algorithm == "ring" else 2.0, steps=size - 1)
    if algorithm == "direct":
        return Stage(algorithm=algorithm, sent=float(size - 1), steps=1)
    if algorithm == "in-switch":
        return Stage(algorithm=algorithm, sent=1.0, steps=1)
    return Stage(algorithm="double-tree", sent=1.0, steps=tree)


def _steps(algorithm: Algorithm, size: int) -> int:
    if algorithm == "direct":
        return 1
    return int(log2(size)) if algorithm == "halving-doubling" else size - 1


def lower_bound(kind: StageKind, size: int, *, reduces: bool = False, line: bool = False) -> Stage:
    """No algorithm sends less (``sent``), and none takes fewer steps, among accelerators alike.

    What every accelerator lacks must reach it; an all-reduce passes that twice, or the buffer once through
    a switch that reduces (Patarasuk and Yuan 2009).  The ends of a line have half of the bandwidth.
    """
    share = (size - 1) / size
    sent = {"all-reduce": 1.0 if reduces else 2 * share, "broadcast": 1.0, "reduce": 1.0}.get(kind, share)
    return Stage(algorithm="line" if line else "direct", sent=sent * (2 if line else 1), steps=1)
