"""InfiniBand fabrics from the text that ``ibnetdiscover`` prints.

Every channel adapter is an accelerator (GPU clusters have one adapter per accelerator), every switch and
router a switch; each cable is a separate link.  Adapters whose descriptions begin with the same word
share a host, which is their scale-up domain.  Where that word is a vendor's default and no host's name, a card
(adapters with one system image GUID) is a separate host.  Aggregation nodes (in-switch reduction) are left out.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from weft.errors import BadInput, InDoubt
from weft.fabric.assemble import Cable, networked
from weft.fabric.spec import Fabric
from weft.fabric.wiring import LATENCY_S, PortCable, Wiring, is_any, natural, wiring_of
from weft.interop.cabling import LANE_Gbps

LONGEST_LINE = 4000
_NODE = re.compile(r'(Switch|Ca|Rt)\s*\d{1,5}\s+"([SHR]-[0-9a-fA-F]{1,16})"(?:\s*#\s*"([^"]{0,200})")?')
_PORT = re.compile(
    r'\[(\d{1,5})\](?:\[[^\]]{0,9}\])?(?:\(([^)]{0,40})\))?\s*"([SHR]-[0-9a-fA-F]{1,16})"\[(\d{1,5})\]'
    r"(?:\[[^\]]{0,9}\])?(?:\(([^)]{0,40})\))?"
)
_PORT_ZERO = re.compile(r"switchguid=0x[0-9a-fA-F]{1,16}\(([0-9a-fA-F]{1,16})\)")
_LID = re.compile(r"\blid\s+(\d{1,5})")
_OWN_LID = re.compile(r"\s*lid\s+(\d{1,5})\s+lmc\s+(\d)")
_OTHER_LID = re.compile(r'.*"\s*lid\s+(\d{1,5})')
_IMAGE = re.compile(r"sysimgguid=0x([0-9a-fA-F]{1,16})")
NO_HOST = re.compile(
    r"MT\d{4,6}|(?:ConnectX|InfiniHost|Infinipath)\S*|Mellanox|NVIDIA|QLogic|Voltaire|HCA-\d+"
    r"|(?:mlx[45]|mthca|hfi1|qib)_?\d+|localhost(?:\.localdomain)?|\(none\)|",
    re.IGNORECASE,
)
"""First words of descriptions that drivers and firmware give where nobody has named the host."""
_RATE = re.compile(r"\b(\d{1,2})x([A-Z]{3}\d{0,2})\b")

_SWITCH = re.compile(r"MF0;([^:;]{1,80}):[^/]{1,40}/((?:[A-Z]\d{1,3}/)*[A-Z]\d{1,3})( [SR]-[0-9a-f]{1,16})?")
_ADAPTER = re.compile(r"(\S{1,90})\s+((?:mlx\d_|HCA-|ibp|mlx|hfi1_|ib)\S{0,30})")


@dataclass(slots=True)
class DiscoveredDevice:
    """A device of the text; ``image`` is the GUID of its card, ``lid`` that of port 0, whose GUID is ``guid``."""

    kind: str
    line: int
    description: str
    guid: str
    image: str
    lid: int
    ports: dict[int, DiscoveredPort] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class DiscoveredPort:
    other: str
    other_port: int
    rate_Bps: float
    line: int
    guid: str
    other_guid: str
    lid: int
    lmc: int
    other_lid: int


class Discovered:
    """The text: all its devices with their names, and those that are kept.

    Aggregation nodes and adapters that match a pattern by description or full name are not.
    """

    def __init__(self, text: str, where: str, exclude: Sequence[str] = ()) -> None:
        self.where, self.devices = where, _parsed(text, where)
        times = Counter(device.description for device in self.devices.values())
        aggregates = {guid for guid, d in self.devices.items() if "Aggregation Node" in d.description}
        self.names = {
            guid: d.description
            if d.description and times[d.description] == 1 and guid not in aggregates
            else f"{d.description} {guid}".strip()
            for guid, d in self.devices.items()
        }
        self.kept = {
            guid: d
            for guid, d in self.devices.items()
            if guid not in aggregates
            and not (d.kind == "Ca" and any(is_any(n, exclude) for n in (d.description, self.names[guid])))
        }
        adapters = [guid for guid, d in self.kept.items() if d.kind == "Ca"]
        self.adapters = sorted(adapters, key=lambda guid: natural(self.names[guid]))

    def hosts(self, mapped: Mapping[int, str]) -> dict[str, str]:
        """The host of each adapter: that of the map, else the one that it names, else its card."""
        used, adapters = self.kept, self.adapters
        known = {guid: mapped[int(guid[2:], 16)] for guid in adapters if int(guid[2:], 16) in mapped}
        if mapped and not known:
            problem = f"none of the {len(mapped):,} GUIDs of the host map is one of its adapters"
            raise BadInput(problem, where=self.where, remedy="give the GUIDs behind caguid=")
        named = {guid: used[guid].description.split(" ")[0] for guid in adapters}
        bare = [guid for guid in adapters if guid not in known and NO_HOST.fullmatch(named[guid])]
        cards = {guid: f"card {used[guid].image or guid[2:]}" for guid in bare}
        if bare:
            example = used[bare[0]].description[:60]
            problem = f"{len(bare):,} of {len(adapters):,} adapters name no host, as {example!r}"
            reason = f"each of their {len(set(cards.values())):,} cards counts as a separate host"
            remedy = 'give --host-map FILE (lines 0xGUID "host"), or --exclude PATTERN for those of no accelerator'
            warnings.warn(f"{self.where}: {problem}: {reason} -- {remedy}", InDoubt, stacklevel=3)
        return named | cards | known

    def cables(self, among: Mapping[str, DiscoveredDevice]) -> Iterator[tuple[str, int, DiscoveredPort, float]]:
        """Each cable between some devices once: device, number and port of the end listed first, rate of the other."""
        done: set[tuple[str, int]] = set()
        for guid, device in among.items():
            for number, port in device.ports.items():
                place = f"{self.where}: line {port.line}"
                if port.other not in self.devices:
                    raise BadInput(f"leads to {port.other}, which is not listed", where=place, remedy="discover again")
                if port.other not in among or (guid, number) in done:
                    continue
                back = among[port.other].ports.get(port.other_port)
                if back is not None and (back.other, back.other_port) != (guid, number):
                    problem = f"{port.other}[{port.other_port}] leads elsewhere"
                    raise BadInput(problem, where=place, remedy="discover again")
                done |= {(guid, number), (port.other, port.other_port)}
                yield guid, number, port, back.rate_Bps if back else port.rate_Bps


def read(
    text: str,
    *,
    where: str = "ibnetdiscover",
    scale_up_Bps: float | None = None,
    host_map: Mapping[int, str] | None = None,
    exclude: Sequence[str] = (),
) -> Fabric:
    """The fabric that ``ibnetdiscover`` found; warns (``InDoubt``) of adapters that name no host.

    Args:
        scale_up_Bps: see ``networked``.
        host_map: hosts by the GUIDs of their adapters (``read_host_map``); adapters beside it are of the host that
            they name.
        exclude: patterns of names of adapters that are not accelerators', as those of storage.
    """
    result = Discovered(text, where, exclude)
    names, used, adapters = result.names, result.kept, result.adapters
    if not adapters:
        problem = "has no adapter" + " left" * bool(exclude)
        raise BadInput(problem, where=where, remedy="discover again, or exclude less")
    hosts = result.hosts(host_map or {})
    cables = [
        Cable(
            source=names[guid],
            target=names[port.other],
            capacity_Bps=min(port.rate_Bps, rate_back),
            latency_s=LATENCY_S,
            place=f"line {port.line}",
        )
        for guid, _, port, rate_back in result.cables(used)
    ]
    if not cables:
        remedy = "run ibnetdiscover on a host whose port is active"
        raise BadInput(f"has no link, and {len(used):,} of its nodes", where=where, remedy=remedy)
    return networked(
        "InfiniBand fabric",
        [(names[guid], hosts[guid], f"line {used[guid].line}") for guid in adapters],
        [(names[guid], f"line {device.line}") for guid, device in used.items() if device.kind != "Ca"],
        cables,
        where=where,
        scale_up_Bps=scale_up_Bps,
    )


def read_wiring(
    text: str, *, where: str = "ibnetdiscover", host_map: Mapping[int, str] | None = None, exclude: Sequence[str] = ()
) -> Wiring:
    """The cables that it found: adapters as ports of their hosts, ports of switches by number."""
    result = Discovered(text, where, exclude)
    hosts = result.hosts(host_map or {})

    def end(guid: str, number: int) -> tuple[str, str]:
        if guid not in hosts:
            return infiniband_end(result.names[guid], str(number))
        adapter = result.names[guid].partition(" ")[2] or result.names[guid]
        return hosts[guid], adapter if number == 1 else f"{adapter}/{number}"

    cables = []
    for guid, number, port, rate_back in result.cables(result.kept):
        slow, fast = sorted((port.rate_Bps, rate_back))
        (device, near_end), (far_end, two) = end(guid, number), end(port.other, port.other_port)
        cables.append(
            PortCable(
                device=device,
                port=near_end,
                other=far_end,
                other_port=two,
                capacity_Bps=slow,
                other_Bps=fast if slow < fast else None,
                place=f"line {port.line}",
            )
        )
    roles = {end(guid, 1)[0]: guid in hosts for guid in result.kept}
    return wiring_of("InfiniBand fabric", cables, told=roles, hosts=(), where=where)


def infiniband_end(description: str, port: str) -> tuple[str, str]:
    """Device and port, of a port of an InfiniBand device by its description.

    "MF0;leaf1:MQM8700/U1" is the switch leaf1 (a chip L02/U1 of a director is part of its port's name), "node7 mlx5_2"
    the port mlx5_2 of the host node7; other descriptions are names.

    >>> infiniband_end("node7 mlx5_2", "1")
    ('node7', 'mlx5_2')
    """
    if match := _SWITCH.fullmatch(description):
        return f"{match[1]}{match[3] or ''}", port if match[2] == "U1" else f"{match[2]}/{port}"
    if match := _ADAPTER.fullmatch(description):
        return match[1], match[2] if port == "1" else f"{match[2]}/{port}"
    return description, port


def _parsed(text: str, where: str) -> dict[str, DiscoveredDevice]:
    devices: dict[str, DiscoveredDevice] = {}
    current: DiscoveredDevice | None = None
    port_zero = image = ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line, place = raw.strip()[:LONGEST_LINE], f"{where}: line {number}"
        if match := _NODE.match(line):
            if match[2] in devices:
                raise BadInput(f"{match[2]} is given twice", where=place, remedy="give one run's output")
            lid = _LID.search(line, match.end())
            name = " ".join("".join(c if c.isprintable() else " " for c in match[3] or "").split())
            current = DiscoveredDevice(match[1], number, name, port_zero, image, int(lid[1]) if lid else 0)
            devices[match[2]], port_zero, image = current, "", ""
        elif match := _PORT_ZERO.match(line):
            port_zero = match[1]
        elif match := _IMAGE.match(line):
            image = match[1]
        elif line.startswith("["):
            port = _PORT.match(line)
            if current is None or port is None:
                problem = "is not a port of a device" if current else "has a port before any device"
                raise BadInput(f"{line[:60]!r} {problem}", where=place, remedy="give ibnetdiscover's output")
            if int(port[1]) in current.ports:
                raise BadInput(f"port {int(port[1])} is given twice", where=place)
            comment = line.partition("#")[2]
            own_lid, far_lid = _OWN_LID.match(comment), _OTHER_LID.match(comment)
            current.ports[int(port[1])] = DiscoveredPort(
                other=port[3],
                other_port=int(port[4]),
                rate_Bps=_rate(line, place),
                line=number,
                guid=port[2] or "",
                other_guid=port[5] or "",
                lid=int(own_lid[1]) if own_lid else 0,
                lmc=int(own_lid[2]) if own_lid else 0,
                other_lid=int(far_lid[1]) if far_lid else 0,
            )
    if not devices:
        raise BadInput("holds no switch and no adapter", where=where, remedy="give ibnetdiscover's output")
    return devices


def _rate(line: str, place: str) -> float:
    result = _RATE.findall(line.rpartition('"')[2]) or _RATE.findall(line)
    if not result or result[-1][1] not in LANE_Gbps:
        known = ", ".join(LANE_Gbps)
        raise BadInput(
            f"{line[-30:]!r} ends without width and speed", where=place, remedy=f"expected like 4xNDR; known: {known}"
        )
    lanes, speed = result[-1]
    if int(lanes) < 1:
        raise BadInput(f"{lanes}x has no lanes", where=place)
    return int(lanes) * LANE_Gbps[speed] * 1e9 / 8
