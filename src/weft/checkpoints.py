"""Checkpoints by their names: which steps a folder holds, whole or begun.  Nothing here needs torch.

Functions raise ``BadInput`` where their input cannot be used.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from weft.errors import BadInput

STATE = "weft.json"
"""The file of a checkpoint's folder that is written with it and says that it is one."""
_SHOWN = 4


def step_folder(root: str | os.PathLike[str], step: int) -> Path:
    """Where the checkpoint after ``step`` steps lies: ``step-00000010``."""
    return Path(root) / f"step-{step:08d}"


def step_folders(root: str | os.PathLike[str]) -> dict[int, Path]:
    """What has a name of ``step_folder`` in a folder, checkpoints or not, by step."""
    if not os.path.isdir(root):
        return {}
    steps = (re.fullmatch(r"step-([0-9]{8,18})", path.name) for path in Path(root).iterdir())
    return dict(sorted((int(step[1]), Path(root) / step[0]) for step in steps if step))


def whole_folders(root: str | os.PathLike[str]) -> list[Path]:
    """The checkpoints in a folder of checkpoints, by step."""
    return [path for path in step_folders(root).values() if os.path.isfile(path / STATE)]


def latest(root: str | os.PathLike[str]) -> Path | None:
    """The checkpoint of the highest step in a folder of checkpoints; None where there is none."""
    return next(reversed(whole_folders(root)), None)


def set_aside(folder: Path) -> Path:
    """Rename a damaged checkpoint so that no run takes it for one; the new path.

    Raises:
        OSError: it cannot be renamed.
    """
    number, aside = 1, folder.with_name(f"{folder.name}.damaged")
    while os.path.lexists(aside):
        number += 1
        aside = folder.with_name(f"{folder.name}.damaged-{number}")
    return folder.rename(aside)


def remove_old(root: str | os.PathLike[str], keep: int) -> list[Path]:
    """Remove all but the newest checkpoints of a folder; those that are gone.

    What a crash leaves of one ends in ``.partial``, which the next run removes.

    Raises:
        OSError: something cannot be removed.
    """
    gone = whole_folders(root)[:-keep]
    for folder in gone:
        shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}.partial")))
    return gone


def remove_partial(root: str | os.PathLike[str]) -> None:
    """Remove what runs that were ended while saving left in a folder of checkpoints.

    Raises:
        OSError: something cannot be removed.
    """
    for path in Path(root).glob("step-*.partial"):
        shutil.rmtree(path)


def check_free(folder: Path, after: int | None) -> None:
    """Refuse a folder in which a run would meet checkpoints that are there already.

    Args:
        after: the step from which the run goes on; None starts from the beginning.
    """
    later = [path.name for step, path in step_folders(folder).items() if after is None or step > after]
    if not later:
        return
    if after is None:
        raise BadInput("holds checkpoints already", where=str(folder), remedy="give --resume, or another folder")
    listing = ", ".join(later[:_SHOWN]) + (f" and {len(later) - _SHOWN} more" if len(later) > _SHOWN else "")
    remedy = "give another --out, or move them away"
    raise BadInput(f"holds {listing}, later than step {after}", where=str(folder), remedy=remedy)


def last_checkpoint(folder: Path) -> Path:
    """The checkpoint with which a run goes on."""
    result = latest(folder)
    if result is None:
        raise BadInput("holds no checkpoint", where=str(folder), remedy="drop --resume to start from the beginning")
    return result


def check_checkpoint(folder: Path) -> None:
    """Refuse a folder that is not a checkpoint, and name those beside it."""
    if os.path.isfile(folder / STATE):
        return
    names = ", ".join(map(str, whole_folders(folder) or whole_folders(folder.parent)))
    remedy = f"there are {names}" if names else "check the path"
    raise BadInput("is not a checkpoint", where=str(folder), remedy=remedy)
