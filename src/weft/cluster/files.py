"""Clusters as TOML files and as plain dictionaries: read with checks, written so that they read back equal.

Quantities are strings with units ("400 Gb/s", "80 GiB") or bare numbers in SI.  A field has a short name for
people (``bandwidth``) and the name of the record it fills (``bandwidth_Bps``), which is what Weft writes.
Functions raise ``BadInput`` where their input cannot be used.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from math import prod
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from weft import units
from weft.cluster import catalogue
from weft.cluster.catalogue import with_domain
from weft.cluster.spec import Accelerator, Cluster, Tier, TierKind
from weft.documents import parse_toml
from weft.errors import BadInput
from weft.files import read_text

MAX_FILE_BYTES = 1_000_000


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed")
    return text


_Text = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(_printable)]
_Quantity = str | float
_Size = Annotated[int, Field(ge=1, le=catalogue.MAX_COUNT)]


def _either(short: str, record: str, default: Any = ...) -> Any:
    return Field(default, validation_alias=AliasChoices(short, record))


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _TierFields(_Strict):
    name: _Text
    size: _Size
    kind: TierKind
    bandwidth_Bps: _Quantity = _either("bandwidth", "bandwidth_Bps")
    latency_s: _Quantity | None = _either("latency", "latency_s", None)
    oversubscription: float = Field(1.0, ge=1.0, le=1000.0)
    in_network_reduction: bool = False


class _AcceleratorFields(_Strict):
    like: _Text | None = None
    name: _Text | None = None
    vendor: _Text | None = None
    fp32_flops: _Quantity | None = _either("fp32", "fp32_flops", None)
    fp16_flops: _Quantity | None = _either("fp16", "fp16_flops", None)
    bf16_flops: _Quantity | None = _either("bf16", "bf16_flops", None)
    fp8_flops: _Quantity | None = _either("fp8", "fp8_flops", None)
    fp4_flops: _Quantity | None = _either("fp4", "fp4_flops", None)
    int8_flops: _Quantity | None = _either("int8", "int8_flops", None)
    memory_bytes: _Quantity | None = _either("memory", "memory_bytes", None)
    memory_Bps: _Quantity | None = _either("memory_bandwidth", "memory_Bps", None)
    scale_up_size: _Size | None = None
    scale_up_Bps: _Quantity | None = _either("scale_up_bandwidth", "scale_up_Bps", None)
    nic_Bps: _Quantity | None = _either("nic_bandwidth", "nic_Bps", None)
    host_Bps: _Quantity | None = _either("host_bandwidth", "host_Bps", None)
    host_memory_bytes: _Quantity | None = _either("host_memory", "host_memory_bytes", None)
    multiprocessors: _Size | None = None
    power_w: _Quantity | None = _either("power", "power_w", None)
    in_switch_reduction: bool | None = None
    usd_per_hour: float | None = Field(None, ge=0.0, le=1e5)


class _ClusterFields(_Strict):
    name: _Text
    accelerator: Any
    count: _Size
    used_per_domain: _Size | None = None
    tiers: list[_TierFields] | None = Field(None, min_length=1, max_length=16)
    defaults: list[_Text] = Field(default_factory=list, max_length=64)


_Fields = TypeVar("_Fields", bound=_Strict)
_Parser = Callable[[str | float, str], float]
_PEAKS = ("fp32_flops", "fp16_flops", "bf16_flops", "fp8_flops", "fp4_flops", "int8_flops")
_PEAK = (units.parse_flops, 1e9, 1e18, "989 TFLOP/s")
_BANDWIDTH = (units.parse_bandwidth, 1e6, 1e14, "450 GB/s or 400 Gb/s, from 1 MB/s to 100 TB/s")
_LIMITS: dict[str, tuple[_Parser, float, float, str]] = {
    **dict.fromkeys(_PEAKS, _PEAK),
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
_ACCELERATOR = {one.name for one in fields(Accelerator)}
_OPTIONAL: dict[str, Any] = {
    "vendor": "unknown",
    "in_switch_reduction": False,
    "usd_per_hour": 0.0,
    "host_memory_bytes": None,
    **dict.fromkeys(_PEAKS, 0.0),
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
    data = _validate(_ClusterFields, mapping, where, "")
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


def cluster_to_dict(cluster: Cluster) -> dict[str, Any]:
    """What ``cluster_from_dict`` needs to build an equal cluster: strings, numbers in SI, lists; nothing of what is
    not known."""
    mapping = asdict(cluster)
    if mapping.pop("whole_domains"):
        mapping["used_per_domain"] = cluster.tiers[0].size
    mapping["accelerator"] = {name: value for name, value in mapping["accelerator"].items() if value is not None}
    return mapping | {"tiers": list(mapping["tiers"]), "defaults": list(mapping["defaults"])}


def write_cluster(cluster: Cluster) -> str:
    """TOML that ``read_cluster`` turns into an equal cluster; every figure in SI."""
    mapping = cluster_to_dict(cluster)
    chip, tiers = mapping.pop("accelerator"), mapping.pop("tiers")
    blocks = [_toml(mapping), "[accelerator]\n" + _toml(chip), *("[[tiers]]\n" + _toml(tier) for tier in tiers)]
    return "\n".join(blocks)


def parameters() -> dict[str, str]:
    """Figures of an accelerator by their short names, each with the field of its record."""
    known = {_short(_AcceleratorFields, field): field for field in _LIMITS if field in _ACCELERATOR}
    return known | {"scale_up_size": "scale_up_size", "usd_per_hour": "usd_per_hour"}


def parse_parameter(short: str, value: str | float, where: str) -> float:
    """A figure in SI, as a cluster file may state it."""
    field = parameters()[short]
    if field not in _LIMITS and isinstance(value, str):
        number = units.parse_count(value, where)
        value = int(number) if number == int(number) else number
    given = _validate(_AcceleratorFields, {short: value}, where, "")
    return _quantity(field, value, where) if field in _LIMITS else float(getattr(given, field))


def parse_latency(value: str | float, where: str) -> float:
    """Seconds of a hop, as a cluster file may state them."""
    return _quantity("latency_s", value, where)


def with_parameters(cluster: Cluster, figures: Mapping[str, float], *, where: str = "cluster") -> Cluster:
    """The cluster with other figures of its accelerator, by field; tiers follow the links that they are made of."""
    changed: dict[str, Any] = {name: int(one) if name == "scale_up_size" else one for name, one in figures.items()}
    chip = replace(cluster.accelerator, **changed)
    _check_accelerator(asdict(chip), where)
    old = cluster.accelerator
    ratios = [chip.scale_up_Bps / old.scale_up_Bps, *[chip.nic_Bps / old.nic_Bps] * (len(cluster.tiers) - 1)]
    pairs = zip(cluster.tiers, ratios, strict=True)
    tiers = tuple(replace(tier, bandwidth_Bps=tier.bandwidth_Bps * ratio) for tier, ratio in pairs)
    made = replace(cluster, accelerator=chip, tiers=tiers)
    return with_domain(made, chip.scale_up_size, where=where) if "scale_up_size" in figures else made


def _toml(table: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in table.items())


def _validate(kind: type[_Fields], mapping: object, where: str, prefix: str) -> _Fields:
    if not isinstance(mapping, Mapping):
        raise BadInput(f"{_shown(mapping)} is not a table of fields", where=f"{where}{prefix and ': ' + prefix}")
    try:
        return kind.model_validate(dict(mapping))
    except ValidationError as error:
        raise _bad_input(kind, error, where, prefix) from None


def _bad_input(kind: type[_Strict], error: ValidationError, where: str, prefix: str) -> BadInput:
    """The first problem that pydantic found, unknown fields before others, in the words of a person."""
    found = error.errors(include_url=False)
    first = min(found, key=lambda problem: problem["type"] != "extra_forbidden")
    path = prefix
    for part in first["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in ("str", "float"):
            path += f".{part}" if path else part
    place = f"{where}: {path}" if path else where
    if first["type"] == "missing":
        return BadInput("is missing", where=place, remedy="add it")
    if first["type"] == "extra_forbidden":
        return _unknown_field(str(first["loc"][-1]), _TierFields if len(first["loc"]) > 1 else kind, place)
    if first["loc"][-1] in ("str", "float"):
        remedy = "write a number with its unit, or a finite number in SI"
        return BadInput(f"{_shown(first['input'])} is not a quantity", where=place, remedy=remedy)
    problem = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return BadInput(f"{_shown(first['input'])} {problem}", where=place)


def _unknown_field(name: str, kind: type[_Strict], place: str) -> BadInput:
    known = _known(kind)
    if name in known:
        return BadInput("is given twice, under its short and its full name", where=place, remedy="keep one")
    near = difflib.get_close_matches(name, known, n=2)
    remedy = f"did you mean {' or '.join(near)}?" if near else "remove it"
    return BadInput("is not a known field", where=place, remedy=remedy)


def _known(kind: type[_Strict]) -> list[str]:
    names: list[str] = []
    for name, info in kind.model_fields.items():
        alias = info.validation_alias
        names += [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else [name]
    return names


def _shown(value: object) -> str:
    if not isinstance(value, str | int | float):
        return f"a {type(value).__name__}"
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
    return text if len(text) <= 60 else text[:57] + "..."


def _quantity(field: str, value: str | float, place: str) -> float:
    """``value`` in SI, within the bounds of ``field``."""
    parse, low, high, example = _LIMITS[field]
    parsed = parse(value, place)
    if field in _PEAKS and parsed == 0:
        return 0.0
    if not low <= parsed <= high or (field == "latency_s" and parsed >= high):
        size = "small" if parsed < low else "large"
        raise BadInput(f"{_shown(value)} is too {size}", where=place, remedy=f"write it like {example}")
    return parsed


def _short(kind: type[_Strict], field: str) -> str:
    alias = kind.model_fields[field].validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else field


def _accelerator(value: object, where: str) -> tuple[Accelerator, TierKind]:
    """The accelerator, by name or spelled out, and how its scale-up domain is wired."""
    if isinstance(value, str):
        return catalogue.accelerator(value, where=f"{where}: accelerator"), catalogue.scale_up_kind(value)
    data = _validate(_AcceleratorFields, value, where, "accelerator")
    base = catalogue.accelerator(data.like, where=f"{where}: accelerator.like") if data.like else None
    known = asdict(base) if base else dict(_OPTIONAL)
    for field in fields(Accelerator):
        given = getattr(data, field.name)
        if given is None:
            continue
        place = f"{where}: accelerator.{_short(_AcceleratorFields, field.name)}"
        known[field.name] = _quantity(field.name, given, place) if field.name in _LIMITS else given
    _check_accelerator(known, where)
    chip = Accelerator(**known)
    if base:
        for name in _BANDWIDTHS:
            place = f"{where}: accelerator.{_short(_AcceleratorFields, name)}"
            _check_bits(getattr(data, name), getattr(chip, name), base, name, place)
    return chip, catalogue.scale_up_kind(data.like or chip.name)


def _check_accelerator(known: Mapping[str, Any], where: str) -> None:
    missing = [_short(_AcceleratorFields, f.name) for f in fields(Accelerator) if f.name not in known]
    if missing:
        remedy = 'add them, or start from a known one with like = "h100"'
        raise BadInput(f"lacks {', '.join(missing)}", where=f"{where}: accelerator", remedy=remedy)
    if not any(known[field] for field in _PEAKS):
        raise BadInput("has no peak", where=f"{where}: accelerator", remedy='add bf16 = "989 TFLOP/s"')


def _check_bits(given: str | float | None, Bps: float, chip: Accelerator, name: str, place: str) -> None:
    """Refuse a bandwidth that is exactly the accelerator's own with bits and bytes exchanged."""
    own_Bps = getattr(chip, name)
    for ratio, words, unit in ((8.0, "eight times", "b/s"), (0.125, "an eighth of", "B/s")):
        if isinstance(given, str) and abs(Bps - ratio * own_Bps) <= 1e-9 * Bps:
            meant = units.format_si(Bps if ratio > 1 else own_Bps, unit)
            raise BadInput(
                f"{given!r} is {words} the {_BANDWIDTHS[name]} of {chip.name}",
                where=place,
                remedy=f"did you mean {meant}? If it is right, give it as a bare number of bytes/s",
            )


def _tier(data: _TierFields, index: int, chip: Accelerator, where: str, defaults: list[str]) -> Tier:
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
