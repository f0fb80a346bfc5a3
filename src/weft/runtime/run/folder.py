"""The folder of a training run: one run at a time, its checkpoints, and metrics that hold each step once."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from weft.checkpoints import remove_partial
from weft.errors import BadInput, MissingExtra
from weft.files import read_text, write_text

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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=str(folder)) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_partial(folder)
        except BlockingIOError:
            raise BadInput(
                "another run writes there", where=str(folder), remedy="end it, or give another folder"
            ) from None
        except OSError as error:
            raise BadInput(f"cannot be written: {error.strerror}", where=str(folder)) from None
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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.exists(path) and not os.path.isfile(path):
            file = path.open("w", encoding="utf-8")
        else:
            write_text(path, kept)
            file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=str(path)) from None
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
    try:
        file.write(json.dumps(dict(record), allow_nan=False) + "\n")
        file.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=str(file.name)) from None


@contextmanager
def tensorboard_log(folder: str, after: int) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function that tells TensorBoard the numbers of a step's record; those after step ``after`` are dropped.

    Raises:
        BadInput: it cannot be written.
        MissingExtra: TensorBoard is not installed.
    """
    try:
        writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(log_dir=folder, purge_step=after + 1)
    except ImportError:
        raise MissingExtra("--tensorboard", "tensorboard") from None
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=folder) from None

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
