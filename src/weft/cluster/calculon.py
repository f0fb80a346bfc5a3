"""Systems of Calculon (``systems/*.json`` of calculon-ai/calculon) as clusters and as constants.

What the fields mean is in its ``system.py``, ``processor.py``, ``memory.py`` and ``network.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from weft.cluster import catalogue
from weft.cluster.spec import Accelerator, Cluster, Tier
from weft.codec import number, positive, table_of
from weft.errors import BadInput

REDUCED = 2.0
"""Bytes that an all-reduce passes per byte of the buffer; less: the network reduces."""
ASSUMED_POWER_W = 500.0
_FIELDS = {"matrix", "vector", "mem1", "mem2", "networks"}
Ranges = Mapping[str, tuple[float, float]]


def is_system(values: object) -> bool:
    """Whether a document is a system of Calculon."""
    return isinstance(values, Mapping) and set(values) >= _FIELDS


def system_cluster(values: Mapping[str, Any], count: int, name: str, *, where: str) -> Cluster:
    """``count`` accelerators of a system.

    Its name's beginning may be that of an accelerator that Weft knows ("a100_80g"): multiprocessors, power and vendor
    are then that one's.  Latencies of the tiers are Weft's own: Calculon's are those of whole collectives.
    """
    networks = _networks(values, where)
    plain = name.lower().replace("_", "-")
    known = [word for word in catalogue.accelerator_names() if plain.startswith(word.lower())]
    like = catalogue.accelerator(max(known, key=len)) if known else None
    memory, host = (table_of(values[name], f"{where}: {name}") for name in ("mem1", "mem2"))
    tiers = _tiers(networks, count, where)
    chip = Accelerator(
        name=name,
        vendor=like.vendor if like else "unknown",
        fp32_flops=_peak(values, "float32", where),
        fp16_flops=_peak(values, "float16", where),
        bf16_flops=_peak(values, "bfloat16", where) or _peak(values, "float16", where),
        fp8_flops=_peak(values, "float8", where),
        fp4_flops=0.0,
        memory_bytes=2.0**30 * positive(memory.get("GiB"), f"{where}: mem1.GiB"),
        memory_Bps=1e9 * positive(memory.get("GBps"), f"{where}: mem1.GBps"),
        scale_up_size=tiers[0].size,
        scale_up_Bps=tiers[0].bandwidth_Bps,
        nic_Bps=tiers[-1].bandwidth_Bps,
        host_Bps=1e9 * positive(host.get("GBps"), f"{where}: mem2.GBps"),
        multiprocessors=like.multiprocessors if like else 1,
        power_w=like.power_w if like else ASSUMED_POWER_W,
        in_switch_reduction=tiers[0].in_network_reduction,
    )
    if not any((chip.fp16_flops, chip.bf16_flops, chip.fp8_flops, chip.fp32_flops)):
        raise BadInput("has no peak", where=f"{where}: matrix", remedy='add "float16": {"tflops": ...}')
    source = f"as {like.name}" if like else f"1 and {ASSUMED_POWER_W:g} W"
    assumed = (f"multiprocessors and power: {source}", "latency of the tiers: Weft's own")
    return Cluster(name=f"{name} x {count}", accelerator=chip, count=count, tiers=tiers, defaults=assumed)


def system_calibration(values: Mapping[str, Any], ranges: Ranges, *, where: str) -> dict[str, Any]:
    """The efficiencies of a system's largest operations, its networks and their latency as constants, put into their
    ``ranges``.
    """
    networks = _networks(values, where)
    matrix = table_of(values["matrix"], f"{where}: matrix")
    result = {"memory_efficiency": _curve(values["mem1"], "MB_efficiency", f"{where}: mem1")}
    result |= {"host_efficiency": _curve(values["mem2"], "MB_efficiency", f"{where}: mem2")}
    for name, constant in (("float16", "gemm_efficiency"), ("float8", "low_precision_efficiency")):
        if name in matrix:
            result[constant] = _curve(matrix[name], "gflops_efficiency", f"{where}: matrix.{name}")
    for i, constant in ((0, "scale_up_efficiency"), (-1, "scale_out_efficiency")):
        result[constant] = positive(networks[i].get("efficiency"), f"{where}: networks.efficiency")
    result["collective_s"] = number(networks[0].get("latency"), f"{where}: networks[0].latency")
    result["overlap_cost"] = number(networks[0].get("processor_usage"), f"{where}: networks[0].processor_usage")
    return {name: min(max(value, ranges[name][0]), ranges[name][1]) for name, value in result.items()}


def _networks(values: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    networks = values["networks"]
    if not isinstance(networks, list) or not networks:
        raise BadInput("is not a list of networks", where=f"{where}: networks")
    tables = [table_of(network, f"{where}: networks[{i}]") for i, network in enumerate(networks)]
    return sorted(tables, key=lambda network: positive(network.get("size"), f"{where}: networks.size"))


def _tiers(networks: list[Mapping[str, Any]], count: int, where: str) -> tuple[Tier, ...]:
    """Networks join so many accelerators each; the last joins all."""
    spans = [1]
    for i, network in enumerate(networks):
        size = number(network["size"], f"{where}: networks[{i}].size")
        if size < 1:
            raise BadInput(f"{size:g} joins no accelerator", where=f"{where}: networks[{i}].size")
        spans.append(min(int(size), count))
    if spans[-1] < count:
        raise BadInput(f"joins {spans[-1]:,} accelerators, fewer than {count:,}", where=f"{where}: networks")
    result: list[Tier] = []
    for i, (network, (inner, outer)) in enumerate(zip(networks, pairwise(spans), strict=True)):
        if outer == inner and result:
            continue
        if outer % inner:
            raise BadInput(
                f"{outer:,} accelerators are not a multiple of the {inner:,} of the network below",
                where=f"{where}: networks[{i}]",
                remedy="choose a count that is one",
            )
        place = f"{where}: networks[{i}]"
        ops = table_of(network.get("ops"), f"{place}.ops").get("all_reduce")
        passed = number(ops[0], f"{place}.ops.all_reduce") if isinstance(ops, list) and ops else REDUCED
        result.append(
            Tier(
                name=f"network-{i}",
                size=outer // inner,
                kind="switch",
                bandwidth_Bps=1e9 * positive(network.get("bandwidth"), f"{place}.bandwidth"),
                latency_s=catalogue.RAIL_LATENCY_S if result else catalogue.SCALE_UP_LATENCY_S,
                in_network_reduction=passed < REDUCED,
            )
        )
    return tuple(result)


def _peak(values: Mapping[str, Any], kind: str, where: str) -> float:
    """FLOP/s of matrices, of vectors where matrices have none in 32 bits, or 0."""
    for unit in ("matrix", "vector") if kind == "float32" else ("matrix",):
        entry = table_of(values[unit], f"{where}: {unit}").get(kind)
        if entry is not None:
            place = f"{where}: {unit}.{kind}"
            return 1e12 * positive(table_of(entry, place).get("tflops"), f"{place}.tflops")
    return 0.0


def _curve(raw: object, name: str, where: str) -> float:
    """The efficiency of the largest operations."""
    curve = table_of(raw, where).get(name)
    if not isinstance(curve, list) or not curve or not isinstance(curve[0], list) or len(curve[0]) != 2:
        raise BadInput("is not a list of pairs", where=f"{where}.{name}")
    return positive(curve[0][1], f"{where}.{name}[0]")
