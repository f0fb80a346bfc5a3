"""Addresses and names are unique, and both ends of a cable agree."""

from dataclasses import replace
from ipaddress import IPv4Interface

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import Unsupported
from weft.fabric.dimension import Dimension
from weft.fabric.families import clos, rail
from weft.interop.netops.addressing import addressing


@settings(max_examples=30)
@given(st.integers(1, 40), st.sampled_from([4, 6, 8]))
def test_everything_is_unique(count, radix):
    fabric = clos.build(count, radix=radix, bandwidth_Bps=1e9)
    plan = addressing(fabric)
    nodes, links = range(fabric.nodes), range(fabric.links)
    every = [plan.ipv4(node) for node in nodes] + [plan.link_ipv4(link) for link in links]
    assert len(set(every)) == len(every)
    assert len(set(plan.names)) == fabric.nodes
    ports = [(node, name) for node, name in zip(fabric.source.tolist(), plan.interfaces, strict=True)]
    assert len(set(ports)) == fabric.links
    for link in links:
        back = plan.reverse[link]
        assert plan.reverse[back] == link
        assert (fabric.source[link], fabric.target[link]) == (fabric.target[back], fabric.source[back])
        assert IPv4Interface(f"{plan.link_ipv4(link)}/31").network == (
            IPv4Interface(f"{plan.gateway_ipv4(link)}/31").network
        )


def test_known_values():
    plan = addressing(clos.build(4, radix=4, bandwidth_Bps=1e9))
    assert plan.ipv4(0) == "10.0.0.1"
    assert (plan.link_ipv4(0), plan.link_ipv4(1)) == ("10.128.0.0", "10.128.0.1")


def test_names_that_hosts_cannot_have():
    fabric = clos.build(4, radix=4, bandwidth_Bps=1e9)
    odd = ("node0 mlx5_0", "node0-mlx5-0", "7", "x" * 90, *fabric.names[4:])
    plan = addressing(replace(fabric, names=odd))
    assert plan.names[:4] == ("node0-mlx5-0-0", "node0-mlx5-0-1", "node-2", "node-3")
    assert plan.names[4:] == fabric.names[4:]


def test_scale_up_links_have_interfaces_of_their_own():
    domain = Dimension(kind="switch", size=4, bandwidth_Bps=450e9)
    fabric = rail.only(8, radix=8, bandwidth_Bps=50e9, scale_up=domain)
    plan = addressing(fabric)
    assert {name[:3] for name, tier in zip(plan.interfaces, fabric.tier, strict=True) if tier == 0} == {"sup"}
    assert {name[:3] for name, tier in zip(plan.interfaces, fabric.tier, strict=True) if tier} == {"eth"}


def test_what_the_ranges_do_not_hold():
    fabric = clos.build(4, radix=4, bandwidth_Bps=1e9)
    with pytest.raises(Unsupported, match="8,388,607 nodes are more than"):
        addressing(replace(fabric, role=np.zeros(2**23 - 1, dtype=np.int64)))
    one_way = replace(fabric, target=np.where(np.arange(fabric.links) == 1, 5, fabric.target))
    with pytest.raises(Unsupported, match="no link back"):
        addressing(one_way)
