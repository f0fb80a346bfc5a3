"""Pictures of fabrics: well-formed, complete where small, grouped where large."""

import itertools
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from weft.fabric.assemble import Cable, Node, assemble
from weft.fabric.dimension import Dimension
from weft.fabric.families import clos, rail
from weft.views.charts import DARK, FAILED, INK, alone, scheme_css
from weft.views.fabric import fabric_svg

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


def test_one_accelerator():
    fabric = assemble("one", [Node(name="a", role="accelerator", place="")], [], where="x")
    for aggregate in (None, True):
        assert "1 accelerator" in " ".join(words(parsed(fabric_svg(fabric, aggregate=aggregate))))


def test_a_dead_accelerator_is_drawn_dashed():
    fabric = clos.build(16, radix=8, bandwidth_Bps=50e9)
    text = fabric_svg(fabric.failed(nodes=np.array([3])))
    assert f'stroke="{FAILED}" stroke-dasharray="4 2"' in text


def test_a_file_follows_the_viewers_scheme():
    text = alone(fabric_svg(clos.build(16, radix=8, bandwidth_Bps=50e9)))
    assert scheme_css() in text
    assert f'[fill="{INK}"]{{fill:{DARK[INK]}}}' in text
    assert ET.fromstring(text).find(f"{SVG}style") is not None
