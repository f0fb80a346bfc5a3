"""An arrangement as a page shows it: what it reaches, jobs, policies, links, how jobs are started."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from shlex import quote
from typing import TYPE_CHECKING, Any

from weft import __version__
from weft.layout.text import format_layout
from weft.report.pictures.arrangement import loads_chart, seats_chart, timeline_chart
from weft.report.pictures.charts import embedded
from weft.report.tables import words
from weft.report.tables.arrangement import ENDS, HOLDS, KINDS, POLICY_WORDS, ROUTERS, link_rows
from weft.results import Result
from weft.units import counted, format_seconds
from weft.web.views.parts import Cell, Column, Fact, Picture, Table

if TYPE_CHECKING:
    from weft.arrangement.bundle import Arrangement

NAMED_HOSTS = 8
"""Hosts of a job that the table names; its host list has all."""
PICTURES_BYTES = 2_400_000
"""What the pictures of a page may have together; those beyond are left out, which is said."""
_CLOSE = 1e-4
"""A job as close to its bound, as a share, is at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a job is started where it was put: commands, and files to copy by name."""

    job: str
    commands: str
    files: tuple[tuple[str, str], ...]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrangementView:
    """What a page says of an arrangement.

    Attributes:
        summary: sentences, the most important first.
        policies: what is compared.
        reasons: what was done for each job, and how far it is from its bound.
        links: the busiest before and after; None where nothing leaves any host.
        left_out: pictures that are too large for a page.
        inputs: what was arranged, as JSON.
    """

    title: str
    summary: tuple[str, ...]
    facts: tuple[Fact, ...]
    jobs: Table
    policies: Table
    reasons: tuple[Fact, ...]
    links: Table | None
    pictures: tuple[Picture, ...]
    left_out: tuple[str, ...]
    starts: tuple[Start, ...]
    assumptions: tuple[str, ...]
    provenance: tuple[Fact, ...]
    inputs: str


def view(found: Arrangement, document: Mapping[str, Any], file: str, *, drawn: bool = True) -> ArrangementView:
    """An arrangement as a page shows it.

    Args:
        found: the arrangement.
        document: its fields, as its file has them.
        file: the name of that file, for commands.
        drawn: whether there are pictures.
    """
    shown, left_out = pictures(found) if drawn else ((), ())
    text = json.dumps(document, indent=Result.INDENT, allow_nan=False) + "\n"
    return ArrangementView(
        title=f"Arrangement of {words.printable(found.site.name)}",
        summary=summary(found),
        facts=_facts(found),
        jobs=jobs_table(found),
        policies=policies_table(found),
        reasons=reasons(found),
        links=links_table(link_rows(found)),
        pictures=shown,
        left_out=left_out,
        starts=tuple(_start(row, file) for row in document["jobs"]),
        assumptions=tuple(words.printable(one) for one in found.assumptions()),
        provenance=(
            Fact(name="Weft", text=__version__),
            Fact(name="Seed", text=str(found.seed)),
            Fact(name="Constants", text=f"shipped, of {words.printable(found.site.cluster.accelerator.name)}"),
            Fact(name=f"{file}, SHA-256", text=sha256(text.encode()).hexdigest()),
        ),
        inputs=_inputs(document),
    )


def summary(found: Arrangement) -> tuple[str, ...]:
    """What is reached, what bounds it, and whether it was verified, in sentences."""
    site, text = found.site, found.clock.objective.text
    hashed, reached, proof = found.policies["hashed"], found.best, found.certificate
    beyond = "above" if site.objective == "utilization" else "below"
    verdict = "it is optimal within the model" if found.gap == 0 else f"the gap is {found.gap:.2%}"
    slow = int(reached.slowdown.argmax())
    return (
        f"The {KINDS[site.objective]} is {text(reached.score)}; with the hosts as given and routes by hashing (ECMP)"
        f" it is {text(hashed.score)}.",
        f"No arrangement is {beyond} {text(proof.objective)} (by {HOLDS[proof.proof]}), so {verdict}.",
        f"The slowest job, {words.printable(site.jobs[slow].name)}, takes {reached.slowdown[slow]:.4f} times as long"
        f" as alone on a 1:1 network; before, the slowest took {hashed.slowdown.max():.4f} times as long.",
        f"{words.printable(found.verification)}.",
    )


def _facts(found: Arrangement) -> tuple[Fact, ...]:
    site = found.site
    up = sum(site.usable)
    down = len(site.usable) - up
    layouts = f", {found.layouts:,} other layouts" if found.layouts else ""
    facts = [
        Fact(name="Site", text=f"{words.printable(site.name)}: {counted(len(site.jobs), 'job')} on"
             f" {counted(up, 'host')} of"
             f" {site.domain_size}" + (f", {down} more drained or not there" if down else "")),
        Fact(name="Hosts", text=words.cluster_sentence(site.cluster)),
        Fact(name="Network", text=words.printable(site.fabric.name)),
        Fact(name="Objective", text=KINDS[site.objective]),
        Fact(name="Routes", text=ROUTERS[found.best.choice.router]),
        Fact(name="Search", text=f"{found.evaluations:,} arrangements stepped, {found.placements} placements{layouts};"
             f" {ENDS[found.ended]}"),
    ]  # fmt: skip
    if site.max_slowdown is not None:
        facts.insert(4, Fact(name="Limit", text=f"no job slower than {site.max_slowdown:g} times"))
    return tuple(facts)


def jobs_table(found: Arrangement) -> Table:
    """The jobs of an arrangement: where, in which layout, when, in which class, and how fast."""
    columns = (
        Column(heading="job", number=False),
        Column(heading="slowdown", meaning="time of an iteration over that alone on a 1:1 network"),
        Column(heading="before", meaning="slowdown with the hosts as given and hashed routes"),
        Column(heading="iteration", meaning="steady time of an iteration with all jobs"),
        Column(heading="at least", meaning="what no arrangement undercuts"),
        Column(heading="offset", meaning="when its first iteration begins, after the first job's"),
        Column(heading="class", meaning="traffic class; a higher one goes first"),
        Column(heading="hosts", number=False),
        Column(heading="layout", number=False),
    )
    before = found.policies["hashed"].slowdown
    rows = []
    for number, row in enumerate(found.to_dicts()):
        names = [found.site.host_names[host] for host in found.best.choice.hosts[number]]
        cells = (
            Cell(text=words.printable(row["name"])),
            Cell(text=f"{row['slowdown']:.4f}", key=row["slowdown"]),
            Cell(text=f"{before[number]:.4f}", key=float(before[number])),
            Cell(text=format_seconds(row["iteration_s"]), key=row["iteration_s"]),
            Cell(text=format_seconds(row["bound_s"]), key=row["bound_s"]),
            Cell(text=format_seconds(row["offset_s"]), key=row["offset_s"]),
            Cell(text=str(row["class"]), key=row["class"]),
            Cell(text=words.printable(_hosts(names))),
            Cell(text=format_layout(found.site.jobs[number].layout, whole=True)),
        )
        rows.append(cells)
    return Table(name="jobs", caption="Where, when and how fast each job runs", columns=columns, rows=tuple(rows))


def _hosts(names: Sequence[str]) -> str:
    """Host names, the first and the last of many."""
    if len(names) <= NAMED_HOSTS:
        return " ".join(names)
    return f"{len(names)}: {' '.join(names[:3])} ... {names[-1]}"


def policies_table(found: Arrangement) -> Table:
    """What each policy comes to."""
    text, base = found.clock.objective.text, found.policies["hashed"].score
    rows = []
    for name, one in found.policies.items():
        mean, worst = float(one.slowdown.mean()), float(one.slowdown.max())
        cells = (
            Cell(text=name),
            Cell(text=text(one.score), key=one.score),
            Cell(text=f"{one.score / base - 1.0:+.2%}", key=one.score / base),
            Cell(text=f"{mean:.4f}", key=mean),
            Cell(text=f"{worst:.4f}", key=worst),
            Cell(text=POLICY_WORDS[name]),
        )
        rows.append(cells)
    columns = (
        Column(heading="policy", number=False),
        Column(heading="objective", meaning=KINDS[found.site.objective]),
        Column(heading="change", meaning="of time, against hashed routes on the hosts as given"),
        Column(heading="mean", meaning="mean slowdown"),
        Column(heading="worst", meaning="worst slowdown"),
        Column(heading="what", number=False),
    )
    return Table(name="policies", caption="Policies on this site", columns=columns, rows=tuple(rows))


def reasons(found: Arrangement) -> tuple[Fact, ...]:
    """What was done for each job, and how far it is from its bound."""
    best, classes = found.best, found.classes()
    facts = []
    for number, job in enumerate(found.site.jobs):
        held, given = best.choice.hosts[number], found.given[number]
        moved = len(set(held) - set(given))
        done = [f"{moved} of its {len(held)} hosts are others" if moved
                else "keeps its hosts" if held == given else "its hosts in another order"]  # fmt: skip
        if job.layout != found.first[number]:
            done.append(f"layout {format_layout(found.first[number])} became {format_layout(job.layout)}")
        if best.choice.offset_s[number] > 0:
            done.append(f"begins {format_seconds(best.choice.offset_s[number])} after the first")
        if max(best.choice.order):
            done.append(f"traffic class {classes[number]}")
        over = float(best.iteration_s[number] / found.certificate.iteration_s[number]) - 1.0
        at = "at its bound" if over < _CLOSE else f"{over:.2%} above its bound"
        done.append(f"{at} by {HOLDS[found.certificate.proofs[number]]}")
        facts.append(Fact(name=words.printable(job.name), text="; ".join(done)))
    return tuple(facts)


def links_table(rows: Sequence[Mapping[str, Any]]) -> Table | None:
    """The busiest links before and after."""
    if not rows:
        return None
    columns = (
        Column(heading="link", number=False),
        Column(heading="tier", meaning="1 is between hosts and switches"),
        Column(heading="before", meaning="mean share of what it can carry, hosts as given, hashed routes"),
        Column(heading="jobs before", meaning="that use it"),
        Column(heading="after", meaning="the same, as arranged"),
        Column(heading="jobs after", meaning="that use it"),
    )
    found = tuple(
        (
            Cell(text=words.printable(row["link"])),
            Cell(text=str(row["tier"]), key=row["tier"]),
            Cell(text=f"{row['before']:.1%}", key=row["before"]),
            Cell(text=str(row["jobs_before"]), key=row["jobs_before"]),
            Cell(text=f"{row['after']:.1%}", key=row["after"]),
            Cell(text=str(row["jobs_after"]), key=row["jobs_after"]),
        )
        for row in rows
    )
    return Table(name="links", caption="Busiest links", columns=columns, rows=found)


def pictures(found: Arrangement) -> tuple[tuple[Picture, ...], tuple[str, ...]]:
    """The charts that a page has room for, and captions of the others."""
    charts = (
        (seats_chart, "Who sits where: a square is a host, a number and a colour a job"),
        (loads_chart, "How busy links are before and after"),
        (timeline_chart, "One common period: when jobs send, and the busiest link that they share"),
    )
    shown, left_out, room = [], [], PICTURES_BYTES
    for chart, caption in charts:
        svg = embedded(chart(found))
        if len(svg.encode()) > room:
            left_out.append(caption)
            continue
        room -= len(svg.encode())
        shown.append(Picture(svg=svg, caption=caption))
    return tuple(shown), tuple(left_out)


def _start(row: Mapping[str, Any], file: str) -> Start:
    """How one job is started."""
    given = f"--arrangement {quote(file)} --job {quote(row['name'])}"
    name = row["name"].replace("/", "-")
    lists = f"SLURM_HOSTFILE={quote(f'{name}-files/slurm_hostfile')}"
    offset = row["offset_s"]
    files = [("hostfile", row["hostfile"])] + ([("nccl.env", row["nccl_env"])] if row["nccl_env"] else [])
    return Start(
        job=words.printable(row["name"]),
        commands=(
            f"weft launch {given} --tool megatron -o {quote(f'{name}.sh')} --files {quote(f'{name}-files')}\n"
            f"{lists} {row['slurm']['command']} PROGRAM\n"
            f"weft simulate {given} --full\n"
        ),
        files=tuple(files),
        note=f"Begin its first step {format_seconds(offset)} after the first job's." if offset else "",
    )


def _inputs(document: Mapping[str, Any]) -> str:
    """What was arranged: all that is not an answer, the network by its size."""
    fabric = document["fabric"]
    kept = ("name", "model", "first_layout_text", "may", "cut", "weight", "iterations", "job")
    sizes = {name: len(value) for name, value in fabric.items() if isinstance(value, list)}
    found = {
        "site": document["site"],
        "objective": {
            name: document["objective"][name] for name in ("kind", "max_slowdown", "usd_per_accelerator_hour")
        },
        "classes": document["classes"],
        "jobs": [{name: row[name] for name in kept} for row in document["jobs"]],
        "cluster": document["cluster"],
        "fabric": {"name": fabric["name"]} | sizes,
    }
    return json.dumps(found, indent=1, sort_keys=True)
