"""The usual schedule: every chunk visits the dimensions in the same order.

It is multi-rail hierarchical collectives (Themis' baseline), and BlueConnect's decomposition (MLSys 2019):
reduce-scatter from the innermost dimension out, all-gather back.
"""

from __future__ import annotations

import numpy as np

from weft.collectives.schedules.chunks import Request, Schedule, equal_chunks, mirrored
from weft.fabric.spec import Ints

OUTER_FIRST = ("all-gather", "broadcast")


def baseline_order(asked: Request) -> Ints:
    """Dimensions in the usual order of the collective's kind."""
    inner_first = np.array(asked.used, dtype=np.int64)
    return inner_first[::-1] if asked.kind in OUTER_FIRST else inner_first


def baseline(asked: Request, *, chunks: int = 64, fused: bool = False) -> Schedule:
    """The usual schedule of a request.

    Args:
        chunks: equal parts that follow each other.
        fused: the outermost dimension all-reduces in one operation, as in ASTRA-sim.

    Raises:
        BadInput: there are too few or too many chunks.
    """
    parts = equal_chunks(asked, chunks)
    orders = np.tile(baseline_order(asked), (chunks, 1))
    return Schedule(
        request=asked,
        policy="baseline",
        chunk_bytes=parts,
        orders=orders,
        gathers=mirrored(orders) if asked.kind == "all-reduce" else None,
        fused=fused,
    )
