"""Routes on their fabric: links have the colours of their loads, routers one scale, blocks a frame."""

import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest

from weft.fabric.assemble import levels
from weft.fabric.dimension import Dimension
from weft.fabric.families import clos, dragonfly, rail
from weft.routing.plan import plan
from weft.routing.traffic import job_traffic
from weft.views.charts.fabric import LOAD_COLOURS, LOAD_STEPS, blocks, fabric_svg, routes_svg
from weft.views.charts.palette import DARK, FAILED, INK, alone, scheme_css

SVG = "{http://www.w3.org/2000/svg}"
DOMAIN = Dimension(kind="switch", size=8, bandwidth_Bps=450e9)


def rows(fabric):
    outside = fabric.tier > 0
    pairs = list(zip(fabric.source[outside].tolist(), fabric.target[outside].tolist(), strict=True))
    return np.array(levels(range(fabric.accelerators), fabric.nodes, pairs))


@pytest.fixture(scope="module")
def routed():
    fabric = clos.build(32, radix=8, bandwidth_Bps=50e9)
    fabric = fabric.failed(nodes=fabric.nodes_of("spine")[-1:])
    hosts = np.arange(24)
    traffic = job_traffic(hosts, (hosts + 9) % 32, np.full(24, 1e9))
    return [plan(fabric, traffic, router=name) for name in ("ecmp", "auto")]


def test_every_link_has_the_colour_of_its_load(routed):
    root = ET.fromstring(routes_svg(routed))
    pictures = root.findall(f"{SVG}svg")
    assert len(pictures) == len(routed) == 2
    for picture, one in zip(pictures, routed, strict=True):
        expected = []
        pairs = zip(one.fabric.source.tolist(), one.fabric.target.tolist(), strict=True)
        loads: dict[tuple[int, int], float] = {}
        for (a, b), load, up in zip(pairs, one.load.tolist(), one.fabric.up.tolist(), strict=True):
            key = min(a, b), max(a, b)
            loads[key] = max(loads.get(key, -1.0), load if up else -1.0)
        for load in loads.values():
            step = sum(load > end + 1e-6 for end in LOAD_STEPS)
            expected.append(FAILED if load < 0 else LOAD_COLOURS[step])
        lines = [line for line in picture.iter(f"{SVG}line") if line.get("stroke-width") != "4"]
        assert sorted(line.get("stroke") for line in lines) == sorted(expected)
        assert {line.get("stroke") for line in lines} >= {FAILED, LOAD_COLOURS[2]}
    words = [text.text for text in root.findall(f"{SVG}text")]
    for word, one in zip(words, routed, strict=True):
        assert word.startswith(f"{one.router}: up to {one.alpha:.3g} x")
        over = int((one.load > 1).sum())
        assert (f"{over:,} link" in word) == (over > 0)
    assert routed[1].alpha < routed[0].alpha


def test_pictures_of_routers_lie_one_under_the_other(routed):
    root = ET.fromstring(routes_svg(routed))
    spans = [(int(one.get("y")), int(one.get("y")) + int(one.get("height"))) for one in root.findall(f"{SVG}svg")]
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert spans[-1][1] <= int(root.get("height"))
    assert max(int(one.get("width")) for one in root.findall(f"{SVG}svg")) == int(root.get("width"))
    assert routes_svg(routed) == routes_svg(routed)


def test_blocks_are_groups_and_pods():
    groups = dragonfly.build(4, 2, 2, 9, bandwidth_Bps=50e9, accelerators=72)
    found = blocks(groups, rows(groups))
    assert [len(one) for one in found] == [4] * 9
    tree = clos.build(128, radix=8, bandwidth_Bps=50e9, tiers=3)
    pods = blocks(tree, rows(tree))
    assert len(pods) == 8
    assert all({tree.roles[role] for role in tree.role[one]} == {"leaf", "spine"} for one in pods)
    whole = clos.build(64, radix=16, bandwidth_Bps=50e9)
    for none in (whole, rail.optimized(64, radix=16, bandwidth_Bps=50e9, scale_up=DOMAIN)):
        assert blocks(none, rows(none)) == []


def test_frames_hold_their_switches_and_stand_apart():
    fabric = dragonfly.build(4, 2, 2, 9, bandwidth_Bps=50e9, accelerators=72, scale_up=DOMAIN)
    root = ET.fromstring(fabric_svg(fabric))
    frames = [one for one in root.iter(f"{SVG}rect") if one.get("fill") == "none"]
    spans = sorted((float(one.get("x")), float(one.get("x")) + float(one.get("width"))) for one in frames)
    assert len(spans) == 9
    assert all(a[1] < b[0] for a, b in pairwise(spans))
    routers = [one for one in root.iter(f"{SVG}rect") if (one.findtext(f"{SVG}title") or "").startswith("router")]
    assert len(routers) == 36
    held = [sum(a < float(one.get("x")) + float(one.get("width")) / 2 < b for one in routers) for a, b in spans]
    assert held == [4] * 9
    assert "in 9 groups" in "".join(root.itertext())


def test_a_file_follows_the_viewers_scheme():
    text = alone(fabric_svg(clos.build(16, radix=8, bandwidth_Bps=50e9)))
    assert scheme_css() in text
    assert f'[fill="{INK}"]{{fill:{DARK[INK]}}}' in text
    assert ET.fromstring(text).find(f"{SVG}style") is not None
