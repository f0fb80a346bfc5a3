"""Containerlab topologies: ours read back, other people's, and what is refused."""

import contextlib
import json
import os
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import BadInput, Unsupported, WeftError
from weft.fabric.dimension import Dimension
from weft.fabric.families import clos, rail
from weft.fabric.spec import Fabric
from weft.interop.fabrics.containerlab import lint, read, write, write_lab
from weft.interop.fabrics.formats import read_fabric
from weft.interop.text.yaml import parse_yaml

LAB = """
# a lab as people write them
name: two
mgmt:
  network: mgmt
topology:
  defaults:
    kind: nokia_srlinux
  kinds:
    nokia_srlinux:
      image: ghcr.io/nokia/srlinux:24.10
    linux:
      image: alpine:3
  nodes:
    leaf1:
      type: ixrd3
    leaf2:
    spine1:
      kind: linux
      image: quay.io/frrouting/frr:10.2.1
    h1:
      kind: linux
      exec:
        - ip addr add 10.0.0.1/24 dev eth1
    h2:
      kind: cisco_n9kv
      group: server
  links:
    - endpoints: ["leaf1:e1-1", "h1:eth1"]
      labels:
        speed: 100 Gb/s
    - endpoints: [ "leaf2:e1-1", 'h2:eth1' ]
    - endpoints:
        - leaf1:e1-49
        - spine1:eth1
    - type: veth
      endpoints:
        - node: leaf2
          interface: e1-49
        - node: spine1
          interface: eth2
    - endpoints: ["leaf1:mgmt0", "host:veth1"]
    - type: mgmt-net
      endpoint:
        node: leaf2
        interface: mgmt0
"""


def assert_equal(one, other):
    for field in fields(Fabric):
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert (a.tolist() if isinstance(a, np.ndarray) else a) == (b.tolist() if isinstance(b, np.ndarray) else b), (
            field.name
        )


def test_a_lab_of_other_tools():
    fabric = read(LAB, capacity_Bps=5e9)
    assert fabric.name == "two"
    assert fabric.names == ("h1", "h2", "leaf1", "leaf2", "spine1")
    assert [fabric.roles[role] for role in fabric.role] == ["accelerator"] * 2 + ["leaf"] * 2 + ["spine"]
    assert fabric.capacity_Bps[::2].tolist() == [12.5e9, 5e9, 5e9, 5e9]
    with pytest.raises(BadInput, match=r"links\[1\]: has no capacity -- .*capacity_Bps"):
        read(LAB)


BLOCKS = """
name: blocks
topology:
  defaults: {kind: nokia_srlinux}
  kinds:
    linux: {image: "ghcr.io/hellt/network-multitool"}
  nodes:
    leaf:
      startup-config: |
        set / interface ethernet-1/1 admin-state enable
        set / interface ethernet-1/1 subinterface 0 description "to: h1"
    h1:
      kind: linux
      exec:
        - >-
          bash -c "ip address add 10.0.0.1/24 dev eth1;
          ip route add default via 10.0.0.254"
    h2: {kind: linux, exec: ["ip address add 10.0.0.2/24 dev eth1"]}
  links:
    - {endpoints: ["h1:eth1", "leaf:e1-1"], labels: {speed: 100 Gb/s}}
    - endpoints: [
        "h2:eth1",
        "leaf:e1-2"
      ]
"""


def test_labs_with_block_texts_and_braces():
    fabric = read(BLOCKS, capacity_Bps=1e9)
    assert fabric.names[:2] == ("h1", "h2")
    assert fabric.accelerators == 2
    assert fabric.capacity_Bps.tolist() == [12.5e9, 12.5e9, 1e9, 1e9]


@settings(max_examples=20)
@given(st.integers(1, 40), st.sampled_from([4, 6, 8]))
def test_round_trips(count, radix):
    fabric = clos.build(count, radix=radix, bandwidth_Bps=50e9 / 3)
    text = write(fabric)
    assert lint(text) == ()
    assert_equal(read(text), fabric)


def test_domains_failures_and_odd_names_round_trip(tmp_path):
    domain = Dimension(kind="switch", size=4, bandwidth_Bps=450e9, latency_s=5e-7)
    fabric = rail.only(32, radix=8, bandwidth_Bps=50e9, scale_up=domain).failed(nodes=np.array([1]))
    fabric = replace(fabric, names=("node0 mlx5_0", *fabric.names[1:]))
    text = write(fabric)
    assert_equal(read(text), fabric)
    (tmp_path / "lab.clab.yml").write_text(text)
    assert_equal(read_fabric(tmp_path / "lab.clab.yml"), fabric)
    (tmp_path / "lab.clab.yml").write_text(LAB)
    assert read_fabric(tmp_path / "lab.clab.yml", capacity_Bps=1e9).accelerators == 2


NODE_NAME, LAB_NAME = r"[a-zA-Z0-9][a-zA-Z0-9-._|]*", r"[a-zA-Z0-9][a-zA-Z0-9-._]*"
"""Patterns of containerlab's schema (schemas/clab.schema.json of srl-labs/containerlab)."""


def test_labs_keep_to_containerlabs_schema(planned):
    """Names without spaces; labels on links of type veth alone, whose ends are tables; texts in all labels."""
    fabric, traffic, routed = planned(8)
    fabric = replace(fabric, name="_ InfiniBand fabric 1:2", names=("node0 mlx5_0", *fabric.names[1:]))
    for text in (write(fabric), write_lab(fabric, traffic, routed)["lab.clab.yml"]):
        lab = parse_yaml(text, where="lab")
        assert set(lab) == {"name", "topology"}
        assert re.fullmatch(LAB_NAME, lab["name"])
        assert set(lab["topology"]) <= {"defaults", "nodes", "links"}
        for name, row in lab["topology"]["nodes"].items():
            assert re.fullmatch(NODE_NAME, name)
            assert set(row) <= {"kind", "image", "labels", "binds", "exec"}
            assert all(row["labels"].values())
        for link in lab["topology"]["links"]:
            assert set(link) == {"type", "endpoints", "labels"}
            assert link["type"] == "veth"
            assert [set(end) for end in link["endpoints"]] == [{"node", "interface"}] * 2
            assert {end["node"] for end in link["endpoints"]} <= set(lab["topology"]["nodes"])
        assert read(text).name == fabric.name


@pytest.mark.slow
def test_labs_pass_containerlabs_schema(planned):
    """With WEFT_CLAB_SCHEMA, the path of schemas/clab.schema.json of srl-labs/containerlab."""
    jsonschema = pytest.importorskip("jsonschema")
    path = os.environ.get("WEFT_CLAB_SCHEMA")
    if path is None:
        pytest.skip("WEFT_CLAB_SCHEMA does not name the schema")
    check = jsonschema.Draft202012Validator(json.loads(Path(path).read_text()))
    fabric, traffic, routed = planned(8)
    fabric = replace(fabric, name="InfiniBand fabric")
    for text in (write(fabric), write_lab(fabric, traffic, routed)["lab.clab.yml"]):
        assert [error.message for error in check.iter_errors(yaml.safe_load(text))] == []


def test_a_lab_that_follows_a_plan(planned):
    fabric, traffic, routed = planned(8)
    files = write_lab(fabric, traffic, routed)
    assert_equal(read(files["lab.clab.yml"]), fabric)
    assert set(files) == {"lab.clab.yml", "frr/daemons", *(f"frr/{name}.conf" for name in fabric.names)}
    assert "frr/leaf-0.conf:/etc/frr/frr.conf" in files["lab.clab.yml"]
    assert "net.mpls.conf.eth4.input=1" in files["lab.clab.yml"]
    assert "net.mpls.conf.eth5.input" not in files["lab.clab.yml"]


def test_what_cannot_be_written():
    fabric = clos.build(4, radix=4, bandwidth_Bps=1e9)
    uneven = replace(fabric, capacity_Bps=np.arange(1, fabric.links + 1) * 1e9)
    with pytest.raises(Unsupported, match="two directions of"):
        write(uneven)
    with pytest.raises(Unsupported, match="cannot be written plainly"):
        write(replace(fabric, name='a "b"'))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("topology:\n", "topologie:\n", "topology is no table"),
        ("  nodes:\n", "  knoten:\n", "topology.nodes is no table"),
        ("  links:\n", "  cables:\n", "topology.links is no list"),
        ('"leaf1:e1-1"', '"leaf9:e1-1"', "no node 'leaf9'"),
        ('"leaf1:e1-1"', '"leaf1"', "not node:interface"),
        ('"leaf1:e1-1", ', "", "no list of two"),
        ("leaf1:e1-49", "leaf1:e1-1", r"leaf1:e1-1 is used by links\[0\] already"),
        ("speed: 100 Gb/s", "speed: fast", "is not a quantity"),
        ("speed: 100 Gb/s", "weft-capacity-Bps: fast", "is not a finite number"),
        ("speed: 100 Gb/s", "weft-cables: 0", "weft-cables is 0"),
        ("speed: 100 Gb/s", "weft-up: maybe", "weft-up is 'maybe'"),
        ("    leaf2:\n", "    leaf2: {\n", "not valid YAML.*write lists and tables out"),
        ("    leaf2:\n", "    leaf2: &x\n", "anchors are refused"),
        ("      labels:\n        speed: 100 Gb/s", "      labels: [fast]", "labels are no table"),
        ("    leaf2:\n", "    leaf2: text\n", "nodes.leaf2 is no table"),
        ("        - spine1:eth1", "        - h1:eth2", "disconnected"),
    ],
)
def test_labs_that_cannot_be_used(old, new, words):
    assert old in LAB
    text = LAB.replace(old, new, 1)
    with pytest.raises(BadInput, match=words):
        read(text, capacity_Bps=1e9)
    assert lint(text)


def test_interfaces_with_long_names():
    text = write(clos.build(4, radix=4, bandwidth_Bps=1e9)).replace(
        'interface: "eth1"', 'interface: "ethernet-1/1/1/1/1"', 1
    )
    assert "no name of an interface" in " ".join(lint(text))


@given(st.integers(0, 1200), st.integers(0, 40), st.text(alphabet='[]:"- \nlinkes01', max_size=20))
def test_changed_labs_give_a_fabric_or_an_error(at, length, inserted):
    with contextlib.suppress(WeftError):
        assert read(LAB[:at] + inserted + LAB[at + length :], capacity_Bps=1e9).accelerators >= 1
