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
    """Share of the 16-bit peak that the best fused attention kernel reaches on unmasked FLOPs."""
    attention_share: float = _constant(
        1.0, "ratio", 0.2, 1.2, "FlashAttention papers: versions 1 to 3, cuDNN"
    )
    """Speed of the software's fused attention kernel over the accelerator's best."""
    expert_share: float = _constant(1.0, "ratio", 0.3, 1.0, "grouped GEMMs of public MoE benchmarks")
    """Throughput of the experts' GEMMs over that of dense ones of the same shape."""
    reference_power_w: float = _constant(0.0, "W", 0.0, 3000.0, "board power of the runs or benchmarks")
    """Board power at which the shares of the peak were set; 0: they hold at any."""
    power_exponent: float = _constant(
        0.5, "exponent", 0.0, 1.0, "dynamic power grows with clock x voltage^2, between its square and cube"
    )
    """Matrix throughput falls with this power of the board's limit over the reference."""
    gemm_depth: float = _constant(128.0, "elements of k", 0.0, 1024.0, _PUBLIC)
    """Depth that a tile's prologue and epilogue cost."""
    memory_efficiency: float = _constant(0.80, "of peak", 0.5, 0.98, "STREAM-like kernels on HBM")
    """Share of the HBM peak that memory-bound kernels reach."""
    pass_overhead: float = _constant(
        1.0, "ratio", 1.0, 8.0, "unfused element-wise kernels against fused ones"
    )
    """Traffic of the software's element-wise steps over that of fully fused ones."""
    kernel_s: float = _constant(4e-6, "s", 1e-6, 2e-5, _PUBLIC)
    """Start and drain of one kernel on the device."""
    launch_s: float = _constant(7e-6, "s", 1e-6, 5e-5, "host time per launched kernel, eager PyTorch")
    """Host time per kernel: the floor of a phase of many small kernels."""
    launches_per_step: float = _constant(1.0, "kernels", 0.1, 30.0, "traces of the software; below 1: graphs")
    """Kernels that the software launches for each computation or collective of Weft's list."""
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
    dispatch_once: float = _constant(0.0, "0 or 1", 0.0, 1.0, "DeepEP and HybridEP against NCCL all-to-alls")
    """Whether a token that several experts of one domain want is sent to that domain once."""
    expert_overlap: float = _constant(
        0.0, "of the time", 0.0, 0.95, "DualPipe, and 1F1B of Megatron-Core: arXiv 2412.19437, section 3.2"
    )
    """Share of dispatch and combine that other micro-batches hide."""
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


def calibration(accelerator: str, stack: str | None = None) -> Calibration:
    """The shipped calibration for an accelerator's family (the default one where there is none).

    Constants of the table ``[stack.NAME]`` of the training software ``stack``, if there is one, override the
    accelerator's.
    """
    tables = _shipped()
    families = tables.keys() - {"stack"}
    family = max((key for key in families if accelerator.lower().startswith(key)), key=len, default=None)
    base = Calibration()
    if family is not None:
        base = replace(base, name=family, provenance=tables[family].get("provenance", "analytic"))
        base = with_constants(base, tables[family], where=f"calibration {family}")
    changed = tables.get("stack", {}).get(stack or "")
    if changed is None:
        return base
    base = replace(base, name=f"{base.name}, {stack}", provenance=changed.get("provenance", base.provenance))
    return with_constants(base, changed, where=f"calibration stack.{stack}")


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
