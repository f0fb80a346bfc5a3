"""Results as files: rows as CSV and Parquet (pyarrow, extra ``parquet``), timelines as Chrome traces (JSON).

CSV is safe to open in a spreadsheet.  Timelines have the format of PyTorch's profiler; ui.perfetto.dev opens them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any

from weft.files import write_text

_FORMULA = ("=", "+", "-", "@", "|", "%")
_BLANK = ("\t", "\r", "\n")


def rows_to_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows, such as those of ``to_dicts``, under a line of column names; lists are joined by semicolons."""
    text = io.StringIO()
    write_csv(text, rows, columns)
    return text.getvalue()


def write_csv(text: IO[str], rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Write rows as they come, as ``rows_to_csv`` does; what a row does not have is left empty."""
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([neutral(_plain(row.get(name))) for name in columns])


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return "; ".join(map(str, value)) if isinstance(value, list) else value


def neutral(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets a leading apostrophe; everything else is kept."""
    if isinstance(value, str) and (value.startswith(_BLANK) or value.lstrip().startswith(_FORMULA)):
        return f"'{value}"
    return value


ROW_GROUP = 50_000


def write_parquet(file: IO[bytes], rows: Iterable[Mapping[str, Any]], columns: Mapping[str, type]) -> None:
    """Write rows as they come; the same rows give the same bytes with the same pyarrow.

    Args:
        columns: names, and bool, int, float or str.
    """
    import pyarrow
    import pyarrow.parquet

    forms = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    schema = pyarrow.schema([(name, forms[kind]) for name, kind in columns.items()])
    waiting = iter(rows)
    with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while group := list(islice(waiting, ROW_GROUP)):
            arrays = [
                pyarrow.array([None if row.get(name) is None else kind(row[name]) for row in group], type=forms[kind])
                for name, kind in columns.items()
            ]
            writer.write_table(pyarrow.table(arrays, schema=schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Something that lasts from ``begin_s`` to ``end_s``, on a thread of a process as viewers group them."""

    process: str
    thread: str
    name: str
    begin_s: float
    end_s: float


def write_trace(path: str, slices: Iterable[Slice], *, about: Mapping[str, Any] | None = None) -> None:
    """Write a timeline; ``about`` is kept beside its events.

    Raises:
        BadInput: the file cannot be written.
    """
    processes: dict[str, int] = {}
    threads: dict[tuple[str, str, int], int] = {}
    ends_us: dict[tuple[str, str], list[float]] = {}
    events: list[dict[str, Any]] = []
    for part in sorted(slices, key=lambda part: (part.begin_s, part.end_s)):
        begin_us, end_us = _us(part.begin_s), _us(part.end_s)
        # Viewers nest slices of one thread: those that overlap get separate threads, each the first that is free.
        busy = ends_us.setdefault((part.process, part.thread), [])
        lane = next((i for i, until_us in enumerate(busy) if until_us <= begin_us), len(busy))
        busy[lane : lane + 1] = [end_us]
        pid = processes.setdefault(part.process, len(processes) + 1)
        tid = threads.setdefault((part.process, part.thread, lane), len(threads) + 1)
        duration_us = round(end_us - begin_us, 3)
        events.append({"ph": "X", "name": part.name, "pid": pid, "tid": tid, "ts": begin_us, "dur": duration_us})
    names = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for name, pid in processes.items()
    ]
    names += [
        {"ph": "M", "name": "thread_name", "pid": processes[process], "tid": tid, "args": {"name": thread}}
        for (process, thread, _), tid in threads.items()
    ]
    document = {"displayTimeUnit": "ms", "otherData": dict(about or {}), "traceEvents": [*names, *events]}
    write_text(path, json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n")


def _us(seconds: float) -> float:
    """Microseconds, to the nanosecond."""
    return round(seconds * 1e6, 3)
