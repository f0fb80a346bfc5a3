"""Studies for people: what a run did, what it would do, its rows, and a chart of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any

from weft.errors import BadInput
from weft.studies.result import Rows
from weft.units import counted, format_seconds
from weft.views.blocks import Blank, Block, Paragraph
from weft.views.charts import INK, Chart, alt, bounds, colours, data, finished, linear, titled, tooltip
from weft.views.words import column_words, printable, records_table, told

if TYPE_CHECKING:
    from weft.studies.result import Sweep
    from weft.studies.run import Forecast


def _place(row: Mapping[str, Any], names: Iterable[str]) -> str:
    return printable(
        ", ".join(f"{column_words(name)} {told(name, row[name])}" for name in names if row.get(name) is not None)
    )


def _codes(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{printable(code)} {count:,}" for code, count in sorted(counts.items()))


ROWS = 20
"""Rows that are shown of a run."""
_TELLING = (
    *("failure", "layout_text", "iteration_s", "simulated_s", "closed_form_s", "tokens_per_s", "mfu"),
    *("memory_bytes", "usd", "watts", "worst_slowdown", "time_s", "bound_s", "utilization"),
    *("alpha", "alpha_bound", "objective", "bound", "gap", "expected_days"),
)
"""Figures that are shown by default."""
_MOST_MODELS = 3
"""Models whose fastest point the verdict names."""


def study_verdict(rows: Iterable[dict[str, Any]], result: Sweep) -> str:
    """How many points have a result, why others have none, and the fastest of those shown, for each model."""
    study, count = result.points.study, 0
    varied = [axis.kind.column for axis in study.axes if len(axis.values) > 1]
    best: dict[Any, dict[str, Any]] = {}
    codes = Counter[str]()
    for row in rows:
        count += 1
        if row["failure"] is not None:
            codes[row["failure"]] += 1
        elif (value := row.get("tokens_per_s")) is not None:
            fastest = best.setdefault(row.get("model"), row)
            if value > fastest["tokens_per_s"]:
                best[row.get("model")] = row
    failed = sum(codes.values())
    part = "" if count == result.counts.points else f"{count:,} of "
    text = f"{part}{counted(result.counts.points, 'point')} of {study.computation.name}"
    text += f": {count - failed:,} with a result, {failed:,} failed ({_codes(codes)})" if failed else ", none failed"
    if best and count > 1:
        names = [*varied, *(["layout_text"] if "layout" not in varied else [])]
        places = [f"{told('tokens_per_s', row['tokens_per_s'])} ({_place(row, names)})" for row in best.values()]
        more = f"; {len(places) - _MOST_MODELS:,} more models" if len(places) > _MOST_MODELS else ""
        text += f"; most tokens/s{' for each model' * (len(places) > 1)}: {'; '.join(places[:_MOST_MODELS])}{more}"
    return text


def sweep_view(result: Sweep, *, written: str | None = None) -> Iterator[Block]:
    """What a run computed, and the first rows where they were not written to a file."""
    study, counts = result.points.study, result.counts
    yield Paragraph(study_verdict(result.rows(), result), style="bold")
    if written is None:
        rows = list(islice(result.rows(), ROWS))
        names = telling(rows, result.points.columns)
        several = {axis.kind.column for axis in study.axes if len(axis.values) > 1}
        axes = [name for name in result.points.columns if name in several or name in names]
        yield from rows_view(rows, list(dict.fromkeys((*axes, *names))))
        if counts.points > ROWS:
            yield Paragraph(f"and {counts.points - ROWS:,} more (-o FILE writes all)", indent=2)
    same = counts.points - counts.known - counts.computed
    states = [f"{counts.computed:,} computed", f"{counts.known:,} known"] + ([f"{same:,} the same"] if same else [])
    where = f"; written to {written}" if written is not None else ""
    yield Paragraph(f"{study.name}: {', '.join(states)}{where}", indent=2)


def forecast_view(result: Forecast, workers: str | int | None) -> Iterator[Block]:
    """What a run would do, and about how long it would take."""
    text = f"{result.study}: {counted(result.points, 'point')}, {result.known:,} known, {result.missing:,} to compute"
    if result.timed:
        core_s = result.missing * result.point_s
        text += f": about {format_seconds(core_s)} of one core's time"
        if str(workers).isdecimal() and int(str(workers)) > 1:
            text += f", {format_seconds(core_s / int(str(workers)))} on {workers}"
        text += f" ({format_seconds(result.point_s)} a point, {result.timed} timed)"
    yield Paragraph(text)


def show_view(rows: Rows, names: Sequence[str], result: Sweep) -> Iterator[Block]:
    """The verdict and the rows of a study."""
    yield Paragraph(study_verdict(rows, result), style="bold")
    yield from rows_view(rows, names)


def rows_view(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Iterator[Block]:
    """Rows under the names of their columns."""
    if rows:
        yield Blank()
        yield records_table(rows, names)


def telling(rows: Sequence[dict[str, Any]], axes: Collection[str]) -> list[str]:
    """The axes that vary, and the main figures of the rows."""
    varied = [name for name in axes if len({row[name] for row in rows}) > 1] or list(axes)[:1]
    return [*varied, *(name for name in _TELLING if any(row.get(name) is not None for row in rows))]


# Chart ---------------------------------------------------------------------------------------------------------

MOST_ROWS = 5000
MOST_FACETS = 24
_WIDE, _SMALL = (620, 380), (270, 210)
_TURN = 10.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
_MOST_TICKS = 8
"""Different values that are all marked on an axis."""
_DASHES = [[1, 0], [7, 4], [2, 3], [9, 3, 2, 3]]
_UNITS = {
    "per_s": "1/s",
    "s": "s",
    "bytes": "bytes",
    "Bps": "bytes/s",
    "per_usd": "1/$",
    "usd": "$",
    "watts": "W",
    "flops": "FLOP/s",
}


def study_chart(sweep: Sweep, *, x: str, y: str, colour: str | None = None, facet: str | None = None) -> Chart:
    """All rows of a study."""
    columns, points = sweep.columns(), sweep.points
    rows = list(sweep.rows())
    return sweep_chart(rows, columns, points.columns, x=x, y=y, colour=colour, facet=facet, title=points.study.name)


def sweep_chart(
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, type],
    axes: Collection[str],
    *,
    x: str,
    y: str,
    colour: str | None,
    facet: str | None,
    title: str,
    subtitle: str = "",
) -> Chart:
    """Lines over a column of numbers, bars over one of names; rows without a value are left out.

    Args:
        columns: names, and the type of their values.
        axes: columns that tell points apart; those that are not drawn get separate lines.
        subtitle: by default the number of points and what tells them apart.

    Raises:
        BadInput: ``y`` holds no numbers, or there is nothing or too much to draw.
    """
    if columns[y] not in (int, float):
        raise BadInput(f"{y} holds no numbers", where="--y", remedy="name a column of numbers")
    names = [x, y, *(one for one in (colour, facet) if one is not None)]
    kept = [row for row in rows if all(row.get(name) is not None for name in names)]
    if not 0 < len(kept) <= MOST_ROWS:
        remedy = f"choose 1 to {MOST_ROWS:,} rows with --where" if kept else "choose columns that have values"
        raise BadInput(f"{len(kept):,} rows have values to draw", where="--chart", remedy=remedy)
    beside = [axis for axis in axes if axis not in names and len({row[axis] for row in kept}) > 1]
    numbers = columns[x] in (int, float)
    table = [
        {
            "x": row[x] if numbers else str(row[x]),
            "y": row[y],
            "series": told(colour, row[colour]) if colour is not None else y,
            "facet": told(facet, row[facet]) if facet is not None else "",
            "beside": ", ".join(told(one, row[one]) for one in beside),
        }
        for row in kept
    ]
    facets = list(dict.fromkeys(row["facet"] for row in table))
    if len(facets) > MOST_FACETS:
        problem = f"{facet} has {len(facets)} values, more than {MOST_FACETS}"
        raise BadInput(problem, where="--facet", remedy="choose another column, or rows with --where")
    series = list(dict.fromkeys(row["series"] for row in table))
    scale_y = {"title": _titled(y), "share": y.endswith(("_share", "mfu"))}
    marks: Any
    if numbers:
        marks = _over_numbers(table, _titled(x), scale_y, ", ".join(map(_named, beside)))
    else:
        marks = _over_names(table, _titled(x), scale_y, series)
    told_of = [
        *tooltip(series=colour or "value", beside="beside"),
        alt.Tooltip("x:Q" if numbers else "x:N", title=_titled(x)),
        alt.Tooltip("y:Q", title=_titled(y)),
    ]
    legend = {"title": _named(colour), "symbolType": "circle", "orient": "right"} if colour else {}
    shades = colours("series", series, **legend)
    chart: Any = alt.layer(*(mark.encode(color=shades, tooltip=told_of) for mark in marks))
    width, height = _WIDE if facet is None else _SMALL
    chart = chart.properties(width=width, height=height, data=data(table))
    if facet is not None:
        header = alt.Header(title=None, labelColor=INK, labelFontSize=12)
        across = 2 if len(facets) in (2, 4) else min(3, len(facets))
        chart = chart.facet(facet=alt.Facet("facet:N", sort=facets, header=header), columns=across)
    said = [counted(len(kept), "point")]
    said += [f"{len(rows) - len(kept):,} without a value left out"] if len(kept) < len(rows) else []
    said += [f"a picture for each {_named(facet)}"] if facet is not None else []
    said += [f"{', '.join(map(_named, beside))} varies beside"] if beside else []
    return finished(chart, title, subtitle or "; ".join(said))


def _over_numbers(table: list[dict[str, Any]], title_x: str, scale_y: dict[str, Any], beside: str) -> list[alt.Chart]:
    """Points, joined where all else is the same and there is one value at each place; dashes tell a few lines apart
    that differ in what varies beside."""
    lines = [(row["series"], row["facet"], row["beside"]) for row in table]
    places = {(line, row["x"]) for line, row in zip(lines, table, strict=True)}
    across, up = _quantity(alt.X, "x", table, title_x, each=True), _quantity(alt.Y, "y", table, **scale_y)
    base = alt.Chart().encode(x=across, y=up)
    points = base.mark_circle(size=55, opacity=1)
    if len(places) < len(table) or len(set(lines)) == len(lines):
        return [points]
    line = base.mark_line(strokeWidth=2)
    kinds = list(dict.fromkeys(row["beside"] for row in table))
    if 1 < len(kinds) <= len(_DASHES):
        scale = alt.Scale(domain=kinds, range=_DASHES[: len(kinds)])
        return [
            line.encode(
                strokeDash=alt.StrokeDash(
                    "beside:N",
                    scale=scale,
                    legend=alt.Legend(
                        title=beside, symbolType="stroke", symbolStrokeColor=INK, symbolStrokeWidth=2, symbolSize=500
                    ),
                )
            ),
            points,
        ]
    return [line.encode(detail="beside:N"), points]


def _over_names(
    table: list[dict[str, Any]], title_x: str, scale_y: dict[str, Any], series: list[str]
) -> list[alt.Chart]:
    """Bars side by side where each series has one value at each name, else points."""
    names = list(dict.fromkeys(row["x"] for row in table))
    single = len({(row["series"], row["facet"], row["x"]) for row in table}) == len(table)
    along = alt.X("x:N", title=title_x, sort=names, axis=alt.Axis(labelAngle=-30 if len(names) > 4 else 0))
    if not single:
        up = _quantity(alt.Y, "y", table, **scale_y)
        return [alt.Chart().mark_circle(size=45, opacity=0.8).encode(x=along, y=up)]
    axis = _axis([row["y"] for row in table], share=scale_y["share"])
    up = alt.Y("y:Q", title=scale_y["title"], scale=alt.Scale(zero=True), axis=axis)
    return [alt.Chart().mark_bar().encode(x=along, y=up, xOffset=alt.XOffset("series:N", sort=series))]


def _quantity(
    channel: Any, place: str, table: list[dict[str, Any]], title: str, *, each: bool = False, share: bool = False
) -> Any:
    """The axis of a column of numbers, logarithmic where its values are far apart."""
    values = [row[place] for row in table]
    low, high = min(values), max(values)
    ticks = None
    if low > 0 and high / low >= _TURN:
        title = f"{title}; logarithmic"
        space = 10 ** (0.05 * log10(high / low))
        scale = alt.Scale(type="log", domain=[low / space, high * space], nice=False)
        ticks = _ticks(low / space, high * space)
    else:
        begin, end = bounds(values)
        scale, title = linear(begin, end), titled(title, begin, ".0%" if share else ".3g")
    axis = _axis(values, each=each, share=share, ticks=ticks)
    return channel(f"{place}:Q", title=title, scale=scale, axis=axis)


def _ticks(low: float, high: float) -> list[float]:
    """Places on a logarithmic axis: as many of 1, 2, 3 and 5 times powers of ten as there is room for."""
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    for steps in ((1, 2, 3, 5), (1, 2, 5), (1,)):
        result = sorted(at for power in powers for step in steps if low <= (at := step * 10.0**power) <= high)
        if len(result) <= _MOST_TICKS:
            break
    return result


def _axis(
    values: Sequence[float], *, each: bool = False, share: bool = False, ticks: list[float] | None = None
) -> alt.Axis:
    different = sorted(set(values))
    form = ".4~%" if share else ",.6~g" if 1e-2 <= max(map(abs, different)) < 1e4 else ".4~s"
    if each and len(different) <= _MOST_TICKS:
        return alt.Axis(values=different, format=form)
    return alt.Axis(tickCount=6, format=form) if ticks is None else alt.Axis(values=ticks, format=form)


def _titled(name: str) -> str:
    """A column's name for people, its unit in brackets."""
    for suffix, unit in _UNITS.items():
        if name.endswith(f"_{suffix}"):
            return f"{_named(name)} ({unit})"
    return _named(name)


def _named(name: str) -> str:
    """A column's name for people, without its unit."""
    for suffix in _UNITS:
        name = name.removesuffix(f"_{suffix}")
    return name.replace("_", " ")
