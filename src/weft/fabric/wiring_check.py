"""Cables as built against cables as designed: what is plugged elsewhere, missing, slow, and which plugs to move.

Devices match by name, ports by name where both sides name them at a device, else by structure: any port of the device
is as good as another.  A cable whose two ends are where the design has them is right.  The rest is mended plug by
plug: exchanging what is plugged into two ports (one may be empty) makes at least one cable right.  So the exchanges,
in their order, leave nothing but cables that are missing and cables that the design has not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from weft.codec import Document, encode
from weft.errors import BadInput
from weft.fabric.wiring import DevicePort, PortCable, Wiring, natural
from weft.results import Result

EXCHANGES = ("miscabled", "wrong-rail", "other-port")
KINDS = (*EXCHANGES, "missing", "slow", "asymmetric", "unexpected")
"""What a finding can be.  A cable between the right devices at other ports (other-port) carries the same traffic."""
_SLOWER = 1 - 1e-6
_Slot: TypeAlias = tuple[str, str, int]
"""A port: device, name, and a number where names do not tell the ports of a device apart."""
_Cable: TypeAlias = tuple[_Slot, _Slot]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Document):
    """One thing to mend.

    ``one`` and ``other`` are the ports to exchange where the kind is one of ``EXCHANGES``, else the ends of the cable.
    ``leads_to`` is where ``one`` leads before the exchange (None: it is empty), ``designed_to`` where it should.
    """

    DOCUMENT = """
        kind device=one.device port=one.port other_device=other.device other_port=other.port
        leads_to=leads_to_end designed_to=designed_end
        capacity_Bps designed_Bps remedy"""

    kind: str
    one: DevicePort
    other: DevicePort
    leads_to: DevicePort | None = None
    designed_to: DevicePort | None = None
    capacity_Bps: float | None = None
    designed_Bps: float | None = None

    @property
    def leads_to_end(self) -> str | None:
        return None if self.leads_to is None else named(self.leads_to)

    @property
    def designed_end(self) -> str | None:
        return None if self.designed_to is None else named(self.designed_to)

    @property
    def remedy(self) -> str:
        one, other = named(self.one), named(self.other)
        if self.kind in EXCHANGES:
            there = _plug(self.other, self.designed_to)
            if self.leads_to is None:
                return f"move the plug of {there} to {one}"
            return f"exchange the plugs of {_plug(self.one, self.leads_to)} and {there}"
        verbs = {"missing": "connect", "slow": "retrain or replace", "unexpected": "remove"}
        return f"{verbs.get(self.kind, 'clean or replace')} {one} - {other}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """What ``differences`` found.

    ``as_built`` are the cables that exist, between devices of the design and with its names of ports, at the
    design's speed where nothing tells theirs; ``notes`` say what was assumed.
    """

    findings: tuple[Finding, ...]
    right: int
    designed: int
    as_built: tuple[PortCable, ...]
    only_designed: tuple[str, ...]
    only_built: tuple[str, ...]
    notes: tuple[str, ...]


def named(end: DevicePort) -> str:
    """A port for people: device and port."""
    return " ".join(part for part in end if part)


def _plug(end: DevicePort, leads_to: DevicePort | None) -> str:
    """A plug for people: its port, or where that has no name, its device and where its cable leads."""
    return named(end) if end[1] or leads_to is None else f"{end[0]} (its cable to {named(leads_to)})"


def differences(
    built: Wiring,
    design: Wiring,
    *,
    names: Mapping[str, str] | None = None,
    rails: Mapping[DevicePort, int] | None = None,
) -> Differences:
    """Hold cables as built against a design.

    Args:
        names: names in the design of devices as built, or of their ports ("host/port").
        rails: rail of each port of a host of the design; the position among its ports, by default.
    """
    built = _renamed(built, design, names or {})
    _check_names(built, design)
    design = replace(design, hosts=design.hosts | (built.hosts & set(design.devices)))
    built, notes = _ports_by_order(built, design)
    comparable = _comparable(built, design)
    built, left_out = _of_its_kinds(built, design, comparable)
    paired, left, extra = _paired(built, design, comparable)
    places = _places(left, extra, comparable)
    moves, missing, unexpected = _mended(places, design, _rails(design) if rails is None else rails)
    known = set(design.devices)
    return Differences(
        findings=(*moves, *missing, *_of_speed(paired), *unexpected),
        right=len(paired),
        designed=len(design.cables),
        as_built=tuple(_as_built(paired, places, known)),
        only_designed=tuple(sorted(known - set(built.devices), key=natural)),
        only_built=tuple(sorted(set(built.devices) - known, key=natural)),
        notes=(*left_out, *notes, *_notes(paired, built, design, comparable)),
    )


def _renamed(built: Wiring, design: Wiring, names: Mapping[str, str]) -> Wiring:
    """The cables that are up, with the design's names of devices: given, equal, or equal up to domain and case."""
    known, short = set(design.devices), defaultdict(list)
    for name in design.devices:
        short[_short(name)].append(name)
    times = Counter(_short(name) for name in built.devices if name not in names)

    def device(name: str) -> str:
        if name in names or name in known:
            return names.get(name, name)
        alike = short[_short(name)]
        return alike[0] if len(alike) == times[_short(name)] == 1 else name

    def end(port_end: DevicePort) -> DevicePort:
        full_name = names.get("/".join(port_end))
        if full_name is None:
            return DevicePort(device(port_end.device), port_end.port)
        host, slash, port = full_name.rpartition("/")
        return DevicePort(host, port) if slash else DevicePort(full_name, "")

    new = {given: end(given) for cable in built.cables for given in cable.ends}
    cables = tuple(_between(cable, *(new[end] for end in cable.ends)) for cable in built.cables if cable.up)
    return replace(built, cables=cables, hosts=frozenset(new[one][0] for one in new if one[0] in built.hosts))


def _short(name: str) -> str:
    return name.split(".")[0].casefold()


def _between(cable: PortCable, one: DevicePort, other: DevicePort) -> PortCable:
    return replace(cable, device=one[0], port=one[1], other=other[0], other_port=other[1])


def _check_names(built: Wiring, design: Wiring) -> None:
    if set(design.devices) & set(built.devices):
        return
    counts = ["nothing" if not w.devices else f"{w.devices[0]!r} of {len(w.devices):,}" for w in (built, design)]
    raise BadInput(
        f"no device of the design is there: {counts[0]} as built, {counts[1]} in the design",
        where="names of devices",
        remedy="give --names FILE with lines: name as built, name in the design",
    )


def _of_its_kinds(built: Wiring, design: Wiring, comparable: frozenset[str]) -> tuple[Wiring, list[str]]:
    """The cables without those that the design leaves to another plan.

    They join kinds of devices (hosts, switches) between which it has none, at ports that it has not.
    """
    hosts, present = built.hosts | design.hosts, set(built.devices)
    known, ports = set(design.devices), {end for cable in design.cables for end in cable.ends}

    def kinds(cable: PortCable) -> int:
        return (cable.device in hosts) + (cable.other in hosts)

    def free(end: DevicePort) -> bool:
        return end not in ports and (end[0] in comparable or end[0] not in known)

    planned = {kinds(cable) for cable in design.cables if {cable.device, cable.other} <= present}
    out = [kinds(cable) not in planned and all(map(free, cable.ends)) for cable in built.cables]
    if not planned or not any(out):
        return built, []
    cables = tuple(cable for cable, is_out in zip(built.cables, out, strict=True) if not is_out)
    which = "of hosts" if 0 in planned else "between switches"
    return replace(built, cables=cables), [f"{sum(out):,} cables {which} are left out: the design has none"]


def _ports(wiring: Wiring) -> dict[str, set[str]]:
    """Names of the ports of each device."""
    result: dict[str, set[str]] = {device: set() for device in wiring.devices}
    for cable in wiring.cables:
        for device, port in cable.ends:
            if port:
                result[device].add(port)
    return result


def _ports_by_order(built: Wiring, design: Wiring) -> tuple[Wiring, list[str]]:
    """The cables with the design's names of hosts' ports, where hosts name as many ports otherwise."""
    ours, theirs = _ports(design), _ports(built)
    hosts = [h for h in sorted(design.hosts & set(theirs)) if ours[h] and theirs[h] and not ours[h] & theirs[h]]
    every = [sorted(set[str]().union(*(side[h] for h in hosts)), key=natural) for side in (theirs, ours)]
    if not hosts or len(every[0]) != len(every[1]):
        return built, []
    order, chosen = dict(zip(*every, strict=True)), set(hosts)
    cables = tuple(
        _between(
            cable,
            *(DevicePort(device, order[port] if device in chosen and port else port) for device, port in cable.ends),
        )
        for cable in built.cables
    )
    examples = ", ".join(f"{port} is {order[port]}" for port in every[0][:2])
    return replace(built, cables=cables), [f"ports of hosts match by their order: {examples}" + ", ..."]


def _comparable(built: Wiring, design: Wiring) -> frozenset[str]:
    """Devices of which both sides name ports, some of them equal."""
    built_ports = _ports(built)
    return frozenset(device for device, ports in _ports(design).items() if ports & built_ports.get(device, set()))


def _paired(
    built: Wiring, design: Wiring, comparable: frozenset[str]
) -> tuple[list[tuple[PortCable, PortCable]], list[PortCable], list[PortCable]]:
    """Cables of the design with those between the same ports, the fastest first; then the rest of both."""

    def key(cable: PortCable) -> tuple[DevicePort, ...]:
        return tuple(sorted(end if end.device in comparable else DevicePort(end.device, "") for end in cable.ends))

    def fastest_first(wiring: Wiring) -> list[PortCable]:
        return sorted(wiring.cables, key=lambda cable: -(cable.capacity_Bps or 0.0))

    unpaired: dict[tuple[DevicePort, ...], list[PortCable]] = defaultdict(list)
    for cable in reversed(fastest_first(built)):
        unpaired[key(cable)].append(cable)
    paired, left = [], []
    for cable in fastest_first(design):
        if unpaired.get(key(cable)):
            paired.append((cable, unpaired[key(cable)].pop()))
        else:
            left.append(cable)
    extra = [cable for cables in unpaired.values() for cable in cables]
    return paired, sorted(left, key=_place), sorted(extra, key=_place)


def _place(cable: PortCable) -> list[list[tuple[int, int | str]]]:
    return [natural(name) for end in cable.ends for name in end]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Ports of the cables that do not match: a slot for each, the same for both sides where they may be the same.

    ``designed`` and ``built`` name the ports of slots as the two sides do.
    """

    wanted: list[tuple[_Cable, PortCable]]
    there: list[tuple[_Cable, PortCable]]
    designed: dict[_Slot, DevicePort]
    built: dict[_Slot, DevicePort]


def _places(left: list[PortCable], extra: list[PortCable], comparable: frozenset[str]) -> _Places:
    sides: list[list[tuple[_Cable, PortCable]]] = []
    ends: list[dict[_Slot, DevicePort]] = []
    for cables in (left, extra):
        used: Counter[str] = Counter()
        result: list[tuple[_Cable, PortCable]] = []
        names: dict[_Slot, DevicePort] = {}
        for cable in cables:
            slots = []
            for end in cable.ends:
                device, port = end
                named = device in comparable
                used[device] += not named
                slots.append((device, port, 0) if named else (device, "", used[device]))
                names[slots[-1]] = end
            result.append(((slots[0], slots[1]), cable))
        sides.append(result)
        ends.append(names)
    return _Places(wanted=sides[0], there=sides[1], designed=ends[0], built=ends[1])


def _mended(
    places: _Places, design: Wiring, rails: Mapping[DevicePort, int]
) -> tuple[list[Finding], list[Finding], list[Finding]]:
    """Plugs to exchange, in order, until every cable of the design that is there is right; missing ones; others."""
    known, of_switch = set(design.devices), _rails_of_switches(design, rails)
    plugged = {slot: other for ends, _ in places.there for slot, other in (ends, ends[::-1])}

    def shown(slot: _Slot | None) -> DevicePort | None:
        return None if slot is None else places.built.get(slot) or places.designed[slot]

    def node(slot: _Slot) -> tuple[str, str]:
        """What traffic enters at a port: a switch, or the accelerator behind a port of a host."""
        return slot[0], slot[1] if slot[0] in design.hosts else ""

    def strays(slot: _Slot, partner: _Slot | None) -> bool:
        """Whether a host's port leads to a switch of other rails only."""
        rail = rails.get(places.designed.get(slot, DevicePort("", "")))
        return partner is not None and rail is not None and rail not in of_switch.get(partner[0], {rail})

    def awkward(choice: tuple[_Slot, _Slot, _Slot]) -> tuple[bool, bool, bool]:
        """What makes an exchange less handy: a device that is not the design's, two devices, hosts."""
        devices = {choice[0][0], choice[1][0]}
        return not devices <= known, len(devices) > 1, bool(devices & design.hosts)

    moves, missing = [], []
    for (x, y), cable in places.wanted:
        a, b = plugged.get(x), plugged.get(y)
        if a == y:
            continue
        choices = [(one, other, partner) for one, other, partner in ((y, a, x), (x, b, y)) if other is not None]
        if not choices:
            missing.append(_finding("missing", cable, None))
            continue
        one, other, partner = min(choices, key=awkward)
        leads_to = plugged.get(one)
        same = node(one) == node(other) or (leads_to is not None and node(leads_to) == node(partner))
        stray = any(strays(*pair) for pair in ((x, a), (y, b), (a, x), (b, y)) if pair[0] is not None)
        moves.append(
            Finding(
                kind="other-port" if same else "wrong-rail" if stray else "miscabled",
                one=shown(one) or DevicePort(*one[:2]),
                other=shown(other) or DevicePort(*other[:2]),
                leads_to=shown(leads_to),
                designed_to=shown(partner),
            )
        )
        _exchange(plugged, one, other)
    wanted = {frozenset(ends) for ends, _ in places.wanted}
    rest = dict.fromkeys(frozenset(pair) for pair in plugged.items())
    unexpected = [
        Finding(
            kind="unexpected", one=shown(one) or DevicePort(*one[:2]), other=shown(other) or DevicePort(*other[:2])
        )
        for one, other in (sorted(pair) for pair in rest if pair not in wanted)
        if {one[0], other[0]} & known
    ]
    return moves, missing, unexpected


def _exchange(plugged: dict[_Slot, _Slot], one: _Slot, other: _Slot) -> None:
    """Exchange what is plugged into two ports."""
    first, second = plugged.pop(one, None), plugged.pop(other, None)
    for slot, partner in ((other, first), (one, second)):
        if partner is not None:
            plugged[slot], plugged[partner] = partner, slot


def _rails(design: Wiring) -> dict[DevicePort, int]:
    """Positions of the ports of hosts."""
    ports = _ports(design)
    return {
        DevicePort(h, p): rail for h in design.hosts for rail, p in enumerate(sorted(ports.get(h, ()), key=natural))
    }


def _rails_of_switches(design: Wiring, rails: Mapping[DevicePort, int]) -> dict[str, set[int]]:
    result: dict[str, set[int]] = defaultdict(set)
    for cable in design.cables:
        for end, other in (cable.ends, cable.ends[::-1]):
            if end in rails:
                result[other[0]].add(rails[end])
    return result


def _finding(kind: str, design: PortCable, built: PortCable | None) -> Finding:
    """A finding of a cable of the design, with the names of ports as built where that cable exists."""
    one, other = design.ends
    if built is not None:
        there = built.ends if built.device == design.device else built.ends[::-1]
        one, other = ((e if e.port else d) for d, e in zip(design.ends, there, strict=True))
    return Finding(
        kind=kind,
        one=one,
        other=other,
        capacity_Bps=None if built is None else built.capacity_Bps,
        designed_Bps=design.capacity_Bps,
    )


def _of_speed(paired: list[tuple[PortCable, PortCable]]) -> Iterator[Finding]:
    for design, built in paired:
        ours, theirs = design.capacity_Bps, built.capacity_Bps
        if (built.one_way and not design.one_way) or (built.other_Bps is not None and design.other_Bps is None):
            yield _finding("asymmetric", design, built)
        elif ours is not None and theirs is not None and theirs < ours * _SLOWER:
            yield _finding("slow", design, built)


def _as_built(paired: list[tuple[PortCable, PortCable]], places: _Places, known: set[str]) -> Iterator[PortCable]:
    speeds = {slot: cable.capacity_Bps for ends, cable in places.wanted for slot in ends}
    usual = min((speed for speed in speeds.values() if speed is not None), default=None)
    for design, built in paired:
        yield replace(design, capacity_Bps=built.capacity_Bps or design.capacity_Bps)
    for ends, cable in places.there:
        if {slot[0] for slot in ends} <= known:
            capacity_Bps = cable.capacity_Bps or next((speeds[slot] for slot in ends if speeds.get(slot)), usual)
            yield replace(
                _between(cable, *(places.designed.get(s) or DevicePort(*s[:2]) for s in ends)),
                capacity_Bps=capacity_Bps,
            )


def _notes(
    paired: list[tuple[PortCable, PortCable]], built: Wiring, design: Wiring, comparable: frozenset[str]
) -> Iterator[str]:
    silent = sum(there.capacity_Bps is None and ours.capacity_Bps is not None for ours, there in paired)
    if silent:
        yield f"nothing tells the speed of {silent:,} of {len(paired):,} cables as built"
    ours, theirs = _ports(design), _ports(built)
    shared = set(ours) & set(theirs)
    other = sum(bool(ours[d] and theirs[d]) for d in shared - comparable)
    if other:
        yield f"{other:,} devices name their ports otherwise than the design: any of their ports counts"
    elif shared - comparable:
        yield (
            f"ports of {len(shared - comparable):,} of {len(shared):,} devices have no names to compare: any"
            " counts, and wrong rails and other ports are not found; a plan with ports: weft fabric CLUSTER --kind"
            " KIND --export p2p"
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class WiringReport(Result):
    """Cables as built against a design."""

    SCHEMA = "weft.fabric-check/1"
    COLUMNS = tuple(word.partition("=")[0] for word in Finding.DOCUMENT.split())
    DOCUMENT = """
        as_built design designed_cables=differences.designed right_cables=differences.right counts
        findings=differences.findings only_designed=differences.only_designed only_built=differences.only_built
        notes=differences.notes"""

    as_built: str
    design: str
    differences: Differences

    @property
    def counts(self) -> dict[str, int]:
        """Findings by kind."""
        times = Counter(finding.kind for finding in self.differences.findings)
        return {kind: times[kind] for kind in KINDS}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for every finding; exchanges in the order in which they are to be made."""
        return [encode(one) for one in self.differences.findings]
