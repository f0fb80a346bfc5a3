"""Checkpoints that load on any other grid, and on one rank: DCP plans who writes and reads which rectangle.

A checkpoint is a folder with ``weft.json`` (the state and its digest), ``tensors.json`` (what lies where) and the
values of each rank (``0.bin``), raw and little-endian, row by row, with a CRC-32 for each rectangle.  It appears under
its name when it is complete, and never before.

The files are our own: DCP's storage unpickles its metadata, so that a stranger's checkpoint could do more than be
refused, its Hugging Face storage takes one rectangle of a tensor per rank, and neither has checksums.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b, file_digest
from itertools import chain, product
from math import prod
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load as load_planned
from torch.distributed.checkpoint.state_dict_saver import save as save_planned
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from weft.checkpoints import STATE
from weft.codec import Coded, Range, decode, shown
from weft.documents import parse_json
from weft.errors import BadInput
from weft.files import read_text, sync_folder, write_text
from weft.runtime.core.placement import FlatRange

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"

FORMAT = "weft checkpoint 2"
INDEX = "tensors.json"
MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's state per parameter, under PyTorch's names: a piece is called ``NAME`` or ``NAME/MOMENT``."""
DTYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
}
"""Formats of values, by the name in the index."""
LARGEST_STATE_BYTES = 16_000_000
LARGEST_INDEX_BYTES = 1_000_000_000
LONGEST_NAME = 300
_COMPLETE = "is the checkpoint complete?"

T = TypeVar("T")


class Damaged(BadInput):
    """A checkpoint that is not what was written: incomplete, cut short or changed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """A rank's piece of a parameter, or of an optimizer's moment of it.

    Attributes:
        name: of the complete parameter or moment ("blocks.0.qkv.weight", "blocks.0.qkv.weight/exp_avg").
        values: shape (placement.stop - placement.start,), contiguous, in a format of ``DTYPES``.
        placement: where element i, position ``placement.start`` + i of the flat block, lies in the parameter.

    Raises:
        BadInput: the name cannot be saved.
        ValueError: the values do not fit the placement, or are of another format.
    """

    name: str
    values: Tensor
    placement: FlatRange

    def __post_init__(self) -> None:
        problem = "" if self.name.isprintable() else "has characters that cannot be printed"
        if not 0 < len(self.name) <= LONGEST_NAME:
            problem = f"has {len(self.name)} characters, 1 to {LONGEST_NAME} can be saved"
        if problem:
            raise BadInput(f"its name {problem}", where=f"parameter {self.name[:60]!r}", remedy="rename it")
        size = self.placement.stop - self.placement.start
        if self.values.shape != (size,) or not self.values.is_contiguous():
            raise ValueError(f"{self.name}: {tuple(self.values.shape)} values for {size} places")
        if self.values.dtype not in DTYPES.values():
            raise ValueError(f"{self.name}: {self.values.dtype} is none of {', '.join(DTYPES)}")

    def views(self) -> Iterator[tuple[ChunkStorageMetadata, Tensor]]:
        """The piece as rectangles of the parameter, each with a view of its values; padding is left out."""
        for rectangle in self.placement.rectangles():
            sizes, start = torch.Size(rectangle.sizes), rectangle.start
            values = self.values.detach()[start : start + sizes.numel()].view(sizes)
            yield ChunkStorageMetadata(torch.Size(rectangle.offsets), sizes), values


def save(
    folder: str | os.PathLike[str],
    pieces: Sequence[Piece],
    state: Mapping[str, Json],
    *,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Write a checkpoint; every rank calls it, on one file system, with its own pieces and the same state.

    What several ranks hold is written once, and read back before the folder gets its name.  A folder that exists is
    never replaced; what a crash left in ``folder.partial`` is.

    Args:
        group: of all ranks, for what they tell each other; where other threads communicate, one of its own.

    Raises:
        BadInput: on every rank: the folder exists or cannot be written, or the state is too large.
        Damaged: on every rank: what was read back is not what was written.
        ValueError: the pieces leave gaps in a tensor, or the state is not JSON.
    """
    path = Path(folder)
    partial = path.parent / f"{path.name}.partial"
    table = {"format": FORMAT, "digest": _digest(state), "state": dict(state)}
    rank = dist.get_rank() if dist.is_initialized() else 0

    def begin() -> None:
        if path.exists():
            raise BadInput("exists already", where=str(path), remedy="remove it or save to another folder")
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
        _write_table(partial / STATE, table, LARGEST_STATE_BYTES)

    def finish() -> None:
        sync_folder(partial)
        partial.rename(path)
        sync_folder(path.parent)

    _together(path, lambda: begin() if rank == 0 else None, group)
    writer = _Writer(partial, rank)
    with _planned(path):
        save_planned({}, storage_writer=writer, planner=_SavePlanner(pieces), process_group=group)
    _together(path, writer.verify, group)
    _together(path, lambda: finish() if rank == 0 else None, group)


def load(
    folder: str | os.PathLike[str],
    pieces: Sequence[Piece],
    accept: Callable[[Mapping[str, Json]], None] = lambda state: None,
) -> dict[str, Json]:
    """Fill the pieces' values from a checkpoint of any grid; every rank calls it.  Padding keeps its values.

    Args:
        accept: called with the state before any value is filled; raises ``BadInput`` to refuse it.

    Returns:
        The state, as JSON gives it (lists for tuples).

    Raises:
        Damaged: on every rank: the checkpoint is not what was written; values may have been filled.
        BadInput: on every rank, before any value is filled: the folder is no checkpoint, lacks a tensor, has it
            in another shape or format, or ranks have different ones.
    """
    path = Path(folder)

    def look() -> tuple[dict[str, Json], dict[str, TensorEntry]]:
        state = read_state(path)
        accept(state)
        return state, _entries_for(path, pieces)

    state, entries = _together(path, look)
    _check_same(path, state)
    reader = FolderReader(path, entries)
    with _planned(path):
        load_planned({}, storage_reader=reader, planner=_LoadPlanner(pieces, reader.read_metadata()))
    return state


def read_state(folder: str | os.PathLike[str]) -> dict[str, Json]:
    """The state of a checkpoint alone.

    Raises:
        Damaged: its state is no JSON, too large or not what was written.
        BadInput: no such folder, it is no checkpoint or one of another format.
    """
    path = Path(folder)
    if not path.is_dir():
        raise BadInput("no such folder", where=str(path), remedy="check the path of the checkpoint")
    if not os.path.lexists(path / STATE):
        raise BadInput(f"is not a checkpoint: it has no {STATE}", where=str(path))
    table = _read_table(path / STATE, LARGEST_STATE_BYTES)
    state = table.get("state")
    if not isinstance(state, dict) or table.get("digest") != _digest(state):
        raise Damaged("the state is damaged", where=str(path / STATE), remedy="take another checkpoint")
    return state


def _digest(state: Mapping[str, Json]) -> str:
    """BLAKE2b of the state as JSON in one way of writing it."""
    text = json.dumps(dict(state), allow_nan=False, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).hexdigest()


# Plans -------------------------------------------------------------------------------------------


class _SavePlanner(DefaultSavePlanner):
    """Offers this rank's rectangles; DCP's own planner drops copies."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._items: dict[MetadataIndex, WriteItem] = {}
        self._values: dict[MetadataIndex, Tensor] = {}
        for piece in pieces:
            size = torch.Size(piece.placement.shape)
            for chunk, values in piece.views():
                index = MetadataIndex(piece.name, chunk.offsets)
                data = TensorWriteData(chunk, TensorProperties(dtype=values.dtype), size)
                self._items[index] = WriteItem(index, WriteItemType.SHARD, tensor_data=data)
                self._values[index] = values

    def create_local_plan(self) -> SavePlan:
        return SavePlan(list(self._items.values()))

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        return self._values[write_item.index]


class _LoadPlanner(DefaultLoadPlanner):
    """Asks for what fills this rank's rectangles."""

    def __init__(self, pieces: Sequence[Piece], metadata: Metadata) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._stored = metadata.state_dict_metadata
        self._targets: defaultdict[str, list[tuple[ChunkStorageMetadata, Tensor]]] = defaultdict(list)
        for piece in pieces:
            self._targets[piece.name] += piece.views()

    def create_local_plan(self) -> LoadPlan:
        items: list[ReadItem] = []
        for name, targets in self._targets.items():
            stored = cast(TensorStorageMetadata, self._stored[name])
            items += create_read_items_for_chunk_list(name, stored, [chunk for chunk, _ in targets])
        return LoadPlan(items)

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        position = read_item.dest_index.index
        assert position is not None
        _, values = self._targets[read_item.dest_index.fqn][position]
        return values[_within(read_item.dest_offsets, read_item.lengths)]


# Files -------------------------------------------------------------------------------------------


def _file_name(name: object) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[0-9]{1,9}\.bin", name):
        raise BadInput(f"{shown(name)} is not the name of a checkpoint's file")
    return name


_Size = Annotated[int, Range(0, 2**48)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkEntry:
    """A rectangle of a tensor, whose values lie from byte ``start`` of a file on."""

    offsets: tuple[_Size, ...]
    sizes: tuple[Annotated[int, Range(1, 2**48)], ...]
    file: Annotated[str, Coded(_file_name, shape=str)]
    start: Annotated[int, Range(0, 2**62)]
    crc32: Annotated[int, Range(0, 2**32, below=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """A tensor, as an index has it."""

    name: Annotated[str, Range(1, LONGEST_NAME)]
    dtype: Literal["float64", "float32", "bfloat16", "float16"]
    shape: Annotated[tuple[_Size, ...], Range(1, 2)]
    chunks: tuple[ChunkEntry, ...]

    @property
    def format(self) -> torch.dtype:
        return DTYPES[self.dtype]

    def is_filled(self) -> bool:
        """Whether the chunks cover each element once.

        A sum of rectangles is known by its corners, counted with alternating signs (its mixed derivative): those of
        the chunks must cancel to those of the tensor.
        """
        corners: Counter[tuple[int, ...]] = Counter()
        chunks = [(chunk.offsets, chunk.sizes, 1) for chunk in self.chunks]
        for offsets, sizes, weight in [((0,) * len(self.shape), self.shape, -1), *chunks]:
            if not len(offsets) == len(sizes) == len(self.shape):
                return False
            edges = [((low, 1), (low + size, -1)) for low, size in zip(offsets, sizes, strict=True)]
            for corner in product(*edges):
                corners[tuple(place for place, _ in corner)] += weight * prod(sign for _, sign in corner)
        return not any(corners.values())


class _Writer(FileSystemWriter):
    """Writes one rank's file into an existing folder, and on the coordinator the index."""

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__(folder)
        self._folder, self._file = folder, folder / f"{rank}.bin"
        self._written: list[tuple[int, int]] = []
        """Bytes and CRC-32 of each rectangle, one after the other."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results = []
        if plan.items:
            with self._file.open("xb") as file:
                for item in plan.items:
                    values = planner.resolve_data(item)
                    assert isinstance(values, Tensor)
                    assert item.tensor_data is not None
                    raw = raw_bytes(values.cpu())
                    self._written.append((raw.nbytes, crc32(raw)))
                    entry = ChunkEntry(
                        offsets=tuple(item.tensor_data.chunk.offsets),
                        sizes=tuple(item.tensor_data.chunk.sizes),
                        file=self._file.name,
                        start=file.tell(),
                        crc32=self._written[-1][1],
                    )
                    file.write(raw)
                    results.append(WriteResult(item.index, raw.nbytes, entry))
                file.flush()
                os.fsync(file.fileno())
        return _done(results)

    def verify(self) -> None:
        """Read this rank's file back from the disk.

        Raises:
            Damaged: it does not hold what was written.
        """
        if not self._written:
            return
        with self._file.open("rb") as file:
            if hasattr(os, "posix_fadvise"):  # what is in memory says nothing of the disk
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if any(crc32(file.read(size)) != crc for size, crc in self._written):
                problem = "the disk does not give back what was written"
                raise Damaged(problem, where=str(self._file), remedy="save to another disk")

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        chunks = defaultdict(list)
        for result in chain(*results):
            chunks[result.index.fqn].append(result.storage_data)
        tensors = []
        for name, stored in sorted(metadata.state_dict_metadata.items()):
            assert isinstance(stored, TensorStorageMetadata)
            dtype: Any = str(stored.properties.dtype).removeprefix("torch.")
            tensor = TensorEntry(name=name, dtype=dtype, shape=tuple(stored.size), chunks=tuple(chunks[name]))
            if not tensor.is_filled():
                raise ValueError(f"the pieces of {name} do not make up {tensor.shape}")
            tensors.append(asdict(tensor))
        _write_table(self._folder / INDEX, {"format": FORMAT, "tensors": tensors}, LARGEST_INDEX_BYTES)


class FolderReader(FileSystemReader):
    """Reads values of a checkpoint whose index has been read.

    Methods raise ``Damaged`` where a file ends early or its values are not those that were written.
    """

    def __init__(self, folder: Path, entries: Mapping[str, TensorEntry]) -> None:
        super().__init__(folder)
        self._folder, self._entries = folder, entries

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        stored = {
            name: TensorStorageMetadata(
                TensorProperties(dtype=tensor.format),
                torch.Size(tensor.shape),
                [ChunkStorageMetadata(torch.Size(one.offsets), torch.Size(one.sizes)) for one in tensor.chunks],
            )
            for name, tensor in self._entries.items()
        }
        return Metadata(cast(Any, stored), storage_data={})

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Every rectangle that the plan needs a part of, once."""
        parts: defaultdict[tuple[str, int], list[ReadItem]] = defaultdict(list)
        for item in plan.items:
            assert item.storage_index.index is not None
            parts[item.storage_index.fqn, item.storage_index.index].append(item)
        for (name, number), items in parts.items():
            values = self._values(self._entries[name], self._entries[name].chunks[number])
            for item in items:
                planner.resolve_tensor(item).copy_(values[_within(item.storage_offsets, item.lengths)])
        return _done(None)

    def tensor(self, name: str) -> Tensor:
        """A tensor from all its rectangles."""
        entry = self._entries[name]
        result = torch.empty(entry.shape, dtype=entry.format)
        for chunk in entry.chunks:
            result[_within(chunk.offsets, chunk.sizes)] = self._values(entry, chunk)
        return result

    def _values(self, entry: TensorEntry, chunk: ChunkEntry) -> Tensor:
        path = self._folder / chunk.file
        raw = bytearray(prod(chunk.sizes) * entry.format.itemsize)
        with path.open("rb") as file:
            file.seek(chunk.start)
            read = file.readinto(raw)
        if read != len(raw) or crc32(raw) != chunk.crc32:
            problem = f"the values of {entry.name} from byte {chunk.start} are damaged"
            raise Damaged(problem, where=str(path), remedy="take another checkpoint")
        return torch.frombuffer(raw, dtype=entry.format).view(chunk.sizes)


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor in the host's memory."""
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().data


def read_index(folder: Path, names: Iterable[str] | None = None) -> dict[str, TensorEntry]:
    """What the index says about some tensors (all without ``names``): their rectangles fill them without overlap,
    and the files hold them.

    Raises:
        Damaged: no index, none that can be read, gaps or overlaps, or a file that is absent or short.
        BadInput: an index of another format, or without one of the names.
    """
    table = _read_table(folder / INDEX, LARGEST_INDEX_BYTES)
    with _damage():
        listed = decode(tuple[TensorEntry, ...], table.get("tensors"), f"{folder / INDEX}: tensors")
    tensors = {tensor.name: tensor for tensor in listed}
    wanted = sorted(tensors if names is None else set(names))
    missing = [name for name in wanted if name not in tensors]
    if missing:
        listing = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        raise BadInput(f"has no {listing}", where=str(folder), remedy="is it a checkpoint of this model?")
    lengths_bytes: dict[str, int] = {}
    with _damage():
        for name in wanted:
            _check(tensors[name], folder, lengths_bytes)
    return {name: tensors[name] for name in wanted}


def _entries_for(folder: Path, pieces: Sequence[Piece]) -> dict[str, TensorEntry]:
    """The index of the pieces' tensors, which have the pieces' shapes and formats."""
    entries = read_index(folder, (piece.name for piece in pieces))
    for piece in pieces:
        here = _described(piece.placement.shape, piece.values.dtype)
        there = _described(entries[piece.name].shape, entries[piece.name].format)
        if here != there:
            raise BadInput(
                f"{piece.name} is {there} in the checkpoint, but {here} here",
                where=str(folder),
                remedy="load it with the model and precision that it was saved with",
            )
    return entries


def _described(shape: Sequence[int], dtype: torch.dtype) -> str:
    return f"{' x '.join(map(str, shape))} of {str(dtype).removeprefix('torch.')}"


def _check(tensor: TensorEntry, folder: Path, lengths_bytes: dict[str, int]) -> None:
    """Refuse a tensor that its files cannot hold; the files' lengths are remembered."""
    if not tensor.is_filled():
        problem = f"the pieces of {tensor.name} leave gaps in its {' x '.join(map(str, tensor.shape))} or overlap"
        raise BadInput(problem, where=str(folder / INDEX), remedy=_COMPLETE)
    for chunk in tensor.chunks:
        path = folder / chunk.file
        if chunk.file not in lengths_bytes:
            _check_plain(path)
            lengths_bytes[chunk.file] = path.stat().st_size
        stop = chunk.start + prod(chunk.sizes) * tensor.format.itemsize
        if stop > lengths_bytes[chunk.file]:
            problem = f"ends at byte {lengths_bytes[chunk.file]}, but {tensor.name} needs {stop}"
            raise BadInput(problem, where=str(path), remedy=_COMPLETE)


def _read_table(path: Path, largest: int) -> dict[str, Any]:
    """A JSON file of a checkpoint."""
    with _damage():
        _check_plain(path)
        table = parse_json(read_text(path, where=str(path), largest=largest), str(path))
    if not isinstance(table, dict):
        raise BadInput("is not a table of fields", where=str(path))
    if table.get("format") != FORMAT:
        remedy = "load it with the version of Weft that wrote it, or begin anew"
        raise BadInput(f"is not of the format {FORMAT!r}", where=str(path), remedy=remedy)
    return table


def _write_table(path: Path, table: Mapping[str, Any], largest: int) -> None:
    text = json.dumps(table, allow_nan=False)
    if len(text) > largest:  # it is ASCII
        raise BadInput(f"{len(text)} bytes are more than {largest}", where=str(path))
    write_text(path, text)


def _check_plain(path: Path) -> None:
    """Refuse what is not a file itself: a link, a folder, a pipe."""
    try:
        plain = S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        raise BadInput("no such file", where=str(path), remedy=_COMPLETE) from None
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=str(path)) from None
    if not plain:
        raise BadInput("is not a file", where=str(path), remedy=_COMPLETE)


def _within(offsets: Sequence[int], sizes: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))


def _done(result: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(result)
    return future


# Problems ----------------------------------------------------------------------------------------


@contextmanager
def _damage() -> Iterator[None]:
    """Inside, what is refused is damage."""
    try:
        yield
    except BadInput as error:
        raise Damaged(error.what, where=error.where, remedy=error.remedy) from None


def _gathered(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """A value of every rank."""
    values = [value]
    if dist.is_initialized():
        values *= dist.get_world_size()
        dist.all_gather_object(values, value, group=group)
    return values


def _together(folder: Path, work: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """What every rank does before any goes on; where one cannot, every rank raises its problem."""
    result: T | None = None
    problem: BadInput | None = None
    try:
        result = work()
    except BadInput as error:
        problem = error
    except OSError as error:
        problem = _unusable(error, folder)
    for first in filter(None, _gathered(problem, group)):
        raise first
    return cast(T, result)


def _check_same(folder: Path, state: Mapping[str, Json]) -> None:
    """Refuse that ranks load different checkpoints: their states, and the CRCs of all values, are compared."""
    digests = []
    for name in (STATE, INDEX):
        with (folder / name).open("rb") as file:
            digests.append(file_digest(file, "sha256").hexdigest())
    ranks = _gathered((digests, f"step {state.get('step')} of {folder}"))
    for rank, (rank_digests, where) in enumerate(ranks):
        if rank_digests != ranks[0][0]:
            raise BadInput(
                f"ranks load different checkpoints: rank 0 has {ranks[0][1]}, rank {rank} has {where}",
                where=str(folder),
                remedy="give every rank the same folder, on one file system",
            )


@contextmanager
def _planned(folder: Path) -> Iterator[None]:
    """The problem of the first failing rank, not DCP's tracebacks of all, which are no Exception; and no warning that
    a process is alone."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
            yield
    except CheckpointException as error:
        first = error.failures[min(error.failures)][0]
        if isinstance(first, OSError):
            raise _unusable(first, folder) from None
        if isinstance(first, BadInput | ValueError):
            raise first from None
        raise RuntimeError(str(error)) from error


def _unusable(error: OSError, folder: Path) -> BadInput:
    """A file that cannot be read or written."""
    remedy = "every rank needs the folder, on one file system" if isinstance(error, FileNotFoundError) else None
    return BadInput(error.strerror or str(error), where=str(error.filename or folder), remedy=remedy)
