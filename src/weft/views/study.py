"""A study for people: what was computed, its rows, charts, and what failed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from weft import __version__
from weft.errors import printable as bounded
from weft.studies.result import Rows, chosen, filtered
from weft.units import counted, listed
from weft.views.blocks import Block, Column, Copied, Fact, Figure, Grid, Heading, Paragraph
from weft.views.charts.palette import COLOURS
from weft.views.sweep import telling, told
from weft.views.words import printable

if TYPE_CHECKING:
    from weft.studies.result import Sweep

NONE = "none"
"""Written in place of a column: there is to be none."""
MOST_CELLS = 8_000
"""Of a table: a page of that size is still light."""
_LONGEST_STUDY = 100_000
_MOST_FAILURES = 200
_MOST_PANELS = 12
_MOST_CHARTS = 3
_MOST_POINTS = 2_500


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


class StudyReport:
    """A study with the rows of a look; the state is read at once and may be closed then.

    Attributes:
        columns: of all rows, with the types of their values.
        rows: those of the look, each with all columns.

    Raises:
        BadInput: a filter or a column that cannot be used.
    """

    def __init__(self, found: Sweep, look: Look) -> None:
        self.found, self.look = found, look
        self.columns = dict(found.columns())
        empty = dict.fromkeys(self.columns)
        self.rows = [empty | row for row in filtered(found.rows(), look.where, self.columns)]
        self.good = [row for row in self.rows if row["failure"] is None]
        self.failed = [row for row in self.rows if row["failure"] is not None]
        self.varied = _varied(self.rows, found.points.columns)
        self.title = printable(found.points.study.name)
        for place in ("x", "y", "colour", "facet"):
            name = getattr(look, place)
            if name and name != NONE:
                chosen(name, self.columns, f"--{place}")

    def blocks(self) -> Iterator[Block]:
        """The report."""
        counts, study = self.found.counts, self.found.points.study
        over = [f"{axis.kind.column} ({len(axis.values)} values)" for axis in study.axes if len(axis.values) > 1]
        codes = _codes(self.failed)
        first = f"{counted(counts.points, 'point')} of weft {study.computation.name}"
        first += f" over {listed(over)}." if over else "."
        shown = "" if len(self.rows) == counts.points else f" {len(self.rows):,} of them are shown."
        yield Paragraph(first + shown)
        yield Paragraph(f"{len(self.failed):,} failed: {codes}." if codes else "None of them failed.")
        if counts.left:
            yield Paragraph(f"{counts.left:,} points are not computed yet. This shows those that are.", style="bold")
        columns = self.found.points.columns
        if same := {name: self.rows[0][name] for name in columns if self.rows and name not in self.varied}:
            yield Fact("At all points:", self._place(same, same))
        for text in self.look.where:
            yield Fact("Points shown:", printable(text))
        yield from self._figures()
        if self.rows:
            names = self._names()
            most = min(len(self.rows), max(MOST_CELLS // max(len(names), 1), 1))
            part = "" if most == len(self.rows) else f"The first {most:,} of "
            yield Heading("Points", top=True)
            yield Paragraph(f"{part}{counted(len(self.rows), 'row')}, in the order of the axes")
            yield self._grid(names, self.rows[:most])
        if self.failed:
            part = f"The first {_MOST_FAILURES} of " if len(self.failed) > _MOST_FAILURES else ""
            yield Heading("Failed", top=True)
            yield Paragraph(f"{part}{codes}")
            yield self._grid([*self.varied, "failure", "message"], self.failed[:_MOST_FAILURES])
        yield from self._provenance()

    def _place(self, row: Mapping[str, Any], names: Iterable[str]) -> str:
        return printable(", ".join(f"{name} {told(name, row[name])}" for name in names))

    def _figures(self) -> Iterator[Block]:
        """Charts of the figures that say most over the axis with most values."""
        values = {name: len({row[name] for row in self.good}) for name in self.varied}
        numbers = [name for name in self.varied if self.columns[name] in (int, float)]
        x = self.look.x or max(numbers or self.varied, key=values.__getitem__, default="")
        figures = [self.look.y] if self.look.y else self._telling()[:_MOST_CHARTS]
        if not (self.good and x and figures):
            return
        places = {"x": x} | {name: getattr(self.look, name) for name in ("colour", "facet")}
        beside = [name for name in self.varied if name not in places.values()]
        if not places["colour"]:  # colours: the axis of names, or else of numbers, with most values they can tell
            few = [name for name in beside if 1 < values[name] <= len(COLOURS)]
            places["colour"] = max(few, key=lambda name: (self.columns[name] is str, values[name]), default="")
            beside = [name for name in beside if name != places["colour"]]
        panels = [] if places["facet"] else beside
        places = {name: value for name, value in places.items() if value not in ("", NONE)}
        yield Heading("Charts", top=True)
        for y in figures:
            yield self._figure(places | {"y": y}, panels, f"{y} over {x}")

    def _telling(self) -> list[str]:
        """Columns worth drawing: those that say most, of numbers, and not the same everywhere."""
        axes = self.found.points.columns
        names = [name for name in telling(self.good, axes) if self.columns[name] in (int, float)]
        return _varied(self.good, (name for name in names if name not in axes))

    def _figure(self, places: Mapping[str, str], panels: Sequence[str], caption: str) -> Block:
        """A chart with a picture for each value of some columns, as far as these are few."""
        from weft.views.charts.sweep import sweep_chart

        if len(self.good) > _MOST_POINTS:
            return Paragraph(f"Not drawn: {caption} has {len(self.good):,} points. Keep fewer rows with a filter.")
        taken: list[str] = []
        for name in panels:
            if 1 < len({tuple(row[axis] for axis in (*taken, name)) for row in self.good}) <= _MOST_PANELS:
                taken.append(name)
        rows, columns, facet = self.good, dict(self.columns), None
        if taken:
            facet = listed(taken)
            columns[facet] = str
            rows = [row | {facet: self._place(row, taken)} for row in rows]
        axes = [name for name in self.varied if name not in taken]
        given: dict[str, Any] = {"colour": None, "facet": facet} | dict(places)
        return Figure(partial(sweep_chart, rows, columns, axes, **given, title=self.title), caption)

    def _names(self) -> list[str]:
        names = dict.fromkeys((*self.varied, *telling(self.rows, ())))
        return [name for name in names if name != "layout_text" or "layout" not in self.varied]

    def _grid(self, names: Sequence[str], rows: Rows) -> Grid:
        return Grid(
            [
                Column(
                    heading=printable(name),
                    cells=[printable(told(name, row.get(name))) for row in rows],
                    left=self.columns.get(name) not in (int, float),
                )
                for name in names
            ]
        )

    def _provenance(self) -> Iterator[Block]:
        points, counts = self.found.points, self.found.counts
        text = json.dumps({"study": dict(points.study.document), "files": points.files}, sort_keys=True)
        known = f"{counts.known + counts.computed:,} results for {counted(counts.points, 'point')}"
        yield Heading("Provenance", top=True)
        yield Fact("Study, SHA-256:", sha256(text.encode()).hexdigest())
        yield Fact("Computed by Weft:", printable(self.found.version))
        yield Fact("Shown by Weft:", __version__)
        yield Fact("Results:", known + (f", {counts.left:,} left" if counts.left else ""))
        for name, digest in sorted(points.files.items()):
            yield Fact(printable(name), f"SHA-256 {digest}")
        yield Copied(bounded(json.dumps(dict(points.study.document), indent=1), _LONGEST_STUDY), "The study")


def _varied(rows: Rows, names: Iterable[str]) -> list[str]:
    """The columns that are not the same in all rows."""
    return [name for name in names if any(row.get(name) != rows[0].get(name) for row in rows)]


def _codes(failed: Rows) -> str:
    counts: dict[str, int] = {}
    for row in failed:
        counts[row["failure"]] = counts.get(row["failure"], 0) + 1
    return ", ".join(f"{printable(code)} {count:,}" for code, count in sorted(counts.items()))
