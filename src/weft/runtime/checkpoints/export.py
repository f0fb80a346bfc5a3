"""A trained model as one file of safetensors, written tensor by tensor: the format's package wants all in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.errors import BadInput
from weft.files import writing
from weft.runtime.checkpoints.checkpoint import MOMENTS, FolderReader, TensorEntry, raw_bytes, read_index, read_state

Shape = tuple[int, ...]
DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_ALIGNMENT_BYTES = 8
_MOMENTS = tuple(f"/{moment}" for moment in MOMENTS)


def export(folder: str | os.PathLike[str], file: str | os.PathLike[str]) -> None:
    """Write the parameters of a checkpoint, whole and under Weft's names, to a safetensors file.

    Shapes are Weft's too: a convolution's weight is a matrix (outputs, inputs * kernel elements), and so is
    all else of more dimensions; ``gather_state_dict`` gives PyTorch's.  The optimizer's moments are left out;
    the state is JSON in the metadata's ``weft``.  One process does it, with one tensor in memory at a time.

    Raises:
        BadInput: the folder is not a checkpoint, damaged or cannot be read, or the file cannot be written.
    """
    source = Path(folder)
    state, saved = read_state(source), SavedParameters(source)
    with writing(file) as out:
        described = ((entry.name, entry.format, entry.shape) for entry in saved.entries.values())
        out.write(header(described, {"weft": json.dumps(state)}))
        for name in saved.entries:
            out.write(raw_bytes(saved.values(name)))


class SavedParameters:
    """The parameters of a checkpoint, without the optimizer's moments.

    Raises:
        BadInput: it is damaged or cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        index = read_index(folder)
        self.entries: dict[str, TensorEntry] = {name: index[name] for name in index if not name.endswith(_MOMENTS)}
        self._folder, self._reader = folder, FolderReader(folder, index)

    def values(self, name: str) -> Tensor:
        """A whole parameter."""
        try:
            return self._reader.tensor(name)
        except OSError as error:
            where = str(error.filename or self._folder)
            raise BadInput(f"cannot be read: {error.strerror}", where=where) from None


def header(tensors: Iterable[tuple[str, torch.dtype, Shape]], metadata: Mapping[str, str]) -> bytes:
    """What stands before the values of tensors that follow each other in this order."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    table: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    start = 0
    for name, dtype, shape in tensors:
        stop = start + prod(shape) * dtype.itemsize
        table[name] = {"dtype": names[dtype], "shape": list(shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text
