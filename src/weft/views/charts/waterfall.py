"""The way from one total to another, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import altair as alt

from weft.units import format_seconds
from weft.views.charts.charts import Chart, data, linear
from weft.views.charts.palette import INK, MUTED

WHOLE = "#8c959f"
WIDTH, _STEP = 620, 26
CUT = 0.7
"""Share of the longest total that all steps lie above where the axis does not begin at 0."""


class Step(NamedTuple):
    """What adds to a time, or takes from it."""

    name: str
    seconds: float
    colour: str


def waterfall(first: Step, steps: Sequence[Step], last: str, *, error: float | None = None) -> Chart:
    """The first total, every step, and the total that they lead to.

    Args:
        error: of the last total, as a share of it; drawn as a bar.
    """
    rows = [_bar(first.name, 0.0, first.seconds, first.colour, format_seconds(first.seconds))]
    at = first.seconds
    for name, seconds, colour in steps:
        rows.append(
            _bar(name, at, at + seconds, colour, f"{'+' if seconds > 0 else '-'}{format_seconds(abs(seconds))}")
        )
        at += seconds
    rows.append(_bar(last, 0.0, at, WHOLE, format_seconds(at)))
    for number, row in enumerate(rows):
        row["row"] = number
    changing = [end for row in rows[1:-1] for end in (row["begin"], row["end"])] or [first.seconds]
    lowest, longest = min(changing), max(*changing, first.seconds, at)
    spread = [] if error is None else [at * (1 - error), at * (1 + error)]
    # Totals begin off the chart where differences are small beside them, so that the differences can be seen.
    least = min([lowest, *spread])
    low = max(0.0, least - 0.6 * (longest - least)) if least > CUT * longest else 0.0
    for row in (rows[0], rows[-1]):
        row["begin"] = low
    rows[-1]["right"] = max([at, *spread])
    high = max(longest, rows[-1]["right"])
    high += 0.14 * (high - low)
    y = alt.Y("row:O", sort=[row["row"] for row in rows], axis=None)
    title = "seconds" + (f" (the axis begins at {low:.3g})" if low else "")
    x = alt.X("begin:Q", title=title, scale=linear(low, high), axis=alt.Axis(tickCount=6))
    base = alt.Chart(data(rows))
    bars = base.mark_bar(height=_STEP - 9).encode(
        x=x, x2="end:Q", y=y, color=alt.Color("colour:N", scale=None), tooltip=["name:N", "words:N"]
    )
    names = base.mark_text(align="right", dx=-6).encode(x=alt.value(0), y=y, text="name:N")
    words = base.mark_text(align="left", dx=6).encode(x="right:Q", y=y, text="words:N")
    links = [{"row": i, "next": i + 1, "at": rows[i]["end"]} for i in range(len(rows) - 1)]
    rules = alt.Chart(data(links)).mark_rule(color=MUTED, strokeWidth=0.8)
    layers = [rules.encode(x="at:Q", y=y, y2="next:O"), bars, names, words]
    if spread:
        bar = alt.Chart(data([{"row": rows[-1]["row"], "low": spread[0], "high": spread[1]}]))
        layers.append(bar.mark_rule(color=INK, strokeWidth=1.5).encode(x="low:Q", x2="high:Q", y=y))
    return alt.layer(*layers).properties(width=WIDTH, height=_STEP * len(rows))


def _bar(name: str, begin: float, end: float, colour: str, words: str) -> dict[str, Any]:
    return {"name": name, "begin": begin, "end": end, "right": max(begin, end), "colour": colour, "words": words}
