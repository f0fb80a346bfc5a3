"""Routes on their fabric: links have the colours of their loads, routers one scale."""

import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest

from weft.fabric.families import clos
from weft.routing.plan import plan
from weft.routing.traffic import job_traffic
from weft.views.charts import DARK, FAILED, INK, alone, scheme_css
from weft.views.fabric import LOAD_COLOURS, LOAD_STEPS, fabric_svg, routes_svg

SVG = "{http://www.w3.org/2000/svg}"


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


def test_a_file_follows_the_viewers_scheme():
    text = alone(fabric_svg(clos.build(16, radix=8, bandwidth_Bps=50e9)))
    assert scheme_css() in text
    assert f'[fill="{INK}"]{{fill:{DARK[INK]}}}' in text
    assert ET.fromstring(text).find(f"{SVG}style") is not None
