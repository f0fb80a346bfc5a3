"""A picture of a fabric as SVG text: every node and link where it is small, groups of nodes where it is not.

Rows are hops from the accelerators; colours tell the tiers apart, widths the capacity, dashed red what has
failed.  A picture of loads has colours and widths that tell how busy links are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise

import numpy as np

from weft.fabric.assemble import ACCELERATOR, levels
from weft.fabric.spec import SCALE_UP, Fabric, Floats, Ints, Mask
from weft.units import counted, format_si
from weft.views.charts.blocks import block_words, blocks
from weft.views.charts.palette import ACCELERATOR_BOX, BOX, FAILED, INK, MUTED, PAPER
from weft.views.words import printable

MOST_NODES_DRAWN, MOST_ACCELERATORS_DRAWN, MOST_LINKS_DRAWN = 260, 128, 6000
TIER_COLOURS = ("#56b4e9", "#0072b2", "#009e73", "#e69f00", "#cc79a7", "#6450a8")
"""By tier: inside the scale-up domain, at the accelerators, and outwards (Okabe and Ito's colours)."""
LOAD_COLOURS = ("#9aa5b1", "#56b4e9", "#0072b2", "#e69f00", "#d55e00")
"""By load, as far as ``_STEPS`` of the highest."""
_STEPS = (0.1, 0.3, 0.6, 0.9)
ROUNDING = 1e-9
"""Share of the highest load that is none."""
_MARGIN, _HEAD, _ROW, _LEGEND = 40, 64, 130, 30
_BELOW = -1
"""Row of the scale-up switches, under the accelerators."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Centre and half sizes of a box."""

    x: float
    y: float
    half_width: float
    half_height: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    """How busy links are.

    Attributes:
        values: of every link of the fabric.
        most: what the last colour stands for; the same for pictures that stand beside each other.
        form: how a value is written, as ".0%".
        steps: where colours change, in ascending order; at shares of ``most`` by default.
    """

    values: Floats
    most: float
    form: str
    steps: tuple[float, ...] | None = None

    @property
    def ends(self) -> tuple[float, ...]:
        """The last value of every colour but the last."""
        return tuple(step * self.most for step in _STEPS) if self.steps is None else self.steps

    def colour(self, value: float) -> str:
        """The colour of a value."""
        return LOAD_COLOURS[sum(value > end + ROUNDING * self.most for end in self.ends)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Look:
    """What a picture tells beside the wiring."""

    load: Load | None

    def value(self, links: Ints | Mask) -> float:
        """The highest load among some links; 0 without loads."""
        return 0.0 if self.load is None else float(self.load.values[links].max(initial=0.0))

    def colour(self, tier: int, value: float) -> str:
        if self.load is not None:
            return self.load.colour(value)
        return TIER_COLOURS[min(tier, len(TIER_COLOURS) - 1)]

    def width(self, share: float, value: float) -> float:
        """From 0 to 1: of the load, or of the capacity."""
        if self.load is None:
            return math.sqrt(share)
        return min(1.0, value / self.load.most) if self.load.most > 0 else 0.0


def fabric_svg(fabric: Fabric, *, aggregate: bool | None = None, load: Load | None = None) -> str:
    """The fabric as an SVG picture.

    Args:
        aggregate: groups instead of single nodes; by default where there are too many to tell apart.
        load: colours links by how busy they are.
    """
    if aggregate is None:
        links = int((fabric.source < fabric.target).sum())
        aggregate = (
            fabric.nodes > MOST_NODES_DRAWN
            or fabric.accelerators > MOST_ACCELERATORS_DRAWN
            or links > MOST_LINKS_DRAWN
        )
    rows, look = _rows(fabric), _Look(load=load)
    return _aggregated(fabric, rows, look) if aggregate else _drawn(fabric, rows, look)


def _rows(fabric: Fabric) -> list[int]:
    """Hops of every node from the accelerators; -1 for what serves one scale-up domain only."""
    outside = fabric.tier != SCALE_UP
    pairs = list(zip(fabric.source[outside].tolist(), fabric.target[outside].tolist(), strict=True))
    hops = levels(range(fabric.accelerators), fabric.nodes, pairs)
    return [hop if hop >= 0 else _BELOW for hop in hops]


@dataclass(slots=True)
class _Pair:
    """All links between two nodes: capacity in bytes/s there and back, whether any is down, the highest load."""

    there_Bps: float = 0.0
    back_Bps: float = 0.0
    down: bool = False
    load: float = 0.0

    @property
    def capacity_Bps(self) -> float:
        return max(self.there_Bps, self.back_Bps)


def _pairs(fabric: Fabric, look: _Look) -> dict[tuple[int, int, int], _Pair]:
    """Links by their two nodes and tier."""
    found: dict[tuple[int, int, int], _Pair] = {}
    loads = np.zeros(fabric.links) if look.load is None else look.load.values
    columns = (fabric.source, fabric.target, fabric.tier, fabric.capacity_Bps, fabric.up, loads)
    for a, b, tier, capacity, up, load in zip(*(column.tolist() for column in columns), strict=True):
        pair = found.setdefault((min(a, b), max(a, b), tier), _Pair())
        pair.there_Bps += capacity if a < b else 0.0
        pair.back_Bps += capacity if a > b else 0.0
        pair.down |= not up
        pair.load = max(pair.load, load)
    return found


def _drawn(fabric: Fabric, rows: list[int], look: _Look) -> str:
    direct = max(rows) <= 0 and not any(row == _BELOW for row in rows)
    pairs = _pairs(fabric, look)
    width, height, places = _circle(fabric) if direct else _ranks(fabric, rows, list(pairs))
    first = min(place.y for place in places)
    widest = max((pair.capacity_Bps for pair in pairs.values()), default=1.0)
    items = _framed(fabric, blocks(fabric, np.array(rows)), places)
    for (a, b, tier), pair in sorted(pairs.items(), key=lambda item: (item[1].load, item[1].capacity_Bps)):
        colour = FAILED if pair.down else look.colour(tier, pair.load)
        thick = 1.5 if pair.down else 0.6 + 2.4 * look.width(pair.capacity_Bps / widest, pair.load)
        items.append(_line(places[a], places[b], colour, thick, pair.down, first))
    degree = np.bincount(fabric.source, minlength=fabric.nodes)
    down = degree - np.bincount(fabric.source[fabric.up], minlength=fabric.nodes)
    for node, place in enumerate(places):
        items.append(_node(fabric, node, place, failed=bool(degree[node] and degree[node] == down[node])))
    if not direct:
        items += _row_names(fabric, rows, places)
    return _document(fabric, width, height, items, look)


def _framed(fabric: Fabric, found: Sequence[Ints], places: Sequence[_Place]) -> list[str]:
    """A frame around every block, where these stand side by side."""
    frames = []
    for members in found:
        here = [places[node] for node in members.tolist()]
        left, right = min(one.x - one.half_width for one in here), max(one.x + one.half_width for one in here)
        top, bottom = min(one.y - one.half_height for one in here), max(one.y + one.half_height for one in here)
        frames.append((left, right, top, bottom))
    if any(a[1] > b[0] for a, b in pairwise(sorted(frames))):
        return []
    gap = min((b[0] - a[1] for a, b in pairwise(sorted(frames))), default=0.0)
    room = min(8.0, gap / 2 - 1)
    items = []
    for left, right, top, bottom in frames:
        corner = f'x="{left - room:.1f}" y="{top - 8:.1f}"'
        size = f'width="{right - left + 2 * room:.1f}" height="{bottom - top + 16:.1f}" rx="6"'
        items.append(f'<rect {corner} {size} fill="none" stroke="{MUTED}" stroke-dasharray="2 2"/>')
    return items


def _ranks(fabric: Fabric, rows: list[int], pairs: list[tuple[int, int, int]]) -> tuple[float, float, list[_Place]]:
    """One row per hop; the accelerators are spaced by domain, the others spread over the same width."""
    members: dict[int, list[int]] = {}
    for node, row in enumerate(rows):
        members.setdefault(row, []).append(node)
    gaps = np.concatenate([[0], np.cumsum(fabric.domain[1:] != fabric.domain[:-1])])
    step = max(17.0, min(60.0, 1100 / max(len(row) for row in members.values())))
    spans = {row: step * len(nodes) for row, nodes in members.items()}
    spans[0] += 8.0 * float(gaps[-1])
    left, width = _MARGIN + 90.0, max(480.0, *spans.values())
    top = max(rows)
    places: list[_Place | None] = [None] * fabric.nodes
    for row, nodes in members.items():
        y = _HEAD + 40 + _ROW * (top - row)
        for i, node in enumerate(nodes):
            if row == 0:
                x = left + (width - spans[0]) / 2 + step * (i + 0.5) + 8.0 * float(gaps[i])
            else:
                x = left + width * (i + 0.5) / len(nodes)
            half = min(step, width / len(nodes)) / 2 - 2
            places[node] = _Place(x, y, min(half, 7.0) if row == 0 else min(half, 26.0), 7.0)
    bottom = min(rows)
    height = _HEAD + 40 + _ROW * (top - bottom) + 50 + _LEGEND
    found = [place for place in places if place is not None]
    arcs = [abs(found[a].x - found[b].x) for a, b, _ in pairs if rows[a] == rows[b] == top]
    room = _rise(max(arcs)) / 2 if arcs else 0.0
    lowered = [replace(place, y=place.y + room) for place in found]
    return left + width + _MARGIN, height + room, lowered


def _rise(span: float) -> float:
    """Height of the control point of an arc between two nodes of a row."""
    return 14 + 0.22 * span


def _circle(fabric: Fabric) -> tuple[float, float, list[_Place]]:
    radius = max(180.0, 20.0 * fabric.nodes / (2 * math.pi))
    size = 2 * (radius + _MARGIN + 40)
    places = []
    for node in range(fabric.nodes):
        angle = 2 * math.pi * node / fabric.nodes - math.pi / 2
        x, y = size / 2 + radius * math.cos(angle), _HEAD + size / 2 - 30 + radius * math.sin(angle)
        places.append(_Place(x, y, 7.0, 7.0))
    return size, _HEAD + size + _LEGEND, places


def _line(a: _Place, b: _Place, colour: str, width: float, failed: bool, first: float) -> str:
    """A link; within a row an arc, above the first row and below the others."""
    dash = ' stroke-dasharray="5 3"' if failed else ' stroke-opacity="0.75"'
    if a.y == b.y:
        side = -1 if a.y == first else 1
        edge = a.y + side * a.half_height
        bend = f"{(a.x + b.x) / 2:.1f} {edge + side * _rise(abs(b.x - a.x)):.1f}"
        path = f"M {a.x:.1f} {edge:.1f} Q {bend} {b.x:.1f} {edge:.1f}"
        return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width:.2f}"{dash}/>'
    side = 1 if a.y < b.y else -1
    y1, y2 = a.y + side * a.half_height, b.y - side * b.half_height
    ends = f'x1="{a.x:.1f}" y1="{y1:.1f}" x2="{b.x:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width:.2f}"{dash}/>'


def _node(fabric: Fabric, node: int, place: _Place, *, failed: bool) -> str:
    """A box (round for accelerators) with its name as a tooltip."""
    accelerator = node < fabric.accelerators
    colour = FAILED if failed else INK
    fill = PAPER if failed else ACCELERATOR_BOX if accelerator else BOX
    dash = ' stroke-dasharray="4 2"' if failed else ""
    radius = place.half_width if accelerator else 2
    corner = f'x="{place.x - place.half_width:.1f}" y="{place.y - place.half_height:.1f}"'
    size = f'width="{2 * place.half_width:.1f}" height="{2 * place.half_height:.1f}" rx="{radius:.1f}"'
    title = f"<title>{escape(printable(fabric.names[node]))}</title>"
    return f'<rect {corner} {size} fill="{fill}" stroke="{colour}"{dash}>{title}</rect>'


def _row_names(fabric: Fabric, rows: list[int], places: list[_Place]) -> list[str]:
    items = []
    for row in sorted(set(rows)):
        nodes = [node for node in range(fabric.nodes) if rows[node] == row]
        counts = Counter(fabric.roles[int(fabric.role[node])] for node in nodes)
        y = places[nodes[0]].y
        for i, (role, count) in enumerate(counts.items()):
            items.append(_text(12, y + 4 + 14 * i, f"{count} {_plural(role, count)}", size=11))
    return items


def _plural(role: str, count: int) -> str:
    if role == ACCELERATOR:
        return role if count == 1 else "accelerators"
    if role in ("nic", "cpu", "pci"):
        return role.upper() if count == 1 else f"{role.upper()}s"
    ending = "" if count == 1 else "es"
    return f"switch{ending}" if role == "switch" else f"{role} switch{ending}"


def _aggregated(fabric: Fabric, rows: list[int], look: _Look) -> str:
    keys = [(row, int(role)) for row, role in zip(rows, fabric.role.tolist(), strict=True)]
    groups = sorted(set(keys), key=lambda key: (-key[0], key[1]))
    number = {key: i for i, key in enumerate(groups)}
    group = np.array([number[key] for key in keys], dtype=np.int64)
    places, width = _boxes(groups)
    items = []
    bundles = _bundles(fabric, group, look)
    widest = max((bundle.capacity_Bps for bundle in bundles), default=1.0)
    labels = []
    taken: Counter[tuple[int, int]] = Counter()
    for bundle in bundles:
        a, b = places[bundle.a], places[bundle.b]
        line, label = _bundle(
            a, b, bundle, widest, taken[bundle.a, bundle.b], _plural(fabric.roles[groups[bundle.of][1]], 1), look
        )
        taken[bundle.a, bundle.b] += 1
        items.append(line)
        labels += label
    ports = np.bincount(fabric.source, fabric.cables, fabric.nodes).astype(np.int64)
    failed = _dead(fabric)
    for i, key in enumerate(groups):
        items += _box(fabric, key[1], places[i], ports[group == i], int(failed[group == i].sum()))
    height = max(place.y for place in places) + 90 + _LEGEND
    return _document(fabric, width, height, [*items, *labels], look)


@dataclass(frozen=True, slots=True)
class _Bundle:
    """All links of one tier between two groups; ``each`` is the cables of one node of group ``of``, ``load`` the
    highest of a link."""

    a: int
    b: int
    tier: int
    links: int
    cables: int
    cable_Bps: tuple[float, float]
    capacity_Bps: float
    each: tuple[int, int]
    of: int
    down: int
    load: float


def _bundles(fabric: Fabric, group: Ints, look: _Look) -> list[_Bundle]:
    """Links by groups and tier, counted once where both directions exist."""
    a, b = group[fabric.source], group[fabric.target]
    low, high = np.minimum(a, b), np.maximum(a, b)
    keys, of = np.unique(np.stack([low, high, fabric.tier]), axis=1, return_inverse=True)
    found = []
    for i, (x, y, tier) in enumerate(keys.T.tolist()):
        chosen: Mask = of == i
        forth = chosen & (fabric.source < fabric.target)
        forth = forth if forth.any() else chosen
        per_cable = fabric.capacity_Bps[forth] / fabric.cables[forth]
        one = x if tier == SCALE_UP else y
        of_node = np.bincount(fabric.source[chosen], fabric.cables[chosen], fabric.nodes)[group == one]
        of_node = of_node[of_node > 0].astype(np.int64)
        if not len(of_node):
            of_node = np.array([int(fabric.cables[forth].sum())])
        found.append(
            _Bundle(
                a=x,
                b=y,
                tier=tier,
                links=int(forth.sum()),
                cables=int(fabric.cables[forth].sum()),
                cable_Bps=(float(per_cable.min()), float(per_cable.max())),
                capacity_Bps=float(fabric.capacity_Bps[forth].sum()),
                each=(int(of_node.min()), int(of_node.max())),
                of=one,
                down=int((~fabric.up[forth]).sum()),
                load=look.value(chosen),
            )
        )
    return found


def _dead(fabric: Fabric) -> Mask:
    degree = np.bincount(fabric.source, minlength=fabric.nodes)
    alive = np.bincount(fabric.source[fabric.up], minlength=fabric.nodes)
    dead: Mask = (degree > 0) & (alive == 0)
    return dead


def _boxes(groups: Sequence[tuple[int, int]]) -> tuple[list[_Place], float]:
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
    return places, width


def _box(fabric: Fabric, role: int, place: _Place, ports: Ints, failed: int) -> list[str]:
    accelerator = fabric.roles[role] == ACCELERATOR
    count = len(ports)
    corner = f'x="{place.x - place.half_width:.1f}" y="{place.y - place.half_height:.1f}"'
    size = f'width="{2 * place.half_width:.1f}" height="{2 * place.half_height:.1f}" rx="6"'
    look = f'fill="{ACCELERATOR_BOX if accelerator else BOX}" stroke="{FAILED if failed else INK}"'
    dash = ' stroke-dasharray="5 3"' if failed else ""
    if accelerator:
        domains = len(np.unique(fabric.domain))
        second = f"in {domains:,} scale-up {'domain' if domains == 1 else 'domains'}"
    else:
        second = f"{_span(int(ports.min()), int(ports.max()))} ports in use each"
    words = f"{count:,} {_plural(fabric.roles[role], count)}"
    items = [
        f"<rect {corner} {size} {look}{dash}/>",
        _text(place.x, place.y - 3, words, size=14, anchor="middle", bold=True),
        _text(place.x, place.y + 16, second, size=12, anchor="middle", colour=MUTED),
    ]
    if failed:
        note = f"{failed:,} of {count:,} failed"
        items.append(_text(place.x + place.half_width + 10, place.y + 4, note, colour=FAILED))
    return items


def _bundle(
    a: _Place, b: _Place, bundle: _Bundle, widest: float, before: int, one: str, look: _Look
) -> tuple[str, list[str]]:
    """The line of a bundle and its words; ``before`` counts those between the same boxes."""
    colour = FAILED if bundle.down and look.load is None else look.colour(bundle.tier, bundle.load)
    dash = ' stroke-dasharray="7 4"' if bundle.down else ""
    stroke = 2 + 10 * look.width(bundle.capacity_Bps / widest, bundle.load)
    if bundle.a == bundle.b:
        path, x, y, anchor = _loop(a, before)
    else:
        path, x, y = _upright(a, b, before)
        x, anchor = x + 14 + stroke / 2, "start"
    line = f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{stroke:.1f}"{dash}/>'
    low, high = (format_si(8 * rate, "b/s") for rate in bundle.cable_Bps)
    speed = low if low == high else f"{low} to {high}"
    each = f"x {_span(*bundle.each)} {'cable' if bundle.each == (1, 1) else 'cables'} of {speed}"
    total = f"per {one}, {bundle.cables:,} in all"
    if bundle.down:
        total += f", {bundle.down:,} of {counted(bundle.links, 'link')} failed"
    if look.load is not None:
        each += f"; busiest {bundle.load:{look.load.form}}"
    return line, [
        _text(x, y, each, anchor=anchor),
        _text(x, y + 15, total, size=11, anchor=anchor, colour=FAILED if bundle.down else MUTED),
    ]


def _upright(a: _Place, b: _Place, before: int) -> tuple[str, float, float]:
    """A line between boxes of two rows (at the narrower one), or of one, and where its words begin."""
    if a.y == b.y:
        side = 1 if a.x < b.x else -1
        path = f"M {a.x + side * a.half_width:.1f} {a.y:.1f} L {b.x - side * b.half_width:.1f} {b.y:.1f}"
        return path, (a.x + b.x) / 2 - 70, a.y - 26 - 30 * before
    narrow = a if a.half_width < b.half_width else b
    x1, x2 = (narrow.x, narrow.x) if a.half_width != b.half_width else (a.x, b.x)
    x1, x2 = x1 + 190 * before, x2 + 190 * before
    y1, y2 = (a.y + a.half_height, b.y - b.half_height) if a.y < b.y else (a.y - a.half_height, b.y)
    return f"M {x1:.1f} {y1:.1f} L {x2:.1f} {y2:.1f}", (x1 + x2) / 2, (y1 + y2) / 2 - 3


def _loop(a: _Place, before: int) -> tuple[str, float, float, str]:
    """A loop at a box, left and right in turn, and where its words begin or end."""
    side = -1 if before % 2 == 0 else 1
    edge, far = a.x + side * a.half_width, a.x + side * (a.half_width + 60)
    path = f"M {edge:.1f} {a.y - 14:.1f} C {far:.1f} {a.y - 26:.1f} {far:.1f} {a.y + 26:.1f}"
    path += f" {edge:.1f} {a.y + 14:.1f}"
    return path, far - side * 6, a.y - 2 + 30.0 * (before // 2), "end" if side < 0 else "start"


def _span(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _document(fabric: Fabric, width: float, height: float, items: Sequence[str], look: _Look) -> str:
    legend, x = [], float(_MARGIN)
    for colour, words in _meanings(fabric, look):
        dash = ' stroke-dasharray="5 3"' if colour == FAILED else ""
        legend += _key(x, height - 14, colour, words, dash)
        x += 50 + 7 * len(words)
    width = max(width, x + _MARGIN)
    rows = np.array(_rows(fabric))
    switches, found = int((rows[fabric.accelerators :] > 0).sum()), blocks(fabric, rows)
    subtitle = f"{counted(fabric.accelerators, 'accelerator')}, {counted(switches, 'scale-out switch')}"
    subtitle += block_words(fabric, found)
    heading = [_text(_MARGIN, 28, fabric.name, size=17, bold=True), _text(_MARGIN, 48, subtitle, colour=MUTED)]
    body = "\n".join([*items, *heading, *legend])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.0f} {height:.0f}" role="img"'
        ' font-family="DejaVu Sans, Verdana, Arial, sans-serif">\n'
        f"<title>{escape(printable(fabric.name))}</title>\n"
        f'<rect width="100%" height="100%" fill="{PAPER}"/>\n{body}\n</svg>\n'
    )


def _meanings(fabric: Fabric, look: _Look) -> list[tuple[str, str]]:
    """Colours and what they stand for."""
    if look.load is None:
        tiers = sorted(set(fabric.tier.tolist()))
        names = ["scale-up domain" if tier == SCALE_UP else f"network tier {tier}" for tier in tiers]
        found = list(zip((look.colour(tier, 0.0) for tier in tiers), names, strict=True))
    elif look.load.most <= 0:
        found = [(LOAD_COLOURS[0], "no load")]
    else:
        ends = [*(end for end in look.load.ends if end < look.load.most), look.load.most]
        names = [f"to {end:{look.load.form}}" if end else "no load" for end in ends]
        found = list(zip(LOAD_COLOURS, names, strict=False))
    return found if fabric.up.all() else [*found, (FAILED, "failed")]


def _key(x: float, y: float, colour: str, words: str, dash: str) -> list[str]:
    ends = f'x1="{x:.1f}" y1="{y - 4:.1f}" x2="{x + 26:.1f}" y2="{y - 4:.1f}"'
    return [f'<line {ends} stroke="{colour}" stroke-width="4"{dash}/>', _text(x + 32, y, words, size=11)]


def _text(
    x: float, y: float, text: str, *, size: int = 12, bold: bool = False, anchor: str = "start", colour: str = INK
) -> str:
    weight = ' font-weight="600"' if bold else ""
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {place}{weight}>{escape(printable(text))}</text>"
