"""Pictures of fabrics as SVG text: a box for each switch and scale-up domain, or for groups of nodes in large ones.

Rows are hops from the accelerators; colours tell the tiers apart, widths the capacity, dashed red what has
failed.  A picture of loads has colours and widths that tell how busy links are.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from weft.fabric.assemble import ACCELERATOR, levels
from weft.fabric.checks import components
from weft.fabric.spec import SCALE_UP, Fabric, Floats, Ints, Mask
from weft.units import counted, format_si
from weft.views.charts.palette import ACCELERATOR_BOX, BOX, FAILED, INK, MUTED, PAPER
from weft.views.words import printable

if TYPE_CHECKING:
    from weft.routing.plan import RoutePlan

MOST_BOXES, MOST_LINKS = 64, 6000
"""Boxes of a row, and pairs of nodes that links join, up to which every switch is drawn."""
TIER_COLOURS = ("#56b4e9", "#0072b2", "#009e73", "#e69f00", "#cc79a7", "#6450a8")
"""By tier: inside the scale-up domain, at the accelerators, and outwards (Okabe and Ito's colours)."""
LOAD_COLOURS = ("#9aa5b1", "#56b4e9", "#0072b2", "#e69f00", "#d55e00")
"""By load, which changes them at ``LOAD_STEPS``."""
LOAD_STEPS = (0.0, 0.5, 1.0, 2.0)
"""Of 1 a link is asked for what it has."""
ROUNDING = 1e-9
"""Share of the highest load that is none."""
_MARGIN, _HEAD, _ROW, _LEGEND = 40, 64, 130, 30
_BELOW = -1
"""Row of the scale-up switches, under the accelerators."""
_CHARACTER = 6.8
"""Pixels of a character of a box's label."""
_SIZE = re.compile(r'width="(\d+)" height="(\d+)"')


@dataclass(frozen=True, slots=True)
class _Place:
    """Centre and half sizes of a box."""

    x: float
    y: float
    half_width: float
    half_height: float

    def rect(self, **look: object) -> str:
        return _tag("rect", **self.edges(), **look)

    def edges(self) -> dict[str, float]:
        return {
            "x": self.x - self.half_width,
            "y": self.y - self.half_height,
            "width": 2 * self.half_width,
            "height": 2 * self.half_height,
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    """How busy links are: demand over capacity of every link, and the most in all pictures that are compared."""

    values: Floats
    most: float


@dataclass(frozen=True, slots=True, eq=False)
class _Bundle:
    """Links of one tier between two groups of nodes: all, those of one direction where both exist, what these can
    carry, how many of them are down, and the highest load of all."""

    a: int
    b: int
    tier: int
    links: Ints
    forth: Ints
    capacity_Bps: float
    down: int
    load: float

    def colour(self, load: Load | None) -> str:
        if load is None:
            return _tier_colour(self.tier)
        return LOAD_COLOURS[sum(self.load > end + ROUNDING * load.most for end in LOAD_STEPS)]

    def thickness(self, load: Load | None, widest_Bps: float) -> float:
        """From 0 to 1: of the load, or of the capacity."""
        if load is None:
            return math.sqrt(self.capacity_Bps / widest_Bps)
        return min(1.0, self.load / load.most) if load.most > 0 else 0.0


def fabric_svg(fabric: Fabric, *, aggregate: bool | None = None, load: Load | None = None) -> str:
    """The fabric as an SVG picture.

    Args:
        aggregate: groups instead of single nodes; by default where there are too many to tell apart.
        load: colours links by how busy they are.
    """
    outside = fabric.tier != SCALE_UP
    pairs = list(zip(fabric.source[outside].tolist(), fabric.target[outside].tolist(), strict=True))
    hops = levels(range(fabric.accelerators), fabric.nodes, pairs)
    rows = [hop if hop >= 0 else _BELOW for hop in hops]
    repeated = blocks(fabric, np.array(rows))
    if aggregate is None:
        boxes = Counter(rows)
        boxes[0] = len(np.unique(fabric.domain))
        aggregate = max(boxes.values()) > MOST_BOXES or fabric.links > 2 * MOST_LINKS
    width, height, items = (_grouped if aggregate else _whole)(fabric, rows, repeated, load)

    legend, x = [], float(_MARGIN)
    joined = not aggregate and len(np.unique(fabric.domain)) > 1  # links of a domain are inside its box
    for colour, words in _meanings(fabric, load, {SCALE_UP} if joined else set()):
        line = {"x1": x, "y1": height - 18, "x2": x + 26, "y2": height - 18}
        dash = "5 3" if colour == FAILED else None
        legend.append(_tag("line", **line, stroke=colour, stroke_width="4", stroke_dasharray=dash))
        legend.append(_text(x + 32, height - 14, words, size=11))
        x += 50 + 7 * len(words)
    switches = sum(row > 0 for row in rows[fabric.accelerators :])
    subtitle = f"{counted(fabric.accelerators, 'accelerator')}, {counted(switches, 'scale-out switch')}"
    if repeated:
        routers = fabric.roles[int(fabric.role[repeated[0][0]])] == "router"
        subtitle += f" in {len(repeated):,} {'groups' if routers else 'blocks'}"
    heading = [_text(_MARGIN, 28, fabric.name, size=17, bold=True), _text(_MARGIN, 48, subtitle, colour=MUTED)]
    title = f"<title>{escape(printable(fabric.name))}</title>\n"
    return _svg(max(width, x + _MARGIN), height, "\n".join([*items, *heading, *legend]), title)


def routes_svg(plans: Sequence[RoutePlan]) -> str:
    """How busy routes leave the links of a fabric, coloured by demand over capacity on one scale: a picture for every
    router, one under the other.

    Args:
        plans: routes of the same flows, in the order in which they are drawn.
    """
    most = max(plan.alpha for plan in plans)
    items, width, top = [], 0, 0
    for plan in plans:
        drawn = fabric_svg(plan.fabric, load=Load(values=plan.load, most=most))
        size = _SIZE.search(drawn)
        assert size is not None
        over = int((plan.load > 1 + ROUNDING).sum())
        more = f"{over:,} {'links are' if over > 1 else 'link is'}" if over else "no link is"
        words = f"up to {plan.alpha:.3g} x a link's capacity is asked of it; {more} asked for more than 1 x"
        items.append(_text(_MARGIN, top + 24, f"{plan.router}: {words}", size=15, bold=True))
        items.append(drawn.replace("<svg ", f'<svg y="{top + 34}" ', 1))
        width, top = max(width, int(size[1])), top + 34 + int(size[2])
    return _svg(width, top, "".join(items))


def blocks(fabric: Fabric, rows: Ints) -> list[Ints]:
    """What large networks repeat, as groups of a dragonfly and pods of a Clos: scale-out switches that links of inner
    tiers join, each block's in order; empty where there is one or none.

    Args:
        rows: hops of every node from the accelerators; more than 0 for a scale-out switch.
    """
    between = (rows[fabric.source] > 0) & (rows[fabric.target] > 0) & (fabric.tier != SCALE_UP)
    if not between.any():
        return []
    inner = between & (fabric.tier < fabric.tier[between].max())
    block = components(fabric.nodes, fabric.source[inner], fabric.target[inner])
    members = [np.flatnonzero((block == number) & (rows > 0)) for number in np.unique(block[rows > 0])]
    result = [nodes for nodes in members if len(nodes) > 1]
    return result if len(result) > 1 else []


def _bundles(fabric: Fabric, group: Ints, load: Load | None) -> list[_Bundle]:
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
        busiest = 0.0 if load is None else float(load.values[links].max())
        result.append(_Bundle(x, y, tier, links, forth, capacity_Bps, down, busiest))
    return result


def _dead(fabric: Fabric) -> Mask:
    """Nodes all of whose links are down."""
    degree = np.bincount(fabric.source, minlength=fabric.nodes)
    alive = np.bincount(fabric.source[fabric.up], minlength=fabric.nodes)
    dead: Mask = (degree > 0) & (alive == 0)
    return dead


# Every node and link ------------------------------------------------------------------------------------------------


def _whole(fabric: Fabric, rows: list[int], repeated: list[Ints], load: Load | None) -> tuple[float, float, list[str]]:
    """Size and elements of a picture with a box for every switch and every scale-up domain."""
    box_of = _domains_joined(fabric, rows)
    members = [np.flatnonzero(box_of == box) for box in range(box_of.max() + 1)]
    box_rows = [max(rows[node] for node in nodes) for nodes in members]
    bundles = [bundle for bundle in _bundles(fabric, box_of, load) if bundle.a != bundle.b]
    width, height, places = _ranks(box_rows, bundles)
    first = min(place.y for place in places)
    widest = max((bundle.capacity_Bps for bundle in bundles), default=1.0)
    items = _framed([np.unique(box_of[nodes]) for nodes in repeated], places)
    for bundle in sorted(bundles, key=lambda bundle: (bundle.load, bundle.capacity_Bps)):
        items.append(_link(bundle, places[bundle.a], places[bundle.b], first, load, widest))
    dead = _dead(fabric)
    for place, nodes in zip(places, members, strict=True):
        failed = bool(dead[nodes].any())
        name = fabric.names[nodes[0]] if len(nodes) == 1 else f"domain {int(fabric.domain[nodes[0]])}"
        look = {
            "rx": 3.0,
            "fill": PAPER if failed else ACCELERATOR_BOX if nodes[0] < fabric.accelerators else BOX,
            "stroke": FAILED if failed else INK,
            "stroke_dasharray": "4 2" if failed else None,
        }
        items.append(_tag("rect", f"<title>{escape(printable(name))}</title>", **place.edges(), **look))
        number = re.search(r"\d*$", name)
        for label in (name, number[0] if number else ""):
            if label and _CHARACTER * len(label) < 2 * place.half_width:
                items.append(_text(place.x, place.y + 4, label, 11, "middle"))
                break
    for row in sorted(set(box_rows)):
        roles = Counter(
            int(fabric.role[node]) for nodes, at in zip(members, box_rows, strict=True) if at == row for node in nodes
        )
        y = next(place.y for place, at in zip(places, box_rows, strict=True) if at == row)
        for i, (role, count) in enumerate(roles.items()):
            items.append(_text(12, y + 4 + 14 * i, f"{count} {_plural(fabric.roles[role], count)}", size=11))
    return width, height, items


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


def _framed(repeated: list[Ints], places: Sequence[_Place]) -> list[str]:
    """A frame around every block, where these stand side by side."""
    frames = []
    for members in repeated:
        here = [places[node] for node in members.tolist()]
        left, right = min(place.x - place.half_width for place in here), max(p.x + p.half_width for p in here)
        top, bottom = min(place.y - place.half_height for place in here), max(p.y + p.half_height for p in here)
        frames.append((left, right, top, bottom))
    gaps = [b[0] - a[1] for a, b in pairwise(sorted(frames))]
    if not gaps or min(gaps) < 0:
        return []
    room = min(8.0, min(gaps) / 2 - 1)
    return [
        _Place((left + right) / 2, (top + bottom) / 2, (right - left) / 2 + room, (bottom - top) / 2 + 8).rect(
            rx="6", fill="none", stroke=MUTED, stroke_dasharray="2 2"
        )
        for left, right, top, bottom in frames
    ]


def _ranks(rows: list[int], bundles: list[_Bundle]) -> tuple[float, float, list[_Place]]:
    """One row per hop, its boxes spread over the width."""
    in_row = Counter(rows)
    width = max(480.0, max(17.0, min(110.0, 1100 / max(in_row.values()))) * max(in_row.values()))
    top, seen = max(rows), Counter[int]()
    arcs = [abs(bundle.a - bundle.b) for bundle in bundles if rows[bundle.a] == rows[bundle.b] == top]
    room = _rise(max(arcs) * width / in_row[top]) / 2 if arcs else 0.0
    places = []
    for row in rows:
        step = width / in_row[row]
        x = _MARGIN + 90.0 + step * (seen[row] + 0.5)
        seen[row] += 1
        places.append(_Place(x, _HEAD + 40 + _ROW * (top - row) + room, min(step / 2 - 2, 52.0), 11.0))
    height = _HEAD + 40 + _ROW * (top - min(rows)) + 50 + _LEGEND + room
    return width + 2 * _MARGIN + 90, height, places


def _rise(span: float) -> float:
    """Height of the control point of an arc between two nodes of a row."""
    return 14 + 0.22 * span


def _link(bundle: _Bundle, a: _Place, b: _Place, first: float, load: Load | None, widest_Bps: float) -> str:
    """Links between two nodes; within a row an arc, above the first row and below the others."""
    width = 1.5 if bundle.down else 0.6 + 2.4 * bundle.thickness(load, widest_Bps)
    look = {
        "stroke": FAILED if bundle.down else bundle.colour(load),
        "stroke_width": f"{width:.2f}",
        "stroke_dasharray": "5 3" if bundle.down else None,
        "stroke_opacity": None if bundle.down else "0.75",
    }
    if a.y == b.y:
        side = -1 if a.y == first else 1
        edge = a.y + side * a.half_height
        bend = f"{(a.x + b.x) / 2:.1f} {edge + side * _rise(abs(b.x - a.x)):.1f}"
        return _tag("path", d=f"M {a.x:.1f} {edge:.1f} Q {bend} {b.x:.1f} {edge:.1f}", fill="none", **look)
    side = 1 if a.y < b.y else -1
    return _tag("line", x1=a.x, y1=a.y + side * a.half_height, x2=b.x, y2=b.y - side * b.half_height, **look)


# Groups of nodes ----------------------------------------------------------------------------------------------------


def _grouped(
    fabric: Fabric, rows: list[int], repeated: list[Ints], load: Load | None
) -> tuple[float, float, list[str]]:
    """Size and elements of a picture with a box for the nodes of one role and row."""
    keys = [(row, int(role)) for row, role in zip(rows, fabric.role.tolist(), strict=True)]
    groups = sorted(set(keys), key=lambda key: (-key[0], key[1]))
    group = np.array([groups.index(key) for key in keys], dtype=np.int64)
    width, places = _boxes(groups)
    bundles = _bundles(fabric, group, load)
    widest = max((bundle.capacity_Bps for bundle in bundles), default=1.0)
    lines, labels = [], []
    taken: Counter[tuple[int, int]] = Counter()
    for bundle in bundles:
        line, x, y, anchor = _cable(bundle, places, taken[bundle.a, bundle.b], load, widest)
        taken[bundle.a, bundle.b] += 1
        lines.append(line)
        of = bundle.a if bundle.tier == SCALE_UP else bundle.b
        cables = fabric.cables[bundle.forth]
        each = np.bincount(fabric.source[bundle.links], fabric.cables[bundle.links], fabric.nodes)[group == of]
        each = each[each > 0] if each.any() else np.array([cables.sum()])
        number = _span(int(each.min()), int(each.max()))
        rates = 8 * fabric.capacity_Bps[bundle.forth] / cables
        low, high = format_si(float(rates.min()), "b/s"), format_si(float(rates.max()), "b/s")
        speed = f"x {number} {'cable' if number == '1' else 'cables'} of {low if low == high else f'{low} to {high}'}"
        total = f"per {_plural(fabric.roles[groups[of][1]], 1)}, {int(cables.sum()):,} in all"
        if bundle.down:
            total += f", {bundle.down:,} of {counted(len(cables), 'link')} failed"
        if load is not None:
            speed += f"; busiest {bundle.load:.3g}"
        labels.append(_text(x, y, speed, anchor=anchor))
        labels.append(_text(x, y + 15, total, 11, anchor, colour=FAILED if bundle.down else MUTED))
    ports = np.bincount(fabric.source, fabric.cables, fabric.nodes).astype(np.int64)
    dead = _dead(fabric)
    boxes = [
        element
        for i, (_, role) in enumerate(groups)
        for element in _box(
            fabric, role, places[i], ports[group == i], int(dead[group == i].sum()), _blocks_of(group == i, repeated)
        )
    ]
    return width, max(place.y for place in places) + 90 + _LEGEND, [*lines, *boxes, *labels]


def _boxes(groups: Sequence[tuple[int, int]]) -> tuple[float, list[_Place]]:
    """A row of boxes per hop; one alone in its row is as wide as the widest row, for upright lines."""
    in_row = Counter(row for row, _ in groups)
    widest = max(in_row.values())
    width = max(900.0, 2 * _MARGIN + 420.0 * widest)
    order = sorted(in_row, reverse=True)
    seen: Counter[int] = Counter()
    places = []
    for row, _ in groups:
        x = width / 2 + 420.0 * (seen[row] - (in_row[row] - 1) / 2)
        seen[row] += 1
        half = 130.0 + (210.0 * (widest - 1) if in_row[row] == 1 else 0.0)
        places.append(_Place(x, _HEAD + 50 + 150.0 * order.index(row), half, 30.0))
    return width, places


def _blocks_of(inside: Mask, repeated: list[Ints]) -> str:
    """In words, how many blocks hold the nodes of a group, and how many nodes each."""
    sizes = {count for nodes in repeated if (count := int(inside[nodes].sum()))}
    return f"{len(repeated):,} blocks of {_span(min(sizes), max(sizes))}, " if sizes else ""


def _box(fabric: Fabric, role: int, place: _Place, ports: Ints, failed: int, in_blocks: str) -> list[str]:
    accelerator = fabric.roles[role] == ACCELERATOR
    count = len(ports)
    second = f"{in_blocks}{_span(int(ports.min()), int(ports.max()))} ports in use each"
    if accelerator:
        second = f"in {counted(len(np.unique(fabric.domain)), 'scale-up domain')}"
    fill, stroke = ACCELERATOR_BOX if accelerator else BOX, FAILED if failed else INK
    items = [
        place.rect(rx="6", fill=fill, stroke=stroke, stroke_dasharray="5 3" if failed else None),
        _text(place.x, place.y - 3, f"{count:,} {_plural(fabric.roles[role], count)}", 14, "middle", bold=True),
        _text(place.x, place.y + 16, second, anchor="middle", colour=MUTED),
    ]
    if failed:
        note = f"{failed:,} of {count:,} failed"
        items.append(_text(place.x + place.half_width + 10, place.y + 4, note, colour=FAILED))
    return items


def _cable(
    bundle: _Bundle, places: list[_Place], before: int, load: Load | None, widest_Bps: float
) -> tuple[str, float, float, str]:
    """The line of a bundle, and where its words stand; ``before`` counts those between the same boxes."""
    a, b = places[bundle.a], places[bundle.b]
    stroke = 2 + 10 * bundle.thickness(load, widest_Bps)
    if bundle.a == bundle.b:  # a loop at the box, left and right in turn
        side = -1 if before % 2 == 0 else 1
        edge, far = a.x + side * a.half_width, a.x + side * (a.half_width + 60)
        path = f"M {edge:.1f} {a.y - 14:.1f} C {far:.1f} {a.y - 26:.1f} {far:.1f} {a.y + 26:.1f}"
        path += f" {edge:.1f} {a.y + 14:.1f}"
        x, y, anchor = far - side * 6, a.y - 2 + 30.0 * (before // 2), "end" if side < 0 else "start"
    elif a.y == b.y:
        side = 1 if a.x < b.x else -1
        path = f"M {a.x + side * a.half_width:.1f} {a.y:.1f} L {b.x - side * b.half_width:.1f} {b.y:.1f}"
        x, y, anchor = (a.x + b.x) / 2 - 56 + stroke / 2, a.y - 26 - 30 * before, "start"
    else:  # upright at the narrower box
        narrow = a if a.half_width < b.half_width else b
        x1, x2 = (narrow.x, narrow.x) if a.half_width != b.half_width else (a.x, b.x)
        x1, x2 = x1 + 190 * before, x2 + 190 * before
        y1, y2 = (a.y + a.half_height, b.y - b.half_height) if a.y < b.y else (a.y - a.half_height, b.y)
        path = f"M {x1:.1f} {y1:.1f} L {x2:.1f} {y2:.1f}"
        x, y, anchor = (x1 + x2) / 2 + 14 + stroke / 2, (y1 + y2) / 2 - 3, "start"
    colour = FAILED if bundle.down and load is None else bundle.colour(load)
    dash = "7 4" if bundle.down else None
    line = _tag("path", d=path, fill="none", stroke=colour, stroke_width=stroke, stroke_dasharray=dash)
    return line, x, y, anchor


# Words and elements -------------------------------------------------------------------------------------------------


def _meanings(fabric: Fabric, load: Load | None, hidden: set[int]) -> list[tuple[str, str]]:
    """Colours and what they stand for; no link of a ``hidden`` tier is drawn."""
    if load is None:
        tiers = sorted(set(fabric.tier.tolist()) - hidden)
        names = ["scale-up domain" if tier == SCALE_UP else f"network tier {tier}" for tier in tiers]
        result = list(zip((_tier_colour(tier) for tier in tiers), names, strict=True))
    elif load.most <= 0:
        result = [(LOAD_COLOURS[0], "no load")]
    else:
        ends = [*(end for end in LOAD_STEPS if end < load.most), load.most]
        words = [f"to {end:.3g}" if end else "no load" for end in ends]
        result = list(zip(LOAD_COLOURS, words, strict=False))
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
