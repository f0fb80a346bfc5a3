"""Cables from port to port of named devices, as discovery, inventories and cabling plans tell them.

Every port of a host that a cable joins is an accelerator (one NIC each), and a host is their scale-up domain:
a host with one cable keeps its name, others give "host/port".  Switches have roles by their hops from the
accelerators.  Every cable is a link.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np

from weft.errors import BadInput
from weft.fabric.assemble import Cable, networked
from weft.fabric.spec import SCALE_UP, Fabric

LATENCY_S = 0.6e-6
_HOST = re.compile("accelerator|[gntx]pu|hosts?|servers?|srv|compute|nodes?|workers?|[dh]gx")
_SWITCH = re.compile("leaf|(?:super)?spine|core|tor|rail|agg|aggregation|switch(?:es)?|sw|router|exit|border|edge")
_OUT_OF_BAND = re.compile("oob|mgmt|bmc|ipmi|console|pdu")
"""Words of names and roles that say what a device is; those out of band are none of the fabric's."""
_GENERATED = re.compile(r"accelerator-\d+")


class DevicePort(NamedTuple):
    """A device and its port; the port is "" where nothing names it."""

    device: str
    port: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PortCable:
    """A cable from port to port.

    ``capacity_Bps`` is per direction (the slower end's), None where nothing tells it; ``other_Bps`` is what the
    faster end tells, where the two differ.  ``one_way``: only one of two ends that could hear the other does.
    ``up`` is False for a cable that carries nothing.
    """

    device: str
    port: str
    other: str
    other_port: str
    capacity_Bps: float | None
    place: str
    other_Bps: float | None = None
    one_way: bool = False
    up: bool = True

    @property
    def ends(self) -> tuple[DevicePort, DevicePort]:
        return DevicePort(self.device, self.port), DevicePort(self.other, self.other_port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The cables of a network, and which of its devices are hosts.

    ``unknown`` names a device of which nothing tells whether it is a host; "" where there is none.
    """

    name: str
    cables: tuple[PortCable, ...]
    hosts: frozenset[str]
    unknown: str = ""

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(device for cable in self.cables for device in (cable.device, cable.other)))


def wiring_of(
    name: str, cables: Sequence[PortCable], *, told: Mapping[str, bool], hosts: Sequence[str], where: str
) -> Wiring:
    """The wiring of some cables, with a port for one cable each; without those out of band and inside a chassis.

    Args:
        told: whether a device is a host, of those that the source tells; words of the name decide for others.
        hosts: patterns of names of hosts; with them, all other devices are switches.
    """
    names = dict.fromkeys(name for cable in cables for name in (cable.device, cable.other))
    out = {name for name in names if _has_word(name, _OUT_OF_BAND)}
    cables = [c for c in cables if c.device not in out and c.other not in out and c.device != c.other]
    if not cables:
        raise BadInput("holds no cable", where=where, remedy="give cables between ports of devices")
    used: dict[DevicePort, int] = {}
    for number, cable in enumerate(cables):
        for end in cable.ends:
            other = used.setdefault(end, number) if end[1] else number
            if other != number:
                problem = f"{end[0]} {end[1]} has two cables ({cables[other].place} and {cable.place})"
                raise BadInput(problem, where=where, remedy="remove the one that is gone")
    result, unknown = set(), ""
    for device in dict.fromkeys(end[0] for cable in cables for end in cable.ends):
        is_host = is_any(device, hosts) if hosts else told.get(device, host_by_name(device))
        if is_host is None:
            unknown = unknown or device
        elif is_host:
            result.add(device)
    return Wiring(name=name, cables=tuple(cables), hosts=frozenset(result), unknown=unknown)


def host_by_name(text: str) -> bool | None:
    """Whether words of a name or role ("leaf-3", "dgx04", "GPU server") say host or switch; None if neither.

    >>> host_by_name("dgx-04"), host_by_name("rack2-leaf1"), host_by_name("x17")
    (True, False, None)
    """
    hosts, switches = (_has_word(text, pattern) for pattern in (_HOST, _SWITCH))
    return None if hosts == switches else hosts


def _has_word(text: str, words: re.Pattern[str]) -> bool:
    return any(words.fullmatch(word) for word in re.findall("[a-z]+", text.lower()))


def fabric_of(
    wiring: Wiring, *, where: str, capacity_Bps: float | None = None, scale_up_Bps: float | None = None
) -> Fabric:
    """The fabric of a wiring.

    Args:
        capacity_Bps: of cables that tell none, bytes/s per direction.
        scale_up_Bps: see ``networked``.
    """
    _check(wiring, capacity_Bps, where)
    cables, hosts = list(_numbered([cable for cable in wiring.cables if cable.up])), wiring.hosts
    place = {end: cable.place for cable in cables for end in cable.ends}
    ports = sorted((end for end in place if end.device in hosts), key=lambda end: (natural(end[0]), natural(end[1])))
    times = Counter(device for device, _ in ports)
    names = {end: end[0] if times[end[0]] == 1 else f"{end[0]}/{end[1]}" for end in ports}
    switches = {end.device: at for end, at in place.items() if end.device not in hosts}
    links = [
        Cable(
            source=names.get(cable.ends[0], cable.device),
            target=names.get(cable.ends[1], cable.other),
            capacity_Bps=cable.capacity_Bps or capacity_Bps or 0.0,
            latency_s=LATENCY_S,
            place=cable.place,
        )
        for cable in cables
    ]
    return networked(
        wiring.name,
        [(names[end], end.device, place[end]) for end in ports],
        sorted(switches.items(), key=lambda item: natural(item[0])),
        links,
        where=where,
        scale_up_Bps=scale_up_Bps,
    )


def ends_of_accelerators(fabric: Fabric) -> list[DevicePort]:
    """Host and port of every accelerator: of a name "host/port", else nodeI and nicR of a generator's."""
    width = len(str(int(fabric.domain.max())))
    result = []
    for i, name in enumerate(fabric.names[: fabric.accelerators]):
        host, slash, port = name.rpartition("/")
        if slash and host and port:
            result.append(DevicePort(host, port))
        elif _GENERATED.fullmatch(name):
            result.append(DevicePort(f"node{int(fabric.domain[i]):0{width}}", f"nic{int(fabric.rail[i])}"))
        else:
            result.append(DevicePort(name, ""))
    return result


def wiring_of_fabric(fabric: Fabric, *, ports: bool = False) -> Wiring:
    """Every cable of the scale-out links of a fabric, whose switches have no names of ports.

    Args:
        ports: number them "swp1", "swp2", ... in the order of the links; those of hosts "eth1", ... where they
            have no name.
    """
    hosts = ends_of_accelerators(fabric)
    ends = [*hosts, *(DevicePort(name, "") for name in fabric.names[fabric.accelerators :])]
    known, used = set(hosts), Counter[str]()

    def end(node: int) -> DevicePort:
        device, port = ends[node]
        if port or not ports:
            return DevicePort(device, port)
        used[device] += 1
        return DevicePort(device, f"{'eth' if ends[node] in known else 'swp'}{used[device]}")

    cables = []
    for a, b, forth, back in _both_ways(fabric):
        speeds = sorted(speed for speed, _ in (forth, back) if speed)
        (device, port), (peer, other_port) = end(a), end(b)
        cables.append(
            PortCable(
                device=device,
                port=port,
                other=peer,
                other_port=other_port,
                capacity_Bps=speeds[0],
                other_Bps=speeds[-1] if speeds[0] < speeds[-1] else None,
                one_way=len(speeds) < 2,
                up=forth[1] and back[1],
                place=f"{fabric.names[a]} - {fabric.names[b]}",
            )
        )
    return Wiring(name=fabric.name, cables=tuple(cables), hosts=frozenset(host for host, _ in hosts))


def _both_ways(fabric: Fabric) -> Iterator[tuple[int, int, tuple[float, bool], tuple[float, bool]]]:
    """Ends of every scale-out cable; bytes/s (0.0 where it is missing) and whether it is up, per direction."""
    back = fabric.reverse
    for link in np.flatnonzero(fabric.tier != SCALE_UP).tolist():
        other, speed = int(back[link]), float(fabric.capacity_Bps[link])
        if other < 0 or other > link:
            there = (0.0, True) if other < 0 else (float(fabric.capacity_Bps[other]), bool(fabric.up[other]))
            yield int(fabric.source[link]), int(fabric.target[link]), (speed, bool(fabric.up[link])), there


def is_any(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name matches one of some patterns with * and ?."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def natural(name: str) -> list[tuple[int, int | str]]:
    """A key that sorts names as people do: node2 before node10."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [(1, int(part)) if part.isascii() and part.isdigit() else (0, part) for part in parts]


def _check(wiring: Wiring, capacity_Bps: float | None, where: str) -> None:
    if wiring.unknown:
        raise BadInput(
            f"nothing tells whether {wiring.unknown!r} is a host or a switch",
            where=where,
            remedy="name hosts by patterns (--hosts), like gpu*",
        )
    for cable in wiring.cables:
        if cable.capacity_Bps is None and capacity_Bps is None:
            raise BadInput(
                f"nothing tells the speed of {cable.device} {cable.port} - {cable.other} {cable.other_port}",
                where=f"{where}: {cable.place}",
                remedy="give capacity_Bps (--link-speed of weft fabric, whose --export json keeps it)",
            )
    if not wiring.hosts:
        raise BadInput("no device is known as a host", where=where, remedy="name hosts by patterns (hosts), like gpu*")


def _numbered(cables: Sequence[PortCable]) -> Iterator[PortCable]:
    """The cables with numbers for ports without names."""
    used: Counter[str] = Counter()
    for cable in cables:
        names = []
        for device, port in cable.ends:
            used[device] += not port
            names.append(port or str(used[device]))
        yield replace(cable, port=names[0], other_port=names[1])
