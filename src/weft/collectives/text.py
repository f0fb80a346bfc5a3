"""Dimensions, algorithms and odd ranks as people write them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.collectives.schedules.chunks import Request
from weft.collectives.stages import ALGORITHMS, Algorithm
from weft.errors import BadInput, UnknownName
from weft.fabric.dimension import KINDS, Dimension, DimensionKind
from weft.fabric.spec import Floats
from weft.units import parse_bandwidth, parse_seconds

EXAMPLE = "write it like switch:8:450GB/s:1us"
SHORT_KINDS: dict[str, DimensionKind] = {"fc": "fully-connected", "fullyconnected": "fully-connected"}


def parse_dimensions(text: str) -> tuple[Dimension, ...]:
    """Dimensions from "switch:16:150GiB/s:1ns,ring:8:50GB/s:1us"; ":reduce" ends one that can reduce.

    Raises:
        BadInput: a part is missing or is none; says which.
        UnknownName: there is no such kind.
    """
    return tuple(_dimension(part.strip(), f"--dims: dimension {i + 1}") for i, part in enumerate(text.split(",")))


def _dimension(text: str, where: str) -> Dimension:
    parts = text.split(":")
    reduces = len(parts) == 5 and parts[4] == "reduce"
    if len(parts) != 4 and not reduces:
        raise BadInput(f"{text[:60]!r} is no dimension", where=where, remedy=EXAMPLE)
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


def parse_late(text: str, asked: Request) -> Floats:
    """When each rank begins, from "17:50us,3:1ms".

    Raises:
        BadInput: a part is none, or there is no such rank.
    """
    starts = np.zeros(asked.accelerators)
    for rank, value in _per_rank(text, 2, asked, "--late", "17:50us"):
        seconds = parse_seconds(value[0], "--late")
        if seconds < 0:
            raise BadInput(f"{value[0]} is before the beginning", where="--late")
        starts[rank] = seconds
    return starts


def parse_slow(text: str, asked: Request) -> list[tuple[int, int, float]]:
    """Rank, dimension (from 0) and share of the bandwidth that is left, from "17:2:0.5".

    Raises:
        BadInput: a part is none, there is no such rank or dimension, or the share is not above 0.
    """
    found = []
    for rank, (dimension, share) in _per_rank(text, 3, asked, "--slow", "17:2:0.5"):
        number = _whole(dimension, "--slow: dimension")
        if not 1 <= number <= len(asked.dimensions):
            problem = f"there is no dimension {number}"
            raise BadInput(problem, where="--slow", remedy=f"give 1 to {len(asked.dimensions)}")
        left = _share(share)
        found.append((rank, number - 1, left))
    return found


def _per_rank(text: str, parts: int, asked: Request, where: str, example: str) -> Iterator[tuple[int, list[str]]]:
    for item in text.split(","):
        fields = item.strip().split(":")
        if len(fields) != parts:
            raise BadInput(f"{item[:60]!r} cannot be read", where=where, remedy=f"write it like {example}")
        rank = _whole(fields[0], f"{where}: rank")
        if rank >= asked.accelerators:
            problem = f"there is no rank {rank}"
            raise BadInput(problem, where=where, remedy=f"give 0 to {asked.accelerators - 1}")
        yield rank, fields[1:]


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1000:
        raise BadInput(f"{text[:40]!r} is no share of a bandwidth", where="--slow", remedy="give it as 0.5")
    return share


def _whole(text: str, where: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise BadInput(f"{text[:40]!r} is not a whole number", where=where)
    return int(text)
