"""Charts of studies: what is drawn is what the rows say."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("altair")

from weft.errors import BadInput
from weft.views.charts import COLOURS
from weft.views.study import _ticks, sweep_chart

COLUMNS = {"model": str, "count": int, "nic_Bps": float, "mfu": float}
ROWS = [
    {"model": model, "count": count, "nic_Bps": nic, "mfu": 0.5 - count / 1e4 + nic / 1e12}
    for model in ("a", "b")
    for count in (8, 64, 1024)
    for nic in (25e9, 50e9)
]


def chart(rows: list[dict[str, Any]] = ROWS, **places: str | None) -> Any:
    places = {"colour": None, "facet": None} | places
    return sweep_chart(rows, COLUMNS, ("model", "count", "nic_Bps"), title="study", **places)  # type: ignore[arg-type]


def test_lines_join_what_differs_in_x_alone(drawn: Any) -> None:
    items = drawn(chart(x="count", y="mfu", colour="nic_Bps", facet="model"))
    points = [item for item in items if item.kind == "symbol" and item.look.get("fill") in COLOURS[:2]]
    assert len(points) == len(ROWS) + 2  # the legend has one of each colour
    corners = [item for item in items if item.kind == "line" and item.look.get("stroke") in COLOURS[:2]]
    assert len(corners) == len(ROWS)
    words = [item.words for item in items if item.kind == "text"]
    assert {"a", "b", "25 GB/s", "50 GB/s", "8", "64", "1,024"} <= set(words)


def test_bars_stand_over_names(drawn: Any) -> None:
    rows = [row for row in ROWS if row["count"] == 64]
    items = drawn(chart(rows, x="model", y="mfu", colour="nic_Bps"))
    bars = [item for item in items if item.kind == "rect" and item.look.get("fill") in COLOURS[:2]]
    assert len(bars) == len(rows)
    heights = sorted(bar.look["height"] for bar in bars)
    values = sorted(row["mfu"] for row in rows)
    assert heights[-1] / heights[0] == pytest.approx(values[-1] / values[0])


def test_what_varies_beside_is_said() -> None:
    said = chart(x="count", y="mfu", colour="model").to_dict()["title"]["subtitle"]
    assert "12 points" in said
    assert "nic varies beside" in said


@pytest.mark.parametrize(
    ("rows", "places", "problem"),
    [
        (ROWS, {"x": "count", "y": "model"}, "model holds no numbers"),
        ([], {"x": "count", "y": "mfu"}, "0 rows have values to draw"),
        (ROWS * 500, {"x": "count", "y": "mfu"}, "6,000 rows have values"),
        ([row | {"count": i} for i, row in enumerate(ROWS * 3)], {"x": "nic_Bps", "y": "mfu", "facet": "count"}, "36"),
    ],
)
def test_what_cannot_be_drawn_is_refused(rows: list[dict[str, Any]], places: dict[str, str], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        chart(rows, **places)


@pytest.mark.parametrize(
    ("low", "high", "places"),
    [(0.25, 5, [0.3, 0.5, 1, 2, 3, 5]), (1, 1000, [1, 10, 100, 1000]), (8, 600, [10, 20, 30, 50, 100, 200, 300, 500])],
)
def test_logarithmic_axes_have_ticks_that_can_be_read(low: float, high: float, places: list[float]) -> None:
    assert _ticks(low, high) == pytest.approx(places)
