"""Who sits where, as a picture: units as rows, hosts as squares in the colours of their jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np

from weft.report.pictures.charts import COLOURS, GRID, MUTED, Chart, data, finished

if TYPE_CHECKING:
    from weft.arrangement.bundle import Arrangement

_SQUARE = 22
"""Pixels of a host."""


def seats_chart(found: Arrangement) -> Chart:
    """Every host of a site: its unit (leaf) is its row, its job its colour."""
    site, cuts = found.site, found.found.cuts
    unit = cuts.unit[0] if cuts.unit else np.zeros(len(site.host_names), dtype=np.int64)
    seat = {host: (number, at) for number, held in enumerate(found.best.choice.hosts) for at, host in enumerate(held)}
    rows: list[dict[str, Any]] = []
    filled = np.zeros(int(unit.max()) + 1, dtype=np.int64)
    for host, name in enumerate(site.host_names):
        at = int(unit[host])
        number, place = seat.get(host, (-1, -1))
        job = site.jobs[number].name if number >= 0 else "free" if site.usable[host] else "down"
        first = place * site.domain_size
        last = min(first + site.domain_size, site.jobs[number].layout.world) - 1 if number >= 0 else -1
        ranks = f"{first} to {last}" if number >= 0 else "-"
        rows.append({"unit": at, "place": int(filled[at]), "host": name, "job": job, "ranks": ranks})
        filled[at] += 1
    names = [job.name for job in site.jobs]
    colours = [COLOURS[number % len(COLOURS)] for number in range(len(names))]
    squares = (
        alt.Chart(data(rows))
        .mark_rect(stroke=GRID, strokeWidth=1, cornerRadius=3)
        .encode(
            x=alt.X("place:O", title="host in the unit", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("unit:O", title="leaf or scalable unit"),
            color=alt.Color(
                "job:N",
                scale=alt.Scale(domain=[*names, "free", "down"], range=[*colours, GRID, MUTED]),
                legend=alt.Legend(orient="top", columns=6),
            ),
            tooltip=["host:N", "job:N", "ranks:N"],
        )
        .properties(width=_SQUARE * int(filled.max()), height=_SQUARE * len(filled))
    )
    text = found.found.clock.objective.text
    subtitle = f"objective {text(found.best.score)}, bound {text(found.found.certificate.objective)}"
    return finished(alt.layer(squares), f"Who sits where on {site.name}", subtitle)
