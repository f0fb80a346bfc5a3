"""ASTRA-sim's system files, version 2: chunks take the dimensions in order, first come first served."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.documents import parse_json
from weft.errors import BadInput, UnknownName, Unsupported

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
MOST_CHUNKS, MOST_DIMENSIONS = 1_000_000, 64
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


def read(text: str, *, where: str = "system") -> AstraSystem:
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
    place, value = f"{where}: collective-optimization", table.get("collective-optimization", "localBWAware")
    if value not in ("baseline", "localBWAware"):
        raise UnknownName("value", reprlib.repr(value), ("baseline", "localBWAware"), where=place)
    if value == "baseline" and len(algorithms.get("all-reduce", ())) > 1:
        problem = "all-reduces of the whole buffer in every dimension are not modelled"
        raise Unsupported(problem, where=place, remedy="set localBWAware")
    counts = []
    for key in ("preferred-dataset-splits", "active-chunks-per-dimension"):
        value = table.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_CHUNKS:
            problem = f"{reprlib.repr(value)} is not a whole number from 1 to {MOST_CHUNKS:,}"
            raise BadInput(problem, where=f"{where}: {key}", remedy="correct it")
        counts.append(value)
    rates = []
    for key, unit in (("peak-perf", 1e12), ("local-mem-bw", 1e9)):
        value = table.get(key, 0)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value <= 1e15:
            problem = f"{reprlib.repr(value)} is not a number from 0 to 1e15"
            raise BadInput(problem, where=f"{where}: {key}", remedy="correct it")
        rates.append(float(value) * unit or None)  # as in ASTRA-sim, 0 stands for "not given"
    for key, values in _AS_READ.items():
        if (value := table.get(key, values[0])) not in values:
            problem = f"{reprlib.repr(value)} is not modelled here"
            raise Unsupported(problem, where=f"{where}: {key}", remedy="remove it, and give --policy and --order")
    return AstraSystem(
        algorithms=algorithms, chunks=counts[0], active=counts[1], peak_flops=rates[0], local_memory_Bps=rates[1]
    )


def write(system: AstraSystem) -> str:
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
