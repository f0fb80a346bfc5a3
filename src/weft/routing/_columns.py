"""Compiled loops that list the paths of flows."""

from __future__ import annotations

from typing import Any

from weft.routing._choose import skip
from weft.solvers._jit import jit


@jit
def walk(ways: Any, flow: int, up: Any, down: Any, begin: int) -> int:
    """Write the paths of a flow from ``begin`` on, where there is room; where they end."""
    a, b = ways.up_first[flow], ways.down_first[flow]
    a_end, b_end = ways.up_end[flow], ways.down_end[flow]
    a, b = skip(ways.top, a, a_end, b, b_end)
    # As in `_choose.best`: `b` is the first way down from the top of `a`, or from a later one.
    while a < a_end and b < b_end:
        top, mate = ways.top[a], b
        while mate < b_end and ways.top[mate] == top:
            if begin < len(up):
                up[begin], down[begin] = a, mate
            begin += 1
            mate += 1
        a += 1
        if a < a_end and ways.top[a] != top:
            a, b = skip(ways.top, a, a_end, b, b_end)
    return begin


@jit
def count(ways: Any, flows: Any, counts: Any, none: Any) -> None:
    """How many paths flows have."""
    for at in range(len(flows)):
        counts[at] = walk(ways, flows[at], none, none, 0)


@jit
def list_all(ways: Any, flows: Any, up: Any, down: Any) -> None:
    """The paths of all flows, one after the other."""
    begin = 0
    for at in range(len(flows)):
        begin = walk(ways, flows[at], up, down, begin)


@jit
def locate(ways: Any, first: Any, end: Any, top: Any, links: Any, result: Any) -> None:
    """The way to a top with given links, of those from ``first`` to ``end``; -1 where there is none."""
    for at in range(len(first)):
        # Step 1: bisect for the first way with the top (a slice is sorted by top).
        low, high = first[at], end[at]
        # Ways before `low` have a lower top, those from `high` on the same or a higher one.
        while low < high:
            middle = (low + high) // 2
            if ways.top[middle] < top[at]:
                low = middle + 1
            else:
                high = middle
        # Step 2: of the ways with that top the one with the same links.
        while low < end[at] and ways.top[low] == top[at]:
            same = True
            for column in range(links.shape[1]):
                same = same and ways.up[low, column] == links[at, column]
            if same:
                result[at] = low
                break
            low += 1


@jit
def follow(ways: Any, flows: Any, links: Any, up: Any, down: Any) -> None:
    """The ways up and down that make the path in a flow's row of ``links`` (-1 behind it); -1 where
    none do.
    """
    for at in range(len(flows)):
        flow = flows[at]
        # A path is first link, way up, way down, last link.  Each part must follow on the one before, and nothing may
        # be left behind the last.
        begin = 1 if ways.first[flow] >= 0 else 0
        if begin == 1 and links[flow, 0] != ways.first[flow]:
            continue
        for a in range(ways.up_first[flow], ways.up_end[flow]):
            after = follows(ways.up, a, links, flow, begin)
            if after >= 0:
                b = way_down(ways, flow, a, links, after)
                if b >= 0:
                    up[flow], down[flow] = a, b
                    break


@jit
def way_down(ways: Any, flow: int, a: int, links: Any, begin: int) -> int:
    """The way down from the top of ``a`` that a flow's row has from ``begin`` on; -1 if there is
    none.
    """
    for b in range(ways.down_first[flow], ways.down_end[flow]):
        if ways.top[b] == ways.top[a]:
            end = follows(ways.down, b, links, flow, begin)
            if end >= 0 and ends(ways.last[flow], links, flow, end):
                return b
    return -1


@jit
def follows(table: Any, way: int, links: Any, flow: int, begin: int) -> int:
    """Where a way's links end in a flow's row, if they stand there from ``begin`` on; otherwise -1."""
    for column in range(table.shape[1]):
        link = table[way, column]
        if link < 0:
            continue
        if begin >= links.shape[1] or links[flow, begin] != link:
            return -1
        begin += 1
    return begin


@jit
def ends(last: int, links: Any, flow: int, begin: int) -> bool:
    """Whether a row goes on from ``begin`` with the last link, if there is one, and nothing else."""
    if last >= 0:
        if begin >= links.shape[1] or links[flow, begin] != last:
            return False
        begin += 1
    return bool(begin >= links.shape[1] or links[flow, begin] < 0)
