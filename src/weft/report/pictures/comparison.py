"""What makes the difference between ways to train: the first side's time, and part by part the way to another's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from weft.report.pictures.charts import MUTED, Chart, data, finished, linear
from weft.report.tables.comparison import PART_LABELS, WORTH
from weft.units import format_count, format_seconds

if TYPE_CHECKING:
    from weft.search.comparison import Comparison, Difference

SLOWER, FASTER, WHOLE = "#d55e00", "#0072b2", "#8c959f"
_WIDTH, _STEP = 620, 26
CUT = 0.7
"""Share of the longest total that all parts lie above where the axis does not begin at 0."""


def comparison_chart(found: Comparison) -> Chart:
    """A waterfall for each side held against the first."""
    first = found.sides[0].label
    falls = [_waterfall(first, one) for one in found.differences]
    chart = alt.vconcat(*falls, spacing=34).resolve_scale(x="independent", y="independent")
    tokens = format_count(found.sides[0].job.recipe.tokens)
    title = f"What makes the difference from {first}"
    return finished(
        chart, title, f"seconds for {tokens} tokens; orange: longer, blue: shorter; communication: exposed"
    )


def _waterfall(first: str, difference: Difference) -> Chart:
    """The bars of one side: the first's time, every part that differs, the side's time."""
    before, after = (sum(getattr(one, name) for one in difference.time) for name in ("before", "after"))
    worth = [one for one in difference.time if abs(one.difference) > WORTH * max(before, after)]
    steps = [(PART_LABELS[one.part], one.difference) for one in sorted(worth, key=lambda one: -abs(one.difference))]
    rest = after - before - sum(value for _, value in steps)
    if abs(rest) > 1e-6 * max(before, after):
        steps.append(("all other parts", rest))
    rows = [_bar(first, 0.0, before, WHOLE, format_seconds(before))]
    at = before
    for name, value in steps:
        colour, sign = (SLOWER, "+") if value > 0 else (FASTER, "-")
        rows.append(_bar(name, at, at + value, colour, f"{sign}{format_seconds(abs(value))}"))
        at += value
    rows.append(_bar(difference.label, 0.0, after, WHOLE, format_seconds(after)))
    for number, row in enumerate(rows):
        row["row"] = number
    changing = [end for row in rows[1:-1] for end in (row["begin"], row["end"])] or [before]
    lowest, longest = min(changing), max(*changing, before, after)
    # Totals begin off the chart where differences are small beside them, so that the differences can be seen.
    low = max(0.0, lowest - 0.6 * (longest - lowest)) if lowest > CUT * longest else 0.0
    for row in (rows[0], rows[-1]):
        row["begin"] = low
    high = longest + 0.14 * (longest - low)
    order = [row["row"] for row in rows]
    y = alt.Y("row:O", sort=order, axis=None)
    axis = alt.Axis(tickCount=6)
    x = alt.X(
        "begin:Q",
        title="seconds" + (f" (the axis begins at {low:.3g})" if low else ""),
        scale=linear(low, high),
        axis=axis,
    )
    base = alt.Chart(data(rows))
    bars = base.mark_bar(height=_STEP - 9).encode(
        x=x, x2="end:Q", y=y, color=alt.Color("colour:N", scale=None), tooltip=["name:N", "words:N"]
    )
    names = base.mark_text(align="right", dx=-6).encode(x=alt.value(0), y=y, text="name:N")
    words = base.mark_text(align="left", dx=6).encode(x="right:Q", y=y, text="words:N")
    links = [{"row": i, "next": i + 1, "at": rows[i]["end"]} for i in range(len(rows) - 1)]
    rules = alt.Chart(data(links)).mark_rule(color=MUTED, strokeWidth=0.8)
    drawn = rules.encode(x="at:Q", y=y, y2="next:O")
    return alt.layer(drawn, bars, names, words).properties(width=_WIDTH, height=_STEP * len(rows))


def _bar(name: str, begin: float, end: float, colour: str, words: str) -> dict[str, Any]:
    return {"name": name, "begin": begin, "end": end, "right": max(begin, end), "colour": colour, "words": words}
