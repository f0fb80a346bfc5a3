"""The files of a checkpoint: the values of each rank (``0.bin``), and ``tensors.json``: what lies where.

DCP's own storage unpickles its metadata; here is no pickle, so that a checkpoint of a stranger can do no more
than be refused.  Values are raw and little-endian, row by row, and each rectangle has a CRC-32.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, Any, Literal, TypeVar
from zlib import crc32

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from weft.codec import Coded, Range, decode, shown
from weft.documents import parse_json
from weft.errors import BadInput
from weft.files import read_text

INDEX = "tensors.json"
LARGEST_INDEX_BYTES = 1_000_000_000
LONGEST_NAME = 300
_READ_BYTES = 1 << 24
DTYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
}
"""Formats of values, by the name in the index."""

FORMAT = "weft checkpoint 2"
_COMPLETE = "is the checkpoint complete?"

T = TypeVar("T")


class Damaged(BadInput):
    """A checkpoint that is not what was written: incomplete, cut short or changed."""


@contextmanager
def damage() -> Iterator[None]:
    """Inside, what is refused is damage."""
    try:
        yield
    except BadInput as error:
        raise Damaged(error.what, where=error.where, remedy=error.remedy) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Where a rectangle's values lie: from byte ``start`` of a file of the checkpoint."""

    file: str
    start: int
    crc32: int


class Writer(StorageWriter):
    """DCP's storage of one rank in an existing folder."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._file = folder, f"{rank}.bin"
        self._written: list[tuple[int, int]] = []
        """Bytes and CRC-32 of each rectangle, one after the other."""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A writer writes once."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Everything is known from the start."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """This rank's rectangles, one after the other."""
        found: list[WriteResult] = []
        if plan.items:
            with (self._folder / self._file).open("xb") as file:
                for item in plan.items:
                    values = planner.resolve_data(item)
                    assert isinstance(values, Tensor)
                    raw = values.cpu().contiguous().view(-1).view(torch.uint8).numpy().data
                    stored = Extent(file=self._file, start=file.tell(), crc32=crc32(raw))
                    file.write(raw)
                    self._written.append((raw.nbytes, stored.crc32))
                    found.append(WriteResult(item.index, raw.nbytes, stored))
                file.flush()
                os.fsync(file.fileno())
        return _done(found)

    def verify(self) -> None:
        """Read this rank's file back from the disk.

        Raises:
            Damaged: it does not hold what was written.
        """
        if not self._written:
            return
        with (self._folder / self._file).open("rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):  # what is in memory says nothing of the disk
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            for size, crc in self._written:
                found = 0
                while size:
                    raw = file.read(min(size, _READ_BYTES))
                    if not raw:
                        break
                    found, size = crc32(raw, found), size - len(raw)
                if size or found != crc:
                    raise Damaged(
                        "the disk does not give back what was written",
                        where=str(self._folder / self._file),
                        remedy="save to another disk",
                    )

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """The index, on the coordinator.

        Raises:
            ValueError: a tensor has gaps or overlaps.
        """
        stored = {result.index: result.storage_data for rank in results for result in rank}
        tensors = []
        for name, tensor in sorted(metadata.state_dict_metadata.items()):
            assert isinstance(tensor, TensorStorageMetadata)
            if not _make_up(tensor.size, tensor.chunks):
                raise ValueError(f"the pieces of {name} do not make up {tuple(tensor.size)}")
            chunks = [
                {
                    "offsets": list(chunk.offsets),
                    "sizes": list(chunk.sizes),
                    "file": stored[MetadataIndex(name, chunk.offsets)].file,
                    "start": stored[MetadataIndex(name, chunk.offsets)].start,
                    "crc32": stored[MetadataIndex(name, chunk.offsets)].crc32,
                }
                for chunk in tensor.chunks
            ]
            dtype = str(tensor.properties.dtype).removeprefix("torch.")
            tensors.append({"name": name, "dtype": dtype, "shape": list(tensor.size), "chunks": chunks})
        table = {"format": FORMAT, "tensors": tensors}
        text = json.dumps(table, separators=(",", ":"))
        write_text(self._folder / INDEX, text, largest=LARGEST_INDEX_BYTES)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


class FolderReader(StorageReader):
    """DCP's storage over a folder whose index has been read."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        self._folder, self._metadata = folder, metadata

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A reader reads one checkpoint."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Everything is known from the start."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Every rectangle that the plan needs a part of, once.

        Raises:
            Damaged: a file ends early or its values are not those that were written.
        """
        wanted: dict[MetadataIndex, list[ReadItem]] = {}
        for item in plan.items:
            wanted.setdefault(item.storage_index, []).append(item)
        places = [(self._metadata.storage_data[index], index) for index in wanted]
        for stored, index in sorted(places, key=lambda place: (place[0].file, place[0].start)):
            values = self._values(stored, index)
            for item in wanted[index]:
                target = planner.resolve_tensor(item)
                target.copy_(values[_within(item.storage_offsets, item.lengths)])
                planner.commit_tensor(item, target)
        return _done(None)

    def whole(self, name: str) -> Tensor:
        """A tensor from all its rectangles.

        Raises:
            Damaged: as ``read_data``.
        """
        tensor = self._metadata.state_dict_metadata[name]
        assert isinstance(tensor, TensorStorageMetadata)
        found = torch.empty(tensor.size, dtype=tensor.properties.dtype)
        for number, chunk in enumerate(tensor.chunks):
            index = MetadataIndex(name, chunk.offsets, number)
            values = self._values(self._metadata.storage_data[index], index)
            found[_within(chunk.offsets, chunk.sizes)] = values
        return found

    def _values(self, stored: Extent, index: MetadataIndex) -> Tensor:
        tensor = self._metadata.state_dict_metadata[index.fqn]
        assert isinstance(tensor, TensorStorageMetadata)
        assert index.index is not None
        dtype, sizes = tensor.properties.dtype, tensor.chunks[index.index].sizes
        raw = bytearray(prod(sizes) * dtype.itemsize)
        with (self._folder / stored.file).open("rb") as file:
            file.seek(stored.start)
            read = file.readinto(raw)
        if read != len(raw) or crc32(raw) != stored.crc32:
            raise Damaged(
                f"the values of {index.fqn} from byte {stored.start} are damaged",
                where=str(self._folder / stored.file),
                remedy="take another checkpoint",
            )
        return torch.frombuffer(raw, dtype=dtype).view(sizes)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def _done(result: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(result)
    return future


def _within(offsets: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))


def read_metadata(folder: Path, names: Iterable[str] | None = None) -> Metadata:
    """What the index says about some tensors (all without ``names``), checked: their rectangles make them up
    and the files hold them.

    Raises:
        Damaged: no index, none that can be read, gaps or overlaps, or a file that is absent or short.
        BadInput: an index of another format, or without one of the names.
    """
    where = str(folder / INDEX)
    with damage():
        check_plain(folder / INDEX)
        text = read_text(folder / INDEX, where=where, largest=LARGEST_INDEX_BYTES)
        table = parse_json(text, where)
    check_format(table, where)
    with damage():
        listed = decode(tuple[TensorEntry, ...], table.get("tensors"), f"{where}: tensors")
        tensors = {tensor.name: tensor for tensor in listed}
    wanted = sorted(tensors if names is None else set(names))
    missing = [name for name in wanted if name not in tensors]
    if missing:
        shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        raise BadInput(f"has no {shown}", where=str(folder), remedy="is it a checkpoint of this model?")
    metadata = Metadata({}, storage_data={})
    lengths: dict[str, int] = {}
    for name in wanted:
        tensor = tensors[name]
        with damage():
            _check(tensor, folder, lengths)
        chunks = [ChunkStorageMetadata(torch.Size(c.offsets), torch.Size(c.sizes)) for c in tensor.chunks]
        metadata.state_dict_metadata[name] = TensorStorageMetadata(
            TensorProperties(dtype=DTYPES[tensor.dtype]), torch.Size(tensor.shape), chunks
        )
        for chunk in tensor.chunks:
            stored = Extent(file=chunk.file, start=chunk.start, crc32=chunk.crc32)
            metadata.storage_data[MetadataIndex(name, chunk.offsets)] = stored
    return metadata


def check_format(table: object, where: str) -> None:
    """Refuse a file of another format.

    Raises:
        BadInput: it is not of ``FORMAT``.
    """
    if not isinstance(table, dict):
        raise BadInput("is not a table of fields", where=where)
    if table.get("format") != FORMAT:
        raise BadInput(
            f"is not of the format {FORMAT!r}",
            where=where,
            remedy="load it with the version of Weft that wrote it, or begin anew",
        )


def check_plain(path: Path) -> None:
    """Refuse what is not a file itself: a link, a folder, a pipe.

    Raises:
        BadInput: no such file, or something else.
    """
    try:
        plain = S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        raise BadInput("no such file", where=str(path), remedy=_COMPLETE) from None
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=str(path)) from None
    if not plain:
        raise BadInput("is not a file", where=str(path), remedy=_COMPLETE)


def write_text(path: Path, text: str, *, largest: int) -> None:
    """A new file, on disk when this returns.

    Raises:
        BadInput: the text is too large to be read back.
        OSError: it cannot be written.
    """
    raw = text.encode()
    if len(raw) > largest:
        raise BadInput(f"{len(raw)} bytes are more than {largest}", where=str(path))
    with path.open("xb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())


def checked_name(text: str) -> str:
    """A tensor's name that an index can have.

    Raises:
        ValueError: it is empty, too long or cannot be printed.
    """
    if not 0 < len(text) <= LONGEST_NAME:
        raise ValueError(f"has {len(text)} characters, 1 to {LONGEST_NAME} can be saved")
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed")
    return text


def _own_file(name: object) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[0-9]{1,9}\.bin", name):
        raise BadInput(f"{shown(name)} is not the name of a checkpoint's file")
    return name


_Size = Annotated[int, Range(0, 2**48)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkEntry:
    """A rectangle of a tensor, as an index has it."""

    offsets: tuple[_Size, ...]
    sizes: tuple[Annotated[int, Range(1, 2**48)], ...]
    file: Annotated[str, Coded(_own_file, shape=str)]
    start: Annotated[int, Range(0, 2**62)]
    crc32: Annotated[int, Range(0, 2**32, below=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """A tensor, as an index has it."""

    name: Annotated[str, Range(1, LONGEST_NAME)]
    dtype: Literal["float64", "float32", "bfloat16", "float16"]
    shape: Annotated[tuple[_Size, ...], Range(1, 2)]
    chunks: tuple[ChunkEntry, ...]


def _check(tensor: TensorEntry, folder: Path, lengths: dict[str, int]) -> None:
    """Refuse a tensor that its files cannot hold; ``lengths`` of files are kept, in bytes."""
    if not _make_up(tensor.shape, tensor.chunks):
        shape = " x ".join(map(str, tensor.shape))
        raise BadInput(
            f"the pieces of {tensor.name} leave gaps in its {shape} or overlap",
            where=str(folder / INDEX),
            remedy=_COMPLETE,
        )
    for chunk in tensor.chunks:
        if chunk.file not in lengths:
            check_plain(folder / chunk.file)
            lengths[chunk.file] = (folder / chunk.file).stat().st_size
        stop = chunk.start + prod(chunk.sizes) * DTYPES[tensor.dtype].itemsize
        if stop > lengths[chunk.file]:
            raise BadInput(
                f"ends at byte {lengths[chunk.file]}, but {tensor.name} needs {stop}",
                where=str(folder / chunk.file),
                remedy=_COMPLETE,
            )


def _make_up(shape: Sequence[int], chunks: Sequence[ChunkStorageMetadata | ChunkEntry]) -> bool:
    """Whether the rectangles are the whole, each element once.

    A sum of rectangles is known by its corners, counted with alternating signs (its mixed derivative): those
    of the pieces must cancel to those of the whole.
    """
    corners: Counter[tuple[int, ...]] = Counter()
    pieces = [(chunk.offsets, chunk.sizes, 1) for chunk in chunks]
    for offsets, sizes, weight in [([0] * len(shape), shape, -1), *pieces]:
        if not len(offsets) == len(sizes) == len(shape):
            return False
        edges = [((low, 1), (low + size, -1)) for low, size in zip(offsets, sizes, strict=True)]
        for corner in product(*edges):
            corners[tuple(at for at, _ in corner)] += weight * prod(sign for _, sign in corner)
    return not any(corners.values())
