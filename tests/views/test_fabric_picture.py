"""Pictures of fabrics: well-formed, complete where small, grouped where large."""

import itertools
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from weft.fabric.assemble import Cable, Node, assemble
from weft.fabric.dimension import Dimension
from weft.fabric.families import clos, rail
from weft.views.charts import FAILED
from weft.views.fabric import LOAD_COLOURS, TIER_COLOURS, Load, fabric_svg

DOMAIN = Dimension(kind="switch", size=8, bandwidth_Bps=450e9)
SVG = "{http://www.w3.org/2000/svg}"


def parsed(text):
    assert text.isascii()
    return ET.fromstring(text)


def words(root):
    return [element.text for element in root.iter(f"{SVG}text")]


def test_sixty_four_accelerators_show_every_switch_and_domain_and_what_cables_join():
    fabric = rail.optimized(64, radix=16, bandwidth_Bps=50e9, scale_up=DOMAIN)
    root = parsed(fabric_svg(fabric))
    nodes = [element for element in root.iter(f"{SVG}rect") if element.find(f"{SVG}title") is not None]
    switches = [
        name for name, role in zip(fabric.names, fabric.role, strict=True) if fabric.roles[role] in ("leaf", "spine")
    ]
    boxes = [*(f"domain {number}" for number in range(8)), *switches]
    assert [node.find(f"{SVG}title").text for node in nodes] == boxes
    assert set(boxes) <= set(words(root))
    legend = 2
    box = [fabric.domain[node] if node < 64 else -node for node in range(fabric.nodes)]
    outside = fabric.tier > 0
    pairs = {frozenset((box[a], box[b])) for a, b in zip(fabric.source[outside], fabric.target[outside], strict=True)}
    assert len(pairs) < fabric.links // 2
    assert len(list(root.iter(f"{SVG}line"))) == len(pairs) + legend
    assert "64 accelerators" in words(root)


def test_boxes_of_a_row_do_not_overlap():
    fabric = rail.optimized(64, radix=16, bandwidth_Bps=50e9, scale_up=DOMAIN)
    rows = {}
    for rect in parsed(fabric_svg(fabric)).iter(f"{SVG}rect"):
        if rect.find(f"{SVG}title") is not None:
            rows.setdefault(rect.get("y"), []).append((float(rect.get("x")), float(rect.get("width"))))
    for row in rows.values():
        row.sort()
        assert all(x + width <= after for (x, width), (after, _) in itertools.pairwise(row))


def test_sixteen_thousand_accelerators_are_grouped():
    fabric = rail.optimized(16384, radix=128, bandwidth_Bps=50e9, scale_up=DOMAIN)
    text = fabric_svg(fabric)
    assert len(text) < 20_000
    found = words(parsed(text))
    for expected in (
        "16,384 accelerators",
        "in 2,048 scale-up domains",
        "256 leaf switches",
        "128 ports in use each",
        "x 64 cables of 400 Gb/s",
        "per leaf switch, 16,384 in all",
        "128 core switches",
    ):
        assert expected in found


def test_failures_are_red_and_counted():
    fabric = clos.build(64, radix=16, bandwidth_Bps=50e9, scale_up=DOMAIN)
    assert FAILED not in fabric_svg(fabric)
    broken = fabric.failed(nodes=fabric.nodes_of("leaf")[:1])
    assert FAILED in fabric_svg(broken)
    found = words(parsed(fabric_svg(broken, aggregate=True)))
    assert "1 of 8 failed" in found
    assert any("8 of 64 links failed" in (text or "") for text in found)


@pytest.mark.parametrize("aggregate", [False, True])
def test_a_ring_without_switches_and_hostile_names(aggregate):
    nodes = [Node(name=f"<{i}&\"'", role="accelerator", place="") for i in range(6)]
    links = [Cable(source=nodes[i].name, target=nodes[(i + 1) % 6].name, capacity_Bps=1e9, place="") for i in range(6)]
    root = parsed(fabric_svg(assemble("<b>&", nodes, links, where="x"), aggregate=aggregate))
    assert root.find(f"{SVG}title").text == "<b>&"


@pytest.mark.parametrize("aggregate", [False, True])
def test_loads_have_colours_and_a_scale(aggregate):
    fabric = clos.build(64, radix=16, bandwidth_Bps=50e9, scale_up=DOMAIN)
    values = np.zeros(fabric.links)
    busy = int(np.flatnonzero(fabric.tier == 2)[3])
    values[busy] = 0.5
    text = fabric_svg(fabric, aggregate=aggregate, load=Load(values=values, most=0.5))
    lines = [
        one
        for one in text.splitlines()
        if "stroke-width" in one and "rect" not in one and 'stroke-width="4"' not in one
    ]
    drawn = [one for one in lines if f'stroke="{LOAD_COLOURS[1]}"' in one]
    assert len(drawn) == 1
    assert sum(f'stroke="{LOAD_COLOURS[0]}"' in one for one in lines) == len(lines) - 1
    assert "to 0.5" in words(parsed(text))
    assert not any(f'stroke="{colour}"' in "".join(lines) for colour in TIER_COLOURS if colour not in LOAD_COLOURS)
