"""Calibration: named physical constants of an accelerator and its software, each with unit, range and
source."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from weft.cluster.measurements import PARTS, Measurements, measurements_from, measurements_to_toml
from weft.documents import parse_json, parse_toml
from weft.errors import BadInput, UnknownName
from weft.files import CONFIGURATION_BYTES, read_text


def _constant(default: float, unit: str, low: float, high: float, source: str) -> Any:
    return field(default=default, metadata={"unit": unit, "low": low, "high": high, "source": source})


_PUBLIC = "public kernel benchmarks"
_NCCL = "NCCL's own tuning tables and published nccl-tests results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Constants between peak and achieved.  ``name`` says for which accelerator and software."""

    name: str = "default"
    provenance: Literal["analytic", "calibrated"] = "analytic"
    """Whether the constants were set with measured training runs."""
    shipped: bool = False
    """Whether they are Weft's own, whose errors are known."""
    software: str = "by block"
    """How the software gathers and reduces weights: one of ``SOFTWARES``."""
    gemm_efficiency: float = _constant(0.85, "of peak", 0.4, 1.0, _PUBLIC)
    """Share of the matrix peak that a large, well-shaped 16-bit GEMM reaches."""
    gemm_share: float = _constant(1.0, "ratio", 0.6, 1.1, "cuBLAS release notes: gains between versions")
    """Throughput of the software's GEMM library over that of the benchmarks."""
    low_precision_efficiency: float = _constant(0.75, "of peak", 0.3, 1.0, _PUBLIC)
    """The same for 8 and 4 bits."""
    attention_efficiency: float = _constant(0.60, "of peak", 0.2, 0.9, "FlashAttention papers, causal training")
    """Share of the 16-bit peak that the best fused attention kernel reaches on unmasked FLOPs."""
    attention_share: float = _constant(1.0, "ratio", 0.2, 1.2, "FlashAttention papers: versions 1 to 3, cuDNN")
    """Speed of the software's fused attention kernel over the accelerator's best."""
    scan_share: float = _constant(
        0.3, "ratio", 0.05, 1.5, "assumption: the Triton kernels of mamba_ssm, several passes over chunks and states"
    )
    """Speed of the software's state-space scan over its roofline."""
    routing_overhead: float = _constant(1.0, "ratio", 0.5, 10.0, "traces of token permutation and expert activation")
    """Traffic of the experts' element-wise steps, over what ``pass_overhead`` makes of the fused ones'."""
    expert_share: float = _constant(1.0, "ratio", 0.3, 1.0, "grouped GEMMs of public MoE benchmarks")
    """Throughput of the experts' GEMMs over that of dense ones of the same shape."""
    reference_power_w: float = _constant(0.0, "W", 0.0, 3000.0, "board power of the runs or benchmarks")
    """Board power at which the shares of the peak were set; 0: they hold at any."""
    power_exponent: float = _constant(
        0.5,
        "exponent",
        0.0,
        1.0,
        "dynamic power grows with clock x voltage^2: between its first power, at the least voltage, and its cube",
    )
    """Matrix throughput falls with this power of the board's limit over the reference."""
    clock_spread: float = _constant(
        0.015,
        "of the clock",
        0.0,
        0.1,
        "Sinha et al., SC22 (arXiv 2208.11035): 8 % between the whiskers of alike accelerators, +-2.7 deviations",
    )
    """Standard deviation of the clocks at which boards of one kind stay within their power's limit: all ranks wait for
    the slowest.  Without effect where no reference power is known."""
    attention_softmax: float = _constant(
        64.0, "features", 0.0, 256.0, "FlashAttention-3 (arXiv 2407.08608), figures 5 and 6: widths 64 to 256"
    )
    """Features of a head whose products take as long as the score's exponential."""
    gemm_depth: float = _constant(128.0, "elements of k", 0.0, 1024.0, _PUBLIC)
    """Depth that a tile's prologue and epilogue cost."""
    memory_efficiency: float = _constant(0.80, "of peak", 0.5, 0.98, "STREAM-like kernels on HBM")
    """Share of the HBM peak that memory-bound kernels reach."""
    pass_overhead: float = _constant(1.0, "ratio", 1.0, 8.0, "unfused element-wise kernels against fused ones")
    """Traffic of the software's element-wise steps over that of fully fused ones."""
    norm_overhead: float = _constant(
        1.0, "ratio", 1.0, 12.0, "norms of separate kernels in 32 bits: a cast, a square, a mean, a root, two products"
    )
    """Traffic of the software's norms over that of fused ones, times ``pass_overhead``."""
    kernel_s: float = _constant(4e-6, "s", 1e-6, 2e-5, _PUBLIC)
    """Start and drain of one kernel on the device."""
    launch_s: float = _constant(7e-6, "s", 1e-6, 5e-5, "host time per launched kernel, eager PyTorch")
    """Host time per kernel: the floor of a phase of many small kernels."""
    recompute_share: float = _constant(
        1.0, "of the linear layers", 0.5, 1.1, "PyTorch's checkpoint stops once what is kept is there again"
    )
    """Share of a block's linear layers that full recomputation repeats: PyTorch's non-reentrant checkpoint does not
    repeat the last one, a third of a GPT block's."""
    launches_per_step: float = _constant(1.0, "kernels", 0.1, 30.0, "traces of the software; below 1: graphs")
    """Kernels that the software launches for each computation or collective of Weft's list."""
    scale_up_efficiency: float = _constant(0.78, "of peak", 0.4, 0.98, _NCCL)
    """Share of the scale-up bandwidth that large ring collectives reach."""
    scale_up_reduction_efficiency: float = _constant(0.70, "of peak", 0.3, 0.98, _NCCL)
    """The same for collectives reduced in the switch (NVLS)."""
    scale_out_efficiency: float = _constant(0.85, "of peak", 0.1, 0.98, _NCCL)
    """Share of the NIC bandwidth that large collectives and sends reach."""
    collective_s: float = _constant(1.2e-5, "s", 1e-6, 1e-4, _NCCL)
    """Launch and synchronisation of one collective."""
    shard_collectives: float = _constant(1.0, "collectives", 1.0, 32.0, "the software's sharding of weights")
    """In how many collectives weights at rest in shards (FSDP, ZeRO-3) are gathered, and gradients scattered,
    per block."""
    overlap_cost: float = _constant(0.10, "s per hidden s", 0.0, 0.5, "SMs and memory taken by communication kernels")
    """Compute slowed by each second of collective hidden behind it."""
    iteration_s: float = _constant(5e-3, "s", 0.0, 3.0, "data loading, loss reduction and logging of an iteration")
    """Fixed host time per iteration."""
    optimizer_efficiency: float = _constant(0.75, "of peak", 0.3, 0.98, "fused multi-tensor Adam")
    """Share of the HBM peak that the optimizer step reaches."""
    host_efficiency: float = _constant(0.80, "of peak", 0.3, 0.98, "pinned-memory copies")
    """Share of the path to host memory that offloading reaches."""
    host_update_Bps: float = _constant(2.0e10, "B/s", 1e9, 2e11, "CPU Adam on one accelerator's share of host memory")
    """Optimizer state that the host updates per second, per accelerator."""
    expert_spread: float = _constant(
        0.0, "of the mean", 0.0, 1.0, "loads of experts under an auxiliary loss; 0 where recipes force balance"
    )
    """Standard deviation of an expert's load; a rank's experts average it out, and all wait for the busiest rank."""
    dispatch_once: float = _constant(0.0, "0 or 1", 0.0, 1.0, "DeepEP and HybridEP against NCCL all-to-alls")
    """Whether a token that several experts of one domain want is sent to that domain once."""
    expert_overlap: float = _constant(
        0.0, "of the time", 0.0, 0.95, "DualPipe, and 1F1B of Megatron-Core: arXiv 2412.19437, section 3.2"
    )
    """Share of dispatch and combine that other micro-batches hide."""
    gradient_dummies: float = _constant(
        0.0, "0 or 1", 0.0, 1.0, "Transformer Engine since 2.3: get_dummy_wgrad of its module/base.py"
    )
    """Whether one 16-bit gradient of each shape of weights is kept, which PyTorch is given where the true one
    went into the accumulated gradient already."""
    loss_copies: float = _constant(
        1.0, "copies", 0.0, 6.0, "Megatron-Core's fused loss: 1; PyTorch's cross_entropy: 3; compiled: a 16-bit one"
    )
    """Copies of the logits in 32 bits that are held at once, beside those in 16 bits."""
    cut_loss_copies: float = _constant(
        1.0, "copies", 0.0, 6.0, "the same where x cuts the vocabulary; PyTorch's loss_parallel: 4"
    )
    """The same where tensor parallelism cuts the vocabulary."""
    fragmentation: float = _constant(0.03, "of memory in use", 0.0, 0.2, "PyTorch caching allocator")
    """Memory lost to fragmentation."""
    reserved_bytes: float = _constant(
        1.06e9, "bytes", 0.0, 1e10, "CUDA context, libraries and kernels on an H100: NVIDIA/nccl issue 1685"
    )
    """Memory that is neither the job's nor its communicators'."""
    measured: Measurements | None = None
    """Times by shape, which count where they fit; the constants count elsewhere."""


def constants() -> tuple[tuple[str, str, float, float, str], ...]:
    """Name, unit, plausible range and source of each constant."""
    return tuple(
        (f.name, f.metadata["unit"], f.metadata["low"], f.metadata["high"], f.metadata["source"])
        for f in fields(Calibration)
        if f.metadata
    )


def _ranges() -> dict[str, tuple[float, float]]:
    return {name: (low, high) for name, _, low, high, _ in constants()}


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
    text = files("weft.cluster").joinpath("data", "calibration.toml").read_text(encoding="utf-8")
    return parse_tables(text, "calibration.toml")


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
        base = replace(base, measured=measurements_from(values, where=where))
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
    return "\n".join([*lines, *measurements_to_toml(measured or Measurements())]) + "\n"


def tables_to_toml(tables: Tables, *, comment: str) -> str:
    """TOML that ``read_calibration`` takes, behind a comment of one line."""
    lines = [f"# {comment}"]
    for name, table in tables.tables.items():
        lines += ["", f"[{name}]", *(f"{field} = {_toml(value)}" for field, value in table.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
