"""The chart of the controller over time."""

from __future__ import annotations

import pytest

pytest.importorskip("altair")
pytest.importorskip("vl_convert")

from weft.errors import BadInput
from weft.views.charts.charts import rendered
from weft.views.charts.controller import controller_chart


def document(time_s: float, before: float | None, after: float, moved: int) -> dict:
    found = {"before": before, "after": after, "bound": 1.0, "mean_before": before, "mean_after": after}
    return {"time_s": time_s, "event": "tick", "efficiency": found, "moved": moved, "placed": 0}


@pytest.mark.parametrize(("last", "unit"), [(0, "s"), (200, "s"), (900, "minutes"), (9e3, "hours"), (9e5, "days")])
def test_lines_points_and_bars(last: float, unit: str) -> None:
    said = [document(1.7e9, None, 0.25, 0), document(1.7e9 + last, 0.25, 1.0, 7)]
    chart = controller_chart(said, "a fabric")
    text = rendered(chart, ".svg").decode()
    assert f"time ({unit})" in text
    assert "a fabric: 2 decisions, 7 flows moved" in text
    assert text == rendered(controller_chart(said, "a fabric"), ".svg").decode()


def test_nothing_to_draw() -> None:
    with pytest.raises(BadInput, match="no decision"):
        controller_chart([{"schema": "old"}], "a fabric")
