"""What a network costs to buy and to power: parts counted from a built fabric, and the closed forms beside.

Counting rule of "Rail-only" (Wang et al., arXiv 2307.12169): the scale-up domain is not counted; a switch
costs all its ports; every cable carries two transceivers, those to the accelerators included.  What scale-up domains
that are bought as networks cost is a figure beside the bill.

Prices and powers of parts are presets of the package, or come from users' TOML files.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from weft.cluster.spec import Tier
from weft.documents import parse_toml, validate
from weft.errors import BadInput, UnknownName
from weft.fabric.families import planes
from weft.fabric.spec import SCALE_UP, Fabric, Ints
from weft.files import read_text
from weft.units import listed

LARGEST = 10**9
BOARD = 8
"""Accelerators of the largest domain that is a server's board: its switches are in the accelerators' price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Parts of a scale-out network, with dollars and watts by kind of part.

    ``switch_ports`` are those bought, ``ports_used`` those with a cable; ``nics`` counts the links from an
    accelerator to a scale-out switch.
    """

    prices: Prices
    switches: int
    switch_ports: int
    ports_used: int
    transceivers: int
    cables: int
    nics: int

    @property
    def switches_usd(self) -> float:
        return self.switch_ports * self.prices.usd_per_switch_port

    @property
    def transceivers_usd(self) -> float:
        return self.transceivers * self.prices.usd_per_transceiver

    @property
    def cables_usd(self) -> float:
        return self.cables * self.prices.usd_per_cable

    @property
    def nics_usd(self) -> float:
        return self.nics * self.prices.usd_per_nic

    @property
    def usd(self) -> float:
        return self.switches_usd + self.transceivers_usd + self.cables_usd + self.nics_usd

    @property
    def switches_watts(self) -> float:
        return self.switch_ports * self.prices.watts_per_switch_port

    @property
    def transceivers_watts(self) -> float:
        return self.transceivers * self.prices.watts_per_transceiver

    @property
    def nics_watts(self) -> float:
        return self.nics * self.prices.watts_per_nic

    @property
    def watts(self) -> float:
        return self.switches_watts + self.transceivers_watts + self.nics_watts


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Switches and transceivers of a network by formula; ``tiers`` of switches, all of the same ``radix``."""

    switches: int
    transceivers: int
    tiers: int
    radix: int

    @property
    def switch_ports(self) -> int:
        return self.switches * self.radix


def bill(fabric: Fabric, prices: Prices, *, radix: int | None = None) -> Bill:
    """The parts of a built fabric, failed ones included.

    Args:
        radix: ports of every scale-out switch; by default a switch has the ports that it uses.

    Raises:
        BadInput: a switch uses more ports than ``radix``.
    """
    a, b, cables = cabling(fabric)
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
    nics = (a < fabric.accelerators) & (b >= fabric.accelerators)
    return Bill(
        prices=prices,
        switches=count,
        switch_ports=ports if radix is None else count * radix,
        ports_used=ports,
        transceivers=2 * int(cables.sum()),
        cables=int(cables.sum()),
        nics=int(nics.sum()),
    )


def cabling(fabric: Fabric) -> tuple[Ints, Ints, Ints]:
    """Physical cables of the scale-out network per pair of nodes: the larger of the two directions' sums."""
    outside = fabric.tier != SCALE_UP
    source, target, cables = fabric.source[outside], fabric.target[outside], fabric.cables[outside]
    low, high = np.minimum(source, target), np.maximum(source, target)
    pairs, of = np.unique(np.stack([low, high]), axis=1, return_inverse=True)
    up = source == low
    forth = np.bincount(of[up], cables[up], pairs.shape[1])
    back = np.bincount(of[~up], cables[~up], pairs.shape[1])
    return pairs[0], pairs[1], np.maximum(forth, back).astype(np.int64)


def bill_of_kind(kind: str, fabric: Fabric, prices: Prices, radix: int) -> Bill:
    """The bill of a kind of fabric; a network of several planes breaks each port in parts, which count as such."""
    parts = planes.KINDS.get(kind.partition(" ")[0], 1)
    if parts == 1:
        return bill(fabric, prices, radix=radix)
    each = {f"{unit}_per_{part}" for unit in ("usd", "watts") for part in PARTS} - {"watts_per_cable"}
    part = replace(prices, **{name: getattr(prices, name) / parts for name in each})
    return bill(fabric, part, radix=parts * radix)


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


def clos_counts(accelerators: int, radix: int) -> Counts:
    """A folded Clos at full bisection with the fewest tiers t (2 (R/2)^t ports): (2t-1) n/R switches.

    Raises:
        BadInput: no accelerator, or a radix that is odd or below 4 where one switch is not enough.
    """
    _check(accelerators, radix)
    tiers, ports = 1, radix
    while ports < accelerators:
        if radix < 4:
            raise BadInput(f"radix {radix} cannot build a tree", where="radix", remedy="give 4 or more")
        tiers, ports = tiers + 1, ports * radix // 2
    lower = (tiers - 1) * -(-2 * accelerators // radix)
    return Counts(
        switches=lower + -(-accelerators // radix), transceivers=2 * tiers * accelerators, tiers=tiers, radix=radix
    )


def rail_only_counts(accelerators: int, domain: int, radix: int) -> Counts:
    """One Clos per rail of ``accelerators / domain``; rails share a switch where its ports allow.

    Raises:
        BadInput: as ``clos_counts``, or the domain does not divide the accelerators.
    """
    _check(accelerators, radix)
    if domain < 1 or accelerators % domain:
        raise BadInput(
            f"{accelerators} accelerators are not whole domains of {domain}", where="domain", remedy="choose a divisor"
        )
    rail = clos_counts(accelerators // domain, radix)
    per_switch = radix // (accelerators // domain) if rail.tiers == 1 else 1
    return Counts(
        switches=-(-domain // per_switch) * rail.switches,
        transceivers=domain * rail.transceivers,
        tiers=rail.tiers,
        radix=radix,
    )


def _check(accelerators: int, radix: int) -> None:
    if not 1 <= accelerators <= LARGEST:
        raise BadInput(f"{accelerators} accelerators", where="accelerators", remedy=f"give 1 to {LARGEST}")
    if not 2 <= radix <= LARGEST or radix % 2:
        raise BadInput(f"radix is {radix}", where="radix", remedy="give an even number of ports")


DEFAULT = "market-2026"
MAX_FILE_BYTES = 100_000
PARTS = {"switch_port": "switches", "transceiver": "transceivers", "cable": "cables", "nic": "NICs"}
_Figure = Annotated[float, Field(ge=0, le=1e9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """US dollars and watts of one part each: a switch port, a transceiver, a cable, a NIC.

    Switched scale-up domains cost ``usd_per_scale_up_GBps`` for each accelerator and GB/s that it sends into them, up
    to ``scale_up_rack`` accelerators, and ``usd_per_wide_scale_up_GBps`` beyond.  ``usd`` are prices of parts by the
    names that a bill of materials gives them (``weft.fabric.materials``), which the counts of ``Bill`` do not see.
    """

    name: str
    usd_per_switch_port: float
    usd_per_transceiver: float
    usd_per_cable: float
    usd_per_nic: float
    watts_per_switch_port: float
    watts_per_transceiver: float
    watts_per_nic: float
    usd_per_scale_up_GBps: float
    usd_per_wide_scale_up_GBps: float
    scale_up_rack: int
    source: str = ""
    date: str = ""
    usd: Mapping[str, float] = field(default_factory=dict)

    @property
    def contents(self) -> str:
        """What is in a sum of a bill, and what is not, as "switches and transceivers, without cables and NICs"."""
        priced = [words for part, words in PARTS.items() if getattr(self, f"usd_per_{part}")]
        without = [words for words in PARTS.values() if words not in priced]
        return (listed(priced) or "nothing") + (f", without {listed(without)}" if without else "")


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    like: str | None = Field(None, max_length=100)
    name: str | None = Field(None, min_length=1, max_length=100)
    usd_per_switch_port: _Figure | None = None
    usd_per_transceiver: _Figure | None = None
    usd_per_cable: _Figure | None = None
    usd_per_nic: _Figure | None = None
    watts_per_switch_port: _Figure | None = None
    watts_per_transceiver: _Figure | None = None
    watts_per_nic: _Figure | None = None
    usd_per_scale_up_GBps: _Figure | None = None
    usd_per_wide_scale_up_GBps: _Figure | None = None
    scale_up_rack: int | None = Field(None, ge=1, le=LARGEST)
    source: str | None = Field(None, max_length=500)
    date: str | None = Field(None, max_length=100)
    usd: dict[str, _Figure] | None = Field(None, max_length=1000)


def presets() -> tuple[str, ...]:
    """Names of the presets, sorted."""
    return tuple(sorted(_tables()))


def preset(name: str) -> Prices:
    """The prices of a preset.

    Raises:
        UnknownName: there is none of this name.
    """
    tables = _tables()
    if name not in tables:
        raise UnknownName("price preset", name, tables, where="--prices")
    return Prices(name=name, **tables[name])


def read_prices(path: str | os.PathLike[str]) -> Prices:
    """The prices of a TOML file; fields that it leaves out are those of the preset named by ``like``.

    Raises:
        BadInput: the file cannot be read, or a field is unknown, negative or not finite.
    """
    where = os.fspath(path)
    return prices_from_toml(read_text(path, where=where, largest=MAX_FILE_BYTES), where=where)


def prices_from_toml(text: str, *, where: str = "prices") -> Prices:
    """The prices of a TOML text, as ``read_prices``."""
    given = validate(_Fields, parse_toml(text, where), where).model_dump(exclude_none=True)
    if not given:
        raise BadInput("sets no price", where=where, remedy="set one, or leave --prices out")
    base = preset(given.pop("like", DEFAULT))
    given["usd"] = {**base.usd, **given.get("usd", {})}
    return Prices(**asdict(base) | {"name": where, "source": where, "date": ""} | given)


@functools.cache
def _tables() -> dict[str, dict[str, Any]]:
    text = resources.files("weft.fabric").joinpath("data", "prices.toml").read_text(encoding="utf-8")
    tables = parse_toml(text, "prices.toml")
    return {name: validate(_Fields, table, name).model_dump(exclude_none=True) for name, table in tables.items()}
