"""Two columns of a study's rows against each other, colours and pictures by a third and a fourth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from typing import Any

import altair as alt

from weft.errors import BadInput
from weft.report.pictures.charts import COLOURS, INK, Chart, data, finished

MOST_ROWS = 5000
MOST_FACETS = 24
_WIDE, _SMALL = (620, 380), (260, 200)
_TURN = 20.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
_UNITS = {"per_s": "1/s", "s": "s", "bytes": "bytes", "Bps": "bytes/s", "usd": "$", "watts": "W", "flops": "FLOP/s"}


def sweep_chart(
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, type],
    *,
    x: str,
    y: str,
    colour: str | None,
    facet: str | None,
    title: str,
) -> Chart:
    """Lines and points over a column of numbers, bars over one of names; rows without a value are left out.

    Raises:
        BadInput: ``y`` holds no numbers, or there is nothing or too much to draw.
    """
    if columns[y] not in (int, float):
        raise BadInput(f"{y} holds no numbers", where="--y", remedy="name a column of numbers")
    names = [x, y, *(one for one in (colour, facet) if one is not None)]
    kept = [{name: row[name] for name in names} for row in rows if all(row.get(name) is not None for name in names)]
    if not 0 < len(kept) <= MOST_ROWS:
        remedy = f"choose 1 to {MOST_ROWS:,} rows with --where" if kept else "choose columns that have values"
        raise BadInput(f"{len(kept):,} rows have values to draw", where="--chart", remedy=remedy)
    facets = list(dict.fromkeys(str(row[facet]) for row in kept)) if facet is not None else []
    if len(facets) > MOST_FACETS:
        problem = f"{facet} has {len(facets)} values, more than {MOST_FACETS}"
        raise BadInput(problem, where="--facet", remedy="choose another column, or rows with --where")
    numbers = columns[x] in (int, float)
    width, height = _SMALL if facets else _WIDE
    series = list(dict.fromkeys(str(row[colour]) for row in kept)) if colour is not None else [y]
    table = [
        {
            "x": row[x] if numbers else str(row[x]),
            "y": row[y],
            "series": str(row[colour]) if colour is not None else y,
            "facet": str(row[facet]) if facet is not None else "",
        }
        for row in kept
    ]
    marks = _over_numbers(table, x, y) if numbers else _over_names(table, x, y, series)
    scale = alt.Scale(domain=series, range=[COLOURS[i % len(COLOURS)] for i in range(len(series))])
    legend = None if colour is None else alt.Legend(title=colour, symbolType="circle", orient="right")
    coloured = [one.encode(color=alt.Color("series:N", scale=scale, legend=legend)) for one in marks]
    chart: Any = alt.layer(*coloured, data=data(table)).properties(width=width, height=height)
    if facets:
        header = alt.Header(title=None, labelColor=INK, labelFontSize=12)
        chart = chart.facet(facet=alt.Facet("facet:N", sort=facets, header=header), columns=3)
    left = len(rows) - len(kept)
    subtitle = f"{len(kept):,} points" + (f"; {left:,} without a value left out" if left else "")
    return finished(chart, title, subtitle + (f"; a picture for each {facet}" if facets else ""))


def _over_numbers(table: list[dict[str, Any]], x: str, y: str) -> list[alt.Chart]:
    """Points, joined where each series has one value at each place."""
    places = [(row["series"], row["facet"], row["x"]) for row in table]
    base = alt.Chart().encode(
        x=alt.X("x:Q", title=_titled(x), scale=_scale([row["x"] for row in table]), axis=_axis(table, "x")),
        y=alt.Y("y:Q", title=_titled(y), scale=_scale([row["y"] for row in table]), axis=_axis(table, "y")),
    )
    tooltip = [alt.Tooltip("series:N"), alt.Tooltip("x:Q", title=x), alt.Tooltip("y:Q", title=y)]
    points = base.mark_circle(size=55, opacity=1).encode(tooltip=tooltip)
    single = len(set(places)) == len(places) and len({(one, two) for one, two, _ in places}) < len(places)
    return [base.mark_line(strokeWidth=2), points] if single else [points]


def _over_names(table: list[dict[str, Any]], x: str, y: str, series: list[str]) -> list[alt.Chart]:
    """Bars side by side where each series has one value at each name, else points."""
    names = list(dict.fromkeys(row["x"] for row in table))
    places = [(row["series"], row["facet"], row["x"]) for row in table]
    single = len(set(places)) == len(places)
    values = [row["y"] for row in table]
    scale = alt.Scale(zero=True) if single else _scale(values)
    base = alt.Chart().encode(
        x=alt.X("x:N", title=_titled(x), sort=names, axis=alt.Axis(labelAngle=-30 if len(names) > 4 else 0)),
        y=alt.Y("y:Q", title=_titled(y), scale=scale, axis=_axis(table, "y")),
        tooltip=[alt.Tooltip("series:N"), alt.Tooltip("x:N", title=x), alt.Tooltip("y:Q", title=y)],
    )
    if single:
        return [base.mark_bar().encode(xOffset=alt.XOffset("series:N", sort=series))]
    return [base.mark_circle(size=45, opacity=0.8)]


def _logarithmic(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= _TURN


def _scale(values: Sequence[float]) -> alt.Scale:
    if _logarithmic(values):
        low, high = log10(min(values)), log10(max(values))
        space = 0.05 * (high - low)
        return alt.Scale(type="log", domain=[10 ** (low - space), 10 ** (high + space)], nice=False)
    low, high = min(values), max(values)
    begin = 0.0 if 0 <= low < 0.5 * high or low == high else low - 0.08 * (high - low)
    return alt.Scale(domain=[min(begin, low), high + 0.06 * (high - begin or 1.0)], nice=False, zero=False)


def _axis(table: list[dict[str, Any]], name: str) -> alt.Axis:
    largest = max(abs(row[name]) for row in table)
    return alt.Axis(tickCount=6, format="~s" if largest >= 1e4 else "~g")


def _titled(name: str) -> str:
    """A column's name with its unit in brackets."""
    for suffix, unit in _UNITS.items():
        if name.endswith(f"_{suffix}") or name == suffix:
            return f"{name.removesuffix(suffix).rstrip('_').replace('_', ' ') or name} ({unit})"
    return name.replace("_", " ")
