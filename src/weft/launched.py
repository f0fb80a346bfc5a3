"""Whether torchrun, mpirun or srun started this process, and which rank it is.  Nothing here needs torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from weft.errors import BadInput, WeftError

_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)
"""What Open MPI, MPICH and Intel MPI, and srun call the rank, the ranks, and those of a machine."""
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
PORT = "29500"
"""Where ranks meet on MASTER_ADDR unless MASTER_PORT says otherwise, as with torchrun."""

TUNER = "nccl_tuner.csv"
"""The file of a job's NCCL tuner settings, in the folder of its launch files."""
TUNER_KEY = "NCCL_TUNER_CONFIG_FILE"


def adopt_launcher() -> None:
    """Give this process the variables of torchrun where mpirun or srun started it beside others.

    Raises:
        BadInput: they did, and MASTER_ADDR does not say where the ranks meet.
    """
    if "RANK" in os.environ:
        return
    for names in _LAUNCHERS:
        if os.environ.get(names[1], "1") == "1" or names[0] not in os.environ:
            continue
        if "MASTER_ADDR" not in os.environ:
            raise BadInput(
                f"{names[1]} = {os.environ[names[1]]} ranks were launched, but not told where to meet",
                where="MASTER_ADDR",
                remedy="export MASTER_ADDR, the name of the first machine",
            )
        for ours, theirs in zip(_TORCHRUN, names, strict=True):
            if theirs in os.environ:
                os.environ[ours] = os.environ[theirs].partition("(")[0].partition(",")[0]
        os.environ.setdefault("MASTER_PORT", PORT)
        return


def launched() -> bool:
    """Whether torchrun, or what sets the same variables, started this process."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))


def launched_world() -> int | None:
    """Ranks that torchrun started, None without it."""
    return variable("WORLD_SIZE", 1) if launched() else None


def speaks() -> bool:
    """Whether this process prints what all processes would print alike: the first of a machine does."""
    return not launched() or variable("LOCAL_RANK", variable("RANK", 0)) == 0


@contextmanager
def said_once() -> Iterator[None]:
    """An expected error inside, before ranks have met, is raised by the process that ``speaks``; the others
    leave with its exit code."""
    try:
        yield
    except WeftError as error:
        if speaks():
            raise
        raise SystemExit(error.exit_code) from None


def variable(name: str, default: int) -> int:
    """A whole number of the environment.

    Raises:
        BadInput: it is none.
    """
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise BadInput(f"{text[:40]!r} is not a number", where=name, remedy="launch with torchrun, or unset it")
    return int(text)
