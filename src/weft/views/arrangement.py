"""Arrangements for people: what is reached, where and when each job runs, and what other policies reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.arrangement.schedule import LinkLoads, link_loads
from weft.units import counted, format_seconds
from weft.views.blocks import Block, Column, Heading, Paragraph, Table, headline

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


def router_words(result: Arrangement, policy: str) -> str:
    """Where hosts are and how routes are chosen under a policy."""
    hosts = "hosts as given" if policy != "arrange" else "arranged"
    return f"{hosts}, {ROUTERS[result.policies[policy].choice.router]}"


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
