"""With which checkpoint a run goes on: one for all ranks, and the newest that is whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from weft.checkpoints import last_checkpoint, set_aside, whole_folders
from weft.errors import BadInput
from weft.runtime.checkpoints.files import Damaged
from weft.runtime.run.session import Session, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Where a run goes on; ``skipped`` are damaged checkpoints, each with what is wrong in words."""

    source: Path
    state: State
    skipped: tuple[str, ...] = ()


def load_latest(session: Session, root: Path) -> Resumed:
    """Go on from the newest checkpoint of a folder that is not damaged; every rank calls it.

    The first rank chooses; damaged ones that are newer are renamed to ``NAME.damaged``.

    Raises:
        BadInput: on every rank: there is none, all are damaged, or one is of another run.
    """
    skipped: list[str] = []
    damaged: list[Path] = []
    for source in _of_first_rank(root):
        try:
            state = session.load(source)
        except Damaged as error:
            damaged.append(source)
            skipped.append(str(error.what if error.where is None else f"{error.where}: {error.what}"))
            continue
        _set_aside(damaged)
        return Resumed(source=source, state=state, skipped=tuple(skipped))
    raise BadInput(
        f"every checkpoint is damaged; the newest: {skipped[0]}",
        where=str(root),
        remedy="begin anew in another folder",
    )


def _of_first_rank(root: Path) -> list[Path]:
    """Checkpoints as the first rank sees them, newest first."""
    found: list[object] = [None]
    if not dist.is_initialized() or dist.get_rank() == 0:
        try:
            last_checkpoint(root)
            found = [whole_folders(root)[::-1]]
        except BadInput as error:
            found = [error]
    if dist.is_initialized():
        dist.broadcast_object_list(found, src=0)
    if isinstance(found[0], BadInput):
        raise found[0]
    assert isinstance(found[0], list)
    return found[0]


def _set_aside(damaged: list[Path]) -> None:
    """Rename on the first rank; the others wait for it."""
    problem: list[object] = [None]
    if not dist.is_initialized() or dist.get_rank() == 0:
        try:
            for folder in damaged:
                set_aside(folder)
        except OSError as error:
            problem = [BadInput(f"cannot be renamed: {error.strerror}", where=str(error.filename))]
    if dist.is_initialized():
        dist.broadcast_object_list(problem, src=0)
    if isinstance(problem[0], BadInput):
        raise problem[0]
