"""Checkpoints of a run: written at once or while it goes on, read back, and old ones removed."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from weft.checkpoints import remove_old
from weft.errors import BadInput
from weft.runtime.checkpoints import checkpoint
from weft.runtime.checkpoints.checkpoint import Json, Piece
from weft.runtime.run.ranks import BACKENDS


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
            self._under_way = self._thread.submit(self._write_copy, folder, pieces, dict(state), left_gpu)
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

    def _write_copy(
        self, folder: Path, pieces: Sequence[Piece], state: Mapping[str, Json], left_gpu: torch.Event | None
    ) -> None:
        self._write(folder, self._copy_of(pieces, left_gpu), state)

    def _write(self, folder: Path, pieces: Sequence[Piece], state: Mapping[str, Json]) -> None:
        checkpoint.save(folder, pieces, state, group=self._group)
        if self._keep is not None and (not dist.is_initialized() or dist.get_rank() == 0):
            try:
                remove_old(folder.parent, self._keep)
            except OSError as error:
                raise BadInput(
                    f"an old checkpoint cannot be removed: {error.strerror}", where=str(error.filename)
                ) from None
