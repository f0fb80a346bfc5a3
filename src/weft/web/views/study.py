"""A study as a page shows it: what was computed, its rows, charts, and what failed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from weft import __version__
from weft.errors import BadInput
from weft.errors import printable as bounded
from weft.studies.view import Rows, chosen, filtered
from weft.units import counted, listed
from weft.views.charts.charts import COLOURS, embedded
from weft.views.charts.sweep import sweep_chart
from weft.views.sweep import telling, told
from weft.views.words import printable
from weft.web.views.parts import Cell, Column, Fact, Message, Picture, Table

if TYPE_CHECKING:
    from weft.studies.result import Sweep

NONE = "none"
"""Written in place of a column: there is to be none."""
MOST_CELLS = 8_000
"""Of a table: a page of that size is still light."""
_LONGEST_STUDY = 100_000
_MOST_FAILURES = 200
_MOST_PANELS = 12
_LARGEST_CHART = 350_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What of a study is looked at.

    Attributes:
        where: values that rows must have, as ``weft sweep show`` takes them.
        x: column from left to right; with the three that follow, empty to leave the choice to Weft.
        y: column from below.
        colour: column that colours tell apart, or ``NONE``.
        facet: column with a picture for each value, or ``NONE``.
    """

    where: tuple[str, ...] = ()
    x: str = ""
    y: str = ""
    colour: str = ""
    facet: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyView:
    """What a page says of a study.

    Attributes:
        summary: sentences, the most important first.
        charts: of figures over axes.
        failures: points that failed; None where there are none.
        names: of all columns.
        numbers: of those that hold numbers.
        study: what was computed, as JSON.
    """

    title: str
    summary: tuple[str, ...]
    messages: tuple[Message, ...]
    facts: tuple[Fact, ...]
    charts: tuple[Picture, ...]
    rows: Table | None
    failures: Table | None
    provenance: tuple[Fact, ...]
    names: tuple[str, ...]
    numbers: tuple[str, ...]
    study: str


class Viewed:
    """A study with the rows of a look, and what follows from them; the state is read at once and may be closed then.

    Attributes:
        columns: of all rows, with the types of their values.
        rows: those of the look, each with all columns.

    Args:
        charts: how many figures are drawn at most, where the look names none.

    Raises:
        BadInput: a filter or a column that cannot be used.
    """

    def __init__(self, found: Sweep, look: Look, charts: int = 3) -> None:
        self.found, self.look, self.most_charts = found, look, charts
        self.columns = dict(found.columns())
        empty = dict.fromkeys(self.columns)
        self.rows = [empty | row for row in filtered(found.rows(), look.where, self.columns)]
        self.good = [row for row in self.rows if row["failure"] is None]
        self.failed = [row for row in self.rows if row["failure"] is not None]
        self.varied = _varied(self.rows, found.points.columns)
        self.title = printable(found.points.study.name)
        self.messages: list[Message] = []
        for place in ("x", "y", "colour", "facet"):
            name = getattr(look, place)
            if name and name != NONE:
                chosen(name, self.columns, f"--{place}")

    def view(self) -> StudyView:
        """What a page shows."""
        study, counts = self.found.points.study, self.found.counts
        if counts.left:
            problem = f"{counts.left:,} points are not computed yet."
            self.messages.append(Message(text=problem, remedy="This shows those that are.", kind="warning"))
        return StudyView(
            title=self.title,
            summary=self._summary(),
            facts=self._facts(),
            charts=self._charts(),
            rows=self._rows() if self.rows else None,
            failures=self._failures(),
            provenance=self._provenance(),
            names=tuple(self.columns),
            numbers=tuple(name for name, kind in self.columns.items() if kind in (int, float)),
            study=bounded(json.dumps(dict(study.document), indent=1), _LONGEST_STUDY),
            messages=tuple(self.messages),
        )

    def _summary(self) -> tuple[str, ...]:
        counts, study = self.found.counts, self.found.points.study
        over = [f"{one.kind.column} ({len(one.values)} values)" for one in study.axes if len(one.values) > 1]
        codes = _codes(self.failed)
        first = f"{counted(counts.points, 'point')} of weft {study.computation.name}"
        first += f" over {listed(over)}." if over else "."
        shown = "" if len(self.rows) == counts.points else f" {len(self.rows):,} of them are shown."
        return (first + shown, f"{len(self.failed):,} failed: {codes}." if codes else "None of them failed.")

    def _facts(self) -> tuple[Fact, ...]:
        points = self.found.points
        same = {name: self.rows[0][name] for name in points.columns if self.rows and name not in self.varied}
        facts = [Fact(name="At all points", text=self._place(same, same))] if same else []
        return (*facts, *(Fact(name="Points shown", text=printable(one)) for one in self.look.where))

    def _place(self, row: Mapping[str, Any], names: Iterable[str]) -> str:
        return printable(", ".join(f"{name} {told(name, row[name])}" for name in names))

    def _charts(self) -> tuple[Picture, ...]:
        if not self.good:
            return ()
        figures = [self.look.y] if self.look.y else self._figures()[: self.most_charts]
        x = self.look.x or self._across()
        if not x or not figures:
            return ()
        places = {"x": x} | {name: getattr(self.look, name) for name in ("colour", "facet")}
        beside = [name for name in self.varied if name not in places.values()]
        if not places["colour"]:
            places["colour"] = self._coloured(beside)
            beside = [name for name in beside if name != places["colour"]]
        panels = [] if places["facet"] else beside
        places = {name: value for name, value in places.items() if value not in ("", NONE)}
        drawn = []
        for y in figures:
            picture = self._drawn(self.good, places | {"y": y}, panels, self.varied, f"{y} over {x}")
            drawn += [picture] if picture is not None else []
        return tuple(drawn)

    def _figures(self) -> list[str]:
        """Columns worth drawing: those that say most, of numbers, and not the same everywhere."""
        names = [one for one in telling(self.good, self.found.points.columns) if self.columns[one] in (int, float)]
        return _varied(self.good, (one for one in names if one not in self.found.points.columns))

    def _across(self) -> str:
        """The axis to draw from left to right: the one of numbers, or else of names, with most values."""
        values = {name: len({row[name] for row in self.good}) for name in self.varied}
        numbers = [name for name in self.varied if self.columns[name] in (int, float)]
        return max(numbers or self.varied, key=values.__getitem__, default="")

    def _coloured(self, names: Sequence[str]) -> str:
        """The axis that colours tell apart: the one of names, or else of numbers, with most values they can."""
        values = {name: len({row[name] for row in self.good}) for name in names}
        few = [name for name in names if 1 < values[name] <= len(COLOURS)]
        return max(few, key=lambda name: (self.columns[name] is str, values[name]), default="")

    def _drawn(
        self, rows: Rows, places: Mapping[str, str], panels: Sequence[str], axes: Sequence[str], caption: str
    ) -> Picture | None:
        """A chart with a picture for each value of some columns, as far as these are few."""
        taken: list[str] = []
        for name in panels:
            if 1 < len({tuple(row[one] for one in (*taken, name)) for row in rows}) <= _MOST_PANELS:
                taken.append(name)
        columns = dict(self.columns)
        facet = None
        if taken:
            facet = listed(taken)
            columns[facet] = str
            rows = [row | {facet: self._place(row, taken)} for row in rows]
        axes = [name for name in axes if name not in taken]
        given: dict[str, Any] = {"colour": None, "facet": facet} | dict(places)
        try:
            svg = embedded(sweep_chart(rows, columns, axes, **given, title=self.title))
        except BadInput as error:
            self.messages.append(Message(text=f"Not drawn: {error.what}.", remedy="Keep fewer rows with a filter."))
            return None
        if len(svg) > _LARGEST_CHART:
            text = f"Not drawn: {caption} has {counted(len(rows), 'point')}, which make the page heavy."
            self.messages.append(Message(text=text, remedy="Keep fewer rows with a filter."))
            return None
        return Picture(svg=svg, caption=caption)

    def _caption(self) -> str:
        shown = _fitting(self.rows, len(self._names(self.rows)))
        first = "" if shown == len(self.rows) else f"The first {shown:,} of "
        return f"{first}{counted(len(self.rows), 'row')}, in the order of the axes"

    def _names(self, rows: Rows) -> list[str]:
        names = dict.fromkeys((*self.varied, *telling(rows, ())))
        return [name for name in names if name != "layout_text" or "layout" not in self.varied]

    def _rows(self) -> Table:
        names = self._names(self.rows)
        return self._grid("rows", names, self.rows[: _fitting(self.rows, len(names))], self._caption())

    def _grid(self, name: str, names: Sequence[str], rows: Rows, caption: str) -> Table:
        return Table(
            name=name,
            caption=caption,
            columns=tuple(
                Column(heading=printable(one), number=self.columns.get(one) in (int, float)) for one in names
            ),
            rows=tuple(tuple(_cell(one, row.get(one)) for one in names) for row in rows),
            head=False,
        )

    def _failures(self) -> Table | None:
        if not self.failed:
            return None
        first = f"the first {_MOST_FAILURES} of " if len(self.failed) > _MOST_FAILURES else ""
        caption = f"Points that failed: {first}{_codes(self.failed)}"
        return self._grid("failures", [*self.varied, "failure", "message"], self.failed[:_MOST_FAILURES], caption)

    def _provenance(self) -> tuple[Fact, ...]:
        points, counts = self.found.points, self.found.counts
        text = json.dumps({"study": dict(points.study.document), "files": points.files}, sort_keys=True)
        known = f"{counts.known + counts.computed:,} results for {counted(counts.points, 'point')}"
        return (
            Fact(name="Study, SHA-256", text=sha256(text.encode()).hexdigest()),
            Fact(name="Computed by Weft", text=printable(self.found.version)),
            Fact(name="Shown by Weft", text=__version__),
            Fact(name="Results", text=known + (f", {counts.left:,} left" if counts.left else "")),
            *(Fact(name=printable(name), text=f"SHA-256 {digest}") for name, digest in sorted(points.files.items())),
        )


def _cell(name: str, value: Any) -> Cell:
    key = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    return Cell(text=printable(told(name, value)), key=key)


def _varied(rows: Rows, names: Iterable[str]) -> list[str]:
    """The columns that are not the same in all rows."""
    return [name for name in names if any(row.get(name) != rows[0].get(name) for row in rows)]


def _fitting(rows: Rows, columns: int) -> int:
    return min(len(rows), max(MOST_CELLS // max(columns, 1), 1))


def _codes(failed: Rows) -> str:
    counts: dict[str, int] = {}
    for row in failed:
        counts[row["failure"]] = counts.get(row["failure"], 0) + 1
    return ", ".join(f"{printable(code)} {count:,}" for code, count in sorted(counts.items()))
