"""PyTorch's two kinds of traces, told apart by their beginning."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

from weft.interop.traces.kineto import read_kineto
from weft.interop.traces.pytorch_trace import read_pytorch_trace
from weft.model.workload import Workload

PEEK_BYTES = 1_000_000


def read_torch_trace(path: str | os.PathLike[str]) -> Workload:
    """The workload of a profiler's trace (Kineto) or of an execution trace, JSON or gzipped JSON.

    Raises:
        BadInput: the file cannot be read, or holds something else.
        Unsupported: a collective that Weft does not model.
    """
    start = _beginning(Path(path))
    execution = b'"traceEvents"' not in start and b'"nodes"' in start
    return read_pytorch_trace(path) if execution else read_kineto(path)


def _beginning(path: Path) -> bytes:
    """The first bytes, unpacked; nothing where the readers will say why not."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            return gzip.GzipFile(fileobj=file).read(PEEK_BYTES) if packed else file.read(PEEK_BYTES)
    except (OSError, EOFError, zlib.error, ValueError):
        return b""
