"""Traces of PyTorch's profiler as JSON, and the records of collectives in them: sizes, types and ranks.

Key names are those of ``torch/csrc/distributed/c10d/ParamCommsUtils`` as Kineto's ``output_json.cpp`` writes them.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import reprlib
import zlib
from collections.abc import Mapping
from typing import Any, NoReturn

from weft.errors import BadInput, Unsupported
from weft.files import LARGEST_FILE_BYTES, read_bytes
from weft.model.workload import Communication, CommunicationKind

_TYPES = {
    1: "byte char bool uint8 int8 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu",
    2: "half bfloat16 float16 short uint16 int16",
    4: "float float32 int uint32 int32",
    8: "double float64 long uint64 int64 complexfloat",
    16: "complexdouble",
}
ELEMENT_BYTES = {name: size for size, names in _TYPES.items() for name in names.split()}
"""Bytes of the types, by their names in PyTorch in lower case."""

_KINDS: tuple[tuple[str, CommunicationKind], ...] = (
    ("reducescatter", "reduce-scatter"),
    ("allreduce", "all-reduce"),
    ("allgather", "all-gather"),
    ("alltoall", "all-to-all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("reduce", "reduce"),
    ("sendrecv", "send"),
    ("send", "send"),
    ("recv", "send"),
)
_SENT, _RECEIVED, _TYPE, _RANKS = "In msg nelems", "Out msg nelems", "dtype", "Process Group Ranks"
MOST_ELEMENTS = 10**15


def read_events(path: str | os.PathLike[str], where: str) -> list[dict[str, Any]]:
    """The events of a trace, compressed with gzip or not."""
    remedy = "check the path, or trace fewer steps, without stacks and shapes"
    raw = read_bytes(path, where=where, largest=LARGEST_FILE_BYTES, remedy=remedy)
    if raw[:2] == b"\x1f\x8b":
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(raw)) as packed:
                raw = packed.read(LARGEST_FILE_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise BadInput(f"not a whole gzip file: {error}", where=where) from None
        if len(raw) > LARGEST_FILE_BYTES:
            raise BadInput(f"holds more than {LARGEST_FILE_BYTES // 10**6} MB", where=where, remedy=remedy)
    try:
        document = json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse)
    except RecursionError:
        raise BadInput("not valid JSON: nested too deeply", where=where) from None
    except ValueError as error:
        raise BadInput(f"not valid JSON: {error}", where=where, remedy="is the file complete?") from None
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        problem = "is not a trace: it has no list of traceEvents"
        raise BadInput(problem, where=where, remedy="give a trace of torch.profiler")
    return events


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def number(value: object, where: str) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
        raise BadInput(f"{reprlib.repr(value)} is not a number", where=where)
    return float(value)


def kind_of(name: str) -> CommunicationKind | None:
    """The kind of a collective of PyTorch or of a kernel of NCCL, by its name."""
    plain = name.lower().replace("_", "")
    return next((kind for part, kind in _KINDS if part in plain), None)


def communication(kind: CommunicationKind, record: Mapping[str, Any], where: str) -> Communication:
    """The collective of a record.

    Raises:
        Unsupported: the type's size is not known.
    """
    ranks = _rank_list(record.get(_RANKS))
    if kind == "barrier":
        return Communication(kind=kind, bytes=0.0, ranks=ranks)
    if missing := [repr(key) for key in (_SENT, _RECEIVED, _TYPE) if key not in record]:
        raise BadInput(
            f"the {kind} does not say its size: {', '.join(missing)} is missing",
            where=where,
            remedy="trace with a PyTorch (2.2 or later) that records collectives",
        )
    sent, received = (_elements(record[key], f"{where}: {key}") for key in (_SENT, _RECEIVED))
    name = record[_TYPE]
    size = ELEMENT_BYTES.get(name.strip().lower()) if isinstance(name, str) else None
    if size is None:
        raise Unsupported(f"elements of type {reprlib.repr(name)} have no known size", where=where)
    # Whichever of both is the whole buffer.
    elements = {"all-gather": received, "broadcast": max(sent, received), "send": max(sent, received)}
    return Communication(kind=kind, bytes=float(elements.get(kind, sent) * size), ranks=ranks)


def _rank_list(value: object) -> tuple[int, ...] | None:
    """The ranks of a text like "[0, 1]"; None where they are not all told."""
    parts = [part.strip() for part in value.strip().strip("[]").split(",")] if isinstance(value, str) else [""]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return None
    return tuple(map(int, parts))


def _elements(value: object, where: str) -> int:
    count = number(value, where)
    if not (0 <= count < MOST_ELEMENTS and math.floor(count) == count):
        raise BadInput(f"{count:g} is not a number of elements", where=where)
    return int(count)
