"""A trace under several policies, for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.units import counted, format_seconds
from weft.views.blocks import Block, Column, Grid, Heading, Paragraph

if TYPE_CHECKING:
    from weft.arrangement.replay import Replay


def replay_view(found: Replay, *, timings: bool = False) -> Iterator[Block]:
    """What each policy made of a trace."""
    site, rows = found.site, found.to_dicts()
    yield Paragraph(
        f"Replay: {counted(found.jobs, 'job')} on {sum(site.usable)} hosts of {site.domain_size}"
        f" {site.cluster.accelerator.name}, {site.fabric.name}"
    )
    if found.too_large:
        yield Paragraph(f"Left out: {counted(len(found.too_large), 'job')} larger than the site")
    yield Heading("Policies (slowdown against alone on a 1:1 network)")
    columns = [
        Column(heading="policy", cells=[str(row["policy"]) for row in rows], left=True),
        Column(heading="mean slowdown", cells=[f"{row['mean_slowdown']:.4f}" for row in rows]),
        Column(heading="p95", cells=[f"{row['p95_slowdown']:.4f}" for row in rows]),
        Column(heading="mean wait", cells=[format_seconds(row["mean_queued_s"]) for row in rows]),
        Column(heading="utilization", cells=[f"{row['utilization']:.3f}" for row in rows]),
        Column(heading="makespan", cells=[format_seconds(row["makespan_s"]) for row in rows]),
    ]
    if timings:
        columns.append(Column(heading="CPU", cells=[format_seconds(one.cpu_s) for one in found.outcomes]))
    columns.append(Column(heading="what", cells=[one.policy.words for one in found.outcomes], left=True, drop=1))
    yield Grid(columns)
