"""The dimensions of a schedule: of a cluster's tiers, as people write them, and those that a group of ranks spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from math import prod

from weft.cluster.spec import Cluster, Tier
from weft.collectives.stages import ALGORITHMS, Algorithm, choose, stage
from weft.errors import BadInput, UnknownName, Unsupported
from weft.fabric.dimension import KINDS, Dimension, DimensionKind, from_tier
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


Factors = Sequence[tuple[int, int]]


def whole_dimensions(dimensions: Sequence[Dimension], chosen: Sequence[int]) -> list[tuple[int, Dimension]]:
    """Number and dimension of those chosen, inner to outer."""
    for number in chosen:
        if not 0 <= number < len(dimensions):
            problem = f"there is no dimension {number + 1} of {len(dimensions)}"
            raise BadInput(problem, where="group", remedy="give a network with as many dimensions")
    return [(number, dimensions[number]) for number in sorted(set(chosen))]


def part_dimensions(dimensions: Sequence[Dimension], factors: Factors) -> list[tuple[int, Dimension]]:
    """Number and dimension of each part of a group, whose factors are (size, distance in ranks).

    A part has all the bandwidth of a switch, but only those all-pairs links that join its members; neighbours
    on a ring are a line.

    Raises:
        Unsupported: a factor cuts a dimension unevenly, or takes ranks apart on a ring or line.
    """
    result = []
    for size, distance in factors:
        if size <= 1:
            continue
        low = 1
        left, begin = size, distance
        # A dimension covers distances from `low` to `high`; what of the group's factor does not fit into it goes on
        # outwards.
        for number, dimension in enumerate(dimensions):
            high = low * dimension.size
            if left > 1 and low <= begin < high:
                part = _inside(left, begin, low, high)
                result.append((number, _partial(dimension, part, apart=begin > low)))
                left, begin = left // part, high
            low = high
        if left > 1:
            shape = " x ".join(str(dimension.size) for dimension in dimensions)
            raise BadInput(f"{size} ranks {distance} apart do not fit on {shape}", where="group")
    return result


def _inside(left: int, begin: int, low: int, high: int) -> int:
    """How many of the remaining ranks differ in this dimension."""
    room = high // begin
    if high % begin or begin % low or (left > room and left % room) or (left < room and room % left):
        raise Unsupported(
            f"a group of {left} ranks {begin} apart cuts a dimension of {high // low} unevenly",
            where="group",
            remedy="choose degrees that divide the sizes of the dimensions",
        )
    return min(left, room)


def rank_dimensions(dimensions: Sequence[Dimension], ranks: Sequence[int]) -> list[tuple[int, Dimension]]:
    """Number and dimension of each part of a group, given by its ranks.

    Raises:
        Unsupported: the group is not a block of coordinates, or takes ranks apart on a ring or line.
    """
    if len(ranks) == 1:
        return []
    sizes = [dimension.size for dimension in dimensions]
    if len(set(ranks)) < len(ranks) or not all(0 <= rank < prod(sizes) for rank in ranks):
        problem = f"ranks {sorted(ranks)[:8]} are not a group of {prod(sizes)}"
        raise BadInput(problem, where="group", remedy="name each rank once, from 0")
    # The coordinates that occur in each dimension; the group is a block if their product is its size.
    places = [set[int]() for _ in sizes]
    for rank in ranks:
        for place, size in zip(places, sizes, strict=True):
            place.add(rank % size)
            rank //= size
    if prod(len(place) for place in places) != len(ranks):
        shape = " x ".join(str(size) for size in sizes)
        raise Unsupported(f"ranks {sorted(ranks)[:8]} are not a block of {shape}", where="group")
    return [
        (number, _partial(dimensions[number], len(place), apart=not _neighbours(place, dimensions[number])))
        for number, place in enumerate(places)
        if len(place) > 1
    ]


def _neighbours(place: set[int], dimension: Dimension) -> bool:
    """Whether coordinates follow each other, on a ring also over its end."""
    begins = [at for at in place if (at - 1) % dimension.size not in place]
    return len(begins) <= 1 and (dimension.kind == "ring" or max(place) - min(place) == len(place) - 1)


def path_dimensions(dimensions: Sequence[Dimension], source: int, target: int) -> list[tuple[int, Dimension]]:
    """Number and dimension of those in which two ranks differ, inner to outer."""
    count = prod(dimension.size for dimension in dimensions)
    if not (0 <= source < count and 0 <= target < count):
        raise BadInput(f"ranks {source} and {target} of {count}", where="message", remedy="count from 0")
    result = []
    for number, dimension in enumerate(dimensions):
        if source % dimension.size != target % dimension.size:
            result.append((number, dimension))
        source, target = source // dimension.size, target // dimension.size
    return result


def _partial(dimension: Dimension, size: int, *, apart: bool) -> Dimension:
    if size == dimension.size or dimension.kind == "switch":
        return replace(dimension, size=size)
    if dimension.kind == "fully-connected":
        return replace(dimension, size=size, bandwidth_Bps=dimension.bandwidth_Bps * (size - 1) / (dimension.size - 1))
    if apart:
        raise Unsupported(
            f"{size} ranks that are not neighbours on a {dimension.kind} of {dimension.size}",
            where="group",
            remedy="let the group take neighbours, or a whole dimension",
        )
    return replace(dimension, size=size, kind="line", bandwidth_Bps=dimension.link_Bps * min(size - 1, 2))


def factors_of(ranks: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """(size, distance) of the parts of a group, inner to outer, from its ranks in increasing order.

    Raises:
        Unsupported: the ranks are not regularly spaced.
    """
    firsts, result = list(ranks), list[tuple[int, int]]()
    # The innermost run of equal distances is a factor; its first members are the group of the next one.
    while len(firsts) > 1:
        distance, size = firsts[1] - firsts[0], 2
        while size < len(firsts) and firsts[size] - firsts[size - 1] == distance:
            size += 1
        blocks = [firsts[i : i + size] for i in range(0, len(firsts), size)]
        shape = [rank - firsts[0] for rank in blocks[0]]
        if distance <= 0 or any([rank - block[0] for rank in block] != shape for block in blocks):
            raise Unsupported("a group of ranks that are not regularly spaced", where="group")
        result.append((size, distance))
        firsts = [block[0] for block in blocks]
    return tuple(result)


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
    if not parts[1].isdecimal() or len(parts[1]) > 9:
        raise BadInput(f"{parts[1][:40]!r} is not a whole number", where=f"{where}: size")
    for value, name, remedy in (
        (parts[2], "bandwidth", "write 50GB/s or 400Gb/s"),
        (parts[3], "latency", "write 1us"),
    ):
        # 0 is the same in every unit; other bare numbers would be bytes per second, or seconds.
        if value.strip()[-1:].isdecimal() and value.strip() != "0":
            raise BadInput(f"{value[:40]!r} has no unit", where=f"{where}: {name}", remedy=remedy)
    Bps = parse_bandwidth(parts[2], f"{where}: bandwidth")
    latency_s = parse_seconds(parts[3], f"{where}: latency")
    try:
        return Dimension(size=int(parts[1]), kind=kind, bandwidth_Bps=Bps, latency_s=latency_s, reduces=reduces)
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
