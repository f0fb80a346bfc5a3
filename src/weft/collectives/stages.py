"""What one stage of a hierarchical collective costs: steps, bytes and latency of an algorithm on a dimension.

A stage runs among the accelerators that differ in one dimension's coordinate.  Its *buffer* is the larger of
what an accelerator holds before and after it: a reduce-scatter shrinks the buffer by the dimension's size, an
all-gather grows it.  Sent bytes and steps are those of Themis (arXiv 2110.04478, section 4) for ring, direct
and halving-doubling; of Sanders et al. (2009) for double trees; of NVLink SHARP for ``in-switch``: each
accelerator reads its share reduced and writes it to all.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import Literal, get_args

from weft.collectives.cost import in_switch_share
from weft.errors import Unsupported
from weft.fabric.dimension import Dimension, DimensionKind

Algorithm = Literal["ring", "line", "direct", "halving-doubling", "double-tree", "in-switch"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
StageKind = Literal["reduce-scatter", "all-gather", "all-reduce", "all-to-all", "broadcast", "reduce"]
STAGE_KINDS: tuple[StageKind, ...] = get_args(StageKind)
BALANCED_KINDS: tuple[StageKind, ...] = ("all-reduce", "reduce-scatter", "all-gather")
"""Collectives whose loads depend on the order of the dimensions."""

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
class StageCost:
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
        without = tuple(name for name in possible if name != "in-switch" or dimension.reduces)
        problem = " that does not reduce" if algorithm == "in-switch" else ""
        raise Unsupported(
            f"no {algorithm} on a {dimension.kind}{problem}",
            where="algorithm",
            remedy=f"it takes {', '.join(without)}",
        )
    # Halving-doubling pairs ranks by the bits of their number, which covers only powers of two.
    if algorithm == "halving-doubling" and dimension.size & (dimension.size - 1):
        return "ring", f"ring instead of halving-doubling on a switch of {dimension.size}: not a power of two"
    return algorithm, None


def stage(kind: StageKind, algorithm: Algorithm, size: int) -> StageCost:
    """The cost of a stage among ``size`` accelerators.

    ``double-tree`` and ``in-switch`` are for all-reduce, broadcast and reduce; a reduce-scatter or all-gather
    takes halving-doubling (or a ring, where the size is not a power of two) there, and so does an all-reduce in
    the switch of two.  An all-to-all goes direct, or hop by hop along a ring or line.  The two halves of an
    all-reduce count one after the other, although on a line they load different directions.
    """
    if kind == "all-reduce":
        return _all_reduce(algorithm, size)
    if kind in ("reduce-scatter", "all-gather"):
        return _half(algorithm, size)
    if kind == "all-to-all":
        return _all_to_all(algorithm, size)
    return _one_to_all(algorithm, size)


def _half(algorithm: Algorithm, size: int) -> StageCost:
    """A reduce-scatter or all-gather."""
    if algorithm in ONE_OPERATION:
        algorithm = "ring" if size & (size - 1) else "halving-doubling"
    steps = size - 1
    if algorithm in ("direct", "halving-doubling"):
        steps = 1 if algorithm == "direct" else int(log2(size))
    return StageCost(algorithm=algorithm, sent=_open(algorithm, size) * (size - 1) / size, steps=steps)


def _open(algorithm: Algorithm, size: int) -> int:
    """How many times the ends of a line send through half of the bandwidth; two share the one link."""
    return 2 if algorithm == "line" and size > 2 else 1


def _all_reduce(algorithm: Algorithm, size: int) -> StageCost:
    if algorithm == "in-switch" and size > 2:
        return StageCost(algorithm=algorithm, sent=in_switch_share(size), steps=2)
    if algorithm == "double-tree":
        return StageCost(algorithm=algorithm, sent=min(2.0, size / 2), steps=2 * (size.bit_length() - 1))
    once = _half(algorithm, size)
    return StageCost(algorithm=once.algorithm, sent=2 * once.sent, steps=2 * once.steps)


def _all_to_all(algorithm: Algorithm, size: int) -> StageCost:
    if algorithm not in ("ring", "line"):
        return StageCost(algorithm="direct", sent=(size - 1) / size, steps=1)
    # Forwarded hop by hop: on a ring, both ways, a block crosses size/4 links on average; on a line the link in the
    # middle carries size^2/4 blocks each way, over half of the bandwidth.
    sent = _open(algorithm, size) * (size * size // 4) / size
    return StageCost(algorithm=algorithm, sent=sent, steps=size // 2 if algorithm == "ring" else size - 1)


def _one_to_all(algorithm: Algorithm, size: int) -> StageCost:
    """A broadcast or reduce; on a ring it passes along a chain."""
    if algorithm in ("ring", "line"):
        return StageCost(algorithm=algorithm, sent=float(_open(algorithm, size)), steps=size - 1)
    if algorithm == "direct":
        return StageCost(algorithm=algorithm, sent=float(size - 1), steps=1)
    if algorithm == "in-switch":
        return StageCost(algorithm=algorithm, sent=1.0, steps=1)
    return StageCost(algorithm="double-tree", sent=1.0, steps=(size - 1).bit_length())
