"""Measured runs as tables publish them: one record a row, empty cells as None, in the units of the table."""

from __future__ import annotations

import csv
import math
import re
import tomllib
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache, partial
from importlib.resources import as_file, files
from typing import Any, Literal

from weft.errors import BadInput
from weft.files import read_text
from weft.layout.spec import TensorOverlap
from weft.model.job import AttentionKernel, Precision

UNKNOWN = "unknown"
STATED: tuple[tuple[str, str, float], ...] = (
    (r"\b(hybrid|deep)-?ep\b", "dispatch_once", 1.0),
    (r"\bnccl all-to-alls?\b", "dispatch_once", 0.0),
    (r"\bdispatch not overlapped\b", "expert_overlap", 0.0),
    (r"\brms[ -]?(norm )?kernel\b|\bfused (rms|layer) ?norms?\b", "norm_overhead", 1.0),
    (r"\bflash[ _-]?attention[ _-]?v?1(\.\d+)*\b", "attention_share", 0.55),
    (r"\bbalanced\b", "expert_spread", 0.0),
    (r"\bno cuda graphs\b", "launches_per_step", 3.0),
    (r"\bcuda graphs of routing\b", "launches_per_step", 2.25),
    (r"\bcuda graphs of attention and routing\b", "launches_per_step", 1.5),
    (r"\bcuda graphs of whole (layers|iterations)\b", "launches_per_step", 0.3),
)
"""What words of a table say of constants: a pattern, the constant and its value.  Launches are those of modules of
Transformer Engine started from Python, of which graphs leave the rest, as in ``data/prior.toml``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Training software and its documented defaults; ``data/stacks.toml`` says what each field means.

    ``source`` says where the defaults are from; ``gradient_bytes`` is keyed by precision, other precisions
    have 4.  ``stated`` are constants that the words of a run state, which count over those of the software's table.
    ``flops_stated`` says whether the counting of FLOPs is the software's own, not taken from one that it is
    like.
    """

    name: str
    title: str
    source: str
    precision: Precision
    attention: AttentionKernel
    dropout: bool
    recompute: Literal["none", "selective", "full", "fit"]
    zero: int
    sequence_parallel: bool
    overlap_tensor: TensorOverlap
    overlap_reduce: bool
    overlap_gather: bool
    gradient_bytes: Mapping[str, int]
    interleaved: bool
    expert_tensor: bool
    prediction: bool
    micro_batch: Literal["of", "stages"]
    reshard: bool
    flops: Literal["full", "causal"]
    flops_stated: bool
    memory: Literal["allocated", "reserved"]
    pattern: str = ""
    sharded_by: str = ""
    stated: tuple[tuple[str, float], ...] = ()


@cache
def stacks() -> Mapping[str, Stack]:
    """All stacks by name, in the order in which they are recognised."""
    text = files("weft.validation").joinpath("data", "stacks.toml").read_text(encoding="utf-8")
    raw = tomllib.loads(text)
    return {name: Stack(name=name, flops_stated=_states(raw, name, "flops"), **_inherited(raw, name)) for name in raw}


def _states(raw: Mapping[str, dict[str, Any]], name: str, key: str) -> bool:
    """Whether a stack, or an older or newer one of the same name, gives a value itself."""
    base = raw[name].get("like", "")
    return key in raw[name] or (base.split("-")[0] == name.split("-")[0] and _states(raw, base, key))


def _inherited(raw: Mapping[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """The table of a stack with what it takes from others; patterns are its own."""
    value = raw[name]
    base = _inherited(raw, value["like"]) if "like" in value else {}
    merged = {key: value for key, value in base.items() if key != "pattern"} | value
    return {key: value for key, value in merged.items() if key != "like"}


def recognise(run: Run) -> Stack:
    """The stack that a run's software names, else its other words; ``unknown`` where none does."""
    known = stacks()
    source = f"{run.source}; {run.family}; on {run.gpu}"
    places = [source, run.notes, f"{run.source_url} {run.model}"]
    if run.software:
        places.insert(0, f"{run.software}; on {run.gpu}")
    elif _is_baseline(run):
        places.insert(0, run.notes)
    stack = next((result for place in places if (result := _named(place))), known[UNKNOWN])
    ran = known[stack.sharded_by] if run.zero == 3 and stack.sharded_by else stack
    words = f"{run.kernels}; {run.notes}"
    stated = {name: value for pattern, name, value in STATED if _found(pattern, words)}
    return replace(ran, stated=tuple(stated.items())) if stated else ran


def baseline_warning(run: Run) -> str:
    """A warning of a run that another system's paper compares with, and whose software only its notes name; else
    empty."""
    if not _is_baseline(run):
        return ""
    return f"a baseline, by its notes: taken for {recognise(run).title}; the column software would decide"


def _is_baseline(run: Run) -> bool:
    return not run.software and _found(r"\bbaseline\b", run.notes) and _named(run.notes) is not None


def _named(text: str) -> Stack | None:
    return next((stack for stack in stacks().values() if stack.pattern and _found(stack.pattern, text)), None)


def _found(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None


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


def _figure(text: str, *, zero: bool = False, most_whole: int | None = None) -> float | None:
    """A positive number (0 too with ``zero``), a whole one where ``most_whole`` limits it; thousands may be set off,
    and a percentage is a fraction."""
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
    if most_whole is not None and value != math.floor(value):
        raise ValueError("is not a whole number")
    if most_whole is not None and value > most_whole:
        raise ValueError(f"is more than {most_whole:,}")
    if value == 0 and not zero:
        raise ValueError("is zero")
    return value if most_whole is None else int(value)


def _share(text: str) -> float | None:
    """A fraction of a peak; 41.5 means 41.5 %."""
    value = _figure(text)
    return value / 100.0 if value is not None and value > 1.5 else value


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


def _cell(read: Callable[..., Any], default: Any = None, **limits: Any) -> Any:
    return field(default=default, metadata={"read": partial(read, **limits)})


def _count(*, zero: bool = False, most: int = LARGEST_COUNT) -> Any:
    return _cell(_figure, zero=zero, most_whole=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run; None, or "", where the source does not state a figure.

    ``software`` is what trained, with its version, and ``kernels`` are its attention library, fused norms and whatever
    else is not its default.  ``gpus`` counts accelerators, ``nodes_gpus`` those of a scale-up domain, ``params_b``
    parameters in 1e9.
    ``dp`` is GPUs / (tp pp cp), ``ep`` is inside dp, ``etp`` cuts each expert.  ``tflops_per_gpu`` and ``mfu`` (a
    fraction) are as the source counts FLOPs (``counts_recompute``: with the recomputation pass); ``measured_iter_s``
    and ``iter_s`` are seconds of an iteration.  ``line`` is the row's line in its file.
    """

    line: int
    id: str = _cell(_word, "")
    family: str = _cell(_word, "")
    source: str = _cell(_word, "")
    source_url: str = _cell(_word, "")
    software: str = _cell(_word, "")
    kernels: str = _cell(_word, "")
    model: str = _cell(_word, "")
    params_b: float | None = _cell(_figure)
    layers: int | None = _count(most=MOST_LAYERS)
    hidden: int | None = _count()
    heads: int | None = _count()
    kv_heads: int | None = _count()
    ffn: int | None = _count()
    vocab: int | None = _count()
    seq: int | None = _count()
    experts: int | None = _count(zero=True)
    topk: int | None = _count(zero=True)
    gpu: str = _cell(_word, "")
    gpus: int | None = _count()
    nodes_gpus: int | None = _count()
    tp: int | None = _count()
    pp: int | None = _count()
    vpp: int | None = _count(zero=True)
    dp: int | None = _count()
    cp: int | None = _count()
    ep: int | None = _count()
    etp: int | None = _count()
    zero: int | None = _count(zero=True)
    micro_batch: int | None = _count()
    global_batch: int | None = _count()
    precision: str = _cell(_word, "")
    recompute: str = _cell(_choice, "")
    sequence_parallel: bool | None = _cell(_flag)
    tflops_per_gpu: float | None = _cell(_figure)
    mfu: float | None = _cell(_share)
    tokens_s_gpu: float | None = _cell(_figure)
    iter_s: float | None = _cell(_figure)
    notes: str = _cell(_word, "")
    measured_iter_s: float | None = _cell(_figure)
    peak_memory_gib: float | None = _cell(_figure)
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
class Skipped:
    """A row that cannot be read, or a run that cannot be predicted, and why."""

    name: str
    family: str
    reason: str


_CELLS: dict[str, Callable[[str], Any]] = {
    field.name: field.metadata["read"] for field in fields(Run) if field.default is not MISSING
}


def shipped_runs() -> tuple[Run | Skipped, ...]:
    """The published runs that Weft's own constants are fitted to (docs/measured-runs.md)."""
    with as_file(files("weft.validation").joinpath("data", SHIPPED)) as path:
        return read_runs(str(path))


def read_runs(path: str) -> tuple[Run | Skipped, ...]:
    """The rows of a CSV file in order; columns that are not known are ignored.

    Raises:
        BadInput: the file cannot be read, is no CSV in UTF-8, or lacks required columns.
    """
    return runs_of_text(read_text(path, largest=LARGEST_RUNS_BYTES, remedy="name a CSV file of runs"), path)


def runs_of_text(text: str, where: str) -> tuple[Run | Skipped, ...]:
    """The rows of the text of a CSV file, a run whose id is another's left out; ``where`` names it in messages.

    Raises:
        BadInput: it is no CSV, or lacks required columns.
    """
    reader = csv.DictReader(text.splitlines(keepends=True), restval="")
    try:
        missing = [name for name in REQUIRED if name not in (reader.fieldnames or ())]
        if not set(MEASURES) & set(reader.fieldnames or ()):
            missing.append(f"one of {'/'.join(MEASURES)}")
        if missing:
            raise BadInput(f"lacks the columns {', '.join(missing)}", where=where, remedy="add them to the header")
        rows = [
            _parsed(row, reader.line_num)
            for row in reader
            if any(isinstance(value, str) and value.strip() for value in row.values())
        ]
    except csv.Error as error:
        raise BadInput(f"is not CSV: {error}", where=f"{where}: line {reader.line_num}") from None
    first: dict[str, Run] = {}
    for number, row in enumerate(rows):
        if isinstance(row, Run) and row.id and first.setdefault(row.id, row) is not row:
            reason = f"unreadable: another run has its id (line {first[row.id].line})"
            rows[number] = Skipped(name=row.id, family=row.family, reason=reason)
    return tuple(rows)


def _parsed(row: Mapping[str | None, Any], line: int) -> Run | Skipped:
    values: dict[str, Any] = {}
    try:
        if None in row:
            raise ValueError(f"{len(row[None])} more cells than columns")
        for name, read in _CELLS.items():
            text = row.get(name, "")
            try:
                values[name] = read(text)
            except ValueError as error:
                excerpt = text if len(text) <= 40 else text[:37] + "..."
                raise ValueError(f"{name} = {excerpt!r} {error}") from None
        for name in ("gpu", "gpus"):
            if not values[name]:
                raise ValueError(f"{name} is not stated")
    except ValueError as error:
        words = {name: _word(str(row.get(name, ""))[:LONGEST_WORDS]) for name in ("id", "family")}
        return Skipped(name=words["id"] or f"line {line}", family=words["family"], reason=f"unreadable: {error}")
    return Run(line=line, **values)
