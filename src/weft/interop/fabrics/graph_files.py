"""Fabrics as general graph files: GraphML, and the node-link JSON of networkx and D3.

Read: a node has a ``role`` (or ``type`` or ``kind``), where gpu, host, server and the like mean
accelerator; a link has ``capacity_Bps`` in bytes/s, or ``capacity``, ``bandwidth`` or ``speed`` with a
unit.  Written: every attribute of a fabric, each directed link for itself; such a file reads back as an
equal fabric.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from weft import units
from weft.documents import parse_json
from weft.errors import BadInput
from weft.fabric.assemble import ACCELERATOR, MOST_CABLES, MOST_NODES, Cable, Node, assemble, finite
from weft.fabric.spec import Fabric
from weft.interop.text.xml import Element, parse_xml

ACCELERATORS = frozenset({ACCELERATOR, "gpu", "npu", "tpu", "xpu", "host", "server", "compute", "node"})
_ROLES = ("role", "type", "kind")
_SPEEDS = ("capacity_Bps", "capacity", "bandwidth", "speed")
_NODE_KEYS = {"role": "string", "domain": "long", "rail": "long"}
_EDGE_KEYS = {"capacity_Bps": "double", "latency_s": "double", "cables": "long", "tier": "long", "up": "boolean"}
Attributes = Mapping[str, Any]


def read_graphml(text: str, *, where: str = "GraphML", capacity_Bps: float | None = None) -> Fabric:
    """The fabric of a GraphML text.

    Args:
        capacity_Bps: of links without one.

    Raises:
        BadInput: no GraphML, a node without role, a link without capacity, or what ``assemble`` refuses.
    """
    root = parse_xml(text, where=where)
    graph = next((child for child in root.children if child.tag == "graph"), None)
    if root.tag != "graphml" or graph is None:
        raise BadInput("holds no graph", where=where, remedy="give a GraphML file")
    keys = {
        key.attributes.get("id", ""): key.attributes.get("attr.name", "") for key in root.children if key.tag == "key"
    }
    name = _data(graph, keys).get("name", "") or graph.attributes.get("id") or "GraphML graph"
    nodes = [
        _node(_required(e, "id", where), _data(e, keys), f"line {e.line}", where)
        for e in graph.children
        if e.tag == "node"
    ]
    directed = graph.attributes.get("edgedefault", "undirected") == "directed"
    links = [
        _link(
            (_required(e, "source", where), _required(e, "target", where)),
            _data(e, keys),
            f"line {e.line}",
            where,
            directed=_flag(e.attributes.get("directed", directed), "directed", f"{where}: line {e.line}"),
            capacity_Bps=capacity_Bps,
        )
        for e in graph.children
        if e.tag == "edge"
    ]
    return assemble(_printable(name, where), nodes, links, where=where)


def read_node_link(text: str, *, where: str = "node-link", capacity_Bps: float | None = None) -> Fabric:
    """The fabric of a node-link JSON text (``nodes``, and ``edges`` or ``links``).

    Args:
        capacity_Bps: of links without one.

    Raises:
        BadInput: as ``read_graphml``.
    """
    table = parse_json(text, where)
    if not isinstance(table, dict):
        raise BadInput("is not a table of nodes and links", where=where)
    edges = "edges" if "edges" in table else "links"
    directed = _flag(table.get("directed", False), "directed", where)
    nodes = [
        _node(_identity(row, "id", f"{where}: nodes[{i}]"), row, f"nodes[{i}]", where)
        for i, row in enumerate(_rows(table, "nodes", where))
    ]
    links = []
    for i, row in enumerate(_rows(table, edges, where)):
        place = f"{edges}[{i}]"
        ends = tuple(_identity(row, end, f"{where}: {place}") for end in ("source", "target"))
        links.append(_link((ends[0], ends[1]), row, place, where, directed=directed, capacity_Bps=capacity_Bps))
    name = table.get("name")
    graph = table.get("graph")
    if isinstance(graph, dict):
        name = graph.get("name", name)
    return assemble(_printable(str(name or "node-link graph"), where), nodes, links, where=where)


def write_graphml(fabric: Fabric) -> str:
    """GraphML of the directed links with all their attributes; ``read_graphml`` gives an equal fabric."""
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">',
        '<key id="g0" for="graph" attr.name="name" attr.type="string"/>',
    ]
    for scope, keys in (("node", _NODE_KEYS), ("edge", _EDGE_KEYS)):
        lines += [
            f'<key id="{scope}.{name}" for="{scope}" attr.name="{name}" attr.type="{kind}"/>'
            for name, kind in keys.items()
        ]
    lines += ['<graph edgedefault="directed">', f'<data key="g0">{escape(fabric.name)}</data>']
    for name, attributes in _nodes(fabric):
        lines.append(f"<node id={quoteattr(name)}>{_written('node', attributes)}</node>")
    for i, (source, target, attributes) in enumerate(_edges(fabric)):
        ends = f'id="{i}" source={quoteattr(source)} target={quoteattr(target)}'
        lines.append(f"<edge {ends}>{_written('edge', attributes)}</edge>")
    return "\n".join([*lines, "</graph>", "</graphml>"]) + "\n"


def write_node_link(fabric: Fabric) -> str:
    """Node-link JSON of the directed links; ``read_node_link`` gives an equal fabric."""
    nodes = [{"id": name, **attributes} for name, attributes in _nodes(fabric)]
    edges = [
        {"source": source, "target": target, "key": i, **attributes}
        for i, (source, target, attributes) in enumerate(_edges(fabric))
    ]
    graph = {"directed": True, "multigraph": True, "graph": {"name": fabric.name}}
    return json.dumps({**graph, "nodes": nodes, "edges": edges}) + "\n"


def _nodes(fabric: Fabric) -> Iterator[tuple[str, dict[str, Any]]]:
    domain, rail = fabric.domain.tolist(), fabric.rail.tolist()
    for i, (name, role) in enumerate(zip(fabric.names, fabric.role.tolist(), strict=True)):
        inside = {"domain": domain[i], "rail": rail[i]} if i < fabric.accelerators else {}
        yield name, {"role": fabric.roles[role], **inside}


def _edges(fabric: Fabric) -> Iterator[tuple[str, str, dict[str, Any]]]:
    columns = [getattr(fabric, key).tolist() for key in _EDGE_KEYS]
    ends = zip(fabric.source.tolist(), fabric.target.tolist(), strict=True)
    for (a, b), values in zip(ends, zip(*columns, strict=True), strict=True):
        yield fabric.names[a], fabric.names[b], dict(zip(_EDGE_KEYS, values, strict=True))


def _written(scope: str, attributes: Attributes) -> str:
    return "".join(f'<data key="{scope}.{name}">{escape(_word(value))}</data>' for name, value in attributes.items())


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _data(element: Element, keys: Mapping[str, str]) -> dict[str, str]:
    return {
        keys.get(child.attributes.get("key", ""), ""): child.text.strip()
        for child in element.children
        if child.tag == "data"
    }


def _required(element: Element, name: str, where: str) -> str:
    value = element.attributes.get(name, "")
    if not value:
        raise BadInput(f"has no {name}", where=f"{where}: line {element.line} ({element.tag})")
    return _printable(value, f"{where}: line {element.line}")


def _rows(table: Attributes, name: str, where: str) -> Iterable[Attributes]:
    rows = table.get(name)
    if not isinstance(rows, list):
        raise BadInput(f"has no list of {name}", where=where)
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            raise BadInput("is not a table of fields", where=f"{where}: {name}[{i}]")
    return rows


def _identity(row: Attributes, name: str, where: str) -> str:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise BadInput(f"has no {name}", where=where, remedy="give a text or a whole number")
    if isinstance(value, int) and abs(value) > 10**18:
        raise BadInput(f"{name} is a huge number", where=where)
    return _printable(str(value), where)


def _printable(text: str, where: str) -> str:
    if not text.isprintable() or len(text) > 200:
        raise BadInput(f"{text[:40]!r} is no name", where=where, remedy="use up to 200 printable characters")
    return text


def _node(name: str, attributes: Attributes, place: str, where: str) -> Node:
    role = next((attributes[key] for key in _ROLES if attributes.get(key)), None)
    if not isinstance(role, str):
        remedy = f'give it role = "{ACCELERATOR}", "leaf", "spine", ...'
        raise BadInput(f"node {name!r} has no role", where=f"{where}: {place}", remedy=remedy)
    role = _printable(role, f"{where}: {place}")
    role = ACCELERATOR if role.lower() in ACCELERATORS else role
    here = f"{where}: {place}"
    domain, rail = (_whole(attributes.get(key), key, here, 0, MOST_NODES) for key in ("domain", "rail"))
    return Node(name=name, role=role, domain=domain, rail=rail, place=place)


def _link(
    ends: tuple[str, str],
    attributes: Attributes,
    place: str,
    where: str,
    *,
    directed: bool,
    capacity_Bps: float | None,
) -> Cable:
    here = f"{where}: {place} ({ends[0]} - {ends[1]})"
    latency = attributes.get("latency_s", attributes.get("latency", 0.0))
    return Cable(
        source=ends[0],
        target=ends[1],
        capacity_Bps=_capacity(attributes, capacity_Bps, here),
        latency_s=units.parse_seconds(_quantity(latency, "latency", here), f"{here}: latency"),
        cables=_whole(attributes.get("cables"), "cables", here, 1, MOST_CABLES) or 1,
        tier=_whole(attributes.get("tier"), "tier", here, 0, 64),
        up=_flag(attributes.get("up", True), "up", here),
        both=not directed,
        place=place,
    )


def _capacity(attributes: Attributes, default: float | None, where: str) -> float:
    for key in _SPEEDS:
        value = attributes.get(key)
        if value is None or value == "":
            continue
        if key == "capacity_Bps":
            return finite(value, key, where)
        return units.parse_bandwidth(_quantity(value, key, where), f"{where}: {key}")
    if default is None:
        raise BadInput("has no capacity", where=where, remedy='give capacity = "400 Gb/s" or capacity_Bps')
    return default


def _quantity(value: object, name: str, where: str) -> str | float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadInput(f"{name} is not a quantity", where=where, remedy="write a number with its unit")
    return value


def _whole(value: object, name: str, where: str, least: int, most: int) -> int | None:
    if value is None or value == "":
        return None
    number = finite(value, name, where)
    if number != int(number) or not least <= number <= most:
        raise BadInput(f"{name} is {number:g}", where=where, remedy=f"give a whole number, {least} to {most}")
    return int(number)


def _flag(value: object, name: str, where: str) -> bool:
    words = {"true": True, "1": True, "false": False, "0": False}
    found = value if isinstance(value, bool) else words.get(str(value)[:8].lower())
    if found is None:
        raise BadInput(f"{name} is {str(value)[:40]!r}", where=where, remedy="give true or false")
    return found
