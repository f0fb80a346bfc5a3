"""Checkpoints of a run: written at once or while it goes on, read back, and old ones removed."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
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


class Saving:
    """Writes the checkpoints of one run; every rank has one and calls it alike.

    In the background a thread of each rank writes a copy of the values, over a process group of its own, and one
    checkpoint is under way at a time.  Either way a checkpoint gets its name when what was written has been read back.

    Args:
        background: go on while a checkpoint is written.
        keep: how many checkpoints of the folder stay; None keeps all.
    """

    def __init__(self, *, background: bool = False, keep: int | None = None) -> None:
        self._background, self._keep = background, keep
        self._group: dist.ProcessGroup | None = None
        if background and dist.is_initialized():
            self._group = dist.new_group(list(range(dist.get_world_size())), backend=BACKENDS["cpu"])
        self._copies: dict[tuple[str, int], Tensor] = {}
        self._thread: threading.Thread | None = None
        self._problem: BaseException | None = None

    def save(self, folder: Path, pieces: Sequence[Piece], state: Mapping[str, Json]) -> float:
        """Save a checkpoint; how long the run stood still for it, in seconds.

        Raises:
            BadInput: on every rank: as ``checkpoint.save``, also of the one before.
        """
        start = perf_counter()
        self.wait()
        if not self._background:
            self._write(folder, pieces, state)
            return perf_counter() - start
        copied = [replace(piece, values=self._copied(piece)) for piece in pieces]
        if any(piece.values.is_cuda for piece in pieces):
            torch.cuda.synchronize()
        self._thread = threading.Thread(target=self._try, args=(folder, copied, dict(state)), name="weft-checkpoint")
        self._thread.start()
        return perf_counter() - start

    def wait(self) -> None:
        """Return when nothing is being written any more.

        Raises:
            BadInput: on every rank: it could not be written.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def _copied(self, piece: Piece) -> Tensor:
        """A piece's values in memory of the host that is taken once."""
        values = piece.values.detach()
        key = piece.name, piece.placement.start
        if key not in self._copies:
            self._copies[key] = torch.empty(values.shape, dtype=values.dtype, pin_memory=not values.is_cpu)
        return self._copies[key].copy_(values, non_blocking=True)

    def _try(self, folder: Path, pieces: Sequence[Piece], state: Mapping[str, Json]) -> None:
        try:
            self._write(folder, pieces, state)
        except BaseException as error:  # raised where the run next saves or waits
            self._problem = error

    def _write(self, folder: Path, pieces: Sequence[Piece], state: Mapping[str, Json]) -> None:
        checkpoint.save(folder, pieces, state, group=self._group)
        if self._keep is not None and (not dist.is_initialized() or dist.get_rank() == 0):
            try:
                remove_old(folder.parent, self._keep)
            except OSError as error:
                raise BadInput(
                    f"an old checkpoint cannot be removed: {error.strerror}", where=str(error.filename)
                ) from None
