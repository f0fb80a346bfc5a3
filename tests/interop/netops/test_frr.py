"""FRR configurations: FRR's own parser, our checks, and packets followed label by label."""

import re
import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import Unsupported
from weft.fabric.assemble import Cable, Node, assemble
from weft.fabric.paths import routes
from weft.interop.netops import frr
from weft.interop.netops.addressing import addressing
from weft.interop.netops.plan_paths import planned_paths
from weft.routing.traffic import job_traffic


def followed(fabric, files, source, target, color=None):
    """The nodes that a packet passes: the route's stack, or a policy's, taken off by label-switched paths."""
    plan = addressing(fabric)
    owner = {plan.link_ipv4(link): int(fabric.source[link]) for link in range(fabric.links)}

    def lsp(node, label):
        text = files[f"{plan.names[node]}.conf"]
        return owner[re.search(rf"^mpls lsp {label} (\S+) implicit-null$", text, re.MULTILINE)[1]]

    text = files[f"{plan.names[source]}.conf"]
    if color is None:
        route = re.search(rf"^ip route {plan.ipv4(target)}/32 (\S+) label (\S+)$", text, re.MULTILINE)
        nodes, stack = [source, owner[route[1]]], route[2].split("/")
    else:
        name = re.search(rf"policy color {color} endpoint {plan.ipv4(target)}\n.*\n.*segment-list (\S+)\n", text)[1]
        stack = re.findall(r"label (\d+)", re.search(rf"segment-list {name}\n((?:   .*\n)+)", text)[1])
        nodes = [source]
    for label in stack:
        nodes.append(lsp(nodes[-1], label))
    return tuple(nodes)


@settings(max_examples=15)
@given(st.integers(0, 50), st.sampled_from([(8, 4), (16, 4), (32, 8)]), st.integers(1, 3))
def test_packets_follow_the_plan(planned, seed, size, parts):
    fabric, traffic, routed = planned(size[0], radix=size[1], seed=seed, parts=parts)
    files = frr.write(fabric, traffic, routed)
    assert len(files) == fabric.nodes
    assert not [problem for text in files.values() for problem in frr.lint(text)]
    seen = {}
    for path in planned_paths(fabric, traffic, routed):
        ways = seen.setdefault((path.source, path.target), [])
        ways += [] if path.nodes in ways else [path.nodes]
        color = ways.index(path.nodes) + 1
        assert followed(fabric, files, path.source, path.target, color) == path.nodes
        assert followed(fabric, files, path.source, path.target) == ways[0]


def test_a_leaf_as_headend(planned):
    fabric, traffic, routed = planned(16, radix=4, flows=4)
    files = frr.write(fabric, traffic, routed, headend="leaf")
    assert not [problem for text in files.values() for problem in frr.lint(text)]
    for path in planned_paths(fabric, traffic, routed):
        if len(path.nodes) > 3:
            assert followed(fabric, files, path.nodes[1], path.target) == path.nodes[1:]
    assert "segment-routing" not in files["accelerator-0.conf"]


def test_flows_that_meet_at_a_leaf(planned):
    fabric, _, _ = planned(8)
    source, target = np.array([0, 1]), np.array([6, 6])
    traffic = job_traffic(source, target, np.ones(2))
    both = [routes(fabric, source, target, seed=seed) for seed in range(20)]
    apart = next(r for r in both if r.links[1] // 2 != r.links[5] // 2 and r.links[2] != r.links[6])
    with pytest.raises(Unsupported, match="headend host"):
        frr.write(fabric, traffic, apart, headend="leaf")
    assert frr.write(fabric, traffic, apart)


def test_what_labels_cannot_pin(planned):
    with pytest.raises(Unsupported, match="split over several paths"):
        frr.write(*planned(8, mode="spray"))
    nodes = [Node(name=name, role=role, place=name) for name, role in NODES]
    cables = [Cable(source=a, target=b, capacity_Bps=1e9, place=a) for a, b in CABLES]
    fabric = assemble("parallel", nodes, cables, where="parallel")
    ends = np.array([0]), np.array([1])
    with pytest.raises(Unsupported, match=r"several links join .* -- steer by source ports"):
        frr.write(fabric, job_traffic(*ends, np.ones(1)), routes(fabric, *ends))


NODES = [("a", "accelerator"), ("b", "accelerator"), ("l", "leaf"), ("m", "leaf")]
CABLES = [("a", "l"), ("b", "m"), ("l", "m"), ("l", "m")]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("implicit-null", "implicit", "is not known here"),
        ("/32", "0000/32", "is no address"),
        ("mpls label 16", "mpls label 9916", "not in 16 to 1048575"),
        ("mpls label 16", "mpls label " + "9" * 4301, "is not known here"),
        ("explicit segment-list a", "explicit segment-list b", "there is no segment list"),
        ("\nend\n", "\n", "does not come to its end"),
        (" mpls enable\nexit", " mpls enable", "is not known here"),
        ("router bgp", "router ospf", "is not known here"),
    ],
)
def test_what_the_check_finds(planned, old, new, words):
    text = next(t for t in frr.write(*planned(8)).values() if "segment-routing" in t)
    assert old in text
    assert words in " ".join(frr.lint(text.replace(old, new, 1)))


def test_more_that_the_check_finds(planned):
    text = next(t for t in frr.write(*planned(8)).values() if "segment-routing" in t)
    line = re.search(r"mpls lsp .*\n", text)[0]
    assert "given twice" in " ".join(frr.lint(text.replace(line, line + line)))
    stack = re.search(r"label (\d+(?:/\d+)*)\n", text)[1]
    assert "more than 16" in " ".join(frr.lint(text.replace(stack, "/".join(["17"] * 17), 1)))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("vtysh") is None, reason="FRR is not installed")
def test_frr_accepts_what_is_written(planned, tmp_path):
    def parsed(text):
        path = tmp_path / "frr.conf"
        path.write_text(text)
        return subprocess.run(["vtysh", "-C", "-f", path], capture_output=True, check=False).returncode

    for headend in ("host", "leaf"):
        files = frr.write(*planned(16, radix=4, flows=8, down=(40,)), headend=headend)
        assert {name: parsed(text) for name, text in files.items()} == dict.fromkeys(files, 0)
    text = files["leaf-0.conf"]
    assert parsed(text.replace("implicit-null", "implicit-nothing", 1)) == 2
    assert parsed(text.replace("router bgp", "router bpg", 1)) == 2
