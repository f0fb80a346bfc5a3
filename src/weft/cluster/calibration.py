"""Calibration: named physical constants of an accelerator and its software, each with unit, range and source, and
measured times of single kernels and collectives by shape."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from weft.codec import Name, NonNegative, Positive, Range, decode
from weft.documents import parse_json, parse_toml
from weft.errors import BadInput, UnknownName
from weft.files import CONFIGURATION_BYTES, read_text
from weft.model.job import Precision

MeasuredPhase = Literal["any", "forward", "input-gradient", "weight-gradient"]
MeasuredCollective = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send"]
SCALE_UP, SCALE_OUT = "scale-up", "scale-out"
DEFAULT = "default"
"""The memory-bound kernels that no other entry names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTime:
    """Seconds of ``groups`` products (m x k) by (k x n) in one kernel.

    The sides are those of the phase: forward (tokens x inputs) by (inputs x outputs), input-gradient (tokens x
    outputs) by (outputs x inputs), weight-gradient (outputs x tokens) by (tokens x inputs).  ``any`` phase stands
    for all three, and for the transposed product.
    """

    m: Positive
    n: Positive
    k: Positive
    seconds: Positive
    groups: Positive = 1.0
    phase: MeasuredPhase = "any"
    precision: Precision = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTime:
    """Seconds of one fused, causal attention kernel, forward or backward (``input-gradient``); heads are those
    of one rank."""

    batch: Positive
    sequence: Positive
    heads: Positive
    kv_heads: Positive
    qk_dim: Positive
    v_dim: Positive
    seconds: Positive
    phase: MeasuredPhase = "forward"
    precision: Precision = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTime:
    """``seconds = latency_s + bytes / Bps`` of the memory-bound kernels of a ``name``: ``default``, or what
    ``weft.layout.operations`` calls them (``cross-entropy``, ``expert.permute``, ``norms``)."""

    name: Name
    Bps: Positive
    latency_s: NonNegative = 0.0
    phase: MeasuredPhase = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """``seconds = latency_s + steps * step_s + bytes / Bps`` of a collective.

    ``scope`` is the outermost tier that the group spans: ``scale-up`` (the innermost), ``scale-out`` (any other),
    or a tier's name.  ``ranks`` limits the entry to groups of that size; 0 is any.  ``Bps`` is per accelerator and
    direction, over the bytes that a ring's rank sends (nccl-tests' bus bandwidth); ranks of one unit below the
    scope's tier share the crossing.  Steps are a ring's.
    """

    kind: MeasuredCollective
    scope: Name
    Bps: Positive
    latency_s: NonNegative = 0.0
    step_s: NonNegative = 0.0
    ranks: Annotated[int, Range(0, 10**9)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Everything that was measured by shape; empty parts leave Weft's closed forms as they are."""

    products: tuple[ProductTime, ...] = ()
    attention: tuple[AttentionTime, ...] = ()
    memory: tuple[MemoryTime, ...] = ()
    collectives: tuple[CollectiveTime, ...] = ()


PARTS = tuple(field.name for field in fields(Measurements))
"""Names of the lists of a calibration file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Constants between peak and achieved.  ``name`` says for which accelerator and software.

    ``data/constants.toml`` has the unit, plausible range, source and meaning of each.
    """

    name: str = "default"
    provenance: Literal["analytic", "calibrated"] = "analytic"
    """Whether the constants were set with measured training runs."""
    shipped: bool = False
    """Whether they are Weft's own, whose errors are known."""
    software: str = "by block"
    """How the software gathers and reduces weights: one of ``SOFTWARES``."""
    gemm_efficiency: float = 0.85
    gemm_share: float = 1.0
    low_precision_efficiency: float = 0.75
    attention_efficiency: float = 0.60
    attention_share: float = 1.0
    scan_share: float = 0.3
    routing_overhead: float = 1.0
    expert_share: float = 1.0
    reference_power_w: float = 0.0
    power_exponent: float = 0.5
    clock_spread: float = 0.015
    attention_softmax: float = 64.0
    gemm_depth: float = 128.0
    memory_efficiency: float = 0.80
    pass_overhead: float = 1.0
    norm_overhead: float = 1.0
    kernel_s: float = 4e-6
    launch_s: float = 7e-6
    recompute_share: float = 1.0
    launches_per_step: float = 1.0
    scale_up_efficiency: float = 0.78
    scale_up_reduction_efficiency: float = 0.70
    scale_out_efficiency: float = 0.85
    collective_s: float = 1.2e-5
    shard_collectives: float = 1.0
    overlap_cost: float = 0.10
    iteration_s: float = 5e-3
    optimizer_efficiency: float = 0.75
    host_efficiency: float = 0.80
    host_update_Bps: float = 2.0e10
    expert_spread: float = 0.0
    dispatch_once: float = 0.0
    expert_overlap: float = 0.0
    gradient_dummies: float = 0.0
    loss_copies: float = 1.0
    cut_loss_copies: float = 1.0
    fragmentation: float = 0.03
    reserved_bytes: float = 1.06e9
    measured: Measurements | None = None
    """Times by shape, which count where they fit; the constants count elsewhere."""


@cache
def constants() -> tuple[tuple[str, str, float, float, str], ...]:
    """Name, unit, plausible range and source of each constant."""
    tables = parse_toml(_data("constants.toml"), "constants.toml")
    return tuple((name, table["unit"], *table["range"], table["source"]) for name, table in tables.items())


def _ranges() -> dict[str, tuple[float, float]]:
    return {name: (low, high) for name, _, low, high, _ in constants()}


def _data(file: str) -> str:
    return files("weft.cluster").joinpath("data", file).read_text(encoding="utf-8")


SOFTWARES = ("by block", "eager", "fsdp2", "weft.runtime")
"""Ways of keeping weights together, as ``weft.layout.step`` lists them."""
NOTES = ("source", "provenance", "like", "fitted", "software")
"""Fields of a table that are not constants."""
STACK = "stack."
"""Before the name of a training software in the name of its table."""
ON = "_on_"
"""Between the name of a software and the beginning of accelerators' names, in a table of what it does on these."""
USUAL_STACK, TPU_STACK = "megatron-core", "maxtext"
"""The training software whose constants count where none is named, and on TPUs."""
USUAL = "usual"
"""In place of a software's name: the usual one on such accelerators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Constants by table: of accelerators, by the beginning of their name, and of training software
    (``stack.NAME``, and ``stack.NAME_on_ACCELERATOR`` for what it does on some).

    A table takes what it leaves out from the one that it is ``like``; software overrides the accelerator.
    """

    tables: Mapping[str, Mapping[str, Any]]
    where: str

    def used(self, accelerator: str, stack: str | None = None) -> tuple[str, ...]:
        """The tables that count, later ones over earlier ones."""
        chain = self._family(accelerator, "")
        if stack is not None and STACK + stack in self.tables:
            for name in self._chain(STACK + stack):
                chain += [name, *self._family(accelerator, name + ON)]
        return tuple(chain)

    def _family(self, accelerator: str, before: str) -> list[str]:
        """The chain of the table with the longest beginning of an accelerator's name, behind ``before``."""
        named = (name.removeprefix(before) for name in self.tables if name.startswith(before))
        result = max((name for name in named if accelerator.lower().startswith(name)), key=len, default=None)
        return [] if result is None else self._chain(before + result)

    def _chain(self, name: str) -> list[str]:
        result = [name]
        while "like" in self.tables[result[0]]:
            base = str(self.tables[result[0]]["like"])
            if base not in self.tables or base in result:
                raise BadInput(f"[{result[0]}] is like {base!r}, which is not another table", where=self.where)
            result.insert(0, base)
        return result

    def value(self, table: str, constant: str) -> float:
        """A constant of a table, or of what it is like."""
        return self.last(dict.fromkeys((*self._chain(table.partition(ON)[0]), *self._chain(table))), constant)

    def last(self, names: Iterable[str], constant: str) -> float:
        """A constant of the last of some tables that has it; the default where none has."""
        result = getattr(Calibration(), constant)
        for name in names:
            result = self.tables[name].get(constant, result)
        return float(result)

    def replaced(self, values: Iterable[tuple[str, str, float | str]]) -> Tables:
        """With other values of (table, field)."""
        changed = {name: dict(table) for name, table in self.tables.items()}
        for table, field_, value in values:
            changed[table][field_] = value
        return replace(self, tables=changed)

    def over(self, base: Tables) -> Tables:
        """These tables' constants over those of others."""
        merged = {name: dict(table) for name, table in base.tables.items()}
        for name, table in self.tables.items():
            merged[name] = merged.get(name, {}) | dict(table)
        return replace(self, tables=merged)


@cache
def shipped_tables() -> Tables:
    """The calibration that Weft comes with."""
    return parse_tables(_data("calibration.toml"), "calibration.toml")


def stack_names() -> tuple[str, ...]:
    """The training software whose constants are known."""
    names = (name for name in shipped_tables().tables if name.startswith(STACK))
    return tuple(name.removeprefix(STACK) for name in names if ON not in name)


def parse_tables(text: str, where: str = "calibration") -> Tables:
    """Tables of constants from TOML."""
    return _tables(parse_toml(text, where), where)


def _tables(raw: Mapping[str, Any], where: str) -> Tables:
    """Top-level tables, and those of software under their full names."""
    stacks = raw.get("stack", {})
    if not isinstance(stacks, dict):
        raise BadInput("stack is not a table", where=where, remedy="put constants under [stack.NAME]")
    flat = {name: table for name, table in raw.items() if name != "stack"}
    flat |= {STACK + name: table for name, table in stacks.items()}
    for name, table in flat.items():
        if not isinstance(table, dict):
            raise BadInput(f"{name} is not a table", where=where, remedy="put constants under [accelerator]")
    return Tables(tables=flat, where=where)


def calibration_from(tables: Tables, accelerator: str, stack: str | None = None) -> Calibration:
    """The constants of an accelerator and of a training software (those of any where it has no table)."""
    result = Calibration()
    for name in tables.used(accelerator, stack):
        table = tables.tables[name]
        known = table.get("provenance", result.provenance)
        result = replace(result, name=f"{result.name}, {name}" if result.name != "default" else name)
        software = table.get("software", result.software)
        if software not in SOFTWARES:
            raise UnknownName("software", str(software), SOFTWARES, where=f"{tables.where} [{name}]")
        result = with_constants(
            replace(result, provenance=known, software=software), table, where=f"{tables.where} [{name}]"
        )
    return result


def usual_stack(accelerator: str) -> str:
    """The training software whose constants count on such accelerators where none is named."""
    return TPU_STACK if accelerator.startswith("tpu") else USUAL_STACK


def calibration(accelerator: str, stack: str | None = USUAL) -> Calibration:
    """The shipped constants of an accelerator's family (the default ones where there is none) and of the
    training software ``stack`` (None: of none)."""
    stack = usual_stack(accelerator) if stack == USUAL else stack
    return replace(calibration_from(shipped_tables(), accelerator, stack), shipped=True)


def with_constants(base: Calibration, values: Mapping[str, Any], *, where: str) -> Calibration:
    """``base`` with some constants and measured times replaced, each constant checked against its range."""
    ranges = _ranges()
    for name, value in values.items():
        if name in NOTES or name in PARTS:
            continue
        if name not in ranges:
            known = ", ".join((*ranges, *PARTS))
            raise BadInput(f"unknown constant {name!r}", where=where, remedy=f"known: {known}")
        low, high = ranges[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise BadInput(f"{name} = {value!r} is outside {low:g} to {high:g}", where=where)
    numbers = {name: float(value) for name, value in values.items() if name in ranges}
    if any(name in values for name in PARTS):
        measured = {name: values[name] for name in PARTS if name in values}
        base = replace(base, measured=decode(Measurements, measured, where))
    return replace(base, **numbers)  # type: ignore[arg-type]


def read_calibration(path: str, accelerator: str, stack: str | None = USUAL) -> Calibration:
    """The shipped constants of an accelerator and a software, with those of a file on top.

    TOML has constants and measured times alone, for whatever is estimated, or tables of them by accelerator and
    ``stack.NAME``.  JSON is a system of Calculon.
    """
    remedy = "give TOML constants, or a system of Calculon"
    text = read_text(path, largest=CONFIGURATION_BYTES, remedy=remedy)
    values = _of_json(text, path, remedy) if text.lstrip()[:1] == "{" else parse_toml(text, path, remedy=remedy)
    name = Path(path).stem
    if any(isinstance(value, dict) for value in values.values()):
        tables = _tables(values, path).over(shipped_tables())
        result = calibration_from(tables, accelerator, usual_stack(accelerator) if stack == USUAL else stack)
        return replace(result, name=name, provenance="calibrated")
    base = replace(calibration(accelerator, stack), name=name, provenance="calibrated", shipped=False)
    return with_constants(base, values, where=path)


def _of_json(text: str, path: str, remedy: str) -> dict[str, Any]:
    from weft.cluster.calculon import is_system, system_calibration

    values = parse_json(text, path, remedy=remedy)
    if not is_system(values):
        raise BadInput("is JSON, but no system of Calculon", where=path, remedy=remedy)
    return system_calibration(values, _ranges(), where=path)


def write_calibration(values: Mapping[str, float], *, source: str, measured: Measurements | None = None) -> str:
    """TOML that ``read_calibration`` takes; ``source`` says where the constants and times are from."""
    lines = [f"source = {json.dumps(source, ensure_ascii=False)}"]
    lines += [f"{name} = {value!r}" for name, value in values.items()]
    return "\n".join([*lines, *_measured_toml(measured or Measurements())]) + "\n"


def _measured_toml(result: Measurements) -> Iterator[str]:
    """A list a part, an entry a line, without what is default."""
    for part in PARTS:
        entries: Sequence[Any] = getattr(result, part)
        if entries:
            yield ""
            yield f"{part} = ["
            for entry in entries:
                stated = [field.name for field in fields(entry) if getattr(entry, field.name) != field.default]
                yield f"  {{{', '.join(f'{name} = {_exact(getattr(entry, name))}' for name in stated)}}},"
            yield "]"


def _exact(value: float | str) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(int(value) if float(value).is_integer() and abs(value) < 2**53 else value)


def tables_to_toml(tables: Tables, *, comment: str) -> str:
    """TOML that ``read_calibration`` takes, behind a comment of one line."""
    lines = [f"# {comment}"]
    for name, table in tables.tables.items():
        lines += ["", f"[{name}]"]
        for field_, value in table.items():
            text = f"{value:.4g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
            lines.append(f"{field_} = {text}")
    return "\n".join(lines) + "\n"
