"""What makes the difference between ways to train: the first side's time, and part by part the way to another's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from weft.units import format_count
from weft.views.charts.charts import Chart, finished
from weft.views.charts.waterfall import WHOLE, Step, waterfall
from weft.views.comparison import PART_LABELS, WORTH

if TYPE_CHECKING:
    from weft.search.comparison import Comparison, Difference

SLOWER, FASTER = "#d55e00", "#0072b2"


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
    coloured = [Step(name, seconds, SLOWER if seconds > 0 else FASTER) for name, seconds in steps]
    return waterfall(Step(first, before, WHOLE), coloured, difference.label)
