"""``weft launch``: the launch file of a planned layout."""

from __future__ import annotations

from dataclasses import dataclass

import click

from weft.cli.build import takes
from weft.cli.options import deliver
from weft.cli.outcome import FileOutput
from weft.verbs.launch import TOOLS, launch_arguments
from weft.verbs.options import option
from weft.verbs.read import read_plan


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(FileOutput):
    """Which layout, and for which tool."""

    tool: str = option("megatron", "Launcher.", choices=TOOLS)
    rank: int = option(1, "Layout of the plan.", metavar="N", least=1)


@click.command()
@click.argument("plan_file", metavar="PLAN.json")
@takes(options=LaunchOptions)
def launch(plan_file: str, options: LaunchOptions) -> None:
    """Write the launch file of a layout of PLAN.json (weft plan --format json).

    The command that starts it goes to stderr.
    """
    arguments = launch_arguments(options.tool, *read_plan(plan_file, options.rank))
    deliver(arguments.text, options.output)
    click.echo(f"run: {arguments.command}", err=True)
    for note in arguments.notes:
        click.echo(f"note: {note}", err=True)
