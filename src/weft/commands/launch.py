"""Launch arguments of a layout for the tools that run it."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft.commands.command_line import command
from weft.commands.options import option
from weft.commands.output import FileOutput, deliver
from weft.commands.read import read_plan
from weft.errors import BadInput
from weft.files import write_folder
from weft.interop.launch import TOOLS, LaunchArguments, launch_arguments
from weft.launched import TUNER, TUNER_KEY
from weft.units import format_moment, format_seconds, parse_moment

if TYPE_CHECKING:
    from weft.arrangement.bundle import Bundle


SCRIPT = "job.slurm"


def write_files(bundle: Bundle, number: int, folder: str) -> tuple[str, ...]:
    """Write host lists, NCCL settings, the tuner file and, where SLURM can have such hosts, a batch script of a job
    into a folder; returns the paths."""
    from weft.arrangement.bundle import host_lists
    from weft.interop.slurm import NODE

    place = Path(folder).absolute()
    lists, settings = host_lists(bundle.host_names(number)), bundle.jobs[number].nccl_env
    texts = {"hostfile": lists["hostfile"], "slurm_hostfile": lists["SLURM_HOSTFILE"]}
    if bundle.jobs[number].nccl_tuner:
        texts[TUNER] = bundle.jobs[number].nccl_tuner
        settings += (
            f"# For NCCL's example tuner plugin (NCCL_TUNER_PLUGIN names its library).\n{TUNER_KEY}={place / TUNER}\n"
        )
    texts["nccl.env"] = settings
    if all(map(NODE.fullmatch, bundle.host_names(number))):
        texts[SCRIPT] = job_script(bundle, number, place)
    write_folder(folder, {name: text.encode() for name, text in texts.items()})
    return tuple(str(place / name) for name in texts)


def job_script(bundle: Bundle, number: int, folder: Path, **command: str) -> str:
    """A script for ``sbatch`` that starts a job's ranks where they are arranged; its files are in the folder."""
    from weft.interop.slurm import arranged

    settings = bundle.settings(number)
    if bundle.jobs[number].nccl_tuner:
        settings[TUNER_KEY] = str(folder / TUNER)
    hosts, each = bundle.host_names(number), bundle.site.domain_size
    return arranged(
        bundle.site.jobs[number].name, hosts, each, settings, hostfile=str(folder / "slurm_hostfile"), **command
    )


def arranged_arguments(
    tool: str, path: str, name: str | None, *, start_at: str | None = None, folder: str | None = None
) -> tuple[LaunchArguments, tuple[str, ...]]:
    """Launch arguments of a job of an arrangement, and notes on its hosts, settings and start time.

    Args:
        start_at: when all jobs of the arrangement begin.
        folder: where to write host lists, settings and tuner file of the job.
    """
    from weft.arrangement.bundle import read_bundle

    bundle = read_bundle(path)
    number = bundle.number(name)
    job, site, offset_s = bundle.site.jobs[number], bundle.site, bundle.choice.offset_s[number]
    begin_s = None if start_at is None else parse_moment(start_at, "--start-at") + offset_s
    arguments = launch_arguments(tool, job.job, bundle.subcluster(number), job.layout)
    if tool == "slurm":
        from weft.interop.slurm import training

        if folder is None:
            raise BadInput("SLURM takes the hosts of a job from a file", where="launch", remedy="add --files FOLDER")
        place = Path(folder).absolute()
        options = {"--arrangement": os.path.abspath(path), "--job": job.name}
        options |= {} if start_at is None else {"--start-at": start_at}
        command = training("", options, out=str(place / "run"))
        arguments = replace(arguments, text=job_script(bundle, number, place, command=command))
    notes = [f"hosts in rank order: {' '.join(site.host_names[host] for host in bundle.choice.hosts[number])}"]
    if folder is not None:
        notes += [f"file: {path}" for path in write_files(bundle, number, folder)]
    notes += [f"environment: {key}={value}" for key, value in bundle.settings(number).items()]
    if begin_s is not None:
        period = format_seconds(bundle.jobs[number].iteration_s)
        at = f"{format_moment(begin_s)} ({begin_s:.3f})"
        notes.append(f"begin the first step at {at}, or any number of steps of {period} later")
    elif offset_s > 0:
        notes.append(f"begin the first step {format_seconds(offset_s)} after the other jobs")
    return arguments, tuple(notes)


class LaunchOptions(FileOutput):
    """Which layout, and for which tool."""

    group = "Job"
    tool: str = option("megatron", "Tool that runs the job.", metavar="TOOL", choices=TOOLS)
    rank: int = option(1, "Layout of the plan.", metavar="N", least=1)
    arrangement: str | None = option(None, "JSON of weft arrange, instead of a plan.", metavar="FILE")
    job: str | None = option(None, "Job of --arrangement.", metavar="NAME")
    start_at: str | None = option(
        None, "Start of --arrangement: 2026-11-23T06:30:00Z, or seconds since 1970.", metavar="TIME"
    )
    files: str | None = option(None, "Also write host lists, settings and a batch script there.", metavar="FOLDER")

    needs = {"job": "arrangement", "start_at": "arrangement", "files": "arrangement"}


@command("[PLAN.json]", options=LaunchOptions)
def launch_command(plan_file: str | None, options: LaunchOptions) -> None:
    """Write the launch file of a layout of PLAN.json (weft plan --format json), or of a job of weft arrange -o.

    TOOL is megatron, torchtitan, torchtitan-toml (up to 0.2.2), deepspeed, slurm, calculon or calculon-application.
    stderr has the command that starts the job, and notes on hosts and settings.
    """
    if (plan_file is None) == (options.arrangement is None):
        raise BadInput(
            "one plan or one arrangement is needed",
            where="launch",
            remedy="for example: weft plan gpt2 a100-8 --format json -o plan.json; weft launch plan.json -o run.sh",
        )
    notes: tuple[str, ...] = ()
    if plan_file is not None:
        arguments = launch_arguments(options.tool, *read_plan(plan_file, options.rank))
    else:
        arguments, notes = arranged_arguments(
            options.tool, str(options.arrangement), options.job, start_at=options.start_at, folder=options.files
        )
    deliver(arguments.text, options.output)
    if options.output is None:
        click.echo(f"save as {arguments.file} (-o {arguments.file}), then run: {arguments.command}", err=True)
    else:
        click.echo(f"run: {arguments.command.replace(arguments.file, shlex.quote(options.output))}", err=True)
    click.echo(arguments.written_for, err=True)
    if "$NODE_RANK" in arguments.text + arguments.command:
        setting = "NODE_RANK=0, 1, ... and MASTER_ADDR=the address of node 0 (docs/how-to/plan-with-slurm.md)"
        click.echo(f"note: run it on every node, each with {setting}", err=True)
    for note in (*notes, *arguments.notes):
        click.echo(f"note: {note}", err=True)
