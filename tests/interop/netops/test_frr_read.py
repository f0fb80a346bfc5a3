"""FRR configurations read back: the ways that were written, and what configurations do not pin."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import BadInput
from weft.fabric.families import clos
from weft.fabric.paths import routes
from weft.interop.netops import frr
from weft.interop.netops.frr_read import read_ways
from weft.interop.netops.installed import given_bits
from weft.routing.traffic import job_traffic


def same(first, second) -> bool:
    return first.links.tolist() == second.links.tolist() and first.indptr.tolist() == second.indptr.tolist()


@settings(max_examples=15)
@given(st.integers(0, 50), st.sampled_from([(8, 4), (16, 4), (32, 8)]), st.integers(1, 3))
def test_ways_come_back(planned, seed, size, parts):
    """Each flow by its color; without colors by the first path of its pair."""
    fabric, traffic, routed = planned(size[0], radix=size[1], seed=seed, parts=parts)
    text = "\n".join(frr.write(fabric, traffic, routed).values())
    colors = given_bits(frr.colors(fabric, traffic, routed), "color")
    assert same(read_ways(text, fabric, traffic, colors=colors), routed)
    plain = read_ways(text, fabric, traffic)
    first = {}
    for flow, ends in enumerate(zip(traffic.source.tolist(), traffic.target.tolist(), strict=True)):
        path = routed.links[routed.indptr[flow] : routed.indptr[flow + 1]].tolist()
        assert plain.links[plain.indptr[flow] : plain.indptr[flow + 1]].tolist() == first.setdefault(ends, path)


FABRIC = clos.build(8, radix=4, bandwidth_Bps=1e9, tiers=2)
FLOW = job_traffic(np.array([0]), np.array([4]), np.ones(1))
PLAIN = """Building configuration...
frr version 9.1
hostname {a}
interface eth1
 ip address 192.0.2.0/31
exit
ip route 10.9.0.0/16 eth1
line vty
hostname leaf-0
interface up
 ip address 192.0.2.1/31
interface eth7
 ip address 192.0.2.2/31
ip route 10.9.0.0/16 192.0.2.99
ip route 10.9.9.9/32 192.0.2.3 20
hostname spine-1
interface x
 ip address 192.0.2.3/31
interface y
 ip address 192.0.2.4/31
ip route 0.0.0.0/0 192.0.2.5
hostname leaf-2
interface x
 ip address 192.0.2.5/31
interface y
 ip address 192.0.2.6/31
hostname accelerator-4
interface lo
 ip address 10.9.9.9/32
interface z
 ip address 192.0.2.7/31
""".format(a="accelerator-0")


def test_plain_static_routes_of_other_addresses():
    """Longest prefix, gateways by interface, another's port is found at the end of its cable."""
    found = read_ways(PLAIN, FABRIC, FLOW)
    nodes = [FABRIC.names[node] for node in FABRIC.target[found.links]]
    assert nodes == ["leaf-0", "spine-1", "leaf-2", "accelerator-4"]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("ip route 0.0.0.0/0 192.0.2.5\n", "", "nothing static leads on from spine-1; BGP hashes"),
        ("ip route 0.0.0.0/0 192.0.2.5\n", "ip route 0.0.0.0/0 192.0.2.2\n", "goes round in circles"),
        ("10.9.9.9/32 192.0.2.3 20", "10.9.9.9/32 192.0.2.77", "is no live neighbour of leaf-0"),
        ("10.9.9.9/32 192.0.2.3 20", "10.9.9.9/32 192.0.2.3 label 17/18", "spine-1 does not know label 17"),
        (
            "ip route 10.9.9.9/32",
            "ip route 10.9.9.9/32 192.0.2.1\nip route 10.9.9.9/32",
            "has 2 ways to it, and hashes",
        ),
        ("hostname spine-1", "hostname spine-7", "no node spine-7"),
        ("hostname spine-1", "hostname leaf-0", "leaf-0 has two configurations"),
        ("192.0.2.5/31", "192.0.2.500/31", "line 24: ip address 192.0.2.500/31 cannot be read"),
    ],
)
def test_what_pins_nothing(old, new, problem):
    assert old in PLAIN
    with pytest.raises(BadInput, match=re.escape(problem)):
        read_ways(PLAIN.replace(old, new, 1), FABRIC, FLOW)


def test_missing_configurations_and_policies():
    with pytest.raises(BadInput, match="comes to leaf-0, whose configuration is missing"):
        read_ways(PLAIN[PLAIN.index("hostname spine-1") :], FABRIC, FLOW)
    with pytest.raises(BadInput, match="no policy of color 7"):
        read_ways(PLAIN, FABRIC, FLOW, colors={("accelerator-0", "accelerator-4", FLOW.names[0], "0"): 7})
    with pytest.raises(BadInput, match="holds no configuration"):
        read_ways("!\n", FABRIC, FLOW)


def test_configurations_of_switches_alone(planned):
    fabric, traffic, routed = planned(16, radix=4, flows=4)
    crossing = np.flatnonzero(np.diff(routed.indptr) > 2)
    traffic = traffic.select(crossing)
    fewer = routes(fabric, traffic.source, traffic.target, seed=3)
    files = frr.write(fabric, traffic, fewer, headend="leaf")
    text = "\n".join(text for name, text in files.items() if not name.startswith("accelerator"))
    assert same(read_ways(text, fabric, traffic), fewer)


def test_routes_of_a_plan_with_failures():
    ends = np.array([0, 1]), np.array([6, 6])
    traffic = job_traffic(*ends, np.ones(2))
    fabric = FABRIC.failed(nodes=np.array([FABRIC.names.index("spine-0")]))
    routed = routes(fabric, *ends)
    text = "\n".join(frr.write(fabric, traffic, routed).values())
    assert same(read_ways(text, fabric, traffic), routed)
