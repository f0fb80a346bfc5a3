"""The bill of materials of a network on a floor: what a vendor could quote, part by part.

It counts the cables and switches that ``weft.fabric.cost`` counts, and is the finer of the two: where copper reaches,
a cable has no transceivers.  A part costs what the price file says for its name; one that it does not name costs what
the file says for a port of a switch, a transceiver, a cable or a NIC.  An active optical cable without a price costs
two transceivers more than a cable, as in the coarse bill.  Copper costs only what the file says for its name, since
"a cable" is a fiber there.  Parts without a price are counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from weft.errors import BadInput
from weft.fabric.cost import Bill, Prices, bill_of_kind, cabling
from weft.fabric.floor import Floor, Standing, stand
from weft.fabric.parts import Medium, allowed, chosen, model_for, rate_class
from weft.fabric.spec import SCALE_UP, Fabric, Floats, Ints
from weft.results import Result

HOURS_A_YEAR = 8766.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One kind of part: how many the network needs, and spares beside.

    ``usd_each`` is None where no price is known, ``watts_each`` is of one in use.
    """

    category: str
    part: str
    detail: str
    count: int
    spares: int
    usd_each: float | None
    watts_each: float

    @property
    def usd(self) -> float | None:
        """Dollars, spares included."""
        return None if self.usd_each is None else self.usd_each * (self.count + self.spares)

    @property
    def watts(self) -> float:
        """Watts of those in use."""
        return self.watts_each * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Racks:
    """Racks of a kind: how many, their power in all, that of the fullest, and how many draw more than a rack may."""

    kind: str
    count: int
    kw: float
    fullest_kw: float
    over: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BillOfMaterials(Result):
    """What a network is made of.

    ``counted`` is the coarse bill of the same network, as ``weft design`` has it.  ``usd`` are those of the parts
    with a price, spares included.
    """

    SCHEMA = "weft.bill-of-materials/1"
    COLUMNS = ("category", "part", "detail", "count", "spares", "usd_each", "usd", "watts_each", "watts")

    fabric: str
    accelerators: int
    lines: tuple[Line, ...]
    racks: tuple[Racks, ...]
    spares: float
    floor: Floor
    counted: Bill

    @property
    def usd(self) -> float:
        return math.fsum(line.usd for line in self.lines if line.usd is not None)

    @property
    def spares_usd(self) -> float:
        """The share of ``usd`` that spares cost."""
        return math.fsum(line.usd_each * line.spares for line in self.lines if line.usd_each is not None)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Parts without a price, as a price file names them."""
        return tuple(line.part for line in self.lines if line.usd_each is None)

    @property
    def watts(self) -> float:
        return math.fsum(line.watts for line in self.lines)

    @property
    def energy_kwh(self) -> float:
        """What the network takes from the grid over the floor's years, cooling included."""
        return self.watts / 1e3 * HOURS_A_YEAR * self.floor.years * self.floor.pue

    @property
    def energy_usd(self) -> float:
        return self.energy_kwh * self.floor.usd_per_kwh

    @property
    def media(self) -> tuple[Medium, ...]:
        """The media that the floor allows, with their sources."""
        return allowed(self.floor.media, self.floor.name)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row a part."""
        return [asdict(line) | {"usd": line.usd, "watts": line.watts} for line in self.lines]

    def _document(self) -> dict[str, Any]:
        return {
            "fabric": self.fabric,
            "accelerators": self.accelerators,
            "lines": self.to_dicts(),
            "usd": self.usd,
            "spares_usd": self.spares_usd,
            "unpriced": list(self.unpriced),
            "watts": self.watts,
            "energy_kwh": self.energy_kwh,
            "energy_usd": self.energy_usd,
            "racks": [asdict(one) for one in self.racks],
            "spares": self.spares,
            "floor": asdict(self.floor) | {"media": list(self.floor.media)},
            "media": [
                {"name": one.name, "reach_m": one.reach_m, "source": one.source, "date": one.date}
                for one in self.media
            ],
            "prices": asdict(self.counted.prices),
            "design_usd": self.counted.usd,
            "design_watts": self.counted.watts,
        }

    def _facts(self) -> Sequence[str]:
        return (self.fabric, f"{len(self.lines)} kinds of parts", f"${self.usd:,.0f}")


def bill_of_materials(
    fabric: Fabric, prices: Prices, floor: Floor, *, radix: int, kind: str = "", spares: float = 0.0
) -> BillOfMaterials:
    """The bill of materials of a fabric on a floor; failed parts are bought too.

    Args:
        radix: ports of every scale-out switch, as for ``weft.fabric.cost.bill_of_kind``.
        kind: of the network; the ports of a multi-plane one are parts of a port.
        spares: share of every part that is bought beside, rounded up.

    Raises:
        BadInput: there is no network to buy, a switch has too few ports or stands in no rack, no cable is as fast as
            a link, or no medium reaches.
    """
    if not (fabric.tier > SCALE_UP).any():
        raise BadInput(
            "is one scale-up domain, with no network outside of it to buy",
            where=fabric.name,
            remedy="take more accelerators",
        )
    counted = bill_of_kind(kind, fabric, prices, radix)
    a, b, cables = cabling(fabric)
    rate = _rates(fabric, a, b, cables)
    ends = np.bincount(a, cables, fabric.nodes) + np.bincount(b, cables, fabric.nodes)
    fastest = np.zeros(fabric.nodes)
    np.maximum.at(fastest, a, rate)
    np.maximum.at(fastest, b, rate)
    switches = _Switches(fabric, counted, np.asarray(ends, dtype=np.float64), fastest)
    standing = stand(fabric, floor, switches.units, switches.kw)
    asked = (*switches.lines(), *_cable_lines(standing, a, b, cables, rate, counted), *_nics(counted))
    return BillOfMaterials(
        fabric=fabric.name,
        accelerators=fabric.accelerators,
        lines=tuple(_spared(line, spares) for line in (*asked, *_racks_bought(standing, counted))),
        racks=tuple(_racks(standing)),
        spares=spares,
        floor=floor,
        counted=counted,
    )


def _spared(line: Line, share: float) -> Line:
    return replace(line, spares=0 if line.category == "rack" else math.ceil(line.count * share - 1e-9))


def _rates(fabric: Fabric, a: Ints, b: Ints, cables: Ints) -> Floats:
    """Gb/s of one cable between each pair of nodes."""
    outside = fabric.tier != SCALE_UP
    source, target, capacity = fabric.source[outside], fabric.target[outside], fabric.capacity_Bps[outside]
    key = np.minimum(source, target) * fabric.nodes + np.maximum(source, target)
    pair = np.searchsorted(a * fabric.nodes + b, key)
    up = source < target
    forth = np.bincount(pair[up], capacity[up], len(a))
    back = np.bincount(pair[~up], capacity[~up], len(a))
    return np.asarray(np.maximum(forth, back) / cables * 8 / 1e9, dtype=np.float64)


class _Switches:
    """The scale-out switches of a fabric by model: ports bought, rack units and kilowatts of each node."""

    def __init__(self, fabric: Fabric, counted: Bill, used: Floats, fastest: Floats) -> None:
        self.fabric, self.counted = fabric, counted
        is_switch = (np.arange(fabric.nodes) >= fabric.accelerators) & (used > 0)
        self.ports = np.where(is_switch, counted.switch_ports // max(1, counted.switches), 0).astype(np.int64)
        classes = np.unique(fastest[is_switch])
        sold = {value: rate_class(value, fabric.name) for value in classes.tolist()}
        self.rate = np.array([sold.get(value, 0) for value in np.where(is_switch, fastest, 0.0).tolist()])
        self.kinds = sorted({(int(p), int(r)) for p, r in zip(self.ports, self.rate, strict=True) if p})
        self.models = {kind: model_for(*kind) for kind in self.kinds}
        tall = {kind: model.units if model else 1 for kind, model in self.models.items()}
        kinds = list(zip(self.ports.tolist(), self.rate.tolist(), strict=True))
        self.units = np.array([tall.get(kind, 0) for kind in kinds], dtype=np.int64)
        prices = counted.prices
        watts = self.ports * prices.watts_per_switch_port + used * prices.watts_per_transceiver
        self.kw: Floats = np.where(is_switch, watts / 1e3, 0.0)

    def lines(self) -> Iterator[Line]:
        prices, fabric = self.counted.prices, self.fabric
        for ports, rate in self.kinds:
            here = (self.ports == ports) & (self.rate == rate)
            model = self.models[ports, rate]
            roles = [f"{int((here & (fabric.role == i)).sum()):,} {r}" for i, r in enumerate(fabric.roles)]
            part = f"{ports} x {rate}G switch"
            names = [part] if model is None else [part, model.name]
            yield Line(
                category="switch",
                part=part,
                detail=(f"as {model.name}; " if model else "") + ", ".join(r for r in roles if r[0] != "0"),
                count=int(here.sum()),
                spares=0,
                usd_each=_price(prices, names, ports * prices.usd_per_switch_port),
                watts_each=ports * prices.watts_per_switch_port,
            )


def _price(prices: Prices, names: Sequence[str], usual: float = 0.0) -> float | None:
    """The price of a part by the first name that has one, else ``usual``; None where that is 0: it has no price."""
    return next((prices.usd[name] for name in names if name in prices.usd), usual or None)


def _cable_lines(standing: Standing, a: Ints, b: Ints, cables: Ints, rate: Floats, counted: Bill) -> Iterator[Line]:
    """Cables by medium, rate and length, and the transceivers at the ends of fibers."""
    floor, prices = standing.floor, counted.prices
    length = np.round(standing.length_m(a, b), 6)
    needed: dict[tuple[Medium, int, float], int] = {}
    among = allowed(floor.media, floor.name)
    for value in np.unique(rate).tolist():
        at = rate == value
        sold_as = rate_class(value, floor.name)
        lengths, which = np.unique(length[at], return_inverse=True)
        counts = np.bincount(which, cables[at])
        media, sold = chosen(lengths, sold_as, among)
        for medium, meters, count, wanted in zip(media, sold.tolist(), counts.tolist(), lengths.tolist(), strict=True):
            if medium is None:
                raise BadInput(
                    f"no medium reaches {wanted:.1f} m at {sold_as}G",
                    where=f"{floor.name}: media",
                    remedy="allow one that reaches farther, or move switches",
                )
            key = medium, sold_as, meters
            needed[key] = needed.get(key, 0) + int(count)
    order = {one.name: i for i, one in enumerate(among)}
    ends: dict[tuple[Medium, int], int] = {}
    for (medium, sold_as, meters), count in sorted(
        needed.items(), key=lambda k: (k[0][1], order[k[0][0].name], k[0][2])
    ):
        name = f"{medium.name} fiber" if medium.optics else f"{sold_as}G {medium.name}"
        watts = medium.watts_at(sold_as)
        own = 0 if medium.optics or not medium.active else 2
        if medium.optics:
            ends[medium, sold_as] = ends.get((medium, sold_as), 0) + 2 * count
        yield Line(
            category="cable",
            part=f"{name} {meters:g} m",
            detail=medium.what,
            count=count,
            spares=0,
            usd_each=_price(
                prices,
                [f"{name} {meters:g} m", name],
                prices.usd_per_cable + own * prices.usd_per_transceiver if own or medium.optics else 0.0,
            ),
            watts_each=own * prices.watts_per_transceiver if watts is None else watts,
        )
    for (medium, sold_as), count in ends.items():
        name = f"{sold_as}G {medium.name} transceiver"
        yield Line(
            category="transceiver",
            part=name,
            detail=f"{medium.what}, to {medium.reach_m:g} m",
            count=count,
            spares=0,
            usd_each=_price(prices, [name], prices.usd_per_transceiver),
            watts_each=prices.watts_per_transceiver,
        )


def _nics(counted: Bill) -> Iterator[Line]:
    prices = counted.prices
    if counted.nics:
        yield Line(
            category="NIC",
            part="NIC port",
            detail="link of an accelerator to a switch",
            count=counted.nics,
            spares=0,
            usd_each=_price(prices, ["NIC port"], prices.usd_per_nic),
            watts_each=prices.watts_per_nic,
        )


def _racks_bought(standing: Standing, counted: Bill) -> Iterator[Line]:
    count = len(standing.row) - standing.servers
    if count:
        yield Line(
            category="rack",
            part="network rack",
            detail=f"{standing.floor.units_per_rack} units, {standing.floor.kw_per_rack:g} kW",
            count=count,
            spares=0,
            usd_each=_price(counted.prices, ["network rack"]),
            watts_each=0.0,
        )


def _racks(standing: Standing) -> Iterator[Racks]:
    kw, most = standing.kw, standing.floor.kw_per_rack * (1 + 1e-9)
    for kind, here in (("accelerators", kw[: standing.servers]), ("network", kw[standing.servers :])):
        if len(here):
            yield Racks(
                kind=kind,
                count=len(here),
                kw=float(here.sum()),
                fullest_kw=float(here.max()),
                over=int((here > most).sum()),
            )
