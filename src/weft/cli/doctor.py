"""``weft doctor``: is this installation whole?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from weft.cli.build import takes
from weft.cli.outcome import Output, report
from weft.units import counted

if TYPE_CHECKING:
    from weft.verbs.doctor import Diagnosis
    from weft.views.blocks import Block


@click.command()
@takes(out=Output)
@click.pass_context
def doctor(ctx: click.Context, out: Output) -> None:
    """Say what is installed, where kernels are kept, and whether Weft's answers hold here.

    The checks ask for answers that carry a proof: a plan beside its bound, rates with their certificate, a schedule
    and a simulation beside their bounds. Exit code 1 if one does not hold, or a package that Weft needs is missing.
    """
    from weft.verbs.doctor import diagnose

    found = diagnose()
    report(found, out, _view(found))
    ctx.exit(0 if found.ok else 1)


def _view(found: Diagnosis) -> Iterator[Block]:
    from weft.units import format_bytes
    from weft.verbs.doctor import EXTRAS, NEEDED, installing
    from weft.views.blocks import Column, Fact, Grid, Heading, Paragraph

    whole = found.to_dict()
    needs = ", ".join(f"{name} {found.packages[name] or 'MISSING'}" for name in NEEDED)
    kept = found.kernels
    size = f"{counted(kept.files, 'file')}, {format_bytes(kept.bytes)}"
    where = f"{size} in {kept.folder}" if kept.folder else "kept nowhere: every run compiles them anew"
    yield Paragraph(f"Weft {whole['weft']} on Python {whole['python']}, {whole['system']}")
    yield Fact("Needs:", needs)
    yield Fact("Kernels:", where)
    yield Heading("Extras")
    yield Grid(
        [
            Column(heading="extra", cells=list(EXTRAS), left=True),
            Column(heading="serves", cells=[serves for serves, _ in EXTRAS.values()], left=True),
            Column(
                heading="",
                cells=[installing(name) if found.missing[name] else "installed" for name in EXTRAS],
                left=True,
            ),
        ]
    )
    yield Heading("Checks")
    yield Grid(
        [
            Column(heading="", cells=["holds" if one.ok else "FAILS" for one in found.checks], left=True),
            Column(heading="check", cells=[one.name for one in found.checks], left=True),
            Column(heading="found", cells=[one.found for one in found.checks], left=True),
        ]
    )
