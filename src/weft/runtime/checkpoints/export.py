"""A trained model as one file: the parameters of a checkpoint in the safetensors format.

The format is a length, a header in JSON and raw little-endian numbers (huggingface/safetensors, README), so
that writing it needs no package.
"""

from __future__ import annotations

import json
import os
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from weft.errors import BadInput
from weft.files import writing
from weft.runtime.checkpoints.checkpoint import MOMENTS, read_state
from weft.runtime.checkpoints.files import FolderReader, read_metadata

_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_ALIGNMENT = 8
_MOMENTS = tuple(f"/{moment}" for moment in MOMENTS)


def export(folder: str | os.PathLike[str], file: str | os.PathLike[str]) -> None:
    """Write the parameters of a checkpoint, whole and under Weft's names, to a safetensors file.

    Shapes are Weft's too: a convolution's weight is a matrix (outputs, inputs * kernel elements), and so is
    all else of more dimensions; ``gather_state_dict`` gives PyTorch's.  The optimizer's moments are left out;
    the state is JSON in the metadata's ``weft``.  One process does it, with one tensor in memory at a time.

    Raises:
        BadInput: the folder is no checkpoint, damaged or cannot be read, or the file cannot be written.
    """
    source = Path(folder)
    state, metadata = read_state(source), read_metadata(source)
    names = [name for name in metadata.state_dict_metadata if not name.endswith(_MOMENTS)]
    reader = FolderReader(source, metadata)
    with writing(file) as out:
        out.write(_header(metadata, names, json.dumps(state)))
        for name in names:
            out.write(_whole(reader, name, source).view(-1).view(torch.uint8).numpy().data)


def _whole(reader: FolderReader, name: str, source: Path) -> Tensor:
    """A tensor of the checkpoint."""
    try:
        return reader.whole(name)
    except OSError as error:
        where = str(error.filename or source)
        raise BadInput(f"cannot be read: {error.strerror}", where=where) from None


def _header(metadata: Metadata, names: list[str], state: str) -> bytes:
    table: dict[str, Any] = {"__metadata__": {"format": "pt", "weft": state}}
    start = 0
    for name in names:
        tensor = metadata.state_dict_metadata[name]
        assert isinstance(tensor, TensorStorageMetadata)
        dtype = tensor.properties.dtype
        stop = start + prod(tensor.size) * dtype.itemsize
        table[name] = {"dtype": _DTYPES[dtype], "shape": list(tensor.size), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
