"""Measured runs as tables publish them: one record a row, empty cells as None, in the units of the table."""

from __future__ import annotations

import csv
import math
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib.resources import as_file, files
from typing import Any

from weft.errors import BadInput
from weft.files import read_text

REQUIRED = ("id", "family", "model", "gpu", "gpus")
MEASURES = ("measured_iter_s", "iter_s", "tokens_s_gpu", "tflops_per_gpu", "mfu")
"""Columns of which a table needs at least one."""
ABSENT = frozenset({"", "-", "--", "n/a", "na", "nan", "none", "null", "?", "unknown"})
SHIPPED = "measured_runs.csv"
LARGEST = 1e15
LARGEST_RUNS_BYTES = 64_000_000
LARGEST_COUNT = 10_000_000
MOST_LAYERS = 10_000
LONGEST_WORDS = 10_000


def _number(text: str) -> float | None:
    """A positive number; thousands may be set off, and a percentage is a fraction."""
    plain = unicodedata.normalize("NFKC", text).strip().lower().replace(",", "").replace(" ", "")
    plain = plain.removeprefix("~")
    if plain in ABSENT:
        return None
    try:
        value = float(plain.removesuffix("%")) / (100.0 if plain.endswith("%") else 1.0)
    except ValueError:
        raise ValueError("is not a number") from None
    if not 0 <= value <= LARGEST:
        raise ValueError(f"is not within 0 to {LARGEST:g}")
    return value


def _positive(text: str) -> float | None:
    value = _number(text)
    if value == 0:
        raise ValueError("is zero")
    return value


def _whole(text: str) -> int | None:
    value = _number(text)
    if value is None:
        return None
    if value != math.floor(value):
        raise ValueError("is not a whole number")
    if value > LARGEST_COUNT:
        raise ValueError(f"is more than {LARGEST_COUNT:,}")
    return int(value)


def _count(text: str) -> int | None:
    value = _whole(text)
    if value == 0:
        raise ValueError("is zero")
    return value


def _layers(text: str) -> int | None:
    value = _count(text)
    if value is not None and value > MOST_LAYERS:
        raise ValueError(f"is more than {MOST_LAYERS:,}")
    return value


def _share(text: str) -> float | None:
    """A fraction of a peak; 41.5 means 41.5 %."""
    value = _positive(text)
    if value is not None and value > 1.5:
        value /= 100.0
    return value


def _flag(text: str) -> bool | None:
    plain = text.strip().lower()
    if plain in ("1", "1.0", "true", "yes", "on"):
        return True
    if plain in ("0", "0.0", "false", "no", "off"):
        return False
    if plain in ABSENT:
        return None
    raise ValueError("is neither 0 nor 1")


def _word(text: str) -> str:
    if len(text) > LONGEST_WORDS:
        raise ValueError(f"has more than {LONGEST_WORDS:,} characters")
    plain = " ".join(unicodedata.normalize("NFKC", text).split())
    return "" if plain.lower() in ABSENT else plain


def _choice(text: str) -> str:
    """A word of which "none" is one, as opposed to what is not stated."""
    return "none" if text.strip().lower() == "none" else _word(text)


def _cell(read: Callable[[str], Any], default: Any = None) -> Any:
    return field(default=default, metadata={"read": read})


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run; None, or "", where the source does not state a figure.

    ``software`` is what trained, with its version, and ``kernels`` are its attention library, fused norms and whatever
    else is not its default.  ``gpus`` counts accelerators, ``nodes_gpus`` those of a scale-up domain, ``params_b``
    parameters in 1e9.
    ``dp`` is GPUs / (tp pp cp), ``ep`` is inside dp, ``etp`` cuts each expert.  ``tflops_per_gpu`` and ``mfu`` (a
    fraction) are as the source counts FLOPs (``counts_recompute``: with the recomputation pass); ``measured_iter_s``
    and ``iter_s`` are seconds of an iteration.  ``line`` is where the row stands in its file.
    """

    line: int
    id: str = _cell(_word, "")
    family: str = _cell(_word, "")
    source: str = _cell(_word, "")
    source_url: str = _cell(_word, "")
    software: str = _cell(_word, "")
    kernels: str = _cell(_word, "")
    model: str = _cell(_word, "")
    params_b: float | None = _cell(_positive)
    layers: int | None = _cell(_layers)
    hidden: int | None = _cell(_count)
    heads: int | None = _cell(_count)
    kv_heads: int | None = _cell(_count)
    ffn: int | None = _cell(_count)
    vocab: int | None = _cell(_count)
    seq: int | None = _cell(_count)
    experts: int | None = _cell(_whole)
    topk: int | None = _cell(_whole)
    gpu: str = _cell(_word, "")
    gpus: int | None = _cell(_count)
    nodes_gpus: int | None = _cell(_count)
    tp: int | None = _cell(_count)
    pp: int | None = _cell(_count)
    vpp: int | None = _cell(_whole)
    dp: int | None = _cell(_count)
    cp: int | None = _cell(_count)
    ep: int | None = _cell(_count)
    etp: int | None = _cell(_count)
    zero: int | None = _cell(_whole)
    micro_batch: int | None = _cell(_count)
    global_batch: int | None = _cell(_count)
    precision: str = _cell(_word, "")
    recompute: str = _cell(_choice, "")
    sequence_parallel: bool | None = _cell(_flag)
    tflops_per_gpu: float | None = _cell(_positive)
    mfu: float | None = _cell(_share)
    tokens_s_gpu: float | None = _cell(_positive)
    iter_s: float | None = _cell(_positive)
    notes: str = _cell(_word, "")
    measured_iter_s: float | None = _cell(_positive)
    peak_memory_gib: float | None = _cell(_positive)
    counts_recompute: bool | None = _cell(_flag)

    @property
    def name(self) -> str:
        """The run's id, or the line where it stands."""
        return self.id or f"line {self.line}"

    @property
    def remarks(self) -> str:
        """All that the table says of the run in words."""
        return f"{self.source}; kernels: {self.kernels}; {self.notes}; {self.model}; {self.gpu}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unparsed:
    """A row that cannot be read, and why."""

    name: str
    family: str
    reason: str


_CELLS: dict[str, Callable[[str], Any]] = {
    one.name: one.metadata["read"] for one in fields(Run) if one.default is not MISSING
}


def shipped_runs() -> tuple[Run | Unparsed, ...]:
    """The published runs that Weft's own constants are fitted to (docs/measured-runs.md)."""
    with as_file(files("weft.validation").joinpath("data", SHIPPED)) as path:
        return read_runs(str(path))


def read_runs(path: str) -> tuple[Run | Unparsed, ...]:
    """The rows of a CSV file in order; columns that are not known are ignored.

    Raises:
        BadInput: the file cannot be read, is no CSV in UTF-8, or lacks required columns.
    """
    return runs_of_text(read_text(path, largest=LARGEST_RUNS_BYTES, remedy="name a CSV file of runs"), path)


def runs_of_text(text: str, where: str) -> tuple[Run | Unparsed, ...]:
    """The rows of the text of a CSV file, a run whose id is another's left out; ``where`` names it in messages.

    Raises:
        BadInput: it is no CSV, or lacks required columns.
    """
    reader = csv.DictReader(text.splitlines(keepends=True), restval="")
    try:
        _check_columns(reader.fieldnames or (), where)
        rows = [_parsed(row, reader.line_num) for row in reader if any(_cells(row))]
    except csv.Error as error:
        raise BadInput(f"is not CSV: {error}", where=f"{where}: line {reader.line_num}") from None
    first: dict[str, Run] = {}
    for number, row in enumerate(rows):
        if isinstance(row, Run) and row.id and first.setdefault(row.id, row) is not row:
            reason = f"another run has its id (line {first[row.id].line})"
            rows[number] = Unparsed(name=row.id, family=row.family, reason=reason)
    return tuple(rows)


def _check_columns(names: Any, path: str) -> None:
    missing = [name for name in REQUIRED if name not in names]
    if not any(name in names for name in MEASURES):
        missing.append(f"one of {'/'.join(MEASURES)}")
    if missing:
        raise BadInput(f"lacks the columns {', '.join(missing)}", where=path, remedy="add them to the header")


def _cells(row: Mapping[str | None, Any]) -> list[str]:
    return [value for value in row.values() if isinstance(value, str) and value.strip()]


def _parsed(row: Mapping[str | None, Any], line: int) -> Run | Unparsed:
    values: dict[str, Any] = {}
    try:
        if None in row:
            raise ValueError(f"{len(row[None])} more cells than columns")
        for name, read in _CELLS.items():
            values[name] = _read(name, read, row.get(name, ""))
        for name in ("gpu", "gpus"):
            if not values[name]:
                raise ValueError(f"{name} is not stated")
    except ValueError as error:
        words = {name: _word(str(row.get(name, ""))[:LONGEST_WORDS]) for name in ("id", "family")}
        return Unparsed(name=words["id"] or f"line {line}", family=words["family"], reason=str(error))
    return Run(line=line, **values)


def _read(name: str, read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except ValueError as error:
        shown = text if len(text) <= 40 else text[:37] + "..."
        raise ValueError(f"{name} = {shown!r} {error}") from None
