"""The folder of a training run: one run at a time, its checkpoints, and metrics that hold each step once."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor

from weft.checkpoints import remove_old, remove_partial
from weft.errors import BadInput, MissingExtra
from weft.files import read_text, refused, write_text
from weft.runtime.checkpoints import checkpoint
from weft.runtime.checkpoints.checkpoint import Json, Piece
from weft.runtime.run.ranks import BACKENDS

LOCK = ".weft-lock"
LARGEST_METRICS_BYTES = 4_000_000_000
_RECORD = '{"step"'
"""How each record begins."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder, keep other runs out of it, and remove what a run that was ended while saving left.

    The lock ends with its process, however that ends.

    Raises:
        BadInput: another run has the folder, or it cannot be written.
    """
    with refused("cannot be written", str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with refused("cannot be written", str(folder)):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                remedy = "end it, or give another folder"
                raise BadInput("another run writes there", where=str(folder), remedy=remedy) from None
            remove_partial(folder)
        yield
    finally:
        os.close(handle)


@contextmanager
def metrics_file(path: Path, after: int) -> Iterator[IO[str]]:
    """A file of JSON lines to which the records of a run's steps are added.

    Args:
        after: steps done; records of later steps, and a last line that a crash cut off, are dropped.

    Raises:
        BadInput: it cannot be written, or holds something else.
    """
    kept = _kept(path, after) if os.path.isfile(path) else ""
    with refused("cannot be written", str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.exists(path) and not os.path.isfile(path):
            file = path.open("w", encoding="utf-8")
        else:
            write_text(path, kept)
            file = path.open("a", encoding="utf-8")
    try:
        yield file
    finally:
        with suppress(OSError):  # each record has been written, or its problem told
            file.close()


def write_record(file: IO[str], record: Mapping[str, Any]) -> None:
    """One line, there when this returns; every number is finite.

    Raises:
        BadInput: it cannot be written.
    """
    with refused("cannot be written", str(file.name)):
        file.write(json.dumps(dict(record), allow_nan=False) + "\n")
        file.flush()


@contextmanager
def tensorboard_log(folder: str, after: int) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function that tells TensorBoard the numbers of a step's record; those after step ``after`` are dropped.

    Raises:
        BadInput: it cannot be written.
        MissingExtra: TensorBoard is not installed.
    """
    try:
        with refused("cannot be written", folder):
            writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(log_dir=folder, purge_step=after + 1)
    except ImportError:
        raise MissingExtra("--tensorboard", "tensorboard") from None

    def tell(record: Mapping[str, Any]) -> None:
        numbers = {name: value for name, value in record.items() if isinstance(value, int | float) and name != "step"}
        timed = [axis for axis in record.get("axes", ()) if "exposed_s" in axis]
        numbers |= {f"exposed_s/{' '.join(axis['axes'])}": axis["exposed_s"] for axis in timed}
        for name, value in numbers.items():
            writer.add_scalar(name, float(value), record["step"])
        writer.flush()

    with closing(writer):
        yield tell


def _kept(path: Path, after: int) -> str:
    """The lines of steps that the run has done."""
    lines = read_text(path, where=str(path), largest=LARGEST_METRICS_BYTES).splitlines(keepends=True)
    kept = []
    for number, line in enumerate(lines, 1):
        try:
            step = json.loads(line)["step"]
        except (ValueError, TypeError, KeyError, RecursionError):
            step = None
        if isinstance(step, int) and line.endswith("\n"):
            kept.append(line if step <= after else "")
        elif line.endswith("\n") or not (kept or _RECORD.startswith(line[: len(_RECORD)])):
            raise BadInput(
                f"line {number} is not a record of a step", where=str(path), remedy="name another --metrics"
            )
    return "".join(kept)


# Checkpoints -------------------------------------------------------------------------------------


class CheckpointSaving:
    """Writes the checkpoints of one run; every rank has one and calls it alike.

    In the background a thread of each rank copies the values, while the run computes the gradients of the next step,
    and writes the copy over a separate process group; one checkpoint is under way at a time.  The run calls ``hold``
    before it changes values.  Either way a checkpoint gets its name when what was written has been read back.
    ``async_save`` of PyTorch would let the run stand until all values are copied.

    Args:
        background: go on while a checkpoint is written.
        keep: how many checkpoints of the folder stay; None keeps all.

    Attributes:
        held_s: how long ``hold`` made the run wait since the last ``save``.
    """

    def __init__(self, *, background: bool = False, keep: int | None = None) -> None:
        self._keep = keep
        self._thread = ThreadPoolExecutor(1, "weft-checkpoint") if background else None
        self._group: dist.ProcessGroup | None = None
        if background and dist.is_initialized():
            self._group = dist.new_group(list(range(dist.get_world_size())), backend=BACKENDS["cpu"])
        self._copies: dict[tuple[str, int], Tensor] = {}
        self._copied = threading.Event()
        self._copied.set()
        self._stream: torch.Stream | None = None
        """On which values leave a GPU."""
        self._under_way: Future[None] | None = None
        self.held_s = 0.0

    def save(self, folder: Path, pieces: Sequence[Piece], state: Mapping[str, Json]) -> float:
        """Save a checkpoint; how long the run stood still for it, in seconds.

        Raises:
            BadInput: on every rank: as ``checkpoint.save``, also of the one before.
        """
        start = perf_counter()
        self.wait()
        self.held_s = 0.0
        if self._thread is None:
            self._write(folder, pieces, state)
        else:
            left_gpu = self._left_gpu(pieces)
            self._copied.clear()
            state = dict(state)
            self._under_way = self._thread.submit(lambda: self._write(folder, self._copy_of(pieces, left_gpu), state))
        return perf_counter() - start

    def hold(self) -> None:
        """Return when values may change: those of the checkpoint under way have been copied."""
        if self._copied.is_set():
            return
        start = perf_counter()
        if self._stream is not None:
            torch.accelerator.current_stream().wait_stream(self._stream)  # the host goes on
        else:
            self._copied.wait()
        self.held_s += perf_counter() - start

    def wait(self) -> None:
        """Return when nothing is being written any more.

        Raises:
            BadInput: on every rank: it could not be written.
        """
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def _left_gpu(self, pieces: Sequence[Piece]) -> torch.Event | None:
        """Values of a GPU are on their way to the host, on a separate stream, until the event."""
        device = next((piece.values.device for piece in pieces if piece.values.is_cuda), None)
        if device is None:
            return None
        self._stream = self._stream or torch.Stream(device)
        self._stream.wait_stream(torch.accelerator.current_stream(device))
        with self._stream:
            for piece in pieces:
                self._copied_values(piece)
        event: torch.Event = self._stream.record_event()
        return event

    def _copied_values(self, piece: Piece) -> Tensor:
        """A piece's values in memory of the host that is taken once."""
        values = piece.values.detach()
        key = piece.name, piece.placement.start
        if key not in self._copies:
            self._copies[key] = torch.empty(values.shape, dtype=values.dtype, pin_memory=not values.is_cpu)
        return self._copies[key].copy_(values, non_blocking=True)

    def _copy_of(self, pieces: Sequence[Piece], left_gpu: torch.Event | None) -> list[Piece]:
        """The pieces as they are now; those of a GPU have left it."""
        try:
            if left_gpu is None:
                return [replace(piece, values=self._copied_values(piece)) for piece in pieces]
            left_gpu.synchronize()
            return [replace(piece, values=self._copies[piece.name, piece.placement.start]) for piece in pieces]
        finally:
            self._copied.set()

    def _write(self, folder: Path, pieces: Sequence[Piece], state: Mapping[str, Json]) -> None:
        checkpoint.save(folder, pieces, state, group=self._group)
        if self._keep is not None and (not dist.is_initialized() or dist.get_rank() == 0):
            try:
                remove_old(folder.parent, self._keep)
            except OSError as error:
                raise BadInput(
                    f"an old checkpoint cannot be removed: {error.strerror}", where=str(error.filename)
                ) from None
