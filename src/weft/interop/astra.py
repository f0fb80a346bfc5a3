"""ASTRA-sim's inputs: networks (the network.yml of its analytical backend) and system files, version 2.

Its bandwidths are in GB/s of 2**30 bytes.  A ring's is what a node sends in all, a switch's is that of the
node's only link, and a fully connected dimension's is that of each of its links.  Its latencies are of one
hop: through a switch there are two.  Chunks take the dimensions in order, first come first served.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from weft.documents import parse_json
from weft.errors import BadInput, UnknownName, Unsupported
from weft.fabric import checks
from weft.fabric.dimension import Dimension, DimensionKind
from weft.interop.yaml_text import parse_yaml
from weft.model.settings import Settings

KEYS = ("topology", "npus_count", "bandwidth", "latency")
KINDS: dict[str, DimensionKind] = {"Ring": "ring", "FullyConnected": "fully-connected", "Switch": "switch"}
NAMES = {kind: name for name, kind in KINDS.items()}
GB = 2**30
MOST_DIMENSIONS = 64
_NUMBER = re.compile(r"([0-9]{1,40}(\.[0-9]{0,60})?|\.[0-9]{1,60})([eE][+-]?[0-9]{1,3})?")
_WHOLE = re.compile(r"[0-9]{1,9}")


def read_network(text: str, *, where: str = "network") -> tuple[Dimension, ...]:
    """The dimensions of a network.yml, inner to outer.

    Raises:
        Unsupported: a network.json of ASTRA-sim 1.0.
    """
    lists = _lists(text, where)
    rows = zip(*(lists[key] for key in KEYS), strict=True)
    return tuple(_dimension(row, number, where) for number, row in enumerate(rows))


def write_network(dimensions: Sequence[Dimension]) -> str:
    """A network.yml, which ``read_network`` reads back exactly.

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


# Systems ----------------------------------------------------------------------------------------------

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
MOST_CHUNKS = 1_000_000
_ALGORITHMS = {
    "ring": "ring",
    "direct": "direct",
    "halvingDoubling": "halving-doubling",
    "doubleBinaryTree": "double-tree",
}
_OVER_ALL_DIMENSIONS = re.compile(r"one(Ring|Direct[0-9]{0,9}|HalvingDoubling)")
_WINDOWED = re.compile(r"direct[0-9]{1,9}")
_AS_READ = {
    "scheduling-policy": ("LIFO", "FIFO"),
    "inter-dimension-scheduling": ("baseline", "ascending"),
    "intra-dimension-scheduling": ("FIFO",),
}
"""Values with the meaning that Weft gives every file; releases of version 2 do not read the last two settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AstraSystem:
    """What a system file says that Weft uses; the defaults are ASTRA-sim's.

    ``algorithms``: per collective ("all-reduce", "all-gather", "reduce-scatter", "all-to-all") one algorithm
    per dimension, inner to outer: ring, direct, halving-doubling or double-tree.  A collective that the file
    leaves out is left out.  ``chunks``: parts of a collective.  ``active``: chunks that a dimension works on
    at once.  ``peak_flops`` (FLOP/s) and ``local_memory_Bps`` (bytes/s): the accelerator's, None where not given.
    """

    algorithms: Mapping[str, tuple[str, ...]]
    chunks: int = 1
    active: int = 1
    peak_flops: float | None = None
    local_memory_Bps: float | None = None


def read_system(text: str, *, where: str = "system") -> AstraSystem:
    """The settings of a system file; others are without effect here.

    Raises:
        UnknownName: a value that ASTRA-sim does not know either.
        Unsupported: a value that ASTRA-sim knows and Weft does not model.
    """
    table = parse_json(text, where)
    typical = {"scheduling-policy", "preferred-dataset-splits", *(f"{name}-implementation" for name in COLLECTIVES)}
    if not isinstance(table, dict) or typical.isdisjoint(table):
        raise BadInput("is not a system file of ASTRA-sim", where=where, remedy="give the system.json")
    algorithms = _algorithms(table, where)
    settings, key = Settings(data=table, where=where), "collective-optimization"
    if table.get(key, "localBWAware") not in ("baseline", "localBWAware"):
        raise UnknownName("value", reprlib.repr(table[key]), ("baseline", "localBWAware"), where=f"{where}: {key}")
    if table.get(key) == "baseline" and len(algorithms.get("all-reduce", ())) > 1:
        problem = "all-reduces of the whole buffer in every dimension are not modelled"
        raise Unsupported(problem, where=f"{where}: {key}", remedy="set localBWAware")
    for key, values in _AS_READ.items():
        if (value := table.get(key, values[0])) not in values:
            problem = f"{reprlib.repr(value)} is not modelled here"
            raise Unsupported(problem, where=f"{where}: {key}", remedy="remove it, and give --policy and --order")
    return AstraSystem(
        algorithms=algorithms,
        chunks=settings.integer("preferred-dataset-splits", default=1, most=MOST_CHUNKS),
        active=settings.integer("active-chunks-per-dimension", default=1, most=MOST_CHUNKS),
        # As in ASTRA-sim, 0 stands for "not given".
        peak_flops=1e12 * settings.number("peak-perf", 0.0, most=1e15) or None,
        local_memory_Bps=1e9 * settings.number("local-mem-bw", 0.0, most=1e15) or None,
    )


def write_system(system: AstraSystem) -> str:
    """A system file.

    Raises:
        Unsupported: an algorithm that ASTRA-sim does not have.
    """
    values: dict[str, Any] = {
        "scheduling-policy": "LIFO",
        "endpoint-delay": 10,
        "active-chunks-per-dimension": system.active,
        "preferred-dataset-splits": system.chunks,
    }
    names = {ours: theirs for theirs, ours in _ALGORITHMS.items()}
    for collective in COLLECTIVES:
        if collective in system.algorithms:
            unknown = [algorithm for algorithm in system.algorithms[collective] if algorithm not in names]
            if unknown:
                problem = f"ASTRA-sim has no algorithm {unknown[0]!r}"
                raise Unsupported(problem, where="system: algorithms", remedy=f"use {', '.join(names)}")
            values[f"{collective}-implementation"] = [names[each] for each in system.algorithms[collective]]
    values["collective-optimization"] = "localBWAware"
    if system.local_memory_Bps is not None:
        values["local-mem-bw"] = system.local_memory_Bps / 1e9
    if system.peak_flops is not None:
        values["peak-perf"] = system.peak_flops / 1e12
    return json.dumps(values, indent=2) + "\n"


def _algorithms(table: Mapping[str, Any], where: str) -> dict[str, tuple[str, ...]]:
    """Algorithms per collective; windows of messages are without effect here."""
    for key in table:
        if key == "per-node-custom-implementation" or key.endswith("-implementation-custom"):
            remedy = "remove it, and give each dimension an algorithm"
            raise Unsupported("custom collectives are not modelled", where=f"{where}: {key}", remedy=remedy)
    algorithms: dict[str, tuple[str, ...]] = {}
    for collective in COLLECTIVES:
        key = f"{collective}-implementation"
        if key not in table:
            continue
        names, place = table[key], f"{where}: {key}"
        if not isinstance(names, list) or not 0 < len(names) <= MOST_DIMENSIONS:
            raise BadInput("is not a list of algorithms", where=place, remedy="give one per dimension")
        if not all(isinstance(name, str) for name in names):
            problem = f"{reprlib.repr(names)} holds more than names"
            raise BadInput(problem, where=place, remedy="give one algorithm per dimension")
        algorithms[collective] = tuple(_algorithm(name, place) for name in names)
    if len({len(each) for each in algorithms.values()}) > 1:
        counts = ", ".join(f"{collective} {len(each)}" for collective, each in algorithms.items())
        problem = f"differ in dimensions: {counts}"
        raise BadInput(problem, where=f"{where}: implementations", remedy="give one algorithm per dimension")
    return algorithms


def _algorithm(name: str, where: str) -> str:
    if _OVER_ALL_DIMENSIONS.fullmatch(name):
        raise Unsupported(
            f"{name} over all dimensions at once is not modelled",
            where=where,
            remedy="give an algorithm per dimension, or one dimension",
        )
    plain = "direct" if _WINDOWED.fullmatch(name) else name
    if plain not in _ALGORITHMS:
        raise UnknownName("algorithm", name[:40], _ALGORITHMS, where=where)
    return _ALGORITHMS[plain]
