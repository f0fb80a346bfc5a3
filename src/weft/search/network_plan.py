"""A plan for one network: layouts by their simulated seconds, with the proof that none is faster."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import permutations
from typing import Any

import numpy as np

from weft.estimation.iteration import Estimator
from weft.fabric.placement import Placement
from weft.fabric.spec import Fabric
from weft.fabric.transport import carrier
from weft.layout.spec import Layout
from weft.layout.table import COLUMNS, Floats, Index, Ints, LayoutTable, Mask, collapse
from weft.search.enumeration import Enumeration, Frames, Space
from weft.search.ranking import Plan, RankedLayout
from weft.search.screen import HOPELESS, ROUNDING, least_s
from weft.simulation.iteration.evaluator import DEGREES, Evaluator

MOST = 2_000_000
"""Layouts, or layouts in an order of the axes, that are kept; what is left out bounds the proof."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How the best layout was found: layouts ``evaluated`` at flow level, the seconds below which no layout of the
    space can be (``bound_s``), and by how much the best exceeds them, as a share (``gap``).

    ``considered`` counts the layouts that fit, in every order of the axes that was searched and makes a difference.
    ``stopped_by`` is "budget" where time ran out: what was not looked at then counts with ``bound_s`` alone.
    """

    evaluated: int
    considered: int
    bound_s: float
    gap: float
    stopped_by: str | None = None

    @property
    def proved(self) -> bool:
        """Whether no layout of the space is faster."""
        return self.gap == 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Evaluated layouts with their simulated seconds, best first, the proof of the first, and seconds of the first
    layout that was evaluated (none: nan)."""

    layouts: tuple[tuple[Layout, float], ...]
    proof: Proof
    first_s: float


@dataclass(frozen=True, slots=True, eq=False)
class _Candidates:
    """Layouts with the number of their order of the axes and floors, and the least floor of those left out."""

    table: LayoutTable
    order: Ints
    floor_s: Floats
    left_out_s: float

    def least(self, most: int = MOST) -> _Candidates:
        """Those of the lowest floors."""
        if len(self.floor_s) <= most:
            return self
        # What is left out has no lower floor than the first of it, which from here on bounds the proof.
        rows = np.argsort(self.floor_s, kind="stable")
        left_out_s = min(self.left_out_s, float(self.floor_s[rows[most]]))
        lowest = np.sort(rows[:most])
        return _Candidates(self.table.take(lowest), self.order[lowest], self.floor_s[lowest], left_out_s)


def search_on_fabric(
    evaluator: Evaluator,
    space: Space,
    *,
    capacity_bytes: float,
    first: Iterable[Layout] = (),
    orders: bool = True,
    top: int = 10,
    per_mesh: bool = False,
    budget_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Found:
    """Search a space, in every order of the axes, for the layout that is fastest at flow level.

    Args:
        evaluator: the job on the fabric.
        space: degrees and switches to try; its order of the axes is one of those tried.
        capacity_bytes: memory that a layout may take.
        first: layouts to begin with; good ones save work.
        orders: also try other orders of the axes than the space's.
        top: how many evaluated layouts to return.
        per_mesh: return only the best of each mesh.
        budget_s: seconds of ``clock``, which is the wall's, after which the search stops; the proof then has a gap.
    """
    search = _Search(
        evaluator=evaluator,
        space=space,
        capacity_bytes=capacity_bytes,
        # The usual order comes first: permutations() begins with the order that it is given.
        orders=list(permutations(space.order)) if orders else [space.order],
        clock=clock,
        ends=np.inf if budget_s is None else clock() + budget_s,
    )
    # The faster the first layouts are, the fewer floors lie below the best: any choice is correct, good ones save
    # work.
    for layout in first:
        search.add(layout, evaluator.seconds(layout))
        if search.late():
            break
    bound_s = search.walk(search.in_orders(search.promising()))
    best: dict[object, Layout] = {}
    for layout in sorted(search.seconds, key=search.seconds.__getitem__):
        best.setdefault(tuple(getattr(layout, name) for name in DEGREES) if per_mesh else layout, layout)
        if len(best) == top:
            break
    ranked = sorted(((layout, evaluator.seconds(layout)) for layout in best.values()), key=lambda pair: pair[1])
    fastest_s = ranked[0][1] if ranked else np.inf
    # Floors are sound up to rounding: a bound within it proves the best.
    bound_s = fastest_s if bound_s >= fastest_s * (1 - ROUNDING) else bound_s
    proof = Proof(
        evaluated=len(search.seconds),
        considered=search.considered,
        bound_s=bound_s,
        gap=max(fastest_s / bound_s - 1.0, 0.0) if ranked else 0.0,
        stopped_by="budget" if bound_s < fastest_s and search.late() else None,
    )
    return Found(layouts=tuple(ranked), proof=proof, first_s=next(iter(search.seconds.values()), np.nan))


@dataclass(slots=True, kw_only=True)
class _Search:
    """Branch and bound over layouts: floors rule out what the evaluated layouts beat.

    1. ``promising`` bounds every layout of the space in the usual order of the axes by what holds in any order.
    2. ``in_orders`` bounds those that are left in every order that makes a difference to them.
    3. ``walk`` takes groups of layouts with the same collectives by their lowest floor, and raises the floors of a
       group by what its collectives must pass through cuts, once.
    4. It then evaluates the group's layouts until the lowest floor of all groups is above the best, which is thereby
       proved.
    """

    evaluator: Evaluator
    space: Space
    capacity_bytes: float
    orders: list[tuple[str, ...]]
    clock: Callable[[], float]
    ends: float
    seconds: dict[Layout, float] = field(default_factory=dict)
    least_s: float = np.inf
    considered: int = 0

    def add(self, layout: Layout, seconds: float) -> None:
        self.seconds[layout] = seconds
        self.least_s = min(self.least_s, seconds)

    def limit_s(self) -> float:
        """Floors from here on are of no interest."""
        return self.least_s * (1 - ROUNDING)

    def late(self) -> bool:
        return self.clock() > self.ends

    # 1: all layouts ----------------------------------------------------------------------------------

    def promising(self) -> _Candidates:
        """Layouts that fit and whose floors in no order exceed the best."""
        enumeration = Enumeration(self.evaluator.job, self.evaluator.closed.cluster.count, self.space)
        candidates = _Candidates(
            enumeration.meshes.take(np.zeros(0, np.intp)), np.zeros(0, np.int64), np.zeros(0), np.inf
        )
        for part in enumeration.parts():
            # Without time a part is bounded as a whole, and the search stays sound: it proves less.
            if self.late():
                candidates = self._left_out(candidates, part)
                continue
            enough = HOPELESS * self.capacity_bytes
            least = part.least_bytes(self.evaluator.closed.memory_bytes, enough)
            for batch in part.batches(np.flatnonzero(least <= enough)):
                if self.late():
                    candidates = self._left_out(candidates, part)
                    break
                if len(batch.table):
                    candidates = _joined(candidates, self._below(batch.table, 0, ())).least()
        return candidates

    def _left_out(self, candidates: _Candidates, part: Frames) -> _Candidates:
        """Candidates without those of a part, for which there is no time: a bound that needs no layouts holds for
        them."""
        least = candidates.left_out_s
        for flag in (0, 1):
            frames, table = part.flagged(np.arange(len(part.frames)), flag)
            if len(frames):
                frame = self.evaluator.bounding.frame(table.ordered(()), ordered=False)
                least = min(least, float(least_s(part, frame, bubble=False).min()))
        return replace(candidates, left_out_s=least)

    def _below(self, table: LayoutTable, order: int, axes: tuple[str, ...]) -> _Candidates:
        """The rows of a table that fit, with floors in an order of the axes below the best."""
        floor_s = np.full(len(table), np.inf)
        # Without axes the floor holds in every order. Only then layouts are counted, once for each order that matters.
        for part in self.evaluator.unblocked(table.ordered(axes)):
            fits = part.estimates.memory_bytes <= self.capacity_bytes
            floor_s[part.rows] = np.where(fits, part.floor_s, np.inf)
            if not axes:
                fitting = table.take(part.rows[fits])
                self.considered += sum(int(self._differs(fitting, each).sum()) for each in self.orders)
        rows = np.flatnonzero(floor_s < self.limit_s())
        return _Candidates(table.take(rows), np.full(len(rows), order), floor_s[rows], np.inf)

    # 2: orders of the axes ---------------------------------------------------------------------------

    def _differs(self, table: LayoutTable, order: tuple[str, ...]) -> Mask:
        """The rows for which an order moves only axes that are longer than 1."""
        # Axes of length 1 can be anywhere in the order: of the orders that deal the ranks alike, exactly one leaves
        # all of these where the usual order has them.
        moved = np.ones(len(table), dtype=bool)
        for axis, usual in zip(order, self.space.order, strict=True):
            if axis != usual:
                moved &= table.column(axis) > 1
        return moved

    def in_orders(self, promising: _Candidates) -> _Candidates:
        """Candidates in every order of the axes."""
        table = promising.table
        result = _Candidates(
            table.take(np.zeros(0, np.intp)), np.zeros(0, np.int64), np.zeros(0), promising.left_out_s
        )
        for place, order in enumerate(self.orders):
            rows = np.flatnonzero((promising.floor_s < self.limit_s()) & self._differs(table, order))
            if len(rows) and self.late():
                result = replace(result, left_out_s=min(result.left_out_s, float(promising.floor_s[rows].min())))
            elif len(rows):
                result = _joined(result, self._below(table.take(rows), place, order)).least()
        return result

    # 3 and 4: groups of layouts with the same collectives ----------------------------------------------

    def walk(self, candidates: _Candidates) -> float:
        """Evaluate what its floor does not rule out, lowest first; returns what bounds all the rest."""
        left_out_s, groups = candidates.left_out_s, dict(self._groups(candidates))
        # The heap's top is the lowest floor of all that is left, so that once it reaches the best, the best is proved.
        queue = [(float(candidates.floor_s[rows].min()), number, False) for number, rows in groups.items()]
        floor_s = candidates.floor_s.copy()
        heapq.heapify(queue)
        while queue and queue[0][0] < self.limit_s():
            if self.late():
                return min(queue[0][0], left_out_s, self.least_s)
            _, number, cut = heapq.heappop(queue)
            rows = groups[number]
            # The best may have fallen since the group was pushed: layouts that it rules out by now leave.
            rows = groups[number] = rows[floor_s[rows] < self.limit_s()]
            if not len(rows):
                continue
            order = self.orders[int(candidates.order[rows[0]])]
            table = candidates.table.take(rows).ordered(order)
            # First visit: bounds by cuts are dearer than floors and far cheaper than stepping. They only raise floors,
            # so that the group goes back to the place in the queue that it deserves.
            if not cut and not self.evaluator.knows(table):
                floor_s[rows] = np.maximum(floor_s[rows], self._cut_floors(table))
                heapq.heappush(queue, (float(floor_s[rows].min()), number, True))
            # Planned routes differ from layout to layout: one is stepped at a time, that of the lowest floor.
            elif self.evaluator.planned:
                at = int(np.argmin(floor_s[rows]))
                layout = table.row(at)
                self.add(layout, self.evaluator.seconds(layout))
                groups[number] = rows = np.delete(rows, at)
                if len(rows):
                    heapq.heappush(queue, (float(floor_s[rows].min()), number, True))
            else:
                # A group shares its collectives, hence what the fabric adds to them: all of it is stepped at once.
                self._evaluate(table)
        return min(self.least_s, left_out_s)

    def _groups(self, candidates: _Candidates) -> Iterator[tuple[int, Index]]:
        """Rows whose collectives have the same groups."""
        if not len(candidates.order):
            return
        table = candidates.table
        # Rows sorted by group, split where the group changes.
        group = collapse([*self.evaluator.alike(table), candidates.order]).group
        order = np.argsort(group, kind="stable")
        bounds = np.flatnonzero(np.diff(group[order])) + 1
        yield from enumerate(np.split(order, bounds))

    def _cut_floors(self, table: LayoutTable) -> Floats:
        """Floors of a group with what its collectives must pass through cuts; where routes are planned, which takes
        long, the stepped pipeline is one."""
        floor_s = np.zeros(len(table))
        for part in self.evaluator.under(table, self.evaluator.least_extras(table)):
            floor_s[part.rows] = part.floor_s
            if self.evaluator.planned:
                for at in np.flatnonzero(part.floor_s < self.limit_s()).tolist():
                    floor_s[part.rows[at]] = part.stepped_s(at)
        return floor_s

    def _evaluate(self, table: LayoutTable) -> None:
        """Step through the layouts of a group that may be faster than the best, lowest floor first."""
        for part in self.evaluator.under(table, self.evaluator.extras(table)):
            for at in np.argsort(part.floor_s, kind="stable").tolist():
                # Floors ascend: none behind this one can be faster either.
                if part.floor_s[at] >= self.limit_s():
                    break
                self.add(part.frame.table.row(at), part.stepped_s(at))


def _joined(first: _Candidates, second: _Candidates) -> _Candidates:
    """The candidates of both."""
    if not len(first.order) or not len(second.order):
        some = second if len(second.order) else first
        return _Candidates(some.table, some.order, some.floor_s, min(first.left_out_s, second.left_out_s))
    columns = {name: np.concatenate([first.table.column(name), second.table.column(name)]) for name in COLUMNS}
    return _Candidates(
        LayoutTable(**columns, order=first.table.order),
        np.concatenate([first.order, second.order]),
        np.concatenate([first.floor_s, second.floor_s]),
        min(first.left_out_s, second.left_out_s),
    )


BEGUN = 8
"""Layouts of the closed form's ranking that are evaluated first."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NetworkPlan(Plan):
    """Layouts of a job on one network, fastest at flow level first.

    ``ranked`` are the evaluated ones, of which the first is proved.  ``first_choice_s`` are the seconds of the layout
    that the closed form ranks first.  The other fields, such as counts and ``pareto``, are those of the plan without a
    network.
    """

    COLUMNS = ("rank", "simulated_s", *Plan.COLUMNS[1:])
    DOCUMENT = Plan.DOCUMENT + " fabric routing transport first_choice_s proof"

    fabric: str
    routing: str
    first_choice_s: float
    proof: Proof

    @property
    def transport(self) -> str:
        return carrier(self.routing)


def plan_on_fabric(
    result: Plan,
    fabric: Fabric,
    *,
    routing: str = "ecmp",
    placement: Placement | None = None,
    orders: bool = True,
    top: int = 10,
    per_mesh: bool = True,
    budget_s: float | None = None,
) -> NetworkPlan:
    """The fastest layout of a plan's space on a fabric.

    Args:
        result: the plan of the closed form, with its best layouts; some must be feasible.
        routing: as ``weft.simulation.iteration.evaluator.Evaluator`` takes it.
        placement: of every rank; rank r on accelerator r by default.
        orders, top, per_mesh, budget_s: see ``search_on_fabric``.

    Raises:
        BadInput: the ranks do not fit on the fabric, or a flow has no path.
        UnknownName: there is no such routing.
    """
    evaluator = Evaluator(
        result.job, result.cluster, fabric, routing=routing, constants=result.constants, placement=placement
    )
    evaluated = search_on_fabric(
        evaluator,
        result.space,
        capacity_bytes=result.capacity_bytes,
        first=[estimate.layout for estimate in result.layouts[:BEGUN]],
        orders=orders,
        top=top,
        per_mesh=per_mesh,
        budget_s=budget_s,
    )
    estimator = Estimator(result.job, result.cluster, result.constants)
    ranked = [
        RankedLayout(rank=rank, estimate=estimator.estimates([layout])[0], simulated_s=seconds)
        for rank, (layout, seconds) in enumerate(evaluated.layouts, 1)
    ]
    figures: dict[str, Any] = {field.name: getattr(result, field.name) for field in fields(result)}
    figures |= {"ranked": tuple(ranked), "choice": None, "search": replace(result.search, order="time")}
    return NetworkPlan(
        **figures, fabric=fabric.name, routing=routing, first_choice_s=evaluated.first_s, proof=evaluated.proof
    )
