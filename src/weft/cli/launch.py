"""``weft launch``: the launch file of a planned layout."""

from __future__ import annotations

import click

from weft.cli.options import deliver
from weft.cli.outcome import TOOLS
from weft.cli.outcome import launch as arguments_for


@click.command()
@click.argument("plan_file", metavar="PLAN.json")
@click.option("--tool", type=click.Choice(TOOLS), default="megatron", show_default=True, help="Launcher.")
@click.option("--rank", type=click.IntRange(1), default=1, show_default=True, help="Layout of the plan.")
@click.option("-o", "--output", metavar="FILE", help="Write there instead of to the terminal.")
def launch(plan_file: str, tool: str, rank: int, output: str | None) -> None:
    """Write the launch file of a layout of PLAN.json (weft plan --format json); the command goes to
    stderr."""
    from weft.verbs.read import read_plan

    arguments = arguments_for(tool, *read_plan(plan_file, rank))
    deliver(arguments.text, output)
    click.echo(f"run: {arguments.command}", err=True)
    for note in arguments.notes:
        click.echo(f"note: {note}", err=True)
