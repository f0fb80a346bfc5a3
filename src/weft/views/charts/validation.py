"""Predicted over measured iteration time, and by family how the errors spread."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np

from weft.estimation.trust import COVERED
from weft.views.charts.charts import Chart, colours, data, finished, linear, tooltip
from weft.views.charts.palette import INK, MUTED

if TYPE_CHECKING:
    from weft.validation.summary import Validation

BAND = 0.10
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
_SIDE, _SPREAD, _STEP = 500, 300, 22
"""Pixels: of the scatter, of the errors' axis, and from family to family."""


def validation_chart(result: Validation) -> Chart:
    """A scatter and errors by family, a colour and a shape each.

    The scatter has logarithmic axes, the diagonal and a band of 10 % around it.  The bars span the signed errors of
    ``COVERED`` of a family's runs, as many left out below as above; the point is the median.
    """
    names = {
        family.family: f"{family.family} ({family.predicted})" for family in result.families if family.mape is not None
    }
    families = list(names.values())
    shapes = alt.Scale(domain=families, range=[_SHAPES[i % len(_SHAPES)] for i in range(len(families))])
    look: dict[str, Any] = {"color": colours("family", families)}
    look |= {"shape": alt.Shape("family:N", scale=shapes, legend=None)}
    plots = alt.hconcat(_scatter(result, names, look), _spread(result, names, look), spacing=24)
    pooled = "" if result.headline is None else f"mean error {result.headline:.1%} over families; "
    words = f"{pooled}grey: within {BAND:.0%}; bars: errors of {COVERED:.0%} of a family's runs, and their median"
    return finished(plots, "Predicted against measured time", words)


def _scatter(result: Validation, names: dict[str, str], look: dict[str, Any]) -> Chart:
    """Predicted over measured seconds, a point a run."""
    rows: list[dict[str, Any]] = [
        {
            "measured": one.prepared.measured_s,
            "predicted": one.predicted_s,
            "run": one.prepared.run.id,
            "family": names[one.prepared.run.family],
            "error": f"{one.error:+.1%}",
        }
        for one in result.outcomes
    ]
    values = [value for row in rows for value in (row["measured"], row["predicted"])] or [1.0]
    low, high = 0.8 * min(values), 1.25 * max(values)
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    axis = alt.Axis(values=[10.0**power for power in range(floor(log10(low)), ceil(log10(high)) + 1)], format="~g")
    x = alt.X("measured:Q", title="measured time of an iteration (s)", scale=scale, axis=axis)
    y = alt.Y("predicted:Q", title="predicted time of an iteration (s)", scale=scale, axis=axis)
    band = [
        {"measured": at, "least": max((1 - BAND) * at, low), "most": min((1 + BAND) * at, high)}
        for at in (low, low / (1 - BAND), high / (1 + BAND), high)
    ]
    ends = [{"measured": end, "predicted": end} for end in (low, high)]
    told = tooltip(run="run", family="family", measured="measured", predicted="predicted", error="error")
    return alt.layer(
        alt.Chart(data(band)).mark_area(color=MUTED, opacity=0.18).encode(x=x, y="least:Q", y2="most:Q"),
        alt.Chart(data(ends)).mark_line(color=INK, strokeWidth=1).encode(x=x, y=y),
        alt.Chart(data(rows)).mark_point(filled=True, size=34, opacity=0.75).encode(x=x, y=y, tooltip=told, **look),
    ).properties(width=_SIDE, height=_SIDE)


def _spread(result: Validation, names: dict[str, str], look: dict[str, Any]) -> Chart:
    """Signed errors by family, which is also what tells colours and shapes."""
    errors: dict[str, list[float]] = {}
    for one in result.outcomes:
        errors.setdefault(names[one.prepared.run.family], []).append(one.error)
    tail = (1 - COVERED) / 2
    rows = [
        dict(zip(("low", "median", "high"), np.quantile(errors[name], (tail, 0.5, 1 - tail)).tolist(), strict=True))
        | {"family": name}
        for name in names.values()
    ]
    for row in rows:
        row["words"] = f"{row['median']:+.1%} ({row['low']:+.1%} to {row['high']:+.1%})"
    most = 1.05 * max([BAND, *(abs(row[end]) for row in rows for end in ("low", "high"))])
    x = alt.X(
        "median:Q",
        title="predicted / measured - 1",
        scale=linear(-most, most),
        axis=alt.Axis(format="+.0%", tickCount=5),
    )
    y = alt.Y(
        "family:N",
        title=None,
        sort=list(names.values()),
        axis=alt.Axis(orient="right", ticks=False, domain=False, labelPadding=8, labelLimit=0),
    )
    base = alt.Chart(data(rows)).encode(y=y, tooltip=tooltip(family="family", words="errors"))
    return alt.layer(
        alt.Chart(data([{"low": -BAND, "high": BAND}]))
        .mark_rect(color=MUTED, opacity=0.18)
        .encode(x=alt.X("low:Q", scale=linear(-most, most)), x2="high:Q"),
        alt.Chart(data([{"median": 0.0}])).mark_rule(color=INK, strokeWidth=1).encode(x=x),
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q"), x2="high:Q", color=look["color"]),
        base.mark_point(filled=True, size=70, opacity=1).encode(x=x, **look),
    ).properties(width=_SPREAD, height=max(_STEP * len(rows), _STEP))
