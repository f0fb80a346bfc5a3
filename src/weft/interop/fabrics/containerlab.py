"""Containerlab topologies (``*.clab.yml``): read as a fabric, and written as a lab of FRR nodes.

Read: a node is an accelerator by the first rule that applies: its label ``weft-role`` says so; its ``group``
is a word for hosts (host, server, gpu, ...); its ``kind`` is linux and its image no router's.  Other nodes
are switches, with the role that the label gives or their hops from the accelerators tell.  A link has the
speed of its label ``weft-capacity-Bps`` (bytes/s), or of its label ``capacity``, ``bandwidth`` or ``speed``
with a unit.  Links to the machine itself or a management network are left out.

Written: every node and link with all its attributes as labels; such a file reads back as an equal fabric.  It is what
containerlab's own JSON schema (``schemas/clab.schema.json``) allows: names without spaces, links of type veth, since
only those may have labels.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator

from weft import units
from weft.errors import BadInput, Unsupported
from weft.fabric.assemble import (
    ACCELERATOR,
    MOST_CABLES,
    MOST_NODES,
    Cable,
    Node,
    assemble,
    finite,
    levels,
    role_of_level,
)
from weft.fabric.spec import SCALE_UP, Fabric
from weft.fabric.traffic import Routes
from weft.interop.netops import frr
from weft.interop.netops.addressing import addressing
from weft.interop.text.yaml import Value, parse_yaml
from weft.routing.traffic import JobTraffic

IMAGE = "frrouting/frr:latest"
ROUTERS = ("frr", "sonic", "vyos", "bird", "gobgp", "cumulus", "openbgpd", "quagga", "holo", "rare")
LONGEST_INTERFACE = 15
OUTSIDE = frozenset({"host", "mgmt-net", "macvlan", "dummy"})
_REMEDY = "write lists and tables out, without anchors, aliases and tags"
_SPEEDS = ("capacity", "bandwidth", "speed")
_DAEMONS = ("bgpd", "staticd", "pathd")
Table = dict[str, Value]


def read(text: str, *, where: str = "containerlab", capacity_Bps: float | None = None) -> Fabric:
    """The fabric of a topology file.

    Args:
        capacity_Bps: of links without one, bytes/s per direction.

    Raises:
        BadInput: not YAML or with anchors, no topology, an endpoint that is no node or used twice, a link
            without capacity, or what ``assemble`` refuses.
    """
    top = _table(parse_yaml(text, where=where, remedy=_REMEDY), "the file", where)
    topology = _table(top.get("topology", ""), "topology", where)
    rows = _table(topology.get("nodes", ""), "topology.nodes", where)
    nodes = {name: _table(row, f"nodes.{name}", where) if row else {} for name, row in rows.items()}
    cables = list(_cables(topology, nodes, where, capacity_Bps))
    hosts = {name for name, row in nodes.items() if _is_host(row, topology)}
    index = {name: i for i, name in enumerate(nodes)}
    pairs = [(index[c.source], index[c.target]) for c in cables]
    hops = levels([index[name] for name in hosts], len(index), pairs)
    found, real = [], {}
    for name, row in nodes.items():
        labels = _labels(row, f"{where}: nodes.{name}")
        role = ACCELERATOR if name in hosts else labels.get("weft-role") or role_of_level(hops[index[name]])
        real[name] = _name(labels.get("weft-name", name), f"{where}: nodes.{name}")
        place = f"{where}: nodes.{name}"
        domain, rail = (_whole(labels, f"weft-{key}", place, 0, MOST_NODES) for key in ("domain", "rail"))
        found.append(Node(name=real[name], role=_name(role, place), place=f"nodes.{name}", domain=domain, rail=rail))
    named = [
        Cable(
            source=real[c.source],
            target=real[c.target],
            capacity_Bps=c.capacity_Bps,
            latency_s=c.latency_s,
            cables=c.cables,
            tier=c.tier,
            up=c.up,
            place=c.place,
        )
        for c in cables
    ]
    defaults = topology.get("defaults", "")
    labels = _labels(defaults, f"{where}: defaults") if isinstance(defaults, dict) else {}
    lab = labels.get("weft-fabric") or top.get("name")
    return assemble(lab if isinstance(lab, str) and lab else "containerlab", found, named, where=where)


def write(fabric: Fabric, *, image: str = IMAGE, configurations: bool = False) -> str:
    """The fabric as a lab; ``read`` gives an equal one.

    Args:
        image: of every node.
        configurations: bind frr/<node>.conf and frr/daemons into the nodes (see ``write_lab``).

    Raises:
        Unsupported: the two directions of a cable differ, or more nodes than addresses.
    """
    plan = addressing(fabric)
    lab = re.sub(r"[^a-zA-Z0-9._-]+", "-", fabric.name).lstrip("-._") or "lab"
    lines = [f"name: {_quoted(lab)}", "topology:"]
    if lab != fabric.name:
        lines += ["  defaults:", "    labels:", f"      weft-fabric: {_quoted(fabric.name)}"]
    lines.append("  nodes:")
    ports = Counter(fabric.source[fabric.tier > SCALE_UP].tolist())
    for node, name in enumerate(plan.names):
        labels = {"weft-role": fabric.roles[fabric.role[node]]}
        if name != fabric.names[node]:
            labels["weft-name"] = fabric.names[node]
        if node < fabric.accelerators:
            labels |= {"weft-domain": str(fabric.domain[node]), "weft-rail": str(fabric.rail[node])}
        lines += [f"    {name}:", "      kind: linux", f"      image: {_quoted(image)}", "      labels:"]
        lines += [f"        {key}: {_quoted(value)}" for key, value in labels.items()]
        if configurations:
            lines += _boot(name, ports[node])
    lines.append("  links:")
    for link, back in enumerate(plan.reverse):
        if link < back:
            lines += _link(fabric, plan.names, plan.interfaces, link, back)
    return "\n".join(lines) + "\n"


def write_lab(fabric: Fabric, traffic: JobTraffic, routes: Routes) -> dict[str, str]:
    """A lab whose FRR nodes follow a plan: the topology, the configurations and the list of daemons.

    Raises:
        Unsupported: as ``write`` and ``frr.write``.
        BadInput: as ``frr.write``.
    """
    files = {f"frr/{name}": text for name, text in frr.write(fabric, traffic, routes).items()}
    for name in addressing(fabric).names:
        files.setdefault(f"frr/{name}.conf", f"frr defaults datacenter\nhostname {name}\n!\nend\n")
    daemons = "".join(f"{daemon}=yes\n" for daemon in _DAEMONS) + "vtysh_enable=yes\n"
    return {"lab.clab.yml": write(fabric, configurations=True), "frr/daemons": daemons, **files}


def lint(text: str) -> tuple[str, ...]:
    """What is wrong with a topology: what ``read`` refuses, and interfaces that Linux cannot have."""
    try:
        read(text)
    except BadInput as error:
        return (str(error),)
    topology = _table(_table(parse_yaml(text, where="containerlab", remedy=_REMEDY), "", "")["topology"], "", "")
    ends = [name for row in topology["links"] for _, name in _ends(_table(row, "", ""), "")]
    return tuple(f"{name} is no name of an interface" for name in ends if len(name) > LONGEST_INTERFACE)


def _boot(name: str, ports: int) -> list[str]:
    lines = ["      binds:", f'        - "frr/{name}.conf:/etc/frr/frr.conf"']
    lines += ['        - "frr/daemons:/etc/frr/daemons"', "      exec:"]
    lines += ['        - "sysctl -w net.mpls.platform_labels=1048575"']
    names = [f"eth{i}" for i in range(1, ports + 1)]
    return lines + [f'        - "sysctl -w net.mpls.conf.{each}.input=1"' for each in names]


def _link(fabric: Fabric, names: tuple[str, ...], interfaces: tuple[str, ...], link: int, back: int) -> list[str]:
    def figures(of: int) -> list[object]:
        columns = (fabric.capacity_Bps, fabric.latency_s, fabric.cables, fabric.tier, fabric.up)
        return [column[of].item() for column in columns]

    ends = [(names[fabric.source[each]], interfaces[each]) for each in (link, back)]
    if figures(link) != figures(back):
        problem = f"the two directions of {' - '.join(map(':'.join, ends))} differ"
        raise Unsupported(problem, where="containerlab", remedy="make them equal")
    keys = ("capacity-Bps", "latency-s", "cables", "tier", "up")
    labels = zip(keys, figures(link), strict=True)
    lines = ["    - type: veth", "      endpoints:"]
    for node, interface in ends:
        lines += [f"        - node: {_quoted(node)}", f"          interface: {_quoted(interface)}"]
    lines.append("      labels:")
    return lines + [f"        weft-{key}: {_quoted(str(value).lower())}" for key, value in labels]


def _quoted(text: str) -> str:
    if '"' in text or "\\" in text or not text.isprintable():
        raise Unsupported(f"{text[:60]!r} cannot be written plainly", where="containerlab", remedy="rename it")
    return json.dumps(text, ensure_ascii=False)


def _table(value: Value, what: str, where: str) -> Table:
    if not isinstance(value, dict):
        raise BadInput(f"{what} is no table", where=where, remedy="give name, topology.nodes and links")
    return value


def _cables(topology: Table, nodes: dict[str, Table], where: str, capacity_Bps: float | None) -> Iterator[Cable]:
    rows = topology.get("links", "")
    if not isinstance(rows, list):
        raise BadInput("topology.links is no list", where=where, remedy="list links with their endpoints")
    used: dict[tuple[str, str], int] = {}
    for number, row in enumerate(rows):
        place = f"{where}: links[{number}]"
        link = _table(row, "a link", place)
        ends = _ends(link, place)
        if len(ends) < 2 or any(node in OUTSIDE and node not in nodes for node, _ in ends):
            continue
        for node, port in ends:
            if node not in nodes:
                raise BadInput(f"there is no node {node[:60]!r}", where=place, remedy="add it, or correct it")
            other = used.setdefault((node, port), number)
            if other != number:
                raise BadInput(f"{node}:{port} is used by links[{other}] already", where=place, remedy="use another")
        labels = _labels(link, place)
        yield Cable(
            source=ends[0][0],
            target=ends[1][0],
            capacity_Bps=_capacity(labels, capacity_Bps, place),
            latency_s=finite(labels.get("weft-latency-s", "0"), "weft-latency-s", place),
            cables=_whole(labels, "weft-cables", place, 1, MOST_CABLES) or 1,
            tier=_whole(labels, "weft-tier", place, 0, 64),
            up=_up(labels, place),
            place=f"links[{number}]",
        )


def _ends(link: Table, place: str) -> list[tuple[str, str]]:
    rows = link.get("endpoints", [])
    if not isinstance(rows, list) or (rows and len(rows) != 2):
        raise BadInput("endpoints are no list of two", where=place, remedy='write ["a:eth1", "b:eth1"]')
    found = []
    for row in rows:
        if isinstance(row, dict):
            node, port = row.get("node", ""), row.get("interface", "")
        else:
            node, _, port = row.partition(":") if isinstance(row, str) else ("", "", "")
        if not (isinstance(node, str) and isinstance(port, str) and node and port):
            raise BadInput("an endpoint is not node:interface", where=place, remedy='write "a:eth1"')
        found.append((node, port))
    return found


def _labels(row: Table, place: str) -> dict[str, str]:
    labels = row.get("labels", "") or {}
    if not isinstance(labels, dict):
        raise BadInput("labels are no table", where=place)
    return {key: value for key, value in labels.items() if isinstance(value, str)}


def _is_host(row: Table, topology: Table) -> bool:
    role, group = _labels(row, "labels").get("weft-role"), row.get("group", "")
    if role:
        return role == ACCELERATOR
    if isinstance(group, str) and group.lower() in ACCELERATORS:
        return True
    defaults, kinds = topology.get("defaults", ""), topology.get("kinds", "")
    kind = row.get("kind") or (defaults.get("kind") if isinstance(defaults, dict) else "")
    of_kind = kinds.get(str(kind), "") if isinstance(kinds, dict) else ""
    image = row.get("image") or (of_kind.get("image") if isinstance(of_kind, dict) else "")
    return kind == "linux" and not any(word in str(image).lower() for word in ROUTERS)


def _capacity(labels: dict[str, str], default: float | None, place: str) -> float:
    if "weft-capacity-Bps" in labels:
        return finite(labels["weft-capacity-Bps"], "weft-capacity-Bps", place)
    for key in _SPEEDS:
        if labels.get(key):
            return units.parse_bandwidth(labels[key], f"{place}: {key}")
    if default is None:
        raise BadInput(
            "has no capacity", where=place, remedy='give it labels with capacity: "400 Gb/s", or capacity_Bps'
        )
    return default


def _whole(labels: dict[str, str], key: str, place: str, low: int, high: int) -> int | None:
    if key not in labels:
        return None
    number = finite(labels[key], key, place)
    if number != int(number) or not low <= number <= high:
        raise BadInput(f"{key} is {number:g}", where=place, remedy=f"give a whole number, {low} to {high}")
    return int(number)


def _up(labels: dict[str, str], place: str) -> bool:
    word = labels.get("weft-up", "true")
    if word not in ("true", "false"):
        raise BadInput(f"weft-up is {word[:40]!r}", where=place, remedy="give true or false")
    return word == "true"


def _name(text: str | Value, place: str) -> str:
    if not isinstance(text, str) or not text.isprintable() or not 0 < len(text) <= 200:
        raise BadInput("has no usable name or role", where=place, remedy="use up to 200 printable characters")
    return text
