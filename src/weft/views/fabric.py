"""Networks for people: nodes and links, the bill of materials, and cables as built against a design."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.fabric.assemble import ACCELERATOR, levels
from weft.fabric.catalogue import TREES
from weft.fabric.spec import SCALE_UP, Fabric, Floats, Ints, Mask
from weft.fabric.wiring_check import KINDS
from weft.units import counted, format_count, format_si
from weft.views.blocks import Blank, Block, Column, Heading, Paragraph, Table, headline, rows_grid
from weft.views.charts import ACCELERATOR_BOX, BOX, FAILED, INK, MUTED, PAPER
from weft.views.words import printable

if TYPE_CHECKING:
    from weft.fabric.cost import Bill
    from weft.fabric.wiring_check import Finding, WiringReport


MOST_ROWS, MOST_NAMES = 40, 6
_MEANING = {
    "miscabled": "plugged into the wrong device",
    "wrong-rail": "an accelerator on a switch of another rail",
    "other-port": "the right devices by other ports: traffic is the same",
    "missing": "designed, but absent or down",
    "slow": "slower than designed",
    "asymmetric": "the two ends or directions differ",
    "unexpected": "not designed",
}


def wiring_verdict(report: WiringReport) -> str:
    """How many cables differ from the design."""
    counts, result = report.counts, report.differences
    differing = result.designed - result.right + counts["slow"] + counts["asymmetric"]
    cables = counted(result.designed, "cable")
    if not result.findings:
        return f"Wiring: all {cables} are as designed"
    extra = f"; {counts['unexpected']:,} more not in the design" if counts["unexpected"] else ""
    return f"Wiring: {differing:,} of {cables} {'differs' if differing == 1 else 'differ'} from the design{extra}"


def wiring_view(report: WiringReport) -> Iterator[Block]:
    """How many cables differ, and what mends each."""
    result = report.differences
    yield Paragraph(wiring_verdict(report), style="bold")
    if result.findings:
        counts = [(kind, report.counts[kind]) for kind in KINDS if report.counts[kind]]
        yield Blank()
        yield Table(
            Column("finding", [kind for kind, _ in counts], left=True),
            Column("count", [f"{count:,}" for _, count in counts]),
            Column("meaning", [_MEANING[kind] for kind, _ in counts], left=True, drop=1),
        )
        yield Heading("Repairs (make the exchanges in this order)")
        yield _repairs(result.findings[:MOST_ROWS])
        if len(result.findings) > MOST_ROWS:
            yield Paragraph(f"and {len(result.findings) - MOST_ROWS:,} more: --format csv lists all", indent=2)
    for title, names in (("Missing devices", result.only_designed), ("Not in the design", result.only_built)):
        if names:
            more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
            yield Paragraph(f"{title}: {', '.join(names[:MOST_NAMES])}{more}", indent=2)
    if result.only_designed and result.only_built:
        yield Paragraph("If these are the same devices under two names, map them with --names FILE", indent=2)
    for note in result.notes:
        yield Paragraph(f"Note: {note}", indent=2, hang=2)
    yield Paragraph(f"Compared: {report.as_built} with {report.design}", indent=2, style="dim")


def _repairs(findings: Sequence[Finding]) -> Table:
    return Table(
        Column("finding", [finding.kind for finding in findings], left=True),
        Column("repair", [finding.remedy for finding in findings], left=True),
        Column("leads to", [finding.leads_to_end or "" for finding in findings], left=True, drop=2),
        Column("designed", [finding.designed_end or "" for finding in findings], left=True, drop=1),
        Column("speed", [_speeds(finding) for finding in findings], drop=3),
    )


def _speeds(finding: Finding) -> str:
    built, designed = (speed and f"{speed * 8 / 1e9:g}" for speed in (finding.capacity_Bps, finding.designed_Bps))
    return f"{built} of {designed} Gb/s" if built and designed else ""


def network_verdict(fabric: Fabric, bill: Bill, kind: str) -> str:
    """The size of a network, whether it blocks, and what it costs."""
    if not bill.switches and not bill.cables:
        return f"{counted(fabric.accelerators, 'GPU')} in scale-up domains alone: no network between them to buy"
    ratio = oversubscription(fabric) if kind.partition(" ")[0] in TREES else None
    blocking = "" if ratio is None else "non-blocking" if ratio <= 1 else f"oversubscribed {ratio:.3g}:1"
    within = " within rails" if kind.startswith("rail-only") else ""
    price = f"${format_count(bill.usd)} {_contents(bill)}, {bill.watts / 1e3:,.1f} kW"
    return f"{_subject(bill)}: {blocking and f'{blocking}{within}, '}{price}"


def _subject(bill: Bill) -> str:
    switches = f"{counted(bill.switches, 'switch')} for " if bill.switches else ""
    return f"{bill.fabric}, {switches}{counted(bill.accelerators, 'GPU')}"


def _contents(bill: Bill) -> str:
    prices = bill.prices
    complete = prices.usd_per_nic and prices.usd_per_cable and prices.usd_per_transceiver
    return "with NICs and cables" if complete else f"for {prices.contents}"


def oversubscription(fabric: Fabric) -> float | None:
    """The largest ratio of a switch's bandwidth down to its bandwidth up in a tree; None without upper switches."""
    outward = (fabric.tier != SCALE_UP) & (fabric.source < fabric.target)
    up_Bps = np.bincount(fabric.source[outward], fabric.capacity_Bps[outward], fabric.nodes)
    down_Bps = np.bincount(fabric.target[outward], fabric.capacity_Bps[outward], fabric.nodes)
    middle = (up_Bps > 0) & (down_Bps > 0)
    return float((down_Bps[middle] / up_Bps[middle]).max()) if middle.any() else None


def fabric_view(fabric: Fabric, bill: Bill, kind: str) -> Iterator[Block]:
    """What a network is and costs, its nodes by role, and its links by tier.

    Args:
        kind: of the network where it was built for a cluster, else "".
    """
    yield from headline(network_verdict(fabric, bill, kind))
    counts = [(role, f"{len(fabric.nodes_of(role)):,}") for role in fabric.roles]
    yield rows_grid(("nodes", "count"), counts, left=("nodes",))
    yield Blank()
    yield _links(fabric)
    if bill.lines:
        parts = [counted(bill.transceivers, "transceiver"), counted(bill.cables, "cable")]
        if bill.nics:
            parts.append(counted(bill.nics, "NIC"))
        if bill.switches:
            parts.insert(0, f"{bill.ports_used:,} of {bill.switch_ports:,} switch ports used")
        yield Paragraph(f"{', '.join(parts)} (each part: weft fabric bill)", indent=2)
        yield Paragraph(f"Prices: {bill.prices.name}, for {bill.prices.contents} (--prices)", indent=2, style="dim")


def _links(fabric: Fabric) -> Table:
    tiers = sorted(set(fabric.tier.tolist()))
    rows = [fabric.tier == tier for tier in tiers]
    columns = [
        Column("links of tier", [tier_name(tier) for tier in tiers], left=True),
        Column("count", [f"{int(row.sum()):,}" for row in rows]),
        Column("each", [_range(fabric.capacity_Bps[row], "B/s") for row in rows]),
    ]
    if not fabric.up.all():
        columns.append(Column("down", [f"{int((row & ~fabric.up).sum()):,}" for row in rows]))
    return Table(*columns)


def _range(values: Floats, unit: str) -> str:
    low, high = float(values.min()), float(values.max())
    return format_si(low, unit) if low == high else f"{format_si(low, unit)} to {format_si(high, unit)}"


def tier_name(tier: int) -> str:
    """A tier in words."""
    return "scale-up domain" if tier == SCALE_UP else f"scale-out {tier}"


def bill_view(bill: Bill) -> Iterator[Block]:
    """What the network costs to buy and to power, and its parts."""
    prices, rows = bill.prices, bill.to_dicts()
    totals = f"${bill.usd:,.0f} {_contents(bill)}, {bill.watts / 1e3:,.1f} kW"
    yield from headline(f"{_subject(bill)}: {totals}; spares ${bill.spares_usd:,.0f} more")
    yield Table(
        Column("part", [row["part"] for row in rows], left=True),
        Column("count", [f"{row['count']:,}" for row in rows]),
        Column("spares", [f"{row['spares']:,}" for row in rows]),
        Column("$ each", [_dollars(row["usd_each"]) for row in rows]),
        Column("$ with spares", [_dollars(row["usd"]) for row in rows]),
        Column("kW", [f"{row['watts'] / 1e3:,.1f}" for row in rows]),
        Column("detail", [row["detail"] for row in rows], left=True, drop=1),
    )
    date = f" ({prices.date})" if prices.date else ""
    yield Paragraph(f"Prices at any speed: {prices.name}, {prices.source}{date}", indent=2, hang=2, style="dim")


def _dollars(value: float) -> str:
    return f"{value:,.2f}" if value % 1 and value < 1000 else f"{value:,.0f}" if value else "-"


# Chart ---------------------------------------------------------------------------------------------------------

MOST_BOXES, MOST_LINKS = 64, 6000
"""Boxes of a row, and pairs of nodes that links join, up to which every switch is drawn."""
TIER_COLOURS = ("#56b4e9", "#0072b2", "#009e73", "#e69f00", "#cc79a7", "#6450a8")
"""By tier: inside the scale-up domain, at the accelerators, and outwards (Okabe and Ito's colours)."""
_MARGIN, _HEAD, _ROW, _LEGEND, _ROLES = 40, 64, 140, 30, 90
"""Pixels: around, of the heading, from row to row, of the legend, and of the words left of the rows."""
_SMALL, _LARGE = (480.0, 110.0, 52.0, 11.0), (820.0, 420.0, 130.0, 30.0)
"""Least width, most pixels from box to box, half width and half height of boxes: of nodes, and of groups."""
_BELOW = -1
"""Row of the scale-up switches, under the accelerators."""
_CHARACTER = 6.8
"""Pixels of a character of a box's label."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Centre and half sizes of a box."""

    x: float
    y: float
    half_width: float
    half_height: float

    def rect(self, fabric: Fabric, nodes: Ints, *, failed: bool, title: str = "") -> str:
        """The box of some nodes."""
        fill = ACCELERATOR_BOX if nodes[0] < fabric.accelerators else BOX
        edges = {"x": self.x - self.half_width, "y": self.y - self.half_height}
        edges |= {"width": 2 * self.half_width, "height": 2 * self.half_height}
        look = {"rx": 3.0, "fill": fill, "stroke": FAILED if failed else INK}
        return _tag("rect", title, **edges, **look, stroke_dasharray="4 2" if failed else None)


@dataclass(frozen=True, slots=True, eq=False)
class _Bundle:
    """Links of one tier between two groups of nodes: all, those of one direction where both exist, what these can
    carry, and how many of them are down."""

    a: int
    b: int
    tier: int
    links: Ints
    forth: Ints
    capacity_Bps: float
    down: int


def fabric_svg(fabric: Fabric, *, aggregate: bool | None = None) -> str:
    """The fabric as an SVG picture.

    Args:
        aggregate: groups instead of single nodes; by default where there are too many to tell apart.
    """
    outside = fabric.tier != SCALE_UP
    pairs = list(zip(fabric.source[outside].tolist(), fabric.target[outside].tolist(), strict=True))
    hops = levels(range(fabric.accelerators), fabric.nodes, pairs)
    rows = [hop if hop >= 0 else _BELOW for hop in hops]
    if aggregate is None:
        boxes = Counter(rows)
        boxes[0] = len(np.unique(fabric.domain))
        aggregate = max(boxes.values()) > MOST_BOXES or fabric.links > 2 * MOST_LINKS
    box_of = _roles_joined(fabric, rows) if aggregate else _domains_joined(fabric, rows)
    members = [np.flatnonzero(box_of == box) for box in range(box_of.max() + 1)]
    box_rows = [max(rows[node] for node in nodes) for nodes in members]
    bundles = [bundle for bundle in _bundles(fabric, box_of) if aggregate or bundle.a != bundle.b]
    width, height, places = _places(box_rows, bundles, _LARGE if aggregate else _SMALL)
    first, widest = min(place.y for place in places), max((one.capacity_Bps for one in bundles), default=1.0)
    items: list[str] = []
    labels: list[str] = []
    taken: Counter[tuple[int, int]] = Counter()
    for bundle in sorted(bundles, key=lambda bundle: bundle.capacity_Bps):
        share = math.sqrt(bundle.capacity_Bps / widest)
        stroke = {
            "stroke": FAILED if bundle.down else _tier_colour(bundle.tier),
            "stroke_width": f"{2 + 10 * share if aggregate else 0.6 + 2.4 * share:.2f}",
        }
        stroke |= {"stroke_dasharray": "5 3"} if bundle.down else {} if aggregate else {"stroke_opacity": "0.75"}
        line, *spot = _line(places[bundle.a], places[bundle.b], taken[bundle.a, bundle.b], first, stroke)
        taken[bundle.a, bundle.b] += 1
        items.append(line)
        if aggregate:
            labels += _told(fabric, bundle, box_of, spot)
    items += (_group_boxes if aggregate else _boxes)(fabric, members, places) + labels

    legend, x = [], float(_MARGIN)
    joined = not aggregate and len(np.unique(fabric.domain)) > 1  # links of a domain are inside its box
    for colour, words in _meanings(fabric, {SCALE_UP} if joined else set()):
        ends = {"x1": x, "y1": height - 18, "x2": x + 26, "y2": height - 18}
        dash = "5 3" if colour == FAILED else None
        legend.append(_tag("line", **ends, stroke=colour, stroke_width="4", stroke_dasharray=dash))
        legend.append(_text(x + 32, height - 14, words, size=11))
        x += 50 + 7 * len(words)
    switches = sum(row > 0 for row in rows[fabric.accelerators :])
    subtitle = f"{counted(fabric.accelerators, 'accelerator')}, {counted(switches, 'scale-out switch')}"
    heading = [_text(_MARGIN, 28, fabric.name, size=17, bold=True), _text(_MARGIN, 48, subtitle, colour=MUTED)]
    title = f"<title>{escape(printable(fabric.name))}</title>\n"
    return _svg(max(width, x + _MARGIN), height, "\n".join([*items, *heading, *legend]), title)


def _bundles(fabric: Fabric, group: Ints) -> list[_Bundle]:
    """Links by the groups of their ends and by tier."""
    a, b = group[fabric.source], group[fabric.target]
    keys, of = np.unique(np.stack([np.minimum(a, b), np.maximum(a, b), fabric.tier]), axis=1, return_inverse=True)
    order = np.argsort(of, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(of, minlength=keys.shape[1]))[:-1]) if len(order) else []
    result = []
    for (x, y, tier), links in zip(keys.T.tolist(), members, strict=True):
        forth = links[fabric.source[links] < fabric.target[links]]
        forth = forth if len(forth) else links
        capacity_Bps, down = float(fabric.capacity_Bps[forth].sum()), int((~fabric.up[forth]).sum())
        result.append(_Bundle(x, y, tier, links, forth, capacity_Bps, down))
    return result


def _dead(fabric: Fabric) -> Mask:
    """Nodes all of whose links are down."""
    degree = np.bincount(fabric.source, minlength=fabric.nodes)
    alive = np.bincount(fabric.source[fabric.up], minlength=fabric.nodes)
    dead: Mask = (degree > 0) & (alive == 0)
    return dead


def _boxes(fabric: Fabric, members: Sequence[Ints], places: Sequence[_Place]) -> list[str]:
    """A box for every switch and every scale-up domain, and left of each row what it holds."""
    dead, items = _dead(fabric), []
    for place, nodes in zip(places, members, strict=True):
        name = fabric.names[nodes[0]] if len(nodes) == 1 else f"domain {int(fabric.domain[nodes[0]])}"
        title = f"<title>{escape(printable(name))}</title>"
        items.append(place.rect(fabric, nodes, failed=bool(dead[nodes].any()), title=title))
        number = re.search(r"\d*$", name)
        for label in (name, number[0] if number else ""):
            if label and _CHARACTER * len(label) < 2 * place.half_width:
                items.append(_text(place.x, place.y + 4, label, 11, "middle"))
                break
    for y in sorted({place.y for place in places}):
        inside = np.concatenate([nodes for place, nodes in zip(places, members, strict=True) if place.y == y])
        for i, (role, count) in enumerate(sorted(Counter(fabric.role[inside].tolist()).items())):
            items.append(_text(12, y + 4 + 14 * i, f"{count} {_plural(fabric.roles[role], count)}", size=11))
    return items


def _group_boxes(fabric: Fabric, members: Sequence[Ints], places: Sequence[_Place]) -> list[str]:
    """A box for the nodes of one role and row, with their number and ports."""
    ports = np.bincount(fabric.source, fabric.cables, fabric.nodes).astype(np.int64)
    dead, items = _dead(fabric), []
    for place, nodes in zip(places, members, strict=True):
        role, failed = fabric.roles[int(fabric.role[nodes[0]])], int(dead[nodes].sum())
        second = f"{_span(int(ports[nodes].min()), int(ports[nodes].max()))} ports in use each"
        if role == ACCELERATOR:
            second = f"in {counted(len(np.unique(fabric.domain)), 'scale-up domain')}"
        count = f"{len(nodes):,} {_plural(role, len(nodes))}"
        items.append(place.rect(fabric, nodes, failed=failed > 0))
        items.append(_text(place.x, place.y - 3, count, 14, "middle", bold=True))
        items.append(_text(place.x, place.y + 16, second, anchor="middle", colour=MUTED))
        if failed:
            note = f"{failed:,} of {len(nodes):,} failed"
            items.append(_text(place.x + place.half_width + 10, place.y + 4, note, colour=FAILED))
    return items


def _roles_joined(fabric: Fabric, rows: list[int]) -> Ints:
    """The box of each node: nodes of one role and row share one."""
    keys = np.stack([-np.array(rows), fabric.role])
    return np.unique(keys, axis=1, return_inverse=True)[1].ravel().astype(np.int64)


def _domains_joined(fabric: Fabric, rows: list[int]) -> Ints:
    """The box of each node: accelerators and scale-up switches share that of their domain where there are several."""
    domain = fabric.domain.tolist()
    links = zip(fabric.source.tolist(), fabric.target.tolist(), strict=True)
    switch_domain = {a: domain[b] for a, b in links if rows[a] == _BELOW and b < fabric.accelerators}
    several = len(set(domain)) > 1
    boxes: dict[tuple[str, int], int] = {}
    result = []
    for node in range(fabric.nodes):
        inside = domain[node] if node < fabric.accelerators else switch_domain.get(node)
        key = ("domain", inside) if several and inside is not None else ("node", node)
        result.append(boxes.setdefault(key, len(boxes)))
    return np.array(result, dtype=np.int64)


def _places(
    rows: Sequence[int], bundles: Sequence[_Bundle], size: tuple[float, float, float, float]
) -> tuple[float, float, list[_Place]]:
    """Width and height of a picture with a row of boxes for each hop, and the boxes, spread over the width."""
    least, most, half_width, half_height = size
    in_row = Counter(rows)
    width = max(least, max(17.0, min(most, 1100 / max(in_row.values()))) * max(in_row.values()))
    top, seen = max(rows), Counter[int]()
    arcs = [abs(bundle.a - bundle.b) for bundle in bundles if rows[bundle.a] == rows[bundle.b] == top]
    room = _rise(max(arcs) * width / in_row[top]) / 2 if arcs else 0.0
    places = []
    for row in rows:
        step = width / in_row[row]
        x, y = _MARGIN + _ROLES + step * (seen[row] + 0.5), _HEAD + 50.0 + _ROW * (top - row) + room
        seen[row] += 1
        places.append(_Place(x, y, min(step / 2 - 2, half_width), half_height))
    height = _HEAD + 50 + _ROW * (top - min(rows)) + 60 + _LEGEND + room
    return width + 2 * _MARGIN + _ROLES, height, places


def _rise(span: float) -> float:
    """Height of the control point of an arc between two nodes of a row."""
    return 14 + 0.22 * span


def _line(a: _Place, b: _Place, before: int, first: float, look: dict[str, str]) -> tuple[str, float, float, str]:
    """The line of links between two boxes, and where words on it stand, with their anchor.

    Within a row it is an arc, above the first row and below the others; at one box a loop, left and right in turn.

    Args:
        before: lines between the same boxes that are drawn already.
        first: place of the first row.
    """
    if a is b:
        side = -1 if before % 2 == 0 else 1
        edge, far = a.x + side * a.half_width, a.x + side * (a.half_width + 60)
        begin, end = f"{edge:.1f} {a.y - 14:.1f}", f"{edge:.1f} {a.y + 14:.1f}"
        path = f"M {begin} C {far:.1f} {a.y - 26:.1f} {far:.1f} {a.y + 26:.1f} {end}"
        spot = (far - side * 6, a.y - 2 + 30.0 * (before // 2), "end" if side < 0 else "start")
        return _tag("path", d=path, fill="none", **look), *spot
    if a.y == b.y:
        side = -1 if a.y == first else 1
        edge, middle = a.y + side * a.half_height, (a.x + b.x) / 2
        high = edge + side * (_rise(abs(b.x - a.x)) + 30 * before)
        path = f"M {a.x:.1f} {edge:.1f} Q {middle:.1f} {high:.1f} {b.x:.1f} {edge:.1f}"
        return _tag("path", d=path, fill="none", **look), middle, (edge + high) / 2 - 8, "middle"
    side, aside = 1 if a.y < b.y else -1, 190 * before
    ends = {"x1": a.x + aside, "y1": a.y + side * a.half_height, "x2": b.x + aside, "y2": b.y - side * b.half_height}
    return _tag("line", **ends, **look), (a.x + b.x) / 2 + aside + 20, (ends["y1"] + ends["y2"]) / 2 - 3, "start"


def _told(fabric: Fabric, bundle: _Bundle, group: Ints, spot: Sequence[Any]) -> tuple[str, str]:
    """Two lines of text on the links between two groups: cables of a node, their speed, and all of them."""
    x, y, anchor = spot
    of = bundle.a if bundle.tier == SCALE_UP else bundle.b
    cables = fabric.cables[bundle.forth]
    each = np.bincount(fabric.source[bundle.links], fabric.cables[bundle.links], fabric.nodes)[group == of]
    each = each[each > 0] if each.any() else np.array([cables.sum()])
    number = _span(int(each.min()), int(each.max()))
    rates = 8 * fabric.capacity_Bps[bundle.forth] / cables
    low, high = format_si(float(rates.min()), "b/s"), format_si(float(rates.max()), "b/s")
    speed = f"x {number} {'cable' if number == '1' else 'cables'} of {low if low == high else f'{low} to {high}'}"
    role = fabric.roles[int(fabric.role[np.flatnonzero(group == of)[0]])]
    total = f"per {_plural(role, 1)}, {int(cables.sum()):,} in all"
    if bundle.down:
        total += f", {bundle.down:,} of {counted(len(cables), 'link')} failed"
    colour = FAILED if bundle.down else MUTED
    return _text(x, y, speed, anchor=anchor), _text(x, y + 15, total, 11, anchor, colour=colour)


def _meanings(fabric: Fabric, hidden: set[int]) -> list[tuple[str, str]]:
    """Colours and what they stand for; no link of a ``hidden`` tier is drawn."""
    tiers = sorted(set(fabric.tier.tolist()) - hidden)
    result = [
        (_tier_colour(tier), "scale-up domain" if tier == SCALE_UP else f"network tier {tier}") for tier in tiers
    ]
    return result if fabric.up.all() else [*result, (FAILED, "failed")]


def _tier_colour(tier: int) -> str:
    return TIER_COLOURS[min(tier, len(TIER_COLOURS) - 1)]


def _plural(role: str, count: int) -> str:
    if role == ACCELERATOR:
        return role if count == 1 else "accelerators"
    if role in ("nic", "cpu", "pci"):
        return role.upper() if count == 1 else f"{role.upper()}s"
    ending = "" if count == 1 else "es"
    return f"switch{ending}" if role == "switch" else f"{role} switch{ending}"


def _span(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _svg(width: float, height: float, body: str, title: str = "") -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.0f} {height:.0f}" role="img"'
        f' font-family="DejaVu Sans, Verdana, Arial, sans-serif">\n{title}'
        f'<rect width="100%" height="100%" fill="{PAPER}"/>\n{body}\n</svg>\n'
    )


def _tag(name: str, content: str = "", /, **attributes: object) -> str:
    """An element; numbers to a tenth of a pixel, attributes that are None left out."""
    head = name
    for key, value in attributes.items():
        if value is not None:
            head += f' {key.replace("_", "-")}="{f"{value:.1f}" if isinstance(value, float) else value}"'
    return f"<{head}>{content}</{name}>" if content else f"<{head}/>"


def _text(
    x: float, y: float, text: str, size: int = 12, anchor: str = "start", *, bold: bool = False, colour: str = INK
) -> str:
    weight = "600" if bold else None
    look = {"font_size": size, "text_anchor": anchor, "fill": colour, "font_weight": weight}
    return _tag("text", escape(printable(text)), x=float(x), y=float(y), **look)
