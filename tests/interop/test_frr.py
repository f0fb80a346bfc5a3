"""FRR configurations: FRR's own parser, and packets followed switch by switch."""

import re
import shutil
import subprocess
from dataclasses import replace
from ipaddress import IPv4Address

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import BadInput, Unsupported
from weft.fabric.assemble import Cable, Node, assemble
from weft.fabric.families import clos
from weft.fabric.paths import routes
from weft.interop import frr
from weft.interop.plan_paths import ipv4, planned_paths
from weft.interop.routes_json import routes_of_links
from weft.routing.plan import route
from weft.routing.traffic import job_traffic


def parsed(fabric, files):
    """By switch of the fabric: the link of each interface by the address at its far end, and the text.

    The scale-out links of a switch are eth1, eth2, ... in their order; the two addresses of a /31 differ by one bit.
    """
    found = {}
    for node, name in enumerate(frr.host_names(fabric)):
        links = np.flatnonzero((fabric.source == node) & (fabric.tier > 0)).tolist()
        if node < fabric.accelerators:
            continue
        text = files[f"{name}.conf"]
        ports = re.findall(r"^interface eth(\d+)\n description (\S+)\n ip address (\S+)/31", text, re.MULTILINE)
        assert len(ports) == len(links)
        far = {str(IPv4Address(int(IPv4Address(address)) ^ 1)): links[int(port) - 1] for port, _, address in ports}
        assert [frr.host_names(fabric)[fabric.target[link]] for link in links] == [there for _, there, _ in ports]
        found[node] = far, text
    return found


def followed(fabric, files, path):
    """The links of a packet behind its first switch."""
    switches, node, found = parsed(fabric, files), path.nodes[1], []
    while node != path.target:
        far, text = switches[node]
        (gateway,) = re.findall(rf"^ip route {ipv4(path.target)}/32 (\S+)$", text, re.MULTILINE)
        found.append(far[gateway])
        node = int(fabric.target[found[-1]])
    return tuple(found)


@settings(max_examples=8)
@given(st.integers(0, 50), st.sampled_from([(8, 4), (16, 4), (32, 8)]))
def test_packets_follow_the_plan(planned, seed, size):
    """One flow to each destination fits always."""
    fabric, _, _ = planned(size[0], radix=size[1])
    source = np.random.default_rng(seed).permutation(size[0])
    target = np.roll(source, 1)
    traffic = job_traffic(source, target, np.ones(size[0]))
    routed = routes(fabric, source, target, seed=seed)
    files = frr.write(fabric, traffic, routed)
    assert len(files) == fabric.nodes - fabric.accelerators + 1
    for path in planned_paths(fabric, traffic, routed):
        assert followed(fabric, files, path) == path.links[1:]


def test_parallel_links_are_told_apart():
    nodes = [Node(name=name, role=role, place=name) for name, role in NODES]
    cables = [Cable(source=a, target=b, capacity_Bps=1e9, place=a) for a, b in CABLES]
    fabric = assemble("parallel", nodes, cables, where="parallel")
    ends = np.array([0]), np.array([1])
    traffic = job_traffic(*ends, np.ones(1))
    taken = set()
    for seed in range(8):
        routed = routes(fabric, *ends, seed=seed)
        (path,) = planned_paths(fabric, traffic, routed)
        assert followed(fabric, frr.write(fabric, traffic, routed), path) == path.links[1:]
        taken.add(path.links)
    assert len(taken) == 2


NODES = [("a", "accelerator"), ("b", "accelerator"), ("l", "leaf"), ("m", "leaf")]
CABLES = [("a", "l"), ("b", "m"), ("l", "m"), ("l", "m")]


def test_what_routes_by_destination_cannot_pin(planned):
    with pytest.raises(Unsupported, match="split over several paths"):
        frr.write(*planned(8, mode="spray"))
    fabric, _, _ = planned(8)
    source, target = np.array([0, 1]), np.array([6, 6])
    traffic = job_traffic(source, target, np.ones(2))
    both = [routes(fabric, source, target, seed=seed) for seed in range(20)]
    apart = next(r for r in both if r.links[1] // 2 != r.links[5] // 2 and r.links[2] != r.links[6])
    with pytest.raises(Unsupported, match=r"flows to accelerator-6 leave leaf-0 by different links -- plan with"):
        frr.write(fabric, traffic, apart)
    best = route(fabric, traffic, router="destination")
    for path in planned_paths(fabric, traffic, best):
        assert followed(fabric, frr.write(fabric, traffic, best), path) == path.links[1:]


@given(st.integers(1, 40), st.sampled_from([4, 6, 8]))
def test_every_address_is_of_one_end(count, radix):
    fabric = clos.build(count, radix=radix, bandwidth_Bps=1e9)
    none = np.zeros(0, dtype=np.int64)
    files = frr.write(fabric, job_traffic(none, none, np.zeros(0), jobs=()), routes_of_links(fabric, []))
    found = [ipv4(node) for node in range(fabric.nodes)]
    nics = {row.split(",")[2]: row.split(",")[3] for row in files[frr.HOSTS].splitlines()[1:]}
    found += nics
    for far, text in parsed(fabric, files).values():
        assert {end for end, switch in nics.items() if f" ip address {switch}/31\n" in text} == {
            end for end, link in far.items() if fabric.target[link] < fabric.accelerators
        }
        own = re.findall(r"^ ip address (\S+)/31", text, re.MULTILINE)
        assert len(set(own)) == len(far)
        found += own
    assert len(set(found)) == len(found)


def test_names_that_hosts_cannot_have():
    fabric = clos.build(4, radix=4, bandwidth_Bps=1e9)
    odd = ("node0 mlx5_0", "node0-mlx5-0", "7", "x" * 90, *fabric.names[4:])
    names = frr.host_names(replace(fabric, names=odd))
    assert names == ["node0-mlx5-0-0", "node0-mlx5-0-1", "node-2", "node-3", *fabric.names[4:]]


def test_fabrics_that_cannot_be_configured(planned):
    fabric, traffic, routed = planned(8)
    one_way = np.where(np.arange(fabric.links) == fabric.links - 1, 5, fabric.target)
    with pytest.raises(Unsupported, match="no link back"):
        frr.write(replace(fabric, target=one_way), traffic, routed)
    inside = replace(fabric, tier=np.zeros_like(fabric.tier))
    with pytest.raises(BadInput, match="frr: nothing to write"):
        frr.write(inside, traffic, routed)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("vtysh") is None, reason="FRR is not installed")
def test_frr_accepts_what_is_written(planned, tmp_path):
    def code(text):
        path = tmp_path / "frr.conf"
        path.write_text(text)
        return subprocess.run(["vtysh", "-C", "-f", path], capture_output=True, check=False).returncode

    files = frr.write(*planned(16, radix=4, down=(40,)))
    del files[frr.HOSTS]
    assert {name: code(text) for name, text in files.items()} == dict.fromkeys(files, 0)
    assert code(files["leaf-0.conf"].replace("router bgp", "router bpg", 1)) == 2
