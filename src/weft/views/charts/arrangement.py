"""Arrangements as pictures: job placement, and link loads before and after."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np

from weft.fabric.spec import SCALE_UP
from weft.units import counted
from weft.views.arrangement import KINDS, loads_before_after, router_words, seat_of
from weft.views.charts.charts import Chart, colours, data, finished, ink_on, linear, margin_labels, tooltip
from weft.views.charts.palette import COLOURS, GRID, MUTED

if TYPE_CHECKING:
    from weft.arrangement.bundle import Arrangement

_WIDTH = 960
"""Pixels of a page."""
_GAP, _BLOCK, _TITLE = 3, 12, 16
"""Pixels between hosts, around blocks, and for the name of a block."""
_LOADS_HEIGHT = 260
_NAMED = 3
"""Busiest links before and after that are named."""
_SIDES = {"hashed": "before", "arrange": "after"}
_UNITS = ("leaf", "pod", "zone")
"""What units of a tier are called, the inner first."""


def arrangement_chart(result: Arrangement) -> Chart:
    """Seats and link loads below each other."""
    parts = (
        (_seats(result), "Job placement (a square is a host; numbers are jobs)"),
        (_loads(result), "Link loads (mean share of what a link can carry)"),
    )
    titled = [
        part.properties(title=alt.Title(words, fontSize=14, anchor="start", frame="group", offset=10))
        for part, words in parts
    ]
    chart = alt.vconcat(*titled, spacing=40).resolve_scale(color="independent")
    gap = "optimal within the model" if result.gap == 0 else f"gap {result.gap:.2%}"
    text = result.clock.objective.text
    before, after = (text(result.policies[name].score) for name in ("hashed", "arrange"))
    bound = text(result.certificate.objective)
    words = f"{KINDS[result.site.objective]} {before} before, {after} arranged; bound {bound} ({gap})"
    return finished(chart, f"The arrangement of {result.site.name}", words)


def seats_chart(result: Arrangement) -> Chart:
    """Every host of a site in its leaf and pod, in the colour and with the number of its job."""
    text = result.clock.objective.text
    words = f"objective {text(result.best.score)}, bound {text(result.certificate.objective)}"
    return finished(_seats(result), f"Job placement on {result.site.name}", words)


def loads_chart(result: Arrangement) -> Chart:
    """How busy the links outside of hosts are, before and after."""
    words = "mean share of what a link can carry; each direction of a link counts"
    return finished(_loads(result), f"Link loads on {result.site.name}", words)


def _jobs(result: Arrangement) -> tuple[list[str], list[str]]:
    """Names of jobs with their numbers, and their colours."""
    names = [f"{number + 1} {job.name}" for number, job in enumerate(result.site.jobs)]
    return names, [COLOURS[number % len(COLOURS)] for number in range(len(names))]


def _pixels(**fields: str) -> dict[str, Any]:
    """Encodings of edges that are given in pixels."""
    channels = {"x": alt.X, "y": alt.Y}
    return {
        name: channels[name](f"{field}:Q", scale=None, axis=None) if name in channels else f"{field}:Q"
        for name, field in fields.items()
    }


_BOX = _pixels(x="x", y="y", x2="x2", y2="y2")
_AT = _pixels(x="x", y="y")


def _boxes(
    units: Sequence[np.ndarray], hosts: Sequence[int], names: Sequence[str], square: int, width: float
) -> tuple[dict[int, tuple[float, float]], list[dict[str, Any]], float, float]:
    """Places of hosts and frames of the units that hold them (the outermost last), with the size of all."""
    if not units:
        across = max(1, min(len(hosts), int(width // (square + _GAP)), 2 * round(len(hosts) ** 0.5)))
        step = square + _GAP
        places = {host: (step * (at % across), step * (at // across)) for at, host in enumerate(hosts)}
        return places, [], step * min(across, len(hosts)) - _GAP, step * -(-len(hosts) // across) - _GAP
    left = top = row_height = widest = 0.0  # blocks stand side by side, and in a new row where the width ends
    result: dict[int, tuple[float, float]] = {}
    frames: list[dict[str, Any]] = []
    outer = units[-1]
    for unit, held in groupby(sorted(hosts, key=lambda host: (int(outer[host]), host)), key=lambda host: outer[host]):
        own, inside, wide, high = _boxes(units[:-1], list(held), names, square, width - _BLOCK)
        words = f"{names[min(len(units), len(names)) - 1]} {int(unit)}"
        if wide < 6.2 * len(words):
            words = str(int(unit))
        wide = max(wide, 6.2 * len(words))
        outer_x, outer_y = wide + _BLOCK, high + _BLOCK + _TITLE
        if left and left + outer_x > width:
            left, top, row_height = 0.0, top + row_height + _BLOCK, 0.0
        x, y = left, top
        left, row_height, widest = left + outer_x + _BLOCK, max(row_height, outer_y), max(widest, x + outer_x)
        dx, dy = x + _BLOCK / 2, y + _BLOCK / 2 + _TITLE
        result |= {host: (a + dx, b + dy) for host, (a, b) in own.items()}
        frames += [
            one | {"x": one["x"] + dx, "x2": one["x2"] + dx, "y": one["y"] + dy, "y2": one["y2"] + dy}
            for one in inside
        ]
        frames.append({"x": x, "y": y, "x2": x + outer_x, "y2": y + outer_y, "unit": words})
    return result, frames, widest, top + row_height


def _seats(result: Arrangement) -> Chart:
    site = result.site
    hosts = range(len(site.host_names))
    square = 22 if len(hosts) <= 64 else 15 if len(hosts) <= 256 else 10 if len(hosts) <= 1024 else 6
    units = result.cuts.unit
    places, frames, width, height = _boxes(units, hosts, _UNITS, square, _WIDTH)
    jobs, shades = _jobs(result)
    kinds = [*jobs, "free", "down"]
    seats, rows = seat_of(result), []
    for host in hosts:
        number, place = seats.get(host, (-1, -1))
        first = place * site.domain_size
        last = min(first + site.domain_size, site.jobs[number].layout.world) - 1
        x, y = places[host]
        rows.append(
            {"x": x, "y": y, "x2": x + square, "y2": y + square, "cx": x + square / 2, "cy": y + square / 2}
            | {"host": site.host_names[host], "number": str(number + 1) if number >= 0 else ""}
            | {"job": jobs[number] if number >= 0 else "free" if site.usable[host] else "down"}
            | {"ranks": f"{first} to {last}" if number >= 0 else "-"}
            | {"ink": ink_on(shades[number]) if number >= 0 else "black"}
        )
    used = {row["job"] for row in rows}
    kinds = [kind for kind in kinds if kind in used]
    palette = dict(zip([*jobs, "free", "down"], [*shades, GRID, MUTED], strict=True))
    colour = colours("job", kinds, [palette[kind] for kind in kinds], orient="top", columns=6)
    tooltip = ["host:N", "job:N", "ranks:N"]
    layers: list[alt.Chart] = []
    if frames:
        boxes = alt.Chart(data(frames))
        layers.append(boxes.mark_rect(fill=None, stroke=MUTED, strokeWidth=1, cornerRadius=4).encode(**_BOX))
        name = boxes.mark_text(align="left", baseline="top", dx=6, dy=5, color=MUTED, fontSize=10)
        layers.append(name.encode(text="unit:N", **_AT))
    squares = alt.Chart(data(rows)).mark_rect(cornerRadius=2, stroke=GRID, strokeWidth=0.5)
    layers.append(squares.encode(color=colour, tooltip=tooltip, **_BOX))
    if square >= 15:
        for ink in sorted({str(row["ink"]) for row in rows if row["number"]}):
            numbers = alt.Chart(data(row for row in rows if row["number"] and row["ink"] == ink))
            size = 11 if square > 15 else 9
            mark = numbers.mark_text(color=ink, fontSize=size, tooltip=None)
            layers.append(mark.encode(text="number:N", **_pixels(x="cx", y="cy")))
    return alt.layer(*layers).properties(width=width, height=height)


def _loads(result: Arrangement) -> Chart:
    """Shares of all links outside of hosts, from the busiest on: a line before and one after."""
    outer = result.clock.fabric.tier > SCALE_UP
    rows, named = [], []
    for loads, name in zip(loads_before_after(result), ("hashed", "arrange"), strict=True):
        side = f"{_SIDES[name]}: {router_words(result, name)}"
        links = np.flatnonzero(outer)
        links = links[np.argsort(-loads.share[links], kind="stable")]
        jobs = (loads.of_job[:, links] > 0).sum(axis=0).tolist()
        shares = loads.share[links].tolist()
        side_rows = [
            {"rank": rank, "share": share, "side": side, "jobs": count, "link": result.clock.fabric.link_name(link)}
            for rank, (link, share, count) in enumerate(zip(links.tolist(), shares, jobs, strict=True), 1)
        ]
        rows += side_rows
        named += side_rows[:_NAMED]
    labels = [f"{row['link']}, {row['share']:.0%}, {counted(row['jobs'], 'job')}" for row in named]
    sides = list(dict.fromkeys(row["side"] for row in rows))
    x = alt.X("rank:Q", title="links, the busiest first", scale=linear(0, len(rows) / 2), axis=alt.Axis(grid=False))
    y = alt.Y("share:Q", title="mean load", scale=linear(0, 1), axis=alt.Axis(format=".0%", tickCount=5))
    colour = colours("side", sides, [COLOURS[5], COLOURS[0]], orient="top")
    told = [*tooltip(link="link", jobs="jobs"), alt.Tooltip("share:Q", title="load", format=".1%")]
    layers = [
        *margin_labels(named, labels, "rank", "share", (0, 1, _LOADS_HEIGHT), _WIDTH - 380),
        alt.Chart(data(rows)).mark_line(interpolate="step-after", strokeWidth=2).encode(x=x, y=y, color=colour),
        alt.Chart(data(named)).mark_circle(size=40, opacity=1).encode(x=x, y=y, color=colour, tooltip=told),
    ]
    return alt.layer(*layers).properties(width=_WIDTH - 380, height=_LOADS_HEIGHT)
