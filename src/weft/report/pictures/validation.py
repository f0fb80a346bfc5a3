"""Predicted over measured iteration time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from weft.report.pictures.charts import COLOURS, INK, MUTED, Chart, data, finished

if TYPE_CHECKING:
    from weft.validation.summary import Validation

BAND = 0.10
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "stroke")


def validation_chart(found: Validation) -> Chart:
    """Both axes logarithmic, a colour and a shape per family, the diagonal and a band of 10 % around it."""
    names = {
        one.family: f"{one.family} ({one.predicted}, {one.mape:.0%})" for one in found.families if one.mape is not None
    }
    rows: list[dict[str, Any]] = [
        {
            "measured": one.prepared.measured_s,
            "predicted": one.predicted_s,
            "run": one.prepared.run.id,
            "family": names[one.prepared.run.family],
            "error": f"{one.predicted_s / one.prepared.measured_s - 1:+.1%}",
        }
        for one in found.outcomes
    ]
    values = [value for row in rows for value in (row["measured"], row["predicted"])] or [1.0]
    low, high = 0.8 * min(values), 1.25 * max(values)
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    axis = alt.Axis(tickCount=6, format="~g")
    x = alt.X("measured:Q", title="measured time of an iteration (s)", scale=scale, axis=axis)
    y = alt.Y("predicted:Q", title="predicted time of an iteration (s)", scale=scale, axis=axis)
    band = [
        {"measured": at, "least": max((1 - BAND) * at, low), "most": min((1 + BAND) * at, high)}
        for at in (low, low / (1 - BAND), high / (1 + BAND), high)
    ]
    ends = [{"measured": end, "predicted": end} for end in (low, high)]
    families = list(names.values())
    colour = alt.Scale(domain=families, range=[COLOURS[i % len(COLOURS)] for i in range(len(families))])
    shape = alt.Scale(domain=families, range=[_SHAPES[i % len(_SHAPES)] for i in range(len(families))])
    title = "family (runs, mean error)"
    legend = alt.Legend(title=title, symbolType="circle", symbolStrokeWidth=1, symbolSize=60)
    chart = alt.layer(
        alt.Chart(data(band)).mark_area(color=MUTED, opacity=0.18).encode(x=x, y="least:Q", y2="most:Q"),
        alt.Chart(data(ends)).mark_line(color=INK, strokeWidth=1).encode(x=x, y=y),
        alt.Chart(data(rows))
        .mark_point(filled=True, size=55, opacity=1)
        .encode(
            x=x,
            y=y,
            color=alt.Color("family:N", scale=colour, legend=legend),
            shape=alt.Shape("family:N", scale=shape, legend=legend),
            tooltip=[alt.Tooltip(f"{name}:N") for name in ("run", "measured", "predicted", "error")],
        ),
    ).properties(width=500, height=500)
    pooled = "" if found.headline is None else f"mean error {found.headline:.1%} over families; "
    return finished(chart, "Predicted against measured time", f"{pooled}band: within {BAND:.0%}")
