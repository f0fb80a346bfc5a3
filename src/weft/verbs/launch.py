"""Launch arguments of a layout for the tools that run it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.errors import NothingFeasible

if TYPE_CHECKING:
    from weft.cluster import Cluster
    from weft.interop.training.launchers import LaunchArguments
    from weft.layout import Layout
    from weft.model import Job

TOOLS = (
    "megatron",
    "torchtitan",
    "torchtitan-toml",
    "deepspeed",
    "calculon",
    "calculon-application",
    "calculon-system",
    "slurm",
)


def launch_arguments(tool: str, job: Job, cluster: Cluster, layout: Layout) -> LaunchArguments:
    """Launch arguments of a layout for one of ``TOOLS``.

    Raises:
        NothingFeasible: the tool cannot run the layout; says every reason.
    """
    from weft.interop.training import calculon, deepspeed, megatron, slurm, torchtitan
    from weft.interop.training.launchers import NotExpressible

    writers: dict[str, Callable[..., Any]] = {
        "megatron": megatron.launch_arguments,
        "torchtitan": torchtitan.launch_arguments,
        "torchtitan-toml": torchtitan.toml_arguments,
        "deepspeed": deepspeed.launch_arguments,
        "calculon": calculon.launch_arguments,
        "calculon-application": calculon.application_arguments,
        "calculon-system": calculon.system_arguments,
        "slurm": slurm.launch_arguments,
    }
    written: LaunchArguments | NotExpressible = writers[tool](job, cluster, layout)
    if isinstance(written, NotExpressible):
        raise NothingFeasible(f"{written.reason} -- choose another tool, or pin what it can run with --fix")
    return written


def arranged_arguments(
    tool: str, path: str, name: str | None, *, start_at: str | None = None, folder: str | None = None
) -> tuple[LaunchArguments, tuple[str, ...]]:
    """Launch arguments of a job of an arrangement, and what else starting it there needs.

    Args:
        start_at: when all jobs of the arrangement begin.
        folder: host lists, settings, tuner file and schedules of the job go there.

    Raises:
        BadInput: the file is no arrangement, or no job of it is meant.
        NothingFeasible: the tool cannot run the layout.
    """
    from weft.arrangement.bundle import read_bundle
    from weft.units import format_moment, format_seconds, parse_moment
    from weft.verbs.arranged import write_files

    bundle = read_bundle(path)
    number = bundle.number(name)
    job, site, offset_s = bundle.site.jobs[number], bundle.site, bundle.choice.offset_s[number]
    begin_s = None if start_at is None else parse_moment(start_at, "--start-at") + offset_s
    arguments = launch_arguments(tool, job.job, bundle.subcluster(number), job.layout)
    notes = [f"hosts in rank order: {' '.join(site.host_names[host] for host in bundle.choice.hosts[number])}"]
    if folder is not None:
        notes += [f"file: {one}" for one in write_files(bundle, number, folder)]
    notes += [f"environment: {key}={value}" for key, value in bundle.settings(number).items()]
    if begin_s is not None:
        period = format_seconds(bundle.promised_s[number])
        notes.append(f"begin the first step at {format_moment(begin_s)} ({begin_s:.3f}), or whole {period} later")
    elif offset_s > 0:
        notes.append(f"begin the first step {format_seconds(offset_s)} after the other jobs")
    return arguments, tuple(notes)
