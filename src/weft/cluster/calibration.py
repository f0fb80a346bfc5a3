"""Calibration: named physical constants of an accelerator and its software, each with unit, range and
source."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from weft.errors import BadInput


def _constant(default: float, unit: str, low: float, high: float, source: str) -> Any:
    return field(default=default, metadata={"unit": unit, "low": low, "high": high, "source": source})


_PUBLIC = "public kernel benchmarks; set with the A100 runs of Korthikanti et al. (arXiv 2205.05198, table 5)"
_NCCL = "NCCL's own tuning tables and published nccl-tests results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Constants between peak and achieved.  ``name`` says for which accelerator and software."""

    name: str = "default"
    provenance: Literal["analytic", "calibrated"] = "analytic"
    """Whether the constants were set with measured training runs."""
    gemm_efficiency: float = _constant(0.85, "of peak", 0.4, 1.0, _PUBLIC)
    """Share of the matrix peak that a large, well-shaped 16-bit GEMM reaches."""
    low_precision_efficiency: float = _constant(0.75, "of peak", 0.3, 1.0, _PUBLIC)
    """The same for 8 and 4 bits."""
    attention_efficiency: float = _constant(
        0.60, "of peak", 0.2, 0.9, "FlashAttention papers, causal training"
    )
    """Share of the 16-bit peak that the fused attention kernel reaches on unmasked FLOPs."""
    gemm_depth: float = _constant(128.0, "elements of k", 0.0, 1024.0, _PUBLIC)
    """Depth that a tile's prologue and epilogue cost."""
    memory_efficiency: float = _constant(0.80, "of peak", 0.5, 0.98, "STREAM-like kernels on HBM")
    """Share of the HBM peak that memory-bound kernels reach."""
    kernel_s: float = _constant(4e-6, "s", 1e-6, 2e-5, _PUBLIC)
    """Start and drain of one kernel on the device."""
    launch_s: float = _constant(7e-6, "s", 1e-6, 5e-5, "host time per launched kernel, eager PyTorch")
    """Host time per kernel: the floor of a phase of many small kernels."""
    scale_up_efficiency: float = _constant(0.78, "of peak", 0.4, 0.98, _NCCL)
    """Share of the scale-up bandwidth that large ring collectives reach."""
    scale_up_reduction_efficiency: float = _constant(0.70, "of peak", 0.3, 0.98, _NCCL)
    """The same for collectives reduced in the switch (NVLS)."""
    scale_out_efficiency: float = _constant(0.85, "of peak", 0.4, 0.98, _NCCL)
    """Share of the NIC bandwidth that large collectives and sends reach."""
    collective_s: float = _constant(1.2e-5, "s", 1e-6, 1e-4, _NCCL)
    """Launch and synchronisation of one collective."""
    overlap_cost: float = _constant(
        0.10, "s per hidden s", 0.0, 0.5, "SMs and memory taken by communication kernels"
    )
    """Compute slowed by each second of collective hidden behind it."""
    iteration_s: float = _constant(
        5e-3, "s", 0.0, 0.1, "data loading, loss reduction and logging of an iteration"
    )
    """Fixed host time per iteration."""
    optimizer_efficiency: float = _constant(0.75, "of peak", 0.3, 0.98, "fused multi-tensor Adam")
    """Share of the HBM peak that the optimizer step reaches."""
    host_efficiency: float = _constant(0.80, "of peak", 0.3, 0.98, "pinned-memory copies")
    """Share of the path to host memory that offloading reaches."""
    host_update_Bps: float = _constant(
        2.0e10, "B/s", 1e9, 2e11, "CPU Adam on one accelerator's share of host memory"
    )
    """Optimizer state that the host updates per second, per accelerator."""
    expert_imbalance: float = _constant(
        1.0, "ratio", 1.0, 2.0, "balanced routing; published MoE runs force it"
    )
    """Load of the busiest rank of experts over the mean."""
    fragmentation: float = _constant(0.03, "of memory in use", 0.0, 0.2, "PyTorch caching allocator")
    """Memory lost to fragmentation."""
    reserved_bytes: float = _constant(1.5e9, "bytes", 0.0, 1e10, "CUDA context, NCCL buffers, workspaces")
    """Memory that is not the job's."""


def constants() -> tuple[tuple[str, str, float, float, str], ...]:
    """Name, unit, plausible range and source of each constant."""
    return tuple(
        (f.name, f.metadata["unit"], f.metadata["low"], f.metadata["high"], f.metadata["source"])
        for f in fields(Calibration)
        if f.metadata
    )


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    text = files("weft.cluster").joinpath("data", "calibration.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def calibration(accelerator: str) -> Calibration:
    """The shipped calibration for an accelerator's family (the default one where there is none)."""
    tables = _shipped()
    matching = [key for key in tables if accelerator.lower().startswith(key)]
    family = max(matching, key=len, default=None)
    if family is None:
        return Calibration()
    base = Calibration(name=family, provenance=tables[family].get("provenance", "analytic"))
    return with_constants(base, tables[family], where=f"calibration {family}")


def with_constants(base: Calibration, values: dict[str, Any], *, where: str) -> Calibration:
    """``base`` with some constants replaced, each checked against its range."""
    ranges = {name: (low, high) for name, _, low, high, _ in constants()}
    for name, value in values.items():
        if name in ("source", "provenance"):
            continue
        if name not in ranges:
            raise BadInput(f"unknown constant {name!r}", where=where, remedy=f"known: {', '.join(ranges)}")
        low, high = ranges[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise BadInput(f"{name} = {value!r} is outside {low:g} to {high:g}", where=where)
    numbers = {name: float(value) for name, value in values.items() if name in ranges}
    return replace(base, **numbers)  # type: ignore[arg-type]


def read_calibration(path: str, base: Calibration) -> Calibration:
    """``base`` with the constants of a TOML file.

    Raises:
        BadInput: unreadable, malformed, an unknown constant, or one outside its plausible range.
    """
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(f"cannot be read: {error}", where=path, remedy="give TOML constants") from None
    return with_constants(replace(base, name=Path(path).stem, provenance="calibrated"), values, where=path)


def write_calibration(values: Mapping[str, float], *, source: str) -> str:
    """TOML that ``read_calibration`` takes; ``source`` says where the constants are from."""
    lines = [f"source = {json.dumps(source, ensure_ascii=False)}"]
    return "\n".join([*lines, *(f"{name} = {value!r}" for name, value in values.items())]) + "\n"
