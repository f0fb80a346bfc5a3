"""What each class of failures costs a run, as bars of what is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from weft.errors import BadInput
from weft.views.charts.charts import Chart, colours, data, finished, linear, tooltip
from weft.views.charts.palette import COLOURS, PAPER

if TYPE_CHECKING:
    from weft.search.goodput import GoodputReport

_WIDTH, _STEP = 620, 30
_PARTS = {
    "rework": "work done again",
    "restart": "restarting",
    "waiting": "waiting for repairs",
    "reduced": "running slower",
    "planned": "planned pauses",
    "saving": "writing checkpoints",
}
_LEAST = 5e-5
"""Classes that cost less are not drawn."""


def goodput_chart(result: GoodputReport) -> Chart:
    """Shares of the expected time that each class of failures takes, by what is lost."""
    rows = [
        {"class": one.name, "part": words, "share": getattr(one, name), "events": f"{one.events:,.1f}"}
        for one in result.classes
        for name, words in _PARTS.items()
        if name != "saving" and getattr(one, name) > 0
    ]
    totals = {one.name: one.share for one in result.classes if one.share >= _LEAST}
    if result.outcome.saving >= _LEAST:
        totals["checkpoints"] = result.outcome.saving
        rows.append({"class": "checkpoints", "part": _PARTS["saving"], "share": result.outcome.saving, "events": ""})
    if not totals:
        raise BadInput("nothing is lost", where="chart")
    begun = dict.fromkeys(totals, 0.0)
    rows = [row for row in rows if row["class"] in totals]
    for row in rows:
        row |= {"begin": begun[row["class"]], "value": f"{row['share']:.2%}"}
        begun[row["class"]] += row["share"]
        row["end"] = begun[row["class"]]
    order = sorted(totals, key=lambda name: -totals[name])
    used = [words for words in _PARTS.values() if any(row["part"] == words for row in rows)]
    shades = dict(zip(_PARTS.values(), COLOURS, strict=False))
    x = alt.X(
        "begin:Q",
        title="share of the expected time",
        scale=linear(0.0, 1.15 * max(totals.values())),
        axis=alt.Axis(format=".1%", tickCount=6),
    )
    y = alt.Y(
        "class:N", title=None, sort=order, axis=alt.Axis(ticks=False, domain=False, labelPadding=8, labelLimit=0)
    )
    colour = colours("part", used, [shades[words] for words in used], orient="top", columns=len(used))
    told = tooltip(**{"class": "class", "part": "lost by", "value": "share", "events": "events in the run"})
    bars = (
        alt.Chart(data(rows))
        .mark_bar(height=_STEP - 10, stroke=PAPER, strokeWidth=0.7)
        .encode(x=x, x2="end:Q", y=y, color=colour, tooltip=told)
    )
    ends = data({"class": name, "at": share, "words": f"{share:.2%}"} for name, share in totals.items())
    words = alt.Chart(ends).mark_text(align="left", dx=6).encode(x="at:Q", y=y, text="words:N")
    chart = alt.layer(bars, words).properties(width=_WIDTH, height=_STEP * len(totals))
    title = f"{result.job.model.name} on {result.cluster.name}: what failures cost"
    subtitle = (
        f"{result.goodput:.1%} of {result.run.expected_days:.1f} days trains; {result.failing.book.name} failures on"
        f" {result.fabric.name}, policy {result.failing.policy}, {result.spares} spare hosts"
    )
    return finished(chart, title, subtitle)
