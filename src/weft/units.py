"""Quantities: parsed once at the edge into SI floats (bytes, seconds, bytes/s, FLOP/s), shown with units.

Decimal prefixes are powers of 1000, binary ones (Ki, Mi, Gi, Ti) powers of 1024.  ``b`` is a bit and ``B``
a byte.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime

from weft.errors import BadInput

_NUMBER = re.compile(
    r"\s*([+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9](?:_?[0-9])*)\.?[0-9]*(?:[eE][+-]?[0-9]+)?|[+-]?\.[0-9]+)"
    r"\s*([^\s0-9,_.].*)?\s*"
)
"""A number, with commas between thousands or underscores, and its unit."""
LONGEST = 64
"""Characters of the longest quantity that is read."""
PREFIXES = {
    "": 1.0,
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0, "d": 86400.0, "y": 31557600.0}


def _split(text: str | float, where: str, example: str) -> tuple[float, str]:
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        value, unit = _number(text), ""
    else:
        match = _NUMBER.fullmatch(str(text)) if len(str(text)) <= LONGEST else None
        if match is None:
            raise BadInput(
                f"{str(text)[:LONGEST]!r} is not a quantity", where=where, remedy=f"write it like {example}"
            )
        value = float(match[1].replace(",", "").replace("_", ""))
        unit = (match[2] or "").strip()
    return _finite(value, text, where, example), unit


def _number(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _finite(value: float, text: str | float, where: str, example: str) -> float:
    if not math.isfinite(value):
        problem = "is not a number" if math.isnan(value) else "is too large"
        raise BadInput(f"{str(text)[:40]!r} {problem}", where=where, remedy=f"write it like {example}")
    return value


def _quantity(text: str | float, where: str, example: str, suffixes: dict[str, float]) -> float:
    value, unit = _split(text, where, example)
    for suffix in sorted(suffixes, key=len, reverse=True):
        if unit.endswith(suffix) and unit[: len(unit) - len(suffix)] in PREFIXES:
            scaled = value * PREFIXES[unit[: len(unit) - len(suffix)]] * suffixes[suffix]
            return _finite(scaled, text, where, example)
    problem = f"{text!r} has the wrong unit {unit!r}" if unit else f"{text!r} has no unit"
    raise BadInput(problem, where=where, remedy=f"write it like {example}")


def parse_bytes(text: str | float, where: str = "size") -> float:
    """Bytes from "80 GB" or "141 GiB"; a bare number is in bytes."""
    return _quantity(text, where, "80 GB or 80 GiB", {"B": 1.0, "bytes": 1.0, "": 1.0})


def parse_bandwidth(text: str | float, where: str = "bandwidth") -> float:
    """Bytes/s from "400 Gb/s", "400Gbps" or "50 GB/s"; a bare number is in bytes/s."""
    bits = dict.fromkeys(("b/s", "bps", "bit/s"), 1 / 8)
    return _quantity(text, where, "50 GB/s or 400 Gb/s", bits | {"B/s": 1.0, "Bps": 1.0} | _bare(text))


def parse_flops(text: str | float, where: str = "peak") -> float:
    """FLOP/s from "989 TFLOP/s" or "989 TFLOPS"; a bare number is in FLOP/s."""
    names = dict.fromkeys(("FLOP/s", "FLOPS", "flops", "flop/s", "F/s"), 1.0)
    return _quantity(text, where, "989 TFLOP/s", names | _bare(text))


def parse_seconds(text: str | float, where: str = "time") -> float:
    """Seconds from "2 us", "4 h" or "30 d"; a bare number is in seconds."""
    value, unit = _split(text, where, "2 us, 15 min or 4 h")
    if unit and unit not in SECONDS:
        raise BadInput(f"{text!r} has the wrong unit {unit!r}", where=where, remedy="write it like 2 us or 4 h")
    return _finite(value * SECONDS.get(unit, 1.0), text, where, "2 us or 4 h")


def parse_moment(text: str | float, where: str = "time") -> float:
    """Seconds since 1970 (UTC) from "2026-11-23T06:30:00Z", with any offset from UTC, or as a bare number.

    Raises:
        BadInput: it is neither, or says no offset from UTC.
    """
    example = "2026-11-23T06:30:00Z, or the number of date +%s"
    if isinstance(text, str) and "T" in text and len(text) <= LONGEST:
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise BadInput(f"{text!r} is not a time with a zone", where=where, remedy=f"write it like {example}")
        value = moment.timestamp()
    else:
        value, unit = _split(text, where, example)
        if unit:
            raise BadInput(f"{text!r} has the wrong unit {unit!r}", where=where, remedy=f"write it like {example}")
    if not 0 <= value < 1e11:
        raise BadInput(f"{text!r} is not a time since 1970", where=where, remedy=f"write it like {example}")
    return value


def format_moment(seconds: float) -> str:
    """Seconds since 1970 as a time of UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def parse_count(text: str | float, where: str = "count") -> float:
    """A count from "15T", "1.5e12", "8k" or "64Ki"; T, B (billion), M and k are decimal."""
    value, unit = _split(text, where, "15T or 300e9")
    scale = PREFIXES | {"B": 1e9}
    if unit not in scale:
        raise BadInput(f"{text!r} has the wrong unit {unit!r}", where=where, remedy="write it like 15T or 300e9")
    return _finite(value * scale[unit], text, where, "15T or 300e9")


def parse_whole(text: str | float, where: str = "count") -> int:
    """A whole number, written as ``parse_count`` takes it.

    Raises:
        BadInput: it is none.
    """
    if isinstance(text, str) and re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip(), re.ASCII):
        return int(text.strip())  # int() leaves some separators that strip() takes
    try:
        value = parse_count(text, where)
    except BadInput:
        value = math.nan
    if not value.is_integer():
        raise BadInput(f"{str(text)[:40]!r} is not a whole number", where=where, remedy="write it like 8192 or 8k")
    return int(value)


def parse_watts(text: str | float, where: str = "power") -> float:
    """Watts from "700 W" or "1.2 kW"; a bare number is in watts."""
    return _quantity(text, where, "700 W", {"W": 1.0} | _bare(text))


def _bare(text: str | float) -> dict[str, float]:
    """Accept a number without unit, but never a prefix alone ("400 G" is ambiguous)."""
    bare = isinstance(text, (int, float)) or re.fullmatch(r"[-+0-9_,.eE\s]+", str(text))
    return {"": 1.0} if bare else {}


def format_si(value: float, unit: str, digits: int = 3) -> str:
    """A value with a decimal prefix: ``format_si(5e10, "B/s") == "50 GB/s"``."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}"
    value = float(f"{value:.{digits}g}")
    for scale, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")):
        if abs(value) >= scale:
            return f"{value / scale:.{digits}g} {prefix}{unit}"
    return f"{value:.{digits}g} {unit}"


def format_bytes(value: float, *, least: float = 0.1) -> str:
    """Memory as the tools of accelerators show it: "71.3 GiB", "512 MiB"; ``least`` of a unit at the least
    ("0.1 GiB"), from 1 on in TiB too."""
    scales = ((2.0**30, "Gi"), (2.0**20, "Mi"), (2.0**10, "Ki"))
    for scale, prefix in ((2.0**40, "Ti"), *scales) if least >= 1 else scales:
        if abs(value) >= least * scale:
            return f"{value / scale:,.1f} {prefix}B"
    return f"{value:g} B"


def format_seconds(value: float) -> str:
    """Seconds with a unit that keeps the number readable: "4.28 s", "310 ms", "12 us", "3.1 d"."""
    magnitude = abs(float(f"{value:.3g}"))
    if magnitude >= 2 * SECONDS["y"]:
        return f"{value / SECONDS['y']:.1f} y"
    if magnitude >= 2 * 86400:
        return f"{value / 86400:.1f} d"
    if magnitude >= 2 * 3600:
        return f"{value / 3600:.1f} h"
    if magnitude >= 600:
        return f"{value / 60:.1f} min"
    if magnitude >= 1 or magnitude == 0:
        return f"{value:.2f} s"
    if magnitude >= 1e-3:
        return f"{value * 1e3:.3g} ms"
    return f"{value * 1e6:.3g} us"


def listed(words: Sequence[str]) -> str:
    """Words in a row, as "a, b and c"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def counted(count: int, noun: str) -> str:
    """A count with its noun: "1 switch", "2,048 switches", "10 epochs"."""
    if count == 1:
        return f"1 {noun}"
    hissed = noun.endswith(("ch", "sh", "s", "x")) and not noun.endswith("och")
    return f"{count:,} {noun}{'es' if hissed else 's'}"


def format_count(value: float) -> str:
    """A count as the field writes it: "405.9B", "15T", "4096"."""
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(value) >= scale:
            return f"{value / scale:.4g}{suffix}"
    return f"{value:,.0f}"
