"""How short a collective could be: bandwidth and latency over every order of the dimensions, by an LP.

Chunks of any size may take any order; what matters is the share of the bytes that takes each.  A stage on
dimension d comes after the latencies of the stages before it (``early``) and ends before those of the stages
after it (``late``) and its own.  So for every e and l, what d moves in stages with early >= e and late >= l
fits between e and T - l - own latency.  The least T that admits shares with this is a lower bound for every
schedule of the hierarchical family, whatever the chunks, the order within dimensions and the number of
active chunks: time goes to moving bytes (Themis' bound, the LP without latency), to latency and to filling
the pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import permutations
from math import fsum

import numpy as np

from weft.collectives.schedules.chunks import Request, Schedule, baseline_order, mirrored, stages_of
from weft.collectives.stages import BALANCED_KINDS
from weft.fabric.spec import Floats, Ints
from weft.solvers import lp

SAME_DIGITS = 12
"""Significant digits to which windows are compared."""
TIE = 1e-9
"""Weight of the mean load against the largest: of equal optima, the one that loads the network least."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shares:
    """An optimum: ``share[i]`` of the bytes takes ``orders[i]`` (a row of dimensions), and no schedule is shorter
    than ``bound_s``.  ``loads_s`` has the seconds of each dimension (rows) for each way through them."""

    orders: Ints
    share: Floats
    bound_s: float
    loads_s: Floats

    @property
    def bandwidth_s(self) -> float:
        """The bound without latencies."""
        return _solve(self.loads_s, np.zeros(len(self.loads_s)), 0.0)[0]


def ideal_s(collective: Request) -> float:
    """Themis' ideal: every dimension busy all the time with the bytes that any order must send.

    An all-reduce, reduce-scatter or all-gather sends the same bytes in every order (they telescope); where
    stages differ in algorithm it is the order that sends least.
    """
    # All bytes over all bandwidths: no schedule keeps dimensions more than always busy.
    total = fsum(collective.dimensions[i].bandwidth_Bps for i in collective.used)
    sent = _both_ways(collective, candidates(collective)).sent
    return float(sent.min() / total) if sent.size else 0.0


def candidates(collective: Request) -> Ints:
    """Every order of the dimensions that matters, the usual one first; where the bytes are the same in all,
    the turns of one."""
    usual = baseline_order(collective)
    if collective.kind not in BALANCED_KINDS:
        turns = (np.arange(len(usual))[:, None] + np.arange(len(usual))) % len(usual)
        return np.asarray(usual[turns], dtype=np.int64)
    return np.array(list(permutations(usual.tolist())), dtype=np.int64).reshape(-1, len(usual))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _PerOrder:
    """The stages of one chunk with all bytes, for each order, and the latency around them."""

    order: Ints
    dimension: Ints
    work_s: Floats
    early_s: Floats
    late_s: Floats
    own_s: Floats
    sent: Floats
    """Bytes sent in each order."""


def _per_order(collective: Request, orders: Ints) -> _PerOrder:
    stages = stages_of(
        Schedule(
            request=collective,
            policy="bound",
            chunk_bytes=np.full(len(orders), collective.bytes),
            orders=orders,
            gathers=mirrored(orders) if collective.kind == "all-reduce" else None,
        )
    )
    # Latencies of the stages before and behind each stage of its chunk, by differences of one running sum.
    through = np.cumsum(stages.latency_s)
    first = np.searchsorted(stages.chunk, np.arange(len(orders)))
    before = np.concatenate([[0.0], through])[first][stages.chunk]
    last = np.searchsorted(stages.chunk, np.arange(len(orders)), side="right") - 1
    end = through[last][stages.chunk] if len(through) else through
    return _PerOrder(
        order=stages.chunk,
        dimension=stages.dimension,
        work_s=stages.work_s,
        early_s=through - stages.latency_s - before,
        late_s=end - through,
        own_s=stages.latency_s,
        sent=np.bincount(stages.chunk, weights=stages.sent_bytes, minlength=len(orders)).astype(np.float64),
    )


@lru_cache(maxsize=256)
def best_shares(collective: Request) -> Shares:
    """The shares of the orders that bound the collective's time from below."""
    return shares_of(collective, candidates(collective))


def shares_of(collective: Request, orders: Ints) -> Shares:
    """The shares of given orders (rows of dimensions) that are best, and the bound of schedules with these
    orders alone."""
    table = _both_ways(collective, orders)
    ways = len(table.sent)
    latency_s = np.bincount(table.order, weights=table.own_s, minlength=ways)
    least_s = float(latency_s.min())
    # Step 1: the constraints rows @ share + offsets <= T.  Step 2: the shares with the least T, by an LP.
    rows, offsets = _windows(table, ways, least_s)
    if collective.kind not in BALANCED_KINDS:
        # These kinds load every dimension alike in any order: the least entry of a row bounds it for all shares,
        # without an LP.
        share = np.full(ways, 1.0 / ways)
        bound_s = max(float((rows.min(axis=1) + offsets).max()), least_s)
        return Shares(orders=orders, share=share, bound_s=bound_s, loads_s=_loads(collective, table, ways))
    bound_s, share = _solve(rows, offsets, least_s)
    share = share.reshape(-1, len(orders)).sum(axis=0)
    return Shares(orders=orders, share=share, bound_s=bound_s, loads_s=_loads(collective, table, ways))


def _both_ways(collective: Request, orders: Ints) -> _PerOrder:
    """Every order; where trees all-reduce at once, also with two stages there, which orders that do not
    mirror each other have, and which sends less."""
    once = _per_order(collective, orders)
    if collective.kind != "all-reduce" or "double-tree" not in collective.algorithms:
        return once
    halves = tuple(collective.stage("reduce-scatter", i).algorithm for i in range(len(collective.dimensions)))
    apart = _per_order(replace(collective, algorithms=halves), orders)
    shifted = replace(apart, order=apart.order + len(orders))
    names = [column.name for column in fields(once)]
    return _PerOrder(**{name: np.concatenate([getattr(once, name), getattr(shifted, name)]) for name in names})


def _windows(table: _PerOrder, orders: int, least_s: float) -> tuple[Floats, Floats]:
    """Rows of work per unit of share, and the latency around each: row @ share + offset <= T.

    An offset above ``least_s``, which every chunk takes, would bind even where no bytes go that way.
    """
    rows, offsets = [], []
    for dimension in np.unique(table.dimension).tolist():
        stages = np.flatnonzero(table.dimension == dimension)
        early, late = table.early_s[stages], table.late_s[stages]
        # Every window (e, l) bounds T; only those at some stage's (e, l), (e, 0) and (0, l) are taken.  Leaving
        # constraints out can only lower the bound, so that it stays one.
        pairs = np.unique(np.stack([early, late], axis=1), axis=0)
        alone = pairs * np.array([1.0, 0.0]), pairs * np.array([0.0, 1.0])
        corners = np.unique(np.concatenate([np.zeros((1, 2)), pairs, *alone]), axis=0)
        inside = (early >= corners[:, :1] - 1e-15) & (late >= corners[:, 1:] - 1e-15)
        work = np.zeros((len(stages), orders))
        work[np.arange(len(stages)), table.order[stages]] = table.work_s[stages]
        # The stages of a window move their bytes between e and T - l, less the least latency among them.
        latency_s = np.where(inside, table.own_s[stages], np.inf).min(axis=1)
        rows.append(inside @ work)
        offsets.append(np.minimum(corners.sum(axis=1) + latency_s, least_s))
    # Windows with the same row, to rounding, are one constraint.
    every = np.column_stack([np.concatenate(rows), np.concatenate(offsets)])
    _, first = np.unique(np.round(every / every.max(), SAME_DIGITS), axis=0, return_index=True)
    distinct = every[np.sort(first)]
    return distinct[:, :-1], distinct[:, -1]


def _loads(collective: Request, table: _PerOrder, orders: int) -> Floats:
    """Seconds of work of each dimension (rows), by order."""
    loads = np.zeros((len(collective.dimensions), orders))
    np.add.at(loads, (table.dimension, table.order), table.work_s)
    return loads


def _solve(rows: Floats, offsets: Floats, least: float) -> tuple[float, Floats]:
    """A proved lower bound of the least T >= ``least`` with rows @ share + offsets <= T for shares that add
    up to 1; and such shares."""
    count = rows.shape[1]
    if count == 1:
        return max(float((rows[:, 0] + offsets).max(initial=0.0)), least), np.ones(1)
    scale = max(float(rows.max()), float(offsets.max(initial=0.0)))
    # Variables are the shares and T: each row @ share - T <= -offset, and the shares add up to 1.  The mean load in
    # the cost only decides between optima.
    matrix = np.zeros((len(rows) + 1, count + 1))
    matrix[:-1, :count], matrix[:-1, count], matrix[-1, :count] = rows / scale, -1.0, 1.0
    row, column = np.nonzero(matrix)
    result = lp.least(
        np.append(rows.mean(axis=0) / scale * TIE, 1.0),
        (np.append(np.zeros(count), least / scale), np.append(np.ones(count), np.inf)),
        lp.Rows(
            row=row,
            column=column,
            value=matrix[row, column],
            low=np.append(np.full(len(rows), -np.inf), 1.0),
            high=np.append(-offsets / scale, 1.0),
        ),
    )
    share = np.clip(result.values[:count], 0.0, None)
    share /= share.sum()
    # The solver's T may be off by its tolerance; the bound is what its dual values prove.
    dual = np.clip(-result.dual[:-1], 0.0, None)
    return max(_certified(rows, offsets, dual), least), share


def _certified(rows: Floats, offsets: Floats, dual: Floats) -> float:
    """What weights of the rows prove (weak duality), free of the solver's tolerance: for all shares, the
    largest row is no less than the weighted mean of rows, and that no less than for the best single order."""
    if not dual.any():
        return 0.0
    weight = dual / dual.sum()
    return float((weight @ rows).min() + weight @ offsets)
