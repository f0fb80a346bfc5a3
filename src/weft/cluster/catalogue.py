"""Known accelerators and preset clusters: by name and by pattern, without reading a user's file.

Latencies are those of one hop with a latency-optimised protocol, as NCCL's tuner assumes them (ring LL in
``src/graph/tuning.cc``: 0.5 to 0.6 us over NVLink, 2.7 us over the network); the fixed cost of starting a
collective is the collective model's.  Assumption: a spine adds 1 us, two switch crossings and 100 m of fibre.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from weft import units
from weft.cluster.spec import Accelerator, Cluster, Tier, TierKind
from weft.errors import BadInput, UnknownName

SCALE_UP_LATENCY_S = 0.6e-6
RAIL_LATENCY_S = 2.7e-6
SPINE_LATENCY_S = 3.7e-6
MAX_COUNT = 10_000_000
TRAY = 4
"""GPUs of a compute tray of NVL72: the least part of a scale-up domain that stays idle."""

ALIASES = {
    "v100": "v100-32gb",
    "a100": "a100-80gb",
    "h100-80gb": "h100",
    "h200-141gb": "h200",
    "h800-80gb": "h800",
    "gh200": "gh200-96gb",
    "mi250x-gcd": "mi250x",
    "a100-pcie": "a100-pcie-80gb",
    "a800-80gb": "a800",
    "h20-96gb": "h20",
    "rtx-a6000": "a6000",
}
"""Short names, and long names of accelerators that come in one size."""

PEAKS = ("fp32_flops", "fp16_flops", "bf16_flops", "fp8_flops", "fp4_flops", "int8_flops")
_PARSERS: dict[str, tuple[str, Callable[..., float]]] = {
    **{name.removesuffix("_flops"): (name, units.parse_flops) for name in PEAKS},
    "memory": ("memory_bytes", units.parse_bytes),
    "memory_bandwidth": ("memory_Bps", units.parse_bandwidth),
    "scale_up_bandwidth": ("scale_up_Bps", units.parse_bandwidth),
    "nic_bandwidth": ("nic_Bps", units.parse_bandwidth),
    "host_bandwidth": ("host_Bps", units.parse_bandwidth),
    "host_memory": ("host_memory_bytes", units.parse_bytes),
    "power": ("power_w", units.parse_watts),
}
_PLAIN = ("vendor", "scale_up_size", "multiprocessors", "in_switch_reduction", "usd_per_hour")


@cache
def entries() -> dict[str, dict[str, Any]]:
    """The accelerators as the data file states them, each with its ``source`` table, ``like`` resolved."""
    raw = tomllib.loads((Path(__file__).parent / "data" / "accelerators.toml").read_text("utf-8"))
    done: dict[str, dict[str, Any]] = {}
    for name, entry in raw.items():
        base = done.get(entry.pop("like", ""), {})
        done[name] = {**base, **entry, "source": {**base.get("source", {}), **entry["source"]}}
    return done


def accelerator_names() -> tuple[str, ...]:
    """Names that ``accelerator`` knows, aliases included."""
    return tuple(sorted({*entries(), *ALIASES}))


def accelerator(name: str, *, where: str | None = None) -> Accelerator:
    """The accelerator of that name or alias, in any case.

    Raises:
        UnknownName: no such accelerator.
    """
    canonical = ALIASES.get(name.lower(), name.lower())
    if canonical not in entries():
        raise UnknownName("accelerator", name, accelerator_names(), where=where, listed="weft info clusters")
    return _accelerator(canonical)


def scale_up_kind(name: str) -> TierKind:
    """How the scale-up domain of that accelerator is wired; ``switch`` for one that is not known."""
    kind: TierKind = entries().get(ALIASES.get(name.lower(), name.lower()), {}).get("scale_up_kind", "switch")
    return kind


@cache
def _accelerator(canonical: str) -> Accelerator:
    entry = entries()[canonical]
    figures: dict[str, Any] = {field: entry[field] for field in _PLAIN}
    for key, (field, parse) in _PARSERS.items():
        figures[field] = float(round(parse(entry[key], where=f"accelerators.toml: {canonical}.{key}")))
    return Accelerator(name=canonical, **figures)


def names() -> tuple[str, ...]:
    """The presets, as patterns that ``load`` fills: ``h100-<count>``, ``frontier-<count>``, ..."""
    return tuple(f"{family}-<count>" for family in _families())


def load(name: str) -> Cluster:
    """The preset ``<family>-<count>``: an accelerator's name, or a machine or network family (see ``names``).

    Raises:
        UnknownName: no such family.
        BadInput: no count, or one that does not fill the scale-up domains.
    """
    match = re.fullmatch(r"(.+)-([0-9]{1,9})", name.strip().lower())
    family, digits = (match[1], match[2]) if match else (name.strip().lower(), "")
    build = _families().get(family)
    if build is None:
        known = [f"{family}-{digits or '<count>'}" for family in _families()]
        for chip in sorted(_families(), key=len, reverse=True):  # h100x64, 64xh100 and the like
            if meant := re.fullmatch(rf"(\d+)[\sx*]*{chip}|{chip}[\sx*:_-]*(\d+)\D*", name.strip().lower()):
                known = [f"{chip}-{meant[1] or meant[2]}"]
                break
        raise UnknownName("cluster", name, known, listed="weft info clusters")
    if not digits:
        raise BadInput(f"cluster {name!r} has no count", remedy=f"write it like {family}-1024")
    count = int(digits)
    if not 1 <= count <= MAX_COUNT:
        raise BadInput(f"cluster {name!r} has {count} accelerators", remedy=f"use 1 to {MAX_COUNT}")
    return build(f"{family}-{count}", count)


def default_tiers(
    chip: Accelerator,
    count: int,
    *,
    kind: TierKind | None = None,
    used_per_domain: int | None = None,
    where: str | None = None,
) -> tuple[Tier, ...]:
    """The scale-up domain, and one switch tier over the NICs when ``count`` exceeds it.

    ``kind`` is how the domain is wired; by default as the catalogue says.  ``used_per_domain`` accelerators of each
    domain are used; by default as ``even_share`` says.
    """
    used = used_per_domain or even_share(count, chip.scale_up_size)
    if not used or count % used:

        def fills(size: int) -> bool:
            return size % used == 0 if used else even_share(size, chip.scale_up_size) is not None

        below = [size for size in range(max(1, count - chip.scale_up_size), count) if fills(size)][-1:]
        above = next(size for size in itertools.count(count + 1) if fills(size))
        raise BadInput(
            f"{count} accelerators do not fill scale-up domains of {used or chip.scale_up_size} ({chip.name})",
            where=where,
            remedy=f"use {' or '.join(str(tier) for tier in (*below, above))}",
        )
    inner = Tier(
        name="scale-up",
        size=used,
        kind=kind or scale_up_kind(chip.name),
        bandwidth_Bps=chip.scale_up_Bps,
        latency_s=SCALE_UP_LATENCY_S,
        in_network_reduction=chip.in_switch_reduction,
    )
    return (inner,) if count == used else (inner, _network_tier(chip, "network", count // used, SPINE_LATENCY_S))


def even_share(count: int, size: int) -> int | None:
    """Accelerators to use of each scale-up domain of ``size``, so that all domains have as many; None where none fits.

    All of ``count`` within one domain; else the whole domain; else its largest power of two, as NVIDIA's recipes for
    NVL72 do (64); else equal shares of the fewest domains, in whole trays.
    """
    fewest = -(-count // size)
    for used in (count, size, 1 << (size.bit_length() - 1)):
        if used <= size and count % used == 0:
            return used
    return None if count % (fewest * TRAY) else count // fewest


def _network_tier(chip: Accelerator, name: str, size: int, latency_s: float) -> Tier:
    """A non-blocking switch tier that joins ``size`` units over the NICs."""
    return Tier(name=name, size=size, kind="switch", bandwidth_Bps=chip.nic_Bps, latency_s=latency_s)


def _preset(chip: Accelerator, name: str, count: int, tiers: tuple[Tier, ...]) -> Cluster:
    """The cluster; what several domains hold beyond their tier are spares."""
    used, size = tiers[0].size, chip.scale_up_size
    partial = len(tiers) > 1 and used < size
    text = f"{used} of the {size} accelerators of each scale-up domain used, the others paid for as spares"
    defaults = (text,) if partial else ()
    return Cluster(name=name, accelerator=chip, count=count, tiers=tiers, defaults=defaults, whole_domains=partial)


def _rail_optimized(chip: Accelerator, name: str, count: int) -> Cluster:
    """Scale-up domains, rails that join the domains of a scalable unit, and a spine over the units."""
    tiers = default_tiers(chip, count)
    if len(tiers) > 1:
        domains, unit = tiers[1].size, int(entries()[chip.name]["rail_domains"])
        if domains <= unit:
            tiers = (tiers[0], _network_tier(chip, "rail", domains, RAIL_LATENCY_S))
        elif domains % unit == 0:
            spine = _network_tier(chip, "spine", domains // unit, SPINE_LATENCY_S)
            tiers = (tiers[0], _network_tier(chip, "rail", unit, RAIL_LATENCY_S), spine)
    return _preset(chip, name, count, tiers)


def _rail_only(chip: Accelerator, name: str, count: int) -> Cluster:
    """No spine: every rail joins the accelerators of one rank of all domains (arXiv 2307.12169)."""
    tiers = default_tiers(chip, count, kind="switch")
    if len(tiers) > 1:
        unit = int(entries()[chip.name]["rail_domains"])
        latency = RAIL_LATENCY_S if tiers[1].size <= unit else SPINE_LATENCY_S
        tiers = (tiers[0], _network_tier(chip, "rail", tiers[1].size, latency))
    return _preset(chip, name, count, tiers)


def _dragonfly(chip: Accelerator, name: str, count: int, kind: TierKind) -> Cluster:
    """Nodes on one Slingshot-11 dragonfly, taken as a non-blocking switch."""
    inner, *outer = default_tiers(chip, count, kind=kind)
    return _preset(chip, name, count, (inner, *(replace(tier, name="slingshot") for tier in outer)))


@cache
def _families() -> dict[str, Callable[[str, int], Cluster]]:
    """Families of presets; each value builds one from its name and count."""
    # DGX GH200: NVLink Switch domains of 256 that reduce, one 400 Gb/s NIC per GPU (arXiv 2307.12169).
    dgx_gh200 = replace(accelerator("gh200"), scale_up_size=256, nic_Bps=50e9, in_switch_reduction=True)
    # Perlmutter: four A100 per node, four NVLink 3 per pair, and one Slingshot NIC each (NERSC documentation).
    small, large = (replace(accelerator(f"a100-{size}gb"), scale_up_size=4) for size in (40, 80))
    families: dict[str, Callable[[str, int], Cluster]] = {
        chip: lambda name, count, chip=chip: _rail_optimized(accelerator(chip), name, count)  # type: ignore[misc]
        for chip in accelerator_names()
    }
    families |= {
        "gb200-nvl72": families["gb200"],
        "gb300-nvl72": families["gb300"],
        "vr200-nvl72": families["vr200"],
        "h100-rail-only": lambda name, count: _rail_only(accelerator("h100"), name, count),
        "gh200-rail-only": lambda name, count: _rail_only(dgx_gh200, name, count),
        "perlmutter": lambda name, count: _dragonfly(small, name, count, "fully-connected"),
        "perlmutter-80gb": lambda name, count: _dragonfly(large, name, count, "fully-connected"),
        "frontier": lambda name, count: _dragonfly(accelerator("mi250x"), name, count, "ring"),
        "alps": lambda name, count: _dragonfly(accelerator("gh200"), name, count, "fully-connected"),
    }
    return dict(sorted(families.items()))


LEAST, MOST = 0.01, 100.0
MOST_OVERSUBSCRIBED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Factors of what a cluster has; 1 leaves it as it is.

    Attributes:
        peak: of the matrix units' FLOP/s.
        hbm: of the memory's bandwidth.
        scale_up: of the bandwidth of the innermost tier.
        nic: of the bandwidth of all other tiers.
        latency: of the latency of every tier.
    """

    peak: float = 1.0
    hbm: float = 1.0
    scale_up: float = 1.0
    nic: float = 1.0
    latency: float = 1.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not LEAST <= getattr(self, name) <= MOST:
                problem = f"{getattr(self, name):g} is not a factor of {name}"
                raise BadInput(problem, where="what if", remedy=f"give {LEAST:g} to {MOST:g}; 1 changes nothing")

    @property
    def words(self) -> str:
        """What changes, as "nic x2, latency x0.5"; empty where nothing does."""
        changed = [(name, getattr(self, name)) for name in self.__slots__ if getattr(self, name) != 1.0]
        return ", ".join(f"{name.replace('_', '-')} x{factor:g}" for name, factor in changed)


def scaled(cluster: Cluster, scales: Scales) -> Cluster:
    """A cluster with its figures multiplied; its name and its constants stay."""
    chip = cluster.accelerator
    faster = {name: scales.peak * getattr(chip, name) for name in PEAKS}
    tiers = tuple(
        replace(
            tier,
            bandwidth_Bps=(scales.nic if place else scales.scale_up) * tier.bandwidth_Bps,
            latency_s=scales.latency * tier.latency_s,
        )
        for place, tier in enumerate(cluster.tiers)
    )
    return replace(cluster, accelerator=replace(chip, memory_Bps=scales.hbm * chip.memory_Bps, **faster), tiers=tiers)


def with_latency(cluster: Cluster, *, scale_up_s: float | None = None, nic_s: float | None = None) -> Cluster:
    """The cluster with other latencies of a hop: of its innermost tier, and of all others; None leaves them."""
    latencies = [scale_up_s, *[nic_s] * (len(cluster.tiers) - 1)]
    tiers = zip(cluster.tiers, latencies, strict=True)
    return replace(cluster, tiers=tuple(tier if new is None else replace(tier, latency_s=new) for tier, new in tiers))


def resized(cluster: Cluster, count: int) -> Cluster:
    """The cluster with more or fewer units in its outermost tier."""
    inner = cluster.spans[-1] // cluster.tiers[-1].size
    if count < 1 or count % inner:
        problem = f"{count} accelerators do not fill units of {inner}"
        raise BadInput(problem, where=f"{cluster.name}: count", remedy=f"give a multiple of {inner}")
    tiers = (*cluster.tiers[:-1], replace(cluster.tiers[-1], size=count // inner))
    return replace(cluster, count=count, tiers=tiers)


def with_domain(cluster: Cluster, size: int, *, where: str = "--sizes") -> Cluster:
    """The cluster with scale-up domains of another size, its links, NICs and latencies as they are.

    A tier beyond the domains joins the same accelerators as before; where a domain holds them all, or does not divide
    them, the tier is left out.  A domain that grows is switched, whatever joins the cluster's own.  The network
    beside a cluster of one domain is the accelerator's usual one.
    """
    inner = cluster.tiers[0]
    if size == inner.size:
        return cluster
    if size < 1 or cluster.count % size:
        raise BadInput(
            f"domains of {size} do not divide {cluster.count} accelerators",
            where=where,
            remedy="choose divisors of the number of accelerators",
        )
    chip = replace(cluster.accelerator, scale_up_size=size)
    tiers = [replace(inner, size=size, kind="switch" if size > inner.size else inner.kind)]
    beyond = cluster.tiers[1:] or default_tiers(chip, cluster.count)[1:]
    spans = cluster.spans[1:] or (cluster.count,)
    size_now = size
    for tier, span in zip(beyond, spans, strict=False):
        if span > size_now and span % size_now == 0:
            tiers.append(replace(tier, size=span // size_now))
            size_now = span
    return replace(cluster, accelerator=chip, tiers=tuple(tiers), whole_domains=False)


def with_spares_used(cluster: Cluster) -> Cluster:
    """The cluster with the spares of its scale-up domains in use: what is bought."""
    first, *outer = cluster.tiers
    tiers = (replace(first, size=first.size + cluster.spares_per_domain), *outer)
    return replace(cluster, count=cluster.count + cluster.spares, tiers=tiers, whole_domains=False)


def rewired(cluster: Cluster, variant: Cluster) -> str:
    """What ``with_domain`` assumed of the domains of ``variant``, in words; empty where they are wired as before."""
    before, now = cluster.tiers[0], variant.tiers[0]
    if before.kind == now.kind:
        return ""
    return f"scale-up domains of {now.size} are switched (those of {before.size} are {before.kind})"


def oversubscribed(cluster: Cluster, ratio: float) -> Cluster:
    """The cluster with another oversubscription (>= 1) of its outermost network."""
    if len(cluster.tiers) == 1:
        problem = f"{cluster.name} is one scale-up domain, with no network outside of it"
        raise BadInput(problem, where="oversubscription", remedy="take more accelerators, or leave it out")
    if not 1 <= ratio <= MOST_OVERSUBSCRIBED:
        remedy = f"give 1 to {MOST_OVERSUBSCRIBED}"
        raise BadInput(f"{ratio:g} is out of range", where="oversubscription", remedy=remedy)
    return replace(cluster, tiers=(*cluster.tiers[:-1], replace(cluster.tiers[-1], oversubscription=ratio)))
