"""Checkpoints that load on any other grid, and on one rank: DCP plans who writes and reads which rectangle.

A checkpoint is a folder with ``weft.json`` (the state and its digest), ``tensors.json`` and the ranks' values
(``weft.runtime.checkpoints.files``).  It appears under its name when it is whole, and never before.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b, file_digest
from math import prod
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
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
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load as load_planned
from torch.distributed.checkpoint.state_dict_saver import save as save_planned

from weft.checkpoints import STATE
from weft.documents import parse_json
from weft.errors import BadInput
from weft.files import read_text, sync_folder
from weft.runtime.checkpoints.files import (
    DTYPES,
    FORMAT,
    INDEX,
    Damaged,
    FolderReader,
    Writer,
    check_format,
    check_plain,
    checked_name,
    damage,
    read_metadata,
    write_text,
)
from weft.runtime.core.placement import FlatRange

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's state per parameter, under PyTorch's names: a piece is called ``NAME`` or ``NAME/MOMENT``."""
LARGEST_STATE_BYTES = 16_000_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """A rank's piece of a parameter, or of an optimizer's moment of it.

    Attributes:
        name: what the whole is called ("blocks.0.qkv.weight", "blocks.0.qkv.weight/exp_avg").
        values: shape (placement.stop - placement.start,), contiguous, in a format of ``DTYPES``.
        placement: where element i, position ``placement.start`` + i of the flat block, lies in the whole.

    Raises:
        BadInput: the name cannot be saved.
        ValueError: the values do not fit the placement, or are of another format.
    """

    name: str
    values: Tensor
    placement: FlatRange

    def __post_init__(self) -> None:
        try:
            checked_name(self.name)
        except ValueError as error:
            raise BadInput(f"its name {error}", where=f"parameter {self.name[:60]!r}", remedy="rename it") from None
        size = self.placement.stop - self.placement.start
        if self.values.shape != (size,) or not self.values.is_contiguous():
            raise ValueError(f"{self.name}: {tuple(self.values.shape)} values for {size} places")
        if self.values.dtype not in DTYPES.values():
            raise ValueError(f"{self.name}: {self.values.dtype} is none of {', '.join(DTYPES)}")

    def views(self) -> Iterator[tuple[ChunkStorageMetadata, Tensor]]:
        """The piece as rectangles of the whole, each with a view of its values; padding is left out."""
        for one in self.placement.rectangles():
            values = self.values.detach()[one.start : one.start + prod(one.sizes)].view(one.sizes)
            yield ChunkStorageMetadata(torch.Size(one.offsets), torch.Size(one.sizes)), values


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
        ValueError: the pieces do not make up their wholes, or the state is not JSON.
    """
    path = Path(folder)
    partial = path.parent / f"{path.name}.partial"
    sealed = {"format": FORMAT, "digest": _digest(state), "state": dict(state)}
    text = json.dumps(sealed, allow_nan=False, indent=1)
    first = not dist.is_initialized() or dist.get_rank() == 0
    _together(path, lambda: _begin(path, partial, text) if first else None, group)
    writer = Writer(partial, dist.get_rank() if dist.is_initialized() else 0)
    with _one_problem(path), _quiet():
        save_planned({}, storage_writer=writer, planner=_SavePlanner(pieces), process_group=group)
    _together(path, writer.verify, group)
    _together(path, lambda: _finish(path, partial) if first else None, group)


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

    def look() -> tuple[dict[str, Json], Metadata]:
        state = read_state(path)
        accept(state)
        return state, _metadata_for(path, pieces)

    state, metadata = _together(path, look)
    _check_one(path, state)
    with _one_problem(path), _quiet():
        load_planned({}, storage_reader=FolderReader(path, metadata), planner=_LoadPlanner(pieces, metadata))
    return state


def read_state(folder: str | os.PathLike[str]) -> dict[str, Json]:
    """The state of a checkpoint alone.

    Raises:
        Damaged: its state is no JSON, too large or not what was written.
        BadInput: no such folder, it is no checkpoint or one of another format.
    """
    path = Path(folder)
    if not os.path.isdir(path):
        raise BadInput("no such folder", where=str(path), remedy="check the path of the checkpoint")
    if not os.path.lexists(path / STATE):
        raise BadInput(f"is not a checkpoint: it has no {STATE}", where=str(path))
    where = str(path / STATE)
    with damage():
        check_plain(path / STATE)
        sealed = parse_json(read_text(path / STATE, where=where, largest=LARGEST_STATE_BYTES), where)
    check_format(sealed, where)
    state = sealed.get("state")
    if not isinstance(state, dict) or sealed.get("digest") != _digest(state):
        raise Damaged("the state is damaged", where=where, remedy="take another checkpoint")
    return state


def _digest(state: Mapping[str, Json]) -> str:
    """BLAKE2b of the state as JSON in one way of writing it."""
    text = json.dumps(dict(state), allow_nan=False, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _check_one(folder: Path, state: Mapping[str, Json]) -> None:
    """Refuse that ranks load different checkpoints: their states, and the CRCs of all values, are compared."""
    if not dist.is_initialized():
        return
    digests = []
    for name in (STATE, INDEX):
        with (folder / name).open("rb") as file:
            digests.append(file_digest(file, "sha256").hexdigest())
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (f"step {state.get('step')} of {folder}", digests))
    for rank, (words, others) in enumerate(found):
        if others != found[0][1]:
            raise BadInput(
                f"ranks load different checkpoints: rank 0 has {found[0][0]}, rank {rank} has {words}",
                where=str(folder),
                remedy="give every rank the same folder, on one file system",
            )


class _SavePlanner(DefaultSavePlanner):
    """Offers this rank's rectangles; DCP's own planner drops copies and checks that the rest is the whole."""

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


class _LoadPlanner(LoadPlanner):
    """Asks for what fills this rank's rectangles."""

    def __init__(self, pieces: Sequence[Piece], metadata: Metadata) -> None:
        self._targets: dict[str, list[tuple[ChunkStorageMetadata, Tensor]]] = {}
        self._stored = metadata.state_dict_metadata
        for piece in pieces:
            self._targets.setdefault(piece.name, []).extend(piece.views())

    def set_up_planner(
        self, state_dict: Mapping[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Everything is known from the start."""

    def create_local_plan(self) -> LoadPlan:
        items: list[ReadItem] = []
        for name, targets in self._targets.items():
            stored = self._stored[name]
            assert isinstance(stored, TensorStorageMetadata)
            items += create_read_items_for_chunk_list(name, stored, [chunk for chunk, _ in targets])
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        raise AssertionError("an index lists tensors only")

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        position = read_item.dest_index.index
        assert position is not None
        _, values = self._targets[read_item.dest_index.fqn][position]
        where = zip(read_item.dest_offsets, read_item.lengths, strict=True)
        return values[tuple(slice(offset, offset + size) for offset, size in where)]

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """The values are in place."""


def _metadata_for(folder: Path, pieces: Sequence[Piece]) -> Metadata:
    """The index of the pieces' tensors, which have the pieces' shapes and formats."""
    metadata = read_metadata(folder, (piece.name for piece in pieces))
    for piece in pieces:
        stored = metadata.state_dict_metadata[piece.name]
        assert isinstance(stored, TensorStorageMetadata)
        here = _described(piece.placement.shape, piece.values.dtype)
        there = _described(stored.size, stored.properties.dtype)
        if here != there:
            raise BadInput(
                f"{piece.name} is {there} in the checkpoint, but {here} here",
                where=str(folder),
                remedy="load it with the model and precision that it was saved with",
            )
    return metadata


def _described(shape: Sequence[int], dtype: torch.dtype) -> str:
    return f"{' x '.join(map(str, shape))} of {str(dtype).removeprefix('torch.')}"


def _begin(folder: Path, partial: Path, text: str) -> None:
    if os.path.exists(folder):
        raise BadInput("exists already", where=str(folder), remedy="remove it or save to another folder")
    if os.path.exists(partial):
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    write_text(partial / STATE, text, largest=LARGEST_STATE_BYTES)


def _finish(folder: Path, partial: Path) -> None:
    sync_folder(partial)
    partial.rename(folder)
    sync_folder(folder.parent)


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
    if dist.is_initialized():
        problems: list[BadInput | None] = [None] * dist.get_world_size()
        dist.all_gather_object(problems, problem, group=group)
        problem = next((one for one in problems if one is not None), None)
    if problem is not None:
        raise problem
    return cast(T, result)


@contextmanager
def _one_problem(folder: Path) -> Iterator[None]:
    """The problem of the first failing rank, not DCP's tracebacks of all, which are no Exception."""
    try:
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


@contextmanager
def _quiet() -> Iterator[None]:
    """Without DCP's warning that a process is alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield
