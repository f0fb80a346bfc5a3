"""Servers from NCCL's topology XML."""

import numpy as np
import pytest

from weft.errors import BadInput, Unsupported
from weft.interop.nccl_topology import read

PCI = 'class="0x060400" vendor="0x1000" link_speed="32.0 GT/s PCIe" link_width="16"'


def gpu(bus, dev, links, sm=90):
    inner = "".join(f'<nvlink target="{to}" count="{n}" tclass="{tclass}"/>' for to, n, tclass in links)
    return f'<pci busid="{bus}" {PCI}><gpu dev="{dev}" sm="{sm}" rank="{dev}" gdr="1">{inner}</gpu></pci>'


def nic(bus, dev, speed=400000):
    net = f'<net name="mlx5_{dev}" dev="{dev}" speed="{speed}" port="1" guid="0x{dev}" maxconn="131072"/>'
    return f'<pci busid="{bus}" {PCI}><nic>{net}</nic></pci>'


def server(*switches):
    cpus = "".join(f'<cpu numaid="{i}" host_hash="0x1">{"".join(parts)}</cpu>' for i, parts in enumerate(switches))
    return f'<?xml version="1.0"?>\n<system version="1">\n{cpus}\n</system>'


def h100():
    """Two processors, four PCI switches each, an accelerator and a NIC under every switch."""
    cpus = []
    for cpu in range(2):
        parts = []
        for i in range(4 * cpu, 4 * cpu + 4):
            links = [(f"0000:{0xD0 + s:x}:00.0", 5 - s % 2, "0x068000") for s in range(4)]
            inner = gpu(f"0000:{2 * i + 1:x}:00.0", i, links) + nic(f"0000:{2 * i + 2:x}:01.0", i)
            parts.append(f'<pci busid="0000:a{i}:00.0" {PCI}>{inner}</pci>')
        cpus.append(parts)
    return server(*cpus)


def test_eight_accelerators_behind_nvswitches():
    fabric = read(h100())
    assert fabric.accelerators == 8
    assert set(fabric.domain.tolist()) == {0}
    (switch,) = fabric.nodes_of("scale-up")
    inside = fabric.target == switch
    assert fabric.capacity_Bps[inside].tolist() == [18 * 20.6e9] * 8
    assert fabric.cables[inside].tolist() == [18] * 8
    nics = fabric.nodes_of("nic")
    assert len(nics) == 8
    rows = [(s, c) for s, t, c in zip(fabric.source, fabric.target, fabric.capacity_Bps, strict=True) if t in nics]
    assert rows == [(i, 48e9) for i in range(8)], "400 Gb/s, bounded by 16 lanes of PCI 5"
    assert set(fabric.tier.tolist()) == {0}


def test_direct_nvlinks_between_two():
    text = server(
        [gpu("0:01:00.0", 0, [("0:02:00.0", 12, "0x030200")], sm=80)],
        [gpu("0:02:00.0", 1, [("0:01:00.0", 12, "0x030200")], sm=80), nic("0:03:00.0", 0, 100000)],
    )
    fabric = read(text)
    assert fabric.names == ("gpu0", "gpu1", "nic0")
    assert fabric.capacity_Bps.tolist() == [240e9, 240e9, 12.5e9, 12.5e9]
    assert fabric.source.tolist() == [0, 1, 1, 2]


def test_without_nvlink_the_pci_tree_joins():
    parts = f'<pci busid="0:10:00.0" {PCI}>{gpu("0:01:00.0", 0, [])}{gpu("0:02:00.0", 1, [])}</pci>'
    fabric = read(server([parts], [gpu("0:03:00.0", 2, [])]))
    assert fabric.accelerators == 3
    assert len(fabric.nodes_of("pci")) == 1
    assert len(fabric.nodes_of("cpu")) == 2
    assert fabric.capacity_Bps.max() == 48e9


def test_a_nic_is_as_fast_as_the_slowest_link_below_the_bridge_that_it_shares():
    slow = 'link_speed="2.5 GT/s PCIe" link_width="1"'
    shared = f'<pci busid="0:10" class="0x060400" {slow}>{gpu("0:1", 0, [])}{nic("0:2", 0, 200000)}</pci>'
    fabric = read(server([shared]))
    assert fabric.capacity_Bps.tolist() == [25e9] * 2, "IBM's H100 topology: the virtual bridge above both counts not"
    apart = f'<pci busid="0:10" class="0x060400" {slow}>{gpu("0:1", 0, [])}</pci>{nic("0:2", 0, 200000)}'
    assert read(server([apart])).capacity_Bps.max() == 0.6 * 2.5e9 / 8


def device(bus, kind):
    return f'<pci busid="{bus}" class="{kind}" link_speed="16 GT/s" link_width="16"/>'


def test_devices_count_by_their_class_where_the_file_names_none():
    """As Azure's files for ND A100 v4 (azhpc-images, topology/ndv4-topo.xml): two pairs below a bridge."""
    pairs = "".join(device(f"{i}:00.0", "0x030200") + device(f"10{i}:00.0", "0x020700") for i in (1, 2))
    fabric = read(server([f'<pci busid="ff:01.0" {PCI}>{pairs}</pci>'], [device("3:00.0", "0x030200")]))
    assert fabric.accelerators == 3
    nics = fabric.nodes_of("nic")
    assert sorted(fabric.source[np.isin(fabric.target, nics)].tolist()) == [0, 1]
    assert fabric.capacity_Bps[np.isin(fabric.target, nics)].tolist() == [24e9] * 2
    named = server([gpu("0:1", 0, []) + device("0:2", "0x030000") + nic("0:3", 0) + device("0:4", "0x020000")])
    assert read(named).accelerators == 1, "a display adapter beside a named accelerator is none"
    assert len(read(named).nodes_of("nic")) == 1


def test_nvlinks_of_a_virtual_machine_that_lead_to_themselves_are_unknown():
    """As Azure's file for NC A100 v4 (azhpc-images, topology/ncv4-topo.xml)."""
    own = [gpu(f"{i}:1", i, [(f"{i}:1", 12, "0x030200")], sm=80) for i in range(2)]
    fabric = read(server(*own))
    assert fabric.accelerators == 2
    assert len(fabric.nodes_of("cpu")) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid XML"),
        ("\ud800", "not valid XML"),
        (server([gpu("", 0, [])]), "busid"),
        ("<graphs/>", "root"),
        ('<system version="1"/>', "no accelerator"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><system>&a;</system>', "document type"),
        ("<a>" * 100 + "</a>" * 100, "deeply"),
        (server([gpu("0:1", "x", [])]), "dev is 'x'"),
        (server([gpu("0:1", 0, [("0:2", 0, "")])]), "count is 0"),
        (server([gpu("0:1", 0, []), nic("0:2", 0, "fast")]), "speed 'fast'"),
        (server([gpu("0:1", 0, []), nic("0:2", 0), nic("0:2", 1)]), "busid 0:2"),
    ],
)
def test_dumps_that_cannot_be_used(text, words):
    with pytest.raises(BadInput, match=words):
        read(text)


def test_what_is_another_tools_is_named():
    text = server([gpu("0:1", 0, [])])
    with pytest.raises(Unsupported, match="xgmi"):
        read(text.replace("</gpu>", '<xgmi target="0:2" count="1"/></gpu>'))
    two = server([gpu("0:1", 0, [])], [gpu("0:2", 1, [])])
    with pytest.raises(Unsupported, match="several servers"):
        read(two.replace('host_hash="0x1"', 'host_hash="0x2"', 1))
