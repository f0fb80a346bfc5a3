"""What ranks do in the tests of ``weft.runtime.run.ranks``: importable in the processes that it starts."""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

from weft.errors import BadInput, NothingFeasible, WeftError


def add_up(folder: str) -> None:
    """Write the sum over ranks, the threads and the process of this one."""
    rank, total = 0, torch.ones(1)
    if dist.is_initialized():
        rank = dist.get_rank()
        dist.all_reduce(total)
    (Path(folder) / str(rank)).write_text(f"{total.item():.0f} {torch.get_num_threads()} {os.getpid()}")


def refuse(rank: int) -> None:
    """One rank meets bad input, the others wait for it."""
    if dist.get_rank() == rank:
        raise BadInput("the loss is negative", where="step 3", remedy="look at the data")
    dist.all_reduce(torch.ones(1))


def find_nothing() -> None:
    raise NothingFeasible("nothing fits")


def differ() -> None:
    error = WeftError("not equal")
    error.exit_code = 1
    raise error


def print_to_nobody(rank: int) -> None:
    """One rank prints into a pipe whose other end is closed."""
    if dist.get_rank() == rank:
        reader, writer = os.pipe()
        os.close(reader)
        os.write(writer, b"step 1")
    dist.all_reduce(torch.ones(1))


def stumble(rank: int) -> None:
    """One rank meets a bug."""
    if dist.get_rank() == rank:
        raise ZeroDivisionError("a bug")
    dist.all_reduce(torch.ones(1))


def die(by: int) -> None:
    """A signal ends one rank: SIGKILL is that of a kernel without memory."""
    if dist.get_rank() == 0:
        os.kill(os.getpid(), by)
    dist.all_reduce(torch.ones(1))


def wait_long(folder: str) -> None:
    """Rank 0 sleeps, the others wait for it in a collective."""
    (Path(folder) / str(dist.get_rank())).write_text(str(os.getpid()))
    if dist.get_rank() == 0:
        time.sleep(600)
    dist.all_reduce(torch.ones(1))


def hang():
    """Rank 2 of data does not come to the third sum."""
    from weft.layout.spec import Layout
    from weft.runtime.core.collectives import Collectives
    from weft.runtime.core.grid import Grid

    collectives = Collectives(Grid.of(Layout(data=3, zero=0)))
    for number in range(3):
        if (dist.get_rank(), number) == (2, 2):
            time.sleep(60)
        collectives.all_reduce(torch.ones(6), "data").wait()


def end_once(mark):
    """What a rank does that dies in the first try: it is killed after the second checkpoint."""
    from weft.runtime.run import session as sessions

    plain = sessions.Session.step

    def step(running):
        if running.steps_done == 3 and running.grid.rank == 1 and not os.path.exists(mark):
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(running)

    sessions.Session.step = step


def train_mortally(request):
    from weft.commands.train_rank import train_rank

    if dist.is_initialized():
        end_once(Path(request.out).parent / "died")
    train_rank(request)


CHAINED = 12
"""Steps of a run that is killed again and again."""


def go_on(layout, folder, dies_at):
    """Train on from the last checkpoint if there is one, save every second step; the last rank is killed at a step."""
    from test_training import session

    from weft.checkpoints import latest, step_folder
    from weft.runtime.core.grid import Grid
    from weft.runtime.run.folder import CheckpointSaving, metrics_file, write_record
    from weft.runtime.run.session import load_latest

    root, saving = Path(folder), CheckpointSaving(background=True, keep=2)
    running = session(Grid.of(layout), "stages")
    if latest(root) is not None:
        load_latest(running, root)
    tells = running.stages[-1].stage.last and all(
        running.grid.coordinates[axis] == 0 for axis in ("x", "y", "z", "data", "context")
    )
    with metrics_file(root / "metrics.jsonl" if tells else Path(os.devnull), running.steps_done) as metrics:
        while running.steps_done < CHAINED:
            if running.steps_done == dies_at and running.grid.rank == layout.world - 1:
                saving.wait()
                os.kill(os.getpid(), signal.SIGKILL)
            step = running.step()
            write_record(metrics, {"step": step.step, "loss": step.loss, "norm": step.gradient_norm})
            if running.steps_done % 2 == 0:
                running.save(step_folder(root, running.steps_done), saving)
        saving.wait()
