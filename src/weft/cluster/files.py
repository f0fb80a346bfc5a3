"""Clusters as TOML files and as plain dictionaries: read with checks, written so that they read back equal.

Quantities are strings with units ("400 Gb/s", "80 GiB") or bare numbers in SI.  A field has a short name for
people (``bandwidth``) and the name of the record it fills (``bandwidth_Bps``), which is what Weft writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import prod
from typing import Annotated, Any

from weft import units
from weft.cluster import catalogue
from weft.cluster.catalogue import PEAKS, with_domain
from weft.cluster.spec import Accelerator, Cluster, Tier, TierKind
from weft.codec import Also, Document, Range, decode, encode, entries, shown
from weft.documents import parse_toml
from weft.errors import BadInput
from weft.files import read_text

MAX_FILE_BYTES = 1_000_000


_Text = Annotated[str, Range(1, 300)]
_Size = Annotated[int, Range(1, catalogue.MAX_COUNT)]


_Quantity = str | float


@dataclass(frozen=True, slots=True, kw_only=True)
class TierEntry(Document):
    """A tier of a cluster file."""

    name: _Text
    size: _Size
    kind: TierKind
    bandwidth_Bps: Annotated[_Quantity, Also("bandwidth")]
    latency_s: Annotated[_Quantity | None, Also("latency")] = None
    oversubscription: Annotated[float, Range(1, 1000)] = 1.0
    in_network_reduction: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorEntry(Document):
    """An accelerator of a cluster file, whole or as changes to the one that ``like`` names."""

    like: _Text | None = None
    name: _Text | None = None
    vendor: _Text | None = None
    fp32_flops: Annotated[_Quantity | None, Also("fp32")] = None
    fp16_flops: Annotated[_Quantity | None, Also("fp16")] = None
    bf16_flops: Annotated[_Quantity | None, Also("bf16")] = None
    fp8_flops: Annotated[_Quantity | None, Also("fp8")] = None
    fp4_flops: Annotated[_Quantity | None, Also("fp4")] = None
    int8_flops: Annotated[_Quantity | None, Also("int8")] = None
    memory_bytes: Annotated[_Quantity | None, Also("memory")] = None
    memory_Bps: Annotated[_Quantity | None, Also("memory_bandwidth")] = None
    scale_up_size: _Size | None = None
    scale_up_Bps: Annotated[_Quantity | None, Also("scale_up_bandwidth")] = None
    nic_Bps: Annotated[_Quantity | None, Also("nic_bandwidth")] = None
    host_Bps: Annotated[_Quantity | None, Also("host_bandwidth")] = None
    host_memory_bytes: Annotated[_Quantity | None, Also("host_memory")] = None
    multiprocessors: _Size | None = None
    power_w: Annotated[_Quantity | None, Also("power")] = None
    in_switch_reduction: bool | None = None
    usd_per_hour: Annotated[float, Range(0, 1e5)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """A cluster file."""

    name: _Text
    accelerator: str | AcceleratorEntry
    count: _Size
    used_per_domain: _Size | None = None
    tiers: Annotated[tuple[TierEntry, ...], Range(1, 16)] | None = None
    defaults: Annotated[tuple[_Text, ...], Range(0, 64)] = ()


_SHORT = {entry.name: entry.also or entry.name for kind in (TierEntry, AcceleratorEntry) for entry in entries(kind)}
"""The short names of fields."""
_Parser = Callable[[str | float, str], float]
_PEAK = (units.parse_flops, 1e9, 1e18, "989 TFLOP/s")
_BANDWIDTH = (units.parse_bandwidth, 1e6, 1e14, "450 GB/s or 400 Gb/s, from 1 MB/s to 100 TB/s")
_LIMITS: dict[str, tuple[_Parser, float, float, str]] = {
    **dict.fromkeys(PEAKS, _PEAK),
    **dict.fromkeys(("memory_Bps", "scale_up_Bps", "nic_Bps", "host_Bps", "bandwidth_Bps"), _BANDWIDTH),
    "memory_bytes": (units.parse_bytes, 1e6, 1e14, "80 GB or 80 GiB, from 1 MB to 100 TB"),
    "host_memory_bytes": (units.parse_bytes, 0.0, 1e14, "256 GB, up to 100 TB; 0 where there is none"),
    "power_w": (units.parse_watts, 1.0, 1e6, "700 W"),
    "latency_s": (units.parse_seconds, 0.0, 1.0, "2 us; a bare number is in seconds"),
}
_BANDWIDTHS = {
    "memory_Bps": "memory bandwidth",
    "scale_up_Bps": "scale-up bandwidth",
    "nic_Bps": "NIC",
    "host_Bps": "host bandwidth",
}
_EQUAL = 1.001
"""Ratio up to which a tier is as fast as the NIC."""
_ACCELERATOR = {field.name for field in fields(Accelerator)}
_OPTIONAL: dict[str, Any] = {
    "vendor": "unknown",
    "in_switch_reduction": False,
    "usd_per_hour": 0.0,
    "host_memory_bytes": None,
    **dict.fromkeys(PEAKS, 0.0),
}


def read_cluster(source: str | os.PathLike[str], *, where: str | None = None) -> Cluster:
    """The cluster of a TOML file, or of a string that holds TOML (one with a newline or "=").

    >>> read_cluster('name = "small"\\ncount = 16\\naccelerator = "h100"').spans
    (8, 16)

    Args:
        source: a path, or the text itself.
        where: how messages name the source; the file's name by default.
    """
    if isinstance(source, str) and ("\n" in source or "=" in source):
        text, where = source, where or "cluster"
    else:
        where = where or os.fspath(source)
        text = read_text(source, where=where, largest=MAX_FILE_BYTES, remedy="name a TOML file or a preset")
    return cluster_from_dict(parse_toml(text, where), where=where)


def cluster_from_dict(mapping: Mapping[str, Any], *, where: str = "cluster") -> Cluster:
    """The cluster of a dictionary with the fields of the file format."""
    data = decode(ClusterFile, mapping, where)
    chip, kind = _accelerator(data.accelerator, where)
    defaults, used = list(data.defaults), data.used_per_domain
    if data.tiers is None:
        place = f"{where}: count"
        tiers = catalogue.default_tiers(chip, data.count, kind=kind, used_per_domain=used, where=place)
        defaults.append("tiers: " + " and ".join(f"{tier.name} of {tier.size}" for tier in tiers))
    else:
        tiers = tuple(_tier(tier, i, chip, where, defaults) for i, tier in enumerate(data.tiers))
        _check_tiers(tiers, data.count, where)
    first, size = tiers[0].size, chip.scale_up_size
    if used is not None and (used != first or used > size):
        problem = f"{used} accelerators cannot be used of scale-up domains of {size}, with tiers[0].size = {first}"
        raise BadInput(problem, where=f"{where}: used_per_domain", remedy=f"give that size, at most {size}")
    return Cluster(
        name=data.name,
        accelerator=chip,
        count=data.count,
        tiers=tiers,
        defaults=tuple(defaults),
        whole_domains=first < size and (used is not None or (data.tiers is None and len(tiers) > 1)),
    )


def write_cluster(cluster: Cluster) -> str:
    """TOML that ``read_cluster`` turns into an equal cluster; every figure in SI."""
    mapping = encode(cluster)
    chip, tiers = mapping.pop("accelerator"), mapping.pop("tiers")
    blocks = [_toml(mapping), "[accelerator]\n" + _toml(chip), *("[[tiers]]\n" + _toml(tier) for tier in tiers)]
    return "\n".join(blocks)


def parameters() -> dict[str, str]:
    """Figures of an accelerator by their short names, each with the field of its record."""
    known = {_SHORT[field]: field for field in _LIMITS if field in _ACCELERATOR}
    return known | {"scale_up_size": "scale_up_size", "usd_per_hour": "usd_per_hour"}


def parse_parameter(short: str, value: str | float, where: str) -> float:
    """A figure in SI, as a cluster file may state it."""
    field = parameters()[short]
    if field not in _LIMITS and isinstance(value, str):
        number = units.parse_count(value, where)
        value = int(number) if number == int(number) else number
    entry = decode(AcceleratorEntry, {short: value}, where)
    return _quantity(field, value, where) if field in _LIMITS else float(getattr(entry, field))


def parse_latency(value: str | float, where: str) -> float:
    """Seconds of a hop, as a cluster file may state them."""
    return _quantity("latency_s", value, where)


def with_parameters(cluster: Cluster, figures: Mapping[str, float], *, where: str = "cluster") -> Cluster:
    """The cluster with other figures of its accelerator, by field; tiers follow the links that they are made of."""
    changed: dict[str, Any] = {
        name: int(figure) if name == "scale_up_size" else figure for name, figure in figures.items()
    }
    chip = replace(cluster.accelerator, **changed)
    _check_accelerator(asdict(chip), where)
    old = cluster.accelerator
    ratios = [chip.scale_up_Bps / old.scale_up_Bps, *[chip.nic_Bps / old.nic_Bps] * (len(cluster.tiers) - 1)]
    pairs = zip(cluster.tiers, ratios, strict=True)
    tiers = tuple(replace(tier, bandwidth_Bps=tier.bandwidth_Bps * ratio) for tier, ratio in pairs)
    rescaled = replace(cluster, accelerator=chip, tiers=tiers)
    return with_domain(rescaled, chip.scale_up_size, where=where) if "scale_up_size" in figures else rescaled


def _toml(table: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in table.items())


def _quantity(field: str, value: str | float, place: str) -> float:
    """``value`` in SI, within the bounds of ``field``."""
    parse, low, high, example = _LIMITS[field]
    parsed = parse(value, place)
    if field in PEAKS and parsed == 0:
        return 0.0
    if not low <= parsed <= high or (field == "latency_s" and parsed >= high):
        size = "small" if parsed < low else "large"
        raise BadInput(f"{shown(value)} is too {size}", where=place, remedy=f"write it like {example}")
    return parsed


def _accelerator(data: str | AcceleratorEntry, where: str) -> tuple[Accelerator, TierKind]:
    """The accelerator, by name or spelled out, and how its scale-up domain is wired."""
    if isinstance(data, str):
        return catalogue.accelerator(data, where=f"{where}: accelerator"), catalogue.scale_up_kind(data)
    base = catalogue.accelerator(data.like, where=f"{where}: accelerator.like") if data.like else None
    known = asdict(base) if base else dict(_OPTIONAL)
    for field in fields(Accelerator):
        value = getattr(data, field.name)
        if value is None:
            continue
        place = f"{where}: accelerator.{_SHORT[field.name]}"
        known[field.name] = _quantity(field.name, value, place) if field.name in _LIMITS else value
    _check_accelerator(known, where)
    chip = Accelerator(**known)
    if base:
        for name in _BANDWIDTHS:
            place = f"{where}: accelerator.{_SHORT[name]}"
            _check_bits(getattr(data, name), getattr(chip, name), base, name, place)
    return chip, catalogue.scale_up_kind(data.like or chip.name)


def _check_accelerator(known: Mapping[str, Any], where: str) -> None:
    missing = [_SHORT[f.name] for f in fields(Accelerator) if f.name not in known]
    if missing:
        remedy = 'add them, or start from a known one with like = "h100"'
        raise BadInput(f"lacks {', '.join(missing)}", where=f"{where}: accelerator", remedy=remedy)
    if not any(known[field] for field in PEAKS):
        raise BadInput("has no peak", where=f"{where}: accelerator", remedy='add bf16 = "989 TFLOP/s"')


def _check_bits(bits: str | float | None, Bps: float, chip: Accelerator, name: str, place: str) -> None:
    """Refuse a bandwidth that is exactly the accelerator's own with bits and bytes exchanged."""
    own_Bps = getattr(chip, name)
    for ratio, words, unit in ((8.0, "eight times", "b/s"), (0.125, "an eighth of", "B/s")):
        if isinstance(bits, str) and abs(Bps - ratio * own_Bps) <= 1e-9 * Bps:
            meant = units.format_si(Bps if ratio > 1 else own_Bps, unit)
            raise BadInput(
                f"{bits!r} is {words} the {_BANDWIDTHS[name]} of {chip.name}",
                where=place,
                remedy=f"did you mean {meant}? If it is right, give it as a bare number of bytes/s",
            )


def _tier(data: TierEntry, index: int, chip: Accelerator, where: str, defaults: list[str]) -> Tier:
    place = f"{where}: tiers[{index}]"
    bandwidth = _quantity("bandwidth_Bps", data.bandwidth_Bps, f"{place}.bandwidth")
    if index > 0 and data.kind == "switch":
        _check_bits(data.bandwidth_Bps, bandwidth, chip, "nic_Bps", f"{place}.bandwidth")
    elif index == 0:
        _check_bits(data.bandwidth_Bps, bandwidth, chip, "scale_up_Bps", f"{place}.bandwidth")
    if data.latency_s is None:
        latency = catalogue.RAIL_LATENCY_S if index else catalogue.SCALE_UP_LATENCY_S
        defaults.append(f"tiers[{index}].latency: {units.format_seconds(latency)}")
    else:
        latency = _quantity("latency_s", data.latency_s, f"{place}.latency")
    speed, nic = (units.format_si(Bps, "B/s") for Bps in (bandwidth / data.oversubscription, chip.nic_Bps))
    note = f"tiers[{index}] carries {speed} per accelerator, more than its NIC of {nic}"
    if index > 0 and bandwidth / data.oversubscription > chip.nic_Bps * _EQUAL and note not in defaults:
        defaults.append(note)
    return Tier(
        name=data.name,
        size=data.size,
        kind=data.kind,
        bandwidth_Bps=bandwidth,
        latency_s=latency,
        oversubscription=data.oversubscription,
        in_network_reduction=data.in_network_reduction,
    )


def _check_tiers(tiers: tuple[Tier, ...], count: int, where: str) -> None:
    product = prod(tier.size for tier in tiers)
    if product != count:
        sizes = " * ".join(str(tier.size) for tier in tiers)
        raise BadInput(
            f"tier sizes {sizes} = {product}, but count = {count}",
            where=f"{where}: tiers",
            remedy="size counts units of the next inner tier; make the product equal to count",
        )
    repeated = {tier.name for i, tier in enumerate(tiers) if tier.name in [t.name for t in tiers[:i]]}
    if repeated:
        raise BadInput(f"two tiers are named {min(repeated)!r}", where=f"{where}: tiers", remedy="rename one")
