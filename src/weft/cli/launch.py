"""``weft launch``: the launch file of a planned layout."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import click

from weft.cli.build import takes
from weft.cli.options import deliver
from weft.cli.outcome import FileOutput
from weft.errors import BadInput
from weft.verbs.launch import TOOLS, launch_arguments
from weft.verbs.options import option
from weft.verbs.read import read_plan


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(FileOutput):
    """Which layout, and for which tool."""

    tool: str = option("megatron", "Launcher.", choices=TOOLS)
    rank: int = option(1, "Layout of the plan.", metavar="N", least=1)
    arrangement: str | None = option(None, "JSON of weft arrange, in place of a plan.", metavar="FILE")
    job: str | None = option(None, "Job of --arrangement.", metavar="NAME")
    start_at: str | None = option(
        None, "When all jobs of --arrangement begin: 2026-11-23T06:30:00Z, or seconds since 1970.", metavar="TIME"
    )
    files: str | None = option(
        None, "Also write host lists, NCCL settings, tuner file and MSCCL schedules of --job there.", metavar="FOLDER"
    )


@click.command()
@click.argument("plan_file", metavar="[PLAN.json]", required=False)
@takes(options=LaunchOptions)
def launch(plan_file: str | None, options: LaunchOptions) -> None:
    """Write the launch file of a layout of PLAN.json (weft plan --format json).

    With --arrangement it is that of a job of weft arrange -o, and notes say on which hosts, with which NCCL
    settings and when it begins. Its host lists, settings, tuner file and schedules go to --files FOLDER.

    The command that starts it goes to stderr.
    """
    if (plan_file is None) == (options.arrangement is None):
        raise BadInput(
            "one plan or one arrangement is needed", where="launch", remedy="give PLAN.json, or --arrangement"
        )
    for name in ("job", "start_at", "files"):
        if plan_file is not None and getattr(options, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise BadInput(f"{flag} needs --arrangement", where="launch", remedy=f"add it, or drop {flag}")
    notes: tuple[str, ...] = ()
    if plan_file is not None:
        arguments = launch_arguments(options.tool, *read_plan(plan_file, options.rank))
    else:
        from weft.verbs.launch import arranged_arguments

        arguments, notes = arranged_arguments(
            options.tool, str(options.arrangement), options.job, start_at=options.start_at, folder=options.files
        )
    deliver(arguments.text, options.output)
    click.echo(arguments.written_for, err=True)
    command = arguments.command
    if options.output is not None:
        command = command.replace(arguments.file, shlex.quote(options.output))
    click.echo(f"run: {command}", err=True)
    for note in (*notes, *arguments.notes):
        click.echo(f"note: {note}", err=True)
