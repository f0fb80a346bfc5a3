"""Arrangements for people: what is reached, where and when each job runs, and what other policies reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np

from weft.arrangement.schedule import LinkLoads, link_loads
from weft.units import counted, format_seconds
from weft.views.blocks import Block, Column, Heading, Paragraph, Table, headline
from weft.views.charts import COLOURS, GRID, MUTED, Chart, colours, data, finished, ink_on

if TYPE_CHECKING:
    from weft.arrangement.bundle import Arrangement


POLICY_WORDS = {
    "hashed": "hosts as given, ECMP",
    "routes": "hosts as given, planned routes",
    "packed": "hosts in a row, planned routes",
    "offsets": "hosts as given, ECMP, offsets in time",
    "priorities": "hosts as given, ECMP, traffic classes",
    "kept": "all together, layouts as given",
    "arrange": "all together",
}
"""What each policy chooses."""
HOLDS = {
    "alone": "jobs alone on a 1:1 network",
    "cuts": "bytes that must cross cuts",
    "phases": "phases that must cross cuts",
    "time-sharing": "jobs that share the time of a cut",
}
"""What proves a bound."""
KINDS = {
    "slowdown": "weighted mean slowdown",
    "worst": "worst slowdown",
    "makespan": "time until the last job ends",
    "utilization": "model FLOP/s over the peak of all hosts",
    "dollars_per_token": "price of all jobs' tokens",
}
"""What each objective is."""
ENDS = {"complete": "all steps done", "budget": "cut short by the budget", "interrupted": "interrupted"}
"""How a search ended."""
ROUTERS = {"ecmp": "ECMP", "planned": "planned routes", "spray": "packet spraying"}
"""How routes are chosen."""
UNSLOWED = 1e-4
"""Slowdowns below this are not worth a word."""
SHOWN = 40
"""Units that the table of placements lists."""
NAMED = 4
"""Hosts of a job that the table of jobs names; of more, the first and the last."""
BUSIEST = 3
"""Busiest links that the table of loads lists, before and after."""


def arrangement_view(result: Arrangement, *, verbose: bool = False) -> Iterator[Block]:
    """What an arrangement reaches, and how each job runs.

    Args:
        verbose: add other policies, hosts by unit, loads of links, the search and all assumptions.
    """
    site, choice = result.site, result.best.choice
    yield from headline(arrangement_verdict(result))
    yield Table(*_jobs(result))
    text = result.clock.objective.text
    partial = [name for name in result.policies if name not in ("hashed", "arrange")]
    if words := ", ".join(f"{text(result.policies[name].score)} ({POLICY_WORDS[name]})" for name in partial):
        yield Paragraph(f"{KINDS[site.objective].capitalize()} with less freedom: {words}", indent=2, hang=2)
    proof = f"Routes: {ROUTERS[choice.router]}. Bound: {HOLDS[result.certificate.proof]}. {result.verification}."
    yield Paragraph(proof, indent=2, hang=2)
    changed = [row for row in result.to_dicts() if row["layout_text"] != row["first_layout_text"]]
    layouts = [f"{row['name']} {row['layout_text']} (before: {row['first_layout_text']})" for row in changed]
    if layouts:
        yield Paragraph(f"Other layouts: {'; '.join(layouts)}", indent=2, hang=2)
    if max(choice.offset_s) > 0:
        yield Paragraph("Jobs begin at their offsets; drift is not corrected.", indent=2, hang=2)
    up = sum(site.usable)
    yield Paragraph(
        f"For {site.name}: {counted(up, 'host')} of {site.domain_size} {site.cluster.accelerator.name}"
        f" ({len(site.usable) - up} drained or missing), {site.fabric.name}",
        indent=2,
        hang=2,
        style="dim",
    )
    if verbose:
        yield from _details(result)


def arrangement_verdict(result: Arrangement) -> str:
    """What the jobs of a site reach, what they reach as given, and what is the best possible."""
    site, text = result.site, result.clock.objective.text
    where = f"{sum(site.usable) * site.domain_size:,} {site.cluster.accelerator.name}"
    free = "all run at their own speed, " if float(result.best.slowdown.max()) <= 1 + UNSLOWED else ""
    as_given = f"as given with ECMP: {text(result.policies['hashed'].score)}"
    bound = "optimal within the model"
    if result.gap:
        bound = f"no arrangement can be better than {text(result.certificate.objective)} (gap {result.gap:.2%})"
    ended = f"; the search was {ENDS[result.ended]}" if result.gap and result.ended != "complete" else ""
    return (
        f"{counted(len(site.jobs), 'job')} on {where}: {free}{KINDS[site.objective]} {text(result.best.score)}"
        f" ({as_given}); {bound}{ended}."
    )


def _jobs(result: Arrangement) -> list[Column]:
    rows, given = result.to_dicts(), result.policies["hashed"].slowdown.tolist()
    timed = [
        Column(
            "offset", [format_seconds(row["offset_s"]) for row in rows], meaning="how much later a job's steps begin"
        ),
        Column(
            "class",
            [str(row["class"]) for row in rows],
            meaning="traffic class of the switches; the highest number goes first",
        ),
    ]
    return [
        Column("job", [row["name"] for row in rows], left=True),
        Column("hosts", [_hosts(row["hosts"].split()) for row in rows], left=True, drop=2),
        Column("layout", [row["layout_text"] for row in rows], left=True, drop=3),
        Column("per step", [format_seconds(row["iteration_s"]) for row in rows], front=True),
        Column(
            "slowdown",
            [f"{row['slowdown']:.4f}" for row in rows],
            meaning="step time over that of the job alone on a 1:1 network",
            front=True,
        ),
        Column("as given", [f"{slowdown:.4f}" for slowdown in given], drop=1),
        *(column for column in timed if len(set(column.cells)) > 1),
        Column("bound", [format_seconds(row["bound_s"]) for row in rows], drop=4),
        Column("bound by", [row["bound_by"] for row in rows], left=True, drop=4),
    ]


def _hosts(names: list[str]) -> str:
    return " ".join(names) if len(names) <= NAMED else f"{names[0]} ... {names[-1]} ({len(names)})"


def _details(result: Arrangement) -> Iterator[Block]:
    """Other policies, hosts by unit, loads of links, the search and what it assumes."""
    yield Heading("Policies (slowdown against a 1:1 network)")
    text, names = result.clock.objective.text, list(result.policies)
    slowdowns = [result.policies[name].slowdown for name in names]
    yield Table(
        Column("policy", names, left=True),
        Column("objective", [text(result.policies[name].score) for name in names]),
        Column("mean", [f"{float(slowdown.mean()):.4f}" for slowdown in slowdowns]),
        Column("worst", [f"{float(slowdown.max()):.4f}" for slowdown in slowdowns]),
        Column("choice", [POLICY_WORDS[name] for name in names], left=True, drop=1),
    )
    yield from _seats(result)
    yield from _loads(result)
    yield Heading("Search")
    search = result.search
    layouts = f" {search.layouts} other layouts," if search.layouts else ""
    yield Paragraph(
        f"{search.arrangements:,} arrangements stepped,{layouts} {counted(search.placements, 'placement')};"
        f" {ENDS[result.ended] if result.gap or result.ended == 'complete' else 'the bound is reached'}",
        indent=2,
    )
    yield Heading("Assumed")
    for line in result.assumptions():
        yield Paragraph(f"- {line}", indent=2, hang=2)


def seat_of(result: Arrangement) -> dict[int, tuple[int, int]]:
    """The job of each occupied host, and the place of the host in it."""
    return {host: (job, at) for job, hosts in enumerate(result.best.choice.hosts) for at, host in enumerate(hosts)}


def loads_before_after(result: Arrangement) -> tuple[LinkLoads, LinkLoads]:
    """Loads of links with hashed routes on the hosts as given, and as arranged."""
    before, after = (link_loads(result.clock_of(name), result.policies[name]) for name in ("hashed", "arrange"))
    return before, after


def link_rows(result: Arrangement) -> list[dict[str, object]]:
    """A row for each of the busiest links before or after, the busiest before first: the mean share of its capacity
    in use, and how many jobs use it."""
    fabric, (before, after) = result.clock.fabric, loads_before_after(result)
    chosen = dict.fromkeys([*before.busiest(BUSIEST).tolist(), *after.busiest(BUSIEST).tolist()])
    return [
        {
            "link": fabric.link_name(link),
            "tier": int(fabric.tier[link]),
            "before": float(before.share[link]),
            "jobs_before": int((before.of_job[:, link] > 0).sum()),
            "after": float(after.share[link]),
            "jobs_after": int((after.of_job[:, link] > 0).sum()),
        }
        for link in sorted(chosen, key=lambda link: (-float(before.share[link]), link))
    ]


def _seats(result: Arrangement) -> Iterator[Block]:
    """How many hosts of each job lie in every unit (leaf), and free and drained ones."""
    site, units, taken = result.site, result.cuts.unit, seat_of(result)
    names = [*(job.name for job in site.jobs), "free", "down"]
    count = Counter(
        (int(units[0][host]) if units else 0, names[taken[host][0] if host in taken else -2 if usable else -1])
        for host, usable in enumerate(site.usable)
    )
    shown = [name for name in names if any(held == name for _, held in count)]
    numbers = sorted({unit for unit, _ in count})
    columns = [Column("unit", [str(unit) for unit in numbers[:SHOWN]])]
    for at, name in enumerate(shown):
        columns.append(Column(name, [str(count[unit, name] or "·") for unit in numbers[:SHOWN]], drop=at))
    yield Heading("Job placement (hosts of each job in each leaf or scalable unit)")
    yield Table(*columns)
    if len(numbers) > SHOWN:
        yield Paragraph(f"... and {len(numbers) - SHOWN:,} more units (--format json has all hosts)")


def _loads(result: Arrangement) -> Iterator[Block]:
    rows = link_rows(result)
    if not rows:
        return
    yield Heading("Busiest links (mean share of capacity; before: hosts as given, ECMP)")
    yield Table(
        Column("link", [str(row["link"]) for row in rows], left=True),
        Column("tier", [str(row["tier"]) for row in rows], drop=2),
        Column("before", [f"{row['before']:.1%}" for row in rows]),
        Column("jobs", [str(row["jobs_before"]) for row in rows], drop=1),
        Column("after", [f"{row['after']:.1%}" for row in rows]),
        Column("jobs", [str(row["jobs_after"]) for row in rows], drop=1),
    )


# Chart ---------------------------------------------------------------------------------------------------------

_WIDTH = 960
"""Pixels of a page."""
_GAP, _BLOCK, _TITLE = 3, 12, 16
"""Pixels between hosts, around blocks, and for the name of a block."""
_UNITS = ("leaf", "pod", "zone")
"""What units of a tier are called, the inner first."""


def _pixels(**fields: str) -> dict[str, Any]:
    """Encodings of edges that are given in pixels."""
    channels = {"x": alt.X, "y": alt.Y}
    return {
        name: channels[name](f"{field}:Q", scale=None, axis=None) if name in channels else f"{field}:Q"
        for name, field in fields.items()
    }


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


def arrangement_chart(result: Arrangement) -> Chart:
    """Every host of a site in its leaf and pod, in the colour and with the number of its job."""
    site, text = result.site, result.clock.objective.text
    hosts = range(len(site.host_names))
    square = 22 if len(hosts) <= 64 else 15 if len(hosts) <= 256 else 10 if len(hosts) <= 1024 else 6
    units = result.cuts.unit
    places, frames, width, height = _boxes(units, hosts, _UNITS, square, _WIDTH)
    jobs = [f"{number + 1} {job.name}" for number, job in enumerate(site.jobs)]
    shades = [COLOURS[number % len(COLOURS)] for number in range(len(jobs))]
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
        layers.append(
            boxes.mark_rect(fill=None, stroke=MUTED, strokeWidth=1, cornerRadius=4).encode(
                **_pixels(x="x", y="y", x2="x2", y2="y2")
            )
        )
        name = boxes.mark_text(align="left", baseline="top", dx=6, dy=5, color=MUTED, fontSize=10)
        layers.append(name.encode(text="unit:N", **_pixels(x="x", y="y")))
    squares = alt.Chart(data(rows)).mark_rect(cornerRadius=2, stroke=GRID, strokeWidth=0.5)
    layers.append(squares.encode(color=colour, tooltip=tooltip, **_pixels(x="x", y="y", x2="x2", y2="y2")))
    if square >= 15:
        for ink in sorted({str(row["ink"]) for row in rows if row["number"]}):
            numbers = alt.Chart(data(row for row in rows if row["number"] and row["ink"] == ink))
            size = 11 if square > 15 else 9
            mark = numbers.mark_text(color=ink, fontSize=size, tooltip=None)
            layers.append(mark.encode(text="number:N", **_pixels(x="cx", y="cy")))
    before, after = (text(result.policies[name].score) for name in ("hashed", "arrange"))
    gap = "optimal within the model" if result.gap == 0 else f"gap {result.gap:.2%}"
    bound = text(result.certificate.objective)
    words = f"{KINDS[site.objective]} {before} before, {after} arranged; bound {bound} ({gap})"
    chart = alt.layer(*layers).properties(width=width, height=height)
    return finished(chart, f"Job placement on {site.name} (a square is a host, a number a job)", words)
