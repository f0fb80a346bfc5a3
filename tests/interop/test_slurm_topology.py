"""SLURM's topology.yaml and topology.conf, read and written."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.errors import BadInput, Unsupported
from weft.fabric.assemble import Cable, Node, assemble
from weft.fabric.dimension import Dimension
from weft.fabric.families import clos, rail
from weft.fabric.placement import host_names
from weft.interop.slurm_topology import compress, expand, read, write, write_conf

TREE = """---
# two leaves
- topology: main
  cluster_default: true
  tree:
    switches:
    - switch: spine
      children: leaf[0-1]
    - switch: leaf0
      nodes: node[01-04]
    - switch: leaf1
      nodes: "node[05-08]"  # the rest
- topology: racks
  cluster_default: False
  block:
    block_sizes:
      - 4
      - 8
    blocks:
      - block: b1
        nodes: node[01-04]
      - block: b2
        nodes: node[05-08]
- topology: none
  flat: true
"""
CONF = """# comment
SwitchName=leaf0 Nodes=node[01-04] LinkSpeed=100
switchname=leaf1 nodes=node[05-08]
SwitchName=spine Switches=leaf[0-1]
"""


SHOWN = """SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=node[01-04]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=node[05-08]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=node[01-08] Switches=leaf[0-1]
"""
"""What scontrol show topology prints: the nodes of all levels below a switch, too."""


@pytest.mark.parametrize("text", [TREE, CONF, SHOWN])
def test_a_tree(text):
    fabric = read(text)
    assert fabric.names[:8] == tuple(f"node0{i}" for i in range(1, 9))
    assert [len(fabric.nodes_of(role)) for role in ("leaf", "spine")] == [2, 1]
    up = fabric.target == fabric.nodes_of("spine")[0]
    assert fabric.capacity_Bps[up].tolist() == [50e9] * 8
    assert np.bincount(fabric.source[up])[-2:].tolist() == [4, 4]
    assert sorted(set(fabric.tier.tolist())) == [1, 2]


def test_blocks():
    fabric = read(
        TREE.replace("cluster_default: true", "cluster_default: no").replace(
            "cluster_default: False", "cluster_default: true"
        )
    )
    assert fabric.accelerators == 8
    assert [len(fabric.nodes_of(role)) for role in ("leaf", "spine")] == [2, 1]
    assert fabric.domain.tolist() == list(range(8))
    assert read("BlockName=b1 Nodes=n[0-3]\nBlockSizes=4\n").accelerators == 4
    shown = "BlockName=b1 BlockIndex=0 Nodes=n[0-3] BlockSize=4\nAggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[0-3]\n"
    assert read(shown).accelerators == 4


def test_nodes_of_a_cluster():
    cluster = weft.resolve_cluster("h100-64")
    fabric = read(CONF, cluster=cluster, oversubscription=(4.0, 2.0))
    assert (fabric.accelerators, fabric.names[8]) == (64, "node02/gpu0")
    assert set(host_names(fabric)) == {f"node0{i}" for i in range(1, 9)}
    assert fabric.domain.tolist() == [i // 8 for i in range(64)]
    up = fabric.target == fabric.nodes_of("spine")[0]
    assert fabric.capacity_Bps[up].tolist() == [cluster.tiers[1].bandwidth_Bps] * 16
    inside = fabric.tier == 0
    assert set(fabric.capacity_Bps[inside].tolist()) == {cluster.tiers[0].bandwidth_Bps}


@pytest.mark.parametrize("cluster", [None, "h100-64"])
def test_what_is_written_as_conf_is_read_back(cluster):
    fabric = read(CONF, cluster=cluster and weft.resolve_cluster(cluster))
    text = write_conf(fabric)
    assert text == CONF.partition("\n")[2].replace(" LinkSpeed=100", "").replace("switchname", "SwitchName").replace(
        "nodes=", "Nodes="
    ).replace("=spine", "=spine0")
    assert read(text).names[:8] == read(write(fabric)).names[:8] == tuple(f"node0{i}" for i in range(1, 9))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("SwitchName=a Nodes=n[0-", "brackets"),
        ("SwitchName=a Nodes=n[3-1]", "range"),
        ("SwitchName=a Nodes=n[0-99999999]", "more than"),
        ("SwitchName=a Nodes=n[" + "0-99999," * 10_000 + "1]", "more than"),
        ("SwitchName=" + "[" * 100_000, "not a name of a switch"),
        ("SwitchName=a Nodes=n0\nSwitchName=a Nodes=n1", "line 2.*two switches"),
        ("SwitchName=a Switches=b", "no switch 'b'"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a", "above itself"),
        ("SwitchName=a Nodes=n0\nSwitchName=b Nodes=n1", "disconnected"),
        ("SwitchName=leaf0 Nodes=n[0-1]\nSwitchName=leaf1 Nodes=leaf0", "line 1: 'leaf0' is a switch and a node"),
        ("BlockName=a Nodes=n0\nBlockName=b Nodes=a,n1", "line 1: 'a' is a switch and a node"),
        (TREE.replace("node[01-04]", "leaf1", 1), r"switches\[2\]: 'leaf1' is a switch and a node"),
        ("SwitchName=a Nodes=n0\nnonsense", "line 2.*names no switch"),
        ("SwitchName=a", "no nodes below"),
        ("SwitchName=a Nodes=n1" + "a" * 100_000, "longer than 255 characters"),
        (TREE.replace("leaf0\n", "leaf1\n", 1), "two switches are named 'leaf1'"),
        (TREE.replace("switches:", "swiches:"), "no list of switches"),
        (TREE.replace("- switch: leaf1", "- swich: leaf1"), "no switch"),
        (TREE.replace("- topology: racks", "- x: racks"), "not a list of topologies"),
    ],
)
def test_topologies_that_cannot_be_used(text, words):
    with pytest.raises(BadInput, match=words):
        read(text)


def test_a_flat_topology_says_nothing():
    with pytest.raises(Unsupported, match="neither"):
        read("- topology: none\n  flat: true\n")


def test_host_lists():
    assert expand("node[01-03,07],gpu[1-2]x[0-1],login", where="x") == [
        "node01", "node02", "node03", "node07", "gpu1x0", "gpu1x1", "gpu2x0", "gpu2x1", "login",
    ]  # fmt: skip
    assert compress(["n08", "n09", "n10", "n12", "a", "b1"]) == "n[08-10,12],a,b1"


@given(st.lists(st.from_regex(r"[a-z]{1,2}[0-9]{0,3}", fullmatch=True), min_size=1, max_size=20))
def test_compressed_lists_expand_to_the_same(names):
    assert expand(compress(names), where="x") == names


def test_a_fat_tree_is_written_as_it_is():
    domain = Dimension(kind="switch", size=2, bandwidth_Bps=450e9)
    text = write(clos.build(16, radix=8, bandwidth_Bps=50e9, scale_up=domain))
    assert text == (
        "- topology: weft\n  cluster_default: true\n  tree:\n    switches:\n"
        "    - switch: leaf0\n      nodes: node[0-1]\n"
        "    - switch: leaf1\n      nodes: node[2-3]\n"
        "    - switch: leaf2\n      nodes: node[4-5]\n"
        "    - switch: leaf3\n      nodes: node[6-7]\n"
        "    - switch: spine0\n      children: leaf[0-3]\n"
    )
    assert write(read(text)) == text


def test_rails_become_one_leaf_per_group_of_nodes():
    domain = Dimension(kind="switch", size=4, bandwidth_Bps=450e9)
    text = write(rail.only(64, radix=8, bandwidth_Bps=50e9, scale_up=domain))
    assert "- switch: leaf0\n      nodes: node[00-03]\n" in text
    assert text.endswith("- switch: spine0\n      children: leaf[0-3]\n")
    one = write(rail.only(16, radix=8, bandwidth_Bps=50e9, scale_up=domain))
    assert one.endswith("- switch: leaf0\n      nodes: node[0-3]\n")


def test_what_slurm_cannot_hold():
    nodes = [Node(name=str(i), role="accelerator", place="") for i in range(2)]
    fabric = assemble("x", nodes, [Cable(source="0", target="1", capacity_Bps=1, place="")], where="x")
    with pytest.raises(Unsupported):
        write(fabric)
