"""Checkpoints that load on any other grid, and on one rank.

A checkpoint is a folder with ``weft.json`` (the state and its digest), ``tensors.json`` (what lies where) and the
values of each rank (``0.bin``), raw and little-endian, row by row, with a CRC-32 for each rectangle.  It appears under
its name when it is complete, and never before.

``torch.distributed.checkpoint`` does not suffice: its file storage unpickles its metadata, so that a stranger's
checkpoint could run code; its Hugging Face storage takes one rectangle of a tensor per rank; neither has checksums.
"""

from __future__ import annotations

import json
import os
import re
import shutil
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

from weft.checkpoints import STATE
from weft.codec import Coded, Range, decode, shown
from weft.documents import parse_json
from weft.errors import BadInput
from weft.files import read_text, sync_folder, write_text
from weft.runtime.core.collectives import of_every_rank
from weft.runtime.core.parameters import FlatRange

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
Shape = tuple[int, ...]
Place = tuple[str, Shape]
"""A rectangle, by the name of its tensor and its offsets."""


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

    def views(self) -> Iterator[tuple[Shape, Shape, Tensor]]:
        """Offsets and sizes of the piece's rectangles in the parameter, each with a view of its values; padding is
        left out."""
        for rectangle in self.placement.rectangles():
            values = self.values.detach()[rectangle.start : rectangle.start + prod(rectangle.sizes)]
            yield rectangle.offsets, rectangle.sizes, values.view(rectangle.sizes)


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
        group: of all ranks, for what they tell each other; a separate one where other threads communicate.

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
    file = _RankFile(partial / f"{rank}.bin", pieces)
    share = _shares(file.sizes_bytes(), group)
    _together(path, lambda: file.write(share), group)
    written = list(chain(*_on_first(file.written, group)))
    _together(path, lambda: _write_index(partial, written) if rank == 0 else None, group)
    _together(path, file.verify, group)
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
        BadInput: on every rank, before any value is filled: the folder is not a checkpoint, lacks a tensor, has it
            in another shape or format, or ranks have different ones.
    """
    path = Path(folder)

    def look() -> tuple[dict[str, Json], dict[str, TensorEntry]]:
        state = read_state(path)
        accept(state)
        return state, _entries_for(path, pieces)

    state, entries = _together(path, look)
    _check_same(path, state)
    _together(path, lambda: FolderReader(path, entries).fill(pieces))
    return state


def read_state(folder: str | os.PathLike[str]) -> dict[str, Json]:
    """The state of a checkpoint alone.

    Raises:
        Damaged: its state is no JSON, too large or not what was written.
        BadInput: no such folder, it is not a checkpoint or one of another format.
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


# Who writes what ---------------------------------------------------------------------------------


def _on_first(value: T, group: dist.ProcessGroup | None) -> list[T]:
    """Every rank's value on the first rank; nothing on others."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(value, values, group=group)
    return values or []


def _shares(sizes_bytes: Mapping[Place, int], group: dist.ProcessGroup | None) -> list[Place]:
    """The rectangles that this rank writes: of those that hold one, the rank with the fewest bytes so far does."""
    offers = _on_first(sizes_bytes, group)
    holders: defaultdict[Place, list[int]] = defaultdict(list)
    for rank, offer in enumerate(offers):
        for place in offer:
            holders[place].append(rank)
    shares: list[list[Place]] = [[] for _ in offers]
    total_bytes = [0] * len(offers)
    for place, ranks in holders.items():
        writer = min(ranks, key=total_bytes.__getitem__)
        shares[writer].append(place)
        total_bytes[writer] += offers[writer][place]
    if not dist.is_initialized():
        return shares[0]
    own: list[Any] = [None]
    dist.scatter_object_list(own, shares or None, group=group)
    return cast(list[Place], own[0])


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


class _RankFile:
    """The file of one rank, in an existing folder.

    Attributes:
        written: name, format, shape of the whole tensor, and the chunk, of each rectangle one after the other.
    """

    def __init__(self, path: Path, pieces: Sequence[Piece]) -> None:
        self._path = path
        self._offered = {
            (piece.name, offsets): (piece.placement.shape, values)
            for piece in pieces
            for offsets, _, values in piece.views()
        }
        self.written: list[tuple[str, torch.dtype, Shape, ChunkEntry]] = []

    def sizes_bytes(self) -> dict[Place, int]:
        """What the rank has."""
        return {place: values.nbytes for place, (_, values) in self._offered.items()}

    def write(self, share: Sequence[Place]) -> None:
        if not share:
            return
        with self._path.open("xb") as file:
            for name, offsets in share:
                shape, values = self._offered[name, offsets]
                raw = raw_bytes(values.cpu())
                chunk = ChunkEntry(
                    offsets=offsets,
                    sizes=tuple(values.shape),
                    file=self._path.name,
                    start=file.tell(),
                    crc32=crc32(raw),
                )
                file.write(raw)
                self.written.append((name, values.dtype, shape, chunk))
            file.flush()
            os.fsync(file.fileno())

    def verify(self) -> None:
        """Read the file back from the disk.

        Raises:
            Damaged: it does not hold what was written.
        """
        if not self.written:
            return
        with self._path.open("rb") as file:
            if hasattr(os, "posix_fadvise"):  # what is in memory says nothing of the disk
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            for _, dtype, _, chunk in self.written:
                if crc32(file.read(prod(chunk.sizes) * dtype.itemsize)) != chunk.crc32:
                    problem = "the disk does not give back what was written"
                    raise Damaged(problem, where=str(self._path), remedy="save to another disk")


def _write_index(folder: Path, written: Sequence[tuple[str, torch.dtype, Shape, ChunkEntry]]) -> None:
    chunks = defaultdict(list)
    for name, dtype, shape, chunk in written:
        chunks[name, dtype, shape].append(chunk)
    tensors = []
    for name, dtype, shape in sorted(chunks, key=str):
        format_: Any = str(dtype).removeprefix("torch.")
        tensor = TensorEntry(name=name, dtype=format_, shape=shape, chunks=tuple(chunks[name, dtype, shape]))
        if not tensor.is_filled():
            raise ValueError(f"the pieces of {name} do not make up {shape}")
        tensors.append(asdict(tensor))
    _write_table(folder / INDEX, {"format": FORMAT, "tensors": tensors}, LARGEST_INDEX_BYTES)


class FolderReader:
    """Reads values of a checkpoint whose index has been read.

    Methods raise ``Damaged`` where a file ends early or its values are not those that were written.
    """

    def __init__(self, folder: Path, entries: Mapping[str, TensorEntry]) -> None:
        self.folder, self.entries = folder, entries

    def fill(self, pieces: Sequence[Piece]) -> None:
        """Give pieces their values; every rectangle of which they need a part is read once."""
        targets: defaultdict[str, list[tuple[Shape, Shape, Tensor]]] = defaultdict(list)
        for piece in pieces:
            targets[piece.name] += piece.views()
        for name, views in targets.items():
            self._fill(self.entries[name], views)

    def tensor(self, name: str) -> Tensor:
        """A tensor from all its rectangles."""
        entry = self.entries[name]
        result = torch.empty(entry.shape, dtype=entry.format)
        self._fill(entry, [((0,) * result.ndim, entry.shape, result)])
        return result

    def _fill(self, entry: TensorEntry, views: Sequence[tuple[Shape, Shape, Tensor]]) -> None:
        for chunk in entry.chunks:
            stored: Tensor | None = None
            for offsets, sizes, values in views:
                low = tuple(map(max, chunk.offsets, offsets))
                common = tuple(map(min, _stops(chunk.offsets, chunk.sizes), _stops(offsets, sizes)))
                if all(start < stop for start, stop in zip(low, common, strict=True)):
                    stored = self._values(entry, chunk) if stored is None else stored
                    values[_window(low, common, offsets)].copy_(stored[_window(low, common, chunk.offsets)])

    def _values(self, entry: TensorEntry, chunk: ChunkEntry) -> Tensor:
        path = self.folder / chunk.file
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
        remedy = "load it with the version of Weft that wrote it, or start a new run"
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


def _stops(offsets: Shape, sizes: Shape) -> Shape:
    return tuple(offset + size for offset, size in zip(offsets, sizes, strict=True))


def _window(starts: Shape, stops: Shape, origin: Shape) -> tuple[slice, ...]:
    """A rectangle within what begins at ``origin``."""
    return tuple(slice(low - zero, high - zero) for low, high, zero in zip(starts, stops, origin, strict=True))


# Problems ----------------------------------------------------------------------------------------


@contextmanager
def _damage() -> Iterator[None]:
    """Inside, what is refused is damage."""
    try:
        yield
    except BadInput as error:
        raise Damaged(error.what, where=error.where, remedy=error.remedy) from None


def _together(folder: Path, work: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """What every rank does before any goes on; where one cannot, every rank raises its problem."""
    result: T | None = None
    problem: Exception | None = None
    try:
        result = work()
    except (BadInput, ValueError) as error:
        problem = error
    except OSError as error:
        remedy = "every rank needs the folder, on one file system" if isinstance(error, FileNotFoundError) else None
        problem = BadInput(error.strerror or str(error), where=str(error.filename or folder), remedy=remedy)
    for first in filter(None, of_every_rank(problem, group)):
        raise first
    return cast(T, result)


def _check_same(folder: Path, state: Mapping[str, Json]) -> None:
    """Refuse that ranks load different checkpoints: their states, and the CRCs of all values, are compared."""
    digests = []
    for name in (STATE, INDEX):
        with (folder / name).open("rb") as file:
            digests.append(file_digest(file, "sha256").hexdigest())
    ranks = of_every_rank((digests, f"step {state.get('step')} of {folder}"))
    for rank, (rank_digests, where) in enumerate(ranks):
        if rank_digests != ranks[0][0]:
            raise BadInput(
                f"ranks load different checkpoints: rank 0 has {ranks[0][1]}, rank {rank} has {where}",
                where=str(folder),
                remedy="give every rank the same folder, on one file system",
            )
