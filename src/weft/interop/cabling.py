"""Cabling plans as CSV, and what formats of cables share: names and speeds of ports, and files of names.

A plan has a row for each cable, with device and port of both ends, and its speed.  The heading names the columns
``source_device``, ``source_port``, ``destination_device``, ``destination_port`` and (where told) ``speed``; other
columns are left out.  A cable may be listed from both of its ends.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from weft.documents import csv_rows
from weft.errors import BadInput
from weft.fabric.spec import Fabric
from weft.fabric.wiring import PortCable, Wiring, wiring_of, wiring_of_fabric

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
"""Data rate of an InfiniBand lane: after 8b/10b coding up to QDR, after 64b/66b from FDR10 on, nominal from EDR on."""
_SPEED = re.compile(r"(\d{1,7})(?:[.p](\d))?\s*(g|gig|m)?base", re.IGNORECASE)
_WRITTEN = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([kmgt])(?:i?b(?:it)?(?:/s|ps|/sec)?|be?)?", re.IGNORECASE)
_LANES = re.compile(r"(?:([1-9]\d?)\s*x\s*-?\s*)?(" + "|".join(LANE_Gbps) + r")(?:\d{2,4})?", re.IGNORECASE)
_MAPPED = re.compile(r'(0x[0-9a-fA-F]{1,16})\s+("?)([^"]+)\2')


def speed_Bps(text: str) -> float | None:
    """Bytes/s of a kind of Ethernet port ("400gbase-x-osfp", "100GbaseCR4 - ...", "1000BaseTFD")."""
    match = _SPEED.match(text.strip())
    if match is None:
        return None
    number = float(f"{match[1]}.{match[2] or 0}")
    return number * (1e9 if (match[3] or "").lower().startswith("g") else 1e6) / 8


def written_speed_Bps(text: str, place: str) -> float | None:
    """Bytes/s of a speed as plans write it: "400G", "400 Gb/s", "NDR", "4xHDR"; None of "", "auto" and "N/A"."""
    text = text.strip()
    if text.lower() in ("", "-", "auto", "n/a", "none", "unknown"):
        return None
    if match := _LANES.fullmatch(text):
        return int(match[1] or 4) * LANE_Gbps[match[2].upper()] * 1e9 / 8
    match = _WRITTEN.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise BadInput(f"{text[:40]!r} is not a speed", where=place, remedy="write it like 400G")
    return float(match[1]) * {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}[match[2].lower()] / 8


def device_name(value: object, place: str) -> str:
    """A usable name of a device or port."""
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= 100:
        raise BadInput(f"{str(value)[:40]!r} is not a name", where=place, remedy="use up to 100 characters")
    return value


def read_names(text: str, *, where: str = "names") -> dict[str, str]:
    """Names in a design by those as built, from lines of both, with blanks or a comma between; # begins a comment."""
    names: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        place, words = f"{where}: line {number}", raw.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) != 2 or words[0] in names:
            problem = "names a device twice" if len(words) == 2 else "is not two names"
            raise BadInput(problem, where=place, remedy="give name as built, name in the design")
        names[device_name(words[0], place)] = device_name(words[1], place)
    return names


def read_host_map(text: str, *, where: str = "host map") -> dict[int, str]:
    """Hosts by the GUIDs of their adapters, from a node name map: lines ``0x<GUID> "host device"``.

    It is the file that ``ibnetdiscover --node-name-map`` takes; the first word of a name is the host.
    """
    result: dict[int, str] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line, place = raw.partition("#")[0].strip()[:1000], f"{where}: line {number}"
        if not line:
            continue
        match = _MAPPED.fullmatch(line)
        if match is None or not match[3].strip():
            raise BadInput(f"{line[:60]!r} is no GUID and name", where=place, remedy='write 0x2c903000abcde "node7"')
        if int(match[1], 16) in result:
            raise BadInput(f"{match[1]} is given twice", where=place, remedy="remove one")
        result[int(match[1], 16)] = device_name(match[3].split()[0], place)
    return result


HEADINGS = ("source_device", "source_port", "destination_device", "destination_port", "speed")
MOST_CABLES = 2_000_000


def looks(text: str) -> bool:
    """Whether the first line is a heading of cables."""
    return {"source_device", "destination_device"} <= set(text.partition("\n")[0].replace(" ", "").strip().split(","))


def read_wiring(text: str, *, where: str = "cabling plan", hosts: Sequence[str] = ()) -> Wiring:
    """The cables of a plan.

    Args:
        hosts: patterns of names of hosts; words of the names tell, by default.
    """
    cables: dict[object, PortCable] = {}
    for row, place in csv_rows(text, where, HEADINGS[:4]):
        if not (row["source_device"] and row["destination_device"]):
            continue  # a port that nothing is plugged into
        device, port, other, other_port = (device_name(row[name], place) if row[name] else "" for name in HEADINGS[:4])
        cable = PortCable(
            device=device,
            port=port,
            other=other,
            other_port=other_port,
            capacity_Bps=written_speed_Bps(row.get("speed", ""), place),
            place=place.rpartition(": ")[2],
        )
        cables.setdefault(frozenset(cable.ends) if port and other_port else len(cables), cable)
        if len(cables) > MOST_CABLES:
            raise BadInput(f"has more than {MOST_CABLES:,} cables", where=where, remedy="split the plan")
    return wiring_of("cabling plan", list(cables.values()), told={}, hosts=hosts, where=where)


def write(fabric: Fabric) -> str:
    """The scale-out cables of a fabric as CSV; failed ones are in it."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(HEADINGS)
    for cable in wiring_of_fabric(fabric, ports=True).cables:
        assert cable.capacity_Bps is not None
        speed = f"{cable.capacity_Bps * 8 / 1e9:.6f}".rstrip("0").rstrip(".") + "G"
        rows.writerow((cable.device, cable.port, cable.other, cable.other_port, speed))
    return text.getvalue()
