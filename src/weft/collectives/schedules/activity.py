"""How busy each dimension is over time (Themis, figure 9)."""

from __future__ import annotations

import numpy as np

from weft.collectives.schedules.timing import Timed
from weft.fabric.spec import Floats

BINS = 200


def busy_intervals(timed: Timed, dimension: int) -> tuple[Floats, Floats]:
    """Begins and ends of the spans in which a dimension moves bytes, in order and apart."""
    here = timed.stages.dimension == dimension
    latency = timed.stages.latency_s[here] if timed.active is None else 0.0
    begin, end = timed.chart.moving_s[here], timed.chart.end_s[here] - latency
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    if not len(begin):
        return begin, end
    apart = begin[1:] > end[:-1]
    return begin[np.concatenate([[True], apart])], end[np.concatenate([apart, [True]])]


def activity(timed: Timed, *, bins: int = BINS) -> Floats:
    """Share of each of ``bins`` equal spans in which a dimension moves bytes, shape (dimensions, bins)."""
    edges = np.linspace(0.0, timed.time_s, bins + 1)
    found = np.zeros((len(timed.schedule.request.dimensions), bins))
    for dimension in range(len(found)):
        begin, end = busy_intervals(timed, dimension)
        length = np.concatenate([[0.0], np.cumsum(end - begin)])
        at = np.searchsorted(begin, edges, side="right") - 1
        inside = np.clip(edges - begin[at], 0.0, (end - begin)[at]) if len(begin) else 0.0
        so_far = np.where(at >= 0, length[at] + inside, 0.0)
        found[dimension] = np.diff(so_far) / np.maximum(np.diff(edges), 1e-300)
    return found
