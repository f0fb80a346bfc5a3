"""A function on every rank: in the processes that torchrun made, or in processes that are started here."""

from __future__ import annotations

import errno
import gc
import json
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from math import ceil
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from weft.errors import BadInput, NothingFeasible, UnknownName, WeftError
from weft.launched import launched, said_once, variable
from weft.layout.spec import Layout
from weft.runtime.core.beneath import default_store
from weft.units import format_moment, format_seconds

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
"""How ranks of a device talk."""
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Where launchers bind a GPU to each rank, as ``srun --gpus-per-task=1`` does."""
IN_ORDER = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
"""One queue of kernels for all streams, in which a gather over z that waits for another holds up products."""
RANKS_PER_CORE = 8
"""More ranks than this on a core of the machine are refused."""
GRACE_S = 5.0
"""Seconds that a rank has to end before it is killed."""

TOLD = "weft/errors"
"""Key of the process group's store that counts errors."""

Worker = Callable[..., None]


def run_ranks(
    worker: Worker,
    arguments: tuple[Any, ...],
    world: int,
    device: str = "cpu",
    timeout_s: float | None = None,
    layout: Layout | None = None,
) -> None:
    """Run ``worker(*arguments)`` on ``world`` ranks of an initialized process group; return when all have.

    Under torchrun this process is one of the ranks.  Otherwise they are started here, as processes that
    share the cores: the worker must be importable and its arguments picklable.  One rank runs in this
    process without a process group.  If a rank fails, all are ended.

    Args:
        device: ``cpu`` (gloo) or ``cuda`` (NCCL; each rank gets the GPU of its local rank, or the only one that its
            launcher makes visible).
        timeout_s: how long ranks wait for each other; None: as long as PyTorch has it.
        layout: of the ranks.  With x or y, kernels on GPUs start in the order of the program unless the environment
            says otherwise, so that collectives are not queued behind later products; gathers over z wait for none.

    Raises:
        BadInput: torchrun made another number of ranks, or the machine cannot run as many.
        WeftError: what a rank raised, with its exit code; or a signal killed a rank: 128 + its number.
        BrokenPipeError: nobody reads what a rank prints.
        RuntimeError: any other exception of a rank, with its traceback.
        KeyboardInterrupt: Ctrl-C.
        SystemExit: SIGTERM, after the ranks have been ended; under torchrun also an error that another rank
            raises.
    """
    if device not in BACKENDS:
        raise UnknownName("device", device, BACKENDS, where="device")
    tensor_alone = layout is not None and layout.x * layout.y > 1 and layout.z * layout.data == 1
    with environment(IN_ORDER if device == "cuda" and tensor_alone else {}):
        if launched():
            _as_launched(worker, arguments, world, device, timeout_s)
        elif world == 1:
            _check_gpus(device, 1)
            worker(*arguments)
        else:
            most = RANKS_PER_CORE * cores()
            if device == "cpu" and world > most:
                raise BadInput(
                    f"{world:,} ranks are too many for {cores()} cores",
                    where="ranks",
                    remedy=f"use at most {most} on this machine, or torchrun over several",
                )
            _check_gpus(device, world)
            _start(worker, arguments, world, device, timeout_s)


def default_device(world: int) -> str:
    """``cuda`` where this machine has a GPU for each of its ranks, else ``cpu``."""
    return "cuda" if _bound() or 0 < local_ranks(world) <= gpus() else "cpu"


def _bound() -> bool:
    """Whether the launcher makes one GPU visible to each rank, its own."""
    return launched() and gpus() == 1 and any(name in os.environ for name in VISIBLE)


def local_ranks(world: int) -> int:
    """How many of the ranks run on this machine."""
    return variable("LOCAL_WORLD_SIZE", world) if launched() else world


def gpus() -> int:
    """GPUs that PyTorch can use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Inside, the process and those that it starts have these settings, unless they have others already."""
    added = [name for name in settings if name not in os.environ]
    os.environ.update({name: settings[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


# Under torchrun ----------------------------------------------------------------------------------


def _as_launched(worker: Worker, arguments: tuple[Any, ...], world: int, device: str, timeout_s: float | None) -> None:
    with said_once():
        started = variable("WORLD_SIZE", 1)
        if started != world:
            raise BadInput(
                f"{started} ranks were launched, but {world} are needed",
                where="WORLD_SIZE",
                remedy=f"launch {world} ranks, or take a layout of {started}",
            )
        _check_gpus(device, local_ranks(world))
    rank = variable("RANK", 0)
    local = variable("LOCAL_RANK", rank)
    if world == 1:
        worker(*arguments)
        return
    _join(device, rank, world, local, "env://", timeout_s)
    try:
        worker(*arguments)
    except Exception as error:
        if _others_failed():
            raise SystemExit(getattr(error, "exit_code", 1)) from None
        raise
    leave()


def _others_failed() -> bool:
    """Whether another rank has raised before this one, which then ends quietly: it met the same problem, or
    waited for the one that did."""
    with suppress(Exception):  # the store may have gone with its rank
        return bool(default_store().add(TOLD, 1) > 1)
    return False


def _check_gpus(device: str, ranks: int) -> None:
    if device == "cuda" and gpus() < ranks and not _bound():
        raise BadInput(
            f"{ranks} ranks on this machine need as many GPUs, but PyTorch sees {gpus()}",
            where="device",
            remedy="use fewer ranks, or the device cpu",
        )


def _join(device: str, rank: int, world: int, local: int, meeting: str, timeout_s: float | None) -> None:
    own = torch.device("cuda", 0 if _bound() else local) if device == "cuda" else None
    if own is not None:
        torch.cuda.set_device(own)
    timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
    dist.init_process_group(
        BACKENDS[device], init_method=meeting, rank=rank, world_size=world, device_id=own, timeout=timeout
    )


def leave() -> None:
    """Destroy the process groups while the interpreter is whole: a thread of gloo's that still holds a tensor
    when it ends aborts the process.  What refers to groups, which would outlive this, is collected before."""
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


# Processes started here --------------------------------------------------------------------------


def _start(worker: Worker, arguments: tuple[Any, ...], world: int, device: str, timeout_s: float | None) -> None:
    processes: list[SpawnProcess] = []
    with _terminated(), tempfile.TemporaryDirectory(prefix="weft-") as folder:
        try:
            with _interrupts_held():
                for rank in range(world):
                    given = (worker, arguments, rank, world, device, folder, timeout_s)
                    processes.append(multiprocessing.get_context("spawn").Process(target=_rank, args=given))
                    processes[-1].start()
            failed = _wait(processes)
            if failed is not None:
                raise _reason(failed, processes, Path(folder))
        finally:
            _end(processes)


@contextmanager
def _terminated() -> Iterator[None]:
    """Inside, SIGTERM leaves through the clean-up like Ctrl-C; the exit code is a shell's for it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C inside takes effect at the end; what is started inside holds it until it can end quietly."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    resource_tracker.ensure_running()  # its start would let Ctrl-C through
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if came:
        raise KeyboardInterrupt


def _wait(processes: list[SpawnProcess]) -> SpawnProcess | None:
    """The first process that fails, None when all have ended well."""
    alive: dict[Any, SpawnProcess] = {process.sentinel: process for process in processes}
    while alive:
        for sentinel in wait(list(alive)):
            process = alive.pop(sentinel)
            process.join()
            if process.exitcode:
                return process
    return None


def _end(processes: list[SpawnProcess]) -> None:
    """End what still runs, kindly at first."""
    for process in processes:
        process.terminate()
    last = time.monotonic() + GRACE_S
    for process in processes:
        process.join(max(last - time.monotonic(), 0.0))
        if process.is_alive():
            process.kill()
            process.join()


def _reason(failed: SpawnProcess, processes: list[SpawnProcess], folder: Path) -> BaseException:
    """Why the ranks failed: one that was killed, or the exception that was raised first."""
    for rank, process in enumerate(processes):
        if process.exitcode is not None and process.exitcode < 0:
            by = signal.Signals(-process.exitcode)
            if by == signal.SIGINT:
                return KeyboardInterrupt()
            memory = " -- if the memory ran out, use fewer ranks or a smaller problem" if by == signal.SIGKILL else ""
            killed = WeftError(f"rank {rank} was killed by {by.name}{memory}")
            killed.exit_code, killed.temporary = 128 + by, True  # as a shell has it
            return killed
    records = sorted(folder.glob("*.json"))
    if not records:
        return RuntimeError(f"rank {processes.index(failed)} ended with exit code {failed.exitcode}")
    record = json.loads(records[0].read_text(encoding="utf-8"))
    if record["broken_pipe"]:
        return BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    if record["exit_code"] is None:
        return RuntimeError(f"rank {record['rank']} failed:\n\n{record['text']}")
    kinds = {kind.exit_code: kind for kind in (BadInput, NothingFeasible)}
    error: WeftError = kinds.get(record["exit_code"], WeftError)(record["text"])
    error.exit_code, error.temporary = record["exit_code"], record["temporary"]
    return error


# In a started process ----------------------------------------------------------------------------


def _rank(
    worker: Worker,
    arguments: tuple[Any, ...],
    rank: int,
    world: int,
    device: str,
    folder: str,
    timeout_s: float | None,
) -> None:
    """One rank's process: its exception goes into the folder as text."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        if device == "cpu":
            torch.set_num_threads(max(1, cores() // world))
        _join(device, rank, world, rank, f"file://{folder}/meeting", timeout_s)
        worker(*arguments)
        leave()
    except Exception as error:
        _record(Path(folder), rank, error)
        _exit(1)
    _exit(0)


def _exit(code: int) -> NoReturn:
    """End at once, without the interpreter's clean-up (see ``leave``)."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(BrokenPipeError):
            stream.flush()
    os._exit(code)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _record(folder: Path, rank: int, error: Exception) -> None:
    """The exception as a file that sorts by time, there whole or not at all."""
    expected = isinstance(error, WeftError)
    record = {
        "rank": rank,
        "exit_code": error.exit_code if isinstance(error, WeftError) else None,
        "temporary": isinstance(error, WeftError) and error.temporary,
        "broken_pipe": isinstance(error, BrokenPipeError),
        "text": str(error) if expected else traceback.format_exc(),
    }
    name = folder / f"{time.monotonic_ns():020d}-{rank}.partial"
    name.write_text(json.dumps(record), encoding="utf-8")
    name.replace(name.with_suffix(".json"))


# A job of an arrangement -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStart:
    """What an arrangement says of a job.

    Attributes:
        hosts: the host of each rank.
        site_hosts: the names of all hosts of the site.
        traffic_class: a higher one goes first.
        offset_s: after the time at which all jobs of the arrangement begin.
        period_s: of an iteration; a job that is late begins whole iterations later.
        start_at_s: when all jobs begin, in seconds since 1970 (UTC); None begins at once.
        settings: NCCL's, by name.
        routes: of each rank, rows of collective, target and path as the arrangement has them.
    """

    arrangement: str
    job: str
    hosts: tuple[str, ...]
    site_hosts: frozenset[str]
    traffic_class: int
    offset_s: float
    period_s: float
    start_at_s: float | None
    settings: Mapping[str, str] = field(default_factory=dict)
    routes: tuple[tuple[dict[str, Any], ...], ...] = ()

    def begins_s(self, ready_s: float) -> float:
        """When the first step begins, if the last rank is ready at a time (seconds since 1970)."""
        if self.start_at_s is None:
            return ready_s
        begin = self.start_at_s + self.offset_s
        return begin + max(0, ceil((ready_s - begin) / self.period_s)) * self.period_s

    def check_host(self, rank: int) -> None:
        """Refuse a host of the site that is not the rank's.  A machine that is none of them emulates.

        Raises:
            BadInput: with both hosts.
        """
        here = socket.gethostname().partition(".")[0]
        if here in self.site_hosts and here != self.hosts[rank]:
            raise BadInput(
                f"rank {rank} runs on {here}, but {self.arrangement} puts it on {self.hosts[rank]}",
                where="--arrangement",
                remedy="start ranks in the order of its hostfile",
            )

    def begin(self, rank: int, device: torch.device, say: Callable[[str], None]) -> dict[str, Any]:
        """Wait, with all ranks, until the first step begins; ``say`` is told where and when.

        Returns:
            What this rank's process sees: its settings as its environment has them, when it was to begin, and when it
            did (seconds since 1970).
        """
        self.check_host(rank)
        ready = torch.tensor([time.time()], dtype=torch.float64, device=device)
        if dist.is_initialized():
            dist.all_reduce(ready, op=dist.ReduceOp.MAX)
        begins_s = self.begins_s(float(ready))
        say(self.words(begins_s))
        while (left := begins_s - time.time()) > 0:
            time.sleep(left)
        return {
            "rank": rank,
            "process": os.getpid(),
            "host": self.hosts[rank],
            "class": self.traffic_class,
            "offset_s": self.offset_s,
            "begins_s": begins_s,
            "began_s": time.time(),
            "settings": {name: os.environ.get(name) for name in self.settings},
            "routes": list(self.routes[rank]) if self.routes else [],
        }

    def words(self, begins_s: float) -> str:
        """Where and when the job begins, for people."""
        slots = Counter(self.hosts)
        where = ", ".join(f"{host} x{count}" for host, count in slots.items())
        late = "" if self.start_at_s is not None or not self.offset_s else " (at once: no --start-at)"
        return (
            f"{self.job} on {where}; class {self.traffic_class}, offset {format_seconds(self.offset_s)}, "
            f"begins {format_moment(begins_s)}{late}"
        )
