"""Processes that torchrun, mpirun or srun started."""

import os

import pytest

from weft.errors import BadInput
from weft.launched import adopt_launcher, launched, launched_world, speaks

OWN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def environment(monkeypatch):
    """An environment without launchers, as a dictionary that ends with the test."""
    found = {name: text for name, text in os.environ.items() if not name.startswith(("OMPI", "PMI", "SLURM", "MPI"))}
    found = {name: text for name, text in found.items() if name not in OWN}
    monkeypatch.setattr(os, "environ", found)
    return found


@pytest.mark.parametrize(
    "set_by",
    [
        {
            "OMPI_COMM_WORLD_RANK": "5",
            "OMPI_COMM_WORLD_SIZE": "8",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
        },
        {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"},
        {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"},
    ],
    ids=["Open MPI", "MPICH", "srun"],
)
def test_launchers_are_adopted(environment, set_by):
    environment |= set_by | {"MASTER_ADDR": "first"}
    assert not launched()
    adopt_launcher()
    assert launched()
    assert launched_world() == 8
    assert not speaks()
    assert [environment[name] for name in OWN] == ["5", "8", "1", "4", "first", "29500"]


def test_ranks_must_know_where_to_meet(environment):
    environment |= {"PMI_RANK": "0", "PMI_SIZE": "2"}
    with pytest.raises(BadInput, match="MASTER_ADDR: PMI_SIZE = 2 ranks were launched, but not told where to meet"):
        adopt_launcher()


def test_torchrun_goes_first_and_a_rank_alone_is_none(environment):
    environment |= {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "here", "PMI_RANK": "0", "PMI_SIZE": "2"}
    adopt_launcher()
    assert launched_world() == 4
    for name in ("RANK", "WORLD_SIZE"):
        del environment[name]
    environment["PMI_SIZE"] = "1"
    adopt_launcher()
    assert not launched()
    environment |= {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}  # a batch script's own process
    adopt_launcher()
    assert not launched()
