"""InfiniBand fabrics from the text that ``ibnetdiscover`` prints.

Every channel adapter is an accelerator (GPU clusters have one adapter per accelerator), every switch and
router a switch; each cable is a link of its own.  Adapters whose descriptions begin with the same word
share a host, which is their scale-up domain.  Aggregation nodes (in-switch reduction) are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from weft.errors import BadInput
from weft.fabric.assemble import ACCELERATOR, SCALE_UP_SWITCH, Cable, Node, assemble, levels, role_of_level
from weft.fabric.spec import SCALE_UP, Fabric

LANE_Gbps = {
    "SDR": 2.0,
    "DDR": 4.0,
    "QDR": 8.0,
    "FDR10": 10.0,
    "FDR": 13.64,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
"""Data rate of a lane: after 8b/10b coding up to QDR, after 64b/66b from FDR10 on, nominal from EDR on."""
LONGEST_LINE = 4000
_NODE = re.compile(r'(Switch|Ca|Rt)\s+(\d{1,5})\s+"([SHR]-[0-9a-fA-F]{1,16})"(?:\s*#\s*"([^"]{0,200})")?')
_PORT = re.compile(
    r'\[(\d{1,5})\](?:\[[^\]]{0,9}\])?(?:\([^)]{0,40}\))?\s+"([SHR]-[0-9a-fA-F]{1,16})"\[(\d{1,5})\]'
)
_RATE = re.compile(r"\b(\d{1,2})x([A-Z]{3}\d{0,2})\b")


@dataclass(slots=True)
class _Device:
    kind: str
    line: int
    description: str
    ports: dict[int, tuple[str, int, float, int]] = field(default_factory=dict)
    """Of each port: the device and port at the other end, bytes/s, and the line."""


def read(
    text: str,
    *,
    where: str = "ibnetdiscover",
    latency_s: float = 0.6e-6,
    scale_up_Bps: float | None = None,
    scale_up_latency_s: float = 0.5e-6,
) -> Fabric:
    """The fabric that ``ibnetdiscover`` found.

    Args:
        latency_s: of every cable with the hop behind it.
        scale_up_Bps: bytes/s per accelerator and direction inside a host; joins the adapters of a host by a
            scale-up switch.  Without it they meet in the network only.

    Raises:
        BadInput: no output of ``ibnetdiscover``, a link without speed or other end, or parts without a path.
    """
    devices = _devices(text, where)
    kept = {guid: d for guid, d in devices.items() if "Aggregation Node" not in d.description}
    names = _names(kept)
    adapters = sorted((g for g, d in kept.items() if d.kind == "Ca"), key=lambda g: _natural(names[g]))
    hosts = {guid: kept[guid].description.split(" ")[0] or guid for guid in adapters}
    cables = _cables(kept, devices, names, latency_s, where)
    numbers = {host: i for i, host in enumerate(dict.fromkeys(hosts.values()))}
    nodes = [
        Node(
            name=names[g], role=ACCELERATOR, domain=numbers[hosts[g]], place=f"line {kept[g].line}", rail=None
        )
        for g in adapters
    ]
    nodes += _switches(kept, names, adapters, cables)
    if scale_up_Bps is not None:
        for host, number in numbers.items():
            inside = f"scale-up {number} ({host})"
            nodes.append(Node(name=inside, role=SCALE_UP_SWITCH, place="scale-up"))
            cables += [
                Cable(
                    source=names[guid],
                    target=inside,
                    capacity_Bps=scale_up_Bps,
                    latency_s=scale_up_latency_s,
                    tier=SCALE_UP,
                    place="scale-up",
                )
                for guid in adapters
                if hosts[guid] == host
            ]
    return assemble("InfiniBand fabric", nodes, cables, where=where)


def _devices(text: str, where: str) -> dict[str, _Device]:
    devices: dict[str, _Device] = {}
    current: _Device | None = None
    for number, raw in enumerate(text.splitlines(), start=1):
        line, place = raw.strip()[:LONGEST_LINE], f"{where}: line {number}"
        if match := _NODE.match(line):
            if match[3] in devices:
                raise BadInput(f"{match[3]} is given twice", where=place, remedy="give one run's output")
            current = devices[match[3]] = _Device(match[1], number, _clean(match[4] or ""))
        elif line.startswith("["):
            port = _PORT.match(line)
            if current is None or port is None:
                problem = "is no port of a device" if current else "has a port before any device"
                raise BadInput(f"{line[:60]!r} {problem}", where=place, remedy="give ibnetdiscover's output")
            if int(port[1]) in current.ports:
                raise BadInput(f"port {int(port[1])} is given twice", where=place)
            current.ports[int(port[1])] = (port[2], int(port[3]), _rate(line, place), number)
    if not devices:
        raise BadInput("holds no switch and no adapter", where=where, remedy="give ibnetdiscover's output")
    return devices


def _rate(line: str, place: str) -> float:
    found = _RATE.findall(line.rpartition('"')[2]) or _RATE.findall(line)
    if not found or found[-1][1] not in LANE_Gbps:
        known = ", ".join(LANE_Gbps)
        raise BadInput(
            f"{line[-30:]!r} ends without width and speed",
            where=place,
            remedy=f"expected like 4xNDR; known: {known}",
        )
    lanes, speed = found[-1]
    if int(lanes) < 1:
        raise BadInput(f"{lanes}x has no lanes", where=place)
    return int(lanes) * LANE_Gbps[speed] * 1e9 / 8


def _names(devices: dict[str, _Device]) -> dict[str, str]:
    """Descriptions, with the GUID behind where several devices share one."""
    times = Counter(device.description for device in devices.values())
    return {
        guid: device.description
        if device.description and times[device.description] == 1
        else f"{device.description} {guid}".strip()
        for guid, device in devices.items()
    }


def _clean(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _natural(name: str) -> list[tuple[int, int | str]]:
    parts = re.split(r"([0-9]{1,18})", name)
    return [(1, int(part)) if part.isascii() and part.isdigit() else (0, part) for part in parts]


def _cables(
    kept: dict[str, _Device], every: dict[str, _Device], names: dict[str, str], latency_s: float, where: str
) -> list[Cable]:
    """Each cable once, from the end that is listed first; at the slower of the two rates given."""
    done: set[tuple[str, int]] = set()
    cables = []
    for guid, device in kept.items():
        for port, (other, other_port, rate, line) in device.ports.items():
            place = f"{where}: line {line}"
            if other not in every:
                raise BadInput(f"leads to {other}, which is not listed", where=place, remedy="discover again")
            if other not in kept or (guid, port) in done:
                continue
            back = kept[other].ports.get(other_port)
            if back is not None and back[:2] != (guid, port):
                raise BadInput(f"{other}[{other_port}] leads elsewhere", where=place, remedy="discover again")
            done |= {(guid, port), (other, other_port)}
            cables.append(
                Cable(
                    source=names[guid],
                    target=names[other],
                    capacity_Bps=min(rate, back[2]) if back else rate,
                    latency_s=latency_s,
                    place=f"line {line}",
                )
            )
    return cables


def _switches(
    devices: dict[str, _Device], names: dict[str, str], adapters: list[str], cables: list[Cable]
) -> list[Node]:
    index = {names[guid]: i for i, guid in enumerate(devices)}
    starts = [index[names[guid]] for guid in adapters]
    pairs = [(index[cable.source], index[cable.target]) for cable in cables]
    hops = levels(starts, len(index), pairs)
    return [
        Node(name=names[guid], role=role_of_level(hops[index[names[guid]]]), place=f"line {device.line}")
        for guid, device in devices.items()
        if device.kind != "Ca"
    ]
