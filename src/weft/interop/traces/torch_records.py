"""What PyTorch's profiler and its execution traces have in common: JSON files, and records of collectives.

Key names are those of ``torch/csrc/distributed/c10d/ParamCommsUtils`` as Kineto's ``output_json.cpp`` and the
execution trace observer write them.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import reprlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from weft.errors import BadInput, Unsupported
from weft.model.workload import Communication, CommunicationKind

LARGEST_FILE_BYTES = 256_000_000
"""Of a file, and of what a compressed file holds."""

ELEMENT_BYTES = {
    "float": 4,
    "double": 8,
    "half": 2,
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "byte": 1,
    "char": 1,
    "bool": 1,
    "short": 2,
    "int": 4,
    "long": 8,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "complexfloat": 8,
    "complexdouble": 16,
}
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
MOST_ELEMENTS = 10**15


def read_json(path: str | os.PathLike[str], *, where: str) -> Any:
    """What a JSON file holds, compressed with gzip or not.

    Raises:
        BadInput: it cannot be read, is larger than ``LARGEST_FILE_BYTES``, or is not JSON.
    """
    try:
        return json.loads(_unpacked(path, where).decode("utf-8-sig"), parse_constant=_refuse)
    except RecursionError:
        raise BadInput("not valid JSON: nested too deeply", where=where) from None
    except ValueError as error:
        raise BadInput(f"not valid JSON: {error}", where=where, remedy="is the file complete?") from None


def _unpacked(path: str | os.PathLike[str], where: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            raw = file.read(LARGEST_FILE_BYTES + 1)
            if raw[:2] == b"\x1f\x8b":
                file.seek(0)
                with gzip.GzipFile(fileobj=file) as packed:
                    raw = packed.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise BadInput("no such file", where=where, remedy="check the path") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(f"not a whole gzip file: {error}", where=where) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(f"cannot be read: {reason}", where=where) from None
    if len(raw) > LARGEST_FILE_BYTES:
        raise BadInput(
            f"holds more than {LARGEST_FILE_BYTES // 10**6} MB",
            where=where,
            remedy="trace fewer steps, or without stacks and shapes",
        )
    return raw


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def number(value: object, where: str) -> float:
    """A finite number.

    Raises:
        BadInput: anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
        raise BadInput(f"{reprlib.repr(value)} is not a number", where=where)
    return float(value)


def kind_of(name: str) -> CommunicationKind | None:
    """The kind of a collective of PyTorch or of a kernel of NCCL, by its name."""
    plain = name.lower().replace("_", "")
    return next((kind for part, kind in _KINDS if part in plain), None)


def communication(
    kind: CommunicationKind, record: Mapping[str, Any], keys: Mapping[str, str], where: str
) -> Communication:
    """The collective of a record whose fields ``keys`` names: in, out, dtype and ranks.

    Raises:
        BadInput: a size or type is missing, or cannot be used.
        Unsupported: the type's size is not known.
    """
    ranks = rank_list(record.get(keys["ranks"]))
    if kind == "barrier":
        return Communication(kind=kind, bytes=0.0, ranks=ranks)
    missing = [keys[what] for what in ("in", "out", "dtype") if keys[what] not in record]
    if missing:
        raise BadInput(
            f"the {kind} does not say its size: {', '.join(map(repr, missing))} is missing",
            where=where,
            remedy="trace with a PyTorch (2.2 or later) that records collectives",
        )
    sent, received = (_elements(record[keys[what]], f"{where}: {keys[what]}") for what in ("in", "out"))
    elements = {"all-gather": received, "broadcast": max(sent, received), "send": max(sent, received)}
    each = _element_bytes(record[keys["dtype"]], where)
    return Communication(kind=kind, bytes=float(elements.get(kind, sent) * each), ranks=ranks)


def rank_list(value: object) -> tuple[int, ...] | None:
    """The ranks of a list, or of a text like "[0, 1]"; None where they are not all told."""
    if isinstance(value, str) and len(value) < 10_000_000:
        parts = [part.strip() for part in value.strip().strip("[]").split(",")]
        if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
            return None
        return tuple(map(int, parts))
    if isinstance(value, list) and value and all(type(rank) is int and 0 <= rank < 10**9 for rank in value):
        return tuple(value)
    return None


def _elements(value: object, where: str) -> int:
    count = number(value, where)
    if not (0 <= count < MOST_ELEMENTS and math.floor(count) == count):
        raise BadInput(f"{count:g} is not a number of elements", where=where)
    return int(count)


def _element_bytes(value: object, where: str) -> int:
    name = value.strip().lower() if isinstance(value, str) else ""
    if name not in ELEMENT_BYTES:
        raise Unsupported(f"elements of type {reprlib.repr(value)} have no known size", where=where)
    return ELEMENT_BYTES[name]
