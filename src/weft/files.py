"""Files as Weft reads and writes them: bounded in size when read, there whole or not at all when written.

Functions raise ``BadInput`` where their input cannot be used.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from weft.errors import BadInput

LARGEST_FILE_BYTES = 256_000_000
CONFIGURATION_BYTES = 10_000_000
"""The largest file that people write by hand: configurations, clusters, constants."""
CONTROLS = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\x80-\x9f]")
"""Characters of a text that act on terminals; tab, new line, form feed and carriage return do no harm."""
_COLOURS = re.compile("\x1b\\[[0-9;]{0,16}m")
"""What colours or underlines text on terminals, as nvidia-smi does also in files."""
_EXCHANGE, _HERE = 2, -100
"""``RENAME_EXCHANGE`` and ``AT_FDCWD`` of Linux's renameat2(2)."""


def read_bytes(
    path: str | os.PathLike[str], *, where: str, largest: int = LARGEST_FILE_BYTES, remedy: str = "check the path"
) -> bytes:
    """What a file holds."""
    try:
        with open(path, "rb") as file:
            held = os.fstat(file.fileno()).st_size  # read takes memory for all that it may return
            raw = file.read(min(held, largest) + 1)
            if len(raw) > held:  # a pipe, a device, or a file that grows
                raw += file.read(largest + 1 - len(raw))
    except FileNotFoundError:
        raise BadInput("no such file", where=where, remedy=remedy) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"cannot be read: {reason}", where=where, remedy=remedy) from None
    if len(raw) > largest:
        size = f"{largest // 10**6} MB" if largest >= 10**6 else f"{largest:,} bytes"
        raise BadInput(f"is larger than {size}", where=where, remedy=remedy)
    return raw


def read_text(
    path: str | os.PathLike[str],
    *,
    where: str | None = None,
    largest: int = LARGEST_FILE_BYTES,
    remedy: str = "check the path",
    raw: bool = False,
    coloured: bool = False,
) -> str:
    """The text of a file in UTF-8, with or without a byte order mark.

    Args:
        where: how messages name the file; its path by default.
        raw: take control characters too, as a text to train on may hold them.  Otherwise they are refused: names
            in the file reach terminals.
        coloured: leave out what colours text on terminals.
    """
    where = os.fspath(path) if where is None else where
    data = read_bytes(path, where=where, largest=largest, remedy=remedy)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput("is not a text file in UTF-8", where=where, remedy=remedy) from None
    text = _COLOURS.sub("", text) if coloured else text
    if not raw and (odd := CONTROLS.search(text)):
        line = text.count("\n", 0, odd.start()) + 1
        raise BadInput(f"line {line} holds the control character {ord(odd[0]):#04x}", where=where, remedy=remedy)
    return text


@contextmanager
def refused(what: str, where: str) -> Iterator[None]:
    """Inside, what the system refuses is bad input: ``what`` cannot be done ("cannot be written"), and why."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise BadInput(f"{what}: {error.strerror or error}", where=where) from None


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with writing(path) as file:
        file.write(text.encode("utf-8", "surrogateescape"))


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file that takes its name when the block ends, and never where the block raises.

    Another process sees the file as it was or as it will be, also after a crash: the bytes are on the disk before
    the name is.  What is not a plain file (a pipe, a device) is written as it comes.
    """
    target = _target(path)
    with refused("cannot be written", os.fspath(path)):
        if target.exists() and not target.is_file():
            with target.open("wb") as file:
                yield file
            return
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
        try:
            with open(handle, "wb") as file:
                yield file
                file.flush()
                os.fchmod(file.fileno(), _mode(target))
                os.fsync(file.fileno())
            os.replace(name, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
        sync_folder(target.parent)


def write_folder(folder: str | os.PathLike[str], files: Mapping[str, bytes]) -> None:
    """Write a folder with these files and no others, whole or not at all.

    ``files`` are bytes by path below the folder.  A folder that is there is replaced if it holds no file that is
    not among them.
    """
    where = os.fspath(folder)
    target = _target(folder)
    if os.path.exists(target) and not target.is_dir():
        raise BadInput("is not a folder", where=where, remedy="name a new folder")
    with refused("cannot be written", where):
        for path in sorted(target.rglob("*")) if target.exists() else ():
            if not path.is_dir() and path.relative_to(target).as_posix() not in files:
                problem = f"holds {path.relative_to(target).as_posix()}, which is not among the files to write"
                raise BadInput(problem, where=where, remedy="name a new folder, or empty this one")
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name[:100]}.", dir=target.parent))
        try:
            for name, data in files.items():
                place = partial / name
                place.parent.mkdir(parents=True, exist_ok=True)
                with place.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            partial.chmod(_mode(target, directory=True))
            for place in {(partial / name).parent for name in files} | {partial}:
                sync_folder(place)
            _take_place(partial, target)
            sync_folder(target.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the file system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def _target(path: str | os.PathLike[str]) -> Path:
    """Where a name leads; a link to a file is kept, and the file replaced."""
    if "\0" in os.fspath(path):
        raise BadInput("cannot be written: embedded null byte", where=os.fspath(path))
    return Path(os.path.realpath(path))


def _take_place(partial: Path, target: Path) -> None:
    """Give a folder its name in one step; what had the name is afterwards called as the folder was."""
    if not target.exists():
        os.rename(partial, target)
        return
    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if exchange is None or exchange(_HERE, os.fsencode(partial), _HERE, os.fsencode(target), _EXCHANGE) != 0:
        old = Path(tempfile.mkdtemp(prefix=f".{target.name[:100]}.", dir=target.parent))
        os.rename(target, old)
        try:
            os.rename(partial, target)
        except OSError:
            os.rename(old, target)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _mode(target: Path, *, directory: bool = False) -> int:
    """Permissions of an existing file, or those that the process gives to new files."""
    with suppress(OSError):
        return target.stat().st_mode & 0o7777
    mask = os.umask(0)
    os.umask(mask)
    return (0o777 if directory else 0o666) & ~mask
