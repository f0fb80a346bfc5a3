"""What formats of cables share: names and speeds of ports as people and tools write them."""

from __future__ import annotations

import re

from weft.errors import BadInput

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
_WRITTEN = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([kmgt]?)(?:i?b(?:it)?(?:/s|ps|/sec)?|be?)?", re.IGNORECASE)
_LANES = re.compile(r"(?:([1-9]\d?)\s*x\s*-?\s*)?(" + "|".join(LANE_Gbps) + r")(?:\d{2,4})?", re.IGNORECASE)
_WORD = re.compile(r"port\s*", re.IGNORECASE)
_BLADE = re.compile(r"Blade (\d{1,3})_Port (\d{1,3})/(\d{1,3})", re.IGNORECASE)
SMALLEST_Mbps = 1000


def speed_Bps(text: str) -> float | None:
    """Bytes/s of a kind of Ethernet port ("400gbase-x-osfp", "100GbaseCR4 - ...", "1000BaseTFD")."""
    match = _SPEED.match(text.strip())
    if match is None:
        return None
    number = float(f"{match[1]}.{match[2] or 0}")
    return number * (1e9 if (match[3] or "").lower().startswith("g") else 1e6) / 8


def written_speed_Bps(text: str, place: str, unit: str = "") -> float | None:
    """Bytes/s of a speed as plans write it: "400G", "400 Gb/s", "NDR", "4xHDR"; None of "", "auto" and "N/A".

    A bare number is in ``unit`` ("m", "g", ...); where the plan says none, in Mb/s from 1,000 on (SONiC's links, UFM's
    network definition) and in Gb/s below.

    Raises:
        BadInput: something else.
    """
    text = text.strip()
    if text.lower() in ("", "-", "auto", "n/a", "none", "unknown"):
        return None
    if match := _LANES.fullmatch(text):
        return int(match[1] or 4) * LANE_Gbps[match[2].upper()] * 1e9 / 8
    match = _WRITTEN.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        base = speed_Bps(text)
        if base is None:
            raise BadInput(f"{text[:40]!r} is no speed", where=place, remedy="write it like 400G")
        return base
    prefix = (match[2] or unit).lower() or ("m" if float(match[1]) >= SMALLEST_Mbps else "g")
    return float(match[1]) * {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}[prefix] / 8


def device_name(value: object, place: str) -> str:
    """A usable name of a device or port.

    Raises:
        BadInput: it is none.
    """
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= 100:
        raise BadInput(f"{str(value)[:40]!r} is no name", where=place, remedy="use up to 100 characters")
    return value


def port_name(text: str) -> str:
    """A port's name, without the word before a number: "Port 21" is 21; "Blade 06_Port 2/1" of a director L06/U2/1."""
    if match := _BLADE.fullmatch(text):
        return f"L{int(match[1]):02}/U{match[2]}/{match[3]}"
    rest = _WORD.sub("", text, count=1)
    return rest if rest.isdigit() else text


def speed_text(capacity_Bps: float) -> str:
    """A speed as plans write it: 50e9 bytes/s are 400G."""
    return f"{capacity_Bps * 8 / 1e9:.6f}".rstrip("0").rstrip(".") + "G"


_SWITCH = re.compile(r"MF0;([^:;]{1,80}):[^/]{1,40}/((?:[A-Z]\d{1,3}/)*[A-Z]\d{1,3})( [SR]-[0-9a-f]{1,16})?")
_ADAPTER = re.compile(r"(\S{1,90})\s+((?:mlx\d_|HCA-|ibp|mlx|hfi1_|ib)\S{0,30})")
_CHIP = re.compile("SwitchIB|SwitchX|Quantum|InfiniScale", re.IGNORECASE)
_LABELLED = re.compile(r"([^\s:]{1,90}):(\d+(?:/\d+){1,3})")


def infiniband_end(description: str, port: str) -> tuple[str, str, bool | None]:
    """Device, port and whether it is a host, of a port of an InfiniBand device by its description.

    "MF0;leaf1:MQM8700/U1" is the switch leaf1 (a chip L02/U1 of a director is part of its port's name), "node7 mlx5_2"
    the port mlx5_2 of the host node7, "leaf1:1/3/1" the port 1/3/1 of the switch leaf1; other descriptions are names.

    >>> infiniband_end("node7 mlx5_2", "1")
    ('node7', 'mlx5_2', True)
    """
    description = " ".join(description.split())
    if match := _SWITCH.fullmatch(description):
        return f"{match[1]}{match[3] or ''}", port if match[2] == "U1" else f"{match[2]}/{port}", False
    if match := _ADAPTER.fullmatch(description):
        return match[1], match[2] if port in ("", "1") else f"{match[2]}/{port}", True
    if match := _LABELLED.fullmatch(description):
        return match[1], match[2], False
    return description, port, False if _CHIP.search(description) else None


def read_names(text: str, *, where: str = "names") -> dict[str, str]:
    """Names in a design by those as built, from lines of both, with blanks or a comma between; # begins a comment.

    Raises:
        BadInput: a line that has not two names, or names one twice.
    """
    found: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        place, words = f"{where}: line {number}", raw.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) != 2 or words[0] in found:
            problem = "names a device twice" if len(words) == 2 else "is not two names"
            raise BadInput(problem, where=place, remedy="give name as built, name in the design")
        found[device_name(words[0], place)] = device_name(words[1], place)
    return found
