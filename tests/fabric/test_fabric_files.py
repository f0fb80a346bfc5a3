"""Our own files of fabrics: exact round trips, and messages that name what is wrong."""

import json
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import BadInput
from weft.fabric.dimension import Dimension
from weft.fabric.families import clos, rail
from weft.fabric.files import fabric_from_json, fabric_from_toml, fabric_to_json
from weft.fabric.spec import Fabric

DOMAIN = Dimension(kind="switch", size=4, bandwidth_Bps=450e9, latency_s=5e-7)
SMALL = """
schema = "weft.fabric/1"
name = "small"
nodes = [
  { name = "leaf", role = "leaf" },
  { name = "a", role = "accelerator" },
  { name = "b", role = "accelerator" },
]
links = [
  { source = "a", target = "leaf", capacity = "400 Gb/s", latency = "1 us" },
  { source = "b", target = "leaf", capacity = 25e9, cables = 2, up = false },
]
"""


def assert_equal(one: Fabric, other: Fabric):
    for field in fields(Fabric):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            assert a.tolist() == b.tolist(), field.name
        else:
            assert a == b, field.name


def examples():
    tree = clos.build(32, radix=8, bandwidth_Bps=50e9 / 3, scale_up=DOMAIN)
    rails = rail.only(32, radix=8, bandwidth_Bps=50e9, scale_up=DOMAIN)
    one_way = np.ones(tree.links, dtype=bool)
    one_way[7] = False
    return [tree, rails, rails.failed(nodes=np.array([0])), Fabric(**as_dict(tree) | {"up": one_way})]


def as_dict(fabric):
    return {field.name: getattr(fabric, field.name) for field in fields(Fabric)}


@pytest.mark.parametrize("number", range(4))
def test_round_trips_are_exact(number):
    fabric = examples()[number]
    assert_equal(fabric_from_json(fabric_to_json(fabric)), fabric)


@given(st.data())
def test_any_connected_graph_round_trips(data):
    count = data.draw(st.integers(1, 6))
    links = [
        {
            "source": f"n{i}",
            "target": f"n{data.draw(st.integers(0, i - 1))}",
            "capacity": data.draw(st.floats(1e-3, 1e14)),
            "latency": data.draw(st.floats(0, 1)),
            "cables": data.draw(st.integers(1, 100)),
            "both": True,
        }
        for i in range(1, count)
    ]
    roles = ["accelerator", *(data.draw(st.sampled_from(["accelerator", "leaf", "scale-up"])) for _ in links)]
    nodes = [{"name": f"n{i}", "role": role} for i, role in enumerate(roles)]
    table = {"schema": "weft.fabric/1", "name": "x", "nodes": nodes, "links": links}
    fabric = fabric_from_json(json.dumps(table))
    assert_equal(fabric_from_json(fabric_to_json(fabric)), fabric)


def test_cables_of_a_link_are_links_and_hashed_as_such(tmp_path):
    """The same network with the cables of a pair as one entry and as one each: the same fabric, so the same routes."""
    nodes = [{"name": f"g{i}", "role": "accelerator"} for i in range(8)]
    nodes += [{"name": name, "role": role} for name, role in (("a", "leaf"), ("b", "leaf"), ("s", "spine"))]
    nics = [{"source": f"g{i}", "target": "ab"[i // 4], "capacity": 50e9} for i in range(8)]
    up = [{"source": leaf, "target": "s", "capacity": 50e9} for leaf in "ab"]
    head = {"schema": "weft.fabric/1", "name": "x", "nodes": nodes}
    bundles = [link | {"capacity": 200e9, "cables": 4} for link in up]
    found = fabric_from_json(json.dumps(head | {"links": nics + bundles}))
    assert_equal(found, fabric_from_json(json.dumps(head | {"links": nics + [up[0]] * 4 + [up[1]] * 4})))
    assert np.bincount(found.source)[8:].tolist() == [8, 8, 8]
    inside = fabric_from_json(json.dumps(head | {"links": [*nics, *up, bundles[0] | {"source": "g0", "tier": 0}]}))
    assert sorted(inside.cables.tolist()) == [1] * 20 + [4, 4]


def test_more_cables_than_fit_are_refused():
    links = [{"source": "a", "target": "l", "capacity": 1.0, "cables": 1_000_000}] * 9
    nodes = [{"name": "a", "role": "accelerator"}, {"name": "l", "role": "leaf"}]
    table = {"schema": "weft.fabric/1", "name": "x", "nodes": nodes, "links": links}
    with pytest.raises(BadInput, match="2 nodes and 9,000,000 cables are too many"):
        fabric_from_json(json.dumps(table))


def test_a_small_file():
    fabric = fabric_from_toml(SMALL)
    assert fabric.names == ("a", "b", "leaf")
    assert fabric.capacity_Bps.tolist() == [50e9, 50e9, *[12.5e9] * 4]
    assert fabric.target.tolist() == [2, 0, 2, 1, 2, 1]
    assert fabric.tier.tolist() == [1] * 6
    assert fabric.up.tolist() == [True, True, *[False] * 4]
    assert fabric.domain.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"400 Gb/s"', "0", r"links\[0\] \(a - leaf\): capacity is 0"),
        ('"400 Gb/s"', '"-1 Gb/s"', "capacity"),
        ('"400 Gb/s"', '"400 G"', "capacity"),
        ('"400 Gb/s"', "nan", r"links\[0\]"),
        ('"400 Gb/s"', "inf", r"links\[0\]"),
        ('"400 Gb/s"', '"1e30 Gb/s"', "capacity is"),
        ('"1 us"', "-1", "latency is -1"),
        ('"1 us"', '"2 h"', "latency is 7200"),
        ('target = "leaf", capacity = 25e9', 'target = "x", capacity = 25e9', "no node 'x'"),
        ('source = "b"', 'source = "leaf"', "itself"),
        ('name = "b"', 'name = "a"', "two nodes are named 'a'"),
        ('role = "accelerator"', 'role = "spine"', "no accelerator"),
        ("cables = 2", "cables = 0", "cables"),
        ("cables = 2", "cable = 2", "did you mean cables"),
        ("up = false", "up = 3", "up"),
        ('  { source = "b"', '  #{ source = "b"', "disconnected: no path joins a with 1 nodes: b"),
        ('"weft.fabric/1"', '"weft.fabric/9"', "schema"),
        ("nodes = [", "nodes = [[", "TOML"),
        ('name = "leaf"', 'name = "le\\u0007af"', "control character"),
    ],
)
def test_messages_name_what_is_wrong(old, new, words):
    assert old in SMALL
    with pytest.raises(BadInput, match=words):
        fabric_from_toml(SMALL.replace(old, new))


def test_a_generator():
    text = """schema = "weft.fabric/1"
name = "mine"
generator = { kind = "rail-only", cluster = "h100-64", radix = 8 }
"""
    fabric = fabric_from_toml(text)
    assert (fabric.accelerators, len(fabric.nodes_of("rail"))) == (64, 8)
    for old, new in (("rail-only", "rail-ony"), ("h100-64", "h100-x"), ("radix = 8", "radix = 7.5")):
        with pytest.raises(BadInput, match="generator"):
            fabric_from_toml(text.replace(old, new))
