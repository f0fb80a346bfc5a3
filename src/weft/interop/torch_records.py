"""Traces of PyTorch's profiler as JSON, and the records of collectives in them: sizes, types and ranks.

Key names are those of ``torch/csrc/distributed/c10d/ParamCommsUtils`` as Kineto's ``output_json.cpp`` writes them.
"""

from __future__ import annotations

import codecs
import gzip
import json
import math
import os
import re
import reprlib
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from weft.errors import BadInput, Unsupported
from weft.files import LARGEST_FILE_BYTES
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
LARGEST_TRACE_BYTES = 4_000_000_000
CHUNK = 1 << 20
MOST_HEAD = 64 << 20
"""Characters before the list of events, and of one event, at most."""
_OPENING = re.compile(r'"traceEvents"\s*:\s*\[')
_SEPARATOR = re.compile(r"[\s,]*")


def read_events(path: str | os.PathLike[str], where: str) -> list[dict[str, Any]]:
    """The events of a trace that fits in memory, compressed with gzip or not."""
    return list(stream_events(path, where, largest=LARGEST_FILE_BYTES)[1])


def stream_events(
    path: str | os.PathLike[str], where: str, *, largest: int = LARGEST_TRACE_BYTES
) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """What a trace says before its list of events, and the events one by one, in memory of a few of them.

    Args:
        largest: characters of the whole trace, unpacked.
    """
    chunks = _chunks(path, where, largest)
    head = next(chunks, "")
    at = 0 if head.lstrip().startswith("[") else -1
    # 1. The text up to the list.
    while at < 0:
        opening = _OPENING.search(head)
        at = opening.end() - 1 if opening else -1
        more = next(chunks, "") if at < 0 else ""
        if at < 0 and (not more or len(head) > MOST_HEAD):
            problem = "is not a trace: it has no list of traceEvents"
            raise BadInput(problem, where=where, remedy="give a trace of torch.profiler")
        head += more
    try:
        before = json.loads(head[:at].partition('"traceEvents"')[0].rstrip().rstrip(",") + "}")
    except (ValueError, RecursionError):
        before = {}
    return before, _events(head[at:].lstrip()[1:], chunks, where)


def _events(text: str, chunks: Iterator[str], where: str) -> Iterator[dict[str, Any]]:
    """The events of a list whose text begins with the first one."""
    decoder, at = json.JSONDecoder(parse_constant=_refuse), 0
    while True:
        separator = _SEPARATOR.match(text, at)
        at = separator.end() if separator else at
        if text.startswith("]", at):
            return
        try:
            event, at = decoder.raw_decode(text, at)
        except RecursionError:
            raise BadInput("not valid JSON: nested too deeply", where=where) from None
        except ValueError as error:
            # 2. What is not whole yet waits for the next chunk.
            more = next(chunks, "") if len(text) - at < MOST_HEAD else ""
            if not more:
                raise BadInput(f"not valid JSON: {error}", where=where, remedy="is the file complete?") from None
            text, at = text[at:] + more, 0
            continue
        if not isinstance(event, dict):
            problem = "is not a trace: its list of traceEvents holds something else"
            raise BadInput(problem, where=where, remedy="give a trace of torch.profiler")
        yield event


def _chunks(path: str | os.PathLike[str], where: str, largest: int) -> Iterator[str]:
    """The text of a file, unpacked where it is compressed, piece by piece."""
    decode, taken = codecs.getincrementaldecoder("utf-8-sig")().decode, 0
    try:
        with open(path, "rb") as plain:
            packed = plain.read(2) == b"\x1f\x8b"
            plain.seek(0)
            file = gzip.GzipFile(fileobj=plain) if packed else plain
            while raw := file.read(CHUNK):
                taken += len(raw)
                if taken > largest:
                    remedy = "trace fewer steps, without stacks and shapes"
                    raise BadInput(f"holds more than {largest // 10**6:,} MB", where=where, remedy=remedy)
                yield decode(raw)
    except FileNotFoundError:
        raise BadInput("no such file", where=where, remedy="check the path") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadInput(f"not a whole gzip file: {error}", where=where, remedy="copy it again") from None
    except UnicodeDecodeError:
        raise BadInput("not valid JSON: no text in UTF-8", where=where) from None
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise BadInput(f"cannot be read: {reason}", where=where, remedy="check the path") from None


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
    ranks = rank_list(record.get(_RANKS))
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


def rank_list(value: object) -> tuple[int, ...] | None:
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
