"""ASTRA-sim's networks: the network.yml of its analytical backend.

Its bandwidths are in GB/s of 2**30 bytes.  A ring's is what a node sends in all, a switch's is that of the
node's only link, and a fully connected dimension's is that of each of its links.  Its latencies are of one
hop: through a switch there are two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from weft.errors import BadInput, UnknownName, Unsupported
from weft.fabric import checks
from weft.fabric.dimension import Dimension, DimensionKind
from weft.interop.yaml_text import parse_yaml

KEYS = ("topology", "npus_count", "bandwidth", "latency")
KINDS: dict[str, DimensionKind] = {"Ring": "ring", "FullyConnected": "fully-connected", "Switch": "switch"}
NAMES = {kind: name for name, kind in KINDS.items()}
GB = 2**30
MOST_DIMENSIONS = 64
_NUMBER = re.compile(r"([0-9]{1,40}(\.[0-9]{0,60})?|\.[0-9]{1,60})([eE][+-]?[0-9]{1,3})?")
_WHOLE = re.compile(r"[0-9]{1,9}")


def read(text: str, *, where: str = "network") -> tuple[Dimension, ...]:
    """The dimensions of a network.yml, inner to outer.

    Raises:
        Unsupported: a network.json of ASTRA-sim 1.0.
    """
    lists = _lists(text, where)
    rows = zip(*(lists[key] for key in KEYS), strict=True)
    return tuple(_dimension(row, number, where) for number, row in enumerate(rows))


def write(dimensions: Sequence[Dimension]) -> str:
    """A network.yml, which ``read`` reads back exactly.

    Raises:
        Unsupported: a dimension that ASTRA-sim does not have: a line, a switch that reduces, size 1.
    """
    if not 0 < len(dimensions) <= MOST_DIMENSIONS:
        raise BadInput(f"{len(dimensions)} dimensions", where="network", remedy=f"give 1 to {MOST_DIMENSIONS}")
    rows: dict[str, list[str]] = {key: [] for key in KEYS}
    for number, dimension in enumerate(dimensions):
        kind, place = dimension.kind, f"network: dimension {number}"
        if kind not in NAMES:
            raise Unsupported(f"ASTRA-sim has no {kind}", where=place, remedy="give a ring, a switch or all pairs")
        if dimension.reduces:
            remedy = "give a switch that does not reduce"
            raise Unsupported("ASTRA-sim's switches do not reduce", where=place, remedy=remedy)
        if dimension.size < 2:
            problem = "ASTRA-sim's dimensions have at least 2 nodes"
            raise Unsupported(problem, where=place, remedy="leave this dimension out")
        bandwidth = _shortest(Decimal(dimension.bandwidth_Bps), Decimal(GB * _links(kind, dimension.size)))
        latency = _shortest(Decimal(repr(float(dimension.latency_s))), _hops(kind))
        for key, text in zip(KEYS, (NAMES[kind], str(dimension.size), bandwidth, latency), strict=True):
            rows[key].append(text)
    return "".join(f"{key}: [ {', '.join(values)} ]\n" for key, values in rows.items())


def _lists(text: str, where: str) -> dict[str, list[str]]:
    if text.lstrip().startswith("{"):
        remedy = "give the network.yml of version 2"
        raise Unsupported("networks in JSON (ASTRA-sim 1.0) are not read", where=where, remedy=remedy)
    table = parse_yaml(text, where=where, remedy="write each key in one line, like topology: [ Ring, Switch ]")
    if not isinstance(table, dict):
        raise BadInput("is not a network of ASTRA-sim", where=where, remedy=f"give {', '.join(KEYS)}")
    for key in table:
        if key not in KEYS:
            raise UnknownName("key", key, KEYS, where=where)
    result = {}
    for key in KEYS:
        if key not in table:
            raise BadInput("is missing", where=f"{where}: {key}", remedy="add it")
        values = table[key]
        texts = [item for item in values if isinstance(item, str)] if isinstance(values, list) else []
        if len(texts) != len(values) or not 0 < len(texts) <= MOST_DIMENSIONS:
            raise BadInput("is not a list of values", where=f"{where}: {key}", remedy="give one value per dimension")
        result[key] = texts
    if len({len(values) for values in result.values()}) > 1:
        lengths = ", ".join(f"{key} {len(values)}" for key, values in result.items())
        raise BadInput(f"lists differ in length: {lengths}", where=where, remedy="give one value per dimension")
    return result


def _dimension(row: tuple[str, ...], number: int, where: str) -> Dimension:
    name, count, *rates = row
    if name not in KINDS:
        raise UnknownName("topology", name[:40], KINDS, where=f"{where}: topology[{number}]")
    place = f"{where}: npus_count[{number}]"
    if not _WHOLE.fullmatch(count):
        raise BadInput(f"{count[:40]!r} is not a whole number", where=place, remedy="give 2 or more")
    kind, size = KINDS[name], checks.whole(int(count), place, low=2)
    values, scales = [], (Decimal(GB * _links(kind, size)), _hops(kind))
    for key, text, scale in zip(KEYS[2:], rates, scales, strict=True):
        place = f"{where}: {key}[{number}]"
        if not _NUMBER.fullmatch(text):
            raise BadInput(f"{text[:40]!r} is not a number", where=place, remedy="give a number without a unit")
        values.append(checks.positive(float(Decimal(text) * scale), place, zero=key == "latency"))
    return Dimension(size=size, kind=kind, bandwidth_Bps=values[0], latency_s=values[1])


def _links(kind: DimensionKind, size: int) -> int:
    """How many links our bandwidth adds up where ASTRA-sim's is that of one."""
    return size - 1 if kind == "fully-connected" else 1


def _hops(kind: DimensionKind) -> Decimal:
    """Seconds of a step over a hop of one nanosecond."""
    return Decimal("2e-9") if kind == "switch" else Decimal("1e-9")


def _shortest(value: Decimal, scale: Decimal) -> str:
    """A number whose product with ``scale`` is ``value`` again as a float: a float's text where that is enough."""
    exact = value / scale
    short = repr(float(exact))
    return short if float(Decimal(short) * scale) == float(value) else str(exact)
