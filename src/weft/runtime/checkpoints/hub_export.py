"""A trained model as a folder of the Hugging Face hub: ``config.json`` and safetensors under the hub's names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.errors import BadInput
from weft.files import write_text, writing
from weft.model.huggingface import read_config, read_text_part
from weft.runtime.checkpoints.export import parameters, whole
from weft.runtime.checkpoints.files import FolderReader, read_metadata
from weft.runtime.checkpoints.hub import FAMILIES, INDEX, SINGLE, Part, family_of, parts
from weft.runtime.checkpoints.safetensors import Shape, header, values

CONFIG = "config.json"
LARGEST_SHARD_BYTES = 5_000_000_000
"""As the hub's own tools cut files."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """A tensor of the hub: rows of a parameter of Weft."""

    name: str
    dtype: torch.dtype
    shape: Shape
    source: str
    start: int
    shift: float

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def of(self, parameter: Tensor) -> Tensor:
        rows = parameter[self.start : self.start + self.shape[0]]
        return (rows - self.shift if self.shift else rows).to(self.dtype)


def export_hub(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | None = None,
    dtype: str | None = None,
    largest_bytes: int = LARGEST_SHARD_BYTES,
) -> None:
    """Write a checkpoint's parameters to a folder that ``transformers`` loads, with one in memory at a time.

    Args:
        config: the model's ``config.json``, or a folder that holds it; by default that beside the checkpoint, where
            ``weft train --out`` writes it.
        dtype: fp32, bf16 or fp16; by default that of the checkpoint.
        largest_bytes: of a file.

    Raises:
        BadInput: the folder is no checkpoint, damaged or of another model than the configuration's, there is no
            configuration, or ``out`` is not empty or cannot be written.
        Unsupported: the hub has no names for weights of such models.
    """
    source, target = Path(folder), Path(out)
    place = _config_of(source) if config is None else Path(config)
    family, model = family_of(place), read_config(place)
    pieces = list(_pieces(source, parts(model, family), None if dtype is None else DTYPES[dtype]))
    _make(target)
    files = _files(pieces, largest_bytes)
    reader = FolderReader(source, read_metadata(source))
    for name, held in files.items():
        with writing(target / name) as file:
            file.write(header(((one.name, one.dtype, one.shape) for one in held), {}))
            parameter, loaded = torch.empty(0), ""
            for one in held:
                if one.source != loaded:
                    parameter, loaded = whole(reader, one.source, source), one.source
                file.write(values(one.of(parameter)))
    if len(files) > 1:
        size = sum(one.size_bytes for one in pieces)
        listed = {one.name: name for name, held in files.items() for one in held}
        _write(target / INDEX, {"metadata": {"total_size": size}, "weight_map": listed})
    table, _ = read_text_part(place)
    table |= {"architectures": [FAMILIES[family]], "dtype": str(pieces[0].dtype).removeprefix("torch.")}
    table.pop("torch_dtype", None)
    _write(target / CONFIG, table)


def _write(path: Path, table: dict[str, Any]) -> None:
    write_text(path, json.dumps(table, indent=2) + "\n")


def _config_of(source: Path) -> Path:
    place = source.absolute().parent / CONFIG
    if not place.is_file():
        raise BadInput(
            f"there is no config.json, and the hub's names are known for {', '.join(FAMILIES)} only",
            where=str(place),
            remedy="give the model's with --config, or export without --to hf",
        )
    return place


def _make(target: Path) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)
        full = any(target.iterdir())
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=str(target)) from None
    if full:
        raise BadInput("the folder is not empty", where=str(target), remedy="name a new one")


def _pieces(source: Path, made: dict[str, Part], dtype: torch.dtype | None) -> Iterator[_Piece]:
    """The hub's tensors, in the order of Weft's parameters."""
    known = parameters(read_metadata(source))
    held = {name: (own, shape) for name, own, shape in known}
    different = sorted(held.keys() ^ made.keys())
    if different:
        raise _other_model(source, f"{different[0]} is in one of them only")
    for name, part in made.items():
        own, shape = held[name]
        if shape[0] != sum(part.heights):
            raise _other_model(source, f"{name} has {shape[0]} rows, not {sum(part.heights)}")
        start = 0
        for hub, height in zip(part.names, part.heights, strict=True):
            yield _Piece(
                name=hub if hub == "lm_head.weight" else f"model.{hub}",
                dtype=dtype or own,
                shape=(height, *shape[1:]),
                source=name,
                start=start,
                shift=part.shift,
            )
            start += height


def _other_model(source: Path, difference: str) -> BadInput:
    return BadInput(
        f"is of another model than the config.json: {difference}",
        where=str(source),
        remedy="give the model's with --config",
    )


def _files(pieces: Iterable[_Piece], largest_bytes: int) -> dict[str, list[_Piece]]:
    """The pieces dealt to files in order, each below the limit where one piece is."""
    shards: list[list[_Piece]] = [[]]
    size = 0
    for one in pieces:
        if shards[-1] and size + one.size_bytes > largest_bytes:
            shards.append([])
            size = 0
        shards[-1].append(one)
        size += one.size_bytes
    if len(shards) == 1:
        return {SINGLE: shards[0]}
    return {f"model-{i:05d}-of-{len(shards):05d}.safetensors": held for i, held in enumerate(shards, start=1)}
