"""The picture of a published claim beside Weft's figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.report.pictures.charts import Chart
from weft.report.pictures.sweep import sweep_chart

if TYPE_CHECKING:
    from weft.reproductions.study import Reproduction


WORDS = {
    "domain": "accelerators of a scale-up domain",
    "batch": "global batch (sequences)",
    "gpus": "GPUs",
    "iteration_s": "time of an iteration (s)",
    "one_domain_s": "all accelerators in one domain",
    "peak_share": "model FLOP/s, of the peak",
    "over_axonn_times": "time of an iteration over AxoNN's",
}
"""What the columns of studies are called on axes."""


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
    return sweep_chart(
        rows,
        columns,
        ("line",) if len(up) > 1 else (),
        x=along,
        y=up[0],
        colour=apart if len({row[apart] for row in rows}) > 1 else None,
        facet=None,
        title=found.title,
        subtitle=found.source if len(up) == 1 else f"{found.source}; dashed: {WORDS.get(up[1], up[1])}",
        words=WORDS,
    )
