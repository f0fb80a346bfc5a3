"""The safetensors format: a length, a header in JSON, and raw little-endian numbers (huggingface/safetensors, README).

It is small enough that reading and writing it need no package.  Files are mapped into memory, so that a rectangle of
a tensor costs what it holds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.documents import parse_json
from weft.errors import BadInput

DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LARGEST_HEADER_BYTES = 100_000_000
"""As the format's own package has it."""
_ALIGNMENT = 8
_REMEDY = "is the download complete?"

Shape = tuple[int, ...]


def header(tensors: Iterable[tuple[str, torch.dtype, Shape]], metadata: Mapping[str, str]) -> bytes:
    """What stands before the values of tensors that follow each other in this order."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    start = 0
    for name, dtype, shape in tensors:
        stop = start + prod(shape) * dtype.itemsize
        table[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def values(tensor: Tensor) -> memoryview:
    """A tensor's bytes as they stand in the file."""
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().data


class SafetensorsFile:
    """A file, mapped into memory.

    Raises:
        BadInput: it cannot be read, or its header does not describe it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.where = os.fspath(path)
        try:
            size = Path(path).stat().st_size
            with open(path, "rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if not 2 <= length <= min(size - 8, LARGEST_HEADER_BYTES):
                    raise BadInput("is no safetensors file", where=self.where, remedy=_REMEDY)
                text = file.read(length)
        except OSError as error:
            raise BadInput(f"cannot be read: {error.strerror}", where=self.where, remedy="check the path") from None
        self._data = torch.from_file(self.where, shared=False, size=size, dtype=torch.uint8)[8 + length :]
        table = parse_json(text.decode("utf-8", "replace"), self.where, remedy=_REMEDY)
        if not isinstance(table, dict):
            raise BadInput("its header is no table", where=self.where, remedy=_REMEDY)
        table.pop("__metadata__", None)
        self._places: dict[str, tuple[str, Shape, int, int]] = {name: self._place(name, table[name]) for name in table}

    def _place(self, name: str, entry: Any) -> tuple[str, Shape, int, int]:
        """Format, shape, first byte and the byte behind a tensor."""
        try:
            dtype, shape, (start, stop) = str(entry["dtype"]), tuple(entry["shape"]), entry["data_offsets"]
            whole = all(type(number) is int and number >= 0 for number in (*shape, start, stop))
        except (KeyError, TypeError, ValueError):
            whole = False
        if not whole or not start <= stop <= len(self._data):
            raise BadInput("its header does not say where it lies", where=f"{self.where}: {name:.80}", remedy=_REMEDY)
        known = DTYPES.get(dtype)
        if known is not None and prod(shape) * known.itemsize != stop - start:
            raise BadInput("its shape and its bytes differ", where=f"{self.where}: {name:.80}", remedy=_REMEDY)
        return dtype, shape, start, stop

    def names(self) -> Iterable[str]:
        return self._places.keys()

    def tensor(self, name: str) -> Tensor:
        """A tensor as a view of the file.

        Raises:
            KeyError: no such tensor.
            BadInput: its numbers have a format that is not read.
        """
        dtype, shape, start, stop = self._places[name]
        if dtype not in DTYPES:
            raise BadInput(
                f"its numbers are {dtype:.20}",
                where=f"{self.where}: {name}",
                remedy=f"give weights in {', '.join(DTYPES)}",
            )
        raw = self._data[start:stop]
        if raw.storage_offset() % DTYPES[dtype].itemsize:
            raw = raw.clone()
        return raw.view(DTYPES[dtype]).view(shape)
