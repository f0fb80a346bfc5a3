"""InfiniBand fabrics from the text that ``ibnetdiscover`` prints.

Every channel adapter is an accelerator (GPU clusters have one adapter per accelerator), every switch and
router a switch; each cable is a link of its own.  Adapters whose descriptions begin with the same word
share a host, which is their scale-up domain.  Where that word is a vendor's default and no host's name, a card
(adapters with one system image GUID) is a host of its own.  Aggregation nodes (in-switch reduction) are left out.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from weft.errors import BadInput, InDoubt
from weft.fabric.assemble import ACCELERATOR, Cable, Node, assemble, levels, role_of_level
from weft.fabric.spec import Fabric
from weft.fabric.wiring import PortCable, Wiring, is_any, natural, scale_up, wiring_of
from weft.interop.fabrics.cabling import LANE_Gbps, device_name, infiniband_end
from weft.interop.netops.subnet import ADAPTER, AGGREGATION, ROUTER, SWITCH, Device, End, Subnet, Wire

LONGEST_LINE = 4000
_NODE = re.compile(r'(Switch|Ca|Rt)\s*(\d{1,5})\s+"([SHR]-[0-9a-fA-F]{1,16})"(?:\s*#\s*"([^"]{0,200})")?')
_PORT = re.compile(
    r'\[(\d{1,5})\](?:\[[^\]]{0,9}\])?(?:\(([^)]{0,40})\))?\s*"([SHR]-[0-9a-fA-F]{1,16})"\[(\d{1,5})\]'
    r"(?:\[[^\]]{0,9}\])?(?:\(([^)]{0,40})\))?"
)
_PORT_ZERO = re.compile(r"switchguid=0x[0-9a-fA-F]{1,16}\(([0-9a-fA-F]{1,16})\)")
_LID = re.compile(r"\blid\s+(\d{1,5})")
_OWN_LID = re.compile(r"\s*lid\s+(\d{1,5})\s+lmc\s+(\d)")
_OTHER_LID = re.compile(r'.*"\s*lid\s+(\d{1,5})')
_GUID = re.compile(r"[0-9a-fA-F]{1,16}")
_IMAGE = re.compile(r"sysimgguid=0x([0-9a-fA-F]{1,16})")
_MAPPED = re.compile(r'(0x[0-9a-fA-F]{1,16})\s+("?)([^"]+)\2')
NO_HOST = re.compile(
    r"MT\d{4,6}|(?:ConnectX|InfiniHost|Infinipath)\S*|Mellanox|NVIDIA|QLogic|Voltaire|HCA-\d+"
    r"|(?:mlx[45]|mthca|hfi1|qib)_?\d+|localhost(?:\.localdomain)?|\(none\)|",
    re.IGNORECASE,
)
"""First words of descriptions that drivers and firmware give where nobody has named the host."""
_KINDS = {"Switch": SWITCH, "Ca": ADAPTER, "Rt": ROUTER}
_RATE = re.compile(r"\b(\d{1,2})x([A-Z]{3}\d{0,2})\b")


@dataclass(slots=True)
class _Device:
    kind: str
    line: int
    description: str
    highest: int = 0
    """Port number."""
    image: str = ""
    """System image GUID: that of the card."""
    guid: str = ""
    lid: int = 0
    """LID of port 0, whose GUID is ``guid``."""
    ports: dict[int, _Port] = field(default_factory=dict)


@dataclass(slots=True)
class _Port:
    other: str
    other_port: int
    rate_Bps: float
    line: int
    guid: str
    other_guid: str
    lid: int
    lmc: int
    other_lid: int


def read(
    text: str,
    *,
    where: str = "ibnetdiscover",
    latency_s: float = 0.6e-6,
    scale_up_Bps: float | None = None,
    scale_up_latency_s: float = 0.5e-6,
    host_map: Mapping[int, str] | None = None,
    exclude: Sequence[str] = (),
) -> Fabric:
    """The fabric that ``ibnetdiscover`` found; warns (``InDoubt``) of adapters that name no host.

    Args:
        latency_s: of every cable with the hop behind it.
        scale_up_Bps: bytes/s per accelerator and direction inside a host; joins the adapters of a host by a
            scale-up switch.  Without it they meet in the network only.
        host_map: hosts by the GUIDs of their adapters (``read_host_map``); adapters beside it are of the host that
            they name.
        exclude: patterns of names of adapters that are no accelerator's, as those of storage.

    Raises:
        BadInput: no output of ``ibnetdiscover``, a link without speed or other end, parts without a path, no link,
            no adapter left, or a map that names none of them.
    """
    devices = _devices(text, where)
    kept = _kept(devices, exclude)
    names = _names(devices)
    adapters = sorted((g for g, d in kept.items() if d.kind == "Ca"), key=lambda g: natural(names[g]))
    if not adapters:
        raise BadInput(
            "has no adapter" + " left" * bool(exclude), where=where, remedy="discover again, or exclude less"
        )
    hosts = _hosts(kept, adapters, host_map or {}, where)
    cables = _cables(kept, devices, names, latency_s, where)
    if not cables:
        remedy = "run ibnetdiscover on a host whose port is active"
        raise BadInput(f"has no link, and {len(kept):,} of its nodes", where=where, remedy=remedy)
    numbers = {host: i for i, host in enumerate(dict.fromkeys(hosts.values()))}
    nodes = [
        Node(name=names[g], role=ACCELERATOR, domain=numbers[hosts[g]], place=f"line {kept[g].line}", rail=None)
        for g in adapters
    ]
    nodes += _switches(kept, names, adapters, cables)
    if scale_up_Bps is not None:
        members = {host: [names[guid] for guid in adapters if hosts[guid] == host] for host in numbers}
        switches_up, links_up = scale_up(members, scale_up_Bps, scale_up_latency_s)
        nodes, cables = nodes + switches_up, cables + links_up
    return assemble("InfiniBand fabric", nodes, cables, where=where)


def read_wiring(
    text: str, *, where: str = "ibnetdiscover", host_map: Mapping[int, str] | None = None, exclude: Sequence[str] = ()
) -> Wiring:
    """The cables that ``ibnetdiscover`` found: adapters as ports of their hosts, ports of switches by number.

    Args:
        host_map: as for ``read``, like ``exclude``.

    Raises:
        BadInput: as ``read``.
    """
    devices = _devices(text, where)
    kept, names = _kept(devices, exclude), _names(devices)
    hosts = _hosts(kept, [guid for guid, d in kept.items() if d.kind == "Ca"], host_map or {}, where)

    def end(guid: str, number: int) -> tuple[str, str]:
        if guid not in hosts:
            return infiniband_end(names[guid], str(number))[:2]
        adapter = names[guid].partition(" ")[2] or names[guid]
        return hosts[guid], adapter if number == 1 else f"{adapter}/{number}"

    cables = []
    for guid, number, port in _joined(kept, devices, where):
        back = kept[port.other].ports.get(port.other_port)
        slow, fast = sorted((port.rate_Bps, back.rate_Bps if back else port.rate_Bps))
        (device, one), (other, two) = end(guid, number), end(port.other, port.other_port)
        cables.append(
            PortCable(
                device=device,
                port=one,
                other=other,
                other_port=two,
                capacity_Bps=slow,
                other_Bps=fast if slow < fast else None,
                place=f"line {port.line}",
            )
        )
    told = {end(guid, 1)[0]: guid in hosts for guid in kept}
    return wiring_of("InfiniBand fabric", cables, told=told, hosts=(), where=where)


def read_host_map(text: str, *, where: str = "host map") -> dict[int, str]:
    """Hosts by the GUIDs of their adapters, from a node name map: lines ``0x<GUID> "host device"``.

    It is the file that ``ibnetdiscover --node-name-map`` takes; the first word of a name is the host.

    Raises:
        BadInput: a line that is none, or a GUID twice.
    """
    found: dict[int, str] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line, place = raw.partition("#")[0].strip()[:LONGEST_LINE], f"{where}: line {number}"
        if not line:
            continue
        match = _MAPPED.fullmatch(line)
        if match is None or not match[3].strip():
            raise BadInput(f"{line[:60]!r} is no GUID and name", where=place, remedy='write 0x2c903000abcde "node7"')
        if int(match[1], 16) in found:
            raise BadInput(f"{match[1]} is given twice", where=place, remedy="remove one")
        found[int(match[1], 16)] = device_name(match[3].split()[0], place)
    return found


def read_subnet(text: str, *, where: str = "ibnetdiscover", exclude: Sequence[str] = ()) -> Subnet:
    """GUIDs, LIDs, port numbers and cables of the same text; its devices have the names of ``read``'s nodes.

    Adapters that match ``exclude`` are none of the fabric's, as aggregation nodes are.

    Raises:
        BadInput: as ``read``; or a port has no GUID, that of another, two cables, or no number from 1 to 254.
    """
    devices = _devices(text, where)
    kept, names = _kept(devices, exclude), _names(devices)
    index = {guid: i for i, guid in enumerate(devices)}
    wires = tuple(
        Wire(device=index[guid], port=port, other=index[p.other], other_port=p.other_port)
        for guid, port, p in _joined(devices, devices, where)
    )
    _check_ports(wires, where)
    return Subnet(
        where=where,
        devices=tuple(
            Device(
                name=names[guid],
                kind=_KINDS[d.kind] if guid in kept else AGGREGATION,
                guid=int(guid[2:], 16),
                ports=max([d.highest, *d.ports]),
            )
            for guid, d in devices.items()
        ),
        ends=tuple(_ends(devices, names, wires, where)),
        wires=wires,
    )


def _check_ports(wires: tuple[Wire, ...], where: str) -> None:
    ports = Counter(end for wire in wires for end in ((wire.device, wire.port), (wire.other, wire.other_port)))
    wrong = [f"port {port}" for (_, port), times in ports.items() if times > 1 or not 1 <= port <= 254]
    if wrong:
        problem = f"{wrong[0]} has two cables, or no number from 1 to 254"
        raise BadInput(problem, where=where, remedy="give ibnetdiscover's output")


def _ends(devices: dict[str, _Device], names: dict[str, str], wires: tuple[Wire, ...], where: str) -> Iterator[End]:
    """Port 0 of the switches and the joined ports of the others, by device and port."""
    keys, seen = list(devices), set()
    ports = sorted({(w.device, w.port) for w in wires} | {(w.other, w.other_port) for w in wires})
    joined = {(w.device, w.port): (w.other, w.other_port) for w in wires}
    joined |= {there: here for here, there in joined.items()}
    switches = {i for i, d in enumerate(devices.values()) if d.kind == "Switch"}
    for i, port in sorted([(i, 0) for i in switches] + [end for end in ports if end[0] not in switches]):
        device = devices[keys[i]]
        place = f"{where}: line {device.line}"
        if i in switches:
            guid, lid, lmc = device.guid or keys[i][2:], device.lid, 0
        else:
            guid, lid, lmc = _address(device, port, devices[keys[joined[i, port][0]]], joined[i, port][1])
        name = f"port {port} of {names[keys[i]]}"
        if not _GUID.fullmatch(guid) or int(guid, 16) in seen:
            problem = "has a GUID that another port has" if _GUID.fullmatch(guid) else "has no GUID"
            raise BadInput(f"{name} {problem}", where=place, remedy="give the output of ibnetdiscover as it is")
        seen.add(int(guid, 16))
        yield End(device=i, port=port, guid=int(guid, 16), lid=lid, lmc=lmc)


def _address(device: _Device, port: int, other: _Device, other_port: int) -> tuple[str, int, int]:
    """GUID, LID and LMC of an adapter's port, from its line or that of the other end."""
    here, back = device.ports.get(port), other.ports.get(other_port)
    guid, lid, lmc = (here.guid, here.lid, here.lmc) if here else ("", 0, 0)
    return (guid or back.other_guid, lid or back.other_lid, lmc) if back else (guid, lid, lmc)


def _kept(devices: dict[str, _Device], exclude: Sequence[str]) -> dict[str, _Device]:
    """Devices without aggregation nodes and without adapters that match a pattern by description or full name."""
    names = _names(devices)
    return {
        guid: d
        for guid, d in devices.items()
        if not _aggregates(d)
        and not (d.kind == "Ca" and any(is_any(n, exclude) for n in (d.description, names[guid])))
    }


def _aggregates(device: _Device) -> bool:
    return "Aggregation Node" in device.description


def _hosts(kept: dict[str, _Device], adapters: list[str], mapped: Mapping[int, str], where: str) -> dict[str, str]:
    """The host of each adapter: that of the map, else the one that it names, else its card."""
    known = {guid: mapped[int(guid[2:], 16)] for guid in adapters if int(guid[2:], 16) in mapped}
    if mapped and not known:
        problem = f"none of the {len(mapped):,} GUIDs of the host map is one of its adapters"
        raise BadInput(problem, where=where, remedy="give the GUIDs behind caguid=")
    named = {guid: kept[guid].description.split(" ")[0] for guid in adapters}
    bare = [guid for guid in adapters if guid not in known and NO_HOST.fullmatch(named[guid])]
    cards = {guid: f"card {kept[guid].image or guid[2:]}" for guid in bare}
    if bare:
        problem = f"{len(bare):,} of {len(adapters):,} adapters name no host, as {kept[bare[0]].description[:60]!r}"
        taken = f"each of their {len(set(cards.values())):,} cards counts as a host of its own"
        remedy = 'give --host-map FILE (lines 0xGUID "host"), or --exclude PATTERN for those of no accelerator'
        warnings.warn(f"{where}: {problem}: {taken} -- {remedy}", InDoubt, stacklevel=3)
    return named | cards | known


def _devices(text: str, where: str) -> dict[str, _Device]:
    devices: dict[str, _Device] = {}
    current: _Device | None = None
    port_zero = image = ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line, place = raw.strip()[:LONGEST_LINE], f"{where}: line {number}"
        if match := _NODE.match(line):
            if match[3] in devices:
                raise BadInput(f"{match[3]} is given twice", where=place, remedy="give one run's output")
            current = devices[match[3]] = _Device(match[1], number, _clean(match[4] or ""), int(match[2]))
            current.guid, current.image, port_zero, image = port_zero, image, "", ""
            lid = _LID.search(line, match.end())
            current.lid = int(lid[1]) if lid else 0
        elif match := _PORT_ZERO.match(line):
            port_zero = match[1]
        elif match := _IMAGE.match(line):
            image = match[1]
        elif line.startswith("["):
            port = _PORT.match(line)
            if current is None or port is None:
                problem = "is no port of a device" if current else "has a port before any device"
                raise BadInput(f"{line[:60]!r} {problem}", where=place, remedy="give ibnetdiscover's output")
            if int(port[1]) in current.ports:
                raise BadInput(f"port {int(port[1])} is given twice", where=place)
            current.ports[int(port[1])] = _port(port, line, number, place)
    if not devices:
        raise BadInput("holds no switch and no adapter", where=where, remedy="give ibnetdiscover's output")
    return devices


def _port(match: re.Match[str], line: str, number: int, place: str) -> _Port:
    comment = line.partition("#")[2]
    own, other = _OWN_LID.match(comment), _OTHER_LID.match(comment)
    return _Port(
        other=match[3],
        other_port=int(match[4]),
        rate_Bps=_rate(line, place),
        line=number,
        guid=match[2] or "",
        other_guid=match[5] or "",
        lid=int(own[1]) if own else 0,
        lmc=int(own[2]) if own else 0,
        other_lid=int(other[1]) if other else 0,
    )


def _rate(line: str, place: str) -> float:
    found = _RATE.findall(line.rpartition('"')[2]) or _RATE.findall(line)
    if not found or found[-1][1] not in LANE_Gbps:
        known = ", ".join(LANE_Gbps)
        raise BadInput(
            f"{line[-30:]!r} ends without width and speed", where=place, remedy=f"expected like 4xNDR; known: {known}"
        )
    lanes, speed = found[-1]
    if int(lanes) < 1:
        raise BadInput(f"{lanes}x has no lanes", where=place)
    return int(lanes) * LANE_Gbps[speed] * 1e9 / 8


def _names(devices: dict[str, _Device]) -> dict[str, str]:
    """Descriptions, with the GUID behind where several devices share one, and of aggregation nodes."""
    times = Counter(device.description for device in devices.values())
    return {
        guid: device.description
        if device.description and times[device.description] == 1 and not _aggregates(device)
        else f"{device.description} {guid}".strip()
        for guid, device in devices.items()
    }


def _clean(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _cables(
    kept: dict[str, _Device], every: dict[str, _Device], names: dict[str, str], latency_s: float, where: str
) -> list[Cable]:
    """Each cable at the slower of the two rates given."""
    cables = []
    for guid, _, port in _joined(kept, every, where):
        back = kept[port.other].ports.get(port.other_port)
        cables.append(
            Cable(
                source=names[guid],
                target=names[port.other],
                capacity_Bps=min(port.rate_Bps, back.rate_Bps) if back else port.rate_Bps,
                latency_s=latency_s,
                place=f"line {port.line}",
            )
        )
    return cables


def _joined(kept: dict[str, _Device], every: dict[str, _Device], where: str) -> Iterator[tuple[str, int, _Port]]:
    """Each cable between kept devices once: device, number and port of the end that is listed first."""
    done: set[tuple[str, int]] = set()
    for guid, device in kept.items():
        for number, port in device.ports.items():
            place = f"{where}: line {port.line}"
            if port.other not in every:
                raise BadInput(f"leads to {port.other}, which is not listed", where=place, remedy="discover again")
            if port.other not in kept or (guid, number) in done:
                continue
            back = kept[port.other].ports.get(port.other_port)
            if back is not None and (back.other, back.other_port) != (guid, number):
                raise BadInput(
                    f"{port.other}[{port.other_port}] leads elsewhere", where=place, remedy="discover again"
                )
            done |= {(guid, number), (port.other, port.other_port)}
            yield guid, number, port


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
