"""A binary heap of (key, item) pairs; equal keys leave in order of the item, so that runs repeat.

The heap lies at the beginning of an array, its user keeps the size.
"""

from __future__ import annotations

from weft.solvers._arrays import ZERO, Records
from weft.solvers._jit import jit


@jit
def push(heap: Records, size: int, key: float, item: int) -> int:
    """Add a pair; returns the new size."""
    at = size
    # The hole at `at` is the only place out of order; what lies on its way to the top moves down.
    while at > 0:
        above = (at - 1) >> 1
        if heap[above].key < key or (heap[above].key == key and heap[above].number <= item):
            break
        heap[at].key, heap[at].number = heap[above].key, heap[above].number
        at = above
    heap[at].key, heap[at].number = key, item
    return size + 1


@jit
def sink(heap: Records, size: int, at: int) -> None:
    """Let the pair at a place sink to where it belongs."""
    key, item = heap[at].key, heap[at].number
    # Below `at` both subtrees are heaps; the smaller child moves up until the pair fits.
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        left = heap[below]
        if below + 1 < size:
            right = heap[below + 1]
            if right.key < left.key or (right.key == left.key and right.number < left.number):
                below, left = below + 1, right
        if key < left.key or (key == left.key and item <= left.number):
            break
        heap[at].key, heap[at].number = left.key, left.number
        at = below
    heap[at].key, heap[at].number = key, item


@jit
def pop(heap: Records, size: int) -> int:
    """Drop the pair on top; returns the new size."""
    size -= 1
    heap[0].key, heap[0].number = heap[size].key, heap[size].number
    sink(heap, size, ZERO)
    return size


@jit
def heapify(heap: Records, size: int) -> None:
    """Order pairs that lie in any order."""
    # Everything behind `at` is the top of a heap already: leaves first, then their parents.
    for at in range(size // 2 - 1, -1, -1):
        sink(heap, size, at)
