"""Machine code of kernels on disk, in files that are read only where they are whole and made of these sources.

numba's own index of files is not used.  It trusts what it reads, and LLVM ends the process over bytes that are
no machine code; and an index that one process writes may lead to a file that another one has written.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

from weft.solvers.compiling import FOR_GOOD, FOR_NOW, NOT_KEPT, tell

numba: Any = import_module("numba")
llvmlite: Any = import_module("llvmlite")
caching: Any = import_module("numba.core.caching")
serialize: Any = import_module("numba.core.serialize")

SEAL_BYTES = sha256().digest_size


@cache
def stamp(folder: Path) -> tuple[object, ...]:
    """State of all that a folder's kernels are compiled by and from: its sources, and those of the solvers."""
    files = sorted({*folder.glob("_*.py"), *Path(__file__).parent.glob("_*.py")})
    states = [(file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    return (numba.__version__, llvmlite.__version__, *states)


def described(key: tuple[Any, ...]) -> str:
    """The key of a compiled kernel in words, with what the names of its types leave out: the fields of records."""
    types, *machine = key
    return repr([[(str(one), getattr(one, "fields", None)) for one in types], machine])


class SealedFiles:
    """One file for each key: a seal, then the data.

    The seal is a digest of the data, of the key and of what the data were made from.  A file whose seal is
    another one is stale or damaged, and counts as none; the next ``save`` replaces it.
    """

    def __init__(self, folder: str, name: str, made_from: tuple[object, ...]) -> None:
        self.folder, self.name, self.made_from = Path(folder), name, made_from

    def path(self, key: tuple[Any, ...]) -> Path:
        return self.folder / f"{self.name}.{sha256(described(key[:-1]).encode()).hexdigest()[:16]}.nbc"

    def _seal(self, key: tuple[Any, ...], data: bytes) -> bytes:
        made = sha256(repr((described(key), self.made_from)).encode())
        made.update(data)
        return made.digest()

    def load(self, key: tuple[Any, ...]) -> Any:
        """What was saved for a key; None if nothing was that can be used."""
        try:
            held = self.path(key).read_bytes()
        except OSError:
            return None
        seal, data = held[:SEAL_BYTES], held[SEAL_BYTES:]
        return pickle.loads(data) if seal == self._seal(key, data) else None

    def save(self, key: tuple[Any, ...], data: Any) -> None:
        """Put data in place, whole: whoever reads meanwhile finds the old file or this one."""
        held = serialize.dumps(data)
        draft = self.folder / f"{self.name}.{uuid4().hex}.tmp"
        try:
            draft.write_bytes(self._seal(key, held) + held)
            draft.replace(self.path(key))
        except BaseException:
            with suppress(OSError):
                draft.unlink()
            raise

    def flush(self) -> None:
        """Remove the files of this kernel."""
        for path in self.folder.glob(f"{self.name}.*.nbc"):
            path.unlink(missing_ok=True)


class _Kept(caching.FunctionCache):  # type: ignore[misc]
    """The machine code of one kernel, in sealed files."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)
        made_from = stamp(Path(function.__code__.co_filename).parent)
        self._cache_file = SealedFiles(self._cache_path, self._impl.filename_base, made_from)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            found = super().load_overload(sig, target_context)
        except Exception:  # what the data refer to may have moved
            found = None
        if found is None:
            tell(FOR_GOOD)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            tell(NOT_KEPT.format(reason=error.strerror or error))


class _NotKept(caching.NullCache):  # type: ignore[misc]
    """For where no folder can be written."""

    def load_overload(self, sig: Any, target_context: Any) -> None:
        tell(FOR_NOW)


def kept(function: Callable[..., object]) -> Any:
    """Where the machine code of a kernel is looked for, and put."""
    try:
        return _Kept(function)
    except RuntimeError:
        return _NotKept()


def cache_folder() -> Path | None:
    """The folder under which the machine code of Weft's kernels is kept; None where none can be written."""
    path = kept(described).cache_path
    if path is None:
        return None
    package = Path(__file__).parents[1]
    return package if package in Path(path).parents else Path(path).parent
