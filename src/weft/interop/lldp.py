"""Fabrics from what nodes see of their neighbours: ``lldpcli -f json show neighbors details``, or ``-f json0``.

The input is one JSON object that gives the output of every node by the node's name (a name of a file, without
.json): {"leaf1": {"lldp": ...}, ...}; jq makes it of files with
``jq -n 'reduce inputs as $i ({}; .[input_filename] = $i)' *.json``.  The output of one node alone is of the node that
the file is named after.  Nodes without output are known from their neighbours.  Names match with or
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
from weft.interop.cabling import device_name, speed_Bps

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
    """
    table = parse_json(text, where)
    if not isinstance(table, dict) or not table:
        raise BadInput("is not an object of nodes", where=where, remedy=_REMEDY)
    if set(table) == {"lldp"}:
        table = {Path(where).name: table}
    outputs = {node_of(device_name(key, where)): value for key, value in table.items()}
    # The node that the first part of a name means, where only one has it.
    short: dict[str, str] = {}
    for name in outputs:
        first = name.split(".")[0]
        short[first] = "" if first in short else name
    short = {first: name for first, name in short.items() if name} | {name: name for name in outputs}
    sights = [sight for node, output in outputs.items() for sight in _sights(node, output, short, where)]
    if not sights:
        raise BadInput("no node sees a neighbour", where=where, remedy=_REMEDY)
    times = Counter((sight.other, sight.other_port) for sight in sights)
    sights = [
        sight if times[sight.other, sight.other_port] == 1 else replace(sight, other_port=sight.other_id)
        for sight in sights
    ]
    heard: dict[str, set[str]] = defaultdict(set)
    for sight in sights:
        if sight.capabilities is not None:
            heard[sight.other] |= sight.capabilities
    roles = {
        name: not capabilities & {"Bridge", "Router"}
        for name, capabilities in heard.items()
        if capabilities & {"Bridge", "Router", "Station"}
    }
    return wiring_of("LLDP fabric", list(_cables(sights, set(outputs))), told=roles, hosts=hosts, where=where)


def node_of(file: str) -> str:
    """The node whose output a file of this name holds."""
    return file.removesuffix(".json").removesuffix(".lldp")


def _sights(node: str, output: object, short: Mapping[str, str], where: str) -> Iterator[_Sight]:
    """What a node sees.  json0 makes a list of everything; json keys by names, and leaves single things alone."""
    place = f"{where}: {node}"
    parts = _rows(output.get("lldp") if isinstance(output, dict) else None, place)
    interfaces: list[tuple[object, Any]] = []
    for row in (row for part in parts for row in _rows(part.get("interface", []), place)):
        interfaces += [(row.get("name"), row)] if "chassis" in row or "port" in row else row.items()
    for number, (name, row) in enumerate(interfaces):
        where_row = f"{place}: interface[{number}]"
        (row,) = _rows(row, where_row)[:1] or [{}]
        chassis, port = ((_rows(row.get(key), where_row) or [{}])[0] for key in ("chassis", "port"))
        if "id" not in chassis and len(chassis) == 1 and isinstance(inner := next(iter(chassis.values())), dict):
            chassis = {"name": next(iter(chassis))} | inner
        if not chassis or not port:
            raise BadInput("tells no chassis or port", where=where_row, remedy=_REMEDY)
        neighbour = device_name(_value(chassis.get("name")) or _value(chassis.get("id")), f"{where_row}: chassis")
        capabilities = chassis.get("capability")
        speed = _rows(port["auto-negotiation"], where_row)[:1] if port.get("auto-negotiation") else []
        current = _value(speed[0].get("current")) if speed else None
        # The port's name: its id where that is one, else its description (a MAC as id tells little).
        identity = port.get("id")
        ids = identity[0] if isinstance(identity, list) and identity else identity
        named = isinstance(ids, dict) and ids.get("type") in ("ifname", "local")
        described = None if named else _value(port.get("descr"))
        yield _Sight(
            node=node,
            port=device_name(name, where_row),
            other=short.get(neighbour) or short.get(neighbour.split(".")[0]) or neighbour,
            other_port=device_name(described or _value(ids), f"{where_row}: port"),
            other_id=device_name(_value(ids), f"{where_row}: port"),
            capabilities=None
            if capabilities is None
            else frozenset(
                str(each.get("type")) for each in _rows(capabilities, where_row) if each.get("enabled") is True
            ),
            capacity_Bps=speed_Bps(current) if isinstance(current, str) else None,
            place=f"{node}: interface[{number}]",
        )


def _rows(value: object, place: str) -> list[dict[str, Any]]:
    """A list of tables, or one table."""
    rows = [value] if isinstance(value, dict) else value
    if not isinstance(rows, list) or not all(isinstance(each, dict) for each in rows):
        raise BadInput("is not an output of lldpcli in json0", where=place, remedy=_REMEDY)
    return rows


def _value(value: object) -> object:
    """The value of a text, of ``{"value": ...}``, or of the first of several."""
    first = value[0] if isinstance(value, list) and value else value
    return first.get("value") if isinstance(first, dict) else first


def _cables(sights: list[_Sight], wanted: set[str]) -> Iterator[PortCable]:
    """The cables of every pair of nodes, as the node tells that lists more of them."""
    pairs: dict[tuple[str, str], list[_Sight]] = defaultdict(list)
    for sight in sights:
        pairs[sight.node, sight.other].append(sight)
    done = set()
    for (node, neighbour), own in pairs.items():
        if (neighbour, node) in done:
            continue
        done.add((node, neighbour))
        back = pairs.get((neighbour, node), [])
        longer, shorter = (own, back) if len(own) >= len(back) else (back, own)
        across = {sight.port: sight.capacity_Bps for sight in shorter}
        heard, short = {sight.other_port for sight in shorter}, len(shorter) < len(longer)
        for sight in longer:
            speeds = sorted(s for s in (sight.capacity_Bps, across.get(sight.other_port)) if s is not None)
            yield PortCable(
                device=sight.node,
                port=sight.port,
                other=sight.other,
                other_port=sight.other_port,
                capacity_Bps=speeds[0] if speeds else None,
                other_Bps=speeds[-1] if speeds and speeds[0] < speeds[-1] else None,
                one_way=short and sight.other in wanted and not (sight.other_port in across or sight.port in heard),
                place=sight.place,
            )
