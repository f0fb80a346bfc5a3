"""Recursive halving and doubling (Rabenseifner 2004)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.collectives.messages.blocks import MessagePlan, after, beside, table
from weft.fabric.spec import Ints


def halving(size: int) -> MessagePlan:
    """Reduce-scatter of ``size`` = p + r ranks with p a power of two: r odd ranks first fold into their
    neighbours, and last get their blocks back."""
    ends, folded = _ends(size)
    parts = _halves(size, ends)
    if folded:
        odd = 2 * np.arange(folded) + 1
        back = table(np.zeros_like(odd), odd - 1, odd, odd, parts=size, owner=np.arange(size), adds=False)
        parts = [_fold(size, folded), *parts, back]
    return after(*parts) if parts else _nothing(size)


def doubling(size: int) -> MessagePlan:
    """All-gather: the reverse of ``halving``."""
    ends, folded = _ends(size)
    parts = _doubles(size, ends)
    if folded:
        odd = 2 * np.arange(folded) + 1
        zero = np.zeros_like(odd)
        give = table(zero, odd, odd - 1, odd, parts=size, owner=np.arange(size), adds=False)
        parts = [give, *parts, _rest(size, odd)]
    return after(*parts) if parts else _nothing(size)


def _nothing(size: int) -> MessagePlan:
    none = np.zeros(0, dtype=np.int64)
    return table(none, none, none, none, parts=size, owner=np.arange(size), adds=False)


def _ends(size: int) -> tuple[Ints, int]:
    """Where the blocks of each active rank begin (and the end), and how many ranks fold away.

    Active rank a < r holds the blocks 2a and 2a + 1, the others one each.
    """
    active = 1 << (size.bit_length() - 1)
    folded = size - active
    blocks = np.where(np.arange(active) < folded, 2, 1)
    return np.concatenate([[0], np.cumsum(blocks)]), folded


def _fold(size: int, folded: int) -> MessagePlan:
    odd = 2 * np.arange(folded) + 1
    zero = np.zeros_like(odd)
    return table(zero, odd, odd - 1, zero, parts=size, owner=np.arange(size), adds=True, blocks=size)


def _swap(size: int, ends: Ints, distance: int, *, adds: bool) -> MessagePlan:
    """Active ranks ``distance`` apart exchange half of what they both cover: the other's half when reducing,
    their own when gathering."""
    # At distance d two partners cover the same 2d active ranks; each keeps the half with its own bit.
    rank = np.arange(len(ends) - 1)
    partner = rank ^ distance
    covered = partner if adds else rank
    low = covered & ~(distance - 1)
    first, stop = ends[low], ends[low + distance]
    # Active rank a is rank ends[a]: the first block that it holds has its number.
    swapped = table(
        np.zeros_like(rank), ends[rank], ends[partner], first, parts=size, owner=np.arange(size), adds=adds
    )
    return replace(swapped, blocks=stop - first)


def _halves(size: int, ends: Ints) -> list[MessagePlan]:
    active = len(ends) - 1
    return [_swap(size, ends, active >> i, adds=True) for i in range(1, active.bit_length())]


def _doubles(size: int, ends: Ints) -> list[MessagePlan]:
    active = len(ends) - 1
    return [_swap(size, ends, 1 << i, adds=False) for i in range(active.bit_length() - 1)]


def _rest(size: int, odd: Ints) -> MessagePlan:
    """The neighbour of each folded rank sends it everything but its own block."""
    before = table(np.zeros_like(odd), odd - 1, odd, np.zeros_like(odd), parts=size, owner=np.arange(size), adds=False)
    behind = replace(before, first=odd + 1, blocks=size - 1 - odd)
    sides = beside([replace(before, blocks=odd.copy()), behind], parts=size, owner=np.arange(size))
    some = sides.blocks > 0
    return replace(
        sides,
        step=sides.step[some],
        source=sides.source[some],
        target=sides.target[some],
        first=sides.first[some],
        blocks=sides.blocks[some],
        adds=sides.adds[some],
    )
