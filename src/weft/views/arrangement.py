"""Arrangements for people: what policies reach, jobs, and who sits where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from weft.arrangement.schedule import LinkLoads, link_loads
from weft.units import counted, format_seconds
from weft.views.blocks import Block, Column, Grid, Heading, Paragraph

if TYPE_CHECKING:
    from weft.arrangement.bundle import Arrangement

POLICY_WORDS = {
    "hashed": "hosts as given, ECMP",
    "routes": "hosts as given, planned routes",
    "packed": "hosts in a row, planned routes",
    "offsets": "hosts as given, ECMP, offsets in time",
    "priorities": "hosts as given, ECMP, traffic classes",
    "kept": "all together, first layouts",
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
    "makespan": "seconds until the last job ends",
    "utilization": "model FLOP/s over the peak of hosts that are up",
    "dollars_per_token": "accelerator-hours over tokens of all jobs",
}
"""What each objective is."""
ENDS = {"complete": "all steps done", "budget": "cut short by --budget", "interrupted": "interrupted"}
"""How a search ended."""
ROUTERS = {"ecmp": "ECMP", "planned": "planned routes", "spray": "sprayed"}
"""How routes are chosen."""
SHOWN = 40
"""Units that the table of seats lists."""
BUSIEST = 3
"""Busiest links that the table of loads lists, before and after."""


def arrangement_view(result: Arrangement) -> Iterator[Block]:
    """What an arrangement reaches, and who sits where."""
    site, certificate = result.site, result.certificate
    up = sum(site.usable)
    yield Paragraph(
        f"Site: {site.name}, {counted(len(site.jobs), 'job')} on {counted(up, 'host')}"
        f" of {site.domain_size} {site.cluster.accelerator.name}"
        f" ({len(site.usable) - up} drained or not there), {site.fabric.name}"
    )
    verdict = "optimal within the model" if result.gap == 0 else f"gap {result.gap:.2%}"
    text, beyond = result.clock.objective.text, "above" if site.objective == "utilization" else "below"
    yield Paragraph(
        f"Objective ({KINDS[site.objective]}): {text(result.best.score)}, no arrangement {beyond}"
        f" {text(certificate.objective)} (by {HOLDS[certificate.proof]}): {verdict}"
    )
    layouts = f" {result.layouts} other layouts," if result.layouts else ""
    yield Paragraph(
        f"Search: {result.evaluations:,} arrangements stepped,{layouts} {result.placements}"
        f" placements; {ENDS[result.ended]}"
    )
    yield Paragraph(result.verification)
    yield Heading("Policies on this site (slowdown against a 1:1 network)")
    names = list(result.policies)
    slow = [result.policies[name].slowdown for name in names]
    yield Grid(
        [
            Column(heading="policy", cells=names, left=True),
            Column(heading="objective", cells=[text(result.policies[name].score) for name in names]),
            Column(heading="mean", cells=[f"{float(one.mean()):.4f}" for one in slow]),
            Column(heading="worst", cells=[f"{float(one.max()):.4f}" for one in slow]),
            Column(heading="what", cells=[POLICY_WORDS[name] for name in names], left=True, drop=1),
        ]
    )
    yield from _jobs(result)
    yield from _seats(result)
    yield from _loads(result)
    yield Heading("Assumed")
    for line in result.assumptions():
        yield Paragraph(f"- {line}", indent=2, hang=2)


def _jobs(result: Arrangement) -> Iterator[Block]:
    rows = result.to_dicts()
    yield Heading(f"Jobs ({ROUTERS[result.best.choice.router]})")
    yield Grid(
        [
            Column(heading="job", cells=[row["name"] for row in rows], left=True),
            Column(heading="iteration", cells=[format_seconds(row["iteration_s"]) for row in rows]),
            Column(heading="slowdown", cells=[f"{row['slowdown']:.4f}" for row in rows]),
            Column(heading="at least", cells=[format_seconds(row["bound_s"]) for row in rows], drop=2),
            Column(heading="by", cells=[row["bound_by"] for row in rows], left=True, drop=2),
            Column(heading="offset", cells=[format_seconds(row["offset_s"]) for row in rows]),
            Column(heading="class", cells=[str(row["class"]) for row in rows]),
        ]
    )
    yield Heading("Layouts")
    for row in rows:
        before = "" if row["layout_text"] == row["first_layout_text"] else f" (began with {row['first_layout_text']})"
        yield Paragraph(f"{row['name']}: {row['layout_text']}{before}", indent=2, hang=2)


def seat_of(result: Arrangement) -> dict[int, tuple[int, int]]:
    """The job of each host that has one, and the place of the host in it."""
    return {host: (number, at) for number, held in enumerate(result.best.choice.hosts) for at, host in enumerate(held)}


def router_words(result: Arrangement, policy: str) -> str:
    """Where hosts are and how routes are chosen under a policy."""
    hosts = "hosts as given" if policy != "arrange" else "arranged"
    return f"{hosts}, {ROUTERS[result.policies[policy].choice.router]}"


def loads_before_after(result: Arrangement) -> tuple[LinkLoads, LinkLoads]:
    """Loads of links with hashed routes on the hosts as given, and as arranged."""
    before, after = (link_loads(result.clock_of(name), result.policies[name]) for name in ("hashed", "arrange"))
    return before, after


def link_rows(result: Arrangement) -> list[dict[str, object]]:
    """A row for each of the busiest links before or after, the busiest before first: the mean share of what it can
    carry, and how many jobs use it."""
    fabric, loads = result.clock.fabric, loads_before_after(result)
    chosen = dict.fromkeys(link for one in loads for link in one.busiest(BUSIEST).tolist())
    before, after = loads
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


def seats(result: Arrangement) -> list[dict[str, object]]:
    """A row for every unit (leaf) and job: how many hosts of the job lie there; also free and drained ones."""
    site, cuts = result.site, result.cuts
    unit = cuts.unit[0] if cuts.unit else np.zeros(len(site.host_names), dtype=np.int64)
    taken = {host: number for host, (number, _) in seat_of(result).items()}
    rows: list[dict[str, object]] = []
    for at in range(int(unit.max()) + 1):
        here = np.flatnonzero(unit == at).tolist()
        for number, job in enumerate(site.jobs):
            count = sum(taken.get(host) == number for host in here)
            if count:
                rows.append({"unit": at, "job": job.name, "hosts": count})
        free = sum(host not in taken and site.usable[host] for host in here)
        rest = len(here) - free - sum(host in taken for host in here)
        rows += [
            {"unit": at, "job": name, "hosts": count} for name, count in (("free", free), ("down", rest)) if count
        ]
    return rows


def _seats(result: Arrangement) -> Iterator[Block]:
    yield Heading("Who sits where (hosts of each job in each leaf or scalable unit)")
    rows = seats(result)
    units = sorted({int(str(row["unit"])) for row in rows})
    count = {(row["unit"], row["job"]): row["hosts"] for row in rows}
    jobs = [*(job.name for job in result.site.jobs), "free", "down"]
    shown = [job for job in jobs if any((unit, job) in count for unit in units)]
    columns = [Column(heading="unit", cells=[str(unit) for unit in units[:SHOWN]])]
    for at, job in enumerate(shown):
        cells = [str(count.get((unit, job), "·")) for unit in units[:SHOWN]]
        columns.append(Column(heading=job, cells=cells, drop=at if at else 0))
    yield Grid(columns)
    if len(units) > SHOWN:
        yield Paragraph(f"... and {len(units) - SHOWN:,} more units (--format json has all hosts)")


def _loads(result: Arrangement) -> Iterator[Block]:
    rows = link_rows(result)
    if not rows:
        return
    yield Heading("Busiest links (mean share of what they can carry; before: hosts as given, ECMP)")
    yield Grid(
        [
            Column(heading="link", cells=[str(row["link"]) for row in rows], left=True),
            Column(heading="tier", cells=[str(row["tier"]) for row in rows], drop=2),
            Column(heading="before", cells=[f"{row['before']:.1%}" for row in rows]),
            Column(heading="jobs", cells=[str(row["jobs_before"]) for row in rows], drop=1),
            Column(heading="after", cells=[f"{row['after']:.1%}" for row in rows]),
            Column(heading="jobs", cells=[str(row["jobs_after"]) for row in rows], drop=1),
        ]
    )
