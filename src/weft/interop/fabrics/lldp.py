"""Fabrics from what nodes see of their neighbours: ``lldpcli -f json show neighbors details``, or ``-f json0``.

The input is one JSON object that gives the output of every node by the node's name (a name of a file, without
.json): {"leaf1": {"lldp": [...]}, ...}; jq makes it of files with
``jq -n 'reduce inputs as $i ({}; .[input_filename] = $i)' *.json``.  The output of one node alone is of the node that
the file is named after.  Nodes without output of their own are known from their neighbours.  Names match with or
without their domain.

A node is a host if its neighbours hear the capability Station from it and neither Bridge nor Router; where
two nodes differ on the cables between them, the one that lists more is believed; a cable is one-way that the other
node, asked too, does not hear.  A cable has the slower of the speeds that its ends tell ("MAU oper type"); virtual
ports tell some speed, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft.documents import parse_json
from weft.errors import BadInput
from weft.fabric.wiring import PortCable, Wiring, wiring_of
from weft.interop.fabrics.cabling import device_name, speed_Bps

_REMEDY = "give the output of lldpcli -f json show neighbors details by node"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sight:
    """What a node sees at one port."""

    node: str
    port: str
    other: str
    other_port: str
    other_id: str
    capabilities: frozenset[str] | None
    capacity_Bps: float | None
    place: str


def read_wiring(text: str, *, where: str = "LLDP", hosts: Sequence[str] = ()) -> Wiring:
    """The cables that the nodes see.

    Args:
        hosts: patterns of names of hosts; with them, all other nodes are switches.

    Raises:
        BadInput: not in this form, or a port with two neighbours.
    """
    table = parse_json(text, where)
    if not isinstance(table, dict) or not table:
        raise BadInput("is no object of nodes", where=where, remedy=_REMEDY)
    if set(table) == {"lldp"}:
        table = {Path(where).name: table}
    given = {node_of(device_name(key, where)): _json0(value) for key, value in table.items()}
    short = _short(given)
    sights = [sight for node, output in given.items() for sight in _sights(node, output, short, where)]
    times = Counter((sight.other, sight.other_port) for sight in sights)
    sights = [
        sight if times[sight.other, sight.other_port] == 1 else replace(sight, other_port=sight.other_id)
        for sight in sights
    ]
    if not sights:
        raise BadInput("no node sees a neighbour", where=where, remedy=_REMEDY)
    return wiring_of("LLDP fabric", list(_cables(sights, set(given))), told=_told(sights), hosts=hosts, where=where)


def node_of(file: str) -> str:
    """The node whose output a file of this name holds."""
    return file.removesuffix(".json").removesuffix(".lldp")


def _short(given: Mapping[str, object]) -> dict[str, str]:
    """The node that a first part of a name means, where only one has it."""
    found: dict[str, str] = {}
    for name in given:
        first = name.split(".")[0]
        found[first] = "" if first in found else name
    return {first: name for first, name in found.items() if name} | {name: name for name in given}


def _sights(node: str, output: object, short: dict[str, str], where: str) -> Iterator[_Sight]:
    place = f"{where}: {node}"
    for part in _list(output.get("lldp") if isinstance(output, dict) else None, place):
        for number, row in enumerate(_list(part.get("interface", []), place)):
            here = f"{place}: interface[{number}]"
            chassis, port = (_first(row.get(key), here) for key in ("chassis", "port"))
            name = _value(chassis.get("name")) or _value(chassis.get("id"))
            other = device_name(name, f"{here}: chassis")
            other = short.get(other) or short.get(other.split(".")[0]) or other
            told = chassis.get("capability")
            capabilities = None if told is None else _enabled(told, here)
            yield _Sight(
                node=node,
                port=device_name(row.get("name"), here),
                other=other,
                other_port=device_name(_port(port), f"{here}: port"),
                other_id=device_name(_value(port.get("id")), f"{here}: port"),
                capabilities=capabilities,
                capacity_Bps=_speed(port, here),
                place=f"{node}: interface[{number}]",
            )


def _json0(output: object) -> object:
    """The output of ``-f json``, with tables keyed by names and single things alone, in the form of json0."""
    found = output.get("lldp") if isinstance(output, dict) else None
    if not isinstance(found, dict):
        return output
    listed = found.get("interface", [])
    rows = [item for part in (listed if isinstance(listed, list) else [listed]) for item in _items(part)]
    return {"lldp": [{"interface": [{"name": name} | _interface(row) for name, row in rows]}]}


def _items(table: object) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(table, dict):
        return []
    name = table.get("name")
    return [(name, table)] if isinstance(name, str) else [(k, v) for k, v in table.items() if isinstance(v, dict)]


def _interface(row: dict[str, Any]) -> dict[str, Any]:
    chassis, port = row.get("chassis"), row.get("port")
    if isinstance(chassis, dict) and "id" not in chassis:
        chassis = next(({"name": name} | inner for name, inner in _items(chassis)), chassis)
    parts = (
        [{key: _wrapped(value) for key, value in part.items()}] if isinstance(part, dict) else part
        for part in (chassis, port)
    )
    return dict(zip(("chassis", "port"), parts, strict=True))


def _wrapped(value: object) -> object:
    if isinstance(value, dict) and isinstance(value.get("current"), str):
        value = value | {"current": [{"value": value["current"]}]}
    return [{"value": value}] if isinstance(value, str) else [value] if isinstance(value, dict) else value


def _list(value: object, place: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise BadInput("is no output of lldpcli in json0", where=place, remedy=_REMEDY)
    return value


def _first(value: object, place: str) -> dict[str, Any]:
    rows = _list(value, place)
    if not rows:
        raise BadInput("tells no chassis or port", where=place, remedy=_REMEDY)
    return rows[0]


def _value(rows: object) -> object:
    """The value of the first of some ``{"value": ...}``."""
    first = rows[0] if isinstance(rows, list) and rows else None
    return first.get("value") if isinstance(first, dict) else None


def _port(port: dict[str, Any]) -> object:
    """The port's name: its id where that is one, else its description (a MAC as id tells little)."""
    ids = port.get("id")
    kind = ids[0].get("type") if isinstance(ids, list) and ids and isinstance(ids[0], dict) else None
    described = None if kind in ("ifname", "local") else _value(port.get("descr"))
    return described or _value(ids)


def _enabled(rows: object, place: str) -> frozenset[str]:
    return frozenset(str(row.get("type")) for row in _list(rows, place) if row.get("enabled") is True)


def _speed(port: dict[str, Any], place: str) -> float | None:
    told = port.get("auto-negotiation")
    current = _value(_first(told, place).get("current")) if told else None
    return speed_Bps(current) if isinstance(current, str) else None


def _told(sights: list[_Sight]) -> dict[str, bool]:
    """Whether a node is a host, by the capabilities that its neighbours hear."""
    heard: dict[str, set[str]] = defaultdict(set)
    for sight in sights:
        if sight.capabilities is not None:
            heard[sight.other] |= sight.capabilities
    return {
        name: not capabilities & {"Bridge", "Router"}
        for name, capabilities in heard.items()
        if capabilities & {"Bridge", "Router", "Station"}
    }


def _cables(sights: list[_Sight], asked: set[str]) -> Iterator[PortCable]:
    """The cables of every pair of nodes, as the node tells that lists more of them."""
    pairs: dict[tuple[str, str], list[_Sight]] = defaultdict(list)
    for sight in sights:
        pairs[sight.node, sight.other].append(sight)
    done = set()
    for (node, other), own in pairs.items():
        if (other, node) in done:
            continue
        done.add((node, other))
        back = pairs.get((other, node), [])
        longer, shorter = (own, back) if len(own) >= len(back) else (back, own)
        across = {sight.port: sight.capacity_Bps for sight in shorter}
        heard, short = {sight.other_port for sight in shorter}, len(shorter) < len(longer)
        for sight in longer:
            told = sorted(s for s in (sight.capacity_Bps, across.get(sight.other_port)) if s is not None)
            yield PortCable(
                device=sight.node,
                port=sight.port,
                other=sight.other,
                other_port=sight.other_port,
                capacity_Bps=told[0] if told else None,
                other_Bps=told[-1] if told and told[0] < told[-1] else None,
                one_way=short and sight.other in asked and not (sight.other_port in across or sight.port in heard),
                place=sight.place,
            )
