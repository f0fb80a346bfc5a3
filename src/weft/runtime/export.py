"""A trained model as one file: the parameters of a checkpoint in the safetensors format.

The format is a length, a header in JSON and raw little-endian numbers (huggingface/safetensors, README), so
that writing it needs no package.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from weft.errors import BadInput
from weft.runtime.checkpoint import read_state
from weft.runtime.checkpoint_files import Reader, read_metadata

_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_ALIGNMENT = 8


def export(folder: str | os.PathLike[str], file: str | os.PathLike[str]) -> None:
    """Write the parameters of a checkpoint, whole and under Weft's names, to a safetensors file.

    The optimizer's moments are left out; the state is JSON in the metadata's ``weft``.  One process does it,
    with one tensor in memory at a time.

    Raises:
        BadInput: the folder is no checkpoint or damaged, or the file cannot be written.
    """
    source, target = Path(folder), Path(file)
    state, metadata = read_state(source), read_metadata(source)
    names = [name for name in metadata.state_dict_metadata if "/" not in name]
    partial = target.with_name(target.name + ".partial")
    reader = Reader(source, metadata)
    try:
        with partial.open("wb") as out:
            out.write(_header(metadata, names, json.dumps(state)))
            for name in names:
                out.write(reader.whole(name).view(-1).view(torch.uint8).numpy().data)
        partial.replace(target)
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=str(file)) from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


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
