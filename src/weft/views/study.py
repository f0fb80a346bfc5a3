"""Studies for people: what a run did, what it would do, its rows, and a report with charts."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from weft import __version__
from weft.errors import printable as bounded
from weft.studies.result import Rows, chosen, filtered
from weft.units import counted, format_seconds, listed
from weft.views.blocks import Blank, Block, Column, Copied, Fact, Figure, Grid, Heading, Paragraph
from weft.views.charts.palette import COLOURS
from weft.views.words import printable, told

if TYPE_CHECKING:
    from weft.studies.result import Sweep
    from weft.studies.run import Forecast

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

    def __init__(self, result: Sweep, look: Look) -> None:
        self.found, self.look = result, look
        self.columns = dict(result.columns())
        empty = dict.fromkeys(self.columns)
        self.rows = [empty | row for row in filtered(result.rows(), look.where, self.columns)]
        self.good = [row for row in self.rows if row["failure"] is None]
        self.failed = [row for row in self.rows if row["failure"] is not None]
        self.varied = _varied(self.rows, result.points.columns)
        self.title = printable(result.points.study.name)
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


ROWS = 20
"""Rows that are shown of a run; a table that was asked for has all."""
_TELLING = (
    *("failure", "layout_text", "iteration_s", "simulated_s", "closed_form_s", "tokens_per_s", "mfu"),
    *("memory_bytes", "usd", "watts", "worst_slowdown", "time_s", "bound_s", "utilization"),
    *("alpha", "alpha_bound", "objective", "bound", "gap", "expected_days"),
)
"""Figures that are shown where nobody says which."""
_LEAST = "layout_text"
"""The column that goes first where there is no room."""


def sweep_view(result: Sweep, *, written: str | None = None) -> Iterator[Block]:
    """What a run computed, and the first rows where they were not written to a file."""
    study, counts = result.points.study, result.counts
    failures = result.failures()
    if written is None:
        rows = [row for row, _ in zip(result.rows(), range(ROWS), strict=False)]
        names = telling(rows, result.points.columns)
        several = {axis.kind.column for axis in study.axes if len(axis.values) > 1}
        names = [*(one for one in result.points.columns if one in several or one in names), *names]
        names = list(dict.fromkeys(names))
        yield from rows_view(rows, names)
        if counts.points > ROWS:
            yield Paragraph(f"and {counts.points - ROWS:,} more (-o FILE has all)", indent=2)
        yield Blank()
    points = f"{counts.points:,} point{'s' * (counts.points != 1)}"
    same = counts.points - counts.known - counts.computed
    told = [f"{counts.computed:,} computed", f"{counts.known:,} known"] + ([f"{same:,} the same"] if same else [])
    yield Paragraph(f"{study.name}: {study.computation.name} at {points}: {', '.join(told)}")
    if failures:
        codes = ", ".join(f"{code} {count:,}" for code, count in failures.items())
        yield Paragraph(f"{sum(failures.values()):,} failed: {codes}", indent=2)
    if written is not None:
        yield Paragraph(f"written to {written}", indent=2)


def forecast_view(result: Forecast, workers: str | int | None) -> Iterator[Block]:
    """What a run would do, and about how long it would take."""
    yield Paragraph(
        f"{result.study}: {counted(result.points, 'point')}, {result.known:,} known, {result.missing:,} to compute"
    )
    if result.timed:
        whole = result.missing * result.point_s
        yield Paragraph(f"about {format_seconds(result.point_s)} a point, of {result.timed} timed", indent=2)
        said = f"about {format_seconds(whole)} of one core's time"
        if str(workers).isdecimal() and int(str(workers)) > 1:
            said += f", {format_seconds(whole / int(str(workers)))} on {workers}"
        yield Paragraph(said, indent=2)


def rows_view(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Iterator[Block]:
    """Rows under the names of their columns."""
    yield Heading(f"{len(rows):,} row{'s' * (len(rows) != 1)}")
    if not rows:
        return
    columns = []
    for place, name in enumerate(names):
        values = [row.get(name) for row in rows]
        cells = [told(name, one) for one in values]
        text = all(isinstance(one, str | None) for one in values)
        columns.append(Column(heading=name, cells=cells, drop=100 if name == _LEAST else place, left=text))
    yield Grid(columns)


def telling(rows: Sequence[dict[str, Any]], axes: Collection[str]) -> list[str]:
    """The columns that say most: the axes that vary, and the main figures that there are."""
    varied = [name for name in axes if len({row[name] for row in rows}) > 1] or list(axes)[:1]
    return [*varied, *(name for name in _TELLING if any(row.get(name) is not None for row in rows))]
