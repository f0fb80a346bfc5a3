"""InfiniBand cables as ``iblinkinfo`` prints them (with or without ``-l``), and as ibdiagnet's topology file has them.

iblinkinfo prints a row for every port of every device: its LID and number, width and speed of the lane, state, and
LID, number and description of the other end.  Devices are named by their descriptions (``infiniband_end``); of those
that share one, by their LID as well.  Ports that are not up are left out.

The topology file (``ibdiagnet --write_topo_file``, that UFM's cable validation takes) has a heading "MODEL NAME" for
every device, and below it rows "P2 -4x-50G-> HCA_7 node7 mlx5_0/P1": a model that begins with HCA is a host's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.errors import BadInput
from weft.fabric.wiring import End, PortCable, Wiring, wiring_of
from weft.interop.fabrics.cabling import LANE_Gbps, device_name, infiniband_end

LONGEST_LINE = 4000
_SIGNALLED_Gbps = {2.5: "SDR", 5.0: "DDR", 10.0: "QDR", 10.3125: "FDR10", 14.0625: "FDR", 25.78125: "EDR"} | {
    53.125: "HDR",
    106.25: "NDR",
    212.5: "XDR",
}
"""What iblinkinfo prints of a lane, by the name of its rate."""
_HEAD = re.compile(r"(Switch|CA|Router)\b:?\s*(?:0x[0-9a-f]{1,16}\s+)?(.{1,200}?):?\s*", re.IGNORECASE)
_ROW = re.compile(
    r'\s*(?:0x[0-9a-f]{1,16}\s+)?(?:"([^"]{0,200})"\s+)?(\d{1,6})\s+(\d{1,4})\[[^\]]{0,9}\]\s*'
    r"==\((.{0,120}?)\)==>\s*(.{0,600})",
    re.IGNORECASE,
)
_FAR = re.compile(r'(?:0x[0-9a-f]{1,16}\s+)?(\d{1,6})\s+(\d{1,4})\[[^\]]{0,9}\]\s*"([^"]{0,200})"', re.IGNORECASE)
_RATE = re.compile(r"(\d{1,2})X\s+([0-9.]{1,12})\s+Gbps\s+(?:\((\w+)\)\s+)?(\w+)", re.IGNORECASE)
_TOPO_ROW = re.compile(r"P?(\S{1,40})\s+-(\d{1,2})x-([0-9.]{1,8})G->\s+(\S{1,60})\s+(\S.{0,200}?)\s+(\S{1,60})")
_TOPO_HEAD = re.compile(r"(\S{1,60})\s+(\S.{0,200})")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A port that is up, with its device (kind, description) by LID."""

    lid: int
    port: str
    capacity_Bps: float
    far_lid: int
    far_port: str
    far: str
    place: str


def read_wiring(text: str, *, where: str = "iblinkinfo", hosts: Sequence[str] = ()) -> Wiring:
    """The cables that iblinkinfo found.

    Raises:
        BadInput: not in this form, an unknown speed, or a port with two cables.
    """
    descriptions, hosts_told, rows = _devices_and_rows(text, where)
    for row in rows:
        descriptions.setdefault(row.far_lid, row.far)
    shared: dict[str, set[int]] = defaultdict(set)
    for lid, description in descriptions.items():
        shared[description].add(lid)
    told: dict[str, bool] = {}

    def end(lid: int, port: str, place: str) -> End:
        device, name, is_host = infiniband_end(descriptions.get(lid, ""), port)
        unique = is_host or len(shared[descriptions.get(lid, "")]) == 1
        is_host = hosts_told.get(lid, is_host)
        device = device if device and unique else f"{device} (lid {lid})".strip()
        if is_host is not None:
            told[device] = is_host
        return device_name(device, f"{where}: {place}"), name

    cables: dict[frozenset[tuple[int, str]], PortCable] = {}
    for row in rows:
        key = frozenset({(row.lid, row.port), (row.far_lid, row.far_port)})
        known = cables.get(key)
        if known is not None and known.capacity_Bps is not None:
            slow, fast = sorted((known.capacity_Bps, row.capacity_Bps))
            cables[key] = _with_speeds(known, slow, fast)
            continue
        (device, port), (other, other_port) = (
            end(lid, name, row.place) for lid, name in ((row.lid, row.port), (row.far_lid, row.far_port))
        )
        cables[key] = PortCable(
            device=device,
            port=port,
            other=other,
            other_port=other_port,
            capacity_Bps=row.capacity_Bps,
            place=row.place,
        )
    return wiring_of("InfiniBand links", list(cables.values()), told=told, hosts=hosts, where=where)


def read_topo_file(text: str, *, where: str = "ibdiagnet topology", hosts: Sequence[str] = ()) -> Wiring:
    """The cables of a topology file of ibdiagnet.

    Raises:
        BadInput: a row that is none, or a port with two cables.
    """
    found: dict[frozenset[End], PortCable] = {}
    told: dict[str, bool] = {}
    current = ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line, place = raw.partition("#")[0].strip()[:LONGEST_LINE], f"line {number}"
        if not line:
            continue
        if "->" not in line:
            head = _TOPO_HEAD.fullmatch(line)
            if head is None:
                raise BadInput(f"{line[:40]!r} is no device", where=f"{where}: {place}", remedy="write model and name")
            current = device_name(head[2], f"{where}: {place}")
            told[current] = head[1].upper().startswith("HCA")
            continue
        match = _TOPO_ROW.fullmatch(line)
        if match is None or not current:
            raise BadInput(f"{line[:60]!r} is no link of a device", where=f"{where}: {place}")
        speed = int(match[2]) * _number(match[3], f"{where}: {place}") * 1e9 / 8
        other = device_name(match[5], f"{where}: {place}")
        told.setdefault(other, match[4].upper().startswith("HCA"))
        far = re.sub(r"^P(?=\d)", "", match[6])
        cable = PortCable(device=current, port=match[1], other=other, other_port=far, capacity_Bps=speed, place=place)
        found.setdefault(frozenset(cable.ends), cable)
    return wiring_of("InfiniBand topology", list(found.values()), told=told, hosts=hosts, where=where)


def _with_speeds(cable: PortCable, slow: float, fast: float) -> PortCable:
    return replace(cable, capacity_Bps=slow, other_Bps=fast if slow < fast else None)


def _devices_and_rows(text: str, where: str) -> tuple[dict[int, str], dict[int, bool], list[_Row]]:
    """Descriptions of devices by LID, whether they are adapters where a heading tells, and the ports that are up."""
    devices: dict[int, str] = {}
    adapters: dict[int, bool] = {}
    rows = []
    kind = heading = ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line, place = raw[:LONGEST_LINE], f"line {number}"
        match = _ROW.match(line)
        if match is None:
            head = _HEAD.fullmatch(line.strip())
            kind, heading = (head[1].upper(), _clean(head[2])) if head else (kind, heading)
            continue
        own = _clean(match[1]) if match[1] is not None else heading
        if own:
            devices[int(match[2])] = own
        if match[1] is None and kind:
            adapters[int(match[2])] = kind == "CA"
        far, rate = _FAR.match(match[5]), _RATE.search(match[4])
        if far is None or rate is None or rate[4].lower() != "active":
            continue
        rows.append(
            _Row(
                lid=int(match[2]),
                port=match[3],
                capacity_Bps=int(rate[1]) * _lane_Bps(rate[2], rate[3] or "", f"{where}: {place}"),
                far_lid=int(far[1]),
                far_port=far[2],
                far=_clean(far[3]),
                place=place,
            )
        )
    return devices, adapters, rows


def _lane_Bps(text: str, name: str, where: str) -> float:
    """Data rate of a lane from the name of its rate where it is printed, else from its signalling rate."""
    if name.upper() in LANE_Gbps:
        return LANE_Gbps[name.upper()] * 1e9 / 8
    number = _number(text, where)
    for signalled, name in _SIGNALLED_Gbps.items():
        if abs(number - signalled) <= 0.01 * signalled:
            return LANE_Gbps[name] * 1e9 / 8
    known = ", ".join(f"{each:g}" for each in _SIGNALLED_Gbps)
    raise BadInput(f"{text} Gb/s is no rate of a lane", where=where, remedy=f"known: {known}")


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"{text!r} is no speed", where=where) from None


def _clean(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def looks(text: str) -> bool:
    return re.search(r"^[^\n]{0,300}\d\[[^\]\n]{0,9}\] ==\([^\n]{0,120}\)==>", text, re.MULTILINE) is not None


def looks_like_topo_file(text: str) -> bool:
    return re.search(r"^[ \t]*+P\S{1,9}[ \t]++-\d{1,2}x-[0-9.]{1,8}G->", text, re.MULTILINE) is not None
