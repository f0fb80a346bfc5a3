"""Launch files of a layout, by the tool that runs it."""

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
