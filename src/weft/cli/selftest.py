"""``weft selftest``: does the runtime do on this machine what it says?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from weft.cli.build import takes
from weft.cli.outcome import Output, report
from weft.units import counted
from weft.verbs.selftest import SelftestOptions

if TYPE_CHECKING:
    from weft.verbs.selftest import Selftest
    from weft.views.blocks import Block


@click.command()
@takes(options=SelftestOptions, out=Output)
@click.pass_context
def selftest(ctx: click.Context, options: SelftestOptions, out: Output) -> None:
    """Check the runtime on this machine's GPUs or CPU: losses, collectives, overlap, memory, speed.

    Every grid of so many ranks is held against one rank in fp64, against the predicted collectives, and against
    PyTorch's own parallelism; on GPUs also overlap in a trace, and memory against the estimate.
    Exit code 1 if a check fails; --format json -o FILE is one file to hand in.
    """
    from weft.verbs.selftest import selftest as tested

    found = tested(options)
    report(found, out, _view(found))
    ctx.exit(0 if found.ok else 1)


def _view(found: Selftest) -> Iterator[Block]:
    from weft.views.blocks import Column, Grid, Heading, Paragraph

    facts = ", ".join(f"{name} {value}" for name, value in found.facts.items())
    yield Paragraph(f"{counted(found.ranks, 'rank')} on {found.device}: {facts}")
    yield Heading("Checks")
    verdicts = {"holds": "holds", "fails": "FAILS", "seen": ""}
    yield Grid(
        [
            Column(heading="grid", cells=[one.grid for one in found.findings], left=True),
            Column(heading="", cells=[verdicts[one.verdict] for one in found.findings], left=True),
            Column(heading="check", cells=[one.check for one in found.findings], left=True),
            Column(heading="found", cells=[one.found for one in found.findings], left=True),
        ]
    )
    failed = sum(one.verdict == "fails" for one in found.findings)
    held = sum(one.verdict == "holds" for one in found.findings)
    yield Paragraph(f"{counted(held, 'check')} held, {failed:,} failed; the rest is measured only")
