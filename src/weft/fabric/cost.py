"""What a network costs to buy and to power: the bill of materials of a built fabric.

Counting rule of "Rail-only" (Wang et al., arXiv 2307.12169): the scale-up domain is not counted; a switch
costs all its ports; every cable carries two transceivers, those to the accelerators included.  What scale-up domains
that are bought as networks cost is a figure beside the bill.

Prices and powers of parts are presets of the package, or come from users' TOML files.
"""

from __future__ import annotations

import functools
import math
import os
from dataclasses import asdict, dataclass, fields, replace
from importlib import resources
from typing import Annotated, Any

import numpy as np

from weft.cluster.spec import Tier
from weft.codec import Document, Range, decode, encode
from weft.documents import parse_toml
from weft.errors import BadInput, UnknownName
from weft.fabric.families import rail
from weft.fabric.spec import SCALE_UP, Fabric, Floats, Ints
from weft.files import read_text
from weft.results import Result
from weft.units import listed

LARGEST = 10**9
BOARD = 8
"""Accelerators of the largest domain that is a server's board: its switches are in the accelerators' price."""
SWITCH_MODELS = (("QM8700", 40, 200), ("QM9700", 64, 400), ("SN5600", 64, 800))
"""Switches of NVIDIA with their ports and Gb/s of a port, the smallest first (user manuals of 2022 to 2023)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BillLine(Document):
    """One kind of part: how many the network needs, spares beside, and dollars and watts of each."""

    DOCUMENT = "category part detail count spares usd_each usd watts_each watts"

    category: str
    part: str
    detail: str
    count: int
    spares: int
    usd_each: float
    watts_each: float

    @property
    def usd(self) -> float:
        """With spares."""
        return self.usd_each * (self.count + self.spares)

    @property
    def watts(self) -> float:
        return self.watts_each * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class BillTotals(Document):
    """The parts of a network by kind, with their dollars and watts.

    ``switch_ports`` are those bought, ``ports_used`` those with a cable; ``nics`` counts the links from an
    accelerator to a scale-out switch, and one for an accelerator with links to others alone, which divide it.
    """

    DOCUMENT = "prices switches switch_ports ports_used transceivers cables nics usd watts"

    prices: Prices
    switches: int
    switch_ports: int
    ports_used: int
    transceivers: int
    cables: int
    nics: int

    @property
    def usd(self) -> float:
        prices = self.prices
        switches_usd = self.switch_ports * prices.usd_per_switch_port
        optics_usd = self.transceivers * prices.usd_per_transceiver
        return switches_usd + optics_usd + self.cables * prices.usd_per_cable + self.nics * prices.usd_per_nic

    @property
    def watts(self) -> float:
        prices = self.prices
        switches_watts = self.switch_ports * prices.watts_per_switch_port
        return switches_watts + self.transceivers * prices.watts_per_transceiver + self.nics * prices.watts_per_nic


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Bill(Result, BillTotals):
    """Parts of a scale-out network, with dollars and watts by kind of part.

    ``lines`` split the counts by model and speed.  Spares are in none of the sums
    but ``spares_usd``.
    """

    SCHEMA = "weft.bill-of-materials/1"
    COLUMNS = tuple(BillLine.DOCUMENT.split())
    DOCUMENT = f"fabric accelerators lines {BillTotals.DOCUMENT} spares_usd"

    fabric: str
    accelerators: int
    lines: tuple[BillLine, ...]

    @property
    def spares_usd(self) -> float:
        return math.fsum(line.usd_each * line.spares for line in self.lines)

    @property
    def totals(self) -> BillTotals:
        """The counts of all parts of a kind, dollars and watts."""
        return BillTotals(**{field.name: getattr(self, field.name) for field in fields(BillTotals)})

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row a kind of part; ``usd`` holds its spares, ``watts`` does not."""
        return [encode(line) for line in self.lines]


def bill(
    fabric: Fabric, prices: Prices, *, radix: int | None = None, kind: str = "", spares_share: float = 0.0
) -> Bill:
    """The parts of a built fabric, failed ones included.

    Args:
        radix: ports of every scale-out switch; by default a switch has the ports that it uses.
        kind: of the network; several planes break each port in parts, which count as such.
        spares_share: of every kind of part, bought beside, rounded up.
    """
    split = rail.PLANES.get(kind.partition(" ")[0], 1)
    if split > 1 and radix is not None:
        each = {f"{unit}_per_{part}" for unit in ("usd", "watts") for part in PARTS} - {"watts_per_cable"}
        prices = replace(prices, **{name: getattr(prices, name) / split for name in each})
        radix *= split
    a, b, cables, rate_Gbps = _cabling(fabric)
    used = np.bincount(a, cables, fabric.nodes) + np.bincount(b, cables, fabric.nodes)
    switch = (np.arange(fabric.nodes) >= fabric.accelerators) & (used > 0)
    count, ports = int(switch.sum()), int(used[switch].sum())
    if radix is not None and count and used[switch].max() > radix:
        worst = int(np.flatnonzero(switch)[np.argmax(used[switch])])
        raise BadInput(
            f"{fabric.names[worst]} uses {used[worst]:.0f} ports of {radix}",
            where=f"{fabric.name}: radix",
            remedy=f"choose switches with more ports (--radix {used[worst]:.0f})",
        )
    nic_Gbps, divided_Gbps = _nics(fabric, a, b, cables, rate_Gbps)
    bought = np.where(switch, used if radix is None else radix, 0).astype(np.int64)
    return Bill(
        fabric=fabric.name,
        accelerators=fabric.accelerators,
        prices=prices,
        switches=count,
        switch_ports=ports if radix is None else count * radix,
        ports_used=ports,
        transceivers=2 * int(cables.sum()),
        cables=int(cables.sum()),
        nics=len(nic_Gbps) + len(divided_Gbps),
        lines=tuple(
            BillLine(
                category=category,
                part=part,
                detail=detail,
                count=number,
                spares=math.ceil(number * spares_share - 1e-9),
                usd_each=ports_each * getattr(prices, f"usd_per_{priced}"),
                watts_each=ports_each * getattr(prices, f"watts_per_{priced}", 0.0),
            )
            for category, part, detail, number, ports_each, priced in [
                *_switch_lines(fabric, bought, a, b, rate_Gbps),
                *_rate_lines("cable", "", rate_Gbps, cables, "cable"),
                *_rate_lines("transceiver", "two on a cable", rate_Gbps, 2 * cables, "transceiver"),
                *_rate_lines("NIC", "link of an accelerator to a switch", nic_Gbps, np.ones_like(nic_Gbps), "nic"),
                *_rate_lines(
                    "NIC", "divided over an accelerator's links", divided_Gbps, np.ones_like(divided_Gbps), "nic"
                ),
            ]
        ),
    )


_Line = tuple[str, str, str, int, int, str]
"""Category, part, detail, count, ports of each (1 where it has none), and what prices call it."""


def _switch_lines(fabric: Fabric, ports: Ints, a: Ints, b: Ints, rate_Gbps: Floats) -> list[_Line]:
    """Switches by ports bought and the speed of their fastest cable."""
    fastest = np.zeros(fabric.nodes)
    np.maximum.at(fastest, a, rate_Gbps)
    np.maximum.at(fastest, b, rate_Gbps)
    kinds = np.unique(np.stack([ports, fastest], axis=1)[ports > 0], axis=0)
    lines: list[_Line] = []
    for radix, rate in zip(kinds[:, 0].astype(int).tolist(), kinds[:, 1].tolist(), strict=True):
        here = (ports == radix) & (fastest == rate)
        roles = [(int((here & (fabric.role == i)).sum()), role) for i, role in enumerate(fabric.roles)]
        # Ports of a faster switch break out into slower ones.
        models = [name for name, n, Gbps in SWITCH_MODELS if Gbps >= rate and n * int(Gbps // rate) >= radix]
        detail = (f"as {models[0]}; " if models else "") + ", ".join(f"{n:,} {role}" for n, role in roles if n)
        lines.append(("switch", f"{radix} x {rate:g}G switch", detail, int(here.sum()), radix, "switch_port"))
    return lines


def _rate_lines(category: str, detail: str, rate_Gbps: Floats, counts: Ints, priced: str) -> list[_Line]:
    rates, which = np.unique(rate_Gbps, return_inverse=True)
    sums = np.bincount(which, counts, len(rates)).astype(int).tolist()
    return [
        (category, f"{rate:g}G {category}", detail, count, 1, priced)
        for rate, count in zip(rates.tolist(), sums, strict=True)
    ]


def _cabling(fabric: Fabric) -> tuple[Ints, Ints, Ints, Floats]:
    """Per pair of nodes the physical cables of the scale-out network (the larger of the two directions' sums), and the
    Gb/s of one."""
    outside = fabric.tier != SCALE_UP
    source, target = fabric.source[outside], fabric.target[outside]
    ends = np.stack([np.minimum(source, target), np.maximum(source, target)])
    pairs, of = np.unique(ends, axis=1, return_inverse=True)
    up = source == ends[0]

    def larger(values: Ints | Floats) -> Floats:
        forth, back = (np.bincount(of[way], values[outside][way], pairs.shape[1]) for way in (up, ~up))
        return np.maximum(forth, back)

    cables = larger(fabric.cables)
    rate_Gbps = np.round(larger(fabric.capacity_Bps) / cables * 8 / 1e9, 3)
    return pairs[0], pairs[1], cables.astype(np.int64), rate_Gbps


def _nics(fabric: Fabric, a: Ints, b: Ints, cables: Ints, rate_Gbps: Floats) -> tuple[Floats, Floats]:
    """Gb/s of NICs that are a link to a switch each, and of those whose links lead to accelerators alone."""
    near, far = a < fabric.accelerators, b < fabric.accelerators
    to_switch = near & ~far
    total_Gbps = np.zeros(fabric.nodes)
    for ends in (a, b):
        np.add.at(total_Gbps, ends[near & far], (cables * rate_Gbps)[near & far])
    total_Gbps[a[to_switch]] = 0.0
    return rate_Gbps[to_switch], np.round(total_Gbps[total_Gbps > 0], 1)


def scale_up_usd(tier: Tier, accelerators: int, prices: Prices) -> float:
    """Dollars of scale-up domains that are bought as networks (NVL72): their switches, cables and optics.

    They cost by the bandwidth of an accelerator.  Domains of up to ``BOARD`` are boards in the price of the
    accelerators; a ring or all-pairs links are traces between accelerators and cost nothing.
    """
    if tier.kind != "switch" or tier.size <= BOARD:
        return 0.0
    wide = tier.size > prices.scale_up_rack
    each = prices.usd_per_wide_scale_up_GBps if wide else prices.usd_per_scale_up_GBps
    return accelerators * tier.bandwidth_Bps / 1e9 * each


DEFAULT = "market-2026"
MAX_FILE_BYTES = 100_000
PARTS = {"switch_port": "switches", "transceiver": "transceivers", "cable": "cables", "nic": "NICs"}
_Figure = Annotated[float, Range(0, 1e9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """US dollars and watts of one part each: a switch port, a transceiver, a cable, a NIC.

    Switched scale-up domains cost ``usd_per_scale_up_GBps`` for each accelerator and GB/s that it sends into them, up
    to ``scale_up_rack`` accelerators, and ``usd_per_wide_scale_up_GBps`` beyond.
    """

    name: Annotated[str, Range(1, 100)]
    usd_per_switch_port: _Figure
    usd_per_transceiver: _Figure
    usd_per_cable: _Figure
    usd_per_nic: _Figure
    watts_per_switch_port: _Figure
    watts_per_transceiver: _Figure
    watts_per_nic: _Figure
    usd_per_scale_up_GBps: _Figure
    usd_per_wide_scale_up_GBps: _Figure
    scale_up_rack: Annotated[int, Range(1, LARGEST)]
    source: Annotated[str, Range(0, 500)] = ""
    date: Annotated[str, Range(0, 100)] = ""

    @property
    def contents(self) -> str:
        """What is in a sum of a bill, and what is not, as "switches and transceivers, without cables and NICs"."""
        priced = [words for part, words in PARTS.items() if getattr(self, f"usd_per_{part}")]
        without = [words for words in PARTS.values() if words not in priced]
        return (listed(priced) or "nothing") + (f", without {listed(without)}" if without else "")


def preset(name: str) -> Prices:
    """The prices of a preset.

    Raises:
        UnknownName: there is none of this name.
    """
    tables = _tables()
    if name not in tables:
        raise UnknownName("price preset", name, tables, where="--prices")
    return decode(Prices, {"name": name} | tables[name], "prices.toml")


def read_prices(path: str | os.PathLike[str]) -> Prices:
    """The prices of a TOML file; fields that it leaves out are those of the preset named by ``like``."""
    where = os.fspath(path)
    return prices_from_toml(read_text(path, where=where, largest=MAX_FILE_BYTES), where=where)


def prices_from_toml(text: str, *, where: str = "prices") -> Prices:
    """The prices of a TOML text, as ``read_prices``."""
    changes = parse_toml(text, where)
    base = preset(str(changes.pop("like", DEFAULT)))
    if not changes:
        raise BadInput("sets no price", where=where, remedy="set one, or leave --prices out")
    prices = decode(Prices, asdict(base) | changes, where)
    name, source = (changes.get(field, where) for field in ("name", "source"))
    return replace(prices, name=name, source=source, date=changes.get("date", ""))


@functools.cache
def _tables() -> dict[str, dict[str, Any]]:
    text = resources.files("weft.fabric").joinpath("data", "prices.toml").read_text(encoding="utf-8")
    return parse_toml(text, "prices.toml")
