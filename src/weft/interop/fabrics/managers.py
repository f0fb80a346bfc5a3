"""Cables as managers of fabrics list them in JSON: NVIDIA Air, NetQ and UFM.

- Air's topology: {"content": {"nodes": {...}, "links": [[{"node": ..., "interface": ...}, {...}], ...]}}, or its
  content alone; ends that are no port (outbound links) are left out.
- NetQ's topology graph: [{"nodes": [tiers of devices], "links": [{"compounded_links": [{"interfaces": [...]}]}]}].
- NetQ's LLDP table (``netq show lldp json``): {"lldp": [{"hostname", "ifname", "peerHostname", "peerIfname"}]}, with
  keys in camel or snake case, each cable from one or both ends.
- UFM's links (GET /ufmRest/resources/links): [{"source_port_node_description", "source_port_dname", ...}].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.documents import parse_json
from weft.errors import BadInput
from weft.fabric.wiring import PortCable, Wiring, host_by_name, wiring_of
from weft.interop.fabrics.cabling import device_name, infiniband_end, port_name, written_speed_Bps

Row = dict[str, Any]
_PEERS = (("hostname", "ifname"), ("peerhostname", "peerifname"))
_UFM = ("source", "destination")


def is_air(found: object) -> bool:
    content = found.get("content", found) if isinstance(found, dict) else None
    links = content.get("links") if isinstance(content, dict) else None
    return isinstance(links, list) and bool(links) and all(isinstance(link, list) for link in links)


def is_netq_graph(found: object) -> bool:
    first = found[0] if isinstance(found, list) and found and isinstance(found[0], dict) else {}
    links = first.get("links")
    return isinstance(links, list) and "nodes" in first and all("compounded_links" in one for one in _objects(links))


def is_netq_lldp(found: object) -> bool:
    rows = found.get("lldp") if isinstance(found, dict) else found
    wanted = {name for end in _PEERS for name in end}
    return isinstance(rows, list) and any(wanted <= set(_flat(row)) for row in _objects(rows))


def is_ufm(found: object) -> bool:
    return any("source_port" in row and "destination_port" in row for row in _objects(found))


def read_air(text: str, *, where: str = "Air topology", hosts: Sequence[str] = ()) -> Wiring:
    """The links of a topology of NVIDIA Air.

    Raises:
        BadInput: not in this form, or a port with two cables.
    """
    found = parse_json(text, where)
    if not is_air(found):
        raise BadInput("has no content with links", where=where, remedy="give a topology that Air exports as JSON")
    content = found.get("content", found)
    nodes = content.get("nodes")
    told = _told(nodes if isinstance(nodes, dict) else {}, ("function", "role"))
    cables = []
    for number, link in enumerate(content["links"]):
        ends = [end for end in link if isinstance(end, dict)]
        if len(ends) == 2:
            cables.append(_cable([(end.get("node"), end.get("interface")) for end in ends], f"links[{number}]", where))
    title = found.get("title")
    name = title if isinstance(title, str) and title.isprintable() and title else "Air topology"
    return wiring_of(name, cables, told=told, hosts=hosts, where=where)


def read_netq_graph(text: str, *, where: str = "NetQ topology", hosts: Sequence[str] = ()) -> Wiring:
    """The links of NetQ's topology graph, between the names of its devices.

    Raises:
        BadInput: not in this form, a link of an unknown device, or a port with two cables.
    """
    found = parse_json(text, where)
    if not is_netq_graph(found):
        raise BadInput("is no topology graph", where=where, remedy="give a list with one object of nodes and links")
    names: dict[str, str] = {}
    told: dict[str, bool] = {}
    for tier in _objects(found[0]["nodes"]):
        for row in _objects(tier.get("compounded_nodes", [])):
            name = device_name(row.get("name"), f"{where}: nodes")
            names[str(row.get("id"))] = name
            if row.get("device_type") in ("switch", "host", "server"):
                told[name] = row["device_type"] != "switch"
            elif isinstance(row.get("tier"), int) and row["tier"] < 0:
                told[name] = True  # below the leaves, seen by LLDP only
    cables = []
    for number, link in enumerate(_objects(found[0]["links"])):
        for part, row in enumerate(_objects(link["compounded_links"])):
            place = f"links[{number}].compounded_links[{part}]"
            ends = [(names.get(str(end.get("node"))), end.get("interface")) for end in _objects(row.get("interfaces"))]
            cables.append(_cable(ends, place, where))
    return wiring_of("NetQ topology", cables, told=told, hosts=hosts, where=where)


def read_netq_lldp(text: str, *, where: str = "NetQ LLDP", hosts: Sequence[str] = ()) -> Wiring:
    """The cables of NetQ's table of LLDP neighbours.

    Raises:
        BadInput: not in this form, or a port with two cables.
    """
    found = parse_json(text, where)
    if not is_netq_lldp(found):
        remedy = "give the output of netq show lldp json"
        raise BadInput("has no rows with hostname and peerHostname", where=where, remedy=remedy)
    rows = found["lldp"] if isinstance(found, dict) else found
    seen: dict[frozenset[tuple[str, str]], PortCable] = {}
    for number, row in enumerate(_objects(rows)):
        flat = _flat(row)
        cable = _cable([(flat.get(name), flat.get(port)) for name, port in _PEERS], f"row {number}", where)
        seen.setdefault(frozenset(cable.ends), cable)
    return wiring_of("NetQ LLDP", list(seen.values()), told={}, hosts=hosts, where=where)


def read_ufm(text: str, *, where: str = "UFM links", hosts: Sequence[str] = ()) -> Wiring:
    """The links of UFM, whose devices are named by their descriptions.

    Raises:
        BadInput: not in this form, or a port with two cables.
    """
    found = parse_json(text, where)
    if not is_ufm(found):
        raise BadInput("has no links with source_port", where=where, remedy="give /ufmRest/resources/links")
    told: dict[str, bool] = {}
    cables = []
    for number, row in enumerate(_objects(found)):
        place, ends = f"links[{number}]", []
        for side in _UFM:
            description = row.get(f"{side}_port_node_description") or row.get(f"{side}_guid")
            port = row.get(f"{side}_port_dname") or row.get(f"{side}_port")
            device, name, is_host = infiniband_end(device_name(description, f"{where}: {place}"), str(port or ""))
            if is_host is not None:
                told[device] = is_host
            ends.append((device, name))
        speed = row.get("speed") or row.get("active_speed") or ""
        width = str(row.get("width") or "")
        told_Bps = written_speed_Bps(f"{width} {speed}".strip(), f"{where}: {place}") if speed else None
        cables.append(_cable(ends, place, where, told_Bps))
    return wiring_of("UFM links", cables, told=told, hosts=hosts, where=where)


def _objects(rows: object) -> list[Row]:
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _flat(row: Row) -> Row:
    """A row with its keys in lower case, without underscores."""
    return {key.replace("_", "").lower(): value for key, value in row.items()}


def _told(nodes: Row, keys: Sequence[str]) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for name, row in nodes.items():
        word = next((row[key] for key in keys if isinstance(row.get(key), str)), "") if isinstance(row, dict) else ""
        known = host_by_name(word)
        if known is not None:
            found[name] = known
    return found


def _cable(ends: Sequence[tuple[object, object]], place: str, where: str, speed: float | None = None) -> PortCable:
    here = f"{where}: {place}"
    if len(ends) != 2:
        raise BadInput("has not two ends", where=here, remedy="give node and interface of both")
    (a, p), (b, q) = ends
    return PortCable(
        device=device_name(a, here),
        port=port_name(device_name(p, here)),
        other=device_name(b, here),
        other_port=port_name(device_name(q, here)),
        capacity_Bps=speed,
        place=place,
    )
