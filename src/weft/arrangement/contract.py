"""Phases without flows taken together, so that there are fewer to step; nothing begins or ends at another time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.fabric.spec import Ints, Mask
from weft.fabric.traffic import Phases

MOST_WAITS = 8
"""Phases that one may wait for after it took over those of another."""


def contracted(phases: Phases, flows: Mask, last: int) -> tuple[Phases, Ints]:
    """The phases that are left, and their number in the new order (-1: gone).

    A phase that waits for nothing but one without flows begins when that one's waits have ended, and both delays
    have passed.  A phase without flows and delay may be replaced by what it waits for.

    Args:
        flows: which phases have flows; these stay, as does ``last``.
    """
    delay = phases.delay_s.tolist()
    waits = [list(part) for part in np.split(phases.waits, phases.indptr[1:-1])]
    bare = (~flows).tolist()
    changed = True
    while changed:
        changed = False
        for phase, held in enumerate(waits):
            if len(held) == 1 and bare[held[0]]:
                before = held[0]
                delay[phase] += delay[before]
                waits[phase] = list(waits[before])
                changed = True
                continue
            for before in held:
                more = waits[before]
                if bare[before] and delay[before] == 0.0 and more and len(held) + len(more) <= MOST_WAITS:
                    waits[phase] = sorted({*held, *more} - {before})
                    changed = True
                    break
    kept = flows.copy()
    kept[last] = True
    stack = np.flatnonzero(kept).tolist()
    while stack:
        for before in waits[stack.pop()]:
            if not kept[before]:
                kept[before] = True
                stack.append(before)
    left = np.flatnonzero(kept)
    number = np.full(len(waits), -1, dtype=np.int64)
    number[left] = np.arange(len(left))
    lengths = [len(waits[phase]) for phase in left.tolist()]
    every = [before for phase in left.tolist() for before in waits[phase]]
    return (
        replace(
            phases,
            delay_s=np.array(delay)[left],
            start_s=phases.start_s[left],
            indptr=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            waits=number[np.array(every, dtype=np.int64)],
            label=phases.label[left],
            job=phases.job[left],
        ),
        number,
    )
