"""Ways of flows through FRR configurations, of files or of ``show running-config``.

A packet follows what the configurations pin: a policy's segment list or a static route where it begins, labels by
static label-switched paths, static routes where no label is left.  Where only BGP leads on it hashes, and that is no
way that a configuration tells.  Hosts with one link need no configuration; their addresses are then those that
exports give them.  Lines that say nothing of this are passed over.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

from weft.errors import BadInput, printable
from weft.fabric.spec import SCALE_UP, Fabric
from weft.fabric.traffic import Routes
from weft.interop.netops.addressing import addressing
from weft.interop.netops.routes_json import routes_of_links
from weft.routing.traffic import JobTraffic

BEGINS = re.compile(r"^hostname \S+", re.MULTILINE)
"""What a configuration begins with; several may stand in one text."""
MOST_LABELS = 32
_LABEL = re.compile(r"\d{1,7}")


@dataclass(slots=True)
class _Device:
    """What a configuration pins.

    ``addresses`` are those of interfaces ("lo" too) in order; ``lsps`` by label the gateway and the labels that take
    its place; ``routes`` by prefix gateways with labels; ``lists`` labels by name; ``policies`` by color and endpoint.
    """

    addresses: list[tuple[str, IPv4Interface]] = field(default_factory=list)
    lsps: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    routes: dict[IPv4Network, list[tuple[str, tuple[int, ...]]]] = field(default_factory=lambda: defaultdict(list))
    lists: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    policies: dict[tuple[int, IPv4Address], str] = field(default_factory=dict)


def read_ways(
    text: str,
    fabric: Fabric,
    traffic: JobTraffic,
    *,
    colors: Mapping[tuple[str, ...], int] | None = None,
    where: str = "FRR",
) -> Routes:
    """The ways of flows through the configurations of hosts and switches, one behind the other.

    Args:
        colors: the policy that steers a flow, by (source, destination, collective, queue pair); others take the
            static route of their destination.

    Raises:
        BadInput: a line or a name that cannot be used, or a flow that nothing pins, that is hashed or does not arrive.
    """
    walk = _Walk(_devices(text, fabric, where), fabric, where)
    names = fabric.names
    found = []
    for source, target, group, pair in zip(
        *(each.tolist() for each in (traffic.source, traffic.target, traffic.collective, traffic.queue_pair)),
        strict=True,
    ):
        key = (names[source], names[target], traffic.names[group], str(pair))
        found.append(walk.links(source, target, (colors or {}).get(key)))
    return routes_of_links(fabric, found)


def _devices(text: str, fabric: Fabric, where: str) -> dict[int, _Device]:
    """The configurations by node."""
    node = {name: number for number, name in enumerate(addressing(fabric).names)}
    node |= {name: number for number, name in enumerate(fabric.names)}
    found: dict[int, _Device] = {}
    device: _Device | None = None
    context: tuple[str, ...] = ("",)
    for number, line in enumerate(text.split("\n"), start=1):
        words, place = line.split(), f"{where}: line {number}"
        if words[:1] == ["hostname"] and len(words) == 2 and line[0] == "h":
            if words[1] not in node:
                problem = f"there is no node {printable(words[1], 60)}"
                raise BadInput(problem, where=place, remedy="give the fabric of these configurations")
            if node[words[1]] in found:
                raise BadInput(f"{words[1]} has two configurations", where=place, remedy="give one of each")
            device, context = found.setdefault(node[words[1]], _Device()), ("",)
        elif device is not None and words and words[0] not in ("!", "exit", "end"):
            try:
                context = _line(device, words, context)
            except ValueError:
                problem = f"{printable(line.strip(), 60)} cannot be read"
                raise BadInput(problem, where=place, remedy="give what FRR wrote") from None
    if not found:
        raise BadInput("holds no configuration", where=where, remedy="begin each with its hostname")
    return found


def _line(device: _Device, words: list[str], context: tuple[str, ...]) -> tuple[str, ...]:
    """Take note of a line; the interface, segment list or policy that the next lines are of.

    Raises:
        ValueError: it has the words of a known line, but no values of one.
    """
    match words:
        case ["interface", name, *_]:
            return "interface", name
        case ["ip", "address", address, *_] if context[0] == "interface":
            device.addresses.append((context[1], IPv4Interface(address)))
        case ["mpls", "lsp", label, gateway, "implicit-null" | "3" | "explicit-null"]:
            device.lsps[_label(label)] = (gateway, ())
        case ["mpls", "lsp", label, gateway, out]:
            device.lsps[_label(label)] = (gateway, (_label(out),))
        case ["ip", "route", prefix, gateway, "label", stack, *_]:
            device.routes[IPv4Network(prefix)].append((gateway, _stack(stack)))
        case ["ip", "route", prefix, gateway, *_]:
            device.routes[IPv4Network(prefix)].append((gateway, ()))
        case ["segment-list", name]:
            return "list", name
        case ["index", _, "mpls", "label", label, *_] if context[0] == "list":
            device.lists[context[1]].append(_label(label))
        case ["policy", "color", color, "endpoint", endpoint]:
            return "policy", str(_label(color)), str(IPv4Address(endpoint))
        case ["candidate-path", *_, "explicit", "segment-list", name] if context[0] == "policy":
            device.policies.setdefault((int(context[1]), IPv4Address(context[2])), name)
        case ["router" | "segment-routing" | "traffic-eng" | "vrf", *_]:
            return ("",)
    return context


def _label(text: str) -> int:
    if not _LABEL.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _stack(text: str) -> tuple[int, ...]:
    labels = text.split("/")
    if len(labels) > MOST_LABELS:
        raise ValueError(text[:60])
    return tuple(_label(one) for one in labels)


class _Walk:
    """Where configurations lead."""

    def __init__(self, devices: dict[int, _Device], fabric: Fabric, where: str) -> None:
        self.devices, self.fabric, self.where = devices, fabric, where
        self.owner: dict[IPv4Address, int] = {}
        self.own: dict[int, list[IPv4Address]] = defaultdict(list)
        for node, device in devices.items():
            for name, address in device.addresses:
                self.owner[address.ip] = node
                if name == "lo":
                    self.own[node].append(address.ip)
        plan = addressing(fabric)
        for link, node in enumerate(fabric.source.tolist()):
            if node not in devices and fabric.tier[link] > SCALE_UP:
                self.owner.setdefault(IPv4Address(plan.link_ipv4(link)), node)
                self.own[node] = [IPv4Address(plan.ipv4(node))]
        self.between: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.leaving: dict[int, list[int]] = defaultdict(list)
        for link, ends in enumerate(zip(fabric.source.tolist(), fabric.target.tolist(), strict=True)):
            if fabric.tier[link] > SCALE_UP:
                self.between[ends].append(link)
                self.leaving[ends[0]].append(link)
        self.beside = {node: self._neighbours(node) for node in devices}

    def _neighbours(self, node: int) -> dict[str, int]:
        """The links of a device by gateway address and by interface; of several to a node in order."""
        taken: dict[int, int] = defaultdict(int)
        found: dict[str, int] = {}
        for name, address in self.devices[node].addresses:
            if address.network.num_addresses > 4:
                continue
            for other in address.network:
                there = self.owner.get(other, node)
                links = self.between.get((node, there), [])
                if other != address.ip and there != node and taken[there] < len(links):
                    found[str(other)] = found[name] = links[taken[there]]
                    taken[there] += 1
        return found

    def links(self, source: int, target: int, color: int | None) -> list[int]:
        """The links of a flow."""
        ends = f"{self.fabric.names[source]} -> {self.fabric.names[target]}"
        path, node = [], source
        stack: tuple[int, ...] = ()
        if color is not None:
            stack = self._policy(source, target, color, ends)
        if source not in self.devices:
            nics = self.leaving[source]
            if len(nics) == 1 and self.fabric.up[nics[0]]:
                path, node = [*nics], int(self.fabric.target[nics[0]])
        while node != target or stack:
            device = self.devices.get(node)
            if device is None:
                raise self._refused(f"{ends} comes to {self.fabric.names[node]}, whose configuration is missing")
            if stack:
                gateway, out = device.lsps.get(stack[0], ("", ()))
                if not gateway:
                    raise self._refused(f"{ends}: {self.fabric.names[node]} does not know label {stack[0]}")
                stack = out + stack[1:]
            else:
                gateway, stack = self._route(node, target, ends)
            link = self.beside[node].get(gateway, -1)
            if link < 0 or not self.fabric.up[link]:
                raise self._refused(
                    f"{ends}: {printable(gateway, 40)} is no live neighbour of {self.fabric.names[node]}"
                )
            path.append(link)
            node = int(self.fabric.target[link])
            if len(path) > len(self.devices) + MOST_LABELS:
                raise self._refused(f"{ends} goes round in circles")
        return path

    def _policy(self, source: int, target: int, color: int, ends: str) -> tuple[int, ...]:
        device = self.devices.get(source, _Device())
        for address in self._addresses(target):
            if name := device.policies.get((color, address)):
                return tuple(device.lists.get(name, ()))
        raise self._refused(f"{ends} has no policy of color {color}")

    def _addresses(self, node: int) -> list[IPv4Address]:
        """What others send to: the loopback, or else every address."""
        device = self.devices.get(node, _Device())
        return self.own[node] or [address.ip for _, address in device.addresses]

    def _route(self, node: int, target: int, ends: str) -> tuple[str, tuple[int, ...]]:
        """The gateway and labels of the longest static prefix."""
        device = self.devices[node]
        addresses = self._addresses(target)
        fits = [prefix for prefix in device.routes if any(address in prefix for address in addresses)]
        if not fits:
            direct = [gateway for gateway, link in self.beside[node].items() if self.fabric.target[link] == target]
            if direct:
                return direct[0], ()
            raise self._refused(f"{ends}: nothing static leads on from {self.fabric.names[node]}; BGP hashes")
        ways = device.routes[max(fits, key=lambda prefix: prefix.prefixlen)]
        if len(ways) > 1:
            raise self._refused(f"{ends}: {self.fabric.names[node]} has {len(ways)} ways to it, and hashes")
        return ways[0]

    def _refused(self, problem: str) -> BadInput:
        return BadInput(problem, where=self.where, remedy="measure its path, and give a CSV of paths")
