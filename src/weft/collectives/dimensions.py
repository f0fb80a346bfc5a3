"""The dimensions of a schedule: those of a cluster's tiers, and those, algorithms and odd ranks as people write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from math import prod

import numpy as np

from weft.cluster.spec import Cluster, Tier
from weft.collectives.schedules.chunks import Request
from weft.collectives.stages import ALGORITHMS, Algorithm, choose, stage
from weft.errors import BadInput, UnknownName
from weft.fabric.dimension import KINDS, Dimension, DimensionKind, from_tier
from weft.fabric.spec import Floats
from weft.units import parse_bandwidth, parse_seconds


def dimensions_of(cluster: Cluster) -> tuple[tuple[Dimension, ...], tuple[str, ...]]:
    """Dimensions inner to outer, and sentences on what was taken together.

    The scale-up domain and tiers of direct links have separate links.  Switched tiers above the domain
    share each accelerator's NIC, so those that follow each other are one dimension: inside it a collective
    goes from tier to tier, so that its time and latency are those of the tiers one after the other.
    """
    result, notes = [_alone(cluster.tiers[0])], list[str]()
    for switched, run in groupby(cluster.tiers[1:], key=lambda tier: tier.kind == "switch"):
        tiers = list(run)
        if not switched or len(tiers) == 1:
            result += [_alone(tier) for tier in tiers]
            continue
        result.append(_together(tiers))
        names = " and ".join(tier.name for tier in tiers)
        notes.append(f"{names} share the NIC: one dimension of {result[-1].size}")
    return tuple(result), tuple(notes)


def _alone(tier: Tier) -> Dimension:
    return replace(from_tier(tier), bandwidth_Bps=tier.effective_Bps)


def _together(tiers: Sequence[Tier]) -> Dimension:
    size = prod(tier.size for tier in tiers)
    seconds = latency = 0.0
    below = 1
    # Stage by stage from tier to tier: the seconds of a byte and the latencies add up.
    for tier in tiers:
        dimension = _alone(tier)
        # One dimension with the same seconds and latency under its own algorithm.
        cost = stage("reduce-scatter", choose(dimension)[0], tier.size)
        seconds += cost.sent / below / dimension.bandwidth_Bps
        latency += cost.steps * dimension.latency_s
        below *= tier.size
    joint = Dimension(size=size, kind="switch", bandwidth_Bps=1.0)
    cost = stage("reduce-scatter", choose(joint)[0], size)
    return Dimension(
        size=size,
        kind="switch",
        bandwidth_Bps=cost.sent / seconds if seconds else tiers[0].effective_Bps,
        latency_s=latency / cost.steps if cost.steps else 0.0,
        reduces=all(tier.in_network_reduction for tier in tiers),
    )


EXAMPLE = "write it like switch:8:450GB/s:1us"
SHORT_KINDS: dict[str, DimensionKind] = {"fc": "fully-connected", "fullyconnected": "fully-connected"}


def parse_dimensions(text: str) -> tuple[Dimension, ...]:
    """Dimensions from "switch:16:150GiB/s:1ns,ring:8:50GB/s:1us"; ":reduce" ends one that can reduce.

    Raises:
        UnknownName: there is no such kind.
    """
    return tuple(_dimension(part.strip(), f"--dims: dimension {i + 1}") for i, part in enumerate(text.split(",")))


def _dimension(text: str, where: str) -> Dimension:
    parts = text.split(":")
    reduces = len(parts) == 5 and parts[4] == "reduce"
    if len(parts) != 4 and not reduces:
        raise BadInput(f"{text[:60]!r} is not a dimension", where=where, remedy=EXAMPLE)
    kind = SHORT_KINDS.get(parts[0].lower(), parts[0].lower())
    if kind not in KINDS:
        raise UnknownName("kind of dimension", parts[0], KINDS, where=where)
    size = _whole(parts[1], f"{where}: size")
    bandwidth_Bps = parse_bandwidth(parts[2], f"{where}: bandwidth")
    latency_s = parse_seconds(parts[3], f"{where}: latency")
    try:
        return Dimension(size=size, kind=kind, bandwidth_Bps=bandwidth_Bps, latency_s=latency_s, reduces=reduces)
    except BadInput as error:
        raise BadInput(error.what, where=f"{where}: {error.where}", remedy=EXAMPLE) from None


def parse_algorithms(text: str) -> list[Algorithm | None]:
    """Algorithms from "ring,-,direct"; "-" is the usual one.

    Raises:
        UnknownName: there is no such algorithm.
    """
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in (*ALGORITHMS, "-"):
            raise UnknownName("algorithm", name, ALGORITHMS, where="--algorithms")
    return [None if name == "-" else name for name in names]  # type: ignore[misc]


def parse_late(text: str, collective: Request) -> Floats:
    """When each rank begins, from "17:50us,3:1ms"."""
    starts = np.zeros(collective.accelerators)
    seen: set[int] = set()
    for rank, value in _per_rank(text, 2, collective, "--late", "17:50us"):
        if rank in seen:
            raise BadInput(f"rank {rank} is given twice", where="--late", remedy="give each rank once")
        seen.add(rank)
        seconds = parse_seconds(value[0], "--late")
        if seconds < 0:
            raise BadInput(f"{value[0]} is before the beginning", where="--late")
        starts[rank] = seconds
    return starts


def parse_slow(text: str, collective: Request) -> list[tuple[int, int, float]]:
    """Rank, dimension (from 0) and share of the bandwidth that is left, from "17:2:0.5"."""
    result: list[tuple[int, int, float]] = []
    for rank, (dimension, share) in _per_rank(text, 3, collective, "--slow", "17:2:0.5"):
        number = _whole(dimension, "--slow: dimension")
        if not 1 <= number <= len(collective.dimensions):
            problem = f"there is no dimension {number}"
            raise BadInput(problem, where="--slow", remedy=f"give 1 to {len(collective.dimensions)}")
        if any(known[:2] == (rank, number - 1) for known in result):
            problem = f"dimension {number} of rank {rank} is given twice"
            raise BadInput(problem, where="--slow", remedy="give each once")
        result.append((rank, number - 1, _share(share)))
    return result


def _per_rank(text: str, parts: int, collective: Request, where: str, example: str) -> Iterator[tuple[int, list[str]]]:
    for item in text.split(","):
        fields = item.strip().split(":")
        if len(fields) != parts:
            raise BadInput(f"{item[:60]!r} cannot be read", where=where, remedy=f"write it like {example}")
        rank = _whole(fields[0], f"{where}: rank")
        if rank >= collective.accelerators:
            problem = f"there is no rank {rank}"
            raise BadInput(problem, where=where, remedy=f"give 0 to {collective.accelerators - 1}")
        yield rank, fields[1:]


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1000:
        raise BadInput(f"{text[:40]!r} is not a share of a bandwidth", where="--slow", remedy="give it as 0.5")
    return share


def _whole(text: str, where: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise BadInput(f"{text[:40]!r} is not a whole number", where=where)
    return int(text)
