"""Recursive halving and doubling (Rabenseifner 2004) and binary trees (Sanders, Speck and Traeff 2009)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.collectives.messages.blocks import MessagePlan, after, beside, table
from weft.fabric.spec import Ints

# Halving and doubling ---------------------------------------------------------------------------


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


def halving_doubling(size: int) -> MessagePlan:
    """All-reduce: fold, halve, double, unfold."""
    ends, folded = _ends(size)
    parts = [*_halves(size, ends), *_doubles(size, ends)]
    if folded:
        odd = 2 * np.arange(folded) + 1
        zero = np.zeros_like(odd)
        unfold = table(zero, odd - 1, odd, zero, parts=size, owner=np.arange(size), adds=False, blocks=size)
        parts = [_fold(size, folded), *parts, unfold]
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


# Trees ------------------------------------------------------------------------------------------


def tree_reduce(size: int) -> MessagePlan:
    """To rank 0, the root above the tree of the others."""
    return _up(_rooted(size, 0), block=0, parts=1)


def tree_broadcast(size: int) -> MessagePlan:
    """From rank 0, the root above the tree of the others."""
    return _down(_rooted(size, 0), block=0, parts=1)


def tree_all_reduce(size: int) -> MessagePlan:
    """Up one binary tree of all ranks, and down."""
    parents = in_order_tree(size)
    return after(_up(parents, block=0, parts=1), _down(parents, block=0, parts=1))


def double_tree_reduce(size: int) -> MessagePlan:
    return _twice([_up(_rooted(size, shift), block=shift, parts=2) for shift in (0, 1)])


def double_tree_broadcast(size: int) -> MessagePlan:
    return _twice([_down(_rooted(size, shift), block=shift, parts=2) for shift in (0, 1)])


def double_tree_all_reduce(size: int) -> MessagePlan:
    """Half of the buffer over each of two trees: a rank inside one is a leaf of the other."""
    # Shifted by one place, inner ranks (even positions) become leaves: each rank sends as much in both trees together.
    trees = [(shift, _shifted(in_order_tree(size), shift)) for shift in (0, 1)]
    return _twice(
        [after(_up(parents, block=shift, parts=2), _down(parents, block=shift, parts=2)) for shift, parents in trees]
    )


def _twice(plans: list[MessagePlan]) -> MessagePlan:
    return beside(plans, parts=2, owner=np.zeros(2, dtype=np.int64))


def in_order_tree(size: int) -> Ints:
    """Parent of each rank in the binary tree whose in-order walk is 0, 1, 2, ... (-1 for the root).

    Rank r sits at position r + 1; odd positions are leaves.
    """
    position = np.arange(1, size + 1)
    # The lowest set bit of a position is its height; its parent has the next higher bit set instead of it.
    low = position & -position
    parent = (position & ~low) | (2 * low)
    parent = np.where(parent > size, position & ~low, parent)
    return parent - 1


def _shifted(parents: Ints, shift: int) -> Ints:
    """The tree with every rank one place further on, so that leaves and inner ranks change places."""
    size = len(parents)
    rank = (np.arange(size) + shift) % size
    above = parents[rank]
    return np.where(above < 0, -1, (above - shift) % size)


def _rooted(size: int, shift: int) -> Ints:
    """Rank 0 above the tree of the ranks 1 .. size - 1."""
    if size == 1:
        return np.full(1, -1)
    return np.concatenate([[-1], _shifted(in_order_tree(size - 1), shift) + 1])


def _depth(parents: Ints) -> Ints:
    depth, above = np.zeros_like(parents), parents.copy()
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parents[above], -1)
    return depth


def _up(parents: Ints, *, block: int, parts: int) -> MessagePlan:
    child, depth = np.flatnonzero(parents >= 0), _depth(parents)
    step = depth.max() - depth[child]
    owner = np.zeros(parts, dtype=np.int64)
    return table(step, child, parents[child], np.full_like(child, block), parts=parts, owner=owner, adds=True)


def _down(parents: Ints, *, block: int, parts: int) -> MessagePlan:
    child = np.flatnonzero(parents >= 0)
    step = _depth(parents)[child] - 1
    owner = np.zeros(parts, dtype=np.int64)
    return table(step, parents[child], child, np.full_like(child, block), parts=parts, owner=owner, adds=False)
