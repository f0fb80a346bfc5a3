"""Studies for people: what a run did, what it would do, and rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from weft.units import counted, format_bytes, format_count, format_seconds, format_si
from weft.views.blocks import Blank, Block, Column, Grid, Heading, Paragraph

if TYPE_CHECKING:
    from weft.studies.result import Sweep
    from weft.studies.run import Forecast

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


def sweep_view(found: Sweep, *, written: str | None) -> Iterator[Block]:
    """What a run computed, and the first rows where they were not written to a file."""
    study, counts = found.points.study, found.counts
    failures = found.failures()
    if written is None:
        rows = [row for row, _ in zip(found.rows(), range(ROWS), strict=False)]
        names = telling(rows, found.points.columns)
        several = {axis.kind.column for axis in study.axes if len(axis.values) > 1}
        names = [*(one for one in found.points.columns if one in several or one in names), *names]
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


def forecast_view(found: Forecast, workers: str | int | None) -> Iterator[Block]:
    """What a run would do, and about how long it would take."""
    yield Paragraph(
        f"{found.study}: {counted(found.points, 'point')}, {found.known:,} known, {found.missing:,} to compute"
    )
    if found.timed:
        whole = found.missing * found.point_s
        yield Paragraph(f"about {format_seconds(found.point_s)} a point, of {found.timed} timed", indent=2)
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


def told(name: str, value: Any) -> str:
    """A value with its unit, which the name of its column tells."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    for suffix, shown in _UNITS.items():
        if name == suffix or name.endswith(f"_{suffix}"):
            return shown(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


_UNITS: dict[str, Callable[[Any], str]] = {
    "per_s": format_count,
    "s": format_seconds,
    "bytes": format_bytes,
    "Bps": lambda value: format_si(value, "B/s"),
    "flops": lambda value: format_si(value, "FLOP/s"),
    "per_usd": format_count,
    "usd": lambda value: f"${format_count(value)}",
    "watts": lambda value: format_si(value, "W"),
    "mfu": lambda value: f"{value:.1%}",
}
"""How a value is shown, by the end of its column's name."""
