"""One server from the XML that NCCL dumps (``NCCL_TOPO_DUMP_FILE``), as a fabric of one scale-up domain.

NVLinks join accelerators, or all of them through one switch that stands for the server's NVSwitches.  Every
network interface is a node of role "nic" at the accelerator that is nearest over PCI (the one with the
fewest, if several are), as fast as the slowest link between the two.  PCI devices of the classes of
accelerators and adapters count as such where the file names none, as in those that clouds ship for NCCL to
complete: without NVLinks, and the adapter as fast as its PCI link.

Where some accelerator has no NVLink, the PCI tree joins them as well: nodes of roles "pci" and "cpu".
All links are of the scale-up tier: NCCL does not see the network between servers.

Bandwidths are those of NCCL (``src/graph/topo.h`` and ``topo.cc``): per NVLink by the accelerator's
generation; PCI as three quarters of the lanes' rate (0.6 for the first two generations); a network
interface's ``speed`` in Mb/s.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

from weft.errors import BadInput, Unsupported
from weft.fabric.assemble import ACCELERATOR, SCALE_UP_SWITCH, Cable, Node, assemble, finite
from weft.fabric.spec import SCALE_UP, Fabric

NVLINK_GBps = ((100, 40.1), (90, 20.6), (87, 20.0), (86, 12.0), (70, 20.0), (0, 18.0))
"""Per NVLink and direction, from the generation (sm) on."""
BETWEEN_CPUS_Bps = 16e9
DEFAULT_NET_MBPS = 10_000.0
MOST_LINKS_OF_ONE, MOST_PARTS = 1000, 1024
_SWITCH = "nvswitch"
_ACCELERATORS, _ADAPTERS = ("0x0302", "0x0300"), ("0x0207", "0x0200")
"""PCI classes: 3D and VGA controllers; InfiniBand and Ethernet controllers."""
_SPEED = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,3})?)\s*GT/s")


DEEPEST, MOST_ELEMENTS, LATENCY_S = 64, 4_000_000, 0.5e-6


@dataclass(slots=True, kw_only=True)
class Element:
    """An XML element: tag (without namespace prefix), attributes, children in order, and its line."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)


def parse_xml(text: str, *, where: str) -> Element:
    """The root element of an XML text, without document types, entities and external files."""
    parser = expat.ParserCreate()
    above = [root := Element(tag="", attributes={}, line=0)]
    count = 0

    def refuse(*_: Any) -> None:
        raise BadInput("has a document type or entities", where=where, remedy="remove <!DOCTYPE ...>")

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if len(above) > DEEPEST or count > MOST_ELEMENTS:
            problem = "nested too deeply" if len(above) > DEEPEST else "has too many elements"
            raise BadInput(problem, where=f"{where}: line {parser.CurrentLineNumber}")
        element = Element(tag=tag.rpartition(":")[2], attributes=attributes, line=parser.CurrentLineNumber)
        above[-1].children.append(element)
        above.append(element)

    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    parser.StartElementHandler, parser.EndElementHandler = start, lambda _: above.pop()
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise BadInput(f"not valid XML: {error}", where=where) from None
    except (UnicodeError, ValueError):
        raise BadInput("not valid XML: has characters that XML cannot hold", where=where) from None
    return root.children[0]


@dataclass(slots=True)
class _Server:
    """What the walk found: accelerators and NICs with the PCI path above them (inner to outer)."""

    accelerators: list[tuple[Element, str, tuple[str, ...]]] = field(default_factory=list)
    interfaces: list[tuple[Element, tuple[str, ...]]] = field(default_factory=list)
    uplinks: dict[str, tuple[str, float, int]] = field(default_factory=dict)
    """The node above each PCI node, the bytes/s to it, and the line of the file."""
    cpus: dict[str, int] = field(default_factory=dict)


def read(text: str, *, where: str = "NCCL topology") -> Fabric:
    """The server of an NCCL topology XML.

    Raises:
        Unsupported: a topology of RCCL (xgmi), or of several servers.
    """
    root = parse_xml(text, where=where)
    if root.tag != "system":
        raise BadInput(f"the root is <{root.tag[:40]}>, not <system>", where=where, remedy="give a dump of NCCL")
    server = _walk(root, where)
    if len({cpu.attributes.get("host_hash", "") for cpu in root.children if cpu.tag == "cpu"}) > 1:
        raise Unsupported("describes several servers", where=where, remedy="give the dump of one server")
    result = (len(server.accelerators), len(server.interfaces), len(server.cpus))
    if max(result) > MOST_PARTS:
        raise BadInput(f"has {max(result)} parts of a kind, more than a server", where=where)
    # Devices without a number keep the order of the file, which the sort leaves.
    server.accelerators.sort(key=lambda result: 0 if result[0].tag == "pci" else _whole(result[0], "dev", where))
    nodes = [
        Node(name=f"gpu{i}", role=ACCELERATOR, domain=0, rail=i, place=f"line {gpu.line}")
        for i, (gpu, _, _) in enumerate(server.accelerators)
    ]
    links = _nvlinks(server, where)
    joined = {end for link in links for end in (link.source, link.target)}
    if any(node.name not in joined for node in nodes) and len(nodes) > 1:
        tree_nodes, tree = _pci_tree(server)
        nodes, links = nodes + tree_nodes, links + tree
    elif _SWITCH in joined:
        nodes.append(Node(name=_SWITCH, role=SCALE_UP_SWITCH, place="nvlink"))
    net_nodes, net_links = _nets(server, where)
    nodes, links = nodes + net_nodes, links + net_links
    if _SWITCH in joined and all(node.name != _SWITCH for node in nodes):
        nodes.append(Node(name=_SWITCH, role=SCALE_UP_SWITCH, place="nvlink"))
    return assemble("NCCL topology", nodes, links, where=where)


def _walk(root: Element, where: str) -> _Server:
    server, leaves = _Server(), []
    pending: list[tuple[Element, tuple[str, ...]]] = [(child, ()) for child in reversed(root.children)]
    while pending:
        element, above = pending.pop()
        below = above
        if element.tag == "cpu":
            name = f"cpu{len(server.cpus)}"
            server.cpus[name] = element.line
            below = (name, *above)
        elif element.tag == "pci":
            name = element.attributes.get("busid", "").strip().lower()
            if not name or len(name) > 40 or not name.isprintable():
                raise BadInput("has no usable busid", where=f"{where}: line {element.line} (pci)")
            if name in server.uplinks:
                raise BadInput(f"two PCI devices have the busid {name}", where=f"{where}: line {element.line}")
            if above:
                server.uplinks[name] = (above[0], _pci_Bps(element), element.line)
            below = (name, *above)
            if not element.children:
                leaves.append((element, name, below))
        elif element.tag == "gpu":
            if any(child.tag == "xgmi" for child in element.children):
                raise Unsupported("describes xgmi links (RCCL)", where=f"{where}: line {element.line}")
            server.accelerators.append((element, above[0] if above else "", above))
            continue
        elif element.tag == "net":
            server.interfaces.append((element, above))
            continue
        pending += [(child, below) for child in reversed(element.children)]
    classes = [(leaf, leaf[0].attributes.get("class", "")) for leaf in leaves]
    server.accelerators = server.accelerators or [leaf for leaf, kind in classes if kind.startswith(_ACCELERATORS)]
    server.interfaces = server.interfaces or [
        (element, above) for (element, _, above), kind in classes if kind.startswith(_ADAPTERS)
    ]
    return server


def _pci_Bps(element: Element) -> float:
    """Bytes/s of a PCI device's link; generation 3 with 16 lanes where the dump is silent, as in NCCL."""
    match = _SPEED.match(element.attributes.get("link_speed", ""))
    width = element.attributes.get("link_width", "")
    rate = float(match[1]) if match else 0.0
    lanes = int(width) if width.isascii() and width.isdigit() and len(width) <= 3 else 0
    rate, lanes = rate or 8.0, lanes or 16
    return (0.6 if rate < 8 else 0.75) * rate * lanes / 8 * 1e9


def _whole(element: Element, name: str, where: str, default: int | None = None) -> int:
    text = element.attributes.get(name, "").strip()
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        problem = f"{name} is {text[:40]!r}, not a whole number"
        raise BadInput(problem, where=f"{where}: line {element.line} ({element.tag})")
    return int(text)


def _nvlinks(server: _Server, where: str) -> list[Cable]:
    """One link per accelerator and direction to each peer, or to the switch."""
    place_of = {bus: f"gpu{i}" for i, (_, bus, _) in enumerate(server.accelerators) if bus}
    counts: dict[tuple[str, str], tuple[int, float, int]] = {}
    for i, (gpu, _, _) in enumerate(server.accelerators):
        generation = _whole(gpu, "sm", where, default=0)
        per_link = next(rate for least, rate in NVLINK_GBps if generation >= least) * 1e9
        for nvlink in (child for child in gpu.children if child.tag == "nvlink"):
            count = _whole(nvlink, "count", where, default=1)
            if not 1 <= count <= MOST_LINKS_OF_ONE:
                raise BadInput(f"count is {count}", where=f"{where}: line {nvlink.line} (nvlink)")
            target = place_of.get(nvlink.attributes.get("target", "").strip().lower(), _SWITCH)
            if target == f"gpu{i}":
                continue  # a virtual machine does not see where its NVLinks lead
            before = counts.get((f"gpu{i}", target), (0, 0.0, 0))[0]
            counts[f"gpu{i}", target] = (before + count, per_link, nvlink.line)
    links = []
    for (source, target), (count, per_link, line) in counts.items():
        if (target, source) in counts and target < source:
            continue
        links.append(
            Cable(
                source=source,
                target=target,
                capacity_Bps=count * per_link,
                cables=count,
                latency_s=LATENCY_S,
                tier=SCALE_UP,
                place=f"line {line} (nvlink)",
            )
        )
    return links


def _pci_tree(server: _Server) -> tuple[list[Node], list[Cable]]:
    """PCI switches and processors above the accelerators; an accelerator counts as its PCI device."""
    alias = {bus: f"gpu{i}" for i, (_, bus, _) in enumerate(server.accelerators) if bus in server.uplinks}
    wanted = {name for _, _, above in server.accelerators for name in above} - set(alias)
    links = []
    nodes = [
        Node(name=name, role="pci", place=f"line {line}")
        for name, (_, _, line) in server.uplinks.items()
        if name in wanted
    ]
    cpus = [name for name in server.cpus if name in wanted]
    nodes += [Node(name=name, role="cpu", place=f"line {server.cpus[name]}") for name in cpus]
    for name, (above, rate, line) in server.uplinks.items():
        if name in wanted or name in alias:
            links.append(_inside(alias.get(name, name), above, rate, f"line {line} (pci)"))
    for i, (gpu, bus, _) in enumerate(server.accelerators):
        if bus in server.cpus:
            links.append(_inside(f"gpu{i}", bus, 12e9, f"line {gpu.line} (gpu)"))
    for i, name in enumerate(cpus):
        links += [_inside(name, cpu, BETWEEN_CPUS_Bps, name) for cpu in cpus[i + 1 :]]
    return nodes, links


def _nets(server: _Server, where: str) -> tuple[list[Node], list[Cable]]:
    """NICs, each at the accelerator with which it shares most of the way to its processor."""
    nodes, links = [], []
    used = [0] * len(server.accelerators)
    for number, (net, above) in enumerate(server.interfaces):
        shared = [len(set(above) & set(gpu_above)) for _, _, gpu_above in server.accelerators]
        if not shared:
            continue
        best = max(range(len(shared)), key=lambda i: (shared[i], -used[i], -i))
        used[best] += 1
        name = f"nic{number}"
        nodes.append(Node(name=name, role="nic", place=f"line {net.line}"))
        # As slow as the slowest PCI link from either device up to the first bridge or processor that both are below.
        accelerator_class = server.accelerators[best][2]
        apart = [name for name in above if name not in accelerator_class] + [
            name for name in accelerator_class if name not in above
        ]
        rate = min((server.uplinks[name][1] for name in apart if name in server.uplinks), default=math.inf)
        if net.tag == "net":
            speed = finite(net.attributes.get("speed") or 0, "speed", f"{where}: line {net.line} (net)")
            rate = min(rate, (speed if speed > 0 else DEFAULT_NET_MBPS) * 1e6 / 8)
        links.append(_inside(f"gpu{best}", name, rate, f"line {net.line} (net)"))
    return nodes, links


def _inside(source: str, target: str, rate: float, place: str) -> Cable:
    return Cable(source=source, target=target, capacity_Bps=rate, latency_s=LATENCY_S, tier=SCALE_UP, place=place)
