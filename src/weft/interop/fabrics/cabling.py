"""Cables between ports of devices, as discovery and inventories tell them, as a fabric.

Every port of a host that a cable joins is an accelerator (one NIC each), and a host is their scale-up domain:
a host with one cable keeps its name, others give "host/port".  Switches have roles by their hops from the
accelerators.  Equal cables between the same two switches are one link.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from weft.errors import BadInput
from weft.fabric.assemble import ACCELERATOR, SCALE_UP_SWITCH, Cable, Node, assemble, levels, role_of_level
from weft.fabric.spec import SCALE_UP, Fabric

LATENCY_S, SCALE_UP_LATENCY_S = 0.6e-6, 0.5e-6
_SPEED = re.compile(r"(\d{1,7})(?:[.p](\d))?\s*(g|gig|m)?base", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortCable:
    """A cable from port to port; ``capacity_Bps`` per direction, None where nothing tells it."""

    device: str
    port: str
    other: str
    other_port: str
    capacity_Bps: float | None
    place: str


def fabric_of_cables(
    name: str,
    cables: Sequence[PortCable],
    hosts: set[str],
    *,
    where: str,
    capacity_Bps: float | None = None,
    scale_up_Bps: float | None = None,
) -> Fabric:
    """The fabric of some cables.

    Args:
        hosts: the devices that are hosts; all others are switches.
        capacity_Bps: of cables that tell none, bytes/s per direction.
        scale_up_Bps: bytes/s per accelerator and direction inside a host; joins the accelerators of a host by
            a scale-up switch.  Without it they meet in the network only.

    Raises:
        BadInput: a cable without capacity, no host, or what ``assemble`` refuses.
    """
    _check(cables, hosts, capacity_Bps, where)
    ends = [((c.device, c.port), (c.other, c.other_port)) for c in cables]
    ports = dict.fromkeys(end for pair in ends for end in pair if end[0] in hosts)
    times = Counter(device for device, _ in ports)
    place = {end: c.place for c, pair in zip(cables, ends, strict=True) for end in pair}
    names = {end: end[0] if times[end[0]] == 1 else f"{end[0]}/{end[1]}" for end in ports}
    order = sorted(ports, key=lambda end: (_natural(end[0]), _natural(end[1])))
    domain = {host: i for i, host in enumerate(dict.fromkeys(host for host, _ in order))}
    nodes = [Node(name=names[end], role=ACCELERATOR, domain=domain[end[0]], place=place[end]) for end in order]
    joined = [(names.get(a, a[0]), names.get(b, b[0])) for a, b in ends]
    switches = sorted({end[0] for pair in ends for end in pair} - hosts, key=_natural)
    index = {each: i for i, each in enumerate([*names.values(), *switches])}
    hops = levels(range(len(names)), len(index), [(index[a], index[b]) for a, b in joined])
    where_switch = {end[0]: at for end, at in place.items()}
    nodes += [Node(name=each, role=role_of_level(hops[index[each]]), place=where_switch[each]) for each in switches]
    links = _links(cables, joined, capacity_Bps)
    if scale_up_Bps is not None:
        members = {host: [names[end] for end in order if end[0] == host] for host in domain}
        switches_up, links_up = scale_up(members, scale_up_Bps, SCALE_UP_LATENCY_S)
        nodes, links = nodes + switches_up, links + links_up
    return assemble(name, nodes, links, where=where)


def speed_Bps(text: str) -> float | None:
    """Bytes/s of a kind of Ethernet port ("400gbase-x-osfp", "100GbaseCR4 - ...", "1000BaseTFD")."""
    match = _SPEED.match(text.strip())
    if match is None:
        return None
    number = float(f"{match[1]}.{match[2] or 0}")
    return number * (1e9 if (match[3] or "").lower().startswith("g") else 1e6) / 8


def is_any(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name matches one of some patterns with * and ?."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def device_name(value: object, place: str) -> str:
    """A usable name of a device or port.

    Raises:
        BadInput: it is none.
    """
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= 100:
        raise BadInput(f"{str(value)[:40]!r} is no name", where=place, remedy="use up to 100 characters")
    return value


def _check(cables: Sequence[PortCable], hosts: set[str], capacity_Bps: float | None, where: str) -> None:
    used: dict[tuple[str, str], str] = {}
    for cable in cables:
        if cable.capacity_Bps is None and capacity_Bps is None:
            raise BadInput(
                f"nothing tells the speed of {cable.device} {cable.port} - {cable.other} {cable.other_port}",
                where=f"{where}: {cable.place}",
                remedy="give capacity_Bps for cables without one",
            )
        for end in ((cable.device, cable.port), (cable.other, cable.other_port)):
            other = used.setdefault(end, cable.place)
            if other != cable.place:
                raise BadInput(
                    f"{end[0]} {end[1]} has two cables ({other} and {cable.place})",
                    where=where,
                    remedy="remove the one that is gone",
                )
    if not hosts & {end for end, _ in used}:
        raise BadInput("no device is known as a host", where=where, remedy="name hosts by patterns (hosts), like gpu*")


def scale_up(
    hosts: Mapping[str, Sequence[str]], capacity_Bps: float, latency_s: float
) -> tuple[list[Node], list[Cable]]:
    """A scale-up switch for every host, and a link from each of its accelerators to the switch."""
    nodes, links = [], []
    for number, (host, accelerators) in enumerate(hosts.items()):
        inside = f"scale-up {number} ({host})"
        nodes.append(Node(name=inside, role=SCALE_UP_SWITCH, place="scale-up"))
        links += [
            Cable(
                source=accelerator,
                target=inside,
                capacity_Bps=capacity_Bps,
                latency_s=latency_s,
                tier=SCALE_UP,
                place="scale-up",
            )
            for accelerator in accelerators
        ]
    return nodes, links


def _links(cables: Sequence[PortCable], joined: list[tuple[str, str]], capacity_Bps: float | None) -> list[Cable]:
    """Links in order of their first cables, equal ones between the same nodes together."""
    bundles: dict[tuple[str, str, float], list[int]] = {}
    for i, (cable, (a, b)) in enumerate(zip(cables, joined, strict=True)):
        speed = cable.capacity_Bps if cable.capacity_Bps is not None else capacity_Bps or 0.0
        bundles.setdefault((min(a, b), max(a, b), speed), []).append(i)
    return [
        Cable(
            source=joined[members[0]][0],
            target=joined[members[0]][1],
            capacity_Bps=speed * len(members),
            latency_s=LATENCY_S,
            cables=len(members),
            place=cables[members[0]].place,
        )
        for (_, _, speed), members in bundles.items()
    ]


def _natural(name: str) -> list[tuple[int, int | str]]:
    parts = re.split(r"([0-9]{1,18})", name)
    return [(1, int(part)) if part.isascii() and part.isdigit() else (0, part) for part in parts]
