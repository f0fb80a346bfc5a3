"""Algorithms in which ranks talk directly: every message goes from its first owner to its last."""

from __future__ import annotations

import numpy as np

from weft.collectives.messages.blocks import MessagePlan, after, table
from weft.fabric.spec import Ints


def reduce_scatter(size: int) -> MessagePlan:
    """One step: each rank sends block b to rank b."""
    source, target = _pairs(size)
    return table(np.zeros_like(source), source, target, target, parts=size, owner=np.arange(size), adds=True)


def all_gather(size: int) -> MessagePlan:
    """One step: each rank sends its block to all."""
    source, target = _pairs(size)
    return table(np.zeros_like(source), source, target, source, parts=size, owner=np.arange(size), adds=False)


def all_reduce(size: int) -> MessagePlan:
    """Two steps: reduce-scatter, then all-gather."""
    return after(reduce_scatter(size), all_gather(size))


def all_to_all(size: int) -> MessagePlan:
    """One step: every pair exchanges its blocks."""
    source, target = _pairs(size)
    owner = np.tile(np.arange(size), size)
    return table(np.zeros_like(source), source, target, source * size + target, parts=size, owner=owner, adds=False)


def broadcast(size: int) -> MessagePlan:
    """Rank 0 sends the buffer to all."""
    target = np.arange(1, size)
    zero = np.zeros_like(target)
    return table(zero, zero, target, zero, parts=1, owner=np.zeros(1, dtype=np.int64), adds=False)


def reduce(size: int) -> MessagePlan:
    """All send their buffer to rank 0."""
    source = np.arange(1, size)
    zero = np.zeros_like(source)
    return table(zero, source, zero, zero, parts=1, owner=np.zeros(1, dtype=np.int64), adds=True)


def send(size: int) -> MessagePlan:
    """The first rank sends the buffer to the second."""
    zero = np.zeros(min(size - 1, 1), dtype=np.int64)
    return table(zero, zero, zero + 1, zero, parts=1, owner=np.zeros(1, dtype=np.int64), adds=False)


def _pairs(size: int) -> tuple[Ints, Ints]:
    """All ordered pairs of different ranks."""
    source = np.repeat(np.arange(size), size - 1)
    target = (source + np.tile(np.arange(1, size), size)) % size
    return source, target
