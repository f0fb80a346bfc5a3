"""The picture of a published claim beside Weft's figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.report.pictures.charts import Chart
from weft.report.pictures.sweep import sweep_chart

if TYPE_CHECKING:
    from weft.reproductions.study import Reproduction


def reproduction_chart(found: Reproduction) -> Chart:
    """The drawn columns over the one along: a colour for each that is told apart, dashes for each column."""
    assert found.drawn is not None
    along, up, apart = found.drawn
    rows = [
        {
            along: row[along],
            up[0]: row[name],
            apart: str(row[apart]),
            "line": name.removesuffix("_s").replace("_", " "),
        }
        for name in up
        for row in found.rows
    ]
    columns = {along: int, up[0]: float, apart: str, "line": str}
    return sweep_chart(rows, columns, ("line",), x=along, y=up[0], colour=apart, facet=None, title=found.title)
